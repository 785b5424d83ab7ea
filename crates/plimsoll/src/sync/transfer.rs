//! Fetch, push, pull and clone between two open stores.

use plimsoll_log::glsn::Glsn;

use crate::api::branches::Branch;
use crate::api::db::Db;
use crate::api::snapshot::Moment;
use crate::merge::driver::MergeOutcome;
use crate::merge::graph::State;
use crate::merge::steps::MergeSteps;
use crate::sync::commit_id::CommitId;
use crate::sync::ids::{Ids, Kind};
use crate::sync::receive::Receiver;
use crate::sync::send::{Missing, contains};
use crate::types::branches::{MAIN, TEMPORARY};
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;

/// The result of a transfer to a branch.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let [here, there] = [(); 2].map(|()| {
/// #     Db::in_memory(Options::new().memory_bytes(16 << 20)).expect("there is memory")
/// # });
/// here.put(&here.keyspace("notes")?, "a", "one")?;
/// let moved: Moved = here.push_to(&there, "main")?;
/// assert_eq!((moved.from, moved.commits), (None, 1));
/// assert_eq!(moved.to, there.main().tip()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Moved {
    /// The last commit of the branch before; `None` if it was empty or did not exist.
    pub from: Option<CommitId>,
    /// The last commit of the branch now; `None` if it is empty or does not exist.
    pub to: Option<CommitId>,
    /// The number of commits that were transferred. It can be 0 although the branch changed, if
    /// the store had the commits on other branches.
    pub commits: u64,
}

impl Moved {
    /// Whether the branch did not change.
    pub fn is_up_to_date(&self) -> bool {
        self.from == self.to
    }
}

/// The outcome of [`Db::pull`](crate::Db::pull).
#[derive(Debug)]
#[non_exhaustive]
pub enum Pulled {
    /// The branch contained all commits of the other branch, or the other branch was empty.
    UpToDate,
    /// The other branch contained all commits of the branch, which now ends with the same commit.
    FastForward(Moved),
    /// Each branch had commits that the other did not contain. This commit merges them.
    Merged(Glsn),
    /// Both branches changed the same keys in different ways, so nothing was written. The commits
    /// of the other store are on the branch `REMOTE/BRANCH`; merge it with a
    /// [`MergeRule`](crate::MergeRule).
    Conflicts(MergeSteps),
}

impl Db {
    /// The id of the commit with a GLSN. A commit has the same id in every store. `None` if the
    /// GLSN is [`Glsn::NONE`] or that of an entry of a stream, if the commit changed only the
    /// store's own records, or if its branch was deleted before its id was computed.
    ///
    /// Computes and stores the ids of all commits since the previous call that needed ids. This
    /// reads the values of these commits.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let notes = db.keyspace("notes")?;
    /// let (first, second) = (db.put(&notes, "a", "one")?, db.put(&notes, "a", "one")?);
    /// assert_ne!(db.commit_id(first)?, db.commit_id(second)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if ids must be written; [`Error::Trimmed`] if the log no longer has the
    /// entry; [`Error::Future`]; [`Error::Dropped`] if the log has lost a commit; the errors of
    /// reads and of commits.
    pub fn commit_id(&self, glsn: Glsn) -> Result<Option<CommitId>> {
        let ids = Ids::open(self)?;
        if glsn == Glsn::NONE {
            return Ok(None);
        }
        let Some(commit) = self.log().commit(glsn)? else { return Ok(None) };
        let Some(node) = crate::sync::contents::node_of(&commit)? else { return Ok(None) };
        let place = ids.last_on(node.chain, glsn)?;
        Ok(place.filter(|place| place.glsn == glsn).map(|place| place.id))
    }

    /// The GLSN of the commit with an id; `None` if the store does not have it. Of several commits
    /// with the id, returns one with the original changes rather than one that only makes a branch
    /// equal to it, and one on main rather than one on another branch.
    ///
    /// # Errors
    /// As for [`Db::commit_id`], without [`Error::Trimmed`] and [`Error::Future`].
    pub fn find_commit(&self, id: &CommitId) -> Result<Option<Glsn>> {
        let places = Ids::open(self)?.places(id)?;
        let whole = places.iter().find(|it| it.kind == Kind::Whole).or(places.first());
        Ok(whole.map(|place| place.glsn))
    }

    /// Transfers the commits of a branch that the other store lacks to its branch of the same name,
    /// which is created if it does not exist. The branch here must contain the last commit of the
    /// other branch, so that the push replaces no commits.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let [here, there] = [(); 2].map(|()| {
    /// #     Db::in_memory(Options::new().memory_bytes(16 << 20)).expect("there is memory")
    /// # });
    /// let notes = here.keyspace("notes")?;
    /// here.put(&notes, "a", "one")?;
    /// here.put(&notes, "b", "two")?;
    /// assert_eq!(here.push_to(&there, "main")?.commits, 2);
    /// assert_eq!(here.state_hash()?, there.state_hash()?);
    /// assert!(here.push_to(&there, "main")?.is_up_to_date());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Values, expiries, metadata and original times are preserved. Keyspaces that are missing in
    /// the other store are created with default settings. Each commit is checked against its id
    /// before it is committed there. If the transfer is interrupted, the next one continues it.
    ///
    /// # Errors
    /// [`InvalidInput::NotFastForward`] if the other branch has commits that this one does not
    /// contain; [`InvalidInput::BranchMoved`] if another commit changed the other branch during the
    /// transfer; [`InvalidInput::HistoryTrimmed`] if the log here no longer has a commit that the
    /// other store lacks; [`InvalidInput::StateNotRetained`] if a commit cannot be placed there;
    /// [`InvalidInput::NoBranch`]; the errors of [`Db::commit_id`] and of commits in either store.
    pub fn push_to(&self, other: &Self, branch: &str) -> Result<Moved> {
        self.push_if(other, branch, false)
    }

    /// As [`Db::push_to`], but also if the other branch has commits that this one does not contain.
    /// A new commit then makes it equal to this one. Its own commits stay in its history.
    ///
    /// # Errors
    /// As for [`Db::push_to`], without [`InvalidInput::NotFastForward`].
    pub fn push_forced_to(&self, other: &Self, branch: &str) -> Result<Moved> {
        self.push_if(other, branch, true)
    }

    pub(super) fn push_if(&self, other: &Self, branch: &str, is_forced: bool) -> Result<Moved> {
        let ours = self.branch(branch)?;
        let (from, to) = (Ids::open(self)?, Ids::open(other)?);
        let theirs = tip(&to, branch)?;
        let is_fast_forward = match theirs {
            None => true,
            Some(theirs) => contains(&from, &ours, &theirs)?,
        };
        if !is_fast_forward && !is_forced {
            return Err(InvalidInput::NotFastForward { branch: branch.to_owned() }.into());
        }
        transfer((&from, &ours), (&to, branch), theirs)
    }

    /// Transfers the commits of a branch of the other store to the branch `into` of this one, which
    /// is created if it does not exist. `into` then ends with the same commit. If it had commits of
    /// its own, a new commit makes it equal to the other branch, and they stay in its history.
    /// Usually, `into` is a branch that only this method changes.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let [here, there] = [(); 2].map(|()| {
    /// #     Db::in_memory(Options::new().memory_bytes(16 << 20)).expect("there is memory")
    /// # });
    /// there.put(&there.keyspace("notes")?, "a", "one")?;
    /// here.fetch_from(&there, "main", "theirs")?;
    /// let notes = here.keyspace("notes")?;
    /// assert_eq!(here.branch("theirs")?.get(&notes, "a")?.unwrap(), b"one");
    /// assert_eq!(here.get(&notes, "a")?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Db::push_forced_to`].
    pub fn fetch_from(&self, other: &Self, branch: &str, into: &str) -> Result<Moved> {
        let theirs = other.branch(branch)?;
        let (from, to) = (Ids::open(other)?, Ids::open(self)?);
        let ours = tip(&to, into)?;
        transfer((&from, &theirs), (&to, into), ours)
    }

    /// Updates `branch` with the commits of `theirs`, another branch of the same store, usually one
    /// that was fetched. If `theirs` contains all commits of `branch`, `branch` is fast-forwarded:
    /// the commits that it lacks are repeated on it, with the same ids. Otherwise they are merged,
    /// as by [`Db::merge`]. If `branch` does not exist, it is created at the end of `theirs`.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let notes = db.keyspace("notes")?;
    /// let draft = db.create_branch("draft", &db.main())?;
    /// draft.put(&notes, "a", "one")?;
    /// draft.put(&notes, "a", "two")?;
    /// let Pulled::FastForward(moved) = db.catch_up("main", "draft")? else { panic!() };
    /// assert_eq!((moved.commits, db.main().tip()?), (2, draft.tip()?));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`InvalidInput::NoBranch`] if `theirs` does not exist; [`InvalidInput::BranchMoved`] if
    /// another commit changes `branch` during the call; [`InvalidInput::HistoryTrimmed`] if the log
    /// no longer has a commit to repeat; the errors of [`Db::commit_id`] and
    /// [`BranchMerge::run`](crate::BranchMerge::run).
    pub fn catch_up(&self, branch: &str, theirs: &str) -> Result<Pulled> {
        let theirs = self.branch(theirs)?;
        let ours = match self.branch(branch) {
            Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => {
                let ids = Ids::open(self)?;
                self.create_branch(branch, &theirs)?;
                let to = ids.tip_of(&theirs)?.map(|place| place.id);
                return Ok(Pulled::FastForward(Moved { from: None, to, commits: 0 }));
            }
            found => found?,
        };
        let ids = Ids::open(self)?;
        let (from, last) = (ids.tip_of(&ours)?, ids.tip_of(&theirs)?);
        let Some(last) = last else { return Ok(Pulled::UpToDate) };
        let to = last.id;
        let from = from.map(|place| place.id);
        if from == Some(to) || contains(&ids, &ours, &to)? {
            return Ok(Pulled::UpToDate);
        }
        let is_behind = match &from {
            None => true,
            Some(from) => contains(&ids, &theirs, from)?,
        };
        if !is_behind {
            let at = self.store.newest()?;
            return Ok(match self.merge(&theirs).into(&ours).run()? {
                MergeOutcome::Merged(glsn) => Pulled::Merged(glsn),
                // The merge changes no keys. Commit it, so that `ours` contains their commits.
                MergeOutcome::UpToDate => {
                    let receiver = Receiver::new(&ids, branch, from, false)?;
                    Pulled::Merged(receiver.contain(&theirs, at)?)
                }
                MergeOutcome::Conflicts(steps) => Pulled::Conflicts(steps),
            });
        }
        let missing = Missing::new(&ids, last.state(), &states_of(&ids, from)?)?;
        let mut receiver = Receiver::new(&ids, branch, from, true)?;
        missing.send(&ids, &mut receiver)?;
        let commits = receiver.finish(&to)?;
        Ok(Pulled::FastForward(Moved { from, to: Some(to), commits }))
    }

    /// Replaces the branch `name`, which may not exist, by a new one that forks from `branch` right
    /// after the commit `tip`, so that the store does not keep the same commits on both. Does
    /// nothing if `name` has commits that `branch` does not contain, or ends with that commit of
    /// `branch` already. `branch` must have the commit on its own chain or on an ancestor's;
    /// otherwise nothing is done.
    ///
    /// # Errors
    /// The errors of [`Db::commit_id`], [`Db::delete_branch`] and [`Db::create_branch_at`].
    pub(super) fn follow(&self, name: &str, branch: &Branch, tip: &CommitId) -> Result<()> {
        let ids = Ids::open(self)?;
        let places = ids.readable(tip)?;
        // Only a commit that `branch` reads can be its fork.
        let place = places.iter().find(|place| branch.sees(place.chain, place.glsn));
        let Some(place) = place else { return Ok(()) };
        match self.branch(name) {
            Ok(old) => {
                let own = ids.tip_of(&old)?;
                let stays = match own {
                    None => false,
                    // `name` ends with the commit of `branch` itself: nothing is kept twice.
                    Some(own) if own.id == *tip => branch.sees(own.chain, own.glsn),
                    Some(own) => !contains(&ids, branch, &own.id)?,
                };
                if stays {
                    return Ok(());
                }
                self.delete_branch(name)?;
            }
            Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => {}
            Err(error) => return Err(error),
        }
        self.create_branch_at(name, branch, Moment::Glsn(place.glsn)).map(drop)
    }
}

impl Branch {
    /// The id of the last commit that the branch contains; `None` if there is none. See
    /// [`Db::commit_id`].
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let glsn = db.put(&db.keyspace("notes")?, "a", "one")?;
    /// let draft = db.create_branch("draft", &db.main())?;
    /// assert_eq!(draft.tip()?, db.commit_id(glsn)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Db::find_commit`].
    pub fn tip(&self) -> Result<Option<CommitId>> {
        let ids = Ids::open(&self.db)?;
        Ok(ids.tip_of(self)?.map(|place| place.id))
    }
}

/// The id of the last commit of a branch; `None` if the branch is empty or does not exist.
fn tip(ids: &Ids, name: &str) -> Result<Option<CommitId>> {
    match ids.db().branch(name) {
        Ok(branch) => Ok(ids.tip_of(&branch)?.map(|place| place.id)),
        Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The states that end with a commit; none if `id` is `None`.
fn states_of(ids: &Ids, id: Option<CommitId>) -> Result<Vec<State>> {
    let places = id.map(|id| ids.places(&id)).transpose()?;
    Ok(places.into_iter().flatten().map(|place| place.state()).collect())
}

/// Transfers the commits of `branch` of the source that the target lacks, and makes the branch
/// `name` of the target, which must end with the commit `before`, end with the same commit.
fn transfer(
    (from, branch): (&Ids, &Branch),
    (to, name): (&Ids, &str),
    before: Option<CommitId>,
) -> Result<Moved> {
    let wanted = from.tip_of(branch)?.filter(|last| before != Some(last.id));
    let Some(wanted) = wanted else {
        // An interrupted transfer may have left branches after it had moved this one.
        Receiver::of_any(to, name, false)?.delete_temporary()?;
        return Ok(Moved { from: before, to: before, commits: 0 });
    };
    let last = wanted.id;
    let there = common(from, to, name)?;
    let missing = Missing::new(from, wanted.state(), &there)?;
    let mut receiver = Receiver::new(to, name, before, false)?;
    #[cfg(feature = "testing")]
    missing.send(from, &mut crate::sync::forging::Forger(&mut receiver))?;
    #[cfg(not(feature = "testing"))]
    missing.send(from, &mut receiver)?;
    let commits = receiver.finish(&last)?;
    Ok(Moved { from: before, to: Some(last), commits })
}

/// States of the source of which the target has all commits. Looks up the last commit of each
/// branch of the target. Of main, the receiving branch and temporary branches, also looks up older
/// commits until the source has one.
fn common(from: &Ids, to: &Ids, name: &str) -> Result<Vec<State>> {
    let names = to.db().branches()?.into_iter().map(|info| info.name);
    let mut states = Vec::new();
    for there in names.chain([MAIN.to_owned()]) {
        let branch = match to.db().branch(&there) {
            // It was deleted since it was listed.
            Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => continue,
            branch => branch?,
        };
        let is_sampled = there == name || there == MAIN || there.starts_with(TEMPORARY);
        let ids = match is_sampled {
            true => samples(to, &branch)?,
            false => to.tip_of(&branch)?.map(|place| place.id).into_iter().collect(),
        };
        for id in ids {
            let places = from.places(&id)?;
            states.extend(places.iter().map(|place| place.state()));
            // This state contains the older samples.
            if !places.is_empty() {
                break;
            }
        }
    }
    Ok(states)
}

/// The ids of some commits of a branch, newest first, each once: the branch's last commit, and the
/// last commit at 1, 2, 4, … GLSNs before it. There are at most 65.
fn samples(ids: &Ids, branch: &Branch) -> Result<Vec<CommitId>> {
    let Some(tip) = ids.tip_of(branch)? else { return Ok(Vec::new()) };
    let (mut samples, mut distance) = (vec![tip.id], 1);
    let mut last = tip;
    while let Some(at) = tip.glsn.0.checked_sub(distance).filter(|at| *at > 0) {
        distance *= 2;
        if at >= last.glsn.0 {
            continue;
        }
        let Some(place) = ids.tip((branch.id(), Glsn(at)))? else { break };
        samples.push(place.id);
        last = place;
    }
    Ok(samples)
}
