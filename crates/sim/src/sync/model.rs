//! The commits of all stores, and the branches of each store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plimsoll::{CommitId, StateHash};

use crate::sync::contents::{Contents, Effect};
use crate::sync::state::State;

/// A commit, which any number of stores have.
#[derive(Debug)]
pub(super) struct Commit {
    pub(super) parents: Vec<usize>,
    /// Its ancestors, itself included.
    pub(super) contained: Arc<BTreeSet<usize>>,
    pub(super) state: Arc<State>,
    pub(super) contents: Contents,
    /// `None`: it was not asked for yet, or the store has forgotten the commit.
    pub(super) id: Option<CommitId>,
}

/// All commits.
#[derive(Default)]
pub(super) struct Graph {
    pub(super) commits: Vec<Commit>,
    by_id: BTreeMap<CommitId, usize>,
    /// The hashes of states.
    hashes: Vec<(State, StateHash)>,
}

impl Graph {
    /// Adds a commit of a store.
    pub(super) fn add(
        &mut self,
        parents: Vec<usize>,
        contents: Contents,
        effects: &[Effect],
    ) -> usize {
        let mut state =
            parents.first().map_or_else(State::new, |it| (*self.commits[*it].state).clone());
        effects.iter().for_each(|effect| effect.apply(&mut state));
        let contained = Arc::default();
        let number = self.commits.len();
        self.commits.push(Commit {
            parents,
            contained,
            state: Arc::new(state),
            contents,
            id: None,
        });
        self.contain(number);
        number
    }

    /// Computes the ancestors of a commit from its parents.
    pub(super) fn contain(&mut self, number: usize) {
        let mut contained = BTreeSet::from([number]);
        for parent in &self.commits[number].parents {
            contained.extend(self.commits[*parent].contained.iter());
        }
        self.commits[number].contained = Arc::new(contained);
    }

    /// Notes the id of a commit.
    pub(super) fn identify(&mut self, number: usize, id: CommitId) {
        self.commits[number].id = Some(id);
        self.by_id.insert(id, number);
    }

    pub(super) fn find(&self, id: &CommitId) -> Option<usize> {
        self.by_id.get(id).copied()
    }

    /// The id that a commit has with these parents.
    pub(super) fn id_with(&self, contents: &Contents, parents: &[usize]) -> Option<[u8; 32]> {
        let ids: Option<Vec<CommitId>> = parents.iter().map(|it| self.commits[*it].id).collect();
        Some(contents.id(&ids?))
    }

    pub(super) fn id(&self, commit: Option<usize>) -> Option<CommitId> {
        commit.and_then(|commit| self.commits[commit].id)
    }

    /// The ancestors of a branch's last commit.
    pub(super) fn contained(&self, tip: Option<usize>) -> Arc<BTreeSet<usize>> {
        tip.map_or_else(Arc::default, |tip| Arc::clone(&self.commits[tip].contained))
    }

    /// Whether a branch that ends with `tip` contains `other`.
    pub(super) fn contains(&self, tip: Option<usize>, other: Option<usize>) -> bool {
        other.is_none_or(|other| self.contained(tip).contains(&other))
    }

    pub(super) fn state(&self, tip: Option<usize>) -> Arc<State> {
        tip.map_or_else(Arc::default, |tip| Arc::clone(&self.commits[tip].state))
    }

    /// Notes the hash of a state. Fails if another state has the same hash, or the state has
    /// another one.
    pub(super) fn note_hash(&mut self, state: State, hash: StateHash) -> Result<(), String> {
        for (other, of_other) in &self.hashes {
            if (*other == state) != (*of_other == hash) {
                return Err(format!("{hash:?} of {state:?}, {of_other:?} of {other:?}"));
            }
        }
        if self.hashes.len() == 40 {
            self.hashes.remove(0);
        }
        self.hashes.push((state, hash));
        Ok(())
    }
}
