//! The data source of a line: the open transaction or a snapshot.

use std::ops::ControlFlow;

use plimsoll::{Keyspace, Range, Snapshot, Transaction, Ttl, ValueReader};

use crate::exit::Failure;
use crate::key_range::KeyRange;

/// A transaction or a snapshot.
pub(super) enum Source<'a> {
    /// The open transaction, with its own writes.
    Open(&'a Transaction),
    /// A snapshot.
    Past(Snapshot),
}

impl Source<'_> {
    /// The GLSN of the source.
    pub(super) fn at(&self) -> u64 {
        match self {
            Self::Open(transaction) => transaction.at().0,
            Self::Past(snapshot) => snapshot.at().0,
        }
    }

    /// A reader of the value of a key, if there is one.
    pub(super) fn reader(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
    ) -> Result<Option<ValueReader>, Failure> {
        Ok(match self {
            Self::Open(transaction) => transaction.get_reader(keyspace, key)?,
            Self::Past(snapshot) => snapshot.get_reader(keyspace, key)?,
        })
    }

    /// The expiry of the value of a key.
    pub(super) fn ttl(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Ttl, Failure> {
        Ok(match self {
            Self::Open(transaction) => transaction.ttl(keyspace, key)?,
            Self::Past(snapshot) => snapshot.ttl(keyspace, key)?,
        })
    }

    /// The keys of a range.
    pub(super) fn keys(&self, keyspace: &Keyspace, range: &KeyRange) -> Result<Range<'_>, Failure> {
        let range = match self {
            Self::Open(transaction) => transaction.range(keyspace, range.bounds())?,
            Self::Past(snapshot) => snapshot.range(keyspace, range.bounds())?,
        };
        Ok(range.keys_only())
    }

    /// The number of keys in a range.
    pub(super) fn count(&self, keyspace: &Keyspace, range: &KeyRange) -> Result<u64, Failure> {
        let mut count = 0;
        self.keys(keyspace, range)?.visit(|_, _| {
            count += 1;
            ControlFlow::<()>::Continue(())
        })?;
        Ok(count)
    }
}
