//! Threads that wait for the same event. The first thread leads: it does the work that all of them
//! wait for, and then wakes the others.
//!
//! Before that, the leader gives the threads of the last group a short time to return
//! ([`GATHER_NANOS`]); if all of them have arrived, it does not wait. There is no timer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

use plimsoll_disk::clock::Clock;

use crate::error::LogError;

/// The longest time for which a leader waits for the threads of the last group.
const GATHER_NANOS: u64 = 50_000;

/// The number of yields after which the leader continues anyway, because a simulated clock might
/// not advance.
const GATHER_YIELDS: u32 = 2_000;

/// The waiting threads, and whether one of them leads.
#[derive(Debug, Default)]
pub(crate) struct Leading {
    state: Mutex<State>,
    over: Condvar,
    /// Threads that have arrived since the last group was gathered.
    arrived: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    leading: bool,
    /// Expected size of the next group.
    expected: usize,
    /// The number of groups that were begun.
    groups: u64,
    /// The last group whose leader timed out waiting for another process, and its error.
    stalled: Option<(u64, LogError)>,
}

impl Leading {
    /// Waits until there is an `outcome`, which is checked under the lock that this type holds. If
    /// this thread leads a group, calls `lead` without holding that lock.
    ///
    /// # Errors
    /// Those of the outcome and of this thread's `lead`; also `Stalled` of another thread's `lead`
    /// that began since this call.
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
            // A leader that began after this call has timed out, so this thread has waited for the
            // whole timeout as well. If each thread retried, the last of many would wait for the
            // sum of all timeouts.
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

    /// Wakes all waiters, so that each checks for an outcome.
    pub(crate) fn wake(&self) {
        // Locked, so that a thread that has checked and is about to wait is not missed.
        let _state = self.state();
        self.over.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code under this lock panics")
    }

    /// Gives the threads of the last group time to return.
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
