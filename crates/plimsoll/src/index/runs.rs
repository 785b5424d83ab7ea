//! The owner of the runs: their files, the manifest that names them, and how a changed set of runs
//! is installed and published.
//!
//! Lock order: the writer's lock of [`crate::index::memtables`]; the lock of a flush or of a step
//! of compaction (never both); the lock of `record`; the lock under which the view is replaced, for
//! a few instructions. Files are written and synced only under the job's lock and that of `record`.

pub(crate) mod blobs;
pub(crate) mod change;
pub(crate) mod check;
mod open;
mod range_deletions;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use plimsoll_log::blob::BlobId;
use plimsoll_log::glsn::{Glsn, Position};
use plimsoll_memory::budget::OutOfBudget;

use crate::borders::{Border, hit};
use crate::index::env::Env;
use crate::index::env::moment_set::MomentSet;
use crate::index::gaps::Gaps;
use crate::index::iter::handle::Iterators;
use crate::index::manifest::files::{Files, run_of};
use crate::index::manifest::limits::Limits;
use crate::index::manifest::{self, Head, Manifest, Outcome, number_after, run_infos};
use crate::index::plan::alignment::Alignment;
use crate::index::plan::space::Space;
use crate::index::ranges::RangeSet;
use crate::index::runs::blobs::Blobs;
use crate::index::runs::change::Change;
use crate::index::runs::open::{guards, open_runs};
pub(crate) use crate::index::runs::range_deletions::RangeRoom;
use crate::index::runs::range_deletions::{Left, RangeMemory, left_by};
use crate::index::sources::Sources;
use crate::index::sources::source::{Memtable, Run};
use crate::index::sources::view::{Closed, Content, View, depth, newest_in};
use crate::types::error::{Error, Lift, Result};
use crate::types::events;
use crate::types::index_key::MAX_INDEX_KEY_BYTES;
use crate::types::lock::lock;

/// How often a new keeper tries to install a manifest while the previous one still installs some.
const FENCE_TRIES: u32 = 16;

/// The number of deleted keys for which a deleted range counts when gaps are compared: most ranges
/// hold at least about as many keys.
const DEAD_IN_A_RANGE: u64 = 100;

/// The runs, their files and their manifest.
pub(crate) struct Runs {
    pub(crate) env: Arc<Env>,
    pub(crate) sources: Arc<Sources>,
    iterators: Arc<Iterators>,
    pub(crate) files: Arc<Files>,
    /// The head of the last manifest. The lock is held while a manifest is written.
    record: Mutex<Head>,
    pub(crate) blobs: Arc<Blobs>,
    pub(crate) space: Space,
    pub(crate) alignment: Alignment,
    /// The runs held everything up to this GLSN when the index was opened. Replayed versions up to
    /// it are skipped.
    pub(crate) held: Glsn,
    /// The boundary of the last source that was flushed.
    flushed: AtomicU64,
    range_memory: RangeMemory,
}

/// The replacement of the memtables: the active one and the closed ones.
pub(crate) type Rest = (Arc<Memtable>, Vec<Closed>);

impl Runs {
    /// Opens the files that the manifest names.
    pub(crate) fn open(
        env: &Arc<Env>,
        iterators: &Arc<Iterators>,
        manifest: Manifest,
    ) -> Result<Self> {
        let context = &env.context;
        if manifest.head.log_id != context.log.id() {
            return Err(Error::Forked {
                glsn: None,
                message: format!(
                    "{}: the index was made from another log; restore the right log",
                    context.dir.display()
                ),
            });
        }
        let files = Files::new(context, manifest.head.next_run)?;
        let (runs, history) = open_runs(&files, &manifest, None)?;
        let head = manifest.head;
        let limits = Arc::new(head.limits.clone());
        let depth = depth(runs.iter().map(|run| run.span()));
        let rows = context.row_cache.handle();
        let held =
            runs.iter().chain(&history).map(|run| run.max_glsn()).max().unwrap_or(Glsn::NONE);
        let gaps = Arc::new(Gaps::new(&context.budget, !context.role.is_read_only(), held));
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
        let range_memory = RangeMemory::new(&context.budget, &view.ranges)?;
        let space = Space::default();
        space.note_runs(&view.runs);
        if context.role.may_write() {
            let named: BTreeSet<u64> = view.infos().filter_map(run_of).collect();
            files.sweep(&files.names()?, head.number, |run| named.contains(&run))?;
        }
        Ok(Self {
            env: Arc::clone(env),
            sources: Arc::new(Sources::new(view)),
            iterators: Arc::clone(iterators),
            files,
            flushed: AtomicU64::new(head.checkpoint.glsn.0),
            range_memory,
            record: Mutex::new(head),
            blobs: Arc::default(),
            space,
            alignment: Alignment::default(),
            held,
        })
    }

    /// Percentage of the live bytes that may be superseded in the runs.
    pub(crate) fn superseded_max(&self) -> u64 {
        self.space.superseded_max(self.env.context.budget.limit_bytes())
    }

    /// The head of the last manifest.
    fn head(&self) -> Head {
        lock(&self.record).clone()
    }

    /// The position in the log up to which the manifest's runs are complete.
    pub(crate) fn checkpoint(&self) -> Position {
        lock(&self.record).checkpoint
    }

    /// The number of the last manifest. A different number may mean different files.
    pub(crate) fn manifest_number(&self) -> u64 {
        lock(&self.record).number
    }

    /// Upper bound on the bytes that a further range deletion adds to the set.
    pub(crate) fn bytes_of_range(&self, first: &[u8], end: &[u8]) -> u64 {
        self.sources.current_view().ranges.bytes_of_one_more(first, end)
    }

    /// Whether range deletions that add `bytes` to the set may be applied; the set stays small
    /// compared with the budget.
    pub(crate) fn has_room_for_ranges(&self, bytes: u64) -> bool {
        self.range_memory.has_room(&self.sources.current_view().ranges, bytes)
    }

    /// Reserves memory for range deletions (first and end keys, in key order), until they are
    /// applied.
    ///
    /// # Errors
    /// The budget has no room.
    pub(crate) fn reserve_for_ranges<'r>(
        &self,
        ranges: impl Iterator<Item = (&'r [u8], &'r [u8])>,
    ) -> Result<Option<RangeRoom<'_>>, OutOfBudget> {
        let mut ranges = ranges.peekable();
        if ranges.peek().is_none() {
            return Ok(None);
        }
        let view = self.sources.current_view();
        view.gaps.prepare();
        let bytes = ranges.map(|(first, end)| view.ranges.bytes_of_one_more(first, end)).sum();
        self.range_memory.reserve(&view.ranges, bytes).map(Some)
    }

    /// Applies the range deletions of the commit at `glsn`, in key order. Called before its
    /// versions are inserted. Applying them again changes nothing. Each range is a gap of deleted
    /// keys until something is put into it.
    pub(crate) fn delete_ranges<'r>(
        &self,
        glsn: Glsn,
        ranges: impl Iterator<Item = (&'r [u8], &'r [u8])> + Clone,
    ) {
        let Some((first, _)) = ranges.clone().next() else { return };
        let (_, end) = ranges.clone().last().unwrap_or_default();
        // Remember the range as written, so that the validation of a range that was read finds this
        // commit even after the deletion is absorbed.
        self.sources.current_view().gaps.adopt(glsn, first, end, false);
        self.sources.publish(|view| {
            let empty = RangeSet::clone(&view.ranges);
            let with = |set: RangeSet, (first, end)| set.with(first, end, glsn);
            view.ranges = Arc::new(ranges.clone().fold(empty, with));
        });
        // Replay skips later puts that a run holds already, so these puts would not remove their
        // keys from the gap.
        if glsn > self.held {
            let view = self.sources.current_view();
            ranges.for_each(|(first, end)| view.gaps.publish(first, end, glsn, DEAD_IN_A_RANGE));
        }
    }

    /// Whether every closed source up to `boundary` is in the runs.
    pub(crate) fn is_flushed(&self, boundary: Glsn) -> bool {
        self.flushed() >= boundary
    }

    /// The boundary of the last source that was flushed.
    pub(crate) fn flushed(&self) -> Glsn {
        Glsn(self.flushed.load(Ordering::Acquire))
    }

    /// The log after this GLSN is needed, by the checkpoint and by memtables. After a change of
    /// keeper, memtables may begin before the checkpoint.
    pub(crate) fn log_needed_from(&self) -> Glsn {
        self.needed_from(self.checkpoint().glsn)
    }

    /// The log after this GLSN is needed: by `checkpoint`, and by memtables.
    fn needed_from(&self, checkpoint: Glsn) -> Glsn {
        let oldest = self.sources.view().oldest_unflushed();
        oldest.map_or(checkpoint, |oldest| checkpoint.min(Glsn(oldest.0 - 1)))
    }

    /// The position in the log up to which all versions are in the runs and have invalidated cached
    /// rows: the checkpoint, or an earlier position if a memtable begins before it; at most
    /// `applied`, the last commit that this process applied before. `None` if the log no longer has
    /// that position.
    ///
    /// # Errors
    /// The log.
    pub(crate) fn rows_invalidated_upto(&self, applied: Glsn) -> Result<Option<Position>> {
        // Read the checkpoint first: a memtable that is released or flushed in between has already
        // invalidated the rows of its versions.
        let checkpoint = self.checkpoint();
        let glsn = self.needed_from(checkpoint.glsn).min(applied);
        if glsn == checkpoint.glsn {
            return Ok(Some(checkpoint));
        }
        let log = &self.env.context.log;
        let chain = if glsn < log.bounds().first { None } else { log.chain_at(glsn).lift()? };
        Ok(chain.map(|chain| Position { glsn, chain }))
    }

    /// The current manifest, and a view of exactly its files and those not named by a manifest yet,
    /// without memtables. The files stay as long as the view is kept.
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
        (Manifest { head: record.clone(), runs }, files)
    }

    /// The current manifest, the run files that it names (its blob files belong to the log), and a
    /// view that keeps them.
    pub(crate) fn files(&self) -> (Manifest, Vec<PathBuf>, Arc<View>) {
        let (manifest, view) = self.manifest();
        let infos = manifest.runs.iter().flat_map(|run| &run.tables);
        let paths = infos.filter_map(run_of).map(|run| self.files.path_of(run)).collect();
        (manifest, paths, view)
    }

    /// Whether the index uses, or is about to use, a blob file as a table or for values.
    pub(crate) fn uses_blob(&self, blob: BlobId) -> bool {
        self.blobs.uses(blob, || self.sources.view())
    }

    /// Whether a blob file must not be removed here, because it is in use, or another process is
    /// the keeper and its runs may use it. Call it only after the files that are old enough to be
    /// removed were selected.
    pub(crate) fn must_keep_blob(&self, blob: BlobId) -> bool {
        !self.env.role().may_write() || self.uses_blob(blob)
    }

    /// The log position (GLSN and chain hash) at `boundary`; `None` if no record ends there, which
    /// happens if commits were not applied in the order of their records. Then the old checkpoint
    /// stays, and the next open replays the versions in between and recognizes them by their GLSNs.
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

    /// Changes the runs as `plan` decides, writes the manifest, and publishes the new view. `plan`
    /// is called under the record's lock, so the runs do not change in the meantime. `term`: the
    /// term in which the job that calls `install` began.
    pub(crate) fn install(
        &self,
        term: Option<u64>,
        plan: impl FnOnce(&View) -> Change,
    ) -> Result<(), (Outcome, Error)> {
        hit(Border::RunsWritten);
        // Ask before taking the lock, because this may read the log.
        let again = self.sources.current_view().ranges.keyspaces_deleted_again();
        let retained: BTreeMap<u32, MomentSet> =
            again.into_iter().map(|id| (id, self.env.horizon.retained(id))).collect();
        let mut record = lock(&self.record);
        if term.is_none() || self.env.role().term() != term {
            return Err((Outcome::Old, self.env.role().not_keeper()));
        }
        self.env.context.log.check_own().map_err(|error| (Outcome::Old, Error::of_log(error)))?;
        let change = plan(&self.sources.view());
        let mut head = record.clone();
        head.number = number_after(head.number).map_err(|error| (Outcome::Old, error))?;
        head.durable = self.env.context.log.position();
        head.next_run = self.files.next_run();
        head.limits.merge(&change.limits);
        head.log_begins = head.log_begins.max(change.log_begins);
        let view = self.sources.view();
        // Another keeper may have flushed further than this one.
        if let Some(checkpoint) = change.checkpoint.filter(|new| new.glsn > head.checkpoint.glsn) {
            head.checkpoint = checkpoint;
        }
        let checkpoint = head.checkpoint.glsn;
        let Left { needed: ranges, absorbed, readable_from } =
            left_by(&view, &change, checkpoint, &retained);
        for (keyspace, by) in readable_from {
            head.limits.dropped(keyspace, by, &retained[&keyspace].pins);
        }
        let ranges_change = ranges != *view.ranges;
        head.ranges = Arc::new(ranges.retained(|_, glsn| glsn <= checkpoint));
        if let Err((outcome, error)) = self.write_manifest(&head, &change) {
            if outcome == Outcome::Overtaken {
                // A later manifest of the other keeper may name the added files.
                guards(&change.added).for_each(|guard| guard.set_obsolete(false));
            }
            if matches!(outcome, Outcome::Taken | Outcome::Overtaken)
                && let Some(members) = self.env.role().members()
            {
                // Another keeper has installed a manifest: either the one that has replaced this
                // keeper, or one that this keeper had replaced, but that was only stopped during
                // its takeover and has been resumed. That keeper sweeps the files that its manifest
                // does not name.
                members.keeper.resign();
                return Err((outcome, self.env.role().not_keeper()));
            }
            if outcome == Outcome::Unknown {
                // The manifest on disk may name the added files, and its number is taken.
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
        let set =
            change.takes_closed.as_ref().map(|closed| self.invalidate_rows([&closed.content]));
        // A cached row may be older than a range deletion that leaves the view.
        let set = if absorbed.is_empty() { set } else { Some(self.drop_hidden_rows(&absorbed)) };
        let joined = |now: &RangeSet| {
            // Commits may have added range deletions since `view` was loaded.
            let is_new = |range: &_, glsn| glsn > checkpoint || !view.ranges.has(range, glsn);
            Arc::new(ranges.union(&now.retained(is_new)))
        };
        // Join the sets before the view's lock is taken, because commits wait for it.
        let expected = ranges_change.then(|| joined(&view.ranges));
        let before = Arc::clone(&view.ranges);
        self.sources.publish(|view| {
            if change.takes_closed.is_some() {
                view.closed.pop();
            }
            view.set = set.unwrap_or(view.set);
            if let Some(expected) = expected {
                let is_as_before = Arc::ptr_eq(&view.ranges, &before);
                view.ranges = if is_as_before { expected } else { joined(&view.ranges) };
            }
            view.newest_in_runs = newest_in(&change.runs);
            self.space.note_runs(&change.runs);
            view.runs = change.runs;
            view.depth = depth;
            view.history = change.history;
            view.limits = limits;
        });
        if let Some(members) = self.env.role().members() {
            members.marks.set_manifest(record.number);
        }
        if !absorbed.is_empty() {
            events::ranges_absorbed(self.sources.current_view().ranges.len() as u64);
        }
        if ranges_change {
            self.range_memory.release_unused(|| self.sources.current_view().ranges.bytes());
        }
        self.blobs.note_removed(change.removed.iter().flat_map(|run| run.infos()));
        drop(record);
        let flushed = change.takes_closed.map_or(Glsn::NONE, |closed| closed.boundary);
        drop((change.removed, change.added));
        self.iterators.exchanged();
        self.flushed.fetch_max(flushed.0, Ordering::AcqRel);
        Ok(())
    }

    /// Rewrites the manifest with the current runs if the log is durable beyond the durable
    /// position in the last manifest.
    pub(crate) fn note_durable(&self) -> Result<()> {
        let term = self.env.role().term();
        if term.is_none() || self.head().durable == self.env.context.log.position() {
            return Ok(());
        }
        self.install(term, Change::none).map_err(|(_, error)| error)
    }

    /// Raises the limits of readable GLSNs.
    pub(crate) fn note_limits(&self, limits: Limits) -> Result<()> {
        let change = |view: &View| Change { limits, ..Change::none(view) };
        self.install(self.env.role().term(), change).map_err(|(_, error)| error)
    }

    /// Records that the log is about to be trimmed below `until`, so that a first segment lost
    /// later is not mistaken for a trimmed one.
    pub(crate) fn note_trim(&self, until: Glsn) -> Result<()> {
        if self.head().log_begins >= Some(until) {
            return Ok(());
        }
        let change = |view: &View| Change { log_begins: Some(until), ..Change::none(view) };
        self.install(self.env.role().term(), change).map_err(|(_, error)| error)
    }

    /// Installs a manifest without changes. From then on, no earlier keeper can install one.
    pub(crate) fn fence(&self) -> Result<()> {
        let mut tries = 0;
        loop {
            tries += 1;
            self.refresh(|_, _| Ok(None))?;
            if self.env.role().members().is_some_and(|members| !members.keeper.may_keep()) {
                // This process was replaced before it had begun, because it was stopped. Its
                // manifest would make the actual keeper give up.
                return Err(self.env.role().not_keeper());
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
                // The previous keeper has installed a manifest in the meantime.
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

    /// Loads the newest manifest if another process has written one. `rest` returns the replacement
    /// of the memtables, given the checkpoint. `None` keeps them until they are released: they are
    /// searched before the cached rows, which the new runs make stale.
    ///
    /// No answer changes. Versions up to the new checkpoint come from the new runs, later versions
    /// stay in memory, and snapshots whose versions were dropped are refused as usual. A version in
    /// both counts once (see `view`).
    ///
    /// # Errors
    /// The manifest or one of its files cannot be read, or the budget is exhausted. The sources are
    /// unchanged.
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
            if manifest.head.checkpoint.glsn < record.checkpoint.glsn {
                // The current manifest was in doubt, and the writer continued from the previous
                // one: only this view has the versions between the two.
                return Ok(());
            }
            match open_runs(&self.files, &manifest, Some(&view)) {
                Ok(opened) => break (manifest, opened),
                Err(error) if manifest.head.number == before => return Err(error),
                // If its files are gone, there is a still newer manifest.
                Err(_) => before = manifest.head.number,
            }
        };
        let checkpoint = manifest.head.checkpoint.glsn;
        self.files.skip_to(manifest.head.next_run);
        let head = manifest.head;
        let room = match head.ranges.is_empty() {
            true => None,
            false => Some(self.range_memory.reserve(&view.ranges, head.ranges.bytes())?),
        };
        let rest = rest(&view, checkpoint)?;
        let limits = Arc::new(head.limits.clone());
        let is_dropped = |glsn: Glsn| glsn <= checkpoint && !view.has_unflushed_before(glsn, None);
        let dropped = view.ranges.retained(|_, glsn| is_dropped(glsn));
        let ranges_change = !dropped.is_empty() || !head.ranges.is_empty();
        let set = match rest.is_some() {
            true => Some(self.clear_row_cache()),
            false if dropped.is_empty() => None,
            false => Some(self.drop_hidden_rows(&dropped)),
        };
        if rest.is_some() {
            self.flushed.store(checkpoint.0, Ordering::Release);
        }
        self.sources.publish(|view| {
            if ranges_change {
                // A range deletion that was added meanwhile stays, because the rows that it hides
                // are still cached.
                let kept = view.ranges.retained(|range, glsn| !dropped.has(range, glsn));
                view.ranges = Arc::new(head.ranges.union(&kept));
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
        drop(room);
        if ranges_change {
            self.range_memory.release_unused(|| self.sources.current_view().ranges.bytes());
        }
        // After the publish, because dropping the view may remove files.
        drop((record, view));
        self.iterators.exchanged();
        Ok(())
    }

    /// Releases the closed memtables that the runs hold completely. Returns whether there were any.
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
            // Older cached rows of their keys must be invalidated before the memtables are gone.
            // The oldest memtable comes first, because the last version passed becomes the row of
            // its key.
            let set = self.invalidate_rows(held.iter().rev().map(|closed| &closed.content));
            self.sources.publish(|view| {
                view.closed.retain(|closed| closed.boundary > checkpoint);
                view.set = set;
            });
            drop((record, held));
            self.flushed.fetch_max(checkpoint.0, Ordering::AcqRel);
            self.iterators.exchanged();
        }
        releases
    }

    /// From now on, everything up to the checkpoint is read from the runs, if `may_pass` allows it.
    /// Returns the checkpoint.
    pub(crate) fn skip_to_checkpoint(&self, may_pass: impl FnOnce(Glsn) -> bool) -> Option<Glsn> {
        let record = lock(&self.record);
        let checkpoint = record.checkpoint.glsn;
        if !may_pass(checkpoint) {
            return None;
        }
        // No memtable has the skipped versions, so cached rows and gaps of any key may be stale.
        self.sources.view().gaps.adopt(checkpoint, &[], &[u8::MAX; MAX_INDEX_KEY_BYTES], true);
        let set = self.clear_row_cache();
        self.sources.publish(|view| view.set = set);
        drop(record);
        self.iterators.exchanged();
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

    /// Drops the cached rows that `ranges` hide, before these leave the view. Called under the
    /// record's lock. Returns the number of the new set of runs.
    fn drop_hidden_rows(&self, ranges: &RangeSet) -> u64 {
        let row_cache = &self.env.context.row_cache;
        let set = self.sources.view().set + 1;
        if row_cache.begin_runs(set) {
            row_cache.drop_stale(|key, glsn| ranges.newest_over(key, Glsn::MAX) > glsn);
        }
        set
    }

    /// Invalidates cached rows whose keys have younger versions in the runs to be added, which have
    /// `contents`, the oldest first. Called under the record's lock, before these runs are visible.
    /// Returns the number of the new set of runs.
    fn invalidate_rows<'c>(&self, contents: impl IntoIterator<Item = &'c Content>) -> u64 {
        let row_cache = &self.env.context.row_cache;
        let set = self.sources.view().set + 1;
        if row_cache.begin_runs(set) {
            for content in contents {
                match content {
                    Content::Memtable(memtable) => memtable.for_each_newest(|version| {
                        row_cache.supersede(version.key, version.glsn, version.stored);
                    }),
                    // There may be as many keys as the disk can hold: reading them would cost more
                    // than loading the dropped rows again.
                    Content::Adopted(_) => row_cache.clear(),
                }
            }
        }
        set
    }

    /// Resizes the row cache to its share of a budget of `bytes`. If the cache has to start empty,
    /// views switch to the new one in the same step.
    pub(crate) fn resize_row_cache(&self, bytes: u64) {
        let row_cache = &self.env.context.row_cache;
        // Eviction runs concurrently with other work; only the exchange itself needs the record's
        // lock.
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
        let writer = self.env.role().writer();
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
