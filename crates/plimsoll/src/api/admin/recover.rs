//! Recovers a damaged store: reads everything readable from its log and its index, and writes a
//! sound store.
//!
//! ```text
//! STORE              is only read
//! DEST.new-recover/  the new store while it is made
//!   log/             sound segments and blob files of the old log, and copies of the others
//!                    without what is damaged
//!   index/           the old index, if it is sound; else a new one, of the log and of the old runs
//! DEST               that folder, in the end
//! ```
//!
//! Invariants:
//! 1. No file of the source is changed except `LOCK`, which excludes writers. Files with a name in
//!    both stores are never changed.
//! 2. Entries keep their GLSNs and times. Lost entries become lost records, so that GLSNs stay
//!    dense.
//! 3. No read of the new store returns other bytes than were written: a version whose value is lost
//!    returns [`Error::Dropped`] at the moments at which it was current. Keys whose newest value is
//!    lost are deleted by one commit, so that the newest state can be read throughout.
//! 4. The new store gets its name once it has been read and verified. An interrupted recovery
//!    leaves a folder that the next one into the same destination removes.

mod index;
mod source;
mod unusable;

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use plimsoll_disk::vfs::{DirLock, Disk, NEW_FOLDER_MARK};
use plimsoll_log::blob::BlobId;
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::repair::recover::{Copied, write_blobs, write_segments};
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_memory::page::PAGE_PAYLOAD_BYTES;

use crate::api::admin::backup::{parent_of, refuse_inside};
use crate::api::admin::diagnose::{Found, LostPart, LostPlaces, Scene, first_of_log, is_damage};
use crate::api::admin::lost_keyspaces;
use crate::api::admin::recover::index::{lost_ranges, merge};
use crate::api::admin::recover::source::{BlobLosses, Plan, Source};
use crate::api::admin::recover::unusable::Unusable;
use crate::api::admin::verify::verify_open;
use crate::api::admin::verify_values::find_bad_values;
use crate::engine::Engine;
use crate::engine::folder::remove_folder;
use crate::engine::lock::lock_alone;
use crate::engine::open::open_by;
use crate::index::run::survey::survey;
use crate::index::sources::view::Direction;
use crate::read::span::Span;
use crate::txn::transaction::Transaction;
use crate::types::as_of::AsOf;
use crate::types::damage::{Damage, DamagedKey, DamagedKeys};
use crate::types::error::{Error, Lift, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::options::Options;
use crate::types::version::{Stored, Version};

/// Maximum number of values listed in a report.
const VALUES_MAX: usize = 1000;

/// How often a recovery starts again because its result is not sound.
const ATTEMPTS_MAX: u32 = 16;

/// The result of a recovery, or of its dry run.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let options = Options::new().memory_bytes(16 << 20);
/// # let db = Db::open(&path, options.clone())?;
/// # let notes = db.keyspace("notes")?;
/// let glsn = db.put(&notes, "a", "one")?;
/// db.close()?;
/// let dest = dir.path().join("recovered");
/// let report = Db::recover(&path, &dest, options, &mut |_, _| {})?;
/// assert!(report.is_whole() && report.glsn == glsn);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoverReport {
    /// The newest GLSN of the new store; of a dry run, the newest one that the new store would
    /// begin with.
    pub glsn: Glsn,
    /// The source of the new store's index.
    pub index: IndexSource,
    /// The damaged places.
    pub damage: Vec<Damage>,
    /// Entries of the log that are lost. Values above 1 KiB that they wrote are lost too; smaller
    /// ones are in the index, up to its last commit.
    pub lost_entries: Vec<RangeInclusive<Glsn>>,
    /// The lost entries that the index possibly lacks. Their writes are lost, except those that a
    /// run holds.
    pub lost_commits: Vec<RangeInclusive<Glsn>>,
    /// Versions whose values are lost, at most a thousand.
    pub values: Vec<DamagedKey>,
    /// Total number of versions whose values are lost.
    pub value_count: u64,
    /// Ranges of keys that were on damaged pages of the index. Keys in these ranges that are stored
    /// nowhere else are unknown.
    pub lost_ranges: Vec<DamagedKeys>,
    /// Keys that were deleted because their newest value is lost.
    pub deleted: u64,
    /// The moment before which some keyspaces cannot be read; 0 if the recovery has not changed
    /// that limit.
    pub readable_from: Glsn,
    /// The new names of keyspaces whose records are lost; their retention is
    /// [`Retention::Forever`](crate::Retention::Forever).
    pub renamed: Vec<String>,
    /// One sentence for each file whose contents are not in the new store, each keyspace record
    /// that may be an older one, and each damage that remains.
    pub unresolved: Vec<String>,
    /// Bytes of files that the new store shares with the old one, until one of the two no longer
    /// needs them.
    pub bytes_linked: u64,
    /// Bytes that were copied.
    pub bytes_copied: u64,
}

/// The source of the index of a recovered store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum IndexSource {
    /// The old index, which is sound.
    #[default]
    Index,
    /// The log, which has every commit.
    Log,
    /// The log, and the readable parts of the old index.
    LogAndRuns,
}

impl RecoverReport {
    /// Whether nothing is lost.
    pub fn is_whole(&self) -> bool {
        self.lost_entries.is_empty()
            && self.lost_commits.is_empty()
            && self.value_count == 0
            && self.lost_ranges.is_empty()
            && self.deleted == 0
            && self.readable_from == Glsn::NONE
            && self.renamed.is_empty()
            && self.unresolved.is_empty()
    }

    fn add_value(&mut self, value: DamagedKey) {
        self.value_count += 1;
        if self.values.len() < VALUES_MAX {
            self.values.push(value);
        }
    }
}

/// [`Db::recover`](crate::Db::recover).
pub(crate) fn recover(
    path: &Path,
    dest: &Path,
    options: Options,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<RecoverReport> {
    let (options, _lock) = begin(path, options)?;
    let place = Place::find(&*options.disk, path, dest)?;
    let mut unusable = Unusable::default();
    for _ in 0..ATTEMPTS_MAX {
        place.clear()?;
        match attempt(path, &place, &options, &mut unusable, progress) {
            Ok(Some(report)) => {
                place.finish()?;
                return Ok(report);
            }
            Ok(None) => {}
            Err(error) => {
                let _ = remove_folder(place.disk, &place.new);
                return Err(error);
            }
        }
    }
    let _ = remove_folder(place.disk, &place.new);
    Err(Error::corrupt(format!(
        "{}: no consistent store can be built from the readable data; restore a backup",
        path.display()
    )))
}

/// [`Db::recover_dry_run`](crate::Db::recover_dry_run).
pub(crate) fn dry_run(path: &Path, options: Options) -> Result<RecoverReport> {
    let (options, _lock) = begin(path, options)?;
    let mut unusable = Unusable::default();
    for _ in 0..ATTEMPTS_MAX {
        let source = Source::read(path, &options, &unusable, &mut |_, _| {})?;
        let mut scene = source.scene(path)?;
        let unnamed = name_lost(&source, &mut scene)?;
        let (found, _) = scene.describe(&source.findings, &source.parts)?;
        let losses = source.blob_losses(&found, &unusable)?;
        if unusable.add(losses.commits) {
            continue;
        }
        let mut report = describe(path, &source, &scene, &found)?;
        report.renamed = unnamed.iter().map(|id| scene.names[id].clone()).collect();
        if source.plan == Plan::Merge {
            report.lost_ranges = lost_ranges(&source, &scene)?;
        }
        return Ok(report);
    }
    Err(Error::corrupt(format!(
        "{}: too much of the log refers to damaged data; restore a backup",
        path.display()
    )))
}

/// Checks the source, and locks it.
fn begin(path: &Path, options: Options) -> Result<(Options, Option<Arc<dyn DirLock>>)> {
    options.check()?;
    let options = options.read_only(false).shared(false).create(false).warm(false);
    let disk = &*options.disk;
    let is_dir =
        |path: &Path| disk.entry(path).map(|entry| entry.is_some_and(|entry| entry.is_dir));
    if disk.entry(path)?.is_some_and(|entry| !entry.is_dir) {
        return Err(Error::is_a_file(path));
    }
    let is_of_store = |name: &String| {
        [".seg", ".idx", ".blob", ".run"].iter().any(|ending| name.ends_with(ending))
            || name.starts_with("MANIFEST.")
    };
    let mut has_files = false;
    for folder in ["log", "index"].map(|name| path.join(name)) {
        has_files |= is_dir(&folder)? && disk.names(&folder)?.iter().any(is_of_store);
    }
    if !has_files {
        let what = "there is no store here; check the path".to_owned();
        return Err(Error::NotAStore { path: path.to_owned(), what });
    }
    let lock = match lock_alone(path, &options) {
        Ok(lock) => Some(Arc::from(lock)),
        // On a read-only file system there are no writers.
        Err(Error::Io {
            kind: ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied,
            ..
        }) => {
            if let Some((pid, who)) = disk.locked_by(path)? {
                return Err(Error::Locked { path: path.to_owned(), pid, who });
            }
            None
        }
        Err(error) => return Err(error),
    };
    Ok((options, lock))
}

/// The folder in which the new store is made, and its final name.
struct Place<'a> {
    disk: &'a dyn Disk,
    new: PathBuf,
    dest: &'a Path,
}

impl<'a> Place<'a> {
    fn find(disk: &'a dyn Disk, path: &Path, dest: &'a Path) -> Result<Self> {
        refuse_inside(disk, path, dest)?;
        if let Some(entry) = disk.entry(dest)?
            && (!entry.is_dir || !disk.names(dest)?.is_empty())
        {
            return Err(InvalidInput::DestinationExists { path: dest.to_owned() }.into());
        }
        let mut name = dest.file_name().unwrap_or_default().to_owned();
        name.push(format!("{NEW_FOLDER_MARK}recover"));
        Ok(Self { disk, new: dest.with_file_name(name), dest })
    }

    /// Creates the folder again, because an earlier attempt may have left one.
    fn clear(&self) -> Result<()> {
        remove_folder(self.disk, &self.new)?;
        for folder in [self.new.clone(), self.new.join("log"), self.new.join("index")] {
            self.disk.create_dir(&folder)?;
        }
        Ok(self.disk.sync_dir(&self.new)?)
    }

    /// Gives the new store its name.
    fn finish(&self) -> Result<()> {
        self.disk.sync_dir(&self.new)?;
        if self.disk.entry(self.dest)?.is_some() {
            self.disk.remove_dir(self.dest)?;
        }
        self.disk.rename(&self.new, self.dest)?;
        Ok(self.disk.sync_dir(parent_of(&self.disk.resolve(self.dest)?))?)
    }
}

/// Makes the new store; `None` if another attempt is needed: `unusable` has new findings, or the
/// replay has freed a part of the new store's log.
fn attempt(
    path: &Path,
    place: &Place<'_>,
    options: &Options,
    unusable: &mut Unusable,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Option<RecoverReport>> {
    let source = Source::read(path, options, unusable, progress)?;
    let mut scene = source.scene(path)?;
    let unnamed = name_lost(&source, &mut scene)?;
    let (found, _) = scene.describe(&source.findings, &source.parts)?;
    let BlobLosses { damaged, commits } = source.blob_losses(&found, unusable)?;
    if unusable.add(commits) {
        return Ok(None);
    }
    let mut report = describe(path, &source, &scene, &found)?;
    let (log, mut copied) = (place.new.join("log"), Copied::default());
    let write_blobs = |copied: &mut Copied| {
        write_blobs(&source.log_options, source.survey.log_id, &damaged, &log, copied).lift()
    };
    write_blobs(&mut copied)?;
    write_segments(&source.log_options, &source.survey, &log, &mut copied).lift()?;
    index::begin(&source, path, &place.new, source.plan == Plan::Keep, &mut copied)?;
    let Copied { linked_bytes, written_bytes } = copied;
    (report.bytes_linked, report.bytes_copied) = (linked_bytes, written_bytes);
    if source.plan == Plan::Merge {
        if let Err(error) = replay_log(&place.new, options) {
            return find_cause(unusable, &source, error).map(|()| None);
        }
        if first_of_log(place.disk, &place.new)? > source.survey.bounds().start {
            return Ok(None);
        }
        // Write the blob files again: the replay has removed those that only the old index names.
        write_blobs(&mut Copied::default())?;
        let losses = merge(&source, &scene, &place.new, options)?;
        (report.lost_ranges, report.readable_from) = (losses.ranges, losses.readable_from);
        report.unresolved.extend(losses.stale_records.iter().map(|name| {
            format!(
                "the record of keyspace {name} may be outdated: the keyspace may have been \
                 dropped since, or its retention changed"
            )
        }));
        let before = source
            .manifest
            .as_ref()
            .map_or(Glsn::NONE, |manifest| manifest.head.limits.oldest_readable);
        if report.readable_from <= before {
            report.readable_from = Glsn::NONE;
        }
    }
    // Nothing is freed before all keyspaces and streams are known again.
    let may_free = options.background && source.plan != Plan::Merge;
    let store = match open_by(&place.new, Options { background: may_free, ..options.clone() }) {
        Ok(store) => store,
        Err(error) => return find_cause(unusable, &source, error).map(|()| None),
    };
    if source.plan == Plan::Merge {
        lost_keyspaces::record_streams(&store)?;
        let names = lost_keyspaces::without_record(&store, &unnamed, &scene.names)?;
        lost_keyspaces::write_records(&store, &names)?;
        report.renamed = names.into_values().collect();
    }
    let blobs = damaged.iter().map(|blob| blob.id).collect();
    delete_newest(&store, &blobs, &mut report)?;
    let problems = verify_open(&store, &mut |_| {})?.problems;
    if !problems.is_empty() {
        let wrong: Vec<_> =
            find_bad_values(&store, &[])?.iter().filter_map(|bad| bad.pages()).collect();
        let known = unusable.wrong_pages.len();
        let new = wrong
            .into_iter()
            .filter(|wrong| !unusable.wrong_pages.contains(wrong))
            .collect::<Vec<_>>();
        unusable.wrong_pages.extend(new);
        if unusable.wrong_pages.len() > known {
            return Ok(None);
        }
        if source.plan == Plan::Keep {
            unusable.index = true;
            return Ok(None);
        }
        report.unresolved.extend(problems);
    }
    report.glsn = store.visible();
    store.close()?;
    Ok(Some(report))
}

/// Writes runs from the whole contents of the log. The log must not be freed, because this store
/// does not know which part its cursors and keyspaces keep. If a merge frees a part before the log
/// is held, the log of the new store begins later.
fn replay_log(path: &Path, options: &Options) -> Result<()> {
    let store = open_by(path, options.clone())?;
    let no_trim = store.space.trim_lock.lock().unwrap_or_else(PoisonError::into_inner);
    store.reader.index.memtables.flush_up_to(store.visible())?;
    drop(no_trim);
    store.close()
}

/// Adds to `unusable` the commit or the index because of which the new store does not open; returns
/// the error if neither is the cause.
fn find_cause(unusable: &mut Unusable, source: &Source, error: Error) -> Result<()> {
    match &error {
        Error::Corrupt { glsn: Some(glsn), .. }
            if source.survey.has(*glsn) && unusable.unusable.insert(*glsn) =>
        {
            Ok(())
        }
        _ if is_damage(&error) && source.plan == Plan::Keep && !unusable.index => {
            unusable.index = true;
            Ok(())
        }
        _ => Err(error),
    }
}

/// Names the keyspaces that have lost their records, if the index is merged; returns their ids.
fn name_lost(source: &Source, scene: &mut Scene<'_>) -> Result<BTreeSet<u32>> {
    if source.plan == Plan::Merge {
        lost_keyspaces::name_in(scene, &source.parts)
    } else {
        Ok(BTreeSet::new())
    }
}

/// Describes the losses, as far as the source shows them.
fn describe(
    path: &Path,
    source: &Source,
    scene: &Scene<'_>,
    found: &[Found],
) -> Result<RecoverReport> {
    let survey_of_log = &source.survey;
    let bounds = survey_of_log.bounds();
    let index_end = source.index_end();
    let is_empty = survey_of_log.records == 0
        && source.parts.iter().all(|part| part.info.max_glsn == Glsn::NONE);
    if is_empty && (bounds.start > Glsn::FIRST || !survey_of_log.is_whole()) {
        return Err(Error::corrupt(format!(
            "{}: nothing of the store can be read; restore a backup",
            path.display()
        )));
    }
    let mut lost: Vec<RangeInclusive<Glsn>> = Vec::new();
    let records = || survey_of_log.lost.iter().filter(|lost| !lost.glsns.is_empty());
    let is_known = records().any(|lost| lost.glsns.end == bounds.start);
    // There is a gap between the end of the index and the beginning of the log.
    if index_end.next() < bounds.start && !is_known {
        lost.push(index_end.next()..=Glsn(bounds.start.0 - 1));
    }
    lost.extend(records().map(|lost| lost.glsns.start..=Glsn(lost.glsns.end.0 - 1)));
    let held = source.complete_to();
    let newer = lost.iter().filter(|lost| *lost.end() > held);
    let mut report = RecoverReport {
        glsn: survey_of_log.end().glsn,
        index: match source.plan {
            Plan::Keep => IndexSource::Index,
            Plan::Replay => IndexSource::Log,
            Plan::Merge => IndexSource::LogAndRuns,
        },
        damage: found.iter().map(|found| found.damage.clone()).collect(),
        lost_commits: newer.map(|lost| *lost.start().max(&held.next())..=*lost.end()).collect(),
        unresolved: source.unresolved.clone(),
        ..RecoverReport::default()
    };
    let mut places =
        LostPlaces::of(found.iter().filter(|found| !matches!(found.lost, LostPart::Records(_))));
    lost.iter().for_each(|lost| places.add_records(*lost.start()..lost.end().next(), 0));
    if source.plan == Plan::Merge {
        places.add_records(Glsn::NONE..bounds.start, 0);
    }
    report.lost_entries = lost;
    if !places.is_empty() {
        for part in &source.parts {
            survey(part.source.as_deref(), &part.info, &source.budget, &mut |version| {
                if places.find(version.glsn, &version.stored).is_some() {
                    report.add_value(scene.key_of(version));
                }
                Ok(())
            })?;
        }
    }
    Ok(report)
}

/// Deletes the keys whose newest value is lost.
fn delete_newest(
    store: &Arc<Engine>,
    blobs: &BTreeSet<BlobId>,
    report: &mut RecoverReport,
) -> Result<()> {
    let at = store.visible();
    let mut tx = Transaction::new(&store.committer);
    let known: BTreeMap<(String, Vec<u8>), Glsn> = report
        .values
        .iter()
        .map(|value| ((value.keyspace.clone(), value.key.clone()), value.glsn))
        .collect();
    for (name, record) in store.reader.keyspaces.all() {
        let keyspace = store.reader.keyspaces.handle(record.id, Arc::clone(&name));
        let span = Span::new(record.id, &(..));
        let mut walk = store.reader.index.sources.view().visible(
            span.lower(),
            span.upper(),
            AsOf::unexpiring(at),
            Direction::Forward,
        )?;
        let mut key = Vec::new();
        while let Some(version) = walk.next(&mut key)? {
            if is_dropped(store, blobs, &version)? {
                let key = version.user_key();
                tx.delete(&keyspace, key)?;
                report.deleted += 1;
                let value = (name.to_string(), key.to_vec());
                if known.get(&value) != Some(&version.glsn) && report.values.len() < VALUES_MAX {
                    let (glsn, bytes) = (version.glsn, version.stored.value_bytes());
                    report.add_value(DamagedKey { keyspace: value.0, key: value.1, glsn, bytes });
                }
            }
        }
    }
    if report.deleted > 0 {
        tx.set_metadata(
            format!("{{\"recover_deleted\":{{\"keys\":{}}}}}", report.deleted).as_bytes(),
        )?;
        tx.commit()?;
    }
    Ok(())
}

/// Whether the value of a version is lost.
fn is_dropped(store: &Engine, blobs: &BTreeSet<BlobId>, version: &Version<'_>) -> Result<bool> {
    match version.stored.value() {
        Stored::Dropped { .. } => Ok(true),
        Stored::InLog { .. } => match store.reader.log.meta(version.glsn) {
            Err(LogError::Corrupt { .. }) => Ok(false),
            meta => Ok(meta.lift()?.stream == StreamId::DROPPED),
        },
        stored @ Stored::InBlob { blob, offset, len, .. } if blobs.contains(&blob) => {
            let page = PAGE_PAYLOAD_BYTES as u64;
            // Read one byte of each page that the value touches.
            for number in offset / page..=offset.saturating_add(len).saturating_sub(1) / page {
                let at = (number * page).saturating_sub(offset);
                match store.reader.load_stored(version.glsn, stored, at, &mut [0]) {
                    Err(Error::Dropped { .. }) => return Ok(true),
                    // Damaged but not dropped: reported as damage.
                    Err(Error::Corrupt { .. }) => return Ok(false),
                    read => _ = read?,
                }
            }
            Ok(false)
        }
        _ => Ok(false),
    }
}
