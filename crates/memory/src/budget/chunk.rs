//! A chunk: the unit in which the budget hands out memory.
#![allow(unsafe_code, reason = "a chunk is a slice of the arena with a single holder")]

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

pub use crate::arena::CHUNK_BYTES;
use crate::budget::{Inner, Kind};

/// 64 KiB of the arena with exclusive access; returned on drop. The contents are those of the last
/// holder.
pub struct Chunk {
    address: NonNull<u8>,
    id: u32,
    kind: Kind,
    budget: Arc<Inner>,
}

// SAFETY: a chunk is the only holder of its bytes, like a `Box<[u8]>`.
unsafe impl Send for Chunk {}
// SAFETY: a shared chunk gives shared slices only.
unsafe impl Sync for Chunk {}

impl Chunk {
    pub(crate) fn new(budget: Arc<Inner>, id: u32, kind: Kind) -> Self {
        Self { address: budget.address(id), id, kind, budget }
    }

    /// Address of the first byte, for this crate's structures that share a chunk between threads.
    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// The purpose of the chunk.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the arena lives as long as `budget`, its bytes are initialised, and no other
        // chunk has this id.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), CHUNK_BYTES) }
    }
}

impl DerefMut for Chunk {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), CHUNK_BYTES) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.budget.release_chunk(self.id, self.kind);
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({}, {:?})", self.id, self.kind)
    }
}
