//! How writers wait for memory: in a queue, for a bounded time, after asking for a flush.
//!
//! Puts and commits have a queue each: a commit gives memory back, so it never waits behind puts that wait for it. No lock is held while
//! a thread waits, the commit lock least of all.
//!
//! Where the store has no threads of its own there is no wait: memory would come from nowhere.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_memory::budget::wait_queue::{Order, WaitQueue};
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::pieces::Pieces;

use crate::index::Index;
use crate::txn::sequencer::CommitSequencer;
use crate::types::error::{Error, Result};

/// The longest wait before an operation fails.
const PATIENCE: Duration = Duration::from_secs(1);

/// The first memory of a write set: most hold one small write. Then pieces of this size, then chunks.
const PIECES_BYTES: [usize; 2] = [512, 4096];

/// What flushing early takes.
pub(crate) struct Ground {
    pub(crate) index: Arc<Index>,
    pub(crate) sequencer: Arc<CommitSequencer>,
}

/// Memory for writers, and the queues in which they wait for it.
pub(crate) struct Patience {
    budget: Budget,
    /// Of [`PIECES_BYTES`].
    small: Arc<[Pieces]>,
    puts: WaitQueue,
    commits: WaitQueue,
    ground: Ground,
}

impl Patience {
    /// Writers wait if `background`.
    pub(crate) fn new(budget: &Budget, ground: Ground, background: bool) -> Self {
        let patience = if background { PATIENCE } else { Duration::ZERO };
        Self {
            budget: budget.clone(),
            small: PIECES_BYTES.map(|bytes| Pieces::new(budget, Kind::WriteSet, bytes)).into(),
            puts: WaitQueue::new(budget, patience),
            commits: WaitQueue::new(budget, patience),
            ground,
        }
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Where write sets take their first memory from.
    pub(crate) fn small(&self) -> &Arc<[Pieces]> {
        &self.small
    }

    /// Does a piece of what an open transaction wants, and again where the budget refused it and memory came free. What is refused leaves all
    /// as it was, or does no harm if it is done twice. What needs no more memory does not wait behind others that do.
    pub(crate) fn in_transaction<T>(&self, needs_memory: bool, attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let order = if needs_memory { Order::Behind } else { Order::Ahead };
        self.puts.attempt(order, is_refusal, || self.flush_early(), attempt)
    }

    /// The same for what a commit wants: most need no more memory.
    pub(crate) fn in_commit<T>(&self, attempt: impl FnMut() -> Result<T>) -> Result<T> {
        self.commits.attempt(Order::Ahead, is_refusal, || self.flush_early(), attempt)
    }

    /// Closes the active memtable, unless a commit is on its way: it is flushed, and its memory comes back.
    fn flush_early(&self) {
        let ground = &self.ground;
        ground.sequencer.try_at_applied(|applied| ground.index.close_up_to(applied));
    }
}

fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::OutOfBudget(_))
}

impl fmt::Debug for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Patience({:?} puts, {:?} commits)", self.puts, self.commits)
    }
}
