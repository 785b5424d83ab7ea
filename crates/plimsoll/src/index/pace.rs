//! Slows writers down while flushes or merges lag behind.
//!
//! Invariants:
//! 1. Writers are slowed down slightly for a long time rather than stopped: in proportion to how
//!    far merges, or the flush, lag behind.
//! 2. Writers stop when a scan over all runs would have to pin too many pages at once, until merges
//!    have caught up.
//! 3. No writer waits here under the commit lock, so a small commit can pass a large one that
//!    waits. Concurrent waits are queued, so that all writers together keep the pace.
//! 4. A commit is delayed only after it is ordered, so the delay does not fall between its reads
//!    and their validation.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::index::compaction::Compaction;
use crate::index::env::stalls::Cause;
use crate::index::env::{Env, Progress};
use crate::index::memtables::Memtables;
use crate::index::plan::debt::{Debt, WAIT_MIN_NANOS};
use crate::index::plan::policy::Priority;
use crate::index::runs::Runs;
use crate::index::sources::view::Content;
use crate::types::error::Result;
use crate::types::lock::lock;

/// If a key may lie in more runs than this, writers are slowed down.
const DEPTH_SOFT: usize = 12;

/// If there are more runs than this in total, overlapping or not, writers are slowed down as well:
/// each run costs little in a search, but takes space in the manifest and part in every scan.
const RUNS_SOFT: usize = 48;

/// If a key may lie in this many runs, writers wait: a scan pins a page of each, and the smallest
/// budget has room for about a hundred.
const DEPTH_HARD: usize = 64;

/// The delay per byte is this many nanoseconds, times the square of the number of runs above a soft
/// limit.
const NANOS_PER_BYTE: u64 = 4;

/// The longest delay of one call: this for the call itself, and as much again for each
/// [`WAIT_MAX_BYTES`].
const WAIT_MAX_NANOS: u64 = 100_000_000;

/// See [`WAIT_MAX_NANOS`].
const WAIT_MAX_BYTES: u64 = 256 << 10;

/// The longest delay of a call of any size. Transactions of any size have merged their own runs to
/// a few before they get here.
const WAIT_LONGEST_NANOS: u64 = 10_000_000_000;

/// The interval at which a stopped writer checks whether merges have caught up.
const POLL_NANOS: u64 = 100_000_000;

/// Maximum number of compaction steps that a writer runs itself if there are too many runs and no
/// background threads.
const STEPS_INLINE: usize = 32;

/// Delays writers.
#[derive(Debug)]
pub(crate) struct Throttle {
    env: Arc<Env>,
    memtables: Arc<Memtables>,
    runs: Arc<Runs>,
    compaction: Arc<Compaction>,
    /// The debt of the writers. A leaf lock: no other lock is taken under it.
    debt: Mutex<Debt>,
}

impl Throttle {
    pub(crate) fn new(
        runs: &Arc<Runs>,
        memtables: &Arc<Memtables>,
        compaction: &Arc<Compaction>,
    ) -> Self {
        Self {
            env: Arc::clone(&runs.env),
            memtables: Arc::clone(memtables),
            runs: Arc::clone(runs),
            compaction: Arc::clone(compaction),
            debt: Mutex::default(),
        }
    }

    /// Blocks the writer while there are too many runs; without background threads, runs merges
    /// instead. Not called under the commit lock, so other commits proceed.
    ///
    /// # Errors
    /// A merge on this thread failed (without threads only).
    pub(crate) fn wait_for_merges(&self) -> Result<()> {
        if !self.env.role().may_write() || self.env.signals.is_closing() {
            return Ok(());
        }
        if !self.env.context.background {
            return self.compact_inline();
        }
        if self.must_stop_writers() {
            self.note_stall(Cause::Depth, || {
                while self.must_stop_writers() && !self.env.signals.is_closing() {
                    self.env.signals.wait_for_progress(Duration::from_nanos(POLL_NANOS));
                }
            });
        }
        Ok(())
    }

    /// Delays a writer of `bytes` while flushes or merges lag behind. Not called under the commit
    /// lock.
    pub(crate) fn delay(&self, bytes: u64) {
        if !self.env.role().may_write() || !self.env.context.background {
            return;
        }
        let pace = self.pace();
        let delay = {
            let mut debt = lock(&self.debt);
            debt.add(bytes.saturating_mul(pace.nanos_per_byte()));
            if debt.is_small() {
                return;
            }
            debt.take(self.env.context.clock.monotonic_nanos(), longest_wait_nanos(bytes))
        };
        if delay > 0 {
            self.note_stall(pace.cause(), || self.wait_while_behind(delay));
        }
    }

    /// Waits, and records the duration.
    fn note_stall(&self, cause: Cause, wait: impl FnOnce()) {
        let start = self.env.context.clock.monotonic_nanos();
        wait();
        self.env.counters.stalls.note(cause, self.env.context.clock.monotonic_nanos() - start);
    }

    /// Waits for `delay`, not shortened by progress signals, but returns once nothing lags behind.
    fn wait_while_behind(&self, delay: u64) {
        let mut left = delay;
        while left > 0 && !self.env.signals.is_closing() {
            let start = self.env.context.clock.monotonic_nanos();
            let part = left.min(POLL_NANOS);
            let was_progress = self.env.signals.wait_for_progress(Duration::from_nanos(part));
            if self.pace().nanos_per_byte() == 0 {
                lock(&self.debt).clear();
                break;
            }
            // The wait ends even if the clock does not advance.
            let least = if was_progress { WAIT_MIN_NANOS } else { part };
            left =
                left.saturating_sub((self.env.context.clock.monotonic_nanos() - start).max(least));
        }
    }

    /// Whether writers have to stop. Never if merges cannot continue, because waiting would not
    /// help.
    fn must_stop_writers(&self) -> bool {
        self.runs.sources.current_view().depth >= DEPTH_HARD
            && self.env.signals.last_error().is_none()
    }

    fn pace(&self) -> Pace {
        let view = self.runs.sources.current_view();
        let mut pace =
            Pace { for_merges: nanos_for_runs(view.depth, view.runs.len()), for_flush: 0 };
        let unflushed = view.closed.iter().filter_map(|closed| match &closed.content {
            Content::Memtable(memtable) => Some(memtable),
            Content::Adopted(_) => None,
        });
        let unflushed_bytes =
            unflushed.chain([&view.active]).map(|memtable| memtable.map().used_bytes()).sum();
        pace.for_merges +=
            self.runs.space.nanos_per_byte(unflushed_bytes, self.env.context.budget.limit_bytes());
        if pace.for_merges > 0 && self.env.signals.last_error().is_some() {
            // Merges cannot continue, so waiting would not help.
            pace.for_merges = 0;
        }
        if view.closed.len() >= self.memtables.closed_max() {
            let counters = &self.env.counters;
            let (spent, flushed) = (
                counters.flush_nanos.load(Ordering::Relaxed),
                counters.bytes_flushed.load(Ordering::Relaxed),
            );
            let fill = view.active.map().used_bytes() as f64 / self.memtables.limit_bytes() as f64;
            pace.for_flush = nanos_for_flush(spent, flushed, fill);
        }
        pace
    }

    fn compact_inline(&self) -> Result<()> {
        for _ in 0..STEPS_INLINE {
            let view = self.runs.sources.current_view();
            if runs_above(view.depth, view.runs.len()) == 0
                || self.compaction.step_for(Priority::Due)? == Progress::Idle
            {
                break;
            }
        }
        Ok(())
    }
}

/// The current delay per byte for a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    for_merges: u64,
    for_flush: u64,
}

impl Pace {
    fn nanos_per_byte(self) -> u64 {
        self.for_merges + self.for_flush
    }

    /// The cause of the longer delay.
    fn cause(self) -> Cause {
        if self.for_flush > self.for_merges { Cause::FlushPace } else { Cause::MergePace }
    }
}

/// The delay per byte with this many runs, of which `depth` may hold one key.
fn nanos_for_runs(depth: usize, runs: usize) -> u64 {
    let above = runs_above(depth, runs);
    NANOS_PER_BYTE * above * above
}

/// The longest delay of one call for `bytes`, regardless of the debt.
fn longest_wait_nanos(bytes: u64) -> u64 {
    WAIT_MAX_NANOS.saturating_mul(1 + bytes / WAIT_MAX_BYTES).min(WAIT_LONGEST_NANOS)
}

/// Runs above the soft limits.
fn runs_above(depth: usize, runs: usize) -> u64 {
    depth.saturating_sub(DEPTH_SOFT).max(runs.saturating_sub(RUNS_SOFT)) as u64
}

/// The delay per byte while a flush lags behind and the active memtable is filled to `fill`. From
/// one half on it approaches the flush's own time per byte.
fn nanos_for_flush(spent_nanos: u64, flushed_bytes: u64, fill: f64) -> u64 {
    if flushed_bytes == 0 {
        return 0;
    }
    let share = (2.0 * fill - 1.0).clamp(0.0, 1.0);
    (spent_nanos as f64 / flushed_bytes as f64 * share) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_grows_with_the_lag_of_compaction() {
        assert_eq!(nanos_for_runs(0, 0), 0);
        assert_eq!(nanos_for_runs(DEPTH_SOFT, DEPTH_SOFT), 0);
        assert!((1..=NANOS_PER_BYTE).contains(&nanos_for_runs(DEPTH_SOFT + 1, DEPTH_SOFT + 1)));
        // 16 runs above the limit: one megabyte a second.
        assert!((900..1200).contains(&nanos_for_runs(DEPTH_SOFT + 16, DEPTH_SOFT + 16)));
    }

    #[test]
    fn a_wait_is_attributed_to_the_larger_delay() {
        let pace = |for_merges, for_flush| Pace { for_merges, for_flush };
        assert_eq!((pace(1, 2).cause(), pace(3, 2).cause()), (Cause::FlushPace, Cause::MergePace));
        assert_eq!(pace(3, 2).nanos_per_byte(), 5);
    }

    #[test]
    fn disjoint_runs_cause_no_delay_until_there_are_very_many() {
        assert_eq!(nanos_for_runs(1, RUNS_SOFT), 0);
        assert!(nanos_for_runs(1, RUNS_SOFT + 1) > 0);
    }

    #[test]
    fn the_delay_of_a_transaction_of_any_size_is_bounded() {
        assert_eq!(longest_wait_nanos(0), WAIT_MAX_NANOS);
        assert_eq!(longest_wait_nanos(WAIT_MAX_BYTES), 2 * WAIT_MAX_NANOS);
        // 100,000 pairs of 16 B wait for their whole debt, up to 0.7 s, so that such commits cannot
        // outrun the merges.
        assert_eq!(longest_wait_nanos(1_600_000), 7 * WAIT_MAX_NANOS);
        for bytes in [64 << 20, 1 << 30, u64::MAX] {
            assert_eq!(longest_wait_nanos(bytes), WAIT_LONGEST_NANOS);
        }
    }

    #[test]
    fn writers_approach_the_pace_of_the_flush_as_the_memtable_fills() {
        assert_eq!(nanos_for_flush(0, 0, 0.9), 0);
        assert_eq!(nanos_for_flush(1000, 100, 0.4), 0);
        assert_eq!(nanos_for_flush(1000, 100, 0.75), 5);
        assert_eq!(nanos_for_flush(1000, 100, 3.0), 10);
    }
}
