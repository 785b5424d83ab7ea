//! Flushes memtables that are not full after a while, so that a process that is killed leaves
//! little to replay.
//!
//! The thread first sweeps the files that an earlier process left beside the log. Opening need not
//! wait for this: there may be thousands of blob files to examine. In a shared store the keeper
//! sweeps again when a member was killed that may have left some.
//!
//! A full memtable is flushed because its memory is wanted, and one that holds log which a floor
//! has let go of because the keeper of a shared store asks for it (`engine/held_back.rs`). Here,
//! one that is not full is flushed
//! - when nothing was written for [`IDLE`], or
//! - when it has held something for [`AGE_MAX`], measured from the first look that saw it.
//!
//! A memtable too small for a run stays: replaying it takes some milliseconds. In that case the
//! log's active segment is sealed if it is long, because the next process would read all of it,
//! from a cold disk a mebibyte in two milliseconds. While writes continue, the threshold is higher,
//! so that a slow writer does not create many tiny segments.
//!
//! Law: writers that fill a memtable in less than that time are not affected. Slower ones pay with
//! a smaller run each time, which merges rewrite once or twice more: at most one memtable's bytes
//! in [`AGE_MAX`], or the bytes of a burst before writers rested. (What a shared store's members
//! are asked for comes beside it, once for each four segments of the log.)

use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_disk::clock::Clock;
use plimsoll_disk::worker::{Next, Woken, Worker};
use plimsoll_log::file_log::{FileLog, LONG_SEGMENT_BYTES};
use plimsoll_log::glsn::Glsn;
use plimsoll_log::log::Log;
use plimsoll_log::members::Members;

use crate::index::env::Progress;
use crate::index::{Index, Unflushed};
use crate::txn::sequencer::CommitSequencer;
use crate::types::error::{Lift, Result};
use crate::types::lock::lock;

/// A memtable is too small for a run if it holds less than both this and this part of its limit (a
/// divisor),
const LEAST_BYTES: u64 = 1 << 20;
const LEAST_PART: u64 = 4;
/// unless its commits take at least this much of the log: large values are in the log only, and
/// replay reads them all.
const LEAST_LOG_BYTES: u64 = LONG_SEGMENT_BYTES;

/// Writers are idle when nothing was written for this long.
const IDLE: Duration = Duration::from_secs(2);

/// The longest time that a memtable which is not full stays in memory.
const AGE_MAX: Duration = Duration::from_secs(30);

/// The active segment is sealed from this length on while writes continue. When writers are idle,
/// the threshold is the one used at close.
const LONG_SEGMENT_BUSY_BYTES: u64 = 16 << 20;

/// The interval between looks while there is something to watch. Otherwise the next commit wakes
/// the thread,
const LOOK: Duration = Duration::from_millis(500);
/// or it looks after this time: reads alone may have left memory lent to rows that others want.
const LOOK_IDLE: Duration = Duration::from_secs(120);

/// While a store is being closed, a log folder with more files than this is not swept.
const FEW_FILES: usize = 256;

/// The environment: what is flushed, and the lock that excludes trims.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) log: Arc<FileLog>,
    pub(crate) index: Arc<Index>,
    pub(crate) sequencer: Arc<CommitSequencer>,
    /// The processes that have the store open, if there may be several.
    pub(crate) members: Option<Arc<Members>>,
}

/// The checkpoint worker of one store.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    core: Arc<Core>,
    /// `None`: its owner calls [`Checkpoints::step`].
    worker: Option<Worker>,
}

#[derive(Debug)]
struct Core {
    context: Context,
    watch: Mutex<Watch>,
    /// How many members had been killed ([`Members::leftovers`]) when the leftovers of earlier
    /// processes were swept last; `None`: they were not yet. Locked during the sweep.
    swept: Mutex<Option<u64>>,
}

/// What came of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Swept {
    /// Nothing is left.
    All,
    /// Another member writes the index, or reads all files.
    NotNow,
}

impl Checkpoints {
    /// Starts looking: in a thread, or, without `background`, whenever [`Checkpoints::step`] is
    /// called.
    pub(crate) fn start(context: Context, background: bool) -> std::io::Result<Self> {
        let core = Arc::new(Core { context, watch: Mutex::default(), swept: Mutex::default() });
        let worker = background.then(|| core.start_worker()).transpose()?;
        Ok(Self { core, worker })
    }

    /// Looks once, if no thread does.
    pub(crate) fn step(&self) -> Progress {
        if self.worker.is_some() {
            return Progress::Idle;
        }
        // Unless opening did. A file that cannot be swept now is swept at the next call, or when
        // the store is opened again.
        let _ = self.core.sweep();
        self.core.step()
    }

    /// Sweeps the leftovers of an earlier process beside the log, unless that was done: for callers
    /// that inspect the files.
    ///
    /// # Errors
    /// The disk, or the budget: the sweep is tried again at the next call, or when the store is
    /// opened again.
    pub(crate) fn sweep(&self) -> Result<()> {
        self.core.sweep().map(drop)
    }

    /// Stops the worker.
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
        let mut tried = None;
        let step = move |woken| {
            if woken != Woken::TimedOut {
                return Next::Within(LOOK);
            }
            let killed = core.killed();
            // A file that cannot be swept now is swept at the next call, or when the store is
            // opened again.
            if tried != Some(killed) && !matches!(core.sweep(), Ok(Swept::NotNow)) {
                tried = Some(killed);
            }
            core.step();
            Next::Within(if core.is_watching() { LOOK } else { LOOK_IDLE })
        };
        Worker::start("plimsoll-checkpoint", &self.context.sequencer.alarm.bell, || {}, step)
    }

    /// Whether something may become due soon. If not, the next commit rings the bell.
    fn is_watching(&self) -> bool {
        let is_watching = || {
            let known = lock(&self.watch);
            // One that follows others watches nothing; it is woken, too, when it takes the place of
            // the keeper.
            self.context.index.may_write()
                && (known.is_watching() || known.next != self.context.log.bounds().next)
        };
        is_watching() || {
            self.context.sequencer.alarm.set();
            is_watching()
        }
    }

    /// How many members of a shared store were killed that may have left blob files.
    fn killed(&self) -> u64 {
        self.context.members.as_ref().map_or(0, |members| members.leftovers())
    }

    fn sweep(&self) -> Result<Swept> {
        let mut swept = lock(&self.swept);
        // First: what one leaves that is killed meanwhile is for the next sweep.
        let killed = self.killed();
        if *swept == Some(killed) {
            return Ok(Swept::All);
        }
        if !self.context.index.may_write() {
            return Ok(Swept::NotNow);
        }
        let sweep =
            || self.context.log.sweep_blobs(&|blob| self.context.index.must_keep_blob(blob)).lift();
        match &self.context.members {
            Some(members) => match members.unless_held(|_| sweep()) {
                Some(done) => drop(done?),
                None => return Ok(Swept::NotNow),
            },
            None => drop(sweep()?),
        }
        *swept = Some(killed);
        Ok(Swept::All)
    }

    /// Sweeps at the end of a process that was too short for its thread to do so, if there are few
    /// files.
    fn sweep_if_few(&self) {
        if lock(&self.swept).is_none()
            && self.context.log.file_count().is_ok_and(|files| files <= FEW_FILES)
        {
            // A file that cannot be swept now is swept when the store is opened again.
            let _ = self.sweep();
        }
    }

    fn step(&self) -> Progress {
        let context = &self.context;
        context.index.return_lent_rows();
        if !context.index.may_write() {
            return Progress::Idle;
        }
        let mut watch = lock(&self.watch);
        let now = context.clock.monotonic_nanos();
        let worth_a_run =
            context.index.unflushed().filter(|active| is_worth_a_run(active, &context.index));
        match watch.look(now, context.log.bounds().next, worth_a_run.map(|active| active.oldest)) {
            Due::Nothing => Progress::Idle,
            Due::Flush => self.close_memtable(),
            Due::Seal { from_bytes } => {
                // Blob files that its records name are freed with it.
                let from_bytes =
                    if context.log.active_blob_bytes() >= from_bytes { 0 } else { from_bytes };
                // On failure the segment stays unsealed and the next open reads all of it; a
                // poisoned log reports its error to commits.
                let _ = context.log.seal_from(from_bytes);
                if context.members.is_none() {
                    context.index.free_log();
                }
                Progress::Worked
            }
        }
    }

    /// Closes the active memtable so that it is flushed, as if it were full.
    fn close_memtable(&self) -> Progress {
        let context = &self.context;
        let closed = context.sequencer.try_at_applied(|applied| context.index.close_up_to(applied));
        if closed.is_some() { Progress::Worked } else { Progress::Idle }
    }
}

fn is_worth_a_run(active: &Unflushed, index: &Index) -> bool {
    let least = LEAST_BYTES.min(index.memtable_limit_bytes() / LEAST_PART);
    active.bytes >= least || active.log_bytes >= LEAST_LOG_BYTES
}

/// Whether a store that is closed now leaves a replay to the next process that is too small for a
/// run.
pub(crate) fn leaves_little(index: &Index) -> bool {
    index.unflushed().is_some_and(|active| active.bytes > 0 && !is_worth_a_run(&active, index))
}

/// The work that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    /// The active memtable is to be flushed.
    Flush,
    /// The log's active segment is to be sealed, if it has at least this many bytes.
    Seal {
        from_bytes: u64,
    },
}

/// Observations of earlier looks.
#[derive(Clone, Debug, Default)]
struct Watch {
    /// The position after the log's last entry, when it was first seen, and whether the segment was
    /// sealed there.
    next: Glsn,
    since: u64,
    sealed: bool,
    /// The oldest commit in a memtable that is large enough for a run, and when it was first seen.
    held: Option<(Glsn, u64)>,
    /// Whether that memtable has reached its maximum age.
    aged: bool,
}

impl Watch {
    /// The work that is due at `now`. The log ends before `next`; `oldest` is the oldest commit in
    /// the active memtable if that is large enough for a run.
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
        assert_eq!(
            watch.look(5 * SECOND, Glsn(12), None),
            Due::Seal { from_bytes: LONG_SEGMENT_BYTES }
        );
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
        let mut look =
            |second: u64, oldest| watch.look(second * SECOND, Glsn(10 + second), holding(oldest));
        // The first 30 seconds go into one memtable, the next into the one that follows it; then
        // each is full after 20.
        assert!((0..30).all(|second| look(second, 1) == Due::Nothing));
        assert_eq!((look(30, 1), look(31, 1)), (Due::Flush, Due::Flush), "until it is closed");
        assert_eq!(
            watch.look(32 * SECOND, Glsn(42), None),
            Due::Seal { from_bytes: LONG_SEGMENT_BUSY_BYTES }
        );
        let mut look =
            |second: u64, oldest| watch.look(second * SECOND, Glsn(10 + second), holding(oldest));
        assert!((33..200).all(|second| look(second, second / 20) == Due::Nothing));
    }
}
