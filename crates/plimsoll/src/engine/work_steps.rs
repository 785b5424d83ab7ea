//! Background work in steps, for stores without threads: simulations run the steps in any order.

use plimsoll_memory::evictor;

use crate::engine::Engine;
use crate::index::env::Progress;
use crate::types::error::{Lift, Result};

/// Drops every unpinned page, and every cached row.
pub(crate) fn drop_caches(store: &Engine) {
    store.maintenance.pool.clear();
    store.reader.row_cache.clear();
}

/// Does one piece of background work: a sync, freeing memory, flush, compaction, the warm image, or
/// sealing a segment; false if there was none. In a read-only store, only freeing memory and
/// restoring the warm image.
pub(crate) fn step(store: &Engine) -> Result<bool> {
    step_from(store, 0)
}

/// As [`step`], but tries work of kind number `first` first, to check that no kind depends on
/// another.
pub(crate) fn step_from(store: &Engine, first: usize) -> Result<bool> {
    if store.options.read_only {
        store.membership.step(&store.maintenance.pool, &store.space, &store.committer)?;
        return Ok(free_memory(store)? || save_warm_image(store)?);
    }
    store.check_writable()?;
    store.membership.step(&store.maintenance.pool, &store.space, &store.committer)?;
    store.replication.step()?;
    let kinds = [sync, free_memory, flush_some, compact_some, save_warm_image, seal_behind];
    for number in 0..kinds.len() {
        if kinds[(first + number) % kinds.len()](store)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Syncs commits that are readable and not durable: buffered ones.
fn sync(store: &Engine) -> Result<bool> {
    let due = store.reader.log.bounds().durable < store.reader.log.readable();
    if due {
        store.reader.log.sync().lift()?;
    }
    Ok(due)
}

/// Seals an inactive segment of the log.
fn seal_behind(store: &Engine) -> Result<bool> {
    Ok(store.reader.log.seal_behind())
}

fn free_memory(store: &Engine) -> Result<bool> {
    let mut memory_workers =
        store.maintenance.memory_workers.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(memory_workers.step() == evictor::Progress::Worked)
}

/// Flushes a memtable that is full or old.
fn flush_some(store: &Engine) -> Result<bool> {
    let worked = store.reader.index.memtables.flush_step()? == Progress::Worked;
    Ok(worked
        || store
            .maintenance
            .checkpoints
            .as_ref()
            .is_some_and(|checkpoints| checkpoints.step() == Progress::Worked))
}

fn compact_some(store: &Engine) -> Result<bool> {
    let compaction = &store.reader.index.compaction;
    if compaction.step()? == Progress::Worked {
        return Ok(true);
    }
    Ok(compaction.has_expiries() && store.maintenance.idle_time.advance()?)
}

fn save_warm_image(store: &Engine) -> Result<bool> {
    Ok(store.maintenance.warm.as_ref().is_some_and(|warm| warm.step() == Progress::Worked))
}
