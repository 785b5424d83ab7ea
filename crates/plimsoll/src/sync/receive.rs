//! Receives the commits of another store, or of another branch, one by one.
//!
//! A commit is placed after its first parent: on the receiving branch if that ends with the parent,
//! otherwise on a temporary branch. If the receiving branch does not end with the last commit after
//! the transfer, one more commit makes it equal to that. The temporary branches are then deleted.
//! The commits that were merged from them are kept.
//!
//! Memory: a transfer knows at most [`MAX_SIDE_LINES`] temporary branches, whatever their number in
//! the store. If it needs one of the others, it forks a new one there.

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::api::branches::Branch;
use crate::api::db::Db;
use crate::api::snapshot::{Moment, Snapshot};
use crate::api::state_diff::StateDiff;
use crate::engine::branch_commits;
use crate::merge::keys::Scope;
use crate::read::open_moments::OpenMoment;
use crate::read::span::Span;
use crate::sync::commit_id::{CommitId, ContentHash};
use crate::sync::contents::{Received, Sink, micros_of, node_of};
use crate::sync::ids::{Ids, Kind, Place, received_key};
use crate::sync::receive::transaction_sink::TransactionSink;
use crate::sync::send::{CommitSink, Head, contained};
use crate::txn::ticket::CommitTicket;
use crate::txn::transaction::Transaction;
use crate::types::branches::{MAIN, MAIN_CHAIN, TEMPORARY, chain_key, check_users_name, merge_key};
use crate::types::error::{Error, Result};
use crate::types::index_key::KeyBuffer;
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::{BRANCHES, DEFAULT, FIRST_ID};

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

/// A commit that is being received.
pub(super) struct Draft {
    pub(super) sink: TransactionSink,
    line: Line,
    /// The states that it merges.
    merged: Vec<(u32, Glsn)>,
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
    /// The states that end with received commits whose ids are not written yet.
    recent: HashMap<CommitId, (u32, Glsn)>,
    /// The last commit that was ordered, until it is durable.
    last: Option<CommitTicket>,
    /// When the transfer began, by the monotonic clock, in nanoseconds.
    started: u64,
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
            started: committer.options.clock.monotonic_nanos(),
            db,
            ids: ids.clone(),
            name: name.to_owned(),
            target,
            side: HashMap::new(),
            created: 0,
            repeats,
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

    /// Forgets the temporary branches that are known. Deletes those that others have merged.
    fn forget_lines(&mut self) -> Result<()> {
        let lines = std::mem::take(&mut self.side);
        if lines.values().any(|line| line.is_merged) {
            // Others keep a merged chain only if its commits have ids.
            self.settle()?;
        }
        for line in lines.values().filter(|line| line.is_merged) {
            self.delete(line.branch.name())?;
        }
        Ok(())
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

    /// The beginning of the names of the temporary branches of this transfer.
    fn temporary(&self) -> String {
        format!("{TEMPORARY}{:x}-", self.started)
    }

    /// Creates a temporary branch that leaves a chain right after the commit `id`. Returns it, and
    /// the state.
    ///
    /// # Errors
    /// [`InvalidInput::StateNotRetained`] if no such state is retained any more; corruption if the
    /// store does not have the commit; errors of commits.
    fn fork_after(&mut self, id: &CommitId) -> Result<(Branch, (u32, Glsn))> {
        let places: Vec<(u32, Glsn)> = match self.recent.get(id) {
            Some(state) => vec![*state],
            None => {
                let mut places = self.ids.readable(id)?;
                places.sort_by_key(|place| place.kind != Kind::Whole);
                places.iter().map(Place::state).collect()
            }
        };
        if places.is_empty() {
            return Err(unknown(id));
        }
        for state in places {
            match self.fork(state) {
                Err(Error::Trimmed { .. }) => {}
                branch => return Ok((branch?, state)),
            }
        }
        // The newest state of a branch is retained, and may still be the one after the commit.
        let newest = self.db.store.newest()?;
        self.settle()?;
        let names = self.db.branches()?.into_iter().map(|info| info.name);
        for name in names.chain([MAIN.to_owned()]) {
            let chain = match self.db.branch(&name) {
                // It was deleted since it was listed.
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
            // Of this transfer alone, because it is deleted by its name.
            let name = format!("{}{}", self.temporary(), self.created);
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
        Ok(tx)
    }

    /// Adds the [`Received`] record of the commit `id` to a transaction.
    fn record(&self, tx: &mut Transaction, id: &CommitId, received: &Received) -> Result<()> {
        let space = self.ids.space();
        tx.space_to_put(space)?;
        let key = KeyBuffer::new(tx.id_of(space)?, &received_key(id))?;
        tx.put_expiring(&key, &received.encode(), None)
    }

    /// Prepares a line for a transaction that merges `merged`: advances `at` of the line to the
    /// newest moment, because the transaction reads the records of these chains, which may be newer
    /// than the last commit of the line.
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
            tx.space_to_put(&db.store.reader.keyspaces.handle(BRANCHES, "".into()))?;
            for (from, upto) in merged {
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
        let mut merged = Vec::with_capacity(parents.len().saturating_sub(1));
        for parent in parents.iter().skip(1) {
            merged.push(self.place(parent)?.ok_or_else(|| unknown(parent))?);
        }
        let mut line = self.take_line(parents.first().copied(), is_on_line)?;
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
            received: Received {
                is_advance: false,
                chain: line.branch.id(),
                micros,
                parents: parents.to_vec(),
                ranges: Vec::new(),
            },
            keyspace: None,
        };
        Ok(Draft { sink, line, merged })
    }

    /// Commits a draft under the id that was computed from its contents.
    ///
    /// # Errors
    /// [`InvalidInput::BranchMoved`] if another commit changed the branch; errors of commits.
    pub(super) fn end_commit(&mut self, draft: Draft, id: CommitId, metadata: &[u8]) -> Result<()> {
        let Draft { sink, mut line, merged } = draft;
        let TransactionSink { mut tx, received, .. } = sink;
        let noted = tx.set_metadata(metadata).and_then(|()| self.record(&mut tx, &id, &received));
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

    /// Makes the receiving branch end with the commit `tip`, which the store must have, and deletes
    /// the temporary branches. Returns the number of commits that were received.
    ///
    /// # Errors
    /// [`InvalidInput::BranchMoved`] if another commit changed the branch; errors of commits.
    pub(super) fn finish(mut self, tip: &CommitId) -> Result<u64> {
        self.settle()?;
        match self.target.take() {
            Some(target) if target.tip == Some(*tip) => {}
            Some(target) => self.advance(target, tip)?,
            None => {
                let name = self.name.clone();
                self.create(&name, tip)?;
            }
        }
        self.delete_temporary()?;
        Ok(self.received)
    }

    /// Deletes the temporary branches of this transfer, and those of interrupted ones whose commits
    /// other branches contain now.
    ///
    /// # Errors
    /// Errors of reads and of commits.
    pub(super) fn delete_temporary(&mut self) -> Result<()> {
        self.settle()?;
        self.side.clear();
        let (own, mut all) = (self.temporary(), self.db.branches()?);
        all.retain(|info| info.name.starts_with(TEMPORARY));
        let mut superfluous = Vec::with_capacity(all.len());
        let mut others = Vec::new();
        for name in all.into_iter().map(|info| info.name) {
            if name.starts_with(&own) {
                superfluous.push(name);
                continue;
            }
            match self.db.branch(&name) {
                // Another transfer has deleted or renamed it.
                Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => {}
                found => match self.ids.tip_of(&found?)? {
                    None => superfluous.push(name),
                    Some(tip) => others.push((name, tip.id)),
                },
            }
        }
        if !others.is_empty() {
            let tips = others.iter().map(|(_, tip)| *tip).collect();
            let found = contained(&self.ids, &self.tips()?, tips)?;
            let others = others.into_iter().filter(|(_, tip)| found.contains(tip));
            superfluous.extend(others.map(|(name, _)| name));
        }
        superfluous.iter().try_for_each(|name| self.delete(name))
    }

    /// The states at the ends of the branches, except temporary ones.
    fn tips(&self) -> Result<Vec<(u32, Glsn)>> {
        let names = self.db.branches()?.into_iter().map(|info| info.name);
        let mut tips = Vec::new();
        for name in names.filter(|name| !name.starts_with(TEMPORARY)).chain([MAIN.to_owned()]) {
            match self.db.branch(&name) {
                // It was deleted since it was listed.
                Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => {}
                branch => tips.extend(self.ids.tip_of(&branch?)?.map(|place| place.state())),
            }
        }
        Ok(tips)
    }

    /// Creates the branch `name` so that it ends with the commit `tip`.
    ///
    /// # Errors
    /// As for [`Receiver::branch_after`].
    fn create(&mut self, name: &str, tip: &CommitId) -> Result<()> {
        let branch = self.branch_after(tip)?;
        self.db.rename_branch(branch.name(), name)
    }

    /// Takes the line that ends with the commit `tip`, or forks a temporary branch there.
    ///
    /// # Errors
    /// [`InvalidInput::StateNotRetained`]; corruption if the store does not have `tip`; errors of
    /// commits.
    pub(super) fn branch_after(&mut self, tip: &CommitId) -> Result<Branch> {
        match self.side.remove(tip) {
            Some(line) => Ok(line.branch),
            None => Ok(self.fork_after(tip)?.0),
        }
    }

    /// Makes the receiving branch equal to the commit `tip` on another chain, by a commit with the
    /// same id.
    ///
    /// # Errors
    /// Corruption if the store does not have `tip`; [`InvalidInput::BranchMoved`]; errors of
    /// commits.
    fn advance(&mut self, target: Line, tip: &CommitId) -> Result<()> {
        // Fork a branch to read the state, because the branch of its chain may have been deleted.
        let (theirs, state) = self.fork_after(tip)?;
        self.copy_state(target, tip, &theirs, state)?;
        self.wait()?;
        self.delete(theirs.name())
    }

    /// Commits the differences between the receiving branch and `theirs`, which is at `state`, with
    /// the id `tip`.
    fn copy_state(
        &mut self,
        mut target: Line,
        tip: &CommitId,
        theirs: &Branch,
        state: (u32, Glsn),
    ) -> Result<()> {
        self.prepare(&mut target, &[state])?;
        let mut tx = self.begin(&target)?;
        let ours = target.branch.snapshot_at(Moment::Glsn(target.at))?;
        let theirs = theirs.snapshot();
        for scope in Scope::all(&self.db.store) {
            let Some(keyspace) = self.db.find_keyspace(&scope.name)? else { continue };
            let states = [&ours, &theirs];
            let mut differences = StateDiff::new(&keyspace, states, b"")?.comparing_expiries();
            while let Some(difference) = differences.next().transpose()? {
                let key = difference.key;
                let Some(mut value) = theirs.get_reader(&keyspace, &key)? else {
                    tx.delete(&keyspace, &key)?;
                    continue;
                };
                let expiry = value.expiry();
                let key = tx.key_to_put(&keyspace, &key)?;
                tx.put_pieces(&key, expiry, &mut |piece| value.read_piece(piece))?;
            }
        }
        let whole = self.received_at(state.1)?;
        tx.set_metadata(&whole.1)?;
        let chain = target.branch.id();
        let received = Received { is_advance: true, chain, ..whole.0 };
        self.record(&mut tx, tip, &received)?;
        self.order(&mut target, tx, &[state])?;
        Ok(())
    }

    /// The time and the parents of the original of the commit at `at`, and its metadata.
    ///
    /// # Errors
    /// [`InvalidInput::NotACommit`] if there is none; errors of reads.
    fn received_at(&self, at: Glsn) -> Result<(Received, Vec<u8>)> {
        let commit = self.db.log().commit(at)?;
        let commit = commit.ok_or(InvalidInput::NotACommit { glsn: at })?;
        let node = node_of(&commit)?;
        let node = node.ok_or(InvalidInput::NotACommit { glsn: at })?;
        let parents = self.ids.parents(&commit, &node)?;
        let received = node.received.as_ref().map(|(_, received)| received);
        let micros = micros_of(&commit, received);
        let metadata = commit.metadata()?.to_vec();
        Ok((Received { micros, parents, ..Received::default() }, metadata))
    }
}

impl Drop for Receiver {
    /// Waits for a commit that was ordered, because the next transfer would not see it, and would
    /// conflict with it.
    fn drop(&mut self) {
        // After an error, the store accepts nothing more.
        let _ = self.wait();
    }
}

impl CommitSink for Receiver {
    fn commit(
        &mut self,
        head: &Head<'_>,
        changes: &mut dyn FnMut(&mut dyn Sink) -> Result<()>,
    ) -> Result<()> {
        let parent = head.parents.first().copied();
        let is_next = |target: &Line| head.is_on_line && target.tip == parent;
        let is_repeated = self.repeats && self.target.as_ref().is_some_and(is_next);
        if !is_repeated && self.place(&head.id)?.is_some() {
            return Ok(());
        }
        let mut draft = self.begin_commit(head.parents, head.micros, head.is_on_line)?;
        changes(&mut draft.sink)?;
        let id = draft.sink.hash.id(head.parents, head.micros, head.metadata);
        if id != head.id {
            return Err(Error::corrupt(format!(
                "commit {} has other contents than its id says ({id}); verify the store that it \
                 comes from",
                head.id
            )));
        }
        self.end_commit(draft, id, head.metadata)
    }
}

fn unknown(id: &CommitId) -> Error {
    Error::corrupt(format!("commit {id} is missing: a commit that descends from it was sent"))
}

#[cfg(test)]
mod tests;
