//! Use of memory by kind, and the error of a refused request, which reports it.

use std::fmt;

/// The purpose of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Frames of the page pool.
    Pages,
    /// The object cache.
    Objects,
    /// Memtables: commits that no run holds yet.
    Memtable,
    /// Writes of open transactions.
    WriteSet,
    /// Reads of open transactions.
    ReadSet,
    /// Records not yet written to the log's files, and the tail of the log.
    LogBuffer,
    /// Tables of the log, from the numbers of commits (GLSNs) to places in the active segment.
    LogTable,
    /// Sorting: flush, compaction, bulk load.
    Sort,
    /// Buffers for input and output.
    Staging,
    /// Metadata of files, snapshots, keyspaces.
    Metadata,
    /// Large buffers that were returned and are kept for reuse.
    Spare,
    /// Open iterators: their keys, values and cursors.
    Iterators,
}

impl Kind {
    /// Every kind, in the order of [`Usage::by_kind`].
    pub const ALL: [Kind; 12] = [
        Kind::Pages,
        Kind::Objects,
        Kind::Memtable,
        Kind::WriteSet,
        Kind::ReadSet,
        Kind::LogBuffer,
        Kind::LogTable,
        Kind::Sort,
        Kind::Staging,
        Kind::Metadata,
        Kind::Spare,
        Kind::Iterators,
    ];
}

/// The budget has no room. Reports the request, and the bytes held by kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfBudget {
    /// Bytes requested.
    pub needed_bytes: u64,
    /// The purpose of the request.
    pub kind: Kind,
    /// Bytes held, by kind. Boxed, so that results that carry the error stay small.
    pub usage: Box<Usage>,
}

impl std::error::Error for OutOfBudget {}

impl fmt::Display for OutOfBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the memory budget is exhausted: {} bytes needed for {:?}, {}",
            self.needed_bytes, self.kind, self.usage
        )
    }
}

/// Bytes held, by kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The limit.
    pub limit_bytes: u64,
    /// Bytes of free chunks.
    pub free_bytes: u64,
    /// Bytes by kind: whole chunks, and leases to the byte.
    pub by_kind: [(Kind, u64); Kind::ALL.len()],
    /// The most bytes held at once since the budget was made or resized.
    pub peak_bytes: u64,
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit {}, held", self.limit_bytes)?;
        for (kind, bytes) in self.by_kind.iter().filter(|(_, bytes)| *bytes > 0) {
            write!(f, " {kind:?} {bytes}")?;
        }
        Ok(())
    }
}

impl Usage {
    /// Bytes held for `kind`.
    pub fn of(&self, kind: Kind) -> u64 {
        self.by_kind[kind as usize].1
    }
}

/// Counts of memory shortage since the budget was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// Times that a request found no free memory and waited for the reclaimers to evict.
    pub inline_evictions: u64,
    /// Times that a request waited for a chunk.
    pub waits: u64,
    /// Times that a request was refused.
    pub refusals: u64,
}
