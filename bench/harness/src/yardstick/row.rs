//! The rows of the yardstick: the operations of each, and their store.

use clap::ValueEnum;

use crate::peer::Commits;

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Row {
    /// Bulk load, keys in order.
    LoadSorted,
    /// Bulk load, keys without order.
    LoadRandom,
    /// Durable commits of one put, 8 threads.
    CommitOne,
    /// Durable commits of 1,000 puts each, without order.
    CommitThousand,
    /// Point reads, uniformly distributed.
    GetUniform,
    /// Point reads, zipf 0.99.
    GetZipf,
    /// Point reads of missing keys.
    GetMissing,
    /// Range scans of 100 rows.
    ScanShort,
    /// A full scan.
    ScanFull,
    /// Half reads, half puts, zipf 0.99.
    Mixed,
    /// Values of 16 KiB: half reads, half puts.
    Values16k,
    /// Opening a cold store, and 10,000 reads.
    ColdOpen,
    /// Pairs of integers.
    Pairs,
    /// Makes the store of 100 B values that the other rows work on.
    Build,
    /// Makes the store of 16 KiB values.
    Build16k,
}

/// How often a row is measured, and in which unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// A new store each time, from an empty folder to the last durable commit.
    WholeLoads,
    /// A process each time, on an existing store.
    WholeProcesses,
    /// Slices of time in a persistent process.
    Slices,
}

/// The store that a row works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Empty,
    Small,
    Large,
}

impl Row {
    /// The twelve that count for the geometric mean.
    pub(crate) const TWELVE: [Self; 12] = [
        Self::LoadSorted,
        Self::LoadRandom,
        Self::CommitOne,
        Self::CommitThousand,
        Self::GetUniform,
        Self::GetZipf,
        Self::GetMissing,
        Self::ScanShort,
        Self::ScanFull,
        Self::Mixed,
        Self::Values16k,
        Self::ColdOpen,
    ];

    /// The name in tables and results.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The unit of the count.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::LoadSorted | Self::LoadRandom | Self::Pairs | Self::Build | Self::Build16k => {
                "rows/s"
            }
            Self::CommitOne => "commits/s",
            Self::CommitThousand => "puts/s",
            Self::GetUniform | Self::GetZipf | Self::GetMissing | Self::ColdOpen => "reads/s",
            Self::ScanShort => "scans/s",
            Self::ScanFull => "rows/s",
            Self::Mixed | Self::Values16k => "operations/s",
        }
    }

    pub(crate) fn measure(self) -> Measure {
        match self {
            Self::LoadSorted | Self::LoadRandom | Self::Pairs | Self::Build | Self::Build16k => {
                Measure::WholeLoads
            }
            Self::ColdOpen => Measure::WholeProcesses,
            _ => Measure::Slices,
        }
    }

    pub(crate) fn store(self) -> Store {
        match self {
            Self::LoadSorted | Self::LoadRandom | Self::Pairs => Store::Empty,
            Self::Values16k | Self::Build16k => Store::Large,
            _ => Store::Small,
        }
    }

    pub(crate) fn commits(self) -> Commits {
        match self {
            Self::Mixed | Self::Values16k | Self::Build | Self::Build16k => Commits::Relaxed,
            _ => Commits::Durable,
        }
    }

    pub(crate) fn value_bytes(self) -> usize {
        match self {
            Self::Values16k | Self::Build16k => 16 << 10,
            Self::Pairs => 8,
            _ => 100,
        }
    }
}
