//! Makes a new manifest for an index whose newest one is damaged or missing, if the log no longer holds everything (a rebuild from the log
//! would then lose the past).
//!
//! 1. An older manifest is taken if all that it names is still there, and the log holds every commit behind it: then nothing is lost.
//! 2. Otherwise the versions of all run files in the folder are merged into new runs. Whether a run held the past, and which moments
//!    compaction had given up, was only in the manifest: so moments before the newest version in the runs can no longer be read.
//!
//! Laws:
//! 1. Commits that the log holds intact come from the log; only earlier ones come from the runs.
//! 2. Nothing is deleted: files that the new manifest does not name have second names (`aside.rs`) before it is written.
//! 3. What cannot be known is named: keys of lost pages, values that are gone, files of which nothing says what they are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_log::blob::BlobId;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::options::FileLogOptions;
use plimsoll_log::file_log::repair::mend;
use plimsoll_log::glsn::{Glsn, Position, StreamId};
use plimsoll_log::log::Log;
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::page::{PAGE_BYTES, PAGE_HEADER_BYTES, check_page, page_kind};
use plimsoll_memory::pool::{PageSource, Pool, Touch};

use crate::api::admin::aside::{Kept, Named, note_losses};
use crate::api::admin::diagnose::{Part, Scene, is_damage};
use crate::api::admin::repair::{has, look_at};
use crate::index::manifest::names::manifest_number;
use crate::index::manifest::{Manifest, RunInfo, next_number};
use crate::index::merge::{Cursor, Direction, Merge};
use crate::index::run::builder::TableBuilder;
use crate::index::run::cursor::{Feed, RunCursor};
use crate::index::run::ends::HEADER_PAGE;
use crate::index::run::file::{RunFileSink, open_run, pages_in_file, pages_of_run, read_info, run_id_of, run_seed};
use crate::index::run::survey::{LostSpan, Survey, survey};
use crate::index::run::table::{Table, TableId, TableInfo, run_file_name};
use crate::txn::payload::{Payload, Writes};
use crate::types::damage::DamagedKeys;
use crate::types::error::{Error, Lift, Result, show_key};
use crate::types::keyspaces::{SYSTEM, keyspace_of};
use crate::types::options::Options;
use crate::types::version::{MAX_INDEX_KEY_BYTES, Stored, Version};

/// Maximum number of lost values listed.
const NAMED_MAX: usize = 1000;

/// What the new manifest was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MadeFrom {
    /// An older manifest, and the log behind it.
    Manifest(u64),
    /// This many run files.
    Runs(u64),
}

/// The new manifest, and what is not in it.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) from: MadeFrom,
    pub(crate) manifest: Manifest,
    /// The last GLSN of the log; `None` if the log does not open.
    pub(crate) log_end: Option<Glsn>,
    /// Keys whose newest value is gone, at most a thousand.
    pub(crate) lost: Vec<(String, Vec<u8>)>,
    pub(crate) lost_count: u64,
    /// Ranges of keys that stood on lost pages.
    pub(crate) lost_ranges: Vec<DamagedKeys>,
    /// Files whose contents are not in the index, and why.
    pub(crate) unknown: Vec<String>,
    /// Runs in blob files that nothing names.
    spare_blobs: Vec<BlobId>,
    pub(crate) moved: Vec<String>,
}

impl Recovered {
    /// What is lost, one sentence each.
    fn losses(&self) -> Vec<String> {
        let newest = |(keyspace, key): &(String, Vec<u8>)| {
            format!("the newest value of key {} in keyspace {keyspace:?}", show_key(key))
        };
        let range = |range: &DamagedKeys| format!("{range}, as far as they were on damaged pages");
        let mut losses: Vec<String> = self.lost.iter().map(newest).collect();
        let more = self.lost_count - self.lost.len() as u64;
        losses.extend((more > 0).then(|| format!("the newest values of {more} more keys")));
        losses.extend(self.lost_ranges.iter().map(range));
        losses.extend(self.unknown.iter().cloned());
        losses
    }
}

/// Whether an index has no manifest that fits its log, which begins with `first` ([`Glsn::NONE`] if there is none).
pub(crate) fn is_lost(disk: &dyn Disk, index: &Path, manifest: &Result<Option<Manifest>>, first: Glsn) -> Result<bool> {
    Ok(match manifest {
        Ok(Some(manifest)) => first > manifest.checkpoint.glsn.next(),
        // Without runs, opening makes the index anew.
        Ok(None) => disk.entry(index)?.is_some() && disk.names(index)?.iter().any(|name| run_id_of(name).is_some()),
        Err(Error::Corrupt { .. }) => true,
        Err(_) => false,
    })
}

/// Makes and writes a new manifest. The caller holds the store's lock.
pub(crate) fn recover_manifest(path: &Path, options: &Options) -> Result<Recovered> {
    let (log_options, budget) = look_at(&path.join("log"), options)?;
    let log = match FileLog::open(log_options.clone()).lift() {
        Ok((log, _)) => Some(log),
        Err(error) if is_damage(&error) => None,
        Err(error) => return Err(error),
    };
    let index = path.join("index");
    let disk = &*options.disk;
    let mut numbers: Vec<u64> = disk.names(&index)?.iter().filter_map(|name| manifest_number(name)).collect();
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    let older: Vec<Manifest> =
        numbers.iter().filter_map(|number| Manifest::read_numbered(disk, &index, *number).ok()).collect();
    let mut finder = Finder { path, options, log_options, budget, log, older };
    let log_id = finder.log_id()?;
    let runs = finder.find_runs(log_id)?;
    let mut recovered = match finder.older_that_fits(&runs)? {
        Some(manifest) => finder.recovered(MadeFrom::Manifest(manifest.number), manifest),
        None => finder.merge_runs(log_id, &runs)?,
    };
    let manifest = &mut recovered.manifest;
    manifest.number = next_number(disk, &index)?;
    manifest.next_run = finder.next_run()?.max(manifest.next_run);
    disk.sync_dir(&index)?;
    let kept = finder.keep(&recovered)?;
    note_losses(disk, path, &recovered.losses())?;
    recovered.manifest.write(disk, &index)?;
    recovered.moved = kept.release()?;
    Ok(recovered)
}

/// A run file, or a run in a blob file, as far as it can be read.
struct Found {
    info: Arc<TableInfo>,
    source: Arc<dyn PageSource>,
    survey: Survey,
    /// Whether its description is known: from an older manifest, or from its own header and footer.
    described: bool,
    /// Whether an older manifest says that it holds superseded versions.
    history: bool,
}

struct Finder<'a> {
    path: &'a Path,
    options: &'a Options,
    log_options: FileLogOptions,
    budget: Budget,
    log: Option<FileLog>,
    /// Manifests that can be read, the newest first.
    older: Vec<Manifest>,
}

impl Finder<'_> {
    fn disk(&self) -> &dyn Disk {
        &*self.options.disk
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.log_options.pool
    }

    fn recovered(&self, from: MadeFrom, manifest: Manifest) -> Recovered {
        Recovered {
            from,
            manifest,
            log_end: self.log.as_ref().map(|log| Glsn(log.bounds().next.0 - 1)),
            lost: Vec::new(),
            lost_count: 0,
            lost_ranges: Vec::new(),
            unknown: Vec::new(),
            spare_blobs: Vec::new(),
            moved: Vec::new(),
        }
    }

    fn next_run(&self) -> Result<u64> {
        let names = self.disk().names(&self.path.join("index"))?;
        let named = self.older.iter().map(|manifest| manifest.next_run).max().unwrap_or(1);
        Ok(names.iter().filter_map(|name| run_id_of(name)).fold(named, |next, id| next.max(id.saturating_add(1))))
    }

    /// Gives second names to all files that the new manifest does not name and the next opening would sweep.
    fn keep(&self, recovered: &Recovered) -> Result<Kept<'_>> {
        let (index, dir, named) = (self.path.join("index"), self.path.join("log"), Named::of(&recovered.manifest));
        let mut kept = Kept::new(self.disk());
        for name in self.disk().names(&index)? {
            let is_damaged = manifest_number(&name)
                .is_some_and(|number| !self.older.iter().any(|manifest| manifest.number == number));
            if is_damaged || run_id_of(&name).is_some_and(|id| !named.runs.contains(&id)) {
                kept.take(&index, &name)?;
            }
        }
        // An older manifest and all of the log behind it name every blob file. If the log does not open, nothing is swept.
        if let (MadeFrom::Runs(_), Some(log)) = (recovered.from, &self.log) {
            let mut swept: BTreeSet<BlobId> = blob_files(self.disk(), &dir)?.into_iter().collect();
            swept.retain(|blob| !named.blobs.contains(blob));
            match log.for_each_named_blob(&mut |blob| _ = swept.remove(&blob)).lift() {
                Err(error) if !is_damage(&error) => return Err(error),
                _ => {}
            }
            for blob in swept {
                let is_spare = recovered.spare_blobs.contains(&blob);
                if is_spare { kept.take(&dir, &blob.file_name())? } else { kept.keep(&dir, &blob.file_name())? }
            }
        }
        kept.sync()?;
        Ok(kept)
    }

    /// The id of the log that the index was made from: from the log, a manifest, or the header of a run.
    fn log_id(&self) -> Result<u128> {
        if let Some(log) = &self.log {
            return Ok(log.id());
        }
        if let Some(manifest) = self.older.first() {
            return Ok(manifest.log_id);
        }
        let index = self.path.join("index");
        let mut page = self.budget.take(Kind::Staging)?;
        let page = &mut page[..PAGE_BYTES];
        for id in self.disk().names(&index)?.iter().filter_map(|name| run_id_of(name)) {
            let file = self.disk().open(&index.join(run_file_name(id)), Open::Read, Caching::Buffered)?;
            let n = file.read_at(page, 0)?;
            let Some(log_id) = page[PAGE_HEADER_BYTES..].get(16..32) else { continue };
            let log_id = u128::from_le_bytes(log_id.try_into().expect("16 bytes"));
            if check_page(&page[..n], run_seed(log_id, id), 0).is_ok() {
                return Ok(log_id);
            }
        }
        Err(Error::corrupt(format!(
            "{}: neither the log nor a manifest nor a run can be read: nothing says what belongs together; restore a backup",
            self.path.display()
        )))
    }

    /// The description of a table in the older manifests, and whether it is history.
    fn known(&self, id: TableId) -> Option<(&TableInfo, bool)> {
        let runs = self.older.iter().flat_map(|manifest| &manifest.runs);
        runs.flat_map(|run| run.tables.iter().map(|info| (info, run.history))).find(|(info, _)| info.id == id)
    }

    /// All run files that the newest manifest may have named, those made last first; then runs in blob files that an older one names.
    fn find_runs(&self, log_id: u128) -> Result<Vec<Found>> {
        let index = self.path.join("index");
        let mut ids: Vec<u64> = self.disk().names(&index)?.iter().filter_map(|name| run_id_of(name)).collect();
        ids.sort_unstable_by(|a, b| b.cmp(a));
        if let Some(before) = self.older.first() {
            // A file that was made before this manifest, which does not name it, was merged into others.
            let named: BTreeSet<TableId> = before.runs.iter().flat_map(|run| &run.tables).map(|info| info.id).collect();
            ids.retain(|id| *id >= before.next_run || named.contains(&TableId::Run(*id)));
        }
        let mut found = Vec::new();
        for id in ids {
            let source = pages_of_run(self.disk(), &index, log_id, id)?;
            let pages = pages_in_file(self.disk(), &index, id)?;
            found.push(self.look(TableId::Run(id), source, pages)?);
        }
        let newest = self.older.first().into_iter().flat_map(|manifest| &manifest.runs).flat_map(|run| &run.tables);
        for info in newest.filter(|info| matches!(info.id, TableId::Blob(_))) {
            let TableId::Blob(blob) = info.id else { continue };
            if self.disk().entry(&self.path.join("log").join(blob.file_name()))?.is_some() {
                let source = mend::blob_pages(self.disk(), &self.path.join("log"), log_id, blob).lift()?;
                found.push(self.look(info.id, source, info.pages)?);
            }
        }
        Ok(found)
    }

    fn look(&self, id: TableId, source: Arc<dyn PageSource>, pages: u32) -> Result<Found> {
        let known = self.known(id).map(|(info, history)| (info.clone(), history));
        let history = known.as_ref().is_some_and(|(_, history)| *history);
        let own = match &known {
            Some((info, _)) => Some(info.clone()),
            None => match read_info(&*source, pages, id, &self.budget) {
                Ok(info) => Some(info),
                Err(Error::Corrupt { .. }) => None,
                Err(error) => return Err(error),
            },
        };
        let described = own.is_some();
        // Without a footer: whatever its leaves hold.
        let mut info = own.unwrap_or_else(|| TableInfo {
            id,
            pages,
            root: pages.saturating_sub(1).max(1),
            versions: 1,
            deletions: 0,
            first_key: Vec::new(),
            last_key: vec![0xff; MAX_INDEX_KEY_BYTES],
            min_glsn: Glsn::MAX,
            max_glsn: Glsn::NONE,
            min_pointer: None,
            log_bytes: None,
            blobs: Vec::new(),
            fixed_glsn: None,
        });
        let (mut oldest, mut newest) = (info.min_glsn, info.max_glsn);
        let survey = survey(Some(&*source), &info, &self.budget, &mut |version| {
            (oldest, newest) = (oldest.min(version.glsn), newest.max(version.glsn));
            Ok(())
        })?;
        (info.min_glsn, info.max_glsn) = (oldest, newest);
        Ok(Found { info: Arc::new(info), source, survey, described, history })
    }

    /// The newest version in the runs.
    fn newest(runs: &[Found]) -> Glsn {
        runs.iter().map(|run| run.info.max_glsn).max().unwrap_or(Glsn::NONE)
    }

    /// The newest older manifest of which everything is still there, if the log holds all commits behind it.
    fn older_that_fits(&self, runs: &[Found]) -> Result<Option<Manifest>> {
        let Some(log) = &self.log else { return Ok(None) };
        let bounds = log.bounds();
        if Self::newest(runs) >= bounds.next {
            return Ok(None);
        }
        for manifest in &self.older {
            let checkpoint = manifest.checkpoint;
            let fits = manifest.log_id == log.id()
                && bounds.first <= checkpoint.glsn.next()
                && checkpoint.glsn < bounds.next
                && has(log, checkpoint)?
                && has(log, manifest.durable)?;
            let tables = || manifest.runs.iter().flat_map(|run| &run.tables);
            let mut is_there = fits;
            for info in tables().take_while(|_| fits) {
                is_there &= self.is_there(info, log)?;
            }
            if is_there && self.reads(log, checkpoint.glsn.next())? {
                return Ok(Some(manifest.clone()));
            }
        }
        Ok(None)
    }

    /// Whether a table has its files, and its values are not in the trimmed part of the log.
    fn is_there(&self, info: &TableInfo, log: &FileLog) -> Result<bool> {
        if info.min_pointer.is_some_and(|oldest| oldest < log.bounds().first) {
            return Ok(false);
        }
        for blob in &info.blobs {
            if self.disk().entry(&self.path.join("log").join(blob.file_name()))?.is_none() {
                return Ok(false);
            }
        }
        let opened = match info.id {
            TableId::Run(_) => {
                open_run(self.disk(), &self.path.join("index"), self.pool(), log.id(), info.clone()).map(drop)
            }
            TableId::Blob(blob) => log.open_blob(blob).lift().map(drop),
        };
        match opened {
            Ok(()) => Ok(true),
            Err(error) if is_damage(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether all entries of the log from `from` on can be read, and no salvage dropped one of them.
    fn reads(&self, log: &FileLog, from: Glsn) -> Result<bool> {
        let mut scan = log.scan(from..log.bounds().next, None).lift()?;
        while let Some(entry) = scan.next_entry() {
            match entry.lift() {
                Ok(entry) if entry.meta.stream == StreamId::DROPPED => return Ok(false),
                Ok(_) => {}
                Err(error) if is_damage(&error) || matches!(error, Error::Dropped { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Merges the versions of all runs into new ones.
    fn merge_runs(&mut self, log_id: u128, runs: &[Found]) -> Result<Recovered> {
        let newest = Self::newest(runs);
        let place = |glsn: Glsn| -> Result<Position> {
            let chain = match &self.log {
                Some(log) if glsn.next() >= log.bounds().first && glsn < log.bounds().next => {
                    log.chain_at(glsn).lift()?
                }
                _ => None,
            };
            Ok(Position { glsn, chain: chain.unwrap_or_default() })
        };
        let first = self.log.as_ref().map(|log| log.bounds().first);
        let from_log = match &self.log {
            Some(log) if newest < log.bounds().next && self.reads(log, log.bounds().first)? => first,
            _ => None,
        };
        let blobs = self.unknown_blobs(log_id)?;
        if from_log.is_none()
            && let Some((blob, glsn)) = blobs.iter().find_map(|(blob, named)| Some((blob, (*named)?)))
            && glsn <= newest
        {
            return Err(Error::corrupt(format!(
                "the commit with GLSN {glsn} is in log/{} and cannot be replayed, as the log does not hold everything: without its manifest the \
                 index cannot be made anew; nothing was changed: restore a backup",
                blob.file_name()
            )));
        }
        // What the log holds intact is replayed from it.
        let checkpoint = place(from_log.map_or(newest, |first| Glsn(first.0 - 1)))?;
        let manifest = Manifest { checkpoint, durable: checkpoint, ..Manifest::empty(log_id) };
        let mut recovered = self.recovered(MadeFrom::Runs(runs.len() as u64), manifest);
        if let Some(first) = first.filter(|first| newest.next() < *first && *first > Glsn::FIRST) {
            let (lost, last) = (newest.next(), Glsn(first.0 - 1));
            recovered.unknown.push(format!(
                "what the commits with GLSN {lost} to {last} changed: no run holds it, and the log was trimmed"
            ));
        }
        let mut scene = Scene {
            path: self.path,
            budget: &self.budget,
            first: first.unwrap_or(Glsn::NONE),
            checkpoint: checkpoint.glsn,
            names: BTreeMap::new(),
        };
        let parts: Vec<Part> = runs
            .iter()
            .map(|run| Part {
                info: Arc::clone(&run.info),
                run: 0,
                source: Some(Arc::clone(&run.source)),
                problems: Vec::new(),
            })
            .collect();
        scene.learn_names(&parts)?;
        let mut spans: Vec<(LostSpan, Glsn)> = Vec::new();
        for run in runs {
            if !run.described {
                let file = run.info.id.file();
                recovered.unknown.push(format!(
                    "{file} has no readable header or footer: the versions that can be read are kept, and whether there were others is not known"
                ));
            }
            for span in run.survey.lost.iter().filter(|_| run.described) {
                recovered.lost_ranges.push(scene.range(&span.first, &span.last));
                if !run.history {
                    spans.push((span.clone(), run.info.max_glsn.min(checkpoint.glsn)));
                }
            }
        }
        let mut output = Output { finder: self, log_id, next: self.next_run()?, builder: None, tables: Vec::new() };
        let (tables, spare) = output.open(runs)?;
        let cursors = tables
            .iter()
            .map(|table| Cursor::Run(Box::new(RunCursor::new(Arc::from([table.clone()]), Feed::Pool(Touch::Scan)))));
        let mut merge = Merge::new(cursors.collect(), Direction::Forward);
        merge.seek_end()?;
        let mut last: Option<(Vec<u8>, Glsn)> = None;
        // Those of keyspaces whose records are lost too.
        let mut ids: BTreeSet<u32> = scene.names.keys().copied().collect();
        while let Some(version) = merge.top() {
            let is_new = last.as_ref().is_none_or(|(key, _)| key != version.key);
            let is_again = last.as_ref().is_some_and(|(key, glsn)| key == version.key && *glsn == version.glsn);
            ids.insert(keyspace_of(version.key));
            if !is_again && from_log.is_none_or(|first| version.glsn < first) {
                let mut may_split = is_new;
                if is_new {
                    let is_stale = |span: &&(LostSpan, Glsn)| span.1 > version.glsn && span.0.holds(version.key);
                    let by = spans.iter().filter(is_stale).map(|(_, glsn)| *glsn).max();
                    if let Some(glsn) = by.filter(|_| !version.key.starts_with(&SYSTEM.to_be_bytes())) {
                        // Its newest version may have stood on the lost page.
                        output.add(&Version { key: version.key, glsn, stored: Stored::Deleted }, true)?;
                        may_split = false;
                    }
                }
                let stored = output.finder.what_is_left(&version, first)?;
                let is_lost = matches!(stored, Stored::Dropped { .. }) && stored != version.stored;
                if is_lost && is_new {
                    recovered.lost_count += 1;
                    if recovered.lost.len() < NAMED_MAX {
                        recovered.lost.push(scene.split(version.key));
                    }
                }
                output.add(&Version { stored, ..version }, may_split)?;
                let (key, glsn) = last.get_or_insert_default();
                key.clear();
                key.extend_from_slice(version.key);
                *glsn = version.glsn;
            }
            merge.advance()?;
        }
        drop((merge, tables));
        output.close()?;
        let made = std::mem::take(&mut output.tables);
        for id in spare {
            // A copy that this call made.
            self.disk().remove(&self.path.join("index").join(run_file_name(id)))?;
        }
        if !made.is_empty() {
            recovered.manifest.runs.push(RunInfo { history: false, tables: made });
        }
        let mut head = recovered.manifest.head();
        for keyspace in ids.into_iter().filter(|keyspace| *keyspace != SYSTEM) {
            head.limits.dropped(keyspace, newest);
            head.limits.deletion_dropped(keyspace, newest);
        }
        recovered.manifest = Manifest::of(head, std::mem::take(&mut recovered.manifest.runs));
        self.name_spare(blobs, &mut recovered)?;
        Ok(recovered)
    }

    /// What a version stores, or that its value is gone.
    fn what_is_left<'v>(&self, version: &Version<'v>, first: Option<Glsn>) -> Result<Stored<'v>> {
        Ok(match version.stored {
            Stored::InLog { len, .. } if first.is_some_and(|first| version.glsn < first) => Stored::Dropped { len },
            Stored::InBlob { blob, len, .. }
                if self.disk().entry(&self.path.join("log").join(blob.file_name()))?.is_none() =>
            {
                Stored::Dropped { len }
            }
            stored => stored,
        })
    }

    /// Runs in blob files that no older manifest names, each with the commit that the log's records name it for.
    fn unknown_blobs(&self, log_id: u128) -> Result<Vec<(BlobId, Option<Glsn>)>> {
        let dir = self.path.join("log");
        let mut page = self.budget.take(Kind::Staging)?;
        let page = &mut page[..PAGE_BYTES];
        let mut unknown = Vec::new();
        for blob in blob_files(self.disk(), &dir)? {
            let source = mend::blob_pages(self.disk(), &dir, log_id, blob).lift()?;
            let is_run = source.load(0, page).is_ok() && page_kind(page) == HEADER_PAGE;
            if is_run && self.known(TableId::Blob(blob)).is_none() {
                unknown.push((blob, None));
            }
        }
        let Some(log) = self.log.as_ref().filter(|_| !unknown.is_empty()) else { return Ok(unknown) };
        let mut scan = log.scan(log.bounds().first..log.bounds().next, Some(StreamId::TRANSACTIONS)).lift()?;
        while let Some(Ok(entry)) = scan.next_entry() {
            if let Ok(Payload { writes: Writes::Runs(runs), .. }) = Payload::decode(entry.payload) {
                for (_, named) in unknown.iter_mut().filter(|(blob, _)| runs.iter().flatten().any(|run| run == blob)) {
                    *named = Some(entry.meta.glsn);
                }
            }
        }
        Ok(unknown)
    }

    /// Names the runs in blob files that nothing names: their commit, and so the age of what they hold, was only in the manifest. They are
    /// set aside if every record of the log could be asked.
    fn name_spare(&self, blobs: Vec<(BlobId, Option<Glsn>)>, recovered: &mut Recovered) -> Result<()> {
        let is_sure = match &self.log {
            Some(log) => self.reads(log, log.bounds().first)?,
            None => false,
        };
        for (blob, _) in blobs.into_iter().filter(|(_, named)| named.is_none()) {
            recovered.unknown.push(format!(
                "log/{} is a run of a commit that neither the log, as far as it can be read, nor a readable manifest names (of one that was never \
                 finished, or of an old one that was not merged yet)",
                blob.file_name()
            ));
            if is_sure {
                recovered.spare_blobs.push(blob);
            }
        }
        Ok(())
    }
}

/// The blob files in a folder.
fn blob_files(disk: &dyn Disk, dir: &Path) -> Result<Vec<BlobId>> {
    let id = |name: &String| name.strip_suffix(".blob").and_then(|id| id.parse().ok()).map(BlobId);
    Ok(disk.names(dir)?.iter().filter_map(id).collect())
}

/// Writes the new runs.
struct Output<'a, 'f> {
    finder: &'a Finder<'f>,
    log_id: u128,
    next: u64,
    builder: Option<TableBuilder<RunFileSink>>,
    tables: Vec<TableInfo>,
}

impl Output<'_, '_> {
    fn begin(&mut self) -> Result<TableBuilder<RunFileSink>> {
        let (disk, index) = (&self.finder.options.disk, self.finder.path.join("index"));
        let sink = RunFileSink::create(disk, &index, self.next, self.log_id, &self.finder.budget)?;
        self.next += 1;
        TableBuilder::new(sink, &self.finder.budget, false)
    }

    /// Opens the runs for a merge, and copies of what can be read of damaged ones; the second list holds the ids of the copies.
    fn open(&mut self, runs: &[Found]) -> Result<(Vec<Table>, Vec<u64>)> {
        let (mut tables, mut copies) = (Vec::new(), Vec::new());
        for run in runs {
            if run.survey.bad.is_none() && run.described {
                let file = self.finder.pool().attach(Arc::clone(&run.source));
                tables.push(Table { info: Arc::clone(&run.info), file });
                continue;
            }
            let mut builder = self.begin()?;
            survey(Some(&*run.source), &run.info, &self.finder.budget, &mut |version| builder.add(version))?;
            if builder.versions() > 0 {
                let (sink, info) = builder.finish()?;
                sink.finish()?;
                let TableId::Run(id) = info.id else { continue };
                copies.push(id);
                let index = self.finder.path.join("index");
                tables.push(open_run(self.finder.disk(), &index, self.finder.pool(), self.log_id, info)?);
            }
        }
        Ok((tables, copies))
    }

    /// Adds a version; all versions of a key come into one table.
    fn add(&mut self, version: &Version<'_>, is_new_key: bool) -> Result<()> {
        let is_full = |builder: &TableBuilder<_>| builder.bytes() > self.finder.options.sizes.table_bytes;
        if is_new_key && self.builder.as_ref().is_some_and(is_full) {
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
            sink.finish()?;
            self.tables.push(info);
        }
        Ok(())
    }
}
