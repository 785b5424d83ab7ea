//! The index: a cache of the log that finds versions by key.
//!
//! Commits enter the active *memtable*; a full one is flushed as a *run*; compaction merges runs and moves superseded versions into
//! *history* runs, so that a scan of the present does not wade through the past. All of it can be made anew from the log.
//!
//! Laws:
//! 1. Everything in the log up to the manifest's checkpoint is in runs that the manifest names; nothing in a run is younger than the
//!    durable GLSN.
//! 2. Sources are ordered by age: for one key, every version in a newer source is younger than every version in an older one. (History
//!    runs are outside this order.)
//! 3. A key's newest version is never in a history run, unless it is a deletion.

pub(crate) mod manifest;
pub(crate) mod view;

use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_disk::vfs::Disk;
use plimsoll_log::glsn::{Glsn, Position};
use plimsoll_log::log::Log;
use plimsoll_log::side::SideId;
use plimsoll_memory::budget::Budget;
use plimsoll_memory::pool::Pool;

use crate::error::Result;
use crate::index::manifest::Manifest;
use crate::index::view::View;
use crate::run::partition::PartitionInfo;
use crate::version::Version;

/// What the index stands on.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    pub(crate) disk: Arc<dyn Disk>,
    /// The index's folder; it exists.
    pub(crate) dir: PathBuf,
    pub(crate) budget: Budget,
    pub(crate) pool: Arc<Pool>,
    pub(crate) log: Arc<dyn Log>,
    /// Bytes at which a memtable is flushed.
    pub(crate) memtable_bytes: u64,
    /// A partition is cut at this many bytes.
    pub(crate) partition_bytes: u64,
    /// Nothing on disk is changed.
    pub(crate) read_only: bool,
    /// Whether flush and compaction run in threads of their own. If not, `make_room` flushes where it must, and the owner calls the
    /// steps.
    pub(crate) background: bool,
}

/// Which versions must be kept.
pub(crate) trait Horizon: Send + Sync {
    /// A version of `keyspace` may be dropped if a younger version of its key is not younger than this GLSN; a deletion may be dropped
    /// if it is itself not younger. `Glsn::NONE` keeps everything. Never above the oldest open snapshot.
    fn of(&self, keyspace: u32) -> Glsn;

    /// Log entries below this GLSN are wanted back: compaction copies live values that point below it into a side file of plain bytes.
    /// `Glsn::NONE` where nothing is to be freed.
    fn relocate_below(&self) -> Glsn;
}

/// What a step of background work did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// There was nothing to do.
    Idle,
    /// Something was done; there may be more.
    Worked,
}

/// Counters of the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Bytes in memtables, flushed or not.
    pub memtable_bytes: u64,
    /// Memtables, the active one included.
    pub memtables: u64,
    /// Runs of current versions, newest first: bytes of each.
    pub runs: Vec<u64>,
    /// Runs of superseded versions: bytes of each.
    pub history_runs: Vec<u64>,
    /// Partitions in all runs.
    pub partitions: u64,
    /// Versions in all runs.
    pub versions: u64,
    /// Bytes that users' commits put into memtables (keys and stored values).
    pub bytes_in: u64,
    /// Bytes written by flushes.
    pub bytes_flushed: u64,
    /// Bytes read by compactions.
    pub bytes_compaction_read: u64,
    /// Bytes written by compactions.
    pub bytes_compaction_written: u64,
    /// Flushes done.
    pub flushes: u64,
    /// Compactions done.
    pub compactions: u64,
    /// Times that a writer waited for a flush or was paced, and for how long.
    pub stalls: u64,
    /// Nanoseconds of those waits.
    pub stall_nanos: u64,
}

/// The index of a store.
#[derive(Debug)]
pub(crate) struct Index;

impl Index {
    /// Opens the index as the manifest describes it; what the log holds beyond its checkpoint is replayed by the caller.
    pub(crate) fn open(ground: Ground, manifest: Manifest, horizon: Arc<dyn Horizon>) -> Result<Arc<Index>> {
        let _ = (ground, manifest, horizon);
        unimplemented!()
    }

    /// The place in the log up to which the manifest's runs hold everything.
    pub(crate) fn checkpoint(&self) -> Position {
        unimplemented!()
    }

    /// The sources as they are now.
    pub(crate) fn view(&self) -> Arc<View> {
        unimplemented!()
    }

    /// Makes sure that versions of `bytes` (see `entry_bytes`) can be inserted without failing. Where the active memtable is full it is
    /// closed at `boundary` (the last GLSN applied) and a new one begun; where flushing lags, the caller waits (bounded) or is paced.
    /// Called by one committer at a time, in GLSN order.
    pub(crate) fn make_room(&self, bytes: usize, boundary: Glsn) -> Result<()> {
        let _ = (bytes, boundary);
        unimplemented!()
    }

    /// Bytes that a version takes in a memtable at most.
    pub(crate) fn entry_bytes(key_bytes: usize, stored_bytes: usize) -> usize {
        let _ = (key_bytes, stored_bytes);
        unimplemented!()
    }

    /// Puts a version into the active memtable. Room was made before.
    pub(crate) fn insert(&self, version: &Version<'_>) {
        let _ = version;
        unimplemented!()
    }

    /// Takes over runs that a transaction wrote as side files, newest first; every version in them has `glsn`. The active memtable is
    /// closed at `glsn - 1` first. Idempotent: a side file that is in the index already is not taken twice.
    pub(crate) fn adopt(&self, runs: Vec<Vec<PartitionInfo>>, glsn: Glsn) -> Result<()> {
        let _ = (runs, glsn);
        unimplemented!()
    }

    /// Closes the active memtable at `boundary` and waits until everything up to it is in runs that the manifest names (flushing here
    /// where there are no threads).
    pub(crate) fn flush(&self, boundary: Glsn) -> Result<()> {
        let _ = boundary;
        unimplemented!()
    }

    /// Flushes the oldest closed memtable, if there is one and it is durable.
    pub(crate) fn flush_step(&self) -> Result<Progress> {
        unimplemented!()
    }

    /// Does a bounded piece of compaction, if any is due.
    pub(crate) fn compact_step(&self) -> Result<Progress> {
        unimplemented!()
    }

    /// Compacts everything into as few runs as there can be.
    pub(crate) fn compact_all(&self) -> Result<()> {
        unimplemented!()
    }

    /// Oldest log entry that a value in a run points into.
    pub(crate) fn min_pointer(&self) -> Option<Glsn> {
        unimplemented!()
    }

    /// Whether a side file is a partition of the index or holds values of one.
    pub(crate) fn uses_side(&self, side: SideId) -> bool {
        let _ = side;
        unimplemented!()
    }

    /// Counters.
    pub(crate) fn stats(&self) -> IndexStats {
        unimplemented!()
    }

    /// Stops background work and waits for it.
    pub(crate) fn close(&self) {
        unimplemented!()
    }
}
