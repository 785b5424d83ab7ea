//! Gaps of deleted keys that scans share.
//!
//! A deletion hides its key until a compaction drops both, and every scan would step over all of
//! them: a queue that puts at its tail and deletes at its head becomes slower with every turn. A
//! scan that has stepped over deleted keys therefore publishes the interval, and later scans seek
//! to its end.
//!
//! A gap states: *at every GLSN from `since` on, up to the first commit that puts into the
//! interval, no key in it is alive.*
//!
//! Laws:
//! 1. A commit removes its keys from the gaps before its GLSN becomes the applied one
//!    ([`Gaps::commit`]). A reader that sees the commit therefore finds no gap over its keys,
//!    however long the commit took. A spilled commit removes the spans of its tables
//!    ([`Gaps::adopt`]).
//! 2. A scan at snapshot m publishes with `since` = m, and only if no commit after m has put into
//!    the interval. A commit whose puts are no longer remembered counts as such a put. A commit
//!    that is not applied yet takes the lock later, and law 1 covers it.
//! 3. A reader at a snapshot before `since` does not use the gap.
//! 4. Deletions, compaction, retention and dropped keyspaces bring no key to life, so they change
//!    nothing here. Another process may, so a read-only index keeps no gaps. An index starts
//!    without any.
//! 5. The list and the memory of recent puts are bounded, and charged once they are used. If the
//!    budget refuses, there are no gaps.
//!
//! The lock is a leaf: nothing is called while it is held. A scan takes it only after
//! [`LOOK_AFTER`] deleted keys in a row; a commit holds it for a few instructions.

pub(crate) mod key_prefix;
pub(crate) mod list;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, Kind, Lease};

use crate::borders::{Border, hit};
use crate::index::gaps::key_prefix::prefix;
use crate::index::gaps::list::{Gap, GapList, behind};

/// A scan looks a gap up after it has stepped over this many deleted keys in a row,
pub(crate) const LOOK_AFTER: u64 = 4;
/// publishes one of at least this many,
pub(crate) const PUBLISH_FROM: u64 = 8;
/// and after each further run of this many publishes what it has passed, and looks up again.
pub(crate) const PUBLISH_EACH: u64 = 1024;

/// Bytes of the list.
const LIST_BYTES: usize = 48 << 10;

/// The most commits whose puts are remembered.
const RECENT: usize = 256;

/// Neighbouring gaps are joined only if both have been known for this many commits. Before that, a
/// reader at a slightly older snapshot can still use the older one.
const SETTLED_AFTER: u64 = 128;

/// Bytes charged for all of it.
const CHARGED_BYTES: u64 = (LIST_BYTES + RECENT * size_of::<Puts>() + 4096) as u64;

/// The gaps of an index.
#[derive(Debug)]
pub(crate) struct Gaps {
    budget: Budget,
    enabled: bool,
    /// Whether scans may publish: the memory is charged.
    is_armed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    list: GapList,
    lease: Option<Lease>,
    /// Puts of the last commits, in order.
    recent: VecDeque<Puts>,
    /// `recent` has every applied commit with puts that is younger than this.
    known_since: Glsn,
    /// The youngest applied commit with puts.
    newest: Glsn,
}

/// The range in which a commit put: the prefixes of its first and its last key.
#[derive(Clone, Copy, Debug)]
struct Puts {
    glsn: Glsn,
    first: u128,
    last: u128,
}

/// The prefixes of the first and the last key that a commit puts. Deletions do not count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PutSpan(Option<(u128, u128)>);

impl PutSpan {
    /// Adds the next key in order.
    pub(crate) fn add(&mut self, key: &[u8]) {
        let key = prefix(key);
        self.0 = Some((self.0.map_or(key, |(first, _)| first), key));
    }
}

impl Gaps {
    /// No gaps; runs hold commits up to `held`. If not `enabled`, there never are any.
    pub(crate) fn new(budget: &Budget, enabled: bool, held: Glsn) -> Self {
        let state = State {
            list: GapList::new(LIST_BYTES),
            lease: None,
            recent: VecDeque::new(),
            known_since: Glsn::NONE,
            newest: held,
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

    /// Charges the memory, so that scans can publish. If the budget refuses, the next scan tries
    /// again.
    fn arm(&self) {
        if !self.enabled {
            return;
        }
        // Before the lock, because the budget may ask iterators to release their sources.
        let Ok(lease) = self.budget.lease(Kind::Walks, CHARGED_BYTES) else { return };
        let mut state = self.lock();
        if state.lease.is_none() {
            state.lease = Some(lease);
            state.recent = VecDeque::with_capacity(RECENT);
            // Nothing was remembered of earlier commits.
            state.known_since = state.newest;
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

    /// Records the gaps that the commit at `glsn` has read. No other commit has put into them
    /// since.
    pub(crate) fn publish_committed(&self, gaps: Vec<Gap>, glsn: Glsn) {
        if gaps.is_empty() {
            return;
        }
        if !self.is_armed.load(Ordering::Relaxed) {
            self.arm();
        }
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
        span: PutSpan,
        keys: impl FnOnce(&mut dyn FnMut(&'k [u8])),
    ) {
        let Some((first, last)) = span.0.filter(|_| self.enabled) else { return };
        let mut state = self.lock();
        if state.note(Puts { glsn, first, last }) && state.list.touches(first, last) {
            keys(&mut |key| state.list.put(key));
        }
    }

    /// Removes the keys from `first` to `last`, which the commit at `glsn` puts.
    pub(crate) fn adopt(&self, glsn: Glsn, first: &[u8], last: &[u8]) {
        if self.enabled {
            let mut state = self.lock();
            if state.note(Puts { glsn, first: prefix(first), last: prefix(last) }) {
                let end = behind(last);
                if state.list.touches(prefix(first), prefix(last)) {
                    hit(Border::GapCutByRun);
                }
                state.list.cut(first, &end);
            }
        }
    }
}

impl State {
    /// Remembers where a commit put. Returns whether gaps are kept at all.
    fn note(&mut self, puts: Puts) -> bool {
        debug_assert!(
            self.recent.back().is_none_or(|last| last.glsn <= puts.glsn),
            "commits are noted in GLSN order"
        );
        self.newest = self.newest.max(puts.glsn);
        if self.lease.is_none() {
            return false;
        }
        if self.recent.len() == RECENT
            && let Some(forgotten) = self.recent.pop_front()
        {
            self.known_since = self.known_since.max(forgotten.glsn);
        }
        self.recent.push_back(puts);
        true
    }

    fn publish(&mut self, first: &[u8], end: &[u8], at: Glsn, dead: u64) {
        if at < self.known_since {
            return;
        }
        let (from, to) = (prefix(first), prefix(end));
        let later = self.recent.iter().rev().take_while(|puts| puts.glsn > at);
        if later.into_iter().any(|puts| puts.first <= to && from <= puts.last) {
            return;
        }
        hit(Border::GapPublished);
        let settled = Glsn(at.0.saturating_sub(SETTLED_AFTER));
        self.list.add(first, end, at, dead, settled);
    }
}
