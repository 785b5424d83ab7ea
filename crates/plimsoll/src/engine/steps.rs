//! Compaction on demand, and freeing the log.

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

/// Trims the log, unless a keyspace keeps everything or a user's stream prevents it.
pub(crate) fn free_log(store: &Engine) -> Result<()> {
    let all = store.reader.keyspaces.records();
    let limited = all.iter().all(|record| record.retention != Retention::Forever);
    if !limited || store.catalog.streams_known.load(Ordering::Acquire) {
        return Ok(());
    }
    // The log maps moments to GLSNs as far back as a keyspace can be read.
    let oldest = all.iter().map(|record| store.catalog.horizon.of(record.id)).min().unwrap_or(Glsn::NONE);
    trim::free_if_idle(store, oldest)
}

impl FreeLog for Engine {
    fn free_log(&self) {
        // A segment that could not be freed now is freed later; the commit itself is done.
        let _ = free_log(self);
    }
}
