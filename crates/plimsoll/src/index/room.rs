//! Makes room for commits: the active memtable, when it is closed, and write throttling.
//!
//! Laws:
//! 1. Room that `make_room` promised is reserved until the [`Reservation`] is used or dropped: inserting the promised versions cannot run
//!    out of memory, and neither can the flush of a memtable that holds them.
//! 2. A writer waits for a flush by doing it, or by queueing for the flush lock behind the thread that does: no writer waits for a thread
//!    that may have ended.
//! 3. Writers are slowed down slightly for a long time rather than stopped: in proportion to how far merges, or the flush, lag behind.
//! 4. If there are so many runs that a walk over all of them needs too many pages at once, writers stop until merges have caught up.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::OutOfBudget;

use crate::index::Progress;
use crate::index::core::{Core, lock};
use crate::index::counters::Counters;
use crate::index::files::metadata_bytes;
use crate::index::policy::Priority;
use crate::index::reservation::Reservation;
use crate::index::run::table::{TableId, TableInfo};
use crate::index::source::{Memtable, Run, table_bytes};
use crate::index::stalls::Cause;
use crate::index::view::{Closed, Content};
use crate::types::error::Result;

/// Memtables that may wait to be flushed: one in a small budget, two from this many bytes on.
const TWO_CLOSED_BYTES: u64 = 64 << 20;

/// If a key may lie in more runs than this, writers are slowed down.
const DEPTH_SOFT: usize = 12;

/// The same for the total number of runs, overlapping or not: each costs a search little, but takes space in the manifest and part in every
/// walk.
const RUNS_SOFT: usize = 48;

/// If a key may lie in this many runs, writers wait: a walk pins a page of each, and the smallest budget has room for some hundred.
const DEPTH_HARD: usize = 64;

/// Nanoseconds per byte, multiplied by the square of the number of runs above a soft limit.
const NANOS_PER_BYTE: u64 = 4;

/// Shorter waits are accumulated.
const WAIT_MIN_NANOS: u64 = 1_000_000;

/// The longest wait of one call, ...
const WAIT_MAX_NANOS: u64 = 100_000_000;

/// ... plus as much again for each of these many bytes, ...
const WAIT_MAX_BYTES: u64 = 256 << 10;

/// ... up to this limit: a transaction of any size has merged its own runs to a few before it comes here.
const WAIT_LONGEST_NANOS: u64 = 10_000_000_000;

/// The interval at which a stopped writer checks whether merges have caught up.
const LOOK_NANOS: u64 = 100_000_000;

/// The most compaction steps that a writer runs itself if there are no threads and too many runs.
const STEPS_INLINE: usize = 32;

/// The state of the committing thread.
#[derive(Debug)]
pub(crate) struct Writer {
    active: Arc<Memtable>,
    /// Nanoseconds that the writers still have to wait.
    owed_nanos: u64,
}

impl Writer {
    pub(crate) fn new(active: Arc<Memtable>) -> Self {
        Self { active, owed_nanos: 0 }
    }
}

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
                    if progress == Progress::Idle
                        && (self.context.read_only || self.current_view().closed.is_empty())
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
        self.keep_pace(bytes as u64)?;
        Ok(reservation)
    }

    fn try_to_make_room(&self, bytes: usize, boundary: Glsn) -> Next<'_> {
        let mut writer = lock(&self.writer);
        let empty = writer.active.is_empty();
        let full = writer.active.map().used_bytes() + bytes as u64 > self.context.memtable_limit_bytes();
        // A read-only index cannot flush: the memtable grows as long as the budget allows.
        let refusal = match !full || empty || self.context.read_only {
            true => match self.reserve(&writer.active, bytes) {
                Ok(reservation) => return Next::Done(reservation),
                Err(refusal) => Some(refusal),
            },
            false => None,
        };
        if empty || self.context.read_only || self.closed_memtables() >= self.closed_max() {
            return Next::Flush(refusal);
        }
        self.close_active(&mut writer, boundary);
        Next::Again
    }

    fn reserve(&self, memtable: &Arc<Memtable>, bytes: usize) -> Result<Reservation<'_>, OutOfBudget> {
        if !self.context.read_only {
            // First: chunks of a memtable are kept, and it may be empty.
            self.files.fill_reserve()?;
        }
        memtable.map().reserve(bytes)?;
        Ok(Reservation::new(&self.counters, &self.gaps, self.held, memtable, bytes))
    }

    fn closed_memtables(&self) -> usize {
        self.current_view().closed.iter().filter(|closed| matches!(closed.content, Content::Memtable(_))).count()
    }

    fn closed_max(&self) -> usize {
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

    pub(crate) fn stop_deferring(&self) {
        lock(&self.writer).active.map().stop_deferring();
    }

    pub(crate) fn make_room_for_runs(&self, runs: &[Vec<TableInfo>]) -> Result<()> {
        let infos = || runs.iter().flatten();
        self.keep_pace(infos().map(table_bytes).sum())?;
        // Last: this reservation must not be given to others while the caller waits.
        Ok(self.files.make_room(infos().map(metadata_bytes).sum())?)
    }

    pub(crate) fn adopt(&self, runs: Vec<Vec<TableInfo>>, glsn: Glsn) -> Result<()> {
        let view = self.current_view();
        let known = |info: &TableInfo| view.infos().any(|known| known.id == info.id);
        if glsn <= self.held || runs.iter().flatten().any(known) {
            return Ok(());
        }
        let mut adopted = Vec::with_capacity(runs.len());
        for run in runs.into_iter().filter(|run| !run.is_empty()) {
            let members = run.into_iter().map(|info| {
                debug_assert!(matches!(info.id, TableId::Blob(_)));
                self.files.adopt(TableInfo { min_glsn: glsn, max_glsn: glsn, fixed_glsn: Some(glsn), ..info })
            });
            adopted.push(Arc::new(Run::new(members.collect::<Result<_>>()?)));
        }
        for info in adopted.iter().flat_map(|run| run.infos()).filter(|info| info.deletions < info.versions) {
            self.gaps.adopt(glsn, &info.first_key, &info.last_key);
        }
        let bytes = adopted.iter().map(|run| run.bytes()).sum();
        let mut writer = lock(&self.writer);
        if !writer.active.is_empty() {
            self.close_active(&mut writer, Glsn(glsn.0.saturating_sub(1)));
        }
        self.swap_view(|view| view.closed.insert(0, Closed { content: Content::Adopted(adopted), boundary: glsn }));
        Counters::add(&self.counters.bytes_in, bytes);
        self.signals.call_flush();
        Ok(())
    }

    /// Closes the active memtable at `boundary`, unless it or the closed ones end there already.
    pub(crate) fn close_up_to(&self, boundary: Glsn) {
        let mut writer = lock(&self.writer);
        // Also an empty one: the checkpoint moves on over entries that are no transaction.
        let closed_at = self.current_view().closed.first().map_or(Glsn::NONE, |closed| closed.boundary);
        if !writer.active.is_empty() || (!self.is_flushed(boundary) && closed_at < boundary) {
            self.close_active(&mut writer, boundary);
        }
    }

    fn is_flushed(&self, boundary: Glsn) -> bool {
        self.flushed.load(Ordering::Acquire) >= boundary.0
    }

    pub(crate) fn flush_up_to(&self, boundary: Glsn) -> Result<()> {
        if self.context.read_only {
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

    /// Slows the writer down by the time it owes; without threads, it does their work instead.
    fn keep_pace(&self, bytes: u64) -> Result<()> {
        if self.context.read_only {
            return Ok(());
        }
        if !self.context.background {
            return self.compact_inline();
        }
        let (delay, cause) = {
            let mut writer = lock(&self.writer);
            let pace = self.pace(&writer.active);
            let nanos = bytes.saturating_mul(pace.nanos_per_byte());
            writer.owed_nanos = writer.owed_nanos.saturating_add(nanos);
            if writer.owed_nanos < WAIT_MIN_NANOS && !self.is_overrun() {
                return Ok(());
            }
            let owed = std::mem::take(&mut writer.owed_nanos);
            (owed.min(longest_wait_nanos(bytes)), pace.cause())
        };
        if delay > 0 {
            self.note_stall(cause, || self.wait_while_behind(delay));
        }
        if self.is_overrun() {
            self.note_stall(Cause::Depth, || {
                while self.is_overrun() && !self.signals.is_closing() {
                    self.signals.wait_for_progress(Duration::from_nanos(LOOK_NANOS));
                }
            });
        }
        Ok(())
    }

    /// Waits, and records the duration.
    fn note_stall(&self, cause: Cause, wait: impl FnOnce()) {
        let start = self.context.clock.monotonic_nanos();
        wait();
        self.counters.stalls.note(cause, self.context.clock.monotonic_nanos() - start);
    }

    /// Waits for `delay` regardless of progress signals, but returns once nothing lags behind.
    fn wait_while_behind(&self, delay: u64) {
        let mut left = delay;
        while left > 0 && !self.signals.is_closing() {
            let start = self.context.clock.monotonic_nanos();
            let part = left.min(LOOK_NANOS);
            let was_progress = self.signals.wait_for_progress(Duration::from_nanos(part));
            let active = Arc::clone(&lock(&self.writer).active);
            if self.pace(&active).nanos_per_byte() == 0 {
                break;
            }
            // With a clock that does not advance, the wait still ends.
            let least = if was_progress { WAIT_MIN_NANOS } else { part };
            left = left.saturating_sub((self.context.clock.monotonic_nanos() - start).max(least));
        }
    }

    /// Whether writers have to stop. Never if merges cannot continue: waiting for them would not help.
    fn is_overrun(&self) -> bool {
        self.current_view().depth >= DEPTH_HARD && self.signals.last_error().is_none()
    }

    fn pace(&self, active: &Memtable) -> Pace {
        let view = self.current_view();
        let mut pace = Pace { for_merges: nanos_for_runs(view.depth, view.runs.len()), for_flush: 0 };
        if pace.for_merges > 0 && self.signals.last_error().is_some() {
            // Compaction cannot continue: waiting for it would not help.
            pace.for_merges = 0;
        }
        if view.closed.len() >= self.closed_max() {
            let counters = &self.counters;
            let (spent, flushed) =
                (counters.flush_nanos.load(Ordering::Relaxed), counters.bytes_flushed.load(Ordering::Relaxed));
            let fill = active.map().used_bytes() as f64 / self.context.memtable_limit_bytes() as f64;
            pace.for_flush = nanos_for_flush(spent, flushed, fill);
        }
        pace
    }

    fn compact_inline(&self) -> Result<()> {
        for _ in 0..STEPS_INLINE {
            let view = self.current_view();
            if runs_above(view.depth, view.runs.len()) == 0 || self.compact(Priority::Due)? == Progress::Idle {
                break;
            }
        }
        Ok(())
    }
}

/// The current cost of a byte for a writer, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    for_merges: u64,
    for_flush: u64,
}

impl Pace {
    fn nanos_per_byte(self) -> u64 {
        self.for_merges + self.for_flush
    }

    /// The larger of the two.
    fn cause(self) -> Cause {
        if self.for_flush > self.for_merges { Cause::FlushPace } else { Cause::MergePace }
    }
}

/// The cost of a byte with this many runs, of which `depth` may hold one key.
fn nanos_for_runs(depth: usize, runs: usize) -> u64 {
    let above = runs_above(depth, runs);
    NANOS_PER_BYTE * above * above
}

/// The longest wait of one call for `bytes`, whatever is owed.
fn longest_wait_nanos(bytes: u64) -> u64 {
    WAIT_MAX_NANOS.saturating_mul(1 + bytes / WAIT_MAX_BYTES).min(WAIT_LONGEST_NANOS)
}

/// Runs above the soft limits.
fn runs_above(depth: usize, runs: usize) -> u64 {
    depth.saturating_sub(DEPTH_SOFT).max(runs.saturating_sub(RUNS_SOFT)) as u64
}

/// The cost of a byte while a flush lags behind and the active memtable is filled to `fill`: from one half on it approaches the rate at
/// which bytes are flushed.
fn nanos_for_flush(spent_nanos: u64, flushed_bytes: u64, fill: f64) -> u64 {
    if flushed_bytes == 0 {
        return 0;
    }
    let share = (2.0 * fill - 1.0).clamp(0.0, 1.0);
    (spent_nanos as f64 / flushed_bytes as f64 * share) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_are_slowed_down_by_how_far_compaction_lags_behind() {
        assert_eq!(nanos_for_runs(0, 0), 0);
        assert_eq!(nanos_for_runs(DEPTH_SOFT, DEPTH_SOFT), 0);
        assert!((1..=NANOS_PER_BYTE).contains(&nanos_for_runs(DEPTH_SOFT + 1, DEPTH_SOFT + 1)));
        // 16 runs above: a megabyte a second.
        assert!((900..1200).contains(&nanos_for_runs(DEPTH_SOFT + 16, DEPTH_SOFT + 16)));
    }

    #[test]
    fn a_wait_counts_for_what_costs_more() {
        let pace = |for_merges, for_flush| Pace { for_merges, for_flush };
        assert_eq!((pace(1, 2).cause(), pace(3, 2).cause()), (Cause::FlushPace, Cause::MergePace));
        assert_eq!(pace(3, 2).nanos_per_byte(), 5);
    }

    #[test]
    fn runs_side_by_side_slow_nobody_down_until_there_are_very_many() {
        assert_eq!(nanos_for_runs(1, RUNS_SOFT), 0);
        assert!(nanos_for_runs(1, RUNS_SOFT + 1) > 0);
    }

    #[test]
    fn no_transaction_waits_longer_than_a_bound_however_large_it_is() {
        assert_eq!(longest_wait_nanos(0), WAIT_MAX_NANOS);
        assert_eq!(longest_wait_nanos(WAIT_MAX_BYTES), 2 * WAIT_MAX_NANOS);
        // 100,000 pairs of 16 B wait for all that they owe, up to 0.7 s: this keeps such commits from outrunning the merges.
        assert_eq!(longest_wait_nanos(1_600_000), 7 * WAIT_MAX_NANOS);
        for bytes in [64 << 20, 1 << 30, u64::MAX] {
            assert_eq!(longest_wait_nanos(bytes), WAIT_LONGEST_NANOS);
        }
    }

    #[test]
    fn writers_come_down_to_the_pace_of_the_flush_while_the_memtable_fills_up() {
        assert_eq!(nanos_for_flush(0, 0, 0.9), 0);
        assert_eq!(nanos_for_flush(1000, 100, 0.4), 0);
        assert_eq!(nanos_for_flush(1000, 100, 0.75), 5);
        assert_eq!(nanos_for_flush(1000, 100, 3.0), 10);
    }
}
