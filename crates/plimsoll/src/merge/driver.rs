//! Runs a merge: writes its steps in one transaction, or previews them.

use std::cell::Cell;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::api::snapshot::Snapshot;
use crate::engine::Engine;
use crate::merge::bases::{Bases, Limit};
use crate::merge::graph::Graph;
use crate::merge::keys::Scope;
use crate::merge::partial::check_bases;
use crate::merge::rule::{Resolved, read_whole};
use crate::merge::steps::{MergeAction, MergeStep, MergeSteps, Part, Read, Rules, Sides, Stream};
use crate::read::lens::Lens;
use crate::read::point::ValueReader;
use crate::read::span::Span;
use crate::txn::retry::{self, Target};
use crate::txn::transaction::Transaction;
use crate::types::as_of::AsOf;
use crate::types::branches::{MAIN_CHAIN, chain_key, merge_key, merge_prefix};
use crate::types::error::{Error, Result};
use crate::types::index_key::KeyBuffer;
use crate::types::keyspaces::{BRANCHES, SYSTEM};
use crate::types::value::is_free;

/// Maximum number of times that a merge of branches is repeated because its starting state is no
/// longer retained. Must exceed the number of attempts after which a transaction reads commits that
/// are ordered but not yet durable.
const RELEASED_MAX: u32 = 8;

/// The outcome of a merge.
#[derive(Debug)]
#[non_exhaustive]
pub enum MergeOutcome {
    /// The merge is this commit, which is durable and visible.
    Merged(Glsn),
    /// There was nothing to change, so that nothing was committed.
    UpToDate,
    /// Both sides changed the same keys in different ways. Nothing was written. The iterator finds
    /// the conflicts at the moments of this merge, which stay readable as long as it exists; to
    /// resolve them, run the merge with a [`MergeRule`](crate::MergeRule).
    Conflicts(MergeSteps),
}

/// The base of a merge.
pub(crate) enum Base {
    /// Our state at the moment of the merge, so that theirs replaces it.
    Ours,
    State(Snapshot),
    /// The newest states that both branches contain.
    CommonAncestors,
}

/// A merge that can be run.
pub(crate) struct Merge {
    pub(crate) base: Base,
    pub(crate) theirs: Snapshot,
    /// The branch that is changed; `None`: main.
    pub(crate) into: Option<Arc<Lens>>,
    /// `None`: all keyspaces.
    pub(crate) scopes: Option<Vec<Scope>>,
    pub(crate) rules: Rules,
    pub(crate) metadata: Vec<u8>,
}

/// Why a transaction is not committed.
enum Stop {
    Failed(Error),
    /// There are conflicts.
    Conflicts(MergeSteps),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Merge {
    /// Merges in one transaction, which is repeated if another one interferes.
    ///
    /// # Errors
    /// The store is read-only, errors of reads and of commits; nothing is written then.
    pub(crate) fn run(&self, store: &Arc<Engine>) -> Result<MergeOutcome> {
        store.check_writable()?;
        let to = Target { committer: &store.committer, lens: self.into.as_ref() };
        let branches = &store.reader.snapshots.branches;
        if self.are_branches() {
            branches.reserve_for_merge(&store.reader.budget)?;
        }
        let outcome = self.commit(store, to);
        // After `Stalled` the commit was made.
        let may_be_made =
            matches!(outcome, Ok(MergeOutcome::Merged(_)) | Err(Error::Stalled { .. }));
        if self.are_branches() && !may_be_made {
            branches.give_room_of_merge_back();
        }
        outcome
    }

    fn commit(&self, store: &Arc<Engine>, to: Target<'_>) -> Result<MergeOutcome> {
        let merged = match self.are_branches() {
            true => self.commit_branches(store, to),
            false => retry::commit(to, |tx| self.merge_into(store, tx)),
        };
        match merged {
            Ok((true, glsn)) => Ok(MergeOutcome::Merged(glsn)),
            Ok((false, _)) => Ok(MergeOutcome::UpToDate),
            Err(Stop::Failed(error)) => Err(error),
            Err(Stop::Conflicts(conflicts)) => Ok(MergeOutcome::Conflicts(conflicts)),
        }
    }

    /// Commits a merge of branches. If another merge of the same branches has released the base of
    /// this merge, this merge is repeated. Its base is then the state that the other merge has
    /// merged.
    fn commit_branches(&self, store: &Arc<Engine>, to: Target<'_>) -> Result<(bool, Glsn), Stop> {
        let (released, mut left) = (Cell::new(None), RELEASED_MAX);
        let change = |tx: &mut Transaction| match self.merge_into(store, tx) {
            Err(Stop::Failed(error @ Error::Trimmed { .. })) => {
                released.set(Some(error));
                Ok(false)
            }
            merged => merged,
        };
        let commit = |tx: Transaction| match released.take() {
            None => self.commit_noting(store, tx),
            Some(error) if left == 0 => Err(error),
            Some(_) => {
                left -= 1;
                Err(Error::Conflict { key: Vec::new(), at: tx.at(), by: tx.at() })
            }
        };
        retry::commit_by(to, change, commit)
    }

    /// The steps that the merge would take now.
    pub(crate) fn preview(&self, store: &Arc<Engine>) -> Result<MergeSteps> {
        store.check_open()?;
        let mut left = if self.are_branches() { RELEASED_MAX } else { 0 };
        loop {
            let stream = self.stream(store, self.ours(Snapshot::newest(store)))?;
            // Another merge may have released a base before it was opened here.
            match stream.sides().check_bases(store) {
                Err(Error::Trimmed { .. }) if left > 0 => left -= 1,
                _ => return Ok(MergeSteps::all(stream)),
            }
        }
    }

    /// A moment, seen on the branch that is changed.
    fn ours(&self, state: Snapshot) -> Snapshot {
        match &self.into {
            None => state,
            Some(lens) => state.on_branch(lens),
        }
    }

    fn are_branches(&self) -> bool {
        matches!(self.base, Base::CommonAncestors)
    }

    /// The chain that is changed, and the one that is merged into it.
    fn chains(&self) -> (u32, u32) {
        let chain = |lens: Option<&Arc<Lens>>| lens.map_or(MAIN_CHAIN, |it| it.ancestry().chain);
        (chain(self.into.as_ref()), chain(self.theirs.lens()))
    }

    /// The states from which ours and theirs come; `None`: ours.
    fn bases(&self, store: &Arc<Engine>, ours: &Snapshot) -> Result<Option<Bases>> {
        match &self.base {
            Base::Ours => Ok(None),
            Base::State(state) => Ok(Some(Bases::one(state.clone()))),
            Base::CommonAncestors => {
                if let Some(theirs) = self.theirs.lens() {
                    theirs.check_exists(&store.reader, ours.at())?;
                }
                let mut graph = Graph::new(store, ours.at());
                let (into, from) = self.chains();
                let ours = graph.contained((into, ours.at()))?;
                let theirs = graph.contained((from, self.theirs.at()))?;
                let states = graph.newest_common(&ours, &theirs)?;
                check_bases(store, [&ours, &theirs], &states)?;
                Bases::open(store, &mut graph, states, &mut Limit::default()).map(Some)
            }
        }
    }

    fn stream(&self, store: &Arc<Engine>, ours: Snapshot) -> Result<Stream> {
        for (keyspace, _) in &*self.rules {
            store.reader.keyspaces.id_of(keyspace)?;
        }
        let bases = self.bases(store, &ours)?;
        let (theirs, are_branches) = (self.theirs.clone(), self.are_branches());
        let sides = Arc::new(Sides { bases, ours, theirs, are_branches });
        let scopes = self.scopes.clone().unwrap_or_else(|| Scope::all(store));
        Ok(Stream::new(store, sides, Arc::clone(&self.rules), scopes))
    }

    /// Writes the steps; returns whether there are any.
    fn merge_into(&self, store: &Arc<Engine>, tx: &mut Transaction) -> Result<bool, Stop> {
        let at = tx.read_at()?;
        let at = AsOf::new(at.glsn, at.micros());
        let ours = self.ours(Snapshot::ordered_at(store, at)?);
        if self.scopes.is_none() {
            // Creating or dropping any keyspace is a conflict.
            tx.note_span(&Span::of_keyspace(SYSTEM));
        }
        let mut stream = self.stream(store, ours)?;
        let mut has_steps = false;
        while let Some((step, theirs)) = stream.next(|part, key| self.note(tx, part, key))? {
            if step.action() == MergeAction::Conflict {
                // The same stream finds the other conflicts later, because it keeps its moments
                // readable.
                return Err(Stop::Conflicts(MergeSteps::conflicts(step, stream)));
            }
            apply(tx, step, theirs)?;
            has_steps = true;
        }
        // A key that a rule decides to leave unchanged also counts as merged.
        let is_merged = has_steps || (self.are_branches() && stream.has_changes());
        if is_merged {
            tx.set_metadata(&self.metadata)?;
            if self.are_branches() {
                self.record(store, tx)?;
            }
        }
        Ok(is_merged)
    }

    /// Commits, and adds the merge to this process's registry before a branch can be deleted.
    fn commit_noting(&self, store: &Engine, tx: Transaction) -> Result<Glsn> {
        if tx.writes.is_empty() {
            return tx.commit();
        }
        let branches = &store.reader.snapshots.branches;
        let changing = branches.lock_changing();
        let ticket = tx.commit_submit()?;
        // Add the merge before the wait, which may fail (`Stalled`) although the commit stays.
        let tags = &store.reader.snapshots.tags;
        branches.merged(self.chains(), self.theirs.at(), ticket.glsn(), tags);
        drop(changing);
        ticket.wait()
    }

    /// Records that the transaction merges theirs into ours. Another merge of the two is a
    /// conflict.
    fn record(&self, store: &Engine, tx: &mut Transaction) -> Result<()> {
        let (into, from) = self.chains();
        // The deletion of a branch is a conflict.
        for chain in [into, from] {
            tx.note_read(&KeyBuffer::new(BRANCHES, &chain_key(chain))?)?;
        }
        tx.note_span(&Span::prefix(BRANCHES, &merge_prefix(into, from)));
        tx.space_to_put(&store.reader.keyspaces.handle(BRANCHES, "".into()))?;
        let key = KeyBuffer::new(BRANCHES, &merge_key(into, from, self.theirs.at()))?;
        tx.put_expiring(&key, b"", None)
    }

    /// Records a read of our state.
    fn note(&self, tx: &Transaction, part: &Part, read: Read<'_>) -> Result<()> {
        let is_whole = matches!(self.base, Base::Ours);
        match (part.ours(), read) {
            // All keys that are not written must stay as they are.
            (Some(ours), Read::Keyspace) if is_whole => {
                tx.note_span(&Span::of_keyspace(tx.id_of(ours)?));
                Ok(())
            }
            (Some(ours), Read::Key(key)) if !is_whole => tx.note_read(tx.key(ours, key)?.get()),
            // Our value must not expire before the commit.
            (Some(ours), Read::Expiring(key)) if !is_whole => {
                tx.expiry(tx.key(ours, key)?.get()).map(drop)
            }
            (None, Read::Keyspace) => {
                let name = part.name().as_bytes();
                tx.note_span(&Span::new(SYSTEM, &(name..=name)));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Writes one step, which must not be a conflict.
fn apply(tx: &mut Transaction, step: MergeStep, theirs: Option<ValueReader>) -> Result<()> {
    let keyspace = step.target()?.clone();
    let (key, resolved, expiry) = step.into_resolved();
    match (resolved, theirs) {
        (Resolved::Put(value), _) => {
            let key = tx.key_to_put(&keyspace, &key)?;
            let expiry = match expiry {
                None => tx.committer.reader.expiry_of_put(key.get())?,
                Some(expiry) => expiry,
            };
            tx.put_expiring(&key, &value, expiry)
        }
        (Resolved::Theirs, Some(mut value)) if is_free(value.len()) => {
            let value = read_whole(&tx.committer.reader.budget, &mut value)?;
            let key = tx.key_to_put(&keyspace, &key)?;
            tx.put_expiring(&key, &value, expiry.flatten())
        }
        (Resolved::Theirs, Some(mut value)) => {
            let key = tx.key_to_put(&keyspace, &key)?;
            tx.put_pieces(&key, expiry.flatten(), &mut |piece| value.read_piece(piece)).map(drop)
        }
        (Resolved::Theirs, None) | (Resolved::Delete, _) => tx.delete(&keyspace, key),
        (Resolved::Keep | Resolved::Conflict, _) => Ok(()),
    }
}
