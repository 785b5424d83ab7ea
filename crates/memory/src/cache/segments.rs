//! The cache's memory: chunks of the budget, cut into segments of one size.
//!
//! A segment is a whole chunk in a large cache and a part of one in a small cache, so that a few half-filled segments weigh little in
//! either. Segments belong to a queue, to the index, or to nobody.
//!
//! Law: the chunks of all segments are held until the cache is dropped or gives them back, and only segments of nobody are given back.
#![allow(unsafe_code, reason = "readers look at bytes of chunks that the cache holds, without a lock")]

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::budget::{Budget, Kind};
use crate::chunk::{CHUNK_BYTES, Chunk};

/// Segments in the largest cache that has small ones: beyond that they grow with it, up to a chunk.
const SEGMENTS_AIMED_AT: u64 = 256;
const MIN_SEGMENT_BYTES: u64 = 4096;

/// What readers and the writer share: where segments stand, and how they follow each other.
pub(super) struct Segments {
    shift: u32,
    chunks: Box<[AtomicPtr<u8>]>,
    /// By segment: the one in which an entry that does not end in it goes on.
    next: Box<[AtomicU32]>,
}

impl Segments {
    /// For a cache of `memory_bytes` that may grow to `max_chunks`.
    pub(super) fn new(memory_bytes: u64, max_chunks: usize) -> Self {
        let bytes = (memory_bytes / SEGMENTS_AIMED_AT).clamp(MIN_SEGMENT_BYTES, CHUNK_BYTES as u64);
        let shift = bytes.ilog2();
        Self {
            shift,
            chunks: (0..max_chunks).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect(),
            next: (0..max_chunks * (CHUNK_BYTES >> shift)).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Heap memory of the tables.
    pub(super) fn heap_bytes(&self) -> u64 {
        (size_of_val(&*self.chunks) + size_of_val(&*self.next)) as u64
    }

    /// Bytes of a segment.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        1 << self.shift
    }

    /// log2 of the words of 8 bytes in a segment.
    #[inline]
    pub(super) fn words_shift(&self) -> u32 {
        self.shift - 3
    }

    #[inline]
    fn per_chunk_shift(&self) -> u32 {
        CHUNK_BYTES.ilog2() - self.shift
    }

    #[inline]
    fn address(&self, segment: u32) -> *mut u8 {
        let shift = self.per_chunk_shift();
        // Acquire: pairs with the Release in `Owner::adopt`.
        let chunk = self.chunks[(segment >> shift) as usize].load(Ordering::Acquire);
        let offset = ((segment & ((1 << shift) - 1)) as usize) << self.shift;
        chunk.wrapping_add(offset)
    }

    /// The segment in which entries of this one go on.
    #[inline]
    pub(super) fn next(&self, segment: u32) -> u32 {
        // Relaxed: written before the entry that goes on there was published.
        self.next[segment as usize].load(Ordering::Relaxed)
    }

    pub(super) fn link(&self, segment: u32, next: u32) {
        self.next[segment as usize].store(next, Ordering::Relaxed);
    }

    /// Bytes of a segment.
    ///
    /// # Safety
    /// They were written before, and nobody writes them as long as the slice lives: a claimed line of [`super::readers::Readers`]
    /// holds the segment, or the caller holds the cache's lock and the segment belongs to a queue.
    #[inline]
    pub(super) unsafe fn slice(&self, segment: u32, offset: usize, len: usize) -> &[u8] {
        debug_assert!(offset + len <= self.bytes());
        // SAFETY: inside a chunk that the cache holds; initialised like all of the arena; unwritten meanwhile, as the caller says.
        unsafe { std::slice::from_raw_parts(self.address(segment).add(offset), len) }
    }

    /// Writes into a segment.
    ///
    /// # Safety
    /// The caller holds the cache's lock, the segment belongs to a queue, and no published entry stands in these bytes.
    pub(super) unsafe fn write(&self, segment: u32, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.bytes());
        // SAFETY: inside a chunk that the cache holds, and nobody reads these bytes, as the caller says. `bytes` may be of the arena, but not
        // these.
        unsafe { self.address(segment).add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// A segment of the index.
    ///
    /// # Safety
    /// The segment belongs to the index, for ever, and everybody sees it through this method only.
    #[inline]
    pub(super) unsafe fn words(&self, segment: u32) -> &[AtomicU64] {
        // SAFETY: inside a chunk that the cache holds, aligned to 4 KiB, initialised, and only ever seen as atomics.
        unsafe { std::slice::from_raw_parts(self.address(segment).cast::<AtomicU64>(), self.bytes() / 8) }
    }
}

/// Who owns which segment. Under the cache's lock.
pub(super) struct Owner {
    budget: Budget,
    chunks: Vec<Option<Chunk>>,
    /// By chunk: segments that nobody has.
    free_of_chunk: Vec<u8>,
    free: Vec<u32>,
    /// Segments of all chunks held.
    held: usize,
    /// The most segments in use.
    limit: usize,
}

impl Owner {
    pub(super) fn new(budget: &Budget, segments: &Segments, limit_bytes: u64) -> Self {
        let max_chunks = segments.chunks.len();
        Self {
            budget: budget.clone(),
            chunks: (0..max_chunks).map(|_| None).collect(),
            free_of_chunk: vec![0; max_chunks],
            free: Vec::with_capacity(segments.next.len()),
            held: 0,
            limit: (limit_bytes >> segments.shift) as usize,
        }
    }

    /// Heap memory of the tables.
    pub(super) fn heap_bytes(&self) -> u64 {
        (self.chunks.len() * (size_of::<Option<Chunk>>() + 1) + self.free.capacity() * 4) as u64
    }

    /// Segments that a queue, the index or a reader has.
    pub(super) fn used(&self) -> usize {
        self.held - self.free.len()
    }

    /// Segments of the chunks held that nobody has.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn limit_bytes(&self, segments: &Segments) -> u64 {
        (self.limit as u64) << segments.shift
    }

    pub(super) fn set_limit(&mut self, segments: &Segments, limit_bytes: u64) {
        self.limit = (limit_bytes >> segments.shift) as usize;
    }

    /// Whether `wanted` segments can be taken now; asks the budget for free chunks, and nobody for more.
    pub(super) fn provide(&mut self, segments: &Segments, wanted: usize) -> bool {
        if self.used() + wanted > self.limit {
            return false;
        }
        while self.free.len() < wanted {
            let Some(chunk) = self.budget.try_take(Kind::Objects) else { return false };
            self.adopt(segments, chunk);
        }
        true
    }

    fn adopt(&mut self, segments: &Segments, chunk: Chunk) {
        let at = self.chunks.iter().position(Option::is_none).expect("a cache holds no more than its budget has");
        // Release: pairs with the Acquire in `Segments::address`.
        segments.chunks[at].store(chunk.address().as_ptr(), Ordering::Release);
        self.chunks[at] = Some(chunk);
        let shift = segments.per_chunk_shift();
        let first = (at as u32) << shift;
        self.free.extend((first..first + (1 << shift)).rev());
        self.free_of_chunk[at] = 1 << shift;
        self.held += 1 << shift;
    }

    /// A segment, if one is free.
    pub(super) fn take(&mut self, segments: &Segments) -> Option<u32> {
        let segment = self.free.pop()?;
        self.free_of_chunk[(segment >> segments.per_chunk_shift()) as usize] -= 1;
        Some(segment)
    }

    /// Takes a segment back that nobody reads.
    pub(super) fn give_back(&mut self, segments: &Segments, segment: u32) {
        self.free.push(segment);
        self.free_of_chunk[(segment >> segments.per_chunk_shift()) as usize] += 1;
    }

    /// Gives up to `wanted` chunks of which no segment is in use back to the budget; how many.
    pub(super) fn release_chunks(&mut self, segments: &Segments, wanted: usize) -> usize {
        let shift = segments.per_chunk_shift();
        let whole = 1u8 << shift;
        let mut released = 0;
        for at in 0..self.chunks.len() {
            if released < wanted && self.free_of_chunk[at] == whole {
                self.free.retain(|segment| segment >> shift != at as u32);
                self.free_of_chunk[at] = 0;
                self.held -= usize::from(whole);
                self.chunks[at] = None;
                released += 1;
            }
        }
        released
    }
}
