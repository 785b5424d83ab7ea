//! The public interface of the log: user streams, commits, named cursors, trimming.

use std::fmt;
use std::ops::{Bound, Range, RangeBounds, RangeInclusive};
use std::sync::Arc;

use plimsoll_log::file_log::read::scan::FileScan;
use plimsoll_log::glsn::{Glsn, StreamId};

use crate::api::change_feed::Commits;
use crate::api::commit::Commit;
use crate::api::follow::LogFollow;
use crate::api::log_entry::{DROPPED_STREAM, LogEntry, LogEntryRef};
use crate::engine::Engine;
use crate::engine::cursor_commits;
use crate::engine::keyspace_commits;
use crate::engine::log_time;
use crate::engine::shared::requests;
use crate::txn::ticket::CommitTicket;
use crate::types::cursors::CursorInfo;
use crate::types::error::{Error, Lift, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::stats::LogBounds;
use crate::types::times::of_micros;

/// The log of a store: its commits and the user's own streams, in one total order.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// let notes = db.keyspace("notes")?;
/// let log = db.log();
/// let glsns = log.append(7, &[b"started", b"stopped"])?;
/// let commit = db.put(&notes, "a", "one")?;
/// assert_eq!(commit, glsns.end().next());
/// let mut scan = log.scan(.., Some(7))?;
/// while let Some(entry) = scan.next() {
///     let entry = entry?;
///     println!("{}: {:?}", entry.glsn, entry.payload);
/// }
/// for commit in log.commits(commit)? {
///     for change in commit?.changes()? {
///         println!("{:?}", change?);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Log<'db> {
    store: &'db Arc<Engine>,
}

impl<'db> Log<'db> {
    pub(crate) fn new(store: &'db Arc<Engine>) -> Self {
        Self { store }
    }

    /// Bounds of the log's contents.
    pub fn bounds(&self) -> LogBounds {
        let bounds = self.store.reader.log.bounds();
        LogBounds { first: bounds.first, next: bounds.next, durable: bounds.durable }
    }

    /// Appends entries to a stream (1 or higher), all of them or none. Returns their GLSNs once
    /// they are durable according to the store's durability setting. The payloads of one call add
    /// up to at most 1 MiB.
    ///
    /// # Errors
    /// The stream is 0, the payloads are too large, disk errors, the budget, or the store is
    /// poisoned.
    pub fn append(&self, stream: u32, payloads: &[&[u8]]) -> Result<RangeInclusive<Glsn>> {
        let (first, ticket) = self.submit(stream, payloads)?;
        Ok(first..=ticket.wait()?)
    }

    /// As [`Log::append`], but does not wait until the entries are durable.
    ///
    /// # Errors
    /// As for [`Log::append`].
    pub fn append_submit(&self, stream: u32, payloads: &[&[u8]]) -> Result<CommitTicket> {
        Ok(self.submit(stream, payloads)?.1)
    }

    fn submit(&self, stream: u32, payloads: &[&[u8]]) -> Result<(Glsn, CommitTicket)> {
        if matches!(stream, 0 | DROPPED_STREAM) {
            return Err(InvalidInput::ReservedStream { stream }.into());
        }
        if payloads.is_empty() {
            return Err(InvalidInput::NothingToAppend.into());
        }
        keyspace_commits::note_streams(self.store)?;
        let (first, ordered) = self.store.committer.append(StreamId(stream), payloads)?;
        Ok((first, CommitTicket::of_commit(&self.store.committer, ordered)))
    }

    /// Reads one entry.
    ///
    /// # Errors
    /// [`Error::Trimmed`], [`Error::Future`], [`Error::Dropped`], disk errors, the budget, or
    /// corruption.
    pub fn read(&self, glsn: Glsn) -> Result<LogEntry> {
        self.store.check_open()?;
        let newest = self.store.newest()?;
        if glsn > newest {
            return Err(Error::Future { asked: glsn, newest });
        }
        Ok(LogEntry::new(self.store.reader.log.read(glsn).lift()?))
    }

    /// Iterates over entries by GLSN, of one stream or of all, up to the newest entry readable when
    /// the scan reaches it.
    ///
    /// # Errors
    /// [`Error::Trimmed`] if the range begins below the first entry, disk errors, or the budget.
    pub fn scan(&self, range: impl RangeBounds<Glsn>, stream: Option<u32>) -> Result<LogScan<'db>> {
        self.store.check_open()?;
        let bounds = self.store.reader.log.bounds();
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => Glsn(start.0.saturating_add(1)),
            Bound::Unbounded => bounds.first,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => Glsn(end.0.saturating_add(1)),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => Glsn::MAX,
        };
        let end = end.min(self.store.newest()?.next());
        let range = Range { start: start.max(Glsn::FIRST), end: end.max(start.max(Glsn::FIRST)) };
        Ok(LogScan {
            store: self.store,
            scan: self.store.reader.log.scan(range, stream.map(StreamId)).lift()?,
        })
    }

    /// The change feed: the commits from `from` on, in order, with their changes. It ends at the
    /// newest commit and can be continued when more exist; [`Commits::next_timeout`] waits for
    /// them. Commits that only move cursors, or advance the time of an idle store, are left out.
    ///
    /// # Errors
    /// [`Error::Trimmed`] if `from` is below the first entry.
    pub fn commits(&self, from: Glsn) -> Result<Commits> {
        Commits::new(self.store, from, None)
    }

    /// The commit with this GLSN; `None` if the entry belongs to a user's stream.
    ///
    /// # Errors
    /// As for [`Log::read`].
    pub fn commit(&self, glsn: Glsn) -> Result<Option<Commit>> {
        let entry = self.read(glsn)?;
        Ok((entry.stream == 0).then(|| Commit::new(self.store, entry.into_entry(), None)))
    }

    /// Follows the log's entries from `from` on, of one stream or of all, and returns the bytes
    /// that were appended. Use it to read user streams, or to ship the whole log. For commits, use
    /// [`Log::commits`]. Lost entries are skipped. Entries trimmed before the follower reaches them
    /// are an error; a cursor ([`Log::cursor`]) prevents that.
    ///
    /// # Errors
    /// [`Error::Trimmed`] if `from` is below the first entry.
    pub fn follow(&self, from: Glsn, stream: Option<u32>) -> Result<LogFollow> {
        LogFollow::new(self.store, from, stream.map(StreamId))
    }

    /// Returns the next GLSN to read of a follower's named cursor, creating the cursor at `from`
    /// (at least 1) if it does not exist. Entries that a cursor has not passed are never trimmed,
    /// neither by [`Log::trim`] nor by the log's automatic trimming (when every keyspace limits its
    /// retention). Followers without a cursor have no such protection. The cursor of a follower
    /// that never returns retains the log forever: drop it.
    ///
    /// A cursor is part of the store: it survives a crash, is included in backups, and is visible
    /// to a reader that opens the store later.
    ///
    /// # Errors
    /// [`Error::Trimmed`] or [`Error::Future`] if the new cursor would lie below the log's first
    /// entry or above its next; the name is invalid, the store is read-only and has no such cursor,
    /// or the commit fails.
    pub fn cursor(&self, name: &str, from: Glsn) -> Result<Glsn> {
        cursor_commits::open(self.store, name, from)
    }

    /// Advances a cursor durably, which states that everything below `next` has been processed.
    /// Moving a cursor costs a commit and a sync, so advance it once for many entries; after a
    /// crash, a follower may see those entries a second time.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if there is no such cursor, or it would move backwards;
    /// [`Error::Future`] past the log's end; the store is read-only, or the commit fails.
    pub fn advance_cursor(&self, name: &str, next: Glsn) -> Result<()> {
        cursor_commits::advance(self.store, name, next)
    }

    /// Removes a cursor.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if there is no such cursor; the store is read-only, or the commit
    /// fails.
    pub fn drop_cursor(&self, name: &str) -> Result<()> {
        cursor_commits::drop_cursor(self.store, name)
    }

    /// All cursors, sorted by name.
    pub fn cursors(&self) -> Vec<CursorInfo> {
        // If newer commits cannot be applied, returns the cursors that are known.
        let _ = self.store.committer.fresh();
        self.store.catalog.records.cursors.all()
    }

    /// Restarts the log's time, after commits under a clock that was ahead; returns the last commit
    /// before, or `None` if the log's time is not ahead of the clock. Call it once this machine's
    /// clock is right.
    ///
    /// Commit times rise with GLSNs. If the last one is ahead of the clock by up to a day, the
    /// times of later commits advance by a microsecond each until the clock reaches them. If it is
    /// ahead by more, commits are refused with [`Error::ClockBehind`], because versions would not
    /// age until then. After the restart, commit times follow the clock again, and retention and
    /// look-ups by time treat all earlier commits as made before the restart. The times that these
    /// commits report are unchanged.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let db = plimsoll::Db::in_memory(plimsoll::Options::new().memory_bytes(16 << 20))?;
    /// assert_eq!(db.log().restart_time()?, None, "the clock was never ahead");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The store is read-only, disk errors, or the budget.
    pub fn restart_time(&self) -> Result<Option<Glsn>> {
        log_time::restart(self.store)
    }

    /// Frees whole segments of the log below `until`. Returns the first remaining GLSN, which may
    /// be lower: a cursor or an unflushed commit retains all entries from its GLSN on. Values that
    /// are still current or retained are moved out of the log first. Commits below the returned
    /// GLSN can no longer be scanned; keys and their retained versions stay readable. If `until` is
    /// the GLSN after the newest one, the active segment is ended and freed as well.
    ///
    /// # Errors
    /// The store is read-only, disk errors, or the budget.
    pub fn trim(&self, until: Glsn) -> Result<Glsn> {
        requests::trim(self.store, until)
    }
}

/// An iteration over the log's entries, from [`Log::scan`].
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// db.log().append(7, &[b"one", b"two"])?;
/// let log = db.log();
/// let mut scan = log.scan(.., Some(7))?;
/// let mut payloads = Vec::new();
/// while let Some(entry) = scan.next() {
///     payloads.push(entry?.payload.to_vec());
/// }
/// assert_eq!(payloads, [b"one", b"two"]);
/// # Ok(())
/// # }
/// ```
pub struct LogScan<'db> {
    store: &'db Arc<Engine>,
    scan: FileScan<'db>,
}

impl LogScan<'_> {
    /// The next entry, borrowed until the next call; `None` at the end.
    #[allow(clippy::should_implement_trait, reason = "an iterator cannot lend")]
    pub fn next(&mut self) -> Option<Result<LogEntryRef<'_>>> {
        if let Err(error) = self.store.check_open() {
            return Some(Err(error));
        }
        let next = self.scan.next_entry()?;
        Some(next.lift().map(|view| LogEntryRef {
            glsn: view.meta.glsn,
            stream: view.meta.stream.0,
            time: of_micros(view.meta.timestamp_micros),
            payload: view.payload,
        }))
    }
}

impl fmt::Debug for LogScan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogScan")
    }
}
