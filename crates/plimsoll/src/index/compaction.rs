//! Merges runs, one bounded piece at a time.
//!
//! A job (`job`) takes adjacent current runs, or history runs, and produces one run of current
//! versions and one of history. When all outputs are written and synced, the manifest is replaced
//! and readers see the outputs instead of the inputs.
//!
//! Two jobs can run at once if the budget allows: a small job that merges newer runs takes
//! precedence over a large one under way.

mod expired;
mod job;
mod shapes;
mod vacate;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use plimsoll_log::glsn::Glsn;

use crate::index::compaction::expired::{Lookups, expired_in};
use crate::index::compaction::job::{Job, Swept, Task};
use crate::index::compaction::shapes::{current_shapes, kept_bytes, shapes_by_size};
use crate::index::env::{Context, Progress};
use crate::index::plan::policy::{Plan, Priority, choose};
use crate::index::run::table::TableInfo;
use crate::index::runs::Runs;
use crate::index::sources::source::Run;
use crate::index::sources::view::View;
use crate::index::write::SetAside;
use crate::index::write::disposition::{Inputs, KeptFor, KeptIn};
use crate::index::write::output::OUTPUT_CHUNKS;
use crate::index::write::relocate::points_into;
use crate::types::error::{Error, Result};
use crate::types::lock::{lock, try_lock};

/// The most runs that one job merges.
const FAN_IN: usize = 8;

/// Budgets below this many bytes have room for one job only.
const TWO_JOBS_BYTES: u64 = 64 << 20;

/// While a job is under way, another job merges newer runs once there are this many.
const PILED_UP: usize = 4;

/// A full compaction runs at most one job per run plus this many: the job under way, relocation,
/// and the removal of droppable versions.
const JOBS_MORE: u64 = 6;

/// Decides which runs are merged, and when.
pub(crate) struct Compaction {
    runs: Arc<Runs>,
    /// Held during a step.
    jobs: Mutex<Jobs>,
    /// Whether merges whose only purpose is cheaper reads are allowed.
    may_settle: AtomicBool,
}

/// How a caller handles the failure of an unrequested relocation (one that the store chose by
/// itself).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnrequestedFailure {
    /// Ignored: the values stay where they are, and the next job begins.
    Ignore,
    /// Returned to the caller, unless it is damage, which reads of the damaged value report.
    Return,
}

/// The running jobs, and their memory.
#[derive(Debug)]
struct Jobs {
    slots: Vec<Slot>,
    /// Damage that a job found: compaction stops until the index is opened again.
    stopped: Option<Error>,
    /// The run that the last history job made, and the moments for which it kept versions. This run
    /// is not scanned again for droppable versions before one of those moments is released.
    swept_history: Swept,
    /// Total bytes written when the owner last called for a step.
    seen_bytes_in: u64,
}

#[derive(Debug)]
struct Slot {
    set_aside: SetAside,
    job: Option<Job>,
}

impl Jobs {
    /// Reserves the memory for jobs.
    fn new(context: &Context) -> Result<Self> {
        let slots = (0..slots_for(context)).map(|_| Slot::new(context)).collect::<Result<_>>()?;
        Ok(Self {
            slots,
            stopped: None,
            swept_history: (Weak::new(), KeptIn::new()),
            seen_bytes_in: 0,
        })
    }

    /// Adapts the number of slots to the budget. If there is no memory for a second slot, a later
    /// call tries again.
    fn fit(&mut self, context: &Context) {
        let wanted = slots_for(context);
        if self.slots.len() > wanted {
            self.slots.pop_if(|slot| slot.job.is_none());
        } else if self.slots.len() < wanted {
            self.slots.extend(Slot::new(context).ok());
        }
    }

    fn is_busy(&self, run: &Arc<Run>) -> bool {
        let mut jobs = self.slots.iter().filter_map(|slot| slot.job.as_ref());
        jobs.any(|job| job.reads(run))
    }
}

/// The most jobs that may run at the same time.
fn slots_for(context: &Context) -> usize {
    match (context.role.only_reads(), context.budget.limit_bytes() >= TWO_JOBS_BYTES) {
        (true, _) => 0,
        (false, false) => 1,
        (false, true) => 2,
    }
}

impl Slot {
    fn new(context: &Context) -> Result<Self> {
        // A window for each input, the outputs, and a buffer for a value that is moved.
        let chunks = FAN_IN as u64 + 2 * OUTPUT_CHUNKS + 1;
        Ok(Self { set_aside: SetAside::new(&context.budget, chunks)?, job: None })
    }
}

/// Whether a retry of the failed job would fail again.
pub(crate) fn is_lasting(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::Format { .. })
}

impl Compaction {
    /// Reserves the memory for jobs.
    pub(crate) fn new(runs: &Arc<Runs>) -> Result<Self> {
        Ok(Self {
            runs: Arc::clone(runs),
            jobs: Mutex::new(Jobs::new(&runs.env.context)?),
            may_settle: AtomicBool::new(true),
        })
    }

    /// Runs a step on the owner's call. If nothing was written since the last call, the index
    /// counts as idle and its runs are settled.
    pub(crate) fn step(&self) -> Result<Progress> {
        let bytes_in = self.runs.env.counters.bytes_in.load(Ordering::Relaxed);
        let seen = std::mem::replace(&mut lock(&self.jobs).seen_bytes_in, bytes_in);
        self.step_for(if seen == bytes_in { Priority::Settle } else { Priority::Due })
    }

    /// Whether a current run has values that will expire and may then be dropped, so that merges
    /// may become due without writes. Tables with expiring values of several keyspaces do not
    /// count.
    pub(crate) fn has_expiries(&self) -> bool {
        let (view, horizon) = (self.runs.sources.view(), &self.runs.env.horizon);
        let mut infos = view.runs.iter().flat_map(|run| run.infos());
        infos.any(|info| info.expiries.is_some_and(|of| horizon.may_give_up(of.keyspace)))
    }

    /// Whether a merge that drops expired values would be worth it if the newest commit were at
    /// `to`, and is not worth it now that the newest commit is at `from`. This holds if most values
    /// of a table expire by `to`, but not by `from`. It also holds if most have expired by `from`,
    /// and the last expiring value of the table expires between the two. Both are microseconds
    /// since 1970 UTC.
    pub(crate) fn expires_between(&self, from: u64, to: u64) -> bool {
        let (view, env) = (self.runs.sources.view(), &self.runs.env);
        let lookups = Lookups::new(&*env.horizon);
        let mut infos = view.runs.iter().flat_map(|run| run.infos());
        infos.any(|info| {
            info.expiries.is_some_and(|expiries| {
                let is_most = |at| info.is_worth_rewriting(expiries.expired(at));
                let all = |at| expiries.last.has_passed(at);
                let is_due = is_most(to) && (!is_most(from) || (all(to) && !all(from)));
                is_due && lookups.may_drop(expiries.keyspace, info)
            })
        })
    }

    /// Sets whether merges whose only purpose is cheaper reads are allowed.
    pub(crate) fn set_may_settle(&self, may_settle: bool) {
        // Relaxed: the flag guards no other data.
        self.may_settle.store(may_settle, Ordering::Relaxed);
        if may_settle {
            self.runs.env.signals.call_compaction();
        }
    }

    /// Merges until nothing is left to merge; runs that are added meanwhile may stay. The log
    /// retains its entries from `log_keeps_from` on, and the files that they name.
    pub(crate) fn run_all(&self, log_keeps_from: Glsn) -> Result<()> {
        let done = || self.runs.env.counters.compactions.load(Ordering::Relaxed);
        let view = self.runs.sources.view();
        let enough = done() + (view.runs.len() + view.history.len()) as u64 + JOBS_MORE;
        drop(view);
        let step = || {
            self.work(lock(&self.jobs), UnrequestedFailure::Ignore, |jobs| {
                self.task(jobs, Priority::All, log_keeps_from)
            })
        };
        while step()? == Progress::Worked && done() < enough {}
        self.check_stopped()
    }

    /// Moves values out of the log entries that are to be freed and out of the blob files that are
    /// to be vacated. Changes nothing else.
    pub(crate) fn relocate(&self) -> Result<()> {
        let done = || self.runs.env.counters.compactions.load(Ordering::Relaxed);
        let view = self.runs.sources.view();
        let enough = done() + (view.runs.len() + view.history.len()) as u64 + JOBS_MORE;
        drop(view);
        let step = || {
            self.work(lock(&self.jobs), UnrequestedFailure::Return, |_| {
                self.relocation(&self.runs.sources.view())
            })
        };
        while step()? == Progress::Worked && done() < enough {}
        self.check_stopped()
    }

    /// Moves values out of blob files that are largely dead, as long as the copies are small
    /// compared with the live data. Does nothing if this and later calls together would free less
    /// than `worth_bytes`. Returns whether it moved any values; if so, more may be left.
    pub(crate) fn vacate_blobs(&self, worth_bytes: u64) -> Result<bool> {
        let view = self.runs.sources.view();
        let chosen = vacate::choose(&self.runs.env.context.log, &view, worth_bytes)?;
        drop(view);
        if chosen.is_empty() {
            return Ok(false);
        }
        self.runs.blobs.vacate(chosen);
        let moved = self.relocate();
        self.runs.blobs.vacate(BTreeSet::new());
        moved.map(|()| true)
    }

    fn check_stopped(&self) -> Result<()> {
        lock(&self.jobs).stopped.as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Does a bounded piece of a job; starts one first if it is due.
    pub(crate) fn step_for(&self, priority: Priority) -> Result<Progress> {
        self.step_with(lock(&self.jobs), priority)
    }

    /// As [`Compaction::step_for`]; `None` if another thread is doing a step. A background job must
    /// not wait for it: a caller that merges in the foreground takes the lock again at once after
    /// each step, and the job would keep its thread from flushes meanwhile.
    pub(crate) fn try_step_for(&self, priority: Priority) -> Option<Result<Progress>> {
        try_lock(&self.jobs).map(|jobs| self.step_with(jobs, priority))
    }

    fn step_with(&self, jobs: MutexGuard<'_, Jobs>, priority: Priority) -> Result<Progress> {
        let may_settle = self.may_settle.load(Ordering::Relaxed);
        let priority =
            if priority == Priority::Settle && !may_settle { Priority::Due } else { priority };
        self.work(jobs, UnrequestedFailure::Ignore, |jobs| self.task(jobs, priority, Glsn::MAX))
    }

    /// Does a bounded piece of a job; starts the job that `task` returns if none is under way.
    fn work(
        &self,
        mut jobs: MutexGuard<'_, Jobs>,
        unrequested: UnrequestedFailure,
        task: impl FnOnce(&Jobs) -> Option<Task>,
    ) -> Result<Progress> {
        let term = self.runs.env.role().term();
        for slot in &mut jobs.slots {
            // Drop a job of an earlier term: another process may have been the keeper since.
            slot.job.take_if(|job| !job.is_of(term));
        }
        if jobs.stopped.is_some() || term.is_none() {
            return Ok(Progress::Idle);
        }
        self.begin_jobs(&mut jobs, task);
        // The job that started last is the smaller one.
        let Some(slot) = jobs.slots.iter_mut().rev().find(|slot| slot.job.is_some()) else {
            return Ok(Progress::Idle);
        };
        let job = slot.job.as_mut().expect("just found");
        let step = job.step(&self.runs);
        let ended = match &step {
            Ok(done) => *done,
            Err(_) => true,
        };
        let unasked_below = job.relocates_unrequested_below();
        let job = if ended { slot.job.take() } else { None };
        let result = match (step, job) {
            (Ok(true), Some(job)) => job.finish(&self.runs).map(|swept| {
                if let Some(swept) = swept {
                    jobs.swept_history = swept;
                }
            }),
            (step, _) => step.map(|_| ()),
        };
        let result = result.map_err(|error| self.runs.env.role().of_job(term, error));
        let result = match (result, unasked_below) {
            (Err(error), Some(below)) => {
                self.runs.env.horizon.stop_relocating(below, &error);
                // Reads of the damaged value report the damage.
                if unrequested == UnrequestedFailure::Ignore || is_lasting(&error) {
                    Ok(())
                } else {
                    Err(error)
                }
            }
            // Another process has become the keeper.
            (Err(Error::NotKeeper { .. }), _) => Ok(()),
            (result, _) => result,
        };
        if let Err(error) = &result
            && is_lasting(error)
        {
            jobs.stopped = Some(error.clone());
        }
        drop(jobs);
        self.runs.env.signals.compaction_ended(ended, result.as_ref().err());
        result.map(|()| Progress::Worked)
    }

    /// Waits for a step on another thread.
    pub(crate) fn wait(&self) {
        drop(lock(&self.jobs));
    }

    /// Blocks all steps until the result is dropped.
    #[cfg(test)]
    pub(crate) fn pause(&self) -> impl Sized + '_ {
        lock(&self.jobs)
    }

    /// Merges all history runs in one job.
    #[cfg(test)]
    pub(crate) fn merge_history(&self) -> Result<()> {
        let jobs = lock(&self.jobs);
        let view = self.runs.sources.view();
        let task = history_task(&view, 0..view.history.len(), Priority::All);
        let mut job = Job::new(&self.runs, &jobs.slots[0].set_aside, task);
        while !job.step(&self.runs)? {}
        job.finish(&self.runs).map(drop)
    }

    /// Adapts to a changed budget.
    pub(crate) fn fit(&self) {
        lock(&self.jobs).fit(&self.runs.env.context);
    }

    fn begin_jobs(&self, jobs: &mut Jobs, task: impl FnOnce(&Jobs) -> Option<Task>) {
        jobs.fit(&self.runs.env.context);
        if jobs.slots.first().is_some_and(|slot| slot.job.is_none()) {
            // While the second slot has a job, no other one begins, because that job is short.
            let other = jobs.slots.iter().any(|slot| slot.job.is_some());
            if !other && let Some(task) = task(jobs) {
                jobs.slots[0].job = Some(Job::new(&self.runs, &jobs.slots[0].set_aside, task));
            }
        } else if jobs.slots.get(1).is_some_and(|slot| slot.job.is_none()) {
            let view = self.runs.sources.view();
            let free = view.runs.iter().take_while(|run| !jobs.is_busy(run)).count();
            let horizon = &*self.runs.env.horizon;
            if free >= PILED_UP
                && let Some(plan) = choose(
                    &current_shapes(&view, horizon, &|run| jobs.is_busy(run)),
                    FAN_IN,
                    Priority::Due,
                    u64::MAX,
                )
            {
                let task = current_task(&view, plan, Priority::Due);
                jobs.slots[1].job = Some(Job::new(&self.runs, &jobs.slots[1].set_aside, task));
            }
        }
    }

    /// The next job, if any is due.
    fn task(&self, jobs: &Jobs, priority: Priority, log_keeps_from: Glsn) -> Option<Task> {
        let view = self.runs.sources.view();
        let merge = |priority| {
            let is_busy = |run: &Arc<Run>| jobs.is_busy(run);
            let mut shapes = current_shapes(&view, &*self.runs.env.horizon, &is_busy);
            for (shape, run) in shapes.iter_mut().zip(&view.runs) {
                shape.kept_bytes = kept_bytes(run, log_keeps_from);
            }
            let current = choose(&shapes, FAN_IN, priority, self.runs.superseded_max());
            current.map(|plan| current_task(&view, plan, priority)).or_else(|| {
                choose(
                    &shapes_by_size(&view.history, &|run| jobs.is_busy(run)),
                    FAN_IN,
                    priority,
                    u64::MAX,
                )
                .map(|plan| history_task(&view, plan, priority))
            })
        };
        match priority {
            Priority::Due => merge(priority).or_else(|| self.relocation(&view)),
            Priority::Settle => {
                let due = merge(Priority::Due).or_else(|| self.relocation(&view));
                due.or_else(|| self.absorption(&view)).or_else(|| merge(priority))
            }
            Priority::All => merge(priority)
                .or_else(|| self.relocation(&view))
                .or_else(|| self.absorption(&view))
                .or_else(|| self.clearance(jobs, &view, log_keeps_from)),
        }
    }

    /// A job on a run with values in log entries that are to be freed, or in blob files that are to
    /// be vacated.
    fn relocation(&self, view: &View) -> Option<Task> {
        let vacated = self.runs.blobs.vacated();
        let task = |below: Glsn| {
            let wanted = |run: &Arc<Run>| {
                run.min_pointer().is_some_and(|pointer| pointer < below)
                    || run.infos().any(|info| points_into(info, &vacated))
            };
            let current = view
                .runs
                .iter()
                .position(wanted)
                .map(|at| current_task(view, at..at + 1, Priority::Due));
            let history = || {
                view.history
                    .iter()
                    .position(wanted)
                    .map(|at| history_task(view, at..at + 1, Priority::Due))
            };
            current.or_else(history)
        };
        // A requested relocation neither waits for unrequested ones nor fails with them.
        task(self.runs.env.horizon.must_relocate_below()).or_else(|| {
            let unrequested = task(self.runs.env.horizon.relocate_below());
            unrequested.map(|task| Task { moves_unasked: true, ..task })
        })
    }

    /// A merge of the current runs that have not absorbed the oldest range deletion. If all have
    /// absorbed every range deletion, a job on a history run that has not.
    fn absorption(&self, view: &View) -> Option<Task> {
        let checkpoint = self.runs.checkpoint().glsn;
        let ranges = view.ranges.retained(|_, glsn| glsn <= checkpoint);
        if ranges.is_empty() {
            return None;
        }
        let oldest_needed = |run: &Arc<Run>| job::oldest_needed(&ranges, run);
        if let Some(glsn) = view.runs.iter().filter_map(oldest_needed).min() {
            // Every run that holds a version older than the range deletion must take part. If a
            // newer run kept such a version, a lookup would find it before the point deletion in
            // the merged run.
            let from = view.runs.iter().position(|run| run.min_glsn() <= glsn)?;
            let to = view.runs.iter().rposition(|run| oldest_needed(run) == Some(glsn))?.max(from);
            let from = from.max((to + 1).saturating_sub(FAN_IN));
            return Some(current_task(view, from..to + 1, Priority::Settle));
        }
        let at = view.history.iter().position(|run| oldest_needed(run).is_some())?;
        Some(history_task(view, at..at + 1, Priority::Settle))
    }

    /// A job on the only current run, if it holds deletions or expired values; otherwise on the
    /// only history run, if it may hold droppable versions.
    fn clearance(&self, jobs: &Jobs, view: &View, log_keeps_from: Glsn) -> Option<Task> {
        let lookups = Lookups::new(&*self.runs.env.horizon);
        let is_gone =
            |info: &TableInfo| info.deletions > 0 || expired_in(&lookups, view, info).is_some();
        if let [run] = &view.runs[..]
            && run.infos().any(is_gone)
            && 2 * kept_bytes(run, log_keeps_from) <= run.bytes()
        {
            return Some(current_task(view, 0..1, Priority::All));
        }
        let [run] = &view.history[..] else { return None };
        let (swept, kept) = &jobs.swept_history;
        let horizon = &*self.runs.env.horizon;
        let is_retained =
            |(keyspace, kept): (&u32, &KeptFor)| kept.are_retained(&horizon.retained(*keyspace));
        let swept = swept.upgrade().is_some_and(|swept| Arc::ptr_eq(&swept, run))
            && kept.iter().all(is_retained);
        let passed = run.infos().any(|info| job::floor_passed(horizon, info));
        (passed && !swept).then(|| history_task(view, 0..1, Priority::All))
    }
}

fn current_task(view: &View, plan: Plan, priority: Priority) -> Task {
    let inputs = Inputs::Current { oldest: plan.end == view.runs.len() };
    Task { inputs, runs: view.runs[plan].to_vec(), priority, moves_unasked: false }
}

fn history_task(view: &View, plan: Plan, priority: Priority) -> Task {
    Task {
        inputs: Inputs::History,
        runs: view.history[plan].to_vec(),
        priority,
        moves_unasked: false,
    }
}

impl fmt::Debug for Compaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Compaction({})", self.runs.env.context.dir.display())
    }
}
