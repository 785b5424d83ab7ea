//! A keyspace with a type of keys and a type of values, and iterators over its rows.

use std::fmt;
use std::marker::PhantomData;

use plimsoll::{Db, Keyspace, Range, Read, Transaction};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::bounds::KeyBounds;
use crate::error::{Error, Result};
use crate::key::{AsKey, Key, encoded};
use crate::prefix::{PrefixOf, encoded_prefix};
use crate::value;

/// A handle to a keyspace whose keys are all a `K` and whose values are all a `V`. Cheap to clone.
///
/// The types are not recorded in the store: open a keyspace with the same types each time, or with
/// types that [read the same values](crate#values-and-changes-of-their-type). Reading with others
/// is an [`Error`], or returns wrong values if the bytes happen to be valid for both.
///
/// Keys are passed in any form that is an [`AsKey<K>`](AsKey), for example `&str` for `String`.
///
/// ```
/// # use plimsoll::{Db, Options};
/// # use plimsoll_typed::{Error, TypedKeyspace};
/// # fn main() -> plimsoll_typed::Result<()> {
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// let stock: TypedKeyspace<String, u32> = TypedKeyspace::open(&db, "stock")?;
/// db.transact(|tx| stock.put(tx, "tea", &5))?;
///
/// let left = db.transact(|tx| {
///     let pieces = stock.get(tx, "tea")?.unwrap_or_default().saturating_sub(1);
///     stock.put(tx, "tea", &pieces)?;
///     Ok::<_, Error>(pieces)
/// })?;
/// assert_eq!((left, stock.get(&db.snapshot(), "tea")?), (4, Some(4)));
/// # Ok(())
/// # }
/// ```
pub struct TypedKeyspace<K, V> {
    keyspace: Keyspace,
    /// Makes the handle `Send` and `Sync` whatever `K` and `V` are, because it holds neither.
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> TypedKeyspace<K, V> {
    /// A typed handle to a keyspace that exists, for example one that [`Db::create_keyspace`]
    /// returned with its own retention, or [`Snapshot::keyspace`](plimsoll::Snapshot::keyspace).
    pub fn new(keyspace: Keyspace) -> Self {
        Self { keyspace, types: PhantomData }
    }

    /// Opens the keyspace with this name, or creates it: [`Db::keyspace`].
    ///
    /// # Errors
    /// As for [`Db::keyspace`].
    pub fn open(db: &Db, name: &str) -> Result<Self> {
        Ok(Self::new(db.keyspace(name)?))
    }

    /// The untyped handle, for the calls of [`plimsoll`] that this type does not have.
    pub fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }

    fn name(&self) -> String {
        self.keyspace.name().to_owned()
    }
}

impl<K: Key, V: Serialize + DeserializeOwned> TypedKeyspace<K, V> {
    /// The value of a key; `None` if it has none.
    ///
    /// # Errors
    /// As for [`Read::get`]; [`Error::Value`].
    pub fn get(&self, reads: &impl Read, key: impl AsKey<K>) -> Result<Option<V>> {
        let key = self.encode_key(key);
        // Decoded in place, without a copy of the bytes.
        reads.get_with(&self.keyspace, &key, |bytes| self.decode_value(&key, bytes))?.transpose()
    }

    /// Whether a key has a value. Does not read the value.
    ///
    /// # Errors
    /// As for [`Read::contains_key`].
    pub fn contains_key(&self, reads: &impl Read, key: impl AsKey<K>) -> Result<bool> {
        Ok(reads.contains_key(&self.keyspace, self.encode_key(key))?)
    }

    /// The first key and its value; `None` if the keyspace is empty.
    ///
    /// # Errors
    /// As for [`Read::get`]; [`Error::Key`] and [`Error::Value`].
    pub fn first(&self, reads: &impl Read) -> Result<Option<(K, V)>> {
        self.iter(reads)?.next().transpose()
    }

    /// The last key and its value; `None` if the keyspace is empty.
    ///
    /// # Errors
    /// As for [`TypedKeyspace::first`].
    pub fn last(&self, reads: &impl Read) -> Result<Option<(K, V)>> {
        self.iter(reads)?.reverse().next().transpose()
    }

    /// Iterates over all keys and values.
    ///
    /// # Errors
    /// As for [`Read::iter`].
    pub fn iter<'r>(&self, reads: &'r impl Read) -> Result<Rows<'r, K, V>> {
        self.range(reads, ..)
    }

    /// Iterates over a range of keys.
    ///
    /// # Errors
    /// As for [`Read::range`].
    pub fn range<'r>(
        &self,
        reads: &'r impl Read,
        range: impl KeyBounds<K>,
    ) -> Result<Rows<'r, K, V>> {
        Ok(self.rows(reads.range(&self.keyspace, range.encode_bounds())?))
    }

    /// Iterates over the keys that begin with `prefix`: the first parts of a tuple, or the
    /// beginning of a string.
    ///
    /// # Errors
    /// As for [`Read::prefix`].
    pub fn prefix<'r>(
        &self,
        reads: &'r impl Read,
        prefix: impl PrefixOf<K>,
    ) -> Result<Rows<'r, K, V>> {
        Ok(self.rows(reads.prefix(&self.keyspace, encoded_prefix(&prefix))?))
    }

    /// Decodes the rows of an iterator over this keyspace. The iterators of
    /// [`Snapshot::range`](plimsoll::Snapshot::range) live on without the snapshot and can be sent
    /// to another thread.
    ///
    /// ```
    /// # use plimsoll::{Db, Options};
    /// # use plimsoll_typed::TypedKeyspace;
    /// # fn main() -> plimsoll_typed::Result<()> {
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let primes: TypedKeyspace<u32, ()> = TypedKeyspace::open(&db, "primes")?;
    /// db.transact(|tx| [2, 3, 5, 7].iter().try_for_each(|prime| primes.put(tx, prime, &())))?;
    /// let rows = primes.rows(db.snapshot().iter(primes.keyspace())?);
    /// let sum = std::thread::spawn(move || rows.keys().sum::<plimsoll_typed::Result<u32>>());
    /// assert_eq!(sum.join().expect("it does not panic")?, 17);
    /// # Ok(())
    /// # }
    /// ```
    pub fn rows<'r>(&self, range: Range<'r>) -> Rows<'r, K, V> {
        Rows::new(self.clone(), range)
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// As for [`Transaction::put`]; [`Error::Encode`], and nothing is written.
    pub fn put(&self, tx: &mut Transaction, key: impl AsKey<K>, value: &V) -> Result<()> {
        let bytes = self.encode_value(value)?;
        Ok(tx.put(&self.keyspace, self.encode_key(key), bytes)?)
    }

    /// Like [`TypedKeyspace::put`], but returns the previous value; `None` if the key had none. The
    /// key counts as read.
    ///
    /// # Errors
    /// As for [`TypedKeyspace::get`] and [`TypedKeyspace::put`]. If the previous value cannot be
    /// decoded, nothing is written.
    pub fn insert(&self, tx: &mut Transaction, key: impl AsKey<K>, value: &V) -> Result<Option<V>> {
        let previous = self.get(tx, &key)?;
        self.put(tx, key, value)?;
        Ok(previous)
    }

    /// Deletes a key. Does nothing if it has no value.
    ///
    /// # Errors
    /// As for [`Transaction::delete`].
    pub fn delete(&self, tx: &mut Transaction, key: impl AsKey<K>) -> Result<()> {
        Ok(tx.delete(&self.keyspace, self.encode_key(key))?)
    }

    /// Like [`TypedKeyspace::delete`], but returns the previous value. If there is none, nothing is
    /// written. The key counts as read.
    ///
    /// # Errors
    /// As for [`TypedKeyspace::get`] and [`TypedKeyspace::delete`]. If the previous value cannot be
    /// decoded, nothing is written.
    pub fn take(&self, tx: &mut Transaction, key: impl AsKey<K>) -> Result<Option<V>> {
        let previous = self.get(tx, &key)?;
        if previous.is_some() {
            self.delete(tx, key)?;
        }
        Ok(previous)
    }

    /// Deletes all keys in a range: [`Transaction::delete_range`].
    ///
    /// # Errors
    /// As for [`Transaction::delete_range`].
    pub fn delete_range(&self, tx: &mut Transaction, range: impl KeyBounds<K>) -> Result<()> {
        Ok(tx.delete_range(&self.keyspace, range.encode_bounds())?)
    }

    /// Deletes all keys that begin with `prefix`: [`Transaction::delete_prefix`].
    ///
    /// # Errors
    /// As for [`Transaction::delete_prefix`].
    pub fn delete_prefix(&self, tx: &mut Transaction, prefix: impl PrefixOf<K>) -> Result<()> {
        Ok(tx.delete_prefix(&self.keyspace, encoded_prefix(&prefix))?)
    }

    /// The bytes of a key, as the store has them.
    pub fn encode_key(&self, key: impl AsKey<K>) -> Vec<u8> {
        encoded(&key)
    }

    /// The key that these bytes encode.
    ///
    /// # Errors
    /// [`Error::Key`].
    pub fn decode_key(&self, bytes: &[u8]) -> Result<K> {
        K::decode(bytes).map_err(|source| Error::Key {
            keyspace: self.name(),
            bytes: bytes.to_vec(),
            source,
        })
    }

    /// The bytes of a value, as the store has them.
    ///
    /// # Errors
    /// [`Error::Encode`].
    pub fn encode_value(&self, value: &V) -> Result<Vec<u8>> {
        value::encode(value).map_err(|message| Error::Encode { keyspace: self.name(), message })
    }

    /// The value that these bytes encode. `key` is the encoded key, for the error.
    ///
    /// # Errors
    /// [`Error::Value`].
    pub fn decode_value(&self, key: &[u8], bytes: &[u8]) -> Result<V> {
        value::decode(bytes).map_err(|message| Error::Value {
            keyspace: self.name(),
            key: key.to_vec(),
            message,
        })
    }

    /// The key and the value of an encoded row.
    pub(crate) fn decode_row(&self, key: &[u8], value: &[u8]) -> Result<(K, V)> {
        Ok((self.decode_key(key)?, self.decode_value(key, value)?))
    }
}

impl<K, V> Clone for TypedKeyspace<K, V> {
    fn clone(&self) -> Self {
        Self::new(self.keyspace.clone())
    }
}

impl<K, V> From<Keyspace> for TypedKeyspace<K, V> {
    fn from(keyspace: Keyspace) -> Self {
        Self::new(keyspace)
    }
}

impl<K, V> fmt::Debug for TypedKeyspace<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TypedKeyspace").field(&self.keyspace.name()).finish()
    }
}

/// An iterator over the keys and values of a range.
///
/// After an error of the store it is at its end. After a row that cannot be decoded, it continues
/// with the next one.
pub struct Rows<'r, K, V> {
    keyspace: TypedKeyspace<K, V>,
    range: Range<'r>,
}

impl<'r, K: Key, V: Serialize + DeserializeOwned> Rows<'r, K, V> {
    pub(crate) fn new(keyspace: TypedKeyspace<K, V>, range: Range<'r>) -> Self {
        Self { keyspace, range }
    }

    /// Iterates from the last key to the first.
    ///
    /// # Panics
    /// The iteration has begun.
    #[must_use]
    pub fn reverse(mut self) -> Self {
        self.range = self.range.reverse();
        self
    }

    /// Iterates over the keys only. The values are not read.
    pub fn keys(self) -> impl Iterator<Item = Result<K>> {
        let Self { keyspace, range } = self;
        let mut range = range.keys_only();
        std::iter::from_fn(move || match range.advance() {
            Ok(row) => row.map(|(key, _)| keyspace.decode_key(key)),
            Err(error) => Some(Err(error.into())),
        })
    }
}

impl<K: Key, V: Serialize + DeserializeOwned> Iterator for Rows<'_, K, V> {
    type Item = Result<(K, V)>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.range.advance() {
            Ok(row) => row.map(|(key, value)| self.keyspace.decode_row(key, value)),
            Err(error) => Some(Err(error.into())),
        }
    }
}

impl<K, V> fmt::Debug for Rows<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("range", &self.range).finish_non_exhaustive()
    }
}
