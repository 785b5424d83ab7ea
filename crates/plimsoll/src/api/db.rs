//! The public handle of a store. Each method forwards to the file that does the work.
//!
//! The methods are grouped by concern: this file has opening and closing, transactions, reads and
//! the state of the store; [`changes`] has single changes of keys, [`keyspaces`] the keyspaces,
//! [`upkeep`] checks and copies of the whole store.

mod changes;
mod keyspaces;
#[cfg(test)]
mod refusals;
mod upkeep;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::mem::MemDisk;
use plimsoll_log::glsn::Glsn;

use crate::api::admin::members::MemberInfo;
use crate::api::admin::order_place::OrderPlace;
use crate::api::change_feed::Commits;
use crate::api::diff::Diff;
use crate::api::history::History;
use crate::api::log::Log;
use crate::api::snapshot::{Moment, Snapshot};
use crate::engine::Engine;
use crate::engine::collect_stats;
use crate::engine::memory;
use crate::engine::open;
use crate::engine::shared::requests;
#[cfg(any(test, feature = "testing"))]
use crate::engine::work_steps;
use crate::read::resident::Resident;
use crate::read::span::Span;
use crate::txn::retry;
use crate::txn::transaction::Transaction;
use crate::types::error::{Error, Result};
use crate::types::index_key::KeyBuffer;
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::Keyspace;
use crate::types::options::Options;
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

    /// Closes the store for all clones and releases the folder. Memtables are flushed to runs,
    /// unless they are so small that the next open replays them from the log within milliseconds.
    /// Closing is not needed for safety.
    ///
    /// # Errors
    /// Disk errors. Acknowledged commits are safe in the log even then.
    pub fn close(self) -> Result<()> {
        self.store.close()
    }

    /// Begins a transaction that reads at the newest moment.
    pub fn begin(&self) -> Transaction {
        Transaction::new(&self.store.committer)
    }

    /// Begins a transaction that reads at the last commit that was ordered, here or by another
    /// process, even if it is not durable yet and so not visible to [`Db::begin`]. For writers that
    /// take turns under their own lock: the next writer need not wait for the sync of the previous
    /// one, which has only called [`Transaction::commit_submit`]. Pass on values that such a
    /// transaction has read only after its own commit, or the wait for its ticket, has returned: a
    /// power cut before that may undo these values.
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
    ///     // One sync serves all tickets that wait for it.
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

    /// Whether a read that begins now finds all commits of this and of other processes applied. (In
    /// a shared store, a process that has only written for some time defers applying its own
    /// commits.) If not, the read first applies them from the log, and may wait for the disk. This
    /// call costs a few loads from memory; it returns true in a store that this process has alone.
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
    /// [`crate::Error::Future`]; [`crate::Error::TimeTrimmed`] if the log no longer has the commits
    /// of that time, [`crate::InvalidInput::TimeBeforeFirst`] if a time precedes the first commit;
    /// disk errors. Whether a keyspace still retains the moment is checked when the keyspace is
    /// read.
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
            // Versions of the moment were dropped since it was chosen, so newer commits must be
            // applied first.
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

    /// The keys beginning with `prefix` whose values differ between two moments, in key order.
    /// Compares the keyspaces that had this keyspace's name at the two moments (as
    /// [`Snapshot::keyspace`] returns them), even if the first was dropped in between and another
    /// one was created. Both moments must be retained, or open as snapshots: to compare with a
    /// newest moment after which more is committed, hold a snapshot of it.
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
        // Keeps both moments open until the diff itself has opened them.
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
    /// bytes behind the end of a segment's contents, an ignored warm image. Also unreadable values
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
    /// [`crate::Error::InvalidInput`] if the budget is below the minimum or above the memory of the
    /// machine, or if this process has a share of a total of several processes.
    /// [`crate::Error::OutOfBudget`]: transactions, values and pinned pages hold more than the new
    /// budget; the error lists what holds the memory. The budget is then unchanged.
    pub fn set_memory(&self, bytes: u64) -> Result<()> {
        memory::set(&self.store, bytes)
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

    /// How far this replica has applied its order; `None` if the store was opened without one.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// use plimsoll::{Db, Options};
    ///
    /// let options = Options::new().memory_bytes(16 << 20);
    /// assert_eq!(Db::open(dir.path().join("store"), options)?.order_place(), None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn order_place(&self) -> Option<OrderPlace> {
        self.store.replication.place().map(OrderPlace::from)
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

    /// Refuses `count` memory reservations after the next `reservations` ones; with [`u64::MAX`],
    /// refuses none. For simulations.
    #[doc(hidden)]
    #[cfg(any(test, feature = "testing"))]
    pub fn refuse_after(&self, reservations: u64, count: u64) {
        self.store.reader.budget.fail_some_after(reservations, count);
    }

    /// Whether a branch is being created, changed or deleted. If so, code that this thread runs
    /// meanwhile must not change branches itself, because it would wait for this change. For
    /// simulations.
    #[doc(hidden)]
    #[cfg(any(test, feature = "testing"))]
    pub fn is_changing_branches(&self) -> bool {
        self.store.reader.snapshots.branches.is_changing()
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
    /// of a spilled transaction are in files that stay as long as the log has their commit. Until
    /// then these rows are merged only together with at least as many other bytes, because merging
    /// them frees no file.
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
