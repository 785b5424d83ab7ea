//! The named cursors and tags that result from the entries of the log.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Entry, Model};

impl Model {
    /// The named cursors, and the GLSN that each is to read next.
    pub fn cursors(&self) -> BTreeMap<u8, u64> {
        let mut cursors = BTreeMap::new();
        for placed in &self.log {
            match placed.entry {
                Entry::Cursor { name, next: Some(next) } => _ = cursors.insert(name, next),
                Entry::Cursor { name, next: None } => _ = cursors.remove(&name),
                _ => {}
            }
        }
        cursors
    }

    /// The tags, and their moments.
    pub fn tags(&self) -> BTreeMap<u8, u64> {
        self.tags_until(self.newest())
    }

    fn tags_until(&self, glsn: u64) -> BTreeMap<u8, u64> {
        let mut tags = BTreeMap::new();
        for placed in &self.log[..glsn as usize] {
            match placed.entry {
                Entry::Tag { name, at: Some(at) } => _ = tags.insert(name, at),
                Entry::Tag { name, at: None } => _ = tags.remove(&name),
                _ => {}
            }
        }
        tags
    }

    /// The moments of all tags that a crash may leave or bring back.
    pub(super) fn tagged(&self) -> BTreeSet<u64> {
        // Damage may have cut acknowledged commits.
        let acked = self.acked.min(self.newest());
        let made = self.log[acked as usize..].iter().filter_map(|placed| match placed.entry {
            Entry::Tag { at, .. } => at,
            _ => None,
        });
        self.tags_until(acked).into_values().chain(made).collect()
    }
}
