//! Finds the commits that another store lacks, and sends them, parents first.

use std::collections::{BinaryHeap, HashMap, HashSet};

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Kind as Memory, Lease};

use crate::api::branches::Branch;
use crate::api::snapshot::Snapshot;
use crate::merge::graph::State;
use crate::sync::commit_id::CommitId;
use crate::sync::contents::{Sink, emit, micros_of, node_of};
use crate::sync::ids::{Ids, Kind};
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;

/// The bytes charged to the budget for each commit in the queue of a [`Walk`].
const COMMIT_BYTES: u64 = 2 * size_of::<Step>() as u64;

/// The properties of a commit that are sent before its changes.
pub(super) struct Head<'a> {
    pub(super) id: CommitId,
    pub(super) parents: &'a [CommitId],
    /// The time of the original commit, in microseconds since 1970 UTC.
    pub(super) micros: u64,
    pub(super) metadata: &'a [u8],
    /// Whether the commit is the last one sent, or one of its ancestors by first parents.
    pub(super) is_on_line: bool,
}

/// Receives commits, parents first.
pub(super) trait CommitSink {
    /// Receives a commit. `changes` passes the changes of the commit to a [`Sink`]; it need not be
    /// called.
    fn commit(
        &mut self,
        head: &Head<'_>,
        changes: &mut dyn FnMut(&mut dyn Sink) -> Result<()>,
    ) -> Result<()>;
}

/// A commit in the queue of a [`Walk`]. The newest one is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    glsn: Glsn,
    chain: u32,
    is_there: bool,
    is_on_line: bool,
}

/// Traverses the ancestors of the wanted commit and of the commits that the other store has. Visits
/// each commit once, newest first, so that a commit comes before its parents. Ends when the other
/// store has all commits in the queue.
struct Walk<'a> {
    ids: &'a Ids,
    snapshot: Snapshot,
    /// The queue.
    open: BinaryHeap<Step>,
    /// The number of commits in `open` that the other store may lack.
    lacking: usize,
    lease: Lease,
}

impl<'a> Walk<'a> {
    fn new(ids: &'a Ids, wanted: &[State], there: &[State]) -> Result<Self> {
        let store = &ids.db().store;
        let lease = store.reader.budget.empty_lease(Memory::Staging);
        let snapshot = Snapshot::newest(store);
        let mut walk = Self { ids, snapshot, open: BinaryHeap::new(), lacking: 0, lease };
        for state in wanted {
            walk.push(*state, false, true)?;
        }
        for state in there {
            walk.push(*state, true, false)?;
        }
        Ok(walk)
    }

    fn push(&mut self, (chain, glsn): State, is_there: bool, is_on_line: bool) -> Result<()> {
        self.lease.grow(COMMIT_BYTES)?;
        self.lacking += usize::from(!is_there);
        self.open.push(Step { glsn, chain, is_there, is_on_line });
        Ok(())
    }

    fn pop(&mut self) -> Option<Step> {
        let step = self.open.pop()?;
        self.lacking -= usize::from(!step.is_there);
        self.lease.shrink(COMMIT_BYTES);
        Some(step)
    }

    /// The next commit; `None` once the other store has all commits in the queue.
    fn next(&mut self) -> Result<Option<(Step, Kind)>> {
        if self.lacking == 0 {
            return Ok(None);
        }
        let Some(mut step) = self.pop() else { return Ok(None) };
        while self
            .open
            .peek()
            .is_some_and(|other| (other.glsn, other.chain) == (step.glsn, step.chain))
        {
            let Some(other) = self.pop() else { break };
            step.is_there |= other.is_there;
            step.is_on_line |= other.is_on_line;
        }
        let (kind, parents) = self.ids.node(&self.snapshot, (step.chain, step.glsn))?;
        for (number, parent) in parents.into_iter().enumerate() {
            self.push(parent, step.is_there, step.is_on_line && number == 0)?;
        }
        Ok(Some((step, kind)))
    }
}

/// Whether a branch contains a commit, on any chain.
///
/// # Errors
/// As for [`contained`].
pub(super) fn contains(ids: &Ids, branch: &Branch, id: &CommitId) -> Result<bool> {
    let Some(tip) = ids.tip_of(branch)? else { return Ok(false) };
    Ok(!contained(ids, &[tip.state()], vec![*id])?.is_empty())
}

/// Which of the commits `wanted` the states `from` contain, on any chain. Visits each ancestor of
/// `from` at most once.
///
/// # Errors
/// The budget, which holds the queue of the traversal; errors of reads.
pub(super) fn contained(
    ids: &Ids,
    from: &[State],
    wanted: Vec<CommitId>,
) -> Result<HashSet<CommitId>> {
    let mut places = HashMap::new();
    for id in wanted {
        places.extend(ids.places(&id)?.iter().map(|place| (place.state(), id)));
    }
    let mut found = HashSet::new();
    let Some(oldest) = places.keys().map(|(_, glsn)| *glsn).min() else { return Ok(found) };
    let mut left: HashSet<CommitId> = places.values().copied().collect();
    let mut walk = Walk::new(ids, from, &[])?;
    while let Some((step, _)) = walk.next()?
        && step.glsn >= oldest
    {
        if let Some(id) = places.get(&(step.chain, step.glsn))
            && left.remove(id)
        {
            found.insert(*id);
            if left.is_empty() {
                break;
            }
        }
    }
    Ok(found)
}

/// The commits to send.
pub(super) struct Missing {
    /// The GLSN and [`Head::is_on_line`] of each commit, newest first.
    commits: Vec<(Glsn, bool)>,
    _lease: Lease,
}

impl Missing {
    /// Finds the commit at `wanted` and its ancestors, except the commits at the states of `there`
    /// and their ancestors. Omits commits of [`Kind::Advance`], which have no changes of their own.
    ///
    /// # Errors
    /// [`InvalidInput::HistoryTrimmed`] if the log no longer has one of them; the budget, which
    /// holds up to 32 bytes per commit and the queue of the traversal; errors of reads.
    pub(super) fn new(ids: &Ids, wanted: State, there: &[State]) -> Result<Self> {
        let mut walk = Walk::new(ids, &[wanted], there)?;
        let mut lease = ids.db().store.reader.budget.empty_lease(Memory::Staging);
        let mut commits = Vec::new();
        while let Some((step, kind)) = walk.next()? {
            if step.is_there || kind == Kind::Advance {
                continue;
            }
            if kind == Kind::Trimmed {
                return Err(InvalidInput::HistoryTrimmed { upto: step.glsn }.into());
            }
            if commits.len() == commits.capacity() {
                let more = commits.len().max(64);
                lease.grow((more * size_of::<(Glsn, bool)>()) as u64)?;
                commits.reserve_exact(more);
            }
            commits.push((step.glsn, step.is_on_line));
        }
        Ok(Self { commits, _lease: lease })
    }

    /// Sends the commits to `sink`, parents first.
    ///
    /// # Errors
    /// [`InvalidInput::HistoryTrimmed`] if the log no longer has one of them;
    /// errors of reads and of the sink.
    pub(super) fn send(&self, ids: &Ids, sink: &mut dyn CommitSink) -> Result<()> {
        let Some((oldest, _)) = self.commits.last() else { return Ok(()) };
        let db = ids.db();
        let _hold = db.hold_log(*oldest)?;
        let first = db.store.reader.log.bounds().first;
        if *oldest < first {
            return Err(InvalidInput::HistoryTrimmed { upto: Glsn(first.0 - 1) }.into());
        }
        for (glsn, is_on_line) in self.commits.iter().rev() {
            let commit = db.log().commit(*glsn)?.ok_or_else(gone)?;
            let node = node_of(&commit)?.ok_or_else(gone)?;
            let place = ids.last_on(node.chain, *glsn)?.ok_or_else(gone)?;
            let received = node.received.as_ref().map(|(_, received)| received);
            let head = Head {
                id: place.id,
                parents: &ids.parents(&commit, &node)?,
                micros: micros_of(&commit, received),
                metadata: commit.metadata()?,
                is_on_line: *is_on_line,
            };
            sink.commit(&head, &mut |sink| emit(&commit, received, sink))?;
        }
        Ok(())
    }
}

fn gone() -> Error {
    Error::damaged("a commit that has an id is missing from the log")
}
