//! Receives the commits of another store, or of another branch, one by one.
//!
//! A commit is placed after its first parent: on the receiving branch if that ends with the parent,
//! otherwise on a temporary branch. If the receiving branch does not end with the last commit after
//! the transfer, one more commit makes it equal to that. The temporary branches are then deleted.
//! The commits that were merged from them are kept.

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::api::branches::Branch;
use crate::api::db::Db;
use crate::api::snapshot::{Moment, Snapshot};
use crate::api::state_diff::StateDiff;
use crate::engine::branch_commits;
use crate::merge::keys::Scope;
use crate::read::moments::OpenMoment;
use crate::read::span::Span;
use crate::sync::commit_id::{CommitId, ContentHash};
use crate::sync::contents::{Bytes, RECEIVED, Received, Sink, micros_of, node_of};
use crate::sync::ids::{Ids, Kind, Place};
use crate::sync::send::{CommitSink, Head, contains};
use crate::txn::ticket::CommitTicket;
use crate::txn::transaction::Transaction;
use crate::types::branches::{MAIN, MAIN_CHAIN, TEMPORARY, chain_key, check_users_name, merge_key};
use crate::types::error::{Error, Result};
use crate::types::expiry::Expiry;
use crate::types::index_key::KeyBuffer;
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::{BRANCHES, DEFAULT, FIRST_ID, Keyspace};

/// After this many commits, their ids are written, and the memory for them is released.
const BATCH: u64 = 1024;

/// A branch that receives commits.
struct Line {
    branch: Branch,
    /// Its last commit; `None` if it is empty.
    tip: Option<CommitId>,
    /// A moment at which `tip` is its last commit. Commits of others after it are conflicts.
    at: Glsn,
    is_temporary: bool,
}

/// Receives commits into one branch.
pub(super) struct Receiver<'r> {
    db: &'r Db,
    ids: &'r Ids,
    /// The receiving branch, if it exists, and the temporary branches.
    lines: Vec<Line>,
    /// The name of the receiving branch.
    name: String,
    /// The index of the receiving branch in `lines`; `None` if it does not exist yet.
    target: Option<usize>,
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

impl<'r> Receiver<'r> {
    /// A receiver for the branch `name`, whose last commit must be `expected`; `None`: the branch
    /// is empty or does not exist.
    ///
    /// # Errors
    /// [`InvalidInput::BranchName`] if a branch cannot have this name;
    /// [`InvalidInput::BranchMoved`] if the branch exists and ends with another commit; errors of
    /// [`Ids::catch_up`].
    pub(super) fn new(
        db: &'r Db,
        ids: &'r Ids,
        name: &str,
        expected: Option<CommitId>,
        repeats: bool,
    ) -> Result<Self> {
        if name != MAIN {
            check_users_name(name)?;
        }
        let committer = &db.store.committer;
        let _floor = committer.open_floor(committer.as_of(db.store.newest()?)?)?;
        let mut receiver = Self {
            db,
            ids,
            lines: Vec::new(),
            name: name.to_owned(),
            target: None,
            repeats,
            recent: HashMap::new(),
            last: None,
            started: committer.options.clock.monotonic_nanos(),
            received: 0,
            _floor,
        };
        match db.branch(name) {
            Ok(branch) => {
                // Read the moment before the ids, so that a commit in between is a conflict later.
                let at = db.store.newest()?;
                ids.catch_up()?;
                let tip = ids.tip((branch.id(), at))?.map(|place| place.id);
                if tip != expected {
                    return Err(receiver.moved());
                }
                receiver.lines.push(Line { branch, tip, at, is_temporary: false });
                receiver.target = Some(0);
            }
            Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) if expected.is_none() => {}
            Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => return Err(receiver.moved()),
            Err(error) => return Err(error),
        }
        Ok(receiver)
    }

    fn moved(&self) -> Error {
        InvalidInput::BranchMoved { name: self.name.clone() }.into()
    }

    /// A state that ends with a commit, and that can be read; `None` if the store has none.
    fn place(&self, id: &CommitId) -> Result<Option<(u32, Glsn)>> {
        if let Some(state) = self.recent.get(id) {
            return Ok(Some(*state));
        }
        Ok(self.ids.readable(id)?.first().map(Place::state))
    }

    /// The index of the line on which a commit is placed. If no line ends with the first parent,
    /// creates a temporary branch there.
    ///
    /// # Errors
    /// [`InvalidInput::StateNotRetained`] if the parent's state is no longer retained; corruption
    /// if the store does not have the parent; errors of commits.
    fn line_for(&mut self, head: &Head<'_>) -> Result<usize> {
        let parent = head.parents.first().copied();
        let target =
            self.target.filter(|target| head.is_on_line && self.lines[*target].tip == parent);
        if let Some(target) = target {
            return Ok(target);
        }
        let ends_with = |line: &Line| line.is_temporary && line.tip == parent;
        if let Some(line) = self.lines.iter().position(ends_with) {
            return Ok(line);
        }
        let (chain, at) = match parent {
            None => (MAIN_CHAIN, Glsn::NONE),
            Some(parent) => self.place(&parent)?.ok_or_else(|| unknown(&parent))?,
        };
        self.wait()?;
        let branch = self.fork(chain, at).map_err(|error| match (error, parent) {
            (Error::Trimmed { .. }, Some(parent)) => {
                InvalidInput::StateNotRetained { id: parent.to_string() }.into()
            }
            (error, _) => error,
        })?;
        let at = self.db.store.newest()?;
        self.lines.push(Line { branch, tip: parent, at, is_temporary: true });
        Ok(self.lines.len() - 1)
    }

    /// Creates a temporary branch that leaves a chain at a moment. The branch of the chain may have
    /// been deleted, as long as others contain it.
    ///
    /// # Errors
    /// [`Error::Trimmed`] if the state is no longer retained; errors of commits.
    fn fork(&self, chain: u32, at: Glsn) -> Result<Branch> {
        // Keeps the moment readable until the branch retains it.
        let snapshot = Snapshot::of(&self.db.store, Moment::Glsn(at))?;
        let mut number = self.lines.len();
        loop {
            // Of this transfer alone, because it is deleted by its name.
            let name = format!("{TEMPORARY}{:x}-{number}", self.started);
            match branch_commits::create_from(&self.db.store, &name, chain, at) {
                Err(Error::InvalidInput(InvalidInput::BranchExists { .. })) => number += 1,
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
    fn settle(&mut self) -> Result<()> {
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
        let key = [&[RECEIVED][..], id.as_bytes()].concat();
        let space = self.ids.space();
        tx.space_to_put(space)?;
        let key = KeyBuffer::new(tx.id_of(space)?, &key)?;
        tx.put_expiring(&key, &received.encode(), None)
    }

    /// Prepares a line for a transaction that merges `merged`: advances `at` of the line to the
    /// newest moment, because the transaction reads the records of these chains, which may be newer
    /// than the last commit of the line.
    ///
    /// # Errors
    /// [`InvalidInput::BranchMoved`] if another commit changed the line; errors of
    /// [`Receiver::settle`].
    fn prepare(&mut self, at: usize, merged: &[(u32, Glsn)]) -> Result<()> {
        if merged.is_empty() {
            return Ok(());
        }
        self.settle()?;
        let newest = self.db.store.newest()?;
        self.ids.catch_up()?;
        let line = &mut self.lines[at];
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
    fn order(&mut self, at: usize, mut tx: Transaction, merged: &[(u32, Glsn)]) -> Result<Glsn> {
        let (db, into) = (self.db, self.lines[at].branch.id());
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
            if let Err(error) = branches.make_room_for_merge(&db.store.reader.budget) {
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
        self.lines[at].at = glsn;
        Ok(glsn)
    }

    /// Commits a merge of `theirs`, as of `at`, that changes no keys. Returns its GLSN.
    ///
    /// # Errors
    /// [`InvalidInput::BranchMoved`] if another commit changed the receiving branch; errors of
    /// commits.
    pub(super) fn contain(mut self, theirs: &Branch, at: Glsn) -> Result<Glsn> {
        let target = self.target.ok_or_else(|| self.moved())?;
        let merged = [(theirs.id(), at)];
        self.prepare(target, &merged)?;
        let mut tx = self.begin(&self.lines[target])?;
        tx.set_metadata(format!("merge of branch {}", theirs.name()).as_bytes())?;
        let glsn = self.order(target, tx, &merged)?;
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
        match self.target {
            Some(target) if self.lines[target].tip == Some(*tip) => {}
            Some(target) => self.advance(target, tip)?,
            None => self.create(tip)?,
        }
        self.settle()?;
        for line in self.lines.iter().filter(|line| line.is_temporary) {
            self.db.delete_branch(line.branch.name())?;
        }
        self.delete_leftovers()?;
        Ok(self.received)
    }

    /// Deletes the temporary branches of interrupted transfers that are empty, or whose commits the
    /// receiving branch contains now.
    fn delete_leftovers(&self) -> Result<()> {
        let all = self.db.branches()?;
        for info in all.iter().filter(|info| info.name.starts_with(TEMPORARY)) {
            let done = || {
                let (branch, own) = (self.db.branch(&info.name)?, self.db.branch(&self.name)?);
                let is_superfluous = match self.ids.tip_of(&branch)? {
                    None => true,
                    Some(tip) => contains(self.db, self.ids, &own, &tip.id)?,
                };
                if is_superfluous { self.db.delete_branch(&info.name) } else { Ok(()) }
            };
            match done() {
                // Another transfer has deleted or renamed it.
                Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => {}
                done => done?,
            }
        }
        Ok(())
    }

    /// Creates the receiving branch so that it ends with the commit `tip`: renames the line that
    /// ends with it, or forks a branch there.
    ///
    /// # Errors
    /// Corruption if the store does not have `tip`; errors of commits.
    fn create(&mut self, tip: &CommitId) -> Result<()> {
        let line = self.lines.iter().position(|line| line.tip == Some(*tip));
        if let Some(line) = line {
            let line = self.lines.swap_remove(line);
            return self.db.rename_branch(line.branch.name(), &self.name);
        }
        let (chain, at) = self.place(tip)?.ok_or_else(|| unknown(tip))?;
        let branch = self.fork(chain, at)?;
        self.db.rename_branch(branch.name(), &self.name)
    }

    /// Makes the receiving branch equal to the commit `tip` on another chain, by a commit with the
    /// same id.
    ///
    /// # Errors
    /// Corruption if the store does not have `tip`; [`InvalidInput::BranchMoved`]; errors of
    /// commits.
    fn advance(&mut self, target: usize, tip: &CommitId) -> Result<()> {
        let places = self.ids.readable(tip)?;
        let whole = places.iter().find(|it| it.kind == Kind::Whole).or(places.first());
        let (chain, at) = whole.map(Place::state).ok_or_else(|| unknown(tip))?;
        // Fork a branch to read the state, because the branch of its chain may have been deleted.
        let theirs = self.fork(chain, at)?;
        let made = self.copy_state(target, tip, &theirs, (chain, at));
        self.wait()?;
        self.db.delete_branch(theirs.name())?;
        made
    }

    /// Commits the differences between the receiving branch and `theirs`, which is at `state`, with
    /// the id `tip`.
    fn copy_state(
        &mut self,
        target: usize,
        tip: &CommitId,
        theirs: &Branch,
        state: (u32, Glsn),
    ) -> Result<()> {
        self.prepare(target, &[state])?;
        let line = &self.lines[target];
        let mut tx = self.begin(line)?;
        let ours = line.branch.snapshot_at(Moment::Glsn(line.at))?;
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
        let chain = self.lines[target].branch.id();
        let received = Received { is_advance: true, chain, ..whole.0 };
        self.record(&mut tx, tip, &received)?;
        self.order(target, tx, &[state])?;
        self.lines[target].tip = Some(*tip);
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

impl CommitSink for Receiver<'_> {
    fn commit(
        &mut self,
        head: &Head<'_>,
        changes: &mut dyn FnMut(&mut dyn Sink) -> Result<()>,
    ) -> Result<()> {
        let parent = head.parents.first().copied();
        let is_next = |line: &usize| head.is_on_line && self.lines[*line].tip == parent;
        let is_repeated = self.repeats && self.target.as_ref().is_some_and(is_next);
        if !is_repeated && self.place(&head.id)?.is_some() {
            return Ok(());
        }
        let mut merged = Vec::with_capacity(head.parents.len().saturating_sub(1));
        for parent in head.parents.iter().skip(1) {
            merged.push(self.place(parent)?.ok_or_else(|| unknown(parent))?);
        }
        let at = self.line_for(head)?;
        self.prepare(at, &merged)?;
        let mut sink = TransactionSink {
            db: self.db,
            tx: self.begin(&self.lines[at])?,
            hash: ContentHash::default(),
            received: Received {
                is_advance: false,
                chain: self.lines[at].branch.id(),
                micros: head.micros,
                parents: head.parents.to_vec(),
                ranges: Vec::new(),
            },
            keyspace: None,
        };
        changes(&mut sink)?;
        let TransactionSink { mut tx, hash, received, .. } = sink;
        let id = hash.id(head.parents, head.micros, head.metadata);
        if id != head.id {
            return Err(Error::corrupt(format!(
                "commit {} has other contents than its id says ({id}); verify the store that it \
                 comes from",
                head.id
            )));
        }
        tx.set_metadata(head.metadata)?;
        self.record(&mut tx, &id, &received)?;
        let glsn = self.order(at, tx, &merged)?;
        let line = &mut self.lines[at];
        line.tip = Some(id);
        self.recent.insert(id, (line.branch.id(), glsn));
        self.received += 1;
        if self.received.is_multiple_of(BATCH) {
            self.settle()?;
        }
        Ok(())
    }
}

fn unknown(id: &CommitId) -> Error {
    Error::corrupt(format!("commit {id} is missing: a commit that descends from it was sent"))
}

/// Writes the changes of a commit in a transaction, and hashes them. Creates keyspaces that do not
/// exist, with default settings.
struct TransactionSink<'r> {
    db: &'r Db,
    tx: Transaction,
    hash: ContentHash,
    received: Received,
    /// The keyspace of the last change.
    keyspace: Option<Keyspace>,
}

impl TransactionSink<'_> {
    fn keyspace(&mut self, name: &str) -> Result<Keyspace> {
        if let Some(last) = self.keyspace.as_ref().filter(|last| last.name() == name) {
            return Ok(last.clone());
        }
        let found = self.db.keyspace(name)?;
        self.keyspace = Some(found.clone());
        Ok(found)
    }
}

impl Sink for TransactionSink<'_> {
    fn range(&mut self, keyspace: &str, first: &[u8], end: Option<&[u8]>) -> Result<()> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        self.hash.range(keyspace, first, end);
        let range = (keyspace.into(), first.to_vec(), end.map(<[u8]>::to_vec));
        self.received.ranges.push(range);
        let keyspace = self.keyspace(keyspace)?;
        let range = (Included(first), end.map_or(Unbounded, Excluded));
        self.tx.delete_range(&keyspace, range)
    }

    fn delete(&mut self, keyspace: &str, key: &[u8]) -> Result<()> {
        self.hash.delete(keyspace, key);
        let keyspace = self.keyspace(keyspace)?;
        self.tx.delete(&keyspace, key)
    }

    fn put(
        &mut self,
        name: &str,
        key: &[u8],
        expiry: Option<Expiry>,
        value: Bytes<'_>,
    ) -> Result<()> {
        self.hash.put(name, key, expiry, value.len());
        let keyspace = self.keyspace(name)?;
        let key = self.tx.key_to_put(&keyspace, key)?;
        let hash = &mut self.hash;
        match value {
            Bytes::Whole(value) => {
                hash.value(name, value);
                self.tx.put_expiring(&key, value, expiry)
            }
            Bytes::Pieces(_, next) => {
                let mut hashed = |piece: &mut [u8]| {
                    let bytes = next(piece)?;
                    hash.value(name, &piece[..bytes]);
                    Ok(bytes)
                };
                self.tx.put_pieces(&key, expiry, &mut hashed).map(drop)
            }
        }
    }
}

#[cfg(test)]
mod tests;
