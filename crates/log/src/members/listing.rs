//! The living members: the values that each has published, and the oldest GLSNs that they need.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_disk::vfs::Disk;

use crate::error::LogError;
use crate::glsn::Glsn;
use crate::members::words::{
    KEEPER, LAST, LEFTOVERS, MAGIC, SLOT_FILES, SLOTS, Slot, SlotWord, WORDS,
};
use crate::members::{LAYOUT, LOCKS_DIR, Members, NO_BLOB, WORDS_FILE, slot_path};

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
    /// When it joined: microseconds since 1970 UTC.
    pub since_micros: u64,
    /// Whether it only reads.
    pub is_reader: bool,
    /// Whether it is this process.
    pub is_here: bool,
    /// The GLSN below which it frees the log, while it removes files of the log.
    pub removes_below: Option<Glsn>,
    /// The last GLSN that it had applied at its last report, which is twice a second while commits
    /// are made.
    pub applied: Glsn,
    /// Its memory budget in bytes.
    pub budget_bytes: u64,
}

impl Members {
    /// All living members; slots of those that have ended are cleared.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn list(&self) -> Result<Vec<Member>, LogError> {
        let mut members = self.others()?;
        if self.slot < SLOTS {
            members.push(self.member(self.slot));
        }
        members.sort_unstable_by_key(|member| member.since_micros);
        Ok(members)
    }

    /// Whether there are other members, according to the shared words alone. Killed members count
    /// until [`Members::list`] has found that they ended; readers that may not write to the folder
    /// do not count.
    pub fn has_others(&self) -> bool {
        self.others_in_words().next().is_some() || !self.are_words_whole()
    }

    pub(super) fn others_in_words(&self) -> impl Iterator<Item = usize> {
        (0..SLOTS).filter(|slot| *slot != self.slot && self.is_in_use(*slot))
    }

    /// The oldest GLSN that any of the other members may read at; [`Glsn::MAX`] if there are no
    /// others. Killed members count until [`Members::list`] has found that they ended.
    pub fn oldest_floor(&self) -> Glsn {
        self.oldest(SlotWord::Floor)
    }

    /// The first GLSN of the log that any of the other members may need: the one after the oldest
    /// of their checkpoints and applied GLSNs; [`Glsn::MAX`] if there are no others. Killed members
    /// count as for [`Members::oldest_floor`].
    pub fn oldest_needed(&self) -> Glsn {
        let oldest = self.oldest(SlotWord::Checkpoint).min(self.oldest(SlotWord::Applied));
        Glsn(oldest.0.saturating_add(1))
    }

    fn oldest(&self, word: SlotWord) -> Glsn {
        let words = self
            .others_in_words()
            .map(|slot| Glsn(self.slot_word(slot, word).load(Ordering::SeqCst)));
        let oldest = words.min().unwrap_or(Glsn::MAX);
        self.or_nothing(oldest)
    }

    /// The other living members; slots of members that have ended are cleared.
    ///
    /// # Errors
    /// `Format` if the words or the file of a member's lock are lost; otherwise an error
    /// of the operating system.
    pub fn others(&self) -> Result<Vec<Member>, LogError> {
        let mut others = Vec::new();
        for slot in self.others_in_words() {
            let lock = self.lock_of(slot)?;
            if lock.try_lock()? {
                // Its process has ended.
                if self.may_write_words() {
                    self.note_ended(slot);
                }
                lock.unlock();
            } else {
                others.push(self.member(slot));
            }
        }
        // Checked afterwards: if the words are lost, none of the values read above is valid.
        self.check_words()?;
        Ok(others)
    }

    /// Records that the process that owned this slot has ended. The caller must hold the slot's
    /// lock.
    pub(super) fn note_ended(&self, slot: usize) {
        self.no_keeper(slot);
        let has_left = self.slot_word(slot, SlotWord::Pid).swap(0, Ordering::SeqCst) == 0;
        if !has_left && self.slot_word(slot, SlotWord::BlobPin).load(Ordering::SeqCst) != NO_BLOB {
            self.words.words()[LEFTOVERS].fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The number of members that ended while they may have been writing blob files, and so may
    /// have left unnamed ones.
    pub fn leftovers(&self) -> u64 {
        self.word(LEFTOVERS)
    }

    fn member(&self, slot: usize) -> Member {
        Member { is_here: slot == self.slot, ..member_in(self.words.words(), slot) }
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
            // Its process has ended.
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
