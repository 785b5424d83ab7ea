//! Salvages the contents of the index if the log behind it is lost: writes the newest state as one commit. If the manifest is lost,
//! [`lost_manifest`](crate::api::admin::lost_manifest) makes a new one first.
//!
//! ```text
//! STORE/
//!   salvaged/             a store of its own while it is made, then gone
//!     log/                what is whole of the old log (its files have second names here), then one commit
//!     index/              its index
//!     source/             the old log once more, as the old index is read beside it; cut where it is damaged
//!   log.cut/ index.cut/   what was the store before
//! ```
//!
//! 1. The old index is read as it is, at the last moment that it holds. A value stored only in the lost part of the log is lost too: its
//!    key is reported, and keeps the value found in the log's intact front.
//! 2. The old store is not changed until the new one is complete. Then the new folders are renamed into place, the log last: a salvage
//!    interrupted there leaves no store that opens, and the next call continues it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use plimsoll_disk::vfs::{DirLock, Disk};
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::{FileLogOptions, Mode};
use plimsoll_log::file_log::repair::mend::newest_record;
use plimsoll_log::file_log::repair::salvage;
use plimsoll_log::glsn::Glsn;
use plimsoll_log::log::Log;

use crate::api::admin::aside::{copy_file, lists_of_losses, note_losses};
use crate::api::admin::diagnose::{first_of_log, is_damage};
use crate::api::admin::lost_manifest::{MadeFrom, Recovered, is_lost, recover_manifest};
use crate::api::admin::lost_names;
use crate::api::admin::repair::{has, look_at, move_aside, open_log, put_index_back};
use crate::api::snapshot::Snapshot;
use crate::engine::Engine;
use crate::engine::folder::SALVAGED;
use crate::engine::keyspace_commits::{STREAMS_MARK, system};
use crate::engine::open::{INDEX_OLD, Way, open_by, remove_folder, take_lock};
use crate::index::manifest::Manifest;
use crate::index::manifest::names::manifest_number;
use crate::index::run::file::run_id_of;
use crate::read::point::{KeyBuffer, find};
use crate::txn::range::Range;
use crate::txn::transaction::Transaction;
use crate::types::damage::DamagedKeys;
use crate::types::error::{Error, Lift, Result, show_key};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::{Record, SYSTEM, dropped_key};
use crate::types::options::{MIN_MEMORY_BYTES, Options};
use crate::types::retention::Retention;

/// Maximum number of keys listed with lost values.
const NAMED_MAX: usize = 1000;

/// The result of a salvage from the index.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexSalvageReport {
    /// The newest GLSN: the commit that holds the index's contents.
    pub glsn: Glsn,
    /// The newest GLSN of the old log's front that is kept; 0 if none could be kept.
    pub front: Glsn,
    /// The newest GLSN that the index knew.
    pub known: Glsn,
    /// Keys that the commit wrote.
    pub written: u64,
    /// Keys that it deleted.
    pub deleted: u64,
    /// Keys whose newest values are lost with the log, with the names of their keyspaces; at most a thousand.
    pub lost: Vec<(String, Vec<u8>)>,
    /// Total number of lost values.
    pub lost_count: u64,
    /// What the manifest of the index was made from, if the newest one was damaged or missing.
    pub index_from: Option<IndexSource>,
    /// With [`IndexSource::Runs`]: moments before this one can no longer be read.
    pub readable_from: Glsn,
    /// Ranges of keys that stood on damaged pages of runs: which keys they held is not known.
    pub lost_ranges: Vec<DamagedKeys>,
    /// The names that keyspaces have now whose records are lost; their retention is [`Retention::Forever`](crate::Retention::Forever).
    pub recovered: Vec<String>,
    /// Files of which nothing says how they belong to the store, one sentence each. Their contents are not in the index.
    pub unknown: Vec<String>,
    /// Commits that are lost: they were in the part of the log that cannot be read, and the index had not reached them. The last one is
    /// the newest that is known; there may have been later ones.
    pub lost_commits: Option<RangeInclusive<Glsn>>,
    /// Files beside the store that list what this salvage and earlier ones lost, also those that were interrupted.
    pub losses: Vec<String>,
    /// Files and folders that were moved aside, with their new names. Nothing was deleted.
    pub moved: Vec<String>,
}

/// What a manifest was made from in place of a damaged or missing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IndexSource {
    /// An older manifest, of this number, and the log behind it: nothing is lost.
    Manifest(u64),
    /// The run files in the folder, this many, and the log: the past is lost.
    Runs(u64),
}

/// Salvages the newest state of the index if the log lacks commits that the index knows of. Keeps the intact part of the log and appends
/// one commit that brings each key to its state in the index. Needs 16 MiB on top of the budget in the options.
///
/// If the newest manifest of the index is damaged or missing, a new one is made first: from an older manifest and the log behind it, or
/// from the runs in the folder; [`IndexSalvageReport::index_from`] says which.
///
/// # Errors
/// The log has everything that the index knows (then there is nothing to salvage); the index cannot be read, or has a newer format;
/// [`Error::Locked`], disk errors, the budget. The store is then unchanged, unless its folders were being renamed: then it does not open
/// until this is called once more, which completes the work and reports only `glsn`, `losses` and `moved`. If the manifest was lost and the log
/// has everything, a failure may also leave a complete store in which keyspaces have no names yet: [`verify`](crate::verify) lists them, and
/// [`salvage_drop`](crate::salvage_drop) names them.
pub fn salvage_from_index(path: impl AsRef<Path>, options: Options) -> Result<IndexSalvageReport> {
    let path = path.as_ref();
    options.check()?;
    let options = options.read_only(false).create(true).warm(false);
    let disk = Arc::clone(&options.disk);
    let disk = &*disk;
    if disk.entry(path)?.is_some_and(|entry| !entry.is_dir) {
        return Err(Error::is_a_file(path));
    }
    let salvaged = path.join(SALVAGED);
    let is_dir = |path: &Path| disk.entry(path).map(|entry| entry.is_some_and(|entry| entry.is_dir));
    let is_there = is_dir(&path.join("index"))? || is_dir(&path.join(INDEX_OLD))? || is_dir(&salvaged)?;
    if !is_there || !holds_index(disk, path)? {
        let what = if is_there { NO_MANIFEST } else { "there is no index here to salvage from; check the path" };
        return Err(Error::NotAStore { path: path.to_owned(), what: what.to_owned() });
    }
    let lock: Option<Arc<dyn DirLock>> = take_lock(path, &options)?.map(Arc::from);
    let mut moved = Vec::new();
    if !is_dir(&path.join("log"))? {
        if is_dir(&salvaged.join("log"))? {
            // An earlier salvage was interrupted while its folders were renamed.
            take_names(disk, path, &mut moved)?;
            let (log, _budget) = open_log(path, &options)?;
            let (glsn, losses) = (Glsn(log.bounds().next.0 - 1), lists_of_losses(disk, path)?);
            return Ok(IndexSalvageReport { glsn, moved, losses, ..new_report(Glsn::NONE, Glsn::NONE) });
        } else {
            disk.create_dir(&path.join("log"))?;
        }
    }
    if first_of_log(disk, path)? <= Glsn::FIRST {
        // A rebuild has not replaced it. Not beside a log that was trimmed since: the index that is there is the only one.
        put_index_back(path, disk)?;
    }
    remove_folder(disk, &salvaged)?;
    let index = path.join("index");
    let read = Manifest::read_of_store(disk, path);
    let first = first_of_log(disk, path)?;
    let (manifest, recovered) = if is_lost(disk, &index, &read, first)? {
        let recovered = recover_manifest(path, &options)?;
        (recovered.manifest.clone(), Some(recovered))
    } else {
        let Some(manifest) = read? else {
            return Err(Error::NotAStore { path: path.to_owned(), what: NO_MANIFEST.to_owned() });
        };
        (manifest, None)
    };
    let known = manifest.checkpoint.glsn;
    let newest = newest_known(path, &options, &manifest)?;
    let mut report = match &recovered {
        // The log has everything that the index knows: with its manifest the store is complete.
        Some(Recovered { log_end: Some(end), .. }) if *end >= known => {
            let (glsn, recovered) = write_records(path, &options, lock)?.unwrap_or((*end, Vec::new()));
            IndexSalvageReport { glsn, recovered, ..new_report(*end, known) }
        }
        _ => {
            let mut made = make(path, &salvaged, &options, &manifest).inspect_err(|_| {
                let _ = remove_folder(disk, &salvaged);
            })?;
            made.lost_commits = (known < newest).then(|| known.next()..=newest);
            note_losses(disk, path, &made.losses())?;
            take_names(disk, path, &mut moved)?;
            made
        }
    };
    if let Some(recovered) = recovered {
        report.take(recovered);
    }
    report.moved.append(&mut moved);
    report.losses = lists_of_losses(disk, path)?;
    Ok(report)
}

const NO_MANIFEST: &str = "the index has no manifest: it holds nothing to salvage";

/// Whether there are files of an index, or what a salvage left when it was interrupted. A folder of that name may be of another program.
fn holds_index(disk: &dyn Disk, path: &Path) -> Result<bool> {
    for index in [path.join("index"), path.join(INDEX_OLD), path.join(SALVAGED).join("index")] {
        let is_dir = disk.entry(&index)?.is_some_and(|entry| entry.is_dir);
        let is_of_index = |name: &String| manifest_number(name).is_some() || run_id_of(name).is_some();
        if is_dir && disk.names(&index)?.iter().any(is_of_index) {
            return Ok(true);
        }
    }
    Ok(disk.entry(&path.join(SALVAGED).join("log"))?.is_some())
}

/// Writes the records that are lost again; returns the newest GLSN, and the new names of keyspaces. `None` if other damage must be mended first.
fn write_records(
    path: &Path,
    options: &Options,
    lock: Option<Arc<dyn DirLock>>,
) -> Result<Option<(Glsn, Vec<String>)>> {
    let written = || -> Result<(Glsn, Vec<String>)> {
        let store = open_by(path, options.clone().create(false), &Way { lock, ..Way::default() }, &mut |_, _| {})?;
        lost_names::record_streams(&store)?;
        let names = lost_names::without_record(&store, &BTreeSet::new(), &BTreeMap::new())?;
        let losses: Vec<String> = names.iter().map(|(id, name)| lost_names::loss(*id, name)).collect();
        note_losses(&*options.disk, path, &losses)?;
        lost_names::write_records(&store, &names)?;
        let glsn = store.visible();
        store.close()?;
        Ok((glsn, names.into_values().collect()))
    };
    match written() {
        Err(error) if is_damage(&error) => Ok(None),
        written => written.map(Some),
    }
}

/// The newest commit that a manifest or the log tells of, whether or not anything of it can be read.
fn newest_known(path: &Path, options: &Options, manifest: &Manifest) -> Result<Glsn> {
    let disk = &*options.disk;
    let mut newest = manifest.durable.glsn;
    for number in disk.names(&path.join("index"))?.iter().filter_map(|name| manifest_number(name)) {
        let other = Manifest::read_numbered(disk, &path.join("index"), number);
        newest =
            newest.max(other.ok().filter(|it| it.log_id == manifest.log_id).map_or(Glsn::NONE, |it| it.durable.glsn));
    }
    let (log_options, _budget) = look_at(&path.join("log"), options)?;
    match newest_record(&log_options, Some(manifest.log_id)) {
        Ok(last) => Ok(newest.max(last)),
        Err(LogError::OutOfBudget(error)) => Err(Error::OutOfBudget(error)),
        Err(_) => Ok(newest),
    }
}

impl IndexSalvageReport {
    /// What is lost with the log, one sentence each.
    fn losses(&self) -> Vec<String> {
        let newest = |(keyspace, key): &(String, Vec<u8>)| {
            format!("the newest value of key {} in keyspace {keyspace:?}", show_key(key))
        };
        let mut losses: Vec<String> = self.lost.iter().map(newest).collect();
        let more = self.lost_count - self.lost.len() as u64;
        losses.extend((more > 0).then(|| format!("the newest values of {more} more keys")));
        losses.extend(self.recovered.iter().map(|name| format!("the name of the keyspace that is {name:?} now")));
        losses.extend(self.lost_commits.as_ref().map(|commits| {
            format!("the commits with GLSN {} to {}, and any later ones", commits.start(), commits.end())
        }));
        losses
    }

    fn take(&mut self, recovered: Recovered) {
        self.index_from = Some(match recovered.from {
            MadeFrom::Manifest(number) => IndexSource::Manifest(number),
            MadeFrom::Runs(runs) => IndexSource::Runs(runs),
        });
        self.readable_from = recovered.manifest.oldest_readable;
        self.lost_count += recovered.lost_count;
        self.lost.splice(0..0, recovered.lost);
        self.lost.truncate(NAMED_MAX);
        self.lost_ranges = recovered.lost_ranges;
        self.unknown = recovered.unknown;
        self.moved = recovered.moved;
    }
}

/// Builds the new store beside the old one.
fn make(path: &Path, salvaged: &Path, options: &Options, manifest: &Manifest) -> Result<IndexSalvageReport> {
    let disk = &*options.disk;
    let (source_log, log) = (salvaged.join("source"), salvaged.join("log"));
    for dir in [salvaged, &source_log, &log] {
        disk.create_dir(dir)?;
    }
    copy_files(options, &path.join("log"), &source_log)?;
    let whole = open_front(options, &source_log, manifest)?;
    if whole.is_none() && manifest.checkpoint.glsn == Glsn::NONE {
        return Err(Error::corrupt(
            "the log cannot be read, and the index holds nothing that could take its place; nothing was changed: restore a backup",
        ));
    }
    if whole.is_some_and(|end| manifest.checkpoint.glsn <= end) {
        return Err(InvalidInput::NothingToSalvage { path: path.to_owned(), glsn: manifest.checkpoint.glsn }.into());
    }
    let reading = options.clone().read_only(true).memory_bytes(MIN_MEMORY_BYTES);
    let source = open_by(path, reading, &Way { log: Some(source_log.clone()), ..Way::default() }, &mut |_, _| {})?;
    if whole.is_some() {
        copy_files(options, &source_log, &log)?;
    }
    // Both stores together stay within the budget, unless it is too small for two.
    let rest = options.memory_bytes.saturating_sub(MIN_MEMORY_BYTES).max(MIN_MEMORY_BYTES);
    let writing = options.clone().memory_bytes(rest);
    let target = match open_by(salvaged, writing.clone(), &Way::default(), &mut |_, _| {}) {
        Err(Error::Corrupt { .. } | Error::Forked { .. }) => {
            // The front is trimmed or damaged inside: only the newest state can be kept.
            remove_folder(disk, &log)?;
            remove_folder(disk, &salvaged.join("index"))?;
            disk.create_dir(&log)?;
            open_by(salvaged, writing, &Way::default(), &mut |_, _| {})?
        }
        opened => opened?,
    };
    let front = target.visible();
    let known = manifest.checkpoint.glsn;
    let mut copy = Copy { source: &source, target: &target, at: known, front, report: new_report(front, known) };
    let mut report = copy.run()?;
    target.close()?;
    drop(target);
    source.close()?;
    remove_folder(disk, &source_log)?;
    report.glsn = report.glsn.max(report.front);
    disk.sync_dir(&log)?;
    disk.sync_dir(&salvaged.join("index"))?;
    disk.sync_dir(salvaged)?;
    Ok(report)
}

fn new_report(front: Glsn, known: Glsn) -> IndexSalvageReport {
    IndexSalvageReport {
        glsn: Glsn(0),
        front,
        known,
        written: 0,
        deleted: 0,
        lost: Vec::new(),
        lost_count: 0,
        index_from: None,
        readable_from: Glsn::NONE,
        lost_ranges: Vec::new(),
        recovered: Vec::new(),
        unknown: Vec::new(),
        lost_commits: None,
        losses: Vec::new(),
        moved: Vec::new(),
    }
}

/// Hard-links the files of a log into another folder, or copies them.
fn copy_files(options: &Options, from: &Path, to: &Path) -> Result<()> {
    let disk = &*options.disk;
    for entry in disk.list(from)? {
        if entry.is_dir || !is_of_log(&entry.name) {
            continue;
        }
        let (source, target) = (from.join(&entry.name), to.join(&entry.name));
        if disk.hard_link(&source, &target).is_ok() {
            continue;
        }
        copy_file(disk, &source, &target)?;
    }
    Ok(disk.sync_dir(to)?)
}

fn is_of_log(name: &str) -> bool {
    [".seg", ".idx", ".blob"].iter().any(|ending| name.ends_with(ending))
}

/// Whether the machine refused, and not the log.
fn is_out_of_room(error: &LogError) -> bool {
    let full =
        [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem];
    match error {
        LogError::OutOfBudget(_) | LogError::Locked { .. } => true,
        LogError::Io { kind, .. } => full.contains(kind),
        _ => false,
    }
}

/// Makes the log in `dir` openable by cutting it where it is damaged; returns the end of the intact part. `None` if no part belongs to the
/// index: then an empty log replaces it, beside the blob files.
fn open_front(options: &Options, dir: &Path, manifest: &Manifest) -> Result<Option<Glsn>> {
    let (looking, _budget) = look_at(dir, options)?;
    let mut cuts = 0;
    let damage = loop {
        match FileLog::open(looking.clone()) {
            Ok((log, _)) if log.id() == manifest.log_id && has(&log, manifest.checkpoint)? => {
                return Ok(Some(Glsn(log.bounds().next.0 - 1)));
            }
            Ok(_) | Err(LogError::Forked { .. }) => break None,
            Err(LogError::Corrupt { glsn, .. }) if glsn > Glsn::FIRST && cuts < 3 => {
                cuts += 1;
                match salvage::salvage_copy(&looking, glsn) {
                    Ok(_) => {}
                    Err(error) if is_out_of_room(&error) => return Err(Error::of_log(error)),
                    Err(_) => break None,
                }
            }
            Err(LogError::Corrupt { .. }) => break None,
            Err(LogError::Format { message }) => break Some(message),
            Err(error) => return Err(Error::of_log(error)),
        }
    };
    let disk = &*options.disk;
    let segments: Vec<String> = disk.names(dir)?.into_iter().filter(|name| name.contains(".seg")).collect();
    if let Some(message) = damage.filter(|_| !segments.is_empty()) {
        return Err(Error::format(message));
    }
    let aside = dir.with_file_name("blobs");
    disk.rename(dir, &aside)?;
    let (making, _budget) = look_at(dir, options)?;
    let made = FileLogOptions { mode: Mode::Create, id: Some(manifest.log_id), background: false, ..making };
    FileLog::open(made).lift()?.0.close().lift()?;
    for name in disk.names(&aside)?.into_iter().filter(|name| name.ends_with(".blob")) {
        disk.rename(&aside.join(&name), &dir.join(&name))?;
    }
    remove_folder(disk, &aside)?;
    Ok(None)
}

/// A key of the keyspace that holds the store's own records, and its value.
type SystemRow = (Vec<u8>, Vec<u8>);

/// Copies the source's newest state to the target.
struct Copy<'a> {
    source: &'a Arc<Engine>,
    target: &'a Arc<Engine>,
    /// The last moment that the source holds.
    at: Glsn,
    /// The newest GLSN that the target started with.
    front: Glsn,
    report: IndexSalvageReport,
}

impl Copy<'_> {
    fn run(&mut self) -> Result<IndexSalvageReport> {
        let mut tx = Transaction::new(&self.target.committer);
        let (lost, mut records) = self.lost_records()?;
        let mut keyspaces: BTreeMap<u32, Arc<str>> = BTreeMap::from([(SYSTEM, Arc::from(""))]);
        for store in [self.target, self.source] {
            keyspaces.extend(store.reader.keyspaces.all().into_iter().map(|(name, record)| (record.id, name)));
        }
        keyspaces.extend(lost.iter().map(|(id, name)| (*id, Arc::from(name.as_str()))));
        for (id, name) in &keyspaces {
            self.copy_keyspace(&mut tx, *id, name)?;
        }
        if self.target.catalog.streams_known.load(Ordering::Acquire) || lost_names::has_streams(self.target)? {
            records.push((STREAMS_MARK.as_bytes().to_vec(), Vec::new()));
        }
        for (key, record) in records {
            tx.put(&system(self.target), &key, &record)?;
        }
        tx.set_metadata(
            format!("{{\"salvaged_from_index\":{{\"front\":{},\"known\":{}}}}}", self.report.front, self.report.known)
                .as_bytes(),
        )?;
        self.report.glsn = tx.commit()?;
        Ok(self.report.clone())
    }

    /// The keyspaces whose records the index lost, with their names, and the records for them: where the front of the log has one, it comes
    /// back, unless its name is another's now.
    fn lost_records(&mut self) -> Result<(BTreeMap<u32, String>, Vec<SystemRow>)> {
        let front = &self.target.reader.keyspaces;
        let lost = lost_names::unnamed(self.source, self.at)?;
        let (dropped, lost): (BTreeSet<u32>, _) =
            lost.into_iter().partition(|id| front.check_take_more([*id]).is_err());
        let known = lost.iter().filter_map(|id| Some((*id, front.name(*id)?.to_string()))).collect();
        let names = lost_names::new_names(self.source, lost, &known);
        let record = |id: &u32| front.record(*id).unwrap_or(Record::new(*id, Retention::Forever)).encode();
        let mut records: Vec<_> = names.iter().map(|(id, name)| (name.clone().into_bytes(), record(id))).collect();
        // Its name may be the one of a keyspace that was made afterwards.
        records.extend(dropped.iter().map(|id| (dropped_key(*id, &front.name(*id).unwrap_or_default()), record(id))));
        let renamed = names.iter().filter(|(id, name)| known.get(id) != Some(name));
        self.report.recovered = renamed.map(|(_, name)| name.clone()).collect();
        Ok((names, records))
    }

    /// Iterates over both stores in parallel.
    fn copy_keyspace(&mut self, tx: &mut Transaction, id: u32, name: &Arc<str>) -> Result<()> {
        let theirs = Snapshot::of_index(self.source, self.at)?;
        let ours = Snapshot::newest(self.target);
        let (from, to) = (
            self.source.reader.keyspaces.handle(id, Arc::clone(name)),
            self.target.reader.keyspaces.handle(id, Arc::clone(name)),
        );
        let mut wanted = theirs.range(&from, ..)?.keys_only();
        let mut there = ours.range(&to, ..)?.keys_only();
        let (mut want, mut have) = (next_key(&mut wanted)?, next_key(&mut there)?);
        loop {
            match (&want, &have) {
                (None, None) => return Ok(()),
                (Some(key), Some(other)) if key > other => {
                    tx.delete(&to, other)?;
                    self.report.deleted += 1;
                    have = next_key(&mut there)?;
                }
                (None, Some(other)) => {
                    tx.delete(&to, other)?;
                    self.report.deleted += 1;
                    have = next_key(&mut there)?;
                }
                (Some(key), other) => {
                    let same = other.as_ref() == Some(key);
                    if !same || self.is_younger(id, key)? {
                        if self.is_whole(&theirs, &from, key)? {
                            let mut value = theirs.get_reader(&from, key)?.ok_or_else(gone)?;
                            tx.put_reader(&to, key, &mut value)?;
                            self.report.written += 1;
                        } else {
                            self.note_lost(name, key);
                        }
                    }
                    want = next_key(&mut wanted)?;
                    if same {
                        have = next_key(&mut there)?;
                    }
                }
            }
        }
    }

    /// Whether the source's version of a key is newer than the front in the target.
    fn is_younger(&self, id: u32, key: &[u8]) -> Result<bool> {
        let key = KeyBuffer::new(id, key)?;
        let hit = self.source.reader.read(|view| find(view, key.get(), self.at))?;
        Ok(hit.is_some_and(|hit| hit.glsn() > self.front))
    }

    /// Whether a value can be read to its end: a write that fails half-way would make the transaction unusable.
    fn is_whole(&self, snapshot: &Snapshot, keyspace: &crate::types::keyspaces::Keyspace, key: &[u8]) -> Result<bool> {
        let Some(mut value) = snapshot.get_reader(keyspace, key)? else { return Ok(false) };
        match io::copy(&mut value, &mut io::sink()) {
            Ok(_) => Ok(true),
            Err(error) => match error.get_ref().and_then(|cause| cause.downcast_ref::<Error>()) {
                Some(refused @ Error::OutOfBudget(_)) => Err(refused.clone()),
                _ => Ok(false),
            },
        }
    }

    fn note_lost(&mut self, keyspace: &str, key: &[u8]) {
        self.report.lost_count += 1;
        if self.report.lost.len() < NAMED_MAX {
            self.report.lost.push((keyspace.to_owned(), key.to_vec()));
        }
    }
}

fn next_key(range: &mut Range<'_>) -> Result<Option<Vec<u8>>> {
    Ok(range.advance()?.map(|(key, _)| key.to_vec()))
}

fn gone() -> Error {
    Error::corrupt("a key was found and then was not: the disk or the memory is failing")
}

/// Replaces the old store by the new one; continues an interrupted replacement.
fn take_names(disk: &dyn Disk, path: &Path, moved: &mut Vec<String>) -> Result<()> {
    let salvaged = path.join(SALVAGED);
    let aside = |name: &str, moved: &mut Vec<String>| -> Result<()> {
        if disk.entry(&path.join(name))?.is_some() {
            moved.push(move_aside(disk, path, name)?.display().to_string());
        }
        Ok(())
    };
    let place = |name: &str| -> Result<()> {
        let (from, to): (PathBuf, PathBuf) = (salvaged.join(name), path.join(name));
        disk.rename(&from, &to)?;
        disk.sync_dir(&salvaged)?;
        Ok(disk.sync_dir(path)?)
    };
    // From here until the end there is no folder `log`, so no store opens.
    aside("log", moved)?;
    if disk.entry(&salvaged.join("index"))?.is_some() {
        aside("index", moved)?;
        place("index")?;
    }
    place("log")?;
    remove_folder(disk, &salvaged)
}
