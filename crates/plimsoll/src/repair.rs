//! What is left to do when a store does not open: make the index anew from the log, or cut the log before damage.

use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::vfs::Disk;
use plimsoll_log::file_log::options::{FileLogOptions, Mode};
use plimsoll_log::file_log::{FileLog, salvage};
use plimsoll_log::glsn::Glsn;
use plimsoll_log::log::Log;
use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::pool::Pool;

use crate::error::{Error, Result};
use crate::index::manifest::{MANIFEST, Manifest};
use crate::open::{POOL_FLOOR_SHARE, open_with, take_lock};
use crate::options::Options;

/// What a rebuild did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RebuildReport {
    /// The newest GLSN.
    pub glsn: u64,
    /// Versions in the index.
    pub versions: u64,
}

/// What a salvage did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SalvageReport {
    /// The newest GLSN that is left.
    pub glsn: u64,
    /// Files that were moved aside, with their new names. Nothing was deleted.
    pub moved: Vec<String>,
}

/// Throws the index away and makes it anew from the log. `progress` hears the GLSN reached and the newest one.
///
/// # Errors
/// The log is trimmed (then the index is the truth below the trim point and cannot be made anew), or as for [`crate::Db::open`].
pub fn rebuild(path: impl AsRef<Path>, options: Options, progress: &mut dyn FnMut(u64, u64)) -> Result<RebuildReport> {
    let path = path.as_ref();
    options.check()?;
    check_is_store(path, &options)?;
    {
        let _lock = take_lock(path, &options)?;
        refuse_trimmed(path, &options)?;
        move_manifest_aside(path, &*options.disk)?;
    }
    let mut newest = 0;
    let store = open_with(path, options, &mut |glsn, last| {
        newest = last.0;
        progress(glsn.0, newest);
    })?;
    store.index.flush(Glsn(store.visible().0))?;
    let report = RebuildReport { glsn: store.visible().0, versions: store.index.stats().versions };
    store.close()?;
    Ok(report)
}

/// Cuts the log so that `cut_at` and everything behind it is gone from the store (its files are moved aside, not deleted), and makes
/// the index anew where it holds any of that. The last resort when a record in the middle is damaged.
///
/// # Errors
/// The log is trimmed beyond `cut_at`, or the disk.
pub fn salvage(path: impl AsRef<Path>, options: Options, cut_at: u64) -> Result<SalvageReport> {
    let path = path.as_ref();
    options.check()?;
    check_is_store(path, &options)?;
    if cut_at == 0 {
        return Err(Error::invalid("GLSNs begin at 1: a log is cut at 1 or later"));
    }
    let _lock = take_lock(path, &options)?;
    let cut = salvage::salvage(&read_options(path, &options)?, Glsn(cut_at))?;
    let last = cut.kept.glsn;
    let mut moved: Vec<String> =
        cut.aside.iter().map(|name| path.join("log").join(name).display().to_string()).collect();
    let manifest = Manifest::read(&*options.disk, &path.join("index"));
    // A manifest that knows of what was cut, or that cannot be read, is of no use any more.
    if !matches!(&manifest, Ok(Some(manifest)) if manifest.durable.glsn <= last) {
        moved.extend(move_manifest_aside(path, &*options.disk)?);
    }
    Ok(SalvageReport { glsn: last.0, moved })
}

fn check_is_store(path: &Path, options: &Options) -> Result<()> {
    match options.disk.entry(&path.join("log"))? {
        Some(entry) if entry.is_dir => Ok(()),
        _ => Err(Error::NotAStore { path: path.to_owned(), what: "there is no store here; check the path".to_owned() }),
    }
}

fn refuse_trimmed(path: &Path, options: &Options) -> Result<()> {
    let (log, _) = FileLog::open(read_options(path, options)?)?;
    let first = log.bounds().first;
    if first > Glsn::FIRST {
        return Err(Error::invalid(format!(
            "the log is trimmed below GLSN {first}: what lies before stands only in the index, which is therefore not thrown away; restore a backup instead"
        )));
    }
    Ok(())
}

/// The log, to look at.
fn read_options(path: &Path, options: &Options) -> Result<FileLogOptions> {
    let budget = Budget::new(options.memory_bytes, Backing::Mapped)?;
    let pool = Pool::new(&budget, options.memory_bytes / POOL_FLOOR_SHARE)?;
    let (disk, clock) = (Arc::clone(&options.disk), Arc::clone(&options.clock));
    Ok(FileLogOptions { mode: Mode::ReadOnly, ..FileLogOptions::new(disk, clock, path.join("log"), pool, budget) })
}

/// The manifest's new name, if there was one. The runs that it named are swept at the next open.
fn move_manifest_aside(path: &Path, disk: &dyn Disk) -> Result<Option<String>> {
    let manifest = path.join("index").join(MANIFEST);
    if disk.entry(&manifest)?.is_none() {
        return Ok(None);
    }
    let aside = path.join("index").join(format!("{MANIFEST}.old"));
    disk.rename(&manifest, &aside)?;
    disk.sync_dir(&path.join("index"))?;
    Ok(Some(aside.display().to_string()))
}
