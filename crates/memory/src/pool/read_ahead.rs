//! Read-ahead: loads pages that will be needed soon, several with one read, several reads at once.
//!
//! A request is a hint: it never waits, reports nothing, and is dropped if threads or frames are
//! busy or the threads have ended. A later request for the page finds it, waits for it, or loads
//! it. Pages enter with the heat of a scan, into the ring reserved for scans.
//!
//! Invariants:
//! 1. An error affects one page. If a run of pages cannot be read, each page is read by itself, so
//!    that the good ones are still delivered.
//! 2. If a source panics, its run is dropped, and the thread continues with the next.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_disk::thread::spawn;

use super::frame::Heat;
use super::pinned::Filling;
use super::replacement::Replacement;
use super::{Pool, PoolFile};
use crate::budget::Kind;
use crate::budget::chunk::CHUNK_BYTES;
use crate::page::PAGE_BYTES;
use crate::sync::{Condvar, Mutex, MutexGuard, Ordering};

/// Pages of one read.
const RUN_PAGES: u32 = (CHUNK_BYTES / PAGE_BYTES) as u32;

/// The frames of a run of pages; `None` for pages already present.
pub(super) type FrameRun<'a> = [Option<Filling<'a>>; RUN_PAGES as usize];

/// The most reads that can be queued.
const WAITING_MAX: usize = 32;

/// A thread that got no request for this long ends; a later request starts another one.
const IDLE: Duration = Duration::from_secs(5);

/// A run of pages to read.
struct Run {
    file: PoolFile,
    first: u32,
    count: u32,
}

/// The queue of runs, and the threads that read them.
pub(super) struct Waiting {
    state: Mutex<State>,
    more: Condvar,
    threads_max: usize,
}

struct State {
    runs: VecDeque<Run>,
    closed: bool,
    /// Threads that have not ended, and those of them that wait for a run.
    threads: usize,
    idle: usize,
    handles: Vec<JoinHandle<()>>,
}

impl Waiting {
    fn new(threads_max: usize) -> Self {
        let state = State {
            runs: VecDeque::with_capacity(WAITING_MAX),
            closed: false,
            threads: 0,
            idle: 0,
            handles: Vec::new(),
        };
        Self { state: Mutex::new(state), more: Condvar::new(), threads_max }
    }

    /// Adds a run, and starts a thread if all are busy; false if the queue is full or closed.
    fn push(self: &Arc<Self>, run: Run) -> bool {
        let mut state = self.lock();
        if state.closed || state.runs.len() >= WAITING_MAX {
            return false;
        }
        state.runs.push_back(run);
        if state.runs.len() > state.idle && state.threads < self.threads_max {
            self.add_thread(&mut state);
        }
        drop(state);
        self.more.notify_one();
        true
    }

    /// Starts a thread. If the system refuses one, the busy threads read the run later; if there is
    /// none, a later request tries again.
    fn add_thread(self: &Arc<Self>, state: &mut State) {
        let waiting = Arc::clone(self);
        let body = move || {
            while let Some(run) = waiting.pop() {
                // If the source panics, the frame reports it to the page's waiters, and the rest of
                // the run is dropped.
                let read = AssertUnwindSafe(|| run.file.read_run(run.first, run.count));
                _ = catch_unwind(read);
            }
        };
        state.handles.retain(|handle| !handle.is_finished());
        if let Ok(handle) = spawn("plimsoll-read", body) {
            state.handles.push(handle);
            state.threads += 1;
        }
    }

    /// Takes the next run, waiting for one; `None` if the thread must end.
    fn pop(&self) -> Option<Run> {
        let mut state = self.lock();
        let run = loop {
            if state.closed {
                break None;
            }
            if let Some(run) = state.runs.pop_front() {
                return Some(run);
            }
            state.idle += 1;
            let waited = self.more.wait_timeout(state, IDLE);
            let (waited, timeout) = waited.expect("no code under this lock panics");
            state = waited;
            state.idle -= 1;
            if timeout.timed_out() && state.runs.is_empty() {
                break None;
            }
        };
        state.threads -= 1;
        run
    }

    /// Ends the threads, and returns them.
    fn close(&self) -> Vec<JoinHandle<()>> {
        let mut state = self.lock();
        state.closed = true;
        let handles = std::mem::take(&mut state.handles);
        // Drop the runs after unlocking, because that may drop the last clone of a file, which
        // takes the pool's lock.
        let runs = std::mem::take(&mut state.runs);
        drop(state);
        self.more.notify_all();
        drop(runs);
        handles
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code under this lock panics")
    }
}

/// Threads that read ahead for a pool. They start with the first requests, and end if there are
/// none for a while, or when this is dropped. After the drop, read-ahead requests are ignored. In a
/// pool that never had such threads, the requesting thread reads the pages itself.
pub struct ReaderThreads {
    waiting: Arc<Waiting>,
}

impl ReaderThreads {
    /// At most this many threads; each has one read in flight.
    ///
    /// # Panics
    /// The pool already has reader threads.
    pub fn start(pool: &Pool, threads: usize) -> Self {
        let waiting = Arc::new(Waiting::new(threads));
        assert!(
            pool.ahead.set(Arc::clone(&waiting)).is_ok(),
            "a pool has one set of readers at most"
        );
        Self { waiting }
    }
}

impl Drop for ReaderThreads {
    fn drop(&mut self) {
        for handle in self.waiting.close() {
            // Only a source can panic there, and its panic is caught.
            let _ = handle.join();
        }
    }
}

impl fmt::Debug for ReaderThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReaderThreads(at most {})", self.waiting.threads_max)
    }
}

impl PoolFile {
    /// Requests `count` pages of the file from `first` on, which a scan will need soon in this
    /// order. Returns at once if the pool has reader threads, or had some; otherwise reads the
    /// pages now. Reads no further ahead than the pool keeps for scans ([`Pool::read_ahead_max`]).
    /// Costs nothing if the pages are present.
    pub fn read_ahead(&self, first: u32, count: u32) {
        let pool = &self.file.pool;
        let end = first.saturating_add(count.min(pool.read_ahead_max()));
        for first in (first..end).step_by(RUN_PAGES as usize) {
            let count = RUN_PAGES.min(end - first);
            if (first..first + count).all(|number| self.is_known(number)) {
                continue;
            }
            match pool.ahead.get() {
                None => self.read_run(first, count),
                Some(waiting) if waiting.push(Run { file: self.clone(), first, count }) => {}
                Some(_) => return,
            }
        }
    }

    /// [`Pool::read_ahead_max`] of the pool.
    #[must_use]
    pub fn read_ahead_max(&self) -> u32 {
        self.file.pool.read_ahead_max()
    }

    /// Whether the page appears to be resident or loading, as seen without the lock.
    fn is_known(&self, number: u32) -> bool {
        let key = self.key(number);
        self.file
            .pool
            .frames
            .find(key, |frame| frame.key() == key && !frame.state().is_free())
            .is_some()
    }

    /// Loads the missing pages among up to `RUN_PAGES`, while frames are available.
    fn read_run(&self, first: u32, count: u32) {
        let pool = &self.file.pool;
        // Do not reclaim memory for a hint.
        let Some(mut staging) = pool.budget.try_take(Kind::Staging) else { return };
        let (frames, _) = self.begin_run(first, count, Heat::Scan, |_| true);
        let read = self.fill_run(first, frames, &mut staging);
        pool.read_ahead.fetch_add(u64::from(read), Ordering::Relaxed);
    }

    /// Reads the pages from `first` on that have a loading frame, adjacent pages with one read.
    /// Returns how many were read.
    pub(super) fn fill_run(&self, first: u32, mut frames: FrameRun<'_>, staging: &mut [u8]) -> u32 {
        let mut count = 0;
        let mut at = 0;
        while at < frames.len() {
            let len = frames[at..].iter().take_while(|frame| frame.is_some()).count();
            if len == 0 {
                at += 1;
                continue;
            }
            let bytes = &mut staging[..len * PAGE_BYTES];
            let read = self.file.source.load_run(first + at as u32, bytes);
            let pages = bytes.chunks_exact(PAGE_BYTES);
            for (number, (frame, page)) in
                (first + at as u32..).zip(frames[at..at + len].iter_mut().zip(pages))
            {
                let mut filling = frame.take().expect("a run is made of frames that were begun");
                match read {
                    Ok(()) => {
                        filling.bytes().copy_from_slice(page);
                        self.note_page(number);
                        drop(filling.finish(true));
                        count += 1;
                    }
                    Err(_) => count += u32::from(self.fill(filling, number).is_ok()),
                }
            }
            at += len;
        }
        count
    }

    /// Assigns frames to those of the pages that have none, while `may` returns true. Returns
    /// whether it ended before the last of them.
    pub(super) fn begin_run(
        &self,
        first: u32,
        count: u32,
        heat: Heat,
        may: impl Fn(&Replacement) -> bool,
    ) -> (FrameRun<'_>, bool) {
        let pool = &self.file.pool;
        let mut frames = [const { None }; RUN_PAGES as usize];
        let mut ended = false;
        let mut replacement = pool.lock();
        let inline_before = replacement.inline_evictions();
        for (number, frame) in (first..first + count).zip(&mut frames) {
            let key = self.key(number);
            if pool.frames.find_any(key).is_none() {
                let at = may(&replacement)
                    .then(|| replacement.frame(&pool.frames, &pool.budget))
                    .flatten();
                let Some(at) = at else {
                    ended = true;
                    break;
                };
                *frame = Some(pool.begin_at(at, key, heat));
            }
        }
        pool.call_if_short(replacement, inline_before);
        (frames, ended)
    }
}

impl Pool {
    /// The most pages read ahead of one scan: half of the ring of scanned pages.
    pub fn read_ahead_max(&self) -> u32 {
        (self.lock().ring() / 2).max(1) as u32
    }
}
