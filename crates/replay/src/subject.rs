//! What a trace is replayed against: a cache, or a model of one.

/// A cache: keeps some of the values that are entered.
pub(crate) trait Subject {
    /// Whether the cache has a value of the key.
    fn find(&mut self, key: &[u8]) -> bool;
    /// Enters a value of `value_bytes`. `filler` is at least as long, unless the value is too large to be kept.
    fn set(&mut self, key: &[u8], value_bytes: u64, filler: &[u8]);
    /// Removes a value.
    fn remove(&mut self, key: &[u8]);
    /// What the cache holds.
    fn held(&self) -> Held;
}

/// What a cache holds, by its own count.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Held {
    /// Entries that were removed to make room.
    pub evictions: u64,
    /// Entries in the cache.
    pub entries: u64,
    /// Memory in use.
    pub memory_bytes: u64,
}
