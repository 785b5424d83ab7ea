//! Flushes what memory has held for a while, so that a process that is killed leaves little to replay.
//!
//! First its thread sweeps what an earlier life left beside the log, which opening need not wait for: there may be thousands of blob files to look at.
//!
//! A memtable that is full is flushed because its room is wanted. One that is not is flushed
//! - when nothing has come in for [`IDLE`], or
//! - when it has held something for [`AGE_MAX`], as far as somebody looked.
//!
//! What is not worth a run stays: replaying it takes some milliseconds. Then the log's active segment is sealed too, if it has grown long: the next
//! process would read all of it, from a cold disk a mebibyte in two milliseconds. Where writers do not rest it has to be longer, or a log that is written
//! slowly would consist of ever so many.
//!
//! Law: writers who fill a memtable in less than that time see none of this. Slower ones pay with a smaller run each time, which merges write once or
//! twice more; that is at most one memtable's bytes in [`AGE_MAX`], or what a burst wrote before writers rested.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use plimsoll_disk::clock::Clock;
use plimsoll_disk::worker::{Bell, Next, Woken, Worker};
use plimsoll_log::file_log::{FileLog, LONG_SEGMENT_BYTES};
use plimsoll_log::glsn::Glsn;
use plimsoll_log::log::Log;

use crate::index::{Index, Progress, Unflushed};
use crate::txn::sequencer::CommitSequencer;
use crate::types::error::Result;

/// A memtable that holds less, or less than this part of its limit (one in so many), is not worth a run,
const LEAST_BYTES: u64 = 1 << 20;
const LEAST_PART: u64 = 4;
/// unless its commits take more of the log: large values are in the log only, and replay reads them all.
const LEAST_LOG_BYTES: u64 = LONG_SEGMENT_BYTES;

/// Nothing came in for so long: writers rest.
const IDLE: Duration = Duration::from_secs(2);

/// The longest that a memtable which is not full holds something.
const AGE_MAX: Duration = Duration::from_secs(30);

/// A segment is sealed from so many bytes on where writers do not rest; where they do, as when the log is closed.
const LONG_SEGMENT_BUSY_BYTES: u64 = 16 << 20;

/// From one look to the next: where there is something to watch, and where there is not.
const LOOK: Duration = Duration::from_millis(500);
const LOOK_IDLE: Duration = Duration::from_secs(2);

/// A folder of the log with more files is not swept while a store is being closed.
const FEW_FILES: usize = 256;

/// What is flushed, and who must not be in between.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) log: Arc<FileLog>,
    pub(crate) index: Arc<Index>,
    pub(crate) sequencer: Arc<CommitSequencer>,
}

/// Looks after one store.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    core: Arc<Core>,
    /// `None`: its owner calls [`Checkpoints::step`].
    worker: Option<Worker>,
}

#[derive(Debug)]
struct Core {
    ground: Ground,
    watch: Mutex<Watch>,
    /// Whether what an earlier life left was swept. Held meanwhile.
    swept: Mutex<bool>,
}

impl Checkpoints {
    /// Begins to look: in a thread, or, without `background`, whenever [`Checkpoints::step`] is called.
    pub(crate) fn start(ground: Ground, background: bool) -> std::io::Result<Self> {
        let core = Arc::new(Core { ground, watch: Mutex::default(), swept: Mutex::new(false) });
        let worker = background.then(|| core.start_worker()).transpose()?;
        Ok(Self { core, worker })
    }

    /// Looks once, if no thread does.
    pub(crate) fn step(&self) -> Progress {
        if self.worker.is_some() { Progress::Idle } else { self.core.step() }
    }

    /// Sweeps what an earlier life left beside the log, unless that was done: for those who look at what is there.
    ///
    /// # Errors
    /// The disk, or the budget: it is tried again when somebody asks again, or when the store is opened again.
    pub(crate) fn sweep(&self) -> Result<()> {
        self.core.sweep()
    }

    /// Ends looking.
    pub(crate) fn stop(&self) {
        if self.worker.as_ref().is_some_and(Worker::stop) {
            self.core.sweep_if_few();
        }
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Core {
    fn start_worker(self: &Arc<Self>) -> std::io::Result<Worker> {
        let core = Arc::clone(self);
        let mut first = true;
        let step = move |woken| {
            if woken != Woken::TimedOut {
                return Next::Within(LOOK);
            }
            if std::mem::take(&mut first) {
                // What cannot be swept now is swept when somebody asks, or when the store is opened again.
                let _ = core.sweep();
            }
            core.step();
            Next::Within(if lock(&core.watch).is_watching() { LOOK } else { LOOK_IDLE })
        };
        Worker::start("plimsoll-checkpoint", &Arc::new(Bell::default()), || {}, step)
    }

    fn sweep(&self) -> Result<()> {
        let mut swept = lock(&self.swept);
        if !*swept {
            self.ground.log.sweep_blobs(&|blob| self.ground.index.uses_blob(blob))?;
            *swept = true;
        }
        Ok(())
    }

    /// Sweeps at the end of a process that was too short for its thread to do so, where that takes next to no time.
    fn sweep_if_few(&self) {
        if !*lock(&self.swept) && self.ground.log.file_count().is_ok_and(|files| files <= FEW_FILES) {
            // What cannot be swept now is swept when the store is opened again.
            let _ = self.sweep();
        }
    }

    fn step(&self) -> Progress {
        let ground = &self.ground;
        let mut watch = lock(&self.watch);
        let now = ground.clock.monotonic_nanos();
        let worth_a_run = ground.index.unflushed().filter(|active| is_worth_a_run(active, &ground.index));
        match watch.look(now, ground.log.bounds().next, worth_a_run.map(|active| active.oldest)) {
            Due::Nothing => Progress::Idle,
            Due::Flush => self.close_memtable(),
            Due::Seal { from_bytes } => {
                // If it fails it stays as it is, and is read whole by the next who opens it; a log that is poisoned says so to those who commit.
                let _ = ground.log.seal_from(from_bytes);
                Progress::Worked
            }
        }
    }

    /// Leaves the active memtable to be flushed, as if it were full.
    fn close_memtable(&self) -> Progress {
        let ground = &self.ground;
        let closed = ground.sequencer.try_at_applied(|applied| ground.index.close_up_to(applied));
        if closed.is_some() { Progress::Worked } else { Progress::Idle }
    }
}

fn is_worth_a_run(active: &Unflushed, index: &Index) -> bool {
    let least = LEAST_BYTES.min(index.memtable_limit_bytes() / LEAST_PART);
    active.bytes >= least || active.log_bytes >= LEAST_LOG_BYTES
}

/// Whether a store that is closed now leaves something to the next process to replay, and so little that no run is worth it.
pub(crate) fn leaves_little(index: &Index) -> bool {
    index.unflushed().is_some_and(|active| active.bytes > 0 && !is_worth_a_run(&active, index))
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    /// The active memtable is to be flushed.
    Flush,
    /// The log's active segment is to be sealed, if it has so many bytes.
    Seal {
        from_bytes: u64,
    },
}

/// What was seen at earlier looks.
#[derive(Clone, Debug, Default)]
struct Watch {
    /// The place behind the log's last entry, when it was seen first, and whether the segment was sealed there.
    next: Glsn,
    since: u64,
    sealed: bool,
    /// The oldest commit in the memtable that holds enough, and when it was seen first.
    held: Option<(Glsn, u64)>,
    /// It has come of age.
    aged: bool,
}

impl Watch {
    /// What is due at `now`, when the log ends before `next`, and `oldest` is the oldest commit in the active memtable if that is worth a run.
    fn look(&mut self, now: u64, next: Glsn, oldest: Option<Glsn>) -> Due {
        if next != self.next {
            (self.next, self.since, self.sealed) = (next, now, false);
        }
        let is_idle = now.saturating_sub(self.since) >= nanos(IDLE);
        let is_gone = self.held.is_some_and(|(known, _)| oldest != Some(known));
        self.held = oldest.map(|oldest| match self.held {
            Some((known, since)) if known == oldest => (oldest, since),
            _ => (oldest, now),
        });
        if is_gone && std::mem::take(&mut self.aged) {
            return Due::Seal { from_bytes: LONG_SEGMENT_BUSY_BYTES };
        }
        if let Some((_, since)) = self.held {
            self.aged = now.saturating_sub(since) >= nanos(AGE_MAX);
            return if is_idle || self.aged { Due::Flush } else { Due::Nothing };
        }
        if is_idle && !self.sealed {
            self.sealed = true;
            return Due::Seal { from_bytes: LONG_SEGMENT_BYTES };
        }
        Due::Nothing
    }

    /// Whether something may become due soon.
    fn is_watching(&self) -> bool {
        self.held.is_some() || !self.sealed
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What each lock here guards is whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn holding(oldest: u64) -> Option<Glsn> {
        Some(Glsn(oldest))
    }

    #[test]
    fn what_was_written_is_flushed_when_writers_rest_and_then_the_segment_is_sealed_once() {
        let mut watch = Watch::default();
        assert_eq!(watch.look(SECOND, Glsn(9), holding(1)), Due::Nothing);
        assert_eq!(watch.look(2 * SECOND, Glsn(12), holding(1)), Due::Nothing);
        assert_eq!(watch.look(3 * SECOND, Glsn(12), holding(1)), Due::Nothing);
        assert_eq!(watch.look(4 * SECOND, Glsn(12), holding(1)), Due::Flush);
        assert_eq!(watch.look(5 * SECOND, Glsn(12), None), Due::Seal { from_bytes: LONG_SEGMENT_BYTES });
        assert!(!watch.is_watching());
        assert_eq!(watch.look(6 * SECOND, Glsn(12), None), Due::Nothing);
    }

    #[test]
    fn what_is_not_worth_a_run_stays() {
        let mut watch = Watch::default();
        for second in 1..100 {
            assert_ne!(watch.look(second * SECOND, Glsn(9), None), Due::Flush);
        }
    }

    #[test]
    fn writers_who_never_rest_leave_a_memtable_no_longer_than_its_age_and_then_a_segment() {
        let mut watch = Watch::default();
        let mut look = |second: u64, oldest| watch.look(second * SECOND, Glsn(10 + second), holding(oldest));
        // The first 30 seconds go into one memtable, the next into another that is there as soon as the first is closed; then each is full after 20.
        assert!((0..30).all(|second| look(second, 1) == Due::Nothing));
        assert_eq!((look(30, 1), look(31, 1)), (Due::Flush, Due::Flush), "until it is closed");
        assert_eq!(watch.look(32 * SECOND, Glsn(42), None), Due::Seal { from_bytes: LONG_SEGMENT_BUSY_BYTES });
        let mut look = |second: u64, oldest| watch.look(second * SECOND, Glsn(10 + second), holding(oldest));
        assert!((33..200).all(|second| look(second, second / 20) == Due::Nothing));
    }
}
