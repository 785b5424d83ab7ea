//! The choices of a replay: the policy of the cache, and what counts against its memory.

/// The smallest cache.
pub const MIN_MEMORY_BYTES: u64 = plimsoll_memory::cache::MIN_CACHE_BYTES;

/// Which entries a cache keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Policy {
    /// The cache's own policy
    #[cfg_attr(feature = "clap", value(name = "s3-fifo", alias = "s3fifo"))]
    S3Fifo,
    /// The cache with one queue and second chances
    Clock,
    /// The cache with one queue
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

/// The bytes that count against the memory of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Count {
    /// Bytes of values only, as in most published figures
    #[cfg_attr(feature = "clap", value(alias = "values"))]
    Value,
    /// All memory that the cache uses
    Everything,
}

impl Count {
    /// A description for messages.
    pub fn words(self) -> &'static str {
        match self {
            Self::Value => "bytes of values",
            Self::Everything => "everything",
        }
    }

    /// The largest cache. With [`Count::Value`], keys and the cache's tables need room beside the values.
    pub fn max_memory_bytes(self) -> u64 {
        match self {
            Self::Everything => plimsoll_memory::cache::MAX_CACHE_BYTES,
            Self::Value => plimsoll_memory::cache::MAX_CACHE_BYTES / 2,
        }
    }
}
