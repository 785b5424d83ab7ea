//! Pre-faulting: touches free chunks in the background before a thread takes them.
//!
//! The system clears memory at the first touch, 2 MiB at once with huge pages, and the touching
//! thread waits for it: 0.1 ms if the system has free memory, milliseconds in a virtual machine
//! that must get it from its host.
//!
//! Invariants:
//! 1. Only chunks of the budget are touched: they are taken, touched and returned, while resizes
//!    wait.
//! 2. While a block is touched, at least [`never_taken_min`] other chunks remain that were never
//!    taken, so that no request fails because of the block.
//! 3. The evictor's thread clears a block when the first chunk is taken. Later it clears in
//!    proportion to the chunks taken so far ([`ahead`]), and nothing while no chunk is taken.

use std::sync::Arc;

use super::chunk::{CHUNK_BYTES, Chunk};
use super::{Budget, Inner, Kind, State};
use crate::arena::CHUNKS_PER_BLOCK;
use crate::mapping::MAPPING_ALIGN;
use crate::sync::Ordering;

/// The number of never-taken chunks that pre-faulting leaves untouched: a quarter of the budget's
/// `limit` chunks, at most 16 MiB.
fn never_taken_min(limit: usize) -> usize {
    (limit / 4).min((16 << 20) / CHUNK_BYTES)
}

/// Whether enough chunks were never taken, so that a block of them may be touched.
fn are_enough(never_taken: usize, limit: usize) -> bool {
    never_taken >= never_taken_min(limit) + CHUNKS_PER_BLOCK
}

/// The number of free chunks to keep pre-faulted when `taken` of `limit` chunks were taken: a
/// quarter of `taken`, at most a 64th of the budget, at least one block.
fn ahead(taken: usize, limit: usize) -> usize {
    (taken / 4).min(limit / 64).max(CHUNKS_PER_BLOCK)
}

impl Budget {
    /// Touches the never-taken chunks of the next block. They are the next to be taken, and most
    /// likely have no memory from the system yet. Returns their bytes, or 0 if too few chunks are
    /// left.
    pub fn clear_block(&self) -> usize {
        let inner = &self.inner;
        let _turn = inner.resizing.lock().expect("no code under this lock panics");
        let mut state = inner.lock();
        if !are_enough(
            state.free.never_taken().len(),
            inner.chunks.load(Ordering::Relaxed) as usize,
        ) {
            return 0;
        }
        let block = state.free.pop_never_taken_block();
        debug_assert!(
            !block.clone().any(|id| state.out[id as usize]),
            "their memory was never given to the system"
        );
        let bytes = block.len() * CHUNK_BYTES;
        inner.by_kind[Kind::Pages as usize].fetch_add(bytes as u64, Ordering::Relaxed);
        drop(state);
        let mut chunks: Vec<_> =
            block.map(|id| Chunk::new(Arc::clone(inner), id, Kind::Pages)).collect();
        for chunk in &mut chunks {
            chunk.iter_mut().step_by(MAPPING_ALIGN).for_each(|byte| *byte = 0);
        }
        // The budget hands out the chunk that was returned last, so return the first one last.
        while chunks.pop().is_some() {}
        bytes
    }

    /// Whether too few free chunks are cleared, and [`Budget::clear_block`] can clear more.
    pub(crate) fn wants_clearing(&self) -> bool {
        self.inner.wants_clearing(&self.inner.lock())
    }
}

impl Inner {
    pub(super) fn wants_clearing(&self, state: &State) -> bool {
        let never_taken = state.free.never_taken();
        let limit = self.chunks.load(Ordering::Relaxed) as usize;
        are_enough(never_taken.len(), limit)
            && state.free.released() + CHUNKS_PER_BLOCK <= ahead(never_taken.start as usize, limit)
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;
    use crate::budget::Backing;

    fn take(budget: &Budget, count: usize) -> Vec<Chunk> {
        (0..count).map(|_| budget.take(Kind::Pages).unwrap()).collect()
    }

    #[test]
    fn ahead_is_a_quarter_of_taken_capped_at_a_64th() {
        let gib = (1 << 30) / CHUNK_BYTES;
        assert_eq!(ahead(0, gib), CHUNKS_PER_BLOCK);
        assert_eq!(ahead(400, gib), 100);
        assert_eq!(ahead(gib / 2, gib), gib / 64);
        assert_eq!(ahead(500, 512), CHUNKS_PER_BLOCK, "a block, however small the budget");
        assert_eq!([never_taken_min(256), never_taken_min(gib)], [64, 256]);
    }

    #[test]
    fn blocks_are_cleared_once_and_taken_in_order() {
        let budget = Budget::new(32 << 20, Backing::Heap).unwrap();
        let first = budget.take(Kind::Pages).unwrap();
        let (start, free) = (first.address().as_ptr() as usize, budget.free_bytes());
        assert_eq!(
            budget.clear_block(),
            (CHUNKS_PER_BLOCK - 1) * CHUNK_BYTES,
            "up to the end of a block"
        );
        assert_eq!(budget.clear_block(), CHUNKS_PER_BLOCK * CHUNK_BYTES);
        assert_eq!(
            (budget.free_bytes(), budget.usage().of(Kind::Pages)),
            (free, CHUNK_BYTES as u64)
        );
        let next = take(&budget, CHUNKS_PER_BLOCK);
        let places: Vec<_> = next
            .iter()
            .map(|chunk| (chunk.address().as_ptr() as usize - start) / CHUNK_BYTES)
            .collect();
        assert_eq!(
            places[..2],
            [CHUNKS_PER_BLOCK, CHUNKS_PER_BLOCK + 1],
            "the chunk touched last is taken first"
        );
        while budget.clear_block() > 0 {}
        assert_eq!(budget.free_bytes(), free - (CHUNKS_PER_BLOCK * CHUNK_BYTES) as u64);
        assert!(budget.inner.lock().free.never_taken().len() >= (8 << 20) / CHUNK_BYTES);
    }

    #[test]
    fn clearing_is_wanted_only_while_fresh_chunks_are_taken() {
        let budget = Budget::new(64 << 20, Backing::Heap).unwrap();
        let taken = take(&budget, 10);
        assert!(budget.wants_clearing());
        budget.clear_block();
        budget.clear_block();
        assert!(!budget.wants_clearing());
        let more = take(&budget, 2 * CHUNKS_PER_BLOCK);
        assert!(budget.wants_clearing());
        drop(more);
        assert!(!budget.wants_clearing());
        drop(taken);
        let _all = take(&budget, 64 << 4);
        assert!(!budget.wants_clearing(), "nothing is left");
    }
}
