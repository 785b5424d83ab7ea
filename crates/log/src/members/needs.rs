//! The needs that this member publishes: its floor, its checkpoint, and what it has applied.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use crate::glsn::Glsn;
use crate::members::marks::Marks;
use crate::members::table::Table;
use crate::members::words::SlotWord;

/// The needs of this member.
pub struct Needs {
    table: Arc<Table>,
    marks: Arc<Marks>,
    told: Mutex<Told>,
}

/// What decides the GLSN after which this member needs the log. Locked while that is published.
struct Told {
    applied: Glsn,
    /// The log from here on is held.
    held: Glsn,
}

impl Needs {
    pub(super) fn new(table: &Arc<Table>, marks: &Arc<Marks>) -> Self {
        let told = Mutex::new(Told { applied: Glsn::NONE, held: Glsn::MAX });
        Self { table: Arc::clone(table), marks: Arc::clone(marks), told }
    }

    /// Promises to open no moment below `floor`.
    pub fn set_floor(&self, floor: Glsn) {
        self.table.set(SlotWord::Floor, floor.0);
    }

    /// Publishes the checkpoint of this member's manifest.
    pub fn set_checkpoint(&self, checkpoint: Glsn) {
        let (_, before, _) = self.own_needs();
        self.table.set(SlotWord::Checkpoint, checkpoint.0);
        if (before.next()..=checkpoint).contains(&self.marks.close_wanted()) {
            // The keeper may free the log now.
            self.table.notify();
        }
    }

    /// The needs that this member has published: its floor (older snapshots), its checkpoint and
    /// the last GLSN that it has applied (the log after both).
    pub fn own_needs(&self) -> (Glsn, Glsn, Glsn) {
        if !self.table.may_write_words() {
            return (Glsn::NONE, Glsn::NONE, Glsn::NONE);
        }
        let word = |word| Glsn(self.table.slot_word(self.table.slot, word).load(Ordering::SeqCst));
        (word(SlotWord::Floor), word(SlotWord::Checkpoint), word(SlotWord::Applied))
    }

    /// Publishes that this member has applied the log up to `applied`, and needs the log after it.
    /// Called after [`Needs::set_checkpoint`], which covers the part of the log that the memtables
    /// still need.
    pub fn set_applied(&self, applied: Glsn) {
        self.tell(|told| told.applied = applied);
    }

    /// Keeps other members from freeing the log from `from` on, also after it was applied;
    /// [`Glsn::MAX`]: no longer.
    pub fn hold_log(&self, from: Glsn) {
        self.tell(|told| told.held = from);
    }

    fn tell(&self, change: impl FnOnce(&mut Told)) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut told);
        let needed_after = told.applied.0.min(told.held.0.saturating_sub(1));
        self.table.set(SlotWord::Applied, needed_after);
    }
}
