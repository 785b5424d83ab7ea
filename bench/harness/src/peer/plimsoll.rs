//! Plimsoll as a store.

use std::ops::Bound;
use std::path::Path;

use anyhow::Result;
use plimsoll::{Db, Keyspace, Options, Retention, Transaction};

use super::{Batch, Peer};

/// A store with one keyspace in use.
#[derive(Debug)]
pub(crate) struct PlimsollPeer {
    db: Db,
    keyspace: Keyspace,
}

impl PlimsollPeer {
    /// Opens or makes the store.
    pub(crate) fn open(folder: &Path, memory_bytes: u64, retention: Retention) -> Result<Self> {
        let db = Db::open(folder, Options::new().memory_bytes(memory_bytes).retention(retention))?;
        Self::of(db, retention)
    }

    /// A store that is open already.
    pub(crate) fn of(db: Db, retention: Retention) -> Result<Self> {
        let keyspace = db.create_keyspace("pairs", retention)?;
        Ok(Self { db, keyspace })
    }
}

impl Peer for PlimsollPeer {
    fn begin(&self) -> Result<Box<dyn Batch + '_>> {
        Ok(Box::new(PlimsollBatch { peer: self, transaction: self.db.begin() }))
    }

    fn get(&self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        Ok(self.db.snapshot().get(&self.keyspace, key)?.map(|value| found(&value)).is_some())
    }

    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let snapshot = self.db.snapshot();
        let from: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(from), Bound::Unbounded);
        let mut pairs = snapshot.range(&self.keyspace, from)?;
        while let Some((key, value)) = pairs.advance()? {
            if !each(key, value) {
                break;
            }
        }
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.db.close()?)
    }
}

struct PlimsollBatch<'peer> {
    peer: &'peer PlimsollPeer,
    transaction: Transaction,
}

impl Batch for PlimsollBatch<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.transaction.put(&self.peer.keyspace, key, value)?)
    }

    fn commit(self: Box<Self>) -> Result<()> {
        self.transaction.commit()?;
        Ok(())
    }
}
