//! A simulated process: it counts what it asks of the disk and of what processes share, and can be
//! killed or stopped at any of it.
//!
//! Laws:
//! 1. A killed process changes nothing any more: its calls fail, its stores to shared words go to
//!    words of its own. What it wrote stays as it is, synced or not, and its locks are free.
//! 2. A process is stopped in the middle of a call, by blocking the thread that made it; it holds
//!    its locks meanwhile.
//! 3. One that waits at a shared word lets simulated time pass, and others work meanwhile
//!    ([`Process::when_idle`]).

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::lying::lock::LyingLock;
use crate::sharing::LockFile;

/// What a process holds until it ends.
#[derive(Debug)]
pub(super) enum Held {
    File(Box<dyn LockFile>),
    Folder(LyingLock),
}

/// One thing that a process may hold, shared with the handle that it has of it.
pub(super) type Holding = Arc<Mutex<Option<Held>>>;

type Idle = Arc<dyn Fn(Duration) + Send + Sync>;

/// A process that has a disk open together with others ([`crate::lying::LyingDisk::process`]).
/// Clones are the same.
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
    /// How many reads from now the one is that fails (1: the next one).
    fail_read: Option<u64>,
    /// It is killed when it is told that a sync failed, before it can tell anybody.
    killed_by_failed_sync: bool,
    has_died_of_sync: bool,
    is_dead: bool,
    is_stopped: bool,
}

/// An operation of a process, counted from its `nth` change of a file or a name from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtChange {
    /// Which change (1: the next one).
    pub nth: u64,
    /// How many operations after it; 0: the change itself.
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
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.inner.pid
    }

    /// How many operations it has begun: calls of the disk, of locks, and looks at shared words.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Kills it now, also while it is stopped.
    pub fn kill(&self) {
        self.state().is_dead = true;
        self.end();
    }

    /// Kills it at its `n`-th operation from now on, before that has an effect (1: at the next
    /// one). A write may have been done in part.
    pub fn kill_at(&self, n: u64) {
        let mut state = self.state();
        state.kill_at = Some(state.operations.saturating_add(n));
    }

    /// As [`Process::kill_at`], at an operation that is counted from a change.
    pub fn kill_at_change(&self, change: AtChange) {
        let mut state = self.state();
        let nth = state.changes.saturating_add(change.nth);
        state.kill_at_change = Some(AtChange { nth, ..change });
    }

    /// As [`Process::stop_at`], at an operation that is counted from a change.
    pub fn stop_at_change(&self, change: AtChange) {
        let mut state = self.state();
        let nth = state.changes.saturating_add(change.nth);
        state.stop_at_change = Some(AtChange { nth, ..change });
    }

    /// Kills the process when one of its syncs fails, so that no other process learns of the
    /// failure.
    pub fn kill_at_failed_sync(&self) {
        self.state().killed_by_failed_sync = true;
    }

    /// Whether that has happened.
    pub fn has_died_of_sync(&self) -> bool {
        self.state().has_died_of_sync
    }

    /// A sync of it has failed.
    pub(super) fn told_of_failed_sync(&self) {
        let mut state = self.state();
        if state.killed_by_failed_sync && !state.is_dead {
            (state.is_dead, state.has_died_of_sync) = (true, true);
            drop(state);
            self.end();
        }
    }

    /// Stops it at its `n`-th operation from now on (1: at the next one); `None`: not.
    pub fn stop_at(&self, n: Option<u64>) {
        let mut state = self.state();
        state.stop_at = n.map(|n| state.operations.saturating_add(n));
        state.stop_at_change = None;
    }

    /// Stops it now, in the thread that calls this, until it goes on or is killed.
    pub fn stop_here(&self) {
        let mut state = self.state();
        state.is_stopped = true;
        self.inner.changed.notify_all();
        while state.is_stopped {
            state = self.inner.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes its `n`-th read from now on fail (1: the next one); `None`: none.
    pub fn fail_read(&self, n: Option<u64>) {
        self.state().fail_read = n;
    }

    /// Counts a read; whether it fails.
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

    /// Lets it go on.
    pub fn go_on(&self) {
        self.state().is_stopped = false;
        self.inner.changed.notify_all();
    }

    /// Waits until it is stopped, or until `is_done`; its thread calls [`Process::tell`] for that.
    pub fn wait_until_stopped(&self, is_done: &dyn Fn() -> bool) {
        let mut state = self.state();
        while !state.is_stopped && !is_done() {
            state = self.inner.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes who waits for the process.
    pub fn tell(&self) {
        drop(self.state());
        self.inner.changed.notify_all();
    }

    /// Sets what happens while the process waits at a shared word: it lets the time pass that it is
    /// given.
    pub fn when_idle(&self, idle: impl Fn(Duration) + Send + Sync + 'static) {
        *self.inner.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(idle));
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

    /// Whether a write that the process was killed at is done in part all the same: of half of them
    /// it is.
    pub(super) fn wrote_in_part(&self) -> bool {
        let state = self.state();
        state.kill_at == Some(state.operations) && state.operations.is_multiple_of(2)
    }

    fn end(&self) {
        self.state().is_stopped = false;
        let holdings = std::mem::take(
            &mut *self.inner.holdings.lock().unwrap_or_else(PoisonError::into_inner),
        );
        for holding in holdings {
            match holding.lock().unwrap_or_else(PoisonError::into_inner).take() {
                Some(Held::Folder(lock)) => lock.abandon(),
                Some(Held::File(lock)) => lock.unlock(),
                None => {}
            }
        }
        self.inner.changed.notify_all();
    }

    /// From now on the process holds something, until it gives it back or ends.
    pub(super) fn holds(&self, held: Held) -> Holding {
        let holding = Arc::new(Mutex::new(Some(held)));
        let mut holdings = self.inner.holdings.lock().unwrap_or_else(PoisonError::into_inner);
        holdings.retain(|holding| Arc::strong_count(holding) > 1);
        holdings.push(Arc::clone(&holding));
        holding
    }

    /// Waits for so long.
    pub(super) fn idles(&self, patience: Duration) {
        let idle = self.inner.idle.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(idle) = idle {
            idle(patience);
        }
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Process({}, {:?})", self.inner.pid, self.state())
    }
}
