//! Removes damaged data from a store, so that the rest can be read.
//!
//! Laws:
//! 1. Only damaged data is dropped; a target that is not damaged is an error (`Transaction::delete` deletes sound data).
//! 2. No read ever returns other bytes than were written: a version with a dropped value returns [`Error::Dropped`] at the moments at which
//!    it was current. Keys with a dropped newest value are deleted by one commit, so that the newest state is readable throughout.
//! 3. If pages of a run are lost and the log no longer holds their contents, the keys on them are lost. A version of such a key in an older
//!    run may not be its newest: it is deleted in the run itself, and the keyspace is no longer readable at moments before the
//!    damaged run's newest commit.
//! 4. A keyspace whose record is lost gets one again, so that its keys can be read; and so does a log with streams of the user.
//! 5. Files are rewritten and renamed, the index before the log. An interrupted run can be repeated. Data taken out stays beside the store
//!    under names that end with `.cut`, and so does a list of what is lost, which is written before anything is changed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::vfs::{DirLock, Disk};
use plimsoll_log::blob::BlobId;
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::repair::mend::{self, Wanted, WantedBlob};
use plimsoll_log::file_log::repair::verify::{BlobDamage, Cure};
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_memory::budget::Budget;
use plimsoll_memory::page::PAGE_PAYLOAD_BYTES;

use crate::api::admin::aside::{Kept, Named, lists_of_losses, note_losses};
use crate::api::admin::diagnose::{Closed, Found, LostPlaces, Mend, Part, Scene, first_of_log, is_damage, look};
use crate::api::admin::lost_names;
use crate::api::admin::repair::{check_is_store, look_at, refuse_amid_rebuild};
use crate::api::admin::verify_values::find_bad_values;
use crate::engine::Engine;
use crate::engine::open::{Way, open_by, take_lock};
use crate::index::manifest::{Manifest, number_after};
use crate::index::run::builder::TableBuilder;
use crate::index::run::file::{RunFileSink, run_id_of};
use crate::index::run::survey::{LostSpan, survey};
use crate::index::run::table::TableId;
use crate::index::view::Direction;
use crate::read::point::KeyBuffer;
use crate::read::span::Span;
use crate::txn::transaction::Transaction;
use crate::types::damage::{Damage, DamagedKey};
use crate::types::error::{Error, Lift, Result, show_key};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::{SYSTEM, keyspace_of};
use crate::types::options::{MIN_MEMORY_BYTES, Options};
use crate::types::version::{Stored, Version};

/// Maximum number of values listed in a report.
const NAMED_MAX: usize = 1000;

/// The damage to drop.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropTarget {
    /// Damage to the commit or entry with this GLSN.
    Glsn(Glsn),
    /// Damage that affects this key.
    Key {
        /// Name of its keyspace.
        keyspace: String,
        /// The key.
        key: Vec<u8>,
    },
    /// All damage.
    Damaged,
}

/// The result of a salvage by dropping, or of its dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DropSalvageReport {
    /// The newest GLSN afterwards; 0 for a dry run.
    pub glsn: Glsn,
    /// The damaged places dropped.
    pub dropped: Vec<Damage>,
    /// Values dropped, at most a thousand. For records not yet in any run, the keys are unknown and not listed.
    pub values: Vec<DamagedKey>,
    /// Total number of values dropped.
    pub value_count: u64,
    /// Keys that were deleted because their newest value was dropped.
    pub deleted: u64,
    /// The names that keyspaces have now whose records are lost; their retention is [`Retention::Forever`](crate::Retention::Forever).
    pub recovered: Vec<String>,
    /// Files beside the store that list what this salvage and earlier ones lost, also those that were interrupted.
    pub losses: Vec<String>,
    /// Files that were moved aside, with their new names. Nothing was deleted.
    pub moved: Vec<String>,
}

impl DropSalvageReport {
    /// What is lost, one sentence each.
    fn losses(&self) -> Vec<String> {
        let value = |value: &DamagedKey| {
            format!("the value of key {} in keyspace {:?} at GLSN {}", show_key(&value.key), value.keyspace, value.glsn)
        };
        let mut losses: Vec<String> = self.dropped.iter().map(Damage::to_string).collect();
        losses.extend(self.values.iter().map(value));
        let more = self.value_count - self.values.len() as u64;
        losses.extend((more > 0).then(|| format!("{more} more values")));
        losses
    }
}

/// Drops the damage selected by `targets`. With `dry_run`, changes nothing and reports what would be dropped.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// db.close()?;
/// // What would be dropped? Nothing is damaged.
/// let options = Options::new().memory_bytes(16 << 20);
/// let report = salvage_drop(&path, options, &[DropTarget::Damaged], true)?;
/// assert!(report.moved.is_empty());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::InvalidInput`] if a target selects nothing damaged, or if a rebuild did not end; [`Error::Corrupt`] if damage cannot be dropped: the message names another
/// remedy; [`Error::Locked`], disk errors, the budget.
pub fn salvage_drop(
    path: impl AsRef<Path>,
    options: Options,
    targets: &[DropTarget],
    dry_run: bool,
) -> Result<DropSalvageReport> {
    let path = path.as_ref();
    options.check()?;
    check_is_store(path, &options)?;
    let options = options.read_only(false).create(false).warm(false);
    let lock: Option<Arc<dyn DirLock>> = take_lock(path, &options)?.map(Arc::from);
    let (log_options, budget) = look_at(&path.join("log"), &options)?;
    let disk = &*options.disk;
    refuse_amid_rebuild(path, disk)?;
    let closed = look(disk, path, &log_options.pool, &budget, &mut |_, _| {})?;
    let mut manifest = closed.manifest.as_ref().map_err(Clone::clone)?.clone();
    let checkpoint = manifest.as_ref().map_or(Glsn::NONE, |manifest| manifest.checkpoint.glsn);
    let first = first_of_log(disk, path)?;
    let mut scene = Scene { path, budget: &budget, first, checkpoint, names: BTreeMap::new() };
    scene.learn_names(&closed.parts)?;
    let unnamed = lost_names::name_in(&mut scene, manifest.as_ref(), &closed.parts)?;
    let (mut found, _) = scene.describe(&closed.findings, &closed.parts)?;
    add_bad_values(&scene, &options, &closed, &mut found)?;
    let selected = select(&scene, &closed, &found, targets)?;
    let mut report = DropSalvageReport::default();
    name_values(&scene, &closed, &selected, &mut report)?;
    report.dropped = selected.iter().map(|found| found.damage.clone()).collect();
    report.recovered = unnamed.iter().map(|id| scene.names[id].clone()).collect();
    if !dry_run {
        let mut losses = report.losses();
        losses.extend(unnamed.iter().map(|id| lost_names::loss(*id, &scene.names[id])));
        note_losses(disk, path, &losses)?;
    }
    // What the new manifest stops naming is kept aside before it is written.
    let named = manifest.as_ref().map(Named::of).unwrap_or_default();
    if let Some(manifest) = &mut manifest {
        Runs { disk: &options.disk, path, budget: &budget, scene: &scene, parts: &closed.parts, dry_run }.mend(
            manifest,
            &selected,
            &mut report,
        )?;
    }
    let log_id = manifest.as_ref().map(|manifest| manifest.log_id);
    let mended = mend_log(&log_options, &budget, &closed, &selected, (log_id, &named), dry_run)?;
    report.moved.extend(mended.aside.iter().map(|name| path.join("log").join(name).display().to_string()));
    if dry_run {
        return Ok(report);
    }
    // Blob files with dropped pages, from this salvage or earlier ones.
    let mut blobs: BTreeSet<BlobId> = mended.pages.iter().map(|(blob, _)| *blob).collect();
    let before = closed.findings.iter().filter(|finding| finding.cure == Cure::Dropped && finding.glsn.is_none());
    blobs.extend(before.filter_map(|finding| finding.file.split('.').next()?.parse().ok().map(BlobId)));
    drop((log_options, closed));
    let store = open_by(path, options.clone(), &Way { lock, ..Way::default() }, &mut |_, _| {})?;
    let complete = || -> Result<(Vec<String>, u64)> {
        // Each step finds by itself what is to be done: a salvage that was interrupted may have done some of it.
        lost_names::record_streams(&store)?;
        let names = lost_names::without_record(&store, &unnamed, &scene.names)?;
        let is_told = |id: &u32, name: &String| unnamed.contains(id) && scene.names.get(id) == Some(name);
        let more = names.iter().filter(|(id, name)| !is_told(id, name));
        note_losses(disk, path, &more.map(|(id, name)| lost_names::loss(*id, name)).collect::<Vec<_>>())?;
        lost_names::write_records(&store, &names)?;
        Ok((names.into_values().collect(), delete_newest(&store, &blobs)?))
    };
    (report.recovered, report.deleted) = complete().map_err(|error| match error {
        Error::Corrupt { file, glsn, message } => {
            let message = format!(
            "what was named is dropped, and something else is damaged, so keys whose newest value was dropped are not deleted yet: {message}; drop that \
             too, or all by `--drop-damaged`"
        );
            Error::Corrupt { file, glsn, message }
        }
        error => error,
    })?;
    report.losses = lists_of_losses(disk, path)?;
    report.glsn = store.visible();
    store.close()?;
    Ok(report)
}

/// Adds values that are not the ones that were written, although their pages match their checksums. A store that does not open has other
/// damage, which is dropped first.
fn add_bad_values(scene: &Scene<'_>, options: &Options, closed: &Closed, found: &mut Vec<Found>) -> Result<()> {
    let reading = options.clone().read_only(true).memory_bytes(MIN_MEMORY_BYTES);
    let store = match open_by(scene.path, reading, &Way::default(), &mut |_, _| {}) {
        Ok(store) => store,
        Err(error) if is_damage(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    let places = LostPlaces::of(found.iter().map(|found| &found.mend));
    let bad = find_bad_values(&store, &closed.findings)?;
    let new = bad.into_iter().filter(|bad| places.find(bad.glsn, &bad.stored).is_none());
    let new: Vec<Found> = new.map(|bad| bad.describe(scene)).collect();
    found.extend(new);
    store.close()
}

/// The findings selected by the targets.
fn select<'f>(
    scene: &Scene<'_>,
    closed: &Closed,
    found: &'f [Found],
    targets: &[DropTarget],
) -> Result<Vec<&'f Found>> {
    let mut wanted = BTreeSet::new();
    for target in targets {
        let (meant, what): (BTreeSet<usize>, _) = match target {
            DropTarget::Damaged => {
                // Not an error if nothing is damaged: this completes an interrupted salvage.
                wanted.extend(0..found.len());
                continue;
            }
            DropTarget::Glsn(glsn) => {
                let is_named = |found: &Found| match &found.mend {
                    Mend::Table(TableId::Run(_), _) => false,
                    _ => found.damage.glsns.as_ref().is_some_and(|glsns| glsns.contains(glsn)),
                };
                ((0..found.len()).filter(|at| is_named(&found[*at])).collect(), format!("GLSN {glsn}"))
            }
            DropTarget::Key { keyspace, key } => {
                // A dropped keyspace may have had the same name.
                let ids: Vec<u32> =
                    scene.names.iter().filter(|(_, name)| *name == keyspace).map(|(id, _)| *id).collect();
                if ids.is_empty() {
                    return Err(InvalidInput::NoKeyspace { name: keyspace.clone() }.into());
                }
                let mut meant = BTreeSet::new();
                for id in ids {
                    meant.extend(find_key(scene, closed, found, KeyBuffer::new(id, key)?.get())?);
                }
                (meant, format!("the key {}", show_key(key)))
            }
        };
        if meant.is_empty() {
            return Err(InvalidInput::NotDamaged { what }.into());
        }
        wanted.extend(meant);
    }
    // A table is rewritten as a whole: all that is lost with it is dropped.
    let table = |found: &Found| if let Mend::Table(id, _) = found.mend { Some(id) } else { None };
    let tables: BTreeSet<TableId> = wanted.iter().filter_map(|at| table(&found[*at])).collect();
    let is_in_one = |at: &usize| table(&found[*at]).is_some_and(|id| tables.contains(&id));
    wanted.extend((0..found.len()).filter(is_in_one));
    let selected: Vec<&Found> = wanted.into_iter().map(|at| &found[at]).collect();
    match selected.iter().find(|found| matches!(found.mend, Mend::Otherwise)) {
        Some(found) => Err(Error::corrupt(format!("this cannot be dropped: {}", found.damage))),
        None => Ok(selected),
    }
}

/// Numbers of the findings that affect versions of a key.
fn find_key(scene: &Scene<'_>, closed: &Closed, found: &[Found], key: &[u8]) -> Result<BTreeSet<usize>> {
    let places = LostPlaces::of(found.iter().map(|found| &found.mend));
    let mut numbers = BTreeSet::new();
    for part in closed.parts.iter().filter(|part| (&part.info.first_key[..]..=&part.info.last_key[..]).contains(&key)) {
        survey(part.source.as_deref(), &part.info, scene.budget, &mut |version| {
            if version.key == key {
                numbers.extend(places.find(version.glsn, &version.stored));
            }
            Ok(())
        })?;
        for (at, one) in found.iter().enumerate() {
            if let Mend::Table(id, span) = &one.mend
                && *id == part.info.id
                // A damaged guide page holds no keys: any key of the file selects it.
                && span.as_ref().is_none_or(|span| span.holds(key) || key == &span.first[..])
            {
                numbers.insert(at);
            }
        }
    }
    Ok(numbers)
}

/// Lists the values lost with the selected findings.
fn name_values(scene: &Scene<'_>, closed: &Closed, selected: &[&Found], report: &mut DropSalvageReport) -> Result<()> {
    let places = LostPlaces::of(selected.iter().map(|found| &found.mend));
    if places.is_empty() {
        return Ok(());
    }
    for part in &closed.parts {
        survey(part.source.as_deref(), &part.info, scene.budget, &mut |version| {
            if places.find(version.glsn, &version.stored).is_some() {
                report.value_count += 1;
                if report.values.len() < NAMED_MAX {
                    report.values.push(scene.key_of(version));
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Whether a blob file holds pages of a run.
fn is_run(blob: &BlobDamage, parts: &[Part]) -> bool {
    let is_part = parts.iter().any(|part| part.info.id == TableId::Blob(blob.id));
    let has_values = parts.iter().any(|part| part.info.blobs.binary_search(&blob.id).is_ok());
    match blob.is_plain {
        Some(is_plain) => !is_plain,
        None => is_part || !has_values,
    }
}

/// How many pages of the selected blob files hold values of the index.
fn pages_needed(closed: &Closed, selected: &[&Found], budget: &Budget) -> Result<BTreeMap<BlobId, u32>> {
    let damaged = selected.iter().filter_map(|found| match &found.mend {
        Mend::Blob(blob, _) => Some((blob.id, 0)),
        _ => None,
    });
    let mut needed: BTreeMap<BlobId, u32> = damaged.collect();
    for part in &closed.parts {
        if !part.info.blobs.iter().any(|blob| needed.contains_key(blob)) {
            continue;
        }
        survey(part.source.as_deref(), &part.info, budget, &mut |version| {
            if let Stored::InBlob { blob, offset, len, .. } = version.stored
                && let Some(pages) = needed.get_mut(&blob)
            {
                let end = offset.saturating_add(len).div_ceil(PAGE_PAYLOAD_BYTES as u64);
                *pages = (*pages).max(u32::try_from(end).unwrap_or(u32::MAX));
            }
            Ok(())
        })?;
    }
    Ok(needed)
}

fn mend_log(
    options: &plimsoll_log::file_log::options::FileLogOptions,
    budget: &Budget,
    closed: &Closed,
    selected: &[&Found],
    (log_id, named): (Option<u128>, &Named),
    dry_run: bool,
) -> Result<mend::Mended> {
    let (mut records, mut sound) = (Vec::<Range<Glsn>>::new(), BTreeSet::new());
    let mut blobs: BTreeMap<BlobId, WantedBlob> = BTreeMap::new();
    let needed = pages_needed(closed, selected, budget)?;
    let new = |id| WantedBlob { id, named: None, pages: needed.get(&id).copied().unwrap_or(0), wrong: Vec::new() };
    for found in selected {
        match &found.mend {
            Mend::Records(glsns) => records.push(glsns.clone()),
            Mend::Blob(blob, named_by) if is_run(blob, &closed.parts) => sound.extend(*named_by),
            Mend::Blob(blob, _) => {
                let wanted = blobs.entry(blob.id).or_insert_with(|| new(blob.id));
                wanted.named = wanted.named.or(blob.named);
                wanted.wrong.extend(blob.pages.iter().cloned());
            }
            Mend::Value(blob, pages) => {
                blobs.entry(*blob).or_insert_with(|| new(*blob)).wrong.push(pages.clone());
            }
            Mend::Table(..) | Mend::Otherwise => {}
        }
    }
    if records.is_empty() && blobs.is_empty() && sound.is_empty() {
        return Ok(mend::Mended::default());
    }
    let damaged = |glsns: &Range<Glsn>| {
        let meets = |wanted: &Range<Glsn>| {
            let same = wanted.start == glsns.start;
            same || (wanted.start < glsns.end && glsns.start < wanted.end)
        };
        records.iter().any(meets)
    };
    let sound = |first: Glsn| sound.contains(&first);
    let blobs: Vec<WantedBlob> = blobs.into_values().collect();
    let kept = |blob: BlobId| named.blobs.contains(&blob);
    let wanted = Wanted { damaged: &damaged, sound: &sound, blobs: &blobs, kept: &kept, log_id, dry_run };
    mend::mend(options, &wanted).lift()
}

/// Rewrites damaged runs with their readable contents.
struct Runs<'a> {
    disk: &'a Arc<dyn Disk>,
    path: &'a Path,
    budget: &'a Budget,
    scene: &'a Scene<'a>,
    parts: &'a [Part],
    dry_run: bool,
}

impl Runs<'_> {
    fn mend(&self, manifest: &mut Manifest, selected: &[&Found], report: &mut DropSalvageReport) -> Result<()> {
        let mut spans: BTreeMap<TableId, Vec<LostSpan>> = BTreeMap::new();
        for found in selected {
            match &found.mend {
                Mend::Table(id, span) => spans.entry(*id).or_default().extend(span.clone()),
                // The record is dropped, and the blob file with it.
                Mend::Blob(blob, _) if is_run(blob, self.parts) => {
                    let id = TableId::Blob(blob.id);
                    if let Some(part) = self.parts.iter().find(|part| part.info.id == id) {
                        let lost = survey(part.source.as_deref(), &part.info, self.budget, &mut |_| Ok(()))?.lost;
                        spans.insert(id, lost);
                    }
                }
                _ => {}
            }
        }
        if spans.is_empty() || self.dry_run {
            return Ok(());
        }
        let index = self.path.join("index");
        let before = manifest.clone();
        // An interrupted salvage may have left files that no manifest names.
        let names = self.disk.names(&index)?;
        let free = names.iter().filter_map(|name| run_id_of(name)).max().map_or(0, |id| id.saturating_add(1));
        manifest.next_run = manifest.next_run.max(free);
        for (id, spans) in &spans {
            let Some(part) = self.parts.iter().find(|part| part.info.id == *id) else { continue };
            self.write_anew(manifest, part, spans)?;
        }
        manifest.runs.retain(|run| !run.tables.is_empty());
        manifest.number = number_after(manifest.number)?;
        self.disk.sync_dir(&index)?;
        let mut kept = Kept::new(&**self.disk);
        kept.keep_unnamed(self.path, &before, manifest)?;
        kept.sync()?;
        manifest.write(&**self.disk, &index)?;
        report.moved.extend(kept.release()?);
        Ok(())
    }

    fn write_anew(&self, manifest: &mut Manifest, part: &Part, spans: &[LostSpan]) -> Result<()> {
        let info = &part.info;
        let is_history = manifest.runs[part.run].history;
        let stale = if is_history { BTreeSet::new() } else { self.stale(manifest, part, spans)? };
        let id = manifest.next_run;
        manifest.next_run += 1;
        let sink = RunFileSink::create(self.disk, &self.path.join("index"), id, manifest.log_id, self.budget)?;
        let mut builder = TableBuilder::new(sink, self.budget, false)?;
        let mut stale = stale.into_iter().peekable();
        survey(part.source.as_deref(), info, self.budget, &mut |version| {
            while let Some(key) = stale.next_if(|key| &key[..] <= version.key) {
                // A version by the run's newest commit is the key's newest.
                if key != version.key || version.glsn < info.max_glsn {
                    builder.add(&Version { key: &key, glsn: info.max_glsn, stored: Stored::Deleted })?;
                }
            }
            builder.add(version)
        })?;
        for key in stale {
            builder.add(&Version { key: &key, glsn: info.max_glsn, stored: Stored::Deleted })?;
        }
        let tables = &mut manifest.runs[part.run].tables;
        let at = tables.iter().position(|one| one.id == info.id).expect("it was read from there");
        if builder.versions() == 0 {
            tables.remove(at);
        } else {
            let (sink, made) = builder.finish()?;
            sink.finish()?;
            tables[at] = made;
        }
        self.raise_floors(manifest, info.max_glsn, spans);
        Ok(())
    }

    /// Keys that may have lost their newest version while an older one exists.
    fn stale(&self, manifest: &Manifest, part: &Part, spans: &[LostSpan]) -> Result<BTreeSet<Vec<u8>>> {
        let mut stale = BTreeSet::new();
        let is_older = |other: &&Part| other.run >= part.run && !manifest.runs[other.run].history;
        for other in self.parts.iter().filter(is_older) {
            survey(other.source.as_deref(), &other.info, self.budget, &mut |version| {
                let may_be_lost = spans.iter().any(|span| span.holds(version.key));
                if may_be_lost && !version.key.starts_with(&SYSTEM.to_be_bytes()) && !stale.contains(version.key) {
                    stale.insert(version.key.to_vec());
                }
                Ok(())
            })?;
        }
        Ok(stale)
    }

    /// Marks the past of keyspaces that may have lost versions as unreadable.
    fn raise_floors(&self, manifest: &mut Manifest, by: Glsn, spans: &[LostSpan]) {
        for span in spans {
            let touched =
                |id: &&u32| (keyspace_of(&span.first)..=keyspace_of(&span.last)).contains(id) && **id != SYSTEM;
            let known: Vec<u32> = self.scene.names.keys().filter(touched).copied().collect();
            let mut head = manifest.head();
            known.iter().for_each(|keyspace| head.limits.dropped(*keyspace, by));
            *manifest = Manifest::of(head, std::mem::take(&mut manifest.runs));
        }
    }
}

/// Deletes the keys with a dropped newest value; returns their number.
fn delete_newest(store: &Arc<Engine>, blobs: &BTreeSet<BlobId>) -> Result<u64> {
    let at = store.visible();
    let mut tx = Transaction::new(&store.committer);
    let mut deleted = 0;
    for (name, record) in store.reader.keyspaces.all() {
        let keyspace = store.reader.keyspaces.handle(record.id, Arc::clone(&name));
        let span = Span::new(record.id, &(..));
        let mut walk = store.reader.index.view().visible(span.lower(), span.upper(), at, Direction::Forward)?;
        let mut key = Vec::new();
        while let Some(version) = walk.next(&mut key)? {
            if is_dropped(store, blobs, &version)? {
                tx.delete(&keyspace, &version.key[4..])?;
                deleted += 1;
            }
        }
    }
    if deleted > 0 {
        tx.set_metadata(format!("{{\"salvage_dropped\":{{\"keys\":{deleted}}}}}").as_bytes())?;
        tx.commit()?;
    }
    Ok(deleted)
}

/// Whether the value of a version was dropped.
pub(crate) fn is_dropped(store: &Engine, blobs: &BTreeSet<BlobId>, version: &Version<'_>) -> Result<bool> {
    match version.stored {
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
                match store.reader.load_part(version.glsn, stored, at, &mut [0]) {
                    Err(Error::Dropped { .. }) => return Ok(true),
                    // Damaged but not dropped: reported as damage.
                    Err(Error::Corrupt { .. }) => return Ok(false),
                    read => _ = read?,
                }
            }
            Ok(false)
        }
        Stored::Deleted | Stored::Inline(_) | Stored::InBlob { .. } => Ok(false),
    }
}
