//! SQLite as a store, by rusqlite.
//!
//! One connection writes, a pool of others reads, in WAL mode. Set as its documentation advises: a
//! table WITHOUT ROWID, whose keys are the tree ("withoutrowid.html"; an ordinary table where
//! values are large, as the same page says); the writer's own cache is an eighth of memory, a
//! reader's what it is by default ("pragma.html#pragma_cache_size": 2 MiB), so that the page cache
//! has the rest. A memory map ("mmap.html") is not used: under a hard limit its faults read ahead
//! and push each other out (70 reads a second). A durable commit is `synchronous=FULL`; a relaxed
//! one `NORMAL`, after which a small commit with `FULL` syncs the whole log.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use rusqlite::{CachedStatement, Connection, OptionalExtension as _};

use super::{Commits, LARGE_VALUE_BYTES, Peer, Put, Setup};

/// A database with one table.
pub(crate) struct SqlitePeer {
    file: PathBuf,
    writer: Mutex<Connection>,
    /// Idle connections.
    readers: Mutex<Vec<Connection>>,
    commits: Commits,
}

impl SqlitePeer {
    /// Opens or makes the store.
    pub(crate) fn open(folder: &Path, setup: &Setup) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let file = folder.join("pairs.sqlite");
        let writer = connect(&file)?;
        writer.pragma_update(None, "journal_mode", "WAL")?;
        writer.pragma_update(None, "cache_size", -i64::try_from(setup.memory_bytes / 8 / 1024)?)?;
        let without_rowid =
            if setup.value_bytes < LARGE_VALUE_BYTES { "WITHOUT ROWID" } else { "" };
        writer.execute_batch(&format!(
            "CREATE TABLE IF NOT EXISTS pairs (key BLOB PRIMARY KEY, value BLOB NOT NULL) {without_rowid};
             CREATE TABLE IF NOT EXISTS synced (number INTEGER PRIMARY KEY, times INTEGER NOT NULL);
             INSERT OR IGNORE INTO synced VALUES (1, 0);"
        ))?;
        set_synchronous(&writer, setup.commits)?;
        Ok(Self {
            file,
            writer: Mutex::new(writer),
            readers: Mutex::default(),
            commits: setup.commits,
        })
    }

    fn writer(&self) -> MutexGuard<'_, Connection> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends a reading connection.
    fn read<T>(&self, read: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let free = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = free.map_or_else(|| connect(&self.file), Ok)?;
        let result = read(&connection);
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        result
    }
}

fn connect(file: &Path) -> Result<Connection> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(std::time::Duration::from_secs(60))?;
    Ok(connection)
}

fn set_synchronous(connection: &Connection, commits: Commits) -> Result<()> {
    let level = match commits {
        Commits::Durable => "FULL",
        Commits::Relaxed => "NORMAL",
    };
    Ok(connection.pragma_update(None, "synchronous", level)?)
}

impl Peer for SqlitePeer {
    fn commit(&self, fill: &mut dyn FnMut(&mut dyn Put) -> Result<()>) -> Result<()> {
        let mut connection = self.writer();
        // Rolls back if dropped without a commit.
        let transaction = connection.transaction()?;
        let upsert = "INSERT INTO pairs VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value";
        let mut writes = Writes {
            upsert: transaction.prepare_cached(upsert)?,
            delete: transaction.prepare_cached("DELETE FROM pairs WHERE key = ?1")?,
            pop: transaction
                .prepare_cached("DELETE FROM pairs WHERE key = (SELECT min(key) FROM pairs)")?,
        };
        fill(&mut writes)?;
        drop(writes);
        Ok(transaction.commit()?)
    }

    fn get(&self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.read(|connection| {
            let mut statement =
                connection.prepare_cached("SELECT value FROM pairs WHERE key = ?1")?;
            let value = statement.query_row([key], |row| {
                found(row.get_ref(0)?.as_blob()?);
                Ok(())
            });
            Ok(value.optional()?.is_some())
        })
    }

    fn scan(&self, from: &[u8], each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.read(|connection| {
            let mut statement = connection
                .prepare_cached("SELECT key, value FROM pairs WHERE key >= ?1 ORDER BY key")?;
            let mut rows = statement.query([from])?;
            while let Some(row) = rows.next()? {
                if !each(row.get_ref(0)?.as_blob()?, row.get_ref(1)?.as_blob()?) {
                    break;
                }
            }
            Ok(())
        })
    }

    fn sync(&self) -> Result<()> {
        let connection = self.writer();
        set_synchronous(&connection, Commits::Durable)?;
        connection.execute("UPDATE synced SET times = times + 1", [])?;
        set_synchronous(&connection, self.commits)
    }

    fn settle(&self) -> Result<()> {
        self.writer().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let writer = self.writer.into_inner().unwrap_or_else(PoisonError::into_inner);
        writer.close().map_err(|(_, error)| error.into())
    }
}

struct Writes<'txn> {
    upsert: CachedStatement<'txn>,
    delete: CachedStatement<'txn>,
    pop: CachedStatement<'txn>,
}

impl Put for Writes<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.upsert.execute([key, value])?;
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.delete.execute([key])?;
        Ok(())
    }

    fn pop_first(&mut self) -> Result<bool> {
        Ok(self.pop.execute([])? > 0)
    }
}
