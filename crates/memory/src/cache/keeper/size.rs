//! The cache's limit: its equivalent in segments, and how the cache grows, shrinks and gives memory
//! back.

use super::super::Shared;
use super::{Keeper, RESERVE};
use crate::budget::chunk::CHUNK_BYTES;

/// Step by which the limit is lowered; at least a segment.
const BITE_BYTES: usize = 256 << 10;

/// Minimum number of segments beside the index, in the smallest cache.
const LEAST_SEGMENTS: usize = 12;

/// Below this many chunks a limit is not rounded to whole ones.
const LEAST_WHOLE_CHUNKS: usize = 8;

impl Keeper {
    /// The segments for a limit in bytes. Rounded to whole chunks, so that the memory held does not
    /// exceed it either, unless rounding would take much of a very small cache. At least enough
    /// segments to keep entries of some size beside the index.
    pub(in super::super) fn limit_for(&self, shared: &Shared, bytes: u64) -> usize {
        let of_chunk = CHUNK_BYTES / shared.segments.bytes();
        let segments = (bytes / shared.segments.bytes() as u64) as usize;
        let whole = if segments < LEAST_WHOLE_CHUNKS * of_chunk {
            segments
        } else {
            segments / of_chunk * of_chunk
        };
        whole.max(self.pages.len() + LEAST_SEGMENTS).min(shared.probation.len())
    }

    /// Moves the limit toward `wanted_bytes`: at once if it grows, else by at most [`BITE_BYTES`],
    /// so that the lock is not held for long. Returns whether the cache is at the final limit,
    /// which it is not while readers hold more than that.
    pub(in super::super) fn approach(&mut self, shared: &Shared, wanted_bytes: u64) -> bool {
        let wanted = self.limit_for(shared, wanted_bytes);
        let bite = (BITE_BYTES / shared.segments.bytes()).max(1);
        // Unused segments need no eviction.
        let limit =
            wanted.max(self.owner.limit().min(self.owner.used() + RESERVE).saturating_sub(bite));
        self.owner.set_limit(limit);
        let is_within = self.shrink(shared);
        self.owner.end_shrinking();
        // With fewer entries the index needs fewer pages; the next step counts the freed ones.
        let pages = self.pages.len();
        (0..pages).any(|_| self.shrink_index(shared));
        self.owner.release_chunks(&shared.segments, usize::MAX, RESERVE);
        (limit == wanted && self.pages.len() == pages) || !is_within
    }

    /// Evicts until no more than the limit is in use. Returns `false` if readers hold more than
    /// that.
    fn shrink(&mut self, shared: &Shared) -> bool {
        while self.owner.used() > self.owner.limit() {
            self.take_back_what_is_read_no_more(shared);
            if self.owner.used() > self.owner.limit() && !self.turn(shared) {
                return false;
            }
        }
        true
    }

    /// Gives up to `chunks` chunks back to the budget, evicting for them. Returns how many. As long
    /// as there are entries, the room to move them stays.
    pub(in super::super) fn give_back(&mut self, shared: &Shared, chunks: usize) -> usize {
        let mut given = self.owner.release_chunks(&shared.segments, chunks, RESERVE);
        while given < chunks {
            self.take_back_what_is_read_no_more(shared);
            let goes_on = self.turn(shared);
            let kept = if goes_on { RESERVE } else { 0 };
            given += self.owner.release_chunks(&shared.segments, chunks - given, kept);
            if !goes_on {
                break;
            }
        }
        given
    }
}
