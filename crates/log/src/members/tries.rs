//! Threads of a process that wait for the same lock of another one, one after the other: they give
//! up together.
//!
//! Each try to get the lock has its whole patience. Without this, the last of many threads would
//! get its error after the patience of all.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::LogError;

/// The tries to get a lock. Law: they are made one after the other.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    begun: AtomicU64,
    /// The last one that gave up.
    gave_up: AtomicU64,
}

impl Tries {
    /// To be called before a thread queues up.
    pub(crate) fn came(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether a try that was begun after a thread `came` gave up: the thread has waited as long.
    pub(crate) fn gave_up_since(&self, came: u64) -> bool {
        self.gave_up.load(Ordering::Relaxed) > came
    }

    /// Makes a try.
    pub(crate) fn counted<T>(
        &self,
        attempt: impl FnOnce() -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let got = attempt();
        if let Err(LogError::Stalled { .. }) = &got {
            self.gave_up.store(number, Ordering::Relaxed);
        }
        got
    }
}
