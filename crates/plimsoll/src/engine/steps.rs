//! Compaction on demand, and freeing the log.

use std::ops::Bound;
use std::sync::atomic::Ordering;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::page::PAGE_BYTES;

use crate::engine::Engine;
use crate::engine::trim;
use crate::index::Horizon;
use crate::txn::committer::FreeLog;
use crate::types::error::Result;
use crate::types::retention::Retention;

/// Segments that values may hold back before they are moved, beside as many bytes as the index has.
const HELD_SEGMENTS: u64 = 8;

/// Flushes, merges everything, and frees the part of the log that is no longer needed.
pub(crate) fn compact(store: &Engine) -> Result<()> {
    store.flush()?;
    store.reader.index.compact_all()?;
    free_log(store)
}

/// Trims the log, unless a keyspace keeps everything or a user's stream prevents it. A keyspace that was never written to has nothing to keep.
pub(crate) fn free_log(store: &Engine) -> Result<()> {
    if store.catalog.streams_known.load(Ordering::Acquire) {
        return Ok(());
    }
    let (unlimited, limited): (Vec<_>, Vec<_>) =
        store.reader.keyspaces.records().into_iter().partition(|record| record.retention == Retention::Forever);
    // The log maps moments to GLSNs as far back as a keyspace can be read. Before the next look: what is written later is younger.
    let Some(oldest) = limited.iter().map(|record| store.catalog.horizon.of(record.id)).min() else { return Ok(()) };
    for record in unlimited {
        if was_written_to(store, record.id)? {
            return Ok(());
        }
    }
    want_values_moved(store, oldest.min(store.catalog.cursors.oldest()));
    trim::free_if_idle(store, oldest)
}

/// If values that runs point to hold much of the log back, compaction is to move them into blob files (decision 48). A value is moved once, and
/// each time the index is rewritten once at most: so at least as many bytes of the log must become free.
fn want_values_moved(store: &Engine, until: Glsn) {
    let index = &store.reader.index;
    let until = until.min(index.checkpoint().glsn.next());
    if index.min_pointer().is_none_or(|oldest| oldest >= until) {
        return;
    }
    let index_bytes: u64 = index.view().infos().map(|info| u64::from(info.pages) * PAGE_BYTES as u64).sum();
    let held_bytes = store.file_log.segments_below(until) as u64 * store.options.segment_limit_bytes();
    if held_bytes >= HELD_SEGMENTS * store.options.segment_limit_bytes() + index_bytes {
        store.catalog.horizon.trim_wanted.fetch_max(until.0, Ordering::AcqRel);
    }
}

fn was_written_to(store: &Engine, keyspace: u32) -> Result<bool> {
    let (first, next) = (keyspace.to_be_bytes(), (keyspace + 1).to_be_bytes());
    let view = store.reader.index.view();
    Ok(view.changed_in(Bound::Included(&first), Bound::Excluded(&next), Glsn::NONE)?.is_some())
}

impl FreeLog for Engine {
    fn free_log(&self) {
        // A segment that could not be freed now is freed later; the commit itself is done.
        let _ = free_log(self);
    }
}
