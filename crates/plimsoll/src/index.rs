//! The index: a cache of the log that finds versions by key.
//!
//! Commits enter the active *memtable*; a full one is flushed as a *run*; compaction merges runs and moves superseded versions into
//! *history* runs, so that a scan of the present does not wade through the past. All of it can be made anew from the log.
//!
//! Laws:
//! 1. Everything in the log up to the manifest's checkpoint is in runs that the manifest names; nothing in a run is younger than the
//!    durable GLSN.
//! 2. Sources are ordered by age: for one key, every version in a newer source is younger than every version in an older one. (History
//!    runs are outside this order.)
//! 3. A key's newest version is never in a history run, unless it is a deletion.
//! 4. A current run has one version of a key; what it superseded in the same flush or merge is in history, or dropped.
//!
//! ```text
//! commits -> active memtable -> closed memtables -> (flush) -> current runs <-> (compaction)
//!            large transactions -> adopted runs ----^               |
//!                                                                   v superseded versions, moved deletions
//!                                                              history runs <-> (compaction)
//! ```

mod background;
mod check;
mod compaction;
mod core;
mod files;
mod flush;
pub(crate) mod manifest;
mod merge;
mod output;
mod policy;
mod refresh;
mod relocate;
pub(crate) mod resting_key;
mod room;
pub(crate) mod run;
pub(crate) mod seat;
mod source;
mod split;
mod stalls;
mod sweep;
#[cfg(test)]
mod tests;
pub(crate) mod view;
mod walk;

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_disk::vfs::Disk;
use plimsoll_log::blob::BlobId;
use plimsoll_log::glsn::{Glsn, Position};
use plimsoll_log::log::Log;
use plimsoll_memory::budget::Budget;
use plimsoll_memory::pool::Pool;
use plimsoll_memory::sorted::SortedMap;

use crate::index::background::Threads;
use crate::index::core::{Core, lock};
use crate::index::files::run_of;
use crate::index::manifest::Manifest;
use crate::index::run::partition::{Partition, PartitionId, PartitionInfo};
use crate::index::seat::Seats;
use crate::index::source::Memtable;
use crate::index::view::{Content, View};
use crate::rowcache::Objects;
use crate::types::error::Result;
use crate::types::stats::IndexStats;
use crate::types::version::Version;

/// A memtable's part of the budget (one in so many), and its bounds in bytes.
const MEMTABLE_SHARE: u64 = 8;
const MEMTABLE_BYTES: (u64, u64) = (1 << 20, 64 << 20);

/// What the index stands on.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    pub(crate) disk: Arc<dyn Disk>,
    /// The index's folder; it exists.
    pub(crate) dir: PathBuf,
    pub(crate) budget: Budget,
    pub(crate) pool: Arc<Pool>,
    pub(crate) log: Arc<dyn Log>,
    /// Told what comes into the runs.
    pub(crate) objects: Arc<Objects>,
    /// Bytes at which a memtable is flushed, if somebody has said so.
    pub(crate) memtable_bytes: Option<u64>,
    /// A partition is cut at this many bytes.
    pub(crate) partition_bytes: u64,
    /// Bytes of input that one step of compaction passes.
    pub(crate) step_bytes: u64,
    /// Nothing on disk is changed.
    pub(crate) read_only: bool,
    /// Whether flush and compaction run in threads of their own. If not, `make_room` flushes where it must, and the owner calls the
    /// steps.
    pub(crate) background: bool,
}

impl Ground {
    /// Bytes at which a memtable is flushed: without a word from outside an eighth of what the budget is now.
    pub(crate) fn memtable_limit_bytes(&self) -> u64 {
        let (min, max) = MEMTABLE_BYTES;
        self.memtable_bytes.unwrap_or_else(|| (self.budget.limit_bytes() / MEMTABLE_SHARE).clamp(min, max))
    }
}

/// Which versions must be kept.
pub(crate) trait Horizon: Send + Sync {
    /// A version of `keyspace` may be dropped if a younger version of its key is not younger than this GLSN; a deletion may be dropped
    /// if it is itself not younger. `Glsn::NONE` keeps everything. Never above the oldest open snapshot.
    fn of(&self, keyspace: u32) -> Glsn;

    /// Log entries below this GLSN are wanted back: compaction copies live values that point below it into a blob file of plain bytes.
    /// `Glsn::NONE` where nothing is to be freed.
    fn relocate_below(&self) -> Glsn;
}

/// What a step of background work did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// There was nothing to do.
    Idle,
    /// Something was done; there may be more.
    Worked,
}

/// What the active memtable holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unflushed {
    /// Bytes of its entries.
    pub(crate) bytes: u64,
    /// Bytes of the log that have to be read to fill it again.
    pub(crate) log_bytes: u64,
    /// Its oldest commit.
    pub(crate) oldest: Glsn,
}

/// The index of a store.
#[derive(Debug)]
pub(crate) struct Index {
    core: Arc<Core>,
    threads: Threads,
}

impl Index {
    /// Opens the index as the manifest describes it; what the log holds beyond its checkpoint is replayed by the caller.
    ///
    /// Where nothing is written (`read_only`), a process that writes may take away files between the reading of the manifest and this
    /// call: an `Io` error of kind `NotFound` then says to read the manifest again.
    pub(crate) fn open(ground: Ground, manifest: Manifest, horizon: Arc<dyn Horizon>) -> Result<Arc<Index>> {
        let background = ground.background && !ground.read_only;
        let core = Arc::new(Core::open(ground, manifest, horizon)?);
        let threads = if background { Threads::start(&core)? } else { Threads::none() };
        Ok(Arc::new(Index { core, threads }))
    }

    /// The place in the log up to which the manifest's runs hold everything.
    pub(crate) fn checkpoint(&self) -> Position {
        self.core.head().checkpoint
    }

    /// The number of the last manifest: with another one, other files may hold what there is.
    pub(crate) fn manifest_number(&self) -> u64 {
        self.core.head().number
    }

    /// Takes over the manifest that another process has written since, if there is one: for an index that is open to read only.
    ///
    /// # Errors
    /// The manifest or a file that it names cannot be read, or the budget: the sources stay as they were.
    pub(crate) fn refresh(&self) -> Result<()> {
        self.core.refresh()
    }

    /// The sources as they are now.
    pub(crate) fn view(&self) -> Arc<View> {
        self.core.view()
    }

    /// The seats of walks over it.
    pub(crate) fn seats(&self) -> &Arc<Seats> {
        &self.core.seats
    }

    /// Makes sure that versions of `bytes` (see `entry_bytes`) can be inserted without failing. Where the active memtable is full, or the
    /// budget has no room for more of it, it is closed at `boundary` (the last GLSN applied) and a new one begun; where flushing lags,
    /// the caller flushes or is paced. Called by one committer at a time, in GLSN order; what an earlier call promised and was not
    /// used is taken back.
    ///
    /// # Errors
    /// The budget has no room and there is nothing left to flush; or a flush that was needed failed: nothing is lost, the next call tries
    /// again. An index that is open to read only has nowhere to flush to: its memtables grow as far as the budget lets them.
    pub(crate) fn make_room(&self, bytes: usize, boundary: Glsn) -> Result<()> {
        self.core.make_room(bytes, boundary)
    }

    /// Bytes that a version takes in a memtable at most.
    pub(crate) fn entry_bytes(key_bytes: usize, stored_bytes: usize) -> usize {
        SortedMap::entry_bytes(key_bytes, stored_bytes)
    }

    /// Puts a version into the active memtable. Room was made before. One that a run holds already (it is replayed) is left out.
    pub(crate) fn insert(&self, version: &Version<'_>) {
        self.core.insert(version);
    }

    /// As [`Index::insert`], for a version that comes once and that nobody looks for before [`Index::stop_deferring`]: several times cheaper where
    /// many come in no order. A memtable that is closed meanwhile is whole.
    pub(crate) fn defer(&self, version: &Version<'_>) {
        self.core.defer(version);
    }

    /// What was deferred is found from now on.
    pub(crate) fn stop_deferring(&self) {
        self.core.stop_deferring();
    }

    /// Says which keys are going to be inserted next: finding their places is cheaper for a few at a time.
    pub(crate) fn fetch(&self, keys: &[&[u8]]) {
        self.core.fetch(keys);
    }

    /// Makes sure that runs with these partitions can be adopted, and paces the caller as for other commits: called before the record that
    /// names them is submitted.
    ///
    /// # Errors
    /// The budget has no room for what is to be known of them.
    pub(crate) fn make_room_for_runs(&self, runs: &[Vec<PartitionInfo>]) -> Result<()> {
        self.core.make_room_for_runs(runs)
    }

    /// Takes over runs that a transaction wrote as blob files, newest first; every version in them has `glsn`. The active memtable is
    /// closed at `glsn - 1` first. Idempotent: what is in the index already is not taken twice. The budget never refuses: the record has its
    /// place in the log already.
    pub(crate) fn adopt(&self, runs: Vec<Vec<PartitionInfo>>, glsn: Glsn) -> Result<()> {
        self.core.adopt(runs, glsn)
    }

    /// Closes the active memtable at `boundary` and waits until everything up to it is in runs that the manifest names (flushing here
    /// where nobody else does).
    pub(crate) fn flush(&self, boundary: Glsn) -> Result<()> {
        self.core.flush_up_to(boundary)
    }

    /// Counts bytes of log entries whose versions were just put in, or are about to be: what a replay of the active memtable has to read.
    pub(crate) fn note_log_bytes(&self, bytes: u64) {
        self.core.note_log_bytes(bytes);
    }

    /// Writes the manifest anew, with the runs that there are, where the log is durable beyond what the last manifest says: with it the
    /// next process recognises a log that was cut back or exchanged.
    pub(crate) fn note_durable(&self) -> Result<()> {
        self.core.note_durable()
    }

    /// Closes the active memtable at `boundary`, the last GLSN applied, as if it were full: it is flushed by whoever does that.
    pub(crate) fn close_up_to(&self, boundary: Glsn) {
        self.core.close_up_to(boundary);
    }

    /// What the active memtable holds; `None` while another waits to be flushed.
    pub(crate) fn unflushed(&self) -> Option<Unflushed> {
        let view = self.view();
        let of = |table: &Memtable| Unflushed {
            bytes: table.map().used_bytes(),
            log_bytes: table.log_bytes(),
            oldest: table.min_glsn(),
        };
        view.closed.is_empty().then(|| of(&view.active))
    }

    /// Bytes at which a memtable is full.
    pub(crate) fn memtable_limit_bytes(&self) -> u64 {
        self.core.ground.memtable_limit_bytes()
    }

    /// Flushes the oldest closed source, if there is one, after making it durable.
    pub(crate) fn flush_step(&self) -> Result<Progress> {
        self.core.flush_step()
    }

    /// Does a bounded piece of compaction, if any is due; where nothing came in since the last call, also what makes reads cheaper.
    pub(crate) fn compact_step(&self) -> Result<Progress> {
        self.core.compact_step()
    }

    /// Compacts everything into as few runs as there can be: one current and one history run, with nothing in them that nobody needs.
    pub(crate) fn compact_all(&self) -> Result<()> {
        self.core.compact_all()
    }

    /// Moves every value that stands in a log entry below the horizon's `relocate_below` into a blob file: only partitions that hold such are
    /// rewritten.
    pub(crate) fn relocate(&self) -> Result<()> {
        self.core.relocate()
    }

    /// The budget is, or is going to be, `bytes`: objects get their share.
    pub(crate) fn resize_objects(&self, bytes: u64) {
        self.core.resize_objects(bytes);
    }

    /// The budget was changed: what compaction has set aside for a second job goes back where there is room for one only.
    pub(crate) fn fit_jobs(&self) {
        self.core.fit_jobs();
    }

    /// Oldest log entry that a value in a run points into.
    pub(crate) fn min_pointer(&self) -> Option<Glsn> {
        self.view().all_runs().filter_map(|run| run.min_pointer()).min()
    }

    /// Whether a blob file is a partition of the index or holds values of one, or is about to.
    pub(crate) fn uses_blob(&self, blob: BlobId) -> bool {
        // First those in work: one that is named in between is then found in the view.
        lock(&self.core.blobs_in_work).contains(&blob)
            || self
                .view()
                .infos()
                .any(|info| info.id == PartitionId::Blob(blob) || info.blobs.binary_search(&blob).is_ok())
    }

    /// The manifest as it stands, the run files that it names (its blob files belong to the log), and a view that keeps them.
    pub(crate) fn files(&self) -> (Manifest, Vec<PathBuf>, Arc<View>) {
        let (manifest, view) = self.core.manifest();
        let infos = manifest.runs.iter().flat_map(|run| &run.partitions);
        let paths = infos.filter_map(run_of).map(|run| self.core.files.path_of(run)).collect();
        (manifest, paths, view)
    }

    /// Reads every page of every run and checks it, see [`Core::verify`].
    pub(crate) fn verify(
        &self,
        each: &mut dyn FnMut(&Version<'_>),
        checked: &mut dyn FnMut(&Partition, Vec<String>),
        report: &mut dyn FnMut(String),
    ) -> Result<()> {
        self.core.verify(each, checked, report)
    }

    /// Counters.
    pub(crate) fn stats(&self) -> IndexStats {
        let view = self.view();
        let closed = view.closed.iter().filter_map(|closed| match &closed.content {
            Content::Memtable(table) => Some(table),
            Content::Adopted(_) => None,
        });
        let memtables: Vec<_> = std::iter::once(&view.active).chain(closed).collect();
        let counters = &self.core.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        IndexStats {
            memtable_bytes: memtables.iter().map(|table| table.map().held_bytes()).sum(),
            memtables: memtables.len() as u64,
            runs: view.runs.iter().map(|run| run.bytes()).collect(),
            depth: view.depth as u64,
            history_runs: view.history.iter().map(|run| run.bytes()).collect(),
            partitions: view.all_runs().map(|run| run.partitions().len() as u64).sum(),
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
        self.threads.stop(&self.core);
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        self.close();
    }
}
