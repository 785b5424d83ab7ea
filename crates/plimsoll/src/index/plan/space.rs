//! How much disk space the index takes beyond its live data: superseded versions in runs, and log
//! segments that memtables retain.
//!
//! While rows are overwritten, memtables and log segments are kept small compared with the runs,
//! and writers are slowed down towards the rate at which merges free superseded bytes. The slowdown
//! applies only if the runs fit in memory, where merges do not read from disk.
//!
//! Invariant: without overwrites, no writer is slowed down, and memtables are as large as the
//! budget allows once the runs are three times as large as such a memtable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::index::sources::source::Run;

/// Divisor: a segment is at most this part of the runs, or [`SEGMENT_LEAST`] if that is more.
const SEGMENT_PART: u64 = 8;
const SEGMENT_LEAST: u64 = 16 << 20;

/// Divisor: rows count as overwritten if this part of a flush supersedes versions in older runs.
const OVER_PART: u64 = 4;

/// Percentage of the live bytes that may be superseded before the runs are merged: if the runs fit
/// in memory, and if they do not. For uniform overwrites with memtables of 1/16 of the runs, each
/// byte is rewritten 3.2 times if the runs fit in memory, and 1.7 times if they do not; without
/// this rule, 1.5 times.
const SUPERSEDED_MAX: (u64, u64) = (33, 100);

/// Divisor: the runs fit in memory if they take at most this part of the budget.
const FITS_PART: u64 = 2;

/// Percentages of the live bytes. Writers are slowed down once superseded bytes and memtables
/// together reach [`SLOW_FROM`]. From [`SLOW_TO`] on, they write at the rate at which merges free
/// bytes. [`SLOW_FROM`] is below [`SUPERSEDED_MAX`], so the slowdown begins shortly before a merge
/// is due.
const SLOW_FROM: u64 = 25;
const SLOW_TO: u64 = 60;

/// Assumed time to free a byte before a merge was measured, in 1/1024 nanoseconds.
const FREE_COST_FIRST: u64 = 3 * 1024;

/// The disk space of the index.
#[derive(Debug, Default)]
pub(crate) struct Space {
    run_bytes: AtomicU64,
    superseded_bytes: AtomicU64,
    has_been_overwritten: AtomicBool,
    /// The time in which merges free a byte, in 1/1024 nanoseconds: a moving average, 0 before the
    /// first measurement.
    free_cost: AtomicU64,
}

impl Space {
    /// Records the current runs.
    pub(crate) fn note_runs(&self, runs: &[Arc<Run>]) {
        // Relaxed, here and below: each value stands alone and only affects speed.
        self.run_bytes.store(runs.iter().map(|run| run.bytes()).sum(), Ordering::Relaxed);
        let superseded = runs.iter().rev().skip(1).map(|run| run.superseding_bytes()).sum();
        self.superseded_bytes.store(superseded, Ordering::Relaxed);
    }

    /// Records that a memtable of `bytes` was written as a run that supersedes `superseding_bytes`.
    pub(crate) fn note_flush(&self, bytes: u64, superseding_bytes: u64) {
        self.has_been_overwritten.store(superseding_bytes > bytes / OVER_PART, Ordering::Relaxed);
    }

    /// Records that a merge has freed this many bytes in this time.
    pub(crate) fn note_freed(&self, bytes: u64, nanos: u64) {
        if let Some(cost) = nanos.saturating_mul(1024).checked_div(bytes) {
            let before = self.free_cost.load(Ordering::Relaxed);
            // Bound the sample: a part of a merge that frees next to nothing must not outweigh all
            // others.
            let mean = if before == 0 {
                cost
            } else {
                before - before / 4 + cost.min(before.saturating_mul(8)) / 4
            };
            self.free_cost.store(mean.max(1), Ordering::Relaxed);
        }
    }

    /// Whether the last flush superseded much of the older runs.
    pub(crate) fn has_been_overwritten(&self) -> bool {
        self.has_been_overwritten.load(Ordering::Relaxed)
    }

    /// Bytes of the current runs.
    pub(crate) fn run_bytes(&self) -> u64 {
        self.run_bytes.load(Ordering::Relaxed)
    }

    /// The size of a segment that is small compared with the runs.
    pub(crate) fn segment_bytes(&self) -> u64 {
        (self.run_bytes() / SEGMENT_PART).max(SEGMENT_LEAST)
    }

    /// Percentage of the live bytes that may be superseded, with a budget of `limit_bytes`.
    pub(crate) fn superseded_max(&self, limit_bytes: u64) -> u64 {
        let (in_memory, beyond) = SUPERSEDED_MAX;
        if self.fits(limit_bytes) { in_memory } else { beyond }
    }

    fn fits(&self, limit_bytes: u64) -> bool {
        self.run_bytes() <= limit_bytes / FITS_PART
    }

    /// The delay of a writer per byte, with `unflushed_bytes` in memtables and a budget of
    /// `limit_bytes`.
    pub(crate) fn nanos_per_byte(&self, unflushed_bytes: u64, limit_bytes: u64) -> u64 {
        let (run_bytes, superseded) =
            (self.run_bytes(), self.superseded_bytes.load(Ordering::Relaxed));
        if !self.has_been_overwritten() || !self.fits(limit_bytes) {
            return 0;
        }
        let live = run_bytes.saturating_sub(superseded).max(1);
        let share = (superseded + unflushed_bytes) * 100 / live;
        let slow = share.saturating_sub(SLOW_FROM).min(SLOW_TO - SLOW_FROM);
        let cost = match self.free_cost.load(Ordering::Relaxed) {
            0 => FREE_COST_FIRST,
            known => known,
        };
        cost * slow / (SLOW_TO - SLOW_FROM) / 1024
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn space(run_mib: u64, superseded_mib: u64, has_been_overwritten: bool) -> Space {
        Space {
            run_bytes: AtomicU64::new(run_mib * MIB),
            superseded_bytes: AtomicU64::new(superseded_mib * MIB),
            has_been_overwritten: AtomicBool::new(has_been_overwritten),
            free_cost: AtomicU64::new(10 * 1024),
        }
    }

    #[test]
    fn a_segment_is_small_beside_the_runs() {
        assert_eq!(
            (space(1, 0, true).segment_bytes(), space(800, 0, true).segment_bytes()),
            (16 * MIB, 100 * MIB)
        );
    }

    #[test]
    fn less_may_be_superseded_if_the_runs_fit_in_memory() {
        let space = space(100, 0, false);
        assert_eq!((space.superseded_max(200 * MIB), space.superseded_max(199 * MIB)), (33, 100));
    }

    #[test]
    fn a_flush_detects_overwrites() {
        let space = Space::default();
        space.note_flush(100, 26);
        assert!(space.has_been_overwritten());
        space.note_flush(100, 25);
        assert!(!space.has_been_overwritten());
    }

    #[test]
    fn writers_approach_the_rate_at_which_merges_free_superseded_bytes() {
        let cost = |superseded, unflushed| {
            space(100 + superseded, superseded, true).nanos_per_byte(unflushed * MIB, 1 << 30)
        };
        assert_eq!((cost(0, 0), cost(20, 5), cost(50, 30), cost(300, 0)), (0, 0, 10, 10));
        assert!((4..=6).contains(&cost(32, 10)));
        assert_eq!(
            space(200, 100, true).nanos_per_byte(0, 399 * MIB),
            0,
            "the runs do not fit in memory"
        );
        assert_eq!(space(200, 100, false).nanos_per_byte(0, 1 << 30), 0, "no overwrites");
    }

    #[test]
    fn the_cost_to_free_a_byte_is_a_moving_average() {
        let space = Space::default();
        space.note_freed(1000, 8000);
        assert_eq!(space.free_cost.load(Ordering::Relaxed), 8 * 1024);
        space.note_freed(1000, 4000);
        assert_eq!(space.free_cost.load(Ordering::Relaxed), 7 * 1024);
        space.note_freed(0, 4000);
        assert_eq!(space.free_cost.load(Ordering::Relaxed), 7 * 1024);
    }
}
