//! Copies a store while it is in use.
//!
//! In the committers' turn the position of the log and the index's files are noted; then they are copied without holding anybody up:
//! immutable files by a hard link where the file system can, the active segment up to the durable position. The log's folder gets its
//! name last, so a backup that was cut short does not open as a store.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, Kind};

use crate::pending::Pending as _;
use crate::error::{Error, Result};
use crate::store::Store;

/// What a backup did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupReport {
    /// The newest GLSN in it.
    pub glsn: u64,
    /// Files in it.
    pub files: u64,
    /// Bytes that were copied.
    pub bytes_copied: u64,
    /// Bytes that share their place on disk with the store.
    pub bytes_linked: u64,
}

/// Copies the store to `dest`.
pub(crate) fn backup(store: &Store, dest: &Path) -> Result<BackupReport> {
    let disk = &*store.options.disk;
    prepare(disk, dest)?;
    let _no_trim = store.trim_turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (files, index_files, manifest, _pinned) = {
        let _turn = store.take_turn();
        let applied = Glsn(store.applied.load(Ordering::Acquire));
        if applied > Glsn::NONE && !store.options.read_only {
            store.log.wait_durable(applied)?;
        }
        let files = store.file_log.files_for_backup()?;
        let (manifest, index_files, pinned) = store.index.files();
        (files, index_files, manifest, pinned)
    };
    let mut report = BackupReport { glsn: files.position.glsn.0, files: 0, bytes_copied: 0, bytes_linked: 0 };
    let (index, log) = (dest.join("index"), dest.join("log.partial"));
    disk.create_dir(&index)?;
    disk.create_dir(&log)?;
    for file in &index_files {
        link_or_copy(store, file, &index, &mut report)?;
    }
    manifest.write(disk, &index)?;
    report.files += 1;
    for file in &files.immutable {
        link_or_copy(store, file, &log, &mut report)?;
    }
    if let Some((file, bytes)) = &files.active {
        copy(disk, &store.budget, file, &log.join(name_of(file)), *bytes)?;
        report.files += 1;
        report.bytes_copied += bytes;
    }
    disk.sync_dir(&log)?;
    disk.sync_dir(&index)?;
    disk.rename(&log, &dest.join("log"))?;
    disk.sync_dir(dest)?;
    Ok(report)
}

fn prepare(disk: &dyn Disk, dest: &Path) -> Result<()> {
    match disk.entry(dest)? {
        None => Ok(disk.create_dir(dest)?),
        Some(entry) if entry.is_dir && disk.list(dest)?.is_empty() => Ok(()),
        Some(_) => Err(Error::invalid(format!(
            "{}: something stands there already; give a backup a new or empty folder",
            dest.display()
        ))),
    }
}

fn name_of(path: &Path) -> &std::ffi::OsStr {
    path.file_name().expect("a store's files have names")
}

fn link_or_copy(store: &Store, from: &PathBuf, dir: &Path, report: &mut BackupReport) -> Result<()> {
    let disk = &*store.options.disk;
    let to = dir.join(name_of(from));
    let bytes = disk.entry(from)?.map_or(0, |entry| entry.len);
    report.files += 1;
    if disk.hard_link(from, &to).is_ok() {
        report.bytes_linked += bytes;
        return Ok(());
    }
    copy(disk, &store.budget, from, &to, bytes)?;
    report.bytes_copied += bytes;
    Ok(())
}

fn copy(disk: &dyn Disk, budget: &Budget, from: &Path, to: &Path, bytes: u64) -> Result<()> {
    let mut chunk = budget.take(Kind::Staging)?;
    let source = disk.open(from, Open::Read, Caching::Buffered)?;
    let target = disk.open(to, Open::CreateNew, Caching::Buffered)?;
    let mut at = 0;
    while at < bytes {
        let piece = (bytes - at).min(chunk.len() as u64) as usize;
        source.read_exact_at(&mut chunk[..piece], at)?;
        target.write_at(&chunk[..piece], at)?;
        at += piece as u64;
    }
    Ok(target.sync()?)
}
