//! The key of a suspended iterator (between two calls).
//!
//! A short key stays in the iterator's vector. A long key is moved into a piece of a chunk:
//! thousands of iterators may be suspended at keys of 4 KiB each, and an allocator may retain the
//! blocks that these free, although no lease covers the blocks any more.

use std::borrow::Cow;
use std::cell::Cell;

use crate::types::index_key::{IndexKey, MAX_KEY_BYTES, Prefix};
use plimsoll_memory::budget::{Budget, Kind, OutOfBudget};
use plimsoll_memory::pieces::{Piece, Pieces};

/// A key of at most this many bytes stays in its vector.
const SHORT_BYTES: usize = 512;

/// Sizes of the pieces for longer keys, without their prefix: a chunk has room for 16 of the
/// largest.
const PIECE_BYTES: [usize; 3] = [1024, 2048, MAX_KEY_BYTES];

/// The memory for long keys.
#[derive(Debug)]
pub(crate) struct KeyRoom([Pieces; PIECE_BYTES.len()]);

impl KeyRoom {
    pub(crate) fn new(budget: &Budget) -> Self {
        Self(PIECE_BYTES.map(|bytes| Pieces::new(budget, Kind::Iterators, bytes)))
    }

    fn fitting(&self, bytes: usize) -> &Pieces {
        self.0
            .iter()
            .find(|pieces| bytes <= pieces.piece_bytes())
            .expect("any key fits into the largest piece")
    }
}

thread_local! {
    /// The vector of the last key that was moved into a piece, for the next call of any iterator.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// An index key that is suspended or in use.
#[derive(Debug, Default)]
pub(crate) struct RestingKey {
    /// The key, unless it is in `piece`.
    key: Vec<u8>,
    /// The keyspace prefix of a key in `piece`, because `piece` holds only the user's key.
    prefix: Prefix,
    piece: Option<Piece>,
    /// Length of the user's key in `piece`; 0 if the key is in `key`.
    long_bytes: usize,
}

impl RestingKey {
    /// The user's key.
    ///
    /// # Panics
    /// There is no key yet.
    pub(crate) fn user_key(&self) -> &[u8] {
        self.at_rest().unwrap_or_else(|| IndexKey::new(&self.key).user_key())
    }

    /// The whole key.
    pub(crate) fn index_key(&self) -> Cow<'_, [u8]> {
        match self.at_rest() {
            Some(key) => Cow::Owned(self.prefix.join(key)),
            None => Cow::Borrowed(&self.key),
        }
    }

    fn at_rest(&self) -> Option<&[u8]> {
        self.piece.as_ref().filter(|_| self.long_bytes > 0).map(|piece| &piece[..self.long_bytes])
    }

    /// Takes the vector with the key for the duration of a step; [`RestingKey::put`] returns it.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let Some(long) = self.at_rest() else { return std::mem::take(&mut self.key) };
        let mut key = SPARE.take();
        key.clear();
        key.extend_from_slice(self.prefix.as_bytes());
        key.extend_from_slice(long);
        self.long_bytes = 0;
        key
    }

    /// Returns the vector.
    pub(crate) fn put(&mut self, key: Vec<u8>) {
        (self.key, self.long_bytes) = (key, 0);
    }

    /// Suspends the key, and moves a long one into a piece.
    ///
    /// # Errors
    /// [`OutOfBudget`]; the key is unchanged, and the call can be repeated.
    pub(crate) fn rest(&mut self, room: &KeyRoom) -> Result<(), OutOfBudget> {
        if self.long_bytes > 0 {
            return Ok(());
        }
        if self.key.len() <= SHORT_BYTES {
            self.piece = None;
            self.key.shrink_to(SHORT_BYTES);
            return Ok(());
        }
        let pieces = room.fitting(IndexKey::new(&self.key).user_key().len());
        let piece = match self.piece.take().filter(|piece| piece.len() == pieces.piece_bytes()) {
            Some(piece) => piece,
            None => pieces.take()?,
        };
        let key = std::mem::take(&mut self.key);
        let (prefix, user_key) = Prefix::split(&key);
        (self.prefix, self.long_bytes) = (prefix, user_key.len());
        self.piece.insert(piece)[..user_key.len()].copy_from_slice(user_key);
        SPARE.set(key);
        Ok(())
    }

    /// Heap size of the key.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.key.capacity()
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_memory::budget::Backing;
    use plimsoll_memory::chunk::CHUNK_BYTES;

    use super::*;
    use crate::types::index_key::MAX_INDEX_KEY_BYTES;

    fn long(number: usize) -> Vec<u8> {
        vec![number as u8; MAX_INDEX_KEY_BYTES]
    }

    #[test]
    fn a_key_of_any_length_can_be_suspended_and_resumed() {
        let budget = Budget::new(4 * CHUNK_BYTES as u64, Backing::Heap).unwrap();
        let room = KeyRoom::new(&budget);
        let mut resting = RestingKey::default();
        for bytes in [4, 5, 512, 513, 4100, 1028, 1029, 100, 2000, 2100, 4099] {
            let whole: Vec<u8> = (0..bytes).map(|at| (at + bytes) as u8).collect();
            resting.take();
            resting.put(whole.clone());
            resting.rest(&room).unwrap();
            resting.rest(&room).unwrap();
            assert_eq!(
                (resting.user_key(), &*resting.index_key()),
                (IndexKey::new(&whole).user_key(), &whole[..])
            );
            assert!(resting.heap_bytes() <= SHORT_BYTES, "{bytes}");
            assert_eq!(resting.take(), whole);
            resting.put(whole);
        }
        drop(resting);
        assert_eq!(budget.free_bytes(), budget.limit_bytes());
    }

    #[test]
    fn suspended_keys_fill_chunks_and_a_refused_key_is_unchanged() {
        let budget = Budget::new(2 * CHUNK_BYTES as u64, Backing::Heap).unwrap();
        let room = KeyRoom::new(&budget);
        let mut resting: Vec<RestingKey> = (0..33).map(|_| RestingKey::default()).collect();
        for (number, key) in resting.iter_mut().enumerate() {
            key.put(long(number));
            assert_eq!(key.rest(&room).is_ok(), number < 32);
        }
        assert!(resting.iter().enumerate().all(|(number, key)| *key.index_key() == long(number)));
        resting.swap_remove(0);
        assert!(
            resting[0].rest(&room).is_ok()
                && resting[0].heap_bytes() == 0
                && *resting[0].index_key() == long(32)
        );
    }
}
