//! Reader lines: each reader publishes what it is reading, so that those bytes are not overwritten.
//!
//! A reader claims one of a few lines. The line first publishes the use of the index for a
//! fingerprint, and then the segments of the queue being read. Before an emptied segment or a
//! removed index page is written again, its writer checks all lines.
//!
//! Invariants:
//! 1. A reader writes its line and then reads the index; an evictor removes the entry from the
//!    index and then reads the lines. In the sequentially consistent order of these four steps, at
//!    least one of the two sees the other. Only this first store of a reader needs sequential
//!    consistency; later stores only narrow the protected range.
//! 2. Index pages follow the same protocol: a reader publishes the use of the index and then looks
//!    up the page; a page's removal changes the cells first and then reads the lines.
//! 3. A line that publishes the use of the index protects the segments that held an entry with its
//!    fingerprint ([`FingerprintFilter`]), and no others. A reader that is preempted during its
//!    search retains index pages and very few segments.

#[cfg(loom)]
use loom::sync::atomic::fence;
#[cfg(not(loom))]
use std::sync::atomic::fence;

use super::policy::Queue;
use crate::sync::{AtomicU64, Ordering};

/// Number of lock-free readers; further readers take the writer's lock. Not a setting, because a
/// line is held only while bytes are read. A small cache has fewer lines, because their memory
/// matters there. At most as many as a word has bits.
#[cfg(not(loom))]
const LINES: std::ops::RangeInclusive<usize> = 16..=64;
#[cfg(loom)]
const LINES: std::ops::RangeInclusive<usize> = 2..=2;

/// Bits of a line: claimed; protected queue; index in use, with a fingerprint in place of the span.
const CLAIMED: u64 = 1 << 63;
const PROTECTED: u64 = 1 << 62;
const IN_INDEX: u64 = 1 << 61;
const COUNT_BITS: u32 = 23;
const SEQUENCE_BITS: u32 = 38;

/// Consecutive segments of a queue. Sequence numbers are modulo a power of two, set by the index's
/// place field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) queue: Queue,
    pub(super) first: u64,
    pub(super) count: u64,
}

impl Span {
    fn word(self) -> u64 {
        debug_assert!(self.first < 1 << SEQUENCE_BITS && self.count < 1 << COUNT_BITS);
        CLAIMED
            | if self.queue == Queue::Protected { PROTECTED } else { 0 }
            | self.first << COUNT_BITS
            | self.count
    }

    fn of_word(word: u64) -> Option<Self> {
        let queue = if word & PROTECTED > 0 { Queue::Protected } else { Queue::Probation };
        let first = word >> COUNT_BITS & ((1 << SEQUENCE_BITS) - 1);
        let is_span = word & (CLAIMED | IN_INDEX) == CLAIMED;
        is_span.then_some(Self { queue, first, count: word & ((1 << COUNT_BITS) - 1) })
    }

    fn holds(self, emptied: Emptied) -> bool {
        self.queue == emptied.queue
            && (emptied.sequence.wrapping_sub(self.first) & (emptied.modulus - 1)) < self.count
    }
}

/// A segment that its queue gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Emptied {
    pub(super) queue: Queue,
    pub(super) sequence: u64,
    /// Modulus of the sequence numbers.
    pub(super) modulus: u64,
}

/// A Bloom filter of the fingerprints of a segment's entries, in blocks of one word (Putze, Sanders
/// and Singler, JEA 2009), with a word for each 64 bytes of the segment. With entries of 256 bytes
/// the false-positive rate is at most one in 1,000; with 16, the smallest, one in 100. In the
/// latter case a preempted search retains one in 100 of the segments emptied meanwhile.
pub(super) struct FingerprintFilter {
    words: Box<[u64]>,
}

impl FingerprintFilter {
    /// Bytes of a segment for each word.
    const BYTES_FOR_WORD: usize = 64;
    /// Bits for each fingerprint, all in one word.
    const BITS: u32 = 4;

    /// An empty filter for a segment of this size, a power of two.
    pub(super) fn none(segment_bytes: usize) -> Self {
        Self { words: vec![0; segment_bytes / Self::BYTES_FOR_WORD].into() }
    }

    pub(super) fn heap_bytes(&self) -> u64 {
        size_of_val(&*self.words) as u64
    }

    pub(super) fn clear(&mut self) {
        self.words.fill(0);
    }

    /// The word of a fingerprint, and its bits in it.
    #[inline]
    fn place(&self, fingerprint: u64) -> (usize, u64) {
        let mixed = fingerprint.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let bits =
            (0..Self::BITS).fold(0, |bits, part| bits | 1 << (mixed >> (58 - 6 * part) & 63));
        ((mixed >> 20) as usize & (self.words.len() - 1), bits)
    }

    #[inline]
    pub(super) fn add(&mut self, fingerprint: u64) {
        let (word, bits) = self.place(fingerprint);
        self.words[word] |= bits;
    }

    pub(super) fn may_have(&self, fingerprint: u64) -> bool {
        let (word, bits) = self.place(fingerprint);
        self.words[word] & bits == bits
    }
}

/// All lines.
pub(super) struct Readers {
    lines: Box<[Line]>,
}

/// Alone in its cache line, so that readers of different lines do not share one.
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
    /// Makes the lines for a cache of up to `max_chunks`: one line for two chunks, within bounds.
    pub(super) fn new(max_chunks: usize) -> Self {
        let lines = (max_chunks / 2).clamp(*LINES.start(), *LINES.end()).next_power_of_two();
        let line = || Line {
            reading: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        };
        Self { lines: (0..lines).map(|_| line()).collect() }
    }

    /// Heap memory of the lines.
    pub(super) fn heap_bytes(&self) -> u64 {
        size_of_val(&*self.lines) as u64
    }

    /// Claims a line and publishes the use of the index for entries with this fingerprint. `None`
    /// if all are taken, possibly by this very thread. `hint` is constant within a thread and
    /// differs between threads.
    #[inline]
    pub(super) fn begin(&self, hint: usize, fingerprint: u64) -> Option<Reading<'_>> {
        for step in 0..self.lines.len() {
            let line = &self.lines[hint.wrapping_add(step) & (self.lines.len() - 1)];
            // SeqCst: the first of the reader's two steps.
            let claimed = line.reading.compare_exchange(
                0,
                CLAIMED | IN_INDEX | fingerprint,
                Ordering::SeqCst,
                Ordering::Relaxed,
            );
            if claimed.is_ok() {
                order();
                return Some(Reading { line });
            }
        }
        None
    }

    /// Bitmask of the lines whose readers may be reading this segment, which the index no longer
    /// refers to. `fingerprints` tests for the fingerprints of all entries that were in it. The
    /// segment must not be written before [`Readers::still_reading`] of these lines is 0.
    pub(super) fn reading(&self, emptied: Emptied, fingerprints: impl Fn(u64) -> bool) -> u64 {
        // Between the evictor's two steps: the index, then the lines.
        fence(Ordering::SeqCst);
        self.lines_that(u64::MAX, |word| match Span::of_word(word) {
            Some(span) => span.holds(emptied),
            None => word & IN_INDEX > 0 && fingerprints(word & !(CLAIMED | IN_INDEX)),
        })
    }

    /// Those of `lines`, a result of [`Readers::reading`], that may still be reading the segment.
    pub(super) fn still_reading(&self, lines: u64, emptied: Emptied) -> u64 {
        self.lines_that(lines, |word| match Span::of_word(word) {
            Some(span) => span.holds(emptied),
            None => word & IN_INDEX > 0,
        })
    }

    /// Lines whose readers may use a page that was just removed from the cells.
    pub(super) fn in_index(&self) -> u64 {
        // Between the two steps of a removal: the cells, then the lines.
        fence(Ordering::SeqCst);
        self.still_in_index(u64::MAX)
    }

    /// Those of `lines` that still use the index.
    pub(super) fn still_in_index(&self, lines: u64) -> u64 {
        self.lines_that(lines, |word| word & IN_INDEX > 0)
    }

    fn lines_that(&self, lines: u64, mut is_so: impl FnMut(u64) -> bool) -> u64 {
        let checked = self.lines.iter().enumerate().filter(|(at, _)| lines >> at & 1 == 1);
        // SeqCst: the second of the evictor's two steps; pairs with `begin`. Also an Acquire: a
        // reader that left has finished its reads.
        checked.fold(0, |found, (at, line)| {
            found | u64::from(is_so(line.reading.load(Ordering::SeqCst))) << at
        })
    }

    /// Counts of successful and unsuccessful look-ups.
    pub(super) fn hits_and_misses(&self) -> (u64, u64) {
        let sum = |of: fn(&Line) -> &AtomicU64| {
            self.lines.iter().map(|line| of(line).load(Ordering::Relaxed)).sum()
        };
        (sum(|line| &line.hits), sum(|line| &line.misses))
    }
}

impl Reading<'_> {
    /// Ends the use of the index and publishes the span being read. Until now the use of the index
    /// protected that span.
    #[inline]
    pub(super) fn leave_index(&self, span: Span) {
        // Release: the index was read before; pairs with the loads in `lines_that`.
        self.line.reading.store(span.word(), Ordering::Release);
    }

    /// Counts a successful look-up. The count has no other writer: the line is claimed.
    #[inline]
    pub(super) fn count_hit(&self) {
        self.line
            .hits
            .store(self.line.hits.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Counts an unsuccessful look-up. The count has no other writer: the line is claimed.
    #[inline]
    pub(super) fn count_miss(&self) {
        self.line
            .misses
            .store(self.line.misses.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

impl Drop for Reading<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: all reads came before; pairs with the load in `lines_that`.
        self.line.reading.store(0, Ordering::Release);
    }
}

/// Orders a reader's two steps for loom, which models only SeqCst fences and not the order of
/// SeqCst accesses.
#[inline]
fn order() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    const EMPTIED: Emptied = Emptied { queue: Queue::Protected, sequence: 3, modulus: 8 };
    const FINGERPRINT: u64 = 77;

    /// One segment, and the index slot of the entry in it: 0 or the number stored in its bytes. The
    /// slot is in a page; a cell is 1 while it points to the page.
    struct Model {
        readers: Readers,
        cell: AtomicU64,
        page: UnsafeCell<u64>,
        slot: AtomicU64,
        /// The ring that a reader follows: 0 while it points to the segment, 1 once a later segment
        /// has replaced it.
        ring: AtomicU64,
        bytes: UnsafeCell<u64>,
        /// Bytes of the later segment, which is written while readers search for the entry of the
        /// slot.
        later: UnsafeCell<u64>,
    }

    impl Model {
        fn holding(number: u64) -> Arc<Self> {
            let model = Self {
                readers: Readers::new(64),
                cell: AtomicU64::new(1),
                page: UnsafeCell::new(0),
                slot: AtomicU64::new(0),
                ring: AtomicU64::new(0),
                bytes: UnsafeCell::new(0),
                later: UnsafeCell::new(0),
            };
            model.enter(number);
            Arc::new(model)
        }

        /// Enters an entry into an unread segment, as under the lock.
        fn enter(&self, number: u64) {
            #[allow(unsafe_code, reason = "loom's cell gives raw pointers only")]
            // SAFETY (of the model): loom reports a race if there is one.
            self.bytes.with_mut(|bytes| unsafe { *bytes = number });
            self.ring.store(0, Ordering::Release);
            self.slot.store(number, Ordering::Release);
        }

        /// Removes the entry from the index. Returns whether its segment may be written.
        fn evict(&self) -> bool {
            self.slot.store(0, Ordering::Release);
            self.ring.store(1, Ordering::Release);
            #[allow(unsafe_code, reason = "loom's cell gives raw pointers only")]
            // SAFETY (of the model): loom reports a race if there is one.
            self.later.with_mut(|bytes| unsafe { *bytes = 3 });
            let mut fingerprints = FingerprintFilter::none(4096);
            fingerprints.add(FINGERPRINT);
            let mut lines =
                self.readers.reading(EMPTIED, |fingerprint| fingerprints.may_have(fingerprint));
            if lines > 0 {
                thread::yield_now();
                lines = self.readers.still_reading(lines, EMPTIED);
            }
            lines == 0
        }

        /// Overwrites the entry with the same number, if it has no reader. Returns whether it did.
        fn write_over(&self) -> bool {
            let number = self.slot.swap(0, Ordering::AcqRel);
            let free = self.readers.reading(EMPTIED, |fingerprint| fingerprint == FINGERPRINT) == 0;
            if free {
                #[allow(unsafe_code, reason = "loom's cell gives raw pointers only")]
                // SAFETY (of the model): loom reports a race if there is one.
                self.bytes.with_mut(|bytes| unsafe { *bytes = number });
            }
            self.slot.store(number, Ordering::Release);
            free
        }

        /// Removes the page of the index, and overwrites it if it has no reader.
        fn release_page(&self) {
            self.cell.store(0, Ordering::Release);
            let mut lines = self.readers.in_index();
            if lines > 0 {
                thread::yield_now();
                lines = self.readers.still_in_index(lines);
            }
            if lines == 0 {
                #[allow(unsafe_code, reason = "loom's cell gives raw pointers only")]
                // SAFETY (of the model): loom reports a race if there is one.
                self.page.with_mut(|page| unsafe { *page = 1 });
            }
        }

        /// Searches for the entry with this number. Returns whether it found it.
        fn read(&self, hint: usize, number: u64) -> bool {
            let reading = self.readers.begin(hint, FINGERPRINT).expect("there are two lines");
            if self.cell.load(Ordering::SeqCst) == 0 {
                return false;
            }
            #[allow(unsafe_code, reason = "loom's cell gives raw pointers only")]
            // SAFETY (of the model): loom reports a race if there is one.
            let written_over = self.page.with(|page| unsafe { *page });
            assert_eq!(written_over, 0);
            if self.slot.load(Ordering::SeqCst) != number {
                return false;
            }
            let segment =
                if self.ring.load(Ordering::Acquire) == 0 { &self.bytes } else { &self.later };
            if self.slot.load(Ordering::Acquire) != number {
                return false;
            }
            reading.leave_index(Span { queue: Queue::Protected, first: 3, count: 1 });
            #[allow(unsafe_code, reason = "loom's cell gives raw pointers only")]
            // SAFETY (of the model): loom reports a race if there is one.
            let found = segment.with(|bytes| unsafe { *bytes });
            assert_eq!(found, number);
            true
        }
    }

    #[test]
    fn loom_bytes_under_a_reader_are_not_written() {
        loom::model(|| {
            let model = Model::holding(1);
            let reader = thread::spawn({
                let model = Arc::clone(&model);
                move || (model.read(0, 1), model.read(0, 2))
            });
            let free = model.evict();
            if free {
                model.enter(2);
            }
            let (_, second) = reader.join().unwrap();
            assert!(free || !second);
            let mut fingerprints = FingerprintFilter::none(4096);
            fingerprints.add(FINGERPRINT);
            assert_eq!(
                model.readers.reading(EMPTIED, |fingerprint| fingerprints.may_have(fingerprint)),
                0,
                "every line is free again"
            );
        });
    }

    #[test]
    fn loom_entry_under_a_reader_is_not_overwritten() {
        loom::model(|| {
            let model = Model::holding(1);
            let reader = thread::spawn({
                let model = Arc::clone(&model);
                move || (model.read(0, 1), model.read(0, 1))
            });
            model.write_over();
            reader.join().unwrap();
            assert!(model.write_over(), "every line is free again");
            assert!(model.read(1, 1));
        });
    }

    #[test]
    fn loom_index_page_under_a_reader_is_not_overwritten() {
        loom::model(|| {
            let model = Model::holding(1);
            let reader = thread::spawn({
                let model = Arc::clone(&model);
                move || model.read(0, 1)
            });
            model.release_page();
            let found = reader.join().unwrap();
            assert!(!model.read(1, 1), "the cell leads elsewhere");
            assert_eq!((found, model.readers.in_index()), (found, 0), "every line is free again");
        });
    }

    #[test]
    fn loom_two_readers_do_not_hide_each_other() {
        // All schedules of three threads would take hours. Two preemptions suffice for two readers
        // to meet.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let model = Model::holding(1);
            let readers = [0, 0].map(|hint| {
                let model = Arc::clone(&model);
                thread::spawn(move || model.read(hint, 1))
            });
            if model.evict() {
                model.enter(2);
            }
            readers.into_iter().for_each(|reader| assert!(reader.join().is_ok()));
        });
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use plimsoll_disk::checksum::checksum;

    use super::*;

    fn emptied(queue: Queue, sequence: u64) -> Emptied {
        Emptied { queue, sequence, modulus: 8 }
    }

    #[test]
    fn span_holds_its_segments_across_wraparound() {
        let span = Span { queue: Queue::Probation, first: 6, count: 3 };
        assert_eq!(Span::of_word(span.word()), Some(span));
        let held: Vec<_> =
            (0..8).filter(|sequence| span.holds(emptied(Queue::Probation, *sequence))).collect();
        assert_eq!(held, [0, 6, 7]);
        assert!(!span.holds(emptied(Queue::Protected, 6)));
    }

    #[test]
    fn fingerprint_filter_has_few_false_positives() {
        // The number of entries in a segment of 64 KiB at 256 bytes, and at the smallest size; and
        // the false positives allowed among a thousand other fingerprints.
        for (entries, most) in [(256, 1), (4096, 10)] {
            let (entries, looks) =
                if cfg!(miri) { (entries / 16, 1000) } else { (entries, 100_000) };
            let mut fingerprints = FingerprintFilter::none(if cfg!(miri) { 4096 } else { 65_536 });
            let fingerprint = |number: u64| checksum(1, &number.to_le_bytes()) >> 40;
            (0..entries).for_each(|number| fingerprints.add(fingerprint(number)));
            assert!((0..entries).all(|number| fingerprints.may_have(fingerprint(number))));
            let others = (entries..entries + looks)
                .filter(|number| fingerprints.may_have(fingerprint(*number)))
                .count() as u64;
            assert!(
                others * 1000 <= looks * most,
                "{others} false positives in {looks} look-ups with {entries} entries"
            );
            fingerprints.clear();
            assert!(!(0..entries).any(|number| fingerprints.may_have(fingerprint(number))));
        }
    }

    #[test]
    fn search_protects_by_fingerprint_and_read_protects_by_span() {
        let readers = Readers::new(64);
        let mut fingerprints = FingerprintFilter::none(4096);
        fingerprints.add(0xff_ffff);
        let reading = readers.begin(2, 0xff_ffff).unwrap();
        let segment = emptied(Queue::Protected, 5);
        assert_eq!(
            (
                readers.reading(segment, |fingerprint| fingerprints.may_have(fingerprint)),
                readers.in_index()
            ),
            (4, 4)
        );
        assert_eq!(readers.reading(segment, |_| false), 0);
        reading.leave_index(Span { queue: Queue::Protected, first: 5, count: 1 });
        assert_eq!((readers.reading(segment, |_| false), readers.in_index()), (4, 0));
        assert_eq!(
            readers.reading(emptied(Queue::Protected, 6), |fingerprint| fingerprints
                .may_have(fingerprint)),
            0
        );
        assert_eq!(readers.still_reading(4, segment), 4);
        drop(reading);
        assert_eq!(
            (
                readers.still_reading(4, segment),
                readers.reading(segment, |fingerprint| fingerprints.may_have(fingerprint))
            ),
            (0, 0)
        );
    }
}
