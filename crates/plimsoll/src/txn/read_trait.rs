//! The common interface of snapshots and transactions.

use std::ops::ControlFlow;

use plimsoll_log::glsn::Glsn;

use crate::read::point::ValueReader;
use crate::txn::range::Range;
use crate::types::error::Result;
use crate::types::expiry::Ttl;
use crate::types::key_range::KeyRange;
use crate::types::keyspaces::Keyspace;
use crate::types::value::Value;

/// Reads at one GLSN, implemented by [`crate::Snapshot`] and by [`crate::Transaction`], which also
/// sees its own writes. For functions that accept either; both types have the same methods without
/// this trait.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
/// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
/// use plimsoll::{Keyspace, Read, Result};
///
/// fn count_of(reads: &impl Read, orders: &Keyspace, customer: &str) -> Result<usize> {
///     Ok(reads.prefix(orders, customer)?.keys_only().count())
/// }
///
/// let orders = db.keyspace("orders")?;
/// let mut tx = db.begin();
/// tx.put(&orders, "ada/1", "tea")?;
/// assert_eq!(count_of(&tx, &orders, "ada/")?, 1);
/// assert_eq!(count_of(&db.snapshot(), &orders, "ada/")?, 0);
/// # Ok(())
/// # }
/// ```
pub trait Read: sealed::Sealed {
    /// The GLSN of the snapshot.
    fn at(&self) -> Glsn;

    /// The value of a key; `None` if it has none.
    ///
    /// # Errors
    /// [`crate::Error::Trimmed`] if the snapshot is no longer retained; the key is too long; disk
    /// errors, the budget, or corruption.
    fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>>;

    /// Calls `look` with the value of a key and returns its result; `None` if the key has no value.
    /// The value is lent from its place in memory, so `look` should be short.
    ///
    /// # Errors
    /// As for [`Read::get`].
    fn get_with<T>(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>>;

    /// A reader of a key's value, for values too large for memory; `None` if the key has none.
    ///
    /// # Errors
    /// As for [`Read::get`].
    fn get_reader(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>)
    -> Result<Option<ValueReader>>;

    /// Whether a key has a value. Does not read the value.
    ///
    /// # Errors
    /// As for [`Read::get`].
    fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool>;

    /// When the value of a key expires; see [`crate::Snapshot::ttl`].
    ///
    /// # Errors
    /// As for [`crate::Snapshot::get`].
    fn ttl(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Ttl>;

    /// Iterates over a range of keys.
    ///
    /// # Errors
    /// [`crate::Error::Trimmed`], or a bound is too long.
    fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> Result<Range<'_>>;

    /// Iterates over the keys that begin with `prefix`.
    ///
    /// # Errors
    /// [`crate::Error::Trimmed`], or the prefix is too long.
    fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<Range<'_>>;

    /// Iterates over all keys.
    ///
    /// # Errors
    /// [`crate::Error::Trimmed`].
    fn iter(&self, keyspace: &Keyspace) -> Result<Range<'_>> {
        self.range(keyspace, ..)
    }

    /// The first key and its value; `None` if the keyspace is empty.
    ///
    /// # Errors
    /// As for [`Read::get`].
    fn first(&self, keyspace: &Keyspace) -> Result<Option<(Vec<u8>, Value)>> {
        self.iter(keyspace)?.next().transpose()
    }

    /// The last key and its value; `None` if the keyspace is empty.
    ///
    /// # Errors
    /// As for [`Read::get`].
    fn last(&self, keyspace: &Keyspace) -> Result<Option<(Vec<u8>, Value)>> {
        self.iter(keyspace)?.reverse().next().transpose()
    }

    /// The number of keys. Scans all of them; [`crate::Db::keyspace_size`] returns an estimate at
    /// bounded cost.
    ///
    /// # Errors
    /// As for [`Read::get`].
    fn len(&self, keyspace: &Keyspace) -> Result<u64> {
        let mut keys = 0;
        self.iter(keyspace)?.keys_only().visit(|_, _| {
            keys += 1;
            ControlFlow::<()>::Continue(())
        })?;
        Ok(keys)
    }

    /// Whether the keyspace is empty.
    ///
    /// # Errors
    /// As for [`Read::get`].
    fn is_empty(&self, keyspace: &Keyspace) -> Result<bool> {
        Ok(self.iter(keyspace)?.keys_only().advance()?.is_none())
    }
}

pub(crate) mod sealed {
    /// Restricts [`super::Read`] to the types of this crate, so that methods can be added later.
    pub trait Sealed {}
}

/// Implements [`Read`] with the type's own methods; `$life` is the lifetime of its ranges.
macro_rules! reads_by_its_own_methods {
    ($reads:ty, $life:lifetime) => {
        impl $crate::txn::read_trait::sealed::Sealed for $reads {}

        impl $crate::txn::read_trait::Read for $reads {
            fn at(&self) -> Glsn {
                self.at()
            }

            fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
                self.get(keyspace, key)
            }

            fn get_with<T>(
                &self,
                keyspace: &Keyspace,
                key: impl AsRef<[u8]>,
                look: impl FnOnce(&[u8]) -> T,
            ) -> Result<Option<T>> {
                self.get_with(keyspace, key, look)
            }

            fn get_reader(
                &self,
                keyspace: &Keyspace,
                key: impl AsRef<[u8]>,
            ) -> Result<Option<ValueReader>> {
                self.get_reader(keyspace, key)
            }

            fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
                self.contains_key(keyspace, key)
            }

            fn ttl(
                &self,
                keyspace: &Keyspace,
                key: impl AsRef<[u8]>,
            ) -> Result<$crate::types::expiry::Ttl> {
                self.ttl(keyspace, key)
            }

            fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> Result<Range<'_>> {
                self.range(keyspace, range)
            }

            fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<Range<'_>> {
                self.prefix(keyspace, prefix)
            }
        }

        /// The provided methods of [`Read`](crate::Read), callable without importing it.
        impl $reads {
            /// Iterates over all keys.
            ///
            /// # Errors
            /// [`crate::Error::Trimmed`].
            pub fn iter(&self, keyspace: &Keyspace) -> Result<Range<$life>> {
                self.range(keyspace, ..)
            }

            /// The first key and its value; `None` if the keyspace is empty.
            ///
            /// # Errors
            /// [`crate::Error::Trimmed`], disk errors, the budget, or corruption.
            pub fn first(&self, keyspace: &Keyspace) -> Result<Option<(Vec<u8>, Value)>> {
                $crate::txn::read_trait::Read::first(self, keyspace)
            }

            /// The last key and its value; `None` if the keyspace is empty.
            ///
            /// # Errors
            /// [`crate::Error::Trimmed`], disk errors, the budget, or corruption.
            pub fn last(&self, keyspace: &Keyspace) -> Result<Option<(Vec<u8>, Value)>> {
                $crate::txn::read_trait::Read::last(self, keyspace)
            }

            /// The number of keys. Scans all of them; [`crate::Db::keyspace_size`] returns an
            /// estimate at bounded cost.
            ///
            /// # Errors
            /// [`crate::Error::Trimmed`], disk errors, the budget, or corruption.
            pub fn len(&self, keyspace: &Keyspace) -> Result<u64> {
                $crate::txn::read_trait::Read::len(self, keyspace)
            }

            /// Whether the keyspace is empty.
            ///
            /// # Errors
            /// [`crate::Error::Trimmed`], disk errors, the budget, or corruption.
            pub fn is_empty(&self, keyspace: &Keyspace) -> Result<bool> {
                $crate::txn::read_trait::Read::is_empty(self, keyspace)
            }
        }
    };
}

pub(crate) use reads_by_its_own_methods;
