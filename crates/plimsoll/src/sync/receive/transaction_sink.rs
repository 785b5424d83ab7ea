//! Writes the changes of a received commit in a transaction, and hashes them.

use crate::api::db::Db;
use crate::api::state_hash::{StateHash, StateHasher};
use crate::sync::commit_id::ContentHash;
use crate::sync::contents::{Bytes, Received, Sink};
use crate::txn::transaction::Transaction;
use crate::types::error::{Error, Result};
use crate::types::expiry::Expiry;
use crate::types::keyspaces::Keyspace;

/// Writes the changes of a commit in a transaction, and hashes them. Creates keyspaces that do not
/// exist, with default settings.
pub(in crate::sync) struct TransactionSink {
    pub(super) db: Db,
    pub(in crate::sync) tx: Transaction,
    pub(in crate::sync) hash: ContentHash,
    pub(super) received: Received,
    /// The hash of the changes of a boundary commit, and the hash that the sender announced.
    pub(super) state: Option<(StateHasher, Option<StateHash>)>,
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

    /// Fails in a boundary commit, which has only puts.
    fn check_deletion(&self) -> Result<()> {
        match &self.state {
            Some(_) => Err(Error::corrupt(
                "the state of a boundary commit contains a deletion; verify the store that sent it"
                    .to_owned(),
            )),
            None => Ok(()),
        }
    }

    /// Whether the state of a boundary commit has the announced hash.
    pub(super) fn is_announced_state(&self) -> bool {
        let state = self.state.as_ref();
        state.is_some_and(|(hasher, announced)| *announced == Some(hasher.finish()))
    }
}

impl Sink for TransactionSink {
    fn range(&mut self, keyspace: &str, first: &[u8], end: Option<&[u8]>) -> Result<()> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        self.check_deletion()?;
        self.hash.range(keyspace, first, end);
        let range = (keyspace.into(), first.to_vec(), end.map(<[u8]>::to_vec));
        self.received.ranges.push(range);
        let keyspace = self.keyspace(keyspace)?;
        let range = (Included(first), end.map_or(Unbounded, Excluded));
        self.tx.delete_range(&keyspace, range)
    }

    fn delete(&mut self, keyspace: &str, key: &[u8]) -> Result<()> {
        self.check_deletion()?;
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
        match &mut self.state {
            Some((state, _)) => state.begin_row(name, key, expiry, value.len()),
            None => self.hash.put(name, key, expiry, value.len()),
        }
        let keyspace = self.keyspace(name)?;
        let key = self.tx.key_to_put(&keyspace, key)?;
        let (hash, state) = (&mut self.hash, &mut self.state);
        let mut add = |piece: &[u8]| match state {
            Some((state, _)) => state.value(piece),
            None => hash.value(name, piece),
        };
        match value {
            Bytes::Whole(value) => {
                add(value);
                self.tx.put_expiring(&key, value, expiry)
            }
            Bytes::Pieces(_, next) => {
                let mut hashed = |piece: &mut [u8]| {
                    let bytes = next(piece)?;
                    add(&piece[..bytes]);
                    Ok(bytes)
                };
                self.tx.put_pieces(&key, expiry, &mut hashed).map(drop)
            }
        }
    }

    fn state(&mut self, hash: StateHash) -> Result<()> {
        if let Some((_, announced)) = &mut self.state {
            *announced = Some(hash);
        }
        Ok(())
    }
}
