//! The parts of an open store, and how far it has come. `open` puts it together; the journeys through it stand in `write_path` and
//! `read_path`.
//!
//! Watermarks, each only moving forward: *applied* (in the memtable) and the log's *readable* (durable, or submitted where commits are
//! buffered). What is *visible* is the lower of the two.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use plimsoll_disk::vfs::DirLock;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;
use plimsoll_log::log::Log;
use plimsoll_memory::budget::Budget;
use plimsoll_memory::pool::Pool;

use crate::error::{Error, Result};
use crate::index::Index;
use crate::keyspaces::Keyspaces;
use crate::options::Options;
use crate::retention::RetentionHorizon;
use crate::snapshots::{OpenMoment, Snapshots};

/// An open store.
pub(crate) struct Store {
    pub(crate) path: PathBuf,
    pub(crate) options: Options,
    pub(crate) budget: Budget,
    pub(crate) pool: Arc<Pool>,
    pub(crate) log: Arc<dyn Log>,
    pub(crate) file_log: Arc<FileLog>,
    pub(crate) index: Arc<Index>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) keyspaces: Arc<Keyspaces>,
    pub(crate) horizon: Arc<RetentionHorizon>,
    pub(crate) applied: Arc<AtomicU64>,
    /// What opening the log had to say: a torn tail that was cut, a clock that jumped.
    pub(crate) warnings: Vec<String>,
    /// Held while a commit gets its place and is applied: commits are applied in GLSN order.
    pub(crate) commit_turn: Mutex<()>,
    /// Held while the log is trimmed, or its files are being copied.
    pub(crate) trim_turn: Mutex<()>,
    pub(crate) closed: AtomicBool,
    /// Why nothing more is accepted, if a commit could not be applied.
    pub(crate) broken: OnceLock<String>,
    /// Bytes committed since the old end of the log was last looked at.
    pub(crate) bytes_since_free: AtomicU64,
    /// Whether the user has appended to a stream of his own.
    pub(crate) streams_known: AtomicBool,
    pub(crate) lock: Mutex<Option<Box<dyn DirLock>>>,
}

impl Store {
    /// The newest moment that can be read.
    pub(crate) fn visible(&self) -> Glsn {
        self.log.readable().min(Glsn(self.applied.load(Ordering::Acquire)))
    }

    /// Takes the committers' turn.
    pub(crate) fn take_turn(&self) -> MutexGuard<'_, ()> {
        // A committer that panicked left nothing half done: what it ordered is in the log, and the log says how far it came.
        self.commit_turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Refuses where the store cannot be written.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::invalid("the store is closed; open it again"));
        }
        if let Some(cause) = self.broken.get() {
            return Err(Error::Poisoned { cause: cause.clone() });
        }
        if self.options.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// Opens the newest moment.
    pub(crate) fn open_newest(self: &Arc<Self>) -> OpenMoment {
        match self.snapshots.open(&self.budget, || self.visible()) {
            Ok(moment) => moment,
            // A snapshot is a hundred bytes: rather than to refuse it, it is left out of the account.
            Err(_) => self.snapshots.open_unleased(|| self.visible()),
        }
    }

    /// Refuses a moment whose versions may be gone from a keyspace.
    pub(crate) fn check_retained(&self, keyspace: u32, at: Glsn) -> Result<()> {
        let oldest = self.oldest_readable(keyspace);
        if at < oldest { Err(Error::Trimmed { asked: at.0, first: oldest.0 }) } else { Ok(()) }
    }

    /// The oldest moment at which a keyspace can be read.
    pub(crate) fn oldest_readable(&self, keyspace: u32) -> Glsn {
        self.index.view().oldest_readable_in(keyspace)
    }

    /// Closes: stops background work, writes what is in memory into runs, and lets go of the folder. Later calls do nothing.
    pub(crate) fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let flushed = if self.options.read_only { Ok(()) } else { self.settle() };
        self.index.close();
        let closed = self.file_log.close().map_err(Error::from);
        self.lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        flushed.and(closed)
    }

    fn settle(&self) -> Result<()> {
        let _turn = self.take_turn();
        let applied = Glsn(self.applied.load(Ordering::Acquire));
        if applied > Glsn::NONE {
            self.log.wait_durable(applied)?;
        }
        self.index.flush(applied)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // An error here has nobody to go to; the log holds everything that was acknowledged.
        let _ = self.close();
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({}, newest {})", self.path.display(), self.visible())
    }
}
