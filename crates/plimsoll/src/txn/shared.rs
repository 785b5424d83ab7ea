//! The commits of a store that several processes have open.
//!
//! A commit is ordered under the append lock of all processes (the log's [`Turn`]), after the
//! commits of the others are applied. If it depends on no other commit and the process has only
//! written for a while, it is ordered without applying them ([`blind`]).

pub(crate) mod blind;
pub(crate) mod blindness;
pub(crate) mod floors;
pub(crate) mod follower;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_log::draft::{Draft, Ticket};
use plimsoll_log::file_log::shared::turn::Turn;
use plimsoll_log::glsn::Glsn;
use plimsoll_log::members::Members;
use plimsoll_log::members::holds::Removal;

use crate::txn::commit::{Commit, Ordered};
use crate::txn::other_processes::{Peers, Remove};
use crate::txn::sequencer::CommitLock;
use crate::txn::shared::blind::BlindCommits;
use crate::txn::shared::follower::Follower;
use crate::types::error::{Lift, Result};

/// The longest time for which the append lock is held while another thread of this process has the
/// commit lock. It is longer than applying most commits takes.
const COMMIT_LOCK_TIMEOUT: Duration = Duration::from_millis(2);

/// The implementation of [`Peers`] for a store that several processes have open.
pub(crate) struct Shared {
    pub(crate) follower: Arc<Follower>,
    pub(crate) blind: BlindCommits,
}

impl Shared {
    /// `blind_after`: the number of independent commits without a read after which this process
    /// leaves further ones in the log.
    pub(crate) fn new(follower: Follower, blind_after: u32) -> Self {
        let follower = Arc::new(follower);
        Self { blind: BlindCommits::new(&follower, blind_after), follower }
    }

    pub(crate) fn members(&self) -> &Arc<Members> {
        &self.follower.members
    }

    /// Takes the append lock and the commit lock, and applies everything that was ordered earlier.
    /// The append lock is not held while this thread, or another thread that has the commit lock,
    /// waits for a flush.
    fn begin_to_order(&self) -> Result<(Turn<'_>, CommitLock<'_>)> {
        let follower = &self.follower;
        loop {
            let mut turn = follower.wait_for_turn()?;
            let Some(lock) = follower.sequencer.lock_within(COMMIT_LOCK_TIMEOUT)? else {
                drop(turn);
                drop(follower.sequencer.lock()?);
                continue;
            };
            if follower.begin(&mut turn, &lock)? {
                return Ok((turn, lock));
            }
            drop(turn);
            follower.apply_rest(&lock)?;
        }
    }

    /// Orders a commit under both locks. `None` if the append lock was released to wait for a
    /// flush; the caller retries.
    fn order_in_turn(&self, commit: &mut Commit<'_>) -> Result<Option<Ordered>> {
        let (mut turn, lock) = self.begin_to_order()?;
        commit.validate()?;
        let Some(room) = commit.try_reserve()? else {
            drop(turn);
            drop(commit.reserve()?);
            return Ok(None);
        };
        if commit.changes_retention() {
            self.members().marks.set_must_apply_upto(self.members().marks.next());
        }
        // The append lock is released as soon as the commit is ordered, before it is applied.
        commit.order(lock, room, move |draft| turn.submit(draft)).map(Some)
    }
}

impl Peers for Shared {
    fn order(&self, commit: &mut Commit<'_>) -> Result<Ordered> {
        if let Some(glsn) = self.blind.post(commit)? {
            return Ok(Ordered { glsn, is_durable: true });
        }
        loop {
            if let Some(glsn) = self.blind.order(commit)? {
                return Ok(Ordered { glsn, is_durable: false });
            }
            if let Some(ordered) = self.order_in_turn(commit)? {
                return Ok(ordered);
            }
        }
    }

    fn append(&self, draft: &Draft<'_>) -> Result<Ticket> {
        let (mut turn, lock) = self.begin_to_order()?;
        let submit = move || turn.submit(draft).lift();
        self.follower.sequencer.submit_and_apply(&lock, submit, |ticket| Ok(ticket.last))
    }

    fn is_alone(&self) -> bool {
        false
    }

    fn only_writes(&self) -> bool {
        self.blind.blindness.is_blind()
    }

    fn note_read(&self) {
        self.blind.blindness.note_read();
    }

    fn is_caught_up(&self) -> bool {
        self.follower.is_fresh().unwrap_or(false)
    }

    fn are_own_records_current(&self) -> bool {
        !self.follower.must_load_own_records()
    }

    fn are_keyspaces_current(&self) -> bool {
        self.follower.is_known()
    }

    fn newest_readable(&self) -> Glsn {
        // The read reports a failure.
        self.follower.readable().unwrap_or(Glsn::NONE)
    }

    fn newest_ordered(&self) -> Glsn {
        self.follower.ordered_to_read()
    }

    fn ordered_between_commits(&self) -> Result<Glsn> {
        // A process that only reads has no turn. It may miss a commit that another process is
        // ordering just now.
        let _turn = match self.members().table.is_reader() {
            true => None,
            false => Some(self.follower.wait_for_turn()?),
        };
        self.members().marks.newest_ordered().lift()
    }

    fn catch_up(&self) -> Result<()> {
        self.note_read();
        self.follower.apply_readable()
    }

    fn catch_up_with_ordered(&self) -> Result<()> {
        match self.members().table.is_reader() {
            true => self.catch_up(),
            false => self.follower.apply_ordered(),
        }
    }

    fn catch_up_durably(&self) -> Result<()> {
        self.follower.apply_durably()
    }

    fn reread_keyspaces(&self) -> Result<bool> {
        self.follower.load_own_keyspaces().map(|()| true)
    }

    fn publish_floor(&self, floor: Glsn) {
        self.members().needs.set_floor(floor);
    }

    fn keeps(&self) -> bool {
        self.members().keeper.is_keeper()
    }

    fn hold_log(&self, from: Glsn) {
        self.members().needs.hold_log(from);
    }

    fn oldest_needed(&self) -> Glsn {
        self.members().slots.oldest_needed()
    }

    fn ask_to_close(&self, newest: Glsn, is_due: &mut dyn FnMut() -> bool) {
        if is_due() {
            self.members().marks.request_close(newest);
        }
    }

    fn remove_files(&self, remove: &mut Remove<'_>) -> bool {
        let remove = |removal: &Removal<'_>| remove(&|until| removal.may_free_below(until));
        self.members().holds.unless_held(remove).is_some()
    }

    fn killed(&self) -> u64 {
        self.members().slots.leftovers()
    }

    fn memory_total(&self) -> Option<u64> {
        self.members().budgets.memory_total()
    }

    fn has_memory(&self, bytes: u64) {
        self.members().budgets.has_memory(bytes);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({:?})", self.follower)
    }
}
