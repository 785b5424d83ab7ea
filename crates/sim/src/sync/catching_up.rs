//! A branch of a store catches up with another one.

use plimsoll::{Error, Pulled};
use plimsoll_disk::random::Random;

use crate::failure::{Failure, Outcome, ensure, same};
use crate::sync::Driver;
use crate::sync::doubt::{Transfer, UnknownEffect};

impl Driver {
    pub(super) fn catch_up(&mut self, number: usize, random: &mut Random) -> Outcome {
        let store = &self.stores[number];
        let theirs_name = store.some_branch(random);
        let name = match random.below(6) {
            0 => format!("b{}", random.below(5)),
            _ => store.some_branch(random),
        };
        let (ours, theirs) = (store.branches.get(&name).copied(), store.branches[&theirs_name]);
        let is_behind = self.graph.contains(theirs, ours.flatten());
        let has_all = ours.is_some_and(|ours| self.graph.contains(ours, theirs));
        let parents: Vec<usize> = ours.flatten().into_iter().chain(theirs).collect();
        let transfer = Transfer {
            branch: name.clone(),
            before: ours,
            wanted: if has_all { ours.flatten() } else { theirs },
            merge: (!is_behind && !has_all).then(|| parents.clone()),
        };
        if random.below(3) == 0 {
            store.world.disk.cut_power_at_change(1 + random.below(30));
        }
        let db = store.db().clone();
        self.stores[number].doubt = Some(UnknownEffect::Transfer(transfer));
        let pulled = match db.catch_up(&name, &theirs_name) {
            // The versions of the common ancestor may have been dropped.
            Err(Error::Trimmed { .. }) if !self.keeps_all() && !is_behind => {
                self.stores[number].doubt = None;
                return Ok(());
            }
            pulled => self.unless_down(number, "catch_up", pulled)?,
        };
        let Some(pulled) = pulled else { return Ok(()) };
        self.stores[number].doubt = None;
        let what = format!("{name} at {ours:?} with {theirs_name} at {theirs:?}: {pulled:?}");
        match pulled {
            Pulled::UpToDate => ensure(has_all || theirs.is_none(), || what)?,
            Pulled::FastForward(moved) => {
                self.resolve(number)?;
                ensure(!has_all && is_behind, || what.clone())?;
                let ids = (self.graph.id(ours.flatten()), self.graph.id(theirs));
                if !self.stores[number].is_down() {
                    same(&what, &(moved.from, moved.to), &ids)?;
                }
                let ours = self.graph.contained(ours.flatten());
                let new = self.graph.contained(theirs).len().saturating_sub(ours.len()) as u64;
                ensure(moved.commits <= new, || format!("{what}: has {new} new commits"))?;
                self.stores[number].branches.insert(name.clone(), theirs);
            }
            Pulled::Merged(glsn) => {
                ensure(!has_all && !is_behind, || what)?;
                self.note(number, (&name, glsn), parents)?;
            }
            Pulled::Conflicts(_) => ensure(!has_all && !is_behind, || what)?,
            _ => return Err(Failure::new(what)),
        }
        if self.stores[number].is_down() || !self.stores[number].branches.contains_key(&name) {
            return Ok(());
        }
        self.check_branch(number, &name)
    }
}
