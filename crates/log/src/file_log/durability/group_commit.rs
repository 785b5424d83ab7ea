//! Group commit: one sync for everybody who waits.
//!
//! Whoever comes first leads: he writes out everything that is buffered, syncs once, and wakes the others. Before he does, he gives
//! the writers that the last group has just woken a moment to come back with their next records ([`GATHER_NANOS`]); alone, or
//! when nobody is missing, he waits for nothing. There is no timer.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use plimsoll_disk::clock::Clock;

use crate::error::LogError;
use crate::file_log::tail::order::End;
use crate::glsn::{Glsn, Position};

/// The longest that a leader waits for the writers of the last group.
const GATHER_NANOS: u64 = 50_000;

/// Yields after which he goes anyway: a simulated clock may stand still.
const GATHER_YIELDS: u32 = 2_000;

/// What is durable, and who waits for it.
#[derive(Debug)]
pub(crate) struct GroupCommit {
    state: Mutex<State>,
    synced: Condvar,
    durable: AtomicU64,
    poisoned: AtomicBool,
    /// Waiters of the group that is being gathered.
    arrived: AtomicUsize,
    followers: Followers,
}

#[derive(Debug)]
struct State {
    leading: bool,
    durable: Position,
    /// How many are likely to take part in the next group.
    expected: usize,
    cause: Option<String>,
}

/// Those who wait for something to read.
#[derive(Debug, Default)]
struct Followers {
    waiting: AtomicUsize,
    lock: Mutex<()>,
    news: Condvar,
}

impl GroupCommit {
    pub(crate) fn new(durable: Position) -> Self {
        let state = State { leading: false, durable, expected: 0, cause: None };
        Self {
            state: Mutex::new(state),
            synced: Condvar::new(),
            durable: AtomicU64::new(durable.glsn.0),
            poisoned: AtomicBool::new(false),
            arrived: AtomicUsize::new(0),
            followers: Followers::default(),
        }
    }

    /// Everything up to here is durable.
    pub(crate) fn durable(&self) -> Glsn {
        // Acquire: pairs with the Release in `publish`; what is durable can be read.
        Glsn(self.durable.load(Ordering::Acquire))
    }

    /// The newest durable place.
    pub(crate) fn position(&self) -> Position {
        self.state().durable
    }

    /// An error if the log is poisoned.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        if self.poisoned.load(Ordering::Acquire) { Err(self.state().poison()) } else { Ok(()) }
    }

    /// From now on nothing more is accepted. Returns the error that everybody gets.
    pub(crate) fn poison(&self, cause: &LogError) -> LogError {
        let mut state = self.state();
        state.cause.get_or_insert_with(|| cause.to_string());
        // Release: pairs with the Acquire in `check`.
        self.poisoned.store(true, Ordering::Release);
        let error = state.poison();
        drop(state);
        self.synced.notify_all();
        self.notify_followers();
        error
    }

    /// Everything below `end` was synced.
    pub(crate) fn publish(&self, end: &End) {
        self.set_durable(&mut self.state(), end);
        self.notify_followers();
    }

    /// Waits until `glsn` is durable. `write_and_sync` is called if it falls to this thread to lead.
    pub(crate) fn wait(
        &self,
        glsn: Glsn,
        clock: &dyn Clock,
        write_and_sync: &dyn Fn() -> Result<End, LogError>,
    ) -> Result<(), LogError> {
        if self.durable() >= glsn {
            return Ok(());
        }
        self.arrived.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
        loop {
            if state.durable.glsn >= glsn {
                return Ok(());
            }
            if state.cause.is_some() {
                return Err(state.poison());
            }
            if state.leading {
                state = self.synced.wait(state).expect("no code under this lock panics");
                continue;
            }
            state.leading = true;
            let expected = state.expected;
            drop(state);
            self.gather(expected, clock);
            let group = self.arrived.swap(0, Ordering::Relaxed);
            let result = write_and_sync();
            state = self.end_group(group, result);
        }
    }

    /// Waits until `beyond` says yes, or until `patience` is over, or the log is poisoned.
    pub(crate) fn wait_for_news(&self, patience: Duration, beyond: &dyn Fn() -> bool) {
        let followers = &self.followers;
        // SeqCst: either this is seen by `notify_followers`, or its news are seen below.
        followers.waiting.fetch_add(1, Ordering::SeqCst);
        let guard = followers.lock.lock().expect("no code under this lock panics");
        let waited =
            followers.news.wait_timeout_while(guard, patience, |()| !beyond() && !self.poisoned.load(Ordering::SeqCst));
        drop(waited);
        followers.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes those who wait for something to read.
    pub(crate) fn notify_followers(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.followers.waiting.load(Ordering::SeqCst) > 0 {
            // Taken and left: a follower that has looked but does not wait yet is not missed.
            drop(self.followers.lock.lock().expect("no code under this lock panics"));
            self.followers.news.notify_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code under this lock panics")
    }

    /// Lets the writers of the last group come back.
    fn gather(&self, expected: usize, clock: &dyn Clock) {
        if self.arrived.load(Ordering::Relaxed) >= expected {
            return;
        }
        let start = clock.monotonic_nanos();
        for _ in 0..GATHER_YIELDS {
            std::thread::yield_now();
            let enough = self.arrived.load(Ordering::Relaxed) >= expected;
            if enough || clock.monotonic_nanos() - start > GATHER_NANOS {
                return;
            }
        }
    }

    fn end_group(&self, group: usize, result: Result<End, LogError>) -> MutexGuard<'_, State> {
        if let Err(error) = &result {
            self.poison(error);
        }
        let mut state = self.state();
        state.leading = false;
        state.expected = group + self.arrived.load(Ordering::Relaxed);
        if let Ok(end) = &result {
            self.set_durable(&mut state, end);
        }
        self.synced.notify_all();
        drop(state);
        self.notify_followers();
        self.state()
    }

    fn set_durable(&self, state: &mut State, end: &End) {
        let position = Position { glsn: Glsn(end.next.0 - 1), chain: end.chain };
        if position.glsn > state.durable.glsn {
            state.durable = position;
            // Release: pairs with the Acquire in `durable`.
            self.durable.store(position.glsn.0, Ordering::Release);
        }
    }
}

impl State {
    fn poison(&self) -> LogError {
        LogError::Poisoned { cause: self.cause.clone().unwrap_or_default() }
    }
}
