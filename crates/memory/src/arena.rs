//! The memory itself: one anonymous mapping (or a heap block, for Miri), cut into chunks.
//!
//! The arena reserves address space up to a ceiling. Only the chunks below `usable` may be touched.
//!
//! Invariants:
//! 1. A decommitted chunk is not resident. While any chunk of a 2 MiB block is decommitted, the
//!    block uses small pages, because a huge page would make the decommitted chunk resident again.
//!    (The system backs an untouched block with a huge page on the first touch of any byte, and its
//!    daemon collapses partly touched blocks into huge pages.) If all chunks of a block are
//!    decommitted, the block has no page table either.
//! 2. The bytes are initialised (zero from the start, later the last holder's contents) and stay
//!    mapped until the arena is dropped. An address inside it is valid as long as the arena is
//!    held.
#![allow(unsafe_code, reason = "maps memory and hands out addresses into it")]

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use crate::backing::Backing;
use crate::reserved::Reserved;

/// Bytes of a chunk: 64 KiB.
pub const CHUNK_BYTES: usize = 64 * 1024;

/// A huge page, and the alignment of an arena.
const BLOCK_BYTES: usize = 2 << 20;
pub(crate) const CHUNKS_PER_BLOCK: usize = BLOCK_BYTES / CHUNK_BYTES;

/// Size of the system's page table for a block in use: eight bytes for each 4 KiB. A huge page
/// reserves a page table too.
const PAGE_TABLE_BYTES: usize = BLOCK_BYTES / 4096 * 8;

#[derive(Debug)]
pub(crate) struct Arena {
    base: NonNull<u8>,
    /// The number of usable chunks: those with lower numbers may be touched.
    usable: AtomicU32,
    ceiling: u32,
    backing: Backing,
    /// Indexed by block: chunks that are decommitted.
    decommitted: Reserved<AtomicU8>,
}

// SAFETY: the arena only hands out addresses; `Chunk` controls access to the bytes.
unsafe impl Send for Arena {}
// SAFETY: as above; no method touches the bytes.
unsafe impl Sync for Arena {}

impl Arena {
    /// An arena of `chunks` that can [`Arena::grow`] to `ceiling`.
    pub(crate) fn new(chunks: u32, ceiling: u32, backing: Backing) -> io::Result<Self> {
        assert!(0 < chunks && chunks <= ceiling, "an arena has at least one chunk");
        let bytes = ceiling as usize * CHUNK_BYTES;
        let base = match backing {
            Backing::Mapped => reserve(bytes)?,
            Backing::Heap => {
                // SAFETY: the layout has a size above zero.
                let block = unsafe { std::alloc::alloc_zeroed(layout(bytes)) };
                NonNull::new(block).ok_or(io::ErrorKind::OutOfMemory)?
            }
        };
        let blocks = (ceiling as usize).div_ceil(CHUNKS_PER_BLOCK);
        // SAFETY: all-zero bytes are a valid zero.
        let decommitted = unsafe { Reserved::zeroed(blocks, backing) }?;
        let arena = Self { base, usable: AtomicU32::new(0), ceiling, backing, decommitted };
        arena.grow(chunks)?;
        Ok(arena)
    }

    /// Maximum number of chunks.
    pub(crate) fn ceiling(&self) -> u32 {
        self.ceiling
    }

    pub(crate) fn backing(&self) -> Backing {
        self.backing
    }

    /// Makes the chunks below `chunks` usable. One caller at a time.
    pub(crate) fn grow(&self, chunks: u32) -> io::Result<()> {
        assert!(chunks <= self.ceiling, "{chunks} chunks of {}", self.ceiling);
        let usable = self.usable.load(Ordering::Relaxed);
        if chunks <= usable {
            return Ok(());
        }
        if self.backing == Backing::Mapped {
            open_range(
                self.base.as_ptr(),
                usable as usize * CHUNK_BYTES,
                chunks as usize * CHUNK_BYTES,
            )?;
        }
        // Relaxed: threads see new chunks only under the budget's lock.
        self.usable.store(chunks, Ordering::Relaxed);
        Ok(())
    }

    /// Address of a chunk's first byte.
    pub(crate) fn address(&self, chunk: u32) -> NonNull<u8> {
        assert!(chunk < self.usable.load(Ordering::Relaxed), "chunk {chunk} is not usable");
        // SAFETY: the chunk lies inside the mapping, as just checked.
        unsafe { self.base.add(chunk as usize * CHUNK_BYTES) }
    }
}

impl Arena {
    /// Returns the memory of an unused chunk to the system, until [`Arena::restore`]. From then on
    /// its bytes read as zeros (or unchanged, if the system cannot do this). Under the budget's
    /// lock.
    pub(crate) fn decommit(&self, chunk: u32) {
        let before =
            self.decommitted[chunk as usize / CHUNKS_PER_BLOCK].fetch_add(1, Ordering::Relaxed);
        if before == 0 {
            self.advise_block(chunk, rustix::mm::Advice::LinuxNoHugepage);
        }
        self.advise(chunk as usize * CHUNK_BYTES, CHUNK_BYTES, rustix::mm::Advice::LinuxDontNeed);
        if usize::from(before) + 1 == CHUNKS_PER_BLOCK {
            self.renew_block(chunk);
        }
    }

    /// Like [`Arena::decommit`], for several chunks that were never taken.
    pub(crate) fn decommit_fresh(&self, chunks: Range<u32>) {
        let of_block = |block: usize| {
            let start = (block * CHUNKS_PER_BLOCK).max(chunks.start as usize);
            ((block + 1) * CHUNKS_PER_BLOCK).min(chunks.end as usize) - start
        };
        let blocks = chunks.start as usize / CHUNKS_PER_BLOCK
            ..(chunks.end as usize).div_ceil(CHUNKS_PER_BLOCK);
        for block in blocks.clone() {
            self.decommitted[block].fetch_add(of_block(block) as u8, Ordering::Relaxed);
        }
        let (start, end) = (chunks.start as usize * CHUNK_BYTES, chunks.end as usize * CHUNK_BYTES);
        let usable = self.usable.load(Ordering::Relaxed) as usize * CHUNK_BYTES;
        let whole = blocks.start * BLOCK_BYTES..(blocks.end * BLOCK_BYTES).min(usable);
        self.advise(whole.start, whole.len(), rustix::mm::Advice::LinuxNoHugepage);
        // Another holder may have touched a chunk of the first block. The block may then have a
        // huge page, which makes the decommitted chunks resident too.
        self.advise(start, end - start, rustix::mm::Advice::LinuxDontNeed);
    }

    /// Upper bound on the system's page tables if the first `usable` chunks are usable and at most
    /// `chunks` of them are not decommitted.
    pub(crate) fn page_table_bytes(chunks: usize, usable: usize) -> usize {
        // In the worst case each chunk that is not decommitted lies in a separate block.
        chunks.min(usable.max(chunks).div_ceil(CHUNKS_PER_BLOCK)) * PAGE_TABLE_BYTES
    }

    /// Remaps the block of a chunk, because after `madvise` alone the system keeps the page table.
    /// All chunks of the block must be decommitted.
    fn renew_block(&self, chunk: u32) {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let start = chunk as usize / CHUNKS_PER_BLOCK * BLOCK_BYTES;
        if self.backing != Backing::Mapped
            || start + BLOCK_BYTES > self.usable.load(Ordering::Relaxed) as usize * CHUNK_BYTES
        {
            return;
        }
        let address = self.base.as_ptr().wrapping_add(start).cast();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the block lies inside the arena's mapping, is usable as a whole, and no chunk of
        // it is held.
        let renewed = unsafe { mmap_anonymous(address, BLOCK_BYTES, protection, flags) };
        let is_mapped = || {
            let flags = rustix::mm::MsyncFlags::ASYNC;
            // SAFETY: as above; the call only asks whether the block is mapped, as there is nothing
            // to write back.
            unsafe { rustix::mm::msync(address, BLOCK_BYTES, flags) }.is_ok()
        };
        if renewed.is_err() && !is_mapped() {
            // Linux before 6.12 drops the old mapping before it fails. Another thread may map
            // memory in the gap, and the arena would then overwrite it.
            std::process::abort();
        }
        self.advise_block(chunk, rustix::mm::Advice::LinuxNoHugepage);
    }

    /// Allows a decommitted chunk to be touched again. Under the budget's lock.
    pub(crate) fn restore(&self, chunk: u32) {
        if self.decommitted[chunk as usize / CHUNKS_PER_BLOCK].fetch_sub(1, Ordering::Relaxed) == 1
        {
            self.advise_block(chunk, rustix::mm::Advice::LinuxHugepage);
        }
    }

    /// Calls `madvise` for the usable part of a chunk's block.
    fn advise_block(&self, chunk: u32, advice: rustix::mm::Advice) {
        let start = chunk as usize / CHUNKS_PER_BLOCK * BLOCK_BYTES;
        let end =
            (start + BLOCK_BYTES).min(self.usable.load(Ordering::Relaxed) as usize * CHUNK_BYTES);
        self.advise(start, end - start, advice);
    }

    fn advise(&self, from: usize, bytes: usize, advice: rustix::mm::Advice) {
        if self.backing == Backing::Mapped {
            assert!(from + bytes <= self.usable.load(Ordering::Relaxed) as usize * CHUNK_BYTES);
            let address = self.base.as_ptr().wrapping_add(from).cast();
            // SAFETY: the range lies inside the mapping and is made of whole pages. The advice
            // concerns only the size of pages, or a chunk that is not held. If the system refuses,
            // it keeps more memory; nothing else changes.
            let _ = unsafe { rustix::mm::madvise(address, bytes, advice) };
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let bytes = self.ceiling as usize * CHUNK_BYTES;
        match self.backing {
            // SAFETY: exactly what `reserve` mapped; chunks hold the arena, so no chunk is left.
            Backing::Mapped => unsafe {
                let _ = rustix::mm::munmap(self.base.as_ptr().cast(), bytes);
            },
            // SAFETY: allocated in `new` with the same layout.
            Backing::Heap => unsafe { std::alloc::dealloc(self.base.as_ptr(), layout(bytes)) },
        }
    }
}

fn layout(bytes: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(bytes, CHUNK_BYTES)
        .expect("a chunk's size is a power of two")
}

/// Reserves address space for `bytes`, aligned to a huge page. It must not be touched before
/// [`open_range`].
fn reserve(bytes: usize) -> io::Result<NonNull<u8>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    // One huge page more than needed, so that the start can be aligned to one.
    let padded = bytes + BLOCK_BYTES;
    // SAFETY: a new private mapping overlaps no other memory.
    let start = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            padded,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )?
    }
    .cast::<u8>();
    let head = start.align_offset(BLOCK_BYTES);
    let base = start.wrapping_add(head);
    // SAFETY: both ranges are page-aligned parts of the mapping just made, outside [base, base +
    // bytes).
    unsafe {
        if head > 0 {
            munmap(start.cast(), head)?;
        }
        munmap(base.wrapping_add(bytes).cast(), padded - head - bytes)?;
    }
    NonNull::new(base).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Makes bytes `from..to` of the reserved address space readable and writable.
fn open_range(base: *mut u8, from: usize, to: usize) -> io::Result<()> {
    use rustix::mm::{Advice, MprotectFlags, madvise, mprotect};
    let start = base.wrapping_add(from).cast();
    // SAFETY: page-aligned and inside the mapping; no address in it was handed out yet.
    unsafe {
        mprotect(start, to - from, MprotectFlags::READ | MprotectFlags::WRITE)?;
        // A system without huge pages refuses; it then uses small pages.
        let _ = madvise(start, to - from, Advice::LinuxHugepage);
    }
    Ok(())
}
