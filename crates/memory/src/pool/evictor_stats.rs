//! Counters of a pool's evictor.

/// The evictor's counters since the pool was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictorStats {
    /// Batches evicted.
    pub rounds: u64,
    /// Pages evicted.
    pub victims: u64,
    /// Bytes freed: frames for pages, and chunks for everything else.
    pub bytes: u64,
    /// The part of `bytes` in chunks that went back to the budget.
    pub chunk_bytes: u64,
    /// Times it was woken because free frames were few.
    pub woken_for_frames: u64,
    /// Times it was woken because free chunks were few.
    pub woken_for_chunks: u64,
    /// Times it was woken by a caller that had to evict inline.
    pub woken_inline: u64,
    /// Average nanoseconds from a wake-up call to the first memory freed.
    pub reaction_nanos: u64,
    /// Number of free frames at which it stops.
    pub high_frames: u64,
    /// Free chunks at which it stops.
    pub high_chunks: u64,
}
