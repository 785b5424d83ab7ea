//! Faults on demand.

use std::io;

use crate::error::LogError;

/// Faults still to come.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) fail_next_sync: bool,
    pub(crate) fail_submit_after: Option<u64>,
}

impl Faults {
    /// A record is submitted.
    pub(crate) fn submit(&mut self) -> Result<(), LogError> {
        match &mut self.fail_submit_after {
            None => Ok(()),
            Some(0) => {
                self.fail_submit_after = None;
                Err(LogError::Io {
                    kind: io::ErrorKind::StorageFull,
                    message: "no space left (on purpose)".to_owned(),
                    source: None,
                })
            }
            Some(n) => {
                *n -= 1;
                Ok(())
            }
        }
    }

    /// The log is synced; `Err` is the cause of its poison.
    pub(crate) fn sync(&mut self) -> Result<(), String> {
        if std::mem::take(&mut self.fail_next_sync) { Err("a sync failed (on purpose)".to_owned()) } else { Ok(()) }
    }
}
