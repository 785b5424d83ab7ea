//! The background threads of the index, and the signals between them and the writers. A thread runs steps while there is work and sleeps
//! until it is signalled.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use plimsoll_disk::worker::{Bell, Next, Woken, Worker};

use crate::index::Progress;
use crate::index::core::{Core, lock};
use crate::index::policy::Priority;
use crate::types::error::Error;

/// An index that received almost no writes for this long, and has no other work, counts as idle; its runs are then settled (merged for
/// reads).
const SETTLE_AFTER: Duration = Duration::from_millis(300);

/// Divisor: "almost no writes" means less than this part of a memtable within [`SETTLE_AFTER`].
const TRICKLE_PART: u64 = 256;

/// The first and the longest wait between attempts that fail.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// The signals between writers and background threads.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// Rung when there is something to flush.
    flush: Arc<Bell>,
    /// Rung when there may be something to compact.
    compaction: Arc<Bell>,
    state: Mutex<State>,
    /// Signalled when a flush or a compaction step ended or failed.
    progress: Condvar,
}

#[derive(Debug, Default)]
struct State {
    closing: bool,
    flush_error: Option<String>,
    compaction_error: Option<String>,
}

impl Signals {
    /// There is something to flush.
    pub(crate) fn call_flush(&self) {
        self.flush.ring();
    }

    /// There may be something to compact.
    pub(crate) fn call_compaction(&self) {
        self.compaction.ring();
    }

    /// A flush ended.
    pub(crate) fn flush_ended(&self, error: Option<&Error>) {
        lock(&self.state).flush_error = error.map(ToString::to_string);
        self.progress.notify_all();
        if error.is_none() {
            self.call_compaction();
        }
    }

    /// A step of compaction ended; `changed`: there are fewer runs now.
    pub(crate) fn compaction_ended(&self, changed: bool, error: Option<&Error>) {
        lock(&self.state).compaction_error = error.map(ToString::to_string);
        if changed || error.is_some() {
            self.progress.notify_all();
        }
    }

    /// Why the last flush or step of compaction failed, if it did.
    pub(crate) fn last_error(&self) -> Option<String> {
        let state = lock(&self.state);
        state.flush_error.clone().or_else(|| state.compaction_error.clone())
    }

    /// Waits for `delay`, or until a flush or compaction ended or failed. Returns whether one did.
    pub(crate) fn wait_for_progress(&self, delay: Duration) -> bool {
        let state = lock(&self.state);
        if state.closing {
            return true;
        }
        !self.progress.wait_timeout(state, delay).map_or(true, |(_, timeout)| timeout.timed_out())
    }

    /// Records that a thread ended by a panic: the threads that wait for its work do it themselves.
    fn thread_panicked(&self, of: fn(&mut State) -> &mut Option<String>) {
        *of(&mut lock(&self.state)) = Some("the thread for it has panicked; open the store again".to_owned());
        self.progress.notify_all();
    }

    fn close(&self) {
        lock(&self.state).closing = true;
        self.progress.notify_all();
        self.flush.stop();
        self.compaction.stop();
    }

    /// Whether the threads are about to end.
    pub(crate) fn is_closing(&self) -> bool {
        lock(&self.state).closing
    }
}

/// The threads; they end when the index is closed.
#[derive(Debug)]
pub(crate) struct Threads {
    workers: Vec<Worker>,
}

impl Threads {
    /// No threads: the owner calls the steps.
    pub(crate) fn none() -> Self {
        Self { workers: Vec::new() }
    }

    /// Starts one thread for flushes and one for compaction.
    pub(crate) fn start(core: &Arc<Core>) -> io::Result<Self> {
        let flush = core.start_flushing()?;
        let compaction = core.start_compacting()?;
        Ok(Self { workers: vec![flush, compaction] })
    }

    /// Stops them and waits until they have ended.
    pub(crate) fn stop(&self, core: &Core) {
        core.signals.close();
        for worker in &self.workers {
            worker.stop();
        }
        // A writer may still be flushing or merging: nothing is written once the folder is given back.
        drop(lock(&core.flush));
        drop(lock(&core.compactor));
    }
}

/// The delay after this many failures in a row.
fn retry_after(failures: u32) -> Duration {
    RETRY_FIRST.saturating_mul(1 << failures.min(16).saturating_sub(1)).min(RETRY_MAX)
}

impl Core {
    fn start_flushing(self: &Arc<Self>) -> io::Result<Worker> {
        let (core, alarmed) = (Arc::clone(self), Arc::clone(self));
        let mut failures = 0;
        let step = move |_| match core.flush_step() {
            Ok(progress) => {
                failures = 0;
                if progress == Progress::Worked { Next::Again } else { Next::Rung }
            }
            Err(_) => {
                failures += 1;
                Next::Within(retry_after(failures))
            }
        };
        let alarm = move || alarmed.signals.thread_panicked(|state| &mut state.flush_error);
        Worker::start("plimsoll-flush", &self.signals.flush, alarm, step)
    }

    fn start_compacting(self: &Arc<Self>) -> io::Result<Worker> {
        let (core, alarmed) = (Arc::clone(self), Arc::clone(self));
        let (mut failures, mut priority, mut before) = (0, Priority::Due, 0);
        let step = move |woken| {
            let bytes_in = core.counters.bytes_in.load(Ordering::Relaxed);
            let is_quiet = bytes_in - before < core.context.memtable_limit_bytes() / TRICKLE_PART;
            priority = match woken {
                Woken::Again => priority,
                Woken::TimedOut if is_quiet && failures == 0 => Priority::Settle,
                Woken::TimedOut | Woken::Rung => Priority::Due,
            };
            before = bytes_in;
            match core.compact(priority) {
                Ok(progress) => {
                    failures = 0;
                    match progress {
                        Progress::Worked => Next::Again,
                        Progress::Idle if priority == Priority::Due => Next::Within(SETTLE_AFTER),
                        Progress::Idle => Next::Rung,
                    }
                }
                Err(_) => {
                    failures += 1;
                    Next::Within(retry_after(failures))
                }
            }
        };
        let alarm = move || alarmed.signals.thread_panicked(|state| &mut state.compaction_error);
        Worker::start("plimsoll-compact", &self.signals.compaction, alarm, step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_between_failures_grow_up_to_a_bound() {
        assert_eq!(retry_after(1), RETRY_FIRST);
        assert_eq!(retry_after(3), 4 * RETRY_FIRST);
        assert_eq!(retry_after(1000), RETRY_MAX);
    }
}
