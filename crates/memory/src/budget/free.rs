//! The free chunks, as a queue with two ends: released chunks are added to the back.
//!
//! Chunks that were never taken are stored as a range of numbers, so that the cost of making a
//! budget does not depend on its size.

use std::collections::VecDeque;
use std::ops::Range;

use crate::arena::CHUNKS_PER_BLOCK;

/// The free chunks. From the front: chunks pushed to the front, chunks never taken (the last number
/// first), and chunks returned (the latest last).
#[derive(Debug, Default)]
pub(super) struct Free {
    front: VecDeque<u32>,
    fresh: Range<u32>,
    back: VecDeque<u32>,
}

impl Free {
    /// A list of chunks that were never taken.
    pub(super) fn fresh(chunks: Range<u32>) -> Self {
        Self { fresh: chunks, ..Self::default() }
    }

    /// Number of free chunks.
    pub(super) fn len(&self) -> usize {
        self.front.len() + self.fresh.len() + self.back.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The chunk at a place, from the front.
    pub(super) fn at(&self, place: usize) -> u32 {
        let behind = place.checked_sub(self.front.len());
        match behind.map(|behind| behind.checked_sub(self.fresh.len()).ok_or(behind)) {
            None => self.front[place],
            Some(Err(fresh)) => self.fresh.end - 1 - fresh as u32,
            Some(Ok(back)) => self.back[back],
        }
    }

    /// Adds a chunk to the front, where it is retired first and taken last.
    pub(super) fn push_front(&mut self, id: u32) {
        self.front.push_front(id);
    }

    /// Adds a chunk that was released.
    pub(super) fn push_back(&mut self, id: u32) {
        self.back.push_back(id);
    }

    /// Takes the chunk at the front.
    pub(super) fn pop_front(&mut self) -> Option<u32> {
        let from_fresh = || self.fresh.next_back();
        self.front.pop_front().or_else(from_fresh).or_else(|| self.back.pop_front())
    }

    /// Takes the chunk at the back: the one that was released last, if any.
    pub(super) fn pop_back(&mut self) -> Option<u32> {
        let from_fresh = || self.fresh.next();
        self.back.pop_back().or_else(from_fresh).or_else(|| self.front.pop_back())
    }

    /// The chunks that were never taken.
    pub(super) fn never_taken(&self) -> Range<u32> {
        self.fresh.clone()
    }

    /// Number of chunks that were released.
    pub(super) fn released(&self) -> usize {
        self.back.len()
    }

    /// Takes the never-taken chunks that [`Free::pop_back`] would take first, up to the end of
    /// their block.
    pub(super) fn pop_never_taken_block(&mut self) -> Range<u32> {
        let start = self.fresh.start;
        self.fresh.start =
            (start + 1).next_multiple_of(CHUNKS_PER_BLOCK as u32).min(self.fresh.end);
        start..self.fresh.start
    }

    /// Takes up to `count` never-taken chunks if [`Free::pop_front`] would take these next;
    /// otherwise none.
    pub(super) fn pop_fresh(&mut self, count: usize) -> Range<u32> {
        if !self.front.is_empty() {
            return 0..0;
        }
        let end = self.fresh.end;
        self.fresh.end -= count.min(self.fresh.len()) as u32;
        self.fresh.end..end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_list_behaves_like_one_deque() {
        for seed in 1..if cfg!(miri) { 2 } else { 50u64 } {
            let mut state = seed;
            let mut below = |bound: u64| {
                state =
                    state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                (state >> 33) % bound
            };
            let count = below(20) as u32;
            let (mut free, mut queue) =
                (Free::fresh(0..count), (0..count).rev().collect::<VecDeque<u32>>());
            for next in 1000..1200 {
                match below(6) {
                    5 => {
                        let first = queue.iter().copied().filter(|id| *id < 1000).min();
                        let taken = free.pop_never_taken_block();
                        assert_eq!(taken.clone().next(), first);
                        assert!(
                            taken.is_empty()
                                || taken.end % 32 == 0
                                || free.never_taken().is_empty()
                        );
                        queue.retain(|id| !taken.contains(id));
                    }
                    0 => assert_eq!(free.pop_front(), queue.pop_front()),
                    1 => assert_eq!(free.pop_back(), queue.pop_back()),
                    2 => {
                        let taken = free.pop_fresh(below(4) as usize);
                        taken.rev().for_each(|id| assert_eq!(Some(id), queue.pop_front()));
                    }
                    3 => {
                        free.push_front(next);
                        queue.push_front(next);
                    }
                    _ => {
                        free.push_back(next);
                        queue.push_back(next);
                    }
                }
                assert_eq!((free.len(), free.is_empty()), (queue.len(), queue.is_empty()));
                (0..queue.len()).for_each(|place| assert_eq!(free.at(place), queue[place]));
            }
        }
    }
}
