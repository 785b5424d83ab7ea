//! The shared state of the index: the view, the manifest's head, and the locks.
//!
//! Lock order: the writer's; then the flush's or the compaction's (never both); then the record's;
//! then the view's, which only those take that replace it, for a few instructions. Files are
//! written and synced only under the job's own lock and the record's.

pub(crate) mod blobs;
mod check;

use std::collections::BTreeSet;
use std::fmt;
use std::io::ErrorKind;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use arc_swap::{ArcSwap, Guard};
use plimsoll_log::glsn::{Glsn, Position};
use plimsoll_memory::budget::{Backing, Budget, Kind, Lease};
use plimsoll_memory::chunk::CHUNK_BYTES;

use crate::borders::{Border, hit};
use crate::index::env::counters::Counters;
use crate::index::env::signals::Signals;
use crate::index::env::{Context, FreeLog, Horizon};
use crate::index::gaps::Gaps;
use crate::index::manifest::files::{Files, run_of};
use crate::index::manifest::limits::Limits;
use crate::index::manifest::{self, Head, Manifest, Outcome, number_after, run_infos};
use crate::index::plan::alignment::Alignment;
use crate::index::plan::debt::Debt;
use crate::index::plan::space::Space;
use crate::index::runs::blobs::Blobs;
use crate::index::sources::source::{Memtable, Run};
use crate::index::sources::view::{Content, View, depth, newest_in};
use crate::index::walk::seat::Seats;
use crate::index::write::output::OUTPUT_CHUNKS;
use crate::types::error::{Error, Lift, Result};
use crate::types::lock::lock;

/// How often a new keeper tries to install a manifest beside one that still does so.
const FENCE_TRIES: u32 = 16;

/// Chunks reserved for a flush: outputs for current and superseded versions.
const FLUSH_CHUNKS: u64 = 2 * OUTPUT_CHUNKS;

/// Divisor: a memtable's share of the budget. Its bounds in bytes follow.
const MEMTABLE_SHARE: u64 = 8;
const MEMTABLE_BYTES: (u64, u64) = (1 << 20, 64 << 20);

/// The state behind [`super::Index`].
pub(crate) struct Core {
    pub(crate) context: Context,
    pub(crate) horizon: Arc<dyn Horizon>,
    pub(crate) files: Arc<Files>,
    pub(crate) writer: Mutex<Writer>,
    /// What writers owe. A leaf: no other lock is taken under it.
    pub(crate) debt: Mutex<Debt>,
    /// Held during a flush.
    pub(crate) flush: Mutex<SetAside>,
    /// The last manifest without its runs; the lock is held while a manifest is written.
    pub(crate) record: Mutex<Head>,
    /// Read without a lock.
    view: ArcSwap<View>,
    /// Held while the view is replaced.
    replacing: Mutex<()>,
    pub(crate) seats: Arc<Seats>,
    pub(crate) gaps: Arc<Gaps>,
    pub(crate) space: Space,
    pub(crate) alignment: Alignment,
    pub(crate) signals: Signals,
    pub(crate) counters: Counters,
    /// The runs held everything up to this GLSN when the index was opened: replayed versions up to
    /// it are skipped.
    pub(crate) held: Glsn,
    /// The boundary of the source that was flushed last.
    pub(crate) flushed: AtomicU64,
    pub(crate) blobs: Arc<Blobs>,
    /// Frees the log; set when the store is open.
    pub(crate) free_log: OnceLock<Weak<dyn FreeLog>>,
    /// Held while this process tries to become the keeper.
    pub(crate) keeping: Mutex<()>,
    /// Held while it is told which part of the log is needed here.
    pub(crate) telling: Mutex<()>,
}

/// The state of the committing thread.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) active: Arc<Memtable>,
}

impl Writer {
    pub(crate) fn new(active: Arc<Memtable>) -> Self {
        Self { active }
    }
}

/// Memory reserved from the budget permanently, so that a job that frees memory never has to ask
/// for any. It is a budget of its own, which the store's budget counts as one lease.
#[derive(Debug)]
pub(crate) struct SetAside {
    pub(crate) budget: Budget,
    _lease: Lease,
}

impl SetAside {
    /// Reserves `chunks`.
    pub(crate) fn new(budget: &Budget, chunks: u64) -> Result<Self> {
        let bytes = chunks * CHUNK_BYTES as u64;
        let lease = budget.lease(Kind::Sort, bytes)?;
        Ok(Self { budget: Budget::new(bytes, Backing::Mapped)?, _lease: lease })
    }
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
    pub(crate) takes_closed: Option<Content>,
}

impl Core {
    /// Opens the files that the manifest names.
    pub(crate) fn open(
        context: Context,
        manifest: Manifest,
        horizon: Arc<dyn Horizon>,
    ) -> Result<Self> {
        if manifest.log_id != context.log.id() {
            return Err(Error::Forked {
                glsn: None,
                message: format!(
                    "{}: the index was made from another log; put the right log back",
                    context.dir.display()
                ),
            });
        }
        let files = Files::new(&context, manifest.next_run)?;
        let head = manifest.head();
        let (mut runs, mut history) = (Vec::new(), Vec::new());
        for info in manifest.runs {
            let members =
                info.tables.into_iter().map(|table| files.open(table)).collect::<Result<_>>()?;
            if info.history { &mut history } else { &mut runs }.push(Arc::new(Run::new(members)));
        }
        let active = Arc::new(Memtable::new(&context.budget));
        let limits = Arc::new(head.limits.clone());
        let depth = depth(runs.iter().map(|run| run.span()));
        let rows = context.row_cache.handle();
        let held =
            runs.iter().chain(&history).map(|run| run.max_glsn()).max().unwrap_or(Glsn::NONE);
        let gaps = Arc::new(Gaps::new(&context.budget, !context.duty.is_read_only(), held));
        let view = View {
            active: Arc::clone(&active),
            closed: Vec::new(),
            newest_in_runs: newest_in(&runs),
            runs,
            set: 0,
            rows,
            depth,
            history,
            limits,
            gaps: Arc::clone(&gaps),
        };
        let space = Space::default();
        space.note_runs(&view.runs);
        if context.duty.may_write() {
            let named: BTreeSet<u64> = view.infos().filter_map(run_of).collect();
            files.sweep(&files.names()?, head.number, |run| named.contains(&run))?;
        }
        let seats = Seats::new(&context.budget, &context.pool)?;
        context.budget.add_reclaimer(Arc::downgrade(&seats) as _);
        Ok(Self {
            writer: Mutex::new(Writer::new(active)),
            debt: Mutex::default(),
            flush: Mutex::new(SetAside::new(
                &context.budget,
                if context.duty.only_reads() { 1 } else { FLUSH_CHUNKS },
            )?),
            flushed: AtomicU64::new(head.checkpoint.glsn.0),
            record: Mutex::new(head),
            view: ArcSwap::from_pointee(view),
            replacing: Mutex::new(()),
            seats,
            gaps,
            space,
            alignment: Alignment::default(),
            signals: Signals::default(),
            counters: Counters::default(),
            blobs: Arc::default(),
            free_log: OnceLock::new(),
            keeping: Mutex::new(()),
            telling: Mutex::new(()),
            context,
            horizon,
            files,
            held,
        })
    }

    /// Bytes at which a memtable is flushed.
    pub(crate) fn memtable_limit_bytes(&self) -> u64 {
        let (min, max) = MEMTABLE_BYTES;
        let share = || (self.context.budget.limit_bytes() / MEMTABLE_SHARE).clamp(min, max);
        self.context.memtable_bytes.unwrap_or_else(|| share().min(self.space.memtable_bytes()))
    }

    /// Percent of what is live that may be superseded in the runs.
    pub(crate) fn superseded_max(&self) -> u64 {
        self.space.superseded_max(self.context.budget.limit_bytes())
    }

    /// Frees what can be freed of the log; closes the memtable for that if it may.
    pub(crate) fn free_log(&self, may_flush: bool) {
        if let Some(free_log) = self.free_log.get().and_then(Weak::upgrade) {
            free_log.free_log(may_flush);
        }
    }

    /// The sources as they are now, to be kept.
    pub(crate) fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// The sources as they are now, for a short look: without a write to memory that other threads
    /// use.
    pub(crate) fn current_view(&self) -> Guard<Arc<View>> {
        self.view.load()
    }

    /// Changes the view.
    pub(crate) fn swap_view(&self, change: impl FnOnce(&mut View)) {
        let replacing = lock(&self.replacing);
        let mut view = View::clone(&self.view.load());
        change(&mut view);
        let old = self.view.swap(Arc::new(view));
        drop(replacing);
        // Outside the lock: this may be the last reference to files that are to be removed.
        drop(old);
    }

    /// The last manifest without its runs.
    pub(crate) fn head(&self) -> Head {
        lock(&self.record).clone()
    }

    /// The current manifest, and a view that holds exactly its files and those that no manifest
    /// names yet; no memtable. They stay for as long as the view is kept.
    pub(crate) fn manifest(&self) -> (Manifest, Arc<View>) {
        // The record's lock excludes changes of the runs.
        let record = lock(&self.record);
        let view = self.view();
        let infos = |run: &Arc<Run>| run.infos().cloned().collect();
        let current =
            view.runs.iter().map(|run| manifest::RunInfo { history: false, tables: infos(run) });
        let history =
            view.history.iter().map(|run| manifest::RunInfo { history: true, tables: infos(run) });
        let runs = current.chain(history).collect();
        let files = Arc::new(view.of_files(&self.context.budget));
        self.blobs.job_reads(&files);
        (Manifest::of(record.clone(), runs), files)
    }

    /// The certified log position at `boundary`, if a record ends there. It does wherever commits
    /// are applied in the order of their records. If not, the old checkpoint stays, and the
    /// versions in between are replayed at the next open and recognised by their GLSNs.
    pub(crate) fn place_of(&self, boundary: Glsn) -> Result<Option<Position>> {
        if boundary == Glsn::NONE {
            return Ok(None);
        }
        Ok(self
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
        if term.is_none() || self.context.duty.term() != term {
            return Err((Outcome::Old, self.not_keeper()));
        }
        self.context.log.check_own().map_err(|error| (Outcome::Old, Error::of_log(error)))?;
        let change = plan(&self.view());
        let mut head = record.clone();
        head.number = number_after(head.number).map_err(|error| (Outcome::Old, error))?;
        head.durable = self.context.log.position();
        head.next_run = self.files.next_run();
        head.limits.merge(&change.limits);
        // What is flushed may be older than what another keeper has flushed.
        if let Some(checkpoint) = change.checkpoint.filter(|new| new.glsn > head.checkpoint.glsn) {
            head.checkpoint = checkpoint;
        }
        if let Err((outcome, error)) = self.write_manifest(&head, &change) {
            if outcome == Outcome::Overtaken {
                // One that the other keeper has gone on from may name them.
                guards(&change.added).for_each(|guard| guard.set_obsolete(false));
            }
            if matches!(outcome, Outcome::Taken | Outcome::Overtaken)
                && let Some(members) = self.context.duty.members()
            {
                // By the keeper that has replaced this one; or by one that this one has replaced,
                // which was stopped while it took over, went on and sweeps what that manifest does
                // not name.
                members.lose_place();
                return Err((outcome, self.not_keeper()));
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
        let set = change.takes_closed.as_ref().map(|content| self.tell_row_cache(content));
        self.swap_view(|view| {
            if let Some(set) = set {
                view.closed.pop();
                view.set = set;
            }
            view.newest_in_runs = newest_in(&change.runs);
            self.space.note_runs(&change.runs);
            view.runs = change.runs;
            view.depth = depth;
            view.history = change.history;
            view.limits = limits;
        });
        if let Some(members) = self.context.duty.members() {
            members.set_manifest(record.number);
        }
        self.blobs.note_removed(change.removed.iter().flat_map(|run| run.infos()));
        drop(record);
        drop((change.removed, change.added, change.takes_closed));
        self.seats.exchanged();
        Ok(())
    }

    /// Rewrites the manifest with the current runs if the log is durable beyond the durable place
    /// in the last manifest.
    pub(crate) fn note_durable(&self) -> Result<()> {
        let term = self.context.duty.term();
        if term.is_none() || self.head().durable == self.context.log.position() {
            return Ok(());
        }
        self.install(term, |view| Change {
            removed: Vec::new(),
            added: Vec::new(),
            runs: view.runs.clone(),
            history: view.history.clone(),
            limits: Limits::default(),
            checkpoint: None,
            takes_closed: None,
        })
        .map_err(|(_, error)| error)
    }

    /// Installs a manifest that changes nothing: from now on no keeper before this one can install
    /// any.
    pub(crate) fn fence(&self) -> Result<()> {
        let mut tries = 0;
        loop {
            tries += 1;
            self.refresh()?;
            if self.context.duty.members().is_some_and(|members| !members.may_keep()) {
                // Replaced before it had begun, because it was stopped: what it installs would stop
                // the keeper.
                return Err(self.not_keeper());
            }
            self.context.log.check_own().lift()?;
            let mut record = lock(&self.record);
            let view = self.view();
            let mut head = record.clone();
            head.number = number_after(head.number)?;
            head.next_run = self.files.next_run().max(head.next_run);
            let change = Change {
                removed: Vec::new(),
                added: Vec::new(),
                runs: view.runs.clone(),
                history: view.history.clone(),
                limits: Limits::default(),
                checkpoint: None,
                takes_closed: None,
            };
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

    /// This process does not write the files now.
    pub(crate) fn not_keeper(&self) -> Error {
        Error::NotKeeper {
            pid: self.context.duty.members().and_then(|members| members.keeper_pid()),
        }
    }

    /// The error of a job that was begun in `term`. If another process has replaced this one as the
    /// keeper since, the files that the job was writing may have been swept: that a file is missing
    /// only says so.
    pub(crate) fn of_job(&self, term: Option<u64>, error: Error) -> Error {
        let is_missing = matches!(error, Error::Io { kind: ErrorKind::NotFound, .. });
        if is_missing && self.context.duty.term() != term { self.not_keeper() } else { error }
    }

    /// Invalidates cached rows whose keys have younger versions in the runs to be added. Called
    /// under the record's lock, before these runs are visible. Returns the number of the new set of
    /// runs.
    fn tell_row_cache(&self, content: &Content) -> u64 {
        let row_cache = &self.context.row_cache;
        let set = self.view().set + 1;
        if row_cache.begin_runs(set) {
            match content {
                Content::Memtable(memtable) => memtable.for_each_newest(|version| {
                    row_cache.supersede(version.key, version.glsn, version.stored);
                }),
                // There may be as many keys as fit on the disk: reading them would cost more than
                // loading the dropped rows again.
                Content::Adopted(_) => row_cache.clear(),
            }
        }
        set
    }

    /// Resizes the row cache to its share of a budget of `bytes`. If the cache has to start empty,
    /// views switch to the new one with it.
    pub(crate) fn resize_row_cache(&self, bytes: u64) {
        let row_cache = &self.context.row_cache;
        // Eviction runs beside other work; only the exchange itself needs the record's lock.
        let Some(exchange) = row_cache.resize(bytes) else { return };
        let record = lock(&self.record);
        let before = row_cache.exchange(exchange);
        let set = self.view().set + 1;
        row_cache.begin_runs(set);
        self.swap_view(|view| (view.set, view.rows) = (set, row_cache.handle()));
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
        let writer = self.context.duty.writer();
        manifest::write(
            disk,
            dir,
            writer,
            head,
            runs.iter().map(|(history, run)| (*history, run_infos(run.tables()))),
        )
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Core({})", self.context.dir.display())
    }
}

fn guards(
    runs: &[Arc<Run>],
) -> impl Iterator<Item = &Arc<crate::index::manifest::files::FileGuard>> {
    runs.iter().flat_map(|run| run.guards())
}
