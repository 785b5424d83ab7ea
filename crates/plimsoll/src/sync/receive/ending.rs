//! Ends a transfer: makes the receiving branch end with the last commit, and deletes temporary
//! branches.

use plimsoll_log::glsn::Glsn;

use crate::api::branches::Branch;
use crate::api::snapshot::Moment;
use crate::api::state_diff::StateDiff;
use crate::engine::transfers::Leftovers;
use crate::merge::keys::Scope;
use crate::sync::commit_id::CommitId;
use crate::sync::contents::{Received, micros_of, node_of};
use crate::sync::receive::{Line, Receiver};
use crate::sync::send::contained;
use crate::types::branches::{MAIN, TEMPORARY};
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;

impl Receiver {
    /// Makes the receiving branch end with the commit `tip`, which the store must have, and deletes
    /// the temporary branches. Returns the number of commits that were received.
    ///
    /// # Errors
    /// [`InvalidInput::BranchMoved`] if another commit changed the branch; errors of commits.
    pub(in crate::sync) fn finish(mut self, tip: &CommitId) -> Result<u64> {
        self.settle()?;
        match self.target.take() {
            Some(target) if target.tip == Some(*tip) => {}
            Some(target) => self.advance(target, tip)?,
            None => {
                let name = self.name.clone();
                self.create(&name, tip)?;
            }
        }
        self.delete_temporary()?;
        Ok(self.received)
    }

    /// Deletes the temporary branches of this transfer, and those of interrupted transfers if other
    /// branches contain their commits now.
    ///
    /// # Errors
    /// Errors of reads and of commits.
    pub(in crate::sync) fn delete_temporary(&mut self) -> Result<()> {
        self.settle()?;
        self.side.clear();
        let mut all = self.db.branches()?;
        all.retain(|info| info.name.starts_with(TEMPORARY));
        let mut superfluous = Vec::with_capacity(all.len());
        let (leftovers, mut others) = (Leftovers::new(&self.db.store)?, Vec::new());
        for name in all.into_iter().map(|info| info.name) {
            if name.starts_with(self.transfer.prefix()) {
                superfluous.push(name);
                continue;
            }
            if !leftovers.contains(&name) {
                continue;
            }
            match self.db.branch(&name) {
                // Another transfer has deleted or renamed it.
                Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => {}
                found => match self.ids.tip_of(&found?)? {
                    None => superfluous.push(name),
                    Some(tip) => others.push((name, tip.id)),
                },
            }
        }
        if !others.is_empty() {
            let tips = others.iter().map(|(_, tip)| *tip).collect();
            let found = contained(&self.ids, &self.tips()?, tips)?;
            let others = others.into_iter().filter(|(_, tip)| found.contains(tip));
            superfluous.extend(others.map(|(name, _)| name));
        }
        superfluous.iter().try_for_each(|name| self.delete(name))
    }

    /// The states at the ends of the branches, except temporary ones.
    fn tips(&self) -> Result<Vec<(u32, Glsn)>> {
        let names = self.db.branches()?.into_iter().map(|info| info.name);
        let mut tips = Vec::new();
        for name in names.filter(|name| !name.starts_with(TEMPORARY)).chain([MAIN.to_owned()]) {
            match self.db.branch(&name) {
                // The branch was deleted since it was listed.
                Err(Error::InvalidInput(InvalidInput::NoBranch { .. })) => {}
                branch => tips.extend(self.ids.tip_of(&branch?)?.map(|place| place.state())),
            }
        }
        Ok(tips)
    }

    /// Creates the branch `name` so that it ends with the commit `tip`.
    ///
    /// # Errors
    /// As for [`Receiver::branch_after`].
    fn create(&mut self, name: &str, tip: &CommitId) -> Result<()> {
        let branch = self.branch_after(tip)?;
        match self.db.rename_branch(branch.name(), name) {
            // Another transfer has created it.
            Err(Error::InvalidInput(InvalidInput::BranchExists { .. })) => Err(self.moved()),
            renamed => renamed,
        }
    }

    /// Takes the line that ends with the commit `tip`, or forks a temporary branch there.
    ///
    /// # Errors
    /// [`InvalidInput::StateNotRetained`]; corruption if the store does not have `tip`; errors of
    /// commits.
    pub(in crate::sync) fn branch_after(&mut self, tip: &CommitId) -> Result<Branch> {
        match self.side.remove(tip) {
            Some(line) => Ok(line.branch),
            None => Ok(self.fork_after(tip)?.0),
        }
    }

    /// Makes the receiving branch equal to the commit `tip` on another chain, by a commit with the
    /// same id.
    ///
    /// # Errors
    /// Corruption if the store does not have `tip`; [`InvalidInput::BranchMoved`]; errors of
    /// commits.
    fn advance(&mut self, target: Line, tip: &CommitId) -> Result<()> {
        // Fork a branch to read the state, because the branch of its chain may have been deleted.
        let (theirs, state) = self.fork_after(tip)?;
        self.copy_state(target, tip, &theirs, state)?;
        self.wait()?;
        self.delete(theirs.name())
    }

    /// Makes the receiving branch equal to `theirs`, which is at `state`, by one commit of their
    /// differences, and records that commit under the id `tip`.
    fn copy_state(
        &mut self,
        mut target: Line,
        tip: &CommitId,
        theirs: &Branch,
        state: (u32, Glsn),
    ) -> Result<()> {
        self.prepare(&mut target, &[state])?;
        let mut tx = self.begin(&target)?;
        let ours = target.branch.snapshot_at(Moment::Glsn(target.at))?;
        let theirs = theirs.snapshot();
        for scope in Scope::all(&self.db.store) {
            let Some(keyspace) = self.db.find_keyspace(&scope.name)? else { continue };
            let states = [&ours, &theirs];
            let mut differences = StateDiff::new(&keyspace, states, b"")?.comparing_expiries();
            while let Some(difference) = differences.next().transpose()? {
                let key = difference.key;
                let Some(mut value) = theirs.get_reader(&keyspace, &key)? else {
                    tx.delete(&keyspace, &key)?;
                    continue;
                };
                let expiry = value.expiry();
                let key = tx.key_to_put(&keyspace, &key)?;
                tx.put_pieces(&key, expiry, &mut |piece| value.read_piece(piece))?;
            }
        }
        let whole = self.received_at(state.1)?;
        tx.set_metadata(&whole.1)?;
        let chain = target.branch.id();
        let received = Received { is_advance: true, chain, ..whole.0 };
        self.record(&mut tx, tip, &received)?;
        self.order(&mut target, tx, &[state])?;
        Ok(())
    }

    /// The time and the parents of the original of the commit at `at`, and its metadata.
    ///
    /// # Errors
    /// [`InvalidInput::NotACommit`] if there is none; errors of reads.
    fn received_at(&self, at: Glsn) -> Result<(Received, Vec<u8>)> {
        let commit = self.db.log().commit(at)?;
        let commit = commit.ok_or(InvalidInput::NotACommit { glsn: at })?;
        let node = node_of(&commit)?;
        let node = node.ok_or(InvalidInput::NotACommit { glsn: at })?;
        let parents = self.ids.parents(&commit, &node)?;
        let received = node.received.as_ref().map(|(_, received)| received);
        let micros = micros_of(&commit, received);
        let metadata = commit.metadata()?.to_vec();
        Ok((Received { micros, parents, ..Received::default() }, metadata))
    }
}
