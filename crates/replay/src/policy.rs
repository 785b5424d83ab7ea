//! The choices of a replay: the policy of the cache, and the bounds of its memory.

/// The smallest cache.
pub const MIN_MEMORY_BYTES: u64 = plimsoll_memory::cache::MIN_CACHE_BYTES;

/// The largest cache.
pub const MAX_MEMORY_BYTES: u64 = plimsoll_memory::cache::MAX_CACHE_BYTES;

/// Which entries a cache keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Policy {
    /// The object cache of the store
    #[cfg_attr(feature = "clap", value(name = "s3-fifo", alias = "s3fifo"))]
    S3Fifo,
    /// Model: one queue; the oldest entry is evicted, or requeued if it was used
    Clock,
    /// Model: evicts the entry that was inserted first
    Fifo,
    /// Model: evicts the least recently used entry
    Lru,
    /// Model: a hand moves over the queue and spares entries that were used
    Sieve,
    /// Model: a window, and admission by frequency
    #[cfg_attr(feature = "clap", value(name = "w-tinylfu", alias = "wtinylfu"))]
    Wtinylfu,
}

impl Policy {
    /// The name of the policy.
    pub fn name(self) -> &'static str {
        match self {
            Self::S3Fifo => "s3-fifo",
            Self::Clock => "clock",
            Self::Fifo => "fifo",
            Self::Lru => "lru",
            Self::Sieve => "sieve",
            Self::Wtinylfu => "w-tinylfu",
        }
    }
}
