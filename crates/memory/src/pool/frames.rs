//! The frames' descriptors and the addresses of their bytes: flat arrays for the largest pool that
//! the budget allows. Parts beyond the pool's largest size so far are untouched. Parts beyond its
//! present size are returned to the system.
#![allow(unsafe_code, reason = "makes arrays of atomics from zeroed memory")]

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::AtomicPtr;

use super::Touch;
use super::frame::{Frame, PageKey, Pin};
use super::table::{Fingerprint, SLOTS_PER_FRAME, Slots, Table};
use crate::budget::Backing;
use crate::budget::chunk::{CHUNK_BYTES, Chunk};
use crate::cpu_prefetch::{prefetch_address, prefetch_from};
use crate::page::PAGE_BYTES;
use crate::reserved::Reserved;
use crate::sync::{AtomicU64, Ordering};

/// Bytes at the beginning of a page that are prefetched when it is found: those that most readers
/// read first.
const HEAD_BYTES: usize = 128;

/// Frames of a chunk.
pub(super) const FRAMES_PER_CHUNK: usize = CHUNK_BYTES / PAGE_BYTES;

pub(super) struct Frames {
    frames: Descriptors,
    /// First byte of each chunk held.
    chunks: Reserved<AtomicPtr<u8>>,
    table: Table,
    /// Upper bound on the versions of descriptors whose memory was returned. Changed under the
    /// pool's lock.
    last_version: AtomicU64,
}

#[cfg(not(any(loom, all(test, shuttle))))]
type Descriptors = Reserved<Frame>;
#[cfg(any(loom, all(test, shuttle)))]
type Descriptors = Box<[Frame]>;

impl Frames {
    /// Bytes of memory for this many chunks.
    pub(super) fn table_bytes(chunks: usize) -> usize {
        let frames = chunks * FRAMES_PER_CHUNK;
        frames * size_of::<Frame>()
            + chunks * size_of::<AtomicPtr<u8>>()
            + frames * SLOTS_PER_FRAME * size_of::<AtomicU64>()
    }

    /// Makes descriptors for `chunks`, which [`Frames::grow`] can raise to `ceiling`.
    ///
    /// # Errors
    /// The system refuses the address space.
    pub(super) fn new(chunks: usize, ceiling: usize, backing: Backing) -> io::Result<Self> {
        let frames = ceiling * FRAMES_PER_CHUNK;
        Ok(Self {
            frames: free_frames(frames, backing)?,
            // SAFETY: null is all zeros, and a pointer here is atomic.
            chunks: unsafe { Reserved::zeroed(ceiling, backing) }?,
            table: Table::new(free_slots(frames * SLOTS_PER_FRAME, backing)?, slots_for(chunks)),
            last_version: AtomicU64::new(0),
        })
    }

    /// Makes the table large enough for `chunks`. Under the pool's lock.
    pub(super) fn grow(&self, chunks: usize) {
        self.table.resize(slots_for(chunks));
    }

    /// Shrinks the page table to the size for `chunks`, and returns the memory of all arrays beyond
    /// `chunks` to the system. Chunks from `used` on were never held. Under the pool's lock; the
    /// frames from `chunks` on are free.
    pub(super) fn shrink(&self, chunks: usize, used: usize) {
        let behind = &self.frames[chunks * FRAMES_PER_CHUNK..used.max(chunks) * FRAMES_PER_CHUNK];
        let last = behind.iter().map(|frame| frame.state().version()).max().unwrap_or(0);
        self.last_version.fetch_max(last, Ordering::Relaxed);
        self.table.resize(slots_for(chunks));
        release(&self.frames, chunks * FRAMES_PER_CHUNK);
        release(self.table.slots(), self.table.len());
        self.chunks.release(chunks);
    }

    #[inline]
    pub(super) fn get(&self, frame: u32) -> &Frame {
        &self.frames[frame as usize]
    }

    /// The descriptors of the first `chunks` chunks.
    pub(super) fn of_chunks(&self, chunks: usize) -> &[Frame] {
        &self.frames[..chunks * FRAMES_PER_CHUNK]
    }

    /// The frame that holds the page, if `is_it` returns true for it. [`Table`] describes the
    /// entries that a search without the pool's lock may miss.
    #[inline]
    pub(super) fn find(&self, key: PageKey, mut is_it: impl FnMut(&Frame) -> bool) -> Option<u32> {
        self.table.find(Fingerprint::of(key), |frame| is_it(self.get(frame)))
    }

    /// The frame that holds the page, and a pin that keeps the page there. [`Table`] describes the
    /// entries that a search without the pool's lock may miss.
    #[inline]
    pub(super) fn hold(&self, key: PageKey, touch: Touch) -> Option<(u32, Pin)> {
        let mut pin = None;
        let frame = self.table.find(Fingerprint::of(key), |frame| {
            // Prefetch now, because the processor would otherwise wait for the descriptor before it
            // fetches the page.
            self.prefetch_bytes(frame, HEAD_BYTES);
            pin = self.get(frame).try_hold(key, touch);
            pin.is_some()
        })?;
        pin.map(|pin| (frame, pin))
    }

    /// Address range of the descriptors, and so of everything that this pool's readers publish.
    pub(super) fn addresses(&self) -> Range<usize> {
        let frames = self.frames.as_ptr_range();
        frames.start.addr()..frames.end.addr()
    }

    /// The frame that holds the page or is loading it. Under the pool's lock.
    pub(super) fn find_any(&self, key: PageKey) -> Option<u32> {
        self.find(key, |frame| frame.key() == key)
    }

    /// Enters the frame into the table under its key. Under the pool's lock.
    pub(super) fn enter(&self, frame: u32) {
        self.table.insert(Fingerprint::of(self.get(frame).key()), frame);
    }

    /// Undoes `enter`, before the key changes. Under the pool's lock.
    pub(super) fn forget(&self, frame: u32) {
        self.table.remove(Fingerprint::of(self.get(frame).key()), frame);
    }

    /// Makes the frames of an empty slot usable. Under the pool's lock.
    pub(super) fn renew(&self, slot: u32) {
        let first = slot as usize * FRAMES_PER_CHUNK;
        let version = self.last_version.load(Ordering::Relaxed);
        self.frames[first..first + FRAMES_PER_CHUNK]
            .iter()
            .for_each(|frame| frame.raise_version(version));
    }

    pub(super) fn set_chunk(&self, slot: u32, chunk: Option<&Chunk>) {
        let address = chunk.map_or(std::ptr::null_mut(), |chunk| chunk.address().as_ptr());
        // Relaxed: a reader loads this address after it pinned a frame of the chunk, and the
        // frame's word orders the two.
        self.chunks[slot as usize].store(address, Ordering::Relaxed);
    }

    /// Prefetches the descriptor of the frame that has the page, if it is found, and the first
    /// bytes there. Does not check the frame's key, because that would wait for the descriptor and
    /// the fingerprint is nearly always right. Holds no frame, because it reads no bytes.
    #[inline]
    pub(super) fn prefetch(&self, key: PageKey, len: usize) {
        if let Some(frame) = self.table.find(Fingerprint::of(key), |_| true) {
            prefetch_address(self.get(frame));
            self.prefetch_bytes(frame, len);
        }
    }

    /// Prefetches the slot of the page table at which the search for the page begins.
    #[inline]
    pub(super) fn prefetch_slot(&self, key: PageKey) {
        self.table.prefetch(Fingerprint::of(key));
    }

    /// Prefetches the first bytes of a frame.
    #[inline]
    fn prefetch_bytes(&self, frame: u32, len: usize) {
        let chunk = self.chunks[frame as usize / FRAMES_PER_CHUNK].load(Ordering::Relaxed);
        prefetch_from(chunk.wrapping_add(frame as usize % FRAMES_PER_CHUNK * PAGE_BYTES), len);
    }

    /// Address of a frame's first byte; certain while the frame is pinned or loading.
    #[inline]
    pub(super) fn address(&self, frame: u32) -> NonNull<u8> {
        let chunk = self.chunks[frame as usize / FRAMES_PER_CHUNK].load(Ordering::Relaxed);
        let chunk = NonNull::new(chunk).expect("the chunk of a pinned frame is held");
        // SAFETY: the offset lies inside the chunk.
        unsafe { chunk.add(frame as usize % FRAMES_PER_CHUNK * PAGE_BYTES) }
    }
}

fn slots_for(chunks: usize) -> usize {
    chunks * FRAMES_PER_CHUNK * SLOTS_PER_FRAME
}

#[cfg(not(any(loom, all(test, shuttle))))]
fn release<T>(array: &Reserved<T>, from: usize) {
    array.release(from);
}

#[cfg(any(loom, all(test, shuttle)))]
fn release<T>(_: &[T], _: usize) {}

#[cfg(not(any(loom, all(test, shuttle))))]
fn free_frames(frames: usize, backing: Backing) -> io::Result<Descriptors> {
    // SAFETY: all zeros is a free frame, and it is made of atomics.
    unsafe { Reserved::zeroed(frames, backing) }
}

#[cfg(not(any(loom, all(test, shuttle))))]
fn free_slots(slots: usize, backing: Backing) -> io::Result<Slots> {
    // SAFETY: all-zero bytes are a valid zero, and a slot is an atomic.
    unsafe { Reserved::zeroed(slots, backing) }
}

#[cfg(any(loom, all(test, shuttle)))]
fn free_frames(frames: usize, _: Backing) -> io::Result<Descriptors> {
    Ok((0..frames).map(|_| Frame::new()).collect())
}

#[cfg(any(loom, all(test, shuttle)))]
fn free_slots(slots: usize, _: Backing) -> io::Result<Slots> {
    Ok((0..slots).map(|_| AtomicU64::new(0)).collect())
}
