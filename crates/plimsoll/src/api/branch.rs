//! Reads and writes on a branch: the methods of [`Db`](crate::Db) for data, on one branch.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use plimsoll_log::glsn::Glsn;

use crate::api::branches::Branch;
use crate::api::snapshot::{Moment, Snapshot};
use crate::txn::range::Range;
use crate::txn::resolution::Updated;
use crate::txn::retry::{self, Target};
use crate::txn::transaction::Transaction;
use crate::txn::updates::commit_one;
use crate::types::error::{Error, Result};
use crate::types::expiry::Ttl;
use crate::types::key_range::KeyRange;
use crate::types::keyspaces::Keyspace;
use crate::types::update::{Overflow, Update, bit_of, check_bit, number};
use crate::types::value::Value;
use crate::types::version::check_value_bytes;

/// Reads and writes on one branch. All branches have the keyspaces of the store; a keyspace that
/// was created after the branch has no keys on the branch at first. Commits on different branches
/// never conflict.
///
/// A key that is written or deleted on a branch other than main has at most 4,082 bytes, where a
/// zero byte counts twice: [`InvalidInput::KeyTooLongForBranch`](crate::InvalidInput).
impl Branch {
    fn target(&self) -> Target<'_> {
        Target { committer: &self.db.store.committer, lens: self.lens.as_ref() }
    }

    /// Begins a transaction that reads at the newest moment. If the branch was deleted, its reads
    /// and its commit fail.
    pub fn begin(&self) -> Transaction {
        match &self.lens {
            None => self.db.begin(),
            Some(lens) => Transaction::on_branch(&self.db.store.committer, lens, false),
        }
    }

    /// Begins a transaction that reads at the last commit that was ordered: see
    /// [`Db::begin_ordered`](crate::Db::begin_ordered).
    pub fn begin_ordered(&self) -> Transaction {
        match &self.lens {
            None => self.db.begin_ordered(),
            Some(lens) => Transaction::on_branch(&self.db.store.committer, lens, true),
        }
    }

    /// A snapshot of the branch as it is now. If the branch was deleted, its reads fail.
    pub fn snapshot(&self) -> Snapshot {
        let snapshot = self.db.snapshot();
        let Some(lens) = &self.lens else { return snapshot };
        self.db.store.committer.check_branch(lens, snapshot.moment());
        snapshot.on_branch(lens)
    }

    /// A snapshot of the branch at an earlier moment. Before its fork, a branch has the states of
    /// its parent.
    ///
    /// # Errors
    /// As for [`Db::snapshot_at`](crate::Db::snapshot_at);
    /// [`InvalidInput::NoBranch`](crate::InvalidInput::NoBranch).
    pub fn snapshot_at(&self, moment: Moment) -> Result<Snapshot> {
        let snapshot = self.db.snapshot_at(moment)?;
        let Some(lens) = &self.lens else { return Ok(snapshot) };
        let store = &self.db.store;
        lens.check_exists(&store.reader, store.newest()?)?;
        Ok(snapshot.on_branch(lens))
    }

    /// Runs `change` in a transaction and commits it: see [`Db::transact`](crate::Db::transact).
    ///
    /// # Errors
    /// As for [`Db::transact`](crate::Db::transact).
    pub fn transact<T, E: From<Error>>(
        &self,
        change: impl FnMut(&mut Transaction) -> Result<T, E>,
    ) -> Result<T, E> {
        retry::transact(self.target(), change)
    }

    /// The current value of a key; `None` if it has none.
    ///
    /// # Errors
    /// As for [`Snapshot::get`]; [`InvalidInput::NoBranch`](crate::InvalidInput::NoBranch).
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.snapshot().get(keyspace, key)
    }

    /// Calls `look` with the current value of a key, and returns its result; `None` if the key has
    /// no value. See [`Snapshot::get_with`].
    ///
    /// # Errors
    /// As for [`Branch::get`].
    pub fn get_with<T>(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        self.snapshot().get_with(keyspace, key, look)
    }

    /// Whether a key has a value; does not read the value.
    ///
    /// # Errors
    /// As for [`Branch::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.snapshot().contains_key(keyspace, key)
    }

    /// When the value of a key expires.
    ///
    /// # Errors
    /// As for [`Branch::get`].
    pub fn ttl(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Ttl> {
        self.snapshot().ttl(keyspace, key)
    }

    /// Iterates over a range of keys, as of now.
    ///
    /// # Errors
    /// As for [`Snapshot::range`].
    pub fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> Result<Range<'static>> {
        self.snapshot().range(keyspace, range)
    }

    /// Iterates over the keys that begin with `prefix`, as of now.
    ///
    /// # Errors
    /// As for [`Snapshot::range`].
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<Range<'static>> {
        self.snapshot().prefix(keyspace, prefix)
    }

    /// Iterates over all keys, as of now.
    ///
    /// # Errors
    /// As for [`Snapshot::range`].
    pub fn iter(&self, keyspace: &Keyspace) -> Result<Range<'static>> {
        self.snapshot().iter(keyspace)
    }

    /// The first key and its value; `None` if the keyspace is empty.
    ///
    /// # Errors
    /// As for [`Branch::get`].
    pub fn first(&self, keyspace: &Keyspace) -> Result<Option<(Vec<u8>, Value)>> {
        self.snapshot().first(keyspace)
    }

    /// The last key and its value; `None` if the keyspace is empty.
    ///
    /// # Errors
    /// As for [`Branch::get`].
    pub fn last(&self, keyspace: &Keyspace) -> Result<Option<(Vec<u8>, Value)>> {
        self.snapshot().last(keyspace)
    }

    /// The number of keys. Scans all of them.
    ///
    /// # Errors
    /// As for [`Branch::get`].
    pub fn len(&self, keyspace: &Keyspace) -> Result<u64> {
        self.snapshot().len(keyspace)
    }

    /// Whether the keyspace is empty.
    ///
    /// # Errors
    /// As for [`Branch::get`].
    pub fn is_empty(&self, keyspace: &Keyspace) -> Result<bool> {
        self.snapshot().is_empty(keyspace)
    }

    /// Writes the value of a key in a separate commit; returns the commit's GLSN.
    ///
    /// # Errors
    /// As for [`Transaction::put`] and [`Transaction::commit`];
    /// [`InvalidInput::NoBranch`](crate::InvalidInput::NoBranch).
    pub fn put(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Glsn> {
        let mut tx = self.begin();
        tx.put(keyspace, key, value)?;
        tx.commit()
    }

    /// As [`Branch::put`], and lets the value expire after `ttl`.
    ///
    /// # Errors
    /// As for [`Transaction::put_with_ttl`] and [`Transaction::commit`].
    pub fn put_with_ttl(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<Glsn> {
        let mut tx = self.begin();
        tx.put_with_ttl(keyspace, key, value, ttl)?;
        tx.commit()
    }

    /// As [`Branch::put`], with the time from which on the key has no value.
    ///
    /// # Errors
    /// As for [`Transaction::put_expiring_at`] and [`Transaction::commit`].
    pub fn put_expiring_at(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        at: SystemTime,
    ) -> Result<Glsn> {
        let mut tx = self.begin();
        tx.put_expiring_at(keyspace, key, value, at)?;
        tx.commit()
    }

    /// Changes when the value of a key expires; returns whether the key has a value.
    ///
    /// # Errors
    /// As for [`Transaction::expire_at`] and [`Branch::transact`].
    pub fn expire_at(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        at: SystemTime,
    ) -> Result<bool> {
        self.transact(|tx| tx.expire_at(keyspace, &key, at))
    }

    /// Removes the expiry of a key's value; returns whether the key has a value.
    ///
    /// # Errors
    /// As for [`Transaction::persist`] and [`Branch::transact`].
    pub fn persist(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.transact(|tx| tx.persist(keyspace, &key))
    }

    /// Deletes a key in a separate commit; returns the commit's GLSN.
    ///
    /// # Errors
    /// As for [`Transaction::delete`] and [`Transaction::commit`].
    pub fn delete(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Glsn> {
        let mut tx = self.begin();
        tx.delete(keyspace, key)?;
        tx.commit()
    }

    /// Deletes all keys of a range in a separate commit: see
    /// [`Db::delete_range`](crate::Db::delete_range). On a branch other than main, this takes as
    /// long as deleting each key on its own.
    ///
    /// # Errors
    /// As for [`Transaction::delete_range`] and [`Branch::transact`].
    pub fn delete_range(&self, keyspace: &Keyspace, range: impl KeyRange) -> Result<Glsn> {
        if self.lens.is_none() {
            return self.db.delete_range(keyspace, range);
        }
        let delete = |tx: &mut Transaction| tx.delete_range(keyspace, &range);
        retry::commit(self.target(), delete).map(|((), glsn)| glsn)
    }

    /// Deletes all keys that begin with `prefix`: see [`Branch::delete_range`].
    ///
    /// # Errors
    /// As for [`Transaction::delete_prefix`] and [`Branch::transact`].
    pub fn delete_prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<Glsn> {
        if self.lens.is_none() {
            return self.db.delete_prefix(keyspace, prefix);
        }
        let delete = |tx: &mut Transaction| tx.delete_prefix(keyspace, &prefix);
        retry::commit(self.target(), delete).map(|((), glsn)| glsn)
    }

    /// As [`Branch::put`], but returns the previous value.
    ///
    /// # Errors
    /// As for [`Transaction::insert`] and [`Branch::transact`].
    pub fn insert(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Option<Value>> {
        self.transact(|tx| tx.insert(keyspace, &key, &value))
    }

    /// As [`Branch::delete`], but returns the previous value; without one nothing is committed.
    ///
    /// # Errors
    /// As for [`Transaction::take`] and [`Branch::transact`].
    pub fn take(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.transact(|tx| tx.take(keyspace, &key))
    }

    /// Removes the first key and returns it with its value; `None` if there is no key.
    ///
    /// # Errors
    /// As for [`Transaction::pop_first`] and [`Branch::transact`].
    pub fn pop_first(&self, keyspace: &Keyspace) -> Result<Option<(Vec<u8>, Value)>> {
        self.transact(|tx| tx.pop_first(keyspace))
    }

    /// Removes the last key and returns it with its value; `None` if there is no key.
    ///
    /// # Errors
    /// As for [`Transaction::pop_last`] and [`Branch::transact`].
    pub fn pop_last(&self, keyspace: &Keyspace) -> Result<Option<(Vec<u8>, Value)>> {
        self.transact(|tx| tx.pop_last(keyspace))
    }
}

/// Updates, each in a separate commit: see the methods of [`Db`](crate::Db) with these names. On a
/// branch other than main, concurrent updates of one key conflict, and are retried.
impl Branch {
    /// Adds to the number stored under a key; returns the sum.
    ///
    /// # Errors
    /// As for [`Db::add`](crate::Db::add).
    pub fn add(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        number: i64,
        overflow: Overflow,
    ) -> Result<i64> {
        self.update_number(keyspace, key.as_ref(), &Update::Add(number, overflow))
    }

    /// Raises the number stored under a key to at least `number`; returns the greater of both.
    ///
    /// # Errors
    /// As for [`Db::add`](crate::Db::add).
    pub fn max(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>, number: i64) -> Result<i64> {
        self.update_number(keyspace, key.as_ref(), &Update::Max(number))
    }

    /// Lowers the number stored under a key to at most `number`; returns the lesser of both.
    ///
    /// # Errors
    /// As for [`Db::add`](crate::Db::add).
    pub fn min(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>, number: i64) -> Result<i64> {
        self.update_number(keyspace, key.as_ref(), &Update::Min(number))
    }

    /// Appends bytes to the value of a key; returns its new length.
    ///
    /// # Errors
    /// As for [`Db::append`](crate::Db::append).
    pub fn append(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        bytes: impl AsRef<[u8]>,
    ) -> Result<u64> {
        let append = Update::Append(Cow::Borrowed(bytes.as_ref()));
        let updated = self.update_by(keyspace, key.as_ref(), &append)?;
        Ok(updated.new.map_or(0, |value| value.len() as u64))
    }

    /// Sets the value of a key that has none; returns whether the key had none.
    ///
    /// # Errors
    /// As for [`Db::set_if_absent`](crate::Db::set_if_absent).
    pub fn set_if_absent(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<bool> {
        let value = value.as_ref();
        check_value_bytes(value.len() as u64)?;
        let set = Update::SetIfAbsent(Cow::Borrowed(value));
        Ok(self.update_by(keyspace, key.as_ref(), &set)?.old.is_none())
    }

    /// Sets the value of a key to `new` if it is `expected`; returns whether it was.
    ///
    /// # Errors
    /// As for [`Db::compare_and_swap`](crate::Db::compare_and_swap).
    pub fn compare_and_swap(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool> {
        check_value_bytes(new.map_or(0, <[u8]>::len) as u64)?;
        let swap = Update::CompareAndSwap {
            expected: expected.map(Cow::Borrowed),
            new: new.map(Cow::Borrowed),
            is_required: false,
        };
        Ok(self.update_by(keyspace, key.as_ref(), &swap)?.old.as_deref() == expected)
    }

    /// Sets a bit of the value of a key; returns whether it was set before.
    ///
    /// # Errors
    /// As for [`Db::set_bit`](crate::Db::set_bit).
    pub fn set_bit(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>, bit: u64) -> Result<bool> {
        self.update_bit(keyspace, key.as_ref(), bit, &Update::SetBit(bit))
    }

    /// Clears a bit of the value of a key; returns whether it was set before.
    ///
    /// # Errors
    /// As for [`Db::set_bit`](crate::Db::set_bit).
    pub fn clear_bit(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>, bit: u64) -> Result<bool> {
        self.update_bit(keyspace, key.as_ref(), bit, &Update::ClearBit(bit))
    }

    /// Computes a key's new value from its current one with `compute`, stores it, and returns it;
    /// `None` means no value. `compute` may be called several times, and must not use the store.
    ///
    /// # Errors
    /// As for [`Db::update`](crate::Db::update).
    pub fn update(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        compute: impl Fn(Option<&[u8]>) -> Option<Vec<u8>> + Send + Sync,
    ) -> Result<Option<Vec<u8>>> {
        Ok(self.update_by(keyspace, key.as_ref(), &Update::Function(Arc::new(compute)))?.new)
    }

    fn update_by(&self, keyspace: &Keyspace, key: &[u8], update: &Update<'_>) -> Result<Updated> {
        commit_one(self.target(), keyspace, key, update)
    }

    fn update_number(&self, keyspace: &Keyspace, key: &[u8], update: &Update<'_>) -> Result<i64> {
        let updated = self.update_by(keyspace, key, update)?;
        Ok(number(key, updated.new.as_deref())?.expect("it leaves a number"))
    }

    fn update_bit(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        bit: u64,
        update: &Update<'_>,
    ) -> Result<bool> {
        check_bit(bit)?;
        let updated = self.update_by(keyspace, key, update)?;
        Ok(updated.old.is_some_and(|value| bit_of(&value, bit)))
    }
}

#[cfg(test)]
mod tests {
    use crate::api::db::Db;
    use crate::read::span::Span;
    use crate::types::error::Error;
    use crate::types::keyspaces::SYSTEM;
    use crate::types::options::Options;

    #[test]
    fn the_records_of_keyspaces_are_those_of_the_store() {
        let db = Db::in_memory(Options::new().memory_bytes(16 << 20).background(false)).unwrap();
        let draft = db.create_branch("draft", &db.main()).unwrap();
        let notes = db.keyspace("notes").unwrap();
        let system = db.store.reader.keyspaces.handle(SYSTEM, "".into());
        assert!(draft.snapshot().contains_key(&system, "notes").unwrap());
        for reads_all in [false, true] {
            let mut tx = draft.begin();
            assert!(tx.contains_key(&system, "notes").unwrap());
            assert_eq!(tx.len(&system).unwrap(), 1 + u64::from(reads_all));
            if reads_all {
                tx.reads.lock().unwrap().add_all();
            } else {
                tx.note_span(&Span::of_keyspace(SYSTEM));
            }
            tx.put(&notes, "a", "").unwrap();
            db.put(&notes, "a", "").unwrap();
            db.keyspace(if reads_all { "more" } else { "others" }).unwrap();
            assert!(matches!(tx.commit(), Err(Error::Conflict { .. })));
        }
    }

    #[test]
    fn a_read_set_that_covers_everything_conflicts_with_its_branch_only() {
        let db = Db::in_memory(Options::new().memory_bytes(16 << 20).background(false)).unwrap();
        let notes = db.keyspace("notes").unwrap();
        let [a, b] = ["a", "b"].map(|name| db.create_branch(name, &db.main()).unwrap());
        let child = db.create_branch("child", &a).unwrap();
        for (writer, is_conflict) in [(&a, true), (&b, false), (&child, false), (&db.main(), false)]
        {
            let mut tx = a.begin();
            tx.get(&notes, "k").unwrap();
            tx.reads.lock().unwrap().add_all();
            tx.put(&notes, "other", "").unwrap();
            writer.put(&notes, "x", "").unwrap();
            assert_eq!(matches!(tx.commit(), Err(Error::Conflict { .. })), is_conflict);
        }
    }
}
