//! The living members: the values that each has published, and the oldest GLSNs that they need.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use plimsoll_disk::sharing::LockFile;
use plimsoll_disk::vfs::Disk;

use crate::error::LogError;
use crate::glsn::Glsn;
use crate::members::table::Table;
use crate::members::words::{
    KEEPER, LAST, LAYOUT, LEFTOVERS, MAGIC, SLOT_FILES, SLOTS, Slot, SlotWord, WORDS,
};
use crate::members::{LOCKS_DIR, NO_BLOB, WORDS_FILE, replaced, slot_path};

/// The known facts about a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its process id, within its own container.
    pub pid: u32,
    /// Whether it is the keeper.
    pub is_keeper: bool,
    /// The oldest GLSN that it may read at.
    pub floor: Glsn,
    /// The last commit in its manifest; it may still need the log after that.
    pub checkpoint: Glsn,
    /// The time at which it joined, in microseconds since 1970 UTC.
    pub since_micros: u64,
    /// Whether it only reads.
    pub is_reader: bool,
    /// Whether it is this process.
    pub is_here: bool,
    /// The GLSN below which it frees the log, while it removes files of the log.
    pub removes_below: Option<Glsn>,
    /// The last GLSN that it had applied at its last report. It reports twice a second while
    /// commits are made.
    pub applied: Glsn,
    /// Its memory budget in bytes.
    pub budget_bytes: u64,
}

/// The slots of all members: which of them belong to living processes.
pub struct Slots {
    table: Arc<Table>,
    /// Handles of the slots' locks, to check whether their processes are alive.
    slot_locks: [OnceLock<Box<dyn LockFile>>; SLOTS],
}

impl Slots {
    pub(super) fn new(table: &Arc<Table>) -> Self {
        Self { table: Arc::clone(table), slot_locks: [const { OnceLock::new() }; SLOTS] }
    }

    /// Fails if the word `at` records a file, and `lock` is on another file.
    pub(super) fn compare(
        &self,
        at: usize,
        lock: &dyn LockFile,
        path: &Path,
    ) -> Result<(), LogError> {
        let recorded = self.table.word(at);
        if recorded == 0 || recorded == lock.identity() { Ok(()) } else { Err(replaced(path)) }
    }

    /// As [`Slots::compare`], for the lock of a slot.
    pub(super) fn compare_slot(&self, slot: usize, lock: &dyn LockFile) -> Result<(), LogError> {
        self.compare(SLOT_FILES + slot, lock, &slot_path(&self.table.dir, slot))
    }

    /// Records the file of this member's slot.
    pub(super) fn record_slot(&self) {
        if let Some(lock) = &self.table.slot_lock {
            self.table.words.words()[SLOT_FILES + self.table.slot]
                .store(lock.identity(), Ordering::SeqCst);
        }
    }

    /// Clears the slots whose lock files differ from the recorded ones. No writing process may have
    /// the store open.
    pub(super) fn clear_mismatched(&self) -> Result<(), LogError> {
        for slot in self.table.others_in_words() {
            let lock = self.open_slot(slot)?;
            if self.compare_slot(slot, &*lock).is_err() {
                self.note_ended(slot);
                self.table.words.words()[SLOT_FILES + slot].store(0, Ordering::SeqCst);
            }
        }
        Ok(())
    }

    /// All living members; slots of those that have ended are cleared.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn list(&self) -> Result<Vec<Member>, LogError> {
        let mut members = self.others()?;
        if self.table.slot < SLOTS {
            members.push(self.member(self.table.slot));
        }
        members.sort_unstable_by_key(|member| member.since_micros);
        Ok(members)
    }

    /// Whether there are other members, according to the shared words alone. Killed members count
    /// until [`Slots::list`] has found that they ended; readers that may not write to the folder
    /// do not count.
    pub fn has_others(&self) -> bool {
        self.table.others_in_words().next().is_some() || !self.table.are_words_whole()
    }

    /// The oldest GLSN that any of the other members may read at; [`Glsn::MAX`] if there are no
    /// others. Killed members count until [`Slots::list`] has found that they ended.
    pub fn oldest_floor(&self) -> Glsn {
        self.oldest(SlotWord::Floor)
    }

    /// The first GLSN of the log that any of the other members may need; [`Glsn::MAX`] if there are
    /// no others. A member needs what is after its checkpoint, what it has not applied, and what it
    /// holds. Killed members count as for [`Slots::oldest_floor`].
    pub fn oldest_needed(&self) -> Glsn {
        let oldest = self.oldest(SlotWord::Checkpoint).min(self.oldest(SlotWord::Applied));
        Glsn(oldest.0.saturating_add(1)).min(self.oldest(SlotWord::LogHeld))
    }

    fn oldest(&self, word: SlotWord) -> Glsn {
        let words = self
            .table
            .others_in_words()
            .map(|slot| Glsn(self.table.slot_word(slot, word).load(Ordering::SeqCst)));
        let oldest = words.min().unwrap_or(Glsn::MAX);
        self.table.or_nothing(oldest)
    }

    /// The other living members; slots of members that have ended are cleared.
    ///
    /// # Errors
    /// `Format` if the words were overwritten, or if the file of a member's lock was replaced; an
    /// error of the operating system.
    pub fn others(&self) -> Result<Vec<Member>, LogError> {
        let mut others = Vec::new();
        for slot in self.table.others_in_words() {
            let lock = self.lock_of(slot)?;
            if lock.try_lock()? {
                // The process of this slot has ended.
                if self.table.may_write_words() {
                    self.note_ended(slot);
                }
                lock.unlock();
            } else {
                others.push(self.member(slot));
            }
        }
        // Check the words last: if they are lost, none of the values read above is valid.
        self.table.check_words()?;
        Ok(others)
    }

    /// Records that the process that owned this slot has ended. The caller must hold the slot's
    /// lock.
    pub(super) fn note_ended(&self, slot: usize) {
        self.table.no_keeper(slot);
        let has_left = self.table.slot_word(slot, SlotWord::Pid).swap(0, Ordering::SeqCst) == 0;
        if !has_left
            && self.table.slot_word(slot, SlotWord::BlobPin).load(Ordering::SeqCst) != NO_BLOB
        {
            self.table.words.words()[LEFTOVERS].fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The number of members that ended while they may have been writing blob files, and so may
    /// have left blob files that no record names.
    pub fn leftovers(&self) -> u64 {
        self.table.word(LEFTOVERS)
    }

    fn member(&self, slot: usize) -> Member {
        Member { is_here: slot == self.table.slot, ..member_in(self.table.words.words(), slot) }
    }

    /// The living members that write.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn writers(&self) -> Result<Vec<Member>, LogError> {
        let mut writers = self.others()?;
        writers.retain(|member| !member.is_reader);
        Ok(writers)
    }

    /// The lock of a slot, if its file is the one that is recorded.
    pub(super) fn lock_of(&self, slot: usize) -> Result<Box<dyn LockFile>, LogError> {
        let lock = self.open_slot(slot)?;
        self.compare_slot(slot, &*lock)?;
        Ok(lock)
    }

    pub(super) fn open_slot(&self, slot: usize) -> Result<Box<dyn LockFile>, LogError> {
        let path = slot_path(&self.table.dir, slot);
        Ok(if self.table.may_write_words() {
            self.table.disk.lock_file(&path)?
        } else {
            self.table.disk.lock_file_to_read(&path)?
        })
    }

    /// Whether the process of a slot is alive. Tries the slot's lock, because the slot's words name
    /// a killed process until some member notices its end. False if the file of that lock is not
    /// the recorded one.
    pub(super) fn is_alive(&self, slot: usize) -> bool {
        if slot == self.table.slot {
            return true;
        }
        let lock = match self.slot_locks[slot].get() {
            Some(lock) => lock,
            None => match self.lock_of(slot) {
                Ok(lock) => self.slot_locks[slot].get_or_init(|| lock),
                Err(_) => return false,
            },
        };
        match lock.try_lock() {
            Ok(true) => {
                lock.unlock();
                false
            }
            Ok(false) => true,
            Err(_) => false,
        }
    }
}

/// The members of the store at `path`, the oldest first, for a process that is not a member.
///
/// # Errors
/// An error of the operating system, for example if this process may not write there.
pub fn members_of(disk: &Arc<dyn Disk>, path: &Path) -> Result<Vec<Member>, LogError> {
    let (dir, file) = (path.join(LOCKS_DIR), path.join(WORDS_FILE));
    if disk.entry(&dir)?.is_none() || disk.entry(&file)?.is_none() {
        return Ok(Vec::new());
    }
    let words = disk.shared_words_to_read(&file, WORDS)?;
    let words = words.words();
    let mut members = Vec::new();
    let is_whole = [MAGIC, LAST].iter().all(|at| words[*at].load(Ordering::SeqCst) == LAYOUT);
    for slot in (0..SLOTS).filter(|_| is_whole) {
        let member = member_in(words, slot);
        if member.pid == 0 {
            continue;
        }
        let lock = disk.lock_file_to_read(&slot_path(&dir, slot))?;
        let recorded = words[SLOT_FILES + slot].load(Ordering::SeqCst);
        // Only a lock on the recorded file proves that the process has ended.
        if [0, lock.identity()].contains(&recorded) && lock.try_lock()? {
            // The process of this slot has ended.
            lock.unlock();
        } else {
            members.push(member);
        }
    }
    members.sort_unstable_by_key(|member| member.since_micros);
    Ok(members)
}

fn member_in(words: &[AtomicU64], slot: usize) -> Member {
    let Slot(at) = Slot::of(slot);
    let word = |word: SlotWord| words[at + word as usize].load(Ordering::SeqCst);
    Member {
        pid: word(SlotWord::Pid) as u32,
        is_keeper: words[KEEPER].load(Ordering::SeqCst) == slot as u64 + 1,
        floor: Glsn(word(SlotWord::Floor)),
        checkpoint: Glsn(word(SlotWord::Checkpoint)),
        since_micros: word(SlotWord::Since),
        is_reader: word(SlotWord::Reads) > 0,
        is_here: false,
        removes_below: Some(Glsn(word(SlotWord::Removing))).filter(|below| *below > Glsn::NONE),
        applied: Glsn(word(SlotWord::Applied)),
        budget_bytes: word(SlotWord::Budget),
    }
}
