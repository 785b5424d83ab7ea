//! Merges runs, one bounded piece at a time.
//!
//! A job takes adjacent current runs, or history runs, and produces one run of current versions and one of history (`split` decides where
//! each version goes). Tables that overlap with no other input, and need no change, are linked instead of rewritten. When all outputs
//! are written and synced, the manifest is replaced and readers see the outputs instead of the inputs.
//!
//! Two jobs can run at once if the budget allows: a small job merges newer runs while a large one is under way, and takes precedence.

use std::ops::Bound;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::pool::Touch;

use crate::borders::{Border, hit};
use crate::index::core::{Change, Core, SetAside, lock};
use crate::index::counters::Counters;
use crate::index::files::Reserve;
use crate::index::manifest::Outcome;
use crate::index::merge::{Cursor, Direction, Merge};
use crate::index::output::{OUTPUT_CHUNKS, Output};
use crate::index::policy::{Clearance, Plan, Priority, RunShape, choose};
use crate::index::relocate::{Moved, Relocator};
use crate::index::run::cursor::{Feed, RunCursor};
use crate::index::run::table::TableInfo;
use crate::index::source::{Run, table_bytes};
use crate::index::split::{Disposition, Elsewhere, Inputs, Splitter};
use crate::index::sweep::{Segment, Sweep};
use crate::index::view::{View, tables_in};
use crate::index::{Context, Progress};
use crate::types::error::{Error, Result};
use crate::types::events;
use crate::types::version::{Stored, Version};

/// The most runs that one job merges.
const FAN_IN: usize = 8;

/// Budgets below this many bytes have room for one job only.
const TWO_JOBS_BYTES: u64 = 64 << 20;

/// While a job is under way, another job merges newer runs once there are this many.
const PILED_UP: usize = 4;

/// The fixed cost of processing a version, in bytes, added to its size.
const VERSION_COST_BYTES: u64 = 32;

/// Divisor: a table below this part of the full size is small.
const SMALL_PART: u64 = 8;

/// Small tables that overlap with nothing are linked like others. A job with more of them than this writes them together with their
/// neighbours, because each costs a file and a description in memory. A full compaction always does.
const SMALL_MAX: usize = 64;

/// Jobs of a full compaction in addition to one for each run: the job under way, relocation, and dropping what remains droppable.
const JOBS_MORE: u64 = 6;

/// The most keyspaces of one table whose horizon is looked up; a table that spans more is rewritten.
const KEYSPACES_ASKED: u32 = 64;

/// The running jobs, and their memory.
#[derive(Debug)]
pub(crate) struct Compactor {
    slots: Vec<Slot>,
    /// Damage that a job found: compaction stops until the index is opened again.
    stopped: Option<Error>,
    /// The history run that the last history job made, and the horizon then. It is not scanned again for droppable versions before the
    /// horizon has moved.
    swept_history: (Weak<Run>, Glsn),
    /// Total bytes written when the owner last called for a step.
    seen_bytes_in: u64,
}

#[derive(Debug)]
struct Slot {
    set_aside: SetAside,
    job: Option<Job>,
}

#[derive(Debug)]
struct Job {
    inputs: Inputs,
    moves_unasked: bool,
    /// Newest first: if two hold the same version, the newer one wins.
    runs: Vec<Arc<Run>>,
    /// For a job on history: the highest horizon when it began.
    horizon: Glsn,
    /// Whether small tables that overlap with nothing are written together.
    joins_small: bool,
    /// The runs when the job began. Law: a job holds no memtable, whose memory a flush in the meantime is to give back.
    view: Arc<View>,
    splitter: Splitter,
    relocator: Relocator,
    sweep: Sweep,
    /// The segment after the current one.
    ahead: Option<Segment>,
    merge: Merge,
    /// The last key of the segment being merged.
    merging: Option<Vec<u8>>,
    /// The disposition of the top version, while its value is moved piece by piece.
    waiting: Option<Disposition>,
    linked_bytes: u64,
    current: Output,
    history: Output,
}

impl Compactor {
    /// Reserves the memory for jobs.
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let slots = (0..slots_for(context)).map(|_| Slot::new(context)).collect::<Result<_>>()?;
        Ok(Self { slots, stopped: None, swept_history: (Weak::new(), Glsn::NONE), seen_bytes_in: 0 })
    }

    /// Adapts to a changed budget. If there is no room for a second job yet, a later call may find some.
    fn fit(&mut self, context: &Context) {
        let wanted = slots_for(context);
        if self.slots.len() > wanted {
            self.slots.pop_if(|slot| slot.job.is_none());
        } else if self.slots.len() < wanted {
            self.slots.extend(Slot::new(context).ok());
        }
    }

    fn is_busy(&self, run: &Arc<Run>) -> bool {
        let jobs = self.slots.iter().filter_map(|slot| slot.job.as_ref());
        jobs.flat_map(|job| &job.runs).any(|input| Arc::ptr_eq(input, run))
    }

    fn current_shapes(&self, view: &View) -> Vec<RunShape> {
        let mut shapes = self.shapes(&view.runs);
        if view.runs.iter().any(|run| run.deletions() > 0) {
            for (at, shape) in shapes.iter_mut().enumerate() {
                let row_bytes = row_bytes(&view.runs[at + 1..]);
                shape.bytes += view.runs[at].deletions() * row_bytes;
                // A merge that does not reach the oldest run clears nothing.
                if at + FAN_IN >= view.runs.len() {
                    shape.clearance = clearance(&view.runs[at..], row_bytes);
                }
            }
        }
        for (at, pair) in view.runs.windows(2).enumerate() {
            shapes[at].fused = pair[0].min_glsn() == pair[1].max_glsn();
        }
        shapes
    }

    fn shapes(&self, runs: &[Arc<Run>]) -> Vec<RunShape> {
        let clearance = Clearance::default();
        let shape = |run: &Arc<Run>| RunShape { bytes: run.bytes(), clearance, busy: self.is_busy(run), fused: false };
        runs.iter().map(shape).collect()
    }
}

/// Bytes of an average row in these runs.
fn row_bytes(runs: &[Arc<Run>]) -> u64 {
    let (bytes, versions) =
        runs.iter().fold((0, 0), |(bytes, versions), run| (bytes + run.bytes(), versions + run.versions()));
    bytes / versions.max(1)
}

/// What a merge of the first of these runs with the others, down to the oldest, gains if a deletion hides a row of `row_bytes`.
fn clearance(runs: &[Arc<Run>], row_bytes: u64) -> Clearance {
    let is_mostly_deleted = |info: &&TableInfo| 2 * info.deletions > info.versions;
    let cleared = |info: &TableInfo| table_bytes(info) + info.deletions * row_bytes;
    let cleared_bytes = runs[0].infos().filter(is_mostly_deleted).map(cleared).sum();
    if cleared_bytes == 0 {
        return Clearance::default();
    }
    let tables = |input: usize, at: usize| runs[input].tables().get(at).map(|table| &*table.info);
    let (mut sweep, mut rewritten_bytes) = (Sweep::new(runs.len()), 0);
    while let Some(segment) = sweep.next(tables) {
        rewritten_bytes += match segment {
            Segment::Alone { input, table } => {
                tables(input, table).filter(|info| info.deletions > 0).map_or(0, table_bytes)
            }
            Segment::Cluster { first_key, last_key } => {
                let range = (Bound::Included(&first_key[..]), Bound::Included(&last_key[..]));
                runs.iter().flat_map(|run| tables_in(run, range)).map(|table| table_bytes(&table.info)).sum()
            }
        };
    }
    Clearance { cleared_bytes, rewritten_bytes }
}

/// The most jobs that may run at the same time.
fn slots_for(context: &Context) -> usize {
    match (context.read_only, context.budget.limit_bytes() >= TWO_JOBS_BYTES) {
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

/// Whether a job that failed would fail again.
pub(crate) fn is_lasting(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::Format { .. })
}

/// The inputs of a job.
struct Task {
    inputs: Inputs,
    runs: Vec<Arc<Run>>,
    /// Why it is done.
    priority: Priority,
    /// Whether values are moved although nobody asked to free the log. Merges are not to fail because of them.
    moves_unasked: bool,
}

impl Core {
    /// Runs a step on the owner's call. If nothing was written since the last call, the index counts as idle and its runs are settled.
    pub(crate) fn compact_step(&self) -> Result<Progress> {
        let bytes_in = self.counters.bytes_in.load(Ordering::Relaxed);
        let seen = std::mem::replace(&mut lock(&self.compactor).seen_bytes_in, bytes_in);
        self.compact(if seen == bytes_in { Priority::Settle } else { Priority::Due })
    }

    /// Merges until there is nothing left to merge; runs that are added meanwhile may stay.
    pub(crate) fn compact_all(&self) -> Result<()> {
        let done = || self.counters.compactions.load(Ordering::Relaxed);
        let view = self.view();
        let enough = done() + (view.runs.len() + view.history.len()) as u64 + JOBS_MORE;
        drop(view);
        while self.compact(Priority::All)? == Progress::Worked && done() < enough {}
        self.check_stopped()
    }

    /// Moves values out of the log entries that are to be freed, and changes nothing else.
    pub(crate) fn relocate(&self) -> Result<()> {
        let done = || self.counters.compactions.load(Ordering::Relaxed);
        let view = self.view();
        let enough = done() + (view.runs.len() + view.history.len()) as u64 + JOBS_MORE;
        drop(view);
        while self.work(|_| self.relocation(&self.view()))? == Progress::Worked && done() < enough {}
        self.check_stopped()
    }

    fn check_stopped(&self) -> Result<()> {
        lock(&self.compactor).stopped.as_ref().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Does a bounded piece of a job; starts one first if it is due.
    pub(crate) fn compact(&self, priority: Priority) -> Result<Progress> {
        self.work(|compactor| self.task(compactor, priority))
    }

    /// Does a bounded piece of a job; starts the job that `task` returns if none is under way.
    fn work(&self, task: impl FnOnce(&Compactor) -> Option<Task>) -> Result<Progress> {
        let mut compactor = lock(&self.compactor);
        if compactor.stopped.is_some() {
            return Ok(Progress::Idle);
        }
        self.begin_jobs(&mut compactor, task);
        // The job that started last is the smaller one.
        let Some(slot) = compactor.slots.iter_mut().rev().find(|slot| slot.job.is_some()) else {
            return Ok(Progress::Idle);
        };
        let job = slot.job.as_mut().expect("just found");
        let step = job.step(self);
        let ended = match &step {
            Ok(done) => *done,
            Err(_) => true,
        };
        let unasked = job.moves_unasked.then(|| job.relocator.below());
        let job = if ended { slot.job.take() } else { None };
        let result = match (step, job) {
            (Ok(true), Some(job)) => self.finish(&mut compactor, job),
            (step, _) => step.map(|_| ()),
        };
        let result = match (result, unasked) {
            (Err(error), Some(below)) => {
                self.horizon.stop_relocating(below, &error);
                // Whoever asks for what is damaged is told.
                if is_lasting(&error) { Ok(()) } else { Err(error) }
            }
            (result, _) => result,
        };
        if let Err(error) = &result
            && is_lasting(error)
        {
            compactor.stopped = Some(error.clone());
        }
        drop(compactor);
        self.signals.compaction_ended(ended, result.as_ref().err());
        result.map(|()| Progress::Worked)
    }

    /// Adapts to a changed budget.
    pub(crate) fn fit_jobs(&self) {
        lock(&self.compactor).fit(&self.context);
    }

    fn begin_jobs(&self, compactor: &mut Compactor, task: impl FnOnce(&Compactor) -> Option<Task>) {
        compactor.fit(&self.context);
        if compactor.slots.first().is_some_and(|slot| slot.job.is_none()) {
            // The second slot's work goes first: it is short.
            let other = compactor.slots.iter().any(|slot| slot.job.is_some());
            if !other && let Some(task) = task(compactor) {
                compactor.slots[0].job = Some(Job::new(self, &compactor.slots[0].set_aside, task));
            }
        } else if compactor.slots.get(1).is_some_and(|slot| slot.job.is_none()) {
            let view = self.view();
            let free = view.runs.iter().take_while(|run| !compactor.is_busy(run)).count();
            if free >= PILED_UP
                && let Some(plan) = choose(&compactor.current_shapes(&view), FAN_IN, Priority::Due)
            {
                let task = current_task(&view, plan, Priority::Due);
                compactor.slots[1].job = Some(Job::new(self, &compactor.slots[1].set_aside, task));
            }
        }
    }

    /// The next job, if any is due.
    fn task(&self, compactor: &Compactor, priority: Priority) -> Option<Task> {
        let view = self.view();
        let merge = |priority| {
            let current = choose(&compactor.current_shapes(&view), FAN_IN, priority);
            current.map(|plan| current_task(&view, plan, priority)).or_else(|| {
                choose(&compactor.shapes(&view.history), FAN_IN, priority)
                    .map(|plan| history_task(&view, plan, priority))
            })
        };
        match priority {
            Priority::Due => merge(priority).or_else(|| self.relocation(&view)),
            Priority::Settle => merge(Priority::Due).or_else(|| self.relocation(&view)).or_else(|| merge(priority)),
            Priority::All => {
                merge(priority).or_else(|| self.relocation(&view)).or_else(|| self.clearance(compactor, &view))
            }
        }
    }

    /// A run with values in log entries that are to be freed.
    fn relocation(&self, view: &View) -> Option<Task> {
        let below = self.horizon.relocate_below();
        let wanted = |run: &Arc<Run>| run.min_pointer().is_some_and(|pointer| pointer < below);
        let current = view.runs.iter().position(wanted).map(|at| current_task(view, at..at + 1, Priority::Due));
        let history = || view.history.iter().position(wanted).map(|at| history_task(view, at..at + 1, Priority::Due));
        let moves_unasked = below > self.horizon.must_relocate_below();
        current.or_else(history).map(|task| Task { moves_unasked, ..task })
    }

    /// The last run, if it holds deletions; the last history run, if it may hold droppable versions.
    fn clearance(&self, compactor: &Compactor, view: &View) -> Option<Task> {
        if let [run] = &view.runs[..]
            && run.deletions() > 0
        {
            return Some(current_task(view, 0..1, Priority::All));
        }
        let [run] = &view.history[..] else { return None };
        let (swept, then) = &compactor.swept_history;
        let swept = swept.upgrade().is_some_and(|swept| Arc::ptr_eq(&swept, run)) && self.horizon_of_run(run) <= *then;
        let passed = run.infos().any(|info| self.horizon_passed(info));
        (passed && !swept).then(|| history_task(view, 0..1, Priority::All))
    }

    /// Whether some version of a table may be droppable: the horizon of one of its keyspaces has passed the table's oldest commit.
    fn horizon_passed(&self, info: &TableInfo) -> bool {
        self.highest_horizon(info) >= info.min_glsn
    }

    fn horizon_of_run(&self, run: &Run) -> Glsn {
        run.infos().map(|info| self.highest_horizon(info)).max().unwrap_or(Glsn::NONE)
    }

    /// The highest horizon of the keyspaces in a table; [`Glsn::MAX`] if there are too many to look up.
    fn highest_horizon(&self, info: &TableInfo) -> Glsn {
        let keyspace = |key: &[u8]| key.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        let (first, last) = (keyspace(&info.first_key), keyspace(&info.last_key));
        if last - first >= KEYSPACES_ASKED {
            return Glsn::MAX;
        }
        (first..=last).map(|keyspace| self.horizon.of(keyspace)).max().unwrap_or(Glsn::NONE)
    }

    fn finish(&self, compactor: &mut Compactor, mut job: Job) -> Result<()> {
        job.relocator.finish()?;
        let (current, current_bytes) = job.current.finish()?;
        let (history, history_bytes) = job.history.finish()?;
        let run = |members: Vec<_>| (!members.is_empty()).then(|| Arc::new(Run::new(members)));
        let (current, history) = (run(current), run(history));
        let (inputs, runs) = (job.inputs, &job.runs);
        let installed = self.install(|view| {
            let rest = |all: &[Arc<Run>], output: &Option<Arc<Run>>| replace(all, runs, output.as_ref());
            let (current_runs, history_runs) = match inputs {
                Inputs::Current { .. } => {
                    (rest(&view.runs, &current), history.iter().chain(&view.history).cloned().collect())
                }
                Inputs::History => (view.runs.clone(), rest(&view.history, &history)),
            };
            Change {
                removed: runs.clone(),
                added: current.iter().chain(&history).cloned().collect(),
                runs: current_runs,
                history: history_runs,
                limits: job.splitter.limits,
                checkpoint: None,
                takes_closed: None,
            }
        });
        match installed {
            Err((Outcome::Old, error)) => return Err(error),
            named => {
                job.relocator.set_named();
                named.map_err(|(_, error)| error)?;
                job.relocator.hand_over();
            }
        }
        let read_bytes = job.runs.iter().map(|run| run.bytes()).sum::<u64>() - job.linked_bytes;
        Counters::add(&self.counters.compactions, 1);
        Counters::add(&self.counters.bytes_compaction_read, read_bytes);
        Counters::add(&self.counters.bytes_compaction_written, current_bytes + history_bytes);
        let tables = |runs: &mut dyn Iterator<Item = &Arc<Run>>| runs.map(|run| run.infos().count() as u64).sum();
        events::compacted(
            || tables(&mut job.runs.iter()),
            read_bytes,
            || tables(&mut current.iter().chain(&history)),
            current_bytes + history_bytes,
        );
        if let (Inputs::History, Some(history)) = (inputs, &history) {
            compactor.swept_history = (Arc::downgrade(history), job.horizon);
        }
        Ok(())
    }
}

fn current_task(view: &View, plan: Plan, priority: Priority) -> Task {
    let inputs = Inputs::Current { oldest: plan.end == view.runs.len() };
    Task { inputs, runs: view.runs[plan].to_vec(), priority, moves_unasked: false }
}

fn history_task(view: &View, plan: Plan, priority: Priority) -> Task {
    Task { inputs: Inputs::History, runs: view.history[plan].to_vec(), priority, moves_unasked: false }
}

/// `all` with its adjacent `inputs` replaced by `output`.
fn replace(all: &[Arc<Run>], inputs: &[Arc<Run>], output: Option<&Arc<Run>>) -> Vec<Arc<Run>> {
    let is_input = |run: &Arc<Run>| inputs.iter().any(|input| Arc::ptr_eq(input, run));
    let start = all.iter().position(is_input).expect("a job's inputs stay until it ends");
    let newer = &all[..start];
    let older = &all[start + inputs.len()..];
    debug_assert!(all[start..start + inputs.len()].iter().all(is_input));
    newer.iter().chain(output).chain(older).cloned().collect()
}

impl Job {
    fn new(core: &Core, set_aside: &SetAside, task: Task) -> Self {
        let view = core.view();
        let output = || Output::new(&core.files, &set_aside.budget, core.context.table_bytes, Reserve::Rest);
        let feed = || Feed::Private(set_aside.budget.clone());
        let cursor = |run: &Arc<Run>| Cursor::Run(Box::new(RunCursor::new(Arc::clone(run.tables()), feed())));
        let horizon = match task.inputs {
            Inputs::Current { .. } => Glsn::NONE,
            Inputs::History => task.runs.iter().map(|run| core.horizon_of_run(run)).max().unwrap_or(Glsn::NONE),
        };
        let below = match task.moves_unasked {
            true => core.horizon.relocate_below(),
            false => core.horizon.must_relocate_below(),
        };
        let infos = task.runs.iter().flat_map(|run| run.infos());
        let small = infos.filter(|info| is_small(core, info)).count();
        let mut job = Self {
            inputs: task.inputs,
            moves_unasked: task.moves_unasked,
            horizon,
            joins_small: task.priority == Priority::All || small > SMALL_MAX,
            splitter: Splitter::new(task.inputs, task.runs.len() == view.history.len()),
            relocator: Relocator::new(core, &set_aside.budget, below),
            sweep: Sweep::new(task.runs.len()),
            ahead: None,
            merge: Merge::new(task.runs.iter().map(cursor).collect(), Direction::Forward),
            merging: None,
            waiting: None,
            linked_bytes: 0,
            current: output(),
            history: output(),
            runs: task.runs,
            view: Arc::new(view.without_memtables(&core.context.budget)),
        };
        core.blobs.job_reads(&job.view);
        job.ahead = job.next_segment();
        job
    }

    fn next_segment(&mut self) -> Option<Segment> {
        let runs = &self.runs;
        self.sweep.next(|input, at| runs[input].tables().get(at).map(|table| &*table.info))
    }

    /// Does one piece. Returns whether all input has been processed.
    fn step(&mut self, core: &Core) -> Result<bool> {
        let mut allowance = core.context.step_bytes;
        self.splitter.refresh();
        while allowance > 0 {
            if self.merging.is_some() {
                self.merge_on(core, &mut allowance)?;
                continue;
            }
            let Some(segment) = self.ahead.take() else { return Ok(true) };
            self.ahead = self.next_segment();
            self.begin_segment(core, segment)?;
            allowance = allowance.saturating_sub(VERSION_COST_BYTES);
        }
        Ok(false)
    }

    fn begin_segment(&mut self, core: &Core, segment: Segment) -> Result<()> {
        let (first_key, last_key) = match segment {
            Segment::Alone { input, table } if !self.rewrites(core, input, table) => {
                let member = self.runs[input].member(table);
                self.linked_bytes += member.bytes();
                return self.main_output().link(member);
            }
            Segment::Alone { input, table } => {
                let info = &self.runs[input].tables()[table].info;
                (info.first_key.clone(), info.last_key.clone())
            }
            Segment::Cluster { first_key, last_key } => (first_key, last_key),
        };
        self.merge.seek(&first_key, Glsn::MAX)?;
        self.merging = Some(last_key);
        Ok(())
    }

    /// The output for the inputs' own kind of version (current or history).
    fn main_output(&mut self) -> &mut Output {
        match self.inputs {
            Inputs::Current { .. } => &mut self.current,
            Inputs::History => &mut self.history,
        }
    }

    /// Whether a table that overlaps with nothing is rewritten nevertheless.
    fn rewrites(&self, core: &Core, input: usize, table: usize) -> bool {
        let info = |input: usize, table: usize| &self.runs[input].tables()[table].info;
        let this = info(input, table);
        if self.needs_change(core, this) {
            return true;
        }
        if !self.joins_small {
            return false;
        }
        // A small table is written together with a neighbour that is rewritten anyway, or is small as well.
        let open = match self.inputs {
            Inputs::Current { .. } => self.current.is_open(),
            Inputs::History => self.history.is_open(),
        };
        is_small(core, this)
            && (open
                || match &self.ahead {
                    Some(Segment::Cluster { .. }) => true,
                    Some(Segment::Alone { input, table }) => {
                        let next = info(*input, *table);
                        is_small(core, next) || self.needs_change(core, next)
                    }
                    None => false,
                })
    }

    /// Whether a table must not be linked: it holds deletions that leave the current runs, versions that may be dropped, or values to
    /// be moved.
    fn needs_change(&self, core: &Core, info: &TableInfo) -> bool {
        let moves = info.min_pointer.is_some_and(|pointer| self.relocator.wants(pointer));
        // An earlier version did not count them.
        let counts = info.min_pointer.is_some() && info.log_bytes.is_none();
        moves
            || counts
            || match self.inputs {
                Inputs::Current { oldest } => oldest && info.deletions > 0,
                Inputs::History => core.horizon_passed(info),
            }
    }

    /// Merges until the segment is finished or the allowance is used up.
    fn merge_on(&mut self, core: &Core, allowance: &mut u64) -> Result<()> {
        let last_key = self.merging.as_ref().expect("a segment is being merged");
        let mut elsewhere = In(&self.view);
        loop {
            let warmth = self.merge.top_warmth();
            let Some(version) = self.merge.top().filter(|version| version.key <= &last_key[..]) else {
                self.merging = None;
                break;
            };
            if *allowance == 0 {
                hit(Border::MergeStopped);
                break;
            }
            let inline = if let Stored::Inline(value) = version.stored { value.len() } else { 0 };
            let bytes = (version.key.len() + inline) as u64;
            let disposition = match self.waiting.take() {
                Some(disposition) => disposition,
                None => self.splitter.disposition(&version, &*core.horizon, &mut elsewhere)?,
            };
            if disposition != Disposition::Dropped {
                let stored = match self.relocator.relocate(&version, allowance)? {
                    Moved::Ready(stored) => stored,
                    Moved::Partly => {
                        hit(Border::RelocationStopped);
                        self.waiting = Some(disposition);
                        break;
                    }
                };
                let version = Version { stored, ..version };
                match disposition {
                    Disposition::Current => self.current.add(&version, true, warmth)?,
                    Disposition::History { first } => self.history.add(&version, first, warmth)?,
                    Disposition::Dropped => {}
                }
            }
            *allowance = allowance.saturating_sub(bytes + VERSION_COST_BYTES);
            self.merge.advance()?;
        }
        Ok(())
    }
}

fn is_small(core: &Core, info: &TableInfo) -> bool {
    table_bytes(info) < core.context.table_bytes / SMALL_PART
}

/// Answers about a key from the sources at the start of a job. Later changes do not affect the versions that the job drops: later versions
/// are younger, or were moved out of newer runs.
struct In<'v>(&'v View);

impl Elsewhere for In<'_> {
    fn in_history(&mut self, key: &[u8]) -> Result<bool> {
        self.0.in_history(key, Touch::Scan)
    }

    fn in_runs(&mut self, key: &[u8], at: Glsn) -> Result<(bool, Option<Glsn>)> {
        self.0.in_runs(key, at)
    }
}
