//! Values that expire, each call in a separate commit.

use std::time::{Duration, SystemTime};

use plimsoll_log::glsn::Glsn;

use crate::api::db::Db;
use crate::engine::keyspace_commits;
use crate::types::error::Result;
use crate::types::expiry::Ttl;
use crate::types::keyspaces::Keyspace;

impl Db {
    /// As [`Db::put`], and lets the value expire after `ttl`: see
    /// [`Transaction::put_with_ttl`](crate::Transaction::put_with_ttl).
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// use std::time::Duration;
    ///
    /// let codes = db.keyspace("codes")?;
    /// db.put_with_ttl(&codes, "1234", "valid", Duration::from_millis(20))?;
    /// assert!(db.get(&codes, "1234")?.is_some());
    /// std::thread::sleep(Duration::from_millis(30));
    /// assert!(db.get(&codes, "1234")?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Transaction::put_with_ttl`](crate::Transaction::put_with_ttl) and
    /// [`Transaction::commit`](crate::Transaction::commit).
    pub fn put_with_ttl(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<Glsn> {
        let mut tx = self.begin();
        tx.put_with_ttl(keyspace, key, value, ttl)?;
        tx.commit()
    }

    /// As [`Db::put_with_ttl`], with the time from which on the key has no value.
    ///
    /// # Errors
    /// As for [`Transaction::put_expiring_at`](crate::Transaction::put_expiring_at) and
    /// [`Transaction::commit`](crate::Transaction::commit).
    pub fn put_expiring_at(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        at: SystemTime,
    ) -> Result<Glsn> {
        let mut tx = self.begin();
        tx.put_expiring_at(keyspace, key, value, at)?;
        tx.commit()
    }

    /// Changes when the value of a key expires. Returns whether the key has a value.
    ///
    /// # Errors
    /// As for [`Transaction::expire_at`](crate::Transaction::expire_at) and
    /// [`Transaction::commit`](crate::Transaction::commit); [`crate::Error::Conflict`] only after
    /// 32 attempts in a row.
    pub fn expire_at(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        at: SystemTime,
    ) -> Result<bool> {
        self.transact(|tx| tx.expire_at(keyspace, &key, at))
    }

    /// Removes the expiry of a key's value. Returns whether the key has a value.
    ///
    /// # Errors
    /// As for [`Db::expire_at`].
    pub fn persist(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.transact(|tx| tx.persist(keyspace, &key))
    }

    /// When the value of a key expires.
    ///
    /// # Errors
    /// As for [`Snapshot::get`](crate::Snapshot::get).
    pub fn ttl(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Ttl> {
        self.snapshot().ttl(keyspace, key)
    }

    /// Sets the time to live of the values of a keyspace, by a commit; `None`: they do not expire.
    /// It applies to values that are put from then on without an expiry of their own, and to values
    /// that updates create. A transaction or bulk load of another process that has written to the
    /// keyspace before may still put values by the earlier setting.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let sessions = db.keyspace("sessions")?;
    /// db.set_ttl(&sessions, Some(std::time::Duration::from_secs(3600)))?;
    /// db.put(&sessions, "ada", "logged in")?;
    /// assert!(matches!(db.ttl(&sessions, "ada")?, Ttl::Expires { .. }));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Db::set_retention`]; [`crate::InvalidInput::TimeToLive`] if `ttl` is below a
    /// microsecond or ends after the year 9999.
    pub fn set_ttl(&self, keyspace: &Keyspace, ttl: Option<Duration>) -> Result<()> {
        keyspace_commits::set_ttl(&self.store, keyspace, ttl)
    }
}
