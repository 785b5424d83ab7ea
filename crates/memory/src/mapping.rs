//! A mapping: page-aligned memory that goes back to the system when it is dropped.
//!
//! Invariant: the bytes are always initialised: with zeros at first, later with a holder's
//! contents.
#![allow(unsafe_code, reason = "maps memory and lends it as slices")]

use std::fmt;
use std::ptr::NonNull;

use crate::backing::Backing;

/// Alignment and granularity of a mapping: 4 KiB.
pub(crate) const MAPPING_ALIGN: usize = 4096;

/// Bytes with a single holder.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    backing: Backing,
}

// SAFETY: a mapping is the only holder of its bytes, like a `Box<[u8]>`.
unsafe impl Send for Mapping {}
// SAFETY: a shared mapping gives shared slices only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps at least `bytes` zeros; `None` if the system has none.
    pub(crate) fn new(bytes: usize, backing: Backing) -> Option<Self> {
        assert!(bytes > 0, "a mapping has at least one byte");
        let bytes = bytes
            .checked_next_multiple_of(MAPPING_ALIGN)
            .filter(|bytes| *bytes <= isize::MAX as usize)?;
        let base = match backing {
            Backing::Mapped => map(bytes)?,
            // SAFETY: the layout has a size above zero.
            Backing::Heap => unsafe { std::alloc::alloc_zeroed(layout(bytes)) },
        };
        Some(Self { base: NonNull::new(base)?, bytes, backing })
    }

    pub(crate) fn backing(&self) -> Backing {
        self.backing
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address of the first byte, aligned to [`MAPPING_ALIGN`].
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match self.backing {
            // SAFETY: exactly what `map` mapped, and no borrow is left.
            Backing::Mapped => unsafe {
                let _ = rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes);
            },
            // SAFETY: allocated in `new` with the same layout.
            Backing::Heap => unsafe { std::alloc::dealloc(self.base.as_ptr(), layout(self.bytes)) },
        }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes)", self.bytes)
    }
}

fn layout(bytes: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(bytes, MAPPING_ALIGN)
        .expect("checked: it fits into the address space")
}

fn map(bytes: usize) -> Option<*mut u8> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    let (protection, flags) =
        (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new private mapping overlaps no other memory.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) }.ok()?;
    // Disable huge pages, because touching one byte would make all 2 MiB resident, and a huge page
    // may extend into a neighbouring mapping that is unmapped first. An error means that the system
    // has no huge pages. SAFETY: the range is the mapping just made, and the advice concerns only
    // the size of its pages.
    let _ = unsafe { madvise(base, bytes, Advice::LinuxNoHugepage) };
    Some(base.cast())
}
