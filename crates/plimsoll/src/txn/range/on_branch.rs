//! Iterations on a branch: the versions of the group, main at the fork, and a transaction's own
//! writes, merged by the user's keys.
//!
//! Of the group, only what the branch's lineage decides is used. Versions of other chains are
//! stepped over, or skipped by a seek if there are several in a row.

use std::sync::{Arc, Mutex, Weak};
use std::{cmp::Ordering, ops::Bound};

use plimsoll_log::glsn::Glsn;

use super::{Range, make_value_room, note_span};
use crate::index::sources::view::{Direction, View};
use crate::index::walk::seat::Seat;
use crate::index::walk::visible::Visible;
use crate::read::lens::Lens;
use crate::read::span::Span;
use crate::txn::committer::Committer;
use crate::txn::own_writes::{OwnWrites, own_value};
use crate::txn::read_set::ReadSet;
use crate::txn::rows_ahead::RowsAhead;
use crate::txn::write_set::Write;
use crate::types::as_of::AsOf;
use crate::types::branch_key;
use crate::types::error::{Error, Result};
use crate::types::expiry::Expiry;
use crate::types::version::Stored;

/// After this many versions of other chains in a row, the iterator seeks.
const STEPS_MAX: u32 = 4;

/// The state of an iterator on a branch.
pub(super) struct OnBranch<'t> {
    lens: Arc<Lens>,
    /// `None` before it has begun and after its end.
    sources: Option<Sources<'t>>,
}

/// The sources of an iterator that has begun.
struct Sources<'t> {
    main: Feed,
    side: Side,
    own: Option<Own<'t>>,
    /// An error that is returned after the rows that were read before it.
    failed: Option<Error>,
}

/// A committed version.
struct Found {
    /// Its index key.
    key: Vec<u8>,
    glsn: Glsn,
    encoded: Vec<u8>,
    /// The view in which it was found.
    view: Weak<View>,
    /// The moment at which it is the newest version of its key.
    at: Glsn,
}

impl Found {
    fn stored(&self) -> Stored<'_> {
        Stored::decode(&self.encoded).expect("the version was encoded when it was found")
    }

    fn heap_bytes(&self) -> usize {
        self.key.capacity() + self.encoded.capacity()
    }
}

/// An iterator over committed versions of a range, including those that have expired.
struct Feed {
    seat: Seat<Visible>,
    /// The key that the iterator has reached.
    key: Vec<u8>,
    at: Glsn,
    /// The next version, which is not returned yet.
    next: Option<Found>,
    is_done: bool,
}

/// What the branch's lineage decides of the group's versions.
struct Side {
    feed: Feed,
    /// The next key of main's form, and the version that decides it.
    next: Option<(Vec<u8>, Found)>,
    /// The stem of the last key.
    stem: Vec<u8>,
    /// The number of the next chain of the lineage that may decide this key; the number of chains
    /// if it is decided (forward only).
    wanted: usize,
    /// How many versions in a row were stepped over.
    steps: u32,
}

/// The own writes of a transaction.
struct Own<'t> {
    walk: OwnWrites<'t>,
    /// The index keys of the range on the branch.
    span: Span,
    /// The current key in main's form; empty at the end.
    key: Vec<u8>,
}

impl Own<'_> {
    /// Takes note of the current key.
    fn note_key(&mut self) {
        self.key.clear();
        if let Some(key) = self.walk.key().filter(|key| self.span.contains(key)) {
            let (stem, _) = branch_key::split(key);
            branch_key::main_key_into(stem, &mut self.key).expect("it was encoded by `Lens::key`");
        }
    }

    fn next_key(&self) -> Option<&[u8]> {
        Some(&self.key[..]).filter(|key| !key.is_empty())
    }
}

impl Feed {
    fn new(committer: &Committer, span: Span, at: Glsn, direction: Direction) -> Result<Self> {
        let walk = Visible::new(span.into_range(), AsOf::unexpiring(at), direction);
        let seats = &committer.reader.index.seats;
        let charge = committer.patience.in_transaction(true, || Ok(seats.charge_for(&walk)?))?;
        let seat = Seat::new(seats, walk, charge);
        Ok(Self { seat, key: Vec::new(), at, next: None, is_done: false })
    }

    /// Moves to the next version, unless there is one. Of those for which `is_wanted` returns
    /// false, the content is not copied.
    fn fill(&mut self, committer: &Committer, is_wanted: impl Fn(&[u8]) -> bool) -> Result<bool> {
        if self.next.is_some() || self.is_done {
            return Ok(self.next.is_some());
        }
        let Self { seat, key, at, .. } = self;
        let at = *at;
        self.next = committer.reader.walk(seat, key, |walk, key| {
            let Some(version) = walk.next(key)? else { return Ok(None) };
            let mut encoded = Vec::new();
            if is_wanted(version.key) {
                version.stored.encode(&mut encoded);
            }
            let (key, glsn) = (version.key.to_vec(), version.glsn);
            Ok(Some(Found { key, glsn, encoded, view: walk.view(), at }))
        })?;
        self.is_done = self.next.is_none();
        Ok(!self.is_done)
    }

    /// Reads rows ahead, up to the key `limit`, of those that need no other source and do not expire.
    /// The first other one becomes the next version.
    fn read_ahead(
        &mut self,
        committer: &Committer,
        rows: &mut RowsAhead,
        limit: Option<&[u8]>,
        direction: Direction,
        keys_only: bool,
    ) -> Result<()> {
        let Self { seat, key, at, .. } = self;
        let at = *at;
        let is_before_limit = |key: &[u8]| match direction {
            Direction::Forward => limit.is_none_or(|limit| *key < *limit),
            Direction::Backward => limit.is_none_or(|limit| *key > *limit),
        };
        let (next, is_done) = committer.reader.walk(seat, key, |walk, key| {
            while !rows.is_full() {
                let version = match walk.next(key) {
                    Ok(Some(version)) => version,
                    Ok(None) => return Ok((None, true)),
                    // The next step begins where this one failed.
                    Err(_) => return Ok((None, false)),
                };
                let stored = version.stored;
                let is_ahead = is_before_limit(version.key)
                    && row_ahead(&stored, keys_only)
                        .is_some_and(|value| rows.push(version.key, value, None));
                if !is_ahead {
                    let mut encoded = Vec::new();
                    stored.encode(&mut encoded);
                    let (key, glsn) = (version.key.to_vec(), version.glsn);
                    return Ok((Some(Found { key, glsn, encoded, view: walk.view(), at }), false));
                }
            }
            Ok((None, false))
        })?;
        (self.next, self.is_done) = (next, is_done);
        Ok(())
    }

    /// Continues at `to` (forward) or directly before it (backward).
    fn skip(&mut self, committer: &Committer, to: &[u8]) -> Result<()> {
        self.next = None;
        committer.reader.walk(&mut self.seat, &mut self.key, |walk, key| {
            walk.skip(key, to);
            Ok(())
        })
    }

    fn heap_bytes(&self) -> usize {
        self.key.capacity() + self.next.as_ref().map_or(0, Found::heap_bytes)
    }
}

impl Side {
    /// Finds the next key that the lineage decides, unless it is known.
    fn fill(&mut self, committer: &Committer, lens: &Lens, direction: Direction) -> Result<()> {
        if self.next.is_some() {
            return Ok(());
        }
        let found = match direction {
            Direction::Forward => self.find_forward(committer, lens)?,
            Direction::Backward => self.find_backward(committer, lens)?,
        };
        self.next = match found {
            None => None,
            Some(found) => {
                let key = branch_key::main_key(&found.key).ok_or_else(|| damaged(&found.key))?;
                Some((key, found))
            }
        };
        Ok(())
    }

    fn find_forward(&mut self, committer: &Committer, lens: &Lens) -> Result<Option<Found>> {
        let chains = &lens.ancestry().chains;
        let is_wanted = |key: &[u8]| lens.place_of(branch_key::split(key).1).is_some();
        loop {
            if !self.feed.fill(committer, is_wanted)? {
                return Ok(None);
            }
            let found = self.feed.next.take().expect("it was filled");
            let (stem, chain) = branch_key::split(&found.key);
            if *stem != *self.stem {
                self.stem.clear();
                self.stem.extend_from_slice(stem);
                (self.wanted, self.steps) = (0, 0);
            }
            self.wanted = lens.place_from(self.wanted, chain);
            let wanted = chains.get(self.wanted).copied();
            if let Some((_, limit)) = wanted.filter(|(id, _)| *id == chain) {
                self.steps = 0;
                if let Some(found) = up_to(committer, found, limit)? {
                    self.wanted = chains.len();
                    return Ok(Some(found));
                }
                self.wanted += 1;
                continue;
            }
            self.steps += 1;
            if self.steps > STEPS_MAX {
                self.steps = 0;
                let to = match wanted {
                    Some((id, _)) => branch_key::key_of(&self.stem, id).get().to_vec(),
                    None => branch_key::after_chains(&self.stem),
                };
                self.feed.skip(committer, &to)?;
            }
        }
    }

    fn find_backward(&mut self, committer: &Committer, lens: &Lens) -> Result<Option<Found>> {
        let chains = &lens.ancestry().chains;
        let is_wanted = |key: &[u8]| lens.place_of(branch_key::split(key).1).is_some();
        while self.feed.fill(committer, is_wanted)? {
            let key = &self.feed.next.as_ref().expect("it was filled").key;
            self.stem.clear();
            self.stem.extend_from_slice(branch_key::split(key).0);
            // The oldest chain comes first, the last one of the lineage decides.
            let (mut best, mut steps) = (None, 0);
            while self.feed.fill(committer, is_wanted)? {
                let found = self.feed.next.as_ref().expect("it was filled");
                let (stem, chain) = branch_key::split(&found.key);
                if *stem != *self.stem {
                    break;
                }
                if steps == STEPS_MAX {
                    best = self.decide(committer, lens)?;
                    self.feed.skip(committer, &self.stem.clone())?;
                    break;
                }
                steps += 1;
                let place = lens.place_of(chain);
                let found = self.feed.next.take().expect("it was filled");
                if let Some(place) = place
                    && let Some(found) = up_to(committer, found, chains[place].1)?
                {
                    best = Some(found);
                }
            }
            if best.is_some() {
                return Ok(best);
            }
        }
        Ok(None)
    }

    /// The version that decides the key with the current stem.
    fn decide(&self, committer: &Committer, lens: &Lens) -> Result<Option<Found>> {
        committer.reader.read(|view| {
            let Some(place) = lens.decide(view, &self.stem, 0, self.feed.at)? else {
                return Ok(None);
            };
            let (chain, limit) = lens.ancestry().chains[place];
            let key = branch_key::key_of(&self.stem, chain);
            version_at(view, &key, limit.min(self.feed.at))
        })
    }
}

/// The value of a row that may be read ahead: one that is stored inline and does not expire.
fn row_ahead<'s>(stored: &Stored<'s>, keys_only: bool) -> Option<&'s [u8]> {
    if *stored == Stored::Deleted || stored.expiry().is_some() {
        return None;
    }
    if keys_only { Some(&[]) } else { stored.value().inline_value() }
}

/// The version of a key at a moment.
fn version_at(view: &Arc<View>, key: &[u8], at: Glsn) -> Result<Option<Found>> {
    let Some(hit) = view.get(key, at)? else { return Ok(None) };
    let mut encoded = Vec::new();
    hit.stored().encode(&mut encoded);
    let (key, view) = (key.to_vec(), Arc::downgrade(view));
    Ok(Some(Found { key, glsn: hit.glsn(), encoded, view, at }))
}

/// The version of a found one's key up to `limit`.
fn up_to(committer: &Committer, found: Found, limit: Glsn) -> Result<Option<Found>> {
    if found.glsn <= limit {
        return Ok(Some(found));
    }
    committer.reader.read(|view| version_at(view, &found.key, limit))
}

fn damaged(key: &[u8]) -> Error {
    Error::damaged(format_args!("a key on a branch cannot be decoded: {key:?}"))
}

impl<'t> OnBranch<'t> {
    pub(super) fn new(lens: &Arc<Lens>) -> Self {
        Self { lens: Arc::clone(lens), sources: None }
    }

    /// The state of another iterator on the same branch, which has not begun.
    pub(super) fn anew(&self) -> Self {
        Self::new(&self.lens)
    }

    pub(super) fn has_begun(&self) -> bool {
        self.sources.is_some()
    }

    pub(super) fn end(&mut self) {
        self.sources = None;
    }

    /// Records that the branch's keys from `first` to `last` were read, which are in main's form.
    pub(super) fn note_reads(&self, reads: &Mutex<ReadSet>, first: &[u8], last: Bound<&[u8]>) {
        let main = Bound::Included(first);
        let group = self.lens.ancestry().group;
        let (lower, upper) =
            (branch_key::lower_bound(group, main), branch_key::upper_bound(group, last));
        let (Bound::Included(first) | Bound::Excluded(first)) = &lower else { return };
        note_span(reads, first, upper.as_ref().map(|key| key.get()));
    }

    /// Bytes that are charged, and bytes held, of which the iterator holds `held` itself.
    #[cfg(feature = "testing")]
    pub(super) fn charges(&self, held: u64) -> (u64, u64) {
        let Some(Sources { main, side, .. }) = &self.sources else { return (0, 0) };
        let (a, b) = (main.seat.charges(), side.feed.seat.charges());
        (a.0 + b.0, a.1 + b.1 + held)
    }
}

impl Sources<'_> {
    /// Whether the next key, which `from` has, can be added to rows read ahead, or is deleted.
    fn is_ahead(&self, from: From, key: &[u8], keys_only: bool) -> bool {
        let found = match from {
            From::Own => None,
            From::Side => self.side.next.as_ref().map(|(_, found)| found),
            From::Main => self.main.next.as_ref(),
        };
        found.is_some_and(|found| {
            let stored = found.stored();
            let is_deleted = stored.expiry() == Some(Expiry::OF_DELETION);
            let value = row_ahead(&stored, keys_only);
            is_deleted || value.is_some_and(|value| RowsAhead::takes(key, value))
        })
    }

    /// The first of the next keys of the sources besides main.
    fn limit(&self, direction: Direction) -> Option<Vec<u8>> {
        let own = self.own.as_ref().and_then(Own::next_key);
        let side = self.side.next.as_ref().map(|(key, _)| &key[..]);
        let both = own.into_iter().chain(side);
        match direction {
            Direction::Forward => both.min(),
            Direction::Backward => both.max(),
        }
        .map(<[u8]>::to_vec)
    }

    fn heap_bytes(&self) -> usize {
        let next = self.side.next.as_ref();
        let next = next.map_or(0, |(key, found)| key.capacity() + found.heap_bytes());
        let own = self
            .own
            .as_ref()
            .map_or(0, |own| own.walk.heap_bytes() + own.key.capacity() + own.span.heap_bytes());
        size_of::<Self>()
            + self.main.heap_bytes()
            + self.side.feed.heap_bytes()
            + self.side.stem.capacity()
            + next
            + own
    }
}

/// A source that has the next key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Own,
    Side,
    Main,
}

impl<'t> Range<'t> {
    /// Moves the next key and value of the branch into the buffers; false at the end.
    pub(super) fn step_on_branch(&mut self) -> Result<bool> {
        let mut branch = self.branch.take().expect("the caller has checked this");
        let stepped = self.step_in_branch(&mut branch);
        self.branch = Some(branch);
        stepped
    }

    fn step_in_branch(&mut self, branch: &mut OnBranch<'t>) -> Result<bool> {
        let OnBranch { lens, sources } = branch;
        let sources = match sources {
            Some(sources) => sources,
            None => sources.insert(self.begin_on_branch(lens)?),
        };
        if let Some(error) = sources.failed.take() {
            return Err(error);
        }
        sources.own.iter_mut().try_for_each(|own| own.walk.come_back())?;
        let more = self.step_in_sources(lens, sources);
        sources.own.iter_mut().for_each(|own| own.walk.leave_pages());
        more
    }

    fn begin_on_branch(&self, lens: &Lens) -> Result<Sources<'t>> {
        let (at, direction) = (self.at(), self.direction);
        let span = lens.span(self.span());
        let own = match &self.own {
            None => None,
            Some((set, updated)) => {
                let walk = self.begin_own((set, updated), &span)?;
                let mut own = Own { walk, span: span.clone(), key: Vec::new() };
                own.note_key();
                Some(own)
            }
        };
        let main = self.span().clone();
        let main = Feed::new(&self.committer, main, lens.on_main(at).glsn, direction)?;
        let feed = Feed::new(&self.committer, span, at.glsn, direction)?;
        let side = Side { feed, next: None, stem: Vec::new(), wanted: 0, steps: 0 };
        Ok(Sources { main, side, own, failed: None })
    }

    fn step_in_sources(&mut self, lens: &Lens, sources: &mut Sources<'t>) -> Result<bool> {
        let committer = Arc::clone(&self.committer);
        loop {
            let has_rows = self.rows.current().is_some();
            let main = sources.main.fill(&committer, |_| true);
            let filled = main.and_then(|_| sources.side.fill(&committer, lens, self.direction));
            if has_rows && filled.is_err() {
                sources.failed = filled.err();
                return Ok(true);
            }
            filled?;
            let keys = [
                (From::Own, sources.own.as_ref().and_then(Own::next_key)),
                (From::Side, sources.side.next.as_ref().map(|(key, _)| &key[..])),
                (From::Main, sources.main.next.as_ref().map(|found| &found.key[..])),
            ];
            let is_before = |key: &[u8], best: &[u8]| match self.direction {
                Direction::Forward => key.cmp(best) == Ordering::Less,
                Direction::Backward => key.cmp(best) == Ordering::Greater,
            };
            // Of several sources with the key, the first decides.
            let mut best: Option<(From, &[u8])> = None;
            for (from, key) in keys {
                let Some(key) = key else { continue };
                if best.is_none_or(|(_, best)| is_before(key, best)) {
                    best = Some((from, key));
                }
            }
            let Some((from, next)) = best else { return Ok(has_rows) };
            if has_rows && !sources.is_ahead(from, next, self.keys_only) {
                return Ok(true);
            }
            let mut key = self.key.take();
            key.clear();
            key.extend_from_slice(next);
            let returned = self.take_from(from, &key, sources);
            self.key.put(key);
            if returned? && (self.rows.current().is_none() || self.rows.is_full()) {
                return Ok(true);
            }
        }
    }

    /// Moves all sources past `key`, and its value into the buffer or the rows read ahead if the
    /// branch sees one. Returns whether it does.
    fn take_from(&mut self, from: From, key: &[u8], sources: &mut Sources<'t>) -> Result<bool> {
        let side = sources.side.next.take_if(|(next, _)| *next == *key).map(|(_, found)| found);
        let main = sources.main.next.take_if(|found| *found.key == *key);
        let found = match from {
            From::Own => {
                let own = sources.own.as_mut().expect("it has the next key");
                let write = own.walk.write().expect("it has the next key");
                let is_there = self.take_own(write)?;
                own.walk.advance()?;
                own.note_key();
                return Ok(is_there);
            }
            From::Side => side,
            From::Main => main,
        };
        let found = found.expect("it has the next key");
        let stored = found.stored();
        if stored.expiry() == Some(Expiry::OF_DELETION) || !self.at().sees(key, &stored) {
            return Ok(false);
        }
        self.expiry = stored.expiry();
        if let Some(value) = row_ahead(&stored, self.keys_only)
            && self.rows.push(key, value, None)
        {
            if from == From::Side {
                return Ok(true);
            }
            let limit = sources.limit(self.direction);
            let (committer, rows) = (&self.committer, &mut self.rows);
            sources.main.read_ahead(
                committer,
                rows,
                limit.as_deref(),
                self.direction,
                self.keys_only,
            )?;
            return Ok(true);
        }
        if !self.keys_only {
            self.load_found(&found)?;
        }
        Ok(true)
    }

    /// Moves the value of an own write into the buffer; false if it is a deletion.
    fn take_own(&mut self, write: Write<'_>) -> Result<bool> {
        if write.is_deletion() {
            return Ok(false);
        }
        self.expiry = write.expiry();
        if !self.keys_only {
            let set = self.own.as_ref().expect("the iterator has own writes").0;
            make_value_room(&self.committer.reader, &mut self.value, write.value_bytes())?;
            own_value(&self.committer.reader, set, write, &mut self.value)?;
        }
        Ok(true)
    }

    fn load_found(&mut self, found: &Found) -> Result<()> {
        let reader = &self.committer.reader;
        let stored = found.stored();
        make_value_room(reader, &mut self.value, stored.value_bytes())?;
        let Err(error) = reader.load(found.glsn, stored, &mut self.value) else { return Ok(()) };
        if reader.newer_view(&found.view).is_none() {
            return Err(error);
        }
        reader.read(|view| {
            let hit = view.get(&found.key, found.at)?.ok_or_else(|| error.clone())?;
            reader.load(hit.glsn(), hit.stored(), &mut self.value).map(|_| ())
        })
    }

    /// Charges what the iterator holds between two calls. If refused, the iterator is at its end.
    pub(super) fn charge_on_branch(&mut self) -> Result<()> {
        let room = self.committer.reader.index.seats.key_room();
        let key = &mut self.key;
        let rested = self.committer.patience.in_transaction(false, || Ok(key.rest(room)?));
        let bytes = size_of::<Self>() + self.own_bytes();
        let Some(sources) = self.branch.as_mut().and_then(|branch| branch.sources.as_mut()) else {
            return Ok(());
        };
        let bytes = bytes + sources.heap_bytes();
        let (main, side) = (&mut sources.main.seat, &mut sources.side.feed.seat);
        let charge = || {
            main.charge_user(bytes)?;
            Ok(side.charge_user(0)?)
        };
        let charged = rested.and_then(|()| self.committer.patience.in_transaction(false, charge));
        if charged.is_err() {
            self.finish();
        }
        charged
    }

    /// Bytes of the iterator's own buffers.
    pub(super) fn own_bytes(&self) -> usize {
        let own_value = if self.value.charged_bytes() > 0 { 0 } else { self.value.capacity() };
        let span = self.span.as_ref().map_or(0, Span::heap_bytes);
        self.key.heap_bytes() + self.rows.heap_bytes() + own_value + span
    }
}
