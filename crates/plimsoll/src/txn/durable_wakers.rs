//! Wakes the tasks that await commits once these are durable.
//!
//! The first task that has to wait starts a thread. The thread takes part in group commit like any committer, on behalf of all tasks, and
//! wakes those whose commits are durable.
//!
//! Laws:
//! 1. Wakers are called, cloned and dropped without holding a lock: they run user code, which may commit, drop tickets or close the store.
//! 2. A registered waker is called once its commit is durable, the log is poisoned, or the store is closed.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use plimsoll_disk::worker::{Bell, Next, Worker};
use plimsoll_log::error::LogError;
use plimsoll_log::glsn::Glsn;
use plimsoll_log::log::Log;

use crate::types::error::{Error, Lift, Result};

/// Key of a task's registered waker: the GLSN it waits for, and a unique number.
pub(crate) type Registration = (Glsn, u64);

/// The tasks that wait for commits of one open store.
pub(crate) struct DurableWakers {
    shared: Arc<Shared>,
    /// Whether a thread may be started.
    threaded: bool,
    worker: Mutex<Option<Worker>>,
}

struct Shared {
    log: Arc<dyn Log>,
    bell: Arc<Bell>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    wakers: BTreeMap<Registration, Waker>,
    next: u64,
    /// The failure after which nothing more becomes durable.
    failed: Option<LogError>,
    /// Set at the end: no more wakers are registered.
    over: bool,
}

impl DurableWakers {
    pub(crate) fn new(log: &Arc<dyn Log>, threaded: bool) -> Self {
        let shared = Shared { log: Arc::clone(log), bell: Arc::default(), waiting: Mutex::default() };
        Self { shared: Arc::new(shared), threaded, worker: Mutex::new(None) }
    }

    pub(crate) fn is_durable(&self, glsn: Glsn) -> bool {
        self.shared.log.bounds().durable >= glsn
    }

    /// Blocks until a commit is durable.
    pub(crate) fn wait(&self, glsn: Glsn) -> Result<()> {
        self.shared.log.wait_durable(glsn).lift()
    }

    /// Whether a commit is durable. If not, `waker` is called once the outcome is known. Blocks if there is no thread.
    pub(crate) fn poll(&self, glsn: Glsn, registration: &mut Option<Registration>, waker: &Waker) -> Poll<Result<()>> {
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
        let waker = self.shared.waiting().wakers.remove(&registration);
        drop(waker);
    }

    /// Starts the thread unless it runs already; false if it cannot be started.
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
            *worker = Worker::start("plimsoll-ticket", &self.shared.bell, move || ended.end(), step).ok();
        }
        worker.is_some()
    }

    /// Stops the thread and wakes all tasks. The log is closed by now, so each task gets its result when it polls.
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
        // Ignore poisoning: every change under this lock is complete, even after a panic.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the registered commits are durable and wakes their tasks, until no task is left.
    fn step(&self) {
        loop {
            let newest = self.waiting().wakers.last_key_value().map(|((glsn, _), _)| *glsn);
            let Some(newest) = newest else { return };
            let failed = self.log.wait_durable(newest).err();
            let mut waiting = self.waiting();
            let later = match &failed {
                None => waiting.wakers.split_off(&(newest.next(), 0)),
                Some(_) => BTreeMap::new(),
            };
            waiting.failed = failed;
            let woken = std::mem::replace(&mut waiting.wakers, later);
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
        // A panic in one waker must not keep the other tasks from being woken.
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}
