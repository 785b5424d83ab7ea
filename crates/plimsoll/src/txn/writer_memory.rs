//! Lets writers wait for memory: in a queue, after requesting a flush, and only as long as memory
//! is being freed.
//!
//! Puts and commits have separate queues: a commit frees memory, so it never waits behind puts that
//! wait for memory. No lock is held while a thread waits, in particular not the commit lock.
//!
//! A store without background threads never waits, because no other thread could free memory.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_memory::budget::wait_queue::{self, Order, Relief, WaitQueue};
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::pieces::Pieces;

use crate::index::OpenIndex;
use crate::txn::sequencer::CommitSequencer;
use crate::types::error::{Error, Result};

/// An operation fails after `idle` if meanwhile no memory was freed and no flush was in progress,
/// and in any case after `longest`.
const WAIT_LIMITS: wait_queue::WaitLimits =
    wait_queue::WaitLimits { idle: Duration::from_secs(1), longest: Duration::from_secs(30) };

/// For a store without background threads, in which no other thread could free memory.
const NO_WAIT: wait_queue::WaitLimits =
    wait_queue::WaitLimits { idle: Duration::ZERO, longest: Duration::ZERO };

/// Sizes of the pieces of memory with which a write set begins, because most sets hold one small
/// write. Larger sets take pieces of the second size, then chunks.
const PIECES_BYTES: [usize; 2] = [512, 4096];

/// The means of an early flush.
pub(crate) struct Context {
    pub(crate) index: Arc<OpenIndex>,
    pub(crate) sequencer: Arc<CommitSequencer>,
}

/// Memory for writers, and the queues in which they wait for it.
pub(crate) struct WriterMemory {
    budget: Budget,
    /// The pieces of each size in [`PIECES_BYTES`].
    small: Arc<[Pieces]>,
    puts: WaitQueue,
    commits: WaitQueue,
    context: Context,
}

impl WriterMemory {
    /// Writers wait only if `background` is set.
    pub(crate) fn new(budget: &Budget, context: Context, background: bool) -> Self {
        let limits = if background { WAIT_LIMITS } else { NO_WAIT };
        Self {
            budget: budget.clone(),
            small: PIECES_BYTES.map(|bytes| Pieces::new(budget, Kind::WriteSet, bytes)).into(),
            puts: WaitQueue::new(budget, limits),
            commits: WaitQueue::new(budget, limits),
            context,
        }
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The pieces for the first memory of write sets.
    pub(crate) fn small(&self) -> &Arc<[Pieces]> {
        &self.small
    }

    /// Runs an attempt of an open transaction, and repeats it after memory became free if the
    /// budget refused it. A refused attempt must change nothing, or be harmless to repeat. An
    /// attempt that needs no more memory does not wait behind others that do.
    pub(crate) fn in_transaction<T>(
        &self,
        needs_memory: bool,
        attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let order = if needs_memory { Order::Last } else { Order::First };
        self.puts.attempt(order, is_refusal, &self.context, attempt)
    }

    /// As [`WriterMemory::in_transaction`], for a commit, which usually needs no more memory.
    pub(crate) fn in_commit<T>(&self, attempt: impl FnMut() -> Result<T>) -> Result<T> {
        self.commits.attempt(Order::First, is_refusal, &self.context, attempt)
    }
}

impl Relief for Context {
    /// Closes the active memtable so that its flush frees memory, unless a commit is in progress.
    fn ask(&self) -> bool {
        self.sequencer
            .try_between_commits(|applied| self.index.memtables.close_if_none_waits(applied))
            .is_some()
    }

    fn is_under_way(&self) -> bool {
        self.index.memtables.is_flushing()
    }
}

fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::OutOfBudget(_))
}

impl fmt::Debug for WriterMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriterMemory({:?} puts, {:?} commits)", self.puts, self.commits)
    }
}
