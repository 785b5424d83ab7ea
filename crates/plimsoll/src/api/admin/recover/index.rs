//! Makes the index of the new store.
//!
//! - If the old index is sound, its files are linked into the new store, which gets its own
//!   manifest.
//! - Otherwise the log is replayed into an empty index. If the log does not hold every commit, the
//!   resulting runs and the old ones are then merged into new runs.
//!
//! Invariants of a merge:
//! 1. Commits that the log holds are taken from the log, even if the old index has other versions
//!    with their GLSNs.
//! 2. If the newest version of a key may have been on an unreadable page, and neither the log nor
//!    another page has it, then the key is deleted. No other version replaces it, not even one of
//!    the same commit (a commit may write a key to several runs).
//! 3. A version up to the checkpoint that the current runs lack has been superseded, so it is not
//!    the newest. If the log has lost the commit that superseded it, the key is deleted.
//! 4. The record of a keyspace is a key too, but under invariant 2 it is kept and reported, unless
//!    it is known to be superseded: without it the retention of the keyspace would be unknown.
//! 5. Moments at which versions may be missing can no longer be read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::vfs::Disk;
use plimsoll_log::file_log::options::FileLogOptions;
use plimsoll_log::file_log::repair::recover::{Copied, blob_pages, link_or_copy};
use plimsoll_log::glsn::{Glsn, Position};
use plimsoll_memory::budget::Budget;
use plimsoll_memory::pool::Touch;

use crate::api::admin::diagnose::{Scene, look_at};
use crate::api::admin::recover::source::Source;
use crate::index::manifest::limits::Limits;
use crate::index::manifest::names::manifest_name;
use crate::index::manifest::{Manifest, RunInfo};
use crate::index::run::builder::TableBuilder;
use crate::index::run::cursor::{Feed, RunCursor};
use crate::index::run::file::{RunFileSink, open_run, run_id_of};
use crate::index::run::survey::{LostSpan, survey};
use crate::index::run::table::{Table, TableId, TableInfo, run_file_name};
use crate::index::sources::merge::{Cursor, Direction, Merge};
use crate::types::damage::DamagedKeys;
use crate::types::error::{Lift, Result};
use crate::types::index_key::IndexKey;
use crate::types::keyspaces::{Record, SYSTEM, dropped_name};
use crate::types::options::Options;
use crate::types::version::{Stored, Version};

/// Writes the manifest with which the new store is first opened. If the old index's files are kept,
/// it is the old manifest; otherwise it has no runs, and the whole log is replayed.
pub(crate) fn begin(
    source: &Source,
    path: &Path,
    into: &Path,
    kept: bool,
    copied: &mut Copied,
) -> Result<()> {
    let (disk, index) = (&*source.log_options.disk, into.join("index"));
    let mut manifest = Manifest::empty(source.survey.log_id);
    if let Some(known) = source.manifest.as_ref().filter(|_| kept) {
        manifest = known.clone();
        for part in &source.parts {
            if let TableId::Run(id) = part.info.id {
                let from = path.join("index").join(run_file_name(id));
                link_or_copy(&source.log_options, &from, &index, copied).lift()?;
            }
        }
    } else {
        manifest.head.checkpoint = source.survey.start();
    }
    manifest.head.log_begins = Some(source.survey.start().glsn.next());
    manifest.head.durable = durable(source);
    manifest.head.number = source.next_manifest;
    manifest.head.next_run = source.next_run;
    disk.sync_dir(&index)?;
    manifest.write(disk, &index)
}

/// The end of the new log.
fn durable(source: &Source) -> Position {
    let end = source.survey.end();
    if end.glsn == Glsn::NONE { Position::default() } else { end }
}

/// The data that a merge could not keep.
#[derive(Default)]
pub(crate) struct MergeLosses {
    /// Ranges of keys that were on unreadable pages.
    pub(crate) ranges: Vec<DamagedKeys>,
    /// The moment before which some keyspaces cannot be read.
    pub(crate) readable_from: Glsn,
    /// The keyspaces whose records may have been superseded by a record on an unreadable page.
    pub(crate) stale_records: Vec<String>,
}

/// The key ranges of unreadable pages that may hold commits which the log lacks. With each: the
/// newest commit that the log lacks since the oldest version of the page's table, and whether the
/// table is in a current run.
fn lost_spans(source: &Source) -> Result<Vec<(LostSpan, Glsn, bool)>> {
    let mut spans = Vec::new();
    for part in source.parts.iter().filter(|part| part.described && !part.problems.is_empty()) {
        let to = part.info.max_glsn.max(source.complete_to());
        let Some(gap) = source.newest_gap(part.info.min_glsn, to) else { continue };
        let lost =
            survey(part.source.as_deref(), &part.info, &source.budget, &mut |_| Ok(()))?.lost;
        spans.extend(lost.into_iter().map(|span| (span, gap, !part.history)));
    }
    Ok(spans)
}

/// The key ranges of unreadable pages that may hold commits which the log lacks.
pub(crate) fn lost_ranges(source: &Source, scene: &Scene<'_>) -> Result<Vec<DamagedKeys>> {
    let spans = lost_spans(source)?;
    Ok(spans.iter().map(|(span, ..)| scene.range(&span.first, &span.last)).collect())
}

/// Merges the runs of the new store, which hold the contents of its log, with the old ones.
pub(crate) fn merge(
    source: &Source,
    scene: &Scene<'_>,
    into: &Path,
    options: &Options,
) -> Result<MergeLosses> {
    let (log_options, budget) = look_at(&into.join("log"), options)?;
    let (disk, index) = (&*options.disk, into.join("index"));
    let replayed = Manifest::read_beyond(disk, &index, Some(source.survey.log_id), None)?
        .unwrap_or_else(|| Manifest::empty(source.survey.log_id));
    let spans = lost_spans(source)?;
    let mut output = Output {
        log_options: &log_options,
        budget: &budget,
        index: &index,
        source,
        options,
        blobs: disk.names(&into.join("log"))?.into_iter().collect(),
        next: replayed.head.next_run.max(source.next_run),
        builder: None,
        tables: Vec::new(),
    };
    let new = output.open_new(&replayed)?;
    let (current, history) = output.open_old()?;
    // Each group is a run: its tables are sorted and do not overlap. The runs from the log come
    // first, so that they win among equal versions.
    let cursors = new.iter().chain(&current).chain(&history).map(scan).collect();
    let mut merge = Merge::new(cursors, Direction::Forward);
    merge.seek_end()?;
    // A merge of the current runs only, to check which versions they hold.
    let mut held = Merge::new(current.iter().map(scan).collect(), Direction::Forward);
    held.seek_end()?;
    // A merge of the history runs only.
    let mut past = Merge::new(history.iter().map(scan).collect(), Direction::Forward);
    past.seek_end()?;
    let mut stale_records = Vec::new();
    let mut dropped: BTreeMap<u32, Glsn> = BTreeMap::new();
    let mut ids: BTreeSet<u32> = scene.names.keys().copied().collect();
    let mut replaced: BTreeMap<u32, Glsn> = BTreeMap::new();
    let mut last: Option<(Vec<u8>, Glsn)> = None;
    while let Some(version) = merge.top() {
        let is_new = last.as_ref().is_none_or(|(key, _)| key != version.key);
        let is_again =
            last.as_ref().is_some_and(|(key, glsn)| key == version.key && *glsn == version.glsn);
        let keyspace = version.keyspace();
        ids.insert(keyspace);
        if !is_again {
            let mut stale = None;
            if is_new && version.stored != Stored::Deleted {
                let on_page = |(span, gap, is_current): &&(LostSpan, Glsn, bool)| {
                    *is_current && *gap >= version.glsn && span.holds(version.key)
                };
                let by_page = spans.iter().filter(on_page).map(|(_, gap, _)| *gap).max();
                stale = by_page;
                if stale.is_none()
                    && let Some(by) = source.lost_after(version.glsn)
                    && !holds(&mut held, &version)?
                {
                    let from = replaced.entry(keyspace).or_default();
                    *from = by.max(*from);
                    stale = Some(by);
                }
                if keyspace == SYSTEM {
                    let (name, id) = (version.user_key(), record_id(&version.stored));
                    let drop = id.and_then(|id| dropped.get(&id).copied());
                    if dropped_name(name).is_some() {
                        // Records of dropped keyspaces are sorted before the others.
                        dropped.extend(id.map(|id| (id, version.glsn)));
                        stale = None;
                    } else if by_page.is_some() && drop.is_none() && !holds(&mut past, &version)? {
                        stale_records
                            .extend(id.map(|_| String::from_utf8_lossy(name).into_owned()));
                        stale = None;
                    } else {
                        stale = drop.or(stale);
                    }
                }
            }
            if let Some(glsn) = stale {
                output.add(&Version { key: version.key, glsn, stored: Stored::Deleted }, true)?;
            }
            if stale != Some(version.glsn) {
                let stored = output.recovered_content(&version);
                output.add(&Version { stored, ..version }, is_new && stale.is_none())?;
            }
            let (key, glsn) = last.get_or_insert_default();
            version.key.clone_into(key);
            *glsn = version.glsn;
        }
        merge.advance()?;
    }
    drop((held, past));
    drop(merge);
    output.close()?;
    let runs = match std::mem::take(&mut output.tables) {
        tables if tables.is_empty() => Vec::new(),
        tables => vec![RunInfo { history: false, tables }],
    };
    let mut limits = limits(source, &replayed, &spans, ids);
    replaced
        .into_iter()
        .filter(|(id, _)| *id != SYSTEM)
        .for_each(|(id, by)| limits.dropped(id, by, &Arc::default()));
    let mut head = replayed.head.clone();
    (head.number, head.next_run, head.limits) =
        (head.number.saturating_add(1), output.next, limits);
    if let Some(old) = &source.manifest {
        head.ranges = Arc::new(head.ranges.union(&old.head.ranges));
    }
    (head.checkpoint, head.durable) = (durable(source), durable(source));
    let manifest = Manifest { head, runs };
    disk.sync_dir(&index)?;
    manifest.write(disk, &index)?;
    sweep(disk, &index, &manifest)?;
    let ranges = lost_ranges(source, scene)?;
    Ok(MergeLosses { ranges, readable_from: manifest.head.limits.oldest_readable, stale_records })
}

/// A cursor over a run.
fn scan(tables: &Tables) -> Cursor {
    Cursor::Run(Box::new(RunCursor::new(Arc::clone(tables), Feed::Pool(Touch::Scan))))
}

/// Whether a merge has a version. The versions must be given in order.
fn holds(merge: &mut Merge, version: &Version<'_>) -> Result<bool> {
    merge.skip_to(version.key, version.glsn)?;
    Ok(merge.top().is_some_and(|top| top.key == version.key && top.glsn == version.glsn))
}

/// The id in the record of a keyspace.
fn record_id(stored: &Stored<'_>) -> Option<u32> {
    let Stored::Inline(record) = stored else { return None };
    Record::decode(record).ok().map(|record| record.id)
}

/// The oldest readable moment of each keyspace. Single retained moments below the youngest dropped
/// version are not restored: the recovered store refuses to read them.
fn limits(
    source: &Source,
    replayed: &Manifest,
    spans: &[(LostSpan, Glsn, bool)],
    ids: BTreeSet<u32>,
) -> Limits {
    let mut limits = replayed.head.limits.clone();
    let users = |id: &u32| *id != SYSTEM;
    match &source.manifest {
        Some(manifest) => limits.merge(&manifest.head.limits),
        None => {
            // It is unknown which versions compaction has dropped.
            let newest = source
                .parts
                .iter()
                .map(|part| part.info.max_glsn)
                .fold(source.survey.start().glsn, Glsn::max);
            for keyspace in ids.iter().copied().filter(users).filter(|_| newest > Glsn::NONE) {
                limits.dropped(keyspace, newest, &Arc::default());
                limits.deletion_dropped(keyspace, newest);
            }
        }
    }
    for (span, gap, _) in spans {
        let touched = IndexKey::new(&span.first).keyspace()..=IndexKey::new(&span.last).keyspace();
        ids.iter()
            .copied()
            .filter(users)
            .filter(|id| touched.contains(id))
            .for_each(|id| limits.dropped(id, *gap, &Arc::default()));
    }
    limits
}

/// Removes the files that the new manifest does not name.
fn sweep(disk: &dyn Disk, index: &Path, manifest: &Manifest) -> Result<()> {
    let tables = manifest.runs.iter().flat_map(|run| &run.tables);
    let named: BTreeSet<TableId> = tables.map(|info| info.id).collect();
    for name in disk.names(index)? {
        let is_named = run_id_of(&name).is_none_or(|id| named.contains(&TableId::Run(id)));
        let is_older = name.starts_with("MANIFEST.") && name != manifest_name(manifest.head.number);
        if !is_named || is_older {
            disk.remove(&index.join(name))?;
        }
    }
    Ok(disk.sync_dir(index)?)
}

/// The tables of a run.
type Tables = Arc<[Table]>;

/// Writes the new runs.
struct Output<'a> {
    log_options: &'a FileLogOptions,
    budget: &'a Budget,
    index: &'a Path,
    source: &'a Source,
    options: &'a Options,
    /// The names of the files of the new log.
    blobs: BTreeSet<String>,
    next: u64,
    builder: Option<TableBuilder<RunFileSink>>,
    tables: Vec<TableInfo>,
}

impl Output<'_> {
    fn begin(&mut self) -> Result<TableBuilder<RunFileSink>> {
        let log_id = self.source.survey.log_id;
        let sink =
            RunFileSink::create(&self.options.disk, self.index, self.next, log_id, self.budget)?;
        self.next += 1;
        TableBuilder::new(sink, self.budget, false)
    }

    /// The runs of the new store.
    fn open_new(&self, manifest: &Manifest) -> Result<Vec<Tables>> {
        let open = |info: &TableInfo| self.open(self.index, &self.log_options.dir, info.clone());
        manifest.runs.iter().map(|run| run.tables.iter().map(open).collect()).collect()
    }

    fn open(&self, index: &Path, log: &Path, info: TableInfo) -> Result<Table> {
        let (disk, pool, log_id) =
            (&*self.options.disk, &self.log_options.pool, self.source.survey.log_id);
        match info.id {
            TableId::Run(_) => open_run(disk, index, (pool, &self.source.decoders), log_id, info),
            TableId::Blob(blob) => {
                let source = blob_pages(disk, log, log_id, blob).lift()?;
                Ok(Table { info: Arc::new(info), file: pool.attach(source) })
            }
        }
    }

    /// Opens the old runs, the current ones and the history runs. A run that is damaged, or that
    /// holds commits which differ from those of the log, is replaced by a copy of its usable
    /// versions.
    fn open_old(&mut self) -> Result<(Vec<Tables>, Vec<Tables>)> {
        let source = self.source;
        let first = source.survey.bounds().start;
        let mut runs: BTreeMap<(bool, usize), Vec<Table>> = BTreeMap::new();
        for part in &source.parts {
            let Some(pages) = &part.source else { continue };
            if part.problems.is_empty() && part.described && !source.is_forked {
                let file = self.log_options.pool.attach(Arc::clone(pages));
                let tables = runs.entry((part.history, part.run)).or_default();
                tables.push(Table { info: Arc::clone(&part.info), file });
                continue;
            }
            let mut builder = self.begin()?;
            survey(Some(&**pages), &part.info, self.budget, &mut |version| {
                if source.is_forked && version.glsn >= first {
                    Ok(())
                } else {
                    builder.add(version)
                }
            })?;
            if builder.versions() > 0 {
                let (sink, info) = builder.finish()?;
                let (info, _) = sink.finish(info)?;
                let table = self.open(self.index, &self.log_options.dir, info)?;
                runs.entry((part.history, part.run)).or_default().push(table);
            }
        }
        let history = runs.split_off(&(true, 0));
        let groups = |runs: BTreeMap<_, Vec<Table>>| runs.into_values().map(Arc::from).collect();
        Ok((groups(runs), groups(history)))
    }

    /// The content of a version, or that its value is lost.
    fn recovered_content<'v>(&self, version: &Version<'v>) -> Stored<'v> {
        let is_there = match version.stored.value() {
            Stored::InLog { .. } => self.source.survey.has(version.glsn),
            Stored::InBlob { blob, .. } => self.blobs.contains(&blob.file_name()),
            _ => true,
        };
        if is_there {
            version.stored
        } else {
            let len = version.stored.value_bytes();
            Stored::Dropped { len }.expiring(version.stored.expiry())
        }
    }

    /// Adds a version. All versions of a key are in one table.
    fn add(&mut self, version: &Version<'_>, may_split: bool) -> Result<()> {
        let table_bytes = self.options.sizes.table_bytes;
        if may_split && self.builder.as_ref().is_some_and(|builder| builder.bytes() > table_bytes) {
            self.close()?;
        }
        if self.builder.is_none() {
            self.builder = Some(self.begin()?);
        }
        self.builder.as_mut().expect("made above").add(version)
    }

    fn close(&mut self) -> Result<()> {
        if let Some(builder) = self.builder.take() {
            let (sink, info) = builder.finish()?;
            let (info, _) = sink.finish(info)?;
            self.tables.push(info);
        }
        Ok(())
    }
}
