//! The manifest: names the files of the index. Each change writes a new one, `MANIFEST.<number>`,
//! with the next number.
//!
//! Invariants:
//! 1. A manifest is written in full under another name and synced. Then a hard link gives it its
//!    name, which fails if the name is taken, so no manifest is ever replaced or changed. Every
//!    open finds the previous manifest or the new one.
//! 2. Of the manifests of the store's log, only the one with the highest number counts. If it is
//!    damaged, that is corruption: an older one may name files that are gone, or lack files of the
//!    index. A manifest of another log counts only if there is no other, and is refused.
//! 3. The last [`KEPT`] are kept. Older and unfinished ones are removed after a newer one has its
//!    name, and at the next open.
//!
//! [`format`] defines its encoding, [`blocks`] its checksums, [`names`] its file name.

mod blocks;
pub(crate) mod files;
mod format;
pub(crate) mod limits;
pub(crate) mod names;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::vfs::{Caching, Disk, File, Open};
use plimsoll_log::file_log::id_in;
use plimsoll_log::glsn::{Glsn, Position};

use crate::index::manifest::blocks::Failure;
use crate::index::manifest::limits::Limits;
use crate::index::manifest::names::{
    FOREIGN, KEPT, manifest_name, manifest_number, new_manifest_name,
};
use crate::index::ranges::RangeSet;
use crate::index::run::table::TableInfo;
use crate::types::error::{Error, Result};

/// A run as the manifest names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunInfo {
    /// Whether it holds superseded versions.
    pub(crate) history: bool,
    /// Its tables, sorted.
    pub(crate) tables: Vec<TableInfo>,
}

/// The manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) head: Head,
    /// Runs, newest first; then history runs, the most recently made first.
    pub(crate) runs: Vec<RunInfo>,
}

/// All fields of a manifest except the runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The log's id; a manifest of another log is refused.
    pub(crate) log_id: u128,
    /// The number of this manifest in the sequence of the store's manifests.
    pub(crate) number: u64,
    /// The position in the log up to which the runs are complete.
    pub(crate) checkpoint: Position,
    /// The newest durable position of the log when the manifest was written.
    pub(crate) durable: Position,
    /// Id of the next run file.
    pub(crate) next_run: u64,
    /// Which moments can still be read. A manifest of an earlier version does not record the
    /// youngest dropped deletion of each keyspace. The floor of the keyspace's readable moments
    /// stands for it, because the drop of a younger deletion would have raised the floor.
    pub(crate) limits: Limits,
    /// Range deletions up to the checkpoint that some run has not absorbed.
    pub(crate) ranges: Arc<RangeSet>,
    /// The log had every entry from this one on when the manifest was written, and is only trimmed
    /// below it. If the log's first entry is later, segments are missing. `None` if an earlier
    /// version wrote the manifest.
    pub(crate) log_begins: Option<Glsn>,
}

impl Manifest {
    /// The manifest of an empty index.
    pub(crate) fn empty(log_id: u128) -> Self {
        let head = Head {
            log_id,
            number: 0,
            checkpoint: Position::default(),
            durable: Position::default(),
            next_run: 1,
            limits: Limits::default(),
            ranges: Arc::default(),
            log_begins: Some(Glsn::FIRST),
        };
        Self { head, runs: Vec::new() }
    }

    /// Reads the newest manifest of a folder, of any log; `None` if there is none (the index is
    /// then rebuilt from the log).
    #[cfg(any(test, feature = "testing", fuzzing))]
    pub(crate) fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<Manifest>> {
        Self::read_beyond(disk, dir, None, None)
    }

    /// Reads the newest manifest of the store at `path` that belongs to its log. If there are only
    /// manifests of other logs, or the log is missing or cannot be read, reads the newest of all.
    pub(crate) fn read_of_store(disk: &dyn Disk, path: &Path) -> Result<Option<Manifest>> {
        let (index, log_id) = (path.join("index"), id_in(disk, &path.join("log")));
        match Self::read_beyond(disk, &index, log_id, None)? {
            None if log_id.is_some() => Self::read_beyond(disk, &index, None, None),
            read => Ok(read),
        }
    }

    /// Reads the newest manifest, of this log if `log_id` is given; `None` if there is none that is
    /// newer than `known`.
    pub(crate) fn read_beyond(
        disk: &dyn Disk,
        dir: &Path,
        log_id: Option<u128>,
        known: Option<u64>,
    ) -> Result<Option<Manifest>> {
        let mut before = None;
        loop {
            let Some(number) = newest_number_of(disk, dir, log_id, known)? else { return Ok(None) };
            let path = dir.join(manifest_name(number));
            match disk.open(&path, Open::Read, Caching::Buffered) {
                Ok(file) => return read_file(&*file, &path, number).map(Some),
                // The writing process has removed it, so a newer one exists.
                Err(error) if error.kind() == io::ErrorKind::NotFound && before != Some(number) => {
                    before = Some(number)
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads the manifest with this number, which need not be the newest.
    pub(crate) fn read_numbered(disk: &dyn Disk, dir: &Path, number: u64) -> Result<Manifest> {
        let path = dir.join(manifest_name(number));
        read_file(&*disk.open(&path, Open::Read, Caching::Buffered)?, &path, number)
    }

    /// Writes the manifest under its number; see [`write`].
    pub(crate) fn write(&self, disk: &dyn Disk, dir: &Path) -> Result<()> {
        let runs = self.runs.iter().map(|run| (run.history, run.tables.iter()));
        write(disk, dir, 0, &self.head, runs).map_err(|(_, error)| error)
    }
}

fn read_file(file: &dyn File, path: &Path, number: u64) -> Result<Manifest> {
    let manifest = format::read(file).map_err(|error| match error {
        Failure::Error(error) => error,
        Failure::Damaged(what) => damaged(path, what),
        Failure::Newer(what) => Error::Format {
            path: Some(path.to_owned()),
            message: format!(
                "{}: {what} that this version does not know; use a newer Plimsoll",
                path.display()
            ),
        },
    })?;
    if manifest.head.number != number {
        return Err(damaged(path, "the number in it differs from the one in its name"));
    }
    Ok(manifest)
}

/// The number of the newest manifest in a folder; `None` if there is none, or no folder.
pub(crate) fn newest_number(disk: &dyn Disk, dir: &Path) -> Result<Option<u64>> {
    match disk.names(dir) {
        Ok(names) => Ok(names.iter().filter_map(|name| manifest_number(name)).max()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The number of the newest manifest of a log above `known`. A manifest whose head cannot be read
/// counts as one of this log, because it is damaged.
fn newest_number_of(
    disk: &dyn Disk,
    dir: &Path,
    log_id: Option<u128>,
    known: Option<u64>,
) -> Result<Option<u64>> {
    let names = match disk.names(dir) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| manifest_number(name)).collect();
    numbers.retain(|number| known.is_none_or(|known| *number > known));
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    let is_own = |number: &u64| match log_id {
        Some(log_id) => log_id_of(disk, dir, *number).is_none_or(|found| found == log_id),
        None => true,
    };
    Ok(numbers.into_iter().find(is_own))
}

/// The id of the log that a manifest belongs to, if its head can be read.
fn log_id_of(disk: &dyn Disk, dir: &Path, number: u64) -> Option<u128> {
    let file = disk.open(&dir.join(manifest_name(number)), Open::Read, Caching::Buffered).ok()?;
    format::check_head(&*file).ok()
}

/// The names of the manifests in a folder that belong to other logs.
pub(crate) fn foreign_names(disk: &dyn Disk, dir: &Path, log_id: u128) -> Result<Vec<String>> {
    let mut names = match disk.names(dir) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let is_foreign = |name: &str| match manifest_number(name) {
        Some(number) => log_id_of(disk, dir, number).is_some_and(|found| found != log_id),
        None => name.strip_suffix(FOREIGN).is_some_and(|name| manifest_number(name).is_some()),
    };
    names.retain(|name| is_foreign(name));
    names.sort_unstable();
    Ok(names)
}

/// The next manifest number.
///
/// # Errors
/// The number is the maximum, which only a tampered manifest has.
pub(crate) fn number_after(number: u64) -> Result<u64> {
    number.checked_add(1).ok_or_else(|| {
        Error::damaged(format_args!(
            "{} has the highest possible number, which no store reaches by itself",
            manifest_name(number)
        ))
        .in_file(|| format!("index/{}", manifest_name(number)))
    })
}

fn damaged(path: &Path, what: &str) -> Error {
    Error::damaged(format_args!("{}: {what}", path.display()))
        .in_file(|| path.display().to_string())
}

/// Which manifest is the newest on disk after a write failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The manifest of another process, with the same number.
    Taken,
    /// The manifest of another process, with a higher number. That process may continue from this
    /// one.
    Overtaken,
    /// The previous manifest.
    Old,
    /// The previous or the new one: the link or its sync failed. The number must not be used again.
    Unknown,
}

/// Writes a manifest of `runs` (for each, whether it is history, and its tables) under its number,
/// and removes the one that is no longer kept.
pub(crate) fn write<'a, R, P>(
    disk: &dyn Disk,
    dir: &Path,
    writer: u64,
    head: &Head,
    runs: R,
) -> Result<(), (Outcome, Error)>
where
    R: ExactSizeIterator<Item = (bool, P)>,
    P: ExactSizeIterator<Item = &'a TableInfo>,
{
    let (new, path) =
        (dir.join(new_manifest_name(head.number, writer)), dir.join(manifest_name(head.number)));
    write_new(disk, &new, head, runs).map_err(|error| (Outcome::Old, error.into()))?;
    rename_unless_taken(disk, &new, &path, writer)?;
    disk.sync_dir(dir).map_err(|error| (Outcome::Unknown, error.into()))?;
    // After a long pause of this member, the name may be free although others installed this
    // number, because they may have removed it after they installed later ones.
    let newer = || newest_number_of(disk, dir, Some(head.log_id), Some(head.number));
    if writer > 0 && newer().map_err(|error| (Outcome::Unknown, error))?.is_some() {
        let what = "another process has installed a later manifest";
        return Err((Outcome::Overtaken, Error::corrupt(format!("{}: {what}", path.display()))));
    }
    // A file that cannot be removed now is swept at the next open.
    let _ = disk.remove(&new);
    if let Some(old) = head.number.checked_sub(KEPT) {
        let _ = disk.remove(&dir.join(manifest_name(old)));
    }
    Ok(())
}

/// Gives a manifest its name, unless the name is taken.
fn rename_unless_taken(
    disk: &dyn Disk,
    new: &Path,
    path: &Path,
    writer: u64,
) -> Result<(), (Outcome, Error)> {
    let taken = || {
        let what = "a manifest with this number already exists because another process wrote to \
                    the index or restored an old manifest";
        (
            Outcome::Taken,
            Error::corrupt(format!(
                "{}: {what}; close the store and open it again",
                path.display()
            )),
        )
    };
    match disk.hard_link(new, path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(taken()),
        // Another process became the keeper while this one was stopped, and swept its unfinished
        // files.
        Err(error) if writer > 0 && error.kind() == io::ErrorKind::NotFound => Err(taken()),
        // The file system has no links (exFAT). The store's lock keeps other processes out, so the
        // name stays free between the two calls.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied
            ) =>
        {
            match disk.entry(path).map_err(|error| (Outcome::Old, error.into()))? {
                Some(_) => Err(taken()),
                None => disk.rename(new, path).map_err(|error| (Outcome::Unknown, error.into())),
            }
        }
        Err(error) => Err((Outcome::Unknown, error.into())),
    }
}

fn write_new<'a, R, P>(disk: &dyn Disk, path: &Path, head: &Head, runs: R) -> io::Result<()>
where
    R: ExactSizeIterator<Item = (bool, P)>,
    P: ExactSizeIterator<Item = &'a TableInfo>,
{
    // Remove the file of a failed attempt.
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
    tables: &Arc<[crate::index::run::table::Table]>,
) -> impl ExactSizeIterator<Item = &TableInfo> {
    tables.iter().map(|table| &*table.info)
}
