//! The owner of an open store: opening and closing, keyspaces, retention, memory, and maintenance.

pub(crate) mod branch_commits;
pub(crate) mod collect_stats;
pub(crate) mod compact_and_free;
pub(crate) mod cursor_commits;
pub(crate) mod folder;
pub(crate) mod io_choice;
pub(crate) mod keyspace_commits;
pub(crate) mod keyspace_lives;
pub(crate) mod lock;
pub(crate) mod log_time;
pub(crate) mod maintenance;
pub(crate) mod memory;
pub(crate) mod open;
pub(crate) mod open_beside;
mod open_checks;
pub(crate) mod replay;
pub(crate) mod replication;
pub(crate) mod retention;
pub(crate) mod shared;
pub(crate) mod tag_commits;
pub(crate) mod transfers;
pub(crate) mod trim;
pub(crate) mod unfinished_backup;
#[cfg_attr(
    not(any(test, feature = "testing")),
    allow(dead_code, reason = "only stores without threads take steps: those of tests")
)]
pub(crate) mod work_steps;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use plimsoll_disk::job_pool::JobPool;
use plimsoll_disk::vfs::DirLock;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::pool::Pool;

use crate::engine::io_choice::IoChoice;
use crate::engine::maintenance::checkpoints::Checkpoints;
use crate::engine::maintenance::idle_time::IdleTime;
use crate::engine::maintenance::memory_workers::MemoryWorkers;
use crate::engine::replication::Replication;
use crate::engine::retention::RetentionHorizon;
use crate::engine::shared::membership::Membership;
use crate::engine::transfers::Transfers;
use crate::engine::trim::LogSpace;
use crate::read::open_moments::OpenMoment;
use crate::read::reader::Reader;
use crate::read::system_records::OwnRecords;
use crate::txn::committer::Committer;
use crate::types::error::{Lift, Result};
use crate::types::options::Options;
use crate::types::stats::OpeningStats;
use crate::warm::Warm;

/// An open store.
pub(crate) struct Engine {
    pub(crate) path: PathBuf,
    pub(crate) options: Options,
    /// How files are read: through the page cache, or directly.
    pub(crate) io: Arc<IoChoice>,
    /// The state that every read needs.
    pub(crate) reader: Arc<Reader>,
    /// The state that every commit needs.
    pub(crate) committer: Arc<Committer>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) space: Arc<LogSpace>,
    pub(crate) maintenance: Maintenance,
    pub(crate) opened: Opened,
    pub(crate) membership: Membership,
    pub(crate) replication: Replication,
    pub(crate) transfers: Transfers,
    pub(crate) lock: Mutex<Option<Arc<dyn DirLock>>>,
}

/// The registries of keyspaces, cursors and retention.
pub(crate) struct Catalog {
    pub(crate) records: Arc<OwnRecords>,
    pub(crate) horizon: Arc<RetentionHorizon>,
}

/// Background work; run step by step if there are no threads.
pub(crate) struct Maintenance {
    pub(crate) pool: Arc<Pool>,
    pub(crate) memory_workers: Mutex<MemoryWorkers>,
    /// `None` if warm restart is disabled.
    pub(crate) warm: Option<Warm>,
    /// `None` if the store is read-only.
    pub(crate) checkpoints: Option<Checkpoints>,
    /// Used by the background jobs of the index, or step by step.
    pub(crate) idle_time: Arc<IdleTime>,
    /// The threads of the background jobs.
    pub(crate) job_pool: Arc<JobPool>,
}

/// The result of opening the store.
pub(crate) struct Opened {
    /// Time and work of the opening; set at its end.
    pub(crate) stats: OnceLock<OpeningStats>,
    /// Warnings from opening the log: commits whose time is far ahead of the clock, bytes behind
    /// the end of a segment's contents.
    pub(crate) warnings: Vec<String>,
}

impl Engine {
    /// The newest readable moment.
    ///
    /// # Errors
    /// As for [`Committer::fresh`].
    pub(crate) fn newest(&self) -> Result<Glsn> {
        self.committer.fresh()?;
        Ok(self.committer.sequencer.visible())
    }

    /// The newest moment that is known to be readable.
    pub(crate) fn visible(&self) -> Glsn {
        // If newer commits cannot be applied now, no reader here sees them either.
        let _ = self.committer.fresh();
        self.committer.sequencer.visible()
    }

    /// Fails once the store is closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.reader.check_open()
    }

    /// Fails if the store cannot be written.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.committer.check_writable()
    }

    /// Opens the newest moment.
    pub(crate) fn open_newest(&self) -> OpenMoment {
        self.committer.open_newest()
    }

    /// Makes all entries durable that any process has ordered before this call; returns the GLSN of
    /// the last one.
    pub(crate) fn sync(&self) -> Result<Glsn> {
        self.check_open()?;
        let caught_up = self.committer.peers.catch_up_with_replicas();
        self.committer.fresh_and_ordered()?;
        let ordered = self.committer.sequencer.applied();
        self.reader.log.wait_durable(ordered).lift()?;
        caught_up.map(|()| ordered)
    }

    /// Flushes the memtables into runs.
    pub(crate) fn flush(&self) -> Result<()> {
        self.committer.flush()
    }

    /// Closes the store: stops background work, flushes the memtables into runs, and unlocks the
    /// folder. Later calls do nothing.
    pub(crate) fn close(&self) -> Result<()> {
        self.reader.owner.check()?;
        if self.reader.close() {
            return Ok(());
        }
        // Wait for a running backup or verification, because afterwards another process may own the
        // folder.
        let wait_for_backup =
            || self.space.trim_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let no_backup = wait_for_backup();
        if let Some(checkpoints) = &self.maintenance.checkpoints {
            checkpoints.stop();
        }
        // A failure is returned after the rest is closed; the log holds whatever was not flushed.
        let left = self.membership.leave(&self.maintenance.pool, &self.space);
        let is_last = left == Ok(true);
        self.replication.stop();
        let flushed = if self.options.read_only || !is_last { Ok(()) } else { self.settle() };
        self.reader.index.close();
        // A thread that serves other members may be about to trim the log. Any later holder of this
        // lock finds that the store is closed.
        drop(no_backup);
        self.membership.stop_serving();
        let no_backup = wait_for_backup();
        if let Some(warm) = &self.maintenance.warm {
            warm.close();
        }
        self.maintenance.memory_workers.lock().unwrap_or_else(PoisonError::into_inner).stop();
        let recorded = self.replication.record();
        let closed = self.reader.log.close_as(is_last).lift();
        self.membership.left();
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(no_backup);
        self.committer.wakers.stop();
        self.maintenance.job_pool.end();
        left.and(flushed).and(recorded).and(closed)
    }

    fn settle(&self) -> Result<()> {
        // Commits that cannot be applied now stay in the log.
        let _ = self.committer.fresh_and_ordered();
        self.committer.sequencer.at_durable(|applied| {
            let (memtables, runs) = (&self.reader.index.memtables, &self.reader.index.runs);
            let limit_bytes = memtables.limit_bytes();
            if memtables.unflushed().is_some_and(|active| active.is_too_small_to_flush(limit_bytes))
            {
                runs.note_durable()
            } else {
                memtables.flush_up_to(applied)
            }
        })
    }
}

impl Engine {
    /// Leaks the parts whose drop waits for a thread or a lock. In a forked child, the threads of
    /// the parent do not exist, so locks that they held are never released, and such a wait would
    /// never end.
    fn leak(&mut self) {
        std::mem::forget((
            std::mem::take(&mut self.membership),
            std::mem::take(&mut self.replication),
            self.maintenance.warm.take(),
            self.maintenance.checkpoints.take(),
        ));
        self.maintenance.memory_workers.get_mut().unwrap_or_else(PoisonError::into_inner).leak();
        let handles = (&self.io, &self.reader, &self.committer, &self.catalog, &self.space);
        std::mem::forget((handles.0.clone(), handles.1.clone(), handles.2.clone()));
        std::mem::forget((handles.3.clone(), handles.4.clone(), self.maintenance.pool.clone()));
        std::mem::forget(self.maintenance.job_pool.clone());
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.reader.owner.is_foreign() {
            return self.leak();
        }
        // An error cannot be returned from here; the log holds everything that was acknowledged.
        let _ = self.close();
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({}, newest {})", self.path.display(), self.visible())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "looks at the files")]

    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use plimsoll_log::glsn::Glsn;

    use crate::engine::open::open;
    use crate::engine::{Engine, compact_and_free};
    use crate::index::env::Horizon;
    use crate::txn::transaction::Transaction;
    use crate::types::options::Options;
    use crate::types::retention::Retention;

    fn put(store: &Arc<Engine>, key: &[u8]) {
        let mut tx = Transaction::new(&store.committer);
        tx.put(&store.reader.keyspaces.find("default").unwrap().0, key, b"value").unwrap();
        tx.commit().unwrap();
    }

    fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
        let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
        files
            .map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap()))
            .collect()
    }

    /// Only the last member writes a mark and truncates the space after the end, which the
    /// remaining members still use.
    #[test]
    fn a_member_that_leaves_while_others_stay_writes_nothing_into_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let join = || {
            open(&path, Options::new().memory_bytes(16 << 20).background(false).shared(true))
                .unwrap()
        };
        let (one, two) = (join(), join());
        put(&one, b"one");
        put(&two, b"two");
        let before = files(&path.join("log"));
        one.close().unwrap();
        assert!(files(&path.join("log")) == before, "the log has changed");
        put(&two, b"three");
    }

    /// The unknown part may contain streams of another member, or a keyspace that keeps everything.
    #[test]
    fn a_log_whose_end_is_not_loaded_is_not_freed() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new()
            .memory_bytes(16 << 20)
            .retention(Retention::Latest)
            .background(false)
            .shared(true);
        let store = open(&dir.path().join("store"), options).unwrap();
        put(&store, b"one");
        let follower = &store.shared().follower;
        // Loading fails at times for lack of memory, and is then retried.
        follower.must_load_records.store(true, Ordering::Release);
        let may_be_freed = || compact_and_free::may_be_freed(&store.space).unwrap();
        assert_eq!(may_be_freed(), None);
        follower.must_load_records.store(false, Ordering::Release);
        assert!(may_be_freed().is_some());
    }

    /// A commit of another member may have extended how long versions are kept.
    #[test]
    fn no_version_is_dropped_while_its_retention_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new()
            .memory_bytes(16 << 20)
            .retention(Retention::Latest)
            .background(false)
            .shared(true);
        let store = open(&dir.path().join("store"), options).unwrap();
        put(&store, b"one");
        let follower = &store.shared().follower;
        let horizon = || store.catalog.horizon.retained(1).floor;
        assert_eq!(horizon(), store.visible());
        follower.must_load_records.store(true, Ordering::Release);
        assert_eq!(horizon(), Glsn::NONE);
    }
}
