//! Background work on demand.

use std::sync::atomic::Ordering;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::evictor;

use crate::engine::Engine;
use crate::engine::trim;
use crate::index::{Horizon, Progress};
use crate::txn::committer::FreeLog;
use crate::types::error::Result;
use crate::types::options::Retention;

/// Flushes, merges everything, and frees what of the log nobody needs.
pub(crate) fn compact(store: &Engine) -> Result<()> {
    store.flush()?;
    store.reader.index.compact_all()?;
    free_log(store)
}

/// Drops every page that nobody holds, and every object.
pub(crate) fn drop_caches(store: &Engine) {
    store.maintenance.pool.clear();
    store.reader.objects.clear();
}

/// One piece of background work: a sync, room in memory, flush, compaction, or the warm image; false if there was none. Where nothing
/// is written that is room, and what the warm image has.
pub(crate) fn step(store: &Engine) -> Result<bool> {
    step_from(store, 0)
}

/// As [`step`], asking for work of kind number `first` before the others: none of them may count on another.
pub(crate) fn step_from(store: &Engine, first: usize) -> Result<bool> {
    if store.options.read_only {
        return Ok(make_room(store)? || care_for_warmth(store)?);
    }
    store.check_writable()?;
    let kinds = [sync, make_room, flush_some, compact_some, care_for_warmth];
    for number in 0..kinds.len() {
        if kinds[(first + number) % kinds.len()](store)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Syncs what is readable and not durable: a buffered commit.
fn sync(store: &Engine) -> Result<bool> {
    let due = store.reader.log.bounds().durable < store.reader.log.readable();
    if due {
        store.file_log.sync()?;
    }
    Ok(due)
}

fn make_room(store: &Engine) -> Result<bool> {
    let mut upkeep = store.maintenance.upkeep.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(upkeep.step() == evictor::Progress::Worked)
}

/// Flushes what is full, or what memory has held for long.
fn flush_some(store: &Engine) -> Result<bool> {
    let worked = store.reader.index.flush_step()? == Progress::Worked;
    Ok(worked
        || store.maintenance.checkpoints.as_ref().is_some_and(|checkpoints| checkpoints.step() == Progress::Worked))
}

fn compact_some(store: &Engine) -> Result<bool> {
    Ok(store.reader.index.compact_step()? == Progress::Worked)
}

fn care_for_warmth(store: &Engine) -> Result<bool> {
    Ok(store.maintenance.warm.as_ref().is_some_and(|warm| warm.step() == Progress::Worked))
}

/// Trims the log where no keyspace keeps everything and no user's stream is in the way.
pub(crate) fn free_log(store: &Engine) -> Result<()> {
    let all = store.reader.keyspaces.records();
    let limited = all.iter().all(|record| record.retention != Retention::Forever);
    if !limited || store.catalog.streams_known.load(Ordering::Acquire) {
        return Ok(());
    }
    // As far back as a keyspace can be read, the log says when each moment was.
    let oldest = all.iter().map(|record| store.catalog.horizon.of(record.id)).min().unwrap_or(Glsn::NONE);
    trim::free_if_idle(store, oldest)
}

impl FreeLog for Engine {
    fn free_log(&self) {
        // What could not be freed now is freed later; the commit itself is done.
        let _ = free_log(self);
    }
}
