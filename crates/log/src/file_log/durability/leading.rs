//! Threads that wait for the same thing. The first one leads: it does what all wait for, and wakes
//! the others.
//!
//! Before, it gives the threads of the last group a moment to come back ([`GATHER_NANOS`]); if none
//! of them is missing it does not wait. There is no timer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

use plimsoll_disk::clock::Clock;

use crate::error::LogError;

/// The longest that a leader waits for the threads of the last group.
const GATHER_NANOS: u64 = 50_000;

/// Yields after which it goes on anyway: a simulated clock may not advance.
const GATHER_YIELDS: u32 = 2_000;

/// The waiting threads, and whether one of them leads.
#[derive(Debug, Default)]
pub(crate) struct Leading {
    state: Mutex<State>,
    over: Condvar,
    /// Threads that have come since the last group was gathered.
    arrived: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    leading: bool,
    /// Expected size of the next group.
    expected: usize,
    /// The groups that were begun.
    groups: u64,
    /// The last one that waited too long for another process, and its error.
    stalled: Option<(u64, LogError)>,
}

impl Leading {
    /// Waits until there is an `outcome`, which is asked under a lock of this type. Calls `lead`,
    /// without it, if this thread leads a group.
    ///
    /// # Errors
    /// Those of the outcome and of this thread's `lead`; `Stalled` also of another thread's, if it
    /// was begun since.
    pub(crate) fn wait(
        &self,
        outcome: &dyn Fn() -> Option<Result<(), LogError>>,
        clock: &dyn Clock,
        lead: &dyn Fn() -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        self.arrived.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
        let before = state.groups;
        loop {
            if let Some(outcome) = outcome() {
                return outcome;
            }
            // Of a group that was begun since: this thread has waited as long. Each by itself, the
            // last of many would wait for the patience of all.
            if let Some((_, stalled)) = state.stalled.as_ref().filter(|(group, _)| *group > before)
            {
                return Err(stalled.clone());
            }
            if state.leading {
                state = self.over.wait(state).expect("no code under this lock panics");
                continue;
            }
            state.leading = true;
            state.groups += 1;
            let expected = state.expected;
            drop(state);
            self.gather(expected, clock);
            let group = self.arrived.swap(0, Ordering::Relaxed);
            let led = lead();
            state = self.state();
            state.leading = false;
            state.expected = group + self.arrived.load(Ordering::Relaxed);
            self.over.notify_all();
            match led {
                Err(stalled @ LogError::Stalled { .. }) => {
                    state.stalled = Some((state.groups, stalled))
                }
                led => led?,
            }
        }
    }

    /// Lets all that wait look for an outcome.
    pub(crate) fn wake(&self) {
        // Locked: a thread that has looked and does not wait yet is not missed.
        let _state = self.state();
        self.over.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code under this lock panics")
    }

    /// Gives the threads of the last group time to come back.
    fn gather(&self, expected: usize, clock: &dyn Clock) {
        if self.arrived.load(Ordering::Relaxed) >= expected {
            return;
        }
        let start = clock.monotonic_nanos();
        for _ in 0..GATHER_YIELDS {
            std::thread::yield_now();
            let enough = self.arrived.load(Ordering::Relaxed) >= expected;
            if enough || clock.monotonic_nanos() - start > GATHER_NANOS {
                return;
            }
        }
    }
}
