//! A sorted map in chunks, read without locks while one writer inserts: memtables and write sets are made of it.
//!
//! Entries are ordered by key (as bytes), and for one key by `order`, highest first. Nothing is ever removed; all goes when the map
//! is dropped.

use crate::budget::{Budget, Kind, OutOfBudget};

/// A concurrent skip list in chunks of the budget.
#[derive(Debug)]
pub struct SortedMap;

/// Where an entry stands; valid for the map that gave it, as long as that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position(u32);

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Orders entries of one key, highest first.
    pub order: u64,
    /// The value.
    pub value: &'a [u8],
}

impl SortedMap {
    /// The longest key plus value that fits.
    pub const MAX_ENTRY_BYTES: usize = 32 * 1024;

    /// An empty map; it takes its first chunk with the first insert or reserve.
    pub fn new(budget: &Budget, kind: Kind) -> Self {
        let _ = (budget, kind);
        unimplemented!()
    }

    /// Takes so many chunks now that entries of [`SortedMap::entry_bytes`] adding up to `bytes` can be inserted without failing.
    ///
    /// # Errors
    /// The budget has no room; the map is as it was.
    pub fn reserve(&self, bytes: usize) -> Result<(), OutOfBudget> {
        let _ = bytes;
        unimplemented!()
    }

    /// The most bytes that an entry can take in a map (header, tower, padding, waste at a chunk's end included).
    pub fn entry_bytes(key_bytes: usize, value_bytes: usize) -> usize {
        let _ = (key_bytes, value_bytes);
        unimplemented!()
    }

    /// Inserts an entry; one with the same key and order is kept as it is and the new one is ignored. Writers queue on a lock.
    ///
    /// # Errors
    /// The budget has no room; the map is as it was.
    pub fn insert(&self, key: &[u8], order: u64, value: &[u8]) -> Result<(), OutOfBudget> {
        let _ = (key, order, value);
        unimplemented!()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        unimplemented!()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the chunks held.
    pub fn held_bytes(&self) -> u64 {
        unimplemented!()
    }

    /// Bytes used by entries.
    pub fn used_bytes(&self) -> u64 {
        unimplemented!()
    }

    /// The first entry at or behind (`key`, `order`); `order` = `u64::MAX` finds the first of the key.
    pub fn seek(&self, key: &[u8], order: u64) -> Option<Position> {
        let _ = (key, order);
        unimplemented!()
    }

    /// The last entry before (`key`, `order`).
    pub fn seek_before(&self, key: &[u8], order: u64) -> Option<Position> {
        let _ = (key, order);
        unimplemented!()
    }

    /// The first entry.
    pub fn first(&self) -> Option<Position> {
        unimplemented!()
    }

    /// The last entry.
    pub fn last(&self) -> Option<Position> {
        unimplemented!()
    }

    /// The entry behind.
    pub fn next(&self, position: Position) -> Option<Position> {
        let _ = position;
        unimplemented!()
    }

    /// The entry before.
    pub fn prev(&self, position: Position) -> Option<Position> {
        let _ = position;
        unimplemented!()
    }

    /// The entry itself.
    pub fn at(&self, position: Position) -> Entry<'_> {
        let _ = position;
        unimplemented!()
    }
}
