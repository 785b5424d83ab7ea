//! Compares versions, logs, differences and hashes with the model.

use std::collections::BTreeMap;
use std::time::SystemTime;

use plimsoll::{Glsn, Moment, Retention, Snapshot, StateHash};
use plimsoll_disk::random::Random;

use crate::branches::checks::ReadState;
use crate::branches::model::{Content, KEYS, MAIN, Place, SPACES};
use crate::branches::{Driver, NAMES, Step, done, place, time};
use crate::failure::{ensure, same};

/// The most hashes that are remembered.
const HASHES_MAX: usize = 40;

/// The content of a state, without expired values.
type Live = BTreeMap<Place, Content>;

/// The hashes of states of the run.
#[derive(Default)]
pub(super) struct Hashes(Vec<(Live, StateHash)>);

/// A version: GLSN, value, expiry.
type Version = (u64, Option<Vec<u8>>, Option<SystemTime>);

impl Driver {
    /// Compares some of a process's reads of the past.
    pub(super) fn check_histories(&mut self, number: usize, random: &mut Random) -> Step {
        let branch = self.some_branch(random);
        self.check_history(number, branch, place(random))?;
        match random.below(3) {
            0 => self.check_log(number, branch, random)?,
            1 => {
                let (snapshot, held) = self.some_state(number, random)?;
                self.check_hash(&snapshot, held)?;
                let tip = ReadState::new(self.model.tip(branch), self.now());
                let snapshot = self.branch(number, branch)?.snapshot();
                self.check_hash(&snapshot, tip)?;
            }
            _ => {
                let states = [self.some_state(number, random)?, self.some_state(number, random)?];
                let key = (random.below(4) == 0).then(|| place(random).1);
                for space in 0..SPACES {
                    self.check_diff(number, &states, space, key)?;
                }
            }
        }
        Ok(())
    }

    /// The newest state of a branch, an open snapshot, or a branch at the moment of a tag.
    fn some_state(&self, number: usize, random: &mut Random) -> Step<(Snapshot, ReadState)> {
        let branch = self.some_branch(random);
        let handle = self.branch(number, branch)?;
        let tags: Vec<u64> = self.model.tags().into_values().collect();
        let snapshots = &self.member(number).snapshots;
        let pick = random.next_u64() as usize;
        match random.below(4) {
            0 if !tags.is_empty() => {
                let at = tags[pick % tags.len()];
                let held = self.state_of(number, branch, at)?;
                let snapshot = done("snapshot_at", handle.snapshot_at(Moment::Glsn(Glsn(at))))?;
                Ok((snapshot, held))
            }
            1 if !snapshots.is_empty() => {
                let (snapshot, held) = &snapshots[pick % snapshots.len()];
                Ok((snapshot.clone(), *held))
            }
            _ => {
                let held = ReadState::new(self.model.tip(branch), self.now());
                Ok((handle.snapshot(), held))
            }
        }
    }

    /// Compares the versions of a key.
    fn check_history(&self, number: usize, branch: usize, place: Place) -> Step {
        let (space, key) = place;
        let handle = self.branch(number, branch)?;
        let keyspace = &self.member(number).spaces[space];
        let what = format!("history of key {place:?} on branch {branch}");
        let mut found: Vec<Version> = Vec::new();
        for version in done(&what, handle.history(keyspace, [key]))? {
            let version = done(&what, version)?;
            let value = done("value of a version", version.value())?.map(|value| value.to_vec());
            let bytes = value.as_ref().map(|value| value.len() as u64);
            same(format!("length, {what}"), &version.bytes, &bytes)?;
            found.push((version.glsn.0, value, version.expires));
        }
        let commits = self.model.commits_of(branch);
        let mut left = commits.iter().map(|commit| &self.model.nodes[*commit]);
        for version in &found {
            // The versions come in the order of the commits.
            let node = left.find(|node| node.glsn == version.0);
            let is_known = node.is_some_and(|node| match node.writes.get(&place) {
                Some(Some(content)) => {
                    let expires = content.expires.map(time);
                    version.1.as_ref() == Some(&*content.value) && version.2 == expires
                }
                Some(None) => version.1.is_none(),
                None => version.1.is_none() && node.touched.contains(&place),
            });
            ensure(is_known, || {
                let wanted = self.writes_of(&commits, place);
                format!("{what}: the store says {found:?}, the model {wanted:?}")
            })?;
        }
        for glsn in self.retained(branch, place, &commits) {
            ensure(found.iter().any(|version| version.0 == glsn), || {
                let wanted = self.writes_of(&commits, place);
                format!("{what} lacks {glsn}: the store says {found:?}, the model {wanted:?}")
            })?;
        }
        // A deletion above the newest value must be there.
        let now = self.now();
        let is_live = found.first().is_some_and(|(_, value, expires)| {
            value.is_some() && expires.is_none_or(|at| at > time(now))
        });
        let content = self.model.content(self.model.tip(branch), place, now);
        Ok(same(format!("newest version, {what}"), &is_live, &content.is_some())?)
    }

    /// The writes to a key by the commits of a branch.
    fn writes_of(&self, commits: &[usize], place: Place) -> Vec<(u64, Option<Content>)> {
        let nodes = commits.iter().map(|commit| &self.model.nodes[*commit]);
        let writes = nodes.filter_map(|node| Some((node.glsn, node.writes.get(&place)?.clone())));
        writes.collect()
    }

    /// The commits whose value of a key some retained moment of the branch sees.
    fn retained(&self, branch: usize, place: Place, commits: &[usize]) -> Vec<u64> {
        let newest = self.model.newest;
        let oldest = match self.retention {
            Retention::Forever if place.0 == 0 => 0,
            Retention::Glsns(glsns) if place.0 == 0 => newest.saturating_sub(glsns),
            _ => newest,
        };
        let mut retained = Vec::new();
        // The moment at which the younger version was written.
        let mut next = newest + 1;
        for commit in commits {
            let node = &self.model.nodes[*commit];
            let Some(content) = node.writes.get(&place) else { continue };
            let seen_from = node.glsn.max(oldest);
            let then =
                if seen_from == newest { self.now() } else { self.model.micros_at(seen_from) };
            let is_seen = next > seen_from && self.model.node_at(branch, seen_from) >= *commit;
            if is_seen && content.as_ref().is_some_and(|content| content.lives(then)) {
                retained.push(node.glsn);
            }
            next = node.glsn;
        }
        retained
    }

    /// Compares the commits that a branch contains.
    fn check_log(&self, number: usize, branch: usize, random: &mut Random) -> Step {
        let handle = self.branch(number, branch)?;
        let db = &self.member(number).db;
        let what = format!("log of branch {branch}");
        let upto = match random.below(2) {
            0 => self.model.newest,
            _ => random.below(self.model.newest + 1),
        };
        let mut found = Vec::new();
        for commit in done(&what, handle.log())?.up_to(Glsn(upto)) {
            found.push(done(&what, commit)?.glsn().0);
        }
        let first = self.first_of_log(number)?;
        let commits = self.model.commits_of(branch);
        let nodes = commits.iter().map(|commit| &self.model.nodes[*commit]);
        let nodes = nodes.filter(|node| node.glsn >= first && node.glsn <= upto);
        // On main, the deletion of a range is a change also if no key is in it.
        let is_it = |glsn: u64, is_certain: bool| is_certain || found.contains(&glsn);
        let wanted: Vec<u64> = nodes
            .filter(|node| is_it(node.glsn, !node.writes.is_empty()))
            .map(|node| node.glsn)
            .collect();
        same(what, &found, &wanted)?;
        let glsn = first + random.below(self.model.newest + 1 - first.min(self.model.newest));
        let Some(node) = self.model.commit_at(glsn) else { return Ok(()) };
        if self.model.nodes[node].writes.is_empty() {
            return Ok(());
        }
        let Some(commit) = done("commit", db.log().commit(Glsn(glsn)))? else { return Ok(()) };
        let contains = done("contains", handle.contains(&commit))?;
        same(format!("branch {branch} contains {glsn}"), &contains, &commits.contains(&node))?;
        let made_on = self.model.nodes[node].branch;
        let name = self.model.lines[made_on].name().filter(|_| made_on != MAIN);
        if made_on == MAIN || name.is_some() {
            let found = done("branch of a commit", commit.branch())?;
            same(format!("branch of commit {glsn}"), &found.as_deref(), &name)?;
        }
        Ok(())
    }

    /// The content of a state whose time is known.
    fn live(&self, held: ReadState) -> Option<Live> {
        let state = &self.model.nodes[held.node].state;
        let at = |now| {
            let live = state.iter().filter(|(_, content)| content.lives(now));
            live.map(|(place, content)| (*place, content.clone())).collect::<Live>()
        };
        let live = at(held.times.0);
        (live == at(held.times.1)).then_some(live)
    }

    /// Compares the hash of a state with those of others: they are the same if the states are.
    fn check_hash(&mut self, snapshot: &Snapshot, held: ReadState) -> Step {
        let hash = done("state_hash", snapshot.state_hash())?;
        let Some(live) = self.live(held) else { return Ok(()) };
        for (other, of_other) in &self.hashes.0 {
            same(
                format!("whether two hashes are the same, {hash} and {of_other}"),
                &(hash == *of_other),
                &(live == *other),
            )?;
        }
        if self.hashes.0.len() == HASHES_MAX {
            self.hashes.0.remove(0);
        }
        self.hashes.0.push((live, hash));
        Ok(())
    }

    /// Compares the keys that differ between two states.
    fn check_diff(
        &self,
        number: usize,
        states: &[(Snapshot, ReadState); 2],
        space: usize,
        key: Option<u8>,
    ) -> Step {
        let member = self.member(number);
        let prefix: Vec<u8> = key.into_iter().collect();
        let [(a, held_a), (b, held_b)] = states;
        let what = format!("differences in {} between {held_a:?} and {held_b:?}", NAMES[space]);
        let mut found = BTreeMap::new();
        let differences = member.db.diff_between(&member.spaces[space], a, b, prefix);
        let mut last = None;
        for difference in done(&what, differences)? {
            let difference = done(&what, difference)?;
            ensure(last.as_ref() < Some(&difference.key), || format!("{what} are not in order"))?;
            last = Some(difference.key.clone());
            found.insert(difference.key.clone(), difference);
        }
        for key in (0..KEYS as u8).filter(|it| key.is_none_or(|key| key == *it)) {
            let difference = found.remove(&vec![key]);
            let place = (space, key);
            let by = |held: ReadState| self.model.nodes[held.node].by.get(&place).copied();
            let (Some(before), Some(after)) =
                (self.seen(*held_a, place), self.seen(*held_b, place))
            else {
                continue;
            };
            let value =
                |content: &Option<Content>| content.as_ref().map(|content| content.value.to_vec());
            let is_same = value(&before) == value(&after);
            let (by_a, by_b) = (by(*held_a), by(*held_b));
            if by_a == by_b && !is_same {
                // Only the time has changed it, unless a range with the expired value was deleted.
                continue;
            }
            let what = || format!("key {key}: {what}");
            same(what(), &difference.is_none(), &is_same)?;
            let Some(difference) = difference else { continue };
            let glsn = |by: Option<usize>| by.map_or(0, |by| self.model.nodes[by].glsn);
            for (version, content, by) in
                [(&difference.before, &before, by_a), (&difference.after, &after, by_b)]
            {
                let mut shown = None;
                if let Some(version) = version {
                    let value = done("value of a version", version.value())?;
                    shown = Some((version.glsn.0, value.map(|it| it.to_vec()), version.expires));
                }
                let wanted = content.as_ref().map(|content| {
                    (glsn(by), Some(content.value.to_vec()), content.expires.map(time))
                });
                same(what(), &shown, &wanted)?;
            }
            // A deletion of a key that has no value may have been dropped, or may count.
            let live = [(by_a, &before), (by_b, &after)]
                .map(|(by, content)| if content.is_some() { glsn(by) } else { 0 });
            let newest = live[0].max(live[1]);
            let is_certain = before.is_some() && after.is_some();
            let is_right = difference.by.0 == newest || (!is_certain && difference.by.0 > newest);
            ensure(is_right, || {
                let sides = [(held_a.node, by_a, before), (held_b.node, by_b, after)];
                let branch = |node: usize| self.model.nodes[node].branch;
                let sides = sides.map(|(node, by, content)| {
                    let by = by.map(|by| (self.model.nodes[by].glsn, branch(by)));
                    (branch(node), self.model.nodes[node].glsn, by, content)
                });
                format!("{}: the store says {difference:?}, the model {sides:?}", what())
            })?;
        }
        ensure(found.is_empty(), || format!("{what}: the store also says {found:?}"))?;
        Ok(())
    }
}
