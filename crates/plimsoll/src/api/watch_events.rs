//! A watch that also reports when values expire.
//!
//! A bounded window holds the expiries that come next ([`window`]). Commits that the feed passes
//! add their expiries. When the window is empty, one scan of the watched keys fills it again, with
//! the state as of the last commit that the feed has passed. An entry becomes stale if its value is
//! replaced or deleted; a point read in that state detects this when the entry is due.
//!
//! Invariant: the feed retains the state as of the last commit that it has passed, and every later
//! one, so the scan and the point reads see exactly the commits that the feed has passed.
//!
//! An expiry is reported before the first commit with a later time, and before the retained state
//! moves to such a commit, because merges judge expiries by that commit's time. Without such a
//! commit it is reported once no commit with an earlier time can follow: the feed reads the time,
//! waits for the commits in progress, and reads all commits that are ordered by then.

mod window;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_log::glsn::Glsn;

use crate::api::change_feed::Commits;
use crate::api::commit::{Change, Commit};
use crate::api::feed_handle::FeedHandle;
use crate::api::follow::{Follows, Position};
use crate::api::watch_events::window::{Place, Window};
use crate::engine::Engine;
use crate::index::iter::handle::IteratorHandle;
use crate::index::iter::visible::Visible;
use crate::index::sources::view::Direction;
use crate::read::open_moments::OpenMoment;
use crate::read::point::find;
use crate::read::span::Span;
use crate::types::as_of::AsOf;
use crate::types::error::{Error, Result};
use crate::types::expiry::Expiry;
use crate::types::index_key::{IndexKey, KeyBuffer};
use crate::types::invalid_input::InvalidInput;
use crate::types::times::to_micros;

/// The longest wait before the clock is read again: it may have been set forward.
const CLOCK_READ_EVERY: Duration = Duration::from_millis(500);

/// The wait for commits that are ordered but not readable yet.
const BECOMING_READABLE: Duration = Duration::from_millis(5);

/// How long before the window's horizon an idle feed fills the window.
const FILLED_AHEAD_MICROS: u64 = 60_000_000;

/// The most versions, and the most bytes of keys, that one step of a scan reads.
const STEP_VERSIONS: usize = 256;
const STEP_KEY_BYTES: usize = 8 << 10;

/// Number of passed commits after which the retained state is moved on, if the feed has not waited
/// earlier.
const PASSED_MAX: u32 = 1000;

/// A result of [`WatchEvents`].
#[derive(Debug)]
#[non_exhaustive]
pub enum WatchEvent {
    /// The next commit that changed a watched key.
    Commit(Commit),
    /// A value of a watched key has expired. [`Change::is_expiry`] is true, [`Change::glsn`] is the
    /// commit that put the value, and [`Change::expires`] and [`Change::time`] are its expiry.
    Expiry(Change),
}

/// The commits of a watch, and the expiries of the watched values, from
/// [`Commits::with_expiries`].
///
/// Events are in the order of the log's time: an expiry comes before the commits with the same or a
/// later time. As an iterator it ends when there is nothing more now; calling `next` later
/// continues. [`WatchEvents::next_timeout`] waits, and returns an expiry within a second.
///
/// It reports the expiries after its creation, each once. If the value is replaced or deleted, or
/// its expiry is removed or changed, by a commit with an earlier time than the expiry, then that
/// expiry is not reported. [`WatchEvents::position`] is only a GLSN: a watch that continues there
/// later does not report expiries that passed in between. To find these, compare with a snapshot.
///
/// It uses up to 1 MiB of the memory budget for the expiries that come next, less if memory is
/// short, and 72 KiB at least. It reads the keys of the prefix when it begins, and again when the
/// expiries in its memory have passed, unless it has them all.
///
/// The store retains the versions that were current at the last event until the watch is polled
/// again. So drop a watch that is not polled.
///
/// If the clock is set back, or is behind in another process, a commit may have an earlier time
/// than an expiry that was reported before it. The value is then readable again until the clock
/// reaches its expiry. This expiry is not reported a second time. In a cluster the same holds for a
/// commit of another member that arrives later.
///
/// A value whose expiry has passed when it is put is reported right after its commit.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// use std::time::Duration;
///
/// let codes = db.keyspace("codes")?;
/// let mut events = db.watch(&codes, "", db.newest().next())?.with_expiries()?;
/// let put = db.put_with_ttl(&codes, "1234", "valid", Duration::from_millis(20))?;
/// let event = events.next_timeout(Duration::from_secs(10))?;
/// assert!(matches!(event, Some(WatchEvent::Commit(commit)) if commit.glsn() == put));
/// match events.next_timeout(Duration::from_secs(10))? {
///     Some(WatchEvent::Expiry(change)) => {
///         assert_eq!((change.key(), change.glsn()), (&b"1234"[..], put));
///     }
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
pub struct WatchEvents {
    commits: Commits,
    /// The watched index keys, all of one keyspace.
    span: Span,
    /// The first commit that is returned.
    from: Glsn,
    /// The newest commit when the feed was created. The first scan finds the values that this
    /// commit and earlier ones have put.
    base: Glsn,
    /// Retains the state that is read.
    floor: OpenMoment,
    passed: u32,
    window: Window,
    reported: Reported,
    /// The next commit. It is returned after the expiries before it.
    pending: Option<Commit>,
    /// No commit from the position on has an earlier time, in microseconds since 1970 UTC.
    settled_micros: u64,
    is_unsettled: bool,
}

/// The maximum number of steps in [`Reported`].
const REPORTED_MAX: usize = 4;

/// Steps `(below, upto)`: every expiry before `below` of a value that was put up to the commit
/// `upto` was reported, or had passed before the feed was created. From step to step `below` falls
/// and `upto` rises. There is more than one step after a commit that put a value whose expiry had
/// passed.
struct Reported(Vec<(Place, Glsn)>);

impl Reported {
    fn has(&self, place: &Place, put_by: Glsn) -> bool {
        self.0.iter().any(|(below, upto)| place < below && put_by <= *upto)
    }

    /// Notes that the first expiry of the state after the commit `upto` was reported.
    fn note(&mut self, place: &Place, upto: Glsn) {
        let below = place.next();
        while self.0.pop_if(|(last, _)| *last <= below).is_some() {}
        if self.0.len() == REPORTED_MAX {
            self.0.remove(0);
        }
        self.0.push((below, upto));
    }
}

impl Commits {
    /// Also reports when values of the watched keys expire: see [`WatchEvents`]. Only for a watch
    /// of main, from [`Db::watch`](crate::Db::watch).
    ///
    /// # Errors
    /// [`InvalidInput::ExpiriesNotWatched`] for a feed of all commits and for a watch of a branch;
    /// [`Error::OutOfBudget`](crate::Error::OutOfBudget), [`Error::Behind`](crate::Error::Behind),
    /// [`Error::Closed`](crate::Error::Closed).
    pub fn with_expiries(self) -> Result<WatchEvents> {
        let span = self.span_on_main().cloned().ok_or(InvalidInput::ExpiriesNotWatched)?;
        WatchEvents::new(self, span)
    }
}

impl WatchEvents {
    fn new(mut commits: Commits, span: Span) -> Result<Self> {
        let store = Arc::clone(&commits.place().store);
        store.check_open()?;
        let floor = store.committer.open_newest_floor();
        let AsOf { glsn: base, .. } = floor.readable()?;
        let first = Place::at(floor.as_of().micros().saturating_add(1));
        let window = Window::new(&store.reader.budget, first.clone())?;
        let from = commits.position();
        // Commits before `from` that do not exist yet change values as well.
        commits.place_mut().next = from.min(base.next());
        Ok(Self {
            commits,
            span,
            from,
            base,
            floor,
            passed: 0,
            window,
            reported: Reported(vec![(first, base)]),
            pending: None,
            settled_micros: 0,
            is_unsettled: false,
        })
    }

    /// Returns the next event as soon as it exists, or `None` if none arrives within `timeout`. A
    /// commit by another thread wakes the call.
    ///
    /// # Errors
    /// As for [`Commits::next_timeout`]. Memory for a scan may be short:
    /// [`Error::OutOfBudget`](crate::Error::OutOfBudget). After such an error the next call
    /// continues, and no event is lost. After [`Error::Trimmed`](crate::Error::Trimmed), create a
    /// new watch.
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Option<WatchEvent>> {
        Position::poll_within(self, timeout)
    }

    /// The GLSN from which a new watch continues with the commits that this one has not returned.
    pub fn position(&self) -> Glsn {
        let next = self.pending.as_ref().map_or(self.commits.position(), Commit::glsn);
        next.max(self.from)
    }

    /// Returns a handle for other threads, which ends a wait of this feed.
    pub fn handle(&self) -> FeedHandle {
        self.commits.handle()
    }

    /// Limits the memory for expiries, for simulations.
    #[doc(hidden)]
    #[cfg(feature = "testing")]
    pub fn limit_window(&mut self, bytes: usize) {
        self.window.limit(bytes);
    }

    fn store(&self) -> &Arc<Engine> {
        &self.commits.place().store
    }

    /// The last commit that the feed has passed.
    fn state_at(&self) -> Glsn {
        let next = self.pending.as_ref().map_or(self.commits.position(), Commit::glsn);
        Glsn(next.0 - 1)
    }

    /// The next commit or expiry, without waiting.
    fn find_next(&mut self) -> Result<Option<WatchEvent>> {
        self.is_unsettled = false;
        // The clock may have been set back.
        self.settled_micros = self.settled_micros.min(self.store().reader.log.now_micros());
        loop {
            if self.pending.is_none() {
                if let Some(expired) = self.take_expired(self.settled_micros)? {
                    return Ok(Some(WatchEvent::Expiry(expired)));
                }
                let end = self.commits.place().end()?;
                self.pending = self.commits.next_before(end)?;
            }
            let Some(commit) = &self.pending else {
                if let Some(expired) = self.take_passed()? {
                    return Ok(Some(WatchEvent::Expiry(expired)));
                }
                self.move_floor()?;
                if self.settle()? {
                    continue;
                }
                return Ok(None);
            };
            let is_old = commit.glsn() <= self.base;
            let micros = to_micros(commit.time());
            // A commit can have an earlier time than was settled if the clock was set back.
            self.settled_micros = self.settled_micros.min(micros);
            if !is_old && let Some(expired) = self.take_expired(micros)? {
                return Ok(Some(WatchEvent::Expiry(expired)));
            }
            if !is_old {
                self.enter_changes()?;
            }
            self.passed += 1;
            if self.passed >= PASSED_MAX {
                self.move_floor()?;
            }
            if let Some(commit) = self.pending.take_if(|commit| commit.glsn() >= self.from) {
                return Ok(Some(WatchEvent::Commit(commit)));
            }
            self.pending = None;
        }
    }

    /// Adds the expiries of the values that the pending commit has put.
    fn enter_changes(&mut self) -> Result<()> {
        let Some(commit) = &self.pending else { return Ok(()) };
        for change in commit.changes()? {
            let change = change?;
            if let Some(expires) = change.expires().filter(|_| !change.is_delete()) {
                let (micros, key) = (to_micros(expires), change.key().into());
                self.window.enter(Place { micros, key });
            }
        }
        Ok(())
    }

    /// Takes the first expiry up to the time of the last commit that the feed has passed. Called
    /// before the floor moves there: merges judge by the time of the retained commit, and drop what
    /// has expired by then.
    fn take_passed(&mut self) -> Result<Option<Change>> {
        let at = self.state_at();
        if at <= self.floor.at() {
            return Ok(None);
        }
        let passed = self.store().committer.as_of_past(at)?.micros();
        self.take_expired(passed)
    }

    /// Moves the retained state on to the last commit that the feed has passed.
    fn move_floor(&mut self) -> Result<()> {
        self.passed = 0;
        let at = self.state_at();
        if at > self.floor.at() {
            let moment = AsOf::unexpiring(at);
            self.floor = self.store().committer.open_floor(moment)?;
        }
        Ok(())
    }

    /// Called when all readable commits are passed. Returns whether an expiry may be due before
    /// which no further commit can come.
    fn settle(&mut self) -> Result<bool> {
        let now = self.store().reader.log.now_micros();
        if self.window.must_fill_before().is_some_and(|at| at <= now + FILLED_AHEAD_MICROS) {
            self.fill()?;
        }
        if self.window.next_micros().is_none_or(|next| next > now) {
            return Ok(false);
        }
        self.is_unsettled = match self.store().committer.ordered_between_commits() {
            Ok(ordered) => ordered >= self.commits.position(),
            // Another process is stopped while it orders a commit.
            Err(Error::Stalled { .. }) => true,
            Err(error) => return Err(error),
        };
        if !self.is_unsettled {
            self.settled_micros = self.settled_micros.max(now);
        }
        Ok(!self.is_unsettled)
    }

    /// Takes the first expiry up to a time.
    fn take_expired(&mut self, upto_micros: u64) -> Result<Option<Change>> {
        loop {
            if self.window.must_fill_before().is_some_and(|at| at <= upto_micros) {
                self.fill()?;
            }
            let Some(place) = self.window.first().filter(|place| place.micros <= upto_micros)
            else {
                return Ok(None);
            };
            let current = self.current(&place.key)?;
            let Some(place) = self.window.pop_first() else { return Ok(None) };
            let expiry = Expiry::from_micros(place.micros);
            let Some((put_by, _)) = current
                .filter(|(glsn, found)| *found == expiry && !self.reported.has(&place, *glsn))
            else {
                continue;
            };
            let keyspace = self.keyspace();
            let change = Change::expired(self.store(), keyspace, &place.key, put_by, expiry);
            self.reported.note(&place, self.state_at());
            self.window.shrink();
            return Ok(Some(change));
        }
    }

    fn keyspace(&self) -> u32 {
        IndexKey::new(&self.span.first()).keyspace()
    }

    /// The current value of a key: the commit that put it, and its expiry.
    fn current(&self, key: &[u8]) -> Result<Option<(Glsn, Option<Expiry>)>> {
        let key = KeyBuffer::new(self.keyspace(), key)?;
        let at = AsOf::unexpiring(self.state_at());
        self.store()
            .reader
            .read(|view| Ok(find(view, &key, at)?.map(|hit| (hit.glsn(), hit.stored().expiry()))))
    }

    /// Fills the empty window.
    fn fill(&mut self) -> Result<()> {
        let from = self.window.begin_to_fill();
        let filled = self.fill_from(&from);
        if filled.is_err() {
            self.window.fail_to_fill(from);
        }
        filled
    }

    fn fill_from(&mut self, from: &Place) -> Result<()> {
        let store = Arc::clone(self.store());
        let at = AsOf::unexpiring(self.state_at());
        let values = Visible::new(self.span.clone().into_range(), at, Direction::Forward);
        let iterators = &store.reader.index.iterators;
        let charge = store
            .committer
            .writer_memory
            .in_transaction(true, || Ok(iterators.charge_for(&values)?))?;
        let mut values = IteratorHandle::new(iterators, values, charge);
        let (mut key, mut found, mut is_at_end) = (Vec::new(), Vec::new(), false);
        while !is_at_end {
            store.check_open()?;
            let mut bytes = 0;
            store.reader.step(&mut values, &mut key, |values, key| {
                for _ in 0..STEP_VERSIONS {
                    let Some(version) = values.next(key)? else {
                        is_at_end = true;
                        break;
                    };
                    let Some(expiry) = version.stored.expiry() else { continue };
                    let key = IndexKey::new(version.key).user_key();
                    let place = Place { micros: expiry.micros(), key: key.into() };
                    if place >= *from && !self.reported.has(&place, version.glsn) {
                        bytes += key.len();
                        found.push(place);
                    }
                    if bytes >= STEP_KEY_BYTES {
                        break;
                    }
                }
                Ok(())
            })?;
            found.drain(..).for_each(|place| self.window.enter(place));
        }
        Ok(())
    }
}

impl Follows for WatchEvents {
    type Found = WatchEvent;

    fn place(&self) -> &Position {
        self.commits.place()
    }

    fn place_mut(&mut self) -> &mut Position {
        self.commits.place_mut()
    }

    fn poll(&mut self) -> Result<Option<WatchEvent>> {
        self.store().check_open()?;
        self.find_next()
    }

    fn patience(&self) -> Duration {
        if self.is_unsettled {
            return BECOMING_READABLE;
        }
        let now = self.store().reader.log.now_micros();
        let next = self.window.next_micros().unwrap_or(u64::MAX);
        Duration::from_micros(next.saturating_sub(now).max(1)).min(CLOCK_READ_EVERY)
    }
}

impl Iterator for WatchEvents {
    type Item = Result<WatchEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step()
    }
}

impl fmt::Debug for WatchEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WatchEvents(next {})", self.position())
    }
}
