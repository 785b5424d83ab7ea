//! Writes the changes of a received commit in a transaction, and hashes them.

use crate::api::db::Db;
use crate::sync::commit_id::ContentHash;
use crate::sync::contents::{Bytes, Received, Sink};
use crate::txn::transaction::Transaction;
use crate::types::error::Result;
use crate::types::expiry::Expiry;
use crate::types::keyspaces::Keyspace;

/// Writes the changes of a commit in a transaction, and hashes them. Creates keyspaces that do not
/// exist, with default settings.
pub(in crate::sync) struct TransactionSink {
    pub(super) db: Db,
    pub(in crate::sync) tx: Transaction,
    pub(in crate::sync) hash: ContentHash,
    pub(super) received: Received,
    /// The keyspace of the last change.
    pub(super) keyspace: Option<Keyspace>,
}

impl TransactionSink {
    fn keyspace(&mut self, name: &str) -> Result<Keyspace> {
        if let Some(last) = self.keyspace.as_ref().filter(|last| last.name() == name) {
            return Ok(last.clone());
        }
        let found = self.db.keyspace(name)?;
        self.keyspace = Some(found.clone());
        Ok(found)
    }
}

impl Sink for TransactionSink {
    fn range(&mut self, keyspace: &str, first: &[u8], end: Option<&[u8]>) -> Result<()> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        self.hash.range(keyspace, first, end);
        let range = (keyspace.into(), first.to_vec(), end.map(<[u8]>::to_vec));
        self.received.ranges.push(range);
        let keyspace = self.keyspace(keyspace)?;
        let range = (Included(first), end.map_or(Unbounded, Excluded));
        self.tx.delete_range(&keyspace, range)
    }

    fn delete(&mut self, keyspace: &str, key: &[u8]) -> Result<()> {
        self.hash.delete(keyspace, key);
        let keyspace = self.keyspace(keyspace)?;
        self.tx.delete(&keyspace, key)
    }

    fn put(
        &mut self,
        name: &str,
        key: &[u8],
        expiry: Option<Expiry>,
        value: Bytes<'_>,
    ) -> Result<()> {
        self.hash.put(name, key, expiry, value.len());
        let keyspace = self.keyspace(name)?;
        let key = self.tx.key_to_put(&keyspace, key)?;
        let hash = &mut self.hash;
        match value {
            Bytes::Whole(value) => {
                hash.value(name, value);
                self.tx.put_expiring(&key, value, expiry)
            }
            Bytes::Pieces(_, next) => {
                let mut hashed = |piece: &mut [u8]| {
                    let bytes = next(piece)?;
                    hash.value(name, &piece[..bytes]);
                    Ok(bytes)
                };
                self.tx.put_pieces(&key, expiry, &mut hashed).map(drop)
            }
        }
    }
}
