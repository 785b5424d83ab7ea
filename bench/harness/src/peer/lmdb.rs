//! LMDB as a store, by heed.
//!
//! It has no cache of its own: its file is mapped, and the rest of the limit is page cache. Its
//! documentation advises `MDB_NORDAHEAD` if data is larger than memory; a scan benefits too,
//! because the pages of a tree are in no order. A durable commit is the default; a relaxed one is
//! `MDB_NOSYNC`, synced by `mdb_env_sync`.
#![allow(unsafe_code, reason = "heed's open is unsafe: its file is mapped")]

use std::fs;
use std::ops::Bound;
use std::path::Path;

use anyhow::Result;
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, RoTxn, RwTxn, WithoutTls};

use super::{Commits, Held, Peer, Put, Setup};

/// More than any workload writes; only the address space is taken.
const MAP_BYTES: usize = 64 << 30;
const READERS: u32 = 64;

type Pairs = Database<Bytes, Bytes>;

/// An environment with its unnamed database.
pub(crate) struct LmdbPeer {
    env: Env<WithoutTls>,
    pairs: Pairs,
}

impl LmdbPeer {
    /// Opens or makes the store.
    pub(crate) fn open(folder: &Path, setup: &Setup) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(MAP_BYTES).max_readers(READERS);
        let mut flags = EnvFlags::NO_READ_AHEAD;
        flags.set(EnvFlags::NO_SYNC, setup.commits == Commits::Relaxed);
        // SAFETY: nothing but LMDB touches the file while it is mapped, and each process opens it
        // once.
        let env = unsafe { options.flags(flags).open(folder)? };
        let mut transaction = env.write_txn()?;
        let pairs = env.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Self { env, pairs })
    }
}

impl Peer for LmdbPeer {
    fn commit(&self, fill: &mut dyn FnMut(&mut dyn Put) -> Result<()>) -> Result<()> {
        let mut writes = Writes { pairs: &self.pairs, transaction: self.env.write_txn()? };
        fill(&mut writes)?;
        Ok(writes.transaction.commit()?)
    }

    fn get(&self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let transaction = self.env.read_txn()?;
        Ok(self.pairs.get(&transaction, key)?.map(found).is_some())
    }

    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let transaction = self.env.read_txn()?;
        // LMDB does not support empty keys, not even as a start.
        let from = if from.is_empty() { Bound::Unbounded } else { Bound::Included(from) };
        for pair in self.pairs.range(&transaction, &(from, Bound::Unbounded))? {
            let (key, value) = pair?;
            if !each(key, value) {
                break;
            }
        }
        Ok(())
    }

    fn hold(&self) -> Result<Option<Box<dyn Held + '_>>> {
        Ok(Some(Box::new(HeldTransaction {
            pairs: &self.pairs,
            transaction: self.env.read_txn()?,
        })))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.env.force_sync()?)
    }

    fn settle(&self) -> Result<()> {
        self.sync()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.env.force_sync()?;
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}

struct HeldTransaction<'peer> {
    pairs: &'peer Pairs,
    transaction: RoTxn<'peer, WithoutTls>,
}

impl Held for HeldTransaction<'_> {
    fn get(&self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        Ok(self.pairs.get(&self.transaction, key)?.map(found).is_some())
    }
}

struct Writes<'peer> {
    pairs: &'peer Pairs,
    transaction: RwTxn<'peer>,
}

impl Put for Writes<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.pairs.put(&mut self.transaction, key, value)?)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.pairs.delete(&mut self.transaction, key)?;
        Ok(())
    }

    fn pop_first(&mut self) -> Result<bool> {
        let mut pairs = self.pairs.iter_mut(&mut self.transaction)?;
        if pairs.next().transpose()?.is_none() {
            return Ok(false);
        }
        // SAFETY: nothing of the pair is kept beyond this line.
        Ok(unsafe { pairs.del_current()? })
    }
}
