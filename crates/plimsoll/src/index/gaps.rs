//! Gaps of deleted keys that walks remember for each other.
//!
//! A deletion hides its key until a compaction drops both, and each new walk would step over all of
//! them: a queue that puts at its tail and deletes at its head becomes slower with every turn. So a
//! walk that has stepped over deleted keys publishes the interval, and later walks seek to its end.
//!
//! A gap is a fact about moments: *at every moment from `since` on, up to the first commit that
//! puts into it, no key in it is alive.*
//!
//! Laws:
//! 1. A commit takes its keys out of the gaps before its GLSN becomes the applied one
//!    ([`Gaps::commit`]). So who reads at a moment in which the commit is visible finds no gap over
//!    its keys, however long the commit had been on its way. A spilled commit takes out the spans
//!    of its tables ([`Gaps::adopt`]).
//! 2. A walk at the moment m publishes with `since` = m, and only if no commit after m has put into
//!    the interval. Commits of which this is not known any more count as if they had. Commits that
//!    are not applied yet come later under the same lock, and law 1 holds for them.
//! 3. A reader at a moment before `since` does not use a gap.
//! 4. Deletions, compaction, retention and dropped keyspaces bring no key to life, so they change
//!    nothing here. Another process does: a read-only index keeps no gaps. An index that is opened
//!    begins without any.
//! 5. The list and the memory of recent puts are bounded, and charged once they are used. Where the
//!    budget refuses, there are no gaps.
//!
//! The lock is a leaf: nothing is called while it is held. A walk takes it only after it has
//! stepped over [`LOOK_AFTER`] deleted keys in a row, a commit for a few instructions.

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

/// A walk asks for a gap after it has stepped over this many deleted keys in a row,
pub(crate) const LOOK_AFTER: u64 = 4;
/// publishes one of at least this many,
pub(crate) const PUBLISH_FROM: u64 = 8;
/// and after this many publishes what it has passed so far, and asks again.
pub(crate) const PUBLISH_EACH: u64 = 1024;

/// Bytes of the list.
const LIST_BYTES: usize = 48 << 10;

/// The most commits whose puts are remembered.
const RECENT: usize = 256;

/// Neighbouring gaps stay apart while one is known since a moment this close to the newest: readers
/// of slightly older moments still use the other one.
const SETTLED_AFTER: u64 = 128;

/// Bytes charged for all of it.
const CHARGED_BYTES: u64 = (LIST_BYTES + RECENT * size_of::<Puts>() + 4096) as u64;

/// The gaps of an index.
#[derive(Debug)]
pub(crate) struct Gaps {
    budget: Budget,
    enabled: bool,
    /// Whether walks may publish: there is memory for it.
    is_armed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    list: GapList,
    lease: Option<Lease>,
    /// Puts of the last commits, in order.
    recent: VecDeque<Puts>,
    /// Every commit with puts that is younger than this is in `recent`, unless it is not applied
    /// yet.
    known_since: Glsn,
    /// No commit with puts that was applied is younger.
    newest: Glsn,
}

/// Where a commit put: the beginnings of its first and its last key.
#[derive(Clone, Copy, Debug)]
struct Puts {
    glsn: Glsn,
    first: u128,
    last: u128,
}

/// The first and the last key that a commit puts; its deletions are left out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PutSpan(Option<(u128, u128)>);

impl PutSpan {
    /// The next key in order.
    pub(crate) fn add(&mut self, key: &[u8]) {
        let key = prefix(key);
        self.0 = Some((self.0.map_or(key, |(first, _)| first), key));
    }
}

impl Gaps {
    /// No gaps; runs hold commits up to `held`. Disabled, there never are any.
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

    /// Where a forward walk at the moment `at` goes on from `from`, if that lies in a gap.
    pub(crate) fn past(&self, from: &[u8], at: Glsn) -> Option<Vec<u8>> {
        self.skip(|list| list.past(from, at))
    }

    /// What a backward walk at the moment `at` goes on before, if a gap reaches up to `upto`.
    pub(crate) fn before(&self, upto: &[u8], at: Glsn) -> Option<Vec<u8>> {
        self.skip(|list| list.before(upto, at))
    }

    fn skip(&self, look_up: impl FnOnce(&GapList) -> Option<&[u8]>) -> Option<Vec<u8>> {
        // Relaxed: what is missed here is only slower.
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

    /// Takes memory, so that walks can publish. Refused, the next walk tries again.
    fn arm(&self) {
        if !self.enabled {
            return;
        }
        // Before the lock: the budget may ask walks to get up.
        let Ok(lease) = self.budget.lease(Kind::Walks, CHARGED_BYTES) else { return };
        let mut state = self.lock();
        if state.lease.is_none() {
            state.lease = Some(lease);
            state.recent = VecDeque::with_capacity(RECENT);
            // Of earlier commits nothing was remembered.
            state.known_since = state.newest;
            self.is_armed.store(true, Ordering::Relaxed);
        }
    }

    /// A walk at the moment `at` found no key alive from `first` up to `end`, and stepped over
    /// `dead` deletions.
    pub(crate) fn publish(&self, first: &[u8], end: &[u8], at: Glsn, dead: u64) {
        if self.is_armed.load(Ordering::Relaxed) && first < end {
            self.lock().publish(first, end, at, dead);
        }
    }

    /// A commit at `glsn` has these gaps: it read them, and no other commit has put into them
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

    /// The commit at `glsn` puts keys of `span`; `keys` are all keys that it puts.
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

    /// The commit at `glsn` puts keys from `first` to `last`.
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
    /// Remembers where a commit put. Returns whether anything is remembered.
    fn note(&mut self, puts: Puts) -> bool {
        debug_assert!(
            self.recent.back().is_none_or(|last| last.glsn <= puts.glsn),
            "commits are noted in their order"
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
