//! Events for the crate `tracing`, with the feature `tracing`; without it, every function here is
//! empty. This file lists all events, and docs/reference/events.md describes their fields.
//!
//! The target is `plimsoll`. Durations are in nanoseconds and sizes in bytes, as in
//! [`Stats`](crate::Stats). A field's value is computed only if the event is wanted.
//!
//! Invariant: an event may be emitted under locks of the store, so a subscriber must not call the
//! store.

use std::path::Path;

use plimsoll_log::file_log::open_report::Cut;
use plimsoll_log::glsn::Glsn;

use crate::types::compression::Compression;
use crate::types::stats::OpeningStats;

macro_rules! emit {
    ($level:ident, $message:literal, $($field:ident = $value:expr),+ $(,)?) => {
        #[cfg(feature = "tracing")]
        tracing::event!(target: "plimsoll", tracing::Level::$level, $($field = $value,)+ $message);
        #[cfg(not(feature = "tracing"))]
        if false {
            let _ = ($(&$value,)+);
        }
    };
}

/// A store was opened. `log_files` and `tables` count the files of the log and of the index.
pub(crate) fn opened(
    path: &Path,
    stats: &OpeningStats,
    log_files: impl Fn() -> u64,
    tables: impl Fn() -> u64,
) {
    emit!(
        INFO,
        "store opened",
        path = path.display().to_string(),
        nanos = stats.nanos,
        log_nanos = stats.log_nanos,
        replay_nanos = stats.replay_nanos,
        replayed_transactions = stats.replayed,
        replayed_bytes = stats.replayed_bytes,
        log_files = log_files(),
        tables = tables(),
    );
}

/// Opening cut the torn tail of the log. The next commit gets the GLSN of its first record.
pub(crate) fn torn_tail_cut(cut: &Cut) {
    emit!(
        INFO,
        "torn tail cut",
        glsn = cut.from.0,
        bytes = cut.bytes,
        offset = cut.offset,
        why = cut.why,
    );
}

/// A memtable was written as runs, or runs of a spilled transaction were adopted (`bytes` is 0).
pub(crate) fn flushed(upto: Glsn, tables: impl Fn() -> u64, bytes: u64, nanos: u64) {
    emit!(DEBUG, "flushed", upto_glsn = upto.0, tables = tables(), bytes = bytes, nanos = nanos);
}

/// Runs were merged. Tables that were linked unchanged count as tables, not as bytes.
pub(crate) fn compacted(
    tables_in: impl Fn() -> u64,
    bytes_in: u64,
    tables_out: impl Fn() -> u64,
    bytes_out: u64,
) {
    emit!(
        DEBUG,
        "compacted",
        tables_in = tables_in(),
        bytes_in = bytes_in,
        tables_out = tables_out(),
        bytes_out = bytes_out,
    );
}

/// Range deletions were dropped, because every run now has its own deletion of each of their keys.
/// `left` is the number of range deletions that remain.
pub(crate) fn ranges_absorbed(left: u64) {
    emit!(DEBUG, "range deletions absorbed", left = left);
}

/// A keyspace got another compression.
pub(crate) fn compression_changed(keyspace: &str, compression: Compression) {
    emit!(INFO, "compression changed", keyspace = keyspace, compression = compression.to_string());
}

/// A writer waited.
pub(crate) fn stalled(cause: &'static str, nanos: u64) {
    emit!(INFO, "writer stalled", cause = cause, nanos = nanos);
}

/// The evictor freed a batch of memory.
pub(crate) fn evicted(pages: u64, bytes: u64) {
    emit!(TRACE, "memory evicted", pages = pages, bytes = bytes);
}

/// The warm image was restored, as far as there was memory for it.
pub(crate) fn warmed(pages: u64, rows: u64, nanos: u64) {
    emit!(INFO, "warm image restored", pages = pages, rows = rows, nanos = nanos);
}

/// The warm image, or the rest of it, was rejected.
pub(crate) fn warm_image_ignored(why: &str) {
    emit!(WARN, "warm image ignored", why = why);
}

/// Segments at the old end of the log were freed.
pub(crate) fn trimmed(first: Glsn, entries: u64, nanos: u64) {
    emit!(INFO, "log trimmed", first_glsn = first.0, entries = entries, nanos = nanos);
}

/// Nothing more is accepted until the store is opened again.
pub(crate) fn poisoned(cause: &str) {
    emit!(ERROR, "store poisoned", cause = cause);
}
