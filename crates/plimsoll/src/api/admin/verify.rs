//! Reads and checks every byte of a store: the log's chain and checksums, every page, key and fence
//! of the index, and each value against its original checksum.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use plimsoll_disk::vfs::Disk;
use plimsoll_log::blob::BlobId;
use plimsoll_log::file_log::id_in;
use plimsoll_log::file_log::repair::verify::Finding;

use crate::api::admin::diagnose::{
    Found, LostPlaces, Part, Scene, check_is_store, first_of_log, is_damage, is_lost, look,
    look_at, value_blobs,
};
use crate::api::admin::lost_keyspaces::unnamed;
use crate::api::admin::verify_values::{BadValue, Values};
use crate::engine::Engine;
use crate::engine::open::open;
use crate::index::manifest::names::{manifest_name, manifest_number};
use crate::index::manifest::{Manifest, foreign_names, newest_number};
use crate::index::runs::check;
use crate::types::damage::Damage;
use crate::types::error::{Error, Lift, Result, strip_advice};
use crate::types::options::Options;
use crate::types::version::Stored;

/// Progress of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Bytes read so far.
    pub done_bytes: u64,
    /// Approximate total of bytes to read.
    pub total_bytes: u64,
}

/// The result of a verification.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// let report: VerifyReport = db.verify(&mut |_| {})?;
/// for damage in &report.damage {
///     println!("{damage}");
/// }
/// assert!(report.problems.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// The problems, one line each, with file and place. Empty if the store is intact.
    pub problems: Vec<String>,
    /// The same problems in detail: place, commits and keys affected, and the command that helps.
    pub damage: Vec<Damage>,
    /// Deviations from a cleanly closed store that need no action: leftovers of a killed process or
    /// a power cut, tables that will be rebuilt, data that a recovery could not read.
    pub notes: Vec<String>,
    /// Bytes read.
    pub bytes: u64,
    /// Files read.
    pub files: u64,
    /// Whether the store opens.
    pub opens: bool,
}

/// Maximum number of problems listed; a longer list would not help.
const MAX_PROBLEMS: usize = 1000;

/// Checks all of a store that is not open in this process, even one too damaged to open.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// db.put(&notes, "a", "one")?;
/// db.close()?;
/// let report = verify(&path, Options::new().memory_bytes(16 << 20), &mut |progress| {
///     println!("{} of {} bytes", progress.done_bytes, progress.total_bytes);
/// })?;
/// assert!(report.problems.is_empty() && report.opens);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// There is no store, or it has another format; disk errors, or the budget. Damage is not an error:
/// it is in the report.
pub fn verify(
    path: impl AsRef<Path>,
    options: Options,
    progress: &mut dyn FnMut(VerifyProgress),
) -> Result<VerifyReport> {
    let (path, options) = (path.as_ref(), options.read_only(true).warm(false));
    match open(path, options.clone()) {
        Ok(store) => verify_open(&store, progress),
        Err(error) if is_damage(&error) => verify_closed(path, &options, &error, progress),
        Err(error) => Err(error),
    }
}

/// Checks all of an open store.
pub(crate) fn verify_open(
    store: &Engine,
    progress: &mut dyn FnMut(VerifyProgress),
) -> Result<VerifyReport> {
    let _no_trim = store.space.trim_lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    store.check_open()?;
    let _held = store.hold_files()?;
    if let Some(checkpoints) = &store.maintenance.checkpoints {
        // Remove the leftovers of a killed writer first: they are not damage.
        checkpoints.sweep()?;
    }
    // Check the bytes on the device, not the system's cached copy.
    let _device = store.io.read_device();
    let total_bytes = crate::engine::collect_stats::disk_bytes(store)?;
    let mut report = VerifyReport { opens: true, ..VerifyReport::default() };
    let mut log_bytes = 0;
    let (manifest, _, _pinned) = store.reader.index.runs.files();
    let needed = value_blobs(&manifest);
    let mut findings = store
        .reader
        .log
        .verify(&|blob| store.reader.index.runs.uses_blob(blob), &needed, &mut |so_far| {
            log_bytes = so_far.done_bytes;
            progress(VerifyProgress { done_bytes: so_far.done_bytes, total_bytes });
        })
        .lift()?;
    report.bytes = log_bytes;
    report.files = store
        .options
        .disk
        .list(&store.path.join("log"))?
        .iter()
        .filter(|entry| entry.name != "LOCK")
        .count() as u64;
    let mut scene = Scene {
        path: &store.path,
        budget: &store.reader.budget,
        names: store
            .reader
            .keyspaces
            .names()
            .into_iter()
            .map(|(id, name)| (id, name.to_string()))
            .collect(),
    };
    let mut values = Values::new(store)?;
    values.check_log(&findings)?;
    let (mut parts, mut between) = (Vec::new(), Vec::new());
    let mut checked = |table: &_, problems| {
        let part = Part::of(table, 0, problems);
        report.files += 1;
        report.bytes += part.bytes();
        progress(VerifyProgress { done_bytes: report.bytes, total_bytes });
        parts.push(part);
    };
    check::verify(
        &store.reader.index.runs,
        &mut |version| values.check_version(version),
        &mut checked,
        &mut |what| between.push(what),
    )?;
    let mut bad = values.finish()?;
    let gone = removed_elsewhere(store, &findings, &bad)?;
    findings.retain(|finding| finding.blob.as_ref().is_none_or(|blob| !gone.contains(&blob.id)));
    bad.retain(
        |bad| !matches!(bad.stored.value(), Stored::InBlob { blob, .. } if gone.contains(&blob)),
    );
    let (mut found, notes) = scene.describe(&findings, &parts)?;
    let places = LostPlaces::of(found.iter());
    bad.retain(|bad| places.find(bad.glsn, &bad.stored).is_none());
    let mut damage: Vec<Damage> = found.drain(..).map(|Found { damage, .. }| damage).collect();
    damage.extend(bad.into_iter().map(|bad| bad.describe(&scene).damage));
    let file = format!("index/{}", manifest_name(store.reader.index.runs.manifest_number()));
    damage.extend(between.into_iter().map(|what| advised(&store.path, &file, what)));
    let at = store.visible();
    // Apply the commits of other members up to now, with their keyspaces.
    store.committer.fresh()?;
    let unnamed = unless_damaged(unnamed(store, at), &damage)?.unwrap_or_default();
    damage.extend(unnamed.into_iter().map(|id| {
        let what = format!("the record of keyspace number {id} is lost, but its keys exist");
        advised(&store.path, "index", what)
    }));
    let mut notes = notes;
    notes.extend(older_manifests(
        &*store.options.disk,
        &store.path,
        store.reader.index.runs.manifest_number(),
    )?);
    notes.extend(foreign_manifests(&*store.options.disk, &store.path, store.reader.log.id())?);
    fill(&mut report, damage, notes);
    Ok(report)
}

/// The unreadable manifests older than the newest one; they are needed only if newer ones are
/// damaged too.
fn older_manifests(disk: &dyn Disk, path: &Path, newest: u64) -> Result<Vec<String>> {
    let index = path.join("index");
    let mut notes = Vec::new();
    let names = if disk.entry(&index)?.is_some() { disk.names(&index)? } else { Vec::new() };
    for number in
        names.iter().filter_map(|name| manifest_number(name)).filter(|number| *number < newest)
    {
        let read = Manifest::read_numbered(disk, &index, number);
        if let Err(Error::Corrupt { message, .. } | Error::Format { message, .. }) = read {
            notes.push(format!(
                "{}; the store does not need this older manifest and will remove it",
                strip_advice(&message)
            ));
        }
    }
    Ok(notes)
}

/// The manifests of other logs, written by a process whose own folder was replaced by this store.
fn foreign_manifests(disk: &dyn Disk, path: &Path, log_id: u128) -> Result<Vec<String>> {
    let names = foreign_names(disk, &path.join("index"), log_id)?;
    let note = |name| {
        format!(
            "index/{name} was made from another log, by a process whose store was replaced by this \
             one; this store does not use it, and it can be deleted"
        )
    };
    Ok(names.into_iter().map(note).collect())
}

/// A result that needs a sound index: `None` if damage that was found already prevents it.
fn unless_damaged<T>(result: Result<T>, found: &[Damage]) -> Result<Option<T>> {
    match result {
        Err(error) if is_damage(&error) && !found.is_empty() => Ok(None),
        result => result.map(Some),
    }
}

/// Blob files that are missing because another process, whose newest manifest does not need them,
/// has removed them.
fn removed_elsewhere(
    store: &Engine,
    findings: &[Finding],
    bad: &[BadValue],
) -> Result<BTreeSet<BlobId>> {
    let mut gone = BTreeSet::new();
    if !store.options.read_only {
        return Ok(gone);
    }
    // Only files that no record of the log names can have been removed: if a record names a missing
    // file, that is damage.
    let unnamed = findings
        .iter()
        .filter(|finding| finding.glsn.is_none())
        .filter_map(|finding| finding.blob.as_ref());
    let in_values = bad.iter().filter_map(|bad| match bad.stored.value() {
        Stored::InBlob { blob, .. } => Some(blob),
        _ => None,
    });
    for blob in unnamed.map(|blob| blob.id).chain(in_values) {
        if store.options.disk.entry(&store.path.join("log").join(blob.file_name()))?.is_none() {
            gone.insert(blob);
        }
    }
    match Manifest::read_of_store(&*store.options.disk, &store.path) {
        Ok(Some(newest)) => {
            let needed = value_blobs(&newest);
            gone.retain(|blob| needed.binary_search(blob).is_err());
        }
        // There is no evidence that another process removed the files.
        _ => gone.clear(),
    }
    Ok(gone)
}

/// Damage of a file as a whole.
fn advised(path: &Path, file: &str, what: String) -> Damage {
    let mut damage = Damage::new(file, 0, what);
    damage.advise(path);
    damage
}

/// Checks a store that does not open; `error` is the reason.
fn verify_closed(
    path: &Path,
    options: &Options,
    error: &Error,
    progress: &mut dyn FnMut(VerifyProgress),
) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    match check_is_store(path, &*options.disk) {
        // There is no log to read.
        Err(error) if is_damage(&error) => {
            fill(&mut report, vec![advised(path, "log", without_advice(&error, path))], Vec::new());
            return Ok(report);
        }
        looked => looked?,
    }
    let (log_options, budget) = look_at(&path.join("log"), options)?;
    let disk = &*options.disk;
    let closed = look(disk, path, &log_options.pool, &budget, &mut |done_bytes, total_bytes| {
        report.bytes = done_bytes;
        progress(VerifyProgress { done_bytes, total_bytes });
    })?;
    let first = first_of_log(disk, path)?;
    let mut scene = Scene { path, budget: &budget, names: BTreeMap::new() };
    scene.read_names(&closed.parts)?;
    let (found, notes) = scene.describe(&closed.findings, &closed.parts)?;
    let mut damage: Vec<Damage> = found.into_iter().map(|found| found.damage).collect();
    if let Err(error) = &closed.manifest {
        let newest = newest_number(disk, &path.join("index"))?.unwrap_or(0);
        let manifest = format!("index/{}", manifest_name(newest));
        damage.insert(0, advised(path, &manifest, without_advice(error, &path.join(&manifest))));
    } else if is_lost(disk, &path.join("index"), &closed.manifest, first)? {
        damage.insert(0, advised(path, "index", without_advice(error, path)));
    }
    if damage.is_empty() {
        let file = match error {
            Error::Corrupt { file: Some(file), .. } => file.as_str(),
            _ => "log",
        };
        damage.push(advised(path, file, without_advice(error, path)));
    }
    let mut notes = notes;
    notes.extend(older_manifests(
        disk,
        path,
        newest_number(disk, &path.join("index"))?.unwrap_or(0),
    )?);
    if let Some(log_id) = id_in(disk, &path.join("log")) {
        notes.extend(foreign_manifests(disk, path, log_id)?);
    }
    report.files = (disk.names(&path.join("log"))?.len() + closed.parts.len()) as u64;
    report.bytes += closed.parts.iter().map(|part| part.bytes()).sum::<u64>();
    fill(&mut report, damage, notes);
    Ok(report)
}

/// The text of an error without the file and the command, for a list that names these.
fn without_advice(error: &Error, file: &Path) -> String {
    let text = error.to_string();
    let text = strip_advice(&text);
    text.strip_prefix(&format!("{}: ", file.display())).unwrap_or(text).to_owned()
}

fn fill(report: &mut VerifyReport, mut damage: Vec<Damage>, mut notes: Vec<String>) {
    damage.truncate(MAX_PROBLEMS);
    notes.truncate(MAX_PROBLEMS);
    report.problems = damage.iter().map(Damage::to_string).collect();
    (report.damage, report.notes) = (damage, notes);
}
