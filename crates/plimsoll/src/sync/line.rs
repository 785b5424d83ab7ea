//! The first-parent line of a commit, for partial clones. A partial clone has the newest commits of
//! this line, and the complete state of the oldest of them, the boundary commit.

use std::collections::HashSet;

use plimsoll_memory::budget::{Kind as Memory, Lease};

use crate::api::snapshot::Snapshot;
use crate::engine::branch_commits::check_readable;
use crate::merge::graph::State;
use crate::sync::commit_id::CommitId;
use crate::sync::ids::{Ids, Kind};
use crate::sync::peer::{Haves, LINE_MAX, Line, LineEnd};
use crate::sync::send::{Item, Missing};
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;

/// A commit of a line.
struct Step {
    id: CommitId,
    /// The commit with the changes.
    whole: State,
    /// A state after the commit that may be readable; `None` if there is none.
    state: Option<State>,
}

/// Traverses a first-parent line, newest commit first.
struct Steps<'a> {
    ids: &'a Ids,
    snapshot: Snapshot,
    next: Option<State>,
    /// Whether the commit that was returned last has no parents in any store.
    is_root: bool,
}

impl<'a> Steps<'a> {
    fn new(ids: &'a Ids, from: State) -> Self {
        let snapshot = Snapshot::newest(&ids.db().store);
        Self { ids, snapshot, next: Some(from), is_root: false }
    }

    /// The next commit; `None` at the end, also if this store has no older ones.
    fn next(&mut self) -> Result<Option<Step>> {
        let mut state = None;
        while let Some((chain, glsn)) = self.next {
            let (id, kind, parents) = self.ids.node_with_id(&self.snapshot, (chain, glsn))?;
            if kind == Kind::Trimmed || glsn < self.ids.db().store.reader.log.bounds().first {
                self.next = None;
                break;
            }
            if state.is_none() && self.ids.is_chain(chain) {
                state = Some((chain, glsn));
            }
            self.next = parents.first().copied();
            if kind == Kind::Advance {
                continue;
            }
            self.is_root = self.next.is_none() && kind == Kind::Whole;
            return Ok(Some(Step { id, whole: (chain, glsn), state }));
        }
        Ok(None)
    }
}

/// The newest commits of a first-parent line: see [`Peer::line`](crate::sync::peer::Peer::line).
///
/// # Errors
/// [`InvalidInput::HistoryTrimmed`] if the log no longer has the commit at `from`;
/// [`InvalidInput::StateNotRetained`] if no state is retained with which the line can begin; the
/// budget; errors of reads.
pub(super) fn line(ids: &Ids, from: State, depth: u64, haves: &Haves) -> Result<(Line, Lease)> {
    let mut lease = ids.db().store.reader.budget.empty_lease(Memory::Staging);
    let haves: HashSet<CommitId> = haves.commits.iter().map(|(id, _)| *id).collect();
    let (mut steps, mut all) = (Steps::new(ids, from), Vec::new());
    let searched = if haves.is_empty() { 0 } else { LINE_MAX as u64 };
    while (all.len() as u64) < searched.max(depth + 1)
        && let Some(step) = steps.next()?
    {
        let is_known = haves.contains(&step.id);
        lease.grow(2 * size_of::<Step>() as u64)?;
        all.push(step);
        if is_known {
            return Ok((Line::of(all.iter().map(|it| it.id), LineEnd::Known), lease));
        }
    }
    if all.is_empty() {
        return Err(InvalidInput::HistoryTrimmed { upto: from.1 }.into());
    }
    let is_whole = steps.is_root && all.len() as u64 <= depth;
    if is_whole {
        return Ok((Line::of(all.iter().map(|it| it.id), LineEnd::Root), lease));
    }
    all.truncate(usize::try_from(depth).unwrap_or(usize::MAX));
    let store = &ids.db().store;
    while let Some(last) = all.last() {
        let readable = last.state.map(|(chain, at)| check_readable(store, chain, at));
        match readable {
            Some(Ok(())) => {
                let ids = all.iter().map(|it| it.id);
                return Ok((Line::of(ids, LineEnd::Boundary), lease));
            }
            Some(Err(Error::Trimmed { .. })) | None => drop(all.pop()),
            Some(Err(error)) => return Err(error),
        }
    }
    let id = ids.last_on(from.0, from.1)?.map(|place| place.id.to_string()).unwrap_or_default();
    Err(InvalidInput::StateNotRetained { id }.into())
}

/// The commits of a first-parent line after the commit `base`, and also `base` as a boundary commit
/// if `is_boundary`; all of the line if `base` is `None`.
///
/// # Errors
/// [`InvalidInput::BranchMoved`] if the line does not contain `base`; the budget; errors of reads.
pub(super) fn after(
    ids: &Ids,
    (branch, from): (&str, State),
    (base, is_boundary): (Option<CommitId>, bool),
) -> Result<Missing> {
    let (mut steps, mut missing) = (Steps::new(ids, from), Missing::none(ids));
    while let Some(Step { id, whole, state }) = steps.next()? {
        let (glsn, is_on_line) = (whole.1, true);
        if base != Some(id) {
            missing.push(Item { glsn, is_on_line, state: None })?;
            continue;
        }
        if is_boundary {
            let lost = || InvalidInput::StateNotRetained { id: id.to_string() };
            let state = Some(state.ok_or_else(lost)?);
            missing.push(Item { glsn, is_on_line, state })?;
        }
        return Ok(missing);
    }
    match base {
        None if steps.is_root => Ok(missing),
        _ => Err(InvalidInput::BranchMoved { name: branch.to_owned() }.into()),
    }
}
