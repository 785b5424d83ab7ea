//! Commits are picked and reverted, and branches are reset: each key is compared with the model's
//! decision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plimsoll::{Error, Glsn, InvalidInput, MergeOutcome, MergeSteps, Retention};
use plimsoll_disk::random::Random;

use crate::branches::checks::ReadState;
use crate::branches::merging::{Expected, key_outcomes};
use crate::branches::model::{Effect, KEYS, MAIN, Model, Place, SPACES};
use crate::branches::rules::{Before, KeyOutcome, Rule};
use crate::branches::{Driver, Step, StepError, done, refused};
use crate::failure::same;

/// Recent commits are undone more often than older ones.
const RECENT: u64 = 12;

/// The keyspaces that are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spaces {
    All,
    /// Only the keyspace whose past is retained.
    Kept,
    /// All but that one.
    Others,
}

impl Spaces {
    fn some(random: &mut Random) -> Self {
        match random.below(8) {
            0..3 => Self::Kept,
            3 => Self::Others,
            _ => Self::All,
        }
    }

    fn has(self, space: usize) -> bool {
        match self {
            Self::All => true,
            Self::Kept => space == 0,
            Self::Others => space != 0,
        }
    }
}

/// A change of a branch to parts of other states.
struct Undo {
    what: String,
    into: usize,
    expected: BTreeMap<Place, Expected>,
    /// Whether all states that it reads must be readable.
    is_kept: bool,
    metadata: String,
}

impl Driver {
    /// Reverts a commit on a branch.
    pub(super) fn revert(&mut self, number: usize, random: &mut Random) -> Step {
        let (into, glsn) = (self.some_branch(random), self.some_commit(random));
        if glsn == 0 || self.model.may_delete_nothing(glsn) {
            return Ok(());
        }
        let (spaces, rules) = (Spaces::some(random), self.some_rules(random));
        let member = self.member(number);
        let mut revert = self.branch(number, into)?.revert(Glsn(glsn));
        for (space, (keyspace, rule)) in member.spaces.iter().zip(rules).enumerate() {
            if rule != Rule::Conflict {
                revert = revert.rule(keyspace, rule.of_store(&nothing()));
            }
            match spaces {
                Spaces::Kept if space == 0 => revert = revert.keyspace(keyspace),
                Spaces::Others if space == 0 => revert = revert.except(keyspace),
                _ => {}
            }
        }
        let is_logged = self.is_logged(number, glsn)?;
        let is_kept = self.is_kept(number, glsn, spaces) && self.is_kept(number, glsn - 1, spaces);
        let commit = self.model.commit_at(glsn).filter(|node| self.model.has_changes(*node));
        let seen = commit.filter(|commit| self.model.commits_of(into).contains(commit));
        let made_on = commit.map(|commit| self.model.nodes[commit].branch);
        let what = format!(
            "revert of {glsn}, made on {made_on:?}, on branch {into} in {spaces:?} with {rules:?}"
        );
        if is_logged && seen.is_none() {
            return refused(&what, revert.run(), |error| match error {
                Error::InvalidInput(InvalidInput::NothingToRevert { .. }) => commit.is_none(),
                Error::InvalidInput(InvalidInput::CommitOnOtherBranch { .. }) => commit.is_some(),
                Error::Trimmed { .. } => !is_kept,
                _ => false,
            });
        }
        let places = seen.map(|seen| self.model.changed_by(seen)).unwrap_or_default();
        let base = self.state_of(number, into, glsn)?;
        let theirs = self.state_of(number, into, glsn - 1)?;
        let expected = self.undone(&places, spaces, &rules, [base, theirs], (into, glsn - 1));
        let metadata = format!("revert of GLSN {glsn}");
        let undo = Undo { what, into, expected, is_kept, metadata };
        self.undo(number, &undo, || revert.preview(), || revert.run())
    }

    /// Applies a commit to a branch.
    pub(super) fn pick(&mut self, number: usize, random: &mut Random) -> Step {
        let (into, glsn) = (self.some_branch(random), self.some_commit(random));
        if glsn == 0 || self.model.may_delete_nothing(glsn) {
            return Ok(());
        }
        let (spaces, rules) = (Spaces::some(random), self.some_rules(random));
        let member = self.member(number);
        let mut pick = member.db.cherry_pick(Glsn(glsn)).into(&self.branch(number, into)?);
        for (space, (keyspace, rule)) in member.spaces.iter().zip(rules).enumerate() {
            if rule != Rule::Conflict {
                pick = pick.rule(keyspace, rule.of_store(&nothing()));
            }
            match spaces {
                Spaces::Kept if space == 0 => pick = pick.keyspace(keyspace),
                Spaces::Others if space == 0 => pick = pick.except(keyspace),
                _ => {}
            }
        }
        let is_logged = self.is_logged(number, glsn)?;
        let is_kept = is_logged
            && self.is_kept(number, glsn, spaces)
            && self.is_kept(number, glsn - 1, spaces);
        let commit = self.model.commit_at(glsn).filter(|node| self.model.has_changes(*node));
        let from = commit.map(|commit| self.model.nodes[commit].branch);
        let is_gone = from.is_some_and(|from| self.model.lines[from].name().is_none());
        let what = format!("pick of {glsn} into branch {into} in {spaces:?} with {rules:?}");
        let (Some(commit), Some(from), false) = (commit, from, is_gone) else {
            return refused(&what, pick.run(), |error| match error {
                Error::InvalidInput(InvalidInput::NothingToPick { .. }) => commit.is_none(),
                Error::InvalidInput(InvalidInput::BranchOfCommitDeleted { .. }) => is_gone,
                Error::Trimmed { .. } => !is_kept,
                _ => false,
            });
        };
        let of_commit = match member.db.log().commit(Glsn(glsn)) {
            Ok(Some(it)) => String::from_utf8_lossy(it.metadata().unwrap_or(b"?")).into_owned(),
            _ => String::new(),
        };
        let metadata = match of_commit.as_str() {
            "" => format!("cherry-pick of GLSN {glsn}"),
            text => format!("{text}\n\n(cherry-pick of GLSN {glsn})"),
        };
        let places = self.model.changed_by(commit);
        let base = self.state_of(number, from, glsn - 1)?;
        let theirs = self.state_of(number, from, glsn)?;
        let expected = self.undone(&places, spaces, &rules, [base, theirs], (into, glsn));
        let undo = Undo { what, into, expected, is_kept, metadata };
        self.undo(number, &undo, || pick.preview(), || pick.run())
    }

    /// Resets a branch to an earlier moment.
    pub(super) fn reset(&mut self, number: usize, random: &mut Random) -> Step {
        let into = self.some_branch(random);
        let to = match random.below(3) {
            0 => self.tagged(number, random),
            1 => self.some_commit(random),
            _ => random.below(self.model.newest + 1),
        };
        let spaces = if random.below(3) == 0 { Spaces::Kept } else { Spaces::All };
        let mut reset = self.branch(number, into)?.reset_to(Glsn(to));
        if spaces == Spaces::Kept {
            reset = reset.keyspace(&self.member(number).spaces[0]);
        }
        let theirs = self.state_of(number, into, to)?;
        let (now, tip) = (self.now(), self.model.tip(into));
        let mut expected = BTreeMap::new();
        for place in all_places().filter(|(space, _)| spaces.has(*space)) {
            let ours = self.model.content(tip, place, now);
            let key_outcomes = [theirs.times.0, theirs.times.1].map(|then| {
                let theirs = self.model.content(theirs.node, place, then);
                let lasting = theirs.clone().filter(|content| content.lives(now));
                match lasting {
                    _ if theirs == ours || lasting == ours => KeyOutcome::Keep,
                    Some(content) => KeyOutcome::Put(content),
                    None => KeyOutcome::Delete,
                }
            });
            expected.insert(place, expected_of(key_outcomes.to_vec()));
        }
        let undo = Undo {
            what: format!("reset of branch {into} to {to} in {spaces:?}"),
            into,
            expected,
            is_kept: self.is_kept(number, to, spaces),
            metadata: format!("reset to GLSN {to}"),
        };
        let run = || {
            let glsn = reset.run()?;
            Ok(glsn.map_or(MergeOutcome::UpToDate, MergeOutcome::Merged))
        };
        self.undo(number, &undo, || reset.preview(), run)
    }

    /// Runs a change of a branch.
    fn undo(
        &mut self,
        number: usize,
        undo: &Undo,
        preview: impl FnOnce() -> plimsoll::Result<MergeSteps>,
        run: impl FnOnce() -> plimsoll::Result<MergeOutcome>,
    ) -> Step {
        match self.try_undo(number, undo, preview, run) {
            Err(StepError::Call(_)) if !undo.is_kept && std::mem::take(&mut self.is_trimmed) => {
                self.doubt = None;
                Ok(())
            }
            undone => undone,
        }
    }

    fn try_undo(
        &mut self,
        number: usize,
        undo: &Undo,
        preview: impl FnOnce() -> plimsoll::Result<MergeSteps>,
        run: impl FnOnce() -> plimsoll::Result<MergeOutcome>,
    ) -> Step {
        let Undo { what, into, expected, metadata, .. } = undo;
        let planned = self.plan(what.clone(), preview(), expected.clone())?;
        let effect = Effect::Write {
            branch: *into,
            writes: planned.writes.clone(),
            touched: BTreeSet::new(),
        };
        self.doubt = Some(effect);
        let outcome = run();
        let outcome = self.merging(what, outcome)?;
        let merged = match &outcome {
            MergeOutcome::Merged(glsn) => Some(*glsn),
            _ => None,
        };
        self.judge(number, &planned, outcome)?;
        let Some(glsn) = merged else { return Ok(()) };
        if let Some(commit) = done("commit", self.member(number).db.log().commit(glsn))? {
            let found = done("metadata", commit.metadata())?;
            same(format!("metadata of the {what}"), &found, &metadata.as_bytes())?;
        }
        Ok(())
    }

    /// The permitted outcomes for the keys of a commit, if theirs is applied to a branch.
    fn undone(
        &self,
        places: &BTreeSet<Place>,
        spaces: Spaces,
        rules: &[Rule; SPACES],
        [base, theirs]: [ReadState; 2],
        (into, theirs_at): (usize, u64),
    ) -> BTreeMap<Place, Expected> {
        let (now, tip) = (self.now(), self.model.tip(into));
        let mut all = BTreeMap::new();
        for place in places.iter().copied().filter(|(space, _)| spaces.has(*space)) {
            let ours = self.model.content(tip, place, now);
            let newest = self.model.newest_outcomes((tip, theirs.node), place, theirs_at, now);
            let mut found = Vec::new();
            for (base_time, their_time) in
                [(base.times.0, theirs.times.0), (base.times.1, theirs.times.1)]
            {
                let base = self.model.content(base.node, place, base_time);
                let theirs = self.model.content(theirs.node, place, their_time);
                // A value that has expired since is not put back.
                let lasting = theirs.as_ref().filter(|content| content.lives(now));
                if base == theirs {
                    found.push(KeyOutcome::Keep);
                } else {
                    let sides = (ours.as_ref(), lasting);
                    found.extend(
                        key_outcomes(rules[place.0], Some(base.as_ref()), sides, &newest).0,
                    );
                }
            }
            all.insert(place, expected_of(found));
        }
        all
    }

    fn some_rules(&self, random: &mut Random) -> [Rule; SPACES] {
        if random.below(3) == 0 {
            return [Rule::Conflict; SPACES];
        }
        std::array::from_fn(|space| Rule::of_space(space, random))
    }

    /// Some commit of the store, mostly a recent one that changed data.
    fn some_commit(&self, random: &mut Random) -> u64 {
        let newest = self.model.newest;
        let nth = |len: usize, random: &mut Random| random.below(len as u64) as usize;
        match random.below(8) {
            0 => random.below(newest + 1),
            1 => newest - random.below(RECENT.min(newest + 1)),
            2 | 3 => self.model.nodes[nth(self.model.nodes.len(), random)].glsn,
            _ => {
                let recent = self.model.nodes.len().min(RECENT as usize);
                self.model.nodes[self.model.nodes.len() - 1 - nth(recent, random)].glsn
            }
        }
    }

    /// A moment of a branch.
    pub(super) fn state_of(&self, number: usize, branch: usize, at: u64) -> Step<ReadState> {
        let (now, then) = (self.now(), self.model.micros_at(at));
        let times = match () {
            () if at == self.model.newest => (now, now),
            // The time of a commit that is no longer in the log is known roughly.
            () if at < self.first_of_log(number)? => (then, now),
            () => (then, then),
        };
        Ok(ReadState { node: self.model.node_at(branch, at), times })
    }

    pub(super) fn first_of_log(&self, number: usize) -> Step<u64> {
        Ok(self.member(number).db.log().bounds().first.0)
    }

    /// Whether the log has a commit. Another process may have trimmed it.
    fn is_logged(&self, number: usize, glsn: u64) -> Step<bool> {
        let db = &self.member(number).db;
        match db.log().commit(Glsn(glsn)) {
            Err(Error::Trimmed { .. }) if self.members.len() > 1 => Ok(false),
            Err(Error::Trimmed { .. }) if glsn < db.log().bounds().first.0 => Ok(false),
            commit => Ok(done("commit", commit)?.is_some()),
        }
    }

    /// Whether a moment must be readable in these keyspaces.
    fn is_kept(&self, number: usize, at: u64, spaces: Spaces) -> bool {
        let newest = self.model.newest;
        let is_held = |at| {
            let mut held = self.member(number).snapshots.iter();
            held.any(|(snapshot, _)| snapshot.at().0 == at)
        };
        let is_pinned = at == newest || self.model.tags().values().any(|tag| *tag == at);
        let is_retained = match self.retention {
            Retention::Forever => true,
            Retention::Glsns(glsns) => newest - at <= glsns,
            _ => false,
        };
        is_pinned || is_held(at) || (spaces == Spaces::Kept && is_retained)
    }
}

impl Model {
    /// Whether a commit may have deleted a range of main in which no key was.
    fn may_delete_nothing(&self, glsn: u64) -> bool {
        let node = self.commit_at(glsn).map(|node| &self.nodes[node]);
        node.is_some_and(|node| node.branch == MAIN && node.writes.is_empty())
    }

    /// Whether a commit changed keys.
    pub(super) fn has_changes(&self, node: usize) -> bool {
        let node = &self.nodes[node];
        !node.writes.is_empty() || !node.touched.is_empty()
    }

    /// The keys that a commit wrote, or may have deleted.
    fn changed_by(&self, node: usize) -> BTreeSet<Place> {
        let node = &self.nodes[node];
        node.writes.keys().chain(&node.touched).copied().collect()
    }
}

fn expected_of(mut key_outcomes: Vec<KeyOutcome>) -> Expected {
    let keeps = key_outcomes.iter().filter(|key_outcome| **key_outcome == KeyOutcome::Keep).count();
    let is_changed = match keeps {
        0 => Some(true),
        _ if keeps == key_outcomes.len() => Some(false),
        _ => None,
    };
    key_outcomes.dedup();
    Expected { key_outcomes, is_changed }
}

fn all_places() -> impl Iterator<Item = Place> {
    (0..SPACES).flat_map(|space| (0..KEYS as u8).map(move |key| (space, key)))
}

fn nothing() -> Before {
    Arc::new(|| {})
}
