//! The committed history, by GLSN, which every process must read.

use std::collections::BTreeMap;

use crate::content::Content;
use crate::failure::{Outcome, ensure};
use crate::members::notes::Note;

/// The keyspace in which each commit leaves a unique mark, which shows that it was ordered.
pub(super) const MARKS: u64 = 9;

/// The keys from here on are counters: a write of a number adds it.
pub(super) const FIRST_COUNTER: u64 = 1 << 32;

/// A key of a keyspace, and its new value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) space: u64,
    pub(super) key: u64,
    pub(super) content: Option<Content>,
}

/// A range of keys that were read: `from` is included, `to` is excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) space: u64,
    pub(super) from: u64,
    pub(super) to: u64,
}

/// All versions of all keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    versions: BTreeMap<(u64, u64), BTreeMap<u64, Option<Content>>>,
    commits: BTreeMap<u64, u64>,
    /// Entries of streams, by GLSN.
    notes: BTreeMap<u64, Note>,
}

impl Model {
    /// The last known commit.
    pub(super) fn newest(&self) -> u64 {
        self.commits.last_key_value().map_or(0, |(glsn, _)| *glsn)
    }

    /// Records the GLSN of a commit.
    pub(super) fn apply(&mut self, glsn: u64, id: u64, writes: &[Write]) -> Outcome {
        let before = self.commits.insert(glsn, id);
        ensure(before.is_none_or(|before| before == id), || {
            format!("commits {before:?} and {id} are both at GLSN {glsn}")
        })?;
        for write in writes {
            self.versions.entry((write.space, write.key)).or_default().insert(glsn, write.content);
        }
        Ok(())
    }

    /// Records the first GLSN of a commit's entries.
    pub(super) fn append(&mut self, first: u64, id: u64, notes: &[Note]) -> Outcome {
        for (glsn, note) in (first..).zip(notes) {
            self.apply(glsn, id, &[])?;
            self.notes.insert(glsn, *note);
        }
        Ok(())
    }

    /// The first and the last GLSN of a commit's entries.
    pub(super) fn places_of(&self, id: u64) -> Option<(u64, u64)> {
        let mut places = self.commits.iter().filter(|(_, of)| **of == id).map(|(glsn, _)| *glsn);
        let first = places.next()?;
        Some((first, places.next_back().unwrap_or(first)))
    }

    /// The entries in a range of GLSNs, of one stream or of all.
    pub(super) fn notes(
        &self,
        from: u64,
        to: u64,
        stream: Option<u64>,
    ) -> impl Iterator<Item = (u64, &Note)> {
        let notes = self.notes.range(from..to.max(from)).map(|(glsn, note)| (*glsn, note));
        notes.filter(move |(_, note)| stream.is_none_or(|stream| stream == note.stream))
    }

    /// Whether any entry of a stream is known.
    pub(super) fn has_notes(&self) -> bool {
        !self.notes.is_empty()
    }

    /// The GLSNs of commits that are not entries of streams.
    pub(super) fn marked(&self, from: u64, to: u64) -> impl Iterator<Item = u64> {
        let places = self.commits.range(from..to.max(from)).map(|(glsn, _)| *glsn);
        places.filter(|glsn| !self.notes.contains_key(glsn))
    }

    /// Removes everything after this commit, which is lost.
    pub(super) fn cut_to(&mut self, last: u64) {
        self.versions.values_mut().for_each(|versions| drop(versions.split_off(&(last + 1))));
        self.commits.split_off(&(last + 1));
        self.notes.split_off(&(last + 1));
    }

    /// Records the drop of the keyspace.
    pub(super) fn forget(&mut self, space: u64) {
        self.versions.retain(|(of, _), _| *of != space);
    }

    /// The rows of a span as of a moment, with a transaction's own writes on top.
    pub(super) fn rows(&self, span: Span, at: u64, own: &[Write]) -> BTreeMap<u64, Content> {
        let versions = self.versions.range((span.space, span.from)..(span.space, span.to));
        let newest = versions.filter_map(|((_, key), versions)| {
            if *key >= FIRST_COUNTER {
                let numbers = versions.range(..=at).map(|(_, number)| *number);
                return Some((*key, numbers.fold(None, added)?));
            }
            let (_, content) = versions.range(..=at).next_back()?;
            Some((*key, (*content)?))
        });
        let mut rows: BTreeMap<u64, Content> = newest.collect();
        let is_in =
            |write: &&Write| write.space == span.space && (span.from..span.to).contains(&write.key);
        for write in own.iter().filter(is_in) {
            match write.content {
                Some(content) => drop(rows.insert(write.key, content)),
                None => drop(rows.remove(&write.key)),
            }
        }
        rows
    }

    /// A commit strictly between two moments that changed a key of the span. The deletion of a key
    /// without a value does not count, because it may be part of a range deletion. If a key has no
    /// value at either moment, the commits in between that wrote and deleted it do not count,
    /// because the store may have dropped them.
    pub(super) fn changed(&self, span: Span, after: u64, before: u64) -> Option<u64> {
        let mut versions = self.versions.range((span.space, span.from)..(span.space, span.to));
        versions.find_map(|(_, versions)| {
            let is_change = |(glsn, content): &(&u64, &Option<Content>)| {
                let had_value =
                    || versions.range(..*glsn).next_back().is_some_and(|v| v.1.is_some());
                content.is_some() || had_value()
            };
            let has_value =
                |before| versions.range(..before).next_back().is_some_and(|v| v.1.is_some());
            let is_present = has_value(after + 1) || has_value(before);
            let change = versions.range(after + 1..before).find(is_change);
            change.filter(|_| is_present).map(|(glsn, _)| *glsn)
        })
    }
}

/// The value of a counter after a write to it; `None` is a deletion, and also a missing value.
fn added(sum: Option<Content>, number: Option<Content>) -> Option<Content> {
    let number = number?;
    Some(Content { seed: sum.map_or(0, |sum| sum.seed) + number.seed, ..number })
}
