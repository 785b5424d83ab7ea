//! A merge job: reads its inputs piece by piece and replaces them with its outputs.
//!
//! `write::disposition` decides where each version goes. Tables that overlap with no other input,
//! and need no change, are linked instead of rewritten.
//!
//! A job that drops every superseded version frees its inputs part by part. At a key that no input
//! table spans, the outputs written so far replace the tables read so far, so the job never needs
//! disk space for a full copy of its inputs. If it ends early, the oldest of its runs holds
//! versions that are younger than some in the others, but of different keys. Such runs are merged
//! before any others (`policy`). The versions of each key are in order at all times.

use std::ops::{Bound, RangeInclusive};
use std::sync::{Arc, Weak};

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Budget;

use crate::borders::{Border, hit};
use crate::index::compaction::expired::{Expired, Lookups, expired_in};
use crate::index::env::Horizon;
use crate::index::env::counters::Counters;
use crate::index::manifest::Outcome;
use crate::index::manifest::files::Reserve;
use crate::index::plan::alignment;
use crate::index::plan::overlap::{Segment, Sweep};
use crate::index::plan::policy::Priority;
use crate::index::ranges::{Absorber, RangeSet};
use crate::index::run::cursor::{Feed, RunCursor};
use crate::index::run::table::TableInfo;
use crate::index::runs::Runs;
use crate::index::runs::change::Change;
use crate::index::sources::merge::{Cursor, Direction, Merge};
use crate::index::sources::source::Run;
use crate::index::sources::view::{View, tables_in};
use crate::index::write::SetAside;
use crate::index::write::disposition::{Disposition, Inputs, KeptIn, OutsideFacts, Splitter};
use crate::index::write::output::Output;
use crate::index::write::relocate::{Moved, Relocator};
use crate::types::error::Result;
use crate::types::events;
use crate::types::index_key::IndexKey;
use crate::types::version::{Stored, Version};

/// Fixed cost of processing a version, in bytes, in addition to its size.
const VERSION_COST_BYTES: u64 = 32;

/// Divisor: a table below this part of the full size is small.
const SMALL_PART: u64 = 8;

/// A small table that overlaps with nothing is linked. If a job has more of them than this, it
/// rewrites them together with their neighbours, because each costs a file and a description in
/// memory. A full compaction always rewrites them.
const SMALL_MAX: usize = 64;

/// Divisor: a job installs its outputs each time it has read this part of its inputs.
const PARTS: u64 = 10;

/// Divisor: a table of the oldest run is this part of the run, but at most the full size and at
/// least the full size divided by `LEAST_TABLE_PART`.
const OLDEST_TABLES: u64 = alignment::PARTS as u64;
const LEAST_TABLE_PART: u64 = 16;

/// Tables that end at aligned keys (`alignment`) may grow to this many times that size.
const ALIGNED_TABLES: u64 = 2;
/// Divisor: a job installs a part only if the table that this cuts off has at least this part of
/// that size.
const ALIGNED_LEAST_PART: u64 = 4;

/// Maximum number of keyspaces in one table whose retained moments are looked up. A table that
/// spans more is rewritten.
const KEYSPACES_ASKED: u32 = 64;

/// A history run, and the moments for which the job that made it kept versions.
pub(crate) type Swept = (Weak<Run>, KeptIn);

/// The inputs of a job.
pub(crate) struct Task {
    pub(crate) inputs: Inputs,
    pub(crate) runs: Vec<Arc<Run>>,
    /// Why the runs are merged.
    pub(crate) priority: Priority,
    /// Whether values are moved without a request to free the log. Merges must not fail because of
    /// such moves.
    pub(crate) moves_unasked: bool,
}

/// A job.
#[derive(Debug)]
pub(crate) struct Job {
    inputs: Inputs,
    moves_unasked: bool,
    /// The term in which the job began.
    term: Option<u64>,
    /// The input runs, newest first: if two hold the same version, the newer one wins.
    runs: Vec<Arc<Run>>,
    /// Whether small tables that overlap with nothing are rewritten together.
    joins_small: bool,
    /// Whether a table with any expired value is rewritten. Otherwise it is rewritten only if half
    /// of its versions have expired, or if that frees blob files.
    drops_all_expired: bool,
    /// The runs when the job began. Invariant: a job holds no memtable, because a concurrent flush
    /// must be able to release the memory of its memtable.
    view: Arc<View>,
    splitter: Splitter,
    absorber: Absorber,
    relocator: Relocator,
    sweep: Sweep,
    /// How many tables of each run are in the segments up to the current one.
    passed: Vec<usize>,
    /// The segment after the current one.
    ahead: Option<Segment>,
    set_aside: Budget,
    /// Bytes and tables of the inputs.
    input_bytes: u64,
    input_tables: u64,
    /// Bytes to read until the next part is installed, and bytes read since the last one.
    part_bytes: u64,
    read_bytes: u64,
    /// Bytes of output when the last part was installed, and the time.
    written_bytes: u64,
    since_nanos: u64,
    /// Minimum size of the table that a part cuts off.
    part_least_bytes: u64,
    merge: Merge,
    /// The last key of the segment being merged.
    merging: Option<Vec<u8>>,
    /// The disposition of the top version, while its value is moved piece by piece.
    waiting: Option<Disposition>,
    linked_bytes: u64,
    current: Output,
    history: Output,
}

/// Whether some version of a table may be droppable: the floor of the retained moments of one of
/// its keyspaces has passed the table's oldest commit.
pub(super) fn floor_passed(horizon: &dyn Horizon, info: &TableInfo) -> bool {
    let passed = |keyspace| horizon.retained(keyspace).floor >= info.min_glsn;
    keyspaces_of(info).is_none_or(|mut keyspaces| keyspaces.any(passed))
}

/// The keyspaces from a table's first key to its last; `None` if there are too many to look up.
fn keyspaces_of(info: &TableInfo) -> Option<RangeInclusive<u32>> {
    let keyspace = |key| IndexKey::new(key).keyspace();
    let (first, last) = (keyspace(&info.first_key), keyspace(&info.last_key));
    (last - first < KEYSPACES_ASKED).then_some(first..=last)
}

/// The oldest of some range deletions that may hide a version of a run.
pub(super) fn oldest_needed(ranges: &RangeSet, run: &Run) -> Option<Glsn> {
    let needed = ranges.fragments().flat_map(|range| {
        let keys = (Bound::Included(&*range.first), Bound::Excluded(&*range.end));
        let tables = tables_in(run, keys);
        let needs = |glsn: &Glsn| tables.iter().any(|table| table.info.needs(range, *glsn));
        range.glsns.iter().copied().filter(needs)
    });
    needed.min()
}

/// The GLSN up to which a job absorbs range deletions: they are durable, and older than everything
/// in newer runs, so that no deletion is younger than a version of its key in a newer run.
///
/// History absorbs a deletion after the current runs. Otherwise, a version in history that is
/// superseded by one in the current runs would get no point deletion, and would be visible again
/// once a merge drops the superseding version's table without reading it.
fn absorbed_upto(flushed: Glsn, view: &View, task: &Task) -> Glsn {
    if task.inputs == Inputs::History {
        let needed = view.runs.iter().filter_map(|run| oldest_needed(&view.ranges, run)).min();
        return needed.map_or(flushed, |needed| flushed.min(Glsn(needed.0 - 1)));
    }
    let is_newer = |run: &&Arc<Run>| !Arc::ptr_eq(run, &task.runs[0]);
    let newer = view.runs.iter().take_while(is_newer).map(|run| run.min_glsn()).min();
    newer.map_or(flushed, |newer| flushed.min(Glsn(newer.0.saturating_sub(1))))
}

/// `all` with its adjacent `inputs` replaced by `output`.
fn replace(all: &[Arc<Run>], inputs: &[Arc<Run>], output: &[Arc<Run>]) -> Vec<Arc<Run>> {
    let is_input = |run: &Arc<Run>| inputs.iter().any(|input| Arc::ptr_eq(input, run));
    let start = all.iter().position(is_input).expect("a job's inputs stay until it ends");
    let newer = &all[..start];
    let older = &all[start + inputs.len()..];
    debug_assert!(all[start..start + inputs.len()].iter().all(is_input));
    newer.iter().chain(output).chain(older).cloned().collect()
}

impl Job {
    /// Begins a job.
    pub(crate) fn new(runs: &Runs, set_aside: &SetAside, task: Task) -> Self {
        // Read the checkpoint first, so that the view has every range deletion up to it.
        let flushed = runs.checkpoint().glsn;
        let view = runs.sources.view();
        let full_bytes = runs.env.context.table_bytes;
        let input_bytes: u64 = task.runs.iter().map(|run| run.bytes()).sum();
        let table_bytes = match task.inputs {
            Inputs::Current { oldest: true } if runs.files.may_cut() => {
                // Subtract the estimate of superseded bytes, which are not written.
                let newer = &task.runs[..task.runs.len() - 1];
                let output_bytes =
                    input_bytes - newer.iter().map(|run| run.superseding_bytes()).sum::<u64>();
                (output_bytes / OLDEST_TABLES).clamp(full_bytes / LEAST_TABLE_PART, full_bytes)
            }
            _ => full_bytes,
        };
        let cuts = match task.inputs {
            Inputs::Current { .. } if runs.space.has_been_overwritten() => {
                runs.alignment.cuts(&view.runs, input_bytes, full_bytes)
            }
            _ => Vec::new(),
        };
        let part_least_bytes = table_bytes / ALIGNED_LEAST_PART;
        let table_bytes = if cuts.is_empty() {
            table_bytes
        } else {
            (table_bytes * ALIGNED_TABLES).min(full_bytes)
        };
        let absorber = Absorber::new(&view.ranges, absorbed_upto(flushed, &view, &task));
        let output = || {
            Output::new(&runs.files, &set_aside.budget, table_bytes, Reserve::Rest)
                .absorbing(absorber.upto())
        };
        if matches!(task.inputs, Inputs::History) && task.runs.len() < view.history.len() {
            hit(Border::PartOfHistoryMerged);
        }
        let below = match task.moves_unasked {
            true => runs.env.horizon.relocate_below(),
            false => runs.env.horizon.must_relocate_below(),
        };
        let infos = task.runs.iter().flat_map(|run| run.infos());
        let small = infos.filter(|info| is_small(runs, info)).count();
        let mut job = Self {
            inputs: task.inputs,
            moves_unasked: task.moves_unasked,
            term: runs.env.role().term(),
            joins_small: task.priority == Priority::All || small > SMALL_MAX,
            drops_all_expired: task.priority == Priority::All,
            splitter: Splitter::new(task.inputs, task.runs.len() == view.history.len()),
            relocator: Relocator::new(&runs.env.context.log, &runs.blobs, &set_aside.budget, below),
            sweep: Sweep::new(task.runs.len()),
            passed: vec![0; task.runs.len()],
            ahead: None,
            set_aside: set_aside.budget.clone(),
            input_bytes,
            input_tables: task.runs.iter().map(|run| run.tables().len() as u64).sum(),
            part_bytes: input_bytes / PARTS,
            read_bytes: 0,
            written_bytes: 0,
            since_nanos: runs.env.context.clock.monotonic_nanos(),
            part_least_bytes,
            merge: merge_of(&task.runs, &set_aside.budget),
            merging: None,
            waiting: None,
            linked_bytes: 0,
            current: output().cut_before(cuts),
            history: output(),
            absorber,
            runs: task.runs,
            view: Arc::new(view.without_memtables(&runs.env.context.budget)),
        };
        runs.blobs.job_reads(&job.view);
        job.ahead = job.next_segment();
        job
    }

    fn next_segment(&mut self) -> Option<Segment> {
        let runs = &self.runs;
        self.sweep.next(|input, at| runs[input].tables().get(at).map(|table| &*table.info))
    }

    /// Does one piece. Returns whether all input has been processed.
    pub(crate) fn step(&mut self, runs: &Runs) -> Result<bool> {
        let mut allowance = runs.env.context.step_bytes;
        self.splitter.refresh();
        while allowance > 0 {
            if self.merging.is_some() {
                self.merge_on(runs, &mut allowance)?;
                continue;
            }
            if self.may_install_part() {
                self.install_part(runs)?;
            }
            let Some(segment) = self.ahead.take() else { return Ok(true) };
            let passed = self.sweep.passed();
            if let Segment::Cluster { .. } = segment {
                let read = self.runs.iter().zip(self.passed.iter().zip(passed));
                let bytes = |(run, (from, to)): (&Arc<Run>, (&usize, &usize))| -> u64 {
                    run.tables()[*from..*to].iter().map(|table| table.info.bytes()).sum()
                };
                self.read_bytes += read.map(bytes).sum::<u64>();
            }
            self.passed.copy_from_slice(passed);
            self.ahead = self.next_segment();
            self.begin_segment(runs, segment)?;
            allowance = allowance.saturating_sub(VERSION_COST_BYTES);
        }
        Ok(false)
    }

    /// Whether enough was read to install a part. False once a superseded version was kept or a
    /// value was moved: such a job frees little, and the manifest would have to name its other
    /// files as well.
    fn may_install_part(&self) -> bool {
        let drops_all =
            !self.history.is_open() && self.history.done().is_empty() && self.relocator.is_idle();
        let is_cut =
            self.current.open_bytes() == 0 || self.current.open_bytes() >= self.part_least_bytes;
        matches!(self.inputs, Inputs::Current { .. })
            && self.ahead.is_some()
            && self.read_bytes >= self.part_bytes
            && drops_all
            && is_cut
    }

    /// Replaces the tables read so far with the outputs written so far, and releases these tables.
    /// The outputs become part of the oldest input.
    fn install_part(&mut self, runs: &Runs) -> Result<()> {
        hit(Border::PartInstalled);
        self.current.cut()?;
        let written = self.current.done();
        let oldest = self.runs.len() - 1;
        let mut left = Vec::with_capacity(self.runs.len());
        let mut passed = Vec::with_capacity(self.runs.len());
        for (at, (run, from)) in self.runs.iter().zip(&self.passed).enumerate() {
            let front = if at == oldest { written } else { &[] };
            let rest = (*from..run.tables().len()).map(|table| run.member(table));
            let members: Vec<_> = front.iter().cloned().chain(rest).collect();
            if !members.is_empty() {
                let rest = Run::new(members);
                if at < oldest {
                    // Scale the estimate of the whole run by size.
                    let known = u128::from(run.superseding_bytes()) * u128::from(rest.bytes());
                    rest.supersedes((known / u128::from(run.bytes().max(1))) as u64);
                }
                left.push(Arc::new(rest));
                passed.push(front.len());
            }
        }
        let inputs = &self.runs;
        let limits = self.splitter.limits();
        runs.install(self.term, |view| Change {
            removed: inputs.clone(),
            added: left.clone(),
            runs: replace(&view.runs, inputs, &left),
            history: view.history.clone(),
            limits: limits.clone(),
            checkpoint: None,
            takes_closed: None,
            log_begins: None,
        })
        .map_err(|(_, error)| error)?;
        self.note_freed(runs);
        self.merge = merge_of(&left, &self.set_aside);
        self.sweep = Sweep::begin_at(passed.clone());
        (self.runs, self.passed) = (left, passed);
        self.view = Arc::new(runs.sources.view().without_memtables(&runs.env.context.budget));
        runs.blobs.job_reads(&self.view);
        self.ahead = self.next_segment();
        Ok(())
    }

    /// Records the time it took to free the bytes since the last part.
    fn note_freed(&mut self, runs: &Runs) {
        let (written, now) =
            (self.current.written_bytes(), runs.env.context.clock.monotonic_nanos());
        let freed = self.read_bytes.saturating_sub(written - self.written_bytes);
        if freed > 0 {
            runs.space.note_freed(freed, now.saturating_sub(self.since_nanos));
        }
        (self.read_bytes, self.written_bytes, self.since_nanos) = (0, written, now);
    }

    fn begin_segment(&mut self, runs: &Runs, segment: Segment) -> Result<()> {
        let (first_key, last_key) = match segment {
            Segment::Alone { input, table }
                if self.drops(runs, input, table) || self.drops_expired(runs, input, table) =>
            {
                return Ok(());
            }
            Segment::Alone { input, table } if !self.rewrites(runs, input, table) => {
                let member = self.runs[input].member(table);
                self.linked_bytes += member.bytes();
                if self.inputs == Inputs::History {
                    let info = member.info();
                    for keyspace in keyspaces_of(info).into_iter().flatten() {
                        self.splitter.keeps_table(keyspace, info.min_glsn);
                    }
                }
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

    /// Whether a table of current versions that overlaps with no other input lies within a deleted
    /// range and no retained moment sees any of its versions. Such a table is dropped unread. Until
    /// older runs and history have absorbed the range, it still hides the versions of its keys
    /// there. A table that has absorbed the range is not dropped unread, because older runs and
    /// history may have absorbed the range, too, and rely on the point deletions in this table.
    fn drops(&mut self, runs: &Runs, input: usize, table: usize) -> bool {
        if self.inputs == Inputs::History {
            // Other history runs may rely on the deletions of this table.
            return false;
        }
        let info = &self.runs[input].tables()[table].info;
        let ranges = self.absorber.ranges();
        let Some(range) = ranges.over(&info.first_key).filter(|range| *range.end > *info.last_key)
        else {
            return false;
        };
        let oldest = range.oldest_after(info.max_glsn);
        let Some(glsn) = oldest.filter(|glsn| info.needs(range, *glsn)) else { return false };
        let keyspace = IndexKey::new(&info.first_key).keyspace();
        let retained = runs.env.horizon.retained(keyspace);
        if !IndexKey::new(&info.last_key).is_in(keyspace) || retained.sees(info.min_glsn, glsn) {
            return false;
        }
        let limits = self.splitter.limits();
        limits.dropped(keyspace, glsn, &retained.pins);
        limits.deletion_dropped(keyspace, glsn);
        true
    }

    /// Whether all versions of a table that overlaps with no other input have expired for every
    /// retained moment, and nothing older of their keys is left. Such a table is dropped unread.
    fn drops_expired(&mut self, runs: &Runs, input: usize, table: usize) -> bool {
        let info = &self.runs[input].tables()[table].info;
        if self.inputs != (Inputs::Current { oldest: true }) {
            return false;
        }
        let lookups = Lookups::new(&*runs.env.horizon);
        let Some(expired) = expired_in(&lookups, &self.view, info) else { return false };
        let Expired { keyspace, since, pins, values } = expired;
        if values < info.versions {
            return false;
        }
        let limits = self.splitter.limits();
        limits.dropped(keyspace, since, &pins);
        limits.deletion_dropped(keyspace, info.max_glsn);
        true
    }

    /// Whether a table that overlaps with nothing is rewritten instead of linked.
    fn rewrites(&self, runs: &Runs, input: usize, table: usize) -> bool {
        let info = |input: usize, table: usize| &self.runs[input].tables()[table].info;
        let this = info(input, table);
        if self.needs_change(runs, this) {
            return true;
        }
        if !self.joins_small {
            return false;
        }
        // A small table is rewritten together with a neighbour that is small or is rewritten
        // anyway.
        let open = match self.inputs {
            Inputs::Current { .. } => self.current.is_open(),
            Inputs::History => self.history.is_open(),
        };
        is_small(runs, this)
            && (open
                || match &self.ahead {
                    Some(Segment::Cluster { .. }) => true,
                    Some(Segment::Alone { input, table }) => {
                        let next = info(*input, *table);
                        is_small(runs, next) || self.needs_change(runs, next)
                    }
                    None => false,
                })
    }

    /// Whether a table must not be linked: it holds deletions that leave the current runs, versions
    /// that may be dropped, or values to be moved.
    fn needs_change(&self, runs: &Runs, info: &TableInfo) -> bool {
        let ranges = self.absorber.ranges();
        let keys = (Bound::Included(&info.first_key[..]), Bound::Included(&info.last_key[..]));
        self.relocator.relocates_any(info)
            || ranges.within(keys).any(|range| info.needs(range, range.glsns[0]))
            || match self.inputs {
                Inputs::Current { oldest } => {
                    let is_expired = || {
                        let expired =
                            expired_in(&Lookups::new(&*runs.env.horizon), &self.view, info);
                        expired.is_some_and(|expired| {
                            self.drops_all_expired
                                || 2 * expired.values >= info.versions
                                || info.frees_blobs(expired.values)
                        })
                    };
                    oldest && (info.deletions > 0 || is_expired())
                }
                Inputs::History => floor_passed(&*runs.env.horizon, info),
            }
    }

    /// Merges until the segment is finished or the allowance is used up.
    fn merge_on(&mut self, runs: &Runs, allowance: &mut u64) -> Result<()> {
        let last_key = self.merging.as_ref().expect("a segment is being merged");
        let mut elsewhere = In(&self.view);
        loop {
            let warmth = self.merge.top_warmth();
            let Some(version) = self.merge.top().filter(|version| version.key <= &last_key[..])
            else {
                self.merging = None;
                break;
            };
            if *allowance == 0 {
                hit(Border::MergeStopped);
                break;
            }
            let inline = version.stored.value().inline_value().map_or(0, <[u8]>::len);
            let bytes = (version.key.len() + inline) as u64;
            let disposition = match self.waiting.take() {
                Some(disposition) => disposition,
                None => {
                    let horizon = &*runs.env.horizon;
                    let is_deletion = version.stored == Stored::Deleted;
                    let mut deletion =
                        self.absorber.deletion_of(version.key, version.glsn, is_deletion);
                    if let Some(glsn) = deletion {
                        // The range did not delete this version if a younger version of the key
                        // came before the range, or in the range's own commit. It may be in history
                        // or, if this version is in history, also in the current runs.
                        let newest = match self.inputs {
                            Inputs::Current { .. } => {
                                self.view.newest_in_history(version.key, glsn)?
                            }
                            Inputs::History => self.view.newest_until(version.key, glsn)?,
                        };
                        deletion = deletion.filter(|_| newest <= Some(version.glsn));
                    }
                    if let Some(glsn) = deletion {
                        let deletion = Version { glsn, stored: Stored::Deleted, ..version };
                        match self.splitter.disposition(&deletion, horizon, &mut elsewhere)? {
                            Disposition::Current => self.current.add(&deletion, true, warmth)?,
                            Disposition::History { first } => {
                                if self.inputs == Inputs::History {
                                    let limits = self.splitter.limits();
                                    limits.deletions_moved = limits.deletions_moved.max(glsn);
                                }
                                self.history.add(&deletion, first, warmth)?;
                            }
                            Disposition::Dropped => {}
                        }
                        *allowance = allowance.saturating_sub(VERSION_COST_BYTES);
                    }
                    self.splitter.disposition(&version, horizon, &mut elsewhere)?
                }
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

    /// Whether the job began in this term.
    pub(crate) fn is_of(&self, term: Option<u64>) -> bool {
        self.term == term
    }

    /// Whether a run is one of its inputs.
    pub(crate) fn reads(&self, run: &Arc<Run>) -> bool {
        self.runs.iter().any(|input| Arc::ptr_eq(input, run))
    }

    /// The GLSN below which the job moves values without a request, if it does.
    pub(crate) fn relocates_unrequested_below(&self) -> Option<Glsn> {
        self.moves_unasked.then(|| self.relocator.below())
    }

    /// Ends a job whose input is processed: the manifest names its outputs in place of its inputs.
    /// Returns the output run of a job on history.
    pub(crate) fn finish(mut self, runs: &Runs) -> Result<Option<Swept>> {
        self.relocator.finish()?;
        let sample = self.current.take_sample();
        let (current, current_bytes) = self.current.finish()?;
        let (history, history_bytes) = self.history.finish()?;
        let run = |members: Vec<_>| (!members.is_empty()).then(|| Arc::new(Run::new(members)));
        let (current, history) = (run(current), run(history));
        let limits = self.splitter.limits().clone();
        let (inputs, merged) = (self.inputs, &self.runs);
        if let (Inputs::Current { oldest: false }, Some(run)) = (inputs, &current) {
            let view = runs.sources.view();
            let is_last = |run: &Arc<Run>| merged.last().is_some_and(|last| Arc::ptr_eq(last, run));
            let older =
                view.runs.iter().position(is_last).map_or(&[][..], |at| &view.runs[at + 1..]);
            run.supersedes(sample.superseding_bytes(current_bytes, older));
        }
        let installed = runs.install(self.term, |view| {
            let rest = |all: &[Arc<Run>], output: &Option<Arc<Run>>| {
                replace(all, merged, output.as_slice())
            };
            let (current_runs, history_runs) = match inputs {
                Inputs::Current { .. } => (
                    rest(&view.runs, &current),
                    history.iter().chain(&view.history).cloned().collect(),
                ),
                Inputs::History => (view.runs.clone(), rest(&view.history, &history)),
            };
            Change {
                removed: merged.clone(),
                added: current.iter().chain(&history).cloned().collect(),
                runs: current_runs,
                history: history_runs,
                limits: limits.clone(),
                checkpoint: None,
                takes_closed: None,
                log_begins: None,
            }
        });
        match installed {
            Err((Outcome::Old | Outcome::Taken, error)) => return Err(error),
            named => {
                self.relocator.set_named();
                named.map_err(|(_, error)| error)?;
                self.relocator.release_to_sweep();
            }
        }
        let read_bytes = self.input_bytes - self.linked_bytes;
        Counters::add(&runs.env.counters.compactions, 1);
        Counters::add(&runs.env.counters.bytes_compaction_read, read_bytes);
        Counters::add(&runs.env.counters.bytes_compaction_written, current_bytes + history_bytes);
        let tables = |runs: &mut dyn Iterator<Item = &Arc<Run>>| {
            runs.map(|run| run.infos().count() as u64).sum()
        };
        events::compacted(
            || self.input_tables,
            read_bytes,
            || tables(&mut current.iter().chain(&history)),
            current_bytes + history_bytes,
        );
        Ok(match (inputs, &history) {
            (Inputs::History, Some(history)) => {
                Some((Arc::downgrade(history), self.splitter.into_kept()))
            }
            _ => None,
        })
    }
}

fn merge_of(runs: &[Arc<Run>], budget: &Budget) -> Merge {
    let cursor = |run: &Arc<Run>| {
        let feed = Feed::Private(budget.clone());
        Cursor::Run(Box::new(RunCursor::new(Arc::clone(run.tables()), feed)))
    };
    Merge::new(runs.iter().map(cursor).collect(), Direction::Forward)
}

fn is_small(runs: &Runs, info: &TableInfo) -> bool {
    info.bytes() < runs.env.context.table_bytes / SMALL_PART
}

/// Looks keys up in the sources as they were when the job began. Later changes of the sources do
/// not affect which versions may be dropped, because a version that was added since is younger, or
/// was moved out of a newer run.
struct In<'v>(&'v View);

impl OutsideFacts for In<'_> {
    fn in_history(&mut self, key: &[u8], at: Glsn) -> Result<bool> {
        self.0.in_history(key, at)
    }

    fn in_runs(&mut self, key: &[u8], at: Glsn) -> Result<(bool, Option<Glsn>)> {
        self.0.in_runs(key, at)
    }
}
