//! A simulated process: it counts its operations on the disk and on shared state, and can be killed
//! or stopped at any of them.
//!
//! Invariants:
//! 1. A killed process changes nothing: its calls fail, and its stores to shared words go to
//!    private words. Its earlier writes stay, synced or not, and its locks are released.
//! 2. A process is stopped in the middle of a call by blocking the calling thread; it keeps its
//!    locks meanwhile.
//! 3. Waiting at a shared word advances simulated time and lets others work
//!    ([`Process::when_idle`]).

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::lying::lock::LyingLock;
use crate::mutex::lock;
use crate::sharing::LockFile;

/// A resource that a process holds until it ends.
#[derive(Debug)]
pub(super) enum Held {
    File(Box<dyn LockFile>),
    Folder(LyingLock),
}

/// A resource, shared with the process's handle of it.
pub(super) type Holding = Arc<Mutex<Option<Held>>>;

type Idle = Arc<dyn Fn(Duration) + Send + Sync>;

/// A process that has a disk open together with others ([`crate::lying::LyingDisk::process`]).
/// Clones are the same process.
#[derive(Clone)]
pub struct Process {
    inner: Arc<Inner>,
}

struct Inner {
    pid: u32,
    state: Mutex<State>,
    changed: Condvar,
    holdings: Mutex<Vec<Holding>>,
    idle: Mutex<Option<Idle>>,
}

#[derive(Debug, Default)]
struct State {
    operations: u64,
    kill_at: Option<u64>,
    stop_at: Option<u64>,
    /// Changes of files and names that it has begun.
    changes: u64,
    kill_at_change: Option<AtChange>,
    stop_at_change: Option<AtChange>,
    /// Number of reads from now until the failing one (1: the next one).
    fail_read: Option<u64>,
    /// Kill the process when a sync fails, before it can report the failure.
    killed_by_failed_sync: bool,
    was_killed_by_sync: bool,
    is_dead: bool,
    is_stopped: bool,
}

/// An operation of a process, counted from its `nth` change of a file or a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtChange {
    /// The change (1: the next one).
    pub nth: u64,
    /// The number of operations after it; 0 is the change itself.
    pub later: u64,
}

impl Process {
    pub(super) fn new(pid: u32) -> Self {
        let inner = Inner {
            pid,
            state: Mutex::default(),
            changed: Condvar::new(),
            holdings: Mutex::default(),
            idle: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.inner.state)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.inner.pid
    }

    /// The number of operations begun: calls of the disk and of locks, and reads of shared words.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Kills it now, even while it is stopped.
    pub fn kill(&self) {
        self.state().is_dead = true;
        self.end();
    }

    /// Kills it at its `n`-th operation from now, before that takes effect (1: the next one). A
    /// write may be partially done.
    pub fn kill_at(&self, n: u64) {
        let mut state = self.state();
        state.kill_at = Some(state.operations.saturating_add(n));
    }

    /// Like [`Process::kill_at`], at an operation counted from a change.
    pub fn kill_at_change(&self, change: AtChange) {
        let mut state = self.state();
        let nth = state.changes.saturating_add(change.nth);
        state.kill_at_change = Some(AtChange { nth, ..change });
    }

    /// Like [`Process::stop_at`], at an operation counted from a change.
    pub fn stop_at_change(&self, change: AtChange) {
        let mut state = self.state();
        let nth = state.changes.saturating_add(change.nth);
        state.stop_at_change = Some(AtChange { nth, ..change });
    }

    /// Kills the process when one of its syncs fails, so that no other process is notified of the
    /// failure.
    pub fn kill_at_failed_sync(&self) {
        self.state().killed_by_failed_sync = true;
    }

    /// Whether it was killed by [`Process::kill_at_failed_sync`].
    pub fn was_killed_by_sync(&self) -> bool {
        self.state().was_killed_by_sync
    }

    /// Notes that one of its syncs has failed.
    pub(super) fn note_failed_sync(&self) {
        let mut state = self.state();
        if state.killed_by_failed_sync && !state.is_dead {
            (state.is_dead, state.was_killed_by_sync) = (true, true);
            drop(state);
            self.end();
        }
    }

    /// Stops it at its `n`-th operation from now (1: the next one); `None` cancels.
    pub fn stop_at(&self, n: Option<u64>) {
        let mut state = self.state();
        state.stop_at = n.map(|n| state.operations.saturating_add(n));
        state.stop_at_change = None;
    }

    /// Stops it now, in the calling thread, until it is resumed or killed.
    pub fn stop_here(&self) {
        let mut state = self.state();
        state.is_stopped = true;
        self.inner.changed.notify_all();
        while state.is_stopped {
            state = self.inner.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes its `n`-th read from now fail (1: the next one); `None` cancels.
    pub fn fail_read(&self, n: Option<u64>) {
        self.state().fail_read = n;
    }

    /// Counts a read; returns whether it fails.
    pub(super) fn read_fails(&self) -> bool {
        let mut state = self.state();
        if let Some(left) = &mut state.fail_read {
            *left = left.saturating_sub(1);
        }
        state.fail_read.take_if(|left| *left == 0).is_some()
    }

    /// Whether it was killed.
    pub fn is_dead(&self) -> bool {
        self.state().is_dead
    }

    /// Whether it is stopped.
    pub fn is_stopped(&self) -> bool {
        self.state().is_stopped
    }

    /// Resumes it.
    pub fn resume(&self) {
        self.state().is_stopped = false;
        self.inner.changed.notify_all();
    }

    /// Waits until it is stopped, or until `is_done`; its thread calls [`Process::notify`] to
    /// signal that.
    pub fn wait_until_stopped(&self, is_done: &dyn Fn() -> bool) {
        let mut state = self.state();
        while !state.is_stopped && !is_done() {
            state = self.inner.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes threads that wait for the process.
    pub fn notify(&self) {
        drop(self.state());
        self.inner.changed.notify_all();
    }

    /// Sets the action that runs while the process waits at a shared word. The action must let the
    /// given time pass.
    pub fn when_idle(&self, idle: impl Fn(Duration) + Send + Sync + 'static) {
        *lock(&self.inner.idle) = Some(Arc::new(idle));
    }

    /// Begins an operation that changes a file or a name; returns whether the process is alive to
    /// do it.
    pub(super) fn begins_change(&self) -> bool {
        let mut state = self.state();
        state.changes += 1;
        let (changes, next) = (state.changes, state.operations + 1);
        let is_due = |at: &mut AtChange| at.nth == changes;
        if let Some(at) = state.kill_at_change.take_if(is_due) {
            state.kill_at = Some(next + at.later);
        }
        if let Some(at) = state.stop_at_change.take_if(is_due) {
            state.stop_at = Some(next + at.later);
        }
        drop(state);
        self.begins()
    }

    /// Begins an operation; returns whether the process is alive to do it.
    pub(super) fn begins(&self) -> bool {
        let mut state = self.state();
        if state.is_dead {
            return false;
        }
        state.operations += 1;
        let count = state.operations;
        if state.stop_at.take_if(|at| count >= *at).is_some() {
            state.is_stopped = true;
            self.inner.changed.notify_all();
            while state.is_stopped {
                state = self.inner.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        state.is_dead |= state.kill_at.is_some_and(|at| count >= at);
        let is_dead = state.is_dead;
        drop(state);
        if is_dead {
            self.end();
        }
        !is_dead
    }

    /// Whether a write at which the process was killed is partially done; half of them are.
    pub(super) fn wrote_in_part(&self) -> bool {
        let state = self.state();
        state.kill_at == Some(state.operations) && state.operations.is_multiple_of(2)
    }

    fn end(&self) {
        self.state().is_stopped = false;
        let holdings = std::mem::take(&mut *lock(&self.inner.holdings));
        for holding in holdings {
            match lock(&holding).take() {
                Some(Held::Folder(lock)) => lock.abandon(),
                Some(Held::File(lock)) => lock.unlock(),
                None => {}
            }
        }
        self.inner.changed.notify_all();
    }

    /// Records that the process holds a resource until it is released or the process ends.
    pub(super) fn holds(&self, held: Held) -> Holding {
        let holding = Arc::new(Mutex::new(Some(held)));
        let mut holdings = lock(&self.inner.holdings);
        holdings.retain(|holding| Arc::strong_count(holding) > 1);
        holdings.push(Arc::clone(&holding));
        holding
    }

    /// Waits for this long.
    pub(super) fn idles(&self, timeout: Duration) {
        let idle = lock(&self.inner.idle).clone();
        if let Some(idle) = idle {
            idle(timeout);
        }
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Process({}, {:?})", self.inner.pid, self.state())
    }
}
