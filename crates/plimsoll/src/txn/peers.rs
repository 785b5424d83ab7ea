//! The seam to other processes: all that the commit, read, flush, trim and open paths know of the
//! processes that may have the store open beside this one.
//!
//! [`Alone`] is the store of one process: there is nobody to ask, so that most methods do nothing.
//! [`crate::txn::shared::Shared`] is the other implementation.

use std::fmt::Debug;
use std::sync::Arc;

use plimsoll_log::draft::{Draft, Ticket};
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;

use crate::txn::commit::{Commit, Ordered};
use crate::txn::sequencer::CommitSequencer;
use crate::types::error::{Lift, Result};

/// Removes files of the log; its argument says whether the log may be freed below a GLSN.
pub(crate) type Remove<'a> = dyn FnMut(&dyn Fn(Glsn) -> bool) + 'a;

/// The other processes that have the store open. The defaults hold where there are none.
pub(crate) trait Peers: Send + Sync + Debug {
    /// Orders a commit behind all that were ordered anywhere before, validates it against them, and
    /// applies it: at once, or before the next read of this process.
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

    /// Whether this process has only written for a while: a read would have to apply commits first.
    fn only_writes(&self) -> bool {
        false
    }

    /// Notes that this process reads.
    fn note_read(&self) {}

    /// Whether everything that is readable in any process is applied here. Reads words in memory.
    fn is_caught_up(&self) -> bool {
        true
    }

    /// Whether the store's own records (keyspaces, cursors) are known as of the last commit that is
    /// applied here.
    fn knows_own_records(&self) -> bool {
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

    /// Applies everything that is readable in any process now, for a read.
    ///
    /// # Errors
    /// The log, the disk, the budget: a part may be applied.
    fn catch_up(&self) -> Result<()> {
        Ok(())
    }

    /// Applies everything that was ordered by any process, whether it is durable or not.
    ///
    /// # Errors
    /// As for [`Peers::catch_up`].
    fn catch_up_with_ordered(&self) -> Result<()> {
        Ok(())
    }

    /// As [`Peers::catch_up`], and waits until what is applied is durable.
    ///
    /// # Errors
    /// As for [`Peers::catch_up`].
    fn catch_up_durably(&self) -> Result<()> {
        Ok(())
    }

    /// Reads the records of keyspaces that this process has just changed, because another one may
    /// have changed them since. False if no other can: the caller knows them.
    ///
    /// # Errors
    /// As for [`Peers::catch_up`]: they are read later.
    fn reread_keyspaces(&self) -> Result<bool> {
        Ok(false)
    }

    /// Promises that this process opens no moment below `floor`.
    fn promise_floor(&self, _floor: Glsn) {}

    /// Whether this process does the background work of the store.
    fn keeps(&self) -> bool {
        true
    }

    /// The log from this GLSN on is needed by other processes.
    fn oldest_needed(&self) -> Glsn {
        Glsn::MAX
    }

    /// Has all processes close memtables with commits up to `newest`, if `is_due`.
    fn ask_to_close(&self, _newest: Glsn, _is_due: &mut dyn FnMut() -> bool) {}

    /// Runs `remove`, which removes files of the log, unless another process reads all of them;
    /// returns whether it ran. Before it removes records, `remove` asks whether the log may be
    /// freed below a GLSN.
    fn remove_files(&self, remove: &mut Remove<'_>) -> bool {
        remove(&|_| true);
        true
    }

    /// How many processes were killed that may have left files.
    fn killed(&self) -> u64 {
        0
    }

    /// The memory that all processes have together, if they share a total.
    fn memory_total(&self) -> Option<u64> {
        None
    }

    /// Tells the others that this process has this much memory.
    fn has_memory(&self, _bytes: u64) {}
}

/// No other process has the store open.
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
        let room = commit.make_room()?;
        commit.order(lock, room, |draft| self.log.submit(draft, None))
    }

    fn append(&self, draft: &Draft<'_>) -> Result<Ticket> {
        let lock = self.sequencer.lock()?;
        let submit = || self.log.submit(draft, None).lift();
        self.sequencer.submit_and_apply(&lock, submit, |ticket| Ok(ticket.last))
    }
}
