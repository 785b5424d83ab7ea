//! Gaps of deleted keys that scans share.
//!
//! A deletion hides the older versions of its key until a compaction drops both. Without gaps, each
//! new iterator would step over all deleted keys: a queue that puts at its tail and deletes at its
//! head would become slower with every item. So an iterator that has stepped over deleted keys
//! publishes the interval, and later iterators seek to its end. A commit that deletes a range
//! publishes the range.
//!
//! This module also remembers which spans of keys the last commits wrote ([`Recent`]). This shows
//! that no commit has written in a range since a moment, so validating a range that was read need
//! not search the memtables.
//!
//! A gap states: *at every GLSN from `since` on, up to the first commit that puts into the
//! interval, no key in it is alive.*
//!
//! Invariants:
//! 1. A commit removes its keys from the gaps before its GLSN counts as applied
//!    ([`Gaps::commit`]). A reader that sees the commit therefore finds no gap over its keys,
//!    however long the commit took. A spilled commit removes the spans of its tables
//!    ([`Gaps::adopt`]).
//! 2. A scan at snapshot m publishes with `since` = m, and only if no commit after m has put into
//!    the interval. A commit whose puts are no longer remembered counts as such a put. A commit
//!    that is not applied yet removes its keys from the published gap later (invariant 1).
//! 3. A reader at a snapshot before `since` does not use the gap.
//! 4. Deletions, compaction, retention and dropped keyspaces bring no key to life, so they change
//!    nothing here. Commits of other processes may, so a read-only index keeps no gaps. An index
//!    starts without any.
//! 5. The list and the memory of recent puts are bounded, and charged once they are used. If the
//!    budget refuses, there are no gaps.
//!
//! The lock is a leaf: nothing is called while it is held. A scan takes it only after
//! [`LOOKUP_AFTER`] deleted keys in a row; a commit holds it for a few instructions.

pub(crate) mod key_prefix;
pub(crate) mod list;

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, Kind, Lease};

use crate::borders::{Border, hit};
use crate::index::gaps::key_prefix::prefix;
use crate::index::gaps::list::{Gap, GapList, successor};

/// A scan looks for a known gap after it has stepped over this many deleted keys in a row.
pub(crate) const LOOKUP_AFTER: u64 = 4;
/// A scan publishes a gap of at least this many deleted keys.
pub(crate) const PUBLISH_FROM: u64 = 8;
/// In a longer gap, a scan publishes the passed part, and searches for a known gap again, each time
/// it has stepped over this many deleted keys.
pub(crate) const PUBLISH_EACH: u64 = 1024;

/// Bytes of the list.
const LIST_BYTES: usize = 48 << 10;

/// The most commits whose spans are remembered.
const RECENT: usize = 256;

/// Neighbouring gaps with different `since` are joined only if both have been known for this many
/// commits, because a reader at a slightly older snapshot can use the older gap, but not the joined
/// one, which has the younger `since`.
const SETTLED_AFTER: u64 = 128;

/// Bytes charged for the list and the remembered spans.
const CHARGED_BYTES: u64 = (LIST_BYTES + 2 * RECENT * size_of::<Span>() + 4096) as u64;

/// The gaps of an index.
#[derive(Debug)]
pub(crate) struct Gaps {
    budget: Budget,
    enabled: bool,
    /// Whether the memory is charged, so that scans may publish.
    is_armed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    list: GapList,
    lease: Option<Lease>,
    /// The spans of the keys that the last commits put.
    puts: Recent,
    /// The spans of the keys that the last commits put or deleted.
    writes: Recent,
}

/// The spans of the last commits, in order.
#[derive(Debug)]
struct Recent {
    spans: VecDeque<Span>,
    /// Every commit that is younger than this is in `spans`, unless it is not applied yet.
    known_since: Glsn,
    /// The newest commit that was noted; at first, the newest one that the runs hold.
    newest: Glsn,
}

/// The prefixes of the first and the last key of a commit.
#[derive(Clone, Copy, Debug)]
struct Span {
    glsn: Glsn,
    first: u128,
    last: u128,
}

/// The prefixes of the first and last key that a commit puts, and of those that it puts or deletes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WriteSpan {
    puts: Option<(u128, u128)>,
    writes: Option<(u128, u128)>,
}

impl WriteSpan {
    /// Adds the next key, in key order.
    pub(crate) fn add(&mut self, key: &[u8], is_put: bool) {
        let key = prefix(key);
        let longer = |span: Option<(u128, u128)>| Some((span.map_or(key, |(first, _)| first), key));
        self.writes = longer(self.writes);
        if is_put {
            self.puts = longer(self.puts);
        }
    }
}

impl Recent {
    fn new(newest: Glsn) -> Self {
        Self { spans: VecDeque::new(), known_since: Glsn::NONE, newest }
    }

    fn begin(&mut self) {
        self.spans = VecDeque::with_capacity(RECENT);
        // Earlier commits are not remembered.
        self.known_since = self.newest;
    }

    /// Remembers the span of a commit if `is_armed`.
    fn note(&mut self, span: Span, is_armed: bool) {
        debug_assert!(
            self.spans.back().is_none_or(|last| last.glsn <= span.glsn),
            "commits are noted in their order"
        );
        self.newest = self.newest.max(span.glsn);
        if !is_armed {
            return;
        }
        if self.spans.len() == RECENT
            && let Some(forgotten) = self.spans.pop_front()
        {
            self.known_since = self.known_since.max(forgotten.glsn);
        }
        self.spans.push_back(span);
    }

    /// Whether it is known that no commit after `after` has a key whose prefix is between `first`
    /// and `last`.
    fn is_unchanged_between(&self, first: u128, last: u128, after: Glsn) -> bool {
        let later = || self.spans.iter().rev().take_while(|span| span.glsn > after);
        after >= self.known_since && !later().any(|span| span.first <= last && first <= span.last)
    }
}

impl Gaps {
    /// An empty list. The runs hold all commits up to `held`. If not `enabled`, it stays empty.
    pub(crate) fn new(budget: &Budget, enabled: bool, held: Glsn) -> Self {
        let state = State {
            list: GapList::new(LIST_BYTES),
            lease: None,
            puts: Recent::new(held),
            writes: Recent::new(held),
        };
        Self {
            budget: budget.clone(),
            enabled,
            is_armed: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key at which a forward scan at snapshot `at` continues, if `from` lies in a gap.
    pub(crate) fn past(&self, from: &[u8], at: Glsn) -> Option<Vec<u8>> {
        self.skip(|list| list.past(from, at))
    }

    /// The key before which a backward scan at snapshot `at` continues, if a gap reaches up to
    /// `upto`.
    pub(crate) fn before(&self, upto: &[u8], at: Glsn) -> Option<Vec<u8>> {
        self.skip(|list| list.before(upto, at))
    }

    fn skip(&self, look_up: impl FnOnce(&GapList) -> Option<&[u8]>) -> Option<Vec<u8>> {
        // Relaxed: a missed gap only costs time.
        if !self.is_armed.load(Ordering::Relaxed) {
            self.arm();
            return None;
        }
        let to = look_up(&self.lock().list).map(<[u8]>::to_vec);
        if to.is_some() {
            hit(Border::GapSkipped);
        }
        to
    }

    /// Takes memory for gaps that a commit is going to publish.
    pub(crate) fn prepare(&self) {
        if !self.is_armed.load(Ordering::Relaxed) {
            self.arm();
        }
    }

    /// Takes memory, so that iterators can publish. If the budget refuses, the next call tries
    /// again.
    fn arm(&self) {
        if !self.enabled {
            return;
        }
        // Take the lease before the lock, because the budget may ask iterators to release their
        // sources.
        let Ok(lease) = self.budget.lease(Kind::Iterators, CHARGED_BYTES) else { return };
        let mut state = self.lock();
        if state.lease.is_none() {
            state.lease = Some(lease);
            state.puts.begin();
            state.writes.begin();
            self.is_armed.store(true, Ordering::Relaxed);
        }
    }

    /// Records that a scan at snapshot `at` found no key alive from `first` up to `end`, and
    /// stepped over `dead` deletions.
    pub(crate) fn publish(&self, first: &[u8], end: &[u8], at: Glsn, dead: u64) {
        if self.is_armed.load(Ordering::Relaxed) && first < end {
            self.lock().publish(first, end, at, dead);
        }
    }

    /// Records the gaps that the transaction committed at `glsn` has found. Its validation showed
    /// that no other commit has put into them.
    pub(crate) fn publish_committed(&self, gaps: Vec<Gap>, glsn: Glsn) {
        if gaps.is_empty() {
            return;
        }
        self.prepare();
        if self.is_armed.load(Ordering::Relaxed) {
            let mut state = self.lock();
            gaps.iter().for_each(|gap| state.publish(&gap.first, &gap.end, glsn, gap.dead));
        }
    }

    /// Removes the keys that the commit at `glsn` puts: all of them are in `keys` and within
    /// `span`.
    pub(crate) fn commit<'k>(
        &self,
        glsn: Glsn,
        span: WriteSpan,
        keys: impl FnOnce(&mut dyn FnMut(&'k [u8])),
    ) {
        let Some((first, last)) = span.writes.filter(|_| self.enabled) else { return };
        let mut state = self.lock();
        let is_armed = state.lease.is_some();
        state.writes.note(Span { glsn, first, last }, is_armed);
        let Some((first, last)) = span.puts else { return };
        state.puts.note(Span { glsn, first, last }, is_armed);
        if is_armed && state.list.touches(first, last) {
            keys(&mut |key| state.list.put(key));
        }
    }

    /// Records that the commit at `glsn` writes keys from `first` to `last`. `puts` is false if it
    /// only deletes. For ranges that it deletes, `last` is the end of the last range.
    pub(crate) fn adopt(&self, glsn: Glsn, first: &[u8], last: &[u8], puts: bool) {
        if !self.enabled {
            return;
        }
        let span = Span { glsn, first: prefix(first), last: prefix(last) };
        let mut state = self.lock();
        let is_armed = state.lease.is_some();
        state.writes.note(span, is_armed);
        if !puts {
            return;
        }
        state.puts.note(span, is_armed);
        if is_armed {
            if state.list.touches(span.first, span.last) {
                hit(Border::GapCutByRun);
            }
            state.list.cut(first, &successor(last));
        }
    }

    /// Whether the remembered writes prove that no commit after `after` has written a key of a
    /// range or deleted a range that overlaps it.
    pub(crate) fn is_unwritten(
        &self,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
        after: Glsn,
    ) -> bool {
        // If nothing is remembered, the caller searches the memtables.
        if !self.is_armed.load(Ordering::Relaxed) {
            return false;
        }
        let beginning = |bound: Bound<&[u8]>, open| match bound {
            Bound::Included(key) | Bound::Excluded(key) => prefix(key),
            Bound::Unbounded => open,
        };
        let (first, last) = (beginning(lower, 0), beginning(upper, u128::MAX));
        self.lock().writes.is_unchanged_between(first, last, after)
    }
}

impl State {
    fn publish(&mut self, first: &[u8], end: &[u8], at: Glsn, dead: u64) {
        if !self.puts.is_unchanged_between(prefix(first), prefix(end), at) {
            return;
        }
        hit(Border::GapPublished);
        let settled = Glsn(at.0.saturating_sub(SETTLED_AFTER));
        self.list.add(first, end, at, dead, settled);
    }
}
