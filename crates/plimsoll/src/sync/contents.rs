//! The changes of a commit in the form in which stores exchange them, and the record that a
//! received commit carries.

use std::ops::Bound;
use std::sync::Arc;

use plimsoll_disk::codec::Reader;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Kind;

use crate::api::commit::{Change, Commit};
use crate::api::state_hash::StateHash;
use crate::engine::Engine;
use crate::sync::commit_id::{CommitId, ContentHash};
use crate::types::branches::{MAIN_CHAIN, decode_merge_key};
use crate::types::error::{Error, Result};
use crate::types::expiry::Expiry;
use crate::types::keyspaces::{BRANCHES, IDS, is_internal};
use crate::types::times::to_micros;

/// Values of up to this many bytes are passed whole, longer ones in pieces.
pub(super) const WHOLE_BYTES: u64 = 256 << 10;

/// A value that is transferred.
pub(super) enum Bytes<'a> {
    Whole(&'a [u8]),
    /// The length of the value in bytes, and a function that copies the next bytes of the value
    /// into a buffer. It returns their number, which is less than the buffer's length only at the
    /// end of the value.
    Pieces(u64, &'a mut dyn FnMut(&mut [u8]) -> Result<usize>),
}

impl Bytes<'_> {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Whole(bytes) => bytes.len() as u64,
            Self::Pieces(len, _) => *len,
        }
    }
}

/// Receives the changes of a commit: first the deleted ranges, then the keys.
pub(super) trait Sink {
    /// Receives the deletion of the keys from `first` to `end`, exclusive; `None`: to the last key.
    fn range(&mut self, keyspace: &str, first: &[u8], end: Option<&[u8]>) -> Result<()>;
    fn delete(&mut self, keyspace: &str, key: &[u8]) -> Result<()>;
    fn put(
        &mut self,
        keyspace: &str,
        key: &[u8],
        expiry: Option<Expiry>,
        value: Bytes<'_>,
    ) -> Result<()>;

    /// Receives the hash of the state that the changes make up; only of a boundary commit, at its
    /// end.
    fn state(&mut self, _hash: StateHash) -> Result<()> {
        Ok(())
    }
}

/// Adds the changes to a [`ContentHash`].
pub(super) struct HashSink<'a> {
    pub(super) store: &'a Engine,
    pub(super) hash: ContentHash,
}

impl Sink for HashSink<'_> {
    fn range(&mut self, keyspace: &str, first: &[u8], end: Option<&[u8]>) -> Result<()> {
        self.hash.range(keyspace, first, end);
        Ok(())
    }

    fn delete(&mut self, keyspace: &str, key: &[u8]) -> Result<()> {
        self.hash.delete(keyspace, key);
        Ok(())
    }

    fn put(
        &mut self,
        keyspace: &str,
        key: &[u8],
        expiry: Option<Expiry>,
        value: Bytes<'_>,
    ) -> Result<()> {
        self.hash.put(keyspace, key, expiry, value.len());
        match value {
            Bytes::Whole(value) => self.hash.value(keyspace, value),
            Bytes::Pieces(_, next) => {
                let mut piece = self.store.reader.budget.take(Kind::Staging)?;
                loop {
                    let bytes = next(&mut piece)?;
                    if bytes == 0 {
                        break;
                    }
                    self.hash.value(keyspace, &piece[..bytes]);
                }
            }
        }
        Ok(())
    }
}

/// A range that a commit deleted: keyspace, first key, end (exclusive; `None`: the last key).
pub(super) type DeletedRange = (Arc<str>, Vec<u8>, Option<Vec<u8>>);

/// The record that a commit carries if it was received from another store, or repeats a commit of
/// another branch. It holds the properties of the original commit that the new one cannot have.
///
/// ```text
/// u8       1 if it only makes its branch equal to the original commit; 2 if it is a boundary
///          commit; otherwise 0
/// u32      chain of the commit
/// u64      time of the original commit, in microseconds since 1970 UTC
/// u32      number of parents; 32 bytes each
/// u32      number of ranges; for each:
///   u32 length, name of the keyspace; u32 length, first key;
///   u8 1 if it has an end: u32 length, end
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    /// Whether the commit only makes its branch equal to the original commit, which is on another
    /// chain of the same store.
    pub(super) is_advance: bool,
    /// Whether it is a boundary commit of a partial clone: its changes are the complete state of
    /// the original commit, whose parents the store lacks.
    pub(super) is_boundary: bool,
    /// The chain of the commit. It cannot be derived from the changes if the commit deletes only
    /// keys that the store does not have.
    pub(super) chain: u32,
    /// The time of the original commit, in microseconds since 1970 UTC.
    pub(super) micros: u64,
    pub(super) parents: Vec<CommitId>,
    /// The ranges that the original commit deleted. A received commit on a branch other than main
    /// deletes their keys one by one instead.
    pub(super) ranges: Vec<DeletedRange>,
}

impl Received {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut record = vec![u8::from(self.is_advance) | u8::from(self.is_boundary) << 1];
        record.extend_from_slice(&self.chain.to_le_bytes());
        record.extend_from_slice(&self.micros.to_le_bytes());
        push_len(&mut record, self.parents.len());
        for parent in &self.parents {
            record.extend_from_slice(parent.as_bytes());
        }
        push_len(&mut record, self.ranges.len());
        for (keyspace, first, end) in &self.ranges {
            push_bytes(&mut record, keyspace.as_bytes());
            push_bytes(&mut record, first);
            record.push(u8::from(end.is_some()));
            if let Some(end) = end {
                push_bytes(&mut record, end);
            }
        }
        record
    }

    pub(super) fn decode(record: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(record);
        Self::read(&mut reader).filter(|_| reader.remaining() == 0).ok_or_else(damaged)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (kind, chain, micros) = (reader.u8()?, reader.u32()?, reader.u64()?);
        let (is_advance, is_boundary) = (kind == 1, kind == 2);
        let mut received = Self { is_advance, is_boundary, chain, micros, ..Self::default() };
        for _ in 0..reader.u32()? {
            received.parents.push(CommitId::from_bytes(reader.take(32)?.try_into().ok()?));
        }
        for _ in 0..reader.u32()? {
            let name = std::str::from_utf8(sized(reader)?).ok()?.into();
            let first = sized(reader)?.to_vec();
            let end = match reader.u8()? {
                0 => None,
                _ => Some(sized(reader)?.to_vec()),
            };
            received.ranges.push((name, first, end));
        }
        Some(received)
    }
}

fn sized<'r>(reader: &mut Reader<'r>) -> Option<&'r [u8]> {
    let len = usize::try_from(reader.u32()?).ok()?;
    reader.take(len)
}

fn push_len(record: &mut Vec<u8>, len: usize) {
    record.extend_from_slice(&u32::try_from(len).expect("it is short").to_le_bytes());
}

fn push_bytes(record: &mut Vec<u8>, bytes: &[u8]) {
    push_len(record, bytes.len());
    record.extend_from_slice(bytes);
}

/// The error for a record of an id that cannot be decoded.
pub(super) fn damaged() -> Error {
    Error::damaged("the record of a commit's id cannot be decoded")
}

/// The first byte of the key of a record of [`Received`]; the id follows.
pub(super) const RECEIVED: u8 = b'r';

/// The position of a commit in the commit graph.
pub(super) struct Node {
    pub(super) chain: u32,
    /// The states of other chains that the commit merged.
    pub(super) merged: Vec<(u32, Glsn)>,
    /// The id and the record of a received commit.
    pub(super) received: Option<(CommitId, Received)>,
}

/// The position of a commit in the commit graph; `None` if it changed only the store's own records.
///
/// # Errors
/// [`damaged`] if a record of the commit cannot be decoded; errors of reads.
pub(super) fn node_of(commit: &Commit) -> Result<Option<Node>> {
    if commit.changes_branch()? {
        return Ok(None);
    }
    let (mut chain, mut merged, mut received) = (None, Vec::new(), None);
    for change in commit.changes()? {
        let change = change?;
        if is_of_user(&change) {
            chain = Some(change.chain());
        } else if change.space() == BRANCHES && !change.is_delete() {
            let (into, from, at) = decode_merge_key(change.key()).ok_or_else(damaged)?;
            chain = Some(into);
            merged.push((from, at));
        } else if change.space() == IDS
            && let Some((&RECEIVED, id)) = change.key().split_first()
            && let Some(record) = change.value()?
        {
            let id = CommitId::from_bytes(id.try_into().map_err(|_| damaged())?);
            received = Some((id, Received::decode(&record)?));
        }
    }
    let chain = chain.or(received.as_ref().map(|(_, received)| received.chain));
    Ok(chain.map(|chain| Node { chain, merged, received }))
}

/// Whether a change concerns a user's key, not one of the store's own records.
fn is_of_user(change: &Change) -> bool {
    change.chain() != MAIN_CHAIN || !is_internal(change.space())
}

/// The time of the original commit, in microseconds since 1970 UTC.
pub(super) fn micros_of(commit: &Commit, received: Option<&Received>) -> u64 {
    received.map_or_else(|| to_micros(commit.time()), |it| it.micros)
}

/// Passes the changes of a commit to users' keys to `sink`, in the form in which they are hashed.
/// The deleted ranges of a received commit come from its record.
///
/// # Errors
/// Errors of reads and of the sink.
pub(super) fn emit(
    commit: &Commit,
    received: Option<&Received>,
    sink: &mut dyn Sink,
) -> Result<()> {
    let mut ranges: Vec<DeletedRange> = Vec::new();
    if let Some(received) = received {
        for (keyspace, first, end) in &received.ranges {
            sink.range(keyspace, first, end.as_deref())?;
        }
        ranges.clone_from(&received.ranges);
    }
    for change in commit.changes()? {
        let change = change?;
        if !is_of_user(&change) {
            continue;
        }
        let unknown = || Error::damaged("a commit changed a keyspace whose name is unknown");
        let keyspace = change.keyspace().ok_or_else(unknown)?;
        if let Some((_, end)) = change.deleted_range() {
            if received.is_none() {
                let end = match end {
                    Bound::Excluded(end) | Bound::Included(end) => Some(end),
                    Bound::Unbounded => None,
                };
                sink.range(keyspace, change.key(), end)?;
                ranges.push((keyspace.into(), change.key().to_vec(), end.map(<[u8]>::to_vec)));
            }
        } else if change.is_delete() {
            if !ranges.iter().any(|range| covers(range, keyspace, change.key())) {
                sink.delete(keyspace, change.key())?;
            }
        } else {
            put(&change, keyspace, sink)?;
        }
    }
    Ok(())
}

/// Whether a deleted range contains a key.
pub(super) fn covers((of, first, end): &DeletedRange, keyspace: &str, key: &[u8]) -> bool {
    **of == *keyspace && key >= &first[..] && end.as_ref().is_none_or(|end| key < &end[..])
}

fn put(change: &Change, keyspace: &str, sink: &mut dyn Sink) -> Result<()> {
    let expiry = change.stored().expiry();
    if change.value_len().is_some_and(|len| len <= WHOLE_BYTES) {
        let value = change.value()?.unwrap_or_default();
        return sink.put(keyspace, change.key(), expiry, Bytes::Whole(&value));
    }
    let Some(mut value) = change.value_reader()? else { return Ok(()) };
    let len = value.len();
    let mut next = |piece: &mut [u8]| value.read_piece(piece);
    sink.put(keyspace, change.key(), expiry, Bytes::Pieces(len, &mut next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_decoded_as_it_was_encoded() {
        let parent = ContentHash::default().id(&[], 3, b"");
        let received = Received {
            is_advance: true,
            is_boundary: false,
            chain: 3,
            micros: 7,
            parents: vec![parent, parent],
            ranges: vec![
                ("notes".into(), b"a".to_vec(), Some(b"b".to_vec())),
                ("films".into(), Vec::new(), None),
            ],
        };
        let record = received.encode();
        assert_eq!(Received::decode(&record).unwrap(), received);
        for len in 0..record.len() {
            assert!(Received::decode(&record[..len]).is_err(), "{len}");
        }
    }
}
