//! The interface of a cache, or of a model of one, to a replay.

/// A cache: keeps some of the inserted values.
pub(crate) trait Subject {
    /// Whether the cache has a value of the key.
    fn find(&mut self, key: &[u8]) -> bool;
    /// Inserts a value of `value_bytes`. `filler` has at least that length, unless the value is too
    /// large to be kept.
    fn set(&mut self, key: &[u8], value_bytes: u64, filler: &[u8]);
    /// Removes a value.
    fn remove(&mut self, key: &[u8]);
    /// The entries and the memory of the cache.
    fn held(&self) -> Held;
}

/// The entries and the memory of a cache, by its own count.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Held {
    /// Entries removed to make room.
    pub evictions: u64,
    /// Entries in the cache.
    pub entries: u64,
    /// Memory in use.
    pub memory_bytes: u64,
}
