//! Ids of commits. A commit has the same id in every store.
//!
//! An id is BLAKE3 over the commit's parents, time, metadata and changes. Keyspaces have different
//! numbers in different stores, so the changes of each keyspace are hashed separately, and these
//! hashes are combined in the order of the keyspaces' names (all numbers little-endian):
//!
//! ```text
//! bytes    "plimsoll commit 1\0"
//! u32      number of parents; 32 bytes each
//! u64      time, in microseconds since 1970 UTC
//! u32      length of the metadata, metadata
//! u32      number of keyspaces
//! for each, ordered by name:
//!   u32 length of the name, name, 32 bytes: the hash of its changes
//!
//! changes of a keyspace: the deleted ranges, then the keys in order
//!   u8 1     a deleted range; u32 length, first key; u8 1 if it has an end: u32 length, end
//!   u8 2     a deleted key; u32 length, key
//!   u8 3     a put; u32 length, key; u64 length, value
//!   u8 4     a put that expires; u64 expiry, in microseconds since 1970 UTC; then as 3
//! ```
//!
//! The deletion of a key in a range that the same commit deletes is omitted.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::types::error::{Error, Result};
use crate::types::expiry::Expiry;
use crate::types::invalid_input::InvalidInput;

const HEAD: &[u8] = b"plimsoll commit 1\0";
const RANGE: u8 = 1;
const DELETE: u8 = 2;
const PUT: u8 = 3;
const PUT_EXPIRING: u8 = 4;

/// The id of a commit, from [`Db::commit_id`](crate::Db::commit_id). A commit has the same id in
/// every store. [`Display`](fmt::Display) writes 64 lowercase hexadecimal digits; [`FromStr`] also
/// accepts uppercase ones, and fails with [`InvalidInput::CommitId`] on any other text.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// let notes = db.keyspace("notes")?;
/// let glsn = db.put(&notes, "a", "one")?;
/// let id: CommitId = db.commit_id(glsn)?.expect("it is a commit");
/// assert_eq!(id.to_string().parse::<CommitId>()?, id);
/// assert_eq!(db.find_commit(&id)?, Some(glsn));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitId([u8; 32]);

impl CommitId {
    /// The 32 bytes of the id.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A placeholder id for the commits of `chain` up to `upto` that the log of `store` no longer
    /// holds.
    pub(super) fn of_trimmed(store: u128, chain: u32, upto: u64) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"plimsoll trimmed 1\0").update(&store.to_le_bytes());
        hasher.update(&chain.to_le_bytes()).update(&upto.to_le_bytes());
        Self(*hasher.finalize().as_bytes())
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommitId({self})")
    }
}

impl FromStr for CommitId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused = || Error::from(InvalidInput::CommitId { text: text.to_owned() });
        let digits = text.as_bytes();
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(refused());
        }
        let mut bytes = [0; 32];
        for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| refused())?;
        }
        Ok(Self(bytes))
    }
}

/// Computes the id of a commit from its changes. In each keyspace, deleted ranges come first, then
/// keys in order.
#[derive(Default)]
pub(super) struct ContentHash {
    sections: BTreeMap<Arc<str>, blake3::Hasher>,
}

impl ContentHash {
    fn section(&mut self, keyspace: &str) -> &mut blake3::Hasher {
        if !self.sections.contains_key(keyspace) {
            self.sections.insert(keyspace.into(), blake3::Hasher::new());
        }
        self.sections.get_mut(keyspace).expect("it was inserted")
    }

    /// Adds the deletion of the keys from `first` to `end`, exclusive; `None`: to the last key.
    pub(super) fn range(&mut self, keyspace: &str, first: &[u8], end: Option<&[u8]>) {
        let section = self.section(keyspace);
        section.update(&[RANGE]);
        sized(section, first);
        section.update(&[u8::from(end.is_some())]);
        if let Some(end) = end {
            sized(section, end);
        }
    }

    pub(super) fn delete(&mut self, keyspace: &str, key: &[u8]) {
        let section = self.section(keyspace);
        section.update(&[DELETE]);
        sized(section, key);
    }

    /// Begins a put of a value of `len` bytes. The value must follow in calls of
    /// [`ContentHash::value`].
    pub(super) fn put(&mut self, keyspace: &str, key: &[u8], expiry: Option<Expiry>, len: u64) {
        let section = self.section(keyspace);
        match expiry {
            None => section.update(&[PUT]),
            Some(expiry) => section.update(&[PUT_EXPIRING]).update(&expiry.micros().to_le_bytes()),
        };
        sized(section, key);
        section.update(&len.to_le_bytes());
    }

    /// Adds a piece of the value of the keyspace's last put.
    pub(super) fn value(&mut self, keyspace: &str, piece: &[u8]) {
        self.section(keyspace).update(piece);
    }

    /// The id of a commit with the changes added so far. `micros` is the time of the original
    /// commit, in microseconds since 1970 UTC.
    pub(super) fn id(&self, parents: &[CommitId], micros: u64, metadata: &[u8]) -> CommitId {
        let mut hasher = blake3::Hasher::new();
        hasher.update(HEAD).update(&len_of(parents.len()));
        for parent in parents {
            hasher.update(&parent.0);
        }
        hasher.update(&micros.to_le_bytes());
        sized(&mut hasher, metadata);
        hasher.update(&len_of(self.sections.len()));
        for (name, section) in &self.sections {
            sized(&mut hasher, name.as_bytes());
            hasher.update(section.finalize().as_bytes());
        }
        CommitId(*hasher.finalize().as_bytes())
    }
}

fn sized(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&len_of(bytes.len())).update(bytes);
}

fn len_of(len: usize) -> [u8; 4] {
    u32::try_from(len).expect("names, keys and metadata are short").to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(change: impl FnOnce(&mut ContentHash)) -> CommitId {
        let mut contents = ContentHash::default();
        change(&mut contents);
        contents.id(&[], 7, b"why")
    }

    #[test]
    fn what_is_hashed_determines_the_id() {
        let put = |contents: &mut ContentHash, keyspace, key: &[u8], value: &[u8]| {
            contents.put(keyspace, key, None, value.len() as u64);
            contents.value(keyspace, value);
        };
        let one = id(|it| put(it, "a", b"key", b"value"));
        let others = [
            id(|it| put(it, "b", b"key", b"value")),
            id(|it| put(it, "a", b"keyv", b"alue")),
            id(|it| put(it, "a", b"key", b"")),
            id(|it| it.delete("a", b"key")),
            id(|it| it.range("a", b"key", None)),
            id(|it| it.range("a", b"key", Some(b"l"))),
            id(|it| it.put("a", b"key", Expiry::from_micros(9), 0)),
            id(|_| {}),
        ];
        let mut all = BTreeMap::from([(one, ())]);
        all.extend(others.map(|id| (id, ())));
        assert_eq!(all.len(), 9);
        let both = |first, second| {
            id(|it| [first, second].into_iter().for_each(|name| put(it, name, b"key", b"value")))
        };
        assert_eq!(both("a", "b"), both("b", "a"), "keyspaces have no order");
    }

    #[test]
    fn parents_time_and_metadata_count() {
        let contents = ContentHash::default();
        let root = contents.id(&[], 1, b"");
        let all = [
            root,
            contents.id(&[root], 1, b""),
            contents.id(&[root, root], 1, b""),
            contents.id(&[], 2, b""),
            contents.id(&[], 1, b"x"),
        ];
        assert_eq!(std::collections::BTreeSet::from(all).len(), 5);
    }

    #[test]
    fn ids_are_parsed_as_they_are_shown() {
        let root = ContentHash::default().id(&[], 1, b"");
        assert_eq!(root.to_string().parse::<CommitId>().unwrap(), root);
        for text in ["", "ab", &"g".repeat(64), &"ä".repeat(32), &format!("{root}0")] {
            assert!(text.parse::<CommitId>().is_err(), "{text}");
        }
    }
}
