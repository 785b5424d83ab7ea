//! The scale of the yardstick: full or quick.

use std::time::Duration;

use super::data::KEY_BYTES;
use super::row::Row;
use crate::peer::PeerKind;

/// Data over the memory limit.
const DATA_TO_LIMIT: u64 = 4;

/// Puts per commit while a store is created without being measured.
const BUILD_BATCH: u64 = 50_000;

/// Memory of a tree store while its file is created.
const BUILD_TREE_BYTES: u64 = 1 << 30;

/// A scan is measured in slices of at most this part of the time limit of a load.
const CUT_TO_WALK: u32 = 6;

/// Sizes and times of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// `full` or `quick`.
    pub(crate) mode: &'static str,
    /// The hard limit of a process, page cache included.
    pub(crate) limit_bytes: u64,
    /// The same for the pairs of integers.
    pub(crate) pairs_limit_bytes: u64,
    pub(crate) pairs: u64,
    /// Puts of a commit of a bulk load.
    pub(crate) batch: u64,
    /// Threads that read.
    pub(crate) threads: u64,
    /// Slices of a row, and processes of a cold open.
    pub(crate) slices: usize,
    pub(crate) slice: Duration,
    pub(crate) warm: Duration,
    /// Loads of a row.
    pub(crate) loads: usize,
    /// A load is cut off here; its rate covers the part done.
    pub(crate) cut: Duration,
}

impl Scale {
    /// The published scale.
    pub(crate) fn full(threads: u64) -> Self {
        Self {
            mode: "full",
            limit_bytes: 256 << 20,
            pairs_limit_bytes: 64 << 20,
            pairs: 60_000_000,
            batch: 5000,
            threads,
            slices: 6,
            slice: Duration::from_secs(2),
            warm: Duration::from_secs(4),
            loads: 1,
            cut: Duration::from_secs(60),
        }
    }

    /// A scale that finishes within a quarter of an hour on two cores.
    pub(crate) fn quick(threads: u64) -> Self {
        Self {
            mode: "quick",
            limit_bytes: 64 << 20,
            pairs: 3_000_000,
            slices: 3,
            slice: Duration::from_millis(700),
            warm: Duration::from_millis(500),
            loads: 1,
            cut: Duration::from_secs(12),
            ..Self::full(threads)
        }
    }

    /// Rows of the store that a row of the yardstick works on.
    pub(crate) fn rows(&self, row: Row) -> u64 {
        match row {
            Row::Pairs => self.pairs,
            _ => DATA_TO_LIMIT * self.limit_bytes / (KEY_BYTES + row.value_bytes()) as u64,
        }
    }

    pub(crate) fn limit(&self, row: Row) -> u64 {
        if row == Row::Pairs { self.pairs_limit_bytes } else { self.limit_bytes }
    }

    /// Puts of a commit of a load. A tree store that is not measured is created in a few large
    /// commits; other stores would get a different shape by that.
    pub(crate) fn batch(&self, row: Row, contestant: PeerKind) -> u64 {
        match row {
            Row::Build if contestant.is_tree() => BUILD_BATCH,
            Row::Build16k => self.batch / 100,
            _ => self.batch,
        }
    }

    /// A contestant's share of the limit.
    pub(crate) fn memory(&self, row: Row, contestant: PeerKind) -> u64 {
        match row {
            Row::Build | Row::Build16k if contestant.is_tree() => BUILD_TREE_BYTES,
            _ => contestant.share_of(self.limit(row)),
        }
    }

    /// Maximum time of one slice, load or scan.
    pub(crate) fn time(&self, row: Row) -> Duration {
        match row {
            Row::LoadSorted | Row::LoadRandom | Row::Pairs | Row::ColdOpen => self.cut,
            Row::ScanFull => self.cut / CUT_TO_WALK,
            // Not measured, and without a memory limit, so the time limit is generous.
            Row::Build | Row::Build16k => 20 * self.cut,
            _ => self.slice,
        }
    }
}
