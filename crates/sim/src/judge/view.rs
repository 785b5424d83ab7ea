//! Views: reads at one moment, through a transaction or a snapshot.

use std::ops::Bound;

use plimsoll::{Keyspace, Range, Resident, Snapshot, Transaction, Value, ValueReader};

use crate::model::Writes;
use crate::op::{Edge, Span};

/// A transaction or a snapshot.
#[derive(Clone, Copy)]
pub(crate) enum View<'a> {
    Tx(&'a Transaction, &'a Writes),
    Snapshot(&'a Snapshot),
}

/// The result of a read of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadResult {
    /// The model's answer.
    Answer,
    /// The answer is not in memory, and only memory was searched.
    NotResident,
    /// A reader of the value, which failed before its end.
    Part,
    /// An error that is excused, or a refusal that is right.
    Refused,
}

impl ReadResult {
    /// Whether the call came to its end.
    pub(crate) fn is_answered(self) -> bool {
        matches!(self, ReadResult::Answer | ReadResult::NotResident)
    }
}

impl View<'_> {
    pub(crate) fn at(&self) -> u64 {
        match self {
            View::Tx(tx, _) => tx.at().0,
            View::Snapshot(snapshot) => snapshot.at().0,
        }
    }

    pub(super) fn get(&self, keyspace: &Keyspace, key: &[u8]) -> plimsoll::Result<Option<Value>> {
        match self {
            View::Tx(tx, _) => tx.get(keyspace, key),
            View::Snapshot(snapshot) => snapshot.get(keyspace, key),
        }
    }

    pub(super) fn get_reader(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
    ) -> plimsoll::Result<Option<ValueReader>> {
        match self {
            View::Tx(tx, _) => tx.get_reader(keyspace, key),
            View::Snapshot(snapshot) => snapshot.get_reader(keyspace, key),
        }
    }

    pub(super) fn contains(&self, keyspace: &Keyspace, key: &[u8]) -> plimsoll::Result<bool> {
        match self {
            View::Tx(tx, _) => tx.contains_key(keyspace, key),
            View::Snapshot(snapshot) => snapshot.contains_key(keyspace, key),
        }
    }

    pub(super) fn get_lent(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
    ) -> plimsoll::Result<Option<Vec<u8>>> {
        match self {
            View::Tx(tx, _) => tx.get_with(keyspace, key, <[u8]>::to_vec),
            View::Snapshot(snapshot) => snapshot.get_with(keyspace, key, <[u8]>::to_vec),
        }
    }

    pub(super) fn get_resident(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
    ) -> plimsoll::Result<Resident<Vec<u8>>> {
        match self {
            View::Tx(tx, _) => tx.get_resident(keyspace, key, <[u8]>::to_vec),
            View::Snapshot(snapshot) => snapshot.get_resident(keyspace, key, <[u8]>::to_vec),
        }
    }

    /// The first and the last key.
    pub(super) fn ends(&self, keyspace: &Keyspace) -> plimsoll::Result<[Option<Vec<u8>>; 2]> {
        let (first, last) = match self {
            View::Tx(tx, _) => (tx.first(keyspace)?, tx.last(keyspace)?),
            View::Snapshot(snapshot) => (snapshot.first(keyspace)?, snapshot.last(keyspace)?),
        };
        Ok([first, last].map(|pair| pair.map(|(key, _)| key)))
    }

    pub(super) fn walk(&self, keyspace: &Keyspace, span: &Span) -> plimsoll::Result<Range<'_>> {
        let bounds = |lower, upper| (bound(lower), bound(upper));
        match (self, span) {
            (View::Tx(tx, _), Span::Prefix(prefix)) => tx.prefix(keyspace, prefix),
            (View::Tx(tx, _), Span::Range(lower, upper)) => {
                tx.range(keyspace, bounds(lower, upper))
            }
            (View::Snapshot(snapshot), Span::Prefix(prefix)) => snapshot.prefix(keyspace, prefix),
            (View::Snapshot(snapshot), Span::Range(lower, upper)) => {
                snapshot.range(keyspace, bounds(lower, upper))
            }
        }
    }

    pub(super) fn own(&self) -> Option<&Writes> {
        if let View::Tx(_, writes) = self { Some(writes) } else { None }
    }
}

pub(crate) fn bound(edge: &Edge) -> Bound<&[u8]> {
    match edge {
        Edge::Open => Bound::Unbounded,
        Edge::At(key) => Bound::Included(key),
        Edge::Beside(key) => Bound::Excluded(key),
    }
}
