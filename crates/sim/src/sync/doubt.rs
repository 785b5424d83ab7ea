//! The outcome of a call that did not return because the power was cut.

use plimsoll::{Error, Glsn};

use crate::failure::{Failure, Outcome, ensure};
use crate::sync::contents::Contents;
use crate::sync::{Driver, INCOMING, Store, done};

/// The effect of a call.
#[derive(Clone, Debug)]
pub(super) enum UnknownEffect {
    /// A commit on a branch.
    Commit {
        branch: String,
        parents: Vec<usize>,
        metadata: Vec<u8>,
    },
    Create {
        name: String,
        tip: Option<usize>,
    },
    Rename {
        from: String,
        to: String,
    },
    Delete {
        name: String,
    },
    /// A tag is created or deleted.
    Tag {
        name: String,
    },
    /// The branch receives commits.
    Transfer(Transfer),
}

/// A branch that receives commits.
#[derive(Clone, Debug)]
pub(super) struct Transfer {
    pub(super) branch: String,
    /// Its last commit; outer `None`: it does not exist.
    pub(super) before: Option<Option<usize>>,
    /// The commit that it ends with afterwards.
    pub(super) wanted: Option<usize>,
    /// The parents of a merge that is committed instead.
    pub(super) merge: Option<Vec<usize>>,
}

impl Store {
    pub(super) fn renamed(&mut self, from: &str, to: &str) {
        let tip = self.branches.remove(from).unwrap_or_default();
        self.branches.insert(to.to_owned(), tip);
    }
}

impl Driver {
    /// Determines the outcome of the last call.
    pub(super) fn settle(&mut self, number: usize) -> Outcome {
        let Some(doubt) = self.stores[number].doubt.take() else { return Ok(()) };
        let db = self.stores[number].db().clone();
        let has = |name: &str| {
            let all = done("branches", db.branches())?;
            Ok::<_, Failure>(all.iter().any(|info| info.name == name))
        };
        match doubt {
            UnknownEffect::Commit { branch, parents, metadata } => {
                let newest = db.newest();
                for glsn in db.log().bounds().first.0..=newest.0 {
                    let Some(commit) = done("read", db.log().commit(Glsn(glsn)))? else { continue };
                    if done("metadata", commit.metadata())? == metadata {
                        self.note(number, (&branch, Glsn(glsn)), parents)?;
                        break;
                    }
                }
            }
            UnknownEffect::Create { name, tip } => {
                if has(&name)? {
                    self.stores[number].branches.insert(name, tip);
                }
            }
            UnknownEffect::Rename { from, to } => {
                if has(&to)? {
                    self.stores[number].renamed(&from, &to);
                }
            }
            UnknownEffect::Delete { name } => {
                if !has(&name)? {
                    self.stores[number].branches.remove(&name);
                }
            }
            UnknownEffect::Tag { name } => {
                let tags = done("tags", db.tags())?;
                let found = tags.iter().find(|tag| *tag.name == *name);
                let branches = self.stores[number].branches.clone();
                let tags = &mut self.stores[number].tags;
                match found {
                    None => drop(tags.remove(&name)),
                    Some(tag) => drop(tags.entry(name).or_insert((tag.glsn.0, branches))),
                }
            }
            UnknownEffect::Transfer(transfer) => self.settle_transfer(number, &transfer)?,
        }
        Ok(())
    }

    /// Finds the last commit of the branch of a transfer that did not end.
    pub(super) fn settle_transfer(&mut self, number: usize, transfer: &Transfer) -> Outcome {
        // Possibly the ids of the commits on their way were not compared yet.
        for other in 0..self.stores.len() {
            if !self.stores[other].is_down() && self.stores[other].db.is_some() {
                self.resolve(other)?;
            }
        }
        let candidates: Vec<Vec<usize>> = transfer.merge.iter().cloned().collect();
        self.scan(number, &candidates)?;
        let tip = self.tip(number, &transfer.branch)?;
        let graph = &self.graph;
        let before = transfer.before.flatten();
        let is_right = match (transfer.before, tip) {
            (None, None) => true,
            (None, Some(tip)) => tip == transfer.wanted,
            (Some(_), None) => false,
            (Some(before), Some(tip)) if before == tip || tip == transfer.wanted => true,
            // The branch has received the first commits of the transfer.
            (Some(_), Some(tip)) if transfer.merge.is_none() => {
                graph.contains(tip, before) && graph.contains(transfer.wanted, tip)
            }
            (Some(_), Some(tip)) => {
                tip.map(|tip| &graph.commits[tip].parents) == transfer.merge.as_ref()
            }
        };
        ensure(is_right, || format!("{transfer:?} has left the branch at {tip:?}"))?;
        // A temporary branch may have them.
        let had = graph.contained(transfer.wanted);
        self.stores[number].had.extend(had.iter());
        if let Some(tip) = tip {
            self.stores[number].branches.insert(transfer.branch.clone(), tip);
        }
        Ok(())
    }

    /// The last commit of a branch, as reported by the store; `None`: it does not exist.
    pub(super) fn tip(&self, number: usize, branch: &str) -> Outcome<Option<Option<usize>>> {
        let branch = match self.stores[number].db().branch(branch) {
            Err(error) if Self::is_no_branch(&error) => return Ok(None),
            found => done("branch", found)?,
        };
        let Some(id) = done("tip", branch.tip())? else { return Ok(Some(None)) };
        let unknown = || Failure::new(format!("{} ends with an unknown {id}", branch.name()));
        Ok(Some(Some(self.graph.find(&id).ok_or_else(unknown)?)))
    }

    /// Adds the commits since the last known one to the graph. A commit that the graph does not
    /// have yet must have the parents of one of the candidates. Returns the new commits and their
    /// GLSNs.
    pub(super) fn scan(
        &mut self,
        number: usize,
        candidates: &[Vec<usize>],
    ) -> Outcome<Vec<(Glsn, usize)>> {
        let db = self.stores[number].db().clone();
        let (mut found, newest) = (Vec::new(), db.newest().0);
        let first = (self.stores[number].seen + 1).max(db.log().bounds().first.0);
        for glsn in first..=newest {
            let glsn = Glsn(glsn);
            let id = match db.commit_id(glsn) {
                Err(Error::Trimmed { .. }) if !self.keeps_all() => continue,
                id => done("commit_id", id)?,
            };
            self.stores[number].has_ids = true;
            let Some(id) = id.filter(|id| self.graph.find(id).is_none()) else { continue };
            let commit = done("read", db.log().commit(glsn))?;
            let commit = commit.ok_or_else(|| Failure::new(format!("{glsn} is not a commit")))?;
            let (contents, effects) = done("changes", Contents::read(&commit))?;
            let fits = |parents: &&Vec<usize>| {
                self.graph.id_with(&contents, parents) == Some(*id.as_bytes())
            };
            let parents = candidates.iter().find(fits).cloned().ok_or_else(|| {
                let of = format!("commit {id} at {glsn} of store {number}");
                Failure::new(format!("{of} has none of the parents {candidates:?}"))
            })?;
            let added = self.graph.add(parents, contents, &effects);
            self.graph.identify(added, id);
            self.stores[number].had.insert(added);
            found.push((glsn, added));
        }
        self.stores[number].seen = newest;
        Ok(found)
    }

    /// The temporary branches of a store.
    pub(super) fn temporary(&self, number: usize) -> Outcome<Vec<String>> {
        let all = done("branches", self.stores[number].db().branches())?;
        let names = all.into_iter().map(|info| info.name);
        Ok(names.filter(|name| name.starts_with(INCOMING)).collect())
    }
}
