//! A store as a process of the fleet has it open: a [`Peer`], and features that only Plimsoll has.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use plimsoll::{Db, Durability, Glsn, Keyspace, Options, Retention, Snapshot};

use crate::peer::{Peer, PeerKind, PlimsollPeer, Setup};

/// The keyspace of [`PlimsollPeer`].
const PAIRS: &str = "pairs";

/// How a store is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    pub(crate) peer: PeerKind,
    /// This process has exclusive use of the store.
    pub(crate) is_alone: bool,
    /// Memory of all processes together.
    pub(crate) memory_total: u64,
    /// How many processes share it.
    pub(crate) processes: u64,
    /// A commit returns once it is readable, before it is durable.
    pub(crate) is_relaxed: bool,
    /// Segments of the log and memtables are small, so that a short run fills many.
    pub(crate) is_small: bool,
}

/// Bytes of small segments and memtables.
const SMALL_SEGMENT_BYTES: u64 = 4 << 20;
const SMALL_MEMTABLE_BYTES: u64 = 1 << 20;

/// An open store.
pub(crate) struct Store {
    peer: Box<dyn Peer>,
    ours: Option<(Db, Keyspace)>,
    held: Vec<Snapshot>,
}

impl Store {
    /// Opens or makes the store in a folder.
    pub(crate) fn open(folder: &Path, opening: &Opening) -> Result<Self> {
        let Opening { peer, is_alone, memory_total, processes, is_relaxed, is_small } = *opening;
        if peer != PeerKind::Plimsoll {
            ensure!(!is_relaxed, "only Plimsoll is measured with relaxed commits");
            let setup = Setup::new(memory_total / processes);
            let peer = if is_alone {
                peer.open(folder, &setup)?
            } else {
                peer.open_shared(folder, &setup)?
            };
            return Ok(Self { peer, ours: None, held: Vec::new() });
        }
        let durability = if is_relaxed { Durability::Buffered } else { Durability::Sync };
        let options = Options::new().retention(Retention::Latest).durability(durability);
        let options = match is_small {
            true => options.segment_bytes(SMALL_SEGMENT_BYTES).memtable_bytes(SMALL_MEMTABLE_BYTES),
            false => options,
        };
        let options = match is_alone {
            true => options.memory_bytes(memory_total),
            false => options.shared(true).memory_total(memory_total),
        };
        let db = Db::open(folder, options)?;
        let peer = PlimsollPeer::of(db.clone(), Retention::Latest)?;
        let keyspace = db.keyspace(PAIRS)?;
        Ok(Self { peer: Box::new(peer), ours: Some((db, keyspace)), held: Vec::new() })
    }

    pub(crate) fn peer(&self) -> &dyn Peer {
        &*self.peer
    }

    /// Commits one put; returns the number of retries.
    pub(crate) fn put(&self, key: &[u8], value: &[u8]) -> Result<u64> {
        let Some((db, keyspace)) = &self.ours else {
            return self.peer.commit(&mut |transaction| transaction.put(key, value)).map(|()| 0);
        };
        let mut runs = 0;
        db.transact(|transaction| {
            runs += 1;
            transaction.put(keyspace, key, value)
        })?;
        Ok(runs - 1)
    }

    /// Reads a counter and writes the next number; returns the number of retries.
    pub(crate) fn count(&self, key: &[u8]) -> Result<u64> {
        let (db, keyspace) = self.ours()?;
        let mut runs = 0;
        db.transact(|transaction| {
            runs += 1;
            let before = transaction.get(keyspace, key)?.map_or(0, |value| number_in(&value));
            transaction.put(keyspace, key, (before + 1).to_le_bytes())
        })?;
        Ok(runs - 1)
    }

    /// The number that a key has; 0 if it has none.
    pub(crate) fn number(&self, key: &[u8]) -> Result<u64> {
        let mut number = 0;
        self.peer.get(key, &mut |value| number = number_in(value))?;
        Ok(number)
    }

    /// Begins a transaction and drops it.
    pub(crate) fn begin(&self) -> Result<()> {
        drop(self.ours()?.0.begin());
        Ok(())
    }

    /// Opens a snapshot and keeps it.
    pub(crate) fn hold(&mut self) -> Result<()> {
        let snapshot = self.ours()?.0.snapshot();
        self.held.push(snapshot);
        Ok(())
    }

    /// Follows the log from now on, and calls `arrived` at each of the next `count` entries.
    pub(crate) fn follow(
        &self,
        count: u64,
        began: &mut dyn FnMut(),
        arrived: &mut dyn FnMut(),
    ) -> Result<()> {
        let (db, _) = self.ours()?;
        let mut follow = db.log().follow(Glsn(db.newest().0 + 1), None)?;
        began();
        for _ in 0..count {
            let entry = follow.next_timeout(Duration::from_secs(20))?;
            ensure!(entry.is_some(), "no commit came within 20 s");
            arrived();
        }
        Ok(())
    }

    fn ours(&self) -> Result<&(Db, Keyspace)> {
        self.ours.as_ref().context("only Plimsoll is measured in this")
    }

    /// Closes the store.
    pub(crate) fn close(self) -> Result<()> {
        drop(self.held);
        drop(self.ours);
        self.peer.close()
    }
}

fn number_in(value: &[u8]) -> u64 {
    value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// For stores that can be shared.
pub(crate) fn can_be_shared(peer: PeerKind) -> Result<()> {
    match peer {
        PeerKind::Plimsoll => Ok(()),
        PeerKind::Lmdb | PeerKind::Redb | PeerKind::Sqlite if peer.is_built() => Ok(()),
        PeerKind::Lmdb | PeerKind::Redb | PeerKind::Sqlite => {
            bail!(
                "this program was built without {}: leave it out with --peer, or build with --features peers",
                peer.name()
            )
        }
        _ => bail!("several processes cannot write to a store of {}", peer.name()),
    }
}
