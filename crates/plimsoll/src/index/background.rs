//! The threads of the index, and the signals between them and the writers. A thread does steps while there is work, and sleeps until
//! somebody tells it that there is more.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_disk::thread::spawn;

use crate::index::Progress;
use crate::index::core::{Core, lock};
use crate::index::policy::Urge;
use crate::types::error::{Error, Result};

/// An index into which next to nothing came for so long, and that has nothing else to do, counts as idle and is settled.
const SETTLE_AFTER: Duration = Duration::from_millis(300);

/// Next to nothing: less in that time than this part of a memtable (one in so many).
const TRICKLE_PART: u64 = 256;

/// Between attempts that fail: the first wait, and the longest.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Who waits for what.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    state: Mutex<State>,
    flush_wanted: Condvar,
    compaction_wanted: Condvar,
    /// Something was flushed or compacted, or failed.
    progress: Condvar,
}

#[derive(Debug, Default)]
struct State {
    closing: bool,
    /// Count the reasons to look for work, so that none is missed between a look and a wait.
    flush_calls: u64,
    compaction_calls: u64,
    flush_error: Option<String>,
    compaction_error: Option<String>,
}

impl Signals {
    /// There is something to flush.
    pub(crate) fn call_flush(&self) {
        lock(&self.state).flush_calls += 1;
        self.flush_wanted.notify_all();
    }

    /// There may be something to compact.
    pub(crate) fn call_compaction(&self) {
        lock(&self.state).compaction_calls += 1;
        self.compaction_wanted.notify_all();
    }

    /// A flush came to its end.
    pub(crate) fn flush_ended(&self, error: Option<&Error>) {
        lock(&self.state).flush_error = error.map(ToString::to_string);
        self.progress.notify_all();
        if error.is_none() {
            self.call_compaction();
        }
    }

    /// A step of compaction came to its end; `changed`: there are fewer runs now.
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

    /// Waits for `delay`, or until something was flushed or compacted, or failed; whether it was one of these.
    pub(crate) fn wait_for_progress(&self, delay: Duration) -> bool {
        let state = lock(&self.state);
        if state.closing {
            return true;
        }
        !self.progress.wait_timeout(state, delay).map_or(true, |(_, timeout)| timeout.timed_out())
    }

    /// A thread ends by a panic: its work is left to those who wait for it.
    fn thread_panicked(&self, flush: bool) {
        let mut state = lock(&self.state);
        let error = if flush { &mut state.flush_error } else { &mut state.compaction_error };
        *error = Some("the thread for it has panicked; open the store again".to_owned());
        drop(state);
        self.progress.notify_all();
    }

    fn close(&self) {
        lock(&self.state).closing = true;
        for condvar in [&self.flush_wanted, &self.compaction_wanted, &self.progress] {
            condvar.notify_all();
        }
    }

    /// Whether the threads are about to end.
    pub(crate) fn is_closing(&self) -> bool {
        lock(&self.state).closing
    }

    /// Sleeps until the calls that `of` counts differ from `seen`, or the index closes, or `patience` is over; whether the latter.
    fn sleep(&self, condvar: &Condvar, of: fn(&State) -> u64, seen: u64, patience: Option<Duration>) -> bool {
        let mut state = lock(&self.state);
        while !state.closing && of(&state) == seen {
            state = match patience {
                None => condvar.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(patience) => {
                    let (state, timeout) =
                        condvar.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() && !state.closing && of(&state) == seen {
                        return true;
                    }
                    state
                }
            };
        }
        false
    }
}

/// The threads; they end when the index is closed.
#[derive(Debug)]
pub(crate) struct Threads {
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    /// No threads: the owner calls the steps.
    pub(crate) fn none() -> Self {
        Self { handles: Mutex::default() }
    }

    /// Starts one for flushes and one for compaction.
    pub(crate) fn start(core: &Arc<Core>) -> io::Result<Self> {
        let (flusher, compactor) = (Arc::clone(core), Arc::clone(core));
        let threads = Self::none();
        lock(&threads.handles).push(spawn("plimsoll-flush", move || flusher.flush_while_open())?);
        match spawn("plimsoll-compact", move || compactor.compact_while_open()) {
            Ok(handle) => lock(&threads.handles).push(handle),
            Err(error) => {
                threads.stop(core);
                return Err(error);
            }
        }
        Ok(threads)
    }

    /// Stops them and waits until they have ended.
    pub(crate) fn stop(&self, core: &Core) {
        core.signals.close();
        for handle in lock(&self.handles).drain(..) {
            // One that panicked has said so on its way; what it was doing stays undone, as after a crash.
            let _ = handle.join();
        }
    }
}

/// How long to wait after failures in a row.
fn retry_after(failures: u32) -> Duration {
    RETRY_FIRST.saturating_mul(1 << failures.min(16).saturating_sub(1)).min(RETRY_MAX)
}

/// Tells when the thread that holds it ends by a panic.
struct Alarm<'a> {
    signals: &'a Signals,
    flush: bool,
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.signals.thread_panicked(self.flush);
        }
    }
}

impl Core {
    fn flush_while_open(&self) {
        let _alarm = Alarm { signals: &self.signals, flush: true };
        let mut failures = 0;
        while !self.signals.is_closing() {
            let seen = lock(&self.signals.state).flush_calls;
            let patience = match self.flush_step() {
                Ok(Progress::Worked) => {
                    failures = 0;
                    continue;
                }
                Ok(Progress::Idle) => None,
                Err(_) => {
                    failures += 1;
                    Some(retry_after(failures))
                }
            };
            self.signals.sleep(&self.signals.flush_wanted, |state| state.flush_calls, seen, patience);
        }
    }

    fn compact_while_open(&self) {
        let _alarm = Alarm { signals: &self.signals, flush: false };
        let (mut failures, mut urge) = (0, Urge::Due);
        while !self.signals.is_closing() {
            let seen = lock(&self.signals.state).compaction_calls;
            let bytes_in = self.counters.bytes_in.load(Ordering::Relaxed);
            let step: Result<Progress> = self.compact(urge);
            let patience = match step {
                Ok(Progress::Worked) => {
                    failures = 0;
                    if lock(&self.signals.state).compaction_calls != seen {
                        urge = Urge::Due;
                    }
                    continue;
                }
                Ok(Progress::Idle) if urge == Urge::Due => Some(SETTLE_AFTER),
                Ok(Progress::Idle) => None,
                Err(_) => {
                    failures += 1;
                    Some(retry_after(failures))
                }
            };
            let quiet =
                self.signals.sleep(&self.signals.compaction_wanted, |state| state.compaction_calls, seen, patience);
            let came_in = self.counters.bytes_in.load(Ordering::Relaxed) - bytes_in;
            let idle = quiet && failures == 0 && came_in < self.ground.memtable_limit_bytes() / TRICKLE_PART;
            urge = if idle { Urge::Settle } else { Urge::Due };
        }
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
