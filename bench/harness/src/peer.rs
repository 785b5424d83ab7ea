//! What a store is to a workload: a few calls that every store has. Each peer is an adapter in a file of its own.

mod btree;
mod plimsoll;

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;

pub(crate) use self::plimsoll::PlimsollPeer;

/// Stores that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PeerKind {
    /// Plimsoll, with the latest version of each key kept.
    Plimsoll,
    /// Plimsoll, with every version kept.
    PlimsollForever,
    /// The standard library's map behind a lock: no file and no bound; shows what the measuring sees of a store without a line.
    Btree,
}

impl PeerKind {
    /// The name in tables and results.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Opens a store in a folder, or makes it there, with a budget for everything it keeps in memory. Commits are durable.
    pub(crate) fn open(self, folder: &Path, memory_bytes: u64) -> Result<Box<dyn Peer>> {
        Ok(match self {
            Self::Plimsoll => Box::new(PlimsollPeer::open(folder, memory_bytes, ::plimsoll::Retention::Latest)?),
            Self::PlimsollForever => {
                Box::new(PlimsollPeer::open(folder, memory_bytes, ::plimsoll::Retention::Forever)?)
            }
            Self::Btree => Box::new(btree::BtreePeer::default()),
        })
    }
}

/// An open store. Calls may come from many threads at once.
pub(crate) trait Peer: Send + Sync {
    /// Starts a transaction.
    fn begin(&self) -> Result<Box<dyn Batch + '_>>;

    /// Looks up a key and hands its value to `found`; whether it is there.
    fn get(&self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool>;

    /// Hands pairs to `each` in the order of their keys, from `from` on, until it returns false.
    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()>;

    /// Closes the store: everything it has is on disk, in its final place as far as the store ever puts it there on closing.
    fn close(self: Box<Self>) -> Result<()>;
}

/// A transaction that only writes.
pub(crate) trait Batch {
    /// Sets a key to a value.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Makes everything visible and durable, or nothing.
    fn commit(self: Box<Self>) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_finds_and_walks_what_was_put() {
        for kind in PeerKind::value_variants() {
            let folder = tempfile::tempdir().unwrap();
            let peer = kind.open(&folder.path().join("store"), 32 << 20).unwrap();
            let mut batch = peer.begin().unwrap();
            for key in [3_u8, 1, 2] {
                batch.put(&[key], &[key; 2]).unwrap();
            }
            batch.commit().unwrap();
            let mut value = Vec::new();
            assert!(peer.get(&[2], &mut |found| value.extend_from_slice(found)).unwrap(), "{kind:?}");
            assert_eq!(value, [2, 2]);
            assert!(!peer.get(&[9], &mut |_| panic!("nothing is there")).unwrap());
            let mut keys = Vec::new();
            peer.scan(&[2], &mut |key, _| {
                keys.push(key[0]);
                true
            })
            .unwrap();
            assert_eq!(keys, [2, 3], "{kind:?}");
            peer.scan(&[], &mut |key, _| {
                keys.push(key[0]);
                false
            })
            .unwrap();
            assert_eq!(keys, [2, 3, 1], "{kind:?}");
            peer.close().unwrap();
        }
    }
}
