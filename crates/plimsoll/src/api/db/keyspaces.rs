//! The keyspaces of a store: created, dropped, measured; their settings.

use crate::api::db::Db;
use crate::api::sizes::{self, KeyspaceSize};
use crate::engine::keyspace_commits;
use crate::types::compression::Compression;
use crate::types::error::Result;
use crate::types::key_range::KeyRange;
use crate::types::keyspaces::{DropReport, Keyspace, KeyspaceInfo};
use crate::types::retention::Retention;

impl Db {
    /// Returns the keyspace with this name, creating it (by a commit) if it does not exist.
    /// "default" always exists.
    ///
    /// # Errors
    /// The name is invalid, the keyspace does not exist and the store is read-only, or the commit
    /// fails.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        keyspace_commits::open(&self.store, name)
    }

    /// Returns the keyspace with this name, or, if it was dropped, the last one that had the name;
    /// creates none. `None` if there never was one. A dropped keyspace is empty now;
    /// [`Db::history`], [`Db::diff`] and snapshots of earlier moments read its past.
    ///
    /// # Errors
    /// The name is invalid, or the store is closed.
    pub fn find_keyspace(&self, name: &str) -> Result<Option<Keyspace>> {
        keyspace_commits::find(&self.store, name)
    }

    /// Returns the keyspace with this name, creating it with this `retention` if it does not exist.
    ///
    /// # Errors
    /// As for [`Db::keyspace`]; [`crate::Error::InvalidInput`] if the keyspace exists with another
    /// retention, which is left unchanged.
    pub fn create_keyspace(&self, name: &str, retention: Retention) -> Result<Keyspace> {
        keyspace_commits::create(&self.store, name, retention)
    }

    /// Changes which past versions a keyspace keeps, by a commit. With a shorter retention, merges
    /// of runs drop the versions it no longer covers; a longer one does not bring dropped versions
    /// back.
    ///
    /// # Errors
    /// The handle belongs to another store or opening, the store is read-only, or the commit fails.
    pub fn set_retention(&self, keyspace: &Keyspace, retention: Retention) -> Result<()> {
        keyspace_commits::set_retention(&self.store, keyspace, retention)
    }

    /// Changes how values of a keyspace and its pages of the index are compressed, by a commit. It
    /// applies to values that are put and pages that are written from then on; those that exist
    /// stay as they are.
    ///
    /// # Errors
    /// As for [`Db::set_retention`]; [`crate::Error::InvalidInput`] for a level of zstd that does
    /// not exist, and for zstd in a build without it.
    pub fn set_compression(&self, keyspace: &Keyspace, compression: Compression) -> Result<()> {
        keyspace_commits::set_compression(&self.store, keyspace, compression)
    }

    /// Deletes a keyspace with all its keys, in one commit. The name becomes free; the id is never
    /// reused. Puts through remaining handles are rejected, and open transactions that put into the
    /// keyspace are rejected when they commit. [`Snapshot::keyspace`] still reads earlier moments
    /// of the keyspace, as far back as its retention allows: with [`Retention::Forever`], all of
    /// them. [`Db::forget_keyspace`] frees its space instead.
    ///
    /// [`Snapshot::keyspace`]: crate::Snapshot::keyspace
    ///
    /// # Errors
    /// The keyspace is the default one or was dropped already, the handle belongs to another store
    /// or opening, the store is read-only, or the commit fails.
    pub fn drop_keyspace(&self, keyspace: &Keyspace) -> Result<DropReport> {
        keyspace_commits::drop_keyspace(&self.store, keyspace)
    }

    /// As [`Db::drop_keyspace`], but the keyspace's past is not kept, whatever its retention:
    /// merges of runs free its space.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let sessions = db.create_keyspace("sessions", Retention::Forever)?;
    /// db.put(&sessions, "a", "one")?;
    /// assert_eq!(db.forget_keyspace(&sessions)?.keys, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Db::drop_keyspace`]. Then nothing has changed, including the retention.
    pub fn forget_keyspace(&self, keyspace: &Keyspace) -> Result<DropReport> {
        keyspace_commits::forget_keyspace(&self.store, keyspace)
    }

    /// All keyspaces, sorted by name.
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        // If newer commits cannot be applied, returns the keyspaces that are known.
        let _ = self.store.committer.fresh();
        let all = self.store.reader.keyspaces.all();
        all.iter()
            .map(|(name, record)| KeyspaceInfo {
                name: name.to_string(),
                retention: record.retention,
                compression: record.compression,
                ttl: record.ttl,
            })
            .collect()
    }

    /// Returns the current size of a keyspace. Counts up to `keys_max` keys and estimates the rest;
    /// [`KeyspaceSize::exact`] is true if all were counted.
    ///
    /// # Errors
    /// The handle belongs to another store or opening, disk errors, the budget, or corruption.
    pub fn keyspace_size(&self, keyspace: &Keyspace, keys_max: u64) -> Result<KeyspaceSize> {
        sizes::size(&self.store, keyspace, keys_max)
    }

    /// The approximate current number of keys in a range of a keyspace (`..` for all keys). The
    /// call costs as much as some dozens of gets, independent of the number of keys.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
    /// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
    /// let fruits = db.keyspace("fruits")?;
    /// for fruit in ["apple", "cherry", "melon"] {
    ///     db.put(&fruits, fruit, "1")?;
    /// }
    /// assert_eq!(db.approximate_len(&fruits, .."m")?, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Use it to choose between two plans, for a progress bar, or for monitoring. Memtables, and
    /// tables that are partly in the range, are sampled. Up to 32 keys of each memtable and run are
    /// looked up in the older ones to account for overwritten and deleted keys; with many keys the
    /// error is about an eighth. [`Snapshot::len`](crate::Snapshot::len) counts exactly.
    ///
    /// # Errors
    /// A handle of another store or of a dropped keyspace, a key that is too long, disk errors, the
    /// budget, or corruption.
    pub fn approximate_len(&self, keyspace: &Keyspace, range: impl KeyRange) -> Result<u64> {
        sizes::approximate_len(&self.store, keyspace, &range)
    }
}
