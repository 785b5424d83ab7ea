//! Flushes memtables after some time even if they are not full, so that a killed process leaves
//! little to replay.
//!
//! The job first sweeps leftover files of an earlier process in the log's folder. Opening need not
//! wait for this: there may be thousands of blob files to examine. In a shared store the keeper
//! sweeps again after a member was killed, because it may have left some.
//!
//! `index/memtables/flush_policy.rs` decides when a memtable is flushed and when the active segment
//! of the log is sealed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_disk::clock::Clock;
use plimsoll_disk::job_pool::{Job, JobPool, JobPriority};
use plimsoll_disk::worker::{Next, Woken};
use plimsoll_log::file_log::FileLog;

use crate::index::OpenIndex;
use crate::index::env::Progress;
use crate::index::memtables::flush_policy::{Due, Watch};
use crate::txn::other_processes::Peers;
use crate::txn::sequencer::CommitSequencer;
use crate::types::error::{Lift, Result};
use crate::types::lock::lock;

/// The interval between checks while something may become due. Otherwise the next commit wakes the
/// job.
const LOOK: Duration = Duration::from_millis(500);

/// The longest interval between checks while nothing is committed. Checks go on because reads may
/// have filled memory with rows that other uses need.
const POLL_INTERVAL_IDLE: Duration = Duration::from_secs(120);

/// While a store is being closed, a log folder with more files than this is not swept.
const FEW_FILES: usize = 256;

/// The environment: the state that is flushed, and the lock that excludes trims.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) log: Arc<FileLog>,
    pub(crate) index: Arc<OpenIndex>,
    pub(crate) sequencer: Arc<CommitSequencer>,
    pub(crate) peers: Arc<dyn Peers>,
    pub(crate) job_pool: Arc<JobPool>,
}

/// The checkpoint job of one store.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    core: Arc<Core>,
    /// `None` without a thread: the owner calls [`Checkpoints::step`].
    job: Option<Job>,
}

#[derive(Debug)]
struct Core {
    context: Context,
    watch: Mutex<Watch>,
    /// The number of killed processes ([`Peers::killed`]) when leftovers of earlier processes were
    /// swept last; `None` before the first sweep. Locked during the sweep.
    swept: Mutex<Option<u64>>,
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Swept {
    /// Nothing is left.
    All,
    /// Not swept: another member writes the index, or reads all files.
    Deferred,
}

impl Checkpoints {
    /// Starts checking: as a job, or, without `background`, whenever [`Checkpoints::step`] is
    /// called.
    pub(crate) fn start(context: Context, background: bool) -> std::io::Result<Self> {
        let core = Arc::new(Core { context, watch: Mutex::default(), swept: Mutex::default() });
        let job = background.then(|| core.start_job()).transpose()?;
        Ok(Self { core, job })
    }

    /// Checks once, if there is no job.
    pub(crate) fn step(&self) -> Progress {
        if self.job.is_some() {
            return Progress::Idle;
        }
        // Sweep first, unless opening has done so. A file that cannot be swept now is retried at
        // the next call, or when the store is opened again.
        let _ = self.core.sweep();
        self.core.step()
    }

    /// Sweeps the leftovers of an earlier process in the log's folder, unless that was done; for
    /// callers that inspect the files.
    ///
    /// # Errors
    /// The disk, or the budget. The sweep is retried at the next call, or when the store is opened
    /// again.
    pub(crate) fn sweep(&self) -> Result<()> {
        self.core.sweep().map(drop)
    }

    /// Stops the job.
    pub(crate) fn stop(&self) {
        if self.job.as_ref().is_some_and(Job::stop) {
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
    fn start_job(self: &Arc<Self>) -> std::io::Result<Job> {
        let core = Arc::clone(self);
        let mut tried = None;
        let step = move |woken| {
            if woken != Woken::TimedOut {
                return Next::Within(LOOK);
            }
            let killed = core.context.peers.killed();
            // A file that cannot be swept now is swept at the next call, or when the store is
            // opened again.
            if tried != Some(killed) && !matches!(core.sweep(), Ok(Swept::Deferred)) {
                tried = Some(killed);
            }
            core.step();
            Next::Within(if core.is_watching() { LOOK } else { POLL_INTERVAL_IDLE })
        };
        let bell = &self.context.sequencer.alarm.bell;
        self.context.job_pool.start("checkpoint", JobPriority::Low, bell, || {}, step)
    }

    /// Whether something may become due soon. If not, the next commit rings the bell.
    fn is_watching(&self) -> bool {
        let is_watching = || {
            let known = lock(&self.watch);
            // A process that follows the keeper watches nothing; it is also woken when it becomes
            // the keeper.
            self.context.index.env.role().may_write()
                && (known.is_watching() || known.next != self.context.log.bounds().next)
        };
        is_watching() || {
            self.context.sequencer.alarm.set();
            is_watching()
        }
    }

    fn sweep(&self) -> Result<Swept> {
        let mut swept = lock(&self.swept);
        // Read this first: leftovers of a process that is killed meanwhile belong to the next
        // sweep.
        let killed = self.context.peers.killed();
        if *swept == Some(killed) {
            return Ok(Swept::All);
        }
        if !self.context.index.env.role().may_write() {
            return Ok(Swept::Deferred);
        }
        let sweep = || {
            self.context
                .log
                .sweep_blobs(&|blob| self.context.index.runs.must_keep_blob(blob))
                .lift()
        };
        let mut done = Ok(());
        if !self.context.peers.remove_files(&mut |_| done = sweep().map(drop)) {
            return Ok(Swept::Deferred);
        }
        done?;
        *swept = Some(killed);
        Ok(Swept::All)
    }

    /// If the job had no time to sweep before the store is closed, sweeps now if there are few
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
        context.index.env.context.row_cache.return_lent();
        if !context.index.env.role().may_write() {
            return Progress::Idle;
        }
        let memtables = &context.index.memtables;
        let mut watch = lock(&self.watch);
        let now = context.clock.monotonic_nanos();
        let worth_a_run =
            memtables.unflushed().filter(|active| active.is_worth_a_run(memtables.limit_bytes()));
        match watch.poll(now, context.log.bounds().next, worth_a_run.map(|active| active.oldest)) {
            Due::Nothing => Progress::Idle,
            Due::Flush => self.close_memtable(),
            Due::Seal { from_bytes, from_blob_bytes } => {
                // Sealing a segment also allows freeing the blob files that its records name.
                let has_blobs = context.log.active_blob_bytes() >= from_blob_bytes;
                let from_bytes = if has_blobs { 0 } else { from_bytes };
                // On failure the segment stays unsealed and the next open reads all of it; a
                // poisoned log reports its error to commits.
                let _ = context.log.seal_from(from_bytes);
                if context.peers.is_only_process() {
                    context.index.env.free_log(true);
                }
                Progress::Worked
            }
        }
    }

    /// Closes the active memtable so that it is flushed, as if it were full.
    fn close_memtable(&self) -> Progress {
        let context = &self.context;
        let closed = context
            .sequencer
            .try_between_commits(|applied| context.index.memtables.close_up_to(applied));
        if closed.is_some() { Progress::Worked } else { Progress::Idle }
    }
}
