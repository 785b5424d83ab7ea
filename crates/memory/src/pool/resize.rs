//! Resizing a pool with its budget, while both are in use.
//!
//! The pool's tables (descriptors, the page table, queues, ghosts) are made for as many chunks as
//! the budget has. They are leased, and shrink before the budget does, because the tables of 8 GiB
//! alone exceed a small budget. Chunks in slots beyond the new end have to go first:
//!
//! ```text
//! 1. no chunk enters a slot at or above the new end
//! 2. the surplus of chunks over the new slots is given back, the coldest first
//! 3. chunks in slots above the new end move into slots below it: their pages get other
//!    descriptors, their bytes stay
//! 4. the tables shrink to the last slot with a chunk
//! 5. the budget shrinks, and the lease of the tables with it
//! ```
//!
//! A chunk with a held page stays in place. Readers hold a page for microseconds, so steps 2 and 3
//! are repeated a few times. A page held for longer keeps the tables as large as its slot requires;
//! the lease covers that, and the next resize tries again.
//!
//! Invariant: if the budget cannot reach the requested size, the tables return to their former
//! size; their lease is kept until then.

use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};

use super::frames::Frames;
use super::hits::Hits;
use super::replacement::Replacement;
use super::{Pool, floor_chunks, headroom, whole_chunks};
use crate::budget::ResizeError;

/// Chunks given back or moved per acquisition of the lock.
const CHUNKS_AT_ONCE: usize = 16;

/// Number of further passes over chunks that were held, yielding to other threads in between.
/// Shuttle explores every check, so it gets fewer.
const PASSES_MORE: usize = if cfg!(all(test, shuttle)) { 4 } else { 64 };

/// This many of the last passes sleep first, because the holder of a page may itself be waiting for
/// a processor.
const PASSES_WAITED_FOR: usize = if cfg!(all(test, shuttle)) { 0 } else { 4 };
const WAIT: Duration = Duration::from_millis(1);

impl Pool {
    /// Resizes the budget, and the pool with it, while both are in use. The pool then keeps at
    /// least `min_bytes` of frames once it has them.
    ///
    /// # Errors
    /// [`ResizeError`]; everything is as it was, except for evicted pages.
    pub fn resize(&self, limit_bytes: u64, min_bytes: u64) -> Result<(), ResizeError> {
        let mut lease = self.tables.lock().expect("no code under this lock panics");
        let (chunks, min_chunks) = (whole_chunks(limit_bytes), floor_chunks(min_bytes));
        let (max_before, slots_before, min_before) = {
            let mut replacement = self.lock();
            let min_before = replacement.set_min_chunks(min_chunks);
            replacement.set_min_chunks(min_chunks.min(min_before));
            (replacement.slots.max(), replacement.slots.capacity(), min_before)
        };
        // A budget of zero is refused below.
        if (1..slots_before).contains(&chunks) {
            self.shrink(chunks, rest);
        }
        let needed = self.budget.page_table_bytes(limit_bytes)
            + table_bytes(chunks.max(self.lock().slots.len()));
        // Each added chunk needs less than a chunk of tables.
        let resized = self.budget.resize_with(limit_bytes, &mut lease, needed);
        let mut replacement = self.lock();
        match &resized {
            Ok(()) => {
                replacement.enlarge(&self.frames, chunks);
                replacement.set_headroom(headroom(chunks));
                replacement.set_min_chunks(min_chunks);
            }
            Err(_) => {
                replacement.enlarge(&self.frames, max_before);
                replacement.set_min_chunks(min_before);
            }
        }
        resized
    }

    /// Shrinks the tables as far as `chunks` and held pages allow. Calls `rest` between passes with
    /// the number of passes so far.
    pub(super) fn shrink(&self, chunks: usize, mut rest: impl FnMut(usize)) {
        self.lock().slots.set_max(chunks);
        self.clear_out();
        for pass in 0..PASSES_MORE {
            if self.lock().slots.is_within_max() {
                break;
            }
            rest(pass);
            self.clear_out();
        }
        self.lock().shrink(&self.frames);
    }

    /// Gives back surplus chunks, and moves chunks out of slots above the new end, except for
    /// chunks with a held page.
    fn clear_out(&self) {
        loop {
            let mut replacement = self.lock();
            let over = replacement
                .slots
                .held()
                .saturating_sub(replacement.slots.max())
                .min(CHUNKS_AT_ONCE);
            if replacement.release_chunks(&self.frames, over) == 0 {
                break;
            }
        }
        while self.lock().move_down(&self.frames, CHUNKS_AT_ONCE) > 0 {}
    }
}

/// Yields to other threads. It waits for no notification, because a notification at each release of
/// a page would slow down every reader.
fn rest(pass: usize) {
    match pass + PASSES_WAITED_FOR < PASSES_MORE {
        true => std::thread::yield_now(),
        false => SystemClock::new().sleep(WAIT),
    }
}

/// Bytes of the tables of a pool of this many chunks.
pub(super) fn table_bytes(chunks: usize) -> u64 {
    (Frames::table_bytes(chunks) + Replacement::heap_bytes(chunks) + Hits::HEAP_BYTES) as u64
}
