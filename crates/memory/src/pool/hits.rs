//! Hit counters, one for each thread, so that a hit does not write to a cache line that other
//! threads use.

use std::sync::atomic::{AtomicU64, Ordering};

use super::hazard::{LINES, this_line};

/// Counters since the pool was made.
pub(super) struct Hits {
    /// Indexed by the thread's hazard line. All threads without a line share the last counter.
    by_line: Box<[Counter]>,
}

/// Alone in its cache line.
#[repr(align(64))]
struct Counter(AtomicU64);

impl Hits {
    /// Bytes of heap.
    pub(super) const HEAP_BYTES: usize = (LINES + 1) * size_of::<Counter>();

    pub(super) fn new() -> Self {
        Self { by_line: (0..=LINES).map(|_| Counter(AtomicU64::new(0))).collect() }
    }

    #[inline]
    pub(super) fn note(&self) {
        match this_line() {
            Some(line) => {
                // A load and a store suffice, because the counter has no other writer.
                let counter = &self.by_line[line].0;
                counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
            None => {
                self.by_line[LINES].0.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn sum(&self) -> u64 {
        self.by_line.iter().map(|counter| counter.0.load(Ordering::Relaxed)).sum()
    }
}
