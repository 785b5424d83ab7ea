//! Writes of a transaction that return the previous value.

use crate::txn::transaction::Transaction;
use crate::types::error::Result;
use crate::types::keyspaces::Keyspace;
use crate::types::value::Value;

impl Transaction {
    /// Like [`Transaction::put`], but returns the previous value; `None` if the key had none. The
    /// key counts as read.
    ///
    /// # Errors
    /// As for [`Transaction::get`] and [`Transaction::put`].
    pub fn insert(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Option<Value>> {
        let previous = self.read_to_write(keyspace, key.as_ref())?;
        self.put(keyspace, key, value)?;
        Ok(previous)
    }

    /// Like [`Transaction::delete`], but returns the previous value. If there is none, nothing is
    /// written. The key counts as read.
    ///
    /// # Errors
    /// As for [`Transaction::get`] and [`Transaction::delete`].
    pub fn take(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let previous = self.read_to_write(keyspace, key.as_ref())?;
        if previous.is_some() {
            self.delete(keyspace, key)?;
        }
        Ok(previous)
    }

    /// The value of a key, for a write that depends on it. If the value cannot be read, the
    /// transaction can only be aborted, because it must not be committed without that write.
    fn read_to_write(&mut self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Value>> {
        let read = self.get(keyspace, key);
        self.spoil_if_failed(&read);
        read
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::engine::open::open;
    use crate::types::error::Error;
    use crate::types::invalid_input::InvalidInput;
    use crate::types::options::Options;

    /// A transaction must not be committed without a write that the caller assumes it contains.
    #[test]
    fn a_write_whose_read_fails_spoils_the_transaction() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new().memory_bytes(16 << 20).background(false);
        let store = open(&dir.path().join("store"), options).unwrap();
        let keyspace = store.reader.keyspaces.find("default").unwrap().0;
        let mut tx = Transaction::new(&store.committer);
        tx.put_with_ttl(&keyspace, "k", vec![7; 400 << 10], Duration::from_secs(1000)).unwrap();
        tx.commit().unwrap();
        type Deed = fn(&mut Transaction, &Keyspace) -> Result<bool>;
        let deeds: [Deed; 4] = [
            |tx, space| tx.insert(space, "k", "").map(|_| true),
            |tx, space| tx.take(space, "k").map(|_| true),
            |tx, space| tx.persist(space, "k"),
            |tx, space| tx.expire_at(space, "k", UNIX_EPOCH + Duration::from_secs(4_000_000_000)),
        ];
        for (number, deed) in deeds.into_iter().enumerate() {
            let mut tx = Transaction::new(&store.committer);
            tx.put(&keyspace, "other", "").unwrap();
            store.reader.budget.fail_some_after(0, 100);
            let failed = deed(&mut tx, &keyspace);
            store.reader.budget.fail_after(u64::MAX);
            assert!(matches!(failed, Err(Error::OutOfBudget(_))), "{number}: {failed:?}");
            let refused = tx.commit();
            let is_refused =
                matches!(refused, Err(Error::InvalidInput(InvalidInput::TransactionFailed)));
            assert!(is_refused, "{number}: {refused:?}");
        }
    }
}
