//! Ends an archiver that follows a store.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Ends [`crate::Archive::follow`] from another thread. Clones end the same one.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<(Mutex<bool>, Condvar)>);

impl Stop {
    /// A handle that has not ended anything yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the archiver after the pass that it is making.
    pub fn stop(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    /// Waits until it is stopped, at most this long; returns whether it is.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let stopped = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.1.wait_timeout_while(stopped, timeout, |stopped| !*stopped);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
