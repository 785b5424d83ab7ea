//! Syncs what `Durability::Buffered` leaves unsynced. The thread sleeps until there is something.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use plimsoll_disk::thread;

use crate::error::LogError;
use crate::file_log::core::Core;
use crate::log::BUFFERED_DELAY;

/// From so many unsynced bytes on, the thread does not wait any longer.
const UNSYNCED_BYTES_MAX: u64 = 1 << 20;

/// What the thread waits for.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    state: Mutex<State>,
    changed: Condvar,
    running: bool,
}

#[derive(Debug, Default)]
struct State {
    unsynced_bytes: u64,
    stop: bool,
}

impl Signal {
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
            let news = before == 0 || (before < UNSYNCED_BYTES_MAX && state.unsynced_bytes >= UNSYNCED_BYTES_MAX);
            drop(state);
            if news {
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
pub(crate) struct Background {
    core: Arc<Core>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    pub(crate) fn start(core: &Arc<Core>) -> Result<Self, LogError> {
        let shared = Arc::clone(core);
        let body = move || {
            while shared.background.wait() {
                sync_step(&shared);
            }
        };
        Ok(Self { core: Arc::clone(core), thread: Some(thread::spawn("plimsoll-log", body)?) })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.core.background.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Syncs everything that was appended. A failure poisons the log, so that whoever appends next learns of it.
fn sync_step(core: &Core) {
    let last = crate::glsn::Glsn(core.next().0 - 1);
    let _ = core.syncer.wait(last, &*core.options.clock, &|| core.write_and_sync());
}
