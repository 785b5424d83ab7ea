//! Commits in messages.
//!
//! ```text
//! for each commit, parents first:
//!   u8 1; bytes32 id; u8 flags: 1 if it is the last commit or on its first-parent line, 2 if it is
//!   a boundary commit, whose changes are its state
//!   number of parents, bytes32 each; u64 time; metadata
//!   changes:
//!     u8 1 keyspace of the following changes: name
//!     u8 2 deleted range: first key; u8 1 if it has an end: end
//!     u8 3 deleted key: key
//!     u8 4 put: key; u64 expiry, 0 if there is none; length of the value, value
//!     u8 5 hash of the state, after all changes of a boundary commit
//!     u8 0 end of the commit
//! u8 0: end
//! ```
//!
//! In each keyspace, deleted ranges come first, then keys in order. The keys of a keyspace are not
//! interrupted by those of another. The receiver checks this, because it computes the id over the
//! changes in the order in which they arrive, but later sends them sorted.

use std::collections::BTreeSet;
use std::sync::Arc;

use plimsoll_memory::budget::Lease;

use crate::api::state_hash::StateHash;
use crate::sync::commit_id::CommitId;
use crate::sync::contents::{Bytes, DeletedRange, Sink, WHOLE_BYTES, covers};
use crate::sync::send::{CommitSink, Head};
use crate::sync::wire::frames::{Input, Put, not_protocol};
use crate::sync::wire::items::{
    END, NEXT, put_bytes, put_number, take_bytes, take_flag, take_id, take_name, take_number,
    take_u8, take_u64,
};
use crate::txn::payload::MAX_METADATA_BYTES;
use crate::types::error::{Error, Result};
use crate::types::expiry::Expiry;
use crate::types::index_key::MAX_KEY_BYTES;
use crate::types::version::MAX_VALUE_BYTES;

const KEYSPACE: u8 = 1;
const RANGE: u8 = 2;
const DELETE: u8 = 3;
const PUT: u8 = 4;
const STATE: u8 = 5;

/// Flag of a commit that is the last one, or on the first-parent line of the last one.
const ON_LINE: u8 = 1;

/// Flag of a boundary commit.
const BOUNDARY: u8 = 2;

/// The most parents of a commit.
const PARENTS_MAX: u64 = 4096;

/// The longest bound of a deleted range.
const BOUND_BYTES_MAX: usize = 1 << 20;

/// Values are sent in pieces of this many bytes.
const PIECE_BYTES: usize = 32 << 10;

/// Sends commits.
pub(super) struct Encoder<'a> {
    out: &'a mut dyn Put,
    piece: Vec<u8>,
}

impl<'a> Encoder<'a> {
    pub(super) fn new(out: &'a mut dyn Put) -> Self {
        Self { out, piece: Vec::new() }
    }

    /// Ends the list of commits.
    pub(super) fn end(self) -> Result<()> {
        self.out.put(&[END])
    }
}

impl CommitSink for Encoder<'_> {
    fn commit(
        &mut self,
        head: &Head<'_>,
        changes: &mut dyn FnMut(&mut dyn Sink) -> Result<()>,
    ) -> Result<()> {
        let parents = head.parents.len() as u64;
        if parents > PARENTS_MAX {
            return Err(Error::Remote {
                message: format!(
                    "commit {} has {parents} parents, and at most {PARENTS_MAX} can be sent",
                    head.id
                ),
            });
        }
        self.out.put(&[NEXT])?;
        self.out.put(head.id.as_bytes())?;
        let on_line = if head.is_on_line { ON_LINE } else { 0 };
        let flags = on_line | if head.is_boundary { BOUNDARY } else { 0 };
        self.out.put(&[flags])?;
        put_number(self.out, parents)?;
        head.parents.iter().try_for_each(|parent| self.out.put(parent.as_bytes()))?;
        self.out.put(&head.micros.to_le_bytes())?;
        put_bytes(self.out, head.metadata)?;
        changes(&mut ChangeEncoder {
            out: self.out,
            piece: &mut self.piece,
            keyspace: String::new(),
        })?;
        self.out.put(&[END])
    }
}

struct ChangeEncoder<'a> {
    out: &'a mut dyn Put,
    piece: &'a mut Vec<u8>,
    keyspace: String,
}

impl ChangeEncoder<'_> {
    fn keyspace(&mut self, name: &str) -> Result<()> {
        if self.keyspace != name {
            name.clone_into(&mut self.keyspace);
            self.out.put(&[KEYSPACE])?;
            put_bytes(self.out, name.as_bytes())?;
        }
        Ok(())
    }
}

impl Sink for ChangeEncoder<'_> {
    fn range(&mut self, keyspace: &str, first: &[u8], end: Option<&[u8]>) -> Result<()> {
        if first.len().max(end.map_or(0, <[u8]>::len)) > BOUND_BYTES_MAX {
            let message =
                format!("a bound of a deleted range has more than {BOUND_BYTES_MAX} bytes");
            return Err(Error::Remote { message });
        }
        self.keyspace(keyspace)?;
        self.out.put(&[RANGE])?;
        put_bytes(self.out, first)?;
        self.out.put(&[u8::from(end.is_some())])?;
        end.map_or(Ok(()), |end| put_bytes(self.out, end))
    }

    fn delete(&mut self, keyspace: &str, key: &[u8]) -> Result<()> {
        self.keyspace(keyspace)?;
        self.out.put(&[DELETE])?;
        put_bytes(self.out, key)
    }

    fn put(
        &mut self,
        keyspace: &str,
        key: &[u8],
        expiry: Option<Expiry>,
        value: Bytes<'_>,
    ) -> Result<()> {
        self.keyspace(keyspace)?;
        self.out.put(&[PUT])?;
        put_bytes(self.out, key)?;
        self.out.put(&expiry.map_or(0, Expiry::micros).to_le_bytes())?;
        put_number(self.out, value.len())?;
        match value {
            Bytes::Whole(value) => self.out.put(value),
            Bytes::Pieces(len, next) => {
                self.piece.resize(PIECE_BYTES, 0);
                let mut left = len;
                while left > 0 {
                    let most = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
                    let got = next(&mut self.piece[..most])?;
                    if got == 0 {
                        return Err(Error::damaged("a value is shorter than its length says"));
                    }
                    self.out.put(&self.piece[..got])?;
                    left -= got as u64;
                }
                Ok(())
            }
        }
    }

    fn state(&mut self, hash: StateHash) -> Result<()> {
        self.out.put(&[STATE])?;
        self.out.put(hash.as_bytes())
    }
}

/// Receives commits until the end of their list, and passes them to `sink`. `lease` charges the
/// memory that is held for the current commit.
///
/// # Errors
/// [`Error::Remote`] if the bytes do not encode commits; the budget; the errors of the sink and of
/// the other side.
pub(super) fn take_commits(
    input: &mut Input,
    lease: &mut Lease,
    sink: &mut dyn CommitSink,
) -> Result<()> {
    let (mut parents, mut metadata) = (Vec::new(), Vec::new());
    while take_flag(input)? {
        let (id, flags) = (take_id(input)?, take_u8(input)?);
        if flags & !(ON_LINE | BOUNDARY) != 0 {
            return Err(not_protocol(&format!("a commit has the flags {flags}")));
        }
        let (is_on_line, is_boundary) = (flags & ON_LINE != 0, flags & BOUNDARY != 0);
        parents.clear();
        for _ in 0..take_number(input, PARENTS_MAX)? {
            parents.push(take_id(input)?);
        }
        let micros = take_u64(input)?;
        take_bytes(input, &mut metadata, MAX_METADATA_BYTES)?;
        let parents: &[CommitId] = &parents;
        let metadata = &metadata[..];
        let head = Head { id, parents, micros, metadata, is_on_line, is_boundary };
        let mut is_taken = false;
        sink.commit(&head, &mut |sink| {
            if std::mem::replace(&mut is_taken, true) {
                return Err(not_protocol("the changes of a commit were read twice"));
            }
            take_changes(input, lease, sink)
        })?;
        if !is_taken {
            take_changes(input, lease, &mut Discard)?;
        }
    }
    Ok(())
}

/// Drops the changes of a commit that the store already has.
struct Discard;

impl Sink for Discard {
    fn range(&mut self, _: &str, _: &[u8], _: Option<&[u8]>) -> Result<()> {
        Ok(())
    }

    fn delete(&mut self, _: &str, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn put(&mut self, _: &str, _: &[u8], _: Option<Expiry>, value: Bytes<'_>) -> Result<()> {
        if let Bytes::Pieces(_, next) = value {
            let mut piece = vec![0; PIECE_BYTES];
            while next(&mut piece)? > 0 {}
        }
        Ok(())
    }
}

fn take_changes(input: &mut Input, lease: &mut Lease, sink: &mut dyn Sink) -> Result<()> {
    let held = lease.bytes();
    let taken = Changes::new(lease).and_then(|mut changes| changes.take(input, sink));
    lease.shrink(lease.bytes() - held);
    taken
}

/// Receives the changes of one commit, and checks their order.
struct Changes<'a> {
    lease: &'a mut Lease,
    keyspace: Arc<str>,
    /// The last key of `keyspace`; `None` before its first key.
    key: Option<Vec<u8>>,
    /// The earlier keyspaces with keys.
    done: BTreeSet<Arc<str>>,
    ranges: Vec<DeletedRange>,
    value: Vec<u8>,
}

impl<'a> Changes<'a> {
    fn new(lease: &'a mut Lease) -> Result<Self> {
        lease.grow(WHOLE_BYTES + 2 * MAX_KEY_BYTES as u64)?;
        Ok(Self {
            lease,
            keyspace: "".into(),
            key: None,
            done: BTreeSet::new(),
            ranges: Vec::new(),
            value: Vec::new(),
        })
    }

    fn take(&mut self, input: &mut Input, sink: &mut dyn Sink) -> Result<()> {
        let mut key = Vec::new();
        loop {
            match take_u8(input)? {
                END => return Ok(()),
                KEYSPACE => self.enter(take_name(input)?)?,
                RANGE => self.range(input, sink)?,
                DELETE => {
                    take_bytes(input, &mut key, MAX_KEY_BYTES)?;
                    self.follow(&key)?;
                    if self.ranges.iter().any(|range| covers(range, &self.keyspace, &key)) {
                        let why = "it deletes a key in a range that the same commit deletes";
                        return Err(not_protocol(why));
                    }
                    sink.delete(&self.keyspace, &key)?;
                }
                PUT => {
                    take_bytes(input, &mut key, MAX_KEY_BYTES)?;
                    self.follow(&key)?;
                    self.put(input, &key, sink)?;
                }
                STATE => {
                    let mut hash = [0; 32];
                    input.take(&mut hash)?;
                    sink.state(StateHash::from_bytes(hash))?;
                }
                other => {
                    let why = format!("it sent a change of unknown kind {other}");
                    return Err(not_protocol(&why));
                }
            }
        }
    }

    fn enter(&mut self, name: String) -> Result<()> {
        if self.key.take().is_some() {
            // The charge also covers the transaction, which keeps each keyspace that it writes to.
            self.lease.grow(4 * self.keyspace.len() as u64 + 64)?;
            self.done.insert(Arc::clone(&self.keyspace));
        }
        self.keyspace = name.into();
        Ok(())
    }

    fn check_place(&self) -> Result<()> {
        if self.keyspace.is_empty() {
            return Err(not_protocol("a change is not preceded by its keyspace"));
        }
        if self.done.contains(&self.keyspace) {
            return Err(not_protocol("the keys of one keyspace are not contiguous"));
        }
        Ok(())
    }

    /// Checks that a key is greater than the previous key of its keyspace.
    fn follow(&mut self, key: &[u8]) -> Result<()> {
        self.check_place()?;
        if self.key.as_deref().is_some_and(|last| key <= last) {
            return Err(not_protocol("the keys of a commit are not in ascending order"));
        }
        let last = self.key.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        Ok(())
    }

    fn range(&mut self, input: &mut Input, sink: &mut dyn Sink) -> Result<()> {
        self.check_place()?;
        if self.key.is_some() {
            return Err(not_protocol("a deleted range follows a key"));
        }
        self.lease.grow(2 * BOUND_BYTES_MAX as u64)?;
        let (mut first, mut end) = (Vec::new(), None);
        take_bytes(input, &mut first, BOUND_BYTES_MAX)?;
        if take_flag(input)? {
            take_bytes(input, end.insert(Vec::new()), BOUND_BYTES_MAX)?;
        }
        let bytes = self.keyspace.len() + first.len() + end.as_ref().map_or(0, Vec::len);
        // The range is held three times: here, in the receiver's record, in the transaction.
        self.lease.grow(3 * (bytes as u64 + size_of::<DeletedRange>() as u64))?;
        self.lease.shrink(2 * BOUND_BYTES_MAX as u64);
        sink.range(&self.keyspace, &first, end.as_deref())?;
        self.ranges.push((Arc::clone(&self.keyspace), first, end));
        Ok(())
    }

    fn put(&mut self, input: &mut Input, key: &[u8], sink: &mut dyn Sink) -> Result<()> {
        let expiry = match take_u64(input)? {
            0 => None,
            micros => match Expiry::from_micros(micros) {
                Some(expiry) if expiry != Expiry::OF_DELETION => Some(expiry),
                _ => return Err(not_protocol(&format!("invalid expiry time {micros}"))),
            },
        };
        let len = take_number(input, MAX_VALUE_BYTES)?;
        if len <= WHOLE_BYTES {
            self.value.clear();
            self.value.resize(len as usize, 0);
            input.take(&mut self.value)?;
            return sink.put(&self.keyspace, key, expiry, Bytes::Whole(&self.value));
        }
        let mut left = len;
        let mut next = |piece: &mut [u8]| {
            let bytes = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
            input.take(&mut piece[..bytes])?;
            left -= bytes as u64;
            Ok(bytes)
        };
        sink.put(&self.keyspace, key, expiry, Bytes::Pieces(len, &mut next))?;
        match left {
            0 => Ok(()),
            _ => Err(not_protocol("a value was not read to its end")),
        }
    }
}

#[cfg(test)]
mod tests;
