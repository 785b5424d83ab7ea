//! Branches and tags are created, renamed and deleted.

use plimsoll::{Error, Glsn, InvalidInput, Moment, Retention};
use plimsoll_disk::random::Random;

use crate::branches::model::{Content, Effect, KEYS, LATEST, MAIN};
use crate::branches::{Driver, Step, done, refused};
use crate::failure::{Failure, same};

/// The most branches that exist at a time.
const BRANCHES_MAX: usize = 8;

/// Names are few, so that they are used again.
fn some_name(random: &mut Random) -> String {
    format!("b{}", random.below(10))
}

impl Driver {
    pub(super) fn create(&mut self, number: usize, random: &mut Random) -> Step {
        let db = self.member(number).db.clone();
        let name = some_name(random);
        let parent = self.some_branch(random);
        let handle = self.branch(number, parent)?;
        if self.model.find(&name).is_some() {
            return refused("an existing name", db.create_branch(&name, &handle), |error| {
                matches!(error, Error::InvalidInput(InvalidInput::BranchExists { .. }))
            });
        }
        if self.model.alive().len() > BRANCHES_MAX {
            return Ok(());
        }
        let fork = self.moment(number, parent, random);
        let moment =
            if fork == self.model.newest { Moment::Newest } else { Moment::Glsn(Glsn(fork)) };
        let effect = Effect::Create { name: name.clone(), parent, fork };
        let branch = self
            .commit(number, "create", effect, |db| db.create_branch_at(&name, &handle, moment))?;
        if random.below(4) == 0 {
            let created = self.model.lines.len() - 1;
            self.member_mut(number).handles.insert(created, branch);
        }
        Ok(())
    }

    /// A moment that must be readable on a branch.
    fn moment(&self, number: usize, branch: usize, random: &mut Random) -> u64 {
        let newest = self.model.newest;
        let pick = random.next_u64();
        let nth =
            |moments: Vec<u64>| (pick as usize).checked_rem(moments.len()).map(|nth| moments[nth]);
        let moment = match random.below(8) {
            _ if !self.has_late_forks => None,
            0 => nth(self.model.tags().into_values().collect()),
            1 => {
                let held = self.member(number).snapshots.iter();
                nth(held.map(|(snapshot, _)| snapshot.at().0).collect())
            }
            // The fork of another branch from main, or from a branch other than main.
            2 => {
                let alive = self.model.alive().into_iter().filter(|other| *other != MAIN);
                let forks = alive.map(|other| (self.model.lines[other].parent, other));
                let forks = forks.map(|(parent, other)| (parent, self.model.lines[other].fork));
                let is_right = |(parent, fork): &(usize, u64)| {
                    (*parent == MAIN) == (self.model.seen_by(branch, *fork) == MAIN)
                };
                nth(forks.filter(is_right).map(|(_, fork)| fork).collect())
            }
            // The versions on branches are kept as long as those of any keyspace.
            3 => {
                let kept = match self.retention {
                    Retention::Forever => newest,
                    Retention::Glsns(glsns) => glsns.min(newest),
                    _ => 0,
                };
                let at = newest - pick % (kept + 1);
                Some(at).filter(|at| self.model.seen_by(branch, *at) != MAIN)
            }
            _ => None,
        };
        moment.unwrap_or(newest)
    }

    pub(super) fn rename(&mut self, number: usize, random: &mut Random) -> Step {
        let db = self.member(number).db.clone();
        let (branch, to) = (self.some_branch(random), some_name(random));
        let from = self.model.lines[branch].name().expect("it exists").to_owned();
        if branch == MAIN {
            return refused("a rename of main", db.rename_branch(&from, &to), |error| {
                matches!(error, Error::InvalidInput(InvalidInput::MainBranch))
            });
        }
        if self.model.find(&to).is_some() {
            return refused("a rename to a used name", db.rename_branch(&from, &to), |error| {
                matches!(error, Error::InvalidInput(InvalidInput::BranchExists { .. }))
            });
        }
        let effect = Effect::Rename { branch, name: to.clone() };
        self.commit(number, "rename", effect, |db| db.rename_branch(&from, &to))
    }

    pub(super) fn delete(&mut self, number: usize, random: &mut Random) -> Step {
        let db = self.member(number).db.clone();
        let branch = self.some_branch(random);
        let name = self.model.lines[branch].name().expect("it exists").to_owned();
        if branch == MAIN {
            refused("a deletion of main", db.delete_branch(&name), |error| {
                matches!(error, Error::InvalidInput(InvalidInput::MainBranch))
            })?;
            let unused =
                (0..).map(|n| format!("b{n}")).find(|name| self.model.find(name).is_none());
            let name = unused.expect("there are few branches");
            return refused("a deletion of no branch", db.delete_branch(&name), |error| {
                matches!(error, Error::InvalidInput(InvalidInput::NoBranch { .. }))
            });
        }
        self.commit(number, "delete", Effect::Delete { branch }, |db| db.delete_branch(&name))
    }

    /// A branch is deleted, the runs are merged, and the power is cut, possibly before the deletion
    /// is durable. In a store that is not shared, which may have unsynced commits.
    pub(super) fn delete_then_cut(&mut self, number: usize, random: &mut Random) -> Step {
        if self.members.len() > 1 || self.model.alive().len() > BRANCHES_MAX {
            return Ok(());
        }
        let (db, space) =
            (self.member(number).db.clone(), self.member(number).spaces[LATEST].clone());
        let names = (0..).map(|n| format!("b{n}"));
        let name = { names }.find(|name| self.model.find(name).is_none()).expect("there are few");
        let key = random.below(KEYS) as u8;
        for round in 0..3 + random.below(8) {
            let value = vec![round as u8; 40];
            let content = Content::new(value.clone(), None);
            self.write(number, MAIN, (LATEST, key), Some(content), |db| {
                db.put(&space, [key], &value)
            })?;
            done("flush", db.flush())?;
            if round == 0 {
                let fork = self.model.newest;
                let effect = Effect::Create { name: name.clone(), parent: MAIN, fork };
                let main = self.branch(number, MAIN)?;
                self.commit(number, "create", effect, |db| db.create_branch(&name, &main))?;
            }
        }
        done("sync", db.sync())?;
        self.model.acked = self.model.newest;
        let branch = self.model.find(&name).expect("it was created");
        self.commit(number, "delete", Effect::Delete { branch }, |db| db.delete_branch(&name))?;
        self.work(number, random)?;
        if random.below(3) > 0 {
            self.world.disk.cut_power();
        }
        Ok(())
    }

    /// Creates or deletes a tag.
    pub(super) fn tag(&mut self, number: usize, random: &mut Random) -> Step {
        let name = format!("t{}", random.below(4));
        if self.model.tags().contains_key(&name) {
            let effect = Effect::Untag { name: name.clone() };
            return self.commit(number, "delete_tag", effect, |db| db.delete_tag(&name));
        }
        let at = self.tagged(number, random);
        let moment = if at == self.model.newest { Moment::Newest } else { Moment::Glsn(Glsn(at)) };
        let effect = Effect::Tag { name: name.clone(), at };
        let tag = self.commit(number, "tag", effect, |db| db.tag(&name, moment))?;
        Ok(same("moment of a tag", &tag.glsn.0, &at)?)
    }

    /// A moment that must be readable in every keyspace.
    pub(super) fn tagged(&self, number: usize, random: &mut Random) -> u64 {
        let tags = self.model.tags().into_values();
        let held = self.member(number).snapshots.iter().map(|(snapshot, _)| snapshot.at().0);
        let mut moments: Vec<u64> = tags.chain(held).collect();
        moments.push(self.model.newest);
        moments[random.below(moments.len() as u64) as usize]
    }

    /// Checks the lists of branches and tags.
    pub(super) fn check_lists(&self, number: usize) -> Step {
        let db = &self.member(number).db;
        let mut found = Vec::new();
        for info in done("branches", db.branches())? {
            found.push((info.name, info.parent, info.fork.0));
        }
        let alive = self.model.alive().into_iter().filter(|branch| *branch != MAIN);
        let mut wanted: Vec<_> = alive
            .map(|branch| {
                let line = &self.model.lines[branch];
                let parent = self.model.lines[line.parent].name().map(str::to_owned);
                (line.name().unwrap_or_default().to_owned(), parent, line.fork)
            })
            .collect();
        wanted.sort();
        same("branches", &found, &wanted)?;
        let tags = done("tags", db.tags())?;
        let found = tags.into_iter().map(|tag| (tag.name.to_string(), tag.glsn.0)).collect();
        same("tags", &found, &self.model.tags())?;
        Ok(())
    }

    /// Checks that a handle of a deleted branch is refused.
    pub(super) fn check_gone(&mut self, number: usize) -> Step {
        let gone = |branch: &usize| self.model.lines[*branch].name().is_none();
        let gone: Vec<usize> = self.member(number).handles.keys().copied().filter(gone).collect();
        for branch in gone {
            let handle = self.member_mut(number).handles.remove(&branch);
            let handle = handle.ok_or_else(|| Failure::new("the handle exists"))?;
            let space = self.member(number).spaces[0].clone();
            let is_gone =
                |error: &Error| matches!(error, Error::InvalidInput(InvalidInput::NoBranch { .. }));
            refused("a read of a deleted branch", handle.get(&space, [0]), is_gone)?;
            refused("a write to a deleted branch", handle.put(&space, [0], [0]), is_gone)?;
            refused("an iterator of a deleted branch", handle.iter(&space), is_gone)?;
        }
        Ok(())
    }
}
