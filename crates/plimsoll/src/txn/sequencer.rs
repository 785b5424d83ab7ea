//! The order of commits: one at a time gets its GLSN, goes into the log, and is applied to the index.
//!
//! Laws:
//! - Commits are applied in GLSN order, each as a whole. *Applied* is the GLSN of the last one; it only moves forward.
//! - *Visible* is the lower of *applied* and of what the log lets be read (durable, or submitted where commits are buffered).
//! - If applying a record fails or panics after it went into the log, the store is poisoned: nothing is applied on top of it or flushed until
//!   the store is opened again, which replays the record.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use plimsoll_log::glsn::Glsn;
use plimsoll_log::log::Log;

use crate::types::error::{Error, Result};

/// Orders the commits of one open store.
pub(crate) struct CommitSequencer {
    log: Arc<dyn Log>,
    /// Held while a commit gets its GLSN and is applied.
    lock: Mutex<()>,
    /// Set while a record is in the log and not applied yet. If it is set when the lock is taken, the committer before panicked in between.
    half_applied: AtomicBool,
    applied: AtomicU64,
    /// Why no more commits are accepted.
    poisoned: OnceLock<String>,
}

/// No commit is under way while this is held.
pub(crate) type CommitLock<'a> = MutexGuard<'a, ()>;

impl CommitSequencer {
    /// Nothing is applied yet: [`CommitSequencer::replayed`] says up to where it is once the log was replayed.
    pub(crate) fn new(log: &Arc<dyn Log>) -> Self {
        Self {
            log: Arc::clone(log),
            lock: Mutex::new(()),
            half_applied: AtomicBool::new(false),
            applied: AtomicU64::new(0),
            poisoned: OnceLock::new(),
        }
    }

    /// Everything up to `last` was applied by replay.
    pub(crate) fn replayed(&self, last: Glsn) {
        self.applied.store(last.0, Ordering::Release);
    }

    /// The last commit that is applied.
    pub(crate) fn applied(&self) -> Glsn {
        Glsn(self.applied.load(Ordering::Acquire))
    }

    /// The newest moment that can be read.
    pub(crate) fn visible(&self) -> Glsn {
        self.log.readable().min(self.applied())
    }

    /// Waits until no commit is under way.
    ///
    /// # Errors
    /// [`Error::Poisoned`] if a commit before was applied in part only.
    pub(crate) fn lock(&self) -> Result<CommitLock<'_>> {
        // A committer that panicked poisoned the mutex, too; `half_applied` says whether that matters.
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if self.half_applied.load(Ordering::Acquire) {
            return Err(self.poison("its committer panicked"));
        }
        Ok(lock)
    }

    /// Submits a record with `submit` and applies it with `apply`, which returns the record's last GLSN. If `apply` fails or panics, the
    /// store is poisoned.
    pub(crate) fn submit_and_apply<T>(
        &self,
        _lock: &CommitLock<'_>,
        submit: impl FnOnce() -> Result<T>,
        apply: impl FnOnce(&T) -> Result<Glsn>,
    ) -> Result<T> {
        let submitted = submit()?;
        self.half_applied.store(true, Ordering::Release);
        let last = apply(&submitted).map_err(|error| self.poison(&error.to_string()))?;
        self.applied.store(last.0, Ordering::Release);
        self.half_applied.store(false, Ordering::Release);
        Ok(submitted)
    }

    /// Runs `work` between two commits, with the last GLSN that is applied, once that is durable.
    ///
    /// # Errors
    /// [`Error::Poisoned`], and those of the log and of `work`.
    pub(crate) fn at_durable<T>(&self, work: impl FnOnce(Glsn) -> Result<T>) -> Result<T> {
        let _lock = self.lock()?;
        let applied = self.applied();
        if applied > Glsn::NONE {
            self.log.wait_durable(applied)?;
        }
        work(applied)
    }

    /// Runs `work` between two commits, with the last GLSN that is applied; `None` if a commit is under way, or was applied in part only.
    pub(crate) fn try_at_applied<T>(&self, work: impl FnOnce(Glsn) -> T) -> Option<T> {
        let _lock = match self.lock.try_lock() {
            Ok(lock) => lock,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let is_whole = !self.half_applied.load(Ordering::Acquire);
        is_whole.then(|| work(self.applied()))
    }

    /// Waits until everything that is applied is visible.
    pub(crate) fn wait_visible(&self) -> Result<()> {
        let applied = self.applied();
        if applied > self.visible() {
            self.log.wait_durable(applied)?;
        }
        Ok(())
    }

    /// Refuses where the store is poisoned.
    pub(crate) fn check(&self) -> Result<()> {
        match self.poisoned.get() {
            Some(cause) => Err(Error::Poisoned { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    fn poison(&self, why: &str) -> Error {
        let cause = || format!("a commit that is in the log could not be applied: {why}");
        Error::Poisoned { cause: self.poisoned.get_or_init(cause).clone() }
    }
}

impl fmt::Debug for CommitSequencer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommitSequencer(applied {}, visible {})", self.applied(), self.visible())
    }
}
