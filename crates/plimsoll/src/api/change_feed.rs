//! The change feed: commits in order, all of them or those that changed keys under a prefix.
//!
//! Invariant: a feed that starts at a GLSN returns each commit from there on once, in order, or an
//! error. It advances past a commit only when it returns or skips it, so a feed that starts at
//! another feed's position continues where that one stopped.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_log::glsn::{Glsn, StreamId};

use crate::api::commit::{Commit, Watched};
use crate::api::feed_handle::FeedHandle;
use crate::api::follow::{Follows, Position};
use crate::engine::Engine;
use crate::read::lens::Lens;
use crate::read::span::Span;
use crate::types::error::{Error, Lift, Result};
use crate::types::invalid_input::InvalidInput;

/// The number of entries of other streams that are skipped one by one before the log is asked for
/// the next commit.
const PASSED_ONE_BY_ONE: u32 = 32;

/// The change feed: the commits from a GLSN on, from [`Log::commits`](crate::Log::commits) or
/// [`Db::watch`](crate::Db::watch), or of one branch,
/// from [`Branch::watch`](crate::Branch::watch).
///
/// As an iterator it ends at the newest commit; calling `next` later continues with newer commits.
/// [`Commits::next_timeout`] waits for them. An error also ends the iteration; the next call
/// retries the same commit. A lost commit yields [`Error::Dropped`] once and is then skipped.
///
/// To process each commit exactly once, even across restarts, store [`Commits::position`] together
/// with the result, in one transaction, and start the next feed there. A cursor
/// ([`Log::cursor`](crate::Log::cursor)) keeps the log from being trimmed before that. Results
/// stored outside the store need [`Durability::Sync`](crate::Durability::Sync): with `Buffered`, a
/// feed returns commits that a power cut may still undo.
///
/// A feed, and each commit or change of one, keeps the store open: to reopen it in this process,
/// first close it ([`Db::close`](crate::Db::close)).
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
/// // The log keeps the commits that the cursor has not passed.
/// let from = db.log().cursor("mailer", db.newest().next())?;
/// db.put(&notes, "a", "one")?;
/// db.put(&notes, "a", "two")?;
///
/// let mut commits = db.log().commits(from)?;
/// let mut values = Vec::new();
/// while let Some(commit) = commits.next_timeout(Duration::ZERO)? {
///     for change in commit.changes()? {
///         values.extend(change?.value()?.map(|value| value.to_vec()));
///     }
/// }
/// assert_eq!(values, [b"one", b"two"]);
/// db.log().advance_cursor("mailer", commits.position())?;
/// # Ok(())
/// # }
/// ```
pub struct Commits {
    position: Position,
    /// If set, the feed returns only commits that made at least one of these changes, and each
    /// commit returns only these changes.
    watched: Option<Arc<Watched>>,
    /// The watched branch; `None`: main, or the whole feed.
    lens: Option<Arc<Lens>>,
}

impl Commits {
    pub(crate) fn new(store: &Arc<Engine>, from: Glsn, span: Option<Span>) -> Result<Self> {
        let watched = span.map(|span| Arc::new(Watched { span, chain: None }));
        Ok(Self { position: Position::new(store, from)?, watched, lens: None })
    }

    /// The commits that changed keys on a branch. `span` has the index keys on main; it is
    /// translated to those on the branch.
    pub(crate) fn on_branch(
        store: &Arc<Engine>,
        lens: &Arc<Lens>,
        from: Glsn,
        span: &Span,
    ) -> Result<Self> {
        let position = Position::new(store, from)?;
        check_exists(store, lens)?;
        let watched = Watched { span: lens.span(span), chain: Some(lens.ancestry().chain) };
        Ok(Self { position, watched: Some(Arc::new(watched)), lens: Some(Arc::clone(lens)) })
    }

    /// Returns the next commit as soon as it exists, or `None` if none arrives within `timeout`. A
    /// commit by another thread wakes the call. Entries already in the log are searched to the end,
    /// regardless of the timeout.
    ///
    /// # Errors
    /// [`Error::Trimmed`] if the feed fell behind a trim, [`Error::Dropped`], [`Error::Poisoned`],
    /// [`Error::Closed`], disk errors, the budget, or corruption.
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Option<Commit>> {
        Position::poll_within(self, timeout)
    }

    /// The GLSN from which a new feed continues this one: past the last commit returned and any
    /// entries skipped since.
    pub fn position(&self) -> Glsn {
        self.position.next
    }

    /// Returns a handle for other threads, which ends a wait of this feed.
    pub fn handle(&self) -> FeedHandle {
        self.position.handle()
    }

    /// The watched index keys; `None` for a feed of all commits or of a branch.
    pub(crate) fn span_on_main(&self) -> Option<&Span> {
        match self.watched.as_deref()? {
            Watched { span, chain: None } => Some(span),
            Watched { chain: Some(_), .. } => None,
        }
    }

    fn is_wanted(&self, commit: &Commit) -> Result<bool> {
        match self.watched.as_deref() {
            None => Ok(!commit.moves_cursor()?),
            // A commit that deletes a branch also deletes everything that was written on it, but
            // this is no change on the branch.
            Some(Watched { chain: Some(_), .. }) if commit.changes_branch()? => Ok(false),
            Some(_) => Ok(commit.changes()?.next().transpose()?.is_some()),
        }
    }

    /// The next wanted commit before `end`.
    pub(crate) fn next_before(&mut self, end: Glsn) -> Result<Option<Commit>> {
        while let Some(glsn) = self.find(end)? {
            let behind = glsn.next();
            let entry = self.position.store.reader.log.read(glsn).lift();
            if let Err(Error::Dropped { .. }) = entry {
                self.position.next = behind;
            }
            let commit = Commit::new(&self.position.store, entry?, self.watched.clone());
            let is_wanted = self.is_wanted(&commit)?;
            self.position.next = behind;
            if is_wanted {
                return Ok(Some(commit));
            }
        }
        Ok(None)
    }

    /// Finds the next commit, or lost entry, before `end`, and advances to it.
    fn find(&mut self, end: Glsn) -> Result<Option<Glsn>> {
        let mut passed = 0;
        while self.position.next < end {
            if passed == PASSED_ONE_BY_ONE {
                let commit = self.position.find(StreamId::TRANSACTIONS, end)?.unwrap_or(end);
                let dropped = self.position.find(StreamId::DROPPED, commit)?.unwrap_or(commit);
                self.position.next = dropped;
                passed = 0;
                continue;
            }
            let meta = self.position.store.reader.log.meta(self.position.next).lift()?;
            if matches!(meta.stream, StreamId::TRANSACTIONS | StreamId::DROPPED) {
                return Ok(Some(self.position.next));
            }
            self.position.next = self.position.next.next();
            passed += 1;
        }
        Ok(None)
    }
}

impl Follows for Commits {
    type Found = Commit;

    fn place(&self) -> &Position {
        &self.position
    }

    fn place_mut(&mut self) -> &mut Position {
        &mut self.position
    }

    fn poll(&mut self) -> Result<Option<Commit>> {
        self.position.store.check_open()?;
        let end = self.position.end()?;
        if let Some(commit) = self.next_before(end)? {
            return Ok(Some(commit));
        }
        let Some(lens) = &self.lens else { return Ok(None) };
        // The branch is looked up at the newest moment, which is held open, because older versions
        // of its record may have been dropped while the entries were searched.
        let moment = self.position.store.open_newest();
        let at = moment.readable()?.glsn;
        match lens.check_exists(&self.position.store.reader, at) {
            // The branch was deleted. Its last commits, which come before the deletion, are
            // returned first.
            Err(gone @ Error::InvalidInput(InvalidInput::NoBranch { .. })) => {
                self.next_before(at.next())?.map_or(Err(gone), |commit| Ok(Some(commit)))
            }
            exists => exists.map(|()| None),
        }
    }
}

/// Fails if a branch does not exist at the newest moment, which is held open during the look-up.
///
/// # Errors
/// As for [`Lens::check_exists`]; [`Error::Behind`].
pub(crate) fn check_exists(store: &Engine, lens: &Lens) -> Result<()> {
    let moment = store.open_newest();
    lens.check_exists(&store.reader, moment.readable()?.glsn)
}

impl Iterator for Commits {
    type Item = Result<Commit>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step()
    }
}

impl fmt::Debug for Commits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Commits(next {})", self.position.next)
    }
}
