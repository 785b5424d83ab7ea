//! Repairs a store that does not open: rebuilds the index from the log, or cuts the log before damage. If the log's end is lost,
//! `salvage_index` keeps the contents of the index.
//!
//! Laws:
//! 1. A rebuild drops nothing: it fails if the index knows of commits that the log does not have.
//! 2. The old index stays until the new one is complete. It is moved to `index.old`, restored if the rebuild fails, and removed by the
//!    first open that does not need it.
//! 3. A salvage deletes nothing: data taken out of the store stays beside it under a name that ends with `.cut`. It does not begin while an
//!    old index is there, which would be removed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_disk::vfs::{DirLock, Disk};
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::{FileLogOptions, Mode};
use plimsoll_log::file_log::repair::salvage;
use plimsoll_log::glsn::{Glsn, Position, StreamId};
use plimsoll_log::log::Log;
use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::pool::Pool;

use crate::api::admin::aside::free_name;
use crate::api::admin::diagnose::first_of_log;
use crate::engine::folder::refuse_index_without_log;
use crate::engine::open::{INDEX_OLD, POOL_FLOOR_SHARE, Way, open_by, remove_folder, take_lock};
use crate::index::manifest::{Manifest, newest_number, next_number};
use crate::index::run::file::{newest_in_folder, run_id_of};
use crate::types::error::{Error, Lift, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::options::Options;

/// The result of a rebuild.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RebuildReport {
    /// The newest GLSN.
    pub glsn: Glsn,
    /// Versions in the index.
    pub versions: u64,
}

/// The result of a salvage.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SalvageReport {
    /// The newest remaining GLSN.
    pub glsn: Glsn,
    /// The newest GLSN that the index's manifest knew to be durable, if the log now ends before it: what was written up to it is given up. `None` also if
    /// the manifest cannot be read.
    pub lost_to: Option<Glsn>,
    /// Files and folders that were moved aside, with their new names. Nothing was deleted.
    pub moved: Vec<String>,
}

/// Rebuilds the index from the log. `progress` receives the GLSN reached and the newest one. The old index stays until the new one is
/// complete, so there must be disk space for both.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// let glsn = db.put(&notes, "a", "one")?;
/// db.close()?;
/// let report = rebuild(&path, Options::new().memory_bytes(16 << 20), &mut |_, _| {})?;
/// assert_eq!(report.glsn, glsn);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Forked`] if the index knows of commits that the log does not have: they would be lost, and the message names them.
/// [`Error::InvalidInput`] if the log is trimmed (below the trim point only the index has the data, so it cannot be rebuilt); or as for
/// [`crate::Db::open`]. The store is then unchanged.
pub fn rebuild(path: impl AsRef<Path>, options: Options, progress: &mut dyn FnMut(u64, u64)) -> Result<RebuildReport> {
    let path = path.as_ref();
    options.check()?;
    check_is_store(path, &options)?;
    let options = options.read_only(false);
    let disk = Arc::clone(&options.disk);
    let lock: Option<Arc<dyn DirLock>> = take_lock(path, &options)?.map(Arc::from);
    let (log, budget) = open_log(path, &options)?;
    let parts = refuse_parts(&log);
    if !matches!(parts, Err(Error::InvalidInput(_))) && log.bounds().first == Glsn::FIRST {
        // Not beside a log that was trimmed since: the index that is there is the only one. Also where the log cannot be read: the old index may
        // not need what is damaged.
        put_index_back(path, &*disk)?;
    }
    parts?;
    refuse_to_lose(path, &options, &log, &budget)?;
    drop((log, budget));
    let (index, old) = (path.join("index"), path.join(INDEX_OLD));
    let mut way = Way { lock, ..Way::default() };
    if disk.entry(&index)?.is_some() {
        way.first_run = first_free_run(&*disk, &index)?;
        // A reader that knows a manifest of the old index loads the ones of the new index.
        way.last_manifest = newest_number(&*disk, &index)?.unwrap_or(0);
        disk.rename(&index, &old)?;
        disk.sync_dir(path)?;
    }
    let mut newest = 0;
    let opened = open_by(path, options, &way, &mut |glsn, last| {
        newest = last.0;
        progress(glsn.0, newest);
    });
    let store = match opened {
        Ok(store) => store,
        Err(error) => {
            put_index_back(path, &*disk)?;
            return Err(error);
        }
    };
    store.reader.index.flush(Glsn(store.visible().0))?;
    let report = RebuildReport { glsn: store.visible(), versions: store.reader.index.stats().versions };
    store.close()?;
    Ok(report)
}

/// An id that no run file of the index ever had: pages left on disk by the old index must not be mistaken for pages of the new one.
fn first_free_run(disk: &dyn Disk, index: &Path) -> Result<u64> {
    let named = match Manifest::read_beyond(disk, index, None, None) {
        Ok(manifest) => manifest.map_or(0, |manifest| manifest.next_run),
        Err(Error::Corrupt { .. }) => 0,
        Err(error) => return Err(error),
    };
    let names = disk.names(index)?;
    Ok(names.iter().filter_map(|name| run_id_of(name)).fold(named, |next, id| next.max(id.saturating_add(1))))
}

/// Restores the index that a rebuild moved aside and did not replace.
pub(crate) fn put_index_back(path: &Path, disk: &dyn Disk) -> Result<()> {
    let (index, old) = (path.join("index"), path.join(INDEX_OLD));
    if disk.entry(&old)?.is_none() {
        return Ok(());
    }
    remove_folder(disk, &index)?;
    disk.rename(&old, &index)?;
    Ok(disk.sync_dir(path)?)
}

/// Fails while the index that a rebuild set aside is there: it may hold what is damaged elsewhere.
pub(crate) fn refuse_amid_rebuild(path: &Path, disk: &dyn Disk) -> Result<()> {
    match disk.entry(&path.join(INDEX_OLD))? {
        Some(_) => Err(InvalidInput::RebuildUnfinished.into()),
        None => Ok(()),
    }
}

/// Returns an error if the log does not hold everything that was ever committed.
fn refuse_parts(log: &FileLog) -> Result<()> {
    refuse_dropped(log, Glsn::MAX)?;
    let first = log.bounds().first;
    if first > Glsn::FIRST { Err(InvalidInput::RebuildLosesTrimmed { first }.into()) } else { Ok(()) }
}

/// Returns an error if something was dropped from the log before `end`.
fn refuse_dropped(log: &FileLog, end: Glsn) -> Result<()> {
    let bounds = log.bounds();
    let mut dropped = log.scan(bounds.first..bounds.next.min(end), Some(StreamId::DROPPED)).lift()?;
    match dropped.next_entry() {
        Some(entry) => Err(InvalidInput::RebuildLosesDropped { glsn: entry.lift()?.meta.glsn }.into()),
        None => Ok(()),
    }
}

/// Returns an error if the index knows of commits that the log does not have.
fn refuse_to_lose(path: &Path, options: &Options, log: &FileLog, budget: &Budget) -> Result<()> {
    let index = path.join("index");
    let known = match Manifest::read_of_store(&*options.disk, path) {
        Ok(manifest) => manifest,
        // The manifest is damaged: look at the runs instead, as far as they can be read.
        Err(Error::Corrupt { .. }) => None,
        Err(error) => return Err(error),
    };
    let bounds = log.bounds();
    let last = Glsn(bounds.next.0 - 1);
    let Some(known) = known else {
        let newest = newest_in_folder(&*options.disk, &index, log.id(), budget)?;
        return if newest > last { Err(lost(path, last, newest, newest)) } else { Ok(()) };
    };
    if is_of(&known, log)? {
        Ok(())
    } else if known.log_id == log.id() && known.durable.glsn > last {
        Err(lost(path, last, known.checkpoint.glsn, known.durable.glsn))
    } else {
        Err(Error::Forked {
            glsn: None,
            message: format!(
                "{}: the index was made from another log, or from this one before it was forked: its commits up to GLSN {} are only there, \
                 and a rebuild would lose them. Put the right log back; or keep what the index holds, by `plimsoll salvage --from-index`; \
                 or keep what the log holds, by `plimsoll salvage --cut-at {}`",
                path.display(),
                known.durable.glsn,
                bounds.next
            ),
        })
    }
}

/// Whether a manifest was made from this log and contains nothing that the log does not have.
fn is_of(manifest: &Manifest, log: &FileLog) -> Result<bool> {
    if manifest.log_id != log.id() {
        return Ok(false);
    }
    for place in [manifest.checkpoint, manifest.durable] {
        if place.glsn >= log.bounds().next || !has(log, place)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a manifest's position matches the log. Positions outside the log's bounds are accepted.
pub(crate) fn has(log: &FileLog, place: Position) -> Result<bool> {
    if place.glsn == Glsn::NONE || place.glsn < log.bounds().first || place.glsn >= log.bounds().next {
        return Ok(true);
    }
    Ok(log.chain_at(place.glsn).lift()?.is_none_or(|chain| chain == place.chain))
}

/// The error for a log that ends before commits that the index knows of.
fn lost(path: &Path, last: Glsn, held: Glsn, durable: Glsn) -> Error {
    let path = path.display();
    let ends = format!("{path}: the log ends with GLSN {last}, and commits up to {durable} were acknowledged");
    let give_up = format!("give them up, by `plimsoll salvage --cut-at {}`", last.next());
    let message = if held > last {
        let rest = if durable > held { format!(" ({} to {durable} are nowhere)", held.next()) } else { String::new() };
        format!(
            "{ends}: GLSNs {} to {held} are only in the index{rest}, and a rebuild would lose them. Put the right log back; or keep what the \
             index holds, by `plimsoll salvage --from-index`; or {give_up}",
            last.next()
        )
    } else {
        format!("{ends}: GLSNs {} to {durable} are nowhere. Put the right log back, or {give_up}", last.next())
    };
    Error::Forked { glsn: Some(last.next()), message }
}

/// Cuts the log before `cut_at`: this entry and all later ones are removed from the store (moved aside, not deleted). An index that holds
/// any of them is moved aside too, and rebuilt by the next open; one that does not stays. The last resort when a record in the middle is
/// damaged.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// let one = db.put(&notes, "a", "one")?;
/// let two = db.put(&notes, "a", "two")?;
/// db.close()?;
/// // The log is kept up to the entry before.
/// let report = salvage(&path, Options::new().memory_bytes(16 << 20), two)?;
/// assert_eq!(report.glsn, one);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The log is trimmed beyond `cut_at`; log or index have a newer format; disk errors. [`Error::InvalidInput`] if the index holds what is to be
/// cut, and cannot be rebuilt because the log was trimmed or something was dropped from it: [`crate::salvage_from_index`] keeps what it holds; or if a
/// rebuild did not end. Nothing was changed then, unless damage before `cut_at` made the log end earlier than asked for.
pub fn salvage(path: impl AsRef<Path>, options: Options, cut_at: Glsn) -> Result<SalvageReport> {
    let path = path.as_ref();
    options.check()?;
    check_is_store(path, &options)?;
    if cut_at == 0 {
        return Err(InvalidInput::CutAtZero.into());
    }
    let disk = &*options.disk;
    let _lock = take_lock(path, &options)?;
    refuse_amid_rebuild(path, disk)?;
    let index = path.join("index");
    let manifest = Manifest::read_of_store(disk, path);
    if let Err(error @ Error::Format { .. }) = manifest {
        return Err(error);
    }
    let has_dropped = || {
        let log = open_log(path, &options);
        // A log that does not open tells nothing.
        log.is_ok_and(|(log, _budget)| matches!(refuse_dropped(&log, cut_at), Err(Error::InvalidInput(_))))
    };
    if first_of_log(disk, path)? > Glsn::FIRST || has_dropped() {
        // Before anything is changed: without its index such a log is no store.
        match &manifest {
            Ok(Some(manifest)) => refuse_to_strand(manifest, Glsn(cut_at.0 - 1))?,
            Ok(None) => {}
            Err(error) => return Err(error.clone()),
        }
    }
    let durable = manifest.as_ref().ok().and_then(|found| found.as_ref().map(|manifest| manifest.durable.glsn));
    let cut = salvage::salvage(&log_options(path, &options)?.0, cut_at).lift()?;
    let aside = |name: &String| path.join("log").join(name).display().to_string();
    let mut moved: Vec<String> = cut.aside.iter().map(aside).collect();
    let (log, _budget) = open_log(path, &options)?;
    match manifest {
        Ok(None) => {}
        Ok(Some(manifest)) if is_of_front(&manifest, &log, cut.kept.glsn)? => {
            if manifest.durable.glsn > cut.kept.glsn {
                // It knows of commits that were cut, and holds none of them.
                let number = next_number(disk, &index)?;
                Manifest { number, durable: cut.kept, ..manifest }.write(disk, &index)?;
            }
        }
        // A manifest that cannot be read makes the index useless, unless it is the only one that there can be.
        manifest => {
            if let Err(parts) = refuse_parts(&log) {
                if !matches!(parts, Error::InvalidInput(_)) {
                    return Err(parts);
                }
                refuse_to_strand(&manifest?.expect("looked at above"), cut.kept.glsn)?;
                return Err(parts);
            }
            moved.push(move_aside(disk, path, "index")?.display().to_string());
        }
    }
    let lost_to = durable.filter(|durable| *durable > cut.kept.glsn);
    Ok(SalvageReport { glsn: cut.kept.glsn, lost_to, moved })
}

/// Fails if an index that cannot be rebuilt holds commits behind `kept`, where the log ends.
fn refuse_to_strand(manifest: &Manifest, kept: Glsn) -> Result<()> {
    let held = newest_held(manifest);
    if held > kept { Err(InvalidInput::CutStrandsIndex { kept, held }.into()) } else { Ok(()) }
}

/// The newest commit that an index holds.
fn newest_held(manifest: &Manifest) -> Glsn {
    let tables = manifest.runs.iter().flat_map(|run| &run.tables);
    tables.map(|info| info.max_glsn).fold(manifest.checkpoint.glsn, Glsn::max)
}

/// Whether a manifest was made from this log and its runs hold nothing that the log, which was cut behind `kept`, does not have.
fn is_of_front(manifest: &Manifest, log: &FileLog, kept: Glsn) -> Result<bool> {
    let is_of_log = manifest.log_id == log.id() && has(log, manifest.checkpoint)? && has(log, manifest.durable)?;
    Ok(is_of_log && newest_held(manifest) <= kept)
}

pub(crate) fn check_is_store(path: &Path, options: &Options) -> Result<()> {
    if options.disk.entry(path)?.is_some_and(|entry| !entry.is_dir) {
        return Err(Error::is_a_file(path));
    }
    refuse_index_without_log(path, &*options.disk)?;
    match options.disk.entry(&path.join("log"))? {
        Some(entry) if entry.is_dir => Ok(()),
        _ => Err(Error::NotAStore { path: path.to_owned(), what: "there is no store here; check the path".to_owned() }),
    }
}

/// Renames a folder of the store to an unused name that ends with `.cut`; returns the new path.
pub(crate) fn move_aside(disk: &dyn Disk, path: &Path, name: &str) -> Result<PathBuf> {
    let target = free_name(disk, path, name)?;
    disk.rename(&path.join(name), &target)?;
    disk.sync_dir(path)?;
    Ok(target)
}

/// Opens the store's log for inspection, with the budget for its memory.
pub(crate) fn open_log(path: &Path, options: &Options) -> Result<(FileLog, Budget)> {
    let (log, budget) = log_options(path, options)?;
    Ok((FileLog::open(log).lift()?.0, budget))
}

fn log_options(path: &Path, options: &Options) -> Result<(FileLogOptions, Budget)> {
    look_at(&path.join("log"), options)
}

/// Options to open the log in a folder for inspection.
pub(crate) fn look_at(dir: &Path, options: &Options) -> Result<(FileLogOptions, Budget)> {
    let budget = Budget::new(options.memory_bytes, Backing::Mapped)?;
    let pool = Pool::new(&budget, options.memory_bytes / POOL_FLOOR_SHARE).lift()?;
    let (disk, clock) = (Arc::clone(&options.disk), Arc::clone(&options.clock));
    let log = FileLogOptions::new(disk, clock, dir.to_owned(), pool, budget.clone());
    Ok((FileLogOptions { mode: Mode::ReadOnly, ..log }, budget))
}
