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

    /// The value of a key that a write depends on: if it cannot be read, the transaction can only
    /// be aborted, because it must not be committed without that write.
    fn read_to_write(&mut self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Value>> {
        let read = self.get(keyspace, key);
        self.spoil_if_failed(&read);
        read
    }
}
