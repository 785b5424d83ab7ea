//! Pieces of chunks, for holders that need little memory. A chunk is cut into pieces of one size,
//! and many holders share it.
//!
//! Invariants:
//! 1. A chunk is held while any piece of it is; dropping the last piece returns it.
//! 2. A piece has one holder. Its contents are those of the last holder.
#![allow(unsafe_code, reason = "pieces of one chunk have different holders")]

use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use plimsoll_disk::fork::Origin;

use crate::budget::chunk::{CHUNK_BYTES, Chunk};
use crate::budget::{Budget, Kind, OutOfBudget};
use crate::sync::{Mutex, MutexGuard};

/// The smallest piece: a chunk has at most as many pieces as `Cut::used` has bits.
pub const MIN_PIECE_BYTES: usize = CHUNK_BYTES / u128::BITS as usize;

/// Chunks that are cut into pieces of one size. Clones share them.
#[derive(Clone)]
pub struct Pieces {
    inner: Arc<Inner>,
}

struct Inner {
    budget: Budget,
    kind: Kind,
    piece_bytes: usize,
    cuts: Mutex<Cuts>,
    origin: Origin,
}

#[derive(Default)]
struct Cuts {
    /// Indexed by the cut's number; `None` once its chunk was returned. The number is then reused.
    cuts: Vec<Option<Cut>>,
    /// Numbers without a cut.
    unused: Vec<usize>,
    /// Cuts with a free piece. The lowest is used first, so that the others become empty.
    with_room: BTreeSet<usize>,
}

/// A chunk that is cut into pieces.
struct Cut {
    chunk: Chunk,
    /// Bitmask of the pieces that are held.
    used: u128,
}

impl Pieces {
    /// Pieces of `piece_bytes` (a power of two, at least [`MIN_PIECE_BYTES`] and less than a
    /// chunk).
    pub fn new(budget: &Budget, kind: Kind, piece_bytes: usize) -> Self {
        assert!(
            piece_bytes.is_power_of_two() && (MIN_PIECE_BYTES..CHUNK_BYTES).contains(&piece_bytes)
        );
        let (budget, cuts, origin) = (budget.clone(), Mutex::new(Cuts::default()), Origin::here());
        Self { inner: Arc::new(Inner { budget, kind, piece_bytes, cuts, origin }) }
    }

    /// Bytes of a piece.
    pub fn piece_bytes(&self) -> usize {
        self.inner.piece_bytes
    }

    /// Takes a piece, and a chunk if no piece is free.
    ///
    /// # Errors
    /// [`OutOfBudget`]; nothing is taken.
    pub fn take(&self) -> Result<Piece, OutOfBudget> {
        let inner = &self.inner;
        if let Some(piece) = inner.take_free(&mut inner.lock()) {
            return Ok(piece);
        }
        // Take the chunk without the lock, because the budget may have to reclaim memory.
        let chunk = inner.budget.take(inner.kind)?;
        let mut cuts = inner.lock();
        if let Some(piece) = inner.take_free(&mut cuts) {
            // Another holder returned a piece meanwhile. Do not cut the new chunk, because a cut
            // without a held piece would never release its chunk.
            drop(cuts);
            drop(chunk);
            return Ok(piece);
        }
        let number = cuts.unused.pop().unwrap_or(cuts.cuts.len());
        let cut = Some(Cut { chunk, used: 0 });
        match cuts.cuts.get_mut(number) {
            Some(place) => *place = cut,
            None => cuts.cuts.push(cut),
        }
        cuts.with_room.insert(number);
        Ok(inner.take_free(&mut cuts).expect("a chunk was cut just now"))
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Cuts> {
        self.cuts.lock().expect("no code under this lock panics")
    }

    fn all_used(&self) -> u128 {
        u128::MAX >> (u128::BITS as usize - CHUNK_BYTES / self.piece_bytes)
    }

    fn take_free(self: &Arc<Self>, cuts: &mut Cuts) -> Option<Piece> {
        let cut_number = *cuts.with_room.first()?;
        let cut = cuts.cuts[cut_number].as_mut().expect("a cut with room exists");
        let number = cut.used.trailing_ones();
        cut.used |= 1 << number;
        // SAFETY: the piece lies inside the chunk, as its number is below the count of pieces.
        let address = unsafe { cut.chunk.address().add(number as usize * self.piece_bytes) };
        if cut.used == self.all_used() {
            cuts.with_room.remove(&cut_number);
        }
        Some(Piece { address, cut: cut_number, number, inner: Arc::clone(self) })
    }
}

impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held =
            self.inner.lock().cuts.iter().flatten().map(|cut| cut.used.count_ones()).sum::<u32>();
        write!(f, "Pieces({held} of {} bytes)", self.inner.piece_bytes)
    }
}

/// A piece of a chunk; returned on drop.
pub struct Piece {
    address: NonNull<u8>,
    cut: usize,
    number: u32,
    inner: Arc<Inner>,
}

// SAFETY: a piece is the only holder of its bytes, like a `Box<[u8]>`.
unsafe impl Send for Piece {}
// SAFETY: a shared piece gives shared slices only.
unsafe impl Sync for Piece {}

impl Piece {
    /// Address of the first byte, for this crate's structures that share a piece between threads.
    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the chunk is held while the piece is, its bytes are initialised, and no other
        // piece has these.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.inner.piece_bytes) }
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.inner.piece_bytes) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if self.inner.origin.is_foreign() {
            return;
        }
        let mut cuts = self.inner.lock();
        let cut = cuts.cuts[self.cut].as_mut().expect("a piece of it was held");
        cut.used &= !(1 << self.number);
        let empty = cut.used == 0;
        let chunk = if empty {
            cuts.with_room.remove(&self.cut);
            cuts.unused.push(self.cut);
            cuts.cuts[self.cut].take()
        } else {
            cuts.with_room.insert(self.cut);
            None
        };
        drop(cuts);
        // Drop the chunk without the lock, because this takes the budget's lock.
        drop(chunk);
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({} of cut {})", self.number, self.cut)
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;
    use crate::budget::{Backing, Reclaim};

    fn pieces(chunks: u64, piece_bytes: usize) -> (Budget, Pieces) {
        let budget = Budget::new(chunks * CHUNK_BYTES as u64, Backing::Heap).unwrap();
        let pieces = Pieces::new(&budget, Kind::WriteSet, piece_bytes);
        (budget, pieces)
    }

    #[test]
    fn pieces_share_chunks_and_the_last_releases_its_chunk() {
        for piece_bytes in [MIN_PIECE_BYTES, 4096, CHUNK_BYTES / 2] {
            let (budget, pieces) = pieces(2, piece_bytes);
            let in_a_chunk = CHUNK_BYTES / piece_bytes;
            let mut held: Vec<_> = (0..2 * in_a_chunk).map(|_| pieces.take().unwrap()).collect();
            assert_eq!(budget.free_bytes(), 0);
            assert!(pieces.take().is_err());
            for (at, piece) in held.iter_mut().enumerate() {
                piece.fill(at as u8);
            }
            assert!(
                held.iter()
                    .enumerate()
                    .all(|(at, piece)| piece.iter().all(|byte| *byte == at as u8))
            );
            held.truncate(in_a_chunk + 1);
            assert_eq!(budget.free_bytes(), 0);
            held.truncate(in_a_chunk);
            assert_eq!(budget.free_bytes(), CHUNK_BYTES as u64);
            drop(held);
            assert_eq!(budget.free_bytes(), 2 * CHUNK_BYTES as u64);
            assert_eq!(budget.usage().of(Kind::WriteSet), 0);
        }
    }

    /// A reclaimer that returns a piece and a chunk, as other threads may.
    struct Others(std::sync::Mutex<Option<(Piece, Chunk)>>);

    impl Reclaim for Others {
        fn reclaim(&self, _: usize) -> usize {
            usize::from(self.0.lock().unwrap().take().is_some())
        }
    }

    #[test]
    fn piece_freed_during_a_take_leaves_no_empty_chunk() {
        let (budget, pieces) = pieces(2, 4096);
        let mut held: Vec<_> = (0..16).map(|_| pieces.take().unwrap()).collect();
        let others = (held.pop().unwrap(), budget.take(Kind::Staging).unwrap());
        let others: Arc<dyn Reclaim> = Arc::new(Others(std::sync::Mutex::new(Some(others))));
        budget.add_reclaimer(Arc::downgrade(&others));
        held.push(pieces.take().unwrap());
        drop(held);
        assert_eq!(budget.usage().of(Kind::WriteSet), 0);
        assert_eq!(budget.free_bytes(), 2 * CHUNK_BYTES as u64);
    }

    #[test]
    fn freed_piece_is_reused_before_a_new_chunk() {
        let (budget, pieces) = pieces(2, 4096);
        let mut held: Vec<_> = (0..16).map(|_| pieces.take().unwrap()).collect();
        drop(held.remove(7));
        held.push(pieces.take().unwrap());
        assert_eq!(budget.free_bytes(), CHUNK_BYTES as u64);
    }
}
