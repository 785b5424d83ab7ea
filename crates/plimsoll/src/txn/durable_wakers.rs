//! Wakes the tasks that await commits once these are durable.
//!
//! The first task that has to wait starts a thread. On behalf of all tasks, the thread takes part
//! in group commit like any committer, and wakes those whose commits are durable.
//!
//! Invariants:
//! 1. Wakers are called, cloned and dropped without holding a lock, because they run user code,
//!    which may commit, drop tickets or close the store.
//! 2. A registered waker is called once its commit is durable, another process has blocked it for
//!    too long, the log is poisoned, or the store is closed.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use plimsoll_disk::worker::{Bell, Next, Worker};
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;

use crate::types::error::{Error, Lift, Result};

/// Key of a registered waker: the GLSN that it waits for, and a unique number.
pub(crate) type Registration = (Glsn, u64);

/// The tasks that wait for commits of an open store.
pub(crate) struct DurableWakers {
    shared: Arc<Shared>,
    /// Whether a thread may be started.
    threaded: bool,
    worker: Mutex<Option<Worker>>,
}

struct Shared {
    log: Arc<FileLog>,
    bell: Arc<Bell>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    wakers: BTreeMap<Registration, Waker>,
    next: u64,
    /// Errors of tasks that another process blocked for too long. Later tasks may still succeed.
    stalled: BTreeMap<Registration, LogError>,
    /// The error after which nothing becomes durable any more.
    failed: Option<LogError>,
    /// Set at the end; no further wakers are registered.
    over: bool,
}

impl DurableWakers {
    pub(crate) fn new(log: &Arc<FileLog>, threaded: bool) -> Self {
        let shared =
            Shared { log: Arc::clone(log), bell: Arc::default(), waiting: Mutex::default() };
        Self { shared: Arc::new(shared), threaded, worker: Mutex::new(None) }
    }

    pub(crate) fn is_durable(&self, glsn: Glsn) -> bool {
        self.shared.log.bounds().durable >= glsn
    }

    /// Blocks until a commit is durable.
    pub(crate) fn wait(&self, glsn: Glsn) -> Result<()> {
        self.shared.log.wait_durable(glsn).lift()
    }

    /// Whether a commit is durable. If not, `waker` is called once the outcome is known. Blocks if
    /// there is no thread.
    pub(crate) fn poll(
        &self,
        glsn: Glsn,
        registration: &mut Option<Registration>,
        waker: &Waker,
    ) -> Poll<Result<()>> {
        if self.is_durable(glsn) {
            return Poll::Ready(Ok(()));
        }
        if !self.start() {
            return Poll::Ready(self.wait(glsn));
        }
        let waker = waker.clone();
        let mut waiting = self.shared.waiting();
        if let Some(failed) = waiting.failed.clone() {
            return Poll::Ready(Err(Error::of_log(failed)));
        }
        if waiting.over {
            drop(waiting);
            return Poll::Ready(self.wait(glsn));
        }
        if let Some(stalled) = registration.as_ref().and_then(|place| waiting.stalled.remove(place))
        {
            return Poll::Ready(Err(Error::of_log(stalled)));
        }
        let place = *registration.get_or_insert_with(|| {
            waiting.next += 1;
            (glsn, waiting.next)
        });
        let before = waiting.wakers.insert(place, waker);
        drop(waiting);
        if before.is_none() {
            self.shared.bell.ring();
        }
        drop(before);
        Poll::Pending
    }

    /// Drops a waker if it is still registered.
    pub(crate) fn forget(&self, registration: Registration) {
        let mut waiting = self.shared.waiting();
        waiting.stalled.remove(&registration);
        let waker = waiting.wakers.remove(&registration);
        drop(waiting);
        drop(waker);
    }

    /// Starts the thread unless it is running; false if it cannot be started.
    fn start(&self) -> bool {
        if !self.threaded {
            return false;
        }
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.is_none() {
            let (shared, ended) = (Arc::clone(&self.shared), Arc::clone(&self.shared));
            let step = move |_| {
                shared.step();
                Next::Rung
            };
            *worker =
                Worker::start("plimsoll-ticket", &self.shared.bell, move || ended.end(), step).ok();
        }
        worker.is_some()
    }

    /// Stops the thread and wakes all tasks. The log is closed by now, so each task gets its result
    /// at its next poll.
    pub(crate) fn stop(&self) {
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(worker) = worker {
            worker.stop();
        }
        self.shared.end();
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Ignore poisoning, because every change under this lock is atomic with respect to panics.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the registered commits are durable and wakes their tasks, until none is left.
    fn step(&self) {
        loop {
            let newest = self.waiting().wakers.last_key_value().map(|((glsn, _), _)| *glsn);
            let Some(newest) = newest else { return };
            let failed = self.log.wait_durable(newest).err();
            let mut waiting = self.waiting();
            let later = match &failed {
                None | Some(LogError::Stalled { .. }) => {
                    waiting.wakers.split_off(&(newest.next(), 0))
                }
                Some(_) => BTreeMap::new(),
            };
            let woken = std::mem::replace(&mut waiting.wakers, later);
            match failed {
                Some(stalled @ LogError::Stalled { .. }) => {
                    waiting.stalled.extend(woken.keys().map(|place| (*place, stalled.clone())));
                }
                failed => waiting.failed = failed,
            }
            drop(waiting);
            wake(woken);
        }
    }

    /// Stops registration and wakes all registered tasks.
    fn end(&self) {
        let mut waiting = self.waiting();
        waiting.over = true;
        let woken = std::mem::take(&mut waiting.wakers);
        drop(waiting);
        wake(woken);
    }
}

fn wake(wakers: BTreeMap<Registration, Waker>) {
    for waker in wakers.into_values() {
        // A panic in one waker must not prevent others from being woken.
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use plimsoll_disk::clock::{Clock, SystemClock};
    use plimsoll_disk::mem::MemDisk;
    use plimsoll_disk::vfs::Disk;
    use plimsoll_log::draft::{Draft, DraftEntry};
    use plimsoll_log::file_log::options::{FileLogOptions, Shared};
    use plimsoll_log::glsn::StreamId;
    use plimsoll_log::members::Members;
    use plimsoll_memory::budget::{Backing, Budget};
    use plimsoll_memory::pool::Pool;

    use super::*;

    /// A member's log that waits at most `timeout` for other members.
    fn log_of_member(disk: &Arc<dyn Disk>, store: &Path, timeout: Duration) -> Arc<FileLog> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let members = Arc::new(Members::join(disk, &clock, store, timeout).unwrap());
        members.begin(true, 7, 0).unwrap();
        let budget = Budget::new(16 << 20, Backing::Heap).unwrap();
        let pool = Pool::new(&budget, 1 << 20).unwrap();
        let options = FileLogOptions {
            background: false,
            shared: Some(Shared { members: Arc::clone(&members), is_first: true }),
            ..FileLogOptions::new(Arc::clone(disk), clock, store.join("log"), pool, budget)
        };
        let (log, _) = FileLog::open(options).unwrap();
        members.joined();
        Arc::new(log)
    }

    #[test]
    fn a_commit_that_waited_too_long_does_not_fail_later_ones() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let store = Path::new("/store");
        disk.create_dir(store).unwrap();
        let log = log_of_member(&disk, store, Duration::from_millis(50));
        let wakers = DurableWakers::new(&log, true);
        let submit = || {
            let entries = [DraftEntry { stream: StreamId(9), parts: &[b"x"] }];
            log.submit(&Draft::of(&entries), None).unwrap().last
        };
        let until_ready = |glsn, registration: &mut Option<Registration>| {
            (0..6000).find_map(|_| match wakers.poll(glsn, registration, Waker::noop()) {
                Poll::Ready(done) => Some(done),
                Poll::Pending => {
                    SystemClock::new().sleep(Duration::from_millis(10));
                    None
                }
            })
        };
        let stopped = disk.lock_file(&store.join("members").join("sync")).unwrap();
        assert!(stopped.try_lock().unwrap());
        let (first, mut registration) = (submit(), None);
        let waited = until_ready(first, &mut registration);
        assert!(matches!(waited, Some(Err(Error::Stalled { .. }))), "{waited:?}");
        stopped.unlock();
        for glsn in [submit(), submit()] {
            assert!(matches!(until_ready(glsn, &mut None), Some(Ok(()))));
        }
        wakers.stop();
    }
}
