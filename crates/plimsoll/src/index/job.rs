//! A merge job: what it reads, how it goes on piece by piece, and how its outputs take the place of its inputs.
//!
//! `split` decides where each version goes. Tables that overlap with no other input, and need no change, are linked instead of rewritten.

use std::sync::{Arc, Weak};

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::pool::Touch;

use crate::borders::{Border, hit};
use crate::index::core::{Change, Core, SetAside};
use crate::index::counters::Counters;
use crate::index::files::Reserve;
use crate::index::manifest::Outcome;
use crate::index::merge::{Cursor, Direction, Merge};
use crate::index::output::Output;
use crate::index::policy::Priority;
use crate::index::relocate::{Moved, Relocator};
use crate::index::run::cursor::{Feed, RunCursor};
use crate::index::run::table::TableInfo;
use crate::index::source::Run;
use crate::index::split::{Disposition, Elsewhere, Inputs, Splitter};
use crate::index::sweep::{Segment, Sweep};
use crate::index::view::View;
use crate::types::error::Result;
use crate::types::events;
use crate::types::version::{Stored, Version};

/// The fixed cost of processing a version, in bytes, added to its size.
const VERSION_COST_BYTES: u64 = 32;

/// Divisor: a table below this part of the full size is small.
const SMALL_PART: u64 = 8;

/// Small tables that overlap with nothing are linked like others. A job with more of them than this writes them together with their
/// neighbours, because each costs a file and a description in memory. A full compaction always does.
const SMALL_MAX: usize = 64;

/// The most keyspaces of one table whose horizon is looked up; a table that spans more is rewritten.
const KEYSPACES_ASKED: u32 = 64;

/// A history run, and the horizon when the job that made it began.
pub(crate) type Swept = (Weak<Run>, Glsn);

/// The inputs of a job.
pub(crate) struct Task {
    pub(crate) inputs: Inputs,
    pub(crate) runs: Vec<Arc<Run>>,
    /// Why it is done.
    pub(crate) priority: Priority,
    /// Whether values are moved although nobody asked to free the log. Merges are not to fail because of them.
    pub(crate) moves_unasked: bool,
}

/// A job.
#[derive(Debug)]
pub(crate) struct Job {
    inputs: Inputs,
    moves_unasked: bool,
    /// When it was begun.
    term: Option<u64>,
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

impl Core {
    /// Whether some version of a table may be droppable: the horizon of one of its keyspaces has passed the table's oldest commit.
    pub(crate) fn horizon_passed(&self, info: &TableInfo) -> bool {
        self.highest_horizon(info) >= info.min_glsn
    }

    pub(crate) fn horizon_of_run(&self, run: &Run) -> Glsn {
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
    /// Begins a job.
    pub(crate) fn new(core: &Core, set_aside: &SetAside, task: Task) -> Self {
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
            term: core.context.duty.term(),
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
    pub(crate) fn step(&mut self, core: &Core) -> Result<bool> {
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
        moves
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

    /// Whether it was begun in this term.
    pub(crate) fn is_of(&self, term: Option<u64>) -> bool {
        self.term == term
    }

    /// Whether a run is one of its inputs.
    pub(crate) fn reads(&self, run: &Arc<Run>) -> bool {
        self.runs.iter().any(|input| Arc::ptr_eq(input, run))
    }

    /// Below which GLSN it moves values that nobody asked for, if it does.
    pub(crate) fn moves_unasked_below(&self) -> Option<Glsn> {
        self.moves_unasked.then(|| self.relocator.below())
    }

    /// Ends a job whose input is processed: the manifest names its outputs in place of its inputs. Returns the run of a history self.
    pub(crate) fn finish(mut self, core: &Core) -> Result<Option<Swept>> {
        self.relocator.finish()?;
        let (current, current_bytes) = self.current.finish()?;
        let (history, history_bytes) = self.history.finish()?;
        let run = |members: Vec<_>| (!members.is_empty()).then(|| Arc::new(Run::new(members)));
        let (current, history) = (run(current), run(history));
        let (inputs, runs) = (self.inputs, &self.runs);
        let installed = core.install(self.term, |view| {
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
                limits: self.splitter.limits,
                checkpoint: None,
                takes_closed: None,
            }
        });
        match installed {
            Err((Outcome::Old | Outcome::Taken, error)) => return Err(error),
            named => {
                self.relocator.set_named();
                named.map_err(|(_, error)| error)?;
                self.relocator.hand_over();
            }
        }
        let read_bytes = self.runs.iter().map(|run| run.bytes()).sum::<u64>() - self.linked_bytes;
        Counters::add(&core.counters.compactions, 1);
        Counters::add(&core.counters.bytes_compaction_read, read_bytes);
        Counters::add(&core.counters.bytes_compaction_written, current_bytes + history_bytes);
        let tables = |runs: &mut dyn Iterator<Item = &Arc<Run>>| runs.map(|run| run.infos().count() as u64).sum();
        events::compacted(
            || tables(&mut self.runs.iter()),
            read_bytes,
            || tables(&mut current.iter().chain(&history)),
            current_bytes + history_bytes,
        );
        Ok(match (inputs, &history) {
            (Inputs::History, Some(history)) => Some((Arc::downgrade(history), self.horizon)),
            _ => None,
        })
    }
}

fn is_small(core: &Core, info: &TableInfo) -> bool {
    info.bytes() < core.context.table_bytes / SMALL_PART
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
