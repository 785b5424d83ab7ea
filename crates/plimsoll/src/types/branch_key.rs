//! The index key of a version on a branch.
//!
//! All side branches share the internal keyspace [`SIDE`]. Within it, keys are ordered by group,
//! keyspace, user key, then by chain, the youngest first:
//!
//! ```text
//! u32     group (big-endian)
//! u32     keyspace (big-endian)
//! bytes   user key; each zero byte is followed by 255
//! u16     0, 1: the end of the user key
//! u32     complement of the chain (big-endian)
//! ```
//!
//! All bytes up to the chain are the *stem*. No stem is a prefix of another, and stems are ordered
//! as the user keys are, so a bound of a range of user keys maps to one of index keys.
//!
//! This is the only file that knows the encoding.

use std::borrow::Cow;
use std::ops::Bound;

use smallvec::SmallVec;

use crate::types::branches::MAIN_CHAIN;
use crate::types::error::Result;
use crate::types::index_key::{IndexKey, KeptKey, KeyBuffer, MAX_INDEX_KEY_BYTES, Prefix};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::SIDE;

const ID_BYTES: usize = size_of::<u32>();

/// The bytes before the user key: the prefix of [`SIDE`], the group, the keyspace.
const HEAD_BYTES: usize = 3 * ID_BYTES;

const ESCAPE: [u8; 2] = [0, 255];
const END: [u8; 2] = [0, 1];

/// The maximum length of a user's key on a branch in bytes, where a zero byte counts twice.
pub(crate) const MAX_BRANCH_KEY_BYTES: usize =
    MAX_INDEX_KEY_BYTES - HEAD_BYTES - END.len() - ID_BYTES;

/// These bytes after a stem make a key that is greater than those of all chains: they are the
/// complement of chain 0, which is main and has no versions here.
const AFTER_CHAINS: [u8; ID_BYTES] = [255; ID_BYTES];

/// The part of an index key before the chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stem(SmallVec<[u8; 64]>);

impl Stem {
    /// The stem of a user's key.
    pub(crate) fn new(group: u32, keyspace: u32, user_key: &[u8]) -> Self {
        let mut bytes = SmallVec::new();
        bytes.extend_from_slice(Prefix::of(SIDE).as_bytes());
        bytes.extend_from_slice(&group.to_be_bytes());
        bytes.extend_from_slice(&keyspace.to_be_bytes());
        let mut pieces = user_key.split(|&byte| byte == 0);
        bytes.extend_from_slice(pieces.next().unwrap_or_default());
        for piece in pieces {
            bytes.extend_from_slice(&ESCAPE);
            bytes.extend_from_slice(piece);
        }
        bytes.extend_from_slice(&END);
        Self(bytes)
    }

    /// The stem of a key of main.
    pub(crate) fn of_main(group: u32, main_key: &[u8]) -> Self {
        let key = IndexKey::new(main_key);
        Self::new(group, key.keyspace(), key.split().map_or(&[], |(_, user_key)| user_key))
    }

    /// The index key of a chain's versions.
    pub(crate) fn of_chain(&self, chain: u32) -> KeyBuffer {
        key_of(&self.0, chain)
    }

    /// The index key after those of all chains.
    fn after_chains(&self) -> KeptKey {
        KeptKey::from_slice(&[&self.0[..], &AFTER_CHAINS].concat())
    }
}

/// The index key of a chain's versions of the key with this stem.
pub(crate) fn key_of(stem: &[u8], chain: u32) -> KeyBuffer {
    let mut bytes = SmallVec::<[u8; 64]>::from_slice(stem);
    bytes.extend_from_slice(&(!chain).to_be_bytes());
    KeyBuffer::from_slice(&bytes)
}

/// The index key after those of all chains of the key with this stem.
pub(crate) fn after_chains(stem: &[u8]) -> Vec<u8> {
    [stem, &AFTER_CHAINS].concat()
}

/// The stem and the chain of a key of [`SIDE`].
///
/// # Panics
/// The key is shorter than the id of a chain.
pub(crate) fn split(key: &[u8]) -> (&[u8], u32) {
    let (stem, chain) = key.split_last_chunk().expect("a key on a branch ends with its chain");
    (stem, !u32::from_be_bytes(*chain))
}

/// The chain of an index key's versions.
pub(crate) fn chain_of(key: &[u8]) -> u32 {
    if is_of_branch(key) { split(key).1 } else { MAIN_CHAIN }
}

/// Whether an index key belongs to a branch.
#[inline]
pub(crate) fn is_of_branch(key: &[u8]) -> bool {
    IndexKey::new(key).is_in(SIDE)
}

/// Whether the index key of a chain is too long to be stored.
pub(crate) fn is_too_long(key: &[u8]) -> bool {
    key.len() > MAX_INDEX_KEY_BYTES
}

/// Rejects an index key on a branch that is too long to be stored.
///
/// # Errors
/// [`InvalidInput::KeyTooLongForBranch`].
pub(crate) fn check_len(key: &[u8]) -> Result<()> {
    if !is_too_long(key) {
        return Ok(());
    }
    let bytes = (key.len() - HEAD_BYTES - END.len() - ID_BYTES) as u64;
    let limit_bytes = MAX_BRANCH_KEY_BYTES as u64;
    Err(InvalidInput::KeyTooLongForBranch { bytes, limit_bytes }.into())
}

/// The keyspace that the user's key of an index key is in.
#[inline]
pub(crate) fn user_keyspace(key: &[u8]) -> u32 {
    let keyspace = IndexKey::new(key).keyspace();
    if keyspace != SIDE {
        return keyspace;
    }
    let id = key.get(2 * ID_BYTES..HEAD_BYTES).and_then(|id| id.try_into().ok());
    id.map_or(SIDE, u32::from_be_bytes)
}

/// The index key of main that has the same keyspace and user's key as a key of [`SIDE`]; `None` if
/// that key is damaged.
pub(crate) fn main_key(key: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(key.len());
    main_key_into(split_checked(key)?, &mut out)?;
    Some(out)
}

fn split_checked(key: &[u8]) -> Option<&[u8]> {
    key.split_last_chunk::<ID_BYTES>().map(|(stem, _)| stem)
}

/// Replaces `out` by the index key of main of the key with this stem; `None` if the
/// stem is damaged.
pub(crate) fn main_key_into(stem: &[u8], out: &mut Vec<u8>) -> Option<()> {
    out.clear();
    out.extend_from_slice(stem.get(2 * ID_BYTES..HEAD_BYTES)?);
    let escaped = stem.get(HEAD_BYTES..)?.strip_suffix(&END)?;
    let mut pieces = escaped.split(|&byte| byte == 0);
    out.extend_from_slice(pieces.next()?);
    for piece in pieces {
        out.push(0);
        out.extend_from_slice(piece.strip_prefix(&ESCAPE[1..])?);
    }
    Some(())
}

/// The user's key of an index key, for messages; empty if there is none.
pub(crate) fn user_key(key: &[u8]) -> Cow<'_, [u8]> {
    if !is_of_branch(key) {
        return Cow::Borrowed(IndexKey::new(key).split().map_or(&[], |(_, user_key)| user_key));
    }
    let main = main_key(key).unwrap_or_default();
    Cow::Owned(IndexKey::new(&main).split().map_or_else(Vec::new, |(_, key)| key.to_vec()))
}

/// Maps the lower bound of a range of main to that of the same range on the chains of a group.
pub(crate) fn lower_bound(group: u32, main: Bound<&[u8]>) -> Bound<KeptKey> {
    match main {
        Bound::Included(key) => Bound::Included(KeptKey::from_slice(&Stem::of_main(group, key).0)),
        Bound::Excluded(key) => Bound::Excluded(Stem::of_main(group, key).after_chains()),
        Bound::Unbounded => Bound::Included(group_begin(group)),
    }
}

/// Maps the upper bound of a range of main to that of the same range on the chains of a group.
pub(crate) fn upper_bound(group: u32, main: Bound<&[u8]>) -> Bound<KeptKey> {
    match main {
        Bound::Included(key) => Bound::Included(Stem::of_main(group, key).after_chains()),
        Bound::Excluded(key) => Bound::Excluded(KeptKey::from_slice(&Stem::of_main(group, key).0)),
        Bound::Unbounded => group_end(group),
    }
}

/// The first key that a group may have.
pub(crate) fn group_begin(group: u32) -> KeptKey {
    KeptKey::join(Prefix::of(SIDE), &group.to_be_bytes())
}

/// The upper bound of a group's keys.
pub(crate) fn group_end(group: u32) -> Bound<KeptKey> {
    Bound::Excluded(match group.checked_add(1) {
        Some(next) => group_begin(next),
        None => KeptKey::join(Prefix::of(SIDE + 1), b""),
    })
}

#[cfg(test)]
mod tests {
    use std::ops::RangeBounds;

    use plimsoll_disk::random::Random;

    use super::*;
    use crate::types::index_key::MAX_KEY_BYTES;

    fn side(keyspace: u32, user_key: &[u8], chain: u32) -> KeyBuffer {
        Stem::new(7, keyspace, user_key).of_chain(chain)
    }

    fn main(keyspace: u32, user_key: &[u8]) -> Vec<u8> {
        Prefix::of(keyspace).join(user_key)
    }

    /// A short key of few different bytes, so that keys are often prefixes of each other.
    fn random_key(random: &mut Random) -> Vec<u8> {
        let len = random.below(6);
        (0..len).map(|_| [0, 1, 2, 254, 255][random.below(5) as usize]).collect()
    }

    #[test]
    fn a_key_splits_into_its_parts() {
        for user_key in [&b""[..], b"a", b"\0", b"\0\0", b"\0\x01", b"\0\xff", b"a\0b\xff\0"] {
            let key = side(16, user_key, 9);
            assert_eq!(split(&key).1, 9);
            assert_eq!(*split(&key).0, *Stem::new(7, 16, user_key).0);
            assert_eq!(main_key(&key), Some(main(16, user_key)));
            assert_eq!(user_keyspace(&key), 16);
            assert_eq!(*super::user_key(&key), *user_key);
            assert_eq!(*super::user_key(&main(16, user_key)), *user_key);
            assert!(is_of_branch(&key) && !is_of_branch(&main(16, user_key)));
        }
        assert_eq!(user_keyspace(&main(16, b"a")), 16);
    }

    #[test]
    fn damaged_keys_are_refused() {
        let prefix = Prefix::of(SIDE);
        for damaged in [&b""[..], b"\0\0\0\x07", &[0, 0, 0, 7, 0, 0, 0, 16, b'a', 0, 0, 0, 0]] {
            assert_eq!(main_key(&prefix.join(damaged)), None);
        }
        let escapes_nothing = [&Stem::new(7, 16, b"a").0[..12], b"a\0b\0\x01\0\0\0\0"].concat();
        assert_eq!(main_key(&escapes_nothing), None);
    }

    #[test]
    fn keys_are_ordered_as_the_users_keys_then_by_falling_chain() {
        for seed in 0..2000 {
            let mut random = Random::new(seed);
            let mut part = || {
                let key = random_key(&mut random);
                (15 + random.below(2) as u32, key, 1 + random.below(3) as u32)
            };
            let (a, b) = (part(), part());
            let order = (a.0, &a.1).cmp(&(b.0, &b.1)).then(b.2.cmp(&a.2));
            assert_eq!(side(a.0, &a.1, a.2)[..].cmp(&side(b.0, &b.1, b.2)[..]), order, "{seed}");
        }
    }

    #[test]
    fn a_range_maps_to_the_keys_of_the_same_user_keys() {
        for seed in 0..5000 {
            let mut random = Random::new(seed);
            let mut bound = || {
                let key = main(15 + random.below(3) as u32, &random_key(&mut random));
                match random.below(3) {
                    0 => Bound::Included(key),
                    1 => Bound::Excluded(key),
                    _ => Bound::Unbounded,
                }
            };
            let (lower, upper) = (bound(), bound());
            let as_slice = |bound: &Bound<Vec<u8>>| bound.clone();
            let (lower_ref, upper_ref) =
                (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice));
            let range = (lower_bound(7, lower_ref), upper_bound(7, upper_ref));
            let range = (
                range.0.as_ref().map(|key| key.get().to_vec()),
                range.1.as_ref().map(|key| key.get().to_vec()),
            );
            let (keyspace, user_key) = (15 + random.below(2) as u32, random_key(&mut random));
            let is_in = (as_slice(&lower), as_slice(&upper)).contains(&main(keyspace, &user_key));
            for chain in [1, 7, u32::MAX] {
                let key = side(keyspace, &user_key, chain).get().to_vec();
                assert_eq!(range.contains(&key), is_in, "{seed}");
                let other = Stem::new(8, keyspace, &user_key).of_chain(chain).get().to_vec();
                let earlier = Stem::new(6, keyspace, &user_key).of_chain(chain).get().to_vec();
                assert!(!range.contains(&other) && !range.contains(&earlier), "{seed}");
            }
        }
    }

    #[test]
    fn a_key_of_the_longest_length_is_stored() {
        let longest = vec![7; MAX_BRANCH_KEY_BYTES];
        check_len(&side(16, &longest, 9)).unwrap();
        assert_eq!(side(16, &longest, 9).len(), MAX_INDEX_KEY_BYTES);
        check_len(&side(16, &[&longest[1..], &[0]].concat(), 9)).unwrap_err();
        check_len(&side(16, &vec![7; MAX_KEY_BYTES], 9)).unwrap_err();
    }
}
