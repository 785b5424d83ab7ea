//! Touches memory ahead of the restore of rows, in its own thread. The system clears memory when it
//! is first touched, which would otherwise take a third of the restoring thread's time.
//!
//! Invariants:
//! 1. Memory is touched only within the budget, and only while other memory is free as well
//!    (`Budget::clear_block`).
//! 2. The thread ends when it has touched as much memory as the rows of the image can use, when
//!    rows use as much already, or when their restore ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use plimsoll_disk::worker::{Bell, Next, Worker};

use crate::warm::image::{self, RowsName};
use crate::warm::pace::{Move, Pace};
use crate::warm::{Context, Core};

/// Starts the thread. `None` if it has nothing to do, or if the system refuses a thread. Without
/// the thread, memory is cleared when rows first use it.
pub(super) fn start(core: &Arc<Core>) -> Option<Worker> {
    let context = &core.context;
    if context.row_cache.share_bytes() == 0 {
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
        match core.context.budget.clear_block() {
            0 => Next::End,
            bytes => {
                *touched += bytes as u64;
                Next::Again
            }
        }
    };
    Worker::start("plimsoll-clear", &Arc::new(Bell::default()), || {}, step).ok()
}

/// The most memory that the rows of the image will use.
fn bytes_of_rows(context: &Context) -> u64 {
    // If the image cannot be listed, the restorer reports that.
    let files = image::list_rows(&*context.disk, &context.dir).unwrap_or_default();
    in_memory(newest_bytes(&files))
}

/// Bytes of the newest generation, which is listed first; the rows of older ones are mostly the
/// same.
fn newest_bytes(files: &[(RowsName, u64)]) -> u64 {
    let newest = files.first().map(|(name, _)| name.generation);
    files.iter().filter(|(name, _)| Some(name.generation) == newest).map(|(_, len)| *len).sum()
}

/// The memory for rows of this many bytes in the image, including their overhead in the cache.
fn in_memory(bytes: u64) -> u64 {
    bytes / 4 * 5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_generation_counts() {
        let file = |generation, number, len| (RowsName { generation, number }, len);
        assert_eq!(newest_bytes(&[]), 0);
        assert_eq!(newest_bytes(&[file(8, 0, 100), file(8, 1, 50), file(7, 0, 1000)]), 150);
    }
}
