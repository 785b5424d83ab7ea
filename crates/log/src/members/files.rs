//! Checks that the shared files and words of the members are still those with which they joined.
//!
//! A lock excludes only processes that lock the same file, and words are shared only by processes
//! that map the same file. So the first member records the identities of these files in the words,
//! and every process compares the files that it opens with them and refuses different ones. Members
//! check regularly that the files still have their names, and that the words were not cleared.
//!
//! Invariants:
//! 1. Every lock in use is on the recorded file. So no process can join by a file that was removed
//!    or replaced.
//! 2. From the time when a writing process has joined until it leaves, the first and the last word
//!    hold the layout version. If they do not, the words are lost, and no value in them is used:
//!    values are read first, and these two words afterwards.
//! 3. Lost words stay lost until all writing processes have left: only a first member initializes
//!    them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::LogError;
use crate::members::health::Health;
use crate::members::keeper::Keeper;
use crate::members::lock::MemberLock;
use crate::members::posts::Posts;
use crate::members::slots::Slots;
use crate::members::syncs::Syncs;
use crate::members::table::Table;
use crate::members::turns::Turns;
use crate::members::words::{
    JOIN_FILE, LAST, LAYOUT, POSTING_FILE, SLOT_FILES, SYNC_FILE, TURN_FILE, WORDS_FILE_AT,
};
use crate::members::{keeper_file, replaced, slot_path};

/// The least time between two checks of the files' names, in nanoseconds.
const CHECK_NANOS: u64 = 10_000_000;

/// The same for a read-only process: less time than another process needs to open the store and to
/// commit.
const READER_CHECK_NANOS: u64 = 1_000_000;

/// The shared files that this process has opened.
pub struct Files {
    pub(super) table: Arc<Table>,
    pub(super) join: Arc<MemberLock>,
    pub(super) slots: Arc<Slots>,
    pub(super) turns: Arc<Turns>,
    pub(super) posts: Arc<Posts>,
    pub(super) syncs: Arc<Syncs>,
    pub(super) health: Arc<Health>,
    pub(super) keeper: Arc<Keeper>,
}

impl Files {
    /// Records the identities of the files of the locks and of the words. The caller must be the
    /// first member.
    pub(super) fn record_files(&self) {
        let words = self.table.words.words();
        for (at, identity) in self.own_files() {
            words[at].store(identity, Ordering::SeqCst);
        }
        words[LAST].store(LAYOUT, Ordering::SeqCst);
    }

    /// The identities of the files that this process has opened, and the words that record them.
    fn own_files(&self) -> [(usize, u64); 5] {
        [
            (WORDS_FILE_AT, self.table.words.identity()),
            (JOIN_FILE, self.join.file().identity()),
            (TURN_FILE, self.turns.turn.file().identity()),
            (SYNC_FILE, self.syncs.sync.file().identity()),
            (POSTING_FILE, self.posts.posting.file().identity()),
        ]
    }

    /// Fails unless this process has opened the recorded files.
    pub(super) fn compare_files(&self) -> Result<(), LogError> {
        let names = [None, Some("join"), Some("turn"), Some("sync"), Some("posting")];
        for ((at, identity), name) in self.own_files().into_iter().zip(names) {
            if self.table.word(at) != identity {
                return Err(replaced(
                    &name.map_or_else(|| self.table.words_path(), |name| self.table.dir.join(name)),
                ));
            }
        }
        let (generation, path) = self.keeper.keeper_lock_path();
        if self.table.may_write_words() && self.table.word(keeper_file(generation)) != 0 {
            self.slots.compare(
                keeper_file(generation),
                &*self.table.disk.lock_file(&path)?,
                &path,
            )?;
        }
        match &self.table.slot_lock {
            Some(lock) => self.slots.compare(
                SLOT_FILES + self.table.slot,
                &**lock,
                &slot_path(&self.table.dir, self.table.slot),
            ),
            None => Ok(()),
        }
    }

    /// Fails if a file that members share has lost its name. Checks at most once in ten
    /// milliseconds.
    ///
    /// # Errors
    /// An error of the operating system, also if a file has lost its name.
    pub(crate) fn check_files(&self) -> Result<(), LogError> {
        if !self.health.is_time_to_check(CHECK_NANOS) {
            return Ok(());
        }
        self.check_names().map_err(|error| self.health.note_lost(error.into()))
    }

    pub(super) fn check_names(&self) -> io::Result<()> {
        self.table.words.check()?;
        for lock in [&self.join, &self.turns.turn, &self.syncs.sync, &self.posts.posting] {
            lock.file().check()?;
        }
        if let Some(lock) = &self.table.slot_lock {
            lock.check()?;
        }
        self.keeper.check_keeper_lock()
    }

    /// As [`Files::check_files`], but for a read-only process: checks only the file of the words,
    /// which may have been replaced.
    pub(super) fn check_followed(&self) -> Result<(), LogError> {
        if !self.health.is_time_to_check(READER_CHECK_NANOS) {
            return Ok(());
        }
        // Once the words are lost, each read checks again.
        self.table.words.check().map_err(|error| {
            self.health.next_check.store(0, Ordering::Relaxed);
            error.into()
        })
    }
}
