//! The runs of blob files into which a transaction's writes were spilled.
//!
//! The runs are kept newest first, in tiers: eight runs of one tier are merged into one of the next, or only concatenated if their keys do
//! not overlap (sorted input). A bulk load merges all of its runs at once, at its end. When the transaction commits, the index adopts the runs without a rewrite; when it is dropped, they are
//! removed.
//!
//! A record names a limited number of blob files. So runs that were concatenated too often are merged after all, and the tables of very
//! large runs are larger: their number stays bounded, whatever the transaction's size.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_disk::fork::Origin;
use plimsoll_log::blob::{BlobId, BlobRef};
use plimsoll_log::draft::MAX_BLOBS;
use plimsoll_log::glsn::Glsn;
use plimsoll_log::log::Log;
use plimsoll_memory::budget::Budget;
use plimsoll_memory::page::PAGE_BYTES;
use plimsoll_memory::pool::Touch;

use crate::borders::{Border, hit};
use crate::index::merge::{Cursor, Direction, Merge};
use crate::index::run::builder::TableBuilder;
use crate::index::run::cursor::{Feed, RunCursor};
use crate::index::run::file::{BlobSink, read_info};
use crate::index::run::table::{Found, Table, TableId, TableInfo};
use crate::types::error::{Lift, Result};
use crate::types::version::{Stored, Version};

/// Runs of one tier that are merged into one of the next.
const FAN_IN: usize = 8;

/// Runs that would have more blob files than this are not concatenated.
const STRUNG_BLOBS_MAX: usize = 32;

/// Divisor: a merge writes tables of at least this part of its input.
const PARTITION_PART: u64 = 16;

/// Divisor: a table of a run that goes on and on takes at least this part of what was written before it.
const GROWTH_PART: u64 = 8;

/// The most blob files of all runs; a record names one more, of values.
const BLOBS_MAX: usize = MAX_BLOBS - 1;

/// Spilled runs.
pub(crate) struct Spill {
    origin: Origin,
    budget: Budget,
    log: Arc<dyn Log>,
    table_bytes: u64,
    runs: Vec<SpilledRun>,
    kept: AtomicBool,
}

struct SpilledRun {
    tier: u32,
    tables: Arc<[Table]>,
    blobs: Vec<BlobRef>,
}

impl SpilledRun {
    fn bytes(&self) -> u64 {
        self.tables.iter().map(|table| u64::from(table.info.pages) * PAGE_BYTES as u64).sum()
    }

    fn first_key(&self) -> &[u8] {
        &self.tables.first().expect("a run is never empty").info.first_key
    }

    fn last_key(&self) -> &[u8] {
        &self.tables.last().expect("a run is never empty").info.last_key
    }
}

/// A run being written. If it is dropped before its end, its files are removed.
pub(crate) struct SpillBuilder {
    origin: Origin,
    log: Arc<dyn Log>,
    table_bytes: u64,
    open: Option<TableBuilder<BlobSink>>,
    /// Its files may be synced together with the record that names them.
    synced_later: bool,
    /// Bytes of the finished tables.
    written_bytes: u64,
    tables: Vec<Table>,
    blobs: Vec<BlobRef>,
}

impl SpillBuilder {
    fn into_run(mut self, tier: u32) -> SpilledRun {
        SpilledRun { tier, tables: std::mem::take(&mut self.tables).into(), blobs: std::mem::take(&mut self.blobs) }
    }
}

impl Drop for SpillBuilder {
    fn drop(&mut self) {
        self.tables.clear();
        discard(&*self.log, self.origin, &self.blobs);
    }
}

/// Removes blob files that no record names. `origin`: where they were written; a forked child leaves them alone.
fn discard(log: &dyn Log, origin: Origin, blobs: &[BlobRef]) {
    if origin.is_foreign() {
        return;
    }
    for blob in blobs {
        // A file that cannot be removed now is swept at the next open.
        let _ = log.discard_blob(blob.id);
    }
}

impl Spill {
    /// No runs yet.
    pub(crate) fn new(budget: &Budget, log: &Arc<dyn Log>, table_bytes: u64) -> Self {
        Self {
            origin: Origin::here(),
            budget: budget.clone(),
            log: Arc::clone(log),
            table_bytes,
            runs: Vec::new(),
            kept: AtomicBool::new(false),
        }
    }

    /// Whether nothing was spilled.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The number of runs.
    #[cfg(test)]
    pub(crate) fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Bytes of all runs.
    pub(crate) fn bytes(&self) -> u64 {
        self.runs.iter().map(SpilledRun::bytes).sum()
    }

    /// Starts a run that is newer than all others.
    pub(crate) fn begin(&self) -> SpillBuilder {
        self.begin_with(self.table_bytes)
    }

    /// Starts a run of a set that stays in memory, too, and is about to be committed. It is short: through the page cache it is written
    /// sooner than past it.
    pub(crate) fn begin_beside_memory(&self) -> SpillBuilder {
        let mut builder = self.begin();
        builder.synced_later = true;
        builder
    }

    fn begin_with(&self, table_bytes: u64) -> SpillBuilder {
        let log = Arc::clone(&self.log);
        let (tables, blobs) = (Vec::new(), Vec::new());
        SpillBuilder {
            origin: self.origin,
            log,
            table_bytes,
            open: None,
            synced_later: false,
            written_bytes: 0,
            tables,
            blobs,
        }
    }

    /// Adds a write: keys ascend, each once.
    pub(crate) fn add(&self, builder: &mut SpillBuilder, key: &[u8], stored: Stored<'_>) -> Result<()> {
        let table_bytes = builder.table_bytes.max(builder.written_bytes / GROWTH_PART);
        if builder.open.as_ref().is_some_and(|open| open.bytes() >= table_bytes) {
            self.finish_table(builder)?;
        }
        if builder.open.is_none() {
            let blob = if builder.synced_later { self.log.create_blob_for_record() } else { self.log.create_blob() };
            let sink = BlobSink::new(blob.lift()?);
            builder.open = Some(TableBuilder::new(sink, &self.budget, true)?);
        }
        let open = builder.open.as_mut().expect("made above");
        open.add(&Version { key, glsn: Glsn::NONE, stored })
    }

    fn finish_table(&self, builder: &mut SpillBuilder) -> Result<()> {
        let Some(open) = builder.open.take() else { return Ok(()) };
        builder.written_bytes += open.bytes();
        let (sink, info) = open.finish()?;
        let blob = sink.finish()?;
        builder.blobs.push(blob);
        builder.tables.push(self.open(info, blob.id)?);
        Ok(())
    }

    fn open(&self, info: TableInfo, blob: BlobId) -> Result<Table> {
        let blob = self.log.open_blob(blob).lift()?;
        Ok(Table { info: Arc::new(info), file: blob.file })
    }

    /// Ends the run.
    pub(crate) fn end(&mut self, mut builder: SpillBuilder) -> Result<()> {
        self.finish_table(&mut builder)?;
        let run = builder.into_run(0);
        if !run.tables.is_empty() {
            self.runs.insert(0, run);
        }
        Ok(())
    }

    /// Merges tiers that are full.
    pub(crate) fn merge_full_tiers(&mut self) -> Result<()> {
        while let Some(tier) = self.full_tier() {
            let start = self.runs.iter().position(|run| run.tier == tier).expect("the tier is full");
            self.merge(start..start + FAN_IN, tier + 1)?;
        }
        Ok(())
    }

    /// Merges all runs into one, at most `fan_in` at a time; runs whose keys do not overlap are only concatenated.
    pub(crate) fn merge_all(&mut self, fan_in: usize) -> Result<()> {
        while self.runs.len() > 1 {
            if self.blobs().count() <= BLOBS_MAX && disjoint(&self.runs) {
                hit(Border::SpillsStrung);
                let strung = string_together(std::mem::take(&mut self.runs), 0);
                self.runs.push(strung);
                return Ok(());
            }
            let range = self.next_to_merge(fan_in);
            let tier = self.runs[range.start].tier;
            self.replace_by_merged(range, tier)?;
        }
        Ok(())
    }

    /// The runs to be merged next so that in the end one merge of `fan_in` runs is left and as little as possible is written before it.
    fn next_to_merge(&self, fan_in: usize) -> Range<usize> {
        let runs = self.runs.len();
        let count = if runs <= fan_in { runs } else { fan_in.min(runs - fan_in + 1) };
        let bytes = |start: &usize| self.runs[*start..start + count].iter().map(SpilledRun::bytes).sum::<u64>();
        let start = (0..=runs - count).min_by_key(bytes).expect("there are runs");
        start..start + count
    }

    /// Merges the newest runs until a record can name all blob files.
    pub(crate) fn fit_into_record(&mut self) -> Result<()> {
        while self.blobs().count() > BLOBS_MAX {
            let newest = self.runs.len().min(FAN_IN);
            let tier = self.runs[newest - 1].tier;
            self.replace_by_merged(0..newest, tier)?;
        }
        Ok(())
    }

    fn merge(&mut self, range: Range<usize>, tier: u32) -> Result<()> {
        let inputs = &self.runs[range.clone()];
        let blobs = inputs.iter().map(|run| run.blobs.len()).sum::<usize>();
        if blobs > STRUNG_BLOBS_MAX || !disjoint(inputs) {
            return self.replace_by_merged(range, tier);
        }
        hit(Border::SpillsStrung);
        let start = range.start;
        let strung = string_together(self.runs.drain(range).collect(), tier);
        self.runs.insert(start, strung);
        Ok(())
    }

    /// The first tier with enough runs; runs of one tier are adjacent, newer tiers in front.
    fn full_tier(&self) -> Option<u32> {
        let mut tiers: Vec<u32> = self.runs.iter().map(|run| run.tier).collect();
        tiers.dedup();
        tiers.into_iter().find(|&tier| self.runs.iter().filter(|run| run.tier == tier).count() >= FAN_IN)
    }

    /// Replaces some runs by one with the newest write of each key, and removes their files. On failure nothing changes.
    fn replace_by_merged(&mut self, range: Range<usize>, tier: u32) -> Result<()> {
        hit(Border::SpillsMerged);
        let merged = self.write_run(&self.runs[range.clone()], tier)?;
        let merged: Vec<_> = self.runs.splice(range, [merged]).collect();
        merged.into_iter().for_each(|run| self.discard(run));
        Ok(())
    }

    fn write_run(&self, inputs: &[SpilledRun], tier: u32) -> Result<SpilledRun> {
        let bytes: u64 = inputs.iter().map(SpilledRun::bytes).sum();
        let runs = inputs.iter().map(|run| Arc::clone(&run.tables)).collect();
        let mut merged = MergedRuns::new(runs, &Feed::Private(self.budget.clone()))?;
        let mut builder = self.begin_with(self.table_bytes.max(bytes / PARTITION_PART));
        while let Some(version) = merged.next()? {
            self.add(&mut builder, version.key, version.stored)?;
        }
        self.finish_table(&mut builder)?;
        Ok(builder.into_run(tier))
    }

    fn discard(&self, run: SpilledRun) {
        drop(run.tables);
        discard(&*self.log, self.origin, &run.blobs);
    }

    /// The newest spilled write of a key.
    pub(crate) fn lookup(&self, key: &[u8]) -> Result<Option<Found>> {
        for run in &self.runs {
            let at = run.tables.partition_point(|table| table.info.last_key[..] < *key);
            let Some(table) = run.tables.get(at).filter(|table| table.info.first_key[..] <= *key) else {
                continue;
            };
            if let Some(found) = table.lookup(key, Glsn::MAX, Touch::Point)?.found {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// A cursor over each run, newest first.
    pub(crate) fn cursors(&self) -> Vec<RunCursor> {
        self.runs.iter().map(|run| RunCursor::new(Arc::clone(&run.tables), Feed::Pool(Touch::Point))).collect()
    }

    /// The blob files of the runs.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = &BlobRef> {
        self.runs.iter().flat_map(|run| &run.blobs)
    }

    /// The runs' blob files, newest run first, as the commit's payload lists them.
    pub(crate) fn layout(&self) -> Vec<Vec<BlobId>> {
        self.runs.iter().map(|run| run.blobs.iter().map(|blob| blob.id).collect()).collect()
    }

    /// The runs as the index adopts them.
    pub(crate) fn infos(&self, glsn: Glsn) -> Vec<Vec<TableInfo>> {
        self.runs.iter().map(|run| run.tables.iter().map(|p| adopted(&p.info, glsn)).collect()).collect()
    }

    /// Marks the blob files as owned by the log.
    pub(crate) fn keep(&self) {
        // Relaxed: one thread commits.
        self.kept.store(true, Ordering::Relaxed);
    }
}

/// The metadata of a table once its transaction has a GLSN.
pub(crate) fn adopted(info: &TableInfo, glsn: Glsn) -> TableInfo {
    debug_assert!(matches!(info.id, TableId::Blob(_)));
    TableInfo { min_glsn: glsn, max_glsn: glsn, fixed_glsn: Some(glsn), ..info.clone() }
}

/// A walk over several runs, newest first, in key order: each key once, with its newest write.
pub(crate) struct MergedRuns {
    merge: Merge,
    /// The key of the last write returned.
    key: Option<Vec<u8>>,
}

impl MergedRuns {
    fn new(runs: Vec<Arc<[Table]>>, feed: &Feed) -> Result<Self> {
        let cursor = |tables| Cursor::Run(Box::new(RunCursor::new(tables, feed.clone())));
        let mut merge = Merge::new(runs.into_iter().map(cursor).collect(), Direction::Forward);
        merge.seek_end()?;
        Ok(Self { merge, key: None })
    }

    /// Moves to the first write at or after `key`.
    pub(crate) fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.key = None;
        self.merge.seek(key, Glsn::MAX)
    }

    /// The write of the next key, borrowed until the next call.
    pub(crate) fn next(&mut self) -> Result<Option<Version<'_>>> {
        if let Some(key) = &self.key {
            while self.merge.top_key().is_some_and(|top| top == key) {
                self.merge.advance()?;
            }
        }
        let Some(version) = self.merge.top() else { return Ok(None) };
        let key = self.key.get_or_insert_default();
        key.clear();
        key.extend_from_slice(version.key);
        Ok(Some(version))
    }
}

/// A walk over the writes of a commit that are stored in blob files: `runs` as its payload names them.
pub(crate) fn side_runs(log: &Arc<dyn Log>, budget: &Budget, runs: &[Vec<BlobId>], glsn: Glsn) -> Result<MergedRuns> {
    let runs = runs.iter().map(|blobs| blobs.iter().map(|&blob| open_table(log, budget, blob, glsn)).collect());
    MergedRuns::new(runs.collect::<Result<_>>()?, &Feed::Pool(Touch::Scan))
}

/// Opens a table that a committed transaction wrote, from the metadata in its file.
pub(crate) fn open_table(log: &Arc<dyn Log>, budget: &Budget, blob: BlobId, glsn: Glsn) -> Result<Table> {
    let file = log.open_blob(blob).lift()?;
    let info = read_info(&**file.file.source(), file.pages, TableId::Blob(blob), budget)?;
    Ok(Table { info: Arc::new(adopted(&info, glsn)), file: file.file })
}

fn disjoint(runs: &[SpilledRun]) -> bool {
    let mut spans: Vec<_> = runs.iter().map(|run| (run.first_key(), run.last_key())).collect();
    spans.sort_unstable();
    spans.windows(2).all(|pair| pair[0].1 < pair[1].0)
}

fn string_together(mut runs: Vec<SpilledRun>, tier: u32) -> SpilledRun {
    runs.sort_by(|a, b| a.first_key().cmp(b.first_key()));
    SpilledRun {
        tier,
        tables: runs.iter().flat_map(|run| run.tables.iter().cloned()).collect(),
        blobs: runs.iter().flat_map(|run| run.blobs.iter().copied()).collect(),
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        if !self.kept.load(Ordering::Relaxed) {
            for run in std::mem::take(&mut self.runs) {
                self.discard(run);
            }
        }
    }
}
