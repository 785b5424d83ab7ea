//! Iterations on a branch: the versions of the branch's group (`types::branches`), main at the
//! fork, and a transaction's own writes, merged by the user's keys.
//!
//! Only the group's version that the branch's lineage selects is used. Versions of other chains are
//! stepped over, or skipped by a seek if there are several in a row.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::{Arc, Mutex, Weak};

use plimsoll_log::glsn::Glsn;

use super::recording::note_span;
use super::state::begin_own;
use super::{Range, make_value_room};
use crate::index::iter::handle::IteratorHandle;
use crate::index::iter::visible::Visible;
use crate::index::sources::view::{Direction, View};
use crate::read::lens::Lens;
use crate::read::span::Span;
use crate::txn::committer::Committer;
use crate::txn::own_writes::{OwnWrites, own_value};
use crate::txn::read_set::ReadSet;
use crate::txn::write_set::Write;
use crate::types::as_of::AsOf;
use crate::types::branch_key;
use crate::types::error::{Error, Result};
use crate::types::expiry::Expiry;
use crate::types::version::{Stored, Version};

/// After this many versions of other chains in a row, the iterator seeks.
const STEPS_MAX: u32 = 4;

/// Maximum number of versions that are read at once. Each batch is larger than the one before.
const BATCH_MAX: usize = 16;

/// The size at which a batch ends.
const BATCH_BYTES_MAX: usize = 2 << 10;

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
    /// A copy of a version, without its content unless it is `wanted`.
    fn new(version: &Version<'_>, at: Glsn, wanted: bool) -> Self {
        let mut encoded = Vec::new();
        if wanted {
            version.stored.encode(&mut encoded);
        }
        let (key, glsn) = (version.key.to_vec(), version.glsn);
        Self { key, glsn, encoded, view: Weak::new(), at }
    }

    fn found_in(mut self, view: Weak<View>) -> Self {
        self.view = view;
        self
    }

    fn stored(&self) -> Stored<'_> {
        Stored::decode(&self.encoded).expect("the version was encoded when it was found")
    }

    fn heap_bytes(&self) -> usize {
        self.key.capacity() + self.encoded.capacity()
    }
}

/// An iterator over committed versions of a range, including those that have expired.
struct Feed {
    handle: IteratorHandle<Visible>,
    /// The key that the iterator has reached.
    key: Vec<u8>,
    at: Glsn,
    direction: Direction,
    /// Versions that were read and are not returned yet.
    ahead: VecDeque<Found>,
    ahead_bytes: usize,
    /// Maximum number of versions in the last batch.
    batch: usize,
    /// Whether there is nothing after `ahead`.
    is_done: bool,
}

/// The group's version that the branch's lineage selects.
struct Side {
    feed: Feed,
    /// The next key, in the form of main's index keys, and the version that decides its value.
    next: Option<(Vec<u8>, Found)>,
    /// The stem of the last key.
    stem: Vec<u8>,
    /// The place in the lineage of the next chain that may decide this key; the number of chains if
    /// the key is decided (forward only).
    wanted: usize,
    /// The number of versions in a row that were stepped over.
    steps: u32,
}

/// The own writes of a transaction.
struct Own<'t> {
    writes: OwnWrites<'t>,
    /// The index keys of the range on the branch.
    span: Span,
    /// The current key in main's form; empty at the end.
    key: Vec<u8>,
}

impl Own<'_> {
    /// Takes note of the current key.
    fn note_key(&mut self) {
        self.key.clear();
        if let Some(key) = self.writes.key().filter(|key| self.span.contains(key)) {
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
        let iter = Visible::new(span.into_range(), AsOf::unexpiring(at), direction);
        let iterators = &committer.reader.index.iterators;
        let charge =
            committer.writer_memory.in_transaction(true, || Ok(iterators.charge_for(&iter)?))?;
        let handle = IteratorHandle::new(iterators, iter, charge);
        Ok(Self {
            handle,
            key: Vec::new(),
            at,
            direction,
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            batch: 0,
            is_done: false,
        })
    }

    /// Reads a batch of versions, unless some of the last batch are left. The contents of those for
    /// which `is_wanted` returns false are not copied. Returns whether there is a next version.
    fn fill(&mut self, committer: &Committer, is_wanted: impl Fn(&[u8]) -> bool) -> Result<bool> {
        if !self.ahead.is_empty() || self.is_done {
            return Ok(!self.ahead.is_empty());
        }
        self.batch = (2 * self.batch + 1).min(BATCH_MAX);
        let Self { handle, key, at, ahead, ahead_bytes, batch, is_done, .. } = self;
        let read = committer.reader.step(handle, key, |iter, key| {
            while ahead.len() < *batch && *ahead_bytes < BATCH_BYTES_MAX {
                let Some(version) = iter.next(key)? else {
                    *is_done = true;
                    break;
                };
                let found = Found::new(&version, *at, is_wanted(version.key)).found_in(iter.view());
                *ahead_bytes += found.heap_bytes();
                ahead.push_back(found);
            }
            Ok(())
        });
        match read {
            // Versions read before the error are returned first; the next batch meets the error
            // again.
            Err(error) if ahead.is_empty() => Err(error),
            _ => Ok(!ahead.is_empty()),
        }
    }

    fn next(&self) -> Option<&Found> {
        self.ahead.front()
    }

    /// Takes the next version, if it was read and `is_it` returns true for it.
    fn take_if(&mut self, is_it: impl FnOnce(&Found) -> bool) -> Option<Found> {
        let found = self.next().is_some_and(is_it).then(|| self.ahead.pop_front()).flatten()?;
        self.ahead_bytes -= found.heap_bytes();
        Some(found)
    }

    /// Continues at `to` (forward) or directly before it (backward).
    fn skip(&mut self, committer: &Committer, to: &[u8]) -> Result<()> {
        let direction = self.direction;
        let is_skipped = |found: &Found| match direction {
            Direction::Forward => *found.key < *to,
            Direction::Backward => *found.key >= *to,
        };
        while self.take_if(is_skipped).is_some() {}
        if !self.ahead.is_empty() || self.is_done {
            return Ok(());
        }
        self.batch = 0;
        committer.reader.step(&mut self.handle, &mut self.key, |iter, key| {
            iter.skip(key, to);
            Ok(())
        })
    }

    fn heap_bytes(&self) -> usize {
        self.key.capacity() + self.ahead.capacity() * size_of::<Found>() + self.ahead_bytes
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
            let found = self.feed.take_if(|_| true).expect("it was filled");
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
            let key = &self.feed.next().expect("it was filled").key;
            self.stem.clear();
            self.stem.extend_from_slice(branch_key::split(key).0);
            // The oldest chain comes first, so the last chain that is in the lineage decides.
            let (mut best, mut steps) = (None, 0);
            while self.feed.fill(committer, is_wanted)? {
                let found = self.feed.next().expect("it was filled");
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
                let found = self.feed.take_if(|_| true).expect("it was filled");
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

/// The version of a key at a moment.
fn version_at(view: &Arc<View>, key: &[u8], at: Glsn) -> Result<Option<Found>> {
    let Some(hit) = view.get(key, at)? else { return Ok(None) };
    let mut encoded = Vec::new();
    hit.stored().encode(&mut encoded);
    let (key, view) = (key.to_vec(), Arc::downgrade(view));
    Ok(Some(Found { key, glsn: hit.glsn(), encoded, view, at }))
}

/// The newest version up to `limit` of the key that was found.
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
    pub(super) fn restarted(&self) -> Self {
        Self::new(&self.lens)
    }

    pub(super) fn has_begun(&self) -> bool {
        self.sources.is_some()
    }

    pub(super) fn end(&mut self) {
        self.sources = None;
    }

    /// Records that the branch's keys from `first` to `last`, both in main's form, were read.
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
        let (a, b) = (main.handle.charges(), side.feed.handle.charges());
        (a.0 + b.0, a.1 + b.1 + held)
    }
}

impl Sources<'_> {
    fn heap_bytes(&self) -> usize {
        let next = self.side.next.as_ref();
        let next = next.map_or(0, |(key, found)| key.capacity() + found.heap_bytes());
        let own = self
            .own
            .as_ref()
            .map_or(0, |own| own.writes.heap_bytes() + own.key.capacity() + own.span.heap_bytes());
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
        if self.rows.pass() {
            self.take_row_ahead();
            return Ok(true);
        }
        // If the step fails, the caller must know which rows were returned.
        if let Some((key, _)) = self.rows.current() {
            let mut last = self.key.take();
            last.clear();
            last.extend_from_slice(key);
            self.key.put(last);
        }
        self.rows.begin();
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
        sources.own.iter_mut().try_for_each(|own| own.writes.repin())?;
        let more = self.step_in_sources(lens, sources);
        sources.own.iter_mut().for_each(|own| own.writes.leave_pages());
        more
    }

    fn begin_on_branch(&self, lens: &Lens) -> Result<Sources<'t>> {
        let (at, direction) = (self.at(), self.direction);
        let span = lens.span(self.span());
        let own = match &self.own {
            None => None,
            Some((set, updated)) => {
                let writes = begin_own((set, updated), self.direction, &span)?;
                let mut own = Own { writes, span: span.clone(), key: Vec::new() };
                own.note_key();
                Some(own)
            }
        };
        let main = self.span().clone();
        let main = Feed::new(&self.committer, main, lens.on_main(at).glsn, direction)?;
        let feed = Feed::new(&self.committer, span, at.glsn, direction)?;
        let side = Side { feed, next: None, stem: Vec::new(), wanted: 0, steps: 0 };
        Ok(Sources { main, side, own })
    }

    fn step_in_sources(&mut self, lens: &Lens, sources: &mut Sources<'t>) -> Result<bool> {
        let committer = Arc::clone(&self.committer);
        loop {
            sources.side.fill(&committer, lens, self.direction)?;
            if self.read_main(sources)? {
                self.take_row_ahead();
                return Ok(true);
            }
            let keys = [
                (From::Own, sources.own.as_ref().and_then(Own::next_key)),
                (From::Side, sources.side.next.as_ref().map(|(key, _)| &key[..])),
                (From::Main, sources.main.next().map(|found| &found.key[..])),
            ];
            let is_before = |key: &[u8], best: &[u8]| match self.direction {
                Direction::Forward => key.cmp(best) == Ordering::Less,
                Direction::Backward => key.cmp(best) == Ordering::Greater,
            };
            // If several sources have the key, the first decides.
            let mut best: Option<(From, &[u8])> = None;
            for (from, key) in keys {
                let Some(key) = key else { continue };
                if best.is_none_or(|(_, best)| is_before(key, best)) {
                    best = Some((from, key));
                }
            }
            let Some((from, next)) = best else { return Ok(false) };
            let mut key = self.key.take();
            key.clear();
            key.extend_from_slice(next);
            let returned = self.take_from(from, &key, sources);
            self.key.put(key);
            if returned? {
                return Ok(true);
            }
        }
    }

    /// Reads rows of main ahead, up to the next key of the other sources, and returns whether there
    /// are any. The first version that is not such a row waits in its source.
    fn read_main(&mut self, sources: &mut Sources<'t>) -> Result<bool> {
        let Sources { main, side, own } = sources;
        if main.is_done || main.next().is_some() {
            return Ok(false);
        }
        let of_side = side.next.as_ref().map(|(key, _)| &key[..]);
        let others = [of_side, own.as_ref().and_then(Own::next_key)];
        let Self { committer, direction, keys_only, rows, .. } = self;
        let is_first = |key: &[u8]| match direction {
            Direction::Forward => others.iter().flatten().all(|other| *key < **other),
            Direction::Backward => others.iter().flatten().all(|other| *key > **other),
        };
        let Feed { handle, key, at, ahead, ahead_bytes, is_done, .. } = main;
        let read = committer.reader.step(handle, key, |iter, key| {
            while !rows.is_full() && ahead.is_empty() {
                let Some(version) = iter.next(key)? else {
                    *is_done = true;
                    break;
                };
                let stored = version.stored;
                let value = if *keys_only { Some(&[][..]) } else { stored.value().inline_value() };
                let is_row = stored.expiry().is_none()
                    && is_first(version.key)
                    && value.is_some_and(|value| rows.push(version.key, value, None));
                if !is_row {
                    let found = Found::new(&version, *at, true).found_in(iter.view());
                    *ahead_bytes += found.heap_bytes();
                    ahead.push_back(found);
                }
            }
            Ok(())
        });
        if self.rows.current().is_none() && main.next().is_none() {
            // Rows read before an error are returned first; the next call meets the error again.
            read?;
        }
        Ok(self.rows.current().is_some())
    }

    /// Moves all sources past `key`, and its value into the buffer if the branch sees one. Returns
    /// whether it does.
    fn take_from(&mut self, from: From, key: &[u8], sources: &mut Sources<'t>) -> Result<bool> {
        let side = sources.side.next.take_if(|(next, _)| *next == *key).map(|(_, found)| found);
        let main = sources.main.take_if(|found| *found.key == *key);
        let found = match from {
            From::Own => {
                let own = sources.own.as_mut().expect("it has the next key");
                let write = own.writes.write().expect("it has the next key");
                let is_there = self.take_own(write)?;
                own.writes.advance()?;
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

    /// Charges the memory that the iterator holds between two calls. If refused, the iterator is at
    /// its end.
    pub(super) fn charge_on_branch(&mut self) -> Result<()> {
        if self.rows.is_settled() {
            return Ok(());
        }
        let room = self.committer.reader.index.iterators.key_room();
        let key = &mut self.key;
        let rested = self.committer.writer_memory.in_transaction(false, || Ok(key.rest(room)?));
        let bytes = size_of::<Self>() + self.own_bytes();
        let Some(sources) = self.branch.as_mut().and_then(|branch| branch.sources.as_mut()) else {
            return Ok(());
        };
        let bytes = bytes + sources.heap_bytes();
        let (main, side) = (&mut sources.main.handle, &mut sources.side.feed.handle);
        let charge = || {
            main.charge_user(bytes)?;
            Ok(side.charge_user(0)?)
        };
        let charged =
            rested.and_then(|()| self.committer.writer_memory.in_transaction(false, charge));
        if charged.is_err() {
            self.remember(false);
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
