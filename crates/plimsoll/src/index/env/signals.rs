//! The signals between the writers and the background jobs of the index.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use plimsoll_disk::worker::Bell;

use crate::types::error::Error;
use crate::types::lock::lock;

/// A background job of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IndexJob {
    Flush,
    Compaction,
}

/// The signals between writers and background jobs.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// Rung when there is something to flush.
    pub(crate) flush: Arc<Bell>,
    /// Rung when there may be something to compact.
    pub(crate) compaction: Arc<Bell>,
    state: Mutex<State>,
    /// Signalled when a flush or a compaction step ended or failed.
    progress: Condvar,
}

#[derive(Debug, Default)]
struct State {
    closing: bool,
    flush_error: Option<String>,
    compaction_error: Option<String>,
    has_panicked_job: bool,
}

impl Signals {
    /// Wakes the flush job.
    pub(crate) fn call_flush(&self) {
        self.flush.ring();
    }

    /// Wakes the compaction job.
    pub(crate) fn call_compaction(&self) {
        self.compaction.ring();
    }

    /// Records the end of a flush.
    pub(crate) fn flush_ended(&self, error: Option<&Error>) {
        lock(&self.state).flush_error = error.map(ToString::to_string);
        self.progress.notify_all();
        if error.is_none() {
            self.call_compaction();
        }
    }

    /// Records the end of a compaction step. `changed`: whether a job ended, so that there may be
    /// fewer runs now.
    pub(crate) fn compaction_ended(&self, changed: bool, error: Option<&Error>) {
        lock(&self.state).compaction_error = error.map(ToString::to_string);
        if changed || error.is_some() {
            self.progress.notify_all();
        }
    }

    /// The error of the last flush or compaction step, if it failed.
    pub(crate) fn last_error(&self) -> Option<String> {
        let state = lock(&self.state);
        state.flush_error.clone().or_else(|| state.compaction_error.clone())
    }

    /// Whether the last flush failed, or no flush will run.
    pub(crate) fn has_flush_failed(&self) -> bool {
        let state = lock(&self.state);
        state.flush_error.is_some() || state.closing
    }

    /// Waits for `delay`, or until a flush or compaction step ends. Returns whether one did.
    pub(crate) fn wait_for_progress(&self, delay: Duration) -> bool {
        let state = lock(&self.state);
        if state.closing {
            return true;
        }
        !self.progress.wait_timeout(state, delay).map_or(true, |(_, timeout)| timeout.timed_out())
    }

    /// Records that a job panicked. Threads that wait for its work then run that work themselves.
    pub(crate) fn job_panicked(&self, job: IndexJob) {
        let error =
            Some("a background job of the index has panicked; open the store again".to_owned());
        let mut state = lock(&self.state);
        state.has_panicked_job = true;
        match job {
            IndexJob::Flush => state.flush_error = error,
            IndexJob::Compaction => state.compaction_error = error,
        }
        drop(state);
        self.progress.notify_all();
    }

    /// Whether a job has panicked.
    pub(crate) fn has_panicked_job(&self) -> bool {
        lock(&self.state).has_panicked_job
    }

    /// Ends the jobs and all waits.
    pub(crate) fn close(&self) {
        lock(&self.state).closing = true;
        self.progress.notify_all();
        self.flush.stop();
        self.compaction.stop();
    }

    /// Whether the jobs are about to end.
    pub(crate) fn is_closing(&self) -> bool {
        lock(&self.state).closing
    }
}
