//! Plimsoll as a store.

use std::ops::{Bound, ControlFlow};
use std::path::Path;

use anyhow::Result;
use plimsoll::{Db, Durability, Keyspace, Options, Retention, Snapshot, Transaction};

use super::{Commits, Held, Peer, Put, Setup};

/// A store with one keyspace in use.
#[derive(Debug)]
pub(crate) struct PlimsollPeer {
    db: Db,
    keyspace: Keyspace,
}

impl PlimsollPeer {
    /// Opens or makes the store; `rows`: values may be kept as rows beside pages.
    pub(crate) fn open(
        folder: &Path,
        setup: &Setup,
        retention: Retention,
        rows: bool,
    ) -> Result<Self> {
        let durability = match setup.commits {
            Commits::Durable => Durability::Sync,
            Commits::Relaxed => Durability::Buffered,
        };
        let options = Options::new()
            .memory_bytes(setup.memory_bytes)
            .retention(retention)
            .durability(durability);
        Self::of(Db::open(folder, options.row_cache(rows))?, retention)
    }

    /// A store that is open already.
    pub(crate) fn of(db: Db, retention: Retention) -> Result<Self> {
        let keyspace = db.create_keyspace("pairs", retention)?;
        Ok(Self { db, keyspace })
    }
}

impl Peer for PlimsollPeer {
    fn commit(&self, fill: &mut dyn FnMut(&mut dyn Put) -> Result<()>) -> Result<()> {
        let mut writes = Writes { peer: self, transaction: self.db.begin() };
        fill(&mut writes)?;
        writes.transaction.commit()?;
        Ok(())
    }

    fn get(&self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        Ok(self.db.get_with(&self.keyspace, key, found)?.is_some())
    }

    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let snapshot = self.db.snapshot();
        let from: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(from), Bound::Unbounded);
        snapshot.range(&self.keyspace, from)?.visit(|key, value| match each(key, value) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        })?;
        Ok(())
    }

    fn hold(&self) -> Result<Option<Box<dyn Held + '_>>> {
        Ok(Some(Box::new(HeldSnapshot { peer: self, snapshot: self.db.snapshot() })))
    }

    /// Nothing to do, because a buffered commit is synced within 200 ms by itself.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn settle(&self) -> Result<()> {
        Ok(self.db.flush()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.db.close()?)
    }
}

struct HeldSnapshot<'peer> {
    peer: &'peer PlimsollPeer,
    snapshot: Snapshot,
}

impl Held for HeldSnapshot<'_> {
    fn get(&self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        Ok(self.snapshot.get_with(&self.peer.keyspace, key, found)?.is_some())
    }
}

struct Writes<'peer> {
    peer: &'peer PlimsollPeer,
    transaction: Transaction,
}

impl Put for Writes<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.transaction.put(&self.peer.keyspace, key, value)?)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        Ok(self.transaction.delete(&self.peer.keyspace, key)?)
    }

    fn pop_first(&mut self) -> Result<bool> {
        Ok(self.transaction.pop_first(&self.peer.keyspace)?.is_some())
    }
}
