//! Cancellation: a flag by which another thread, or a signal handler, cancels a long request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::types::error::{Error, Result};

/// The cancellation flag of one request; a request without a flag is never cancelled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cancel {
    flag: Option<Arc<AtomicBool>>,
}

impl Cancel {
    /// Cancelled once `flag` is set.
    pub(crate) fn on(flag: Arc<AtomicBool>) -> Self {
        Self { flag: Some(flag) }
    }

    /// Fails with [`Error::Cancelled`] once the flag is set.
    pub(crate) fn check(&self) -> Result<()> {
        // Relaxed: the flag publishes no other data.
        match self.flag.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
            true => Err(Error::Cancelled),
            false => Ok(()),
        }
    }
}
