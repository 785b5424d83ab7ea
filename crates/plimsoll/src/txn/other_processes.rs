//! The interface to other processes: all that the commit, read, flush, trim and open paths know of
//! other processes that may have the store open.
//!
//! [`Alone`] implements it for a store of one process, with mostly empty methods;
//! [`crate::txn::shared::Shared`] for a store that several processes have open, and
//! [`crate::txn::replica::Replica`] for one whose commits are ordered outside of it.

use std::fmt::Debug;
use std::sync::Arc;

use plimsoll_log::draft::{Draft, Ticket};
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;

use crate::txn::commit::{Commit, Ordered};
use crate::txn::sequencer::CommitSequencer;
use crate::types::error::{Lift, Result};

/// Removes files of the log. Its argument returns whether the log may be freed below a GLSN.
pub(crate) type Remove<'a> = dyn FnMut(&dyn Fn(Glsn) -> bool) + 'a;

/// The other processes that have the store open. The default methods apply if there are none.
pub(crate) trait Peers: Send + Sync + Debug {
    /// Orders a commit after all commits ordered by any process, validates it against them, and
    /// applies it: at once, or before this process's next read.
    ///
    /// # Errors
    /// Nothing was ordered, except with [`crate::types::error::Error::Poisoned`] and
    /// [`crate::types::error::Error::Stalled`].
    fn order(&self, commit: &mut Commit<'_>) -> Result<Ordered>;

    /// Appends entries that are not transactions.
    ///
    /// # Errors
    /// As for [`Peers::order`].
    fn append(&self, draft: &Draft<'_>) -> Result<Ticket>;

    /// Whether no other process can have the store open.
    fn is_alone(&self) -> bool {
        true
    }

    /// Whether no other process works on the files of the store.
    fn is_only_process(&self) -> bool {
        self.is_alone()
    }

    /// Whether this process has only written for a while, so that a read would first have to apply
    /// commits.
    fn only_writes(&self) -> bool {
        false
    }

    /// Records that this process reads.
    fn note_read(&self) {}

    /// Whether everything readable in any process is applied here. Only reads memory.
    fn is_caught_up(&self) -> bool {
        true
    }

    /// Whether the store's own records (keyspaces, cursors) are loaded as of the last commit
    /// applied here.
    fn are_own_records_current(&self) -> bool {
        true
    }

    /// Whether no process has ordered a change of keyspaces that is not loaded here. Only reads
    /// memory.
    fn are_keyspaces_current(&self) -> bool {
        true
    }

    /// The newest commit that is readable in any process.
    fn newest_readable(&self) -> Glsn {
        Glsn::NONE
    }

    /// The newest commit that [`Peers::catch_up_with_ordered`] applies.
    fn newest_ordered(&self) -> Glsn {
        Glsn::NONE
    }

    /// Waits for the commits in progress, and returns the last entry that any process has ordered.
    /// Each later entry gets its time after this call has begun.
    ///
    /// # Errors
    /// [`crate::Error::Stalled`], [`crate::Error::Poisoned`], the system.
    fn ordered_between_commits(&self) -> Result<Glsn>;

    /// Applies everything that is currently readable in any process, for a read.
    ///
    /// # Errors
    /// The log, the disk or the budget. A part may be applied.
    fn catch_up(&self) -> Result<()> {
        Ok(())
    }

    /// Applies everything ordered by any process, durable or not.
    ///
    /// # Errors
    /// As for [`Peers::catch_up`].
    fn catch_up_with_ordered(&self) -> Result<()> {
        Ok(())
    }

    /// How long a commit that any replica could make in an idle store is left to the others, in
    /// microseconds: differs between replicas, so that one of them makes it.
    fn idle_delay_micros(&self) -> u64 {
        0
    }

    /// Applies everything that any replica of the store has committed.
    ///
    /// # Errors
    /// As for [`Peers::catch_up`], and those of the order.
    fn catch_up_with_replicas(&self) -> Result<()> {
        Ok(())
    }

    /// Like [`Peers::catch_up`], and waits until the applied commits are durable.
    ///
    /// # Errors
    /// As for [`Peers::catch_up`].
    fn catch_up_durably(&self) -> Result<()> {
        Ok(())
    }

    /// Reloads the records of keyspaces that this process has just changed, because another process
    /// may have changed them since. False if no other process can, so that the caller's copy is
    /// current.
    ///
    /// # Errors
    /// As for [`Peers::catch_up`]. The records are loaded later.
    fn reread_keyspaces(&self) -> Result<bool> {
        Ok(false)
    }

    /// Promises that this process opens no snapshot below `floor`.
    fn publish_floor(&self, _floor: Glsn) {}

    /// Whether this process does the background work of the store.
    fn keeps(&self) -> bool {
        true
    }

    /// The GLSN from which on other processes need the log.
    fn oldest_needed(&self) -> Glsn {
        Glsn::MAX
    }

    /// Keeps other processes from freeing the log from `from` on; [`Glsn::MAX`]: no longer.
    fn hold_log(&self, _from: Glsn) {}

    /// Asks all processes to close memtables with commits up to `newest`, if `is_due`.
    fn ask_to_close(&self, _newest: Glsn, _is_due: &mut dyn FnMut() -> bool) {}

    /// Runs `remove`, which removes files of the log, unless another process is reading all files.
    /// Returns whether it ran. Before `remove` removes records, it asks whether the log may be
    /// freed below a GLSN.
    fn remove_files(&self, remove: &mut Remove<'_>) -> bool {
        remove(&|_| true);
        true
    }

    /// Number of killed processes that may have left files.
    fn killed(&self) -> u64 {
        0
    }

    /// The total memory of all processes, if they share a limit.
    fn memory_total(&self) -> Option<u64> {
        None
    }

    /// Publishes the memory of this process.
    fn has_memory(&self, _bytes: u64) {}
}

/// The implementation for a store that no other process has open.
#[derive(Debug)]
pub(crate) struct Alone {
    log: Arc<FileLog>,
    sequencer: Arc<CommitSequencer>,
}

impl Alone {
    pub(crate) fn new(log: &Arc<FileLog>, sequencer: &Arc<CommitSequencer>) -> Self {
        Self { log: Arc::clone(log), sequencer: Arc::clone(sequencer) }
    }
}

impl Peers for Alone {
    fn order(&self, commit: &mut Commit<'_>) -> Result<Ordered> {
        let lock = self.sequencer.lock()?;
        commit.validate()?;
        let room = commit.reserve()?;
        commit.order(lock, room, |draft| self.log.submit(draft, None))
    }

    fn ordered_between_commits(&self) -> Result<Glsn> {
        let _lock = self.sequencer.lock()?;
        Ok(Glsn(self.log.bounds().next.0 - 1))
    }

    fn append(&self, draft: &Draft<'_>) -> Result<Ticket> {
        let lock = self.sequencer.lock()?;
        let submit = || self.log.submit(draft, None).lift();
        self.sequencer.submit_and_apply(&lock, submit, |ticket| Ok(ticket.last))
    }
}
