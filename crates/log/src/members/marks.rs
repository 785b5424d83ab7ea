//! The marks that all members agree on: the end of the log, its durable end, its first GLSN, the
//! newest manifest, and what members want flushed.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use crate::error::LogError;
use crate::glsn::Glsn;
use crate::members::table::Table;
use crate::members::words::{
    CLOSE_WANTED, Durable, ENTRIES_MAX, End, FLUSH_WANTED, LOG_FIRST, MANIFEST, MUST_APPLY_UPTO,
    Published, RESTING,
};

/// The marks.
pub struct Marks {
    table: Arc<Table>,
    end: Published<6>,
    pub(super) durable: Published<4>,
}

impl Marks {
    pub(super) fn new(table: &Arc<Table>) -> Self {
        Self { table: Arc::clone(table), end: Published::end(), durable: Published::durable() }
    }

    /// The GLSN up to which a member applies the log before it orders a record. It is constant
    /// while the caller holds the turn.
    pub fn must_apply_upto(&self) -> Glsn {
        Glsn(self.table.word(MUST_APPLY_UPTO))
    }

    /// From now on, members apply the record at `glsn` before they order another one. The caller
    /// must hold the turn and order that record next. (If it fails to do so, members apply more
    /// than they need.)
    pub fn set_must_apply_upto(&self, glsn: Glsn) {
        self.table.words.words()[MUST_APPLY_UPTO].fetch_max(glsn.0, Ordering::SeqCst);
    }

    /// The first GLSN of the log, as published by the members that trim it.
    pub fn log_first(&self) -> Glsn {
        Glsn(self.table.word(LOG_FIRST))
    }

    /// Publishes that the log begins at `first` from now on.
    pub(crate) fn set_log_first(&self, first: Glsn) {
        self.table.words.words()[LOG_FIRST].fetch_max(first.0, Ordering::SeqCst);
    }

    /// The end of the log, for all members.
    pub(crate) fn end(&self) -> End {
        End::of(self.end.read(&*self.table.words))
    }

    /// The GLSN of the next entry of the log, whichever member orders it.
    pub fn next(&self) -> Glsn {
        self.end().next
    }

    /// The last entry of the log, whichever member ordered it.
    ///
    /// # Errors
    /// If the words are lost, the error of `Table::check_words`.
    pub fn newest_ordered(&self) -> Result<Glsn, LogError> {
        let last = Glsn(self.next().0.saturating_sub(1));
        if self.table.are_words_whole() { Ok(last) } else { Err(self.table.lost_words()) }
    }

    /// Publishes a new end. The caller must hold the turn.
    pub(crate) fn set_end(&self, end: &End) {
        self.end.write(&*self.table.words, end.words());
    }

    /// The durable end of the log.
    pub(crate) fn durable(&self) -> Durable {
        Durable::of(self.durable.read(&*self.table.words))
    }

    /// The last durable GLSN, whichever member synced it.
    pub fn durable_glsn(&self) -> Glsn {
        Glsn(self.durable().next.0.saturating_sub(1))
    }

    /// The maximum number of entries of a segment: the smallest of the limits that the memory of
    /// each member sets.
    pub(crate) fn entries_max(&self) -> u32 {
        self.table.word(ENTRIES_MAX) as u32
    }

    /// Lowers the maximum of [`Marks::entries_max`] to `most`, the number of entries that this
    /// member's memory allows.
    pub(crate) fn allow_entries(&self, most: u32) {
        let most = u64::from(most);
        let lower = |now: u64| (now == 0 || now > most).then_some(most);
        let _ = self.table.words.words()[ENTRIES_MAX].fetch_update(
            Ordering::SeqCst,
            Ordering::SeqCst,
            lower,
        );
    }

    /// The number of the newest manifest that the keeper has installed.
    pub fn manifest(&self) -> u64 {
        self.table.word(MANIFEST)
    }

    /// Publishes that the keeper has installed a manifest, and wakes all other members.
    pub fn set_manifest(&self, number: u64) {
        // `fetch_max`: a keeper that was suspended here and then replaced does not lower the
        // number.
        self.table.words.words()[MANIFEST].fetch_max(number, Ordering::SeqCst);
        self.table.notify();
    }

    /// The GLSN up to which some member wants the index flushed.
    pub fn flush_requested(&self) -> Glsn {
        Glsn(self.table.word(FLUSH_WANTED))
    }

    /// Asks the keeper to flush up to this GLSN. Wakes the members only if this was not asked for
    /// before, so that repeated requests do not wake the others, and this member itself, each time.
    pub fn request_flush(&self, glsn: Glsn) {
        if self.table.may_write_words()
            && self.table.words.words()[FLUSH_WANTED].fetch_max(glsn.0, Ordering::SeqCst) < glsn.0
        {
            self.table.notify();
        }
    }

    /// The GLSN up to which the keeper wants memtables closed.
    pub fn close_requested(&self) -> Glsn {
        Glsn(self.table.word(CLOSE_WANTED))
    }

    /// Asks all members to close the memtables that hold anything up to this GLSN, and to have them
    /// flushed, because these memtables pin the log. Only the keeper calls this. A call by a keeper
    /// that was replaced in the meantime costs a needless flush, but no data.
    pub fn request_close(&self, glsn: Glsn) {
        self.table.words.words()[CLOSE_WANTED].fetch_max(glsn.0, Ordering::SeqCst);
        self.table.notify();
    }

    /// As [`crate::members::table::Table::wait_for_change`], but also ends at the next sync of a
    /// commit. `next` and `durable` are [`Marks::next`] and the durable GLSN as this member read
    /// them before its last check; if either has changed since, returns at once.
    pub fn rest(&self, seen: u64, next: Glsn, durable: Glsn, timeout: Duration) {
        if self.table.may_write_words() {
            // Set the word first: then a commit that is already published or durable is seen below,
            // and the sync of a later commit sees the word.
            self.table.words.words()[RESTING].store(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
        if self.next() == next && self.durable_glsn() == durable {
            self.table.wait_for_change(seen, timeout);
        }
    }
}
