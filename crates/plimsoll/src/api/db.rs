//! The public handle of a store. Each method forwards to the file that does the work.

#[cfg(test)]
mod refusals;

use std::fmt;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::mem::MemDisk;
use plimsoll_log::glsn::Glsn;

use crate::api::admin::backup::{self, BackupReport};
use crate::api::admin::backup_options::BackupOptions;
use crate::api::admin::dump::{self, DumpOptions, DumpReport};
use crate::api::admin::files::{self, FileScope, LogPosition, StoreFile};
use crate::api::admin::members::MemberInfo;
use crate::api::admin::recover::{self, RecoverReport};
use crate::api::admin::restore::{self, RestoreReport};
use crate::api::admin::verify::{self, VerifyProgress, VerifyReport};
use crate::api::change_feed::Commits;
use crate::api::diff::Diff;
use crate::api::history::History;
use crate::api::log::Log;
use crate::api::sizes::{self, KeyspaceSize};
use crate::api::snapshot::{Moment, Snapshot};
use crate::engine::Engine;
use crate::engine::collect_stats;
use crate::engine::keyspace_commits;
use crate::engine::memory;
use crate::engine::open;
use crate::engine::shared::requests;
#[cfg(any(test, feature = "testing"))]
use crate::engine::work_steps;
use crate::read::resident::Resident;
use crate::read::span::Span;
use crate::txn::bulk_load::BulkLoad;
use crate::txn::range_deletes::Reads;
use crate::txn::retry;
use crate::txn::transaction::Transaction;
use crate::types::compression::Compression;
use crate::types::error::{Error, Result};
use crate::types::index_key::KeyBuffer;
use crate::types::invalid_input::InvalidInput;
use crate::types::key_range::KeyRange;
use crate::types::keyspaces::{DropReport, Keyspace, KeyspaceInfo};
use crate::types::options::Options;
use crate::types::retention::Retention;
use crate::types::stats::Stats;
use crate::types::value::Value;

/// An open store. Clones share it; it is closed when [`Db::close`] is called or the last clone is
/// dropped.
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
    pub(crate) store: Arc<Engine>,
}

impl Db {
    /// Opens the store in a folder, or creates one there.
    ///
    /// # Errors
    /// [`crate::Error::Locked`], [`crate::Error::NotAStore`], [`crate::Error::Format`],
    /// [`crate::Error::Corrupt`], [`crate::Error::Forked`], [`crate::Error::InvalidInput`] (the
    /// budget is too small), or disk errors.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        Ok(Self { store: open::open(path.as_ref(), options)? })
    }

    /// Creates an empty store in memory: the ordinary store, with log and runs, on in-memory files.
    /// It is gone when its last handle and iterator are dropped. For tests, and for data that need
    /// not outlive the process.
    ///
    /// The memory of the files is not part of the budget of `options`, which covers caches and
    /// buffers as with files on disk; so the process uses the budget plus all bytes that the store
    /// holds. All files share one lock while data is copied between them and the caches, so threads
    /// wait for each other. No warm image is written.
    ///
    /// # Errors
    /// [`crate::Error::InvalidInput`] if the budget is too small, or if the options request a
    /// read-only or an existing store.
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
            return Err(InvalidInput::InMemoryMustCreate.into());
        }
        Self::open("/store", Options { disk: Arc::new(MemDisk::new()), warm: false, ..options })
    }

    /// Makes a sound store at `dest` from everything readable in the store at `path`, which is left
    /// unchanged, and reports what is lost. `dest` must not exist, or be an empty folder. Entries
    /// keep their GLSNs and times; sound files are hard-linked where possible. `progress` receives
    /// the bytes read of the log, and their total.
    ///
    /// # Errors
    /// [`crate::Error::Locked`]; [`crate::Error::InvalidInput`] if `dest` is in use or inside the
    /// store; [`crate::Error::Corrupt`] if nothing can be read; disk errors, the budget. Then there
    /// is no store at `dest`.
    pub fn recover(
        path: impl AsRef<Path>,
        dest: impl AsRef<Path>,
        options: Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<RecoverReport> {
        recover::recover(path.as_ref(), dest.as_ref(), options, progress)
    }

    /// Reports what [`Db::recover`] would lose, and writes nothing.
    ///
    /// # Errors
    /// As for [`Db::recover`].
    pub fn recover_dry_run(path: impl AsRef<Path>, options: Options) -> Result<RecoverReport> {
        recover::dry_run(path.as_ref(), options)
    }

    /// Closes the store for all clones and releases the folder. Memtables are flushed to runs,
    /// unless they are so small that the next open replays them from the log within milliseconds.
    /// Not needed for safety.
    ///
    /// # Errors
    /// Disk errors. Acknowledged commits are safe in the log even then.
    pub fn close(self) -> Result<()> {
        self.store.close()
    }

    /// Returns the keyspace with this name, creating it (by a commit) if it does not exist.
    /// "default" always exists.
    ///
    /// # Errors
    /// The name is invalid, the keyspace does not exist and the store is read-only, or the commit
    /// fails.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace> {
        keyspace_commits::open(&self.store, name)
    }

    /// Returns the keyspace with this name, or the last one that had it if it was dropped; creates
    /// none. `None` if there never was one. A dropped keyspace is empty now; [`Db::history`],
    /// [`Db::diff`] and snapshots of earlier moments read its past.
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
    /// applies to values that are put and pages that are written from then on; those that exist stay
    /// as they are.
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
    /// [`KeyspaceSize::exact`] tells whether all were counted.
    ///
    /// # Errors
    /// The handle belongs to another store or opening, disk errors, the budget, or corruption.
    pub fn keyspace_size(&self, keyspace: &Keyspace, keys_max: u64) -> Result<KeyspaceSize> {
        sizes::size(&self.store, keyspace, keys_max)
    }

    /// The approximate current number of keys in a range of a keyspace (`..` for all keys). It
    /// costs as much as some dozens of gets, independent of the number of keys.
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
    /// It serves for choosing between two plans, for a progress bar, or for monitoring. Memtables,
    /// and tables that are partly in the range, are sampled. Up to 32 keys of each memtable and run
    /// are looked up in the older ones to account for overwritten and deleted keys; with many keys
    /// the error is about an eighth. [`Snapshot::len`] counts exactly.
    ///
    /// # Errors
    /// A handle of another store or of a dropped keyspace, a key that is too long, disk errors, the
    /// budget, or corruption.
    pub fn approximate_len(&self, keyspace: &Keyspace, range: impl KeyRange) -> Result<u64> {
        sizes::approximate_len(&self.store, keyspace, &range)
    }

    /// Begins a transaction that reads at the newest moment.
    pub fn begin(&self) -> Transaction {
        Transaction::new(&self.store.committer)
    }

    /// Begins a transaction that reads at the last commit that was ordered, here or by another
    /// process, even if it is not durable yet and so not visible to [`Db::begin`]. For writers that
    /// take turns under a lock of their own: the next one need not wait for the sync of the one
    /// before, which has only called [`Transaction::commit_submit`]. The values that such a
    /// transaction reads may be passed on once its own commit, or the wait for its ticket, has
    /// returned; a power cut before that may undo them.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
    /// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
    /// let jobs = db.keyspace("jobs")?;
    /// let turn = std::sync::Mutex::new(());
    /// let append = |job: &str| {
    ///     let ticket = {
    ///         let _turn = turn.lock().unwrap();
    ///         let mut tx = db.begin_ordered();
    ///         let number = tx.last(&jobs)?.map_or(0, |(key, _)| key[0] + 1);
    ///         tx.put(&jobs, [number], job)?;
    ///         tx.commit_submit()?
    ///     };
    ///     // Several of them wait for one sync.
    ///     ticket.wait()
    /// };
    /// append("wash")?;
    /// append("dry")?;
    /// assert_eq!(db.get(&jobs, [1])?.unwrap(), b"dry");
    /// # Ok(())
    /// # }
    /// ```
    pub fn begin_ordered(&self) -> Transaction {
        Transaction::ordered(&self.store.committer)
    }

    /// Whether all commits of other processes, and of this one, are already applied when the next
    /// read begins. (In a shared store, a process that has only written for some time defers
    /// applying its own commits.) If not, the read first applies them from the log, and may wait
    /// for the disk. Costs a few loads from memory; always true in a store that this process has
    /// alone.
    pub fn is_caught_up(&self) -> bool {
        self.store.committer.visible_if_fresh().is_some()
    }

    /// A snapshot of the store as it is now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::newest(&self.store)
    }

    /// A snapshot of the store at an earlier moment.
    ///
    /// A keyspace whose retention does not cover the moment can be read until a version that is
    /// visible at the moment is dropped. A flush or merge that began before the snapshot was opened
    /// may still drop some; from then on reads of that keyspace fail with
    /// [`crate::Error::Trimmed`], even if they succeeded before.
    ///
    /// # Errors
    /// [`crate::Error::Future`]; [`crate::Error::TimeTrimmed`] if the log is trimmed there,
    /// [`crate::InvalidInput::TimeBeforeFirst`] if a time precedes the first commit; disk errors.
    /// Whether a keyspace still
    /// retains that moment is checked when it is read.
    pub fn snapshot_at(&self, moment: Moment) -> Result<Snapshot> {
        Snapshot::of(&self.store, moment)
    }

    /// GLSN (the store's log sequence number) of the newest readable moment; [`Glsn::NONE`] for an
    /// empty store.
    pub fn newest(&self) -> Glsn {
        self.store.visible()
    }

    /// Runs `change` in a transaction and commits it. On a conflict with another transaction, runs
    /// it again in a new transaction after a random pause. Returns the result of the last run. If
    /// `change` returns an error, nothing is written and the error is returned.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
    /// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
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
    /// The error type is any type that converts from [`Error`]: the application's own, or `Box<dyn
    /// std::error::Error>`. If the compiler cannot infer it, annotate the closure's return type.
    ///
    /// # Errors
    /// Errors of `change` and of [`Transaction::commit`]; [`crate::Error::Conflict`] only after 32
    /// attempts in a row.
    pub fn transact<T, E: From<Error>>(
        &self,
        change: impl FnMut(&mut Transaction) -> Result<T, E>,
    ) -> Result<T, E> {
        retry::transact(&self.store.committer, change)
    }

    /// The current value of a key; `None` if it has none.
    ///
    /// # Errors
    /// As for [`Snapshot::get`].
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let (reader, key) = (&self.store.reader, self.key(keyspace, key.as_ref())?);
        reader.at_newest(|| self.store.newest(), |at| reader.get(key.get(), at))
    }

    /// Calls `look` with the current value of a key, and returns its result; `None` if the key has
    /// no value. See [`Snapshot::get_with`].
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
    /// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
    /// let users = db.keyspace("users")?;
    /// db.put(&users, "ada", "Ada Lovelace")?;
    /// assert_eq!(db.get_with(&users, "ada", |name| name.len())?, Some(12));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Snapshot::get`].
    pub fn get_with<T>(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        let (reader, key, mut look) =
            (&self.store.reader, self.key(keyspace, key.as_ref())?, Some(look));
        let read =
            |at| reader.get_with(key.get(), at, |value: &[u8]| look.take().map(|look| look(value)));
        Ok(reader.at_newest(|| self.store.newest(), read)?.flatten())
    }

    /// As [`Db::get_with`], but answers only from memory: it reads no file, and does not wait for
    /// the read of another thread. It is meant for callers that hold a contended lock. In a shared
    /// store the answer is also [`Resident::NotResident`] while [`Db::is_caught_up`] is false.
    ///
    /// # Errors
    /// As for [`Snapshot::get`].
    pub fn get_resident<T>(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<Resident<T>> {
        let key = self.key(keyspace, key.as_ref())?;
        self.store.committer.note_read();
        if self.store.committer.visible_if_fresh().is_none() {
            self.store.reader.owner.check()?;
            return Ok(Resident::NotResident);
        }
        let (reader, mut look) = (&self.store.reader, Some(look));
        let read = |at| {
            reader.get_resident(key.get(), at, |value: &[u8]| look.take().map(|look| look(value)))
        };
        let looked = match reader.at_newest(|| Ok(self.store.committer.sequencer.visible()), read) {
            // Dropped since, so newer commits must be applied.
            Err(Error::Trimmed { .. }) if !self.store.committer.peers.is_alone() => {
                return Ok(Resident::NotResident);
            }
            looked => looked?,
        };
        Ok(match looked {
            Resident::Value(looked) => looked.map_or(Resident::Absent, Resident::Value),
            Resident::Absent => Resident::Absent,
            Resident::NotResident => Resident::NotResident,
        })
    }

    fn key(&self, keyspace: &Keyspace, key: &[u8]) -> Result<KeyBuffer> {
        KeyBuffer::new(self.store.reader.keyspaces.id_of(keyspace)?, key)
    }

    /// Writes the value of a key in a commit of its own; returns the commit's GLSN. A single
    /// transaction writes many keys faster, and atomically.
    ///
    /// # Errors
    /// As for [`Transaction::put`] and [`Transaction::commit`].
    pub fn put(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Glsn> {
        let mut tx = self.begin();
        tx.put(keyspace, key, value)?;
        tx.commit()
    }

    /// Deletes a key in a commit of its own; returns the commit's GLSN.
    ///
    /// # Errors
    /// As for [`Transaction::delete`] and [`Transaction::commit`].
    pub fn delete(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Glsn> {
        let mut tx = self.begin();
        tx.delete(keyspace, key)?;
        tx.commit()
    }

    /// Deletes all keys of a range in a commit of its own, whatever is in the range when the commit
    /// is ordered; returns its GLSN. It takes as long as one deletion, and the space comes back in
    /// the background.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
    /// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
    /// let events = db.keyspace("events")?;
    /// db.transact(|tx| (0..1000u32).try_for_each(|day| tx.put(&events, day.to_be_bytes(), "")))?;
    /// db.delete_range(&events, ..900u32.to_be_bytes())?;
    /// assert_eq!(db.snapshot().len(&events)?, 100);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Transaction::delete_range`] and [`Transaction::commit`].
    pub fn delete_range(&self, keyspace: &Keyspace, range: impl KeyRange) -> Result<Glsn> {
        let id = self.store.reader.keyspaces.id_of(keyspace)?;
        self.delete_span(keyspace, &Span::new(id, &range))
    }

    /// Deletes all keys that begin with `prefix`. See [`Db::delete_range`].
    ///
    /// # Errors
    /// As for [`Transaction::delete_prefix`] and [`Transaction::commit`].
    pub fn delete_prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<Glsn> {
        let id = self.store.reader.keyspaces.id_of(keyspace)?;
        self.delete_span(keyspace, &Span::prefix(id, prefix.as_ref()))
    }

    fn delete_span(&self, keyspace: &Keyspace, span: &Span) -> Result<Glsn> {
        let delete = |tx: &mut Transaction| tx.delete_span(keyspace, span, Reads::Nothing);
        retry::commit(&self.store.committer, delete).map(|(_, glsn)| glsn)
    }

    /// As [`Db::put`], but returns the previous value; `None` if the key had none.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let db = plimsoll::Db::in_memory(plimsoll::Options::new().memory_bytes(16 << 20))?;
    /// let notes = db.keyspace("notes")?;
    /// assert!(db.insert(&notes, "a", "one")?.is_none());
    /// assert_eq!(db.insert(&notes, "a", "two")?.unwrap(), b"one");
    /// assert_eq!(db.take(&notes, "a")?.unwrap(), b"two");
    /// assert!(db.take(&notes, "a")?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Transaction::insert`] and [`Transaction::commit`]; [`crate::Error::Conflict`] only
    /// after 32 attempts in a row.
    pub fn insert(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Option<Value>> {
        self.transact(|tx| tx.insert(keyspace, &key, &value))
    }

    /// As [`Db::delete`], but returns the previous value; without one nothing is committed.
    ///
    /// # Errors
    /// As for [`Db::insert`].
    pub fn take(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.transact(|tx| tx.take(keyspace, &key))
    }

    /// Loads rows in one commit, in any order and however many; returns the commit's GLSN. If
    /// several rows have the same key, the last one wins; it also replaces the value in the store.
    /// A million rows take about a tenth of the time that transactions of a thousand take.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
    /// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
    /// let stars = db.keyspace("stars")?;
    /// db.bulk_load(&stars, [("vega", "bright"), ("proxima", "faint")])?;
    /// assert_eq!(db.get(&stars, "proxima")?.unwrap(), b"faint");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`BulkLoad::put`] and [`BulkLoad::commit`]; nothing is loaded then.
    pub fn bulk_load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        rows: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Glsn> {
        let mut load = self.begin_bulk_load(keyspace)?;
        rows.into_iter().try_for_each(|(key, value)| load.put(key, value))?;
        load.commit()
    }

    /// Begins a bulk load into a keyspace: rows are put one by one and committed together. It reads
    /// nothing and never conflicts; other transactions may commit meanwhile. Until the load ends,
    /// rows in memory use about half of the budget, at most some 128 MiB, which [`Db::set_memory`]
    /// cannot reclaim meanwhile. The other rows are in files, which one background thread writes
    /// and several threads merge.
    ///
    /// # Errors
    /// The handle belongs to another store or opening, the keyspace was dropped, or the store is
    /// read-only.
    pub fn begin_bulk_load(&self, keyspace: &Keyspace) -> Result<BulkLoad> {
        BulkLoad::new(&self.store.committer, keyspace)
    }

    /// Removes the first key by a commit of its own, and returns it and its value; `None` if there
    /// is no key. Consumers that pop from the same keyspace at once each get another key.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
    /// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
    /// let jobs = db.keyspace("jobs")?;
    /// db.put(&jobs, "1", "wash")?;
    /// db.put(&jobs, "2", "dry")?;
    /// let (key, job) = db.pop_first(&jobs)?.expect("there are two");
    /// assert_eq!((&key[..], &job[..]), (&b"1"[..], &b"wash"[..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Transaction::pop_first`] and [`Transaction::commit`]; [`crate::Error::Conflict`]
    /// only after 32 attempts in a row.
    pub fn pop_first(&self, keyspace: &Keyspace) -> Result<Option<(Vec<u8>, Value)>> {
        self.transact(|tx| tx.pop_first(keyspace))
    }

    /// As [`Db::pop_first`], for the last key.
    ///
    /// # Errors
    /// As for [`Db::pop_first`].
    pub fn pop_last(&self, keyspace: &Keyspace) -> Result<Option<(Vec<u8>, Value)>> {
        self.transact(|tx| tx.pop_last(keyspace))
    }

    /// Watches the keys of a keyspace that begin with `prefix`. Returns the commits from `from` on
    /// that changed any of them, in order, each once, reduced to these changes ([`Commits`]).
    /// Commits made while no watch was open are delivered as long as the log retains them; a cursor
    /// ([`Log::cursor`]) makes the log retain them. When the keyspace is dropped, the deletion of
    /// its keys is the last commit delivered. Only commits on main are returned:
    /// [`Branch::watch`](crate::Branch::watch) returns those on another branch.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
    /// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
    /// let users = db.keyspace("users")?;
    /// let mut watch = db.watch(&users, "admin/", db.newest().next())?;
    /// db.put(&users, "guest/eve", "Eve")?;
    /// db.put(&users, "admin/ada", "Ada")?;
    /// let commit = watch.next_timeout(std::time::Duration::from_secs(10))?.expect("Ada was put");
    /// for change in commit.changes()? {
    ///     let change = change?;
    ///     assert_eq!(change.key(), b"admin/ada");
    ///     assert_eq!(change.value()?.unwrap().to_vec(), b"Ada");
    /// }
    /// assert!(watch.next().is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::Trimmed`] if `from` precedes the log's first entry;
    /// [`crate::Error::InvalidInput`] if the handle belongs to another store or opening.
    pub fn watch(
        &self,
        keyspace: &Keyspace,
        prefix: impl AsRef<[u8]>,
        from: Glsn,
    ) -> Result<Commits> {
        let span = Span::prefix(self.store.reader.keyspaces.id_of(keyspace)?, prefix.as_ref());
        Commits::new(&self.store, from, Some(span))
    }

    /// The log: streams, scans, the change feed.
    pub fn log(&self) -> Log<'_> {
        Log::new(&self.store)
    }

    /// The retained versions of a key, newest first, in all keyspaces that have or had the name of
    /// this one: after a drop, a new keyspace may have got the same name. Dropping a keyspace
    /// counts as a deletion of each of its keys. To read a version from before a drop, get the
    /// keyspace from [`Snapshot::keyspace`] at that moment.
    ///
    /// # Errors
    /// The key is too long, disk errors, or the budget.
    pub fn history(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<History> {
        History::new(&self.store, None, keyspace, key.as_ref())
    }

    /// The keys beginning with `prefix` whose values differ between two moments, in key order. At
    /// each moment the keyspace is the one that had the name of this one then, even if it was
    /// dropped since and another was created: the keyspaces that [`Snapshot::keyspace`] returns at
    /// the two moments are compared. Both moments must be retained, or open as snapshots: hold the
    /// snapshot of [`Db::newest`] if more may be committed before this call.
    ///
    /// # Errors
    /// As for [`Db::snapshot_at`]: [`crate::Error::Future`], [`crate::Error::Trimmed`], disk
    /// errors, or the budget.
    pub fn diff(
        &self,
        keyspace: &Keyspace,
        a: impl Into<Moment>,
        b: impl Into<Moment>,
        prefix: impl AsRef<[u8]>,
    ) -> Result<Diff> {
        // Keeps the moments open until the diff has opened both itself.
        let mut open = Vec::new();
        let mut at = |moment| match moment {
            Moment::Glsn(glsn) => Ok(glsn),
            moment => Snapshot::of(&self.store, moment).map(|snapshot| {
                let at = snapshot.at();
                open.push(snapshot);
                at
            }),
        };
        let (a, b) = (at(a.into())?, at(b.into())?);
        Diff::new(&self.store, keyspace, a, b, prefix.as_ref())
    }

    /// Statistics: memory use, event counts, and the store's position.
    pub fn stats(&self) -> Stats {
        collect_stats::stats(&self.store)
    }

    /// Findings of the last open, one line each: commits whose time is far ahead of the clock,
    /// bytes behind the end of a segment's contents, an ignored warm image; and unreadable values
    /// that pin the log.
    pub fn warnings(&self) -> Vec<String> {
        collect_stats::warnings(&self.store)
    }

    /// The processes that have the store open with [`crate::Options::shared`], the oldest first;
    /// empty if this process has it alone.
    ///
    /// # Errors
    /// The disk.
    pub fn members(&self) -> Result<Vec<MemberInfo>> {
        self.store.reader.owner.check()?;
        Ok(self.store.membership.list()?.into_iter().map(MemberInfo::from).collect())
    }

    /// Changes the memory budget while the store is in use. Memory released by a smaller budget
    /// returns to the system at once; memtables are flushed if necessary. At least
    /// [`crate::MIN_MEMORY_BYTES`], at most the machine's memory.
    ///
    /// # Errors
    /// [`crate::Error::InvalidInput`] if it is below the minimum or above the memory of the
    /// machine, or if this process has a share of a total of several processes.
    /// [`crate::Error::OutOfBudget`]: transactions, values and pinned pages hold more than the new
    /// budget; the error lists the holders. The budget is then unchanged.
    pub fn set_memory(&self, bytes: u64) -> Result<()> {
        memory::set(&self.store, bytes)
    }

    /// Reads and checks every byte of the store. Problems are listed in the report and do not stop
    /// the run.
    ///
    /// # Errors
    /// Disk errors, or the budget.
    pub fn verify(&self, progress: &mut dyn FnMut(VerifyProgress)) -> Result<VerifyReport> {
        verify::verify_open(&self.store, progress)
    }

    /// Copies the store, as it is at one moment, into a new folder while it is in use. Immutable
    /// files are hard-linked where possible. The copy is durable when this returns.
    ///
    /// # Errors
    /// `dest` exists already or lies inside the store; disk errors, or the budget. A failed backup
    /// leaves nothing that opens as a store. [`crate::Error::Trimmed`] if this store is open
    /// read-only and another process has since merged or trimmed away files that it was opened
    /// with: open it again.
    pub fn backup(&self, dest: impl AsRef<Path>) -> Result<BackupReport> {
        self.backup_with(dest, BackupOptions::new())
    }

    /// As [`Db::backup`], but copies every file: the copy shares no bytes with the store, so damage
    /// to one does not affect the other.
    ///
    /// # Errors
    /// As for [`Db::backup`].
    pub fn backup_copy(&self, dest: impl AsRef<Path>) -> Result<BackupReport> {
        self.backup_with(dest, BackupOptions::new().copy(true))
    }

    /// As [`Db::backup`], with options.
    ///
    /// # Errors
    /// As for [`Db::backup`]; or it was cancelled.
    pub fn backup_with(
        &self,
        dest: impl AsRef<Path>,
        options: BackupOptions,
    ) -> Result<BackupReport> {
        backup::backup(&self.store, dest.as_ref(), &options)
    }

    /// Calls `each` with the files of a consistent copy of the store, which remain until this
    /// returns, and returns the position at which the copy's log ends; everything up to it is
    /// durable. Blob files come before the segments that name them, and the active segment after
    /// all others. Readers and writers are not blocked; nothing is trimmed meanwhile. Trims,
    /// backups, dumps, verifications and new cursors wait for it, so `each` must not begin one. The
    /// crate `plimsoll-archive` uses it to archive a store.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # use plimsoll::*;
    /// # use std::io::Read;
    /// # let options = Options::new().memory_bytes(16 << 20);
    /// # let db = Db::open(dir.path().join("store"), options.clone())?;
    /// let glsn = db.put(&db.keyspace("notes")?, "a", "one")?;
    /// let copy = dir.path().join("copy");
    /// # std::fs::create_dir_all(copy.join("log"))?;
    /// # std::fs::create_dir_all(copy.join("index"))?;
    /// let end = db.files(FileScope::Whole, &mut |file| {
    ///     let mut bytes = Vec::new();
    ///     file.read_from(0)?.read_to_end(&mut bytes)?;
    ///     Ok(std::fs::write(copy.join(file.name()), bytes)?)
    /// })?;
    /// assert_eq!(Db::complete_files(&copy, options.clone(), Moment::Newest)?, end);
    /// assert_eq!(Db::open(&copy, options)?.newest(), glsn);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `each`. [`crate::Error::Forked`] if this log does not have the position of
    /// [`FileScope::LogFrom`], and [`crate::Error::Trimmed`] if it no longer has everything after
    /// it, or as for [`Db::backup`]. Disk errors, the budget, or corruption.
    pub fn files(
        &self,
        scope: FileScope,
        each: &mut dyn FnMut(&StoreFile<'_>) -> Result<()>,
    ) -> Result<LogPosition> {
        files::for_each(&self.store, scope, each)
    }

    /// Turns a folder of files that [`Db::files`] returned into a store that ends at a moment: cuts
    /// the log after the moment, and brings the index up to it. The folder must have all segments
    /// up to the one that contains the moment, and none after it. Without a manifest of the index,
    /// the log must begin with GLSN 1. No file may have a second name. Returns the position at
    /// which the store ends: that of the last record before the moment. The store is durable when
    /// this returns.
    ///
    /// # Errors
    /// [`crate::Error::Forked`] or [`crate::Error::Corrupt`] if the files do not belong together;
    /// disk errors, or the budget.
    pub fn complete_files(
        path: impl AsRef<Path>,
        options: Options,
        until: Moment,
    ) -> Result<LogPosition> {
        files::complete(path.as_ref(), options, until)
    }

    /// Writes the store as a stream that any later version reads back on any machine
    /// ([`Db::restore`]): the newest value of each key, or, with [`DumpOptions::history`], every
    /// commit that is retained. `docs/reference/dump.md` specifies the stream. The store stays in
    /// use meanwhile; with history, the log is not trimmed until the dump ends.
    ///
    /// # Errors
    /// The keyspace of the options does not exist; `to` fails; it was cancelled; disk errors, the
    /// budget, or corruption. With history, [`crate::Error::Dropped`] if a recovery has lost a
    /// value that a retained commit wrote.
    pub fn dump(&self, options: DumpOptions, mut to: impl Write) -> Result<DumpReport> {
        dump::dump(&self.store, &options, &mut to)
    }

    /// Makes a store at `dest`, which must not exist or be an empty folder, from a dump
    /// ([`Db::dump`]). A dump with history keeps every GLSN and time. The store appears at `dest`
    /// once the whole dump has been read and verified. An interrupted restore leaves a folder
    /// `dest.new-restore`; the same call with the same dump continues it.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`]: the dump is damaged or cut short. [`crate::Error::Format`]: it is
    /// no dump, or one of a newer version. [`crate::Error::InvalidInput`]: `dest` is in use.
    /// [`crate::Error::Locked`]: it is being restored already. `from` fails; disk errors, or the
    /// budget.
    pub fn restore(
        dest: impl AsRef<Path>,
        options: Options,
        mut from: impl Read,
    ) -> Result<RestoreReport> {
        restore::restore(dest.as_ref(), options, &mut from)
    }

    /// Makes a store at `dest`, which must not exist or be an empty folder, from a backup
    /// ([`Db::backup`]). Every file is copied, and checked on the way; the backup is not changed.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # use plimsoll::*;
    /// # let options = Options::new().memory_bytes(16 << 20);
    /// # let (backup, store) = (dir.path().join("backup"), dir.path().join("store"));
    /// # let db = Db::open(dir.path().join("first"), options.clone())?;
    /// # let glsn = db.put(&db.keyspace("notes")?, "a", "one")?;
    /// # db.backup(&backup)?;
    /// let report = Db::restore_backup(&backup, &store, options.clone())?;
    /// assert_eq!(Db::open(&store, options)?.newest(), report.glsn);
    /// # assert_eq!(report.glsn, glsn);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Db::open`] and [`Db::backup`].
    pub fn restore_backup(
        backup: impl AsRef<Path>,
        dest: impl AsRef<Path>,
        options: Options,
    ) -> Result<BackupReport> {
        let options = options.read_only(true).shared(false).create(false).warm(false);
        let backup = Self::open(backup, options)?;
        let report = backup.backup_copy(dest)?;
        backup.close()?;
        Ok(report)
    }

    /// Makes all earlier commits durable by one sync of the log, including those with
    /// [`Durability::Buffered`](crate::Durability::Buffered); returns the GLSN up to which
    /// everything is durable. In a shared store, this includes the commits of the other processes.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("store");
    /// # use plimsoll::*;
    /// let options = Options::new().memory_bytes(16 << 20).durability(Durability::Buffered);
    /// let db = Db::open(&path, options)?;
    /// let notes = db.create_keyspace("notes", Retention::Latest)?;
    /// let written = db.put(&notes, "a", "1")?;
    /// assert!(db.sync()? >= written);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::Poisoned`] if the disk failed; commits that were not durable yet may be
    /// lost. [`crate::Error::Stalled`] if another process holds up the sync,
    /// [`crate::Error::Behind`] if the log cannot be read.
    pub fn sync(&self) -> Result<Glsn> {
        self.store.sync()
    }

    /// Flushes all memtables to runs. Not needed for safety: the log holds their contents
    /// ([`Db::sync`]).
    ///
    /// # Errors
    /// Disk errors, or the budget.
    pub fn flush(&self) -> Result<()> {
        self.store.flush()
    }

    /// Drops all caches (pages and rows). No result changes; the next reads load the pages that
    /// they need. For measurements and tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn drop_caches(&self) {
        work_steps::drop_caches(&self.store);
    }

    /// As [`Db::drop_caches`], but keeps rows: for simulations.
    #[doc(hidden)]
    #[cfg(any(test, feature = "testing"))]
    pub fn drop_pages(&self) {
        self.store.maintenance.pool.clear();
    }

    /// Refuses `count` memory reservations after `reservations` others ([`u64::MAX`]: none). For
    /// simulations.
    #[doc(hidden)]
    #[cfg(any(test, feature = "testing"))]
    pub fn refuse_after(&self, reservations: u64, count: u64) {
        self.store.reader.budget.fail_some_after(reservations, count);
    }

    /// Seals a segment of the log that is no longer active, if one waits to be sealed. For
    /// simulations.
    #[doc(hidden)]
    #[cfg(any(test, feature = "testing"))]
    pub fn seal_behind(&self) {
        self.store.reader.log.seal_behind();
    }

    /// Flushes, then merges all runs into as few as possible, and frees the part of the log that no
    /// keyspace keeps, up to the newest commit if that frees a MiB or more. Rows of a bulk load or
    /// of a spilled transaction whose commit is still in the log are merged only with at least as
    /// many other bytes, because merging them does not free their files.
    ///
    /// # Errors
    /// Disk errors, or the budget.
    pub fn compact(&self) -> Result<()> {
        requests::compact(&self.store)
    }

    /// Does one bounded piece of background work; returns false if there was none. For stores
    /// opened without background threads.
    ///
    /// # Errors
    /// Disk errors, or the budget.
    #[cfg(any(test, feature = "testing"))]
    pub fn step(&self) -> Result<bool> {
        work_steps::step(&self.store)
    }

    /// As [`Db::step`], but tries the kinds of work in another order, beginning with number
    /// `first`. For simulations.
    #[doc(hidden)]
    #[cfg(any(test, feature = "testing"))]
    pub fn step_from(&self, first: usize) -> Result<bool> {
        work_steps::step_from(&self.store, first)
    }

    /// The store's id, which was assigned at its creation.
    pub fn id(&self) -> u128 {
        self.store.reader.log.id()
    }
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}
