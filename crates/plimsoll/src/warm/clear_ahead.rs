//! Touches memory ahead of the restore of rows, in a thread of its own: the system clears memory when it is first touched, which would
//! take a third of the restoring thread's time.
//!
//! Laws:
//! 1. Memory is touched only within the budget and only while it is free: a block is taken from the budget, touched and given back.
//! 2. The thread ends when it has touched what the rows of the image can take, when rows have taken as much themselves, or when their restore
//!    ends, and touches nothing while less than [`FREE_BYTES_MIN`] are free.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use plimsoll_disk::worker::{Bell, Next, Worker};
use plimsoll_memory::budget::{Budget, Kind as Memory};
use plimsoll_memory::chunk::{CHUNK_BYTES, Chunk};

use crate::warm::image::{self, RowsName};
use crate::warm::pace::{Move, Pace};
use crate::warm::{Context, Core};

/// Chunks that are touched at a time: 2 MiB, as the system clears that much at once where it has huge pages.
const CHUNKS_AT_ONCE: usize = 32;

/// The least free memory: what is taken for a moment is not missed then.
const FREE_BYTES_MIN: u64 = 16 << 20;

/// The system's page.
const SYSTEM_PAGE_BYTES: usize = 4096;

/// Starts the thread; `None` if there is nothing to do for it, or if the system gives no thread: then memory is cleared when rows take it.
pub(super) fn start(core: &Arc<Core>) -> Option<Worker> {
    let context = &core.context;
    if context.row_cache.share_bytes() == 0 || context.budget.free_bytes() < FREE_BYTES_MIN {
        return None;
    }
    let core = Arc::clone(core);
    let (mut progress, mut pace) = (None, None);
    let step = move |_| {
        let (total, touched) = progress.get_or_insert_with(|| (bytes_of_rows(&core.context), 0));
        let read = core.counts.row_bytes_read.load(Ordering::Relaxed);
        *touched = u64::max(*touched, in_memory(read));
        if *touched >= *total || !core.counts.restoring_rows.load(Ordering::Relaxed) {
            return Next::End;
        }
        if let Move::Pause(pause) = pace.get_or_insert_with(|| Pace::of_this_thread(0)).next() {
            return Next::Within(pause);
        }
        match touch_block(&core.context.budget) {
            0 => Next::End,
            bytes => {
                *touched += bytes;
                Next::Again
            }
        }
    };
    Worker::start("plimsoll-clear", &Arc::new(Bell::default()), || {}, step).ok()
}

/// The memory that the rows of the image will take at most.
fn bytes_of_rows(context: &Context) -> u64 {
    // An image that cannot be listed is the restorer's to report.
    let files = image::list_rows(&*context.disk, &context.dir).unwrap_or_default();
    in_memory(newest_bytes(&files))
}

/// Bytes of the newest generation, which comes first: rows of an older one are mostly the same.
fn newest_bytes(files: &[(RowsName, u64)]) -> u64 {
    let newest = files.first().map(|(name, _)| name.generation);
    files.iter().filter(|(name, _)| Some(name.generation) == newest).map(|(_, len)| *len).sum()
}

/// The memory for rows of this many bytes in the image: each has some bytes beside it in the cache.
fn in_memory(bytes: u64) -> u64 {
    bytes / 4 * 5
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

    #[test]
    fn only_the_newest_generation_counts() {
        let file = |generation, number, len| (RowsName { generation, number }, len);
        assert_eq!(newest_bytes(&[]), 0);
        assert_eq!(newest_bytes(&[file(8, 0, 100), file(8, 1, 50), file(7, 0, 1000)]), 150);
    }
}
