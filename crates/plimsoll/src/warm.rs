//! Warm restarts: what was hot when a store was last open is there again soon after it is opened, and never wrong.
//!
//! Beside the log and the index, the store's folder keeps an *image* of what was hot (`warm/`): segments of at most 64 KiB, hottest first,
//! each true for a place in the log. It is a cache of a cache. Deleting it, at any moment, costs warmth and nothing else.
//!
//! ```text
//! open    restorer: reads segments, hottest first, and loads their pages while there are frames to spare   (restorer.rs)
//!            |
//! later   saver: every 30 s writes those segments that changed                                            (saver.rs)
//!            |
//! close   saver, once more
//! ```
//!
//! Laws:
//! 1. Nothing of the image is an answer: it names pages of immutable files, which are read from their files and checked there. So no
//!    image, however old, foreign or damaged, can make an answer wrong. (What the image of objects will hold has to be believed: for that
//!    each segment names its place in the log.)
//! 2. A segment that is damaged, of another format, of another log, ahead of the log, or of a fork of it ends the restoring, with one
//!    warning. No trouble with the image is an error of the store's.
//! 3. Opening does not wait for it. It takes no frame that somebody uses, and reads and writes no more than its allowance.
//! 4. An image is replaced only by a process that took all of it in, or had no room for the rest and stayed open for an interval: a short
//!    visit with a small budget leaves it as it is, and so does one that ends before all is taken in.

mod background;
mod files;
pub(crate) mod image;
mod pages;
mod restorer;
mod saver;
mod segment;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_disk::clock::Clock;
use plimsoll_disk::vfs::Disk;
use plimsoll_log::file_log::FileLog;
use plimsoll_memory::budget::Budget;
use plimsoll_memory::pool::Pool;

use crate::index::{Index, Progress};
use crate::warm::background::Signal;
use crate::warm::restorer::{Restorer, Step};
use crate::warm::saver::Saver;
use crate::warm::segment::Distrust;

/// The image's folder in the store's.
pub(crate) const WARM_DIR: &str = "warm";

/// What the image is of, and where it stands.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The image's folder; it need not exist.
    pub(crate) dir: PathBuf,
    pub(crate) budget: Budget,
    pub(crate) pool: Arc<Pool>,
    pub(crate) log: Arc<FileLog>,
    pub(crate) index: Arc<Index>,
    /// The image is taken in and not written.
    pub(crate) read_only: bool,
    /// So often the image is written.
    pub(crate) interval: Duration,
    /// What may be read or written of it in a second.
    pub(crate) bytes_per_second: u64,
}

/// What the warm image did since the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WarmStats {
    /// Whether the store takes in and writes a warm image.
    pub on: bool,
    /// Whether the image that was found is still being taken in.
    pub restoring: bool,
    /// Pages that were read because the image named them.
    pub pages_restored: u64,
    /// Pages that the image named and that are not there any more: their file was compacted away.
    pub pages_gone: u64,
    /// Segments of the image that were written.
    pub segments_written: u64,
    /// Bytes of these.
    pub bytes_written: u64,
    /// Why the image could not be written the last time, if it could not; it is tried again.
    pub last_error: Option<String>,
}

/// Restores what was hot, and keeps an image of what is.
#[derive(Debug)]
pub(crate) struct Warm {
    core: Arc<Core>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Core {
    ground: Ground,
    work: Mutex<Work>,
    counts: Counts,
    signal: Signal,
    /// When the store was opened, by the clock that never goes back.
    opened_nanos: u64,
}

/// What is being done.
#[derive(Debug)]
struct Work {
    /// `None` once it came to its end.
    restorer: Option<Restorer>,
    saver: Saver,
    /// Whether there is nothing of the old image that this process did not take in.
    took_all: bool,
    /// The allowance is used up until then.
    not_before: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    restoring: AtomicBool,
    pub(crate) restored: AtomicU64,
    pub(crate) gone: AtomicU64,
    pub(crate) segments: AtomicU64,
    pub(crate) bytes: AtomicU64,
    messages: Mutex<Messages>,
}

#[derive(Clone, Debug, Default)]
struct Messages {
    warning: Option<String>,
    last_error: Option<String>,
}

impl Warm {
    /// Begins to restore: in a thread, or, without `background`, step by step.
    pub(crate) fn start(ground: Ground, background: bool) -> std::io::Result<Self> {
        let opened_nanos = ground.clock.monotonic_nanos();
        let work = Work {
            restorer: Some(Restorer::new()),
            saver: Saver::new(opened_nanos + nanos(ground.interval)),
            took_all: false,
            not_before: 0,
        };
        let counts = Counts { restoring: AtomicBool::new(true), ..Counts::default() };
        let core = Arc::new(Core { ground, work: Mutex::new(work), counts, signal: Signal::default(), opened_nanos });
        let thread = if background { Some(background::start(&core)?) } else { None };
        Ok(Self { core, thread: Mutex::new(thread) })
    }

    /// Does a bounded piece of work, if any is due and the allowance permits it and no thread does it.
    pub(crate) fn step(&self) -> Progress {
        if lock(&self.thread).is_some() { Progress::Idle } else { self.core.step() }
    }

    /// Stops working, and writes what changed of the image since it was last written.
    pub(crate) fn close(&self) {
        self.core.signal.close();
        if let Some(thread) = lock(&self.thread).take() {
            // If it panicked, the image is what it was.
            let _ = thread.join();
        }
        self.core.finish();
    }

    /// Counters.
    pub(crate) fn stats(&self) -> WarmStats {
        let counts = &self.core.counts;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WarmStats {
            on: true,
            restoring: counts.restoring.load(Ordering::Relaxed),
            pages_restored: count(&counts.restored),
            pages_gone: count(&counts.gone),
            segments_written: count(&counts.segments),
            bytes_written: count(&counts.bytes),
            last_error: lock(&counts.messages).last_error.clone(),
        }
    }

    /// Why the image that was found was not taken in, if it was not.
    pub(crate) fn warning(&self) -> Option<String> {
        lock(&self.core.counts.messages).warning.clone()
    }
}

impl Core {
    fn step(&self) -> Progress {
        let mut work = lock(&self.work);
        let now = self.ground.clock.monotonic_nanos();
        if now < work.not_before {
            return Progress::Idle;
        }
        let bytes = match work.restorer.take() {
            Some(restorer) => self.restore(&mut work, restorer),
            None if self.is_due(&work, now) => {
                let saved = work.saver.step(&self.ground, &self.counts, now);
                self.note(&saved);
                saved.unwrap_or(0)
            }
            None => return Progress::Idle,
        };
        work.not_before = now + self.pause_nanos(bytes);
        Progress::Worked
    }

    /// A step of the restorer, which is put back unless that was its last; how many bytes were read.
    fn restore(&self, work: &mut Work, mut restorer: Restorer) -> u64 {
        let step = restorer.step(&self.ground, &self.counts).unwrap_or_else(|distrust| {
            let text = format!("{}: the warm image is ignored: {distrust}", self.ground.dir.display());
            lock(&self.counts.messages).warning = Some(text);
            // Nothing is lost by writing another, unless the trouble may pass.
            Step::end(!matches!(distrust, Distrust::Unread { .. }))
        });
        step.segment.into_iter().for_each(|segment| work.saver.knows(segment));
        match step.ended {
            None => work.restorer = Some(restorer),
            Some(took_all) => {
                work.took_all = took_all;
                self.counts.restoring.store(false, Ordering::Relaxed);
            }
        }
        step.bytes
    }

    fn is_due(&self, work: &Work, now: u64) -> bool {
        !self.ground.read_only
            && work.saver.is_due(now)
            && may_replace(work.took_all, now - self.opened_nanos, self.ground.interval)
    }

    /// Writes what changed, without a pause.
    fn finish(&self) {
        let mut work = lock(&self.work);
        let open_nanos = self.ground.clock.monotonic_nanos() - self.opened_nanos;
        if work.restorer.is_some() && image::is_there(&*self.ground.disk, &self.ground.dir) {
            // It was on its way, or never began: what is in memory is less than what the image names.
            return;
        }
        let took_all = work.restorer.is_some() || work.took_all;
        if !self.ground.read_only && may_replace(took_all, open_nanos, self.ground.interval) {
            self.note(&work.saver.finish(&self.ground, &self.counts));
        }
    }

    fn note<T>(&self, saved: &crate::error::Result<T>) {
        lock(&self.counts.messages).last_error = saved.as_ref().err().map(ToString::to_string);
    }

    fn pause_nanos(&self, bytes: u64) -> u64 {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.ground.bytes_per_second.max(1));
        u64::try_from(nanos).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
    }

    /// How long there is nothing to do.
    fn patience(&self) -> Duration {
        let work = lock(&self.work);
        let now = self.ground.clock.monotonic_nanos();
        let next = match work.restorer {
            Some(_) => work.not_before,
            None if self.ground.read_only => return Duration::MAX,
            None => work.not_before.max(work.saver.due()),
        };
        Duration::from_nanos(next.saturating_sub(now))
    }
}

/// Law 4: whether a process may put its own image in place of the one that it found.
fn may_replace(took_all: bool, open_nanos: u64, interval: Duration) -> bool {
    took_all || open_nanos >= nanos(interval)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}

/// What each lock here guards is whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_visit_that_did_not_take_all_in_replaces_nothing() {
        let interval = Duration::from_secs(30);
        assert!(!may_replace(false, nanos(interval) - 1, interval));
        assert!(may_replace(false, nanos(interval), interval));
        assert!(may_replace(true, 0, interval));
    }
}
