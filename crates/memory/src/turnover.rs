//! The value of more memory to a cache, in a measure by which the caches of one budget are
//! compared.

/// A cache's size, and the hits that a larger one would have had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Turnover {
    /// Bytes that the cache takes now.
    pub held_bytes: u64,
    /// The most bytes that the cache can take; `u64::MAX` if it has no limit of its own.
    pub limit_bytes: u64,
    /// Total misses on recently evicted entries: since the entry's eviction, at most `window_bytes`
    /// were evicted. With `window_bytes` more memory, these misses would have been hits.
    pub returns: u64,
    /// The length of the eviction history, in bytes of evictions.
    pub window_bytes: u64,
}

impl Turnover {
    /// Hits gained for each byte of added memory, from the `returns` counted over some time.
    pub fn worth(&self, returns: u64) -> f64 {
        returns as f64 / self.window_bytes.max(1) as f64
    }
}
