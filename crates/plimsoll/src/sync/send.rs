//! Passes on the commits that another store lacks, parents first.

use std::collections::BinaryHeap;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Kind as Memory, Lease};

use crate::api::db::Db;
use crate::api::snapshot::Snapshot;
use crate::merge::graph::State;
use crate::sync::commit_id::CommitId;
use crate::sync::contents::{Sink, emit, micros_of, node_of};
use crate::sync::ids::{Ids, Kind};
use crate::types::cancel::Cancel;
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;

/// The bytes that a commit takes while it waits for its turn.
const COMMIT_BYTES: u64 = 2 * size_of::<Step>() as u64;

/// What is known of a commit before its changes.
pub(super) struct Head<'a> {
    pub(super) id: CommitId,
    pub(super) parents: &'a [CommitId],
    /// Its time where it was made, in microseconds since 1970 UTC.
    pub(super) micros: u64,
    pub(super) metadata: &'a [u8],
    /// Whether only first parents lead to it from the last commit.
    pub(super) is_on_line: bool,
}

/// Takes commits, parents first.
pub(super) trait CommitSink {
    /// Takes a commit. If its changes are wanted, they come from `changes`.
    fn commit(
        &mut self,
        head: &Head<'_>,
        changes: &mut dyn FnMut(&mut dyn Sink) -> Result<()>,
    ) -> Result<()>;
}

/// A commit on the way from the newest ones to their ancestors. The newest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    glsn: Glsn,
    chain: u32,
    is_there: bool,
    is_on_line: bool,
}

/// A walk from two sets of commits to their ancestors: those that are wanted, and those that the
/// other store has. It visits each commit once, the newest first, which is before its parents, and
/// ends when all that is left is there.
struct Walk<'a> {
    ids: &'a Ids,
    snapshot: Snapshot,
    open: BinaryHeap<Step>,
    /// The number of those in `open` that the other store may lack.
    lacking: usize,
    lease: Lease,
}

impl<'a> Walk<'a> {
    fn new(db: &Db, ids: &'a Ids, wanted: State, there: &[State]) -> Result<Self> {
        let lease = db.store.reader.budget.empty_lease(Memory::Staging);
        let snapshot = Snapshot::newest(&db.store);
        let mut walk = Self { ids, snapshot, open: BinaryHeap::new(), lacking: 0, lease };
        walk.push(wanted, false, true)?;
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

    /// The next commit; `None` once the other store has all that are left.
    fn next(&mut self) -> Result<Option<(Step, Kind)>> {
        if self.lacking == 0 {
            return Ok(None);
        }
        let Some(mut step) = self.pop() else { return Ok(None) };
        while self.open.peek().is_some_and(|other| other.glsn == step.glsn) {
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

/// Whether a commit of `ids` descends from one of the others, or is one.
pub(super) fn descends(db: &Db, ids: &Ids, from: State, ancestors: &[State]) -> Result<bool> {
    let Some(oldest) = ancestors.iter().map(|(_, glsn)| *glsn).min() else { return Ok(false) };
    let mut walk = Walk::new(db, ids, from, &[])?;
    while let Some((step, _)) = walk.next()? {
        if ancestors.contains(&(step.chain, step.glsn)) {
            return Ok(true);
        }
        if step.glsn < oldest {
            break;
        }
    }
    Ok(false)
}

/// Commits to pass on.
pub(super) struct Missing {
    /// The last first; each with whether only first parents lead to it.
    commits: Vec<(Glsn, bool)>,
    _lease: Lease,
}

impl Missing {
    /// The ancestors of a commit that are not those of any commit of `there`, and itself.
    ///
    /// # Errors
    /// The budget, which holds 16 bytes for each of them; errors of reads.
    pub(super) fn new(db: &Db, ids: &Ids, wanted: State, there: &[State]) -> Result<Self> {
        let mut walk = Walk::new(db, ids, wanted, there)?;
        let mut lease = db.store.reader.budget.empty_lease(Memory::Staging);
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

    /// Passes the commits on.
    ///
    /// # Errors
    /// [`InvalidInput::HistoryTrimmed`] if the log no longer has one of them; errors of reads and
    /// of the sink.
    pub(super) fn send(
        &self,
        db: &Db,
        ids: &Ids,
        cancel: &Cancel,
        sink: &mut dyn CommitSink,
    ) -> Result<()> {
        let Some((oldest, _)) = self.commits.last() else { return Ok(()) };
        let _hold = db.hold_log(*oldest)?;
        let first = db.store.reader.log.bounds().first;
        if *oldest < first {
            return Err(InvalidInput::HistoryTrimmed { upto: Glsn(first.0 - 1) }.into());
        }
        for (glsn, is_on_line) in self.commits.iter().rev() {
            cancel.check()?;
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
    Error::damaged("a commit whose id is known is none")
}
