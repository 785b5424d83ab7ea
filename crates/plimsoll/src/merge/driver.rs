//! Runs a merge: writes its steps in one transaction, or previews them.

use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::api::snapshot::Snapshot;
use crate::engine::Engine;
use crate::engine::keyspace_commits::system;
use crate::merge::keys::Scope;
use crate::merge::rule::{Resolved, read_whole};
use crate::merge::steps::{MergeAction, MergeStep, MergeSteps, Part, Rules, Sides, Stream};
use crate::read::point::ValueReader;
use crate::read::span::Span;
use crate::txn::retry;
use crate::txn::transaction::Transaction;
use crate::types::as_of::AsOf;
use crate::types::error::{Error, Result};
use crate::types::keyspaces::SYSTEM;
use crate::types::value::is_free;

/// The outcome of a merge.
#[derive(Debug)]
#[non_exhaustive]
pub enum MergeOutcome {
    /// The merge is this commit, which is durable and visible.
    Merged(Glsn),
    /// There was nothing to change, so that nothing was committed.
    UpToDate,
    /// Both sides changed the same keys in different ways. Nothing was written. The iterator finds
    /// the conflicts again, at the moments of this merge; to resolve them, run the merge with a
    /// [`MergeRule`](crate::MergeRule).
    Conflicts(MergeSteps),
}

/// A merge that can be run.
pub(crate) struct Merge {
    /// `None`: our state at the moment of the merge, so that theirs replaces it.
    pub(crate) base: Option<Snapshot>,
    pub(crate) theirs: Snapshot,
    /// `None`: all keyspaces.
    pub(crate) scopes: Option<Vec<Scope>>,
    pub(crate) rules: Rules,
    pub(crate) metadata: Vec<u8>,
}

/// Why a transaction is not committed.
enum Stop {
    Failed(Error),
    /// There is a conflict with this state.
    Conflicts(Snapshot),
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
        match retry::commit(&store.committer, |tx| self.merge_into(store, tx)) {
            Ok((true, glsn)) => Ok(MergeOutcome::Merged(glsn)),
            Ok((false, _)) => Ok(MergeOutcome::UpToDate),
            Err(Stop::Failed(error)) => Err(error),
            Err(Stop::Conflicts(ours)) => {
                let stream = self.stream(store, ours)?;
                Ok(MergeOutcome::Conflicts(MergeSteps::conflicts(stream)))
            }
        }
    }

    /// The steps that the merge would take now.
    pub(crate) fn preview(&self, store: &Arc<Engine>) -> Result<MergeSteps> {
        store.check_open()?;
        Ok(MergeSteps::all(self.stream(store, Snapshot::newest(store))?))
    }

    fn stream(&self, store: &Arc<Engine>, ours: Snapshot) -> Result<Stream> {
        for (keyspace, _) in &*self.rules {
            store.reader.keyspaces.id_of(keyspace)?;
        }
        let base = self.base.as_ref().unwrap_or(&ours).clone();
        let sides = Arc::new(Sides { base, ours, theirs: self.theirs.clone() });
        let scopes = self.scopes.clone().unwrap_or_else(|| Scope::all(store));
        Ok(Stream::new(store, sides, Arc::clone(&self.rules), scopes))
    }

    /// Writes the steps; returns whether there are any.
    fn merge_into(&self, store: &Arc<Engine>, tx: &mut Transaction) -> Result<bool, Stop> {
        let at = tx.read_at()?;
        let at = AsOf::new(at.glsn, at.micros());
        let ours = Snapshot::ordered_at(store, at)?;
        if self.scopes.is_none() {
            // Creating or dropping any keyspace is a conflict.
            tx.note_span(&Span::of_keyspace(SYSTEM));
        }
        let mut stream = self.stream(store, ours.clone())?;
        let mut has_steps = false;
        while let Some((step, theirs)) = stream.next(|part, key| self.note(store, tx, part, key))? {
            if step.action() == MergeAction::Conflict {
                return Err(Stop::Conflicts(ours));
            }
            apply(tx, step, theirs)?;
            has_steps = true;
        }
        if has_steps {
            tx.set_metadata(&self.metadata)?;
        }
        Ok(has_steps)
    }

    /// Records a read of our state: of a key, or of what concerns all keys of a keyspace.
    fn note(
        &self,
        store: &Engine,
        tx: &Transaction,
        part: &Part,
        key: Option<&[u8]>,
    ) -> Result<()> {
        let is_whole = self.base.is_none();
        match (part.ours(), key) {
            // All keys that are not written must stay as they are.
            (Some(ours), None) if is_whole => {
                tx.note_span(&Span::of_keyspace(tx.id_of(ours)?));
                Ok(())
            }
            (Some(ours), Some(key)) if !is_whole => {
                let key = tx.key(ours, key)?;
                // Our value must not expire before the commit.
                tx.expiry(key.get())?;
                tx.note_read(key.get())
            }
            (None, None) => tx.get(&system(store), part.name().as_bytes()).map(drop),
            _ => Ok(()),
        }
    }
}

/// Writes one step, which is no conflict.
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
