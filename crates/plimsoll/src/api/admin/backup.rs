//! Copies a store while it is in use.
//!
//! [`files`](super::files) lists the files. Immutable files are hard-linked if the file system
//! supports it (unless a copy is requested); of the active segment, the durable part is copied. The
//! log's folder is renamed to its final name last, so an interrupted backup does not open as a
//! store.
//!
//! Invariant: after `Ok`, the copy is durable: every file, every name in it, and its own name in
//! the parent folder.

use std::io;
use std::path::Path;

use plimsoll_disk::io_cause::IoCause;
use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Kind;
use plimsoll_memory::page::PAGE_BYTES;

use crate::api::admin::backup_options::{BackupOptions, Sharing};
use crate::api::admin::files::{FileKind, Hold, StoreFile, list_whole};
use crate::engine::Engine;
use crate::engine::folder::remove_folder;
use crate::engine::unfinished_backup::{PARTIAL_LOG, is_unfinished};
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;

/// The result of a backup.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// let notes = db.keyspace("notes")?;
/// db.put(&notes, "a", "one")?;
/// let report = db.backup(dir.path().join("backup"))?;
/// db.put(&notes, "a", "two")?;
/// let copy = Db::open(dir.path().join("backup"), Options::new().memory_bytes(16 << 20))?;
/// assert_eq!(copy.newest(), report.glsn);
/// assert_eq!(copy.get(&copy.keyspace("notes")?, "a")?.unwrap(), b"one");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupReport {
    /// The newest GLSN in the backup.
    pub glsn: Glsn,
    /// Files in the backup.
    pub files: u64,
    /// Bytes copied.
    pub bytes_copied: u64,
    /// Bytes in hard-linked files, shared with the store on disk.
    pub bytes_linked: u64,
}

/// Copies the store to `dest`.
pub(crate) fn backup(store: &Engine, dest: &Path, how: &BackupOptions) -> Result<BackupReport> {
    let disk = &*store.options.disk;
    let hold = Hold::take(store)?;
    refuse_inside(disk, &store.path, dest)?;
    let is_made = prepare(disk, dest)?;
    let (index, log) = (dest.join("index"), dest.join(PARTIAL_LOG));
    // If another backup is made here at the same time, one of the two fails at one of these calls,
    // and removes only what it created.
    disk.create_dir(&log)?;
    disk.create_dir(&index).inspect_err(|_| _ = disk.remove_dir(&log))?;
    let report = match copy_files(store, &index, &log, how) {
        Ok(report) => report,
        Err(error) => {
            // Allow a retry at the same destination.
            for partial in [&index, &log] {
                let _ = remove_folder(disk, partial);
            }
            if is_made {
                // Fails if the folder contains something else by now.
                let _ = disk.remove_dir(dest);
            }
            return Err(hold.explain(error));
        }
    };
    disk.rename(&log, &dest.join("log"))?;
    if let Err(error) = disk.sync_dir(dest) {
        return Err(withdraw(disk, dest, &log, error));
    }
    Ok(report)
}

/// Copies all files that belong to the store at one moment. Both folders exist.
fn copy_files(
    store: &Engine,
    index: &Path,
    log: &Path,
    how: &BackupOptions,
) -> Result<BackupReport> {
    let disk = &*store.options.disk;
    let report = BackupReport { glsn: Glsn(0), files: 1, bytes_copied: 0, bytes_linked: 0 };
    let mut copier = Copier { store, how, report };
    let (manifest, end) = list_whole(store, &mut |file| {
        let into = if matches!(file.kind(), FileKind::Run { .. }) { index } else { log };
        if file.is_immutable() { copier.link(file, into) } else { copier.copy(file, into) }
    })?;
    copier.report.glsn = end.glsn;
    manifest.write(disk, index)?;
    disk.sync_dir(log)?;
    disk.sync_dir(index)?;
    Ok(copier.report)
}

/// Handles a failed last sync: the backup may not be durable, so it must not open as a store.
fn withdraw(disk: &dyn Disk, dest: &Path, partial: &Path, error: io::Error) -> Error {
    let advice = match disk.rename(&dest.join("log"), partial).and_then(|()| disk.sync_dir(dest)) {
        Ok(()) => "the backup is incomplete; remove it and make another".to_owned(),
        Err(second) => {
            format!(
                "the backup may not be durable, and marking it as unfinished failed ({second}); \
                 remove it"
            )
        }
    };
    Error::Io {
        kind: error.kind(),
        message: format!("{error}: {}: {advice}", dest.display()),
        source: Some(IoCause::new(error)),
    }
}

/// Rejects a destination inside the store's own folder, by whatever path it is reached.
pub(crate) fn refuse_inside(disk: &dyn Disk, store: &Path, dest: &Path) -> Result<()> {
    let place = match disk.entry(dest)? {
        Some(_) => disk.resolve(dest)?,
        None => disk.resolve(parent_of(dest))?,
    };
    if place.starts_with(disk.resolve(store)?) {
        return Err(InvalidInput::DestinationInside { path: dest.to_owned() }.into());
    }
    Ok(())
}

/// Creates the backup's folder, unless there is an empty one, and makes its name durable. Returns
/// whether it was created.
fn prepare(disk: &dyn Disk, dest: &Path) -> Result<bool> {
    let entry = disk.entry(dest)?;
    match &entry {
        None => disk.create_dir(dest)?,
        Some(entry) => {
            let names = if entry.is_dir { Some(disk.names(dest)?) } else { None };
            let path = || dest.to_owned();
            match names {
                Some(names) if names.is_empty() => {}
                Some(names) if is_unfinished(&names) => {
                    return Err(InvalidInput::DestinationUnfinished { path: path() }.into());
                }
                _ => return Err(InvalidInput::DestinationExists { path: path() }.into()),
            }
        }
    }
    // Sync even if the folder existed, because its creator may not have synced it.
    disk.sync_dir(parent_of(&disk.resolve(dest)?))?;
    Ok(entry.is_none())
}

/// The parent folder of a path.
pub(crate) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

struct Copier<'a> {
    store: &'a Engine,
    how: &'a BackupOptions,
    report: BackupReport,
}

impl Copier<'_> {
    /// Hard-links an immutable file into `dir`, or copies it if linking is impossible or not
    /// wanted.
    fn link(&mut self, file: &StoreFile<'_>, dir: &Path) -> Result<()> {
        self.how.cancel.check()?;
        let disk = &*self.store.options.disk;
        if self.how.sharing == Sharing::Copy
            || disk.hard_link(file.path(), &dir.join(file.file_name())).is_err()
        {
            return self.copy(file, dir);
        }
        self.report.files += 1;
        self.report.bytes_linked += file.bytes();
        Ok(())
    }

    /// Copies a file into `dir`, checking every page and block on the way.
    fn copy(&mut self, file: &StoreFile<'_>, dir: &Path) -> Result<()> {
        let disk = &*self.store.options.disk;
        let mut chunk = self.store.reader.budget.take(Kind::Staging)?;
        let source = disk.open(file.path(), Open::Read, Caching::Buffered)?;
        let target = disk.open(&dir.join(file.file_name()), Open::CreateNew, Caching::Buffered)?;
        let (mut at, bytes) = (0, file.bytes());
        while at < bytes {
            self.how.cancel.check()?;
            let piece = (bytes - at).min(chunk.len() as u64) as usize;
            source.read_exact_at(&mut chunk[..piece], at)?;
            let whole = piece.next_multiple_of(PAGE_BYTES);
            chunk[piece..whole].fill(0);
            file.check(at, at + piece as u64, &chunk[..whole])?;
            target.write_at(&chunk[..piece], at)?;
            at += piece as u64;
        }
        target.sync()?;
        self.report.files += 1;
        self.report.bytes_copied += bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::open::open;
    use crate::txn::transaction::Transaction;
    use crate::types::options::Options;

    /// Between a member's reads of the log and of the manifest, the keeper may write both.
    #[test]
    fn a_member_copies_the_log_at_least_up_to_the_copied_index() {
        let dir = tempfile::tempdir().unwrap();
        let (path, dest) = (dir.path().join("store"), dir.path().join("backup"));
        let options = || Options::new().memory_bytes(16 << 20).background(false);
        let join = || open(&path, options().shared(true)).unwrap();
        let keeper = join();
        let readers = || open(&path, options().shared(true).read_only(true)).unwrap();
        for (number, member) in [join(), readers()].into_iter().enumerate() {
            let mut tx = Transaction::new(&keeper.committer);
            tx.put(&keeper.reader.keyspaces.find("default").unwrap().0, b"row", b"value").unwrap();
            tx.commit().unwrap();
            keeper.flush().unwrap();
            member.reader.index.memtables.refresh().unwrap();
            let dest = dest.with_extension(number.to_string());
            prepare(&*member.options.disk, &dest).unwrap();
            let (index, log) = (dest.join("index"), dest.join("log"));
            [&index, &log]
                .into_iter()
                .for_each(|folder| member.options.disk.create_dir(folder).unwrap());
            copy_files(&member, &index, &log, &BackupOptions::new()).unwrap();
            let copy = open(&dest, options()).unwrap();
            assert_eq!(copy.visible(), keeper.visible());
        }
    }
}
