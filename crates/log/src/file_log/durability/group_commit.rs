//! Group commit: one sync for all waiters.
//!
//! One of the waiters leads: it gives others a short time to join
//! ([`crate::file_log::durability::leading`]), writes out the whole buffer and syncs once.
//!
//! Invariant: a leader never waits for a lock whose holder may wait here. Such locks are the
//! members' turn and the commit lock.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use plimsoll_disk::clock::Clock;

use crate::error::LogError;
use crate::file_log::durability::leading::Leading;
use crate::file_log::tail::order::End;
use crate::glsn::{Glsn, Position};

/// The durable position, and the waiters for it.
#[derive(Debug)]
pub(crate) struct GroupCommit {
    state: Mutex<State>,
    durable: AtomicU64,
    poisoned: AtomicBool,
    waiters: Leading,
    followers: Followers,
    /// Called with the first failure.
    on_poison: Option<fn(&str)>,
}

#[derive(Debug)]
struct State {
    durable: Position,
    /// Why the log is poisoned.
    cause: Option<String>,
}

/// The threads that wait for new entries to read.
#[derive(Debug, Default)]
struct Followers {
    waiting: AtomicUsize,
    lock: Mutex<()>,
    news: Condvar,
}

impl GroupCommit {
    pub(crate) fn new(durable: Position, on_poison: Option<fn(&str)>) -> Self {
        Self {
            state: Mutex::new(State { durable, cause: None }),
            durable: AtomicU64::new(durable.glsn.0),
            poisoned: AtomicBool::new(false),
            waiters: Leading::default(),
            followers: Followers::default(),
            on_poison,
        }
    }

    /// The last durable GLSN.
    pub(crate) fn durable(&self) -> Glsn {
        // Acquire: pairs with the Release in `publish`, so that all durable entries can be read.
        Glsn(self.durable.load(Ordering::Acquire))
    }

    /// The newest durable position.
    pub(crate) fn position(&self) -> Position {
        self.state().durable
    }

    /// An error if the log is poisoned.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        if self.poisoned.load(Ordering::Acquire) { Err(self.state().poison()) } else { Ok(()) }
    }

    /// Poisons the log, which then accepts nothing more. Returns the error that all callers get.
    pub(crate) fn poison(&self, cause: &LogError) -> LogError {
        let (error, is_first) = self.refuse_more(cause);
        if let Some(on_poison) = self.on_poison.filter(|_| is_first) {
            on_poison(&cause.to_string());
        }
        error
    }

    /// Makes the log accept nothing more, because it is closed.
    pub(crate) fn close(&self) {
        self.refuse_more(&LogError::Format { message: "the log is closed".to_owned() });
    }

    /// Makes the log accept nothing more. Returns the error that all callers get, and whether
    /// `cause` is the first.
    fn refuse_more(&self, cause: &LogError) -> (LogError, bool) {
        let mut state = self.state();
        let is_first = state.cause.is_none();
        state.cause.get_or_insert_with(|| cause.to_string());
        // Release: pairs with the Acquire in `check`.
        self.poisoned.store(true, Ordering::Release);
        let error = state.poison();
        drop(state);
        self.waiters.wake();
        self.notify_followers();
        (error, is_first)
    }

    /// Publishes that everything below `end` was synced.
    pub(crate) fn publish(&self, end: &End) {
        let position = Position { glsn: Glsn(end.next.0 - 1), chain: end.chain };
        let mut state = self.state();
        if position.glsn > state.durable.glsn {
            state.durable = position;
            // Release: pairs with the Acquire in `durable`.
            self.durable.store(position.glsn.0, Ordering::Release);
        }
        drop(state);
        self.notify_followers();
    }

    /// Waits until `glsn` is durable. Calls `write_and_sync` if this thread leads a group.
    pub(crate) fn wait(
        &self,
        glsn: Glsn,
        clock: &dyn Clock,
        write_and_sync: &dyn Fn() -> Result<End, LogError>,
    ) -> Result<(), LogError> {
        if self.durable() >= glsn {
            return Ok(());
        }
        let outcome = || match self.durable() >= glsn {
            true => Some(Ok(())),
            false => self.check().err().map(Err),
        };
        let lead = || match write_and_sync() {
            Ok(end) => {
                self.publish(&end);
                Ok(())
            }
            Err(stalled @ LogError::Stalled { .. }) => Err(stalled),
            Err(error) => Err(self.poison(&error)),
        };
        self.waiters.wait(&outcome, clock, &lead)
    }

    /// Waits until `is_over` returns true, `timeout` is over, or the log is poisoned.
    pub(crate) fn wait_until(&self, timeout: Duration, is_over: &dyn Fn() -> bool) {
        let followers = &self.followers;
        // SeqCst: either `notify_followers` sees this waiter, or this thread sees the new state
        // below.
        followers.waiting.fetch_add(1, Ordering::SeqCst);
        let guard = followers.lock.lock().expect("no code under this lock panics");
        let must_wait = |(): &mut ()| !is_over() && !self.poisoned.load(Ordering::SeqCst);
        let waited = followers.news.wait_timeout_while(guard, timeout, must_wait);
        drop(waited);
        followers.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes the waiters for new entries.
    pub(crate) fn notify_followers(&self) {
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.followers.waiting.load(Ordering::SeqCst) > 0 {
            // Take and release the lock, so that a follower that has checked and is about to wait
            // is not missed.
            drop(self.followers.lock.lock().expect("no code under this lock panics"));
            self.followers.news.notify_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code under this lock panics")
    }
}

impl State {
    fn poison(&self) -> LogError {
        LogError::Poisoned { cause: self.cause.clone().unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use plimsoll_disk::clock::SystemClock;

    use super::*;

    #[test]
    fn threads_that_wait_together_for_another_process_time_out_together() {
        let group = GroupCommit::new(Position { glsn: Glsn::NONE, chain: 0 }, None);
        let (clock, syncs) = (SystemClock::new(), AtomicUsize::new(0));
        let stalled = LogError::Stalled { pid: Some(7), since_micros: 0 };
        let sync = || {
            syncs.fetch_add(1, Ordering::Relaxed);
            clock.sleep(Duration::from_millis(100));
            Err(stalled.clone())
        };
        let begin = Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    begin.wait();
                    assert!(matches!(
                        group.wait(Glsn(1), &clock, &sync),
                        Err(LogError::Stalled { .. })
                    ));
                });
            }
        });
        // One thread waits from the start, and the others, which arrived meanwhile, wait again. A
        // busy machine may keep some from arriving in time.
        assert!(syncs.into_inner() < 8);
        group.check().unwrap();
    }
}
