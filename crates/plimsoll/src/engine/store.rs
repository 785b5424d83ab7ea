//! The parts of an open store. `engine::open` assembles them; a commit is described in `txn::commit`, a read in `read::point`.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use plimsoll_disk::vfs::DirLock;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;
use plimsoll_log::log::Log;
use plimsoll_memory::budget::Budget;
use plimsoll_memory::pool::Pool;

use crate::engine::cursors::Cursors;
use crate::engine::io_choice::IoChoice;
use crate::engine::maintenance::checkpoints::{self, Checkpoints};
use crate::engine::maintenance::upkeep::Upkeep;
use crate::engine::retention::RetentionHorizon;
use crate::index::Index;
use crate::read::moments::{OpenMoment, Snapshots};
use crate::read::reader::Reader;
use crate::rowcache::Objects;
use crate::txn::committer::Committer;
use crate::types::error::{Error, Result};
use crate::types::keyspaces::Keyspaces;
use crate::types::options::Options;
use crate::types::stats::OpeningStats;
use crate::warm::Warm;

/// An open store.
pub(crate) struct Store {
    pub(crate) path: PathBuf,
    pub(crate) options: Options,
    /// How files are read.
    pub(crate) io: Arc<IoChoice>,
    pub(crate) budget: Budget,
    pub(crate) pool: Arc<Pool>,
    pub(crate) objects: Arc<Objects>,
    pub(crate) upkeep: Mutex<Upkeep>,
    /// `None` where it is switched off.
    pub(crate) warm: Option<Warm>,
    /// `None` where nothing is written.
    pub(crate) checkpoints: Option<Checkpoints>,
    /// What opening it took.
    pub(crate) opening: OnceLock<OpeningStats>,
    pub(crate) log: Arc<dyn Log>,
    pub(crate) file_log: Arc<FileLog>,
    pub(crate) index: Arc<Index>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) keyspaces: Arc<Keyspaces>,
    pub(crate) cursors: Cursors,
    pub(crate) horizon: Arc<RetentionHorizon>,
    pub(crate) reader: Arc<Reader>,
    pub(crate) committer: Arc<Committer>,
    /// What opening the log had to say: a torn tail that was cut, a clock that jumped.
    pub(crate) warnings: Vec<String>,
    /// Held while the log is trimmed, or its files are being copied.
    pub(crate) trim_turn: Mutex<()>,
    /// Whether the user has appended to a stream of his own.
    pub(crate) streams_known: AtomicBool,
    pub(crate) lock: Mutex<Option<Arc<dyn DirLock>>>,
}

impl Store {
    /// The newest moment that can be read.
    pub(crate) fn visible(&self) -> Glsn {
        self.committer.sequencer.visible()
    }

    /// Refuses once the store is closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.reader.check_open()
    }

    /// Refuses where the store cannot be written.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.committer.check_writable()
    }

    /// Opens the newest moment.
    pub(crate) fn open_newest(&self) -> OpenMoment {
        self.committer.open_newest()
    }

    /// Writes what is in memory into runs.
    pub(crate) fn flush(&self) -> Result<()> {
        self.check_writable()?;
        self.committer.sequencer.at_durable(|applied| self.index.flush(applied))
    }

    /// Closes: stops background work, writes what is in memory into runs, and lets go of the folder. Later calls do nothing.
    pub(crate) fn close(&self) -> Result<()> {
        if self.reader.close() {
            return Ok(());
        }
        // A backup or a verification that is at work comes to its end first: afterwards the folder may be another process's.
        let _no_backup = self.trim_turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(checkpoints) = &self.checkpoints {
            checkpoints.stop();
        }
        let flushed = if self.options.read_only { Ok(()) } else { self.settle() };
        self.index.close();
        if let Some(warm) = &self.warm {
            warm.close();
        }
        self.upkeep.lock().unwrap_or_else(std::sync::PoisonError::into_inner).stop();
        let closed = self.file_log.close().map_err(Error::from);
        self.lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        flushed.and(closed)
    }

    fn settle(&self) -> Result<()> {
        self.committer.sequencer.at_durable(|applied| {
            if checkpoints::leaves_little(&self.index) { self.index.note_durable() } else { self.index.flush(applied) }
        })
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
