//! Removal of scanned keys: the first or the last key, and keys selected by a function.
//!
//! A scan borrows the write set that a deletion changes. A removal therefore scans a batch of keys,
//! ends the scan, and deletes; the next batch begins after the last key. Batches are charged to the
//! budget; if it refuses, a batch is one key.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Bound;
use std::sync::PoisonError;

use plimsoll_memory::budget::account::Charge;

use crate::borders::{Border, hit};
use crate::index::sources::merge::Direction;
use crate::txn::pops::Pops;
use crate::txn::range::Range;
use crate::txn::transaction::Transaction;
use crate::types::error::Result;
use crate::types::index_key::{IndexKey, Prefix};
use crate::types::key_range::KeyRange;
use crate::types::keyspaces::Keyspace;
use crate::types::value::Value;

/// Size of the keys and values at which a batch is full.
const BATCH_BYTES: usize = 32 << 10;

/// Maximum number of pairs in the first batch. It is small, so that a caller that stops early has
/// read few pairs in vain.
const FIRST_PAIRS: usize = 4;

/// Maximum number of pairs in any batch.
const MOST_PAIRS: usize = 256;

impl Transaction {
    /// Removes the first key and returns it with its value; `None` if there is no key.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
    /// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
    /// let jobs = db.keyspace("jobs")?;
    /// for job in ["1 wash", "2 dry", "3 iron"] {
    ///     db.put(&jobs, job, "")?;
    /// }
    /// let mut tx = db.begin();
    /// assert_eq!(tx.pop_first(&jobs)?.unwrap().0, b"1 wash");
    /// assert_eq!(tx.pop_last(&jobs)?.unwrap().0, b"3 iron");
    /// assert_eq!(tx.pop_first(&jobs)?.unwrap().0, b"2 dry");
    /// assert!(tx.pop_first(&jobs)?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Transaction::get`] and [`Transaction::delete`].
    pub fn pop_first(&mut self, keyspace: &Keyspace) -> Result<Option<(Vec<u8>, Value)>> {
        self.pop(keyspace, Direction::Forward)
    }

    /// Removes the last key and returns it with its value; `None` if there is no key. See
    /// [`Transaction::pop_first`].
    ///
    /// # Errors
    /// As for [`Transaction::get`] and [`Transaction::delete`].
    pub fn pop_last(&mut self, keyspace: &Keyspace) -> Result<Option<(Vec<u8>, Value)>> {
        self.pop(keyspace, Direction::Backward)
    }

    fn pop(
        &mut self,
        keyspace: &Keyspace,
        direction: Direction,
    ) -> Result<Option<(Vec<u8>, Value)>> {
        let space = self.id_of(keyspace)?;
        if self.lens.is_some() {
            let found = match direction {
                Direction::Forward => self.first(keyspace)?,
                Direction::Backward => self.last(keyspace)?,
            };
            found.iter().try_for_each(|(key, _)| self.delete(keyspace, key))?;
            return Ok(found);
        }
        // Compute updates first, because pops only delete keys in the write set.
        self.compute_pending()?;
        let is_continued = self.pops().are_at(space, direction);
        if is_continued {
            if let Some(pair) = self.pop_ahead()? {
                return Ok(Some(pair));
            }
            if let Some(pair) = self.pop_and_read_ahead(keyspace, space, direction)? {
                return Ok(Some(pair));
            }
        }
        // Unlike the reads ahead, this scan is recorded as a read, also if it finds nothing.
        let found = match direction {
            Direction::Forward => self.first(keyspace)?,
            Direction::Backward => self.last(keyspace)?,
        };
        if is_continued && found.is_none() {
            hit(Border::PoppedToTheEnd);
        }
        if let Some((key, _)) = &found {
            self.delete(keyspace, key)?;
            self.pops().begin(space, direction, key);
        }
        Ok(found)
    }

    /// Pops a row that was read ahead, if any.
    fn pop_ahead(&mut self) -> Result<Option<(Vec<u8>, Value)>> {
        let Self { committer, pops, writes, spoiled, .. } = self;
        let pops = pops.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some((key, value)) = pops.first() else { return Ok(None) };
        committer.check_writable()?;
        let deleted = writes.delete(key);
        *spoiled |= deleted.is_err();
        deleted?;
        let pair = (IndexKey::new(key).user_key().to_vec(), Value::new(value.to_vec().into()));
        pops.pass();
        hit(Border::PoppedAhead);
        Ok(Some(pair))
    }

    /// Pops the first row after those popped before, and reads rows ahead that follow it; `None` if
    /// there is no such row, or no memory to read ahead.
    fn pop_and_read_ahead(
        &mut self,
        keyspace: &Keyspace,
        space: u32,
        direction: Direction,
    ) -> Result<Option<(Vec<u8>, Value)>> {
        self.record_pops();
        let mut pops = std::mem::take(self.pops());
        let popped = self.read_ahead(&mut pops, keyspace, space, direction);
        *self.pops() = pops;
        let Some(pair) = popped? else { return Ok(None) };
        let key = Prefix::of(space).join(&pair.0);
        // If this row cannot be deleted, the rows ahead are not the first ones, so discard them.
        self.write(|writes| writes.delete(&key)).inspect_err(|_| self.pops().forget())?;
        self.pops().continue_after(key);
        Ok(Some(pair))
    }

    fn read_ahead(
        &self,
        pops: &mut Pops,
        keyspace: &Keyspace,
        space: u32,
        direction: Direction,
    ) -> Result<Option<(Vec<u8>, Value)>> {
        let rows = pops.reserve(&self.committer.reader.index.iterators);
        let last = Bound::Excluded(pops.last_key());
        let mut batch: Range<'_> = match direction {
            _ if rows == 0 => return Ok(None),
            Direction::Forward => self.range(keyspace, (last, Bound::Unbounded))?.unnoted(),
            Direction::Backward => {
                self.range(keyspace, (Bound::Unbounded, last))?.unnoted().reverse()
            }
        };
        let Some(first) = batch.next().transpose()? else { return Ok(None) };
        for _ in 0..rows {
            match batch.advance() {
                Ok(Some((key, value))) if pops.push(space, key, value) => {}
                // A row that cannot be read fails when it is popped.
                _ => break,
            }
        }
        Ok(Some(first))
    }

    /// Keeps the keys of a range for which `keep` returns true and deletes the others. Returns how
    /// many it deleted.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
    /// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
    /// let sessions = db.keyspace("sessions")?;
    /// db.transact(|tx| (0..10u8).try_for_each(|age| tx.put(&sessions, [b's', age], [age])))?;
    /// let expired = db.transact(|tx| tx.retain(&sessions, .., |_, age| age[0] < 7))?;
    /// assert_eq!((expired, db.snapshot().len(&sessions)?), (3, 7));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Transaction::get`] and [`Transaction::delete`]; a bound is too long.
    pub fn retain(
        &mut self,
        keyspace: &Keyspace,
        range: impl KeyRange,
        mut keep: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<u64> {
        let (mut batch, mut deleted) = (Batch::new(self, &range), 0);
        while let Some(found) = batch.collect(self, keyspace, &mut keep)? {
            let mut start = 0;
            for end in found.ends {
                self.delete(keyspace, &found.keys[start..end])?;
                start = end;
                deleted += 1;
            }
            batch.pass(found.last);
        }
        Ok(deleted)
    }

    /// Removes the keys of a range for which `remove` returns true, and yields them with their
    /// values, in key order. Each key is deleted when it is yielded; keys not yielded stay.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
    /// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
    /// let tasks = db.keyspace("tasks")?;
    /// db.transact(|tx| (0..10u8).try_for_each(|task| tx.put(&tasks, [task], [task % 3])))?;
    /// let mut tx = db.begin();
    /// let ready = tx.extract_if(&tasks, .., |_, state| state[0] == 0)?.take(2);
    /// let ready = ready.map(|task| task.map(|(key, _)| key[0]));
    /// let ready: plimsoll::Result<Vec<_>> = ready.collect();
    /// assert_eq!(ready?, [0, 3]);
    /// assert_eq!(tx.len(&tasks)?, 8);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A bound is too long. The iterator's items: as for [`Transaction::get`] and
    /// [`Transaction::delete`].
    pub fn extract_if<'t, F: FnMut(&[u8], &[u8]) -> bool>(
        &'t mut self,
        keyspace: &Keyspace,
        range: impl KeyRange,
        remove: F,
    ) -> Result<ExtractIf<'t, F>> {
        drop(self.range(keyspace, &range)?);
        let batch = Batch::new(self, &range);
        Ok(ExtractIf {
            tx: self,
            keyspace: keyspace.clone(),
            batch,
            ahead: VecDeque::new(),
            remove,
        })
    }
}

/// Keys to delete.
#[derive(Default)]
struct Found {
    /// The keys, concatenated.
    keys: Vec<u8>,
    /// End offsets of the keys.
    ends: Vec<usize>,
    /// The last examined key; `None` at the end of the range.
    last: Option<Vec<u8>>,
}

/// A range of user keys.
type Rest = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The start and the maximum size of the next batch of a removal.
struct Batch {
    /// The rest of the range; `None` at its end.
    rest: Option<Rest>,
    pairs: usize,
    charge: Charge,
}

impl Batch {
    fn new(tx: &Transaction, range: &impl KeyRange) -> Self {
        let rest = (range.start_key().map(<[u8]>::to_vec), range.end_key().map(<[u8]>::to_vec));
        Self { rest: Some(rest), pairs: FIRST_PAIRS, charge: tx.charge() }
    }

    /// An iterator from the end of the last batch, and the maximum number of pairs to take from it;
    /// `None` at the end of the range.
    fn scan<'t>(
        &mut self,
        tx: &'t Transaction,
        keyspace: &Keyspace,
    ) -> Result<Option<(Range<'t>, usize)>> {
        let Some((lower, upper)) = &self.rest else { return Ok(None) };
        let pairs = if self.charge.set(2 * BATCH_BYTES as u64).is_ok() { self.pairs } else { 1 };
        self.pairs = (2 * self.pairs).min(MOST_PAIRS);
        let batch = tx.range(
            keyspace,
            (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice)),
        )?;
        Ok(Some((batch, pairs)))
    }

    /// Scans until a batch is full, and collects the keys that `keep` rejects. `None` at the end of
    /// the range.
    fn collect(
        &mut self,
        tx: &Transaction,
        keyspace: &Keyspace,
        keep: &mut impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<Option<Found>> {
        let Some((mut batch, pairs)) = self.scan(tx, keyspace)? else { return Ok(None) };
        let mut found = Found::default();
        while let Some((key, value)) = batch.advance()? {
            if !keep(key, value) {
                found.keys.extend_from_slice(key);
                found.ends.push(found.keys.len());
                if found.ends.len() >= pairs || found.keys.len() >= BATCH_BYTES {
                    if found.ends.len() < pairs {
                        hit(Border::BatchByBytes);
                    }
                    found.last = Some(key.to_vec());
                    break;
                }
            }
        }
        Ok(Some(found))
    }

    /// Records that the batch ended with this key; `None`: with the range.
    fn pass(&mut self, last: Option<Vec<u8>>) {
        self.rest =
            last.and_then(|last| self.rest.take().map(|(_, upper)| (Bound::Excluded(last), upper)));
    }
}

/// The iterator returned by [`Transaction::extract_if`].
pub struct ExtractIf<'t, F> {
    tx: &'t mut Transaction,
    keyspace: Keyspace,
    batch: Batch,
    /// Pairs that were read but not examined yet.
    ahead: VecDeque<(Vec<u8>, Value)>,
    remove: F,
}

impl<F> ExtractIf<'_, F> {
    /// Reads the next batch; false at the end of the range.
    fn read_ahead(&mut self) -> Result<bool> {
        let Some((mut batch, pairs)) = self.batch.scan(self.tx, &self.keyspace)? else {
            return Ok(false);
        };
        let mut bytes = 0;
        while self.ahead.len() < pairs && bytes < BATCH_BYTES {
            let Some(pair) = batch.next() else { break };
            let (key, value) = pair?;
            bytes += key.len() + value.len();
            self.ahead.push_back((key, value));
        }
        let is_full = self.ahead.len() == pairs || bytes >= BATCH_BYTES;
        if is_full && self.ahead.len() < pairs {
            hit(Border::BatchByBytes);
        }
        let last = self.ahead.back().filter(|_| is_full).map(|(key, _)| key.clone());
        drop(batch);
        self.batch.pass(last);
        Ok(true)
    }
}

impl<F: FnMut(&[u8], &[u8]) -> bool> Iterator for ExtractIf<'_, F> {
    type Item = Result<(Vec<u8>, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            while let Some((key, value)) = self.ahead.pop_front() {
                if (self.remove)(&key, &value) {
                    return Some(self.tx.delete(&self.keyspace, &key).map(|()| (key, value)));
                }
            }
            match self.read_ahead() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    self.batch.pass(None);
                    return Some(Err(error));
                }
            }
        }
    }
}

impl<F> fmt::Debug for ExtractIf<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExtractIf({:?}, {:?})", self.keyspace, self.tx)
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::open::open;
    use crate::types::error::Error;
    use crate::types::options::Options;

    use super::*;

    #[test]
    fn rows_after_one_that_cannot_be_popped_are_discarded() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(
            &dir.path().join("store"),
            Options::new().memory_bytes(16 << 20).background(false),
        )
        .unwrap();
        let keyspace = store.reader.keyspaces.find("default").unwrap().0;
        let mut tx = Transaction::new(&store.committer);
        (0..20u8).for_each(|key| tx.put(&keyspace, [key], b"").unwrap());
        tx.commit().unwrap();
        let mut tx = Transaction::new(&store.committer);
        for key in 0..6 {
            assert_eq!(tx.pop_first(&keyspace).unwrap().unwrap().0, [key]);
        }
        let lock = store.committer.sequencer.lock().unwrap();
        store
            .committer
            .sequencer
            .submit_and_apply(&lock, || Ok(()), |()| Err(Error::corrupt("a page")))
            .unwrap_err();
        drop(lock);
        // This pop scans, and is refused after the scan.
        assert!(tx.pops().first().is_none());
        tx.pop_first(&keyspace).unwrap_err();
        assert!(tx.pops().first().is_none());
    }
}
