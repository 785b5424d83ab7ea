//! Finds the commits that another store lacks, and sends them, parents first.

use std::cell::RefCell;
use std::collections::{BinaryHeap, HashMap, HashSet};

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Kind as Memory, Lease};

use crate::api::branches::Branch;
use crate::api::snapshot::{Moment, Snapshot};
use crate::api::state_hash::{RowValue, StateHasher, each_row};
use crate::merge::graph::{Graph, State};
use crate::sync::commit_id::CommitId;
use crate::sync::contents::{Bytes, Sink, emit, micros_of, node_of};
use crate::sync::ids::{Ids, Kind};
use crate::types::cancel::Cancel;
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
    /// Whether it is a boundary commit of a partial clone: its parents are not sent, and its
    /// changes are its complete state.
    pub(super) is_boundary: bool,
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
    /// Whether the other store has the commit.
    is_there: bool,
    /// [`Head::is_on_line`].
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

/// Those of the commits `wanted` that the states `from` contain, on any chain. Visits each ancestor
/// of `from` at most once.
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

/// A commit to send.
#[derive(Clone, Copy)]
pub(super) struct Item {
    pub(super) glsn: Glsn,
    /// [`Head::is_on_line`].
    pub(super) is_on_line: bool,
    /// For a boundary commit ([`Head::is_boundary`]), the state to send.
    pub(super) state: Option<State>,
}

/// The commits to send.
pub(super) struct Missing {
    /// Newest first.
    commits: Vec<Item>,
    /// The newest of them of which this store lacks a parent.
    partial: Option<State>,
    lease: Lease,
}

impl Missing {
    /// Finds the commit at `wanted` and its ancestors, except the commits at the states of `there`
    /// and their ancestors. Omits commits of [`Kind::Advance`], which have no changes of their own.
    ///
    /// # Errors
    /// [`InvalidInput::HistoryTrimmed`] if the log no longer has one of them; the budget, which
    /// holds up to 64 bytes per commit and the queue of the traversal; errors of reads.
    pub(super) fn new(ids: &Ids, wanted: State, there: &[State]) -> Result<Self> {
        let mut walk = Walk::new(ids, &[wanted], there)?;
        let mut missing = Self::none(ids);
        while let Some((step, kind)) = walk.next()? {
            if step.is_there || kind == Kind::Advance {
                continue;
            }
            if kind == Kind::Trimmed {
                return Err(InvalidInput::HistoryTrimmed { upto: step.glsn }.into());
            }
            let state = (step.chain, step.glsn);
            if !kind.has_changes() || kind == Kind::Partial {
                missing.partial.get_or_insert(state);
            }
            let state = (kind == Kind::Boundary).then_some(state);
            missing.push(Item { glsn: step.glsn, is_on_line: step.is_on_line, state })?;
        }
        Ok(missing)
    }

    /// No commits.
    pub(super) fn none(ids: &Ids) -> Self {
        let lease = ids.db().store.reader.budget.empty_lease(Memory::Staging);
        Self { commits: Vec::new(), partial: None, lease }
    }

    /// Adds an older commit.
    ///
    /// # Errors
    /// The budget.
    pub(super) fn push(&mut self, item: Item) -> Result<()> {
        if self.commits.len() == self.commits.capacity() {
            let more = self.commits.len().max(64);
            self.lease.grow((more * size_of::<Item>()) as u64)?;
            self.commits.reserve_exact(more);
        }
        self.commits.push(item);
        Ok(())
    }

    /// Fails if this store lacks a parent of one of the commits, because then only this store
    /// itself can receive them, on another branch.
    ///
    /// # Errors
    /// [`InvalidInput::BelowBoundary`]; errors of reads.
    pub(super) fn check_whole(&self, ids: &Ids) -> Result<()> {
        let Some((chain, glsn)) = self.partial else { return Ok(()) };
        let id = ids.last_on(chain, glsn)?.ok_or_else(gone)?.id.to_string();
        Err(InvalidInput::BelowBoundary { id }.into())
    }

    /// Sends the commits to `sink`, parents first.
    ///
    /// # Errors
    /// [`InvalidInput::HistoryTrimmed`] if the log no longer has one of them;
    /// errors of reads and of the sink.
    pub(super) fn send(&self, ids: &Ids, sink: &mut dyn CommitSink) -> Result<()> {
        let Some(oldest) = self.commits.last().map(|item| item.glsn) else { return Ok(()) };
        let db = ids.db();
        let _hold = db.hold_log(oldest)?;
        let first = db.store.reader.log.bounds().first;
        if oldest < first {
            return Err(InvalidInput::HistoryTrimmed { upto: Glsn(first.0 - 1) }.into());
        }
        for Item { glsn, is_on_line, state } in self.commits.iter().rev() {
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
                is_boundary: state.is_some(),
            };
            sink.commit(&head, &mut |sink| match state {
                Some(state) => emit_state(ids, *state, sink),
                None => emit(&commit, received, sink),
            })?;
        }
        Ok(())
    }
}

/// Passes all rows of a state, and its hash, to `sink`.
///
/// # Errors
/// [`Error::Trimmed`] if the state is no longer retained; errors of reads and of the sink.
fn emit_state(ids: &Ids, (chain, at): State, sink: &mut dyn Sink) -> Result<()> {
    let store = &ids.db().store;
    let snapshot = Snapshot::of(store, Moment::Glsn(at))?;
    let newest = Snapshot::newest(store).read_at()?.glsn;
    let snapshot = match Graph::new(store, newest).lens(chain)? {
        Some(lens) => snapshot.on_branch(&lens),
        None => snapshot,
    };
    let hasher = RefCell::new(StateHasher::default());
    each_row(&snapshot, &Cancel::default(), &mut |keyspace, key, expiry, value| {
        let name = keyspace.name();
        match value {
            RowValue::Whole(value) => {
                hasher.borrow_mut().begin_row(name, key, expiry, value.len() as u64);
                hasher.borrow_mut().value(value);
                sink.put(name, key, expiry, Bytes::Whole(value))
            }
            RowValue::Long(value) => {
                let len = value.len();
                hasher.borrow_mut().begin_row(name, key, expiry, len);
                let mut next = |piece: &mut [u8]| {
                    let bytes = value.read_piece(piece)?;
                    hasher.borrow_mut().value(&piece[..bytes]);
                    Ok(bytes)
                };
                sink.put(name, key, expiry, Bytes::Pieces(len, &mut next))
            }
        }
    })?;
    let hash = hasher.borrow().finish();
    sink.state(hash)
}

fn gone() -> Error {
    Error::damaged("a commit that has an id is missing from the log")
}
