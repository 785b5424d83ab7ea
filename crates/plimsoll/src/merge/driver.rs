//! Runs a merge: writes its steps in one transaction, or previews them.

use std::collections::BTreeSet;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::api::snapshot::Snapshot;
use crate::engine::Engine;
use crate::engine::keyspace_commits::system;
use crate::merge::keys::Scope;
use crate::merge::rule::{MergeRule, Resolved, read_whole};
use crate::merge::steps::{MergeAction, MergeStep, MergeSteps, Part, Sides, Stream};
use crate::read::point::ValueReader;
use crate::read::span::Span;
use crate::txn::retry;
use crate::txn::transaction::Transaction;
use crate::types::error::{Error, Result};
use crate::types::index_key::KeyBuffer;
use crate::types::keyspaces::{Keyspace, SYSTEM};
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
    /// [`MergeRule`].
    Conflicts(MergeSteps),
}

/// A merge that can be run.
pub(crate) struct Merge {
    /// `None`: our state at the moment of the merge, so that theirs replaces it.
    pub(crate) base: Option<Snapshot>,
    pub(crate) theirs: Snapshot,
    /// `None`: all keyspaces.
    pub(crate) scopes: Option<Vec<Scope>>,
    /// The rules of some keyspaces.
    pub(crate) rules: Vec<(Keyspace, MergeRule)>,
    pub(crate) metadata: Vec<u8>,
}

/// Why a transaction is not committed.
enum Stop {
    Failed(Error),
    /// There is a conflict; these are the states.
    Conflicts(Arc<Sides>),
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
            Err(Stop::Conflicts(sides)) => {
                let stream = Stream::new(store, &sides, self.parts(store, &sides)?);
                Ok(MergeOutcome::Conflicts(MergeSteps::conflicts(stream)))
            }
        }
    }

    /// The steps that the merge would take now.
    pub(crate) fn preview(&self, store: &Arc<Engine>) -> Result<MergeSteps> {
        store.check_open()?;
        let sides = self.sides(Snapshot::newest(store));
        Ok(MergeSteps::all(Stream::new(store, &sides, self.parts(store, &sides)?)))
    }

    fn sides(&self, ours: Snapshot) -> Arc<Sides> {
        let base = self.base.as_ref().unwrap_or(&ours).clone();
        Arc::new(Sides { base, ours, theirs: self.theirs.clone() })
    }

    fn parts(&self, store: &Engine, sides: &Sides) -> Result<Vec<Part>> {
        for (keyspace, _) in &self.rules {
            store.reader.keyspaces.id_of(keyspace)?;
        }
        let scopes = self.scopes.clone().unwrap_or_else(|| {
            let names: BTreeSet<_> = store.reader.keyspaces.names().into_values().collect();
            names.into_iter().map(Scope::whole).collect()
        });
        let part = |scope: Scope| {
            let rule = self.rules.iter().rev().find(|(of, _)| *of.name() == *scope.name);
            let rule = rule.map(|(_, rule)| rule.clone()).unwrap_or_default();
            Part::new(sides, scope, rule).transpose()
        };
        scopes.into_iter().filter_map(part).collect()
    }

    /// Writes the steps; returns whether there are any.
    fn merge_into(&self, store: &Arc<Engine>, tx: &mut Transaction) -> Result<bool, Stop> {
        let at = tx.read_at()?;
        let sides = self.sides(Snapshot::ordered_at(store, at)?);
        let parts = self.parts(store, &sides)?;
        self.note_parts(store, tx, &parts)?;
        let mut stream = Stream::new(store, &sides, parts);
        let mut has_steps = false;
        while let Some((step, theirs)) = stream.next(|keyspace, key| note_key(tx, keyspace, key))? {
            if step.action() == MergeAction::Conflict {
                return Err(Stop::Conflicts(sides));
            }
            apply(tx, step, theirs)?;
            has_steps = true;
        }
        if has_steps {
            tx.set_metadata(&self.metadata)?;
        }
        Ok(has_steps)
    }

    /// Records the reads that do not concern single keys.
    fn note_parts(&self, store: &Engine, tx: &Transaction, parts: &[Part]) -> Result<()> {
        if self.scopes.is_none() {
            // Creating or dropping any keyspace is a conflict.
            tx.note_span(&Span::of_keyspace(SYSTEM));
        }
        for part in parts {
            match part.ours() {
                // All other keys of the keyspace must be as they are at that moment already.
                Some(ours) if self.base.is_none() => {
                    tx.note_span(&Span::of_keyspace(store.reader.keyspaces.id_of(ours)?));
                }
                Some(_) => {}
                None => drop(tx.get(&system(store), part.scope.name.as_bytes())?),
            }
        }
        Ok(())
    }
}

fn note_key(tx: &Transaction, keyspace: &Keyspace, key: &[u8]) -> Result<()> {
    tx.note_read(KeyBuffer::new(tx.id_of(keyspace)?, key)?.get())
}

/// Writes one step, which is no conflict.
fn apply(tx: &mut Transaction, step: MergeStep, theirs: Option<ValueReader>) -> Result<()> {
    let keyspace = step.target()?.clone();
    let (key, resolved) = step.into_resolved();
    match (resolved, theirs) {
        (Resolved::Put(value), _) => tx.put(&keyspace, key, value),
        (Resolved::Theirs, Some(mut value)) if is_free(value.len()) => {
            let value = read_whole(&tx.committer.reader.budget, &mut value)?;
            tx.put(&keyspace, key, value)
        }
        (Resolved::Theirs, Some(mut value)) => tx.put_reader(&keyspace, key, &mut value).map(drop),
        (Resolved::Theirs, None) | (Resolved::Delete, _) => tx.delete(&keyspace, key),
        (Resolved::Keep | Resolved::Conflict, _) => Ok(()),
    }
}
