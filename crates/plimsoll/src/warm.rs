//! Warm restart: the hot set of the last run is restored in the background after open, and never
//! changes the result of a read.
//!
//! In addition to the log and the index, the store's folder contains an *image* of the hot set
//! (`warm/`): segments of at most 64 KiB, hottest first, each valid for a position in the log. It
//! is a cache of a cache. It can be deleted at any time; the only cost is a colder start.
//!
//! ```text
//! open    clear_ahead.rs: touches the memory that rows will take, until their restorer has ended
//!         restorers: read segments, hottest first, while there is free memory:
//!            |       rows enter their cache (rows_restorer.rs), pages are loaded (restorer.rs)
//! later   savers: every 30 s write the changes (saver.rs, rows_saver.rs)
//!            |
//! close   savers, once more
//! ```
//!
//! Invariants:
//! 1. No image, however old, foreign or damaged, can change the result of a read. The image of
//!    pages only names pages of immutable files; these are read from their files and checked there.
//!    A row is accepted only if its segment belongs to this log's history and the runs have no
//!    younger version of its key (validation.rs).
//! 2. A segment that is damaged, of another format, of another log, ahead of the log, or of a fork
//!    of it ends the restore with one warning, and a writing process removes the files of its kind.
//!    A fault of the image is never an error of the store.
//! 3. Opening does not wait for the restore. The restore uses only free memory and, while
//!    processors are short, little of their time (pace.rs). It reads and writes no more than its
//!    I/O allowance; the allowance of the first second may be used at once. Closing waits until the
//!    changed page segments are written, and as many of the changed rows as can be written in
//!    [`CLOSE_MILLIS`]. Merges that can wait are deferred meanwhile, because a row cannot be
//!    validated if its table also has younger versions (validation.rs).
//! 4. An image is replaced only by a process that restored all of it, or had no room for the rest
//!    and stayed open for an interval. A short run with a small budget leaves it unchanged, and so
//!    does a run that ends before the restore does. The image of rows is replaced only by a process
//!    that stayed open for an interval.
//! 5. Of several processes that share the store, only the keeper writes the image. A process that
//!    becomes the keeper writes a new image, because another process may have changed the one on
//!    disk since. Its image of rows is valid as of the position up to which its row cache was
//!    notified of all versions. That position may be before the checkpoint, because its memtables
//!    may hold older commits.

mod clear_ahead;
mod files;
pub(crate) mod image;
mod pace;
mod pages;
mod restorer;
mod rows;
mod rows_restorer;
mod rows_saver;
mod saver;
pub(crate) mod segment;
#[cfg(test)]
mod test_store;
mod validation;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_disk::clock::Clock;
use plimsoll_disk::vfs::Disk;
use plimsoll_disk::worker::{Bell, Next, Woken, Worker};
use plimsoll_log::file_log::FileLog;
use plimsoll_memory::budget::Budget;
use plimsoll_memory::pool::Pool;

use crate::index::OpenIndex;
use crate::index::env::Progress;
use crate::rowcache::RowCache;
use crate::txn::sequencer::CommitSequencer;
use crate::types::events;
use crate::types::lock::lock;
use crate::types::stats::WarmStats;
use crate::warm::pace::{Move, Pace};
use crate::warm::restorer::{Restorer, Step};
use crate::warm::rows_restorer::RowsRestorer;
use crate::warm::rows_saver::RowsSaver;
use crate::warm::saver::Saver;
use crate::warm::segment::Rejection;

/// The name of the image's folder, inside the store's folder.
pub(crate) const WARM_DIR: &str = "warm";

/// The time limit for writing changed rows at close.
const CLOSE_MILLIS: u64 = 150;

/// The restore may use the allowance for this period at once, so that the first requests already
/// find restored data in memory.
const AT_ONCE_NANOS: u64 = 1_000_000_000;

/// The number of runnable threads of the restore besides the current one: the thread of
/// `clear_ahead`, which pauses before this one does.
const HELPERS: u64 = 1;

/// The environment of the warm image: its sources and its location.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The image's folder; it need not exist.
    pub(crate) dir: PathBuf,
    pub(crate) budget: Budget,
    pub(crate) pool: Arc<Pool>,
    pub(crate) log: Arc<FileLog>,
    pub(crate) index: Arc<OpenIndex>,
    pub(crate) row_cache: Arc<RowCache>,
    pub(crate) sequencer: Arc<CommitSequencer>,
    /// Whether the image is only read. Otherwise it is written while this process writes the files
    /// of the index.
    pub(crate) read_only: bool,
    /// The interval between saves of the image.
    pub(crate) interval: Duration,
    /// The I/O allowance of the image, reads and writes together.
    pub(crate) bytes_per_second: u64,
    /// A step ends when it has loaded this many pages to validate rows. Each load is a random read
    /// of a guide page.
    pub(crate) loads_at_once: u64,
}

/// Restores the hot set, and saves an image of the current one.
#[derive(Debug)]
pub(crate) struct Warm {
    core: Arc<Core>,
    /// `None`: its owner calls [`Warm::step`].
    worker: Option<Worker>,
    /// Touches memory ahead of the worker, if there is an image of rows.
    clearer: Option<Worker>,
}

#[derive(Debug)]
struct Core {
    context: Context,
    work: Mutex<Work>,
    counts: Counts,
    /// The time at which the store was opened, by the monotonic clock.
    opened_nanos: u64,
}

/// The state of the work.
#[derive(Debug)]
struct Work {
    /// `None` once finished: first the rows' restorer, then the pages'.
    rows_restorer: Option<RowsRestorer>,
    restorer: Option<Restorer>,
    saver: Saver,
    rows_saver: RowsSaver,
    /// Whether this process restored all of the old image.
    took_all: bool,
    /// Whether the old image was rejected.
    rejected: bool,
    /// The keeper term ([`crate::index::env::role::Role::term`]) in which the savers know what is
    /// on disk.
    term: Option<u64>,
    /// No work is done before this time, because the allowance is used up until then.
    not_before: u64,
    /// The allowance that the restore may use at once, expressed as time.
    at_once_nanos: u64,
}

impl Work {
    fn is_restoring(&self) -> bool {
        self.rows_restorer.is_some() || self.restorer.is_some()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    restoring: AtomicBool,
    /// Rows are being restored.
    restoring_rows: AtomicBool,
    /// Bytes of the image whose rows were restored or found stale.
    pub(crate) row_bytes_read: AtomicU64,
    pub(crate) restored: AtomicU64,
    pub(crate) gone: AtomicU64,
    pub(crate) rows: AtomicU64,
    pub(crate) stale: AtomicU64,
    pub(crate) segments: AtomicU64,
    pub(crate) bytes: AtomicU64,
    messages: Mutex<Messages>,
}

#[derive(Clone, Debug, Default)]
struct Messages {
    warning: Option<String>,
    /// The last error of the image of pages, and that of the image of rows.
    last_errors: [Option<String>; 2],
}

/// The part of the image that is saved.
#[derive(Clone, Copy, Debug)]
enum Saved {
    Pages,
    RowCache,
}

impl Warm {
    /// Starts the restore: in a thread, or, without `background`, step by step.
    pub(crate) fn start(context: Context, background: bool) -> std::io::Result<Self> {
        let opened_nanos = context.clock.monotonic_nanos();
        let due = opened_nanos + nanos(context.interval);
        let work = Work {
            rows_restorer: Some(RowsRestorer::new()),
            restorer: Some(Restorer::new()),
            saver: Saver::new(due),
            rows_saver: RowsSaver::new(due),
            took_all: true,
            rejected: false,
            term: context.index.env.role().term(),
            not_before: 0,
            at_once_nanos: AT_ONCE_NANOS,
        };
        let (restoring, restoring_rows) = (AtomicBool::new(true), AtomicBool::new(true));
        let counts = Counts { restoring, restoring_rows, ..Counts::default() };
        context.index.compaction.set_may_settle(false);
        let core = Arc::new(Core { context, work: Mutex::new(work), counts, opened_nanos });
        let worker = background.then(|| core.start_worker()).transpose()?;
        let clearer = background.then(|| clear_ahead::start(&core)).flatten();
        Ok(Self { core, worker, clearer })
    }

    /// Does a bounded piece of work if any is due, the allowance permits it and no thread does it.
    pub(crate) fn step(&self) -> Progress {
        if self.worker.is_some() { Progress::Idle } else { self.core.step() }
    }

    /// Stops the work, and writes the changes since the image was last written.
    pub(crate) fn close(&self) {
        for worker in self.clearer.iter().chain(&self.worker) {
            // If the thread panicked, the image stays unchanged.
            worker.stop();
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
            rows_restored: count(&counts.rows),
            rows_stale: count(&counts.stale),
            segments_written: count(&counts.segments),
            bytes_written: count(&counts.bytes),
            last_error: lock(&counts.messages).last_errors.iter().flatten().next().cloned(),
        }
    }

    /// Why an existing image was not restored.
    pub(crate) fn warning(&self) -> Option<String> {
        lock(&self.core.counts.messages).warning.clone()
    }
}

impl Core {
    fn start_worker(self: &Arc<Self>) -> std::io::Result<Worker> {
        let (core, alarmed) = (Arc::clone(self), Arc::clone(self));
        let mut pace = None;
        let step = move |woken| {
            // The first step comes after the first pause, so that opening is not slowed down.
            if !core.counts.restoring.load(Ordering::Relaxed) {
                pace = None;
            } else if let Move::Pause(pause) =
                pace.get_or_insert_with(|| Pace::of_this_thread(HELPERS)).next()
            {
                return Next::Within(pause);
            }
            if woken == Woken::TimedOut {
                core.step();
            }
            Next::Within(core.time_to_next())
        };
        let alarm = move || alarmed.context.index.compaction.set_may_settle(true);
        Worker::start("plimsoll-warm", &Arc::new(Bell::default()), alarm, step)
    }

    fn step(&self) -> Progress {
        let mut work = lock(&self.work);
        let now = self.context.clock.monotonic_nanos();
        if now < work.not_before {
            return Progress::Idle;
        }
        if work.is_restoring() {
            let pause = self.pause_nanos(self.restore(&mut work));
            work.not_before = now + pause_beyond(pause, &mut work.at_once_nanos);
            return Progress::Worked;
        }
        if !self.may_save(&mut work, now) {
            return Progress::Idle;
        }
        let bytes = if work.saver.is_due(now) {
            work.rows_saver.bring_forward(now);
            self.note(Saved::Pages, work.saver.step(&self.context, &self.counts, now))
        } else if work.rows_saver.due() <= now {
            self.note(Saved::RowCache, work.rows_saver.step(&self.context, &self.counts, now))
        } else {
            return Progress::Idle;
        };
        work.not_before = now + self.pause_nanos(bytes);
        Progress::Worked
    }

    /// Runs a step of a restorer; returns the bytes read.
    fn restore(&self, work: &mut Work) -> u64 {
        let step = match (&mut work.rows_restorer, &mut work.restorer) {
            (Some(restorer), _) => restorer.step(&self.context, &self.counts),
            (None, Some(restorer)) => restorer.step(&self.context, &self.counts),
            (None, None) => return 0,
        };
        let step = step.unwrap_or_else(|rejection| self.reject(work, &rejection));
        step.segment.into_iter().for_each(|segment| work.saver.note_on_disk(segment));
        if let Some(took_all) = step.ended {
            work.took_all &= took_all;
            if work.rows_restorer.take().is_none() {
                work.restorer = None;
            }
            self.counts.restoring.store(work.is_restoring(), Ordering::Relaxed);
            self.counts.restoring_rows.store(work.rows_restorer.is_some(), Ordering::Relaxed);
            if !work.is_restoring() {
                self.context.index.compaction.set_may_settle(true);
                let (pages, rows) = (&self.counts.restored, &self.counts.rows);
                let nanos = self.context.clock.monotonic_nanos() - self.opened_nanos;
                events::warmed(pages.load(Ordering::Relaxed), rows.load(Ordering::Relaxed), nanos);
            }
        }
        step.bytes
    }

    /// Rejects the image, including the part that was not read yet.
    fn reject(&self, work: &mut Work, rejection: &Rejection) -> Step {
        let (rows, pages) = (work.rows_restorer.take(), work.restorer.take());
        work.rejected = true;
        let may_pass = matches!(rejection, Rejection::Unread { .. });
        if !may_pass && self.context.index.env.role().may_write() {
            // Without the removal, every open would reject the same files again until a process
            // writes its own image. Files that cannot be removed are left.
            let (disk, dir) = (&*self.context.disk, &self.context.dir);
            let _ = match (rows, pages) {
                (Some(_), _) => image::remove_rows(disk, dir),
                (None, pages) => {
                    image::remove_pages_from(disk, dir, pages.map_or(0, |pages| pages.number()))
                }
            };
        }
        // If another process writes, the image may be newer than this process's view of the log.
        if self.context.index.env.role().may_write()
            || !matches!(rejection, Rejection::Ahead { .. })
        {
            let text =
                format!("{}: the warm image is ignored: {rejection}", self.context.dir.display());
            events::warm_image_ignored(&text);
            lock(&self.counts.messages).warning = Some(text);
        }
        // Another image may replace it without loss, unless the fault may be temporary.
        Step::end(!may_pass)
    }

    fn may_save(&self, work: &mut Work, now: u64) -> bool {
        let term = self.context.index.env.role().term();
        // The folder may belong to another store by now.
        if term.is_none() || self.context.log.check_own().is_err() {
            return false;
        }
        if !may_replace(work.took_all, now - self.opened_nanos, self.context.interval) {
            return false;
        }
        if term != work.term {
            (work.saver, work.rows_saver, work.term) = (Saver::new(now), RowsSaver::new(now), term);
        }
        true
    }

    /// Writes the changes, without a pause.
    fn finish(&self) {
        let mut work = lock(&self.work);
        let context = &self.context;
        let begun = context.clock.monotonic_nanos();
        let open_nanos = begun - self.opened_nanos;
        if work.is_restoring() && image::is_there(&*context.disk, &context.dir) {
            // The restore has not finished, or never began, so memory holds less than the image
            // names.
            return;
        }
        if !self.may_save(&mut work, begun) {
            return;
        }
        self.note(Saved::Pages, work.saver.finish(context, &self.counts).map(|()| 0));
        let has_rows =
            image::list_rows(&*context.disk, &context.dir).map_or(true, |files| !files.is_empty());
        if open_nanos >= nanos(context.interval) || !has_rows || work.rejected {
            let until = begun.saturating_add(CLOSE_MILLIS * 1_000_000);
            let is_time = || context.clock.monotonic_nanos() < until;
            let saved = work.rows_saver.finish(context, &self.counts, &is_time);
            self.note(Saved::RowCache, saved.map(|()| 0));
        }
    }

    /// Records the result of a save; returns the bytes charged to the allowance.
    fn note(&self, what: Saved, saved: crate::types::error::Result<u64>) -> u64 {
        lock(&self.counts.messages).last_errors[what as usize] =
            saved.as_ref().err().map(ToString::to_string);
        saved.unwrap_or(0)
    }

    fn pause_nanos(&self, bytes: u64) -> u64 {
        let nanos =
            u128::from(bytes) * 1_000_000_000 / u128::from(self.context.bytes_per_second.max(1));
        u64::try_from(nanos).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
    }

    /// The time until the next work is due.
    fn time_to_next(&self) -> Duration {
        let work = lock(&self.work);
        let now = self.context.clock.monotonic_nanos();
        let next = match work.is_restoring() {
            true => work.not_before,
            false if self.context.read_only => return Duration::MAX,
            // This process may become the keeper.
            false if !self.context.index.env.role().may_write() => {
                return self.context.interval;
            }
            false => work.not_before.max(work.saver.due().min(work.rows_saver.due())),
        };
        Duration::from_nanos(next.saturating_sub(now))
    }
}

/// Deducts a pause from the allowance that may be used at once; returns the part that it does not
/// cover.
fn pause_beyond(pause: u64, at_once: &mut u64) -> u64 {
    let used = pause.min(*at_once);
    *at_once -= used;
    pause - used
}

/// Invariant 4: whether a process may replace the image that it found.
fn may_replace(took_all: bool, open_nanos: u64, interval: Duration) -> bool {
    took_all || open_nanos >= nanos(interval)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_restore_pauses_once_the_allowance_of_the_first_second_is_used() {
        let mut at_once = AT_ONCE_NANOS;
        let pauses = [400_000_000, 500_000_000, 300_000_000, 200_000_000]
            .map(|pause| pause_beyond(pause, &mut at_once));
        assert_eq!(pauses, [0, 0, 200_000_000, 200_000_000]);
        assert_eq!(at_once, 0);
    }

    #[test]
    fn a_short_run_that_did_not_restore_everything_replaces_nothing() {
        let interval = Duration::from_secs(30);
        assert!(!may_replace(false, nanos(interval) - 1, interval));
        assert!(may_replace(false, nanos(interval), interval));
        assert!(may_replace(true, 0, interval));
    }
}
