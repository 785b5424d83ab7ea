//! Options of a backup.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::types::cancel::Cancel;

/// How [`Db::backup_with`](crate::Db::backup_with) makes a backup.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
/// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
/// use std::sync::Arc;
/// use std::sync::atomic::AtomicBool;
/// use plimsoll::{BackupOptions, Error};
///
/// let given_up = Arc::new(AtomicBool::new(true));
/// let options = BackupOptions::new().copy(true).cancel_on(given_up);
/// let made = db.backup_with(dir.path().join("backup"), options);
/// assert_eq!(made, Err(Error::Cancelled));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct BackupOptions {
    pub(crate) sharing: Sharing,
    pub(crate) cancel: Cancel,
}

/// Whether a backup may share files with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Immutable files are hard-linked if the file system supports it.
    Link,
    /// Every file is copied.
    Copy,
}

impl BackupOptions {
    /// Links immutable files where possible, as [`Db::backup`](crate::Db::backup) does.
    pub fn new() -> Self {
        Self { sharing: Sharing::Link, cancel: Cancel::default() }
    }

    /// Whether every file is copied, as by [`Db::backup_copy`](crate::Db::backup_copy).
    #[must_use]
    pub fn copy(self, copy: bool) -> Self {
        Self { sharing: if copy { Sharing::Copy } else { Sharing::Link }, ..self }
    }

    /// Lets another thread or a signal handler cancel the backup: once `flag` is set, it soon fails
    /// with [`Error::Cancelled`](crate::Error::Cancelled) and removes the files that it has
    /// created.
    #[must_use]
    pub fn cancel_on(self, flag: Arc<AtomicBool>) -> Self {
        Self { cancel: Cancel::on(flag), ..self }
    }
}

impl Default for BackupOptions {
    fn default() -> Self {
        Self::new()
    }
}
