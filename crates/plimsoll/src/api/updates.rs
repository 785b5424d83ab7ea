//! Updates of a single key, each in its own commit. [`Db`] returns the result.

use std::borrow::Cow;
use std::sync::Arc;

use crate::api::db::Db;
use crate::txn::resolution::Updated;
use crate::txn::updates::commit_one;
use crate::types::error::Result;
use crate::types::keyspaces::Keyspace;
use crate::types::update::{Overflow, Update, bit_of, check_bit, number};
use crate::types::version::check_value_bytes;

/// Each call commits one update. The update is computed from the newest value when the commit is
/// ordered, so concurrent calls for one key do not conflict. Only updates of values above 64 KiB
/// can conflict; they are retried as in [`Db::transact`].
impl Db {
    /// Adds to the number stored under a key; returns the sum. A number is an [`i64`] in 8 bytes,
    /// little endian; a key without a value counts as 0.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let counters = db.keyspace("counters")?;
    /// assert_eq!(db.add(&counters, "visits", 1, Overflow::Checked)?, 1);
    /// assert_eq!(db.add(&counters, "visits", 2, Overflow::Checked)?, 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`crate::InvalidInput::NotANumber`] and [`crate::InvalidInput::CounterOverflow`]: nothing
    /// was written. Also the errors of [`crate::Transaction::put`] and
    /// [`crate::Transaction::commit`].
    pub fn add(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        number: i64,
        overflow: Overflow,
    ) -> Result<i64> {
        self.update_number(keyspace, key.as_ref(), &Update::Add(number, overflow))
    }

    /// Raises the number stored under a key to at least `number`; returns the greater of both. A
    /// key without a value gets `number`.
    ///
    /// # Errors
    /// As for [`Db::add`].
    pub fn max(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>, number: i64) -> Result<i64> {
        self.update_number(keyspace, key.as_ref(), &Update::Max(number))
    }

    /// Lowers the number stored under a key to at most `number`; returns the lesser of both. A key
    /// without a value gets `number`.
    ///
    /// # Errors
    /// As for [`Db::add`].
    pub fn min(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>, number: i64) -> Result<i64> {
        self.update_number(keyspace, key.as_ref(), &Update::Min(number))
    }

    /// Appends bytes to the value of a key; returns its new length. The whole value is rewritten.
    ///
    /// # Errors
    /// [`crate::InvalidInput::ValueTooLong`]: nothing was written. Also the errors of
    /// [`crate::Transaction::put`] and [`crate::Transaction::commit`].
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
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let owners = db.keyspace("owners")?;
    /// assert!(db.set_if_absent(&owners, "job 1", "ada")?);
    /// assert!(!db.set_if_absent(&owners, "job 1", "alan")?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`crate::Transaction::put`] and [`crate::Transaction::commit`].
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

    /// Sets the value of a key to `new` if it is `expected`; `None` means no value. Returns whether
    /// the value was `expected`; if not, it is unchanged.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let jobs = db.keyspace("jobs")?;
    /// assert!(db.compare_and_swap(&jobs, "1", None, Some(b"running"))?);
    /// assert!(!db.compare_and_swap(&jobs, "1", Some(b"waiting"), Some(b"running"))?);
    /// assert!(db.compare_and_swap(&jobs, "1", Some(b"running"), None)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`crate::Transaction::put`] and [`crate::Transaction::commit`].
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

    /// Sets a bit of the value of a key; returns whether it was set before. Bit `n` is bit `n % 8`,
    /// counted from the lowest, of byte `n / 8`. A value that is too short is extended with zeros.
    ///
    /// # Errors
    /// As for [`Db::append`].
    pub fn set_bit(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>, bit: u64) -> Result<bool> {
        self.update_bit(keyspace, key.as_ref(), bit, &Update::SetBit(bit))
    }

    /// Clears a bit of the value of a key; returns whether it was set before. See [`Db::set_bit`];
    /// a value that is too short is unchanged.
    ///
    /// # Errors
    /// As for [`Db::append`].
    pub fn clear_bit(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>, bit: u64) -> Result<bool> {
        self.update_bit(keyspace, key.as_ref(), bit, &Update::ClearBit(bit))
    }

    /// Computes a key's new value from its current one with `compute`, stores it, and returns it;
    /// `None` means no value.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let names = db.keyspace("names")?;
    /// db.put(&names, "1", "ada")?;
    /// let new = db.update(&names, "1", |name| name.map(|name| name.to_ascii_uppercase()))?;
    /// assert_eq!(new.as_deref(), Some(&b"ADA"[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// `compute` may be called several times, and the last result counts. It may run while other
    /// commits wait, so it should be short. It must not use the store. If it panics, nothing is
    /// written, and the panic continues.
    ///
    /// # Errors
    /// As for [`Db::append`]. Writes to the store by `compute` are rejected.
    pub fn update(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        compute: impl Fn(Option<&[u8]>) -> Option<Vec<u8>> + Send + Sync,
    ) -> Result<Option<Vec<u8>>> {
        Ok(self.update_by(keyspace, key.as_ref(), &Update::Function(Arc::new(compute)))?.new)
    }

    fn update_by(&self, keyspace: &Keyspace, key: &[u8], update: &Update<'_>) -> Result<Updated> {
        commit_one((&self.store.committer).into(), keyspace, key, update)
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
