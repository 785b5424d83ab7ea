//! The index: a cache of the log that finds versions by key.
//!
//! Commits enter the active *memtable*. A full memtable is flushed as a *run* (a sorted sequence of
//! table files). Compaction merges runs and moves superseded versions into *history* runs, so that
//! a scan of the present does not read old versions. The whole index can be rebuilt from the log.
//!
//! Laws:
//! 1. Every version in the log up to the manifest's checkpoint is in the runs that the manifest
//!    names. No version in a run is younger than the durable GLSN (the log sequence number).
//! 2. Sources are ordered by age: for one key, every version in a newer source is younger than
//!    every version in an older one. History runs are outside this order.
//! 3. The newest version of a key is never in a history run, unless it is a deletion.
//! 4. A current run has one version of a key. Versions that it superseded in the same flush or
//!    merge are in history, or were dropped.
//!
//! ```text
//! commits -> active memtable -> closed memtables -> (flush) -> current runs <-> (compaction)
//!            large transactions -> adopted runs ----^               |
//!                                                                   v superseded versions, moved deletions
//!                                                              history runs <-> (compaction)
//! ```

mod background;
pub(crate) mod blob_bytes;
pub(crate) mod compaction;
pub(crate) mod env;
pub(crate) mod follow;
pub(crate) mod gaps;
pub(crate) mod manifest;
pub(crate) mod memtables;
mod pace;
pub(crate) mod plan;
mod refresh;
pub(crate) mod run;
pub(crate) mod runs;
pub(crate) mod sources;
#[cfg(test)]
mod tests;
pub(crate) mod walk;
pub(crate) mod write;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::Guard;
use plimsoll_log::blob::BlobId;
use plimsoll_log::glsn::{Glsn, Position};
use plimsoll_log::members::Members;
use plimsoll_memory::sorted::SortedMap;

use crate::index::background::Threads;
use crate::index::compaction::Compaction;
use crate::index::env::{Context, FreeLog, Horizon, Progress};
use crate::index::gaps::Gaps;
use crate::index::manifest::Manifest;
use crate::index::manifest::files::run_of;
use crate::index::memtables::reservation::Reservation;
use crate::index::run::table::{Table, TableInfo};
use crate::index::runs::Core;
use crate::index::runs::blobs::Left;
use crate::index::sources::source::Memtable;
use crate::index::sources::view::{Content, View};
use crate::index::walk::seat::Seats;
use crate::types::error::Result;
use crate::types::stats::IndexStats;
use crate::types::version::Version;

/// What the active memtable holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unflushed {
    /// Bytes of its entries.
    pub(crate) bytes: u64,
    /// Bytes of the log that a replay reads to rebuild it.
    pub(crate) log_bytes: u64,
    /// Its oldest commit.
    pub(crate) oldest: Glsn,
}

/// The index of a store.
#[derive(Debug)]
pub(crate) struct Index {
    core: Arc<Core>,
    compaction: Arc<Compaction>,
    threads: Threads,
}

impl Index {
    /// Opens the index that the manifest describes. The caller replays the log beyond the
    /// manifest's checkpoint.
    ///
    /// With `read_only`, a writing process may remove files after the manifest was read and before
    /// this call opens them: the caller reads the manifest again after an error.
    pub(crate) fn open(
        context: Context,
        manifest: Manifest,
        horizon: Arc<dyn Horizon>,
    ) -> Result<Arc<Index>> {
        let background = context.background && !context.duty.is_read_only();
        let core = Arc::new(Core::open(context, manifest, horizon)?);
        let compaction = Arc::new(Compaction::new(&core)?);
        let threads =
            if background { Threads::start(&core, &compaction)? } else { Threads::none() };
        Ok(Arc::new(Index { core, compaction, threads }))
    }

    /// The place in the log up to which the manifest's runs are complete.
    pub(crate) fn checkpoint(&self) -> Position {
        self.core.head().checkpoint
    }

    /// The log behind this GLSN is needed: by the checkpoint, and by memtables. Those of a keeper
    /// that has followed another one may reach back behind the checkpoint.
    pub(crate) fn log_needed_from(&self) -> Glsn {
        self.core.needed_from(self.checkpoint().glsn)
    }

    /// The number of the last manifest. A different number may mean different files.
    pub(crate) fn manifest_number(&self) -> u64 {
        self.core.head().number
    }

    /// Loads the manifest that another process has written since, if there is one. For an index
    /// that is open read-only.
    ///
    /// # Errors
    /// The manifest or one of its files cannot be read, or the budget is exhausted. The sources
    /// stay as they were.
    pub(crate) fn refresh(&self) -> Result<()> {
        match self.core.context.duty.followed() {
            Some(members) => self.core.take_in(members).map(|_| ()),
            None => self.core.refresh(),
        }
    }

    /// Whether this process changes the files of the index.
    pub(crate) fn may_write(&self) -> bool {
        self.core.context.duty.may_write()
    }

    /// Names the time since this process changes the files of the index; `None` if it does not. In
    /// between others have changed them.
    pub(crate) fn term(&self) -> Option<u64> {
        self.core.context.duty.term()
    }

    /// The place in the log up to which all versions are in the runs, and the row cache was told of
    /// them: the checkpoint, or, while a memtable reaches back behind it, the place before that; at
    /// most `applied`, the last commit that this process had applied before. `None` if the log no
    /// longer knows that place.
    ///
    /// # Errors
    /// The log.
    pub(crate) fn told_to_rows(&self, applied: Glsn) -> Result<Option<Position>> {
        self.core.told_to_rows(applied)
    }

    /// Removes files that were left because another member was reading all files, if none does any
    /// more.
    pub(crate) fn remove_left(&self) {
        self.core.files.remove_left();
    }

    /// For a member: takes in what the keeper has installed, and becomes the keeper if there is
    /// none.
    ///
    /// # Errors
    /// As for [`Index::refresh`].
    pub(crate) fn follow(&self, members: &Members) -> Result<()> {
        if !members.is_keeper() {
            self.core.take_in(members)?;
            self.core.keep_if_free(members)?;
        }
        Ok(())
    }

    /// Tells the other members which part of the log is needed here.
    pub(crate) fn tell_needs(&self, members: &Members) {
        self.core.tell_needs(members);
    }

    /// Goes on from the newest manifest, which holds everything that was committed up to the GLSN
    /// that is returned; up to `applied`, it was applied here. Law: the caller applies nothing else
    /// meanwhile.
    ///
    /// # Errors
    /// As for [`Index::follow`].
    pub(crate) fn leap(&self, members: &Members, applied: Glsn) -> Result<Glsn> {
        self.core.leap(members, applied)
    }

    /// Goes on from the checkpoint of the manifest that is known, if it is behind `applied`, which
    /// was applied here, and before `next`, the first entry that this process has not read in the
    /// log. Returns that checkpoint. Law: the caller applies nothing else meanwhile.
    pub(crate) fn pass_over(&self, members: &Members, applied: Glsn, next: Glsn) -> Option<Glsn> {
        self.core.pass_over(members, applied, next)
    }

    /// Becomes the keeper in place of one that does not answer; whether it did.
    ///
    /// # Errors
    /// As for [`Index::follow`].
    pub(crate) fn replace(&self, members: &Members, stopped: (u64, u64)) -> Result<bool> {
        self.core.replace(members, stopped)
    }

    /// Whether nothing is in memory that the runs do not hold as well.
    pub(crate) fn is_all_in_runs(&self, applied: Glsn) -> bool {
        self.core.head().checkpoint.glsn >= applied
    }

    /// Whether there are rows that stand for what the runs hold.
    pub(crate) fn has_rows(&self) -> bool {
        !self.core.context.row_cache.is_empty()
    }

    /// The sources as they are now.
    pub(crate) fn view(&self) -> Arc<View> {
        self.core.view()
    }

    /// The sources as they are now, for a short look: it writes no memory that other threads use.
    pub(crate) fn current_view(&self) -> Guard<Arc<View>> {
        self.core.current_view()
    }

    /// The registry of walks (iterators) over the index.
    pub(crate) fn seats(&self) -> &Arc<Seats> {
        &self.core.seats
    }

    /// The gaps of deleted keys that walks remember.
    pub(crate) fn gaps(&self) -> &Gaps {
        &self.core.gaps
    }

    /// Reserves room so that versions of `bytes` (see `entry_bytes`) can be inserted without
    /// failing. If the active memtable is full, or the budget has no room to grow it, it is closed
    /// at `boundary` (the last GLSN applied) and a new one is started. If flushing lags behind, the
    /// caller flushes or is slowed down. Called by one committer at a time, in GLSN order, after
    /// the reservation before is dropped.
    ///
    /// # Errors
    /// The budget has no room and there is nothing left to flush; or a flush that was needed
    /// failed. Nothing is lost, and the next call tries again. A read-only index cannot flush: its
    /// memtables grow as far as the budget allows.
    pub(crate) fn make_room(&self, bytes: usize, boundary: Glsn) -> Result<Reservation<'_>> {
        self.core.make_room(bytes, boundary)
    }

    /// As [`Index::make_room`], where that waits for nothing: `None` if a memtable has to be
    /// flushed before.
    pub(crate) fn make_room_now(&self, bytes: usize, boundary: Glsn) -> Option<Reservation<'_>> {
        self.core.make_room_now(bytes, boundary)
    }

    /// Holds a writer back while there are too many runs; without threads, merges some of them. Not
    /// under the commit lock: other commits go on meanwhile.
    ///
    /// # Errors
    /// A merge on this thread failed; without threads only.
    pub(crate) fn hold_back(&self) -> Result<()> {
        self.core.hold_back(&self.compaction)
    }

    /// Slows the writer of `bytes` down while flushes or merges lag behind. Not under the commit
    /// lock.
    pub(crate) fn pay(&self, bytes: u64) {
        self.core.pay(bytes);
    }

    /// Gives memory that was lent to the row cache back if too little is free.
    pub(crate) fn return_lent_rows(&self) {
        self.core.context.row_cache.return_lent();
    }

    /// Flushes while a commit that takes `bytes` of a memtable would find no room without that. Not
    /// under the commit lock.
    ///
    /// # Errors
    /// As for [`Index::make_room`].
    pub(crate) fn wait_for_room(&self, bytes: usize) -> Result<()> {
        self.core.wait_for_room(bytes)
    }

    /// The most bytes that a version takes in a memtable.
    pub(crate) fn entry_bytes(key_bytes: usize, stored_bytes: usize) -> usize {
        SortedMap::entry_bytes(key_bytes, stored_bytes)
    }

    /// Whether a background thread ended by a panic.
    pub(crate) fn has_lost_thread(&self) -> bool {
        self.core.signals.has_lost_thread()
    }

    /// Whether a memtable is being flushed, or is about to be, and nothing is known to be in the
    /// way.
    pub(crate) fn is_flushing(&self) -> bool {
        !self.view().closed.is_empty() && !self.core.signals.has_flush_failed()
    }

    /// Makes deferred versions visible to lookups.
    pub(crate) fn settle(&self) {
        self.core.settle();
    }

    /// The same, at the end of a replay: no more are deferred in large numbers.
    pub(crate) fn stop_deferring(&self) {
        self.core.stop_deferring();
    }

    /// Reserves memory for the metadata of these tables so that the runs can be adopted. Called
    /// before the record that names them is submitted.
    ///
    /// # Errors
    /// The budget has no room for the metadata.
    pub(crate) fn make_room_for_runs<'t>(
        &self,
        tables: impl Iterator<Item = &'t TableInfo>,
    ) -> Result<()> {
        self.core.make_room_for_runs(tables)
    }

    /// Adopts (ingests) runs that a transaction wrote as blob files, newest first; every version in
    /// them has `glsn`. The active memtable is first closed at `glsn - 1`. Idempotent: runs that
    /// are in the index already are skipped. It cannot fail, because the record is already ordered
    /// in the log: the tables are open, and neither the budget nor the disk is asked.
    pub(crate) fn adopt(&self, runs: Vec<Vec<Table>>, glsn: Glsn) {
        self.core.adopt(runs, glsn);
    }

    /// Closes the active memtable at `boundary` and waits until all versions up to it are in runs
    /// that the manifest names. Flushes on this thread if there is no flush thread.
    pub(crate) fn flush(&self, boundary: Glsn) -> Result<()> {
        self.core.flush_up_to(boundary)
    }

    /// Rewrites the manifest with the current runs if the log is durable beyond the durable place
    /// in the last manifest. From it the next process detects a log that was truncated or replaced.
    pub(crate) fn note_durable(&self) -> Result<()> {
        self.core.note_durable()
    }

    /// Closes the active memtable at `boundary`, the last GLSN applied, as if it were full. The
    /// flush step writes it later.
    pub(crate) fn close_up_to(&self, boundary: Glsn) {
        self.core.close_up_to(boundary);
    }

    /// As [`Index::close_up_to`], unless another memtable waits to be flushed: however often it is
    /// asked for, no more of them wait.
    pub(crate) fn close_if_none_waits(&self, boundary: Glsn) {
        if self.unflushed().is_some() {
            self.core.close_up_to(boundary);
        }
    }

    /// Whether no memtable waits to be flushed, and the active one has something up to `glsn`.
    pub(crate) fn holds_up_to(&self, glsn: Glsn) -> bool {
        self.unflushed().is_some_and(|active| (Glsn::NONE.next()..=glsn).contains(&active.oldest))
    }

    /// The contents of the active memtable; `None` while another memtable waits to be flushed.
    pub(crate) fn unflushed(&self) -> Option<Unflushed> {
        let view = self.view();
        let of = |memtable: &Memtable| Unflushed {
            bytes: memtable.map().used_bytes(),
            log_bytes: memtable.log_bytes(),
            oldest: memtable.min_glsn(),
        };
        view.closed.is_empty().then(|| of(&view.active))
    }

    /// Sets the callback that frees the log. The index calls it in the background when its runs
    /// have changed.
    pub(crate) fn free_log_by(&self, free_log: Weak<dyn FreeLog>) {
        let _ = self.core.free_log.set(free_log);
    }

    /// Bytes after which a segment of the log may end, so that what it holds back takes little
    /// beside the runs.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.core.space.segment_bytes()
    }

    /// Frees what can be freed of the log.
    pub(crate) fn free_log(&self) {
        self.core.free_log(true);
    }

    /// Bytes at which a memtable is full.
    pub(crate) fn memtable_limit_bytes(&self) -> u64 {
        self.core.memtable_limit_bytes()
    }

    /// Makes the oldest closed source durable in the log and flushes it, if there is one.
    pub(crate) fn flush_step(&self) -> Result<Progress> {
        self.core.flush_step()
    }

    /// Does a bounded piece of compaction, if any is due. If nothing was written since the last
    /// call, also merges runs to make reads cheaper.
    pub(crate) fn compact_step(&self) -> Result<Progress> {
        self.compaction.step()
    }

    /// Says whether an idle store may merge runs only to make reads cheaper: not while rows are
    /// restored that the runs are to vouch for.
    pub(crate) fn set_may_settle(&self, may_settle: bool) {
        self.compaction.set_may_settle(may_settle);
    }

    /// Compacts everything into as few runs as possible: one current and one history run, without
    /// versions that may be dropped. The log keeps its entries from
    /// `log_keeps_from` on: adopted runs that they name are not rewritten, unless as much else is.
    pub(crate) fn compact(&self, log_keeps_from: Glsn) -> Result<()> {
        self.compaction.run_all(log_keeps_from)
    }

    /// Compacts everything, also what the log keeps.
    #[cfg(test)]
    pub(crate) fn compact_all(&self) -> Result<()> {
        self.compact(Glsn::MAX)
    }

    /// Moves every value that is stored in a log entry below the horizon's `relocate_below` into a
    /// blob file. Only tables that point to such values are rewritten.
    pub(crate) fn relocate(&self) -> Result<()> {
        self.compaction.relocate()
    }

    /// Moves values out of blob files of which much is dead, as far as the copies take little space
    /// beside what is live; nothing if that would free less than `worth_bytes` in this and later
    /// calls. Returns whether it moved any: then more may be left.
    pub(crate) fn vacate_blobs(&self, worth_bytes: u64) -> Result<bool> {
        if !self.core.choose_vacated(worth_bytes)? {
            return Ok(false);
        }
        let moved = self.compaction.relocate();
        self.core.blobs.vacate(BTreeSet::new());
        moved.map(|()| true)
    }

    /// The budget is, or is about to become, `bytes`: resizes the row cache to its share.
    pub(crate) fn resize_row_cache(&self, bytes: u64) {
        self.core.resize_row_cache(bytes);
    }

    /// Adapts compaction to a changed budget: memory reserved for a second job is released if the
    /// budget has room for one job only.
    pub(crate) fn fit_jobs(&self) {
        self.compaction.fit();
    }

    /// The oldest log entry that a value in a run points to.
    pub(crate) fn min_pointer(&self) -> Option<Glsn> {
        self.view().min_pointer()
    }

    /// Whether a blob file is a table of the index, holds values of one, or is about to.
    pub(crate) fn uses_blob(&self, blob: BlobId) -> bool {
        self.core.blobs.uses(blob, || self.view())
    }

    /// Whether a blob file must not be removed here: it is used, or another process is the keeper
    /// now, whose runs may use it. To be asked after it is known which files are old enough to be
    /// removed.
    pub(crate) fn must_keep_blob(&self, blob: BlobId) -> bool {
        !self.may_write() || self.uses_blob(blob)
    }

    /// These could not be removed.
    pub(crate) fn put_back_blobs(&self, blobs: Left) {
        self.core.blobs.put_back(blobs);
    }

    /// The blob files of tables that are no longer current, since the last call.
    pub(crate) fn take_left_blobs(&self) -> Left {
        self.core.blobs.take_left()
    }

    /// The current manifest, the run files that it names (its blob files belong to the log), and a
    /// view that keeps them.
    pub(crate) fn files(&self) -> (Manifest, Vec<PathBuf>, Arc<View>) {
        let (manifest, view) = self.core.manifest();
        let infos = manifest.runs.iter().flat_map(|run| &run.tables);
        let paths = infos.filter_map(run_of).map(|run| self.core.files.path_of(run)).collect();
        (manifest, paths, view)
    }

    /// Reads every page of every run and checks it, see [`Core::verify`].
    pub(crate) fn verify(
        &self,
        each: &mut dyn FnMut(&Version<'_>),
        checked: &mut dyn FnMut(&Table, Vec<String>),
        report: &mut dyn FnMut(String),
    ) -> Result<()> {
        self.core.verify(each, checked, report)
    }

    /// Counters.
    pub(crate) fn stats(&self) -> IndexStats {
        let view = self.view();
        let closed = view.closed.iter().filter_map(|closed| match &closed.content {
            Content::Memtable(memtable) => Some(memtable),
            Content::Adopted(_) => None,
        });
        let memtables: Vec<_> = std::iter::once(&view.active).chain(closed).collect();
        let counters = &self.core.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        IndexStats {
            memtable_bytes: memtables.iter().map(|memtable| memtable.map().held_bytes()).sum(),
            memtables: memtables.len() as u64,
            runs: view.runs.iter().map(|run| run.bytes()).collect(),
            depth: view.depth as u64,
            history_runs: view.history.iter().map(|run| run.bytes()).collect(),
            tables: view.all_runs().map(|run| run.tables().len() as u64).sum(),
            versions: view.all_runs().map(|run| run.versions()).sum(),
            bytes_in: count(&counters.bytes_in),
            bytes_flushed: count(&counters.bytes_flushed),
            bytes_compaction_read: count(&counters.bytes_compaction_read),
            bytes_compaction_written: count(&counters.bytes_compaction_written),
            flushes: count(&counters.flushes),
            compactions: count(&counters.compactions),
            stalls: counters.stalls.stats(),
            last_error: self.core.signals.last_error(),
        }
    }

    /// Stops background work and waits for it.
    pub(crate) fn close(&self) {
        self.threads.stop(&self.core, &self.compaction);
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        self.close();
    }
}
