//! fjall as a store.
//!
//! Set as its documentation advises: a quarter of memory for the block cache
//! (`Builder::cache_size`: 20 to 25 %), memtables of 8 to 64 MiB "depending on how much memory is
//! available" (`max_memtable_size`: an eighth of it), large values apart (`with_kv_separation`). A
//! durable commit is `PersistMode::SyncAll`; a relaxed one `PersistMode::Buffer`, synced by
//! `Database::persist`.

use std::path::Path;

use anyhow::Result;
use fjall::{
    Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, OwnedWriteBatch, PersistMode,
};

use super::{Commits, LARGE_VALUE_BYTES, Peer, Put, Setup};

/// A database with one keyspace.
pub(crate) struct FjallPeer {
    db: Database,
    pairs: Keyspace,
    persist: PersistMode,
}

impl FjallPeer {
    /// Opens or makes the store.
    pub(crate) fn open(folder: &Path, setup: &Setup) -> Result<Self> {
        let db = Database::builder(folder).cache_size(setup.memory_bytes / 4).open()?;
        let memtable_bytes = (setup.memory_bytes / 8).clamp(8 << 20, 64 << 20);
        let large = (setup.value_bytes >= LARGE_VALUE_BYTES).then(KvSeparationOptions::default);
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(memtable_bytes)
                .with_kv_separation(large.clone())
        };
        let pairs = db.keyspace("pairs", options)?;
        let persist = match setup.commits {
            Commits::Durable => PersistMode::SyncAll,
            Commits::Relaxed => PersistMode::Buffer,
        };
        Ok(Self { db, pairs, persist })
    }
}

impl Peer for FjallPeer {
    fn commit(&self, fill: &mut dyn FnMut(&mut dyn Put) -> Result<()>) -> Result<()> {
        let mut writes =
            Writes { pairs: &self.pairs, batch: self.db.batch().durability(Some(self.persist)) };
        fill(&mut writes)?;
        Ok(writes.batch.commit()?)
    }

    fn get(&self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        Ok(self.pairs.get(key)?.map(|value| found(&value)).is_some())
    }

    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        for pair in self.pairs.range(from..) {
            let (key, value) = pair.into_inner()?;
            if !each(&key, &value) {
                break;
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(self.db.persist(PersistMode::SyncAll)?)
    }

    fn settle(&self) -> Result<()> {
        self.pairs.rotate_memtable_and_wait()?;
        self.sync()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.sync()
    }
}

struct Writes<'peer> {
    pairs: &'peer Keyspace,
    batch: OwnedWriteBatch,
}

impl Put for Writes<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.batch.insert(self.pairs, key, value);
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.batch.remove(self.pairs, key);
        Ok(())
    }
}
