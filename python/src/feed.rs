//! An engine feed that several threads can wait on. Each waits until an item is found, its timeout
//! expires, the feed is closed, or a signal interrupts it.
//!
//! One thread at a time is inside the engine; the others wait for it. The item that it finds is
//! kept until a call returns the item.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plimsoll::{FeedHandle, Glsn, Result as EngineResult};
use pyo3::prelude::*;

use crate::calls::{handles_signals, interruptible};
use crate::errors::OrRaise;
use crate::fork::ForkSafe;

/// Never set. Used for waits that end only by a timeout or the end of the feed.
static NEVER: AtomicBool = AtomicBool::new(false);

/// An engine feed.
pub(crate) trait Follow: Send + 'static {
    type Found: Send + 'static;

    fn next_timeout(&mut self, timeout: Duration) -> EngineResult<Option<Self::Found>>;

    /// The next item if it was read already.
    fn ahead(&mut self) -> Option<Self::Found> {
        None
    }

    fn position(&self) -> Glsn;

    fn handle(&self) -> FeedHandle;
}

impl Follow for plimsoll::Commits {
    type Found = plimsoll::Commit;

    fn next_timeout(&mut self, timeout: Duration) -> EngineResult<Option<plimsoll::Commit>> {
        Self::next_timeout(self, timeout)
    }

    fn position(&self) -> Glsn {
        Self::position(self)
    }

    fn handle(&self) -> FeedHandle {
        Self::handle(self)
    }
}

impl Follow for plimsoll::LogFollow {
    type Found = plimsoll::LogEntry;

    fn next_timeout(&mut self, timeout: Duration) -> EngineResult<Option<plimsoll::LogEntry>> {
        Self::next_timeout(self, timeout)
    }

    fn position(&self) -> Glsn {
        Self::position(self)
    }

    fn handle(&self) -> FeedHandle {
        Self::handle(self)
    }
}

/// A feed, shared by the threads that wait on it.
pub(crate) struct Feed<F: Follow> {
    state: Mutex<State<F>>,
    /// The feed is no longer in use, or a waiter must recheck whether its wait is over.
    changed: Condvar,
    handle: ForkSafe<FeedHandle>,
    closed: AtomicBool,
}

struct State<F: Follow> {
    /// `None` while a thread uses it.
    feed: Option<ForkSafe<F>>,
    /// An item that [`Feed::hold`] has found, with the position before it. It stays here if the
    /// waiting call was interrupted.
    kept: Option<ForkSafe<(Glsn, F::Found)>>,
}

impl<F: Follow> Feed<F> {
    pub(crate) fn new(feed: F) -> Arc<Self> {
        let handle = ForkSafe::new(feed.handle());
        let state = Mutex::new(State { feed: Some(ForkSafe::new(feed)), kept: None });
        Arc::new(Self { state, changed: Condvar::new(), handle, closed: AtomicBool::new(false) })
    }

    /// Waits up to `timeout` for the next item (`None`: without limit).
    pub(crate) fn next(
        self: &Arc<Self>,
        py: Python<'_>,
        timeout: Option<Duration>,
    ) -> PyResult<Option<F::Found>> {
        let begun = Instant::now();
        let deadline = timeout.and_then(|timeout| begun.checked_add(timeout));
        // An item that exists already needs no other thread.
        let mut is_held = py.detach(|| self.hold(Some(begun), &NEVER))?.or_raise()?;
        if !is_held && deadline != Some(begun) {
            is_held = self.hold_interruptibly(py, deadline)?;
        }
        while is_held {
            if let Some(found) = self.ahead()? {
                return Ok(Some(found));
            }
            // Another thread took the item.
            is_held = self.hold_interruptibly(py, deadline)?;
        }
        Ok(None)
    }

    fn hold_interruptibly(
        self: &Arc<Self>,
        py: Python<'_>,
        deadline: Option<Instant>,
    ) -> PyResult<bool> {
        if !handles_signals(py)? {
            return py.detach(|| self.hold(deadline, &NEVER))?.or_raise();
        }
        let is_left = Arc::new(AtomicBool::new(false));
        let (feed, is_over) = (Arc::clone(self), Arc::clone(&is_left));
        match interruptible(py, move || feed.hold(deadline, &is_over)) {
            Ok(held) => held?.or_raise(),
            Err(interrupted) => {
                is_left.store(true, Ordering::SeqCst);
                self.wake()?;
                Err(interrupted)
            }
        }
    }

    /// Waits until an item is found, and keeps it for [`Feed::ahead`]; returns false at `deadline`,
    /// or once `is_left` is set and the feed is woken.
    pub(crate) fn hold(
        &self,
        deadline: Option<Instant>,
        is_left: &AtomicBool,
    ) -> PyResult<EngineResult<bool>> {
        // First, because in a forked child no thread returns the feed.
        self.handle.get()?;
        let left = || {
            deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            })
        };
        let is_over = || self.is_closed() || is_left.load(Ordering::SeqCst);
        loop {
            let waits =
                |state: &mut State<F>| state.kept.is_none() && state.feed.is_none() && !is_over();
            let waited = self.changed.wait_timeout_while(self.state(), left(), waits);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.kept.is_some() {
                return Ok(Ok(true));
            }
            let Some(mut feed) = state.feed.take_if(|_| !is_over()) else { return Ok(Ok(false)) };
            drop(state);
            let found = feed.get_mut().map(|feed| {
                let before = feed.position();
                feed.next_timeout(left())
                    .map(|found| found.map(|found| ForkSafe::new((before, found))))
            });
            // Updated together with the feed, so that its position never passes an item that no
            // call has returned.
            let mut state = self.state();
            state.feed = Some(feed);
            let found = found?.map(|found| {
                state.kept = found;
                state.kept.is_some()
            });
            drop(state);
            self.changed.notify_one();
            // Otherwise it was woken for another waiter.
            if !matches!(found, Ok(false)) || is_over() || left().is_zero() {
                return Ok(found);
            }
        }
    }

    /// Waits for an item on a thread that runs no signal handlers.
    pub(crate) fn hold_without_end(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.hold(None, &NEVER))?.or_raise()
    }

    /// The item that was found already.
    pub(crate) fn ahead(&self) -> PyResult<Option<F::Found>> {
        self.handle.get()?;
        let mut state = self.state();
        if let Some(kept) = state.kept.take() {
            return Ok(Some(kept.into_inner()?.1));
        }
        state.feed.as_mut().map_or(Ok(None), |feed| Ok(feed.get_mut()?.ahead()))
    }

    /// The GLSN from which a new feed continues this one. Does not block on threads that wait on
    /// the feed.
    pub(crate) fn position(&self) -> PyResult<Glsn> {
        let handle = self.handle.get()?;
        let state = self.state();
        match (&state.kept, &state.feed) {
            (Some(kept), _) => Ok(kept.get()?.0),
            (None, Some(feed)) => Ok(feed.get()?.position()),
            (None, None) => Ok(handle.position()),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Ends all waits, including later ones.
    pub(crate) fn close(&self) -> PyResult<()> {
        self.closed.store(true, Ordering::SeqCst);
        self.wake()
    }

    /// Makes all waiters recheck whether their wait is over.
    fn wake(&self) -> PyResult<()> {
        let handle = self.handle.get()?;
        // Lock and unlock, so that a waiter that has checked but does not sleep yet is not missed.
        drop(self.state());
        self.changed.notify_all();
        handle.end_wait();
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State<F>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
