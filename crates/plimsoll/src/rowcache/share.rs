//! Divides memory between pages and rows, by the value of an additional byte to each.
//!
//! Each cache remembers its recent evictions and counts the reads that ask for them again: reads
//! that a larger cache would have answered (its *ghost hits*). The cache with clearly more ghost
//! hits per byte gets a step of memory from the other. Both kinds count avoidable page loads: a row
//! is inserted only if its read loaded a page.
//!
//! Invariants:
//! 1. Rows have at most [`MAX_SHARE`] and, once they have reached it, at least [`MIN_SHARE`] of the
//!    memory of both. With less, there would be too few ghost entries to measure the value of more.
//! 2. A step is one part in [`WHOLE`], and the next step is not taken before the last was filled.
//! 3. Free memory is *lent* to rows beyond their share, except for one part in [`KEPT_FREE`] of the
//!    budget. When less than that is free, rows return lent memory, up to [`RETURN_STEPS_MAX`]
//!    steps at each check. While memory is lent, ghost hits are not evidence.

use std::sync::{Mutex, PoisonError};

use plimsoll_memory::budget::Budget;
use plimsoll_memory::cache::Cache;
use plimsoll_memory::pool::Pool;
use plimsoll_memory::turnover::Turnover;

/// The denominator of shares.
pub(crate) const WHOLE: u64 = 64;

/// The least share of rows, and their initial share.
pub(crate) const MIN_SHARE: u64 = 2;

/// The largest share of rows.
pub(crate) const MAX_SHARE: u64 = 48;

/// The number of ghost hits that a decision requires.
const EVIDENCE: u64 = 128;

/// Memory moves to the other side only if a byte there is worth this many times as much.
const MARGIN: f64 = 1.15;

/// A cache with less memory than this is not useful.
const LEAST_BYTES: u64 = 1 << 20;

/// The memory limit of rows is changed only if it differs from the wanted one by more than one part
/// in this many of the total.
const TOLERANCE: u64 = 4 * WHOLE;

/// Free memory is lent to rows, except for one part in this of the budget, which is reserved for
/// memtables, pages, and everything else.
pub(crate) const KEPT_FREE: u64 = 8;

/// Maximum number of 256 KiB steps by which rows shrink at one check: together the size of the
/// pages loaded by the 64 fills between two checks.
const RETURN_STEPS_MAX: usize = 4;

/// The steps so far, and the ghost hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moves {
    /// Steps from pages to rows.
    pub(crate) to_rows: u64,
    /// Steps from rows to pages.
    pub(crate) to_pages: u64,
    /// Ghost hits of rows.
    pub(crate) row_returns: u64,
    /// Ghost hits of pages.
    pub(crate) page_returns: u64,
}

/// The division of memory and its statistics.
#[derive(Debug, Default)]
pub(crate) struct Balance {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    share: u64,
    /// The memory to divide, as last set.
    bytes: u64,
    /// Ghost hits that were weighed already.
    rows_seen: u64,
    pages_seen: u64,
    moves: Moves,
}

impl State {
    /// Gives a cache its share; returns the bytes.
    fn give(&self, cache: &Cache) -> u64 {
        let wanted = (self.bytes / WHOLE * self.share).max(LEAST_BYTES);
        cache.set_memory(wanted);
        wanted
    }
}

/// The direction of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Not enough evidence.
    Wait,
    /// Memory is free, so neither side has to shrink.
    Free,
    /// Both are worth about the same.
    Stay,
    ToRows,
    ToPages,
}

/// Decides where memory is worth more, given the ghost hits since the last verdict.
fn weigh(row_cache: &Turnover, row_hits: u64, pages: &Turnover, page_hits: u64) -> Verdict {
    if row_hits + page_hits < EVIDENCE {
        return Verdict::Wait;
    }
    let (of_row, of_page) = (row_cache.worth(row_hits), pages.worth(page_hits));
    if of_row > MARGIN * of_page {
        Verdict::ToRows
    } else if of_page > MARGIN * of_row {
        Verdict::ToPages
    } else {
        Verdict::Stay
    }
}

impl Balance {
    /// Gives rows their share of `bytes`, initially the minimum; returns the bytes. Weighing starts
    /// again.
    pub(crate) fn begin(&self, cache: &Cache, pool: &Pool, bytes: u64) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.share = state.share.max(MIN_SHARE);
        state.bytes = bytes;
        (state.rows_seen, state.pages_seen) = (cache.turnover().returns, pool.turnover().returns);
        state.give(cache)
    }

    /// Raises the rows' share to at least this many parts of the memory that was last set. While
    /// the budget is being changed, that may differ from the budget's limit.
    pub(crate) fn begin_with(&self, parts: u64, cache: &Cache, pool: &Pool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = parts.clamp(MIN_SHARE, MAX_SHARE);
        if parts > state.share {
            state.share = parts;
            (state.rows_seen, state.pages_seen) =
                (cache.turnover().returns, pool.turnover().returns);
            state.give(cache);
        }
    }

    /// Weighs and moves a step if the evidence supports it, or lends free memory; does nothing if
    /// another thread is doing so. Free memory counts as part of the memory to divide: after a
    /// restart, the pages may not have been restored yet, and the rows' share would be computed
    /// from too small a total. Returns whether there is memory to lend.
    pub(crate) fn rebalance(&self, cache: &Cache, pool: &Pool, budget: &Budget) -> bool {
        let (free_bytes, kept_bytes) = (budget.free_bytes(), budget.limit_bytes() / KEPT_FREE);
        let lent = free_bytes.saturating_sub(kept_bytes);
        let Ok(mut state) = self.state.try_lock() else { return lent > 0 };
        let (row_cache, pages) = (cache.turnover(), pool.turnover());
        let total = row_cache.held_bytes + pages.held_bytes + free_bytes;
        let step = total / WHOLE;
        // The cache may have been replaced since.
        let row_hits = row_cache.returns.saturating_sub(state.rows_seen);
        let page_hits = pages.returns.saturating_sub(state.pages_seen);
        let verdict =
            if lent > 0 { Verdict::Free } else { weigh(&row_cache, row_hits, &pages, page_hits) };
        if verdict != Verdict::Wait {
            (state.rows_seen, state.pages_seen) = (row_cache.returns, pages.returns);
            state.moves.row_returns = row_cache.returns;
            state.moves.page_returns = pages.returns;
        }
        match verdict {
            Verdict::ToRows
                if state.share < MAX_SHARE
                    && row_cache.held_bytes + step / 2 >= row_cache.limit_bytes =>
            {
                state.share += 1;
                state.moves.to_rows += 1;
            }
            Verdict::ToPages if state.share > MIN_SHARE => {
                state.share -= 1;
                state.moves.to_pages += 1;
            }
            _ => {}
        }
        let share = (step * state.share).max(LEAST_BYTES);
        let owed = kept_bytes.saturating_sub(free_bytes);
        let with_lent =
            (row_cache.held_bytes + lent).saturating_sub(owed).min(total / WHOLE * MAX_SHARE);
        let wanted = share.max(with_lent);
        if wanted.abs_diff(row_cache.limit_bytes) > total / TOLERANCE {
            // Change the memory only a little each time, because a reader does this while others
            // insert.
            let steps = if owed > 0 { RETURN_STEPS_MAX } else { 1 };
            let _ = (0..steps).any(|_| cache.approach_memory(wanted).1);
        }
        lent > 0
    }

    /// Returns some lent memory if too little of the budget is free; returns whether there is
    /// more to return.
    pub(crate) fn return_lent(&self, cache: &Cache, budget: &Budget) -> bool {
        let owed = (budget.limit_bytes() / KEPT_FREE).saturating_sub(budget.free_bytes());
        let share = self.share_bytes().max(LEAST_BYTES);
        let held = cache.turnover().held_bytes;
        owed > 0 && held > share && !cache.approach_memory(share.max(held.saturating_sub(owed))).1
    }

    /// For tests: sets the rows' share in parts of [`WHOLE`], from the next time that they are
    /// given their share.
    #[cfg(test)]
    pub(crate) fn set_share(&self, parts: u64) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).share = parts;
    }

    /// For tests: the ghost hits of rows and of pages that were weighed.
    #[cfg(test)]
    pub(crate) fn seen(&self) -> (u64, u64) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.rows_seen, state.pages_seen)
    }

    /// The bytes of the rows' share, without lent memory.
    pub(crate) fn share_bytes(&self) -> u64 {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.bytes / WHOLE * state.share
    }

    /// The rows' share, in parts of [`WHOLE`].
    pub(crate) fn share(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).share
    }

    /// The steps so far, and the ghost hits.
    pub(crate) fn moves(&self) -> Moves {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).moves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_window(window_bytes: u64) -> Turnover {
        let mut turnover = Turnover::default();
        turnover.window_bytes = window_bytes;
        turnover
    }

    #[test]
    fn a_step_goes_to_the_side_with_more_ghost_hits_per_byte() {
        let same = of_window(1 << 20);
        assert_eq!(weigh(&same, 10, &same, EVIDENCE - 11), Verdict::Wait);
        assert_eq!(weigh(&same, 100, &same, 100), Verdict::Stay);
        assert_eq!(weigh(&same, 120, &same, 100), Verdict::ToRows);
        assert_eq!(weigh(&same, 100, &same, 120), Verdict::ToPages);
    }

    #[test]
    fn hits_are_weighed_by_the_length_of_each_sides_history() {
        let (near, far) = (of_window(1 << 20), of_window(4 << 20));
        assert_eq!(weigh(&near, 100, &far, 400), Verdict::Stay);
        assert_eq!(weigh(&near, 100, &far, 200), Verdict::ToRows);
        assert_eq!(weigh(&far, 100, &near, 100), Verdict::ToPages);
    }

    #[test]
    fn without_a_ghost_nothing_moves() {
        assert_eq!(weigh(&of_window(0), 0, &of_window(0), 0), Verdict::Wait);
    }
}
