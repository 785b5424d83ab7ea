//! Makes room for commits: the active memtable, and when it is closed.
//!
//! Laws:
//! 1. Room that `make_room` promised is reserved until the [`Reservation`] is used or dropped:
//!    inserting the promised versions cannot run out of memory, and neither can the flush of a
//!    memtable that holds them.
//! 2. A writer waits for a flush by doing it, or by queueing for the flush lock behind the thread
//!    that does: no writer waits for a thread that may have ended.
//! 3. A writer waits for a flush before it takes the commit lock, where it can
//!    ([`Core::wait_for_room`]): others commit meanwhile. It never does while it has the members'
//!    turn ([`Core::make_room_now`]).

mod flush;
pub(crate) mod reservation;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::OutOfBudget;

use crate::index::env::Progress;
use crate::index::env::counters::Counters;
use crate::index::env::stalls::Cause;
use crate::index::manifest::files::metadata_bytes;
use crate::index::memtables::reservation::Reservation;
use crate::index::run::table::{Table, TableId, TableInfo};
use crate::index::runs::{Core, Writer};
use crate::index::sources::source::{Memtable, Run};
use crate::index::sources::view::{Closed, Content};
use crate::types::error::{Error, Result};
use crate::types::lock::lock;

/// Memtables that may wait to be flushed: one in a small budget, two from this many bytes on.
const TWO_CLOSED_BYTES: u64 = 64 << 20;

/// The next action of a caller that needs room.
enum Next<'a> {
    Done(Reservation<'a>),
    /// A memtable was closed.
    Again,
    /// A flush is needed; the error, if the budget refused.
    Flush(Option<OutOfBudget>),
}

impl Core {
    pub(crate) fn make_room(&self, bytes: usize, boundary: Glsn) -> Result<Reservation<'_>> {
        let mut stalled_nanos = 0;
        let reservation = loop {
            match self.try_to_make_room(bytes, boundary) {
                Next::Done(reservation) => break reservation,
                Next::Again => {}
                Next::Flush(refusal) => {
                    let start = self.context.clock.monotonic_nanos();
                    let progress = self.flush_step()?;
                    stalled_nanos += (self.context.clock.monotonic_nanos() - start).max(1);
                    if progress == Progress::Idle && self.signals.is_closing() {
                        return Err(Error::Closed);
                    }
                    if progress == Progress::Idle
                        && (self.context.duty.only_reads() || self.current_view().closed.is_empty())
                        && let Some(refusal) = refusal
                    {
                        // Try once more: memory may just have been released.
                        return match self.try_to_make_room(bytes, boundary) {
                            Next::Done(reservation) => Ok(reservation),
                            _ => Err(refusal.into()),
                        };
                    }
                }
            }
        };
        if stalled_nanos > 0 {
            self.counters.stalls.note(Cause::Room, stalled_nanos);
        }
        Ok(reservation)
    }

    /// As [`Core::make_room`], where that waits for nothing: `None` if a memtable has to be flushed
    /// before.
    pub(crate) fn make_room_now(&self, bytes: usize, boundary: Glsn) -> Option<Reservation<'_>> {
        loop {
            match self.try_to_make_room(bytes, boundary) {
                Next::Done(reservation) => return Some(reservation),
                Next::Again => {}
                Next::Flush(_) => return None,
            }
        }
    }

    /// Flushes while a commit of `bytes` would find no room without that. The commit may still have
    /// to wait in [`Core::make_room`]: others may take the room before it.
    pub(crate) fn wait_for_room(&self, bytes: usize) -> Result<()> {
        let mut stalled_nanos = 0;
        // A closing index is flushed by who closes it, who then gives the folder back.
        let may_flush = || !self.context.duty.is_read_only() && !self.signals.is_closing();
        while may_flush() && self.is_full(bytes) && self.closed_memtables() >= self.closed_max() {
            let start = self.context.clock.monotonic_nanos();
            let progress = self.flush_step()?;
            stalled_nanos += (self.context.clock.monotonic_nanos() - start).max(1);
            if progress == Progress::Idle {
                break;
            }
        }
        if stalled_nanos > 0 {
            self.counters.stalls.note(Cause::Room, stalled_nanos);
        }
        Ok(())
    }

    fn is_full(&self, bytes: usize) -> bool {
        let active = &self.current_view().active;
        !active.is_empty() && active.map().used_bytes() + bytes as u64 > self.memtable_limit_bytes()
    }

    fn try_to_make_room(&self, bytes: usize, boundary: Glsn) -> Next<'_> {
        let mut writer = lock(&self.writer);
        let empty = writer.active.is_empty();
        let full = writer.active.map().used_bytes() + bytes as u64 > self.memtable_limit_bytes();
        // A read-only index cannot flush: the memtable grows as long as the budget allows.
        let refusal = match !full || empty || self.context.duty.is_read_only() {
            true => match self.reserve(&writer.active, bytes) {
                Ok(reservation) => return Next::Done(reservation),
                Err(refusal) => Some(refusal),
            },
            false => None,
        };
        // One that follows others and only reads may wait long for their flush: it closes as many
        // as the budget allows.
        let may_close = match (self.context.duty.is_read_only(), self.context.duty.only_reads()) {
            (true, _) => false,
            (false, true) => refusal.is_none(),
            (false, false) => self.closed_memtables() < self.closed_max(),
        };
        if empty || !may_close {
            return Next::Flush(refusal);
        }
        self.close_active(&mut writer, boundary);
        Next::Again
    }

    fn reserve(
        &self,
        memtable: &Arc<Memtable>,
        bytes: usize,
    ) -> Result<Reservation<'_>, OutOfBudget> {
        if !self.context.duty.only_reads() {
            // First: chunks of a memtable are kept, and it may be empty.
            self.files.fill_reserve()?;
        }
        memtable.map().reserve(bytes)?;
        Ok(Reservation::new(&self.counters, &self.gaps, self.held, memtable, bytes))
    }

    fn closed_memtables(&self) -> usize {
        self.current_view()
            .closed
            .iter()
            .filter(|closed| matches!(closed.content, Content::Memtable(_)))
            .count()
    }

    pub(super) fn closed_max(&self) -> usize {
        if self.context.budget.limit_bytes() < TWO_CLOSED_BYTES { 1 } else { 2 }
    }

    fn close_active(&self, writer: &mut Writer, boundary: Glsn) {
        writer.active.map().stop_deferring();
        let next = Arc::new(Memtable::new(&self.context.budget));
        let closed = Closed { content: Content::Memtable(Arc::clone(&writer.active)), boundary };
        self.swap_view(|view| {
            view.closed.insert(0, closed);
            view.active = Arc::clone(&next);
        });
        writer.active = next;
        self.signals.call_flush();
    }

    pub(crate) fn settle(&self) {
        lock(&self.writer).active.map().settle();
    }

    pub(crate) fn stop_deferring(&self) {
        lock(&self.writer).active.map().stop_deferring();
    }

    pub(crate) fn make_room_for_runs<'t>(
        &self,
        tables: impl Iterator<Item = &'t TableInfo>,
    ) -> Result<()> {
        Ok(self.files.make_room(tables.map(metadata_bytes).sum())?)
    }

    pub(crate) fn adopt(&self, runs: Vec<Vec<Table>>, glsn: Glsn) {
        if glsn <= self.held {
            return;
        }
        let mut writer = lock(&self.writer);
        let view = self.current_view();
        // A member may have read a manifest that names them before it takes in their record: only
        // then are older rows and gaps of their keys known to be none.
        let member = |table: Table| {
            let mut members =
                view.all_runs().flat_map(|run| (0..run.tables().len()).map(|at| run.member(at)));
            members
                .find(|known| known.info().id == table.info.id)
                .unwrap_or_else(|| self.files.adopt(table))
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
        for info in
            adopted.iter().flat_map(|run| run.infos()).filter(|info| info.deletions < info.versions)
        {
            self.gaps.adopt(glsn, &info.first_key, &info.last_key);
        }
        let bytes = adopted.iter().map(|run| run.bytes()).sum();
        if !writer.active.is_empty() {
            self.close_active(&mut writer, Glsn(glsn.0.saturating_sub(1)));
        }
        self.swap_view(|view| {
            view.closed.insert(0, Closed { content: Content::Adopted(adopted), boundary: glsn })
        });
        Counters::add(&self.counters.bytes_in, bytes);
        self.signals.call_flush();
    }

    /// Closes the active memtable at `boundary`, unless it or the closed ones end there already.
    pub(crate) fn close_up_to(&self, boundary: Glsn) {
        let mut writer = lock(&self.writer);
        // Also an empty one: the checkpoint moves on over entries that are no transaction.
        let closed_at =
            self.current_view().closed.first().map_or(Glsn::NONE, |closed| closed.boundary);
        if !writer.active.is_empty() || (!self.is_flushed(boundary) && closed_at < boundary) {
            self.close_active(&mut writer, boundary);
        }
    }

    fn is_flushed(&self, boundary: Glsn) -> bool {
        self.flushed.load(Ordering::Acquire) >= boundary.0
    }

    pub(crate) fn flush_up_to(&self, boundary: Glsn) -> Result<()> {
        if self.context.duty.is_read_only() {
            return Ok(());
        }
        self.close_up_to(boundary);
        while !self.is_flushed(boundary) {
            if self.flush_step()? == Progress::Idle {
                break;
            }
        }
        Ok(())
    }
}
