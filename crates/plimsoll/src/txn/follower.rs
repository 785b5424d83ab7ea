//! Follows what other members of the store commit: their commits are applied to this process's index before it reads a moment that holds them,
//! and before it orders a commit of its own.
//!
//! Law: what was durable anywhere when a read begins is seen by it.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::shared::turn::Turn;
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_log::log::Log;
use plimsoll_log::members::Members;
use plimsoll_memory::budget::Budget;

use crate::index::Index;
use crate::txn::apply::{Apply, Touched, When};
use crate::txn::sequencer::{CommitLock, CommitSequencer};
use crate::types::error::{Lift, Result};

/// Entries that are taken in under the turn: for so few, one look at the log is cheaper than two.
const FEW: u64 = 16;

/// Learns of keyspaces that other members have made, changed or dropped, and of the cursors that they have moved.
pub(crate) trait Learn: Send + Sync {
    /// Reads their records as of `at`.
    ///
    /// # Errors
    /// The disk, the budget, corruption.
    fn learn_keyspaces(&self, at: Glsn) -> Result<()>;

    /// Reads where the cursors stand as of `at`.
    ///
    /// # Errors
    /// As for [`Learn::learn_keyspaces`].
    fn learn_cursors(&self, at: Glsn) -> Result<()>;
}

/// What a member needs to follow the others.
pub(crate) struct Follower {
    pub(crate) members: Arc<Members>,
    pub(crate) file_log: Arc<FileLog>,
    pub(crate) log: Arc<dyn Log>,
    pub(crate) budget: Budget,
    pub(crate) index: Arc<Index>,
    pub(crate) sequencer: Arc<CommitSequencer>,
    /// Whether commits are readable before they are durable.
    pub(crate) is_buffered: bool,
    pub(crate) learn: OnceLock<Weak<dyn Learn>>,
}

impl Follower {
    /// The newest commit that is readable anywhere now.
    fn readable(&self) -> Glsn {
        match self.is_buffered {
            true => self.ordered(),
            false => self.members.durable_glsn(),
        }
    }

    /// The newest commit that was ordered anywhere.
    fn ordered(&self) -> Glsn {
        Glsn(self.members.next().0 - 1)
    }

    /// Whether everything that is readable anywhere was taken in. Reads words in memory.
    pub(crate) fn is_fresh(&self) -> bool {
        self.sequencer.visible() >= self.readable()
    }

    /// Takes in what is readable anywhere now.
    pub(crate) fn fresh(&self) -> Result<()> {
        if self.is_fresh() { Ok(()) } else { self.catch_up() }
    }

    /// Takes in everything that was ordered anywhere.
    pub(crate) fn fresh_and_ordered(&self) -> Result<()> {
        if self.sequencer.applied() >= self.ordered() { Ok(()) } else { self.catch_up() }
    }

    fn catch_up(&self) -> Result<()> {
        let lock = self.sequencer.lock()?;
        self.file_log.catch_up().lift()?;
        self.apply(&lock, self.log.bounds().next)
    }

    /// Takes in everything that was committed anywhere, and waits until it is durable.
    pub(crate) fn fresh_and_durable(&self) -> Result<()> {
        self.fresh()?;
        let applied = self.sequencer.applied();
        if self.is_buffered && applied > Glsn::NONE {
            self.log.wait_durable(applied).lift()?;
        }
        Ok(())
    }

    /// Waits for the right to order a commit; no lock is held meanwhile. If others have ordered more than a few entries, takes these in first, so
    /// that little is left to do while they wait.
    pub(crate) fn wait_for_turn(&self) -> Result<Turn<'_>> {
        if self.members.next().0 > self.sequencer.applied().next().0 + FEW {
            let lock = self.sequencer.lock()?;
            self.file_log.catch_up().lift()?;
            self.apply(&lock, self.log.bounds().next)?;
        }
        Ok(self.file_log.turn().lift()?.expect("a member's log has turns"))
    }

    /// Takes in everything that was ordered, under the turn: from here on nothing else is.
    pub(crate) fn begin(&self, turn: &mut Turn<'_>, lock: &CommitLock<'_>) -> Result<()> {
        let tip = turn.begin().lift()?;
        self.apply(lock, tip.next())
    }

    /// Applies what was taken into the log, up to `next`.
    fn apply(&self, lock: &CommitLock<'_>, next: Glsn) -> Result<()> {
        let from = self.sequencer.applied().next();
        if from >= next {
            return Ok(());
        }
        let mut scan = self.file_log.scan_ordered(from, StreamId::TRANSACTIONS).lift()?;
        let mut apply = Apply::new(&self.log, &self.budget, &self.index, When::Live, self.sequencer.applied());
        let applied = loop {
            match scan.next_entry() {
                None => break Ok(()),
                Some(entry) => match entry.lift().and_then(|entry| apply.apply(&entry)) {
                    Ok(()) => self.sequencer.took_in(lock, apply.applied()),
                    Err(error) => break Err(error),
                },
            }
        };
        if applied.is_ok() {
            // Entries of other streams may come last.
            self.sequencer.took_in(lock, Glsn(next.0 - 1));
        }
        let touched = apply.touched();
        if touched != Touched::default()
            && let Some(learn) = self.learn.get().and_then(Weak::upgrade)
        {
            if touched.keyspaces {
                learn.learn_keyspaces(self.sequencer.applied())?;
            }
            if touched.cursors {
                learn.learn_cursors(self.sequencer.applied())?;
            }
        }
        applied
    }
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Follower({:?})", self.members)
    }
}
