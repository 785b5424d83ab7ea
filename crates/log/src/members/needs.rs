//! The needs that this member publishes: its floor, its checkpoint, what it has applied, and what
//! it holds.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::glsn::Glsn;
use crate::members::marks::Marks;
use crate::members::table::Table;
use crate::members::words::SlotWord;

/// The needs of this member.
pub struct Needs {
    table: Arc<Table>,
    marks: Arc<Marks>,
}

impl Needs {
    pub(super) fn new(table: &Arc<Table>, marks: &Arc<Marks>) -> Self {
        Self { table: Arc::clone(table), marks: Arc::clone(marks) }
    }

    /// Promises to open no moment below `floor`.
    pub fn set_floor(&self, floor: Glsn) {
        self.table.set(SlotWord::Floor, floor.0);
    }

    /// Publishes the checkpoint of this member's manifest.
    pub fn set_checkpoint(&self, checkpoint: Glsn) {
        let (_, before, _) = self.own_needs();
        self.table.set(SlotWord::Checkpoint, checkpoint.0);
        if (before.next()..=checkpoint).contains(&self.marks.close_requested()) {
            // The keeper asked for this, and can free the log now.
            self.table.notify();
        }
    }

    /// The needs that this member has published: its floor, below which it opens no snapshot; its
    /// checkpoint; and the last GLSN that it has applied. It needs the log after the last two.
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
        self.table.set(SlotWord::Applied, applied.0);
    }

    /// Keeps other members from freeing the log from `from` on, even the part that this member has
    /// applied; [`Glsn::MAX`] ends this. A removal that another member has begun earlier can still
    /// free it, unless the caller holds the files ([`crate::members::holds::Holds`]).
    pub fn hold_log(&self, from: Glsn) {
        self.table.set(SlotWord::LogHeld, from.0);
    }
}
