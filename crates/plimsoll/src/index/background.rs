//! The background jobs of the index. A job takes steps while there is work and rests until it is
//! signalled.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use plimsoll_disk::job_pool::{Job, JobPool, JobPriority};
use plimsoll_disk::worker::{Next, Woken};
use plimsoll_log::glsn::Glsn;

use crate::index::compaction::Compaction;
use crate::index::env::signals::IndexJob;
use crate::index::env::{Env, Progress};
use crate::index::memtables::Memtables;
use crate::index::plan::policy::Priority;
use crate::index::runs::Runs;

/// An index that received almost no writes for this long, and has no other work, counts as idle.
/// Its runs are then settled (merged to make reads cheaper).
const SETTLE_AFTER: Duration = Duration::from_millis(300);

/// How often an idle index that holds expiring values is checked for expired ones.
const EXPIRY_CHECK: Duration = Duration::from_secs(5);

/// Divisor: "almost no writes" means less than this part of a memtable within [`SETTLE_AFTER`].
const TRICKLE_PART: u64 = 256;

/// The first and the longest delay between attempts after a failure.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// The jobs; they end when the index is closed.
#[derive(Debug)]
pub(crate) struct Jobs {
    jobs: Vec<Job>,
}

impl Jobs {
    /// No jobs: the owner calls the steps.
    pub(crate) fn none() -> Self {
        Self { jobs: Vec::new() }
    }

    /// Starts one job for flushes and one for compaction.
    pub(crate) fn start(
        job_pool: &Arc<JobPool>,
        env: &Arc<Env>,
        runs: &Arc<Runs>,
        memtables: &Arc<Memtables>,
        compaction: &Arc<Compaction>,
    ) -> io::Result<Self> {
        let flush = start_flushing(job_pool, env, runs, memtables)?;
        let compaction = start_compacting(job_pool, env, memtables, compaction)?;
        Ok(Self { jobs: vec![flush, compaction] })
    }

    /// Stops the jobs and waits for their running steps.
    pub(crate) fn stop(&self, env: &Env, memtables: &Memtables, compaction: &Compaction) {
        env.signals.close();
        for job in &self.jobs {
            job.stop();
        }
        // A writer may still be flushing or merging. Nothing may be written after the folder is
        // released.
        memtables.wait();
        compaction.wait();
    }
}

/// The delay after this many failures in a row.
fn retry_after(failures: u32) -> Duration {
    RETRY_FIRST.saturating_mul(1 << failures.min(16).saturating_sub(1)).min(RETRY_MAX)
}

/// Frees log segments that the changed runs no longer need. Does nothing in a shared store: its
/// members free segments while they hold the append lock, and keep those that other members need.
fn free_log(env: &Env) {
    if env.role().members().is_none() && !env.signals.is_closing() {
        // A flush must not cause the next one.
        env.free_log(false);
    }
}

fn start_flushing(
    job_pool: &Arc<JobPool>,
    env: &Arc<Env>,
    runs: &Arc<Runs>,
    memtables: &Arc<Memtables>,
) -> io::Result<Job> {
    let (memtables, runs) = (Arc::clone(memtables), Arc::clone(runs));
    let (looked, alarmed) = (Arc::clone(env), Arc::clone(env));
    let (mut failures, mut freed_to) = (0, Glsn::NONE);
    let step = move |_| match memtables.flush_step() {
        Ok(progress) => {
            failures = 0;
            // Writers flush as well, so this checks whether anything was flushed since the last
            // step.
            let flushed = runs.flushed();
            if std::mem::replace(&mut freed_to, flushed) != flushed {
                free_log(&looked);
            }
            if progress == Progress::Worked { Next::Again } else { Next::Rung }
        }
        Err(_) => {
            failures += 1;
            Next::Within(retry_after(failures))
        }
    };
    let alarm = move || alarmed.signals.job_panicked(IndexJob::Flush);
    job_pool.start("flush", JobPriority::High, &env.signals.flush, alarm, step)
}

fn start_compacting(
    job_pool: &Arc<JobPool>,
    env: &Arc<Env>,
    memtables: &Arc<Memtables>,
    compaction: &Arc<Compaction>,
) -> io::Result<Job> {
    let (memtables, compaction) = (Arc::clone(memtables), Arc::clone(compaction));
    let (looked, alarmed) = (Arc::clone(env), Arc::clone(env));
    let (mut failures, mut priority, mut before, mut freed_at) = (0, Priority::Due, 0, 0);
    let step = move |woken| {
        let bytes_in = looked.counters.bytes_in.load(Ordering::Relaxed);
        let is_quiet = bytes_in - before < memtables.limit_bytes() / TRICKLE_PART;
        priority = match woken {
            Woken::Again => priority,
            Woken::TimedOut if is_quiet && failures == 0 => Priority::Settle,
            Woken::TimedOut | Woken::Rung => Priority::Due,
        };
        before = bytes_in;
        // Another thread runs a step in the foreground: try again later.
        let Some(step) = compaction.try_step_for(priority) else {
            return Next::Within(SETTLE_AFTER);
        };
        match step {
            Ok(progress) => {
                failures = 0;
                let compactions = looked.counters.compactions.load(Ordering::Relaxed);
                if std::mem::replace(&mut freed_at, compactions) != compactions {
                    free_log(&looked);
                }
                match progress {
                    Progress::Worked => Next::Again,
                    Progress::Idle if priority == Priority::Due => Next::Within(SETTLE_AFTER),
                    // Only the keeper checks. A process that becomes the keeper is signalled.
                    Progress::Idle if looked.role().may_write() && compaction.has_expiries() => {
                        looked.advance_time();
                        Next::Within(EXPIRY_CHECK)
                    }
                    Progress::Idle => Next::Rung,
                }
            }
            Err(_) => {
                failures += 1;
                Next::Within(retry_after(failures))
            }
        }
    };
    let alarm = move || alarmed.signals.job_panicked(IndexJob::Compaction);
    job_pool.start("compact", JobPriority::Low, &env.signals.compaction, alarm, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_between_failures_grow_up_to_a_bound() {
        assert_eq!(retry_after(1), RETRY_FIRST);
        assert_eq!(retry_after(3), 4 * RETRY_FIRST);
        assert_eq!(retry_after(1000), RETRY_MAX);
    }
}
