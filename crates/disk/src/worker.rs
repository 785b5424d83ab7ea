//! A background thread that works in steps: how it wakes, sleeps and ends.
//!
//! Invariants:
//! 1. No ring is lost: a ring during a step is seen when the step ends.
//! 2. [`Worker::stop`] returns when the thread has ended, unless a step calls it. A running step is
//!    finished; no step begins afterwards.
//! 3. A step that panics ends the thread, not the process. `alarm` is called, so that other threads
//!    do not wait for the work of the ended thread.

use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::mutex::lock;
use crate::thread::spawn;

/// The longest sleep, because clocks have limited range.
pub(crate) const SLEEP_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The idle sleeps of this process's threads, for tests of the cost of an idle store.
#[cfg(any(test, feature = "testing"))]
pub mod sleeps {
    use std::collections::BTreeMap;
    use std::sync::{Mutex, MutexGuard};

    use crate::mutex::lock;
    use std::time::Duration;

    use crate::fork;

    static SLEEPS: Mutex<BTreeMap<String, Duration>> = Mutex::new(BTreeMap::new());

    fn sleeps() -> MutexGuard<'static, BTreeMap<String, Duration>> {
        lock(&SLEEPS)
    }

    fn here() -> String {
        let thread = std::thread::current();
        format!("{} ({:?})", thread.name().unwrap_or_default(), thread.id())
    }

    /// Records that the calling thread is about to sleep.
    pub(crate) fn note(time: Duration) {
        // A child that is forked meanwhile would find the mutex locked.
        let _no_fork = fork::block_forks();
        sleeps().insert(here(), time);
    }

    /// Records that the calling thread ends.
    pub(crate) fn end() {
        let _no_fork = fork::block_forks();
        sleeps().remove(&here());
    }

    /// The timeout of the current or last sleep of each thread, by thread name.
    pub fn all() -> Vec<(String, Duration)> {
        let _no_fork = fork::block_forks();
        sleeps().iter().map(|(name, time)| (name.clone(), *time)).collect()
    }
}

/// A worker's next move after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Takes another step at once.
    Again,
    /// Takes a step once the bell has rung since the last step began, or after this time.
    Within(Duration),
    /// Takes a step once the bell has rung since the last step began.
    Rung,
    /// Ends, because no work is left.
    End,
}

/// The reason for a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The bell was rung since the last step began, or this is the first step.
    Rung,
    /// The last step asked for another one at once.
    Again,
    /// The timeout set by the last step expired.
    TimedOut,
}

/// Wakes a worker. A bell may exist before its worker starts, or without any worker.
#[derive(Default)]
pub struct Bell {
    state: Mutex<State>,
    changed: Condvar,
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bell({} rings)", self.state().rings)
    }
}

#[derive(Default)]
struct State {
    rings: u64,
    stopping: bool,
    /// Called after each change, without the lock held.
    also: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Bell {
    /// Wakes the worker, or makes it take another step after the current one.
    pub fn ring(&self) {
        let mut state = self.state();
        state.rings += 1;
        self.notify(state);
    }

    /// Asks the worker to end, without waiting, so that an owner can stop several workers before
    /// waiting for the first.
    pub fn stop(&self) {
        let mut state = self.state();
        state.stopping = true;
        self.notify(state);
    }

    /// From now on, the bell also calls `also`, after each change.
    pub(crate) fn set_callback(&self, also: impl Fn() + Send + Sync + 'static) {
        self.state().also = Some(Arc::new(also));
    }

    /// Wakes the thread that waits for the new state.
    fn notify(&self, state: MutexGuard<'_, State>) {
        let also = state.also.clone();
        drop(state);
        self.changed.notify_all();
        if let Some(also) = also {
            also();
        }
    }

    /// Number of rings so far; `None` if the worker must end.
    pub(crate) fn rings(&self) -> Option<u64> {
        let state = self.state();
        (!state.stopping).then_some(state.rings)
    }

    /// Sleeps as `next` requests, given the count of rings before the step; `None` if the worker
    /// must end.
    fn wait(&self, next: Next, seen: u64) -> Option<Woken> {
        let is_asleep = |state: &mut State| !state.stopping && state.rings == seen;
        #[cfg(any(test, feature = "testing"))]
        match next {
            Next::Within(time) => sleeps::note(time.min(SLEEP_MAX)),
            Next::Rung => sleeps::note(SLEEP_MAX),
            // The worker does not sleep here.
            Next::Again | Next::End => {}
        }
        let state = match next {
            Next::End => return None,
            Next::Again => self.state(),
            Next::Rung => self
                .changed
                .wait_while(self.state(), is_asleep)
                .unwrap_or_else(PoisonError::into_inner),
            Next::Within(time) => {
                let slept =
                    self.changed.wait_timeout_while(self.state(), time.min(SLEEP_MAX), is_asleep);
                slept.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        match (state.stopping, state.rings == seen) {
            (true, _) => None,
            (false, false) => Some(Woken::Rung),
            (false, true) => Some(if next == Next::Again { Woken::Again } else { Woken::TimedOut }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A counter and a flag: consistent between any two statements.
        lock(&self.state)
    }
}

/// The thread; stopped on drop.
pub struct Worker {
    name: String,
    bell: Arc<Bell>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Worker {
    /// Starts a thread called `name` that takes a `step` now, and again whenever the last step or
    /// `bell` requests one. `alarm` is called if a step panics.
    ///
    /// # Errors
    ///
    /// The system cannot create a thread.
    pub fn start(
        name: &str,
        bell: &Arc<Bell>,
        alarm: impl Fn() + Send + 'static,
        mut step: impl FnMut(Woken) -> Next + Send + 'static,
    ) -> io::Result<Self> {
        let ears = Arc::clone(bell);
        let body = move || {
            let _alarm = Alarm(alarm);
            let mut woken = Some(Woken::Rung);
            while let (Some(reason), Some(seen)) = (woken, ears.rings()) {
                woken = ears.wait(step(reason), seen);
            }
            #[cfg(any(test, feature = "testing"))]
            sleeps::end();
        };
        let thread = spawn(name, body)?;
        Ok(Self { name: name.to_owned(), bell: Arc::clone(bell), thread: Mutex::new(Some(thread)) })
    }

    /// Whether it has not been stopped. A worker that ended by itself counts as running until
    /// `stop`.
    pub fn is_running(&self) -> bool {
        self.thread().is_some()
    }

    /// Ends the thread and waits for it, unless the thread itself is the caller; then it ends after
    /// its step. Returns whether this call ended it.
    pub fn stop(&self) -> bool {
        self.bell.stop();
        let thread = self.thread().take();
        // If a step panicked, the alarm has reported that; the step's work stays undone, as after a
        // crash.
        let is_caller =
            |thread: &JoinHandle<()>| thread.thread().id() == std::thread::current().id();
        match thread {
            Some(thread) if is_caller(&thread) => true,
            thread => thread.map(JoinHandle::join).is_some(),
        }
    }

    fn thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        lock(&self.thread)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Worker({}, running: {})", self.name, self.is_running())
    }
}

/// Calls its function if the thread that holds it panics.
struct Alarm<F: Fn()>(F);

impl<F: Fn()> Drop for Alarm<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn ended_worker_ignores_rings() {
        let bell = Arc::new(Bell::default());
        let (told, steps) = channel();
        let worker = Worker::start(
            "w",
            &bell,
            || {},
            move |woken| {
                told.send(woken).unwrap();
                Next::End
            },
        );
        assert_eq!(steps.recv_timeout(LONG), Ok(Woken::Rung));
        bell.ring();
        // The thread has ended and dropped its end of the channel.
        assert_eq!(steps.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
        assert!(worker.unwrap().stop());
    }

    #[test]
    fn worker_steps_until_idle_and_on_each_ring() {
        let bell = Arc::new(Bell::default());
        let (told, steps) = channel();
        let mut left = 2;
        let step = move |woken| {
            told.send(woken).unwrap();
            left -= 1;
            if left > 0 { Next::Again } else { Next::Rung }
        };
        let worker = Worker::start("test", &bell, || {}, step).unwrap();
        assert_eq!(steps.recv_timeout(LONG), Ok(Woken::Rung));
        assert_eq!(steps.recv_timeout(LONG), Ok(Woken::Again));
        bell.ring();
        assert_eq!(steps.recv_timeout(LONG), Ok(Woken::Rung));
        assert!(worker.is_running() && worker.stop());
        assert!(!worker.is_running() && !worker.stop());
        bell.ring();
        assert!(steps.recv().is_err(), "the thread has ended and took no other step");
    }

    #[test]
    fn ring_during_a_step_is_not_lost() {
        let bell = Arc::new(Bell::default());
        let (told, steps) = channel();
        let (rung, resume_tx) = channel();
        let mut first = true;
        let step = move |woken| {
            told.send(woken).unwrap();
            if std::mem::take(&mut first) {
                let () = resume_tx.recv_timeout(LONG).unwrap();
            }
            Next::Rung
        };
        let _worker = Worker::start("test", &bell, || {}, step).unwrap();
        assert_eq!(steps.recv_timeout(LONG), Ok(Woken::Rung));
        bell.ring();
        rung.send(()).unwrap();
        assert_eq!(steps.recv_timeout(LONG), Ok(Woken::Rung));
    }

    #[test]
    fn timeout_triggers_a_step() {
        let bell = Arc::new(Bell::default());
        let (told, steps) = channel();
        let step = move |woken| {
            told.send(woken).unwrap();
            Next::Within(Duration::from_millis(1))
        };
        let _worker = Worker::start("test", &bell, || {}, step).unwrap();
        assert_eq!(steps.recv_timeout(LONG), Ok(Woken::Rung));
        assert_eq!(steps.recv_timeout(LONG), Ok(Woken::TimedOut));
    }

    #[test]
    fn panicking_step_calls_the_alarm() {
        let bell = Arc::new(Bell::default());
        let (told, alarm) = channel();
        let worker =
            Worker::start("test", &bell, move || told.send(()).unwrap(), |_| panic!("on purpose"))
                .unwrap();
        assert_eq!(alarm.recv_timeout(LONG), Ok(()));
        assert!(worker.stop());
    }
}
