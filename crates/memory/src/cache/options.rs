//! The settings of a cache.

use std::sync::Arc;

use plimsoll_disk::clock::{Clock, SystemClock};

/// Settings of a cache.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CacheOptions {
    /// The limit in bytes, at least [`MIN_CACHE_BYTES`](crate::cache::MIN_CACHE_BYTES). All memory
    /// that the budget charges to the cache stays within this limit. The exception is a cache below
    /// 512 KiB, which may hold a chunk and use only a part of it.
    pub memory_bytes: u64,
    /// The largest value that [`Cache::set_memory`](crate::cache::Cache::set_memory) accepts later;
    /// it determines the size of the tables. At least `memory_bytes`.
    pub max_bytes: u64,
    /// The largest entry, as a fraction of the cache: 0 to 0.5. Default: 0.25. An entry larger than
    /// a 64th of the cache stays for long only if it is accessed as often as the entries that it
    /// displaces.
    pub largest_part: f64,
    /// The clock that measures times to live.
    pub clock: Arc<dyn Clock>,
}

impl CacheOptions {
    /// A cache limited to `memory_bytes`, with all other settings at their defaults.
    pub fn of_bytes(memory_bytes: u64) -> Self {
        Self {
            memory_bytes,
            max_bytes: memory_bytes,
            largest_part: 0.25,
            clock: Arc::new(SystemClock::new()),
        }
    }
}
