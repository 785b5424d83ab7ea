//! The log as the user sees it: streams of his own, and the commits themselves as a change feed.

use std::fmt;
use std::ops::{Bound, Deref, Range, RangeBounds, RangeInclusive};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use plimsoll_log::entry::Entry;
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_log::log::Scan;

use crate::api::commit::Commit;
use crate::engine::Engine;
use crate::engine::cursor_commits;
use crate::engine::cursors::CursorInfo;
use crate::engine::keyspace_commits;
use crate::engine::trim;
use crate::txn::commit::CommitTicket;
use crate::types::error::{Error, Result};
use crate::types::stats::LogBounds;
use crate::types::times::of_micros;

/// How long a follower lets a committer finish that is applying its versions.
const APPLYING: Duration = Duration::from_micros(50);

/// The stream of entries that were damaged and that a salvage dropped: a scan passes them with an empty payload, reading one is
/// [`Error::Dropped`], and a follower does not see them.
pub const DROPPED_STREAM: u32 = StreamId::DROPPED.0;

/// An entry of the log.
pub struct LogEntry {
    /// Its place in the one order.
    pub glsn: Glsn,
    /// Its stream; 0 for commits.
    pub stream: u32,
    /// When it was appended; it never goes back from entry to entry.
    pub time: SystemTime,
    entry: Entry,
}

impl LogEntry {
    fn new(entry: Entry) -> Self {
        let meta = entry.meta;
        Self { glsn: meta.glsn, stream: meta.stream.0, time: of_micros(meta.timestamp_micros), entry }
    }

    /// Its payload.
    pub fn payload(&self) -> &[u8] {
        self.entry.deref()
    }
}

impl fmt::Debug for LogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogEntry({}, stream {}, {} bytes)", self.glsn, self.stream, self.payload().len())
    }
}

/// An entry that a scan lends until its next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntryRef<'a> {
    /// Its place in the one order.
    pub glsn: Glsn,
    /// Its stream; 0 for commits.
    pub stream: u32,
    /// When it was appended.
    pub time: SystemTime,
    /// Its payload.
    pub payload: &'a [u8],
}

/// The log of a store: its commits, and streams of the user's own, in one order.
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
/// log.changes(commit)?.expect("it is a commit").for_each(|op| {
///     println!("{:?} of {:?}: {:?}", op.key, op.keyspace, op.change);
///     Ok(())
/// })?;
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

    /// What the log holds.
    pub fn bounds(&self) -> LogBounds {
        let bounds = self.store.reader.log.bounds();
        LogBounds { first: bounds.first, next: bounds.next, durable: bounds.durable }
    }

    /// Appends entries to a stream (1 or higher), all of them or none; returns their GLSNs once they are durable, as the store's
    /// durability says. The payloads of one call add up to at most 1 MiB.
    ///
    /// # Errors
    /// The stream is 0, the payloads are too large, the disk, the budget, or the store is poisoned.
    pub fn append(&self, stream: u32, payloads: &[&[u8]]) -> Result<RangeInclusive<Glsn>> {
        let (first, ticket) = self.submit(stream, payloads)?;
        Ok(first..=ticket.wait()?)
    }

    /// As [`Log::append`], without waiting until the entries are durable.
    ///
    /// # Errors
    /// As for [`Log::append`].
    pub fn append_submit(&self, stream: u32, payloads: &[&[u8]]) -> Result<CommitTicket> {
        Ok(self.submit(stream, payloads)?.1)
    }

    fn submit(&self, stream: u32, payloads: &[&[u8]]) -> Result<(Glsn, CommitTicket)> {
        if stream == DROPPED_STREAM {
            return Err(Error::invalid(format!(
                "stream {stream} is that of entries that were dropped; append to a lower one"
            )));
        }
        if stream == 0 {
            return Err(Error::invalid("stream 0 holds the store's commits; append to stream 1 or higher"));
        }
        if payloads.is_empty() {
            return Err(Error::invalid("there is nothing to append"));
        }
        keyspace_commits::note_streams(self.store)?;
        let (first, last) = self.store.committer.append(StreamId(stream), payloads)?;
        Ok((first, CommitTicket::of_record(&self.store.committer, last)))
    }

    /// Reads one entry.
    ///
    /// # Errors
    /// [`Error::Trimmed`], [`Error::Future`], [`Error::Dropped`], the disk, the budget, or corruption.
    pub fn read(&self, glsn: Glsn) -> Result<LogEntry> {
        self.store.check_open()?;
        let newest = self.store.visible();
        if glsn > newest {
            return Err(Error::Future { asked: glsn, newest });
        }
        Ok(LogEntry::new(self.store.reader.log.read(glsn)?))
    }

    /// Walks entries by GLSN, of one stream or of all, up to the newest that can be read when the walk gets there.
    ///
    /// # Errors
    /// [`Error::Trimmed`] if the range begins below the first entry, the disk, or the budget.
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
        let end = end.min(self.store.visible().next());
        let range = Range { start: start.max(Glsn::FIRST), end: end.max(start.max(Glsn::FIRST)) };
        Ok(LogScan { store: self.store, scan: self.store.reader.log.scan(range, stream.map(StreamId))? })
    }

    /// Walks entries from `from` on and then waits for new ones, without polling. Entries that are trimmed before the walk comes to them are an error:
    /// a cursor ([`Log::cursor`]) keeps them.
    ///
    /// # Errors
    /// [`Error::Trimmed`] if `from` is below the first entry.
    pub fn follow(&self, from: Glsn, stream: Option<u32>) -> Result<LogFollow<'db>> {
        self.store.check_open()?;
        let first = self.store.reader.log.bounds().first;
        let from = from.max(Glsn::FIRST);
        if from < first {
            return Err(Error::Trimmed { asked: from, first });
        }
        Ok(LogFollow { store: self.store, next: from, stream: stream.map(StreamId) })
    }

    /// The named cursor of a follower, made at `from` (at least 1) if it is not there; the GLSN to read next. What a cursor has not passed is
    /// not trimmed: neither by [`Log::trim`] nor where every keyspace limits its past, and the log trims itself with no regard to those who follow it
    /// without a cursor. A follower that does not come back holds the log for ever: its cursor is to be dropped then.
    ///
    /// A cursor is part of the store: it is there after a crash, in a backup, and for a reader that opened the store after it was made.
    ///
    /// # Errors
    /// [`Error::Trimmed`] and [`Error::Future`] where the cursor would be made below the log's first entry or ahead of its next; the name cannot
    /// be, the store is read-only and has no such cursor, or the commit fails.
    pub fn cursor(&self, name: &str, from: Glsn) -> Result<Glsn> {
        cursor_commits::open(self.store, name, from)
    }

    /// Moves a cursor on, durably: everything below `next` was dealt with. This is a commit and a sync, so followers move it once for many
    /// entries; after a crash they may meet those entries again.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if there is no such cursor, or it would go back; [`Error::Future`] behind the log's end; the store is read-only, or
    /// the commit fails.
    pub fn advance_cursor(&self, name: &str, next: Glsn) -> Result<()> {
        cursor_commits::advance(self.store, name, next)
    }

    /// Removes a cursor.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if there is no such cursor; the store is read-only, or the commit fails.
    pub fn drop_cursor(&self, name: &str) -> Result<()> {
        cursor_commits::drop_cursor(self.store, name)
    }

    /// All cursors, by name.
    pub fn cursors(&self) -> Vec<CursorInfo> {
        self.store.catalog.cursors.all()
    }

    /// Frees whole segments of the log below `until`, and returns the first GLSN that is left, which may be lower: a cursor, or what is not flushed
    /// yet, holds what lies behind it. Values that are
    /// still current or retained are moved out first. Commits below it can no longer be scanned; keys and their retained versions
    /// stay.
    ///
    /// # Errors
    /// The store is read-only, the disk, or the budget.
    pub fn trim(&self, until: Glsn) -> Result<Glsn> {
        trim::trim(self.store, until)
    }

    /// The commit with this GLSN, decoded; `None` if the entry belongs to a user's stream.
    ///
    /// # Errors
    /// As for [`Log::read`].
    pub fn changes(&self, glsn: Glsn) -> Result<Option<Commit>> {
        let entry = self.read(glsn)?;
        Ok((entry.stream == 0).then(|| Commit::new(self.store, entry.entry)))
    }
}

/// A walk over the log.
pub struct LogScan<'db> {
    store: &'db Arc<Engine>,
    scan: Box<dyn Scan + 'db>,
}

impl LogScan<'_> {
    /// The next entry, lent until the next call; `None` at the end.
    #[allow(clippy::should_implement_trait, reason = "an iterator cannot lend")]
    pub fn next(&mut self) -> Option<Result<LogEntryRef<'_>>> {
        if let Err(error) = self.store.check_open() {
            return Some(Err(error));
        }
        let next = self.scan.next()?;
        Some(next.map_err(Error::from).map(|view| LogEntryRef {
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

/// A walk that waits at the end for new entries.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// use std::time::Duration;
///
/// let notes = db.keyspace("notes")?;
/// // What a cursor has not passed is kept.
/// let from = db.log().cursor("mailer", db.newest().next())?;
/// let glsn = db.put(&notes, "a", "one")?;
/// let mut follow = db.log().follow(from, Some(0))?;
/// while let Some(entry) = follow.next(Duration::ZERO)? {
///     let commit = db.log().changes(entry.glsn)?.expect("stream 0 has only commits");
///     if !commit.moves_cursor()? {
///         assert_eq!(commit.glsn(), glsn);
///     }
///     db.log().advance_cursor("mailer", entry.glsn.next())?;
/// #   break;
/// }
/// # Ok(())
/// # }
/// ```
pub struct LogFollow<'db> {
    store: &'db Arc<Engine>,
    next: Glsn,
    stream: Option<StreamId>,
}

impl LogFollow<'_> {
    /// The next entry; `None` if none came within `patience`.
    ///
    /// # Errors
    /// [`Error::Trimmed`] if the walk fell behind a trim, [`Error::Poisoned`], the disk, or the budget.
    #[allow(clippy::should_implement_trait, reason = "it takes a patience")]
    pub fn next(&mut self, patience: Duration) -> Result<Option<LogEntry>> {
        let clock = &self.store.options.clock;
        let start = clock.monotonic_nanos();
        loop {
            self.store.check_open()?;
            if let Some(entry) = self.step()? {
                return Ok(Some(entry));
            }
            let waited = Duration::from_nanos(clock.monotonic_nanos().saturating_sub(start));
            let Some(left) = patience.checked_sub(waited).filter(|left| !left.is_zero()) else { return Ok(None) };
            let seen = Glsn(self.next.0 - 1);
            let readable = self.store.reader.log.wait_beyond(seen, left);
            // A log that is closed while somebody waits says that it is poisoned.
            self.store.check_open()?;
            if readable? <= seen {
                return Ok(None);
            }
            if self.store.visible() <= seen {
                // It is in the log, and being applied just now.
                clock.sleep(APPLYING);
            }
        }
    }

    /// The next entry of the stream that can be read now.
    fn step(&mut self) -> Result<Option<LogEntry>> {
        loop {
            match self.step_once() {
                Err(Error::Dropped { glsn }) => self.next = glsn.next(),
                done => return done,
            }
        }
    }

    fn step_once(&mut self) -> Result<Option<LogEntry>> {
        let end = self.store.visible().next();
        if self.next >= end {
            return Ok(None);
        }
        let found = match self.stream {
            None => Some(self.next),
            Some(_) => {
                let mut scan = self.store.reader.log.scan(self.next..end, self.stream)?;
                scan.next().transpose()?.map(|view| view.meta.glsn)
            }
        };
        let Some(glsn) = found else {
            self.next = end;
            return Ok(None);
        };
        let entry = LogEntry::new(self.store.reader.log.read(glsn)?);
        self.next = glsn.next();
        Ok(Some(entry))
    }
}

impl fmt::Debug for LogFollow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogFollow(next {})", self.next)
    }
}
