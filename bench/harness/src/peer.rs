//! The interface of a store for workloads: a few calls that every store has. Each peer is an
//! adapter in its own file.

mod btree;
#[cfg(feature = "peers")]
mod fjall;
#[cfg(feature = "peers")]
mod lmdb;
mod plimsoll;
#[cfg(feature = "peers")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(feature = "peers")]
mod sqlite;

use std::path::Path;

use ::plimsoll::Retention;
use anyhow::{Result, bail};
use clap::ValueEnum;

pub(crate) use self::plimsoll::PlimsollPeer;

/// Stores that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum PeerKind {
    /// Plimsoll, with the latest version of each key kept.
    Plimsoll,
    /// Plimsoll, with every version kept.
    PlimsollForever,
    /// Plimsoll without the row cache: all reads go through pages. Shows the benefit of the row
    /// cache.
    PlimsollPages,
    /// RocksDB.
    Rocksdb,
    /// LMDB, by heed.
    Lmdb,
    /// redb.
    Redb,
    /// fjall.
    Fjall,
    /// SQLite, by rusqlite.
    Sqlite,
    /// The standard library's map behind a lock, without file or memory bound; shows how the
    /// measurement sees a store without a memory limit.
    Btree,
}

/// When a commit returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Commits {
    /// Once it survives a power cut.
    Durable,
    /// Once it is readable; [`Peer::sync`] follows within 200 ms.
    Relaxed,
}

/// How a store is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// Plimsoll's budget; the others divide it as their documentation advises.
    pub(crate) memory_bytes: u64,
    pub(crate) commits: Commits,
    /// Bytes of most values.
    #[cfg_attr(
        not(feature = "peers"),
        expect(dead_code, reason = "only some peers are set up by it")
    )]
    pub(crate) value_bytes: usize,
}

impl Setup {
    /// Durable commits of small values.
    pub(crate) fn new(memory_bytes: u64) -> Self {
        Self { memory_bytes, commits: Commits::Durable, value_bytes: 100 }
    }
}

/// Values of at least this size are large: stores with separate storage for large values use it.
#[cfg(feature = "peers")]
const LARGE_VALUE_BYTES: usize = 4096;

impl PeerKind {
    /// The name in tables and results.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether this build supports it; a peer may have been left out.
    pub(crate) fn is_built(self) -> bool {
        match self {
            Self::Plimsoll | Self::PlimsollForever | Self::PlimsollPages | Self::Btree => true,
            Self::Rocksdb => cfg!(feature = "rocksdb"),
            Self::Lmdb | Self::Redb | Self::Fjall | Self::Sqlite => cfg!(feature = "peers"),
        }
    }

    /// The store's share of a hard limit. Plimsoll's documentation asks for 32 MiB beside the
    /// budget; of a small limit, a quarter.
    pub(crate) fn share_of(self, limit_bytes: u64) -> u64 {
        match self {
            Self::Plimsoll | Self::PlimsollForever | Self::PlimsollPages => {
                limit_bytes - (32 << 20).min(limit_bytes / 4)
            }
            _ => limit_bytes,
        }
    }

    /// Whether the store's file depends only on the puts and their order; then it may be created
    /// with more memory.
    pub(crate) fn is_tree(self) -> bool {
        matches!(self, Self::Lmdb | Self::Redb | Self::Sqlite)
    }

    /// Opens a store in a folder, or creates it.
    pub(crate) fn open(self, folder: &Path, setup: &Setup) -> Result<Box<dyn Peer>> {
        Ok(match self {
            Self::Plimsoll => Box::new(PlimsollPeer::open(folder, setup, Retention::Latest, true)?),
            Self::PlimsollForever => {
                Box::new(PlimsollPeer::open(folder, setup, Retention::Forever, true)?)
            }
            Self::PlimsollPages => {
                Box::new(PlimsollPeer::open(folder, setup, Retention::Latest, false)?)
            }
            Self::Btree => Box::new(btree::BtreePeer::default()),
            #[cfg(feature = "rocksdb")]
            Self::Rocksdb => Box::new(rocksdb::RocksdbPeer::open(folder, setup)?),
            #[cfg(feature = "peers")]
            Self::Lmdb => Box::new(lmdb::LmdbPeer::open(folder, setup)?),
            #[cfg(feature = "peers")]
            Self::Redb => Box::new(redb::RedbPeer::open(folder, setup)?),
            #[cfg(feature = "peers")]
            Self::Fjall => Box::new(fjall::FjallPeer::open(folder, setup)?),
            #[cfg(feature = "peers")]
            Self::Sqlite => Box::new(sqlite::SqlitePeer::open(folder, setup)?),
            #[allow(unreachable_patterns, reason = "reached where peers were left out")]
            other => bail!("{} was left out when this program was built", other.name()),
        })
    }
}

impl PeerKind {
    /// Opens a store that other processes may have open, for reading and writing. Plimsoll has more
    /// to measure than a [`Peer`] offers, and is opened elsewhere.
    #[cfg_attr(
        not(feature = "peers"),
        expect(unused_variables, reason = "without peers there is nothing to open")
    )]
    pub(crate) fn open_shared(self, folder: &Path, setup: &Setup) -> Result<Box<dyn Peer>> {
        match self {
            #[cfg(feature = "peers")]
            Self::Lmdb => Ok(Box::new(lmdb::LmdbPeer::open(folder, setup)?)),
            #[cfg(feature = "peers")]
            Self::Redb => Ok(Box::new(redb::RedbPeer::open_shared(folder, setup)?)),
            #[cfg(feature = "peers")]
            Self::Sqlite => Ok(Box::new(sqlite::SqlitePeer::open(folder, setup)?)),
            other => bail!(
                "several processes cannot write to a store of {}, or it was left out when this program was built",
                other.name()
            ),
        }
    }
}

/// An open store. Called from many threads concurrently.
pub(crate) trait Peer: Send + Sync {
    /// Commits the puts of `fill`: all of them or, if that fails, none.
    fn commit(&self, fill: &mut dyn FnMut(&mut dyn Put) -> Result<()>) -> Result<()>;

    /// Looks up a key as of the newest commit and passes its value to `found`; returns whether it
    /// exists.
    fn get(&self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Passes pairs to `each` in key order, from `from` on, until it returns false.
    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()>;

    /// Opens a snapshot; none if the store has none, or the adapter does not use it.
    fn hold(&self) -> Result<Option<Box<dyn Held + '_>>> {
        Ok(None)
    }

    /// Makes relaxed commits durable.
    fn sync(&self) -> Result<()>;

    /// Flushes memory to its final place. The caller waits for the background work that follows.
    fn settle(&self) -> Result<()>;

    /// Closes the store, with as much data in its final place on disk as closing puts there.
    fn close(self: Box<Self>) -> Result<()>;
}

/// A snapshot of a store.
pub(crate) trait Held {
    /// Looks up a key in the snapshot.
    fn get(&self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool>;
}

/// A transaction that only writes.
pub(crate) trait Put {
    /// Sets a key to a value.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Removes a key.
    fn delete(&mut self, key: &[u8]) -> Result<()>;

    /// Removes the first key that the transaction has not removed yet; returns whether there was
    /// one.
    fn pop_first(&mut self) -> Result<bool> {
        bail!("this store's transactions do not read")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built() -> impl Iterator<Item = PeerKind> {
        PeerKind::value_variants().iter().copied().filter(|kind| kind.is_built())
    }

    fn put_all(peer: &dyn Peer, pairs: &[(&[u8], &[u8])]) {
        peer.commit(&mut |transaction| {
            pairs.iter().try_for_each(|(key, value)| transaction.put(key, value))
        })
        .unwrap();
    }

    fn get(peer: &dyn Peer, key: &[u8]) -> Option<Vec<u8>> {
        let mut value = None;
        let is_there = peer.get(key, &mut |found| value = Some(found.to_vec())).unwrap();
        assert_eq!(is_there, value.is_some());
        value
    }

    fn keys(peer: &dyn Peer, from: &[u8], limit: usize) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        peer.scan(from, &mut |key, _| {
            keys.push(key.to_vec());
            keys.len() < limit
        })
        .unwrap();
        keys
    }

    fn setups() -> [Setup; 3] {
        let durable = Setup::new(32 << 20);
        let relaxed = Setup { commits: Commits::Relaxed, ..durable };
        [durable, relaxed, Setup { value_bytes: 16 << 10, ..durable }]
    }

    #[test]
    fn every_peer_finds_and_scans_all_puts() {
        for (kind, setup) in built().flat_map(|kind| setups().map(|setup| (kind, setup))) {
            let folder = tempfile::tempdir().unwrap();
            let peer = kind.open(&folder.path().join("store"), &setup).unwrap();
            let large = vec![7; 20_000];
            put_all(&*peer, &[(&[3], &[3, 3]), (&[1], &large), (&[2], &[0])]);
            put_all(&*peer, &[(&[2], &[2, 2])]);
            assert_eq!(get(&*peer, &[2]), Some(vec![2, 2]), "{kind:?}");
            assert_eq!(get(&*peer, &[1]), Some(large), "{kind:?}");
            assert_eq!(get(&*peer, &[9]), None, "{kind:?}");
            assert_eq!(keys(&*peer, &[2], 9), [[2], [3]], "{kind:?}");
            assert_eq!(keys(&*peer, &[], 1), [[1]], "{kind:?}");
            peer.sync().unwrap();
            peer.settle().unwrap();
            peer.close().unwrap();
        }
    }

    #[test]
    fn every_peer_with_a_file_has_everything_after_reopening() {
        for (kind, setup) in built().flat_map(|kind| setups().map(|setup| (kind, setup))) {
            if kind == PeerKind::Btree {
                continue;
            }
            let folder = tempfile::tempdir().unwrap();
            let store = folder.path().join("store");
            let peer = kind.open(&store, &setup).unwrap();
            for number in 0..2000_u32 {
                put_all(&*peer, &[(&number.to_be_bytes(), &[1; 300])]);
            }
            peer.close().unwrap();
            let peer = kind.open(&store, &setup).unwrap();
            assert_eq!(get(&*peer, &1999_u32.to_be_bytes()), Some(vec![1; 300]), "{kind:?}");
            assert_eq!(keys(&*peer, &[], usize::MAX).len(), 2000, "{kind:?}");
            peer.close().unwrap();
        }
    }

    #[test]
    fn every_peer_drops_a_transaction_that_fails() {
        for kind in built() {
            let folder = tempfile::tempdir().unwrap();
            let peer = kind.open(&folder.path().join("store"), &Setup::new(32 << 20)).unwrap();
            let failed = peer.commit(&mut |transaction| {
                transaction.put(b"key", b"value")?;
                bail!("no more")
            });
            assert!(failed.is_err());
            assert_eq!(get(&*peer, b"key"), None, "{kind:?}");
            put_all(&*peer, &[(b"key", b"value")]);
            assert_eq!(get(&*peer, b"key"), Some(b"value".to_vec()), "{kind:?}");
            peer.close().unwrap();
        }
    }

    #[test]
    fn every_peer_deletes_and_takes_the_first_key_if_it_can() {
        for kind in built() {
            let folder = tempfile::tempdir().unwrap();
            let peer = kind.open(&folder.path().join("store"), &Setup::new(32 << 20)).unwrap();
            put_all(&*peer, &[(&[1], &[1]), (&[2], &[2]), (&[3], &[3]), (&[4], &[4])]);
            peer.commit(&mut |transaction| transaction.delete(&[1])).unwrap();
            let popped = peer.commit(&mut |transaction| {
                assert!(
                    transaction.pop_first()?
                        && transaction.pop_first()?
                        && transaction.pop_first()?,
                    "{kind:?}"
                );
                assert!(!transaction.pop_first()?, "{kind:?}");
                transaction.put(&[4], &[5])
            });
            let left = if popped.is_ok() { vec![[4]] } else { vec![[2], [3], [4]] };
            assert_eq!(keys(&*peer, &[], 9), left, "{kind:?}");
            peer.close().unwrap();
        }
    }

    #[test]
    fn a_held_snapshot_does_not_change() {
        for kind in built() {
            let folder = tempfile::tempdir().unwrap();
            let peer = kind.open(&folder.path().join("store"), &Setup::new(32 << 20)).unwrap();
            put_all(&*peer, &[(b"key", b"old")]);
            let Some(held) = peer.hold().unwrap() else { continue };
            put_all(&*peer, &[(b"key", b"new")]);
            let mut value = Vec::new();
            assert!(held.get(b"key", &mut |found| value = found.to_vec()).unwrap(), "{kind:?}");
            assert_eq!(value, b"old", "{kind:?}");
            drop(held);
            peer.close().unwrap();
        }
    }

    #[test]
    fn many_threads_read_and_write_every_peer() {
        for kind in built() {
            let folder = tempfile::tempdir().unwrap();
            let peer = kind.open(&folder.path().join("store"), &Setup::new(32 << 20)).unwrap();
            std::thread::scope(|scope| {
                for thread in 0..4_u8 {
                    let peer = &*peer;
                    scope.spawn(move || {
                        for number in 0..50 {
                            put_all(peer, &[(&[thread, number], &[number])]);
                            assert_eq!(
                                get(peer, &[thread, number]),
                                Some(vec![number]),
                                "{kind:?}"
                            );
                        }
                    });
                }
            });
            assert_eq!(keys(&*peer, &[], usize::MAX).len(), 200, "{kind:?}");
            peer.close().unwrap();
        }
    }
}
