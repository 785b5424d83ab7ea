//! Ids of blob files, which are unique among all members, and the files that members are writing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::LogError;
use crate::members::NO_BLOB;
use crate::members::slots::Slots;
use crate::members::table::Table;
use crate::members::words::{BLOB_MARK, SlotWord};

/// Assigns ids of blob files.
pub struct BlobIds {
    table: Arc<Table>,
    slots: Arc<Slots>,
}

impl BlobIds {
    pub(super) fn new(table: &Arc<Table>, slots: &Arc<Slots>) -> Self {
        Self { table: Arc::clone(table), slots: Arc::clone(slots) }
    }

    /// The highest blob file id that any member has assigned.
    pub(crate) fn last_blob_id(&self) -> u64 {
        self.table.word(BLOB_MARK)
    }

    /// Sets the id of [`BlobIds::last_blob_id`]. Only the first member calls this.
    pub(crate) fn set_last_blob_id(&self, id: u64) {
        self.table.words.words()[BLOB_MARK].store(id, Ordering::SeqCst);
    }

    /// Assigns the next blob file id, at most `last`; `None` if the words are lost.
    pub(crate) fn next_blob_id(&self, last: u64) -> Option<u64> {
        let next = |before: u64| (before < last).then(|| before + 1);
        let before = self.table.words.words()[BLOB_MARK]
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, next)
            .ok()?;
        self.table.are_words_whole().then_some(before + 1)
    }

    /// Publishes that this member may be writing blob files from this id on; `None` if it writes
    /// none.
    pub(crate) fn pin_blobs(&self, from: Option<u64>) {
        self.table.set(SlotWord::BlobPin, from.unwrap_or(NO_BLOB));
    }

    /// An id below which no other member is writing a blob file.
    pub(crate) fn oldest_blob_pin(&self) -> Result<u64, LogError> {
        // Clear the slots of members that have ended first, because these write nothing.
        self.slots.others()?;
        let pins = self
            .table
            .others_in_words()
            .map(|slot| self.table.slot_word(slot, SlotWord::BlobPin).load(Ordering::SeqCst));
        let oldest = pins.min().unwrap_or(NO_BLOB);
        self.table.check_words().map(|()| oldest)
    }
}
