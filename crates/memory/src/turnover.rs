//! What memory is worth to whoever holds it: the common measure by which two caches of one budget compare themselves.

/// What a cache takes, and what it would have kept if it were larger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Turnover {
    /// Bytes that it takes now.
    pub held_bytes: u64,
    /// The most that it may take; `u64::MAX` where it has no number of its own.
    pub limit_bytes: u64,
    /// Times that something was wanted again which had been evicted no more than `window_bytes` of evictions ago: hits that so much more
    /// memory would have brought. Counted since ever.
    pub returns: u64,
    /// How far back it is remembered what was evicted, in bytes.
    pub window_bytes: u64,
}

impl Turnover {
    /// Returns for a byte of memory, given those that were counted in some time.
    pub fn worth(&self, returns: u64) -> f64 {
        returns as f64 / self.window_bytes.max(1) as f64
    }
}
