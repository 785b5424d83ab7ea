//! Iterators over typed rows.

use std::fmt;

use plimsoll::Range;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Result;
use crate::key::Key;
use crate::keyspace::TypedKeyspace;

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
