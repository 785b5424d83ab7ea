//! Compares the reads of processes with the model.

use std::ops::{Bound, ControlFlow};
use std::time::SystemTime;

use plimsoll::{Glsn, Moment, Range, Read, Retention, Ttl};
use plimsoll_disk::random::Random;

use crate::branches::model::{Content, KEYS, Place, SPACES};
use crate::branches::{Driver, NAMES, OPEN_MAX, Step, done, same_newest, time};
use crate::failure::{ensure, same};

/// A state that is read: its commit of data, and two bounds of the time by which it is judged. The
/// bounds are equal unless the store knows that time only roughly.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadState {
    pub(super) node: usize,
    pub(super) times: (u64, u64),
}

impl ReadState {
    pub(super) fn new(node: usize, now: u64) -> Self {
        Self { node, times: (now, now) }
    }
}

/// A row: key, value and expiry.
type Row = (Vec<u8>, Vec<u8>, Option<SystemTime>);

/// An open iterator, and the rows that are left, the next one last.
pub(super) struct Walk {
    range: Range<'static>,
    rows: Vec<Row>,
}

/// A range of keys.
pub(super) type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

pub(super) fn bounds(random: &mut Random) -> Bounds {
    let mut keys = [random.below(KEYS) as u8, random.below(KEYS) as u8];
    keys.sort_unstable();
    let mut bound = |key: u8| match random.below(3) {
        0 => Bound::Included(vec![key]),
        1 => Bound::Excluded(vec![key]),
        _ => Bound::Unbounded,
    };
    let bounds = (bound(keys[0]), bound(keys[1]));
    match bounds {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => bounds,
        // A range without keys is refused.
        _ if keys[1] - keys[0] < 2 => {
            (Bound::Included(vec![keys[0]]), Bound::Included(vec![keys[1]]))
        }
        _ => bounds,
    }
}

pub(super) fn is_within(bounds: &Bounds, key: u8) -> bool {
    let is_after = match &bounds.0 {
        Bound::Included(from) => key >= from[0],
        Bound::Excluded(from) => key > from[0],
        Bound::Unbounded => true,
    };
    is_after
        && match &bounds.1 {
            Bound::Included(to) => key <= to[0],
            Bound::Excluded(to) => key < to[0],
            Bound::Unbounded => true,
        }
}

impl Driver {
    /// The content of a key in a state; `None`: whether it has expired is unknown.
    pub(super) fn seen(&self, held: ReadState, place: Place) -> Option<Option<Content>> {
        let at_first = self.model.content(held.node, place, held.times.0);
        let at_last = self.model.content(held.node, place, held.times.1);
        (at_first == at_last).then_some(at_first)
    }

    /// Opens a snapshot, an iterator or a branch.
    pub(super) fn hold(&mut self, number: usize, random: &mut Random) -> Step {
        let branch = self.some_branch(random);
        let handle = self.branch(number, branch)?;
        let held = ReadState::new(self.model.tip(branch), self.now());
        let snapshot = handle.snapshot();
        let space = random.below(SPACES as u64) as usize;
        let keyspace = self.member(number).spaces[space].clone();
        match random.below(4) {
            0 if self.member(number).walks.len() < OPEN_MAX => {
                let bounds = bounds(random);
                let range = done("range", snapshot.range(&keyspace, bounds.clone()))?;
                let mut rows = self.rows(held, space, &bounds);
                let is_reverse = random.below(2) == 0;
                let range = if is_reverse { range.reverse() } else { range };
                if !is_reverse {
                    rows.reverse();
                }
                self.member_mut(number).walks.push(Walk { range, rows });
            }
            1 => drop(self.member_mut(number).handles.insert(branch, handle)),
            _ if self.member(number).snapshots.len() < OPEN_MAX => {
                self.member_mut(number).snapshots.push((snapshot, held));
            }
            _ => {}
        }
        Ok(())
    }

    /// The rows of a state whose times are known.
    fn rows(&self, held: ReadState, space: usize, bounds: &Bounds) -> Vec<Row> {
        let keys = (0..KEYS as u8).filter(|key| is_within(bounds, *key));
        let rows = keys.filter_map(|key| {
            let content = self.model.content(held.node, (space, key), held.times.0)?;
            Some((vec![key], content.value.to_vec(), content.expires.map(time)))
        });
        rows.collect()
    }

    /// Advances the open iterators.
    fn walk_on(&mut self, number: usize, random: &mut Random) -> Step {
        let mut left = Vec::new();
        for mut walk in std::mem::take(&mut self.member_mut(number).walks) {
            let mut is_done = false;
            for _ in 0..1 + random.below(3) {
                let row = match walk.range.next() {
                    Some(row) => {
                        let (key, value) = done("row of an open iterator", row)?;
                        Some((key, value.to_vec(), walk.range.expires()))
                    }
                    None => None,
                };
                is_done |= row.is_none();
                same("row of an open iterator", &row, &walk.rows.pop())?;
            }
            if !is_done {
                left.push(walk);
            }
        }
        self.member_mut(number).walks = left;
        Ok(())
    }

    /// Compares some reads of a process.
    pub(super) fn check(&mut self, number: usize, random: &mut Random) -> Step {
        self.check_gone(number)?;
        self.check_lists(number)?;
        self.walk_on(number, random)?;
        let (newest, now) = (self.model.newest, self.now());
        let member = self.member(number);
        same_newest(&member.db, &self.model)?;
        for _ in 0..2 {
            let branch = self.some_branch(random);
            let handle = self.branch(number, branch)?;
            let held = ReadState::new(self.model.tip(branch), now);
            let bounds = bounds(random);
            let what = format!("branch {branch}");
            if random.below(3) == 0 {
                self.compare(number, &handle.begin(), held, &bounds, &what)?;
            } else {
                self.compare(number, &handle.snapshot(), held, &bounds, &what)?;
            }
        }
        for (snapshot, held) in &member.snapshots {
            self.compare(number, snapshot, *held, &bounds(random), "snapshot")?;
        }
        let branch = self.some_branch(random);
        let handle = self.branch(number, branch)?;
        let tags = self.model.tags().into_values();
        let tag = tags.last().map(|at| (at, 0..SPACES));
        let past = match self.retention {
            Retention::Forever => Some((random.below(newest + 1), 0..1)),
            Retention::Glsns(glsns) => Some((newest - random.below(newest.min(glsns) + 1), 0..1)),
            _ => None,
        };
        for (at, spaces) in tag.into_iter().chain(past) {
            let first = done("bounds", Ok(member.db.log().bounds()))?.first.0;
            let then = if at == newest { now } else { self.model.micros_at(at) };
            // The time of a commit that is no longer in the log is known roughly.
            let times = (then, if at < first { now } else { then });
            let held = ReadState { node: self.model.node_at(branch, at), times };
            let what = format!("branch {branch} at {at}");
            let snapshot = done(&what, handle.snapshot_at(Moment::Glsn(Glsn(at))))?;
            for space in spaces {
                self.compare_space(number, &snapshot, held, (space, &bounds(random)), &what)?;
            }
        }
        self.check_memory(number)
    }

    /// Compares all branches.
    pub(super) fn check_all(&mut self, number: usize) -> Step {
        self.check_gone(number)?;
        self.check_lists(number)?;
        let member = self.member(number);
        same_newest(&member.db, &self.model)?;
        let whole = (Bound::Unbounded, Bound::Unbounded);
        for branch in self.model.alive() {
            let handle = self.branch(number, branch)?;
            let held = ReadState::new(self.model.tip(branch), self.now());
            self.compare(number, &handle.snapshot(), held, &whole, &format!("branch {branch}"))?;
        }
        for (snapshot, held) in &member.snapshots {
            self.compare(number, snapshot, *held, &whole, "snapshot")?;
        }
        Ok(())
    }

    fn check_memory(&self, number: usize) -> Step {
        let memory = self.member(number).db.stats().memory;
        ensure(memory.peak_bytes <= memory.limit_bytes, || {
            format!("{} bytes were held, above {}", memory.peak_bytes, memory.limit_bytes)
        })?;
        let member = self.member(number);
        if member.txs.is_empty() && member.walks.is_empty() {
            let of_operations = |kind: &str| ["write sets", "read sets"].contains(&kind);
            let left: Vec<_> = memory
                .by_kind
                .iter()
                .filter(|(kind, bytes)| of_operations(kind) && *bytes > 0)
                .collect();
            ensure(left.is_empty(), || format!("nothing is open, but {left:?} are charged"))?;
        }
        Ok(())
    }

    /// Compares everything that a source reads with a state.
    pub(super) fn compare(
        &self,
        number: usize,
        source: &impl Read,
        held: ReadState,
        bounds: &Bounds,
        what: &str,
    ) -> Step {
        (0..SPACES)
            .try_for_each(|space| self.compare_space(number, source, held, (space, bounds), what))
    }

    fn compare_space(
        &self,
        number: usize,
        source: &impl Read,
        held: ReadState,
        (space, bounds): (usize, &Bounds),
        what: &str,
    ) -> Step {
        let keyspace = &self.member(number).spaces[space];
        let name = NAMES[space];
        let mut unknown = Vec::new();
        for key in 0..KEYS as u8 {
            let Some(content) = self.seen(held, (space, key)) else {
                unknown.push(vec![key]);
                continue;
            };
            let what = |call| format!("{call} of key {key} in {name}, {what}");
            let found = done("get", source.get(keyspace, [key]))?.map(|value| value.to_vec());
            same(what("get"), &found, &content.as_ref().map(|it| it.value.to_vec()))?;
            let there = done("contains", source.contains_key(keyspace, [key]))?;
            same(what("contains"), &there, &content.is_some())?;
            let lent = done("get_with", source.get_with(keyspace, [key], <[u8]>::len))?;
            same(what("get_with"), &lent, &content.as_ref().map(|it| it.value.len()))?;
            let expires = match done("ttl", source.ttl(keyspace, [key]))? {
                Ttl::Absent => None,
                Ttl::Unlimited => Some(None),
                Ttl::Expires { at, .. } => Some(Some(at)),
            };
            same(what("ttl"), &expires, &content.map(|content| content.expires.map(time)))?;
        }
        let whole = (Bound::Unbounded, Bound::Unbounded);
        for bounds in [&whole, bounds] {
            let mut wanted = self.rows(held, space, bounds);
            wanted.retain(|(key, ..)| !unknown.contains(key));
            for reverse in [false, true] {
                let rows = done("range", source.range(keyspace, bounds))?;
                let mut rows = if reverse { rows.reverse() } else { rows };
                let mut found = Vec::new();
                while let Some(row) = rows.next() {
                    let (key, value) = done("row", row)?;
                    found.push((key, value.to_vec(), rows.expires()));
                }
                found.retain(|(key, ..)| !unknown.contains(key));
                let what = format!("{bounds:?} of {name}, {what}, reverse: {reverse}");
                same(what, &found, &wanted)?;
                wanted.reverse();
            }
        }
        let mut lent = Vec::new();
        let rows = done("range", source.range(keyspace, &whole))?;
        let visited = rows.visit(|key, value| {
            lent.push((key.to_vec(), value.to_vec()));
            ControlFlow::<()>::Continue(())
        });
        done("visit", visited)?;
        lent.retain(|(key, _)| !unknown.contains(key));
        let mut wanted = self.rows(held, space, &whole);
        wanted.retain(|(key, ..)| !unknown.contains(key));
        let wanted: Vec<_> = wanted.into_iter().map(|(key, value, _)| (key, value)).collect();
        same(format!("visited rows of {name}, {what}"), &lent, &wanted)?;
        if unknown.is_empty() {
            let len = done("len", source.len(keyspace))?;
            let wanted = self.rows(held, space, &whole).len() as u64;
            same(format!("number of keys in {name}, {what}"), &len, &wanted)?;
        }
        Ok(())
    }
}
