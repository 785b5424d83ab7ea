//! Fetch and push between two stores, and the update of a branch with fetched commits.

use std::time::Duration;

use plimsoll_log::glsn::Glsn;

use crate::api::branches::Branch;
use crate::api::db::Db;
use crate::api::snapshot::{Moment, Snapshot};
use crate::engine::branch_commits;
use crate::engine::transfers::Transfer;
use crate::merge::driver::MergeOutcome;
use crate::merge::graph::State;
use crate::merge::steps::MergeSteps;
use crate::sync::commit_id::CommitId;
use crate::sync::ids::Ids;
use crate::sync::local::Local;
use crate::sync::partial::transfer_line;
use crate::sync::peer::{Move, Peer, Wanted};
use crate::sync::receive::{Boundary, Receiver};
use crate::sync::replace::replace;
use crate::sync::send::{Missing, contains};
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;

/// The most attempts of a transfer. Each one fails only because another transfer has made progress.
const ATTEMPTS: u32 = 1000;

/// The first pause between two attempts. Each later one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

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

    /// The GLSN of the commit with an id; `None` if the store does not have it. If several commits
    /// have the id, a commit that made the changes itself is preferred to one that only made a
    /// branch equal to it; among several such commits, one on main is preferred.
    ///
    /// # Errors
    /// As for [`Db::commit_id`], without [`Error::Trimmed`] and [`Error::Future`].
    pub fn find_commit(&self, id: &CommitId) -> Result<Option<Glsn>> {
        let places = Ids::open(self)?.places(id)?;
        let whole = places.iter().find(|it| it.kind.has_changes()).or(places.first());
        Ok(whole.map(|place| place.glsn))
    }

    /// Transfers the commits of a branch that the other store lacks. They go to the branch of the
    /// same name there, which is created if it does not exist. The branch here must contain the
    /// last commit of the other branch, so that the push replaces no commits.
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
    /// contain; [`InvalidInput::BranchMoved`] if other commits change the other branch again and
    /// again during the transfer; [`InvalidInput::HistoryTrimmed`] if the log here no longer has a
    /// commit that the other store lacks; [`InvalidInput::BelowBoundary`] if one of the stores is a
    /// partial clone, and lacks a commit that is needed; [`InvalidInput::StateNotRetained`] if the
    /// other store no longer retains the state of a commit's parent; [`InvalidInput::NoBranch`];
    /// the errors of [`Db::commit_id`] and of commits in either store.
    pub fn push_to(&self, other: &Self, branch: &str) -> Result<Moved> {
        self.push_if(&mut Local::new(other)?, branch, false)
    }

    /// As [`Db::push_to`], but also if the other branch has commits that this one does not contain.
    /// A new commit then makes the other branch equal to this one. The other branch's own commits
    /// stay in its history.
    ///
    /// # Errors
    /// As for [`Db::push_to`], without [`InvalidInput::NotFastForward`];
    /// [`InvalidInput::BranchMoved`] also if another commit that this branch does not contain
    /// changed the other branch during the transfer.
    pub fn push_forced_to(&self, other: &Self, branch: &str) -> Result<Moved> {
        self.push_if(&mut Local::new(other)?, branch, true)
    }

    /// Pushes a branch as [`Db::push_to`] does, or [`Db::push_forced_to`].
    pub(super) fn push_if(
        &self,
        other: &mut dyn Peer,
        branch: &str,
        is_forced: bool,
    ) -> Result<Moved> {
        let (mut own, mut attempts) = (Local::new(self)?, Attempts::new(self));
        loop {
            let ours = self.branch(branch)?;
            let theirs = tip(other, branch)?;
            // A forced push replaces only the commits that it has seen.
            let is_any = is_forced && attempts.is_first();
            let is_fast_forward = match theirs.filter(|_| !is_any) {
                None => true,
                Some(theirs) => contains(&Ids::open(self)?, &ours, &theirs)?,
            };
            if !is_fast_forward {
                let branch = branch.to_owned();
                return Err(match is_forced {
                    true => InvalidInput::BranchMoved { name: branch },
                    false => InvalidInput::NotFastForward { branch },
                }
                .into());
            }
            match transfer((&mut own, branch), (other, branch), theirs, false) {
                Err(error) if attempts.again(&error, theirs) => {}
                done => return done,
            }
        }
    }

    /// Transfers the commits of a branch of the other store to the branch `into` of this one, which
    /// is created if it does not exist. `into` then ends with the same commit. If `into` had
    /// commits of its own, they stay in its history, and a new commit makes `into` equal to the
    /// other branch. Usually, `into` is a branch that only this method changes.
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
        self.fetch_as(&mut Local::new(other)?, branch, into)
    }

    /// Fetches a branch as [`Db::fetch_from`] does.
    pub(super) fn fetch_as(&self, other: &mut dyn Peer, branch: &str, into: &str) -> Result<Moved> {
        self.fetch_commit(other, (branch, None), into)
    }

    /// Fetches a commit of a branch, with the history before it; `None`: the branch's last commit.
    pub(super) fn fetch_commit(
        &self,
        other: &mut dyn Peer,
        (branch, wanted): (&str, Option<CommitId>),
        into: &str,
    ) -> Result<Moved> {
        other.charge_to(self);
        let depth = Ids::reading(self).depth()?;
        let mut own = Local::new(self)?;
        let mut attempts = Attempts::new(self);
        loop {
            let ours = tip(&mut own, into)?;
            // Later attempts replace only what another transfer of the branch has fetched.
            let is_forward = !attempts.is_first();
            let moved = match (depth, wanted) {
                (None, _) => transfer((other, branch), (&mut own, into), ours, is_forward),
                (Some(depth), wanted) => {
                    let last = wanted.map_or_else(|| other.tip(branch), |id| Ok(Some(id)))?;
                    let Some(id) = last.filter(|last| ours != Some(*last)) else {
                        return up_to_date(&mut own, into, ours);
                    };
                    let wanted = Wanted { branch, id };
                    transfer_line(other, wanted, &mut own, (into, ours, is_forward), depth)
                        .map(|commits| Moved { from: ours, to: Some(id), commits })
                }
            };
            match moved {
                Err(Error::InvalidInput(InvalidInput::NotFastForward { .. })) => {
                    return Err(InvalidInput::BranchMoved { name: into.to_owned() }.into());
                }
                Err(error) if attempts.again(&error, ours) => {}
                done => return done,
            }
        }
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
    /// other commits change `branch` again and again during the call;
    /// [`InvalidInput::HistoryTrimmed`] if the log no longer has a commit to repeat;
    /// [`InvalidInput::BelowBoundary`] if this is a partial clone without the common ancestor of
    /// the branches; the errors of [`Db::commit_id`] and
    /// [`BranchMerge::run`](crate::BranchMerge::run).
    pub fn catch_up(&self, branch: &str, theirs: &str) -> Result<Pulled> {
        let mut attempts = Attempts::new(self);
        loop {
            let before = match self.branch(branch) {
                Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => None,
                found => found?.tip()?,
            };
            match self.try_catch_up(branch, theirs) {
                Err(error) if attempts.again(&error, before) => {}
                done => return done,
            }
        }
    }

    fn try_catch_up(&self, branch: &str, theirs: &str) -> Result<Pulled> {
        let theirs = self.branch(theirs)?;
        let ours = match self.branch(branch) {
            Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => {
                let ids = Ids::open(self)?;
                match self.create_branch(branch, &theirs) {
                    Err(Error::InvalidInput(InvalidInput::BranchExists { .. })) => {
                        return Err(InvalidInput::BranchMoved { name: branch.to_owned() }.into());
                    }
                    created => drop(created?),
                }
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
        receiver.boundary = Boundary::Any;
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
        let committer = &self.store.committer;
        let at = self.store.newest()?;
        let _floor = committer.open_floor(committer.as_of(at)?)?;
        let old = match self.branch(name) {
            Ok(old) => old,
            Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => {
                return match self.create_branch_at(name, branch, Moment::Glsn(place.glsn)) {
                    // Another transfer has created it.
                    Err(Error::InvalidInput(InvalidInput::BranchExists { .. })) => Ok(()),
                    created => created.map(drop),
                };
            }
            Err(error) => return Err(error),
        };
        ids.catch_up()?;
        let stays = match ids.tip((old.id(), at))? {
            None => false,
            // `name` ends with the commit of `branch` itself, so nothing is kept twice.
            Some(own) if own.id == *tip => branch.sees(own.chain, own.glsn),
            Some(own) => !contains(&ids, branch, &own.id)?,
        };
        if stays {
            return Ok(());
        }
        let transfer = Transfer::begin(&self.store)?;
        let new = format!("{}0", transfer.prefix());
        let snapshot = Snapshot::of(&self.store, Moment::Glsn(place.glsn))?;
        branch_commits::create(&self.store, &new, branch.id(), place.glsn)?;
        drop(snapshot);
        match replace(self, &new, &old, at) {
            // Another transfer has moved the branch meanwhile, so the branch stays as it is.
            Err(Error::InvalidInput(InvalidInput::BranchMoved { .. })) => self.delete_branch(&new),
            replaced => replaced,
        }
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

/// The attempts of a transfer to a branch that other transfers and commits move meanwhile.
struct Attempts<'a> {
    db: &'a Db,
    /// The number of attempts that failed.
    failed: u32,
    /// The last commit of the branch when the last failed attempt began.
    before: Option<CommitId>,
}

impl<'a> Attempts<'a> {
    fn new(db: &'a Db) -> Self {
        Self { db, failed: 0, before: None }
    }

    fn is_first(&self) -> bool {
        self.failed == 0
    }

    /// Whether to try again after a failed attempt that began when the branch ended with `before`.
    /// An attempt is repeated only if it failed because the branch has moved, and not twice from
    /// the same commit. Pauses first, so that the transfer that moves the branch can end.
    fn again(&mut self, error: &Error, before: Option<CommitId>) -> bool {
        let has_moved = matches!(error, Error::InvalidInput(InvalidInput::BranchMoved { .. }));
        let is_stuck = !self.is_first() && self.before == before;
        if !has_moved || is_stuck || self.failed == ATTEMPTS {
            return false;
        }
        if !self.is_first() {
            let pause = FIRST_PAUSE.saturating_mul(1 << self.failed.min(16)).min(LONGEST_PAUSE);
            self.db.store.options.clock.sleep(pause);
        }
        (self.failed, self.before) = (self.failed + 1, before);
        true
    }
}

/// The last commit of a branch; `None` if the branch is empty or does not exist.
fn tip(peer: &mut dyn Peer, name: &str) -> Result<Option<CommitId>> {
    match peer.tip(name) {
        Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => Ok(None),
        tip => tip,
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
    (source, branch): (&mut dyn Peer, &str),
    (target, name): (&mut dyn Peer, &str),
    before: Option<CommitId>,
    is_forward: bool,
) -> Result<Moved> {
    let last = source.tip(branch)?.filter(|last| before != Some(*last));
    let Some(id) = last else { return up_to_date(target, name, before) };
    let mut haves = target.haves(name)?;
    let change = Move { name, before, last: id, is_forward, boundary: None };
    let wanted = Wanted { branch, id };
    loop {
        let sent = target.receive(change, &mut |sink| {
            #[cfg(feature = "testing")]
            let sink = &mut crate::sync::forging::Forger(sink);
            source.send(wanted, &haves, sink)
        });
        // The haves are only a sample. A partial clone can send only the commits after the commit
        // `id`, so ask whether the target has that commit, and add it.
        if let Err(Error::InvalidInput(InvalidInput::BelowBoundary { id })) = &sent
            && !haves.is_full()
            && let Ok(id) = id.parse()
            && !haves.commits.contains(&(id, true))
            && target.has(&id)?
        {
            haves.push_line([id]);
            continue;
        }
        return Ok(Moved { from: before, to: last, commits: sent? });
    }
}

/// Ends a transfer to a branch that has all commits.
fn up_to_date(target: &mut dyn Peer, name: &str, tip: Option<CommitId>) -> Result<Moved> {
    if let Some(tip) = tip {
        target.delete_leftovers(name, tip)?;
    }
    Ok(Moved { from: tip, to: tip, commits: 0 })
}
