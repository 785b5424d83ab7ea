//! Syncs what `Durability::Buffered` leaves unsynced. The thread sleeps until there is something.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use plimsoll_disk::thread;
use plimsoll_memory::chunk::CHUNK_BYTES;

use crate::error::LogError;
use crate::file_log::tail::buffer::CHUNKS_MAX;
use crate::log::BUFFERED_DELAY;

/// From so many unsynced bytes on, the thread does not wait any longer: half of what the buffer holds, so that those who append have the
/// other half, and soon all of it, while it writes and syncs. Where it came when the buffer is full, they would wait for its sync.
const UNSYNCED_BYTES_MAX: u64 = (CHUNKS_MAX / 2 * CHUNK_BYTES) as u64;

/// What the thread waits for.
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
    /// A signal to a thread that is going to run, or to nobody.
    pub(crate) fn new(running: bool) -> Self {
        Self { running, ..Self::default() }
    }

    /// So many bytes were appended.
    pub(crate) fn unsynced(&self, bytes: u64) {
        if self.running {
            let mut state = self.state();
            let before = state.unsynced_bytes;
            state.unsynced_bytes += bytes;
            let is_news = is_news(before, state.unsynced_bytes);
            drop(state);
            if is_news {
                self.changed.notify_one();
            }
        }
    }

    fn stop(&self) {
        self.state().stop = true;
        self.changed.notify_one();
    }

    /// Waits until it is time to sync; `false` if it is time to go.
    fn wait(&self) -> bool {
        let state = self.state();
        let state = self
            .changed
            .wait_while(state, |state| state.unsynced_bytes == 0 && !state.stop)
            .unwrap_or_else(PoisonError::into_inner);
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, BUFFERED_DELAY, |state| state.unsynced_bytes < UNSYNCED_BYTES_MAX && !state.stop)
            .unwrap_or_else(PoisonError::into_inner);
        state.unsynced_bytes = 0;
        !state.stop
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The running thread; stopped and waited for on drop.
#[derive(Debug)]
pub(crate) struct Flusher {
    signal: Arc<FlushSignal>,
    thread: Option<JoinHandle<()>>,
}

impl Flusher {
    /// Starts a thread that calls `sync` whenever `signal` says that it is time to.
    pub(crate) fn start(signal: &Arc<FlushSignal>, sync: impl Fn() + Send + 'static) -> Result<Self, LogError> {
        let shared = Arc::clone(signal);
        let body = move || {
            while shared.wait() {
                sync();
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

/// Whether the thread has to be told that so many bytes are unsynced, where there were `before`.
fn is_news(before: u64, now: u64) -> bool {
    before == 0 || (before < UNSYNCED_BYTES_MAX && now >= UNSYNCED_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_is_told_of_the_first_bytes_and_while_half_of_the_buffer_is_empty() {
        let half = (CHUNKS_MAX * CHUNK_BYTES) as u64 / 2;
        assert!(is_news(0, 1) && is_news(half - 1, half) && is_news(1, 2 * half));
        assert!(!is_news(1, half - 1) && !is_news(half, 2 * half));
    }
}
