//! The cache's memory: chunks of the budget, cut into segments of one size.
//!
//! A segment is a whole chunk in a large cache and a part of one in a small cache, so that
//! half-filled segments waste little memory in both. A segment belongs to a queue or to the index,
//! or is free.
//!
//! Invariant: the chunks of all segments are held until the cache is dropped or returns them, and
//! only free segments are returned.
#![allow(unsafe_code, reason = "readers read bytes of chunks that the cache holds, without a lock")]

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::budget::chunk::{CHUNK_BYTES, Chunk};
use crate::budget::{Budget, Kind};
use crate::cpu_prefetch::prefetch_address;

/// Target number of segments. It determines the size of a segment, which is at least
/// [`MIN_SEGMENT_BYTES`] and at most a chunk.
const SEGMENTS_AIMED_AT: u64 = 256;
const MIN_SEGMENT_BYTES: u64 = 4096;

/// State shared by readers and the writer: the addresses of the segments, and their order.
pub(super) struct Segments {
    shift: u32,
    chunks: Box<[AtomicPtr<u8>]>,
    /// Indexed by segment: the segment where an entry that crosses its end continues.
    next: Box<[AtomicU32]>,
}

impl Segments {
    /// Tables for a cache of `memory_bytes` that may grow to `max_chunks`.
    pub(super) fn new(memory_bytes: u64, max_chunks: usize) -> Self {
        let bytes = (memory_bytes / SEGMENTS_AIMED_AT).clamp(MIN_SEGMENT_BYTES, CHUNK_BYTES as u64);
        let shift = bytes.ilog2();
        Self {
            shift,
            // SAFETY: an atomic of zeros holds a null pointer.
            chunks: unsafe { Box::new_zeroed_slice(max_chunks).assume_init() },
            next: zeros(max_chunks * (CHUNK_BYTES >> shift)),
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

    /// The segment where entries of this one continue.
    #[inline]
    pub(super) fn next(&self, segment: u32) -> u32 {
        // Relaxed: written before the continued entry was published.
        self.next[segment as usize].load(Ordering::Relaxed)
    }

    pub(super) fn link(&self, segment: u32, next: u32) {
        self.next[segment as usize].store(next, Ordering::Relaxed);
    }

    /// Bytes of a segment.
    ///
    /// # Safety
    /// They were written before, and are not written again as long as the slice lives: a claimed
    /// line of [`super::readers::Readers`] holds the segment, or the caller holds the cache's lock
    /// and the segment belongs to a queue.
    #[inline]
    pub(super) unsafe fn slice(&self, segment: u32, offset: usize, len: usize) -> &[u8] {
        debug_assert!(offset + len <= self.bytes());
        // SAFETY: inside a chunk that the cache holds; initialised like all of the arena; unwritten
        // meanwhile, as the caller guarantees.
        unsafe { std::slice::from_raw_parts(self.address(segment).add(offset), len) }
    }

    /// Prefetches bytes of a segment.
    #[inline]
    pub(super) fn prefetch(&self, segment: u32, offset: usize) {
        prefetch_address(self.address(segment).wrapping_add(offset));
    }

    /// Writes into a segment.
    ///
    /// # Safety
    /// The caller holds the cache's lock, the segment belongs to a queue, and no published entry
    /// occupies these bytes.
    pub(super) unsafe fn write(&self, segment: u32, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.bytes());
        // SAFETY: inside a chunk that the cache holds, with no reader of these bytes, as the caller
        // guarantees. `bytes` may be of the arena, but must not overlap these.
        unsafe {
            self.address(segment).add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        }
    }

    /// A segment of the index, as atomic words.
    ///
    /// # Safety
    /// The segment belongs to the index as long as the slice is used, and is accessed only through
    /// this method meanwhile.
    #[inline]
    pub(super) unsafe fn words(&self, segment: u32) -> &[AtomicU64] {
        // SAFETY: inside a chunk that the cache holds, aligned to 4 KiB, initialised, and accessed
        // only as atomics meanwhile, as the caller guarantees.
        unsafe {
            std::slice::from_raw_parts(self.address(segment).cast::<AtomicU64>(), self.bytes() / 8)
        }
    }
}

/// Ownership of the segments. Under the cache's lock.
///
/// A chunk with some free segments is in one list, a chunk with all free in another. Taking a
/// segment, returning it, and giving a chunk to the budget therefore cost the same for any number
/// of chunks. Segments of chunks already in use are taken first.
pub(super) struct Owner {
    budget: Budget,
    max_chunks: usize,
    /// By chunk number, up to the highest assigned so far. The unused rest of these tables takes no
    /// memory or time.
    chunks: Vec<Option<Chunk>>,
    /// Indexed by chunk: bitmask of its free segments.
    free_of_chunk: Vec<u16>,
    /// Indexed by chunk: its position in its list.
    place_of_chunk: Vec<u32>,
    /// Chunks with some free segments, but not all.
    partly_free: Vec<u32>,
    /// Chunks with only free segments.
    wholly_free: Vec<u32>,
    /// Numbers below `chunks.len()` that no chunk has any more.
    vacant: Vec<u32>,
    /// Free segments.
    free: usize,
    /// Segments of all chunks held.
    held: usize,
    /// The most segments that may be in use.
    limit: usize,
    /// The limit while entries are moved; above `limit` after a reduction.
    ceiling: usize,
}

impl Owner {
    pub(super) fn new(budget: &Budget, segments: &Segments, limit_bytes: u64) -> Self {
        let max_chunks = segments.chunks.len();
        let limit = (limit_bytes >> segments.shift) as usize;
        Self {
            budget: budget.clone(),
            max_chunks,
            chunks: Vec::with_capacity(max_chunks),
            free_of_chunk: vec![0; max_chunks],
            place_of_chunk: vec![0; max_chunks],
            partly_free: Vec::with_capacity(max_chunks),
            wholly_free: Vec::with_capacity(max_chunks),
            vacant: Vec::with_capacity(max_chunks),
            free: 0,
            held: 0,
            limit,
            ceiling: limit,
        }
    }

    /// Heap memory of the tables.
    pub(super) fn heap_bytes(&self) -> u64 {
        let of_chunk = size_of::<Option<Chunk>>() + size_of::<u16>() + 4 * size_of::<u32>();
        (self.max_chunks * of_chunk) as u64
    }

    /// Segments in use by a queue, the index or a reader.
    pub(super) fn used(&self) -> usize {
        self.held - self.free
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn limit_bytes(&self, segments: &Segments) -> u64 {
        (self.limit as u64) << segments.shift
    }

    /// Changes the limit. After a reduction, entries may be moved within the old limit until
    /// [`Owner::end_shrinking`].
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.ceiling = self.ceiling.max(limit);
        self.limit = limit;
    }

    /// Ends the exception for moves that [`Owner::set_limit`] granted.
    pub(super) fn end_shrinking(&mut self) {
        self.ceiling = self.limit;
    }

    /// Whether `wanted` segments can be taken now; takes free chunks from the budget if needed,
    /// without reclaiming.
    pub(super) fn ensure_free(&mut self, segments: &Segments, wanted: usize) -> bool {
        self.used() + wanted <= self.limit && self.hold(segments, wanted)
    }

    /// Like [`Owner::ensure_free`], for moving an entry, which soon frees as many segments as it
    /// takes.
    pub(super) fn ensure_free_for_move(&mut self, segments: &Segments, wanted: usize) -> bool {
        self.used() + wanted <= self.ceiling && self.hold(segments, wanted)
    }

    fn hold(&mut self, segments: &Segments, wanted: usize) -> bool {
        while self.free < wanted {
            let Some(chunk) = self.budget.try_take(Kind::Objects) else { return false };
            self.adopt(segments, chunk);
        }
        true
    }

    /// Adds a chunk, with all of its segments free.
    pub(super) fn adopt(&mut self, segments: &Segments, chunk: Chunk) {
        let at = self.vacant.pop().unwrap_or_else(|| {
            assert!(self.chunks.len() < self.max_chunks, "a cache holds at most its budget");
            self.chunks.push(None);
            self.chunks.len() as u32 - 1
        });
        // Release: pairs with the Acquire in `Segments::address`.
        segments.chunks[at as usize].store(chunk.address().as_ptr(), Ordering::Release);
        self.chunks[at as usize] = Some(chunk);
        self.free_of_chunk[at as usize] = all_free(segments);
        enter(&mut self.wholly_free, &mut self.place_of_chunk, at);
        self.free += 1 << segments.per_chunk_shift();
        self.held += 1 << segments.per_chunk_shift();
    }

    /// Takes a segment, if one is free.
    pub(super) fn take(&mut self, segments: &Segments) -> Option<u32> {
        let at = *self.partly_free.last().or(self.wholly_free.last())?;
        let before = self.free_of_chunk[at as usize];
        let after = before & (before - 1);
        self.change(segments, at, before, after);
        self.free -= 1;
        Some(at << segments.per_chunk_shift() | before.trailing_zeros())
    }

    /// Takes back a segment without readers.
    pub(super) fn release(&mut self, segments: &Segments, segment: u32) {
        let shift = segments.per_chunk_shift();
        let (at, bit) = (segment >> shift, 1u16 << (segment & ((1 << shift) - 1)));
        let before = self.free_of_chunk[at as usize];
        debug_assert_eq!(before & bit, 0, "a segment is given back once");
        self.change(segments, at, before, before | bit);
        self.free += 1;
    }

    /// Moves a chunk to the right list after its free segments changed.
    fn change(&mut self, segments: &Segments, at: u32, before: u16, after: u16) {
        let all = all_free(segments);
        self.free_of_chunk[at as usize] = after;
        let list = |free: u16| if free == 0 { None } else { Some(free == all) };
        if list(before) == list(after) {
            return;
        }
        let places = &mut self.place_of_chunk;
        match list(before) {
            None => {}
            Some(false) => leave(&mut self.partly_free, places, at),
            Some(true) => leave(&mut self.wholly_free, places, at),
        }
        match list(after) {
            None => {}
            Some(false) => enter(&mut self.partly_free, places, at),
            Some(true) => enter(&mut self.wholly_free, places, at),
        }
    }

    /// Gives up to `wanted` unused chunks back to the budget, as long as `kept` segments stay free.
    /// Returns how many.
    pub(super) fn release_chunks(
        &mut self,
        segments: &Segments,
        wanted: usize,
        kept: usize,
    ) -> usize {
        let of_chunk = 1 << segments.per_chunk_shift();
        let mut released = 0;
        while released < wanted && self.free >= kept + of_chunk {
            let Some(at) = self.wholly_free.pop() else { break };
            self.free_of_chunk[at as usize] = 0;
            self.chunks[at as usize] = None;
            self.vacant.push(at);
            self.free -= of_chunk;
            self.held -= of_chunk;
            released += 1;
        }
        released
    }

    /// Recounts everything and compares it with the counters.
    pub(super) fn check(&self, segments: &Segments) {
        let all = all_free(segments);
        let of = |is: fn(u16, u16) -> bool| {
            self.free_of_chunk.iter().filter(|free| is(**free, all)).count()
        };
        assert_eq!(of(|free, all| free == all), self.wholly_free.len(), "chunks that are free");
        assert_eq!(
            of(|free, all| free != all && free != 0),
            self.partly_free.len(),
            "chunks that are partly free"
        );
        let free: u32 = self.free_of_chunk.iter().map(|free| free.count_ones()).sum();
        assert_eq!(free as usize, self.free, "segments that are free");
        let held = self.chunks.iter().flatten().count();
        assert_eq!(held << segments.per_chunk_shift(), self.held, "segments of chunks");
        assert_eq!(held + self.vacant.len(), self.chunks.len(), "numbers of chunks");
    }
}

/// A table of zeros, which takes memory at the first write.
pub(super) fn zeros(len: usize) -> Box<[AtomicU32]> {
    // SAFETY: an atomic of zeros is a zero.
    unsafe { Box::new_zeroed_slice(len).assume_init() }
}

/// All segments of a chunk.
fn all_free(segments: &Segments) -> u16 {
    u16::MAX >> (16 - (1 << segments.per_chunk_shift()))
}

fn enter(list: &mut Vec<u32>, places: &mut [u32], at: u32) {
    places[at as usize] = list.len() as u32;
    list.push(at);
}

fn leave(list: &mut Vec<u32>, places: &mut [u32], at: u32) {
    let place = places[at as usize] as usize;
    list.swap_remove(place);
    if let Some(moved) = list.get(place) {
        places[*moved as usize] = place as u32;
    }
}
