//! redb as a store.
//!
//! Its documentation names a cache (`Builder::set_cache_size`) and advises no size: it gets half of
//! memory, and the page cache it reads through the rest. A durable commit is
//! `Durability::Immediate`; a relaxed one `Durability::None`, made durable by an empty commit with
//! `Immediate`, as its documentation says.

use std::fs;
use std::path::Path;

use anyhow::Result;
use redb::{
    ConcurrencyMode, Database, Durability, ReadOnlyTable, ReadableDatabase, Table, TableDefinition,
};

use super::{Commits, Held, Peer, Put, Setup};

const PAIRS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("pairs");

/// A database with one table.
pub(crate) struct RedbPeer {
    db: Database,
    durability: Durability,
}

impl RedbPeer {
    /// Opens or makes the store.
    pub(crate) fn open(folder: &Path, setup: &Setup) -> Result<Self> {
        Self::open_as(folder, setup, ConcurrencyMode::ExclusiveWriter)
    }

    /// Opens or makes the store; other processes may do so, too.
    pub(crate) fn open_shared(folder: &Path, setup: &Setup) -> Result<Self> {
        Self::open_as(folder, setup, ConcurrencyMode::MultiWriter)
    }

    fn open_as(folder: &Path, setup: &Setup, mode: ConcurrencyMode) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let cache_bytes = usize::try_from(setup.memory_bytes / 2)?;
        let mut builder = Database::builder();
        let db = builder
            .set_cache_size(cache_bytes)
            .set_concurrency_mode(mode)
            .create(folder.join("pairs.redb"))?;
        let transaction = db.begin_write()?;
        transaction.open_table(PAIRS)?;
        transaction.commit()?;
        let durability = match setup.commits {
            Commits::Durable => Durability::Immediate,
            Commits::Relaxed => Durability::None,
        };
        Ok(Self { db, durability })
    }
}

impl Peer for RedbPeer {
    fn commit(&self, fill: &mut dyn FnMut(&mut dyn Put) -> Result<()>) -> Result<()> {
        let mut transaction = self.db.begin_write()?;
        transaction.set_durability(self.durability)?;
        let mut writes = Writes(transaction.open_table(PAIRS)?);
        fill(&mut writes)?;
        drop(writes);
        Ok(transaction.commit()?)
    }

    fn get(&self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let table = self.db.begin_read()?.open_table(PAIRS)?;
        Ok(table.get(key)?.map(|value| found(value.value())).is_some())
    }

    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let table = self.db.begin_read()?.open_table(PAIRS)?;
        for pair in table.range(from..)? {
            let (key, value) = pair?;
            if !each(key.value(), value.value()) {
                break;
            }
        }
        Ok(())
    }

    fn hold(&self) -> Result<Option<Box<dyn Held + '_>>> {
        Ok(Some(Box::new(HeldTable(self.db.begin_read()?.open_table(PAIRS)?))))
    }

    fn sync(&self) -> Result<()> {
        let mut transaction = self.db.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        Ok(transaction.commit()?)
    }

    fn settle(&self) -> Result<()> {
        self.sync()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.sync()
    }
}

struct HeldTable(ReadOnlyTable<&'static [u8], &'static [u8]>);

impl Held for HeldTable {
    fn get(&self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        Ok(self.0.get(key)?.map(|value| found(value.value())).is_some())
    }
}

struct Writes<'txn>(Table<'txn, &'static [u8], &'static [u8]>);

impl Put for Writes<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.0.insert(key, value)?;
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.0.remove(key)?;
        Ok(())
    }

    fn pop_first(&mut self) -> Result<bool> {
        Ok(self.0.pop_first()?.is_some())
    }
}
