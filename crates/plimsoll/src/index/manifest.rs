//! The manifest: which files the index consists of, replaced atomically.

use std::path::Path;

use plimsoll_disk::vfs::Disk;
use plimsoll_log::glsn::Position;

use crate::error::Result;
use crate::run::partition::PartitionInfo;

/// A run as the manifest names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunInfo {
    /// Whether it holds superseded versions.
    pub(crate) history: bool,
    /// Its partitions, sorted.
    pub(crate) partitions: Vec<PartitionInfo>,
}

/// The manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// The log's id; a manifest of another log is refused.
    pub(crate) log_id: u128,
    /// Counts manifests of this store.
    pub(crate) number: u64,
    /// The place in the log up to which the runs hold everything.
    pub(crate) checkpoint: Position,
    /// The newest durable place of the log when it was written.
    pub(crate) durable: Position,
    /// Id of the next run file.
    pub(crate) next_run: u64,
    /// Youngest deletion that compaction took out of the current runs: at or above it, a key that is not found does not exist.
    pub(crate) deletions_moved: plimsoll_log::glsn::Glsn,
    /// Oldest moment that can still be read (superseded versions below it may be gone).
    pub(crate) oldest_readable: plimsoll_log::glsn::Glsn,
    /// Runs, newest first; history runs behind.
    pub(crate) runs: Vec<RunInfo>,
}

impl Manifest {
    /// The manifest of an empty index.
    pub(crate) fn empty(log_id: u128) -> Self {
        let _ = log_id;
        unimplemented!()
    }

    /// Reads the manifest of a folder; `None` if there is none (the index is then made from the log).
    pub(crate) fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<Manifest>> {
        let _ = (disk, dir);
        unimplemented!()
    }

    /// Writes it beside the old one, syncs it, and puts it in the old one's place.
    pub(crate) fn write(&self, disk: &dyn Disk, dir: &Path) -> Result<()> {
        let _ = (disk, dir);
        unimplemented!()
    }
}
