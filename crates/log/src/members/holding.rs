//! Holds of files: while a member reads all of them, no other one removes any.
//!
//! Law: who removes says first below which GLSN it frees the log, and then looks whether a member
//! holds the files; who holds them looks at that after it has said so. So one of the two sees the
//! other: a member that was stopped in the middle of removing is not waited for. What it said it
//! frees is gone for who holds the files; the blob files that it removes are named by no record and
//! no run, and never will be.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::error::LogError;
use crate::glsn::Glsn;
use crate::members::Members;
use crate::members::words::{REMOVED, SLOTS, STATE, SlotWord};

/// How long a removal is waited for: one that takes longer was stopped, or frees very much.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(2);

/// Files are being removed, and nothing of the log is freed yet.
const REMOVES: u64 = 1;

/// While it is there, no other member removes files.
#[derive(Debug)]
pub struct Held {
    members: Arc<Members>,
    gone_below: Glsn,
}

/// A removal that no member had held the files against when it began.
#[derive(Debug)]
pub struct Removal<'a>(&'a Members);

impl Members {
    /// From now on no other member removes a file that this one knows, until what is returned is
    /// dropped; but see [`Held::gone_below`]. Waits for a removal that is under way, at most two
    /// seconds. Without the right to write there, nothing is held.
    ///
    /// # Errors
    /// The system.
    pub fn hold_files(self: &Arc<Self>) -> Result<Held, LogError> {
        if !self.may_write_words() {
            return Ok(Held { members: Arc::clone(self), gone_below: Glsn::NONE });
        }
        self.said[SlotWord::Holds as usize].fetch_add(1, Ordering::SeqCst);
        self.slot_word(self.slot, SlotWord::Holds).fetch_add(1, Ordering::SeqCst);
        let mut held = Held { members: Arc::clone(self), gone_below: Glsn::NONE };
        for _ in 0..REMOVAL_PATIENCE.min(self.patience).as_millis().max(1) {
            let is_removing =
                |slot: &usize| self.slot_word(*slot, SlotWord::Removing).load(Ordering::SeqCst) > 0;
            let others = || (0..SLOTS).filter(|slot| *slot != self.slot);
            if !others().any(|slot| is_removing(&slot)) {
                return Ok(held);
            }
            // Of one that was killed meanwhile, it says nothing.
            if self.others()?.iter().all(|member| member.removes_below.is_none()) {
                return Ok(held);
            }
            self.words.wait(STATE, self.state(), Duration::from_millis(1));
        }
        held.gone_below = self
            .others()?
            .iter()
            .filter_map(|member| member.removes_below)
            .max()
            .unwrap_or(Glsn::NONE);
        Ok(held)
    }

    /// Whether another member holds the files, as far as it is known. Of one that was killed, too,
    /// until [`Members::list`] has found that it ended.
    pub fn are_files_held(&self) -> bool {
        let holds = |slot: usize| self.slot_word(slot, SlotWord::Holds).load(Ordering::SeqCst) > 0;
        let are_held = self.others_in_words().any(holds);
        are_held || !self.are_words_whole()
    }

    /// Runs `remove`, which removes files of the log, unless another member holds them; then
    /// returns `None`.
    pub fn unless_held<T>(&self, remove: impl FnOnce(&Removal<'_>) -> T) -> Option<T> {
        // The word is one for all threads of a process.
        let _alone = self.removing.lock().unwrap_or_else(PoisonError::into_inner);
        // Either this is seen by who holds the files next, or its hold is seen here.
        self.set(SlotWord::Removing, REMOVES);
        let before = self.removed();
        let removed = if self.are_files_held() { None } else { Some(remove(&Removal(self))) };
        self.set(SlotWord::Removing, 0);
        if self.removed() != before {
            // Those that have the files open keep their space.
            self.tell();
        }
        removed
    }

    /// A file of the log was removed.
    pub(crate) fn note_removed(&self) {
        self.words.words()[REMOVED].fetch_add(1, Ordering::SeqCst);
    }

    /// How many files of the log were removed, by any member.
    pub(crate) fn removed(&self) -> u64 {
        self.word(REMOVED)
    }
}

impl Removal<'_> {
    /// Says that the log is freed below `until`; returns whether it may be: no member has held the
    /// files since.
    pub fn may_free_below(&self, until: Glsn) -> bool {
        self.0.set(SlotWord::Removing, until.0.max(REMOVES));
        !self.0.are_files_held()
    }
}

impl Held {
    /// Segments of the log that end below this GLSN may go all the same: a member was stopped in
    /// the middle of removing them.
    pub fn gone_below(&self) -> Glsn {
        self.gone_below
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.members.may_write_words() && !self.members.has_left.load(Ordering::SeqCst) {
            self.members.said[SlotWord::Holds as usize].fetch_sub(1, Ordering::SeqCst);
            // Cleared, if a first member has made the words anew.
            let less = |holds: u64| holds.checked_sub(1);
            let holds = self.members.slot_word(self.members.slot, SlotWord::Holds);
            let _ = holds.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
            self.members.tell();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use plimsoll_disk::clock::{Clock, SystemClock};
    use plimsoll_disk::mem::MemDisk;
    use plimsoll_disk::vfs::Disk;

    use super::*;

    fn members(disk: &Arc<dyn Disk>, is_first: bool) -> Arc<Members> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let members =
            Members::join(disk, &clock, Path::new("/"), Duration::from_millis(100)).unwrap();
        members.begin(is_first, 7, 0).unwrap();
        members.joined();
        Arc::new(members)
    }

    #[test]
    fn who_holds_files_does_not_wait_for_one_that_was_stopped_while_it_removed_some() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let (stopped, other) = (members(&disk, true), members(&disk, false));
        let removed = stopped.unless_held(|removal| {
            // Stopped before it has said what it frees: it will free nothing.
            let held = other.hold_files().unwrap();
            assert_eq!(held.gone_below(), Glsn::NONE.next());
            assert!(!removal.may_free_below(Glsn(30)));
            drop(held);
            assert!(removal.may_free_below(Glsn(40)));
            // Stopped afterwards: it may go on whenever it likes.
            let held = other.hold_files().unwrap();
            assert_eq!(held.gone_below(), Glsn(40));
        });
        assert_eq!(removed, Some(()));
        let held = other.hold_files().unwrap();
        assert_eq!(held.gone_below(), Glsn::NONE);
        assert_eq!(stopped.unless_held(|_| ()), None);
    }

    #[test]
    fn two_threads_of_a_process_do_not_remove_files_at_once() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let (one, other) = (members(&disk, true), members(&disk, false));
        let is_removing = || other.others().unwrap()[0].removes_below.is_some();
        std::thread::scope(|scope| {
            one.unless_held(|_| {
                scope.spawn(|| one.unless_held(|_| ()));
                SystemClock::new().sleep(Duration::from_millis(50));
                assert!(is_removing());
            });
        });
        assert!(!is_removing());
    }
}
