//! A lock between members, with a timeout. It reports whether its last holder ended while holding
//! it.
//!
//! The lock itself is an operating-system lock. A member that does not get it sleeps on a word for
//! at most a millisecond and retries. So waits can time out, and a wake-up that is lost because a
//! process was killed costs at most a millisecond.

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
    /// The holder; 0 if there is none.
    pub(super) holder: usize,
    /// The time at which the holder took it, in microseconds since 1970 UTC, and one more for each
    /// report that it works.
    pub(super) since: usize,
    /// The number of members that sleep; too high if some were killed.
    pub(super) waiters: usize,
    /// The word that they sleep on.
    pub(super) bell: usize,
}

/// The words of one queue of waiters of a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitQueue {
    /// The number of members that sleep; too high if some were killed.
    pub(super) waiters: usize,
    /// The word that they sleep on.
    pub(super) bell: usize,
}

impl Places {
    fn queue(&self) -> WaitQueue {
        WaitQueue { waiters: self.waiters, bell: self.bell }
    }
}

/// The outcome of an attempt to acquire a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    /// It was acquired; its last holder had released it.
    Clean,
    /// It was acquired; its last holder had ended or failed while it held the lock.
    Abandoned,
    /// It was not acquired, because its purpose has been achieved already.
    Needless,
}

/// A lock between members. Only one thread of a process may use it at a time, under a lock of that
/// process.
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

    /// The operating-system lock.
    pub(super) fn file(&self) -> &dyn LockFile {
        &*self.file
    }

    /// Takes the lock for `holder`, unless `is_needless` returns true.
    pub(crate) fn take(
        &self,
        timeout: Duration,
        holder: u64,
        is_needless: &dyn Fn() -> bool,
    ) -> Result<Got, LogError> {
        self.take_waiting_at(&|| self.places.queue(), timeout, holder, is_needless)
    }

    /// Like [`MemberLock::take`], for a lock with several queues of waiters: `queue` returns the
    /// queue to sleep in.
    pub(super) fn take_waiting_at(
        &self,
        queue: &dyn Fn() -> WaitQueue,
        timeout: Duration,
        holder: u64,
        is_needless: &dyn Fn() -> bool,
    ) -> Result<Got, LogError> {
        let words = self.words.words();
        let begun = self.clock.monotonic_nanos();
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        while !self.file.try_lock()? {
            if is_needless() {
                return Ok(Got::Needless);
            }
            // With a timeout of zero this loop never sleeps.
            if self.clock.monotonic_nanos().saturating_sub(begun) >= timeout {
                return Err(self.stalled());
            }
            let queue = queue();
            let seen = words[queue.bell].load(Ordering::SeqCst);
            words[queue.waiters].fetch_add(1, Ordering::SeqCst);
            // Check again: a member that makes the lock needless after this check sees a waiter and
            // wakes it.
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
            // Usually the thread was woken because the lock became needless; then it need not ask
            // the system.
            if is_needless() {
                return Ok(Got::Needless);
            }
        }
        let before = words[self.places.holder].swap(holder, Ordering::SeqCst);
        words[self.places.since].store(self.clock.wall_micros(), Ordering::Relaxed);
        Ok(if before == 0 { Got::Clean } else { Got::Abandoned })
    }

    /// Calls `take`, which waits for this lock, and repeats it after a timeout during which the
    /// lock changed hands or its holder showed that it works ([`MemberLock::report`]). A holder
    /// that hangs is thus noticed after at most two timeouts.
    pub(super) fn wait_for_working<T>(
        &self,
        take: impl Fn() -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        let since = || self.words.words()[self.places.since].load(Ordering::Relaxed);
        loop {
            let seen = since();
            match take() {
                Err(LogError::Stalled { .. }) if since() != seen => {}
                taken => return taken,
            }
        }
    }

    /// Reports that `holder`, which holds the lock, works.
    pub(super) fn report(&self, holder: u64) {
        let words = self.words.words();
        words[self.places.holder].store(holder, Ordering::SeqCst);
        words[self.places.since].fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the lock without recording a holder, for a process that may not write to the words.
    pub(crate) fn take_unrecorded(&self, timeout: Duration) -> Result<(), LogError> {
        let begun = self.clock.monotonic_nanos();
        while !self.file.try_lock()? {
            let waited = u128::from(self.clock.monotonic_nanos().saturating_sub(begun));
            if waited >= timeout.as_nanos() {
                return Err(self.stalled());
            }
            self.clock.sleep(SLEEP);
        }
        Ok(())
    }

    /// Releases the lock, in a process that may not write to the words. No waiter is woken; each
    /// tries again within a millisecond.
    pub(crate) fn release_unrecorded(&self) {
        self.file.unlock();
    }

    /// Releases the lock.
    pub(crate) fn release(&self) {
        self.words.words()[self.places.holder].store(0, Ordering::SeqCst);
        self.release_abandoned();
    }

    /// Releases the lock with its work unfinished; the next holder repairs the state.
    pub(crate) fn release_abandoned(&self) {
        self.file.unlock();
        self.wake(self.places.queue(), 1);
    }

    /// Like [`MemberLock::release`], for a lock with several queues of waiters: wakes a waiter of
    /// `next`.
    pub(super) fn release_to(&self, next: WaitQueue) {
        self.words.words()[self.places.holder].store(0, Ordering::SeqCst);
        self.file.unlock();
        self.wake(next, 1);
    }

    /// Wakes all waiters, because the lock may have become needless for them.
    pub(crate) fn wake_all(&self) {
        self.wake_all_at(self.places.queue());
    }

    /// Like [`MemberLock::wake_all`], for one queue.
    pub(super) fn wake_all_at(&self, queue: WaitQueue) {
        // Pairs with `take_waiting_at`, which counts its waiter before it reads whether the lock is
        // needless: either this sees the waiter, or the waiter sees the state that the caller has
        // written.
        fence(Ordering::SeqCst);
        self.wake(queue, u32::MAX);
    }

    fn wake(&self, queue: WaitQueue, most: u32) {
        if self.words.words()[queue.waiters].load(Ordering::SeqCst) > 0 {
            self.words.words()[queue.bell].fetch_add(1, Ordering::SeqCst);
            self.words.wake(queue.bell, most);
        }
    }

    /// Sleeps for the interval between two tries.
    pub(crate) fn sleep(&self) {
        self.clock.sleep(SLEEP);
    }

    /// The error of a member whose wait for the holder has timed out.
    pub(crate) fn stalled(&self) -> LogError {
        let words = self.words.words();
        let holder = words[self.places.holder].load(Ordering::Relaxed);
        let since_micros = words[self.places.since].load(Ordering::Relaxed);
        let pid = super::pid_in(words, holder);
        LogError::Stalled { pid, since_micros }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    use plimsoll_disk::clock::ManualClock;
    use plimsoll_disk::lying::LyingDisk;
    use plimsoll_disk::vfs::Disk;

    use super::*;
    use crate::members::Members;

    const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

    /// Joins while another process joins, which needs `seconds` and reports in each of the first
    /// `reports` seconds that it works. Returns the result and the seconds that passed.
    fn join_beside(seconds: u64, reports: u64) -> (Result<(), LogError>, u64) {
        let (disk, begun) = (LyingDisk::new(1), 1_700_000_000_000_000);
        let clock = Arc::new(ManualClock::new(begun));
        let join = |disk: Arc<dyn Disk>| {
            Members::join(&disk, &(Arc::clone(&clock) as _), Path::new("/"), LOCK_TIMEOUT)
        };
        let working = join(disk.process(7).1).unwrap();
        working.begin(true, 7, 0).unwrap();
        let (waiting, its_disk) = disk.process(8);
        let (world, is_joining) = (Arc::clone(&clock), AtomicBool::new(true));
        let passed = move |clock: &ManualClock| (clock.wall_micros() - begun) / 1_000_000;
        waiting.when_idle(move |time| {
            let before = passed(&world);
            world.advance(time);
            let now = passed(&world);
            if now >= seconds && is_joining.swap(false, Ordering::SeqCst) {
                working.joined();
            } else if before < now && now <= reports {
                working.report_work();
            }
        });
        (join(its_disk).map(drop), passed(&clock))
    }

    #[test]
    fn a_process_that_reports_its_work_is_waited_for() {
        assert_eq!(join_beside(60, 60), (Ok(()), 60));
    }

    #[test]
    fn a_member_that_did_not_get_the_right_to_leave_does_not_release_it() {
        let (disk, clock) = (LyingDisk::new(1), Arc::new(ManualClock::new(1_700_000_000_000_000)));
        let join = |disk: Arc<dyn Disk>| {
            Members::join(&disk, &(Arc::clone(&clock) as _), Path::new("/"), LOCK_TIMEOUT)
        };
        let processes = [6, 7, 8].map(|pid| disk.process(pid));
        for (process, _) in &processes {
            let world = Arc::clone(&clock);
            process.when_idle(move |time| world.advance(time));
        }
        let [leaving, working, waiting] = processes.map(|(_, its_disk)| its_disk);
        let leaving = join(leaving).unwrap();
        leaving.begin(true, 6, 0).unwrap();
        leaving.joined();
        let working = join(working).unwrap();
        working.begin(false, 7, 0).unwrap();
        let left = leaving.leave(&|| {});
        assert!(matches!(left, Err(LogError::Stalled { pid: Some(7), .. })), "{left:?}");
        leaving.left();
        let joined = join(waiting).map(drop);
        assert!(matches!(joined, Err(LogError::Stalled { pid: Some(7), .. })), "{joined:?}");
    }

    #[test]
    fn a_process_that_stops_reporting_is_named() {
        for (reports, until) in [(0, 10..=21), (25, 35..=46)] {
            let (joined, passed) = join_beside(60, reports);
            assert!(matches!(joined, Err(LogError::Stalled { pid: Some(7), .. })), "{joined:?}");
            assert!(until.contains(&passed), "{passed} seconds");
        }
    }
}
