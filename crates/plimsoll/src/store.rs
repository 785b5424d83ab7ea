//! The parts of an open store, and how far it has come. `open` puts it together; the journeys through it stand in `write_path` and
//! `read_path`.
//!
//! Watermarks, each only moving forward: *applied* (in the memtable) and the log's *readable* (durable, or submitted where commits are
//! buffered). What is *visible* is the lower of the two.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use plimsoll_disk::vfs::DirLock;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;
use plimsoll_log::log::Log;
use plimsoll_memory::budget::Budget;
use plimsoll_memory::pool::Pool;

use crate::checkpoints::{self, Checkpoints};
use crate::cursors::Cursors;
use crate::error::{Error, Result};
use crate::index::Index;
use crate::index::seat::{Seat, Walk};
use crate::index::view::View;
use crate::io::IoChoice;
use crate::keyspaces::Keyspaces;
use crate::objects::Objects;
use crate::options::Options;
use crate::patience::Patience;
use crate::retention::RetentionHorizon;
use crate::snapshots::{OpenMoment, Snapshots};
use crate::stats::OpeningStats;
use crate::upkeep::Upkeep;
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
    pub(crate) patience: Arc<Patience>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) keyspaces: Arc<Keyspaces>,
    pub(crate) cursors: Cursors,
    pub(crate) horizon: Arc<RetentionHorizon>,
    pub(crate) applied: Arc<AtomicU64>,
    /// What opening the log had to say: a torn tail that was cut, a clock that jumped.
    pub(crate) warnings: Vec<String>,
    /// Held while a commit gets its place and is applied: commits are applied in GLSN order.
    pub(crate) commit_turn: Arc<Mutex<()>>,
    /// Set while a record is in the log and not applied yet; if it is set when a turn begins, the one before it failed in between.
    pub(crate) half_done: Arc<AtomicBool>,
    /// Held while the log is trimmed, or its files are being copied.
    pub(crate) trim_turn: Mutex<()>,
    pub(crate) closed: AtomicBool,
    /// Why nothing more is accepted, if a commit could not be applied.
    pub(crate) broken: OnceLock<String>,
    /// Bytes committed since the old end of the log was last looked at.
    pub(crate) bytes_since_free: AtomicU64,
    /// Whether the user has appended to a stream of his own.
    pub(crate) streams_known: AtomicBool,
    pub(crate) lock: Mutex<Option<Arc<dyn DirLock>>>,
}

impl Store {
    /// The newest moment that can be read.
    pub(crate) fn visible(&self) -> Glsn {
        self.log.readable().min(Glsn(self.applied.load(Ordering::Acquire)))
    }

    /// Takes the committers' turn.
    pub(crate) fn take_turn(&self) -> MutexGuard<'_, ()> {
        // What a committer that panicked left half done is told by `half_done`.
        self.commit_turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Takes the committers' turn to go on from what is applied: refused where that ends within a commit.
    pub(crate) fn take_whole_turn(&self) -> Result<MutexGuard<'_, ()>> {
        let turn = self.take_turn();
        if self.half_done.load(Ordering::Acquire) {
            return Err(self.break_off("its committer panicked"));
        }
        Ok(turn)
    }

    /// A record that has its place in the log could not be applied: nothing more is accepted, and the next open applies it.
    fn break_off(&self, why: &str) -> Error {
        let cause = || format!("a commit that is in the log could not be applied: {why}");
        Error::Poisoned { cause: self.broken.get_or_init(cause).clone() }
    }

    /// Gives records their place by `order` and applies them by `apply`; both or, for this opening of the store, nothing more ever. Only
    /// in the committers' turn. If it fails or panics between the two, the log is ahead of the index for good: then nothing is applied
    /// on top, nor flushed, and the next opening replays the record.
    pub(crate) fn in_one<T>(
        &self,
        order: impl FnOnce() -> Result<T>,
        apply: impl FnOnce(&T) -> Result<Glsn>,
    ) -> Result<T> {
        let ordered = order()?;
        self.half_done.store(true, Ordering::Release);
        let last = apply(&ordered).map_err(|error| self.break_off(&error.to_string()))?;
        self.applied.store(last.0, Ordering::Release);
        self.half_done.store(false, Ordering::Release);
        Ok(ordered)
    }

    /// Reads in the sources as they are now. If that fails and they were exchanged meanwhile, it is read again in the new ones: log
    /// entries and side files that only the old ones needed may be gone.
    pub(crate) fn read<T>(&self, mut read: impl FnMut(&Arc<View>) -> Result<T>) -> Result<T> {
        self.check_open()?;
        let mut view = self.index.view();
        loop {
            match read(&view) {
                Err(error) => view = self.newer_view(&Arc::downgrade(&view)).ok_or(error)?,
                done => return done,
            }
        }
    }

    /// Takes a step of a walk, in the sources that it sits in or as they are now. If that fails and they were exchanged meanwhile, it is taken in
    /// the new ones, as for [`Store::read`].
    pub(crate) fn walk<W: Walk + 'static, T>(
        &self,
        seat: &mut Seat<W>,
        key: &mut Vec<u8>,
        mut step: impl FnMut(&mut W, &mut Vec<u8>) -> Result<T>,
    ) -> Result<T> {
        loop {
            let mut failed_in = Weak::new();
            let done = seat.step(
                key,
                || self.index.view(),
                |walk, key| {
                    step(walk, key).inspect_err(|_| {
                        failed_in = walk.get_up().map_or_else(Weak::new, |view| Arc::downgrade(&view));
                    })
                },
            );
            match done {
                Err(error) if Weak::ptr_eq(&failed_in, &Weak::new()) => return Err(error),
                Err(error) => drop(self.newer_view(&failed_in).ok_or(error)?),
                done => return done,
            }
        }
    }

    /// The sources as they are now, if they are others than `view`. Where the store is open to read only, another process may have exchanged them:
    /// then its manifest is read.
    pub(crate) fn newer_view(&self, view: &Weak<View>) -> Option<Arc<View>> {
        let newer = || Some(self.index.view()).filter(|now| !Weak::ptr_eq(&Arc::downgrade(now), view));
        newer().or_else(|| {
            // A manifest that cannot be read helps nobody; the error that led here tells what is wrong.
            let _ = self.options.read_only.then(|| self.index.refresh());
            newer()
        })
    }

    /// Refuses once the store is closed: the folder may be another process's, which changes it.
    pub(crate) fn check_open(&self) -> Result<()> {
        // Acquire: pairs with the swap in `close`.
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Refuses where the store cannot be written.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
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

    /// The oldest moment at which a keyspace can be read.
    pub(crate) fn oldest_readable(&self, keyspace: u32) -> Glsn {
        self.index.view().oldest_readable_in(keyspace)
    }

    /// Closes: stops background work, writes what is in memory into runs, and lets go of the folder. Later calls do nothing.
    pub(crate) fn close(&self) -> Result<()> {
        if self.closed.swap(true, Ordering::AcqRel) {
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
        let _turn = self.take_whole_turn()?;
        let applied = Glsn(self.applied.load(Ordering::Acquire));
        if applied > Glsn::NONE {
            self.log.wait_durable(applied)?;
        }
        if checkpoints::leaves_little(&self.index) { self.index.note_durable() } else { self.index.flush(applied) }
    }
}

/// Refuses a moment whose versions may be gone from the keyspace of an index key. The view that is asked must be the one that is read.
pub(crate) fn check_retained(view: &View, key: &[u8], at: Glsn) -> Result<()> {
    let keyspace = key.first_chunk().expect("an index key begins with its keyspace");
    let oldest = view.oldest_readable_in(u32::from_be_bytes(*keyspace));
    if at < oldest { Err(Error::Trimmed { asked: at.0, first: oldest.0 }) } else { Ok(()) }
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
