//! Collects the statistics of an open store.

use plimsoll_memory::budget::Kind;
use plimsoll_memory::chunk::CHUNK_BYTES;
use plimsoll_memory::page::PAGE_BYTES;
use plimsoll_memory::pool;

use crate::engine::Engine;
use crate::types::error::Result;
use crate::types::stats::{
    EvictorStats, LogBounds, MemoryStats, PoolStats, PressureStats, RowCacheStats, Stats,
};
use crate::warm::{WARM_DIR, Warm};

/// Warnings from opening, the fault of the warm image, and why values that pin the log are no
/// longer moved, as far as there are any.
pub(crate) fn warnings(store: &Engine) -> Vec<String> {
    let opening = store.opened.warnings.iter().cloned();
    let warm = store.maintenance.warm.as_ref().and_then(Warm::warning);
    opening.chain(warm).chain(store.catalog.horizon.relocation_stopped.get().cloned()).collect()
}

/// The statistics of the store.
pub(crate) fn stats(store: &Engine) -> Stats {
    let usage = store.reader.budget.usage();
    let pressure = store.reader.budget.pressure();
    let pool = store.maintenance.pool.stats();
    let bounds = store.reader.log.bounds();
    let keyspaces = store.reader.keyspaces.all();
    Stats {
        opening: store.opened.stats.get().copied().unwrap_or_default(),
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
        evictor: of_evictor(store.maintenance.pool.evictor_stats()),
        pool: PoolStats {
            hits: pool.hits,
            loads: pool.loads,
            read_ahead: pool.read_ahead,
            waits: pool.waits,
            evictions: pool.evictions,
            resident_pages: pool.resident,
            page_bytes: PAGE_BYTES as u64,
        },
        row_cache: of_rows(store),
        log: LogBounds { first: bounds.first, next: bounds.next, durable: bounds.durable },
        index: store.reader.index.stats(),
        io: store.io.stats(),
        warm: store.maintenance.warm.as_ref().map(Warm::stats).unwrap_or_default(),
        newest: store.visible(),
        oldest: keyspaces
            .iter()
            .map(|(_, record)| store.reader.oldest_readable(record.id))
            .max()
            .unwrap_or_default(),
        open_snapshots: store.reader.snapshots.count(),
        keyspaces: keyspaces.len() as u64,
        disk_bytes: disk_bytes(store).unwrap_or(0),
        warnings: warnings(store),
    }
}

fn of_rows(store: &Engine) -> RowCacheStats {
    let Some((cache, moves)) = store.reader.row_cache.stats() else {
        return RowCacheStats::default();
    };
    RowCacheStats {
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
        steps_to_rows: moves.to_rows,
        steps_to_pages: moves.to_pages,
    }
}

fn of_evictor(stats: pool::EvictorStats) -> EvictorStats {
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
        Kind::Objects => "row cache",
        Kind::Memtable => "memtables",
        Kind::WriteSet => "write sets",
        Kind::ReadSet => "read sets",
        Kind::LogBuffer => "log buffers",
        Kind::LogTable => "log tables",
        Kind::Sort => "flush and compaction",
        Kind::Staging => "staging",
        Kind::Metadata => "metadata",
        Kind::Spare => "spare buffers",
        Kind::Iterators => "iterators",
    }
}

/// Bytes of all files of the store.
pub(crate) fn disk_bytes(store: &Engine) -> Result<u64> {
    let mut bytes = 0;
    let disk = &*store.options.disk;
    for dir in [
        store.path.clone(),
        store.path.join("log"),
        store.path.join("index"),
        store.path.join(WARM_DIR),
    ] {
        match disk.list(&dir) {
            // The image's folder is optional and may disappear at any time.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            entries => bytes += entries?.iter().map(|entry| entry.len).sum::<u64>(),
        }
    }
    Ok(bytes)
}
