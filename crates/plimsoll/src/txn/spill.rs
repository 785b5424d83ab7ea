//! The runs (blob files) into which a transaction's writes were spilled.
//!
//! The runs are kept newest first, in tiers: eight runs of one tier are merged into one of the
//! next, or only concatenated if their keys do not overlap (sorted input). A bulk load merges all
//! of its runs at its end, in parts ([`parts`]). On commit the index adopts the runs without a
//! rewrite; when the transaction is dropped, they are removed.
//!
//! A record names a limited number of blob files. Runs that were concatenated too often are
//! therefore merged after all, and very large runs have larger tables, so that their number stays
//! bounded regardless of the transaction's size.

pub(crate) mod merged_runs;
mod parts;
pub(crate) mod run_builder;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_disk::fork::Origin;
use plimsoll_log::blob::{BlobId, BlobRef};
use plimsoll_log::draft::MAX_BLOBS;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Budget;
use plimsoll_memory::pool::Touch;

use crate::borders::{Border, hit};
use crate::index::run::cursor::{Feed, RunCursor};
use crate::index::run::file::read_info;
use crate::index::run::table::{Found, Table, TableId, TableInfo};
use crate::txn::spill::merged_runs::MergedRuns;
use crate::txn::spill::parts::PartedMerge;
use crate::txn::spill::run_builder::{Site, SpillBuilder, SpilledRun};
use crate::types::cancel::Cancel;
use crate::types::error::{Lift, Result};

/// Runs of one tier that are merged into one of the next.
const FAN_IN: usize = 8;

/// Runs are not concatenated if they would have more blob files than this.
const CONCATENATED_BLOBS_MAX: usize = 32;

/// Divisor: a merge writes tables of at least this part of its input.
const PARTITION_PART: u64 = 16;

/// Maximum number of blob files of all runs; a record names one more, for values.
const BLOBS_MAX: usize = MAX_BLOBS - 1;

/// Less input than this is not worth a separate thread.
const PART_BYTES_MIN: u64 = 4 << 20;

/// The threads and memory for a merge of all runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MergeMeans {
    /// Number of buffers for reading inputs.
    pub(crate) buffers: usize,
    /// Maximum number of parts that are merged in parallel.
    pub(crate) threads: usize,
}

/// Spilled runs.
pub(crate) struct Spill {
    site: Site,
    table_bytes: u64,
    runs: Vec<SpilledRun>,
    /// Cancels merges.
    cancel: Cancel,
    kept: AtomicBool,
}

impl Spill {
    /// No runs yet.
    pub(crate) fn new(budget: &Budget, log: &Arc<FileLog>, table_bytes: u64) -> Self {
        Self {
            site: Site { origin: Origin::here(), budget: budget.clone(), log: Arc::clone(log) },
            table_bytes,
            runs: Vec::new(),
            cancel: Cancel::default(),
            kept: AtomicBool::new(false),
        }
    }

    /// Makes merges fail once `cancel` is set.
    pub(crate) fn cancel_by(&mut self, cancel: Cancel) {
        self.cancel = cancel;
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

    /// Size of all runs.
    pub(crate) fn bytes(&self) -> u64 {
        self.runs.iter().map(SpilledRun::bytes).sum()
    }

    /// Starts a run, which becomes the newest.
    pub(crate) fn begin(&self) -> SpillBuilder {
        SpillBuilder::new(self.site.clone(), self.table_bytes, false)
    }

    /// Starts a run of a set that also stays in memory and is about to be committed. It is short,
    /// so writing it through the page cache is faster.
    pub(crate) fn begin_retained(&self) -> SpillBuilder {
        SpillBuilder::new(self.site.clone(), self.table_bytes, true)
    }

    /// Ends the run.
    pub(crate) fn end(&mut self, builder: SpillBuilder) -> Result<()> {
        if let Some(run) = builder.finish(0)? {
            self.runs.insert(0, run);
        }
        Ok(())
    }

    /// Merges full tiers.
    pub(crate) fn merge_full_tiers(&mut self) -> Result<()> {
        while let Some(tier) = self.full_tier() {
            let start =
                self.runs.iter().position(|run| run.tier == tier).expect("the tier is full");
            self.merge(start..start + FAN_IN, tier + 1)?;
        }
        Ok(())
    }

    /// Merges all runs into one, as many at a time as there are buffers. Runs whose keys do not
    /// overlap are only concatenated.
    pub(crate) fn merge_all(&mut self, means: MergeMeans) -> Result<()> {
        while self.runs.len() > 1 {
            if self.blobs().count() <= BLOBS_MAX && disjoint(&self.runs) {
                hit(Border::SpillsConcatenated);
                let concatenated = concatenate(std::mem::take(&mut self.runs), 0);
                self.runs.push(concatenated);
                return Ok(());
            }
            let range = self.next_to_merge(means.buffers);
            let tier = self.runs[range.start].tier;
            let parts = (means.buffers / range.len()).clamp(1, means.threads);
            self.replace_by_merged(range, tier, parts)?;
        }
        Ok(())
    }

    /// The runs to merge next, such that the last merge has `fan_in` inputs and as little as
    /// possible is written before it.
    fn next_to_merge(&self, fan_in: usize) -> Range<usize> {
        let runs = self.runs.len();
        let count = if runs <= fan_in { runs } else { fan_in.min(runs - fan_in + 1) };
        let bytes = |start: &usize| {
            self.runs[*start..start + count].iter().map(SpilledRun::bytes).sum::<u64>()
        };
        let start = (0..=runs - count).min_by_key(bytes).expect("there are runs");
        start..start + count
    }

    /// Merges the newest runs until a record can name all blob files.
    pub(crate) fn fit_into_record(&mut self) -> Result<()> {
        while self.blobs().count() > BLOBS_MAX {
            let newest = self.runs.len().min(FAN_IN);
            let tier = self.runs[newest - 1].tier;
            self.replace_by_merged(0..newest, tier, 1)?;
        }
        Ok(())
    }

    fn merge(&mut self, range: Range<usize>, tier: u32) -> Result<()> {
        let inputs = &self.runs[range.clone()];
        let blobs = inputs.iter().map(|run| run.blobs.len()).sum::<usize>();
        if blobs > CONCATENATED_BLOBS_MAX || !disjoint(inputs) {
            return self.replace_by_merged(range, tier, 1);
        }
        hit(Border::SpillsConcatenated);
        let start = range.start;
        let concatenated = concatenate(self.runs.drain(range).collect(), tier);
        self.runs.insert(start, concatenated);
        Ok(())
    }

    /// The first tier with enough runs. Runs of one tier are adjacent, newer tiers in front.
    fn full_tier(&self) -> Option<u32> {
        let mut tiers: Vec<u32> = self.runs.iter().map(|run| run.tier).collect();
        tiers.dedup();
        tiers
            .into_iter()
            .find(|&tier| self.runs.iter().filter(|run| run.tier == tier).count() >= FAN_IN)
    }

    /// Replaces runs by one with the newest write of each key, merged in at most `parts` parts, and
    /// removes their files. Changes nothing on failure.
    fn replace_by_merged(&mut self, range: Range<usize>, tier: u32, parts: usize) -> Result<()> {
        hit(Border::SpillsMerged);
        let inputs = &self.runs[range.clone()];
        let bytes: u64 = inputs.iter().map(SpilledRun::bytes).sum();
        let tables = inputs.iter().map(|run| Arc::clone(&run.tables)).collect();
        let table_bytes = self.table_bytes.max(bytes / PARTITION_PART);
        let merge = PartedMerge::new(self.site.clone(), tables, table_bytes, tier)
            .cancelled_by(self.cancel.clone());
        let merged =
            concatenate(merge.write(parts.min((bytes / PART_BYTES_MIN).max(1) as usize))?, tier);
        let merged: Vec<_> = self.runs.splice(range, [merged]).collect();
        merged.into_iter().for_each(|run| run.discard(&self.site));
        Ok(())
    }

    /// The newest spilled write of a key.
    pub(crate) fn lookup(&self, key: &[u8]) -> Result<Option<Found>> {
        for run in &self.runs {
            let at = run.tables.partition_point(|table| table.info.last_key[..] < *key);
            let Some(table) = run.tables.get(at).filter(|table| table.info.first_key[..] <= *key)
            else {
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
        self.runs
            .iter()
            .map(|run| RunCursor::new(Arc::clone(&run.tables), Feed::Pool(Touch::Point)))
            .collect()
    }

    /// The blob files of the runs.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = &BlobRef> {
        self.runs.iter().flat_map(|run| &run.blobs)
    }

    /// The runs' blob files, newest run first, as listed in the commit's payload.
    pub(crate) fn layout(&self) -> Vec<Vec<BlobId>> {
        self.runs.iter().map(|run| run.blobs.iter().map(|blob| blob.id).collect()).collect()
    }

    /// The metadata of the runs' tables.
    pub(crate) fn infos(&self) -> impl Iterator<Item = &TableInfo> {
        self.runs.iter().flat_map(|run| run.tables.iter().map(|table| &*table.info))
    }

    /// The runs in the form in which the index adopts them.
    pub(crate) fn adopted(&self, glsn: Glsn) -> Vec<Vec<Table>> {
        let adopt = |table: &Table| Table {
            info: Arc::new(adopted(&table.info, glsn)),
            file: table.file.clone(),
        };
        self.runs.iter().map(|run| run.tables.iter().map(adopt).collect()).collect()
    }

    /// Records that the log owns the blob files.
    pub(crate) fn keep(&self) {
        // Relaxed: only one thread commits.
        self.kept.store(true, Ordering::Relaxed);
    }
}

/// The metadata of a table after its transaction got a GLSN.
pub(crate) fn adopted(info: &TableInfo, glsn: Glsn) -> TableInfo {
    debug_assert!(matches!(info.id, TableId::Blob(_)));
    TableInfo { min_glsn: glsn, max_glsn: glsn, fixed_glsn: Some(glsn), ..info.clone() }
}

/// An iterator over a commit's writes that are stored in blob files; `runs` as in its payload.
pub(crate) fn side_runs(
    log: &Arc<FileLog>,
    budget: &Budget,
    runs: &[Vec<BlobId>],
    glsn: Glsn,
) -> Result<MergedRuns> {
    let runs = runs
        .iter()
        .map(|blobs| blobs.iter().map(|&blob| open_table(log, budget, blob, glsn)).collect());
    MergedRuns::new(runs.collect::<Result<_>>()?, &Feed::Pool(Touch::Scan), None)
}

/// Opens a table of a committed transaction, using the metadata in its file.
pub(crate) fn open_table(
    log: &Arc<FileLog>,
    budget: &Budget,
    blob: BlobId,
    glsn: Glsn,
) -> Result<Table> {
    let file = log.open_blob(blob).lift()?;
    let info = read_info(&**file.file.source(), file.pages, TableId::Blob(blob), budget)?;
    Ok(Table { info: Arc::new(adopted(&info, glsn)), file: file.file })
}

fn disjoint(runs: &[SpilledRun]) -> bool {
    let mut spans: Vec<_> = runs.iter().map(|run| (run.first_key(), run.last_key())).collect();
    spans.sort_unstable();
    spans.windows(2).all(|pair| pair[0].1 < pair[1].0)
}

fn concatenate(mut runs: Vec<SpilledRun>, tier: u32) -> SpilledRun {
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
                run.discard(&self.site);
            }
        }
    }
}

#[cfg(test)]
mod tests;
