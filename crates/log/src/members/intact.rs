//! Whether the files and the words that members share are still those with which they joined.
//!
//! A lock excludes only those that lock the same file, and words tell something only to those that
//! map the same file. So the first member records in the words which files these are: every process
//! compares what it opens with that, and refuses what is different. Those that have joined check
//! now and then that the files still have their names, and that the words were not cleared.
//!
//! Laws:
//! 1. Every lock that is used is one of the file that is recorded. So a file that was removed or
//!    replaced lets no process in.
//! 2. From the moment at which a process that writes has joined, until it leaves, the first and the
//!    last word have the layout. If they have not, the words are lost, and nothing that they say is
//!    used: they are read first, and these two afterwards.
//! 3. Words that are lost stay so until all processes that write have left: only the first member
//!    makes them anew.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};

use plimsoll_disk::sharing::LockFile;

use crate::error::LogError;
use crate::glsn::Glsn;
use crate::members::reading::Access;
use crate::members::words::{
    JOIN_FILE, KEEPER_FILES, LAST, MAGIC, POISON, POSTING_FILE, SLOT_FILES, SLOTS, SYNC_FILE,
    SlotWord, TURN_FILE, WORDS_FILE_AT,
};
use crate::members::{LAYOUT, Members, WORDS_FILE, slot_path};

/// The least time between two checks of the files' names, in nanoseconds.
const CHECK_NANOS: u64 = 10_000_000;

/// The same for a process that only reads: shorter than another one needs to open the store and to
/// commit.
const READER_CHECK_NANOS: u64 = 1_000_000;

/// In the word that says that the log is poisoned: a sync failed.
pub(super) const SYNC_FAILED: u64 = 1;
/// As [`SYNC_FAILED`]: a shared file lost its name.
const FILE_LOST: u64 = 2;

/// What is to be done about files or words that are lost.
const REMEDY: &str = "close the store in every process, then open it again";

impl Members {
    /// Records the files of the locks and of the words. Law: the caller is the first member.
    pub(super) fn record_files(&self) {
        let words = self.words.words();
        for (at, identity) in self.own_files() {
            words[at].store(identity, Ordering::SeqCst);
        }
        words[LAST].store(LAYOUT, Ordering::SeqCst);
    }

    /// What this process has opened, and where it is recorded.
    fn own_files(&self) -> [(usize, u64); 5] {
        [
            (WORDS_FILE_AT, self.words.identity()),
            (JOIN_FILE, self.join.file().identity()),
            (TURN_FILE, self.turn.file().identity()),
            (SYNC_FILE, self.sync.file().identity()),
            (POSTING_FILE, self.posting.file().identity()),
        ]
    }

    /// Fails unless this process has opened the files that the others use.
    pub(super) fn compare_files(&self) -> Result<(), LogError> {
        let names = [None, Some("join"), Some("turn"), Some("sync"), Some("posting")];
        for ((at, identity), name) in self.own_files().into_iter().zip(names) {
            if self.word(at) != identity {
                return Err(replaced(
                    &name.map_or_else(|| self.words_path(), |name| self.dir.join(name)),
                ));
            }
        }
        let (generation, path) = self.keeper_lock_path();
        if self.may_write_words() && self.word(keeper_file(generation)) != 0 {
            self.compare(keeper_file(generation), &*self.disk.lock_file(&path)?, &path)?;
        }
        match &self.slot_lock {
            Some(lock) => {
                self.compare(SLOT_FILES + self.slot, &**lock, &slot_path(&self.dir, self.slot))
            }
            None => Ok(()),
        }
    }

    /// Fails unless a lock is of the file that is recorded, if one is.
    fn compare(&self, at: usize, lock: &dyn LockFile, path: &Path) -> Result<(), LogError> {
        let recorded = self.word(at);
        if recorded == 0 || recorded == lock.identity() { Ok(()) } else { Err(replaced(path)) }
    }

    /// As [`Members::compare`], of the lock of a slot.
    pub(super) fn compare_slot(&self, slot: usize, lock: &dyn LockFile) -> Result<(), LogError> {
        self.compare(SLOT_FILES + slot, lock, &slot_path(&self.dir, slot))
    }

    /// Records the file of this member's slot.
    pub(super) fn record_slot(&self) {
        if let Some(lock) = &self.slot_lock {
            self.words.words()[SLOT_FILES + self.slot].store(lock.identity(), Ordering::SeqCst);
        }
    }

    /// Records the file of a keeper's lock, or fails if another one is recorded. Law: the caller
    /// has that lock.
    pub(super) fn record_keeper(
        &self,
        generation: u64,
        lock: &dyn LockFile,
        path: &Path,
    ) -> Result<(), LogError> {
        let at = keeper_file(generation);
        let identity = lock.identity();
        match self.words.words()[at].compare_exchange(
            0,
            identity,
            Ordering::SeqCst,
            Ordering::SeqCst,
        ) {
            Err(recorded) if recorded != identity => Err(self.note_lost(replaced(path))),
            _ => Ok(()),
        }
    }

    /// Forgets the slots whose lock files are not those that were recorded. Law: no process that
    /// writes has the store open.
    pub(super) fn forget_strayed(&self) -> Result<(), LogError> {
        for slot in self.others_in_words() {
            let lock = self.open_slot(slot)?;
            if self.compare_slot(slot, &*lock).is_err() {
                self.note_ended(slot);
                self.words.words()[SLOT_FILES + slot].store(0, Ordering::SeqCst);
            }
        }
        Ok(())
    }

    /// Fails if the words are lost.
    ///
    /// # Errors
    /// `Format`, with the reason.
    pub(crate) fn check_words(&self) -> Result<(), LogError> {
        if self.are_words_whole() { Ok(()) } else { Err(self.lost_words()) }
    }

    /// Whether the words are of this version, and were not cleared or cut.
    pub fn are_words_known(&self) -> bool {
        self.word(LAST) == LAYOUT && self.word(MAGIC) == LAYOUT
    }

    /// Whether the words say something.
    pub(crate) fn are_words_whole(&self) -> bool {
        // What the caller has read of the words was read before.
        fence(Ordering::Acquire);
        if !self.needs_words.load(Ordering::Relaxed) {
            return true;
        }
        let words = self.words.words();
        // The last one first: if the file was cut, all are zero afterwards.
        words[LAST].load(Ordering::Relaxed) == LAYOUT
            && words[MAGIC].load(Ordering::Relaxed) == LAYOUT
    }

    /// The error of one that finds the words lost.
    pub(super) fn lost_words(&self) -> LogError {
        let what = match self.words.check() {
            Err(error) => return error.into(),
            Ok(()) => "the file was overwritten while processes share it",
        };
        LogError::Format { message: format!("{}: {what}; {REMEDY}", self.words_path().display()) }
    }

    /// Fails if nothing more may be ordered or made durable: the words are lost, a shared file is,
    /// or a sync failed in some process.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        self.check_words()?;
        let message = match self.word(POISON) {
            0 => return Ok(()),
            FILE_LOST => format!("a file that processes share was removed or replaced; {REMEDY}"),
            _ => "a sync failed in a process that has the log open".to_owned(),
        };
        Err(LogError::Format { message })
    }

    /// Fails if a file that members share has lost its name. Asks the system at most once in ten
    /// milliseconds.
    ///
    /// # Errors
    /// As said; the system.
    pub(crate) fn check_files(&self) -> Result<(), LogError> {
        if !self.is_time_to_check(CHECK_NANOS) {
            return Ok(());
        }
        self.check_names().map_err(|error| self.note_lost(error.into()))
    }

    pub(super) fn check_names(&self) -> io::Result<()> {
        self.words.check()?;
        for lock in [&self.join, &self.turn, &self.sync, &self.posting] {
            lock.file().check()?;
        }
        if let Some(lock) = &self.slot_lock {
            lock.check()?;
        }
        self.check_keeper_lock()
    }

    /// As [`Members::check_files`], of the words alone, for a process that only reads: what it
    /// follows may be another file by now.
    pub(super) fn check_followed(&self) -> Result<(), LogError> {
        if !self.is_time_to_check(READER_CHECK_NANOS) {
            return Ok(());
        }
        // Once they are lost, each read asks the system.
        self.words.check().map_err(|error| {
            self.next_check.store(0, Ordering::Relaxed);
            error.into()
        })
    }

    fn is_time_to_check(&self, interval: u64) -> bool {
        // Threads that check at the same moment do no harm.
        let (now, next) = (self.clock.monotonic_nanos(), self.next_check.load(Ordering::Relaxed));
        if now < next {
            return false;
        }
        self.next_check.store(now.saturating_add(interval), Ordering::Relaxed);
        true
    }

    /// This process has found what a member must not go on with: no member orders anything more,
    /// and all are told why.
    pub(crate) fn note_lost(&self, error: LogError) -> LogError {
        // Of the right to look, nothing is to be concluded about the others: a forked child has
        // none.
        let is_of_this_process =
            matches!(error, LogError::Io { kind: io::ErrorKind::PermissionDenied, .. });
        if !is_of_this_process && self.access == Access::Writes && self.are_words_whole() {
            self.poison_as(FILE_LOST);
        }
        // The next check fails, too.
        self.next_check.store(0, Ordering::Relaxed);
        error
    }

    /// `found`, which words said of the other members; if the words are lost, all is needed.
    pub(super) fn or_nothing(&self, found: Glsn) -> Glsn {
        if self.are_words_whole() { found } else { Glsn::NONE }
    }

    fn words_path(&self) -> PathBuf {
        self.dir.with_file_name(WORDS_FILE)
    }

    /// Whether words of a slot name a process that was not found to have ended.
    pub(super) fn is_in_use(&self, slot: usize) -> bool {
        self.slot_word(slot, SlotWord::Pid).load(Ordering::SeqCst) > 0
    }
}

/// Where the file of a generation's lock is recorded.
fn keeper_file(generation: u64) -> usize {
    KEEPER_FILES + (generation % SLOTS as u64) as usize
}

/// The error of one that has opened another file than the processes that have the store open.
fn replaced(path: &Path) -> LogError {
    let message = format!(
        "{}: the file was removed or replaced while processes share it; {REMEDY}",
        path.display()
    );
    LogError::Format { message }
}
