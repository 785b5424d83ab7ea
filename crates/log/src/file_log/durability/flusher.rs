//! The thread that syncs appends of `Durability::Buffered`. It sleeps while there are none.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use plimsoll_disk::thread;

use crate::durability::BUFFERED_DELAY;
use crate::error::LogError;

/// With this many unsynced bytes the thread syncs at once. (Appends write out the buffer themselves
/// when half of it is full.) A smaller value means more syncs, each of which takes processor time
/// from the appends; a larger value makes each sync longer.
const UNSYNCED_BYTES_MAX: u64 = 2 << 20;

/// The signal that the thread waits for.
#[derive(Debug, Default)]
pub(crate) struct FlushSignal {
    state: Mutex<State>,
    changed: Condvar,
    running: bool,
}

#[derive(Debug, Default)]
struct State {
    unsynced_bytes: u64,
    stop: bool,
}

impl FlushSignal {
    /// The signal; `running`: whether there is a thread.
    pub(crate) fn new(running: bool) -> Self {
        Self { running, ..Self::default() }
    }

    /// Counts `bytes` appended bytes.
    pub(crate) fn unsynced(&self, bytes: u64) {
        if self.running {
            let mut state = self.state();
            let before = state.unsynced_bytes;
            state.unsynced_bytes += bytes;
            let must_wake = must_wake(before, state.unsynced_bytes);
            drop(state);
            if must_wake {
                self.changed.notify_one();
            }
        }
    }

    /// Requests a sync at once.
    pub(crate) fn due(&self) {
        self.unsynced(UNSYNCED_BYTES_MAX);
    }

    fn stop(&self) {
        self.state().stop = true;
        self.changed.notify_one();
    }

    /// Waits until a sync is due; returns the number of bytes to sync, or `None` to stop.
    fn wait(&self) -> Option<u64> {
        let state = self.state();
        let state = self
            .changed
            .wait_while(state, |state| state.unsynced_bytes == 0 && !state.stop)
            .unwrap_or_else(PoisonError::into_inner);
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, BUFFERED_DELAY, |state| {
                state.unsynced_bytes < UNSYNCED_BYTES_MAX && !state.stop
            })
            .unwrap_or_else(PoisonError::into_inner);
        let bytes = std::mem::take(&mut state.unsynced_bytes);
        (!state.stop).then_some(bytes)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The running thread; stopped and joined on drop.
#[derive(Debug)]
pub(crate) struct Flusher {
    signal: Arc<FlushSignal>,
    thread: Option<JoinHandle<()>>,
}

impl Flusher {
    /// Starts a thread that calls `sync` whenever `signal` reports that a sync is due, and calls it
    /// again if it returns false.
    pub(crate) fn start(
        signal: &Arc<FlushSignal>,
        sync: impl Fn() -> bool + Send + 'static,
    ) -> Result<Self, LogError> {
        let shared = Arc::clone(signal);
        let body = move || {
            while let Some(bytes) = shared.wait() {
                if !sync() {
                    shared.unsynced(bytes);
                }
            }
        };
        Ok(Self { signal: Arc::clone(signal), thread: Some(thread::spawn("plimsoll-log", body)?) })
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.signal.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether to wake the thread when the unsynced bytes rise from `before` to `now`.
fn must_wake(before: u64, now: u64) -> bool {
    before == 0 || (before < UNSYNCED_BYTES_MAX && now >= UNSYNCED_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_thread_is_woken_by_the_first_bytes_and_by_many_bytes() {
        let many = UNSYNCED_BYTES_MAX;
        assert!(must_wake(0, 1) && must_wake(many - 1, many) && must_wake(1, 2 * many));
        assert!(!must_wake(1, many - 1) && !must_wake(many, 2 * many));
    }

    #[test]
    fn a_sync_that_timed_out_waiting_for_another_process_is_retried() {
        let signal = Arc::new(FlushSignal::new(true));
        let (tried, tries) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        let flusher = Flusher::start(&signal, move || {
            tried.send(()).unwrap();
            answers.recv().unwrap()
        });
        signal.unsynced(100);
        for is_synced in [false, true] {
            tries.recv_timeout(Duration::from_secs(60)).unwrap();
            answer.send(is_synced).unwrap();
        }
        assert!(tries.recv_timeout(Duration::from_millis(100)).is_err());
        drop(flusher);
    }
}
