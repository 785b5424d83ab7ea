//! For programs that read a store's files in several calls: the path of the store's folder, and a
//! hold that keeps the log from being freed meanwhile.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use plimsoll_log::glsn::Glsn;

use crate::api::db::Db;
use crate::engine::Engine;
use crate::types::error::Result;

/// Keeps the log of an open store from being freed, from a GLSN on, until it is dropped or the
/// store is closed. Made by [`Db::hold_log`].
pub struct LogHold {
    /// Weak, so that the hold does not keep the store open.
    store: Weak<Engine>,
    from: Glsn,
}

impl Db {
    /// Keeps the log from `from` on, as far as it was not freed before, and the blob files that the
    /// log names. The hold is not recorded in the store: it ends with this process. Unlike a
    /// cursor, it also works in a store that is open read-only. If the store is shared, the hold
    /// keeps the other processes from freeing the log, too; a process that has the store
    /// exclusively ignores the holds of processes that only read it.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let notes = db.keyspace("notes")?;
    /// let first = db.put(&notes, "a", "one")?;
    /// let hold = db.hold_log(first)?;
    /// assert!(db.log().trim(db.newest())? <= first);
    /// drop(hold);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The call waits for a trim, a backup, a dump or a verification that runs in this process, so
    /// a callback of one of these must not make this call. In a shared store it also waits for
    /// another process that is freeing the log, for two seconds at most; the part that the other
    /// process is still freeing then counts as freed.
    ///
    /// # Errors
    /// The store is closed. In a shared store also [`InvalidInput::CannotHoldLog`], and the errors
    /// of a read.
    ///
    /// [`InvalidInput::CannotHoldLog`]: crate::InvalidInput::CannotHoldLog
    pub fn hold_log(&self, from: Glsn) -> Result<LogHold> {
        self.store.check_open()?;
        self.store.hold_log(from)?;
        let hold = LogHold { store: Arc::downgrade(&self.store), from };
        // The store may have been closed while this waited.
        self.store.check_open()?;
        Ok(hold)
    }

    /// The path of the store's folder, without symbolic links, `.` and `..`.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # use plimsoll::*;
    /// let path = dir.path().join("none/../store");
    /// # std::fs::create_dir(dir.path().join("none")).unwrap();
    /// let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
    /// assert!(db.folder()?.ends_with("store") && !db.folder()?.ends_with("../store"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The disk.
    pub fn folder(&self) -> Result<PathBuf> {
        Ok(self.store.options.disk.resolve(&self.store.path)?)
    }
}

impl Drop for LogHold {
    fn drop(&mut self) {
        // A hold belongs to the process that made it, not to its forked children.
        if let Some(store) = self.store.upgrade().filter(|store| !store.reader.owner.is_foreign()) {
            store.space.release(self.from);
        }
    }
}

impl fmt::Debug for LogHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogHold({})", self.from)
    }
}
