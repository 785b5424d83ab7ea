//! The interface of a log for measurements of reads. Each peer is an adapter in its own file.

pub(crate) mod file_log;
pub(crate) mod slices;
pub(crate) mod store_log;
pub(crate) mod varlog_pattern;

use anyhow::Result;

/// Where the entries are when they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    /// All in memory, checked when they were loaded; a peer that compacts has done so.
    Resident,
    /// All in memory, as they were written; the same as `Resident` for a peer without that
    /// distinction.
    ResidentFresh,
    /// In files, behind a cache of 1 MiB.
    SmallCache,
}

impl Setting {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::ResidentFresh => "resident-fresh",
            Self::SmallCache => "small-cache",
        }
    }
}

/// The timed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// A scan of this many entries from a random one on.
    Scan(u64),
    /// One entry, by its number.
    Read,
}

impl Operation {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Scan(entries) => format!("scan-{entries}"),
            Self::Read => "read".to_owned(),
        }
    }

    pub(crate) fn entries(self) -> u64 {
        match self {
            Self::Scan(entries) => entries,
            Self::Read => 1,
        }
    }
}

/// The results of some slices of time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slices {
    /// Nanoseconds per operation, for each slice.
    pub(crate) nanos: Vec<f64>,
    /// Heap allocations per operation.
    pub(crate) allocations: f64,
}

/// A log that holds the entries.
pub(crate) trait LogPeer {
    /// The name in tables and results.
    fn name(&self) -> &'static str;

    /// Whether it supports this measurement.
    fn takes(&self, setting: Setting, operation: Operation) -> bool;

    /// Measures some slices of about 2 ms.
    fn measure(&mut self, setting: Setting, operation: Operation, slices: usize) -> Result<Slices>;
}
