//! Reverts of commits, and resets to a moment.

use std::collections::BTreeSet;

use plimsoll::{Error, Glsn, InvalidInput, MergeOutcome, MergeRule, MergeSide, MergeSteps};

use crate::content::Content;
use crate::driver::Driver;
use crate::driver::step::said;
use crate::failure::{Failure, Outcome, ensure, same};
use crate::judge::show;
use crate::model::merge::{Merge, Place};
use crate::model::{Entry, NAMES, space_name};

impl Driver {
    /// Reverts the commit this many GLSNs before the newest.
    pub(super) fn revert(&mut self, back: u64, takes_theirs: bool) -> Outcome<String> {
        let newest = self.db().newest().0;
        if newest != self.model.newest() {
            return said("not all commits are visible");
        }
        let glsn = newest.saturating_sub(back);
        let what = format!("revert of GLSN {glsn}");
        let is_in_log = glsn >= self.db().log().bounds().first.0;
        let mut revert = self.db().revert(Glsn(glsn)).metadata("");
        if takes_theirs {
            for (space, _) in self.model.spaces().collect::<Vec<_>>() {
                let Some(keyspace) = self.keyspace(space)? else { return said("failed") };
                revert = revert.rule(&keyspace, MergeRule::Theirs);
            }
        }
        let outcome = revert.run();
        let places = match self.model.places_changed(glsn) {
            _ if glsn > 0 && !is_in_log => self.model.places_of(0..NAMES),
            Some(places) => places,
            None => {
                let is_refused = matches!(
                    outcome,
                    Err(Error::InvalidInput(
                        InvalidInput::NotACommit { .. } | InvalidInput::NothingToRevert { .. }
                    ))
                );
                if is_refused {
                    return said("refused");
                }
                let Some(outcome) = self.expect(&what, outcome)? else { return said("failed") };
                return Err(Failure::new(format!("{what}, which changed no keys: {outcome:?}")));
            }
        };
        let before = glsn.saturating_sub(1);
        let names = names_of(&places, is_in_log);
        let may_refuse = self.model.may_refuse(names, before);
        let merge = self.model.merge(places, (glsn, before), takes_theirs);
        match outcome {
            Ok(MergeOutcome::Conflicts(conflicts)) => {
                self.conflicts(&what, conflicts, &merge, may_refuse)
            }
            Ok(MergeOutcome::Merged(glsn)) => self.merged(&what, Ok(Some(glsn)), merge),
            Ok(_) => self.merged(&what, Ok(None), merge),
            Err(Error::Trimmed { .. }) if may_refuse => said("refused"),
            Err(error) => self.merged(&what, Err(error), merge),
        }
    }

    /// Resets a keyspace, or all, to the moment this many GLSNs before the newest.
    pub(super) fn reset(&mut self, space: Option<u8>, back: u64) -> Outcome<String> {
        let newest = self.db().newest().0;
        if newest != self.model.newest() {
            return said("not all commits are visible");
        }
        let to = newest.saturating_sub(back);
        let mut reset = self.db().reset_to(Glsn(to)).metadata("");
        let mut names: BTreeSet<u8> = (0..NAMES).collect();
        if let Some(space) = space {
            let space = self.model.current_space(space);
            if !self.model.has_space(space) {
                return said("no keyspace");
            }
            let Some(keyspace) = self.keyspace(space)? else { return said("failed") };
            reset = reset.keyspace(&keyspace);
            names = BTreeSet::from([space % NAMES]);
        }
        let done = reset.run();
        if matches!(done, Err(Error::Trimmed { .. })) && self.model.may_refuse(names.clone(), to) {
            return said("refused");
        }
        let merge = self.model.merge(self.model.places_of(names), (newest, to), false);
        self.merged(&format!("reset to GLSN {to}"), done, merge)
    }

    /// Compares the outcome of a merge without conflicts with the model.
    fn merged(
        &mut self,
        what: &str,
        done: plimsoll::Result<Option<Glsn>>,
        merge: Merge,
    ) -> Outcome<String> {
        if let Err(Error::InvalidInput(InvalidInput::KeyspaceGone { .. })) = done {
            ensure(merge.is_gone, || format!("{what}: every keyspace exists"))?;
            return said("no keyspace");
        }
        if done.is_ok() {
            same(format!("{what}: conflicts"), &0, &merge.conflicts.len())?;
            ensure(!merge.is_gone, || format!("{what}: put keys into no keyspace"))?;
        }
        match done {
            Ok(None) => {
                same(format!("{what}: written keys"), &0, &merge.writes.len())?;
                said("nothing to change")
            }
            Ok(Some(_)) if merge.writes.is_empty() => {
                Err(Failure::new(format!("{what}: a commit without changes")))
            }
            Err(error) if merge.writes.is_empty() || !merge.conflicts.is_empty() => {
                self.expect::<()>(what, Err(error))?;
                said("failed")
            }
            done => {
                let (metadata, read_at) = (Content::default(), self.model.newest());
                let entry = Entry::Commit { writes: merge.writes, metadata, read_at };
                let glsn = done.map(|glsn| glsn.unwrap_or(Glsn::NONE).0);
                self.submitted("merge", vec![entry], glsn, true)
            }
        }
    }

    /// Compares the conflicts of a revert with those of the model. The store finds the conflicts
    /// while they are read, so a keyspace may refuse the moment as late as then.
    fn conflicts(
        &self,
        what: &str,
        conflicts: MergeSteps,
        merge: &Merge,
        may_refuse: bool,
    ) -> Outcome<String> {
        let mut found = BTreeSet::new();
        for conflict in conflicts {
            if may_refuse && matches!(conflict, Err(Error::Trimmed { .. })) {
                return said("refused");
            }
            let Some(conflict) = self.expect(what, conflict)? else { return said("failed") };
            let name = conflict.keyspace().to_owned();
            let is_it =
                |(place, _): &&(Place, _)| space_name(place.0) == name && place.1 == conflict.key();
            let Some((_, sides)) = merge.conflicts.iter().find(is_it) else {
                let key = show(conflict.key());
                return Err(Failure::new(format!("{what}: {key} in {name} is not a conflict")));
            };
            let all = [MergeSide::Base, MergeSide::Ours, MergeSide::Theirs];
            for (side, wanted) in all.into_iter().zip(sides) {
                let value = self.expect(what, conflict.value(side))?;
                let Some(value) = value else { return said("failed") };
                let is_right = match (&value, wanted) {
                    (Some(value), Some(wanted)) => wanted.is(value),
                    (value, wanted) => value.is_none() && wanted.is_none(),
                };
                ensure(is_right, || {
                    format!("{what}: the value of {side:?} of {}", show(conflict.key()))
                })?;
            }
            found.insert((name, conflict.key().to_vec()));
        }
        ensure(!found.is_empty(), || format!("{what}: conflicts without a conflict"))?;
        if !merge.is_gone {
            same(format!("{what}: conflicts"), &found.len(), &merge.conflicts.len())?;
        }
        said(format!("{} conflicts", found.len()))
    }
}

/// The names of the keyspaces that a revert reads.
fn names_of(places: &BTreeSet<Place>, is_in_log: bool) -> BTreeSet<u8> {
    if is_in_log { places.iter().map(|(name, _)| *name).collect() } else { (0..NAMES).collect() }
}
