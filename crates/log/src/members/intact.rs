//! Checks that the shared files and words of the members are still those with which they joined.
//!
//! A lock excludes only processes that lock the same file, and words are shared only by processes
//! that map the same file. So the first member records the identities of these files in the words,
//! and every process compares the files that it opens with them and refuses different ones. Members
//! check regularly that the files still have their names, and that the words were not cleared.
//!
//! Laws:
//! 1. Every lock in use is on the recorded file. So no process can join by a file that was removed
//!    or replaced.
//! 2. From the time when a writing process has joined until it leaves, the first and the last word
//!    hold the layout version. If they do not, the words are lost, and no value in them is used:
//!    values are read first, and these two words afterwards.
//! 3. Lost words stay lost until all writing processes have left: only a first member initializes
//!    them.

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

/// The same for a read-only process: less time than another process needs to open the store and to
/// commit.
const READER_CHECK_NANOS: u64 = 1_000_000;

/// A value of the word for a poisoned log: a sync failed.
pub(super) const SYNC_FAILED: u64 = 1;
/// As [`SYNC_FAILED`]: a shared file lost its name.
const FILE_LOST: u64 = 2;

/// The remedy for files or words that are lost.
const REMEDY: &str = "close the store in every process, then open it again";

impl Members {
    /// Records the identities of the files of the locks and of the words. Law: the caller is the
    /// first member.
    pub(super) fn record_files(&self) {
        let words = self.words.words();
        for (at, identity) in self.own_files() {
            words[at].store(identity, Ordering::SeqCst);
        }
        words[LAST].store(LAYOUT, Ordering::SeqCst);
    }

    /// The identities of the files that this process has opened, and the words that record them.
    fn own_files(&self) -> [(usize, u64); 5] {
        [
            (WORDS_FILE_AT, self.words.identity()),
            (JOIN_FILE, self.join.file().identity()),
            (TURN_FILE, self.turn.file().identity()),
            (SYNC_FILE, self.sync.file().identity()),
            (POSTING_FILE, self.posting.file().identity()),
        ]
    }

    /// Fails unless this process has opened the recorded files.
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

    /// Fails unless a lock is on the recorded file, if one is recorded.
    fn compare(&self, at: usize, lock: &dyn LockFile, path: &Path) -> Result<(), LogError> {
        let recorded = self.word(at);
        if recorded == 0 || recorded == lock.identity() { Ok(()) } else { Err(replaced(path)) }
    }

    /// As [`Members::compare`], for the lock of a slot.
    pub(super) fn compare_slot(&self, slot: usize, lock: &dyn LockFile) -> Result<(), LogError> {
        self.compare(SLOT_FILES + slot, lock, &slot_path(&self.dir, slot))
    }

    /// Records the file of this member's slot.
    pub(super) fn record_slot(&self) {
        if let Some(lock) = &self.slot_lock {
            self.words.words()[SLOT_FILES + self.slot].store(lock.identity(), Ordering::SeqCst);
        }
    }

    /// Records the file of a keeper's lock, or fails if another file is recorded. Law: the caller
    /// holds that lock.
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

    /// Clears the slots whose lock files differ from the recorded ones. Law: no writing process has
    /// the store open.
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

    /// Whether the words are valid.
    pub(crate) fn are_words_whole(&self) -> bool {
        // Orders the caller's earlier reads of the words before this check.
        fence(Ordering::Acquire);
        if !self.needs_words.load(Ordering::Relaxed) {
            return true;
        }
        let words = self.words.words();
        // The last word first: if the file was truncated, all words read as zero afterwards.
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

    /// Fails if nothing more may be ordered or made durable, because the words or a shared file are
    /// lost, or because a sync failed in some process.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        self.check_words()?;
        let message = match self.word(POISON) {
            0 => return Ok(()),
            FILE_LOST => format!("a file that processes share was removed or replaced; {REMEDY}"),
            _ => "a sync failed in a process that has the log open".to_owned(),
        };
        Err(LogError::Format { message })
    }

    /// Fails if a file that members share has lost its name. Checks at most once in ten
    /// milliseconds.
    ///
    /// # Errors
    /// `Format` if one has; the system.
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

    /// As [`Members::check_files`], of the words alone, for a read-only process, whose words file
    /// may have been replaced.
    pub(super) fn check_followed(&self) -> Result<(), LogError> {
        if !self.is_time_to_check(READER_CHECK_NANOS) {
            return Ok(());
        }
        // Once the words are lost, each read checks again.
        self.words.check().map_err(|error| {
            self.next_check.store(0, Ordering::Relaxed);
            error.into()
        })
    }

    fn is_time_to_check(&self, interval: u64) -> bool {
        // Concurrent checks by several threads do no harm.
        let (now, next) = (self.clock.monotonic_nanos(), self.next_check.load(Ordering::Relaxed));
        if now < next {
            return false;
        }
        self.next_check.store(now.saturating_add(interval), Ordering::Relaxed);
        true
    }

    /// Poisons the log for all members with the reason `error`, after this process has found a
    /// condition under which no member may continue.
    pub(crate) fn note_lost(&self, error: LogError) -> LogError {
        // An error that only concerns this process's rights says nothing about other members: a
        // forked child may not use the locks.
        let is_of_this_process =
            matches!(error, LogError::Io { kind: io::ErrorKind::PermissionDenied, .. });
        if !is_of_this_process && self.access == Access::Writes && self.are_words_whole() {
            self.poison_as(FILE_LOST);
        }
        // Makes the next check fail, too.
        self.next_check.store(0, Ordering::Relaxed);
        error
    }

    /// Returns `found`, which was read from the words of other members; if the words are lost,
    /// returns the value that retains everything.
    pub(super) fn or_nothing(&self, found: Glsn) -> Glsn {
        if self.are_words_whole() { found } else { Glsn::NONE }
    }

    fn words_path(&self) -> PathBuf {
        self.dir.with_file_name(WORDS_FILE)
    }

    /// Whether the words of a slot name a process that has not been found to have ended.
    pub(super) fn is_in_use(&self, slot: usize) -> bool {
        self.slot_word(slot, SlotWord::Pid).load(Ordering::SeqCst) > 0
    }
}

/// The word that records the file of a generation's lock.
fn keeper_file(generation: u64) -> usize {
    KEEPER_FILES + (generation % SLOTS as u64) as usize
}

/// The error of a process that has opened a different file than the processes that have the store
/// open.
fn replaced(path: &Path) -> LogError {
    let message = format!(
        "{}: the file was removed or replaced while processes shared it; {REMEDY}",
        path.display()
    );
    LogError::Format { message }
}
