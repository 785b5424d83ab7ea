//! Commits that are appended to the order together.
//!
//! A commit first enters the group, then joins the open batch under the commit lock. The first
//! commit of a batch is its leader: it closes the batch once no other commit is about to join or
//! the batch is full, and appends the batch without the commit lock. Commits that come meanwhile
//! wait, and form the next batch.
//!
//! Invariant: the commits of a batch are checked against the same state, and none of them depends
//! on one before it in the batch, so that they are serializable in their order. A commit that
//! depends on one in the batch waits for the next batch.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use plimsoll_memory::budget::Lease;

use crate::txn::replica::access::Deadline;
use crate::txn::replica::batch::BatchBuilder;
use crate::types::error::Error;
use crate::types::lock::lock;

/// The result of a batch, for each commit in it.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// The batch is in the order and applied.
    Done,
    /// The batch is not in the order, because another one came first.
    Again,
    Failed(Error),
}

/// Where the commits of a batch wait for its outcome.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    outcome: Mutex<Option<Outcome>>,
    known: Condvar,
}

impl Slot {
    pub(crate) fn wait(&self) -> Outcome {
        let outcome = lock(&self.outcome);
        let known = self.known.wait_while(outcome, |outcome| outcome.is_none());
        known.unwrap_or_else(PoisonError::into_inner).clone().expect("it is known")
    }

    /// Sets the outcome, unless it is set already.
    fn set(&self, outcome: Outcome) {
        lock(&self.outcome).get_or_insert(outcome);
        self.known.notify_all();
    }
}

/// A batch that commits join.
#[derive(Debug)]
pub(crate) struct OpenBatch {
    pub(crate) position: u64,
    pub(crate) builder: BatchBuilder,
    /// The keys that its commits write.
    pub(crate) written: BTreeSet<Vec<u8>>,
    /// The time of its last record.
    pub(crate) last_micros: u64,
    /// Whether no further commit may join.
    pub(crate) is_closed: bool,
    /// The earliest deadline of its commits.
    pub(crate) deadline: Deadline,
    pub(crate) lease: Lease,
    pub(crate) slot: Arc<Slot>,
}

impl OpenBatch {
    /// Whether one of its commits writes a key between the bounds.
    pub(crate) fn writes_in(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
        let is_empty = match (lower, upper) {
            (Bound::Included(first), Bound::Included(last)) => first > last,
            (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => {
                a >= b
            }
            _ => false,
        };
        !is_empty && self.written.range::<[u8], _>((lower, upper)).next().is_some()
    }
}

/// The open batch, and the commits that are about to join it.
#[derive(Debug, Default)]
pub(crate) struct Group {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Commits that are about to join.
    entering: u64,
    /// Commits that were about to join, and have joined or left.
    entered: u64,
    /// Whether a batch is being appended.
    is_sending: bool,
    /// Changed only under the commit lock, or by the leader that closes it.
    pub(crate) open: Option<OpenBatch>,
}

impl State {
    /// Whether each commit that has been given a time is in the log.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_sending && self.open.is_none()
    }

    /// Whether a commit may join or begin a batch now.
    pub(crate) fn may_join(&self) -> bool {
        !self.is_sending && self.open.as_ref().is_none_or(|open| !open.is_closed)
    }
}

/// A commit that is about to join. While it exists, the open batch is not closed, unless it is
/// full.
pub(crate) struct Entered<'a>(&'a Group);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.entering -= 1;
        state.entered += 1;
        drop(state);
        self.0.changed.notify_all();
    }
}

impl Group {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Waits until a commit may join or begin a batch.
    pub(crate) fn enter(&self) -> Entered<'_> {
        let mut state = self.state();
        state.entering += 1;
        let entered = Entered(self);
        let state = self.changed.wait_while(state, |state| !state.may_join());
        drop(state.unwrap_or_else(PoisonError::into_inner));
        entered
    }

    /// Closes the open batch, which the caller has begun, once it is full, or once as many commits
    /// have joined or left as are about to join now.
    pub(crate) fn close(&self) -> Sending<'_> {
        let state = self.state();
        // Commits that enter later do not keep the batch open.
        let last = state.entered + state.entering;
        let is_joined = |state: &mut State| {
            state.entering > 0
                && state.entered < last
                && state.open.as_ref().is_some_and(|open| !open.is_closed)
        };
        let state = self.changed.wait_while(state, is_joined);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let batch = state.open.take().expect("only its leader takes it");
        state.is_sending = true;
        let slot = Arc::clone(&batch.slot);
        Sending { group: self, batch: Some(batch), slot }
    }

    /// Wakes the leader, so that it sees that its batch is full.
    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }
}

/// A batch that is being appended.
pub(crate) struct Sending<'a> {
    group: &'a Group,
    batch: Option<OpenBatch>,
    slot: Arc<Slot>,
}

impl Sending<'_> {
    pub(crate) fn batch(&mut self) -> OpenBatch {
        self.batch.take().expect("it is taken once")
    }

    /// Tells all commits of the batch its outcome.
    pub(crate) fn end(self, outcome: Outcome) {
        self.slot.set(outcome);
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        // This has no effect if the outcome is set already. If it is not, the thread panicked.
        let cause = "the thread that appended the commit to the order panicked".to_owned();
        self.slot.set(Outcome::Failed(Error::Poisoned { cause }));
        self.group.state().is_sending = false;
        self.group.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_log::glsn::Glsn;
    use plimsoll_memory::budget::{Backing, Budget, Kind};

    use super::*;
    use crate::txn::replica::batch::Head;

    #[test]
    fn a_written_key_is_found_between_bounds() {
        let head = Head {
            append_micros: 0,
            order_id: 1,
            position: 2,
            previous: [0; 32],
            nonce: 3,
            first: Glsn(1),
            replica: 1,
            replicas: 1,
            count: 0,
            chain: 0,
        };
        let budget = Budget::new(1 << 20, Backing::Heap).unwrap();
        let batch = OpenBatch {
            position: 2,
            builder: BatchBuilder::new(&head),
            written: [b"b".to_vec(), b"d".to_vec()].into(),
            last_micros: 0,
            is_closed: false,
            deadline: Deadline::PASSED,
            lease: budget.empty_lease(Kind::Staging),
            slot: Arc::default(),
        };
        use Bound::{Excluded, Included, Unbounded};
        for (lower, upper, is_there) in [
            (Included("b"), Included("b"), true),
            (Included("c"), Included("c"), false),
            (Included("c"), Excluded("d"), false),
            (Included("c"), Included("d"), true),
            (Included("c"), Unbounded, true),
            (Included("e"), Unbounded, false),
            (Included("d"), Excluded("d"), false),
            (Included("e"), Included("a"), false),
        ] {
            let of = |bound: Bound<&'static str>| bound.map(str::as_bytes);
            assert_eq!(batch.writes_in(of(lower), of(upper)), is_there, "{lower:?} {upper:?}");
        }
    }
}
