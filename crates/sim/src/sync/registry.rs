//! Branches and tags are created, renamed and deleted, and stores replaced by clones.

use plimsoll::{Glsn, Moment};
use plimsoll_disk::random::Random;

use crate::failure::{Outcome, same};
use crate::sync::doubt::UnknownEffect;
use crate::sync::state::MAIN;
use crate::sync::{Driver, Store};

/// The most branches that a store has.
const BRANCHES_MAX: usize = 6;

/// Names are few, so that they are used again.
fn some_name(random: &mut Random) -> String {
    format!("b{}", random.below(5))
}

impl Store {
    /// A branch that is not main.
    fn side_branch(&self, random: &mut Random) -> Option<String> {
        let names: Vec<&String> = self.branches.keys().filter(|name| *name != MAIN).collect();
        let nth = (random.next_u64() as usize).checked_rem(names.len())?;
        Some(names[nth].clone())
    }
}

impl Driver {
    /// Creates a branch at the newest state of another one, or at a tag.
    pub(super) fn create(&mut self, number: usize, random: &mut Random) -> Outcome {
        let store = &self.stores[number];
        let (name, parent) = (some_name(random), store.some_branch(random));
        if store.branches.contains_key(&name) || store.branches.len() > BRANCHES_MAX {
            return Ok(());
        }
        let tags: Vec<_> = store.tags.values().collect();
        let tag = (random.next_u64() as usize).checked_rem(tags.len()).map(|nth| tags[nth]);
        // Only a branch that existed at the moment can be forked there.
        let tag = tag.filter(|(_, branches)| random.below(3) == 0 && branches.contains_key(MAIN));
        let (parent, tip, moment) = match tag {
            Some((at, branches)) => (MAIN.to_owned(), branches[MAIN], Moment::Glsn(Glsn(*at))),
            None => (parent.clone(), store.branches[&parent], Moment::Newest),
        };
        let (db, handle) = (store.db().clone(), store.branch(&parent)?);
        self.stores[number].doubt = Some(UnknownEffect::Create { name: name.clone(), tip });
        let created = db.create_branch_at(&name, &handle, moment);
        if self.unless_down(number, "create", created)?.is_some() {
            self.stores[number].doubt = None;
            self.stores[number].branches.insert(name, tip);
        }
        Ok(())
    }

    pub(super) fn rename(&mut self, number: usize, random: &mut Random) -> Outcome {
        let (store, to) = (&self.stores[number], some_name(random));
        let Some(from) = store.side_branch(random) else { return Ok(()) };
        if store.branches.contains_key(&to) {
            return Ok(());
        }
        let db = store.db().clone();
        self.stores[number].doubt =
            Some(UnknownEffect::Rename { from: from.clone(), to: to.clone() });
        let renamed = db.rename_branch(&from, &to);
        if self.unless_down(number, "rename", renamed)?.is_some() {
            self.stores[number].doubt = None;
            self.stores[number].renamed(&from, &to);
        }
        Ok(())
    }

    pub(super) fn delete(&mut self, number: usize, random: &mut Random) -> Outcome {
        let store = &self.stores[number];
        let Some(name) = store.side_branch(random) else { return Ok(()) };
        let db = store.db().clone();
        self.stores[number].has_deleted_early |= !self.stores[number].has_ids;
        self.stores[number].doubt = Some(UnknownEffect::Delete { name: name.clone() });
        if self.unless_down(number, "delete", db.delete_branch(&name))?.is_some() {
            self.stores[number].doubt = None;
            self.stores[number].branches.remove(&name);
        }
        Ok(())
    }

    /// Creates or deletes a tag.
    pub(super) fn tag(&mut self, number: usize, random: &mut Random) -> Outcome {
        let name = format!("t{}", random.below(3));
        let db = self.stores[number].db().clone();
        self.stores[number].doubt = Some(UnknownEffect::Tag { name: name.clone() });
        if self.stores[number].tags.contains_key(&name) {
            if self.unless_down(number, "delete_tag", db.delete_tag(&name))?.is_some() {
                self.stores[number].doubt = None;
                self.stores[number].tags.remove(&name);
            }
            return Ok(());
        }
        let newest = db.newest().0;
        let Some(tag) = self.unless_down(number, "tag", db.tag(&name, Moment::Newest))? else {
            return Ok(());
        };
        self.stores[number].doubt = None;
        same("moment of a tag", &tag.glsn.0, &newest)?;
        let branches = self.stores[number].branches.clone();
        self.stores[number].tags.insert(name, (newest, branches));
        Ok(())
    }

    /// Replaces a store by a clone of another one.
    pub(super) fn replace(&mut self, number: usize, random: &mut Random) -> Outcome {
        let from =
            (number + 1 + random.below(self.stores.len() as u64 - 1) as usize) % self.stores.len();
        self.stores[number] = self.new_store(random)?;
        for name in self.stores[from].names() {
            self.fetch(number, from, (&name, &name), random)?;
            self.recover(number, random)?;
            self.recover(from, random)?;
        }
        Ok(())
    }
}
