//! The expected outcome of reverts and resets.

use std::collections::BTreeSet;

use crate::content::Content;
use crate::model::{Entry, Model, NAMES, Writes};
use crate::op::Key;

/// A keyspace's name, by its lowest number, and a key.
pub type Place = (u8, Key);

/// The values of a key after the commit, now, and before the commit.
pub type Sides = [Option<Content>; 3];

/// The expected result of a merge.
#[derive(Debug, Default)]
pub struct Merge {
    /// The writes of its commit, unless there are conflicts.
    pub writes: Writes,
    /// The keys that both sides changed.
    pub conflicts: Vec<(Place, Sides)>,
    /// Whether a key would be put into a keyspace that does not exist now.
    pub is_gone: bool,
}

impl Model {
    /// The keys that a commit changed; `None` if the entry is not a commit of keys.
    pub fn places_changed(&self, glsn: u64) -> Option<BTreeSet<Place>> {
        Some(match &self.entry(glsn)?.entry {
            Entry::Commit { writes, .. } => {
                writes.keys().map(|(space, key)| (space % NAMES, key.clone())).collect()
            }
            Entry::Dropped { space, keys } if !keys.is_empty() => {
                keys.iter().map(|key| (space % NAMES, key.clone())).collect()
            }
            _ => return None,
        })
    }

    /// Every key that a keyspace with one of these names ever had.
    pub fn places_of(&self, names: impl IntoIterator<Item = u8>) -> BTreeSet<Place> {
        let lives = names.into_iter().flat_map(|name| self.lives(name));
        lives
            .flat_map(|life| self.keys(life).into_iter().map(move |key| (life % NAMES, key)))
            .collect()
    }

    /// Merges keys: base and theirs are states of the past, ours the newest one. With
    /// `takes_theirs`, their value wins a conflict.
    pub fn merge(
        &self,
        places: BTreeSet<Place>,
        (base, theirs): (u64, u64),
        takes_theirs: bool,
    ) -> Merge {
        let newest = self.newest();
        let mut merge = Merge::default();
        for (name, key) in places {
            let value = |at| self.get(self.space_at(name, at)?, &key, at);
            let [base, ours, theirs] = [base, newest, theirs].map(value);
            if is_same(base, theirs) || is_same(ours, theirs) {
                continue;
            }
            if !is_same(base, ours) && !takes_theirs {
                merge.conflicts.push(((name, key), [base, ours, theirs]));
                continue;
            }
            match self.space_at(name, newest) {
                Some(life) => _ = merge.writes.insert((life, key), theirs),
                None => merge.is_gone = true,
            }
        }
        merge
    }

    /// Whether a keyspace with one of these names may refuse a moment.
    pub fn may_refuse(&self, names: impl IntoIterator<Item = u8>, at: u64) -> bool {
        names.into_iter().flat_map(|name| self.lives(name)).any(|life| self.floor(life) > at)
    }
}

/// Whether two values have the same bytes, even if generated from different contents.
fn is_same(a: Option<Content>, b: Option<Content>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a == b || a.bytes == b.bytes && a.make() == b.make(),
        (a, b) => a == b,
    }
}
