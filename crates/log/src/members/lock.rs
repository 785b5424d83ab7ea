//! A lock between members, with patience, that tells whether its last holder ended while it had it.
//!
//! The lock itself is the system's. A member that does not get it sleeps at a word for at most a
//! millisecond and tries again: so there are deadlines, and a wake-up that is lost with a process
//! costs no more than that.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use plimsoll_disk::clock::Clock;
use plimsoll_disk::sharing::{LockFile, SharedWords};

use crate::error::LogError;

/// The longest sleep between two tries.
const SLEEP: Duration = Duration::from_millis(1);

/// The words of a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// Who holds it; 0: no one.
    pub(super) holder: usize,
    /// Since when: microseconds since 1970 UTC.
    pub(super) since: usize,
    /// How many sleep; too many if some were killed.
    pub(super) waiters: usize,
    /// The word that they sleep at.
    pub(super) bell: usize,
}

/// The words of some of a lock's waiters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitQueue {
    /// How many sleep; too many if some were killed.
    pub(super) waiters: usize,
    /// The word that they sleep at.
    pub(super) bell: usize,
}

impl Places {
    fn queue(&self) -> WaitQueue {
        WaitQueue { waiters: self.waiters, bell: self.bell }
    }
}

/// How a lock was got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    /// Its last holder gave it back.
    Clean,
    /// Its last holder ended, or failed, while it had it.
    Abandoned,
    /// It was not taken: what it was wanted for is there already.
    Needless,
}

/// A lock between members. Law: one thread of a process at a time uses it, under a lock of the
/// process's own.
pub(crate) struct MemberLock {
    file: Box<dyn LockFile>,
    words: Arc<dyn SharedWords>,
    clock: Arc<dyn Clock>,
    places: Places,
}

impl MemberLock {
    pub(super) fn new(
        file: Box<dyn LockFile>,
        words: &Arc<dyn SharedWords>,
        clock: &Arc<dyn Clock>,
        places: Places,
    ) -> Self {
        Self { file, words: Arc::clone(words), clock: Arc::clone(clock), places }
    }

    /// The system's lock.
    pub(super) fn file(&self) -> &dyn LockFile {
        &*self.file
    }

    /// Takes the lock for `holder`, unless `is_needless` says that it is not wanted any more.
    pub(crate) fn take(
        &self,
        patience: Duration,
        holder: u64,
        is_needless: &dyn Fn() -> bool,
    ) -> Result<Got, LogError> {
        self.take_waiting_at(&|| self.places.queue(), patience, holder, is_needless)
    }

    /// As [`MemberLock::take`], of a lock with several queues of waiters: `queue` returns the one
    /// to sleep in.
    pub(super) fn take_waiting_at(
        &self,
        queue: &dyn Fn() -> WaitQueue,
        patience: Duration,
        holder: u64,
        is_needless: &dyn Fn() -> bool,
    ) -> Result<Got, LogError> {
        let words = self.words.words();
        let begun = self.clock.monotonic_nanos();
        let patience = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        while !self.file.try_lock()? {
            if is_needless() {
                return Ok(Got::Needless);
            }
            if self.clock.monotonic_nanos().saturating_sub(begun) > patience {
                return Err(self.stalled());
            }
            let queue = queue();
            let seen = words[queue.bell].load(Ordering::SeqCst);
            words[queue.waiters].fetch_add(1, Ordering::SeqCst);
            // Asked again: a member that makes it needless from here on sees a waiter, and wakes
            // it.
            let got = if is_needless() { Ok(false) } else { self.file.try_lock() };
            if let Ok(false) = got
                && !is_needless()
            {
                self.words.wait(queue.bell, seen, SLEEP);
            }
            words[queue.waiters].fetch_sub(1, Ordering::SeqCst);
            if got? {
                break;
            }
            // Usually it was woken for that, and need not ask the system for the lock.
            if is_needless() {
                return Ok(Got::Needless);
            }
        }
        let before = words[self.places.holder].swap(holder, Ordering::SeqCst);
        words[self.places.since].store(self.clock.wall_micros(), Ordering::Relaxed);
        Ok(if before == 0 { Got::Clean } else { Got::Abandoned })
    }

    /// Takes the lock without telling anybody, by one that may not write to the words.
    pub(crate) fn take_without_words(&self, patience: Duration) -> Result<(), LogError> {
        let begun = self.clock.monotonic_nanos();
        while !self.file.try_lock()? {
            if u128::from(self.clock.monotonic_nanos().saturating_sub(begun)) > patience.as_nanos()
            {
                return Err(self.stalled());
            }
            self.clock.sleep(SLEEP);
        }
        Ok(())
    }

    /// Gives it back as one that may not write to the words: who waits for it looks again within a
    /// millisecond.
    pub(crate) fn release_without_words(&self) {
        self.file.unlock();
    }

    /// Gives it back.
    pub(crate) fn release(&self) {
        self.words.words()[self.places.holder].store(0, Ordering::SeqCst);
        self.release_abandoned();
    }

    /// Gives it back without having finished: the next one mends what is to be mended.
    pub(crate) fn release_abandoned(&self) {
        self.file.unlock();
        self.wake(self.places.queue(), 1);
    }

    /// As [`MemberLock::release`], of a lock with several queues of waiters: wakes one of `next`.
    pub(super) fn release_to(&self, next: WaitQueue) {
        self.words.words()[self.places.holder].store(0, Ordering::SeqCst);
        self.file.unlock();
        self.wake(next, 1);
    }

    /// Wakes all that wait for it: what they want it for may be there.
    pub(crate) fn wake_all(&self) {
        // What makes it needless is written before the waiters are looked at; `take` does the two
        // in the other order.
        self.wake_all_at(self.places.queue());
    }

    /// As [`MemberLock::wake_all`], of one queue.
    pub(super) fn wake_all_at(&self, queue: WaitQueue) {
        fence(Ordering::SeqCst);
        self.wake(queue, u32::MAX);
    }

    fn wake(&self, queue: WaitQueue, most: u32) {
        if self.words.words()[queue.waiters].load(Ordering::SeqCst) > 0 {
            self.words.words()[queue.bell].fetch_add(1, Ordering::SeqCst);
            self.words.wake(queue.bell, most);
        }
    }

    /// Sleeps for as long as between two tries.
    pub(crate) fn sleep(&self) {
        self.clock.sleep(SLEEP);
    }

    /// The error of one that waits for its holder no longer.
    pub(crate) fn stalled(&self) -> LogError {
        let words = self.words.words();
        let holder = words[self.places.holder].load(Ordering::Relaxed);
        let since_micros = words[self.places.since].load(Ordering::Relaxed);
        let pid = super::pid_in(words, holder);
        LogError::Stalled { pid, since_micros }
    }
}
