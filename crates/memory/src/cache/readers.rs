//! Who is reading what, so that nobody writes over it.
//!
//! A reader claims one of a few lines, for as long as it looks at an entry, by writing into it which segments of which queue it reads.
//! Whoever empties a segment looks through the lines before the segment is written again.
//!
//! Law: a reader writes its line and then looks whether the index still means the entry; an evictor takes the entry out of the index and
//! then looks at the lines. In the one order of those four steps one of the two sees the other.

#[cfg(loom)]
use loom::sync::atomic::fence;
#[cfg(not(loom))]
use std::sync::atomic::fence;

use super::policy::Queue;
use crate::sync::{AtomicU64, Ordering};

/// So many can read at once; more wait for a moment. Not a setting: a line is held only while bytes are copied.
#[cfg(not(loom))]
const LINES: usize = 64;
#[cfg(loom)]
const LINES: usize = 2;

const COUNT_BITS: u32 = 23;
const SEQUENCE_BITS: u32 = 39;

/// Segments of a queue, one after the other. Sequence numbers are modulo a power of two that the index's places dictate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) queue: Queue,
    pub(super) first: u64,
    pub(super) count: u64,
}

impl Span {
    fn word(self) -> u64 {
        debug_assert!(self.first < 1 << SEQUENCE_BITS && self.count < 1 << COUNT_BITS);
        1 << 63 | u64::from(self.queue == Queue::Main) << 62 | self.first << COUNT_BITS | self.count
    }

    fn of_word(word: u64) -> Option<Self> {
        let queue = if word >> 62 & 1 == 1 { Queue::Main } else { Queue::Small };
        let first = word >> COUNT_BITS & ((1 << SEQUENCE_BITS) - 1);
        (word > 0).then_some(Self { queue, first, count: word & ((1 << COUNT_BITS) - 1) })
    }

    fn holds(self, queue: Queue, sequence: u64, modulus: u64) -> bool {
        self.queue == queue && (sequence.wrapping_sub(self.first) & (modulus - 1)) < self.count
    }
}

/// The lines.
pub(super) struct Readers {
    lines: Box<[Line]>,
}

/// Alone in its cache line: the readers of one do not slow down those of another.
#[repr(align(128))]
struct Line {
    reading: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// A claimed line; freed on drop.
pub(super) struct Reading<'a> {
    line: &'a Line,
}

impl Readers {
    pub(super) fn new() -> Self {
        let line = || Line { reading: AtomicU64::new(0), hits: AtomicU64::new(0), misses: AtomicU64::new(0) };
        Self { lines: (0..LINES).map(|_| line()).collect() }
    }

    /// Claims a line for `span`. `hint` is the same each time for a thread and another for each.
    #[inline]
    pub(super) fn begin(&self, hint: usize, span: Span) -> Reading<'_> {
        let mut at = hint;
        loop {
            let line = &self.lines[at % LINES];
            // SeqCst: the first of the reader's two steps.
            let claimed = line.reading.compare_exchange(0, span.word(), Ordering::SeqCst, Ordering::Relaxed);
            if claimed.is_ok() {
                order();
                return Reading { line };
            }
            at += 1;
            if (at - hint).is_multiple_of(LINES) {
                // All are taken, each for as long as one copy takes: this thread leaves the processor to them.
                yield_now();
            }
        }
    }

    /// Counts a look-up that found nothing.
    #[inline]
    pub(super) fn count_miss(&self, hint: usize) {
        // Relaxed: a lone number.
        self.lines[hint % LINES].misses.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether somebody may be reading this segment, which the index means no more.
    pub(super) fn is_read(&self, queue: Queue, sequence: u64, modulus: u64) -> bool {
        // Between the evictor's two steps: the index, then the lines.
        fence(Ordering::SeqCst);
        self.lines.iter().any(|line| {
            // SeqCst: the second of the evictor's two steps; pairs with `begin`.
            let span = Span::of_word(line.reading.load(Ordering::SeqCst));
            span.is_some_and(|span| span.holds(queue, sequence, modulus))
        })
    }

    /// Look-ups that found something, and that did not.
    pub(super) fn hits_and_misses(&self) -> (u64, u64) {
        let sum = |of: fn(&Line) -> &AtomicU64| self.lines.iter().map(|line| of(line).load(Ordering::Relaxed)).sum();
        (sum(|line| &line.hits), sum(|line| &line.misses))
    }
}

impl Reading<'_> {
    /// Reads more than was known at first.
    pub(super) fn extend(&self, span: Span) {
        // SeqCst: as in `begin`.
        self.line.reading.store(span.word(), Ordering::SeqCst);
        order();
    }

    /// Counts a look-up that found something. Nobody else writes the count meanwhile: the line is claimed.
    #[inline]
    pub(super) fn count_hit(&self) {
        self.line.hits.store(self.line.hits.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

impl Drop for Reading<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: what was read was read before; pairs with the load in `is_read`.
        self.line.reading.store(0, Ordering::Release);
    }
}

/// Between a reader's two steps. Its SeqCst accesses are in order by themselves; loom knows an order of SeqCst fences only.
#[inline]
fn order() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

#[cfg(not(loom))]
fn yield_now() {
    std::thread::yield_now();
}

#[cfg(loom)]
fn yield_now() {
    loom::thread::yield_now();
}
