//! Counters of the index.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::index::env::stalls::Stalls;

/// Counts since the index was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_flushed: AtomicU64,
    pub(crate) flush_nanos: AtomicU64,
    pub(crate) bytes_compaction_read: AtomicU64,
    pub(crate) bytes_compaction_written: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) compactions: AtomicU64,
    pub(crate) stalls: Stalls,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}
