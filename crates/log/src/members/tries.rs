//! Lets threads of a process time out together when they wait, one after the other, for a lock that
//! another process holds.
//!
//! Each try to get the lock has the whole timeout. Without this, the last of many threads would get
//! its error only after the sum of all timeouts.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::LogError;

/// Counts the tries to get a lock, which are made one after the other.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    begun: AtomicU64,
    /// The number of the last try that timed out.
    gave_up: AtomicU64,
}

impl Tries {
    /// Returns the current number of tries. A thread calls it before it queues.
    pub(crate) fn count(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether a try that began after `before` timed out. If so, this thread has waited for the
    /// whole timeout as well.
    pub(crate) fn timed_out_since(&self, before: u64) -> bool {
        self.gave_up.load(Ordering::Relaxed) > before
    }

    /// Makes a try, and counts it.
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
