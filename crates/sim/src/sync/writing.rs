//! Transactions and merges, each on a branch of one store.

use plimsoll::{Error, InvalidInput, MergeOutcome, MergeRule, Overflow, Transaction};
use plimsoll_disk::random::Random;

use crate::failure::{Outcome, same};
use crate::sync::contents::Effect;
use crate::sync::doubt::UnknownEffect;
use crate::sync::state::{KEYS, NAMES, NUMBERS, Place, State};
use crate::sync::{Driver, done, time};

fn place(random: &mut Random) -> Place {
    (random.below(NAMES.len() as u64) as usize, 1 + random.below(KEYS) as u8)
}

/// A value for a keyspace.
fn value(space: usize, random: &mut Random) -> Vec<u8> {
    if space == NUMBERS {
        return random.below(1000).to_le_bytes().to_vec();
    }
    let len =
        [3, 3, 40, 2000, 20_000, 300_000][random.below(if space == 2 { 6 } else { 4 }) as usize];
    vec![random.below(256) as u8; len]
}

impl Driver {
    /// Metadata that no other commit has.
    pub(super) fn metadata(&mut self) -> Vec<u8> {
        self.counter += 1;
        format!("commit {}", self.counter).into_bytes()
    }

    /// Commits a transaction.
    pub(super) fn write(&mut self, number: usize, random: &mut Random) -> Outcome {
        let branch = self.stores[number].some_branch(random);
        let metadata = self.metadata();
        let tip = self.stores[number].branches[&branch];
        let parents: Vec<usize> = tip.into_iter().collect();
        let doubt =
            UnknownEffect::Commit { branch: branch.clone(), parents: parents.clone(), metadata };
        let UnknownEffect::Commit { metadata, .. } = &doubt else { return Ok(()) };
        let mut tx = self.stores[number].branch(&branch)?.begin();
        done("metadata", tx.set_metadata(metadata))?;
        let wanted = self.fill(number, &mut tx, tip, random);
        let Some(wanted) = self.unless_down(number, "write", wanted)? else { return Ok(()) };
        self.stores[number].doubt = Some(doubt);
        let Some(glsn) = self.unless_down(number, "commit", tx.commit())? else { return Ok(()) };
        self.stores[number].doubt = None;
        let added = self.note(number, (&branch, glsn), parents)?;
        // A branch may keep values that have expired, although their range was deleted.
        let now = self.now();
        let live = |state: &State| crate::sync::state::live(state, now);
        same("state after a commit", &live(&self.graph.commits[added].state), &live(&wanted))
    }

    /// Writes in a transaction; returns the state after it.
    fn fill(
        &self,
        number: usize,
        tx: &mut Transaction,
        tip: Option<usize>,
        random: &mut Random,
    ) -> plimsoll::Result<State> {
        let db = self.stores[number].db();
        let mut state = State::clone(&self.graph.state(tip));
        for nth in 0..1 + random.below(4) {
            let (space, key) = place(random);
            let keyspace = db.keyspace(NAMES[space])?;
            // A transaction that changes nothing makes no commit.
            let effect = match random.below(8) {
                0 if nth > 0 => {
                    tx.delete(&keyspace, [key])?;
                    Effect::Delete((space, key))
                }
                1 if nth > 0 => {
                    let end = key + 1 + random.below(4) as u8;
                    tx.delete_range(&keyspace, [key]..[end])?;
                    Effect::Range(space, vec![key], Some(vec![end]))
                }
                2 if nth > 0 => {
                    tx.delete_prefix(&keyspace, "")?;
                    Effect::Range(space, Vec::new(), None)
                }
                3 => {
                    let at = self.now() + 500 + 1000 * (1 + random.below(100));
                    let value = value(space, random);
                    tx.put_expiring_at(&keyspace, [key], &value, time(at))?;
                    Effect::Put((space, key), (value.into(), Some(at)))
                }
                4 => {
                    let now = self.now();
                    let content = state.get(&(NUMBERS, key)).cloned();
                    let content = content.filter(|(_, expires)| expires.is_none_or(|at| at > now));
                    let number = content.as_ref().map_or(0, |(value, _)| {
                        i64::from_le_bytes(value[..].try_into().unwrap_or_default())
                    });
                    let more = 1 + random.below(50) as i64;
                    tx.add(&db.keyspace(NAMES[NUMBERS])?, [key], more, Overflow::Checked)?;
                    let sum = (number + more).to_le_bytes().to_vec();
                    Effect::Put((NUMBERS, key), (sum.into(), content.and_then(|it| it.1)))
                }
                _ => {
                    let value = value(space, random);
                    tx.put(&keyspace, [key], &value)?;
                    Effect::Put((space, key), (value.into(), None))
                }
            };
            effect.apply(&mut state);
        }
        Ok(state)
    }

    /// Merges a branch into another one. The result is taken from the store: mode `branches` checks
    /// merges.
    pub(super) fn merge(&mut self, number: usize, random: &mut Random) -> Outcome {
        let (from, into) =
            (self.stores[number].some_branch(random), self.stores[number].some_branch(random));
        if from == into {
            return Ok(());
        }
        let store = &self.stores[number];
        let (ours, theirs) = (store.branches[&into], store.branches[&from]);
        let metadata = self.metadata();
        let store = &self.stores[number];
        let merge = store.db().merge(&store.branch(&from)?).into(&store.branch(&into)?);
        let mut merge = merge.metadata(metadata.clone());
        for space in 0..NAMES.len() {
            merge = merge.rule(&store.keyspace(space)?, MergeRule::Theirs);
        }
        let parents: Vec<usize> = ours.into_iter().chain(theirs).collect();
        let doubt =
            UnknownEffect::Commit { branch: into.clone(), parents: parents.clone(), metadata };
        self.stores[number].doubt = Some(doubt);
        let merged = match merge.run() {
            // The versions of the common ancestor may have been dropped.
            Err(Error::Trimmed { .. }) if !self.keeps_all() => {
                self.stores[number].doubt = None;
                return Ok(());
            }
            merged => self.unless_down(number, "merge", merged)?,
        };
        let Some(merged) = merged else { return Ok(()) };
        self.stores[number].doubt = None;
        match merged {
            MergeOutcome::Merged(glsn) => self.note(number, (&into, glsn), parents).map(drop),
            MergeOutcome::UpToDate => Ok(()),
            outcome => Err(crate::failure::Failure::new(format!("a merge: {outcome:?}"))),
        }
    }

    /// Whether a call was refused because a branch does not exist.
    pub(super) fn is_no_branch(error: &Error) -> bool {
        matches!(error, Error::InvalidInput(InvalidInput::NoBranch { .. }))
    }
}
