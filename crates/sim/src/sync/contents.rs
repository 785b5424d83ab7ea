//! The contents of a commit, and the id that follows from them: computed from the log according to
//! the documentation of ids, without using the store's code.

use plimsoll::{Change, Commit, CommitId};

use crate::judge::micros_of;
use crate::sync::state::{Content, NAMES, Place, State};

/// The contents that the id of a commit covers, without its parents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) micros: u64,
    pub(super) metadata: Vec<u8>,
    /// The hash of the changes of each keyspace, ordered by name.
    sections: Vec<(String, [u8; 32])>,
}

/// A change.
#[derive(Clone, Debug)]
pub(super) enum Effect {
    Put(Place, Content),
    Delete(Place),
    /// The end is excluded; `None`: to the last key.
    Range(usize, Vec<u8>, Option<Vec<u8>>),
}

impl Effect {
    pub(super) fn apply(&self, state: &mut State) {
        match self {
            Self::Put(place, content) => drop(state.insert(*place, content.clone())),
            Self::Delete(place) => drop(state.remove(place)),
            Self::Range(..) => state.retain(|place, _| !self.covers(*place)),
        }
    }

    /// Whether it deletes a range with this key.
    fn covers(&self, (of, key): Place) -> bool {
        let Self::Range(space, first, end) = self else { return false };
        *space == of && [key][..] >= first[..] && end.as_ref().is_none_or(|end| [key][..] < end[..])
    }
}

impl Contents {
    /// Reads a commit of the log.
    pub(super) fn read(commit: &Commit) -> plimsoll::Result<(Self, Vec<Effect>)> {
        let mut sections: Vec<(String, blake3::Hasher)> = Vec::new();
        let mut effects = Vec::new();
        for change in commit.changes()? {
            let change = change?;
            // The store's own records.
            let Some(name) = change.keyspace() else { continue };
            let effect = effect_of(name, &change)?;
            let is_covered = match &effect {
                Effect::Delete(place) => effects.iter().any(|it: &Effect| it.covers(*place)),
                _ => false,
            };
            if !is_covered {
                if sections.iter().all(|(of, _)| of != name) {
                    sections.push((name.to_owned(), blake3::Hasher::new()));
                }
                let section = sections.iter_mut().find(|(of, _)| of == name);
                section.into_iter().for_each(|(_, hasher)| add(hasher, &effect));
            }
            effects.push(effect);
        }
        sections.sort_by(|a, b| a.0.cmp(&b.0));
        let sections =
            sections.into_iter().map(|(name, it)| (name, *it.finalize().as_bytes())).collect();
        let (micros, metadata) = (micros_of(commit.time()), commit.metadata()?.to_vec());
        Ok((Self { micros, metadata, sections }, effects))
    }

    /// The id of a commit with these contents.
    pub(super) fn id(&self, parents: &[CommitId]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"plimsoll commit 1\0").update(&len_of(parents.len()));
        for parent in parents {
            hasher.update(parent.as_bytes());
        }
        hasher.update(&self.micros.to_le_bytes());
        sized(&mut hasher, &self.metadata);
        hasher.update(&len_of(self.sections.len()));
        for (name, section) in &self.sections {
            sized(&mut hasher, name.as_bytes());
            hasher.update(section);
        }
        *hasher.finalize().as_bytes()
    }
}

fn effect_of(name: &str, change: &Change) -> plimsoll::Result<Effect> {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let space = NAMES.iter().position(|it| *it == name).unwrap_or(NAMES.len());
    let key = change.key().first().copied().unwrap_or(0);
    if let Some((_, end)) = change.deleted_range() {
        let end = match end {
            Excluded(end) | Included(end) => Some(end.to_vec()),
            Unbounded => None,
        };
        return Ok(Effect::Range(space, change.key().to_vec(), end));
    }
    Ok(match change.value()? {
        None => Effect::Delete((space, key)),
        Some(value) => {
            Effect::Put((space, key), (value.to_vec().into(), change.expires().map(micros_of)))
        }
    })
}

fn add(hasher: &mut blake3::Hasher, effect: &Effect) {
    match effect {
        Effect::Range(_, first, end) => {
            hasher.update(&[1]);
            sized(hasher, first);
            hasher.update(&[u8::from(end.is_some())]);
            end.iter().for_each(|end| sized(hasher, end));
        }
        Effect::Delete((_, key)) => {
            hasher.update(&[2]);
            sized(hasher, &[*key]);
        }
        Effect::Put((_, key), (value, expires)) => {
            match expires {
                None => hasher.update(&[3]),
                Some(at) => hasher.update(&[4]).update(&at.to_le_bytes()),
            };
            sized(hasher, &[*key]);
            hasher.update(&(value.len() as u64).to_le_bytes()).update(value);
        }
    }
}

fn sized(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&len_of(bytes.len())).update(bytes);
}

fn len_of(len: usize) -> [u8; 4] {
    u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes()
}
