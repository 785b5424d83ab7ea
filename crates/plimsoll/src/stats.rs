//! Who uses how much, and how far the store has come.

use plimsoll_memory::budget::Kind;

use crate::error::Result;
pub use crate::index::IndexStats;
use crate::store::Store;
use crate::user_log::LogBounds;

/// Memory under the budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryStats {
    /// The budget in bytes.
    pub limit_bytes: u64,
    /// Bytes that nobody holds.
    pub free_bytes: u64,
    /// The most bytes that were held at once since the store was opened.
    pub peak_bytes: u64,
    /// Bytes held, by what they are for.
    pub by_kind: Vec<(&'static str, u64)>,
}

/// The page pool since the store was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStats {
    /// Pages found in memory.
    pub hits: u64,
    /// Pages read from disk.
    pub loads: u64,
    /// Pages evicted.
    pub evictions: u64,
    /// Pages in memory now.
    pub resident_pages: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
}

/// Everything that is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Memory under the budget.
    pub memory: MemoryStats,
    /// The page pool.
    pub pool: PoolStats,
    /// The log.
    pub log: LogBounds,
    /// The index.
    pub index: IndexStats,
    /// The newest moment that can be read.
    pub newest: u64,
    /// The oldest moment at which every keyspace can be read.
    pub oldest: u64,
    /// Snapshots and transactions that are open.
    pub open_snapshots: u64,
    /// Keyspaces.
    pub keyspaces: u64,
    /// Bytes of all files of the store.
    pub disk_bytes: u64,
    /// What opening the store had to say: a torn tail that was cut, a clock that jumped.
    pub warnings: Vec<String>,
}

/// Counts.
pub(crate) fn stats(store: &Store) -> Stats {
    let usage = store.budget.usage();
    let pool = store.pool.stats();
    let bounds = store.log.bounds();
    let keyspaces = store.keyspaces.all();
    Stats {
        memory: MemoryStats {
            limit_bytes: usage.limit_bytes,
            free_bytes: usage.free_bytes,
            peak_bytes: usage.peak_bytes,
            by_kind: usage.by_kind.iter().map(|&(kind, bytes)| (kind_name(kind), bytes)).collect(),
        },
        pool: PoolStats {
            hits: pool.hits,
            loads: pool.loads,
            evictions: pool.evictions,
            resident_pages: pool.resident,
            page_bytes: plimsoll_memory::page::PAGE_BYTES as u64,
        },
        log: LogBounds { first: bounds.first.0, next: bounds.next.0, durable: bounds.durable.0 },
        index: store.index.stats(),
        newest: store.visible().0,
        oldest: keyspaces.iter().map(|(_, record)| store.oldest_readable(record.id).0).max().unwrap_or(0),
        open_snapshots: store.snapshots.count(),
        keyspaces: keyspaces.len() as u64,
        disk_bytes: disk_bytes(store).unwrap_or(0),
        warnings: store.warnings.clone(),
    }
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Pages => "pages",
        Kind::Objects => "objects",
        Kind::Memtable => "memtables",
        Kind::WriteSet => "write sets",
        Kind::ReadSet => "read sets",
        Kind::LogBuffer => "log buffers",
        Kind::LogTable => "log tables",
        Kind::Sort => "flush and compaction",
        Kind::Staging => "staging",
        Kind::Metadata => "metadata",
    }
}

/// Bytes of all files.
pub(crate) fn disk_bytes(store: &Store) -> Result<u64> {
    let mut bytes = 0;
    for dir in [store.path.clone(), store.path.join("log"), store.path.join("index")] {
        bytes += store.options.disk.list(&dir)?.iter().map(|entry| entry.len).sum::<u64>();
    }
    Ok(bytes)
}
