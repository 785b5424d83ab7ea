//! Updates of single keys: methods of a transaction, and commits of one update.
//!
//! An update is computed when its commit is ordered (`txn::resolution`), so the transaction does
//! not read the key, and two updates of one key do not conflict. Updates of keys that the
//! transaction has put or deleted itself, and updates beyond a limit (`txn::pending`), are computed
//! at once instead.

use std::borrow::Cow;
use std::iter;
use std::sync::Arc;

use crate::txn::resolution::{Updated, compute};
use crate::txn::retry::{self, Target};
use crate::txn::transaction::Transaction;
use crate::types::error::Result;
use crate::types::expiry::Expiry;
use crate::types::keyspaces::Keyspace;
use crate::types::update::{Overflow, Update, check_bit};
use crate::types::value::Value;
use crate::types::version::check_value_bytes;

impl Transaction {
    /// Adds to the number stored at a key, without reading it: transactions that add to one key do
    /// not conflict. A number is an [`i64`] in 8 bytes, little endian; a key without a value counts
    /// as 0.
    ///
    /// The sum is computed from the newest value when the transaction is ordered. If the addition
    /// is refused, [`Transaction::commit`] fails with [`crate::Error::InvalidInput`], and nothing
    /// is written. A read of the key in this transaction returns the number as of its snapshot plus
    /// its own additions, and counts as a read. [`crate::Db::add`] returns the sum.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let stock = db.keyspace("stock")?;
    /// let (mut one, mut other) = (db.begin(), db.begin());
    /// one.add(&stock, "tea", 5, Overflow::Checked)?;
    /// other.add(&stock, "tea", -2, Overflow::Checked)?;
    /// one.commit()?;
    /// other.commit()?;
    /// assert_eq!(db.get(&stock, "tea")?.unwrap()[..], 3i64.to_le_bytes());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Transaction::put`]. If the transaction has already put or deleted the key:
    /// [`crate::Error::InvalidInput`] if the value is not a number, or the sum overflows.
    pub fn add(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        number: i64,
        overflow: Overflow,
    ) -> Result<()> {
        self.update_by(keyspace, key.as_ref(), Update::Add(number, overflow))
    }

    /// Raises the number stored at a key to at least `number`, which is stored if the key has no
    /// value. See [`Transaction::add`].
    ///
    /// # Errors
    /// As for [`Transaction::add`].
    pub fn max(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, number: i64) -> Result<()> {
        self.update_by(keyspace, key.as_ref(), Update::Max(number))
    }

    /// Lowers the number stored at a key to at most `number`, which is stored if the key has no
    /// value. See [`Transaction::add`].
    ///
    /// # Errors
    /// As for [`Transaction::add`].
    pub fn min(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, number: i64) -> Result<()> {
        self.update_by(keyspace, key.as_ref(), Update::Min(number))
    }

    /// Appends bytes to the value of a key. The whole value is rewritten. Updates of values above
    /// 64 KiB may conflict.
    ///
    /// # Errors
    /// As for [`Transaction::put`].
    pub fn append(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        bytes: impl AsRef<[u8]>,
    ) -> Result<()> {
        let bytes = bytes.as_ref();
        check_value_bytes(bytes.len() as u64)?;
        self.update_by(keyspace, key.as_ref(), Update::Append(Cow::Owned(bytes.to_vec())))
    }

    /// Sets the value of a key if it has none when the transaction is ordered.
    ///
    /// # Errors
    /// As for [`Transaction::put`].
    pub fn set_if_absent(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        let value = value.as_ref();
        check_value_bytes(value.len() as u64)?;
        self.update_by(keyspace, key.as_ref(), Update::SetIfAbsent(Cow::Owned(value.to_vec())))
    }

    /// Replaces the value `expected` of a key by `new`; `None` stands for no value. If the key has
    /// another value when the transaction is ordered, [`Transaction::commit`] fails with
    /// [`crate::InvalidInput::NotAsExpected`], and nothing is written.
    ///
    /// # Errors
    /// As for [`Transaction::put`]. If the transaction has already put or deleted the key:
    /// [`crate::InvalidInput::NotAsExpected`].
    pub fn compare_and_swap(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<()> {
        check_value_bytes(new.map_or(0, <[u8]>::len) as u64)?;
        let [expected, new] = [expected, new].map(|value| value.map(|v| Cow::Owned(v.to_vec())));
        let swap = Update::CompareAndSwap { expected, new, is_required: true };
        self.update_by(keyspace, key.as_ref(), swap)
    }

    /// Sets a bit in the value of a key: bit `n` is bit `n % 8`, counted from the lowest, of byte
    /// `n / 8`. A value that is too short is extended with zeros.
    ///
    /// # Errors
    /// As for [`Transaction::put`], or the bit is beyond the longest value.
    pub fn set_bit(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, bit: u64) -> Result<()> {
        check_bit(bit)?;
        self.update_by(keyspace, key.as_ref(), Update::SetBit(bit))
    }

    /// Clears a bit in the value of a key. See [`Transaction::set_bit`]; a value that is too short
    /// is not changed.
    ///
    /// # Errors
    /// As for [`Transaction::set_bit`].
    pub fn clear_bit(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        bit: u64,
    ) -> Result<()> {
        check_bit(bit)?;
        self.update_by(keyspace, key.as_ref(), Update::ClearBit(bit))
    }

    /// Sets the value of a key to the result of `compute` for its current value; `None` stands for
    /// no value.
    ///
    /// `compute` may be called several times; the last result counts. It may run while other
    /// commits wait, so it should be short, and it must not use the store. If it panics, the commit
    /// is aborted, and the panic propagates.
    ///
    /// # Errors
    /// As for [`Transaction::put`]. Calls of the store by `compute` are refused.
    pub fn update(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        compute: impl Fn(Option<&[u8]>) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Result<()> {
        self.update_by(keyspace, key.as_ref(), Update::Function(Arc::new(compute)))
    }

    fn update_by(
        &mut self,
        keyspace: &Keyspace,
        key: &[u8],
        update: Update<'static>,
    ) -> Result<()> {
        let key = self.key_to_put(keyspace, key)?;
        self.committer.check_writable()?;
        let updated = self.update_key(key.get(), update);
        self.spoil_if_failed(&updated);
        updated
    }

    fn update_key(&mut self, key: &[u8], update: Update<'static>) -> Result<()> {
        self.record_pops_before_write(key);
        self.own_gaps().put(key);
        let is_written = !self.writes.is_empty() && self.writes.find(key, |_| Ok(()))?.is_some();
        // On a branch, the old value may be an ancestor's, which the commit does not look up.
        if self.lens.is_some() || is_written || !self.pending.has_room(key, &update) {
            return self.update_now(key, update);
        }
        let Self { committer, pending, .. } = self;
        let iterators = &committer.reader.index.iterators;
        committer.writer_memory.in_transaction(true, || Ok(pending.push(iterators, key, &update)?))
    }

    /// Computes the pending updates of a key and then `update`, from the values that the
    /// transaction reads.
    fn update_now(&mut self, key: &[u8], update: Update<'static>) -> Result<()> {
        let (old, expiry) = self.get_to_update(key)?;
        let new = compute(&self.committer.reader, key, &[update], old.as_deref())?;
        let is_same = if self.pending.of(key).is_none() {
            old.as_deref() == new.as_deref()
        } else {
            drop(old);
            // The transaction has read the key, so `base` still is the newest value at the commit.
            let (place, at) = self.place(key)?;
            let base = self.committer.reader.get(&place, at)?;
            base.as_deref() == new.as_deref()
        };
        if is_same {
            self.pending.take(key);
            return Ok(());
        }
        self.put_computed(key, new, expiry)
    }

    /// Writes the result of a key's pending updates.
    fn put_computed(
        &mut self,
        key: &[u8],
        new: Option<Vec<u8>>,
        expiry: Option<Expiry>,
    ) -> Result<()> {
        match new {
            Some(value) => self.write(|writes| writes.put(key, &value, expiry))?,
            None => self.write_deletion(key)?,
        }
        self.pending.take(key);
        Ok(())
    }

    /// Computes all pending updates from the values that the transaction reads.
    pub(crate) fn compute_pending(&mut self) -> Result<()> {
        while let Some(key) = self.pending.first().map(<[u8]>::to_vec) {
            let own = self.updated(&key);
            self.spoil_if_failed(&own);
            let (new, expiry) = own?.map_or((None, None), |(new, expiry)| (Some(new), expiry));
            self.put_computed(&key, new.map(Value::into_vec), expiry)?;
        }
        Ok(())
    }
}

/// Commits one update and returns its outcome.
pub(crate) fn commit_one(
    to: Target<'_>,
    keyspace: &Keyspace,
    key: &[u8],
    update: &Update<'_>,
) -> Result<Updated> {
    retry::attempts(to, |tx| tx.commit_one(keyspace, key, update.clone()))
}

impl Transaction {
    /// Commits an update as the transaction's only write. Its size is not limited.
    fn commit_one(
        mut self,
        keyspace: &Keyspace,
        key: &[u8],
        update: Update<'_>,
    ) -> Result<Updated> {
        let key = self.key_to_put(keyspace, key)?;
        if self.lens.is_some() {
            return self.commit_now(&key, update);
        }
        let updates = iter::once((key.get().to_vec(), vec![update]));
        let (ticket, mut updated) = self.commit_with(Some(updates), true)?;
        ticket.wait()?;
        Ok(updated.pop().expect("one update was committed"))
    }

    /// Computes an update from the value that the transaction reads, and commits it.
    fn commit_now(mut self, key: &[u8], update: Update<'_>) -> Result<Updated> {
        self.committer.check_writable()?;
        let (old, expiry) = self.get_to_update(key)?;
        let new = compute(&self.committer.reader, key, &[update], old.as_deref())?;
        if old.as_deref() != new.as_deref() {
            self.put_computed(key, new.clone(), expiry)?;
        }
        self.commit()?;
        Ok(Updated { old, new })
    }
}
