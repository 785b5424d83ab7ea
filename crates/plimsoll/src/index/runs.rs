//! The owner of the runs: their files, the manifest that names them, and how a changed set of runs
//! is installed and published.
//!
//! Lock order: the writer's of [`crate::index::memtables`]; then the flush's or the compaction's
//! (never both); then the record's; then the view's, which only those take that replace it, for a
//! few instructions. Files are written and synced only under the job's own lock and the record's.

pub(crate) mod blobs;
pub(crate) mod check;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use plimsoll_log::blob::BlobId;
use plimsoll_log::glsn::{Glsn, Position};
use plimsoll_memory::budget::{Kind, Lease, OutOfBudget};

use crate::borders::{Border, hit};
use crate::index::env::Env;
use crate::index::gaps::Gaps;
use crate::index::manifest::files::{FileGuard, Files, Member, run_of};
use crate::index::manifest::limits::Limits;
use crate::index::manifest::{self, Head, Manifest, Outcome, number_after, run_infos};
use crate::index::plan::alignment::Alignment;
use crate::index::plan::space::Space;
use crate::index::ranges::{Fragment, RangeSet};
use crate::index::run::table::{TableId, TableInfo};
use crate::index::runs::blobs::Blobs;
use crate::index::sources::Sources;
use crate::index::sources::source::{Memtable, Run};
use crate::index::sources::view::{Closed, Content, View, depth, newest_in, tables_in};
use crate::index::walk::seat::Seats;
use crate::types::error::{Error, Lift, Result};
use crate::types::events;
use crate::types::index_key::MAX_INDEX_KEY_BYTES;
use crate::types::lock::lock;

/// How often a new keeper tries to install a manifest beside one that still does so.
const FENCE_TRIES: u32 = 16;

/// Range deletions take at most this part of the budget (a divisor).
const RANGES_PART: u64 = 32;

/// The runs, and what names them.
pub(crate) struct Runs {
    pub(crate) env: Arc<Env>,
    pub(crate) sources: Arc<Sources>,
    seats: Arc<Seats>,
    pub(crate) files: Arc<Files>,
    /// The last manifest without its runs; the lock is held while a manifest is written.
    record: Mutex<Head>,
    pub(crate) blobs: Arc<Blobs>,
    pub(crate) space: Space,
    pub(crate) alignment: Alignment,
    /// The runs held everything up to this GLSN when the index was opened: replayed versions up to
    /// it are skipped.
    pub(crate) held: Glsn,
    /// The boundary of the source that was flushed last.
    flushed: AtomicU64,
    /// The charge for the range deletions.
    ranges: Mutex<Lease>,
}

/// A change of the set of runs.
pub(crate) struct Change {
    /// Runs that are no longer used, except for tables that `added` runs share.
    pub(crate) removed: Vec<Arc<Run>>,
    /// Runs that are added.
    pub(crate) added: Vec<Arc<Run>>,
    /// The current and the history runs afterwards.
    pub(crate) runs: Vec<Arc<Run>>,
    pub(crate) history: Vec<Arc<Run>>,
    /// The limits of readable moments after versions were dropped or moved.
    pub(crate) limits: Limits,
    /// The new checkpoint, if it changed.
    pub(crate) checkpoint: Option<Position>,
    /// The oldest closed source, if the change replaces it by runs.
    pub(crate) takes_closed: Option<Closed>,
    /// The log is going to be trimmed below this GLSN.
    pub(crate) log_begins: Option<Glsn>,
}

impl Change {
    /// The same runs under a new manifest.
    fn none(view: &View) -> Self {
        Self {
            removed: Vec::new(),
            added: Vec::new(),
            runs: view.runs.clone(),
            history: view.history.clone(),
            limits: Limits::default(),
            checkpoint: None,
            takes_closed: None,
            log_begins: None,
        }
    }
}

/// Current runs, and history runs.
type RunSets = (Vec<Arc<Run>>, Vec<Arc<Run>>);

/// The sources that replace the memtables: the active one, and the closed ones.
pub(crate) type Rest = (Arc<Memtable>, Vec<Closed>);

impl Runs {
    /// Opens the files that the manifest names.
    pub(crate) fn open(env: &Arc<Env>, seats: &Arc<Seats>, manifest: Manifest) -> Result<Self> {
        let context = &env.context;
        if manifest.log_id != context.log.id() {
            return Err(Error::Forked {
                glsn: None,
                message: format!(
                    "{}: the index was made from another log; put the right log back",
                    context.dir.display()
                ),
            });
        }
        let files = Files::new(context, manifest.next_run)?;
        let head = manifest.head();
        let (runs, history) = open_runs(&files, &manifest, None)?;
        let limits = Arc::new(head.limits.clone());
        let depth = depth(runs.iter().map(|run| run.span()));
        let rows = context.row_cache.handle();
        let held =
            runs.iter().chain(&history).map(|run| run.max_glsn()).max().unwrap_or(Glsn::NONE);
        let gaps = Arc::new(Gaps::new(&context.budget, !context.duty.is_read_only(), held));
        let view = View {
            active: Arc::new(Memtable::new(&context.budget)),
            closed: Vec::new(),
            newest_in_runs: newest_in(&runs),
            runs,
            set: 0,
            rows,
            depth,
            history,
            limits,
            ranges: Arc::clone(&head.ranges),
            gaps,
        };
        let mut ranges = context.budget.empty_lease(Kind::Metadata);
        ranges.grow(view.ranges.bytes())?;
        let space = Space::default();
        space.note_runs(&view.runs);
        if context.duty.may_write() {
            let named: BTreeSet<u64> = view.infos().filter_map(run_of).collect();
            files.sweep(&files.names()?, head.number, |run| named.contains(&run))?;
        }
        Ok(Self {
            env: Arc::clone(env),
            sources: Arc::new(Sources::new(view)),
            seats: Arc::clone(seats),
            files,
            flushed: AtomicU64::new(head.checkpoint.glsn.0),
            ranges: Mutex::new(ranges),
            record: Mutex::new(head),
            blobs: Arc::default(),
            space,
            alignment: Alignment::default(),
            held,
        })
    }

    /// Percent of what is live that may be superseded in the runs.
    pub(crate) fn superseded_max(&self) -> u64 {
        self.space.superseded_max(self.env.context.budget.limit_bytes())
    }

    /// The last manifest without its runs.
    fn head(&self) -> Head {
        lock(&self.record).clone()
    }

    /// The place in the log up to which the manifest's runs are complete.
    pub(crate) fn checkpoint(&self) -> Position {
        lock(&self.record).checkpoint
    }

    /// The number of the last manifest. A different number may mean different files.
    pub(crate) fn manifest_number(&self) -> u64 {
        lock(&self.record).number
    }

    /// Whether the set of range deletions may grow by one: it stays small beside the budget.
    pub(crate) fn has_room_for_range(&self, first: &[u8], end: &[u8]) -> bool {
        let view = self.sources.current_view();
        let bytes = view.ranges.bytes() + view.ranges.bytes_of_one_more(first, end);
        bytes <= self.env.context.budget.limit_bytes() / RANGES_PART
    }

    /// Reserves memory for range deletions (first keys and ends), so that they can be applied.
    ///
    /// # Errors
    /// The budget has no room.
    pub(crate) fn make_room_for_ranges<'r>(
        &self,
        ranges: impl Iterator<Item = (&'r [u8], &'r [u8])>,
    ) -> Result<(), OutOfBudget> {
        let view = self.sources.current_view();
        let more: u64 = ranges.map(|(first, end)| view.ranges.bytes_of_one_more(first, end)).sum();
        if more == 0 {
            return Ok(());
        }
        let mut lease = lock(&self.ranges);
        let missing = (view.ranges.bytes() + more).saturating_sub(lease.bytes());
        lease.grow(missing)
    }

    /// Applies the range deletions of the commit at `glsn`. Called before its versions are
    /// inserted. Applying them again changes nothing.
    pub(crate) fn delete_ranges<'r>(
        &self,
        glsn: Glsn,
        ranges: impl Iterator<Item = (&'r [u8], &'r [u8])> + Clone,
    ) {
        if ranges.clone().next().is_none() {
            return;
        }
        self.sources.publish(|view| {
            let empty = RangeSet::clone(&view.ranges);
            let with = |set: RangeSet, (first, end)| set.with(first, end, glsn);
            view.ranges = Arc::new(ranges.fold(empty, with));
        });
    }

    /// Whether every closed source up to `boundary` is in the runs.
    pub(crate) fn is_flushed(&self, boundary: Glsn) -> bool {
        self.flushed() >= boundary
    }

    /// The boundary of the source that was flushed last.
    pub(crate) fn flushed(&self) -> Glsn {
        Glsn(self.flushed.load(Ordering::Acquire))
    }

    /// The log behind this GLSN is needed: by the checkpoint, and by memtables. Those of a keeper
    /// that has followed another one may reach back behind the checkpoint.
    pub(crate) fn log_needed_from(&self) -> Glsn {
        self.needed_from(self.checkpoint().glsn)
    }

    /// The log behind this GLSN is needed here: by the checkpoint that is known, and by what
    /// memtables point to.
    fn needed_from(&self, checkpoint: Glsn) -> Glsn {
        let oldest = self.sources.view().oldest_unflushed();
        oldest.map_or(checkpoint, |oldest| checkpoint.min(Glsn(oldest.0 - 1)))
    }

    /// The place in the log up to which all versions are in the runs, and the row cache was told of
    /// them: the checkpoint, or, while a memtable reaches back behind it, the place before that; at
    /// most `applied`, the last commit that this process had applied before. `None` if the log no
    /// longer knows that place.
    ///
    /// # Errors
    /// The log.
    pub(crate) fn told_to_rows(&self, applied: Glsn) -> Result<Option<Position>> {
        // In this order: a memtable that is released or flushed in between has told the row cache
        // of its versions before.
        let checkpoint = self.checkpoint();
        let glsn = self.needed_from(checkpoint.glsn).min(applied);
        if glsn == checkpoint.glsn {
            return Ok(Some(checkpoint));
        }
        let log = &self.env.context.log;
        let chain = if glsn < log.bounds().first { None } else { log.chain_at(glsn).lift()? };
        Ok(chain.map(|chain| Position { glsn, chain }))
    }

    /// The current manifest, and a view that holds exactly its files and those that no manifest
    /// names yet; no memtable. They stay for as long as the view is kept.
    pub(crate) fn manifest(&self) -> (Manifest, Arc<View>) {
        // The record's lock excludes changes of the runs.
        let record = lock(&self.record);
        let view = self.sources.view();
        let infos = |run: &Arc<Run>| run.infos().cloned().collect();
        let current =
            view.runs.iter().map(|run| manifest::RunInfo { history: false, tables: infos(run) });
        let history =
            view.history.iter().map(|run| manifest::RunInfo { history: true, tables: infos(run) });
        let runs = current.chain(history).collect();
        let files = Arc::new(view.of_files(&self.env.context.budget));
        self.blobs.job_reads(&files);
        (Manifest::of(record.clone(), runs), files)
    }

    /// The current manifest, the run files that it names (its blob files belong to the log), and a
    /// view that keeps them.
    pub(crate) fn files(&self) -> (Manifest, Vec<PathBuf>, Arc<View>) {
        let (manifest, view) = self.manifest();
        let infos = manifest.runs.iter().flat_map(|run| &run.tables);
        let paths = infos.filter_map(run_of).map(|run| self.files.path_of(run)).collect();
        (manifest, paths, view)
    }

    /// Whether a blob file is a table of the index, holds values of one, or is about to.
    pub(crate) fn uses_blob(&self, blob: BlobId) -> bool {
        self.blobs.uses(blob, || self.sources.view())
    }

    /// Whether a blob file must not be removed here: it is used, or another process is the keeper
    /// now, whose runs may use it. To be asked after it is known which files are old enough to be
    /// removed.
    pub(crate) fn must_keep_blob(&self, blob: BlobId) -> bool {
        !self.env.duty().may_write() || self.uses_blob(blob)
    }

    /// The certified log position at `boundary`, if a record ends there. It does wherever commits
    /// are applied in the order of their records. If not, the old checkpoint stays, and the
    /// versions in between are replayed at the next open and recognised by their GLSNs.
    pub(crate) fn place_of(&self, boundary: Glsn) -> Result<Option<Position>> {
        if boundary == Glsn::NONE {
            return Ok(None);
        }
        Ok(self
            .env
            .context
            .log
            .chain_at(boundary)
            .lift()?
            .map(|chain| Position { glsn: boundary, chain }))
    }

    /// Lets `plan` decide how the runs change, writes the manifest, and publishes the new view.
    /// `plan` is called under the record's lock, so the runs do not change in between. `term`: when
    /// what `plan` makes known was begun.
    pub(crate) fn install(
        &self,
        term: Option<u64>,
        plan: impl FnOnce(&View) -> Change,
    ) -> Result<(), (Outcome, Error)> {
        hit(Border::RunsWritten);
        let mut record = lock(&self.record);
        if term.is_none() || self.env.duty().term() != term {
            return Err((Outcome::Old, self.env.duty().not_keeper()));
        }
        self.env.context.log.check_own().map_err(|error| (Outcome::Old, Error::of_log(error)))?;
        let change = plan(&self.sources.view());
        let mut head = record.clone();
        head.number = number_after(head.number).map_err(|error| (Outcome::Old, error))?;
        head.durable = self.env.context.log.position();
        head.next_run = self.files.next_run();
        head.limits.merge(&change.limits);
        head.log_begins = head.log_begins.max(change.log_begins);
        // What is flushed may be older than what another keeper has flushed.
        if let Some(checkpoint) = change.checkpoint.filter(|new| new.glsn > head.checkpoint.glsn) {
            head.checkpoint = checkpoint;
        }
        let view = self.sources.view();
        let checkpoint = head.checkpoint.glsn;
        let needed = |range: &Fragment, glsn| is_needed(&view, &change, checkpoint, range, glsn);
        let ranges = view.ranges.retained(needed);
        let drops_ranges = ranges != *view.ranges;
        head.ranges = Arc::new(ranges.retained(|_, glsn| glsn <= checkpoint));
        if let Err((outcome, error)) = self.write_manifest(&head, &change) {
            if outcome == Outcome::Overtaken {
                // One that the other keeper has gone on from may name them.
                guards(&change.added).for_each(|guard| guard.set_obsolete(false));
            }
            if matches!(outcome, Outcome::Taken | Outcome::Overtaken)
                && let Some(members) = self.env.duty().members()
            {
                // By the keeper that has replaced this one; or by one that this one has replaced,
                // which was stopped while it took over, went on and sweeps what that manifest does
                // not name.
                members.keeper.lose_place();
                return Err((outcome, self.env.duty().not_keeper()));
            }
            if outcome == Outcome::Unknown {
                // The manifest on disk may name them, and its number is taken.
                guards(&change.added).for_each(|guard| guard.set_obsolete(false));
                record.number = head.number;
            }
            return Err((outcome, error));
        }
        hit(Border::ManifestWritten);
        guards(&change.removed).for_each(|guard| guard.set_obsolete(true));
        guards(&change.added).for_each(|guard| guard.set_obsolete(false));
        let limits = Arc::new(head.limits.clone());
        *record = head;
        let depth = depth(change.runs.iter().map(|run| run.span()));
        let set = change.takes_closed.as_ref().map(|closed| self.tell_row_cache([&closed.content]));
        // Rows may be older than a range deletion that no reader meets any more.
        let set = if drops_ranges { Some(self.clear_row_cache()) } else { set };
        self.sources.publish(|view| {
            if change.takes_closed.is_some() {
                view.closed.pop();
            }
            view.set = set.unwrap_or(view.set);
            if drops_ranges {
                // Those that were added meanwhile are behind the checkpoint.
                let added = view.ranges.retained(|_, glsn| glsn > checkpoint);
                view.ranges = Arc::new(ranges.union(&added));
            }
            view.newest_in_runs = newest_in(&change.runs);
            self.space.note_runs(&change.runs);
            view.runs = change.runs;
            view.depth = depth;
            view.history = change.history;
            view.limits = limits;
        });
        if let Some(members) = self.env.duty().members() {
            members.marks.set_manifest(record.number);
        }
        if drops_ranges {
            events::ranges_absorbed(self.sources.current_view().ranges.fragments().len() as u64);
            let mut lease = lock(&self.ranges);
            let spare = lease.bytes().saturating_sub(self.sources.current_view().ranges.bytes());
            lease.shrink(spare);
        }
        self.blobs.note_removed(change.removed.iter().flat_map(|run| run.infos()));
        drop(record);
        let flushed = change.takes_closed.map_or(Glsn::NONE, |closed| closed.boundary);
        drop((change.removed, change.added));
        self.seats.exchanged();
        self.flushed.fetch_max(flushed.0, Ordering::AcqRel);
        Ok(())
    }

    /// Rewrites the manifest with the current runs if the log is durable beyond the durable place
    /// in the last manifest.
    pub(crate) fn note_durable(&self) -> Result<()> {
        let term = self.env.duty().term();
        if term.is_none() || self.head().durable == self.env.context.log.position() {
            return Ok(());
        }
        self.install(term, Change::none).map_err(|(_, error)| error)
    }

    /// Raises the limits of what can be read.
    pub(crate) fn note_limits(&self, limits: Limits) -> Result<()> {
        let change = |view: &View| Change { limits, ..Change::none(view) };
        self.install(self.env.duty().term(), change).map_err(|(_, error)| error)
    }

    /// Records that the log is going to be trimmed below `until`, so that a first segment that is
    /// lost later is not taken for a trimmed one.
    pub(crate) fn note_trim(&self, until: Glsn) -> Result<()> {
        if self.head().log_begins >= Some(until) {
            return Ok(());
        }
        let change = |view: &View| Change { log_begins: Some(until), ..Change::none(view) };
        self.install(self.env.duty().term(), change).map_err(|(_, error)| error)
    }

    /// Installs a manifest that changes nothing: from now on no keeper before this one can install
    /// any.
    pub(crate) fn fence(&self) -> Result<()> {
        let mut tries = 0;
        loop {
            tries += 1;
            self.refresh(|_, _| Ok(None))?;
            if self.env.duty().members().is_some_and(|members| !members.keeper.may_keep()) {
                // Replaced before it had begun, because it was stopped: what it installs would stop
                // the keeper.
                return Err(self.env.duty().not_keeper());
            }
            self.env.context.log.check_own().lift()?;
            let mut record = lock(&self.record);
            let view = self.sources.view();
            let mut head = record.clone();
            head.number = number_after(head.number)?;
            head.next_run = self.files.next_run().max(head.next_run);
            let change = Change::none(&view);
            match self.write_manifest(&head, &change) {
                Ok(()) => {
                    *record = head;
                    return Ok(());
                }
                // It has installed one meanwhile.
                Err((Outcome::Taken | Outcome::Overtaken, _)) if tries < FENCE_TRIES => {}
                Err((outcome, error)) => {
                    if outcome == Outcome::Unknown {
                        record.number = head.number;
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Loads the manifest that another process has written since, if there is one. Returns whether
    /// it did. `rest` is asked what takes the place of the memtables, given the checkpoint; `None`:
    /// they stay until they are released, because what is in them is younger than every row in the
    /// cache, or the same.
    ///
    /// Law: no answer changes. Versions up to the new checkpoint come from the new runs; later
    /// versions stay in memory; dropped moments are refused as usual. A version that is in both
    /// counts once (see `view`).
    ///
    /// # Errors
    /// The manifest or one of its files cannot be read, or the budget is exhausted. The sources
    /// stay as they were.
    pub(crate) fn refresh(
        &self,
        rest: impl FnOnce(&View, Glsn) -> Result<Option<Rest>>,
    ) -> Result<()> {
        let mut record = lock(&self.record);
        let view = self.sources.view();
        let mut before = record.number;
        let (manifest, (runs, history)) = loop {
            let (disk, dir, known) = (self.files.disk(), self.files.dir(), Some(record.number));
            let Some(manifest) = Manifest::read_beyond(disk, dir, Some(record.log_id), known)?
            else {
                return Ok(());
            };
            if manifest.checkpoint.glsn < record.checkpoint.glsn {
                // The current one was in doubt, and the writer went on from the one before:
                // versions between the two are in this view only.
                return Ok(());
            }
            match open_runs(&self.files, &manifest, Some(&view)) {
                Ok(opened) => break (manifest, opened),
                Err(error) if manifest.number == before => return Err(error),
                // Its files may be gone as well: then there is a still newer manifest.
                Err(_) => before = manifest.number,
            }
        };
        let checkpoint = manifest.checkpoint.glsn;
        self.files.skip_to(manifest.next_run);
        let rest = rest(&view, checkpoint)?;
        let head = manifest.head();
        let limits = Arc::new(head.limits.clone());
        let known = |view: &View| {
            let needed =
                |_: &Fragment, glsn| glsn > checkpoint || view.has_unflushed_before(glsn, None);
            head.ranges.union(&view.ranges.retained(needed))
        };
        let has_ranges = !view.ranges.is_empty() || !head.ranges.is_empty();
        let drops_ranges = has_ranges && known(&view) != *view.ranges;
        let set = (rest.is_some() || drops_ranges).then(|| self.clear_row_cache());
        if rest.is_some() {
            self.flushed.store(checkpoint.0, Ordering::Release);
        }
        self.sources.publish(|view| {
            if has_ranges {
                view.ranges = Arc::new(known(view));
            }
            view.depth = depth(runs.iter().map(|run| run.span()));
            view.newest_in_runs = newest_in(&runs);
            (view.runs, view.history, view.limits) = (runs, history, limits);
            if let Some((active, closed)) = rest {
                (view.active, view.closed) = (active, closed);
            }
            view.set = set.unwrap_or(view.set);
        });
        *record = head;
        // Outside the lock: walks may release files.
        drop((record, view));
        self.seats.exchanged();
        Ok(())
    }

    /// Releases the memtables that the runs hold. Returns whether there were any.
    pub(crate) fn release_held(&self) -> bool {
        let checkpoint = self.checkpoint().glsn;
        let is_held =
            |view: &View| view.closed.last().is_some_and(|closed| closed.boundary <= checkpoint);
        let releases = is_held(&self.sources.view());
        if releases {
            let record = lock(&self.record);
            let held: Vec<_> = self
                .sources
                .view()
                .closed
                .iter()
                .filter(|closed| closed.boundary <= checkpoint)
                .cloned()
                .collect();
            // Older rows of their keys must not be found any more once the memtables are gone. The
            // oldest first: the row of a key is the last one that is told.
            let set = self.tell_row_cache(held.iter().rev().map(|closed| &closed.content));
            self.sources.publish(|view| {
                view.closed.retain(|closed| closed.boundary > checkpoint);
                view.set = set;
            });
            drop((record, held));
            self.flushed.fetch_max(checkpoint.0, Ordering::AcqRel);
            self.seats.exchanged();
        }
        releases
    }

    /// What is before the checkpoint, if that may be passed, is read in the runs from now on;
    /// returns the checkpoint.
    pub(crate) fn go_on_behind_runs(&self, may_pass: impl FnOnce(Glsn) -> bool) -> Option<Glsn> {
        let record = lock(&self.record);
        let checkpoint = record.checkpoint.glsn;
        if !may_pass(checkpoint) {
            return None;
        }
        // What was left out is in no memtable that could say so: rows and gaps of any key may be
        // older.
        self.sources.view().gaps.adopt(checkpoint, &[], &[u8::MAX; MAX_INDEX_KEY_BYTES]);
        let set = self.clear_row_cache();
        self.sources.publish(|view| view.set = set);
        drop(record);
        self.seats.exchanged();
        Some(checkpoint)
    }

    /// Empties the row cache, because versions of any keys enter the runs. Called under the
    /// record's lock. Returns the number of the new set of runs.
    fn clear_row_cache(&self) -> u64 {
        let row_cache = &self.env.context.row_cache;
        let set = self.sources.view().set + 1;
        if row_cache.begin_runs(set) {
            row_cache.clear();
        }
        set
    }

    /// Invalidates cached rows whose keys have younger versions in the runs to be added, which have
    /// `contents`, the oldest first. Called under the record's lock, before these runs are visible.
    /// Returns the number of the new set of runs.
    fn tell_row_cache<'c>(&self, contents: impl IntoIterator<Item = &'c Content>) -> u64 {
        let row_cache = &self.env.context.row_cache;
        let set = self.sources.view().set + 1;
        if row_cache.begin_runs(set) {
            for content in contents {
                match content {
                    Content::Memtable(memtable) => memtable.for_each_newest(|version| {
                        row_cache.supersede(version.key, version.glsn, version.stored);
                    }),
                    // There may be as many keys as fit on the disk: reading them would cost more
                    // than loading the dropped rows again.
                    Content::Adopted(_) => row_cache.clear(),
                }
            }
        }
        set
    }

    /// Resizes the row cache to its share of a budget of `bytes`. If the cache has to start empty,
    /// views switch to the new one with it.
    pub(crate) fn resize_row_cache(&self, bytes: u64) {
        let row_cache = &self.env.context.row_cache;
        // Eviction runs beside other work; only the exchange itself needs the record's lock.
        let Some(exchange) = row_cache.resize(bytes) else { return };
        let record = lock(&self.record);
        let before = row_cache.exchange(exchange);
        let set = self.sources.view().set + 1;
        row_cache.begin_runs(set);
        self.sources.publish(|view| (view.set, view.rows) = (set, row_cache.handle()));
        drop(record);
        before.empty();
    }

    fn write_manifest(&self, head: &Head, change: &Change) -> Result<(), (Outcome, Error)> {
        let (disk, dir) = (self.files.disk(), self.files.dir());
        if !change.added.is_empty() {
            // Make the names of new files durable before a manifest names them.
            disk.sync_dir(dir).map_err(|error| (Outcome::Old, error.into()))?;
        }
        let marked = |history| move |run: &Arc<Run>| (history, Arc::clone(run));
        let runs: Vec<_> = change
            .runs
            .iter()
            .map(marked(false))
            .chain(change.history.iter().map(marked(true)))
            .collect();
        let writer = self.env.duty().writer();
        manifest::write(
            disk,
            dir,
            writer,
            head,
            runs.iter().map(|(history, run)| (*history, run_infos(run.tables()))),
        )
    }
}

impl fmt::Debug for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runs({})", self.env.context.dir.display())
    }
}

/// Whether a range deletion may still hide a version once `change` is installed with `checkpoint`.
/// What is behind the checkpoint is not durable yet, or not known to be in the manifest.
fn is_needed(view: &View, change: &Change, checkpoint: Glsn, range: &Fragment, glsn: Glsn) -> bool {
    let adopted = view.closed.iter().flat_map(|closed| match &closed.content {
        Content::Adopted(runs) => &runs[..],
        Content::Memtable(_) => &[],
    });
    let keys = (Bound::Included(&*range.first), Bound::Excluded(&*range.end));
    let hides_some_of =
        |run: &Arc<Run>| tables_in(run, keys).iter().any(|table| table.info.needs(range, glsn));
    glsn > checkpoint
        || view.has_unflushed_before(glsn, change.takes_closed.as_ref())
        || adopted.chain(&change.runs).chain(&change.history).any(hides_some_of)
}

fn guards(runs: &[Arc<Run>]) -> impl Iterator<Item = &Arc<FileGuard>> {
    runs.iter().flat_map(|run| run.guards())
}

/// Opens the runs of a manifest; tables that `known` already has are shared.
fn open_runs(files: &Arc<Files>, manifest: &Manifest, known: Option<&View>) -> Result<RunSets> {
    let members = known
        .into_iter()
        .flat_map(View::all_runs)
        .flat_map(|run| (0..run.tables().len()).map(|at| run.member(at)));
    let known: BTreeMap<TableId, Member> =
        members.map(|member| (member.info().id, member)).collect();
    let (mut runs, mut history) = (Vec::new(), Vec::new());
    for run in &manifest.runs {
        let open = |info: &TableInfo| match known.get(&info.id) {
            Some(member) if member.info() == info => Ok(member.clone()),
            _ => files.open(info.clone()),
        };
        let members = run.tables.iter().map(open).collect::<Result<_>>()?;
        if run.history { &mut history } else { &mut runs }.push(Arc::new(Run::new(members)));
    }
    Ok((runs, history))
}
