//! Waiting for a page that another thread is loading.

use std::sync::Arc;

use super::LoadError;
use crate::sync::{Condvar, Mutex};

/// The outcome of one load, for its waiters. The first waiter creates it.
pub(super) struct Load {
    outcome: Mutex<Option<Result<(), LoadError>>>,
    ended: Condvar,
}

impl Load {
    fn new() -> Self {
        Self { outcome: Mutex::new(None), ended: Condvar::new() }
    }

    pub(super) fn wait(&self) -> Result<(), LoadError> {
        let mut outcome = self.outcome.lock().expect("no code under this lock panics");
        loop {
            match &*outcome {
                Some(outcome) => return outcome.clone(),
                None => outcome = self.ended.wait(outcome).expect("no code under this lock panics"),
            }
        }
    }

    fn end(&self, outcome: Result<(), LoadError>) {
        *self.outcome.lock().expect("no code under this lock panics") = Some(outcome);
        self.ended.notify_all();
    }
}

/// Loads with waiters: at most one for each loading thread.
#[derive(Default)]
pub(super) struct Loads {
    by_frame: Vec<(u32, Arc<Load>)>,
}

impl Loads {
    /// The load that fills `frame`.
    pub(super) fn of(&mut self, frame: u32) -> Arc<Load> {
        if let Some((_, load)) = self.by_frame.iter().find(|(at, _)| *at == frame) {
            return Arc::clone(load);
        }
        let load = Arc::new(Load::new());
        self.by_frame.push((frame, Arc::clone(&load)));
        load
    }

    /// Removes the load that filled `frame`, if it has waiters.
    pub(super) fn take(&mut self, frame: u32) -> Waiters {
        let at = self.by_frame.iter().position(|(at, _)| *at == frame);
        Waiters(at.map(|at| self.by_frame.swap_remove(at).1))
    }
}

/// The waiters of a load that has ended.
#[must_use = "waiters sleep until they are notified"]
pub(super) struct Waiters(Option<Arc<Load>>);

impl Waiters {
    pub(super) fn notify(self, outcome: Result<(), &LoadError>) {
        if let Some(load) = self.0 {
            load.end(outcome.map_err(LoadError::clone));
        }
    }
}
