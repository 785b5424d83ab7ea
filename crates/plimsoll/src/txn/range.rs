//! Iterators over keys and values of one snapshot, combined with a transaction's own writes.
//!
//! Invariant: between two calls an iterator holds its own buffers, which are charged to the budget,
//! and nothing of the store that must be revocable (`index::iter::handle`).

mod iterator;
mod on_branch;
mod recording;
mod state;
mod visit;

use std::borrow::Cow;
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::buffer::Buffer;

use crate::index::gaps::list::successor;
use crate::index::iter::handle::IteratorHandle;
use crate::index::iter::resting_key::RestingKey;
use crate::index::iter::visible::Visible;
use crate::index::sources::view::{Direction, View};
use crate::read::lens::Lens;
use crate::read::open_moments::OpenMoment;
use crate::read::point::find;
use crate::read::reader::Reader;
use crate::read::span::Span;
use crate::txn::committer::Committer;
use crate::txn::own_gaps::OwnGaps;
use crate::txn::own_writes::{OwnWrites, UpdatedKeys, own_value};
use crate::txn::read_set::ReadSet;
use crate::txn::rows_ahead::RowsAhead;
use crate::txn::write_set::WriteSet;
use crate::types::as_of::{AsOf, Expiries};
use crate::types::error::{Error, Result};
use crate::types::expiry::Expiry;
use crate::types::index_key::{IndexKey, KeptKey};
use crate::types::value::{is_free, room_for};
use crate::types::version::Stored;

/// An iterator over the keys and values of a range. [`Range::advance`] lends them instead of
/// allocating for each, and [`Range::visit`] lends them from their place in memory.
///
/// The iterator of a snapshot is a `Range<'static>`: it keeps the snapshot open itself, and can be
/// sent to another thread.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
/// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
/// let stars = db.keyspace("stars")?;
/// for star in ["deneb", "sirius", "vega"] {
///     db.put(&stars, star, "bright")?;
/// }
/// let keys = db.snapshot().range(&stars, "e"..)?.reverse().keys_only();
/// let names = std::thread::spawn(move || keys.map(|star| star.map(|(name, _)| name)).collect());
/// let names: plimsoll::Result<Vec<_>> = names.join().expect("it does not panic");
/// assert_eq!(names?, [b"vega".to_vec(), b"sirius".to_vec()]);
/// # Ok(())
/// # }
/// ```
pub struct Range<'t> {
    committer: Arc<Committer>,
    /// `None` once the iterator has begun and the span is not needed any more.
    span: Option<Span>,
    when: When<'t>,
    /// Whether values that have expired are returned as well.
    has_expired: bool,
    direction: Direction,
    keys_only: bool,
    own: Option<(&'t WriteSet, UpdatedKeys)>,
    reads: Option<&'t Mutex<ReadSet>>,
    /// The gaps of a transaction that has written something.
    gaps: Option<&'t Mutex<OwnGaps>>,
    state: Option<Box<RangeState<'t>>>,
    /// Used on a branch instead of `state`; the span is then kept.
    branch: Option<Box<OnBranch<'t>>>,
    /// Whether it has returned a key.
    has_any: bool,
    finished: bool,
    /// Rows read ahead, beginning with the one returned last. If there are none, that row is in
    /// `key` and `value`.
    rows: RowsAhead,
    /// The key that the base (the iterator over committed versions) has reached. After a failed
    /// step, the key that this step examined.
    key: RestingKey,
    value: Buffer,
    /// The expiry of the value of the row that was returned last.
    expiry: Option<Expiry>,
    /// The iterator from the other end, once [`DoubleEndedIterator::next_back`] was called. Its
    /// span begins after the key that this iterator had reached then.
    back: Option<Box<Range<'t>>>,
}

use on_branch::OnBranch;
use recording::DEAD_FOR_A_GAP;
use state::{Passed, RangeState, Waiting, When, begin_own, next_of};

const SPAN: &str = "the span is kept as long as it is needed";

impl<'t> Range<'t> {
    fn new(committer: &Arc<Committer>, span: Span, when: When<'t>) -> Self {
        Self {
            committer: Arc::clone(committer),
            finished: span.is_empty(),
            span: Some(span),
            when,
            has_expired: false,
            direction: Direction::Forward,
            keys_only: false,
            own: None,
            reads: None,
            gaps: None,
            state: None,
            branch: None,
            has_any: false,
            rows: RowsAhead::default(),
            key: RestingKey::default(),
            value: Buffer::default(),
            expiry: None,
            back: None,
        }
    }

    /// An iterator over a snapshot that it keeps open.
    pub(crate) fn at_moment(
        committer: &Arc<Committer>,
        span: Span,
        moment: &Arc<OpenMoment>,
    ) -> Range<'static> {
        Range::new(committer, span, When::Snapshot(Arc::clone(moment)))
    }

    /// A transaction's iterator over its own writes and everything committed up to `moment`, which
    /// is ready for reads. It records its reads.
    pub(crate) fn in_transaction(
        committer: &Arc<Committer>,
        span: Span,
        (moment, expiries): (&'t OpenMoment, &'t Expiries),
        own: &'t WriteSet,
        reads: &'t Mutex<ReadSet>,
        gaps: &'t Mutex<OwnGaps>,
    ) -> Self {
        let mut range = Self::new(committer, span, When::Transaction(moment, expiries));
        range.own =
            Some(own).filter(|own| !own.is_empty()).map(|own| (own, UpdatedKeys::default()));
        range.gaps = range.own.as_ref().map(|_| gaps);
        range.reads = Some(reads);
        range
    }

    /// Adds keys that the transaction updates and that are not in its write set, with their new
    /// values.
    pub(crate) fn with_updated(mut self, own: &'t WriteSet, updated: UpdatedKeys) -> Self {
        self.own = Some((own, updated));
        self
    }

    /// Reads a branch instead of main. Only before the iteration has begun.
    pub(crate) fn on_branch(mut self, lens: &Arc<Lens>) -> Self {
        self.branch = Some(Box::new(OnBranch::new(lens)));
        // The transaction's gaps are intervals of index keys of main.
        self.gaps = None;
        self
    }

    /// Does not record reads; the caller does.
    pub(crate) fn unnoted(mut self) -> Self {
        (self.reads, self.gaps) = (None, None);
        self
    }

    /// Also returns values that have expired, and notes no expiries. Only before the iteration has
    /// begun.
    pub(crate) fn unexpiring(mut self) -> Self {
        self.has_expired = true;
        self
    }

    fn has_begun(&self) -> bool {
        let on_branch = self.branch.as_ref().is_some_and(|branch| branch.has_begun());
        self.state.is_some() || self.back.is_some() || on_branch
    }

    fn at(&self) -> AsOf<'_> {
        self.when.as_of(self.has_expired)
    }

    fn reader(&self) -> &Reader {
        &self.committer.reader
    }

    /// Iterates from the last key to the first. Only before the iteration has begun.
    #[must_use]
    pub fn reverse(mut self) -> Self {
        assert!(!self.has_begun(), "an iterator must be reversed before it begins");
        self.direction = Direction::Backward;
        self
    }

    /// Omits the values: they are not read, and empty ones are returned.
    #[must_use]
    pub fn keys_only(mut self) -> Self {
        self.keys_only = true;
        self.value.clear();
        self.rows.clear_values();
        self.back = self.back.take().map(|back| Box::new(back.keys_only()));
        self
    }

    /// The next key and value, borrowed until the next call; `None` at the end.
    ///
    /// # Errors
    /// The disk, the budget, or corruption. The iterator is then at its end.
    #[allow(clippy::type_complexity, reason = "a key and a value need no name of their own")]
    pub fn advance(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        Ok(self.advance_expiring()?.map(|(key, value, _)| (key, value)))
    }

    /// As [`Range::advance`], and when the value expires.
    #[allow(clippy::type_complexity, reason = "as above")]
    pub(crate) fn advance_expiring(&mut self) -> Result<Option<(&[u8], &[u8], Option<Expiry>)>> {
        if !self.find_next()? {
            return Ok(None);
        }
        self.charge()?;
        let (key, value) = match self.rows.current() {
            Some((key, value)) => (IndexKey::new(key).user_key(), value),
            None => (self.key.user_key(), &self.value[..]),
        };
        Ok(Some((key, value, self.expiry)))
    }

    /// The expiry of the value that was returned last; `None` if it does not expire.
    pub fn expires(&self) -> Option<SystemTime> {
        self.expiry.map(Expiry::time)
    }

    /// The key that was returned last, if the iterator is not at its end.
    pub(crate) fn last_key(&self) -> &[u8] {
        let ahead = self.rows.current();
        ahead.map_or_else(|| self.key.user_key(), |(key, _)| IndexKey::new(key).user_key())
    }

    /// The last returned index key.
    fn given_key(&self) -> Cow<'_, [u8]> {
        self.rows.current().map_or_else(|| self.key.index_key(), |(key, _)| Cow::Borrowed(key))
    }

    /// Moves the next key and value into the buffers; false at the end.
    fn find_next(&mut self) -> Result<bool> {
        if self.finished {
            return Ok(false);
        }
        let more = self.step();
        match more {
            Ok(true) => {
                let is_first = !std::mem::replace(&mut self.has_any, true);
                self.note_gap(is_first, false);
                if self.have_ends_met() {
                    self.remember(false);
                    self.finish();
                    return Ok(false);
                }
            }
            Ok(false) => {
                self.remember(true);
                self.note_gap(!self.has_any, true);
                self.finish();
            }
            Err(_) => self.finish(),
        }
        more
    }

    fn finish(&mut self) {
        self.finished = true;
        self.state = None;
        self.branch.iter_mut().for_each(|branch| branch.end());
        self.rows = RowsAhead::default();
        self.back = None;
    }

    /// Charges the memory that the iterator holds between two calls. If refused, the iterator is at
    /// its end.
    fn charge(&mut self) -> Result<()> {
        if self.branch.is_some() {
            return self.charge_on_branch();
        }
        let Some(state) = self.state.as_mut().filter(|_| !self.rows.is_settled()) else {
            return Ok(());
        };
        let reader = &self.committer.reader;
        // An iterator that has begun goes ahead of waiting operations, because most steps need no
        // more memory.
        let room = reader.index.iterators.key_room();
        let key = &mut self.key;
        let rested = self.committer.writer_memory.in_transaction(false, || Ok(key.rest(room)?));
        let own_value = if self.value.charged_bytes() > 0 { 0 } else { self.value.capacity() };
        let bytes = size_of::<Self>()
            + self.key.heap_bytes()
            + self.rows.heap_bytes()
            + own_value
            + state.heap_bytes();
        let span = self.span.as_ref().map_or(0, Span::heap_bytes);
        let charge = || Ok(state.base.charge_user(bytes + span)?);
        let charged =
            rested.and_then(|()| self.committer.writer_memory.in_transaction(false, charge));
        if charged.is_err() {
            self.finish();
        }
        charged
    }

    /// Bytes that are charged, and bytes that the iterator holds between two calls, for
    /// simulations.
    #[doc(hidden)]
    #[cfg(feature = "testing")]
    pub fn charges(&self) -> (u64, u64) {
        let (charged, held) = self.back.as_ref().map_or((0, 0), |back| back.charges());
        let own = self.own_charges();
        (own.0 + charged, own.1 + held)
    }

    #[cfg(feature = "testing")]
    fn own_charges(&self) -> (u64, u64) {
        if let Some(branch) = self.branch.as_ref().filter(|_| !self.rows.is_settled()) {
            let held = (size_of::<Self>() + self.own_bytes()) as u64;
            return branch.charges(held);
        }
        let Some(state) = self.state.as_ref().filter(|_| !self.rows.is_settled()) else {
            return (0, 0);
        };
        let own_value = if self.value.charged_bytes() > 0 { 0 } else { self.value.capacity() };
        let own = self.key.heap_bytes() + self.rows.heap_bytes() + own_value + state.heap_bytes();
        let span = self.span.as_ref().map_or(0, Span::heap_bytes);
        let (charged, base) = state.base.charges();
        (charged, base + (size_of::<Self>() + own + span) as u64)
    }

    /// Moves the next key and value into the buffers; false at the end.
    fn step(&mut self) -> Result<bool> {
        self.reader().check_open()?;
        self.expiry = None;
        if self.branch.is_some() {
            return self.step_on_branch();
        }
        if self.rows.pass() {
            self.take_row_ahead();
            return Ok(true);
        }
        self.rows.begin();
        let mut state = match self.state.take() {
            Some(state) => state,
            None => match self.begin()? {
                Some(state) => Box::new(state),
                None => return Ok(false),
            },
        };
        self.drop_passed_own(&mut state)?;
        let mut key = self.key.take();
        let more = self.step_in(&mut state, &mut key);
        self.key.put(key);
        self.state = Some(state);
        more
    }

    /// Begins the iteration; `None` if the whole range is a gap.
    fn begin(&mut self) -> Result<Option<RangeState<'t>>> {
        let skip = self.gap_at_begin();
        if skip.as_ref().is_some_and(|skip| self.is_beyond(skip)) {
            return Ok(None);
        }
        let own = match (&self.own, &skip) {
            (None, _) => None,
            (Some((set, updated)), None) => {
                Some(begin_own((set, updated), self.direction, self.span())?)
            }
            (Some((set, updated)), Some(skip)) => {
                Some(OwnWrites::new((set, updated), self.direction, Some(skip))?)
            }
        };
        let is_asked_for = self.reads.is_some() || own.is_some();
        let span = if is_asked_for { self.span.clone() } else { self.span.take() };
        let (mut lower, mut upper) = span.expect(SPAN).into_range();
        match (&skip, self.direction) {
            (None, _) => {}
            (Some(skip), Direction::Forward) => lower = Bound::Included(KeptKey::from_slice(skip)),
            (Some(skip), Direction::Backward) => upper = Bound::Excluded(KeptKey::from_slice(skip)),
        }
        let base = Visible::new((lower, upper), self.at(), self.direction);
        let iterators = &self.reader().index.iterators;
        let charge = self
            .committer
            .writer_memory
            .in_transaction(true, || Ok(iterators.charge_for(&base)?))?;
        let base = IteratorHandle::new(iterators, base, charge);
        let passed = Passed { dead: 0, skipped: skip.is_some(), edge: skip };
        Ok(Some(RangeState {
            base,
            base_key: Vec::new(),
            waiting: None,
            base_done: false,
            own,
            passed,
        }))
    }

    /// Whether no key of the range is at or after `to` in the iterator's direction.
    fn is_beyond(&self, to: &[u8]) -> bool {
        match self.direction {
            Direction::Forward => self.span().end().is_some_and(|end| *to >= *end),
            Direction::Backward => *to <= *self.span().first(),
        }
    }

    fn span(&self) -> &Span {
        self.span.as_ref().expect(SPAN)
    }

    /// Reads the next rows of the base; false at the end. If the value of the last row must be
    /// loaded, that row is returned after the rows read before it.
    fn step_in_base(&mut self, state: &mut RangeState<'t>, key: &mut Vec<u8>) -> Result<bool> {
        if state.waiting.is_none() {
            state.waiting = self.read_ahead(state, key)?;
        }
        if self.rows.current().is_some() {
            self.take_row_ahead();
            return Ok(true);
        }
        let Some(Waiting { glsn, encoded, view }) = state.waiting.take() else { return Ok(false) };
        let stored = Stored::decode(&encoded).expect("the version was encoded above");
        self.expiry = stored.expiry();
        self.at().note(key, &stored);
        if !self.keys_only {
            self.load_value(key, glsn, stored, &view)?;
        }
        Ok(true)
    }

    /// Returns the current row that was read ahead. Only now does the transaction depend on when
    /// its value expires.
    fn take_row_ahead(&mut self) {
        self.expiry = self.rows.expiry();
        if let (Some(expiry), Some((key, _))) = (self.expiry, self.rows.current()) {
            self.at().note_expiry(key, expiry);
        }
    }

    /// Reads as many rows of the base as may be read ahead, and leaves `key` at the last. Returns a
    /// row that is too large to be read ahead.
    fn read_ahead(
        &mut self,
        state: &mut RangeState<'t>,
        key: &mut Vec<u8>,
    ) -> Result<Option<Waiting>> {
        let Self { committer, when, has_expired, keys_only, rows, .. } = self;
        let at = &when.as_of(*has_expired);
        committer.reader.step(&mut state.base, key, |base, key| {
            while !rows.is_full() {
                let version = match next_of(base, key, at) {
                    Ok(Some(version)) => version,
                    Ok(None) => break,
                    Err(error) if rows.current().is_none() => return Err(error),
                    // The next step begins where this one failed.
                    Err(_) => break,
                };
                let (glsn, stored) = (version.glsn, version.stored);
                let value = if *keys_only { Some(&[][..]) } else { stored.value().inline_value() };
                let is_ahead =
                    value.is_some_and(|value| rows.push(version.key, value, stored.expiry()));
                if !is_ahead {
                    let mut encoded = Vec::new();
                    stored.encode(&mut encoded);
                    return Ok(Some(Waiting { glsn, encoded, view: base.view() }));
                }
            }
            Ok(None)
        })
    }

    /// Loads the value of the base version at `key`, which was found in `view`.
    fn load_value(
        &mut self,
        key: &[u8],
        glsn: Glsn,
        stored: Stored<'_>,
        view: &Weak<View>,
    ) -> Result<()> {
        make_value_room(&self.committer.reader, &mut self.value, stored.value_bytes())?;
        match self.committer.reader.load(glsn, stored, &mut self.value) {
            Ok(_) => Ok(()),
            Err(error) => self.load_again(key, view, error),
        }
    }

    /// Loads the value of the base version at `key` from the current view, after loading it from
    /// `view` failed.
    fn load_again(&mut self, key: &[u8], view: &Weak<View>, error: Error) -> Result<()> {
        if self.reader().newer_view(view).is_none() {
            return Err(error);
        }
        let reader = &self.committer.reader;
        reader.read(|view| {
            let hit =
                find(view, key, self.when.as_of(self.has_expired))?.ok_or_else(|| error.clone())?;
            reader.load(hit.glsn(), hit.stored(), &mut self.value).map(|_| ())
        })
    }

    /// Fetches the next base version into `waiting`, unless one is there.
    fn wait_for_base(&self, state: &mut RangeState<'t>) -> Result<()> {
        if state.waiting.is_some() || state.base_done {
            return Ok(());
        }
        state.waiting = self.reader().step(&mut state.base, &mut state.base_key, |base, key| {
            let at = self.at();
            let Some(version) = next_of(base, key, &at)? else { return Ok(None) };
            at.note(version.key, &version.stored);
            let mut encoded = Vec::new();
            version.stored.encode(&mut encoded);
            let glsn = version.glsn;
            Ok(Some(Waiting { glsn, encoded, view: base.view() }))
        })?;
        state.base_done = state.waiting.is_none();
        Ok(())
    }

    fn step_in(&mut self, state: &mut RangeState<'t>, key: &mut Vec<u8>) -> Result<bool> {
        let Some(own) = &mut state.own else { return self.step_in_base(state, key) };
        own.repin()?;
        let more = self.step_with_own(state, key);
        state.own.iter_mut().for_each(OwnWrites::leave_pages);
        more
    }

    /// Drops the own writes if the iterator is past the last of them, so that it reads rows ahead.
    fn drop_passed_own(&mut self, state: &mut RangeState<'t>) -> Result<()> {
        let Some(own) = &mut state.own else { return Ok(()) };
        own.repin()?;
        let has_ranges = self.own.as_ref().is_some_and(|(set, _)| !set.ranges().is_empty());
        if state.waiting.is_none()
            && !has_ranges
            && own.key().is_none_or(|key| !self.span().contains(key))
        {
            // Record reads first, because the base may be at an earlier key than the last one
            // returned.
            self.note_reads(false);
            state.own = None;
            self.key.put(std::mem::take(&mut state.base_key));
        }
        Ok(())
    }

    fn step_with_own(&mut self, state: &mut RangeState<'t>, key: &mut Vec<u8>) -> Result<bool> {
        loop {
            self.wait_for_base(state)?;
            if state.waiting.is_some() && self.skip_own_range(state)? {
                continue;
            }
            let own = state.own.as_mut().expect("`own` was checked above");
            let own_key = own.key().filter(|key| self.span().contains(key));
            let base_key = state.waiting.as_ref().map(|_| state.base_key.as_slice());
            let take_own = match (own_key, base_key) {
                (None, None) => return Ok(false),
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (Some(own), Some(base)) => match self.direction {
                    Direction::Forward => own <= base,
                    Direction::Backward => own >= base,
                },
            };
            if !take_own {
                let Waiting { glsn, encoded, view } =
                    state.waiting.take().expect("`waiting` was checked above");
                key.clone_from(&state.base_key);
                let stored = Stored::decode(&encoded).expect("the version was encoded above");
                self.expiry = stored.expiry();
                if !self.keys_only {
                    self.load_value(key, glsn, stored, &view)?;
                }
                return Ok(true);
            }
            if own_key == base_key {
                state.waiting = None;
            }
            key.clear();
            key.extend_from_slice(own.key().expect("the own write was checked above"));
            let write = own.write().expect("the own write was checked above");
            let deleted = write.is_deletion();
            self.expiry = write.expiry();
            if !deleted && !self.keys_only {
                let set = self.own.as_ref().expect("the iterator has own writes").0;
                make_value_room(&self.committer.reader, &mut self.value, write.value_bytes())?;
                own_value(&self.committer.reader, set, write, &mut self.value)?;
            }
            own.advance()?;
            if !deleted {
                return Ok(true);
            }
            if !self.skip_deleted(state, key)? {
                return Ok(false);
            }
        }
    }

    /// If the base's next key is in a range that the transaction deletes, moves the base past the
    /// range. Returns whether it did.
    fn skip_own_range(&self, state: &mut RangeState<'t>) -> Result<bool> {
        let Some(range) = self.own.as_ref().and_then(|(own, _)| own.range_over(&state.base_key))
        else {
            return Ok(false);
        };
        state.waiting = None;
        let to = match self.direction {
            Direction::Forward => &range.end,
            Direction::Backward => &range.first,
        };
        self.reader().step(&mut state.base, &mut state.base_key, |base, key| {
            base.skip(key, to);
            Ok(())
        })?;
        Ok(true)
    }

    /// Counts a step over an own deletion of `key`, and seeks to the end of a gap that contains it.
    /// False if that is after the range.
    fn skip_deleted(&self, state: &mut RangeState<'t>, key: &[u8]) -> Result<bool> {
        let (direction, passed) = (self.direction, &mut state.passed);
        if passed.edge.is_none() && self.has_any {
            passed.edge = Some(match direction {
                Direction::Forward => key.to_vec(),
                Direction::Backward => successor(key),
            });
        }
        passed.dead += 1;
        if !passed.dead.is_multiple_of(DEAD_FOR_A_GAP) {
            return Ok(true);
        }
        let skip = self.gaps.and_then(|gaps| {
            let gaps = gaps.lock().unwrap_or_else(PoisonError::into_inner);
            match direction {
                Direction::Forward => gaps.skip(direction, key),
                Direction::Backward => gaps.skip(direction, &successor(key)),
            }
        });
        let Some(skip) = skip else { return Ok(true) };
        if self.is_beyond(&skip) {
            return Ok(false);
        }
        let is_ahead = |base: &[u8]| match direction {
            Direction::Forward => *base >= *skip,
            Direction::Backward => *base < *skip,
        };
        if !(state.base_done || state.waiting.is_some() && is_ahead(&state.base_key)) {
            state.waiting = None;
            self.reader().step(&mut state.base, &mut state.base_key, |base, key| {
                base.skip(key, &skip);
                Ok(())
            })?;
        }
        state.own.as_mut().expect("`own` was checked above").seek(Some(&skip))?;
        state.passed = Passed { dead: 0, edge: Some(skip), skipped: true };
        Ok(true)
    }
}

/// Prepares `value` for `len` bytes. Memory of a previous large value is released.
fn make_value_room(reader: &Reader, value: &mut Buffer, len: u64) -> Result<()> {
    let charged = value.charged_bytes();
    let fits = if is_free(len) { charged == 0 } else { (len..=2 * len).contains(&charged) };
    if !fits {
        // Release the old buffer first, because its own charge may be what makes the reservation
        // fail.
        *value = Buffer::default();
        *value = room_for(&reader.budget, len)?;
    }
    value.clear();
    Ok(())
}

impl Drop for Range<'_> {
    fn drop(&mut self) {
        self.remember(false);
    }
}

impl fmt::Debug for Range<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Range({:?}, {:?}, as of {})", self.span, self.direction, self.at().glsn)
    }
}
