//! Cancellation: a flag by which another thread, or a signal handler, gives up a long request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::types::error::{Error, Result};

/// The flag of one request; without one it is never cancelled.
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
        // Relaxed: nothing but the flag itself passes from the one that sets it.
        match self.flag.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
            true => Err(Error::Cancelled),
            false => Ok(()),
        }
    }
}
