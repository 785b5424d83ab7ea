//! A store of Plimsoll filled with rows that follow from their numbers: for measurements that look
//! inside the store.

use std::ops::Bound;
use std::path::Path;

use anyhow::{Result, ensure};
use plimsoll::{Db, Keyspace, Options, Retention};

use crate::yardstick::data;

/// Bytes of a value.
const VALUE_BYTES: usize = 400;

/// Approximate bytes of a row: a key, a value, and the overhead in a leaf.
const ROW_BYTES: u64 = 432;

/// Puts of a transaction of the load.
const BATCH: u64 = 5_000;

/// An open store and its rows.
#[derive(Debug)]
pub(crate) struct RowStore {
    pub(crate) db: Db,
    keyspace: Keyspace,
    /// The number of its rows, which are numbered from 0.
    pub(crate) rows: u64,
}

/// Rows that take about so many bytes in leaves.
pub(crate) fn rows_in(bytes: u64) -> u64 {
    bytes / ROW_BYTES
}

impl RowStore {
    /// Creates a store of this many rows in random order, and merges them into one run.
    pub(crate) fn make(folder: &Path, rows: u64, memory_bytes: u64) -> Result<()> {
        let store = Self::open(folder, rows, Options::new().memory_bytes(memory_bytes))?;
        let mut value = [0; VALUE_BYTES];
        for first in (0..rows).step_by(BATCH as usize) {
            let mut transaction = store.db.begin();
            for number in first..rows.min(first + BATCH) {
                data::fill_value(number, 0, &mut value);
                transaction.put(&store.keyspace, &data::key(number), &value)?;
            }
            transaction.commit()?;
        }
        store.db.compact()?;
        Ok(store.db.close()?)
    }

    /// Opens a store created with this many rows.
    pub(crate) fn open(folder: &Path, rows: u64, options: Options) -> Result<Self> {
        let db = Db::open(folder, options)?;
        let keyspace = match db.keyspace("rows") {
            Ok(keyspace) => keyspace,
            Err(_) => db.create_keyspace("rows", Retention::Latest)?,
        };
        Ok(Self { db, keyspace, rows })
    }

    /// Reads a row as of now, and checks it.
    pub(crate) fn get(&self, number: u64) -> Result<()> {
        let found = self.db.snapshot().get(&self.keyspace, &data::key(number))?;
        let is_right = found.is_some_and(|value| data::is_value_of(number, &value, VALUE_BYTES));
        ensure!(is_right, "row {number} differs from the value that was put");
        Ok(())
    }

    /// Writes a version of a row.
    pub(crate) fn put(&self, number: u64, version: u64) -> Result<()> {
        let mut value = [0; VALUE_BYTES];
        data::fill_value(number, version, &mut value);
        let mut transaction = self.db.begin();
        transaction.put(&self.keyspace, &data::key(number), &value)?;
        transaction.commit()?;
        Ok(())
    }

    /// Scans up to `limit` rows from a row's key on; returns their number.
    pub(crate) fn walk(&self, from: u64, limit: u64) -> Result<u64> {
        let snapshot = self.db.snapshot();
        let key = data::key(from);
        let range: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(&key), Bound::Unbounded);
        let mut rows = snapshot.range(&self.keyspace, range)?;
        let mut count = 0;
        while count < limit && rows.advance()?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// Walks all rows.
    pub(crate) fn walk_all(&self) -> Result<u64> {
        let snapshot = self.db.snapshot();
        let mut rows = snapshot.prefix(&self.keyspace, b"")?;
        let mut count = 0;
        while rows.advance()?.is_some() {
            count += 1;
        }
        Ok(count)
    }

    /// Pages found and pages read since the store was opened, without read-ahead.
    pub(crate) fn hits_and_loads(&self) -> (u64, u64) {
        let pool = self.db.stats().pool;
        (pool.hits, pool.loads - pool.read_ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rows_are_found_and_scanned() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        RowStore::make(&path, 12_000, 32 << 20).unwrap();
        let store = RowStore::open(&path, 12_000, Options::new().memory_bytes(32 << 20)).unwrap();
        store.get(0).unwrap();
        store.get(11_999).unwrap();
        assert!(store.get(12_000).is_err());
        store.put(7, 3).unwrap();
        store.get(7).unwrap();
        assert_eq!((store.walk_all().unwrap(), store.walk(5, 3).unwrap()), (12_000, 3));
        assert!(store.hits_and_loads().1 > 0);
    }
}
