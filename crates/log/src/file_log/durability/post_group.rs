//! The threads of a process that wait for the answers to their posts (`file_log::shared::posting`).
//!
//! The first one leads: it sees to it that the posts of all are ordered and synced, or waits until another process has done that. Then it wakes the
//! others.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use plimsoll_disk::clock::Clock;

use crate::error::LogError;
use crate::file_log::durability::group_commit::gather;

/// The waiting threads, and whether one of them leads.
#[derive(Debug, Default)]
pub(crate) struct PostGroup {
    state: Mutex<State>,
    led: Condvar,
    /// Threads that have come to wait for the next leader.
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

impl PostGroup {
    /// Waits until `is_over`. Calls `lead` if this thread leads a group.
    ///
    /// # Errors
    /// Those of `lead`; `Stalled` also if the thread that led has waited too long for another process.
    pub(crate) fn wait(
        &self,
        is_over: &dyn Fn() -> bool,
        clock: &dyn Clock,
        lead: &dyn Fn() -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        self.arrived.fetch_add(1, Ordering::Relaxed);
        let lock = || self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = lock();
        let before = state.groups;
        loop {
            if is_over() {
                return Ok(());
            }
            // Of a group that was begun since: this thread has waited as long.
            if let Some((_, stalled)) = state.stalled.as_ref().filter(|(group, _)| *group > before) {
                return Err(stalled.clone());
            }
            if state.leading {
                state = self.led.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.leading = true;
            state.groups += 1;
            let expected = state.expected;
            drop(state);
            gather(&self.arrived, expected, clock);
            let group = self.arrived.swap(0, Ordering::Relaxed);
            let led = lead();
            state = lock();
            state.leading = false;
            state.expected = group + self.arrived.load(Ordering::Relaxed);
            if let Err(stalled @ LogError::Stalled { .. }) = &led {
                state.stalled = Some((state.groups, stalled.clone()));
            }
            self.led.notify_all();
            led?;
        }
    }
}
