//! Follows the log: a position that advances over entries as they become readable.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_log::entry::Entry;
use plimsoll_log::glsn::{Glsn, StreamId};

use crate::api::feed_handle::FeedHandle;
use crate::api::log_entry::LogEntry;
use crate::engine::Engine;
use crate::types::error::{Error, Lift, Result};

/// Poll interval of a follower while a commit in the log is being applied.
const APPLYING: Duration = Duration::from_micros(50);

/// A position in the log.
pub(crate) struct Position {
    pub(crate) store: Arc<Engine>,
    /// The GLSN to read next.
    pub(crate) next: Glsn,
    handle: FeedHandle,
    /// Whether the last step of the iterator returned an error.
    failed: bool,
}

impl Position {
    /// # Errors
    /// [`Error::Trimmed`] if `from` is below the first entry.
    pub(crate) fn new(store: &Arc<Engine>, from: Glsn) -> Result<Self> {
        store.check_open()?;
        let first = store.reader.log.bounds().first;
        let next = from.max(Glsn::FIRST);
        if next < first {
            return Err(Error::trimmed(next, first));
        }
        Ok(Self {
            store: Arc::clone(store),
            next,
            handle: FeedHandle::new(store, next),
            failed: false,
        })
    }

    pub(crate) fn handle(&self) -> FeedHandle {
        self.handle.clone()
    }

    /// The end of the readable entries.
    ///
    /// # Errors
    /// As for [`Engine::newest`].
    pub(crate) fn end(&self) -> Result<Glsn> {
        Ok(self.store.newest()?.next())
    }

    /// Finds the first entry of a stream in `next..end`, without advancing.
    pub(crate) fn find(&self, stream: StreamId, end: Glsn) -> Result<Option<Glsn>> {
        let mut scan = self.store.reader.log.scan(self.next..end, Some(stream)).lift()?;
        Ok(scan.next_entry().transpose().lift()?.map(|entry| entry.meta.glsn))
    }

    /// Reads the entry at `glsn` and advances past it, even if it is lost.
    ///
    /// # Errors
    /// [`Error::Dropped`], [`Error::Trimmed`], disk errors, the budget, or corruption.
    pub(crate) fn take(&mut self, glsn: Glsn) -> Result<Entry> {
        let entry = self.store.reader.log.read(glsn).lift();
        if matches!(entry, Ok(_) | Err(Error::Dropped { .. })) {
            self.next = glsn.next();
        }
        entry
    }

    /// Polls until something is found, waiting for new entries in between; `None` if nothing
    /// arrives within `timeout`, or if a handle ends the wait.
    pub(crate) fn poll_within<F: Follows>(
        follower: &mut F,
        timeout: Duration,
    ) -> Result<Option<F::Found>> {
        let clock = Arc::clone(&follower.place().store.options.clock);
        let start = clock.monotonic_nanos();
        loop {
            if let Some(found) = follower.poll()? {
                return Ok(Some(found));
            }
            follower.place().handle.waits_at(follower.place().next);
            let waited = Duration::from_nanos(clock.monotonic_nanos().saturating_sub(start));
            let Some(left) = timeout.checked_sub(waited).filter(|left| !left.is_zero()) else {
                return Ok(None);
            };
            let patience = follower.patience();
            match follower.place().wait(left.min(patience))? {
                Waited::ForEntry => {}
                Waited::Long if left > patience => {}
                Waited::Long | Waited::Ended => return Ok(None),
            }
        }
    }

    /// Waits up to `timeout` for an entry at `next`.
    fn wait(&self, timeout: Duration) -> Result<Waited> {
        let seen = Glsn(self.next.0 - 1);
        let readable = self.store.reader.log.wait_beyond(seen, timeout, &|| self.handle.is_ended());
        // Closing the store poisons the log; report the store as closed instead.
        self.store.check_open()?;
        let readable = readable.lift()?;
        if self.handle.take_end() {
            return Ok(Waited::Ended);
        }
        if readable <= seen {
            return Ok(Waited::Long);
        }
        if self.store.newest()? <= seen {
            // The entry is in the log but not applied yet. If applying has failed, it is never
            // applied, and this check reports the failure.
            self.store.committer.sequencer.check()?;
            self.store.options.clock.sleep(APPLYING);
        }
        Ok(Waited::ForEntry)
    }
}

/// How a wait has ended.
enum Waited {
    /// The entry may be readable.
    ForEntry,
    /// It did not arrive in time.
    Long,
    /// A handle has ended the wait.
    Ended,
}

/// A follower of the log.
pub(crate) trait Follows {
    /// The type of its results.
    type Found;

    /// The follower's position.
    fn place(&self) -> &Position;

    /// The follower's position, mutable.
    fn place_mut(&mut self) -> &mut Position;

    /// The next result that is available without waiting.
    fn poll(&mut self) -> Result<Option<Self::Found>>;

    /// The longest wait for an entry before the next poll.
    fn patience(&self) -> Duration {
        Duration::MAX
    }

    /// A step as an iterator; an error also ends the iteration.
    fn step(&mut self) -> Option<Result<Self::Found>> {
        if std::mem::take(&mut self.place_mut().failed) {
            return None;
        }
        let next = self.poll().transpose();
        self.place_mut().failed = matches!(next, Some(Err(_)));
        next
    }
}

/// The log entries from a GLSN on, of one stream or of all, from
/// [`Log::follow`](crate::Log::follow). As an iterator it ends at the newest entry; calling `next`
/// later continues with newer entries. An error also ends the iteration; the next call retries the
/// same entry.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// use std::time::Duration;
///
/// let mut follow = db.log().follow(Glsn::FIRST, Some(7))?;
/// assert!(follow.next().is_none());
/// db.log().append(7, &[b"started"])?;
/// let entry = follow.next_timeout(Duration::from_secs(10))?.expect("it was appended");
/// assert_eq!(entry.payload(), b"started");
/// # Ok(())
/// # }
/// ```
pub struct LogFollow {
    position: Position,
    stream: Option<StreamId>,
}

impl LogFollow {
    pub(crate) fn new(store: &Arc<Engine>, from: Glsn, stream: Option<StreamId>) -> Result<Self> {
        Ok(Self { position: Position::new(store, from)?, stream })
    }

    /// Returns the next entry as soon as it exists, or `None` if none arrives within `timeout`. A
    /// commit by another thread wakes the call.
    ///
    /// # Errors
    /// [`Error::Trimmed`] if the follower fell behind a trim, [`Error::Poisoned`],
    /// [`Error::Closed`], disk errors, or the budget.
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Option<LogEntry>> {
        Position::poll_within(self, timeout)
    }

    /// The GLSN from which a new follower continues this one.
    pub fn position(&self) -> Glsn {
        self.position.next
    }

    /// Returns a handle for other threads, which ends a wait of this follower.
    pub fn handle(&self) -> FeedHandle {
        self.position.handle()
    }
}

impl Follows for LogFollow {
    type Found = LogEntry;

    fn place(&self) -> &Position {
        &self.position
    }

    fn place_mut(&mut self) -> &mut Position {
        &mut self.position
    }

    fn poll(&mut self) -> Result<Option<LogEntry>> {
        self.position.store.check_open()?;
        let end = self.position.end()?;
        while self.position.next < end {
            let found = match self.stream {
                None => Some(self.position.next),
                Some(stream) => self.position.find(stream, end)?,
            };
            let Some(glsn) = found else {
                self.position.next = end;
                break;
            };
            match self.position.take(glsn) {
                Err(Error::Dropped { .. }) => {}
                entry => return entry.map(LogEntry::new).map(Some),
            }
        }
        Ok(None)
    }
}

impl Iterator for LogFollow {
    type Item = Result<LogEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step()
    }
}

impl fmt::Debug for LogFollow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogFollow(next {})", self.position.next)
    }
}
