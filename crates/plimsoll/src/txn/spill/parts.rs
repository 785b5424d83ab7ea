//! Merges runs in parts: ranges of keys of about equal size, each written by a separate thread.
//!
//! Invariant: the parts, in key order, are equal to the output of a single merge.

use std::iter::once;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_disk::thread::spawn;

use crate::index::run::cursor::Feed;
use crate::index::run::table::Table;
use crate::txn::spill::merged_runs::MergedRuns;
use crate::txn::spill::run_builder::{Site, SpillBuilder, SpilledRun};
use crate::types::cancel::Cancel;
use crate::types::error::Result;

/// Number of sampled keys of a table, per part.
const SAMPLES: usize = 2;

/// A merge that is done in parts.
pub(super) struct PartedMerge {
    site: Site,
    /// The inputs, newest first.
    inputs: Vec<Arc<[Table]>>,
    table_bytes: u64,
    tier: u32,
    cancel: Cancel,
    /// Set when a part has failed, so that the others stop.
    failed: AtomicBool,
}

/// The first key (`None`: from the beginning), and the exclusive end.
type Part = (Option<Vec<u8>>, Option<Vec<u8>>);

impl PartedMerge {
    /// A merge of `inputs`, newest first, into tables of `table_bytes`.
    pub(super) fn new(site: Site, inputs: Vec<Arc<[Table]>>, table_bytes: u64, tier: u32) -> Self {
        Self {
            site,
            inputs,
            table_bytes,
            tier,
            cancel: Cancel::default(),
            failed: AtomicBool::new(false),
        }
    }

    /// The same merge, which fails once `cancel` is set.
    pub(super) fn cancelled_by(self, cancel: Cancel) -> Self {
        Self { cancel, ..self }
    }

    /// Merges in at most `count` parallel parts. Returns the written data, in key order. A failure
    /// leaves nothing.
    pub(super) fn write(self, count: usize) -> Result<Vec<SpilledRun>> {
        let parts = self.parts(count)?;
        let merge = Arc::new(self);
        let start = |part: &Part| {
            let (merge, part) = (Arc::clone(&merge), part.clone());
            spawn("plimsoll-merge", move || merge.write_part(&part))
        };
        let threads: Vec<_> = parts[1..].iter().map(start).collect();
        let first = catch_unwind(AssertUnwindSafe(|| merge.write_part(&parts[0])));
        // All parts end before this call does, even if one fails.
        let others = threads.into_iter().zip(&parts[1..]).map(|(thread, part)| match thread {
            Ok(thread) => thread.join(),
            // The system provides no thread.
            Err(_) => catch_unwind(AssertUnwindSafe(|| merge.write_part(part))),
        });
        let written: Vec<_> = once(first).chain(others).collect();
        let (mut runs, mut failure) = (Vec::new(), None);
        for part in written {
            match part {
                Ok(Ok(run)) => runs.extend(run),
                Ok(Err(error)) => failure = Some(Ok(error)),
                Err(panic) => failure = Some(Err(panic)),
            }
        }
        let Some(failure) = failure else { return Ok(runs) };
        runs.into_iter().for_each(|run| run.discard(&merge.site));
        Err(failure.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    fn parts(&self, count: usize) -> Result<Vec<Part>> {
        let mut samples = Vec::new();
        if count > 1 {
            for table in self.inputs.iter().flat_map(|run| run.iter()) {
                let keys = table.sample_keys(SAMPLES * count)?;
                let bytes = table.info.bytes() / keys.len() as u64;
                samples.extend(keys.into_iter().map(|key| (key, bytes)));
            }
        }
        let borders = borders(samples, count);
        let starts = once(None).chain(borders.iter().cloned().map(Some));
        let ends = borders.iter().cloned().map(Some).chain(once(None));
        Ok(starts.zip(ends).collect())
    }

    fn write_part(&self, part: &Part) -> Result<Option<SpilledRun>> {
        let written = self.try_part(part);
        if written.is_err() {
            // Relaxed: the flag only saves work.
            self.failed.store(true, Ordering::Relaxed);
        }
        written
    }

    fn try_part(&self, (from, to): &Part) -> Result<Option<SpilledRun>> {
        let feed = Feed::Private(self.site.budget.clone());
        let mut merged = MergedRuns::new(self.inputs.clone(), &feed, from.as_deref())?;
        let mut builder = SpillBuilder::new(self.site.clone(), self.table_bytes, false);
        while let Some(version) = merged.next()? {
            if to.as_deref().is_some_and(|to| version.key >= to) {
                break;
            }
            if self.failed.load(Ordering::Relaxed) {
                return Ok(None);
            }
            self.cancel.check()?;
            builder.add(version.key, version.stored)?;
        }
        builder.finish(self.tier)
    }
}

/// Keys that divide the samples, each with its weight, into `count` parts of about equal weight;
/// fewer if single keys are heavy.
fn borders(mut samples: Vec<(Vec<u8>, u64)>, count: usize) -> Vec<Vec<u8>> {
    samples.sort_unstable();
    let total: u64 = samples.iter().map(|(_, weight)| weight).sum();
    let mut borders: Vec<Vec<u8>> = Vec::new();
    let mut before = 0;
    for (key, weight) in samples {
        let due = total * (borders.len() as u64 + 1) / count as u64;
        if before > 0 && before >= due && borders.len() + 1 < count && borders.last() != Some(&key)
        {
            borders.push(key);
        }
        before += weight;
    }
    borders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_divide_by_weight_and_never_exceed_the_keys() {
        let samples = |weights: &[(u8, u64)]| {
            weights.iter().map(|&(key, weight)| (vec![key], weight)).collect()
        };
        let even: Vec<_> = (0..100).map(|key| (key, 7)).collect();
        assert_eq!(borders(samples(&even), 4), [[25], [50], [75]]);
        assert_eq!(borders(samples(&even), 1), Vec::<Vec<u8>>::new());
        assert_eq!(borders(Vec::new(), 2), Vec::<Vec<u8>>::new());
        assert_eq!(borders(samples(&[(9, 1), (3, 5), (1, 1), (5, 5)]), 2), [[5]]);
        assert_eq!(borders(samples(&[(1, 10), (1, 10), (2, 1)]), 4), [[1], [2]]);
    }
}
