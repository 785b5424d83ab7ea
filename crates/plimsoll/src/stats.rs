//! Who uses how much, and how far the store has come.

use plimsoll_memory::budget::Kind;
use plimsoll_memory::chunk::CHUNK_BYTES;
use plimsoll_memory::evictor;
use plimsoll_memory::page::PAGE_BYTES;

use crate::error::Result;
pub use crate::index::{IndexStats, StallStats, Waits};
pub use crate::io::IoStats;
use crate::store::Store;
use crate::user_log::LogBounds;
use crate::warm::{WARM_DIR, Warm, WarmStats};

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

/// How often memory was short since the store was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PressureStats {
    /// Pages that somebody who missed a page had to evict himself, because no frame was free.
    pub inline_page_evictions: u64,
    /// Times that somebody who wanted other memory found none free, and made the pool evict.
    pub inline_chunk_evictions: u64,
    /// Times that somebody waited for memory.
    pub waits: u64,
    /// Times that somebody was refused memory; most then flush, spill or coarsen, and go on.
    pub refusals: u64,
}

/// What the evictor did since the store was opened; zeros where it is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictorStats {
    /// Batches of pages evicted.
    pub rounds: u64,
    /// Pages evicted.
    pub victims: u64,
    /// Bytes made free.
    pub bytes: u64,
    /// Of these, bytes for other things than pages.
    pub chunk_bytes: u64,
    /// Times it was woken because free frames for pages were few.
    pub woken_for_frames: u64,
    /// Times it was woken because memory for other things was low.
    pub woken_for_chunks: u64,
    /// Times it was woken by somebody who had to evict for himself.
    pub woken_inline: u64,
    /// Nanoseconds from a call to the first room, on average.
    pub reaction_nanos: u64,
    /// Bytes that it keeps free for pages, and for other things, at the measured rate.
    pub room_bytes: (u64, u64),
}

/// The page pool since the store was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStats {
    /// Pages found in memory.
    pub hits: u64,
    /// Pages read from disk.
    pub loads: u64,
    /// Of these, pages read ahead of a scan.
    pub read_ahead: u64,
    /// Times that a reader waited for a page that another was loading.
    pub waits: u64,
    /// Pages evicted, by whomever.
    pub evictions: u64,
    /// Pages in memory now.
    pub resident_pages: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
}

/// Values kept as objects rather than by their pages, since the store was opened; zeros where they are switched off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectStats {
    /// Reads answered by an object.
    pub hits: u64,
    /// Reads that had to go to the pages.
    pub misses: u64,
    /// Objects that entered.
    pub insertions: u64,
    /// Objects that left to make room.
    pub evictions: u64,
    /// Objects now.
    pub entries: u64,
    /// Bytes of these objects, with their keys and headers.
    pub live_bytes: u64,
    /// Memory that they take with everything counted.
    pub held_bytes: u64,
    /// What they may take now: their share of what pages and objects have together.
    pub limit_bytes: u64,
    /// Objects that were wanted again soon after they left: reads that more room for objects would have spared.
    pub returns: u64,
    /// Pages that were loaded again soon after they left: reads that more room for pages would have spared.
    pub page_returns: u64,
    /// Steps by which room moved from pages to objects.
    pub steps_to_objects: u64,
    /// Steps by which room moved back.
    pub steps_to_pages: u64,
}

/// What it took to open the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpeningStats {
    /// Nanoseconds in all.
    pub nanos: u64,
    /// Of these, nanoseconds until the log was open: its newest segment is read for that.
    pub log_nanos: u64,
    /// Of these, nanoseconds until the transactions that no run held yet were in memory again.
    pub replay_nanos: u64,
    /// Transactions that were put into memory again: those that a process left which did not close the store.
    pub replayed: u64,
    /// Bytes of their entries in the log.
    pub replayed_bytes: u64,
}

/// Everything that is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// What opening took.
    pub opening: OpeningStats,
    /// Memory under the budget.
    pub memory: MemoryStats,
    /// How often memory was short.
    pub pressure: PressureStats,
    /// Who keeps room in memory.
    pub evictor: EvictorStats,
    /// The page pool.
    pub pool: PoolStats,
    /// Values kept as objects.
    pub objects: ObjectStats,
    /// The log.
    pub log: LogBounds,
    /// The index.
    pub index: IndexStats,
    /// How files are read.
    pub io: IoStats,
    /// The warm image.
    pub warm: WarmStats,
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
    /// What opening the store had to say: a torn tail that was cut, a clock that jumped, a warm image that is ignored.
    pub warnings: Vec<String>,
}

/// What opening had to say, and what is wrong with the warm image.
pub(crate) fn warnings(store: &Store) -> Vec<String> {
    store.warnings.iter().cloned().chain(store.warm.as_ref().and_then(Warm::warning)).collect()
}

/// Counts.
pub(crate) fn stats(store: &Store) -> Stats {
    let usage = store.budget.usage();
    let pressure = store.budget.pressure();
    let pool = store.pool.stats();
    let bounds = store.log.bounds();
    let keyspaces = store.keyspaces.all();
    Stats {
        opening: store.opening.get().copied().unwrap_or_default(),
        memory: MemoryStats {
            limit_bytes: usage.limit_bytes,
            free_bytes: usage.free_bytes,
            peak_bytes: usage.peak_bytes,
            by_kind: usage.by_kind.iter().map(|&(kind, bytes)| (kind_name(kind), bytes)).collect(),
        },
        pressure: PressureStats {
            inline_page_evictions: pool.inline_evictions,
            inline_chunk_evictions: pressure.inline_evictions,
            waits: pressure.waits,
            refusals: pressure.refusals,
        },
        evictor: of_evictor(store.pool.evictor_stats()),
        pool: PoolStats {
            hits: pool.hits,
            loads: pool.loads,
            read_ahead: pool.read_ahead,
            waits: pool.waits,
            evictions: pool.evictions,
            resident_pages: pool.resident,
            page_bytes: PAGE_BYTES as u64,
        },
        objects: of_objects(store),
        log: LogBounds { first: bounds.first.0, next: bounds.next.0, durable: bounds.durable.0 },
        index: store.index.stats(),
        io: store.io.stats(),
        warm: store.warm.as_ref().map(Warm::stats).unwrap_or_default(),
        newest: store.visible().0,
        oldest: keyspaces.iter().map(|(_, record)| store.oldest_readable(record.id).0).max().unwrap_or(0),
        open_snapshots: store.snapshots.count(),
        keyspaces: keyspaces.len() as u64,
        disk_bytes: disk_bytes(store).unwrap_or(0),
        warnings: warnings(store),
    }
}

fn of_objects(store: &Store) -> ObjectStats {
    let Some((cache, moves)) = store.objects.stats() else { return ObjectStats::default() };
    ObjectStats {
        hits: cache.hits,
        misses: cache.misses,
        insertions: cache.insertions,
        evictions: cache.evictions,
        entries: cache.entries,
        live_bytes: cache.live_bytes,
        held_bytes: cache.memory_bytes,
        limit_bytes: cache.limit_bytes,
        returns: cache.returns,
        page_returns: moves.page_returns,
        steps_to_objects: moves.to_objects,
        steps_to_pages: moves.to_pages,
    }
}

fn of_evictor(stats: evictor::EvictorStats) -> EvictorStats {
    EvictorStats {
        rounds: stats.rounds,
        victims: stats.victims,
        bytes: stats.bytes,
        chunk_bytes: stats.chunk_bytes,
        woken_for_frames: stats.woken_for_frames,
        woken_for_chunks: stats.woken_for_chunks,
        woken_inline: stats.woken_inline,
        reaction_nanos: stats.reaction_nanos,
        room_bytes: (stats.high_frames * PAGE_BYTES as u64, stats.high_chunks * CHUNK_BYTES as u64),
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
        Kind::Spare => "spare buffers",
        Kind::Walks => "walks",
    }
}

/// Bytes of all files.
pub(crate) fn disk_bytes(store: &Store) -> Result<u64> {
    let mut bytes = 0;
    let disk = &*store.options.disk;
    for dir in [store.path.clone(), store.path.join("log"), store.path.join("index"), store.path.join(WARM_DIR)] {
        match disk.list(&dir) {
            // The image's folder may not be there, or go at any moment.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            entries => bytes += entries?.iter().map(|entry| entry.len).sum::<u64>(),
        }
    }
    Ok(bytes)
}
