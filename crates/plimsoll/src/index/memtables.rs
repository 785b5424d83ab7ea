//! The owner of the memtables: room for commits in the active one, and flushes of the closed ones.
//! [`flush_policy`] decides when a memtable is closed.
//!
//! Invariants:
//! 1. Room that `reserve` promised is reserved until the [`Reservation`] is used or dropped:
//!    neither inserting the promised versions nor flushing a memtable that holds them can run out
//!    of memory.
//! 2. A writer waits for a flush by running it, or by queueing for the flush lock behind the thread
//!    that runs it, so it never waits for a thread that may have ended.
//! 3. Where possible, a writer waits for a flush before it takes the commit lock
//!    ([`Memtables::wait_for_room`]), so that others can commit in the meantime. It never waits for
//!    a flush while it holds the append lock of all processes ([`Memtables::try_reserve`]).

mod flush;
pub(crate) mod flush_policy;
pub(crate) mod reservation;

use std::fmt;
use std::sync::{Arc, Mutex};

use plimsoll_log::glsn::Glsn;
use plimsoll_log::members::Members;
use plimsoll_memory::budget::OutOfBudget;

use crate::index::env::counters::Counters;
use crate::index::env::stalls::Cause;
use crate::index::env::{Env, Progress};
use crate::index::gaps::Gaps;
use crate::index::manifest::files::metadata_bytes;
use crate::index::memtables::flush_policy::Unflushed;
use crate::index::memtables::reservation::Reservation;
use crate::index::run::table::{Table, TableId, TableInfo};
use crate::index::runs::Runs;
use crate::index::shared::follow::Following;
use crate::index::sources::Sources;
use crate::index::sources::source::{Memtable, Run};
use crate::index::sources::view::{Closed, Content};
use crate::index::write::SetAside;
use crate::index::write::output::OUTPUT_CHUNKS;
use crate::types::error::{Error, Result};
use crate::types::events;
use crate::types::lock::lock;

/// Chunks reserved for a flush: outputs for current and superseded versions.
const FLUSH_CHUNKS: u64 = 2 * OUTPUT_CHUNKS;

/// The memtables. They hold the versions that are not in any run yet.
pub(crate) struct Memtables {
    env: Arc<Env>,
    sources: Arc<Sources>,
    runs: Arc<Runs>,
    following: Arc<Following>,
    gaps: Arc<Gaps>,
    /// The active memtable, for the committing thread.
    writer: Mutex<Arc<Memtable>>,
    /// Held during a flush.
    flush: Mutex<SetAside>,
}

/// The next action of a caller that needs room.
enum Next<'a> {
    Done(Reservation<'a>),
    /// A memtable was closed: try again.
    Again,
    /// A flush is needed; with the error if the budget refused.
    Flush(Option<OutOfBudget>),
}

impl Memtables {
    /// Reserves the memory for flushes.
    pub(crate) fn new(runs: &Arc<Runs>, following: &Arc<Following>) -> Result<Self> {
        let context = &runs.env.context;
        let chunks = if context.role.only_reads() { 1 } else { FLUSH_CHUNKS };
        let view = runs.sources.view();
        Ok(Self {
            flush: Mutex::new(SetAside::new(&context.budget, chunks)?),
            env: Arc::clone(&runs.env),
            sources: Arc::clone(&runs.sources),
            runs: Arc::clone(runs),
            following: Arc::clone(following),
            gaps: Arc::clone(&view.gaps),
            writer: Mutex::new(Arc::clone(&view.active)),
        })
    }

    /// Reserves room so that versions of `bytes` (see `SortedMap::entry_bytes`) can be inserted
    /// without failing. If the active memtable is full, or the budget has no room to grow it, it is
    /// closed at `boundary` (the last GLSN applied) and a new one is started. If flushing lags
    /// behind, the caller flushes or is slowed down. Called by one committer at a time, in GLSN
    /// order, after the previous reservation was dropped.
    ///
    /// # Errors
    /// The budget has no room and there is nothing left to flush; or a necessary flush failed.
    /// Nothing is lost, and the next call tries again. A read-only index cannot flush: its
    /// memtables grow as far as the budget allows.
    pub(crate) fn reserve(&self, bytes: usize, boundary: Glsn) -> Result<Reservation<'_>> {
        let mut stalled_nanos = 0;
        let reservation = loop {
            match self.reserve_or_close(bytes, boundary) {
                Next::Done(reservation) => break reservation,
                Next::Again => {}
                Next::Flush(refusal) => {
                    let start = self.env.context.clock.monotonic_nanos();
                    let progress = self.flush_step()?;
                    stalled_nanos += (self.env.context.clock.monotonic_nanos() - start).max(1);
                    if progress == Progress::Idle && self.env.signals.is_closing() {
                        return Err(Error::Closed);
                    }
                    if progress == Progress::Idle
                        && (self.env.role().only_reads()
                            || self.sources.current_view().closed.is_empty())
                        && let Some(refusal) = refusal
                    {
                        // Retry once, because memory may just have been released.
                        return match self.reserve_or_close(bytes, boundary) {
                            Next::Done(reservation) => Ok(reservation),
                            _ => Err(refusal.into()),
                        };
                    }
                }
            }
        };
        if stalled_nanos > 0 {
            self.env.counters.stalls.note(Cause::Room, stalled_nanos);
        }
        Ok(reservation)
    }

    /// Like [`Memtables::reserve`], without waiting: `None` if a memtable has to be flushed
    /// first.
    pub(crate) fn try_reserve(&self, bytes: usize, boundary: Glsn) -> Option<Reservation<'_>> {
        loop {
            match self.reserve_or_close(bytes, boundary) {
                Next::Done(reservation) => return Some(reservation),
                Next::Again => {}
                Next::Flush(_) => return None,
            }
        }
    }

    /// Flushes as long as a commit of `bytes` would find no room otherwise. The commit may still
    /// have to wait in [`Memtables::reserve`], because others may take the room first.
    pub(crate) fn wait_for_room(&self, bytes: usize) -> Result<()> {
        let mut stalled_nanos = 0;
        // A closing index is flushed by the thread that closes it, which then releases the folder.
        let may_flush = || !self.env.role().is_read_only() && !self.env.signals.is_closing();
        while may_flush()
            && self.is_full(&self.sources.current_view().active, bytes)
            && self.closed_memtables() >= self.closed_max()
        {
            let start = self.env.context.clock.monotonic_nanos();
            let progress = self.flush_step()?;
            stalled_nanos += (self.env.context.clock.monotonic_nanos() - start).max(1);
            if progress == Progress::Idle {
                break;
            }
        }
        if stalled_nanos > 0 {
            self.env.counters.stalls.note(Cause::Room, stalled_nanos);
        }
        Ok(())
    }

    fn is_full(&self, active: &Memtable, bytes: usize) -> bool {
        flush_policy::is_full(active, bytes, self.limit_bytes())
    }

    /// The size at which a memtable is full.
    pub(crate) fn limit_bytes(&self) -> u64 {
        let context = &self.env.context;
        context.memtable_bytes.unwrap_or_else(|| {
            let space = &self.runs.space;
            let budget_bytes = context.budget.limit_bytes();
            flush_policy::limit_bytes(budget_bytes, space.run_bytes(), space.has_been_overwritten())
        })
    }

    fn reserve_or_close(&self, bytes: usize, boundary: Glsn) -> Next<'_> {
        let mut active = lock(&self.writer);
        let is_full = self.is_full(&active, bytes);
        // A read-only index cannot flush: the memtable grows as long as the budget allows.
        let refusal = match !is_full || self.env.role().is_read_only() {
            true => match self.reserve_in(&active, bytes) {
                Ok(reservation) => return Next::Done(reservation),
                Err(refusal) => Some(refusal),
            },
            false => None,
        };
        let may_close = flush_policy::may_close(
            self.env.role(),
            refusal.is_some(),
            self.closed_memtables() < self.closed_max(),
        );
        if active.is_empty() || !may_close {
            return Next::Flush(refusal);
        }
        self.close_active(&mut active, boundary);
        Next::Again
    }

    fn reserve_in(
        &self,
        memtable: &Arc<Memtable>,
        bytes: usize,
    ) -> Result<Reservation<'_>, OutOfBudget> {
        if !self.env.role().only_reads() {
            // Refill the reserve before the memtable takes chunks, because the memtable would keep
            // them even if the refill fails.
            self.runs.files.fill_reserve()?;
        }
        memtable.map().reserve(bytes)?;
        Ok(Reservation::new(&self.env.counters, &self.gaps, self.runs.held, memtable, bytes))
    }

    fn closed_memtables(&self) -> usize {
        self.sources
            .current_view()
            .closed
            .iter()
            .filter(|closed| matches!(closed.content, Content::Memtable(_)))
            .count()
    }

    /// Number of memtables that may wait to be flushed before writers have to wait.
    pub(crate) fn closed_max(&self) -> usize {
        flush_policy::closed_max(self.env.context.budget.limit_bytes())
    }

    fn close_active(&self, active: &mut Arc<Memtable>, boundary: Glsn) {
        active.map().stop_deferring();
        let next = Arc::new(Memtable::new(&self.env.context.budget));
        let closed = Closed { content: Content::Memtable(Arc::clone(active)), boundary };
        self.sources.publish(|view| {
            view.closed.insert(0, closed);
            view.active = Arc::clone(&next);
        });
        *active = next;
        self.env.signals.call_flush();
    }

    /// Makes versions inserted with `Link::Later` visible to lookups.
    pub(crate) fn settle(&self) {
        lock(&self.writer).map().settle();
    }

    /// As [`Memtables::settle`], at the end of a replay. Also frees the list of deferred versions,
    /// because few are inserted later.
    pub(crate) fn stop_deferring(&self) {
        lock(&self.writer).map().stop_deferring();
    }

    /// Reserves memory for the metadata of these tables so that the runs can be adopted. Called
    /// before the record that names them is submitted.
    ///
    /// # Errors
    /// The budget has no room for the metadata.
    pub(crate) fn reserve_for_runs<'t>(
        &self,
        tables: impl Iterator<Item = &'t TableInfo>,
    ) -> Result<()> {
        Ok(self.runs.files.reserve(tables.map(metadata_bytes).sum())?)
    }

    /// Adopts (ingests) runs that a transaction wrote as blob files, newest first; every version in
    /// them has `glsn`. The active memtable is first closed at `glsn - 1`. Idempotent: runs that
    /// are already in the index are skipped. It cannot fail, because the record is already ordered
    /// in the log: the tables are open, and neither the budget nor the disk is used.
    pub(crate) fn adopt(&self, runs: Vec<Vec<Table>>, glsn: Glsn) {
        if glsn <= self.runs.held {
            return;
        }
        let mut active = lock(&self.writer);
        let view = self.sources.current_view();
        // A member may have loaded a manifest that names these tables before it applies their
        // record. Only now are cached rows and gaps of their keys known to be outdated.
        let member = |table: Table| {
            let mut members =
                view.all_runs().flat_map(|run| (0..run.tables().len()).map(|at| run.member(at)));
            members
                .find(|known| known.info().id == table.info.id)
                .unwrap_or_else(|| self.runs.files.adopt(table))
        };
        let mut adopted = Vec::with_capacity(runs.len());
        for run in runs.into_iter().filter(|run| !run.is_empty()) {
            let members = run.into_iter().map(|table| {
                debug_assert!(
                    matches!(table.info.id, TableId::Blob(_))
                        && table.info.fixed_glsn == Some(glsn)
                );
                member(table)
            });
            adopted.push(Arc::new(Run::new(members.collect())));
        }
        for info in adopted.iter().flat_map(|run| run.infos()) {
            let puts = info.deletions < info.versions;
            self.gaps.adopt(glsn, &info.first_key, &info.last_key, puts);
        }
        let bytes = adopted.iter().map(|run| run.bytes()).sum();
        if !active.is_empty() {
            self.close_active(&mut active, Glsn(glsn.0.saturating_sub(1)));
        }
        self.sources.publish(|view| {
            view.closed.insert(0, Closed { content: Content::Adopted(adopted), boundary: glsn })
        });
        Counters::add(&self.env.counters.bytes_in, bytes);
        self.env.signals.call_flush();
    }

    /// Closes the active memtable at `boundary`, unless a memtable already ends there.
    pub(crate) fn close_up_to(&self, boundary: Glsn) {
        let mut active = lock(&self.writer);
        // Close an empty memtable as well, so that the checkpoint moves past entries that are not
        // transactions.
        let closed_at =
            self.sources.current_view().closed.first().map_or(Glsn::NONE, |closed| closed.boundary);
        if !active.is_empty() || (!self.runs.is_flushed(boundary) && closed_at < boundary) {
            self.close_active(&mut active, boundary);
        }
    }

    /// Like [`Memtables::close_up_to`], but does nothing while another memtable waits to be
    /// flushed, so that repeated calls do not pile up memtables.
    pub(crate) fn close_if_none_waits(&self, boundary: Glsn) {
        if self.unflushed().is_some() {
            self.close_up_to(boundary);
        }
    }

    /// The contents of the active memtable; `None` while another memtable waits to be flushed.
    pub(crate) fn unflushed(&self) -> Option<Unflushed> {
        let view = self.sources.view();
        let of = |memtable: &Memtable| Unflushed {
            bytes: memtable.map().used_bytes(),
            log_bytes: memtable.log_bytes(),
            blob_bytes: memtable.blob_bytes(),
            oldest: memtable.min_glsn(),
        };
        view.closed.is_empty().then(|| of(&view.active))
    }

    /// Whether a memtable is being flushed or about to be, and the last flush did not fail.
    pub(crate) fn is_flushing(&self) -> bool {
        !self.sources.view().closed.is_empty() && !self.env.signals.has_flush_failed()
    }

    /// Closes the active memtable at `boundary` and waits until all versions up to it are in runs
    /// that the manifest names. Flushes on this thread if there is no flush job.
    pub(crate) fn flush_up_to(&self, boundary: Glsn) -> Result<()> {
        if self.env.role().is_read_only() {
            return Ok(());
        }
        self.close_up_to(boundary);
        while !self.runs.is_flushed(boundary) {
            if self.flush_step()? == Progress::Idle {
                break;
            }
        }
        Ok(())
    }

    /// Makes the oldest closed source durable in the log and flushes it, if there is one. In a
    /// member that is not the keeper: waits until the keeper has flushed it.
    pub(crate) fn flush_step(&self) -> Result<Progress> {
        let role = &self.env.role();
        if role.is_read_only() {
            return Ok(Progress::Idle);
        }
        if let Some(members) = role.followed() {
            return self.following.step(members);
        }
        if role.members().is_some() && self.runs.release_held() {
            // A previous keeper has flushed it already.
            return Ok(Progress::Worked);
        }
        let set_aside = lock(&self.flush);
        let term = role.term();
        let Some(closed) = self.sources.view().closed.last().cloned() else {
            return Ok(Progress::Idle);
        };
        let start = self.env.context.clock.monotonic_nanos();
        let done = flush::flush(&self.runs, &set_aside, &closed, term)
            .map_err(|error| role.of_job(term, error));
        drop(set_aside);
        if let Ok(flushed) = &done {
            let nanos = self.env.context.clock.monotonic_nanos() - start;
            Counters::add(&self.env.counters.flushes, 1);
            Counters::add(&self.env.counters.flush_nanos, nanos);
            events::flushed(closed.boundary, || flushed.tables(), flushed.written_bytes, nanos);
        }
        if matches!(done, Err(Error::NotKeeper { .. })) {
            // Another process has become the keeper, and flushes.
            return Ok(Progress::Worked);
        }
        self.env.signals.flush_ended(done.as_ref().err());
        done.map(|_| Progress::Worked)
    }

    /// Waits for a flush on another thread.
    pub(crate) fn wait(&self) {
        drop(lock(&self.flush));
    }

    /// Loads the newest manifest if another process has written one. The memtables of a read-only
    /// index then hold only the versions after the checkpoint. For a member see
    /// [`Following::load_newest_manifest`].
    ///
    /// # Errors
    /// As for [`Runs::refresh`].
    pub(crate) fn refresh(&self) -> Result<()> {
        if let Some(members) = self.env.role().followed() {
            return self.following.load_newest_manifest(members).map(|_| ());
        }
        let mut writer = lock(&self.writer);
        let is_member = self.env.role().members().is_some();
        self.runs.refresh(|view, checkpoint| {
            if is_member {
                return Ok(None);
            }
            let active = self.copy_after(&view.active, checkpoint)?;
            let mut closed = Vec::new();
            for source in view.closed.iter().filter(|source| source.boundary > checkpoint) {
                let content = match &source.content {
                    Content::Memtable(memtable) => {
                        Content::Memtable(self.copy_after(memtable, checkpoint)?)
                    }
                    adopted @ Content::Adopted(_) => adopted.clone(),
                };
                closed.push(Closed { content, boundary: source.boundary });
            }
            *writer = Arc::clone(&active);
            Ok(Some((active, closed)))
        })
    }

    /// A copy of the part of a memtable that is after the checkpoint.
    fn copy_after(&self, memtable: &Arc<Memtable>, checkpoint: Glsn) -> Result<Arc<Memtable>> {
        if memtable.min_glsn() > checkpoint {
            return Ok(Arc::clone(memtable));
        }
        let rest = Memtable::new(&self.env.context.budget);
        let mut at = memtable.map().first();
        while let Some(position) = at {
            let entry = memtable.map().at(position);
            if entry.order > checkpoint.0 {
                rest.inserter(Glsn(entry.order)).insert(
                    entry.key,
                    entry.order,
                    [entry.value, &[]],
                )?;
            }
            at = memtable.map().next(position);
        }
        Ok(Arc::new(rest))
    }

    /// See [`Following::leap`]. This process has applied everything up to `applied`.
    pub(crate) fn leap(&self, members: &Members, applied: Glsn) -> Result<Glsn> {
        self.close_up_to(applied);
        self.following.leap(members)
    }

    /// Continues from the checkpoint of the known manifest if it is after `applied` (the last
    /// commit that this process has applied) and before `next` (the first log entry that it has not
    /// read). Returns that checkpoint. The caller must not apply anything else at the same time.
    pub(crate) fn skip_to_checkpoint(
        &self,
        members: &Members,
        applied: Glsn,
        next: Glsn,
    ) -> Option<Glsn> {
        let may_pass = |checkpoint: Glsn| applied < checkpoint && checkpoint < next;
        if !may_pass(self.runs.checkpoint().glsn) {
            return None;
        }
        self.close_up_to(applied);
        self.following.skip_to_checkpoint(members, may_pass)
    }
}

impl fmt::Debug for Memtables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memtables({:?})", self.env)
    }
}
