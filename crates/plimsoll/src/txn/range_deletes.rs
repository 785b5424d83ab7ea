//! Deletes all keys in a range.
//!
//! A range with few keys is deleted key by key. Any other range becomes a range deletion: one
//! record, regardless of the number of keys ([`crate::index::ranges`]). On a branch, all ranges are
//! deleted key by key.

use std::ops::Bound;
use std::sync::{Arc, PoisonError};

use crate::index::ranges::end_of_all;
use crate::index::sources::merge::Direction;
use crate::read::span::Span;
use crate::txn::own_writes::{OwnWrites, UpdatedKeys};
use crate::txn::transaction::Transaction;
use crate::types::error::Result;
use crate::types::index_key::{IndexKey, KeptKey, MAX_INDEX_KEY_BYTES, Prefix};
use crate::types::invalid_input::InvalidInput;
use crate::types::key_range::KeyRange;
use crate::types::keyspaces::Keyspace;

/// Own writes in a range are deleted in batches with this many bytes of keys.
const BATCH_BYTES: usize = 32 << 10;

/// The reads that the deletion of a range adds to its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// The range: the deletion conflicts with commits in it since the transaction's snapshot.
    Range,
    /// None, if the range becomes a range deletion, which deletes all keys that are in the range
    /// when it is ordered, without a conflict. A range that is deleted key by key counts as read.
    Nothing,
}

impl Transaction {
    /// Deletes all keys in a range. This takes as long as a single deletion, regardless of the
    /// number of keys, except on a branch, where keys are deleted one by one. The space is freed in
    /// the background. Keys that the transaction puts afterwards stay. A commit of another
    /// transaction in the range since the snapshot is a conflict.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
    /// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
    /// let events = db.keyspace("events")?;
    /// db.transact(|tx| (0..1000u32).try_for_each(|day| tx.put(&events, day.to_be_bytes(), "")))?;
    /// let before = db.snapshot();
    /// db.transact(|tx| tx.delete_range(&events, ..900u32.to_be_bytes()))?;
    /// assert_eq!((db.snapshot().len(&events)?, before.len(&events)?), (100, 1000));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The range is empty; nothing is written. Others as for [`Transaction::put`].
    pub fn delete_range(&mut self, keyspace: &Keyspace, range: impl KeyRange) -> Result<()> {
        let span = Span::new(self.id_of(keyspace)?, &range);
        self.delete_span(keyspace, &span, Reads::Range)
    }

    /// Deletes all keys that begin with `prefix`; if it is empty, all keys of the keyspace. See
    /// [`Transaction::delete_range`].
    ///
    /// # Errors
    /// The prefix is longer than the longest key. Others as for [`Transaction::delete_range`].
    pub fn delete_prefix(&mut self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<()> {
        let span = Span::prefix(self.id_of(keyspace)?, prefix.as_ref());
        self.delete_span(keyspace, &span, Reads::Range)
    }

    /// Deletes all keys in a span.
    pub(crate) fn delete_span(
        &mut self,
        keyspace: &Keyspace,
        span: &Span,
        reads: Reads,
    ) -> Result<()> {
        if span.is_empty() {
            return Err(InvalidInput::EmptyRange.into());
        }
        self.committer.check_writable()?;
        if self.lens.is_some() {
            let deleted = self.delete_each(keyspace, span);
            self.spoiled |= deleted.is_err();
            return deleted;
        }
        self.record_pops();
        self.pops().forget();
        let few = self.few_keys(span)?;
        if reads == Reads::Range || few.is_some() {
            self.note_span(span);
        }
        if let Some(keys) = few {
            keys.iter().try_for_each(|key| self.delete(keyspace, key))?;
            return self.overwrite_updates(span);
        }
        self.delete_updated(keyspace, span)?;
        let end = span.end().map_or_else(end_of_all, |end| end.into_owned());
        let first = first_key(span.first().into_owned());
        if first >= end {
            return Ok(());
        }
        let runs = &self.committer.reader.index.runs;
        let bytes = runs.bytes_of_range(&first, &end);
        let has_room = self.writes.has_room_for_range()
            && runs.has_room_for_ranges(self.writes.range_index_bytes() + bytes);
        if !has_room {
            self.note_span(span);
            return self.retain(keyspace, user_range(span), |_, _| false).map(drop);
        }
        self.delete_own(keyspace, &first, &end)?;
        self.writes.delete_range(&first, &end, bytes);
        Ok(())
    }

    /// Deletes the keys of a span one by one, in batches, because a scan borrows the write set that
    /// a deletion changes. The whole span counts as read.
    fn delete_each(&mut self, keyspace: &Keyspace, span: &Span) -> Result<()> {
        let mut rest = span.clone();
        loop {
            let (mut keys, mut bytes) = (Vec::new(), 0);
            let mut iter = self.scan(rest.clone())?.keys_only();
            while bytes < BATCH_BYTES
                && let Some((key, _)) = iter.advance()?
            {
                bytes += key.len();
                keys.push(key.to_vec());
            }
            drop(iter);
            let Some(last) = keys.last() else { return Ok(()) };
            let space = IndexKey::new(&span.first()).keyspace();
            let (_, upper) = rest.into_range();
            rest = Span::between(Bound::Excluded(KeptKey::join(Prefix::of(space), last)), upper);
            keys.iter().try_for_each(|key| self.delete(keyspace, key))?;
        }
    }

    /// Deletes a span by a range record without reading it, to repeat a commit that did so.
    pub(crate) fn repeat_range(&mut self, keyspace: &Keyspace, span: &Span) -> Result<()> {
        if span.is_empty() {
            return Err(InvalidInput::EmptyRange.into());
        }
        let end = span.end().map_or_else(end_of_all, |end| end.into_owned());
        let first = first_key(span.first().into_owned());
        if first >= end {
            return Ok(());
        }
        self.delete_own(keyspace, &first, &end)?;
        let bytes = self.committer.reader.index.runs.bytes_of_range(&first, &end);
        self.writes.delete_range(&first, &end, bytes);
        Ok(())
    }

    /// The user's keys in a span, including own writes, if they are few. Expired ones count,
    /// because it does not matter whether a value that is deleted expires before the commit.
    fn few_keys(&self, span: &Span) -> Result<Option<Vec<Vec<u8>>>> {
        let mut iter = self.scan(span.clone())?.unnoted().unexpiring().keys_only();
        let limit = self.committer.options.sizes.range_keys;
        let mut keys = Vec::new();
        while let Some((key, _)) = iter.advance()? {
            if keys.len() == limit {
                return Ok(None);
            }
            keys.push(key.to_vec());
        }
        Ok(Some(keys))
    }

    /// Overwrites the pending updates of keys in a span, before the span is deleted.
    fn overwrite_updates(&mut self, span: &Span) -> Result<()> {
        let updated: Vec<_> = self.pending.in_span(span).map(<[u8]>::to_vec).collect();
        updated.iter().try_for_each(|key| self.overwrite_pending(key))
    }

    /// Deletes the keys in a span that have pending updates, because a range deletion only hides
    /// versions from before the transaction.
    fn delete_updated(&mut self, keyspace: &Keyspace, span: &Span) -> Result<()> {
        let updated: Vec<_> = self.pending.in_span(span).map(<[u8]>::to_vec).collect();
        for key in &updated {
            let user_key = IndexKey::new(key).user_key();
            if self.contains_key(keyspace, user_key)? {
                self.delete(keyspace, user_key)?;
            } else {
                self.overwrite_pending(key)?;
            }
        }
        Ok(())
    }

    /// Records that the whole span was read.
    pub(crate) fn note_span(&self, span: &Span) {
        let on_branch = self.lens_of(span).map(|lens| lens.span(span));
        let span = on_branch.as_ref().unwrap_or(span);
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        if reads.add(&span.first(), Some(span.upper())).is_err() {
            reads.add_all();
        }
    }

    /// Deletes the transaction's own puts from `first` up to `end`, because a range deletion only
    /// hides versions from before the transaction.
    fn delete_own(&mut self, keyspace: &Keyspace, first: &[u8], end: &[u8]) -> Result<()> {
        // Updated keys in the range are deleted already.
        let updated: UpdatedKeys = Arc::new([]);
        let mut from = first.to_vec();
        loop {
            let (mut keys, mut bytes) = (Vec::new(), 0);
            let mut own =
                OwnWrites::new((&self.writes, &updated), Direction::Forward, Some(&from))?;
            while let Some(key) = own.key().filter(|key| **key < *end)
                && bytes < BATCH_BYTES
            {
                if own.write().is_some_and(|write| !write.is_deletion()) {
                    bytes += key.len();
                    keys.push(key.to_vec());
                }
                own.advance()?;
            }
            let next = own.key().filter(|key| **key < *end).map(<[u8]>::to_vec);
            drop(own);
            for key in &keys {
                self.delete(keyspace, IndexKey::new(key).user_key())?;
            }
            let Some(next) = next else { return Ok(()) };
            from = next;
        }
    }
}

/// The first key that a range from `bound` on can contain. A bound just after a key of the maximum
/// length is longer than any key.
fn first_key(mut bound: Vec<u8>) -> Vec<u8> {
    if bound.len() > MAX_INDEX_KEY_BYTES {
        bound.truncate(MAX_INDEX_KEY_BYTES);
        while bound.pop_if(|byte| *byte == u8::MAX).is_some() {}
        if let Some(last) = bound.last_mut() {
            *last += 1;
        }
    }
    bound
}

/// The keys of a span as a range of a user's keys.
fn user_range(span: &Span) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let keyspace = IndexKey::new(&span.first()).keyspace();
    let user_key = |bound: Bound<&[u8]>| match bound {
        Bound::Included(key) if IndexKey::new(key).is_in(keyspace) => {
            Bound::Included(IndexKey::new(key).user_key().to_vec())
        }
        Bound::Excluded(key) if IndexKey::new(key).is_in(keyspace) => {
            Bound::Excluded(IndexKey::new(key).user_key().to_vec())
        }
        _ => Bound::Unbounded,
    };
    (user_key(span.lower()), user_key(span.upper()))
}
