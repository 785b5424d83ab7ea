//! The chunks that the pool holds, by slot. A slot is the place of a chunk's frames in the tables.
//!
//! Invariant: no chunk enters a slot at or above `max`. When `max` is lowered, chunks above it stay
//! until the caller moves them or returns them ([`super::resize`]).

use super::frames::{FRAMES_PER_CHUNK, Frames};
use crate::budget::chunk::Chunk;

pub(super) struct Slots {
    /// By slot; `None` if it is vacant.
    chunks: Vec<Option<Chunk>>,
    /// Vacant slots below `max` among `chunks`.
    vacant: Vec<u32>,
    held: usize,
    /// The most chunks that the pool takes. The tables have at least this capacity.
    max: usize,
}

impl Slots {
    /// Heap bytes for this many chunks.
    pub(super) fn heap_bytes(chunks: usize) -> usize {
        chunks * (size_of::<Option<Chunk>>() + size_of::<u32>())
    }

    pub(super) fn new(max: usize) -> Self {
        Self { chunks: Vec::with_capacity(max), vacant: Vec::with_capacity(max), held: 0, max }
    }

    /// The most chunks that the pool takes. After a reduction, chunks with held pages can exceed
    /// it.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Chunks held now.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Slots that ever held a chunk.
    pub(super) fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Capacity of the tables in slots.
    pub(super) fn capacity(&self) -> usize {
        self.max.max(self.chunks.len())
    }

    pub(super) fn is_occupied(&self, slot: u32) -> bool {
        self.chunks[slot as usize].is_some()
    }

    /// Whether the pool may hold another chunk. Chunks in slots above the maximum have the first
    /// claim on lower slots.
    pub(super) fn has_room(&self) -> bool {
        self.held < self.max && self.has_vacant_slot()
    }

    /// Whether a slot below the maximum is vacant.
    pub(super) fn has_vacant_slot(&self) -> bool {
        !self.vacant.is_empty() || self.chunks.len() < self.max
    }

    /// Whether no chunk is in a slot above the maximum.
    pub(super) fn is_within_max(&self) -> bool {
        self.chunks.iter().skip(self.max).all(Option::is_none)
    }

    /// Allocates tables for this many slots.
    pub(super) fn reserve(&mut self, slots: usize) {
        self.chunks.reserve_exact(slots - self.chunks.len());
    }

    /// Changes the maximum. The tables stay as they are.
    pub(super) fn set_max(&mut self, max: usize) {
        let first_unused = self.chunks.len().min(max);
        self.vacant.clear();
        self.vacant.reserve_exact(max);
        // The lowest is taken first.
        self.vacant.extend(
            (0..first_unused as u32).rev().filter(|&slot| self.chunks[slot as usize].is_none()),
        );
        self.max = max;
    }

    /// Shrinks the tables to the maximum, or to the highest slot that still holds a chunk.
    pub(super) fn shrink(&mut self) {
        self.chunks
            .truncate(self.chunks.iter().rposition(Option::is_some).map_or(0, |last| last + 1));
        self.vacant.retain(|&slot| (slot as usize) < self.chunks.len());
        let capacity = self.capacity();
        self.chunks.shrink_to(capacity);
        self.vacant.shrink_to(self.max);
    }

    /// Adds a chunk in a vacant slot. Its frames are free.
    pub(super) fn add(&mut self, frames: &Frames, chunk: Chunk) -> u32 {
        assert!(self.has_vacant_slot(), "the tables are made for {} chunks", self.max);
        let slot = self.vacant.pop().unwrap_or(self.chunks.len() as u32);
        frames.renew(slot);
        frames.set_chunk(slot, Some(&chunk));
        if slot as usize == self.chunks.len() {
            self.chunks.push(Some(chunk));
        } else {
            self.chunks[slot as usize] = Some(chunk);
        }
        self.held += 1;
        slot
    }

    /// Moves a chunk from a slot above the maximum to a vacant one. Returns the new slot.
    pub(super) fn move_down(&mut self, frames: &Frames, from: u32) -> u32 {
        let chunk = self.chunks[from as usize].take().expect("a chunk that is moved is held");
        frames.set_chunk(from, None);
        self.held -= 1;
        self.add(frames, chunk)
    }

    /// Gives a chunk back to the budget. None of its frames has a page.
    pub(super) fn release(&mut self, frames: &Frames, slot: u32) {
        frames.set_chunk(slot, None);
        self.chunks[slot as usize] = None;
        self.held -= 1;
        if (slot as usize) < self.max {
            self.vacant.push(slot);
        }
    }
}

/// The frames of a slot.
pub(super) fn frames_of(slot: u32) -> impl DoubleEndedIterator<Item = u32> {
    let first = slot * FRAMES_PER_CHUNK as u32;
    first..first + FRAMES_PER_CHUNK as u32
}
