//! The handle that users hold: each call goes straight to the file that does the work.

#[cfg(test)]
mod refusals;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::mem::MemDisk;
use plimsoll_log::glsn::Glsn;

use crate::api::admin::backup::{self, BackupReport, Sharing};
use crate::api::admin::verify::{self, VerifyProgress, VerifyReport};
use crate::api::commits::Commits;
use crate::api::feed::Log;
use crate::api::history::{Diff, History};
use crate::api::sizes::{self, KeyspaceSize};
use crate::api::snapshot::{Moment, Snapshot};
use crate::engine::Engine;
use crate::engine::collect_stats;
use crate::engine::keyspace_commits;
use crate::engine::memory;
use crate::engine::open;
use crate::engine::steps;
#[cfg(any(test, feature = "testing"))]
use crate::engine::work_steps;
use crate::read::span::Span;
use crate::txn::retry;
use crate::txn::transaction::Transaction;
use crate::types::error::{Error, Result};
use crate::types::keyspaces::{DropReport, Keyspace, KeyspaceInfo};
use crate::types::options::Options;
use crate::types::retention::Retention;
use crate::types::stats::Stats;
use crate::types::value::Value;

/// An open store. Clones share it; it is closed when [`Db::close`] is called or the last clone is dropped.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// use plimsoll::{Db, Options};
///
/// let db = Db::open(&path, Options::new().memory_bytes(64 << 20))?;
/// let users = db.keyspace("users")?;
///
/// let mut tx = db.begin();
/// tx.put(&users, b"ada", b"Ada Lovelace")?;
/// let first = tx.commit()?;
///
/// let mut tx = db.begin();
/// tx.put(&users, b"ada", b"Augusta Ada King")?;
/// tx.commit()?;
///
/// assert_eq!(db.snapshot().get(&users, b"ada")?.unwrap(), b"Augusta Ada King");
/// let then = db.snapshot_at(plimsoll::Moment::Glsn(first))?;
/// assert_eq!(then.get(&users, b"ada")?.unwrap(), b"Ada Lovelace");
/// db.close()
/// # }
/// ```
#[derive(Clone)]
pub struct Db {
    store: Arc<Engine>,
}

impl Db {
    /// Opens the store in a folder, or makes one there.
    ///
    /// # Errors
    /// [`crate::Error::Locked`], [`crate::Error::NotAStore`], [`crate::Error::Format`], [`crate::Error::Corrupt`],
    /// [`crate::Error::Forked`], [`crate::Error::InvalidInput`] (the budget is too small), or the disk.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        Ok(Self { store: open::open(path.as_ref(), options)? })
    }

    /// Makes an empty store in memory. It is the ordinary store, with its log and its runs, on files that are in memory, and is gone when its
    /// last handle and iterator are dropped: for tests, and for data that need not outlive the process.
    ///
    /// The memory of the files is beside the budget of `options`, which holds the caches and buffers as it does with files on a disk: the
    /// whole takes the budget and every byte that the store holds. Calls copy between the files and the caches under one lock of all
    /// files, so threads wait for each other. A warm image is not written.
    ///
    /// # Errors
    /// [`crate::Error::InvalidInput`]: the budget is too small, or the options ask for a store that is open read-only or is there
    /// already.
    ///
    /// ```
    /// use plimsoll::{Db, Options};
    ///
    /// # fn main() -> plimsoll::Result<()> {
    /// let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let users = db.keyspace("default")?;
    /// let mut tx = db.begin();
    /// tx.put(&users, b"ada", b"Ada Lovelace")?;
    /// tx.commit()?;
    /// assert_eq!(db.snapshot().get(&users, b"ada")?.unwrap(), b"Ada Lovelace");
    /// # Ok(())
    /// # }
    /// ```
    pub fn in_memory(options: Options) -> Result<Db> {
        if options.read_only || !options.create {
            return Err(Error::invalid(
                "a store in memory is new and empty: it cannot be opened read-only, or without `create`",
            ));
        }
        Self::open("/store", Options { disk: Arc::new(MemDisk::new()), warm: false, ..options })
    }

    /// Closes the store for all clones and lets the folder go. What is in memory is written into runs, unless it is so little that the next
    /// opening replays it from the log within milliseconds. Not needed for safety.
    ///
    /// # Errors
    /// The disk; what was acknowledged is safe in the log all the same.
    pub fn close(self) -> Result<()> {
        self.store.close()
    }

    /// The keyspace with this name; it is made (by a commit) if it is not there. "default" is always there.
    ///
    /// # Errors
    /// The name cannot be, the keyspace is not there and the store is read-only, or the commit fails.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        keyspace_commits::open(&self.store, name)
    }

    /// The keyspace with this name, made to keep past versions as `retention` says if it is not there.
    ///
    /// # Errors
    /// As for [`Db::keyspace`]; [`crate::Error::InvalidInput`] where the keyspace exists with another retention, which is left as it is.
    pub fn create_keyspace(&self, name: &str, retention: Retention) -> Result<Keyspace> {
        keyspace_commits::create(&self.store, name, retention)
    }

    /// Changes which past versions a keyspace keeps, by a commit. What a shorter retention gives up is dropped when runs are merged; what is gone
    /// does not come back with a longer one.
    ///
    /// # Errors
    /// The handle is of another store or opening, the store is read-only, or the commit fails.
    pub fn set_retention(&self, keyspace: &Keyspace, retention: Retention) -> Result<()> {
        keyspace_commits::set_retention(&self.store, keyspace, retention)
    }

    /// Deletes a keyspace with all its keys, in one commit. Its name is free then; its id is never used again. Nothing can be put into it by
    /// handles that are left, and what transactions put into it that are open is refused when they commit. Earlier moments of it are read by
    /// [`Snapshot::keyspace`], as long as its retention says: what it kept for ever is still kept. Give it another by [`Db::set_retention`]
    /// first, e.g. [`Retention::Latest`], to have its space freed when runs are merged.
    ///
    /// # Errors
    /// It is the default keyspace or was dropped already, the handle is of another store or opening, the store is read-only, or the commit fails.
    pub fn drop_keyspace(&self, keyspace: &Keyspace) -> Result<DropReport> {
        keyspace_commits::drop_keyspace(&self.store, keyspace)
    }

    /// All keyspaces, by name.
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        let all = self.store.reader.keyspaces.all();
        all.iter().map(|(name, record)| KeyspaceInfo { name: name.to_string(), retention: record.retention }).collect()
    }

    /// How much a keyspace holds now: up to `keys_max` keys are walked and counted; what lies beyond is estimated, and [`KeyspaceSize::exact`]
    /// says so.
    ///
    /// # Errors
    /// The handle is of another store or opening, the disk, the budget, or corruption.
    pub fn keyspace_size(&self, keyspace: &Keyspace, keys_max: u64) -> Result<KeyspaceSize> {
        sizes::size(&self.store, keyspace, keys_max)
    }

    /// Begins a transaction at the newest moment.
    pub fn begin(&self) -> Transaction {
        Transaction::new(&self.store.committer)
    }

    /// The store as it is now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::newest(&self.store)
    }

    /// The store as it was.
    ///
    /// # Errors
    /// [`crate::Error::Future`]; [`crate::Error::Trimmed`] where a time lies below the log's first entry; the disk. Whether a keyspace
    /// still holds that moment is found out when it is read.
    pub fn snapshot_at(&self, moment: Moment) -> Result<Snapshot> {
        Snapshot::of(&self.store, moment)
    }

    /// GLSN of the newest moment that can be read; [`Glsn::NONE`] for an empty store.
    pub fn newest(&self) -> Glsn {
        self.store.visible()
    }

    /// Runs `change` in a transaction and commits it; where another transaction changed what it read, it is run again in a new one, after a pause of
    /// random length. What it returned the last time is returned; an error of its own is, too, and then nothing was written.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = plimsoll::Db::open(dir.path().join("store"), plimsoll::Options::new().memory_bytes(16 << 20))?;
    /// let counters = db.keyspace("counters")?;
    /// let visits = db.transact(|tx| -> plimsoll::Result<u8> {
    ///     let before = tx.get(&counters, "visits")?.map_or(0, |value| value[0]);
    ///     tx.put(&counters, "visits", [before + 1])?;
    ///     Ok(before + 1)
    /// })?;
    /// assert_eq!(visits, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Its error is any type that an [`Error`] converts into: the application's own, or `Box<dyn std::error::Error>`. Where the compiler cannot
    /// tell which, the closure says so by its return type.
    ///
    /// # Errors
    /// What `change` returns, and what [`Transaction::commit`] does; [`crate::Error::Conflict`] only after 32 attempts in a row.
    pub fn transact<T, E: From<Error>>(&self, change: impl FnMut(&mut Transaction) -> Result<T, E>) -> Result<T, E> {
        retry::transact(&self.store.committer, change)
    }

    /// The value of a key now; `None` if it has none.
    ///
    /// # Errors
    /// As for [`Snapshot::get`].
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.snapshot().get(keyspace, key)
    }

    /// Gives a key a value by a commit of its own; returns the commit's GLSN. Many keys are written faster, and all or none, by one transaction.
    ///
    /// # Errors
    /// As for [`Transaction::put`] and [`Transaction::commit`].
    pub fn put(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Glsn> {
        let mut tx = self.begin();
        tx.put(keyspace, key, value)?;
        tx.commit()
    }

    /// Deletes a key by a commit of its own; returns the commit's GLSN.
    ///
    /// # Errors
    /// As for [`Transaction::delete`] and [`Transaction::commit`].
    pub fn delete(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Glsn> {
        let mut tx = self.begin();
        tx.delete(keyspace, key)?;
        tx.commit()
    }

    /// Watches the keys of a keyspace that begin with `prefix`: the commits from `from` on that changed any of them, in order, each once, with these
    /// changes only ([`Commits`]). What was committed while no watch was open is there as long as the log holds it; a cursor ([`Log::cursor`])
    /// keeps it. Where a keyspace is dropped, the deletion of its keys is the last that comes.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = plimsoll::Db::open(dir.path().join("store"), plimsoll::Options::new().memory_bytes(16 << 20))?;
    /// let users = db.keyspace("users")?;
    /// let mut watch = db.watch(&users, "admin/", db.newest().next())?;
    /// db.put(&users, "guest/eve", "Eve")?;
    /// db.put(&users, "admin/ada", "Ada")?;
    /// let commit = watch.next_timeout(std::time::Duration::from_secs(10))?.expect("Ada was put");
    /// for change in commit.changes()? {
    ///     let change = change?;
    ///     assert_eq!((change.key(), change.value()?.unwrap().to_vec()), (&b"admin/ada"[..], b"Ada".to_vec()));
    /// }
    /// assert!(watch.next().is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::Trimmed`] if `from` is below the log's first entry; [`crate::Error::InvalidInput`] if the handle is of another store or
    /// opening, or the prefix is longer than a key.
    pub fn watch(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>, from: Glsn) -> Result<Commits> {
        let span = Span::prefix(self.store.reader.keyspaces.id_of(keyspace)?, prefix.as_ref())?;
        Commits::new(&self.store, from, Some(Arc::new(span)))
    }

    /// The log: streams, scans, the change feed.
    pub fn log(&self) -> Log<'_> {
        Log::new(&self.store)
    }

    /// The retained versions of a key, newest first.
    ///
    /// # Errors
    /// The key is too long, the disk, or the budget.
    pub fn history(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<History> {
        History::new(&self.store, keyspace, key.as_ref())
    }

    /// The keys beginning with `prefix` whose values differ between two moments, in key order.
    ///
    /// # Errors
    /// [`crate::Error::Future`], [`crate::Error::Trimmed`], the disk, or the budget.
    pub fn diff(&self, keyspace: &Keyspace, a: Glsn, b: Glsn, prefix: impl AsRef<[u8]>) -> Result<Diff> {
        Diff::new(&self.store, keyspace, a, b, prefix.as_ref())
    }

    /// Who uses how much, and how far the store has come.
    pub fn stats(&self) -> Stats {
        collect_stats::stats(&self.store)
    }

    /// What the user should know of how the store was found: a clock that was set back, a torn tail, a warm image that is ignored. One line each.
    pub fn warnings(&self) -> Vec<String> {
        collect_stats::warnings(&self.store)
    }

    /// Gives the store another memory budget while it is in use. What a smaller one gives up goes back to the system at once; where
    /// memtables are in the way they are flushed. At least [`crate::MIN_MEMORY_BYTES`], at most the machine's memory.
    ///
    /// # Errors
    /// [`crate::Error::InvalidInput`] (below the minimum, or more than there is); [`crate::Error::OutOfBudget`] where transactions,
    /// values and pinned pages hold more than the new budget: who holds how much is in it. The budget is then as it was.
    pub fn set_memory(&self, bytes: u64) -> Result<()> {
        memory::set(&self.store, bytes)
    }

    /// Reads every byte of the store and checks it. Problems are listed, not fatal.
    ///
    /// # Errors
    /// The disk, or the budget.
    pub fn verify(&self, progress: &mut dyn FnMut(VerifyProgress)) -> Result<VerifyReport> {
        verify::verify_open(&self.store, progress)
    }

    /// Copies the store into a new folder as it is at one moment, while it is in use. Immutable files are hard-linked where possible. When it
    /// returns, the copy is durable.
    ///
    /// # Errors
    /// Something stands at `dest`, or it lies inside the store; the disk, or the budget. A backup that failed leaves nothing that opens as a
    /// store. [`crate::Error::Trimmed`] where this store is open to read only and another process has merged or trimmed away what it was opened with:
    /// open it again.
    pub fn backup(&self, dest: impl AsRef<Path>) -> Result<BackupReport> {
        backup::backup(&self.store, dest.as_ref(), Sharing::Link)
    }

    /// As [`Db::backup`], but every file is copied: the copy shares nothing with the store, so what damages the bytes of the one leaves the
    /// other as it is.
    ///
    /// # Errors
    /// As for [`Db::backup`].
    pub fn backup_copy(&self, dest: impl AsRef<Path>) -> Result<BackupReport> {
        backup::backup(&self.store, dest.as_ref(), Sharing::Copy)
    }

    /// Writes what is in memory into runs.
    ///
    /// # Errors
    /// The disk, or the budget.
    pub fn flush(&self) -> Result<()> {
        self.store.flush()
    }

    /// Drops what is in memory only to make reads faster: pages and rows. Every answer stays the same; the next reads load what they need.
    /// For measuring and for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn drop_caches(&self) {
        work_steps::drop_caches(&self.store);
    }

    /// As [`Db::drop_caches`], but rows stay: for simulations.
    #[doc(hidden)]
    #[cfg(any(test, feature = "testing"))]
    pub fn drop_pages(&self) {
        self.store.maintenance.pool.clear();
    }

    /// Flushes, and merges all runs into as few as there can be.
    ///
    /// # Errors
    /// The disk, or the budget.
    pub fn compact(&self) -> Result<()> {
        steps::compact(&self.store)
    }

    /// Does one bounded piece of background work; false if there was none. For stores opened without background threads.
    ///
    /// # Errors
    /// The disk, or the budget.
    #[cfg(any(test, feature = "testing"))]
    pub fn step(&self) -> Result<bool> {
        work_steps::step(&self.store)
    }

    /// As [`Db::step`], but the kinds of work are asked for one in another order: from number `first` on. For simulations.
    #[doc(hidden)]
    #[cfg(any(test, feature = "testing"))]
    pub fn step_from(&self, first: usize) -> Result<bool> {
        work_steps::step_from(&self.store, first)
    }

    /// The store's id, made at its creation.
    pub fn id(&self) -> u128 {
        self.store.reader.log.id()
    }
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}
