//! The reference model of a store: every version of every key, and the log as a list.
//!
//! The model receives the commits in order and returns the expected answer of each read. Facts that
//! only the store knows (the time of a commit, the length of the log's tail that a crash lost, the
//! trimmed part) are passed in, and the model checks that they are permitted.
//!
//! Invariants:
//! 1. `log[n - 1]` is the entry with GLSN n; the versions are exactly the writes of the commits in
//!    the log.
//! 2. `acked` never decreases: everything up to it survives any fault.
//! 3. A keyspace must answer all reads at or above its `floor`, and reads at its `pins`: moments
//!    below the floor that have been open since they were above it. Versions that no such read
//!    needs may have been dropped. Other reads may be refused, but are never wrong.

pub mod merge;
mod names;
pub mod reads;

use std::collections::{BTreeMap, BTreeSet};

use crate::content::Content;
use crate::op::{Edge, Keep, Key, Span};

/// Keys and their new values, by keyspace number.
pub type Writes = BTreeMap<(u8, Key), Option<Content>>;

/// A version of a key: GLSN and value.
pub type Version = (u64, Option<Content>);

/// The content of a log entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A transaction.
    Commit {
        /// Its writes.
        writes: Writes,
        /// The metadata of the commit.
        metadata: Content,
        /// The GLSN that it read at.
        read_at: u64,
    },
    /// A keyspace was created, or its retention changed.
    Keyspace {
        /// Its number.
        space: u8,
        /// Its retention from now on.
        retention: Keep,
    },
    /// A keyspace with these keys was dropped.
    Dropped {
        /// Its number.
        space: u8,
        /// Its keys.
        keys: Vec<Key>,
    },
    /// A named cursor was created, moved or removed.
    Cursor {
        /// Its number.
        name: u8,
        /// The GLSN to read next.
        next: Option<u64>,
    },
    /// A tag was created or deleted.
    Tag {
        /// Its number.
        name: u8,
        /// Its moment.
        at: Option<u64>,
    },
    /// The store's record that streams are in use.
    StreamsInUse,
    /// An entry of a user's stream.
    Payload {
        /// The stream.
        stream: u32,
        /// The bytes.
        content: Content,
    },
}

impl Entry {
    /// Its stream.
    pub fn stream(&self) -> u32 {
        if let Entry::Payload { stream, .. } = self { *stream } else { 0 }
    }
}

/// An entry and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The entry.
    pub entry: Entry,
    /// The last GLSN of its record, because entries appended together survive together.
    pub record_last: u64,
    /// Its append time, once the store has reported it.
    pub micros: Option<u64>,
}

/// A keyspace.
#[derive(Clone, Debug, Default)]
pub struct Space {
    /// Its retentions, each with the GLSN from which it applies; oldest first.
    pub retention: Vec<(u64, Keep)>,
    /// See invariant 3.
    pub floor: u64,
    /// See invariant 3.
    pub pins: BTreeSet<u64>,
    /// Versions by key, oldest first.
    pub versions: BTreeMap<Key, Vec<Version>>,
    /// The commit that dropped it.
    pub dropped: Option<u64>,
}

/// The model of a store.
#[derive(Clone, Debug)]
pub struct Model {
    spaces: BTreeMap<u8, Space>,
    log: Vec<Placed>,
    acked: u64,
    first: u64,
    /// Ranges that commits delete, by GLSN.
    ranges: BTreeMap<u64, Vec<(u8, Span)>>,
}

impl Default for Model {
    fn default() -> Self {
        // Keyspace 0 is "default", which always exists.
        let default = Space { retention: vec![(0, Keep::Forever)], ..Space::default() };
        let spaces = BTreeMap::from([(0, default)]);
        Self { spaces, log: Vec::new(), acked: 0, first: 1, ranges: BTreeMap::new() }
    }
}

/// Keyspaces whose numbers differ by a multiple of this use the same name in turn.
pub const NAMES: u8 = 8;

/// The name of a keyspace.
pub fn space_name(space: u8) -> String {
    let space = space % NAMES;
    if space == 0 { "default".to_owned() } else { format!("space{space}") }
}

impl Model {
    /// The newest GLSN that was submitted.
    pub fn newest(&self) -> u64 {
        self.log.len() as u64
    }

    /// The newest GLSN that was acknowledged.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// The first GLSN that is not trimmed.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Records that everything up to `glsn` was acknowledged.
    pub fn acknowledge(&mut self, glsn: u64) {
        self.acked = self.acked.max(glsn);
    }

    /// Records the beginning of the log, which may be below the previous one.
    pub fn begin_at(&mut self, first: u64) {
        self.first = first;
    }

    /// Raises the beginning of the log to `first`, if that is higher.
    pub fn trimmed(&mut self, first: u64) {
        self.first = self.first.max(first);
    }

    /// The entry with a GLSN.
    pub fn entry(&self, glsn: u64) -> Option<&Placed> {
        self.log.get(glsn.checked_sub(1)? as usize)
    }

    /// The next commit, if it is submitted, deletes these ranges.
    pub fn deletes_ranges_next(&mut self, ranges: Vec<(u8, Span)>) {
        self.ranges.split_off(&(self.newest() + 1));
        if !ranges.is_empty() {
            self.ranges.insert(self.newest() + 1, ranges);
        }
    }

    /// Whether commit `by` deletes a range that a key lies in.
    pub fn deletes_in_range(&self, space: u8, key: &[u8], by: u64) -> bool {
        let mut ranges = self.ranges.get(&by).into_iter().flatten();
        ranges.any(|(of, span)| *of == space && span.contains(key))
    }

    /// Whether a keyspace like this was dropped before a commit.
    pub(crate) fn was_dropped_before(&self, glsn: u64, is_it: impl Fn(u8) -> bool) -> bool {
        let before = &self.log[..self.log.len().min(glsn.saturating_sub(1) as usize)];
        before
            .iter()
            .any(|placed| matches!(&placed.entry, Entry::Dropped { space, .. } if is_it(*space)))
    }

    /// The changes of an entry to keys with a prefix.
    pub fn changes_under(
        &self,
        space: u8,
        prefix: &[u8],
        glsn: u64,
    ) -> Vec<(Key, Option<Content>)> {
        let begins = |key: &&Key| key.starts_with(prefix);
        match self.entry(glsn).map(|placed| &placed.entry) {
            Some(Entry::Commit { writes, .. }) => {
                let of_space = writes.iter().filter(|((of, _), _)| *of == space);
                let changes = of_space.map(|((_, key), value)| (key, *value));
                changes
                    .filter(|(key, _)| begins(key))
                    .map(|(key, value)| (key.clone(), value))
                    .collect()
            }
            Some(Entry::Dropped { space: of, keys }) if *of == space => {
                keys.iter().filter(begins).map(|key| (key.clone(), None)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Records when an entry was appended.
    pub fn learn_time(&mut self, glsn: u64, micros: u64) {
        if let Some(placed) = glsn.checked_sub(1).and_then(|at| self.log.get_mut(at as usize)) {
            placed.micros.get_or_insert(micros);
        }
    }

    /// The latest known append time of an entry before `glsn`.
    pub fn time_before(&self, glsn: u64) -> Option<u64> {
        self.log.iter().take(glsn.saturating_sub(1) as usize).rev().find_map(|placed| placed.micros)
    }

    /// Adds a submitted record; returns its last GLSN.
    pub fn submit(&mut self, entries: Vec<Entry>) -> u64 {
        let last = self.newest() + entries.len() as u64;
        for entry in entries {
            let glsn = self.newest() + 1;
            self.apply(glsn, &entry);
            self.log.push(Placed { entry, record_last: last, micros: None });
        }
        last
    }

    fn apply(&mut self, glsn: u64, entry: &Entry) {
        match entry {
            Entry::Commit { writes, .. } => {
                for ((space, key), value) in writes {
                    let space = self.spaces.entry(*space).or_default();
                    space.versions.entry(key.clone()).or_default().push((glsn, *value));
                }
            }
            Entry::Keyspace { space, retention } => {
                self.spaces.entry(*space).or_default().retention.push((glsn, *retention));
            }
            Entry::Dropped { space, keys } => {
                let space = self.spaces.entry(*space).or_default();
                for key in keys {
                    space.versions.entry(key.clone()).or_default().push((glsn, None));
                }
                space.dropped = Some(glsn);
            }
            Entry::StreamsInUse
            | Entry::Payload { .. }
            | Entry::Cursor { .. }
            | Entry::Tag { .. } => {}
        }
    }

    /// Whether the store may end at `glsn` after a crash, with everything acknowledged and only
    /// whole records.
    pub fn may_end_at(&self, glsn: u64) -> bool {
        self.is_border(glsn) && glsn >= self.acked
    }

    /// Whether a record ends with `glsn`, or it is before the first.
    pub fn is_border(&self, glsn: u64) -> bool {
        glsn == 0 || self.entry(glsn).is_some_and(|placed| placed.record_last == glsn)
    }

    /// Removes everything after `glsn`, as a crash does.
    pub fn cut_behind(&mut self, glsn: u64) {
        self.log.truncate(glsn as usize);
        for space in self.spaces.values_mut() {
            space.retention.retain(|(since, _)| *since <= glsn);
            space.dropped = space.dropped.filter(|at| *at <= glsn);
            space.versions.values_mut().for_each(|versions| versions.retain(|(at, _)| *at <= glsn));
            space.versions.retain(|_, versions| !versions.is_empty());
        }
        self.spaces.retain(|_, space| !space.retention.is_empty());
    }

    /// GLSN of the last entry that the index must have.
    pub fn last_commit(&self) -> u64 {
        self.log.iter().rposition(|placed| placed.entry.stream() == 0).map_or(0, |at| at as u64 + 1)
    }

    /// Length of the common prefix with the log of another model.
    pub fn common_entries(&self, other: &Model) -> u64 {
        // Ignore append times that are not known yet.
        let same_time = |a: &Placed, b: &Placed| {
            a.micros.is_none() || b.micros.is_none() || a.micros == b.micros
        };
        let both = self.log.iter().zip(&other.log);
        both.take_while(|(a, b)| a.entry == b.entry && same_time(a, b)).count() as u64
    }

    /// Raises the floors to those of another model.
    pub fn raise_floors_to(&mut self, other: &Model) {
        for (number, space) in &mut self.spaces {
            space.raise_floor(other.floor(*number), &BTreeSet::new());
        }
    }

    /// Whether a keyspace was created.
    pub fn has_space(&self, space: u8) -> bool {
        self.spaces.contains_key(&space)
    }

    /// The numbers of all existing keyspaces.
    pub fn spaces(&self) -> impl Iterator<Item = (u8, Keep)> {
        let there = self.spaces.iter().filter(|(_, space)| space.dropped.is_none());
        there.map(|(number, space)| (*number, space.keep()))
    }

    /// The commit that dropped a keyspace.
    pub fn dropped_at(&self, space: u8) -> Option<u64> {
        self.spaces.get(&space)?.dropped
    }

    /// Whether a keyspace was dropped.
    pub fn is_dropped(&self, space: u8) -> bool {
        self.spaces.get(&space).is_some_and(|space| space.dropped.is_some())
    }

    /// The keyspace that now has the name of `space`, or would be created under that name.
    pub fn current_space(&self, space: u8) -> u8 {
        let same_name = |number: &&u8| **number % NAMES == space % NAMES;
        match self.spaces.keys().rfind(same_name) {
            None => space % NAMES,
            Some(last) if self.is_dropped(*last) => last.saturating_add(NAMES),
            Some(last) => *last,
        }
    }

    /// The keyspace that had the name of `space` at a moment.
    pub fn space_at(&self, space: u8, at: u64) -> Option<u8> {
        let same_name = self.spaces.iter().filter(|(number, _)| **number % NAMES == space % NAMES);
        let was_there = |space: &Space| {
            space.retention.first().is_some_and(|(since, _)| *since <= at)
                && space.dropped.is_none_or(|glsn| at < glsn)
        };
        same_name.filter(|(_, space)| was_there(space)).map(|(number, _)| *number).next_back()
    }

    /// The entry that dropping a keyspace writes now.
    pub fn drop_of(&self, space: u8) -> Entry {
        let all = Span::Range(Edge::Open, Edge::Open);
        let keys = self.walk(space, &all, self.newest(), &Writes::new());
        Entry::Dropped { space, keys: keys.into_iter().map(|(key, _)| key).collect() }
    }

    /// Whether a keyspace already has this retention, so that setting it commits nothing.
    pub fn has_recorded(&self, space: u8, keep: Keep) -> bool {
        self.spaces
            .get(&space)
            .and_then(|space| space.retention.last())
            .is_some_and(|&(since, kept)| since > 0 && kept == keep)
    }

    /// The present retention of a keyspace.
    pub fn retention(&self, space: u8) -> Keep {
        let last = self.spaces.get(&space).and_then(|space| space.retention.last());
        last.map_or(Keep::Forever, |(_, keep)| *keep)
    }

    /// Whether the store has recorded that streams are in use.
    pub fn streams_in_use(&self) -> bool {
        self.log.iter().any(|placed| placed.entry == Entry::StreamsInUse)
    }

    /// The oldest moment from which on a keyspace must answer at every one.
    pub fn floor(&self, space: u8) -> u64 {
        self.spaces.get(&space).map_or(0, |space| space.floor)
    }

    /// Whether a keyspace must answer at a moment.
    pub fn must_answer(&self, space: u8, at: u64) -> bool {
        self.spaces.get(&space).is_none_or(|space| space.must_answer(at))
    }

    /// Raises the floors above the versions that background work may have dropped. `open` are the
    /// open moments other than the tagged ones, `newest` is the newest moment that may have been
    /// visible, `now` the time of the clock.
    pub fn raise_floors(&mut self, open: &BTreeSet<u64>, newest: u64, now: u64) {
        let open: BTreeSet<u64> = open.iter().copied().chain(self.tagged()).collect();
        // The time of an entry is unknown if its commit ended in an error; it may be as old as its
        // predecessor. Use the last such entry in log order: if the log's time was restarted,
        // everything before is at least as old as the restart.
        let at_time = |then: u64| {
            let known =
                self.log.iter().rposition(|placed| placed.micros.is_some_and(|at| at <= then));
            let behind = known.map_or(0, |at| at + 1);
            let unknown =
                self.log[behind..].iter().take_while(|placed| placed.micros.is_none()).count();
            (behind + unknown).checked_sub(1)
        };
        let windows: Vec<(u8, u64)> = self
            .spaces
            .iter()
            .map(|(number, space)| {
                let kept_from = match space.keep() {
                    Keep::Forever => 0,
                    Keep::Latest => newest,
                    Keep::Glsns(glsns) => newest.saturating_sub(glsns),
                    Keep::Micros(age) => {
                        at_time(now.saturating_sub(age)).map_or(0, |at| at as u64 + 1)
                    }
                };
                (*number, kept_from.min(newest))
            })
            .collect();
        for (number, floor) in windows {
            if let Some(space) = self.spaces.get_mut(&number) {
                space.raise_floor(floor, &open);
            }
        }
    }

    /// The GLSN up to which the store may trim the log automatically: none if a written keyspace
    /// retains everything, or the log has a user's stream.
    pub fn may_free_below(&self, until: u64) -> u64 {
        let forever = self
            .spaces
            .values()
            .any(|space| space.keep() == Keep::Forever && !space.versions.is_empty());
        if forever || self.streams_in_use() { 0 } else { until }
    }

    /// The current version of a key at a moment.
    pub fn version_at(&self, space: u8, key: &[u8], at: u64) -> Option<Version> {
        current(self.spaces.get(&space)?.versions.get(key)?, at)
    }

    /// The value of a key at a moment.
    pub fn get(&self, space: u8, key: &[u8], at: u64) -> Option<Content> {
        self.version_at(space, key, at)?.1
    }

    /// All versions of a key, newest first.
    pub fn history(&self, space: u8, key: &[u8]) -> Vec<Version> {
        let versions = self.spaces.get(&space).and_then(|space| space.versions.get(key));
        versions.map_or_else(Vec::new, |versions| versions.iter().rev().copied().collect())
    }

    /// The keyspaces that have or had the name of `space`, newest first.
    pub fn lives(&self, space: u8) -> Vec<u8> {
        self.spaces.keys().rev().copied().filter(|number| number % NAMES == space % NAMES).collect()
    }

    /// The keyspace of a name at a moment: the first one dropped after it.
    pub fn life_at(&self, space: u8, at: u64) -> Option<u8> {
        let is_later = |life: &u8| self.spaces[life].dropped.is_none_or(|dropped| dropped > at);
        self.lives(space).into_iter().rev().find(is_later)
    }

    /// The versions that the store must still have: those newer than the floor, and the ones
    /// current at the floor and at the pins.
    pub fn history_kept(&self, space: u8, key: &[u8]) -> Vec<Version> {
        let floor = self.floor(space);
        let mut kept = self.history(space, key);
        let younger = kept.iter().take_while(|(glsn, _)| *glsn > floor).count();
        kept.truncate(younger + 1);
        if let Some((glsn, None)) = kept.last()
            && *glsn <= floor
            && floor > 0
        {
            kept.pop();
        }
        let pins = self.spaces.get(&space).into_iter().flat_map(|space| space.pins.iter().rev());
        for pinned in pins.filter_map(|at| self.version_at(space, key, *at)) {
            if pinned.1.is_some() && !kept.contains(&pinned) {
                kept.push(pinned);
            }
        }
        kept
    }

    /// Every key that a keyspace ever had.
    pub fn keys(&self, space: u8) -> Vec<Key> {
        self.spaces
            .get(&space)
            .map_or_else(Vec::new, |space| space.versions.keys().cloned().collect())
    }

    /// The length of the longest key ever committed.
    pub fn longest_key(&self) -> usize {
        self.spaces
            .values()
            .flat_map(|space| space.versions.keys())
            .map(Vec::len)
            .max()
            .unwrap_or(0)
    }

    /// Keys and values of a span at a moment, with `own` writes on top, in key order.
    pub fn walk(&self, space: u8, span: &Span, at: u64, own: &Writes) -> Vec<(Key, Content)> {
        let mut found: BTreeMap<&Key, Option<Content>> = BTreeMap::new();
        if let Some(space) = self.spaces.get(&space) {
            let inside = space.versions.iter().filter(|(key, _)| span.contains(key));
            found.extend(
                inside.map(|(key, versions)| {
                    (key, current(versions, at).and_then(|version| version.1))
                }),
            );
        }
        let own = own.iter().filter(|((of, key), _)| *of == space && span.contains(key));
        found.extend(own.map(|((_, key), value)| (key, *value)));
        found.into_iter().filter_map(|(key, value)| Some((key.clone(), value?))).collect()
    }

    /// Keys of a name whose values differ between two moments, with their versions at both (without
    /// deletions), in key order.
    pub fn diff(
        &self,
        space: u8,
        from: u64,
        to: u64,
        prefix: &[u8],
    ) -> Vec<(Key, Option<Version>, Option<Version>)> {
        let keys = self.lives(space).into_iter().flat_map(|life| self.keys(life));
        let keys: BTreeSet<Key> = keys.filter(|key| key.starts_with(prefix)).collect();
        let there = |key: &[u8], at| {
            self.version_at(self.life_at(space, at)?, key, at).filter(|version| version.1.is_some())
        };
        keys.into_iter()
            .map(|key| (there(&key, from), there(&key, to), key))
            .filter(|(before, after, _)| !same_value(*before, *after))
            .map(|(before, after, key)| (key, before, after))
            .collect()
    }

    /// GLSNs of the versions of a key that are newer than `at`.
    pub fn changed(&self, space: u8, key: &[u8], at: u64) -> impl Iterator<Item = u64> {
        let versions = self.spaces.get(&space).and_then(|space| space.versions.get(key));
        versions.into_iter().flatten().map(|version| version.0).filter(move |glsn| *glsn > at)
    }
}

impl Space {
    fn must_answer(&self, at: u64) -> bool {
        at >= self.floor || self.pins.contains(&at)
    }

    /// Raises the floor to `floor`, if it is higher. The `open` moments stay readable.
    fn raise_floor(&mut self, floor: u64, open: &BTreeSet<u64>) {
        let floor = self.floor.max(floor);
        let pins = open.range(..floor).copied().filter(|at| self.must_answer(*at)).collect();
        (self.floor, self.pins) = (floor, pins);
    }

    fn keep(&self) -> Keep {
        self.retention.last().map_or(Keep::Forever, |(_, keep)| *keep)
    }
}

/// Whether two versions have the same bytes, even if generated from different contents.
fn same_value(a: Option<Version>, b: Option<Version>) -> bool {
    match (a.and_then(|version| version.1), b.and_then(|version| version.1)) {
        (Some(a), Some(b)) => a == b || a.bytes == b.bytes && a.make() == b.make(),
        (a, b) => a == b,
    }
}

/// The current version at a moment, from versions in ascending order.
fn current(versions: &[Version], at: u64) -> Option<Version> {
    versions.iter().rev().find(|(glsn, _)| *glsn <= at).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(seed: u32) -> Content {
        Content { bytes: 10, seed }
    }

    fn commit(model: &mut Model, writes: &[(&str, Option<u32>)]) -> u64 {
        let writes = writes
            .iter()
            .map(|(key, seed)| ((0, key.as_bytes().to_vec()), seed.map(content)))
            .collect();
        let read_at = model.newest();
        model.submit(vec![Entry::Commit { writes, metadata: Content::default(), read_at }])
    }

    fn three_commits() -> Model {
        let mut model = Model::default();
        commit(&mut model, &[("a", Some(1)), ("b", Some(2))]);
        commit(&mut model, &[("a", Some(3)), ("c", Some(4))]);
        commit(&mut model, &[("b", None)]);
        model
    }

    #[test]
    fn each_moment_reads_its_versions() {
        let model = three_commits();
        assert_eq!(model.get(0, b"a", 1), Some(content(1)));
        assert_eq!(model.get(0, b"a", 3), Some(content(3)));
        assert_eq!(model.get(0, b"b", 2), Some(content(2)));
        assert_eq!(model.get(0, b"b", 3), None);
        let all = Span::Range(Edge::Open, Edge::Open);
        let keys: Vec<Key> =
            model.walk(0, &all, 3, &Writes::new()).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, [b"a", b"c"]);
        assert_eq!(model.diff(0, 1, 3, b"").len(), 3);
    }

    #[test]
    fn rewriting_the_same_value_is_no_difference() {
        let mut model = three_commits();
        commit(&mut model, &[("a", Some(1)), ("b", Some(5))]);
        let differ: Vec<Key> = model.diff(0, 1, 4, b"").into_iter().map(|(key, ..)| key).collect();
        assert_eq!(differ, [b"b", b"c"]);
    }

    #[test]
    fn own_writes_shadow_committed_versions() {
        let model = three_commits();
        let own = Writes::from([
            ((0, b"a".to_vec()), None),
            ((0, b"d".to_vec()), Some(content(9))),
            ((1, b"e".to_vec()), None),
        ]);
        let walked = model.walk(0, &Span::Prefix(Vec::new()), 3, &own);
        assert_eq!(walked, [(b"c".to_vec(), content(4)), (b"d".to_vec(), content(9))]);
    }

    #[test]
    fn crash_loses_whole_records_and_nothing_acknowledged() {
        let mut model = three_commits();
        model.submit((0..3).map(|i| Entry::Payload { stream: 1, content: content(i) }).collect());
        model.acknowledge(2);
        assert_eq!((0..8).filter(|glsn| model.may_end_at(*glsn)).collect::<Vec<_>>(), [2, 3, 6]);
        model.cut_behind(2);
        assert_eq!((model.newest(), model.get(0, b"b", 9)), (2, Some(content(2))));
    }

    #[test]
    fn time_window_starts_at_the_last_entry_that_may_be_older() {
        let mut model = three_commits();
        let last = model.submit(vec![Entry::Keyspace { space: 0, retention: Keep::Micros(10) }]);
        model.learn_time(1, 100);
        model.learn_time(2, 200);
        let none = BTreeSet::new();
        model.raise_floors(&none, last, 109);
        assert_eq!(model.floor(0), 0);
        model.raise_floors(&none, last, 209);
        assert_eq!(model.floor(0), 1);
        // The other times are unknown, and may be as old as the second one.
        model.raise_floors(&none, last, 210);
        assert_eq!(model.floor(0), last);
    }

    #[test]
    fn latest_only_keyspace_may_refuse_unread_moments() {
        let mut model = three_commits();
        model.submit(vec![Entry::Keyspace { space: 0, retention: Keep::Latest }]);
        model.raise_floors(&BTreeSet::from([1]), 2, 0);
        assert_eq!(model.floor(0), 2);
        assert_eq!(model.history_kept(0, b"a"), [(2, Some(content(3))), (1, Some(content(1)))]);
        assert_eq!(model.history_kept(0, b"b"), [(3, None), (1, Some(content(2)))]);
        assert!(model.must_answer(0, 1) && !model.must_answer(0, 0));
        model.raise_floors(&BTreeSet::from([0, 1]), 4, 0);
        assert_eq!(model.history_kept(0, b"b"), [(1, Some(content(2)))]);
        assert!(model.must_answer(0, 1) && !model.must_answer(0, 0), "opened again too late");
        model.raise_floors(&BTreeSet::new(), 4, 0);
        assert_eq!(model.history_kept(0, b"b"), []);
        assert!(!model.must_answer(0, 1));
    }
}
