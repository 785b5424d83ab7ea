//! The index key: the keyspace id (4 bytes, big-endian), then the user's key, so that one order
//! covers all keyspaces.
//!
//! This is the only file that knows the length and the encoding of the prefix. Index keys are
//! stored and compared as plain bytes; [`IndexKey`] reads their parts, and [`Prefix`] and
//! [`IndexKeyBuf`] build them.

use std::ops::{Bound, Deref};

use smallvec::SmallVec;

use crate::types::error::Result;
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::SYSTEM;

/// The maximum length of a user's key in bytes.
pub const MAX_KEY_BYTES: usize = 4096;

/// The length of a prefix.
const PREFIX_BYTES: usize = 4;

/// The maximum length of an index key.
pub(crate) const MAX_INDEX_KEY_BYTES: usize = PREFIX_BYTES + MAX_KEY_BYTES;

/// Rejects user keys that are too long.
pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    if key.len() > MAX_KEY_BYTES {
        let (bytes, limit_bytes) = (key.len() as u64, MAX_KEY_BYTES as u64);
        return Err(InvalidInput::KeyTooLong { bytes, limit_bytes }.into());
    }
    Ok(())
}

/// An index key, or a bound of a range of index keys, which may be shorter than a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexKey<'a>(&'a [u8]);

impl<'a> IndexKey<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether an index key can have this many bytes.
    #[inline]
    pub(crate) fn is_valid_len(len: usize) -> bool {
        (PREFIX_BYTES..=MAX_INDEX_KEY_BYTES).contains(&len)
    }

    /// The keyspace and the user's key; `None` for a bound shorter than a prefix.
    #[inline]
    pub(crate) fn split(self) -> Option<(u32, &'a [u8])> {
        self.0.split_first_chunk().map(|(prefix, user_key)| (Prefix(*prefix).keyspace(), user_key))
    }

    /// The keyspace; the first one for a bound shorter than a prefix.
    #[inline]
    pub(crate) fn keyspace(self) -> u32 {
        self.split().map_or(SYSTEM, |(keyspace, _)| keyspace)
    }

    /// Whether the key is only a prefix, and so the first index key of its keyspace.
    #[inline]
    pub(crate) fn begins_keyspace(self) -> bool {
        self.0.len() == PREFIX_BYTES
    }

    /// The user's key.
    ///
    /// # Panics
    /// The bytes are shorter than a prefix.
    #[inline]
    pub(crate) fn user_key(self) -> &'a [u8] {
        &self.0[PREFIX_BYTES..]
    }

    /// Whether the key is in a keyspace.
    #[inline]
    pub(crate) fn is_in(self, keyspace: u32) -> bool {
        self.0.starts_with(Prefix::of(keyspace).as_bytes())
    }
}

/// The first bytes of an index key, which encode its keyspace. They are also the first index key of
/// the keyspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prefix([u8; PREFIX_BYTES]);

impl Prefix {
    #[inline]
    pub(crate) const fn of(keyspace: u32) -> Self {
        Self(keyspace.to_be_bytes())
    }

    /// Splits an index key.
    ///
    /// # Panics
    /// The bytes are shorter than a prefix.
    #[inline]
    pub(crate) fn split(key: &[u8]) -> (Self, &[u8]) {
        let (prefix, user_key) =
            key.split_first_chunk().expect("an index key begins with its prefix");
        (Self(*prefix), user_key)
    }

    /// The prefix of the next keyspace; `None` after the last one.
    pub(crate) fn next(self) -> Option<Self> {
        self.keyspace().checked_add(1).map(Self::of)
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    #[inline]
    fn keyspace(self) -> u32 {
        u32::from_be_bytes(self.0)
    }

    /// The index key of a user's key, in a vector of its exact length.
    pub(crate) fn join(self, user_key: &[u8]) -> Vec<u8> {
        [&self.0, user_key].concat()
    }
}

/// An index key with inline room for `N` bytes; a longer key is allocated on the heap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IndexKeyBuf<const N: usize>(SmallVec<[u8; N]>);

/// The index key of one operation, with inline room for most keys.
pub(crate) type KeyBuffer = IndexKeyBuf<64>;

/// An index key that is kept, for example as a bound of an iterator.
pub(crate) type KeptKey = IndexKeyBuf<40>;

impl<const N: usize> IndexKeyBuf<N> {
    /// The index key of a user's key.
    ///
    /// # Errors
    /// The user's key is longer than [`MAX_KEY_BYTES`].
    #[inline]
    pub(crate) fn new(keyspace: u32, user_key: &[u8]) -> Result<Self> {
        check_key(user_key)?;
        Ok(Self::join(Prefix::of(keyspace), user_key))
    }

    /// The index key of a user's key of at most [`MAX_KEY_BYTES`].
    #[inline]
    pub(crate) fn join(prefix: Prefix, user_key: &[u8]) -> Self {
        let len = PREFIX_BYTES + user_key.len();
        if len > N {
            return Self(SmallVec::from_vec(prefix.join(user_key)));
        }
        let mut bytes = [0; N];
        bytes[..PREFIX_BYTES].copy_from_slice(&prefix.0);
        bytes[PREFIX_BYTES..len].copy_from_slice(user_key);
        Self(SmallVec::from_buf_and_len(bytes, len))
    }

    /// A copy of an index key.
    pub(crate) fn from_slice(key: &[u8]) -> Self {
        Self(SmallVec::from_slice(key))
    }

    /// Its bytes.
    #[inline]
    pub(crate) fn get(&self) -> &[u8] {
        &self.0
    }

    /// Moves the key to another keyspace.
    pub(crate) fn set_keyspace(&mut self, keyspace: u32) {
        self.0[..PREFIX_BYTES].copy_from_slice(Prefix::of(keyspace).as_bytes());
    }

    /// Drops the user's key and its allocation.
    pub(crate) fn truncate_to_prefix(&mut self) {
        self.0.truncate(PREFIX_BYTES);
        self.0.shrink_to_fit();
    }

    /// The size of its heap allocation.
    fn heap_bytes(&self) -> usize {
        if self.0.spilled() { self.0.capacity() } else { 0 }
    }
}

impl<const N: usize> Deref for IndexKeyBuf<N> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Heap bytes of the key of a bound.
pub(crate) fn bound_heap_bytes(bound: &Bound<KeptKey>) -> usize {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => key.heap_bytes(),
        Bound::Unbounded => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_joined_key_splits_into_its_parts() {
        for len in [0, 1, 36, 37, 60, 61, MAX_KEY_BYTES] {
            let user_key: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let vector = Prefix::of(7).join(&user_key);
            assert_eq!(vector.capacity(), vector.len());
            assert_eq!(*KeyBuffer::new(7, &user_key).unwrap(), *vector);
            assert_eq!(*KeptKey::join(Prefix::of(7), &user_key), *vector);
            assert_eq!(*KeptKey::from_slice(&vector), *vector);
            let key = IndexKey::new(&vector);
            assert_eq!(key.split(), Some((7, &*user_key)));
            assert_eq!((key.keyspace(), key.user_key()), (7, &*user_key));
            assert_eq!(Prefix::split(&vector), (Prefix::of(7), &*user_key));
            assert!(key.is_in(7) && !key.is_in(8));
            assert!(IndexKey::is_valid_len(vector.len()));
        }
        assert!(KeyBuffer::new(7, &[0; MAX_KEY_BYTES + 1]).is_err());
        assert!(!IndexKey::is_valid_len(MAX_INDEX_KEY_BYTES + 1));
        assert!(!IndexKey::is_valid_len(PREFIX_BYTES - 1));
    }

    #[test]
    fn a_bound_shorter_than_a_prefix_is_before_all_keyspaces() {
        let bound = IndexKey::new(b"\x05");
        assert_eq!((bound.split(), bound.keyspace()), (None, SYSTEM));
    }

    #[test]
    fn the_keys_of_a_keyspace_are_between_its_prefix_and_the_next() {
        let (first, next) = (Prefix::of(255), Prefix::of(255).next().unwrap());
        assert_eq!(next, Prefix::of(256));
        for user_key in [&b""[..], b"\0", &[0xff; MAX_KEY_BYTES]] {
            let key = first.join(user_key);
            assert!(first.as_bytes() <= &*key && &*key < next.as_bytes());
        }
        assert_eq!(Prefix::of(u32::MAX).next(), None);
    }

    #[test]
    fn a_short_key_is_not_allocated_and_a_long_one_is_freed() {
        let bound = |user_key: &[u8]| Bound::Included(KeptKey::join(Prefix::of(1), user_key));
        assert_eq!(bound_heap_bytes(&bound(&[0; 36])), 0);
        assert_eq!(bound_heap_bytes(&bound(&[0; 37])), 41);
        let mut key = KeptKey::join(Prefix::of(1), &[0; 100]);
        key.truncate_to_prefix();
        assert_eq!((&*key, key.heap_bytes()), (Prefix::of(1).as_bytes(), 0));
        key.set_keyspace(2);
        assert_eq!(&*key, Prefix::of(2).as_bytes());
    }
}
