//! The index: a cache of the log that finds versions by key.
//!
//! Commits enter the active *memtable*. A full memtable is flushed as a *run* (a sorted sequence of
//! table files). Compaction merges runs and moves superseded versions into *history* runs, so that
//! a scan of the present does not read old versions. The whole index can be rebuilt from the log.
//!
//! Invariants:
//! 1. Every version in the log up to the manifest's checkpoint is in the runs that the manifest
//!    names. No version in a run is younger than the durable GLSN (the log sequence number).
//! 2. Sources are ordered by age: for one key, every version in a newer source is younger than
//!    every version in an older one. History runs are outside this order.
//! 3. The newest version of a key is never in a history run, unless it is a deletion.
//! 4. A current run has one version of a key. Versions that it superseded in the same flush or
//!    merge are in history, or were dropped.
//!
//! ```text
//! commits -> active memtable -> closed memtables -> (flush) -> current runs <-> (compaction)
//!            large transactions -> adopted runs ----^               |
//!                                    superseded versions,          |
//!                                    moved deletions               v
//!                                                              history runs <-> (compaction)
//! ```

mod background;
pub(crate) mod blob_bytes;
pub(crate) mod compaction;
pub(crate) mod env;
pub(crate) mod gaps;
pub(crate) mod iter;
pub(crate) mod manifest;
pub(crate) mod memtables;
mod pace;
pub(crate) mod plan;
pub(crate) mod ranges;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod shared;
pub(crate) mod sources;
#[cfg(test)]
mod tests;
pub(crate) mod write;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::index::background::Jobs;
use crate::index::compaction::Compaction;
use crate::index::env::{Context, Env, Horizon};
use crate::index::gaps::Gaps;
use crate::index::iter::handle::Iterators;
use crate::index::manifest::Manifest;
use crate::index::memtables::Memtables;
use crate::index::pace::Throttle;
use crate::index::runs::Runs;
use crate::index::shared::follow::Following;
use crate::index::sources::Sources;
use crate::types::error::Result;
use crate::types::stats::IndexStats;

/// The owners of an open index. Each knows only those declared before it; callers name the owner
/// that they need.
#[derive(Debug)]
pub(crate) struct OpenIndex {
    pub(crate) env: Arc<Env>,
    /// The iterators.
    pub(crate) iterators: Arc<Iterators>,
    /// The view of all sources.
    pub(crate) sources: Arc<Sources>,
    /// The gaps of deleted keys that scans share.
    pub(crate) gaps: Arc<Gaps>,
    pub(crate) runs: Arc<Runs>,
    pub(crate) following: Arc<Following>,
    pub(crate) memtables: Arc<Memtables>,
    pub(crate) compaction: Arc<Compaction>,
    pub(crate) throttle: Throttle,
    jobs: Jobs,
}

impl OpenIndex {
    /// Opens the index that the manifest describes. The caller replays the log beyond the
    /// manifest's checkpoint.
    ///
    /// If the index is opened read-only, a writing process may remove files between the caller's
    /// read of the manifest and this call: after an error, the caller reads the manifest again.
    pub(crate) fn open(
        context: Context,
        manifest: Manifest,
        horizon: Arc<dyn Horizon>,
    ) -> Result<Arc<Self>> {
        let has_jobs = context.background && !context.role.is_read_only();
        let env = Arc::new(Env::new(context, horizon));
        let iterators = Iterators::new(&env.context.budget, &env.context.pool)?;
        let runs = Arc::new(Runs::open(&env, &iterators, manifest)?);
        env.context.budget.add_reclaimer(Arc::downgrade(&iterators) as _);
        let following = Arc::new(Following::new(&runs));
        let memtables = Arc::new(Memtables::new(&runs, &following)?);
        let compaction = Arc::new(Compaction::new(&runs)?);
        let throttle = Throttle::new(&runs, &memtables, &compaction);
        let jobs = if has_jobs {
            Jobs::start(&env.context.job_pool, &env, &runs, &memtables, &compaction)?
        } else {
            Jobs::none()
        };
        Ok(Arc::new(Self {
            sources: Arc::clone(&runs.sources),
            gaps: Arc::clone(&runs.sources.view().gaps),
            env,
            iterators,
            runs,
            following,
            memtables,
            compaction,
            throttle,
            jobs,
        }))
    }

    pub(crate) fn stats(&self) -> IndexStats {
        let view = self.sources.view();
        let memtables = || view.memtables();
        let counters = &self.env.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        IndexStats {
            memtable_bytes: memtables().map(|memtable| memtable.map().held_bytes()).sum(),
            memtables: memtables().count() as u64,
            runs: view.runs.iter().map(|run| run.file_bytes()).collect(),
            depth: view.depth as u64,
            history_runs: view.history.iter().map(|run| run.file_bytes()).collect(),
            page_bytes: view.all_runs().map(|run| run.bytes()).sum(),
            deleted_ranges: view.ranges.len() as u64,
            tables: view.all_runs().map(|run| run.tables().len() as u64).sum(),
            versions: view.all_runs().map(|run| run.versions()).sum(),
            bytes_in: count(&counters.bytes_in),
            bytes_flushed: count(&counters.bytes_flushed),
            bytes_compaction_read: count(&counters.bytes_compaction_read),
            bytes_compaction_written: count(&counters.bytes_compaction_written),
            flushes: count(&counters.flushes),
            compactions: count(&counters.compactions),
            stalls: counters.stalls.stats(),
            last_error: self.env.signals.last_error(),
        }
    }

    /// Stops background work and waits for it.
    pub(crate) fn close(&self) {
        self.jobs.stop(&self.env, &self.memtables, &self.compaction);
    }
}

impl Drop for OpenIndex {
    fn drop(&mut self) {
        self.close();
    }
}
