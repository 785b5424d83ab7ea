//! Merges of branches: each key is compared with the model's decision.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use plimsoll::{
    BranchMerge, Db, Error, InvalidInput, MergeAction, MergeOutcome, MergeStep, MergeSteps,
};
use plimsoll_disk::mutex::lock;
use plimsoll_disk::random::Random;

use crate::branches::json;
use crate::branches::model::{
    Content, Effect, JSON, KEYS, Line, MAIN, Model, Place, SPACES, Writes,
};
use crate::branches::rules::{Before, KeyOutcome, Rule};
use crate::branches::{Driver, NAMES, Step, StepError, done, refused, same_newest};
use crate::failure::{Failure, ensure, same};

/// The permitted outcomes for a key.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    pub(super) key_outcomes: Vec<KeyOutcome>,
    /// Whether the other branch has changed it, if that is certain.
    pub(super) is_changed: Option<bool>,
}

/// The steps of a preview: the result for each key that it lists.
type Steps = BTreeMap<Place, (MergeAction, Option<Vec<u8>>)>;

/// A merge whose preview is as expected.
pub(super) struct Planned {
    what: String,
    expected: BTreeMap<Place, Expected>,
    steps: Steps,
    pub(super) writes: Writes,
}

impl Driver {
    /// Merges a branch into another one.
    pub(super) fn merge(&mut self, number: usize, random: &mut Random) -> Step {
        let has_late_forks = self.has_late_forks && self.model.lines.iter().any(Line::is_late);
        match self.try_merge(number, random) {
            // The versions of the common ancestor may have been dropped before the fork.
            Err(StepError::Call(_)) if has_late_forks && std::mem::take(&mut self.is_trimmed) => {
                self.doubt = None;
                Ok(())
            }
            merged => merged,
        }
    }

    /// The result of a call of a merge.
    pub(super) fn merging<T>(&mut self, what: &str, result: plimsoll::Result<T>) -> Step<T> {
        self.is_trimmed = matches!(result, Err(Error::Trimmed { .. }));
        done(what, result)
    }

    fn try_merge(&mut self, number: usize, random: &mut Random) -> Step {
        let (from, into) = (self.some_branch(random), self.some_branch(random));
        let db = self.member(number).db.clone();
        let (theirs, ours) = (self.branch(number, from)?, self.branch(number, into)?);
        let rules: [Rule; SPACES] = std::array::from_fn(|space| Rule::of_space(space, random));
        let spaces = self.member(number).spaces.clone();
        let with_rules = |before: &Before| {
            let mut merge: BranchMerge = db.merge(&theirs).into(&ours);
            for (space, rule) in spaces.iter().zip(rules) {
                merge = merge.rule(space, rule.of_store(before));
            }
            merge
        };
        let nothing: Before = Arc::new(|| {});
        let merge = with_rules(&nothing);
        if from == into {
            return refused("a merge with itself", merge.run(), |error| {
                matches!(error, Error::InvalidInput(InvalidInput::MergeWithItself { .. }))
            });
        }
        let expected = self.expected(from, into, &rules);
        let what = format!("merge of {from} into {into} with {rules:?}");
        let planned = self.plan(what, merge.preview(), expected)?;
        let theirs = self.model.tip(from);
        let effect = Effect::Merge { into, theirs, writes: planned.writes.clone() };
        let third = self.some_branch(random);
        // While one of several processes waits for another one, values may expire.
        let may_delete = random.below(2) == 0 && self.members.len() == 1;
        let outcome = if may_delete && ![from, into, MAIN].contains(&third) {
            self.arm_nothing();
            let meanwhile =
                ConcurrentDeletion::new(&db, self.model.lines[third].name().unwrap_or_default());
            let merged = with_rules(&meanwhile.before()).run();
            if let Some(deleted) = meanwhile.done() {
                done("delete", deleted)?;
                self.doubt = Some(Effect::Delete { branch: third });
                while self.doubt.is_some() && self.model.newest < db.newest().0 {
                    self.absorb_upto(&db, self.model.newest + 1)?;
                }
            }
            self.doubt = Some(effect);
            merged
        } else {
            self.doubt = Some(effect);
            merge.run()
        };
        let outcome = self.merging("merge", outcome)?;
        self.judge(number, &planned, outcome)
    }

    /// Compares the steps of a preview with those of the model.
    pub(super) fn plan(
        &mut self,
        what: String,
        preview: plimsoll::Result<MergeSteps>,
        expected: BTreeMap<Place, Expected>,
    ) -> Step<Planned> {
        let mut steps = Steps::new();
        for step in self.merging("preview", preview)? {
            let step: MergeStep = self.merging("step", step)?;
            let space = NAMES.iter().position(|name| *name == step.keyspace());
            let space = space.ok_or_else(|| Failure::new("a step in an unknown keyspace"))?;
            let merged = self.merging("merged", step.merged())?.map(|value| value.to_vec());
            steps.insert((space, step.key()[0]), (step.action(), merged));
        }
        let surplus = steps.keys().find(|place| !expected.contains_key(place));
        ensure(surplus.is_none(), || format!("{what} has a step for {surplus:?}"))?;
        let writes = writes_of(&steps, &expected).map_err(|failure| Failure {
            message: format!("{what}: {}", failure.message),
            ..failure
        })?;
        Ok(Planned { what, expected, steps, writes })
    }

    /// Compares the outcome of a merge with that of its preview and of the model.
    pub(super) fn judge(
        &mut self,
        number: usize,
        planned: &Planned,
        outcome: MergeOutcome,
    ) -> Step {
        let Planned { what, expected, steps, .. } = planned;
        let db = self.member(number).db.clone();
        let conflicts = steps.iter().filter(|(_, (action, _))| *action == MergeAction::Conflict);
        let mut conflicts: Vec<_> = conflicts
            .map(|(place, _)| (*place, (NAMES[place.0].to_owned(), vec![place.1])))
            .collect();
        match outcome {
            MergeOutcome::Merged(glsn) => {
                self.acknowledge(number)?;
                ensure(conflicts.is_empty(), || format!("{what} passes over conflicts"))?;
                let is_up_to_date =
                    expected.values().all(|expected| expected.is_changed == Some(false));
                ensure(!is_up_to_date, || format!("{what} finds changes"))?;
                self.absorb(&db)?;
                return Ok(same("newest commit, a merge", &glsn.0, &self.model.newest)?);
            }
            MergeOutcome::UpToDate => {
                self.doubt = None;
                let changed =
                    expected.iter().find(|(_, expected)| expected.is_changed == Some(true));
                ensure(changed.is_none() && steps.is_empty(), || {
                    format!("{what} finds no changes, the model {changed:?}")
                })?;
            }
            MergeOutcome::Conflicts(found) => {
                self.doubt = None;
                let mut keys = Vec::new();
                for step in found {
                    let step = self.merging("conflict", step)?;
                    keys.push((step.keyspace().to_owned(), step.key().to_vec()));
                }
                // If the log is trimmed meanwhile, the time of a base is known only roughly.
                conflicts.retain(|(place, name)| {
                    keys.contains(name) || expected[place].is_changed.is_some()
                });
                let mut listed: Vec<_> = conflicts.into_iter().map(|(_, name)| name).collect();
                keys.sort();
                listed.sort();
                same(format!("conflicts of the {what}"), &keys, &listed)?;
            }
            _ => return Err(Failure::new("an unknown outcome of a merge").into()),
        }
        same_newest(&db, &self.model)
    }

    /// The permitted outcomes for each key.
    fn expected(
        &self,
        from: usize,
        into: usize,
        rules: &[Rule; SPACES],
    ) -> BTreeMap<Place, Expected> {
        let now = self.now();
        let (ours, theirs) = (self.model.tip(into), self.model.tip(from));
        let bases = self.model.bases(ours, theirs);
        let mut all = BTreeMap::new();
        for (space, rule) in rules.iter().enumerate() {
            for key in 0..KEYS as u8 {
                let place = (space, key);
                let (our, their) =
                    (self.model.content(ours, place, now), self.model.content(theirs, place, now));
                let mut found = Expected { key_outcomes: Vec::new(), is_changed: None };
                let newest_outcomes = match rule {
                    Rule::Newest => {
                        self.model.newest_outcomes((ours, theirs), place, self.model.newest, now)
                    }
                    _ => Vec::new(),
                };
                let key_outcome = |base: Option<&Option<Content>>| {
                    let sides = (our.as_ref(), their.as_ref());
                    key_outcomes(*rule, base.map(Option::as_ref), sides, &newest_outcomes)
                };
                let mut changes = Vec::new();
                // The bases are read as of their own times. But a key of which only the time has
                // changed the value is not compared.
                for is_of_now in [false, true] {
                    let base = self.model.merged(&bases, &|node| {
                        let glsn = self.model.nodes[node].glsn;
                        let then = if is_of_now { now } else { self.model.micros_at(glsn) };
                        self.model.content(node, place, then)
                    });
                    let (key_outcomes, is_changed) = key_outcome(base.as_ref());
                    found.key_outcomes.extend(key_outcomes);
                    changes.push(is_changed);
                }
                // Possibly the store does not know which of the bases contain a deletion.
                let of_base = |base: &usize| self.model.nodes[*base].state.get(&place);
                let has_expiry =
                    |base: &usize| of_base(base).is_some_and(|it| it.expires.is_some());
                let may_differ = bases
                    .iter()
                    .any(|base| of_base(base) != of_base(&bases[0]) || has_expiry(base));
                if bases.len() > 1 && may_differ {
                    let (key_outcomes, is_changed) = key_outcome(None);
                    found.key_outcomes.extend(key_outcomes);
                    changes.push(is_changed);
                    // A deletion without an older version is dropped, as if the key had never
                    // existed; a commit of only such deletions then wrote nothing.
                    if bases.iter().any(|base| of_base(base).is_none_or(|it| it.expires.is_some()))
                    {
                        for base in &bases {
                            let base = Some(self.model.content(*base, place, now));
                            let (key_outcomes, is_changed) = key_outcome(base.as_ref());
                            found.key_outcomes.extend(key_outcomes);
                            changes.push(is_changed);
                        }
                    }
                }
                let is_certain = changes.iter().all(|is_changed| *is_changed == changes[0]);
                found.is_changed = is_certain.then_some(changes[0]);
                all.insert(place, found);
            }
        }
        all
    }
}

/// The deletion of another branch while a merge decides about a key; versions that only that branch
/// retained are dropped.
struct ConcurrentDeletion {
    db: Db,
    name: String,
    result: Arc<Mutex<Option<plimsoll::Result<()>>>>,
    is_over: Arc<AtomicBool>,
}

impl ConcurrentDeletion {
    fn new(db: &Db, name: &str) -> Self {
        let (db, name) = (db.clone(), name.to_owned());
        Self { db, name, result: Arc::default(), is_over: Arc::default() }
    }

    fn before(&self) -> Before {
        let (db, name, result) = (self.db.clone(), self.name.clone(), Arc::clone(&self.result));
        let is_over = Arc::clone(&self.is_over);
        Arc::new(move || {
            if !is_over.swap(true, Ordering::Relaxed) {
                let deleted = db.delete_branch(&name);
                *lock(&result) =
                    Some(deleted.and_then(|()| db.flush()).and_then(|()| db.compact()));
            }
        })
    }

    /// Its result, if it has happened.
    fn done(&self) -> Option<plimsoll::Result<()>> {
        self.is_over.store(true, Ordering::Relaxed);
        lock(&self.result).take()
    }
}

/// The permitted outcomes for a key, and whether theirs has changed it. `newest` are those of
/// [`Rule::Newest`].
pub(super) fn key_outcomes(
    rule: Rule,
    base: Option<Option<&Content>>,
    (ours, theirs): (Option<&Content>, Option<&Content>),
    newest: &[KeyOutcome],
) -> (Vec<KeyOutcome>, bool) {
    if base == Some(theirs) {
        return (vec![KeyOutcome::Keep], false);
    }
    let key_outcomes = match () {
        () if ours == theirs && rule != Rule::Counter => vec![KeyOutcome::Keep],
        () if base == Some(ours) => {
            vec![theirs.cloned().map_or(KeyOutcome::Delete, KeyOutcome::Put)]
        }
        () if rule == Rule::Newest => newest.to_vec(),
        () => match rule.key_outcome(base, ours, theirs) {
            KeyOutcome::Conflict if ours == theirs => vec![KeyOutcome::Keep],
            // The store compares the texts.
            KeyOutcome::Put(put)
                if matches!(rule, Rule::Json | Rule::JsonSet)
                    && ours.is_some_and(|it| is_same_json(&it.value, &put.value)) =>
            {
                vec![KeyOutcome::Keep, KeyOutcome::Put(put)]
            }
            key_outcome => vec![key_outcome],
        },
    };
    (key_outcomes, true)
}

/// Whether two values are JSON texts that merges consider to be the same.
fn is_same_json(a: &[u8], b: &[u8]) -> bool {
    json::is_same(a, b) || json::is_same_set(a, b)
}

impl Model {
    /// The permitted outcomes of [`Rule::Newest`] for a key that both sides changed; theirs is a
    /// state as of `theirs_at`.
    pub(super) fn newest_outcomes(
        &self,
        (ours, theirs): (usize, usize),
        place: Place,
        theirs_at: u64,
        now: u64,
    ) -> Vec<KeyOutcome> {
        let mut key_outcomes = Vec::new();
        for our in self.written_by(ours, place, now) {
            for their in self.written_by(theirs, place, now) {
                let key_outcome = match (our, their) {
                    (Some(our), Some(their)) if their > our => {
                        self.content(theirs, place, now).map_or(KeyOutcome::Delete, KeyOutcome::Put)
                    }
                    (Some(_), Some(_)) => KeyOutcome::Keep,
                    (Some(our), None) if our > theirs_at => KeyOutcome::Keep,
                    _ => KeyOutcome::Conflict,
                };
                if !key_outcomes.contains(&key_outcome) {
                    key_outcomes.push(key_outcome);
                }
            }
        }
        key_outcomes
    }

    /// The commits that may have written the version of a key that a state contains. A deletion or
    /// an expired value may have been dropped; of several deletions of a range, the first counts.
    fn written_by(&self, node: usize, place: Place, now: u64) -> Vec<Option<u64>> {
        let of_value = |node: &usize| matches!(self.nodes[*node].writes.get(&place), Some(Some(_)));
        if self.content(node, place, now).is_some() {
            return vec![self.nodes[node].by.get(&place).map(|by| self.nodes[*by].glsn)];
        }
        let node = &self.nodes[node];
        let commits = self.commits_of(node.branch).into_iter();
        let commits = commits.filter(|commit| self.nodes[*commit].glsn <= node.glsn);
        let mut found = vec![None];
        for commit in commits {
            let written = &self.nodes[commit];
            if written.writes.contains_key(&place) || written.touched.contains(&place) {
                found.push(Some(written.glsn));
            }
            if of_value(&commit) {
                break;
            }
        }
        found
    }
}

/// The writes of the steps, if each step is as expected.
fn writes_of(steps: &Steps, expected: &BTreeMap<Place, Expected>) -> Result<Writes, Failure> {
    let mut writes = Writes::new();
    for (place, expected) in expected {
        let step = steps.get(place);
        let is_it = |key_outcome: &&KeyOutcome| match (key_outcome, step) {
            (KeyOutcome::Keep, None) => true,
            (KeyOutcome::Put(content), Some((MergeAction::Put, Some(value)))) => {
                let is_json = place.0 == JSON && is_same_json(value, &content.value);
                is_json || *value == *content.value
            }
            (KeyOutcome::Delete, Some((MergeAction::Delete, _))) => true,
            (KeyOutcome::Conflict, Some((MergeAction::Conflict, _))) => true,
            _ => false,
        };
        match expected.key_outcomes.iter().find(is_it) {
            Some(KeyOutcome::Put(content)) => {
                let value = step.and_then(|(_, value)| value.clone()).unwrap_or_default();
                writes.insert(*place, Some(Content::new(value, content.expires)));
            }
            Some(KeyOutcome::Delete) => drop(writes.insert(*place, None)),
            Some(_) => {}
            None => same(format!("key {place:?}"), &format!("{step:?}"), &format!("{expected:?}"))?,
        }
    }
    Ok(writes)
}
