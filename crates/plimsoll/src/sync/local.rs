//! A store of a transfer that is open in this process.

use std::path::Path;

use plimsoll_log::glsn::Glsn;

use crate::api::branches::Branch;
use crate::api::db::Db;
use crate::merge::graph::State;
use crate::sync::commit_id::CommitId;
use crate::sync::ids::Ids;
use crate::sync::line::{after, line};
use crate::sync::peer::{Feed, HAVES_MAX, Haves, Line, Move, Peer, Wanted};
use crate::sync::receive::{Boundary, Receiver};
use crate::sync::send::{CommitSink, Missing, contains};
use crate::types::branches::{MAIN, TEMPORARY};
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::KeyspaceInfo;
use crate::types::options::Options;

/// A store that is open in this process.
pub(super) struct Local {
    db: Db,
    ids: Ids,
    /// Whether [`Peer::close`] closes the store.
    closes: bool,
}

impl Local {
    /// A store that its caller closes.
    ///
    /// # Errors
    /// Those of [`Ids::catch_up`].
    pub(super) fn new(db: &Db) -> Result<Self> {
        Ok(Self { db: db.clone(), ids: Ids::open(db)?, closes: false })
    }

    /// A store that is closed with [`Peer::close`].
    ///
    /// # Errors
    /// As for [`Local::new`].
    pub(super) fn owning(db: Db) -> Result<Self> {
        Ok(Self { ids: Ids::open(&db)?, db, closes: true })
    }

    /// For each line of `haves`, the states at the first commit that this store has, too. That
    /// commit contains the rest of the line. The other store has all commits that these states
    /// contain.
    fn common(&self, haves: &Haves) -> Result<Vec<State>> {
        let (mut states, mut is_found) = (Vec::new(), false);
        for (id, begins) in &haves.commits {
            is_found &= !begins;
            if is_found {
                continue;
            }
            let places = self.ids.places(id)?;
            is_found = !places.is_empty();
            states.extend(places.iter().map(|place| place.state()));
        }
        Ok(states)
    }

    /// The state that ends with a commit of a branch.
    ///
    /// # Errors
    /// [`InvalidInput::NoBranch`]; [`InvalidInput::BranchMoved`] if the branch does not contain it.
    fn state_of(&self, wanted: Wanted<'_>) -> Result<State> {
        let branch = self.db.branch(wanted.branch)?;
        if let Some(tip) = self.ids.tip_of(&branch)?.filter(|tip| tip.id == wanted.id) {
            return Ok(tip.state());
        }
        let moved = || InvalidInput::BranchMoved { name: wanted.branch.to_owned() };
        match contains(&self.ids, &branch, &wanted.id)? {
            true => Ok(self.ids.readable(&wanted.id)?.first().ok_or_else(moved)?.state()),
            false => Err(moved().into()),
        }
    }
}

impl Peer for Local {
    fn branches(&mut self) -> Result<Vec<String>> {
        let mut prefixes = vec![TEMPORARY.to_owned()];
        prefixes.extend(self.db.remotes()?.into_iter().map(|it| format!("{}/", it.name)));
        let is_own = |name: &String| !prefixes.iter().any(|prefix| name.starts_with(prefix));
        Ok(self.db.branches()?.into_iter().map(|info| info.name).filter(is_own).collect())
    }

    fn keyspaces(&mut self) -> Result<Vec<KeyspaceInfo>> {
        Ok(self.db.keyspaces())
    }

    fn tip(&mut self, branch: &str) -> Result<Option<CommitId>> {
        let branch = self.db.branch(branch)?;
        self.ids.catch_up()?;
        Ok(self.ids.tip_of(&branch)?.map(|place| place.id))
    }

    /// The last commit of each branch. For main, the receiving branch and temporary branches, also
    /// older commits.
    fn haves(&mut self, branch: &str) -> Result<Haves> {
        self.ids.catch_up()?;
        let all = self.db.branches()?.into_iter().map(|info| info.name);
        let (temporary, others): (Vec<_>, Vec<_>) = all
            .filter(|name| name != branch && name != MAIN)
            .partition(|name| name.starts_with(TEMPORARY));
        let own = [branch.to_owned(), MAIN.to_owned()].into_iter();
        let own = own.take(if branch == MAIN { 1 } else { 2 });
        let sampled = own.chain(temporary).map(|name| (name, true));
        let mut haves = Haves::default();
        for (name, is_sampled) in sampled.chain(others.into_iter().map(|name| (name, false))) {
            if haves.is_full() {
                break;
            }
            let branch = match self.db.branch(&name) {
                // There is none yet, or it was deleted since it was listed.
                Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => continue,
                branch => branch?,
            };
            match is_sampled {
                true => haves.push_line(samples(&self.ids, &branch)?),
                false => haves.push_line(self.ids.tip_of(&branch)?.map(|place| place.id)),
            }
        }
        for id in self.ids.boundaries(HAVES_MAX)? {
            haves.push_line([id]);
        }
        Ok(haves)
    }

    fn has(&mut self, id: &CommitId) -> Result<bool> {
        self.ids.catch_up()?;
        Ok(!self.ids.readable(id)?.is_empty())
    }

    fn send(&mut self, wanted: Wanted<'_>, haves: &Haves, sink: &mut dyn CommitSink) -> Result<()> {
        self.ids.catch_up()?;
        let (state, common) = (self.state_of(wanted)?, self.common(haves)?);
        let missing = Missing::new(&self.ids, state, &common)?;
        missing.check_whole(&self.ids)?;
        missing.send(&self.ids, sink)
    }

    fn line(&mut self, wanted: Wanted<'_>, depth: u64, haves: &Haves) -> Result<Line> {
        self.ids.catch_up()?;
        Ok(line(&self.ids, self.state_of(wanted)?, depth, haves)?.0)
    }

    fn send_line(
        &mut self,
        wanted: Wanted<'_>,
        base: (Option<CommitId>, bool),
        sink: &mut dyn CommitSink,
    ) -> Result<()> {
        let from = (wanted.branch, self.state_of(wanted)?);
        after(&self.ids, from, base)?.send(&self.ids, sink)
    }

    fn receive(&mut self, change: Move<'_>, feed: &mut Feed<'_>) -> Result<u64> {
        let mut receiver = Receiver::new(&self.ids, change.name, change.before, false)?;
        if let Some(id) = change.boundary {
            receiver.boundary = Boundary::Only(id);
        }
        feed(&mut receiver)?;
        if let Some(before) = change.before.filter(|_| change.is_forward) {
            receiver.settle()?;
            if !receiver.descends(&change.last, &before)? {
                return Err(InvalidInput::NotFastForward { branch: change.name.to_owned() }.into());
            }
        }
        receiver.finish(&change.last)
    }

    fn delete_leftovers(&mut self, branch: &str, _: CommitId) -> Result<()> {
        let is_temporary = |name: &str| name.starts_with(TEMPORARY);
        match self.db.branches()?.iter().any(|info| is_temporary(&info.name)) {
            true => Receiver::of_any(&self.ids, branch, false)?.delete_temporary(),
            false => Ok(()),
        }
    }

    fn close(self: Box<Self>) -> Result<()> {
        if self.closes { self.db.close() } else { Ok(()) }
    }
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

/// Opens the store in a folder, shared with other processes if its file system supports that.
pub(super) fn open_folder(path: &Path, options: Options) -> Result<Db> {
    match Db::open(path, options.clone().shared(true)) {
        Err(Error::InvalidInput(InvalidInput::CannotBeShared { .. })) => Db::open(path, options),
        opened => opened,
    }
}
