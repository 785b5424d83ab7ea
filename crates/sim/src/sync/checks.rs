//! Compares the reads of a store with the model.

use plimsoll::{Glsn, Read};
use plimsoll_disk::random::Random;

use crate::failure::{Failure, Outcome, ensure, same};
use crate::judge::micros_of;
use crate::sync::state::{NAMES, State, live};
use crate::sync::{Driver, INCOMING, done};

impl Driver {
    /// Compares the branches, and the ids of some commits.
    pub(super) fn check(&mut self, number: usize, random: &mut Random) -> Outcome {
        self.check_lists(number)?;
        let branch = self.stores[number].some_branch(random);
        self.check_branch(number, &branch)?;
        self.check_commits(number, &branch, random)
    }

    /// Compares all branches.
    pub(super) fn check_all(&mut self, number: usize) -> Outcome {
        self.check_lists(number)?;
        let names = self.stores[number].names();
        names.iter().try_for_each(|name| self.check_branch(number, name))
    }

    fn check_lists(&self, number: usize) -> Outcome {
        let store = &self.stores[number];
        let all = done("branches", store.db().branches())?.into_iter().map(|info| info.name);
        let mut found: Vec<String> = all.filter(|name| !name.starts_with(INCOMING)).collect();
        found.push("main".to_owned());
        found.sort();
        same("branches", &found, &store.names())?;
        let tags = done("tags", store.db().tags())?;
        let tags: Vec<_> = tags.iter().map(|tag| (tag.name.to_string(), tag.glsn.0)).collect();
        let wanted: Vec<_> = store.tags.iter().map(|(name, (at, _))| (name.clone(), *at)).collect();
        same("tags", &tags, &wanted)
    }

    /// Compares the contents of a branch, and its last commit if that was asked for.
    pub(super) fn check_branch(&mut self, number: usize, name: &str) -> Outcome {
        let (now, tip) = (self.now(), self.stores[number].branches[name]);
        let wanted = live(&self.graph.state(tip), now);
        let branch = self.stores[number].branch(name)?;
        let what = format!("branch {name} of store {number}, at commit {tip:?}");
        let snapshot = branch.snapshot();
        let found = self.read(number, &snapshot, &what)?;
        same(&what, &found, &wanted)?;
        let hash = done("state_hash", snapshot.state_hash())?;
        let noted = self.graph.note_hash(wanted, hash);
        noted.map_err(|why| Failure::new(format!("{what}: {why}")))?;
        if !self.stores[number].pending.is_empty() {
            return Ok(());
        }
        same(&what, &done("tip", branch.tip())?, &self.graph.id(tip))
    }

    fn read(&self, number: usize, source: &impl Read, what: &str) -> Outcome<State> {
        let mut found = State::new();
        for (space, name) in NAMES.iter().enumerate() {
            let db = self.stores[number].db();
            let Some(keyspace) = done("keyspace", db.find_keyspace(name))? else { continue };
            let mut rows = done(&format!("range of {what}"), source.range(&keyspace, ..))?;
            while let Some(row) = rows.next() {
                let (key, value) = done("row", row)?;
                let expires = rows.expires().map(micros_of);
                found.insert((space, key[0]), (value.to_vec().into(), expires));
            }
        }
        Ok(found)
    }

    /// Compares what a store reports about some commits that a branch contains.
    pub(super) fn check_commits(
        &mut self,
        number: usize,
        branch: &str,
        random: &mut Random,
    ) -> Outcome {
        self.resolve(number)?;
        if self.stores[number].is_down() {
            return Ok(());
        }
        let tip = self.stores[number].branches.get(branch).copied().flatten();
        let contained: Vec<usize> = self.graph.contained(tip).iter().copied().collect();
        let db = self.stores[number].db().clone();
        for _ in 0..3 {
            let nth = (random.next_u64() as usize).checked_rem(contained.len());
            let Some(commit) = nth.map(|nth| contained[nth]) else { return Ok(()) };
            let Some(id) = self.graph.id(Some(commit)) else { continue };
            let glsn = done("find_commit", db.find_commit(&id))?;
            let glsn = glsn.ok_or_else(|| Failure::new(format!("store {number} lacks {id}")))?;
            if glsn < db.log().bounds().first {
                continue;
            }
            self.check_commit(number, commit, glsn)?;
        }
        self.check_newest(number, branch)
    }

    fn check_commit(&self, number: usize, commit: usize, glsn: Glsn) -> Outcome {
        let db = self.stores[number].db();
        let what = format!("commit {commit}, {glsn} of store {number}");
        same(&what, &done("commit_id", db.commit_id(glsn))?, &self.graph.id(Some(commit)))?;
        let read = done("read", db.log().commit(glsn))?;
        let read = read.ok_or_else(|| Failure::new(format!("{what} is none")))?;
        let metadata = done("metadata", read.metadata())?.to_vec();
        same(&what, &metadata, &self.graph.commits[commit].contents.metadata)
    }

    /// Compares the newest commit of a branch's log.
    fn check_newest(&self, number: usize, branch: &str) -> Outcome {
        let (db, tip) = (self.stores[number].db(), self.stores[number].branches.get(branch));
        let Some(tip) = tip.copied().filter(|_| self.keeps_all()) else { return Ok(()) };
        let handle = self.stores[number].branch(branch)?;
        let newest = done("log", handle.log())?.next();
        let newest = newest.map(|commit| done("log", commit)).transpose()?;
        let id = newest.map(|commit| done("commit_id", db.commit_id(commit.glsn()))).transpose()?;
        same(format!("newest commit of {branch}"), &id.flatten(), &self.graph.id(tip))
    }

    /// Fails if a temporary branch remains although a branch contains its commits.
    pub(super) fn check_leftovers(&self, number: usize, branch: &str) -> Outcome {
        let tip = self.stores[number].branches.get(branch).copied().flatten();
        for name in self.temporary(number)? {
            let left = self.tip(number, &name)?.flatten();
            ensure(left.is_some() && !self.graph.contains(tip, left), || {
                format!("{name} of store {number} ends with {left:?}, and {branch} has {tip:?}")
            })?;
        }
        Ok(())
    }
}
