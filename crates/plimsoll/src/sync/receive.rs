//! Receives the commits of another store, or of another branch, one by one.
//!
//! A commit is placed after its first parent: on the receiving branch if that ends with the parent,
//! otherwise on a temporary branch. If the receiving branch does not end with the last commit after
//! the transfer, one more commit makes it equal to that commit. The temporary branches are then
//! deleted. The commits that were merged from them are kept.
//!
//! Memory: a transfer knows at most [`MAX_SIDE_LINES`] temporary branches, whatever their number in
//! the store. If it needs the end of a branch that it does not know, it forks a new branch there.

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::api::branches::Branch;
use crate::api::db::Db;
use crate::api::snapshot::{Moment, Snapshot};
use crate::engine::branch_commits;
use crate::engine::transfers::Transfer;
use crate::read::open_moments::OpenMoment;
use crate::read::span::Span;
use crate::sync::commit_id::{CommitId, ContentHash};
use crate::sync::contents::{Received, Sink};
use crate::sync::ids::{Ids, Place, boundary_key, last_key, received_key};
use crate::sync::receive::transaction_sink::TransactionSink;
use crate::sync::send::{CommitSink, Head, contained};
use crate::txn::ticket::CommitTicket;
use crate::txn::transaction::Transaction;
use crate::types::branches::{MAIN, MAIN_CHAIN, chain_key, check_users_name, merge_key};
use crate::types::error::{Error, Result};
use crate::types::index_key::KeyBuffer;
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::{BRANCHES, DEFAULT, FIRST_ID, IDS};

mod ending;
mod transaction_sink;

/// After this many commits, their ids are written, and the memory for them is released.
const BATCH: u64 = 1024;

/// The most temporary branches that a transfer knows at once.
const MAX_SIDE_LINES: usize = 256;

/// A branch that receives commits.
struct Line {
    branch: Branch,
    /// Its last commit; `None` if it is empty.
    tip: Option<CommitId>,
    /// A moment at which `tip` is its last commit. Commits of others after it are conflicts.
    at: Glsn,
    /// Whether it is the receiving branch. Otherwise it is a temporary one.
    is_target: bool,
    /// Whether another commit has merged `tip`, so that the store keeps it without the branch.
    is_merged: bool,
}

/// The boundary commits that a transfer accepts, whose ids cannot be verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Boundary {
    None,
    /// This commit, if it is the first that is received.
    Only(CommitId),
    /// Any, because the commits come from the store itself.
    Any,
}

/// A commit that is being received.
pub(super) struct Draft {
    pub(super) sink: TransactionSink,
    line: Line,
    /// The states that it merges.
    merged: Vec<(u32, Glsn)>,
    /// Whether the store lacks a commit that it merges.
    lacks_parent: bool,
}

/// Receives commits into one branch.
pub(super) struct Receiver {
    pub(super) db: Db,
    pub(super) ids: Ids,
    /// The name of the receiving branch.
    pub(super) name: String,
    /// The receiving branch; `None` if it does not exist yet, or during a commit on it.
    target: Option<Line>,
    /// Temporary branches, by their last commits.
    side: HashMap<CommitId, Line>,
    /// The number of temporary branches that were created.
    created: usize,
    /// Whether commits that the store has on other branches are repeated on the receiving one.
    repeats: bool,
    /// Whether the store is a partial clone.
    is_partial: bool,
    /// The boundary commits that are accepted.
    pub(super) boundary: Boundary,
    /// The states that end with received commits whose ids are not written yet.
    recent: HashMap<CommitId, (u32, Glsn)>,
    /// The last commit that was ordered, until it is durable.
    last: Option<CommitTicket>,
    /// Owns the temporary branches.
    transfer: Transfer,
    /// The number of commits that were received.
    pub(super) received: u64,
    /// Retains the newest moment and all later ones, because temporary branches start there.
    _floor: OpenMoment,
}

impl Receiver {
    /// A receiver for the branch `name`, whose last commit must be `expected`; `None`: the branch
    /// is empty or does not exist.
    ///
    /// # Errors
    /// [`InvalidInput::BranchName`] if a branch cannot have this name;
    /// [`InvalidInput::BranchMoved`] if the branch exists and ends with another commit; errors of
    /// [`Ids::catch_up`].
    pub(super) fn new(
        ids: &Ids,
        name: &str,
        expected: Option<CommitId>,
        repeats: bool,
    ) -> Result<Self> {
        let receiver = Self::of_any(ids, name, repeats)?;
        match &receiver.target {
            Some(target) if target.tip != expected => Err(receiver.moved()),
            None if expected.is_some() => Err(receiver.moved()),
            _ => Ok(receiver),
        }
    }

    /// As [`Receiver::new`], whatever the last commit of the branch is.
    pub(super) fn of_any(ids: &Ids, name: &str, repeats: bool) -> Result<Self> {
        if name != MAIN {
            check_users_name(name)?;
        }
        let db = ids.db().clone();
        let transfer = Transfer::begin(&db.store)?;
        let committer = &db.store.committer;
        let _floor = committer.open_floor(committer.as_of(db.store.newest()?)?)?;
        let target = match db.branch(name) {
            Ok(branch) => {
                // Read the moment before the ids, so that a commit in between is a conflict later.
                let at = db.store.newest()?;
                ids.catch_up()?;
                let tip = ids.tip((branch.id(), at))?.map(|place| place.id);
                Some(Line { branch, tip, at, is_target: true, is_merged: false })
            }
            Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => None,
            Err(error) => return Err(error),
        };
        Ok(Self {
            transfer,
            db,
            ids: ids.clone(),
            name: name.to_owned(),
            target,
            side: HashMap::new(),
            created: 0,
            repeats,
            is_partial: ids.depth()?.is_some(),
            boundary: Boundary::None,
            recent: HashMap::new(),
            last: None,
            received: 0,
            _floor,
        })
    }

    fn moved(&self) -> Error {
        InvalidInput::BranchMoved { name: self.name.clone() }.into()
    }

    /// A state that ends with a commit, and that can be read; `None` if the store has none.
    pub(super) fn place(&self, id: &CommitId) -> Result<Option<(u32, Glsn)>> {
        if let Some(state) = self.recent.get(id) {
            return Ok(Some(*state));
        }
        Ok(self.ids.readable(id)?.first().map(Place::state))
    }

    /// Takes the line on which a commit is placed. If no line ends with the first parent, creates a
    /// temporary branch there.
    ///
    /// # Errors
    /// [`InvalidInput::StateNotRetained`] if the parent's state is no longer retained; corruption
    /// if the store does not have the parent; errors of commits.
    fn take_line(&mut self, parent: Option<CommitId>, is_on_line: bool) -> Result<Line> {
        if is_on_line && let Some(target) = self.target.take_if(|target| target.tip == parent) {
            return Ok(target);
        }
        if let Some(line) = parent.and_then(|parent| self.side.remove(&parent)) {
            return Ok(line);
        }
        self.wait()?;
        let branch = match parent {
            None => self.fork((MAIN_CHAIN, Glsn::NONE))?,
            Some(parent) => self.fork_after(&parent)?.0,
        };
        let at = self.db.store.newest()?;
        Ok(Line { branch, tip: parent, at, is_target: false, is_merged: false })
    }

    /// Puts a line back.
    fn put_line(&mut self, line: Line) -> Result<()> {
        if line.is_target {
            self.target = Some(line);
            return Ok(());
        }
        if self.side.len() >= MAX_SIDE_LINES {
            self.forget_lines()?;
        }
        if let Some(tip) = line.tip {
            self.side.insert(tip, line);
        }
        Ok(())
    }

    /// Forgets the known temporary branches. Deletes those whose commits another branch has merged.
    fn forget_lines(&mut self) -> Result<()> {
        let lines = std::mem::take(&mut self.side);
        if lines.values().any(|line| line.is_merged) {
            // Without its branch, a merged chain is kept only if its commits have ids.
            self.settle()?;
        }
        for line in lines.values().filter(|line| line.is_merged) {
            self.delete(line.branch.name())?;
        }
        Ok(())
    }

    /// The error for a commit that the store lacks although a commit that was sent descends from
    /// it.
    fn lacks(&self, id: &CommitId) -> Result<Error> {
        if self.is_partial {
            return Ok(InvalidInput::BelowBoundary { id: id.to_string() }.into());
        }
        // If the id is known, the commit was deleted with its branch after the other side had been
        // told of it.
        Ok(if self.ids.places(id)?.is_empty() { unknown(id) } else { self.moved() })
    }

    /// Deletes a temporary branch, unless another transfer has deleted it.
    fn delete(&self, name: &str) -> Result<()> {
        match self.db.delete_branch(name) {
            Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => Ok(()),
            deleted => deleted,
        }
    }

    /// Puts a line back on which nothing was committed.
    fn put_back(&mut self, line: Line) {
        if line.is_target {
            self.target = Some(line);
        } else if let Some(tip) = line.tip
            && self.side.len() < MAX_SIDE_LINES
        {
            self.side.insert(tip, line);
        }
    }

    /// Creates a temporary branch that leaves a chain right after the commit `id`. Returns the
    /// branch, and the state right after the commit.
    ///
    /// # Errors
    /// [`InvalidInput::StateNotRetained`] if no such state is retained any more; corruption if the
    /// store does not have the commit; errors of commits.
    fn fork_after(&mut self, id: &CommitId) -> Result<(Branch, (u32, Glsn))> {
        let places: Vec<(u32, Glsn)> = match self.recent.get(id) {
            Some(state) => vec![*state],
            None => {
                let mut places = self.ids.readable(id)?;
                places.sort_by_key(|place| !place.kind.has_changes());
                places.iter().map(Place::state).collect()
            }
        };
        if places.is_empty() {
            return Err(self.lacks(id)?);
        }
        let mut is_removed = false;
        for state in places {
            match self.fork(state) {
                Err(Error::Trimmed { .. }) => {}
                // Another transfer has deleted the temporary branch that had the commit.
                Err(Error::InvalidInput(InvalidInput::BranchDeleted)) => is_removed = true,
                branch => return Ok((branch?, state)),
            }
        }
        if is_removed {
            return Err(self.moved());
        }
        // The newest state of a branch is retained, and may still be the one after the commit.
        let newest = self.db.store.newest()?;
        self.settle()?;
        let names = self.db.branches()?.into_iter().map(|info| info.name);
        for name in names.chain([MAIN.to_owned()]) {
            let chain = match self.db.branch(&name) {
                // The branch was deleted since it was listed.
                Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => continue,
                branch => branch?.id(),
            };
            let tip = self.ids.tip((chain, newest))?.filter(|tip| tip.id == *id);
            if let Some(tip) = tip {
                return Ok((self.fork((chain, newest))?, tip.state()));
            }
        }
        Err(InvalidInput::StateNotRetained { id: id.to_string() }.into())
    }

    /// Creates a temporary branch that leaves a chain at a moment. The branch of the chain may have
    /// been deleted, as long as others contain it.
    ///
    /// # Errors
    /// [`Error::Trimmed`] if the state is no longer retained; errors of commits.
    fn fork(&mut self, (chain, at): (u32, Glsn)) -> Result<Branch> {
        // Keeps the moment readable until the branch retains it.
        let snapshot = Snapshot::of(&self.db.store, Moment::Glsn(at))?;
        loop {
            // Unique to this transfer, because it is deleted by its name.
            let name = format!("{}{}", self.transfer.prefix(), self.created);
            self.created += 1;
            match branch_commits::create_from(&self.db.store, &name, chain, at) {
                Err(Error::InvalidInput(InvalidInput::BranchExists { .. })) => {}
                created => {
                    created?;
                    drop(snapshot);
                    return self.db.branch(&name);
                }
            }
        }
    }

    /// Waits until all received commits are durable.
    fn wait(&mut self) -> Result<()> {
        if let Some(ticket) = self.last.take() {
            ticket.wait()?;
        }
        Ok(())
    }

    /// Waits until the received commits are durable, and writes their ids.
    pub(super) fn settle(&mut self) -> Result<()> {
        self.wait()?;
        self.ids.catch_up()?;
        self.recent.clear();
        Ok(())
    }

    /// A transaction that conflicts with every commit on the line after `line.at`.
    fn begin(&self, line: &Line) -> Result<Transaction> {
        let committer = &self.db.store.committer;
        let moment = committer.open_at(committer.as_of(line.at)?)?;
        let mut tx = Transaction::at_moment(committer, moment);
        match &line.branch.lens {
            None => {
                tx.note_span(&Span::of_keyspace(DEFAULT.1));
                tx.note_span(&Span::after(FIRST_ID - 1));
            }
            Some(lens) => {
                tx.note_span(&lens.group_span());
                tx.note_read(&KeyBuffer::new(BRANCHES, &chain_key(line.branch.id()))?)?;
                tx.lens = Some(Arc::clone(lens));
            }
        }
        tx.note_span(&Span::prefix(BRANCHES, &line.branch.id().to_be_bytes()));
        // A received commit may have no changes. This read makes the transaction conflict with such
        // a commit, too.
        tx.note_read(&KeyBuffer::new(IDS, &last_key(line.branch.id()))?)?;
        Ok(tx)
    }

    /// Adds the [`Received`] record of the commit `id` to a transaction.
    fn record(&self, tx: &mut Transaction, id: &CommitId, received: &Received) -> Result<()> {
        self.put_own(tx, &last_key(received.chain), id.as_bytes())?;
        self.put_own(tx, &received_key(id), &received.encode())
    }

    /// Puts a record in the keyspace of the ids.
    fn put_own(&self, tx: &mut Transaction, key: &[u8], value: &[u8]) -> Result<()> {
        let space = self.ids.space();
        tx.space_to_put(space)?;
        let key = KeyBuffer::new(tx.id_of(space)?, key)?;
        tx.put_expiring(&key, value, None)
    }

    /// Prepares a line for a transaction that merges the chains of `merged`: sets `at` of the line
    /// to the newest moment, because the transaction reads the registry's records of those chains,
    /// which may be newer than the line's last commit.
    ///
    /// # Errors
    /// [`InvalidInput::BranchMoved`] if another commit changed the line; errors of
    /// [`Receiver::settle`].
    fn prepare(&mut self, line: &mut Line, merged: &[(u32, Glsn)]) -> Result<()> {
        if merged.is_empty() {
            return Ok(());
        }
        self.settle()?;
        let newest = self.db.store.newest()?;
        self.ids.catch_up()?;
        let tip = self.ids.tip((line.branch.id(), newest))?.map(|place| place.id);
        if tip != line.tip {
            return Err(self.moved());
        }
        line.at = newest;
        Ok(())
    }

    /// Submits a transaction on a line, with records of the states that it merges, and adds these
    /// merges to the registry. Returns the GLSN of the commit, which is not durable yet.
    ///
    /// # Errors
    /// [`InvalidInput::BranchMoved`] if the transaction conflicts with another commit; the budget;
    /// errors of commits.
    fn order(
        &mut self,
        line: &mut Line,
        mut tx: Transaction,
        merged: &[(u32, Glsn)],
    ) -> Result<Glsn> {
        let (db, into) = (&self.db, line.branch.id());
        let branches = &db.store.reader.snapshots.branches;
        if !merged.is_empty() {
            let registry = db.store.reader.keyspaces.handle(BRANCHES, "".into());
            tx.space_to_put(&registry)?;
            for (from, upto) in merged {
                // The chain may have been removed before the transaction began, or may be removed
                // later.
                if *from != MAIN_CHAIN && tx.get(&registry, chain_key(*from))?.is_none() {
                    return Err(self.moved());
                }
                tx.note_read(&KeyBuffer::new(BRANCHES, &chain_key(*from))?)?;
                let key = KeyBuffer::new(BRANCHES, &merge_key(into, *from, *upto))?;
                tx.put_expiring(&key, b"", None)?;
            }
        }
        for number in 0..merged.len() {
            if let Err(error) = branches.reserve_for_merge(&db.store.reader.budget) {
                (0..number).for_each(|_| branches.give_room_of_merge_back());
                return Err(error);
            }
        }
        let changing = (!merged.is_empty()).then(|| branches.lock_changing());
        let ticket = match tx.commit_submit() {
            Ok(ticket) => ticket,
            Err(error) => {
                merged.iter().for_each(|_| branches.give_room_of_merge_back());
                return Err(match error {
                    Error::Conflict { .. } => self.moved(),
                    error => error,
                });
            }
        };
        let glsn = ticket.glsn();
        for (from, upto) in merged {
            branches.merged((into, *from), *upto, glsn, &db.store.reader.snapshots.tags);
        }
        drop(changing);
        self.last = Some(ticket);
        line.at = glsn;
        Ok(glsn)
    }

    /// Begins to receive a commit. The caller passes the changes to [`Draft::sink`].
    ///
    /// # Errors
    /// As for [`CommitSink::commit`], without those of the contents.
    pub(super) fn begin_commit(
        &mut self,
        parents: &[CommitId],
        micros: u64,
        is_on_line: bool,
    ) -> Result<Draft> {
        let (mut merged, mut lacks_parent) = (Vec::new(), false);
        for parent in parents.iter().skip(1) {
            match self.place(parent)? {
                Some(state) => merged.push(state),
                // A partial clone lacks commits that were merged.
                None if self.is_partial => lacks_parent = true,
                None => return Err(self.lacks(parent)?),
            }
        }
        let line = self.take_line(parents.first().copied(), is_on_line)?;
        let received = Received { micros, parents: parents.to_vec(), ..Received::default() };
        let draft = self.draft(line, merged, received)?;
        Ok(Draft { lacks_parent, ..draft })
    }

    /// Begins to receive a boundary commit, whose parents the store lacks.
    fn begin_boundary(&mut self, head: &Head<'_>) -> Result<Draft> {
        let line = self.take_line(None, head.is_on_line)?;
        let (micros, parents) = (head.micros, head.parents.to_vec());
        let received = Received { is_boundary: true, micros, parents, ..Received::default() };
        let mut draft = self.draft(line, Vec::new(), received)?;
        draft.sink.state = Some(Default::default());
        Ok(draft)
    }

    fn draft(
        &mut self,
        mut line: Line,
        merged: Vec<(u32, Glsn)>,
        received: Received,
    ) -> Result<Draft> {
        let begun = self.prepare(&mut line, &merged).and_then(|()| self.begin(&line));
        let tx = match begun {
            Ok(tx) => tx,
            Err(error) => {
                self.put_back(line);
                return Err(error);
            }
        };
        let sink = TransactionSink {
            db: self.db.clone(),
            tx,
            hash: ContentHash::default(),
            received: Received { chain: line.branch.id(), ..received },
            state: None,
            keyspace: None,
        };
        Ok(Draft { sink, line, merged, lacks_parent: false })
    }

    /// Commits a draft as the commit `id`: the id that was computed from its contents, or that of a
    /// boundary commit, which cannot be computed.
    ///
    /// # Errors
    /// [`InvalidInput::BranchMoved`] if another commit changed the branch; errors of commits.
    pub(super) fn end_commit(&mut self, draft: Draft, id: CommitId, metadata: &[u8]) -> Result<()> {
        let Draft { sink, mut line, merged, lacks_parent } = draft;
        let TransactionSink { mut tx, received, .. } = sink;
        let mark = match lacks_parent {
            true => Some(&b"p"[..]),
            false => received.is_boundary.then_some(&b""[..]),
        };
        let noted = tx.set_metadata(metadata).and_then(|()| {
            self.record(&mut tx, &id, &received)?;
            mark.map_or(Ok(()), |mark| self.put_own(&mut tx, &boundary_key(&id), mark))
        });
        let glsn = match noted.and_then(|()| self.order(&mut line, tx, &merged)) {
            Ok(glsn) => glsn,
            Err(error) => {
                self.put_back(line);
                return Err(error);
            }
        };
        for parent in received.parents.iter().skip(1) {
            if let Some(side) = self.side.get_mut(parent) {
                side.is_merged = true;
            }
        }
        self.recent.insert(id, (line.branch.id(), glsn));
        (line.tip, line.is_merged) = (Some(id), false);
        self.put_line(line)?;
        self.received += 1;
        if self.received.is_multiple_of(BATCH) {
            self.settle()?;
        }
        Ok(())
    }

    /// Drops a draft.
    pub(super) fn abandon(&mut self, draft: Draft) {
        self.put_back(draft.line);
    }

    /// The last commit of the receiving branch.
    pub(super) fn target_tip(&self) -> Option<CommitId> {
        self.target.as_ref()?.tip
    }

    /// Whether the commit `id` is `ancestor`, or contains it.
    ///
    /// # Errors
    /// As for [`contained`].
    pub(super) fn descends(&self, id: &CommitId, ancestor: &CommitId) -> Result<bool> {
        let Some(state) = self.place(id)? else { return Ok(false) };
        Ok(!contained(&self.ids, &[state], vec![*ancestor])?.is_empty())
    }

    /// Commits a merge of `theirs`, as of `at`, that changes no keys. Returns its GLSN.
    ///
    /// # Errors
    /// [`InvalidInput::BranchMoved`] if another commit changed the receiving branch; errors of
    /// commits.
    pub(super) fn contain(mut self, theirs: &Branch, at: Glsn) -> Result<Glsn> {
        let mut target = self.target.take().ok_or_else(|| self.moved())?;
        let merged = [(theirs.id(), at)];
        self.prepare(&mut target, &merged)?;
        let mut tx = self.begin(&target)?;
        tx.set_metadata(format!("merge of branch {}", theirs.name()).as_bytes())?;
        let glsn = self.order(&mut target, tx, &merged)?;
        self.wait()?;
        Ok(glsn)
    }
}

impl Drop for Receiver {
    /// Waits until the last ordered commit is durable. Otherwise the next transfer would not see
    /// it, and would conflict with it.
    fn drop(&mut self) {
        // Ignore an error: after it, the store accepts nothing more.
        let _ = self.wait();
    }
}

impl CommitSink for Receiver {
    fn commit(
        &mut self,
        head: &Head<'_>,
        changes: &mut dyn FnMut(&mut dyn Sink) -> Result<()>,
    ) -> Result<()> {
        let parent = head.parents.first().copied().filter(|_| !head.is_boundary);
        let is_next = |target: &Line| head.is_on_line && target.tip == parent;
        let is_repeated = self.repeats && self.target.as_ref().is_some_and(is_next);
        if !is_repeated && self.place(&head.id)?.is_some() {
            return Ok(());
        }
        let is_accepted = match self.boundary {
            Boundary::None => false,
            Boundary::Only(id) => id == head.id && self.received == 0,
            Boundary::Any => true,
        };
        if head.is_boundary && !is_accepted {
            return Err(Error::corrupt(format!(
                "commit {} was sent without its changes, so its id cannot be verified; use the \
                 same version of Plimsoll on both sides, and try again",
                head.id
            )));
        }
        let mut draft = match head.is_boundary {
            true => self.begin_boundary(head)?,
            false => self.begin_commit(head.parents, head.micros, head.is_on_line)?,
        };
        changes(&mut draft.sink)?;
        if head.is_boundary {
            // The id covers changes, not states, so only the state's own hash can be verified.
            if !draft.sink.is_announced_state() {
                let id = head.id;
                return Err(Error::corrupt(format!(
                    "the state of commit {id} does not match the hash that was sent with it; \
                     verify the store that sent it"
                )));
            }
            return self.end_commit(draft, head.id, head.metadata);
        }
        let id = draft.sink.hash.id(head.parents, head.micros, head.metadata);
        if id != head.id {
            return Err(Error::corrupt(format!(
                "the contents of commit {} do not match its id (computed id: {id}); verify the \
                 store that sent it",
                head.id
            )));
        }
        self.end_commit(draft, id, head.metadata)
    }
}

fn unknown(id: &CommitId) -> Error {
    Error::corrupt(format!(
        "commit {id} is missing, but a commit that descends from it was sent; verify the store \
         that sent it"
    ))
}

#[cfg(test)]
mod tests;
