//! Whether the log is poisoned for all members, and why.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::LogError;
use crate::members::REMEDY;
use crate::members::posts::Posts;
use crate::members::syncs::Syncs;
use crate::members::table::{Access, Table};
use crate::members::words::POISON;

/// A value of the word `POISON`: a sync failed.
const SYNC_FAILED: u64 = 1;
/// A value of the word `POISON`: a shared file lost its name.
const FILE_LOST: u64 = 2;

/// The health of the log, as all members see it.
pub struct Health {
    table: Arc<Table>,
    posts: Arc<Posts>,
    syncs: Arc<Syncs>,
    /// The time of the next check of the files' names, by the monotonic clock.
    pub(super) next_check: AtomicU64,
}

impl Health {
    pub(super) fn new(table: &Arc<Table>, posts: &Arc<Posts>, syncs: &Arc<Syncs>) -> Self {
        Self {
            table: Arc::clone(table),
            posts: Arc::clone(posts),
            syncs: Arc::clone(syncs),
            next_check: AtomicU64::new(0),
        }
    }

    /// Poisons the log for all members because a sync failed: nothing more becomes durable.
    pub(crate) fn poison(&self) {
        self.poison_as(SYNC_FAILED);
    }

    fn poison_as(&self, why: u64) {
        self.table.words.words()[POISON].store(why, Ordering::SeqCst);
        self.syncs.sync.wake_all();
        self.posts.wake_all_groups();
    }

    /// Whether nothing more may be ordered; [`Health::check`] returns the reason.
    pub(crate) fn is_poisoned(&self) -> bool {
        self.table.word(POISON) != 0 || !self.table.are_words_whole()
    }

    /// Fails if nothing more may be ordered or made durable, because the words or a shared file are
    /// lost, or because a sync failed in some process.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        self.table.check_words()?;
        let message = match self.table.word(POISON) {
            0 => return Ok(()),
            FILE_LOST => format!("a file that processes share was removed or replaced; {REMEDY}"),
            _ => "a sync failed in a process that has the log open".to_owned(),
        };
        Err(LogError::Format { message })
    }

    pub(super) fn is_time_to_check(&self, interval: u64) -> bool {
        // Concurrent checks by several threads do no harm.
        let (now, next) =
            (self.table.clock.monotonic_nanos(), self.next_check.load(Ordering::Relaxed));
        if now < next {
            return false;
        }
        self.next_check.store(now.saturating_add(interval), Ordering::Relaxed);
        true
    }

    /// Poisons the log for all members with the reason `error`, after this process has found a
    /// condition under which no member may continue.
    pub(crate) fn note_lost(&self, error: LogError) -> LogError {
        // An error that only concerns this process's rights does not concern other members. For
        // example, a forked child may not use the locks.
        let is_of_this_process =
            matches!(error, LogError::Io { kind: io::ErrorKind::PermissionDenied, .. });
        if !is_of_this_process
            && self.table.access == Access::Writes
            && self.table.are_words_whole()
        {
            self.poison_as(FILE_LOST);
        }
        // Makes the next check fail, too.
        self.next_check.store(0, Ordering::Relaxed);
        error
    }
}
