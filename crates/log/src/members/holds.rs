//! Holds of files: while a member reads all files of the log, no other member removes any.
//!
//! Invariant: a member that removes files first publishes the GLSN below which it frees the log,
//! and then checks whether another member holds the files. A member that takes a hold first
//! publishes the hold, and then reads the GLSNs that others have published. So at least one of the
//! two sees the other, and the holder need not wait for a member that was suspended while removing.
//! The holder treats the published part of the log as gone. A blob file that is removed in spite of
//! the hold is one that no record and no run names, now or later.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::error::LogError;
use crate::glsn::Glsn;
use crate::members::slots::Slots;
use crate::members::table::Table;
use crate::members::words::{REMOVED, SLOTS, STATE, SlotWord};

/// The time for which a hold waits for a removal. A removal that takes longer is that of a
/// suspended member, or removes very many files.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(2);

/// A value of `SlotWord::Removing`: files are being removed, but no part of the log is being freed
/// yet.
const REMOVES: u64 = 1;

/// A hold: while it exists, no other member removes files.
#[derive(Debug)]
pub struct Held {
    holds: Arc<Holds>,
    gone_below: Glsn,
}

/// A removal, which began while no other member held the files.
#[derive(Debug)]
pub struct Removal<'a>(&'a Holds);

/// The holds and removals of this member.
pub struct Holds {
    table: Arc<Table>,
    slots: Arc<Slots>,
    /// Held while files of the log are removed.
    removing: Mutex<()>,
}

impl Holds {
    pub(super) fn new(table: &Arc<Table>, slots: &Arc<Slots>) -> Self {
        Self { table: Arc::clone(table), slots: Arc::clone(slots), removing: Mutex::new(()) }
    }

    /// Until the result is dropped, keeps other members from removing any file that this member
    /// knows, except those below [`Held::gone_below`]. Waits at most two seconds for a removal that
    /// is in progress. A member that may not write to the shared words holds nothing.
    ///
    /// # Errors
    /// An error of the operating system.
    pub fn hold_files(self: &Arc<Self>) -> Result<Held, LogError> {
        if !self.table.may_write_words() {
            return Ok(Held { holds: Arc::clone(self), gone_below: Glsn::NONE });
        }
        self.table.published[SlotWord::Holds as usize].fetch_add(1, Ordering::SeqCst);
        self.table.slot_word(self.table.slot, SlotWord::Holds).fetch_add(1, Ordering::SeqCst);
        let mut held = Held { holds: Arc::clone(self), gone_below: Glsn::NONE };
        for _ in 0..REMOVAL_TIMEOUT.min(self.table.timeout).as_millis().max(1) {
            let is_removing = |slot: &usize| {
                self.table.slot_word(*slot, SlotWord::Removing).load(Ordering::SeqCst) > 0
            };
            let others = || (0..SLOTS).filter(|slot| *slot != self.table.slot);
            if !others().any(|slot| is_removing(&slot)) {
                return Ok(held);
            }
            // The slot of a member that was killed meanwhile is cleared here.
            if self.slots.others()?.iter().all(|member| member.removes_below.is_none()) {
                return Ok(held);
            }
            self.table.words.wait(STATE, self.table.state(), Duration::from_millis(1));
        }
        held.gone_below = self
            .slots
            .others()?
            .iter()
            .filter_map(|member| member.removes_below)
            .max()
            .unwrap_or(Glsn::NONE);
        Ok(held)
    }

    /// Whether another member holds the files, as far as is known. Killed members count until
    /// [`crate::members::slots::Slots::list`] has found that they ended.
    pub fn are_files_held(&self) -> bool {
        let holds =
            |slot: usize| self.table.slot_word(slot, SlotWord::Holds).load(Ordering::SeqCst) > 0;
        let are_held = self.table.others_in_words().any(holds);
        are_held || !self.table.are_words_whole()
    }

    /// Runs `remove`, which removes files of the log; returns `None` without running it if another
    /// member holds them.
    pub fn unless_held<T>(&self, remove: impl FnOnce(&Removal<'_>) -> T) -> Option<T> {
        // All threads of a process share one word.
        let _alone = self.removing.lock().unwrap_or_else(PoisonError::into_inner);
        // Either the next member to take a hold sees this, or this thread sees its hold.
        self.table.set(SlotWord::Removing, REMOVES);
        let before = self.removed();
        let removed = if self.are_files_held() { None } else { Some(remove(&Removal(self))) };
        self.table.set(SlotWord::Removing, 0);
        if self.removed() != before {
            // Wake members that have the removed files open, because open files still use space.
            self.table.notify();
        }
        removed
    }

    /// Counts a file of the log that was removed.
    pub(crate) fn note_removed(&self) {
        self.table.words.words()[REMOVED].fetch_add(1, Ordering::SeqCst);
    }

    /// The number of files of the log that were removed, by any member.
    pub(crate) fn removed(&self) -> u64 {
        self.table.word(REMOVED)
    }
}

impl fmt::Debug for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holds(of slot {})", self.table.slot)
    }
}

impl Removal<'_> {
    /// Publishes that the log is freed below `until`. Returns whether it may be freed, which is so
    /// if no other member holds the files.
    pub fn may_free_below(&self, until: Glsn) -> bool {
        self.0.table.set(SlotWord::Removing, until.0.max(REMOVES));
        !self.0.are_files_held()
    }
}

impl Held {
    /// Segments of the log that end below this GLSN may be removed in spite of the hold, because a
    /// member was suspended while it removed them.
    pub fn gone_below(&self) -> Glsn {
        self.gone_below
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let table = &self.holds.table;
        if table.may_write_words() && !table.has_left.load(Ordering::SeqCst) {
            table.published[SlotWord::Holds as usize].fetch_sub(1, Ordering::SeqCst);
            // The count may be zero already, because the first member to join initializes the
            // words.
            let less = |holds: u64| holds.checked_sub(1);
            let holds = table.slot_word(table.slot, SlotWord::Holds);
            let _ = holds.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
            table.notify();
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
    use crate::members::Members;

    fn members(disk: &Arc<dyn Disk>, is_first: bool) -> Arc<Members> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let members =
            Members::join(disk, &clock, Path::new("/"), Duration::from_millis(100)).unwrap();
        members.begin(is_first, 7, 0).unwrap();
        members.joined();
        Arc::new(members)
    }

    #[test]
    fn a_hold_does_not_wait_for_a_member_suspended_while_removing_files() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let (stopped, other) = (members(&disk, true), members(&disk, false));
        let removed = stopped.holds.unless_held(|removal| {
            // Suspended before publishing what to free, so it frees nothing.
            let held = other.holds.hold_files().unwrap();
            assert_eq!(held.gone_below(), Glsn::NONE.next());
            assert!(!removal.may_free_below(Glsn(30)));
            drop(held);
            assert!(removal.may_free_below(Glsn(40)));
            // Suspended afterwards: it may resume at any time.
            let held = other.holds.hold_files().unwrap();
            assert_eq!(held.gone_below(), Glsn(40));
        });
        assert_eq!(removed, Some(()));
        let held = other.holds.hold_files().unwrap();
        assert_eq!(held.gone_below(), Glsn::NONE);
        assert_eq!(stopped.holds.unless_held(|_| ()), None);
    }

    #[test]
    fn two_threads_of_a_process_do_not_remove_files_at_once() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let (one, other) = (members(&disk, true), members(&disk, false));
        let is_removing = || other.slots.others().unwrap()[0].removes_below.is_some();
        std::thread::scope(|scope| {
            one.holds.unless_held(|_| {
                scope.spawn(|| one.holds.unless_held(|_| ()));
                SystemClock::new().sleep(Duration::from_millis(50));
                assert!(is_removing());
            });
        });
        assert!(!is_removing());
    }
}
