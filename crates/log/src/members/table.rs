//! The shared words, and this process's place in them: its slot.
//!
//! Every other owner of the members' state works with this one.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

use plimsoll_disk::clock::Clock;
use plimsoll_disk::sharing::{LockFile, SharedWords};
use plimsoll_disk::vfs::Disk;

use crate::error::LogError;
use crate::glsn::Glsn;
use crate::members::words::{
    KEEPER, LAST, LAYOUT, MAGIC, PREPARES, SLOT_WORDS, SLOTS, SLOTS_AT, STATE, Slot, SlotWord,
    WORDS,
};
use crate::members::{REMEDY, WORDS_FILE};

/// The use that a process makes of a shared store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads and writes.
    Writes,
    /// It reads, and has a slot.
    Reads,
    /// It reads, and has no right to write to the words; so it has no slot.
    Watches,
}

/// The words, and this process's slot.
pub struct Table {
    pub(super) words: Arc<dyn SharedWords>,
    /// [`SLOTS`] if this process has no slot.
    pub(super) slot: usize,
    /// `None` if this process may not write to the words, and therefore has no slot.
    pub(super) slot_lock: Option<Box<dyn LockFile>>,
    pub(super) access: Access,
    /// The values that this member has published in its slot.
    pub(super) published: [AtomicU64; SLOT_WORDS],
    pub(super) has_left: AtomicBool,
    /// Whether the words must have their layout: in a writing process, from the end of joining
    /// until leaving.
    pub(super) needs_words: AtomicBool,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) clock: Arc<dyn Clock>,
    /// The folder of the locks.
    pub(super) dir: PathBuf,
    /// The time for which this member waits for another one.
    pub(super) timeout: Duration,
}

impl Table {
    /// The number by which the words refer to this member: its slot, counted from one.
    pub(super) fn here(&self) -> u64 {
        self.slot as u64 + 1
    }

    /// The number of this member's slot.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Counts the wake-ups of [`Table::notify`].
    pub fn state(&self) -> u64 {
        self.word(STATE)
    }

    /// Wakes all members that wait for a change of the manifest, of the keeper, or of a request to
    /// the keeper.
    pub fn notify(&self) {
        self.ring(STATE);
    }

    /// Waits until [`Table::state`] differs from `seen`, or until `timeout` has elapsed.
    pub fn wait_for_change(&self, seen: u64, timeout: Duration) {
        self.words.wait(STATE, seen, timeout);
    }

    pub(super) fn ring(&self, word: usize) {
        if !self.may_write_words() {
            return;
        }
        self.words.words()[word].fetch_add(1, Ordering::SeqCst);
        self.words.wake(word, u32::MAX);
    }

    pub(super) fn word(&self, at: usize) -> u64 {
        self.words.words()[at].load(Ordering::SeqCst)
    }

    pub(super) fn slot_word(&self, slot: usize, word: SlotWord) -> &AtomicU64 {
        let Slot(at) = Slot::of(slot);
        debug_assert!(at >= SLOTS_AT && at + SLOT_WORDS <= WORDS);
        &self.words.words()[at + word as usize]
    }

    pub(super) fn set(&self, word: SlotWord, value: u64) {
        if self.has_left.load(Ordering::SeqCst) || !self.may_write_words() {
            return;
        }
        self.published[word as usize].store(value, Ordering::SeqCst);
        self.slot_word(self.slot, word).store(value, Ordering::SeqCst);
    }

    /// Fails if the words are lost.
    ///
    /// # Errors
    /// `Format` if the words were overwritten; an error of the operating system if their file was
    /// removed, replaced or truncated.
    pub(crate) fn check_words(&self) -> Result<(), LogError> {
        if self.are_words_whole() { Ok(()) } else { Err(self.lost_words()) }
    }

    /// Whether the words are of this version, and were not cleared or cut.
    pub fn are_words_known(&self) -> bool {
        self.word(LAST) == LAYOUT && self.word(MAGIC) == LAYOUT
    }

    /// Whether the words are valid.
    pub(crate) fn are_words_whole(&self) -> bool {
        // Orders the caller's earlier reads of the words before this check.
        fence(Ordering::Acquire);
        if !self.needs_words.load(Ordering::Relaxed) {
            return true;
        }
        let words = self.words.words();
        // Check the last word first, because if the file was truncated, all words read as zero
        // afterwards.
        words[LAST].load(Ordering::Relaxed) == LAYOUT
            && words[MAGIC].load(Ordering::Relaxed) == LAYOUT
    }

    /// The error of a process that finds the words lost.
    pub(super) fn lost_words(&self) -> LogError {
        let what = match self.words.check() {
            Err(error) => return error.into(),
            Ok(()) => "the file was overwritten while processes shared it",
        };
        LogError::Format { message: format!("{}: {what}; {REMEDY}", self.words_path().display()) }
    }

    /// Returns `found`, which was read from the words of other members; if the words are lost,
    /// returns the value that retains everything.
    pub(super) fn or_nothing(&self, found: Glsn) -> Glsn {
        if self.are_words_whole() { found } else { Glsn::NONE }
    }

    pub(super) fn words_path(&self) -> PathBuf {
        self.dir.with_file_name(WORDS_FILE)
    }

    /// Whether the words of a slot name a process that has not been found to have ended.
    pub(super) fn is_in_use(&self, slot: usize) -> bool {
        self.slot_word(slot, SlotWord::Pid).load(Ordering::SeqCst) > 0
    }

    /// Removes the member of this slot from the keeper's word, whether it is the keeper or
    /// preparing. Returns whether it was the keeper.
    pub(super) fn no_keeper(&self, slot: usize) -> bool {
        let keeper = slot as u64 + 1;
        self.clear_keeper(keeper | PREPARES);
        self.clear_keeper(keeper)
    }

    pub(super) fn clear_keeper(&self, named: u64) -> bool {
        self.words.words()[KEEPER]
            .compare_exchange(named, 0, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    pub(super) fn others_in_words(&self) -> impl Iterator<Item = usize> {
        (0..SLOTS).filter(|slot| *slot != self.slot && self.is_in_use(*slot))
    }

    /// Whether this process only reads.
    pub fn is_reader(&self) -> bool {
        self.access != Access::Writes
    }

    /// Whether this process has a slot, so that other members retain the data that it reads.
    pub fn has_slot(&self) -> bool {
        self.slot < SLOTS
    }

    /// Whether this process may write to the words.
    pub(super) fn may_write_words(&self) -> bool {
        self.access != Access::Watches
    }
}
