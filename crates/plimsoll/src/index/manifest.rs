//! The manifest: names the files of the index and is replaced atomically.
//!
//! Law: the new manifest is written in full beside the old one, synced, and renamed into its place, so every open finds either the old or
//! the new one. [`format`] defines its bytes, [`blocks`] its checksums.

mod blocks;
mod format;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_log::glsn::{Glsn, Position};

use crate::index::manifest::blocks::Failure;
use crate::index::run::partition::PartitionInfo;
use crate::index::view::Limits;
use crate::types::error::{Error, Result};

/// Name of the manifest in the index's folder.
pub(crate) const MANIFEST: &str = "MANIFEST";

/// Name under which the next manifest is written.
pub(crate) const NEW_MANIFEST: &str = "MANIFEST.new";

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
    /// The place in the log up to which the runs are complete.
    pub(crate) checkpoint: Position,
    /// The newest durable place of the log when it was written.
    pub(crate) durable: Position,
    /// Id of the next run file.
    pub(crate) next_run: u64,
    /// The youngest deletion that compaction took out of the current runs: at or above it, a key that is not found does not exist.
    pub(crate) deletions_moved: Glsn,
    /// Oldest moment that can still be read (superseded versions below it may be gone).
    pub(crate) oldest_readable: Glsn,
    /// The same per keyspace, sorted by id; keyspaces that are not listed lost no version.
    pub(crate) oldest_readable_in: Vec<(u32, Glsn)>,
    /// The youngest deletion that was dropped, per keyspace, sorted by id; keyspaces that are not listed lost none. If an earlier version
    /// wrote the manifest, this is `oldest_readable_in`: any deletion dropped above it is recorded there.
    pub(crate) deletions_dropped_in: Vec<(u32, Glsn)>,
    /// Runs, newest first; then history runs, the most recently made first.
    pub(crate) runs: Vec<RunInfo>,
}

/// Everything in a manifest but the runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) log_id: u128,
    pub(crate) number: u64,
    pub(crate) checkpoint: Position,
    pub(crate) durable: Position,
    pub(crate) next_run: u64,
    pub(crate) limits: Limits,
}

impl Manifest {
    /// The manifest of an empty index.
    pub(crate) fn empty(log_id: u128) -> Self {
        Self {
            log_id,
            number: 0,
            checkpoint: Position::default(),
            durable: Position::default(),
            next_run: 1,
            deletions_moved: Glsn::NONE,
            oldest_readable: Glsn::NONE,
            oldest_readable_in: Vec::new(),
            deletions_dropped_in: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// The manifest without its runs.
    pub(crate) fn head(&self) -> Head {
        Head {
            log_id: self.log_id,
            number: self.number,
            checkpoint: self.checkpoint,
            durable: self.durable,
            next_run: self.next_run,
            limits: Limits {
                deletions_moved: self.deletions_moved,
                oldest_readable: self.oldest_readable,
                oldest_readable_in: self.oldest_readable_in.clone(),
                deletions_dropped_in: self.deletions_dropped_in.clone(),
            },
        }
    }

    /// Combines a head and runs.
    pub(crate) fn of(head: Head, runs: Vec<RunInfo>) -> Self {
        Self {
            log_id: head.log_id,
            number: head.number,
            checkpoint: head.checkpoint,
            durable: head.durable,
            next_run: head.next_run,
            deletions_moved: head.limits.deletions_moved,
            oldest_readable: head.limits.oldest_readable,
            oldest_readable_in: head.limits.oldest_readable_in,
            deletions_dropped_in: head.limits.deletions_dropped_in,
            runs,
        }
    }

    /// Reads the manifest of a folder; `None` if there is none (the index is then rebuilt from the log).
    pub(crate) fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<Manifest>> {
        let path = dir.join(MANIFEST);
        if disk.entry(dir)?.is_none() || disk.entry(&path)?.is_none() {
            return Ok(None);
        }
        let file = disk.open(&path, Open::Read, Caching::Buffered)?;
        format::read(&*file).map(Some).map_err(|error| match error {
            Failure::Error(error) => error,
            Failure::Damaged(what) => damaged(&path, what),
            Failure::Newer(what) => Error::Format {
                path: Some(path.to_owned()),
                message: format!("{}: {what} that this version does not know; use a newer Plimsoll", path.display()),
            },
        })
    }

    /// Writes the manifest beside the old one, syncs it, and renames it into place.
    pub(crate) fn write(&self, disk: &dyn Disk, dir: &Path) -> Result<()> {
        let runs = self.runs.iter().map(|run| (run.history, run.partitions.iter()));
        write(disk, dir, &self.head(), runs).map_err(|(_, error)| error)
    }
}

fn damaged(path: &Path, what: &str) -> Error {
    Error::corrupt(format!("{}: {what}; `plimsoll verify` says what helps", path.display()))
        .in_file(|| path.display().to_string())
}

/// Which manifest is on disk after a write failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The old one.
    Old,
    /// Either: the rename or its sync failed.
    Unknown,
}

/// Writes a manifest of `runs` (whether each is history, and its partitions) beside the old one, syncs it, and renames it into place.
pub(crate) fn write<'a, R, P>(disk: &dyn Disk, dir: &Path, head: &Head, runs: R) -> Result<(), (Outcome, Error)>
where
    R: ExactSizeIterator<Item = (bool, P)>,
    P: ExactSizeIterator<Item = &'a PartitionInfo>,
{
    let (new, old) = (dir.join(NEW_MANIFEST), dir.join(MANIFEST));
    write_new(disk, &new, head, runs).map_err(|error| (Outcome::Old, error.into()))?;
    let placed = disk.rename(&new, &old).and_then(|()| disk.sync_dir(dir));
    placed.map_err(|error| (Outcome::Unknown, error.into()))
}

fn write_new<'a, R, P>(disk: &dyn Disk, path: &Path, head: &Head, runs: R) -> io::Result<()>
where
    R: ExactSizeIterator<Item = (bool, P)>,
    P: ExactSizeIterator<Item = &'a PartitionInfo>,
{
    // Left over from an attempt that failed.
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = disk.open(path, Open::CreateNew, Caching::Buffered)?;
    format::write(&*file, head, runs)?;
    file.sync()
}

/// The infos of a run, for [`write`].
pub(crate) fn run_infos(
    partitions: &Arc<[crate::index::run::partition::Partition]>,
) -> impl ExactSizeIterator<Item = &PartitionInfo> {
    partitions.iter().map(|partition| &*partition.info)
}
