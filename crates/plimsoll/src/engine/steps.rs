//! Compaction on demand, and freeing the log.

use std::ops::Bound;
use std::sync::atomic::Ordering;

use plimsoll_log::glsn::Glsn;

use crate::engine::Engine;
use crate::engine::trim;
use crate::index::Horizon;
use crate::txn::committer::FreeLog;
use crate::types::error::Result;
use crate::types::retention::Retention;

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
    trim::free_if_idle(store, oldest)
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
