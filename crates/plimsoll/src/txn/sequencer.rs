//! Orders commits: one at a time gets its GLSN, is written to the log, and is applied to the index.
//! (In a shared store, a commit that has read nothing may be applied later, like a commit of
//! another process: [`crate::txn::shared::blind`].)
//!
//! Invariants:
//! - Commits are applied in GLSN order, each as a whole. *Applied* is the GLSN of the last one; it
//!   only increases.
//! - *Visible* is the lower of *applied* and the GLSN up to which the log permits reads (durable,
//!   or submitted if commits are buffered).
//! - If applying a record fails or panics after it was written to the log, the store is poisoned:
//!   nothing is applied after it or flushed until the store is reopened, which replays the record.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use plimsoll_disk::fair_lock::{FairGuard, FairLock};
use plimsoll_disk::worker::Bell;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;

use crate::types::error::{Error, Lift, Result};
use crate::types::events;

/// The thread that has waited longest for the commit lock is handed the lock after this many other
/// commits have passed it. With eight threads on two processors, this halved p99.9 of a commit (8.4
/// to 4.4 ms), at 0.84 to 0.96 of the throughput: see note 77 in `bench/notes/log.md`.
const PASSED_MAX: u32 = 64;

/// Orders the commits of one open store.
pub(crate) struct CommitSequencer {
    log: Arc<FileLog>,
    /// Held while a commit gets its GLSN and is applied.
    lock: FairLock,
    /// Set while a record is in the log but not applied yet. If it is set when the lock is taken,
    /// the previous committer panicked in between.
    half_applied: AtomicBool,
    applied: AtomicU64,
    /// Why no more commits are accepted.
    poisoned: OnceLock<String>,
    /// Rung by the next commit.
    pub(crate) alarm: Alarm,
}

/// Wakes a thread that sleeps until the next commit.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    is_set: AtomicBool,
    pub(crate) bell: Arc<Bell>,
}

impl Alarm {
    /// Makes the next commit ring the bell. The caller must check for earlier commits after this
    /// call.
    pub(crate) fn set(&self) {
        // SeqCst: either the commit sees the flag, or the caller's later check sees the commit.
        self.is_set.store(true, Ordering::SeqCst);
    }

    /// Rings the bell if the alarm is set; otherwise costs one load.
    pub(crate) fn ring_if_set(&self) {
        if self.is_set.load(Ordering::SeqCst) && self.is_set.swap(false, Ordering::SeqCst) {
            self.bell.ring();
        }
    }
}

/// While it is held, no commit is in progress.
pub(crate) type CommitLock<'a> = FairGuard<'a>;

impl CommitSequencer {
    /// A sequencer before the replay, which is followed by [`CommitSequencer::replayed`].
    pub(crate) fn new(log: &Arc<FileLog>) -> Self {
        Self {
            log: Arc::clone(log),
            lock: FairLock::new(PASSED_MAX),
            half_applied: AtomicBool::new(false),
            applied: AtomicU64::new(0),
            poisoned: OnceLock::new(),
            alarm: Alarm::default(),
        }
    }

    /// Records that the replay has applied everything up to `last`.
    pub(crate) fn replayed(&self, last: Glsn) {
        self.applied.store(last.0, Ordering::Release);
    }

    /// Records that everything up to `last`, ordered by other processes, is applied.
    pub(crate) fn took_in(&self, _lock: &CommitLock<'_>, last: Glsn) {
        self.applied.store(last.0, Ordering::SeqCst);
        self.alarm.ring_if_set();
    }

    /// The last commit applied.
    pub(crate) fn applied(&self) -> Glsn {
        Glsn(self.applied.load(Ordering::Acquire))
    }

    /// The newest readable GLSN.
    pub(crate) fn visible(&self) -> Glsn {
        self.log.readable().min(self.applied())
    }

    /// Waits until no commit is in progress.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if an earlier commit was applied only in part.
    pub(crate) fn lock(&self) -> Result<CommitLock<'_>> {
        self.checked(self.lock.lock())
    }

    /// Like [`CommitSequencer::lock`]; `None` if a commit is in progress.
    pub(crate) fn try_lock(&self) -> Result<Option<CommitLock<'_>>> {
        self.lock.try_lock().map(|lock| self.checked(lock)).transpose()
    }

    /// Like [`CommitSequencer::lock`]; `None` if the lock is held for longer than `timeout`.
    pub(crate) fn lock_within(&self, timeout: Duration) -> Result<Option<CommitLock<'_>>> {
        self.lock.lock_within(timeout).map(|lock| self.checked(lock)).transpose()
    }

    fn checked<'a>(&self, lock: CommitLock<'a>) -> Result<CommitLock<'a>> {
        match self.half_applied.load(Ordering::Acquire) {
            true => Err(self.poison("its committer panicked")),
            false => Ok(lock),
        }
    }

    /// Number of threads that currently wait for the lock.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.lock.waiting()
    }

    /// Writes a record to the log with `submit` and applies it with `apply`, which returns the
    /// record's last GLSN. If `apply` fails or panics, the store is poisoned.
    pub(crate) fn submit_and_apply<T>(
        &self,
        _lock: &CommitLock<'_>,
        submit: impl FnOnce() -> Result<T>,
        apply: impl FnOnce(&T) -> Result<Glsn>,
    ) -> Result<T> {
        let submitted = submit()?;
        self.half_applied.store(true, Ordering::Release);
        let unwinding = PoisonOnUnwind(self);
        let last = apply(&submitted).map_err(|error| self.poison(&error.to_string()))?;
        self.applied.store(last.0, Ordering::SeqCst);
        self.half_applied.store(false, Ordering::Release);
        self.alarm.ring_if_set();
        std::mem::forget(unwinding);
        Ok(submitted)
    }

    /// Runs `work` between two commits with the last GLSN applied, once that is durable.
    ///
    /// # Errors
    /// [`Error::Poisoned`], and those of the log and of `work`.
    pub(crate) fn at_durable<T>(&self, work: impl FnOnce(Glsn) -> Result<T>) -> Result<T> {
        let _lock = self.lock()?;
        let applied = self.applied();
        if applied > Glsn::NONE {
            self.log.wait_durable(applied).lift()?;
        }
        work(applied)
    }

    /// Runs `work` between two commits with the last GLSN applied; `None` if a commit is in
    /// progress, or was applied only in part.
    pub(crate) fn try_between_commits<T>(&self, work: impl FnOnce(Glsn) -> T) -> Option<T> {
        let _lock = self.lock.try_lock()?;
        let is_whole = !self.half_applied.load(Ordering::Acquire);
        is_whole.then(|| work(self.applied()))
    }

    /// Waits until everything applied is visible.
    pub(crate) fn wait_visible(&self) -> Result<()> {
        let applied = self.applied();
        if applied > self.visible() {
            self.log.wait_durable(applied).lift()?;
        }
        Ok(())
    }

    /// Fails if the store is poisoned.
    pub(crate) fn check(&self) -> Result<()> {
        match self.poisoned.get() {
            Some(cause) => Err(Error::Poisoned { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    fn poison(&self, why: &str) -> Error {
        let cause = || {
            let cause = format!("a commit that is in the log could not be applied: {why}");
            events::poisoned(&cause);
            cause
        };
        Error::Poisoned { cause: self.poisoned.get_or_init(cause).clone() }
    }
}

/// Poisons the store when it is dropped, so that threads that wait for a commit that panicked
/// halfway get an error.
struct PoisonOnUnwind<'a>(&'a CommitSequencer);

impl Drop for PoisonOnUnwind<'_> {
    fn drop(&mut self) {
        self.0.poison("its committer panicked");
    }
}

impl fmt::Debug for CommitSequencer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommitSequencer(applied {}, visible {})", self.applied(), self.visible())
    }
}
