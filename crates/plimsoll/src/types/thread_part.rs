//! The part of a divided structure that a thread uses, so that threads rarely contend.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of parts of such a structure.
pub(crate) const PARTS: usize = 8;

/// The number of this thread's part.
pub(crate) fn part_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static PART: usize = NEXT.fetch_add(1, Ordering::Relaxed) % PARTS;
    }
    PART.with(|part| *part)
}
