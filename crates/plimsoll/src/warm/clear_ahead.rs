//! Touches memory ahead of the restore of rows, in a thread of its own: the system clears memory when it is first touched, which would
//! take a third of the restoring thread's time.
//!
//! Laws:
//! 1. Memory is touched only within the budget and only while it is free: a block is taken from the budget, touched and given back.
//! 2. No more is touched than the rows of the image will take, and nothing while less than [`FREE_BYTES_MIN`] are free.

use std::sync::Arc;

use plimsoll_disk::worker::{Bell, Next, Worker};
use plimsoll_memory::budget::{Budget, Kind as Memory};
use plimsoll_memory::chunk::{CHUNK_BYTES, Chunk};

use crate::warm::Context;
use crate::warm::image;

/// Chunks that are touched at a time: 2 MiB, as the system clears that much at once where it has huge pages.
const CHUNKS_AT_ONCE: usize = 32;

/// The least free memory: what is taken for a moment is missed by nobody.
const FREE_BYTES_MIN: u64 = 16 << 20;

/// The system's page.
const SYSTEM_PAGE_BYTES: usize = 4096;

/// Starts the thread. It ends when it has touched what the image's rows will take.
pub(super) fn start(context: &Context) -> std::io::Result<Worker> {
    // Each row has some bytes beside it in the cache. An image that cannot be listed is the restorer's to report.
    let rows = image::list_rows(&*context.disk, &context.dir).unwrap_or_default();
    let mut left = rows.iter().map(|(_, len)| *len).sum::<u64>() / 4 * 5;
    let budget = context.budget.clone();
    let step = move |_| {
        let touched = if left > 0 { touch_block(&budget) } else { 0 };
        left = left.saturating_sub(touched);
        if touched > 0 { Next::Again } else { Next::End }
    };
    Worker::start("plimsoll-clear", &Arc::new(Bell::default()), || {}, step)
}

/// Touches some chunks that were never taken; returns their bytes.
fn touch_block(budget: &Budget) -> u64 {
    if budget.free_bytes() < FREE_BYTES_MIN {
        return 0;
    }
    // Pages: the budget takes other kinds for a sign of what writers will need.
    let mut chunks: Vec<Chunk> = (0..CHUNKS_AT_ONCE).map_while(|_| budget.try_take_fresh(Memory::Pages)).collect();
    for chunk in &mut chunks {
        chunk.iter_mut().step_by(SYSTEM_PAGE_BYTES).for_each(|byte| *byte = 0);
    }
    let touched = chunks.len() * CHUNK_BYTES;
    // The budget hands out first what was given back last: the first chunk is to be next.
    while chunks.pop().is_some() {}
    touched as u64
}

#[cfg(test)]
mod tests {
    use plimsoll_memory::budget::Backing;

    use super::*;

    #[test]
    fn memory_is_touched_once_and_given_back_in_order_and_never_the_last() {
        let budget = Budget::new(32 << 20, Backing::Mapped).unwrap();
        let first = budget.take(Memory::Pages).unwrap();
        let (number, free) = (first.as_ptr() as usize, budget.free_bytes());
        assert_eq!(touch_block(&budget), 2 << 20);
        assert_eq!(budget.free_bytes(), free);
        let next: Vec<Chunk> = (0..33).map(|_| budget.take(Memory::Pages).unwrap()).collect();
        let places: Vec<usize> = next.iter().map(|chunk| (chunk.as_ptr() as usize - number) / CHUNK_BYTES).collect();
        assert_eq!(places, (1..34).collect::<Vec<_>>(), "what was touched is taken first");
        let mut all = next;
        while budget.free_bytes() >= FREE_BYTES_MIN {
            all.push(budget.take(Memory::Pages).unwrap());
        }
        assert_eq!(touch_block(&budget), 0);
        drop(all);
        while touch_block(&budget) > 0 {}
        assert_eq!(budget.free_bytes(), free, "each chunk is touched once, and all are given back");
    }
}
