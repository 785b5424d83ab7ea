//! Statistics of a cache.

/// Counters and sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Look-ups that found a value.
    pub hits: u64,
    /// Look-ups that found none.
    pub misses: u64,
    /// Entries inserted.
    pub insertions: u64,
    /// Entries rejected because they were too large or no room could be made.
    pub refusals: u64,
    /// Entries evicted to make room, or because they had expired.
    pub evictions: u64,
    /// Insertions of keys that were evicted from the probation queue too early, as their ghosts
    /// show.
    pub returns: u64,
    /// Bytes copied to keep entries when their segment was needed.
    pub moved_bytes: u64,
    /// Entries now.
    pub entries: u64,
    /// Ghosts now.
    pub ghosts: u64,
    /// Bytes of entries now, each with its header, key, value and rounding.
    pub live_bytes: u64,
    /// Bytes of entries that were removed or replaced and not yet cleaned away.
    pub dead_bytes: u64,
    /// Memory in use: the segments in use, each counted as a whole, and the tables.
    pub memory_bytes: u64,
    /// The part of `memory_bytes` that the index takes.
    pub index_bytes: u64,
    /// The part of `memory_bytes` that the tables take.
    pub table_bytes: u64,
    /// Upper bound on `memory_bytes`.
    pub limit_bytes: u64,
    /// Target size of the probation queue, between a tenth and nine tenths of the cache; adapts to
    /// the requests.
    pub probation_bytes: u64,
}
