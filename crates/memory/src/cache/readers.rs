//! Who is reading what, so that nobody writes over it.
//!
//! A reader claims one of a few lines, which says at first that it uses the index and for which tag, and then which segments of which queue it
//! reads. Whoever empties a segment, or gives a page of the index up, looks through the lines before it is written again.
//!
//! Laws:
//! 1. A reader writes its line and then looks in the index; an evictor takes the entry out of the index and then looks at the lines. In the one order
//!    of those four steps one of the two sees the other. That is the only one that a reader waits for: what its line says later says less.
//! 2. So with a page: a reader writes that it uses the index and then looks which page it is; who gives one up changes that first.
//! 3. A line that says that the index is used holds the segments in which an entry with its tag stood ([`Tags`]), and no others: who is stopped
//!    between two instructions there holds up the index and next to nothing else.

#[cfg(loom)]
use loom::sync::atomic::fence;
#[cfg(not(loom))]
use std::sync::atomic::fence;

use super::policy::Queue;
use crate::sync::{AtomicU64, Ordering};

/// So many can read at once without a lock; more read under the writer's. Not a setting: a line is held only while bytes are looked at. A small cache has
/// fewer, of which it would notice the memory; never more than a word has bits.
#[cfg(not(loom))]
const LINES: std::ops::RangeInclusive<usize> = 16..=64;
#[cfg(loom)]
const LINES: std::ops::RangeInclusive<usize> = 2..=2;

/// In a line: it is claimed; of the main queue; the index is in use, and what follows is a tag and not a span.
const CLAIMED: u64 = 1 << 63;
const MAIN: u64 = 1 << 62;
const IN_INDEX: u64 = 1 << 61;
const COUNT_BITS: u32 = 23;
const SEQUENCE_BITS: u32 = 38;

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
        CLAIMED | if self.queue == Queue::Main { MAIN } else { 0 } | self.first << COUNT_BITS | self.count
    }

    fn of_word(word: u64) -> Option<Self> {
        let queue = if word & MAIN > 0 { Queue::Main } else { Queue::Small };
        let first = word >> COUNT_BITS & ((1 << SEQUENCE_BITS) - 1);
        let is_span = word & (CLAIMED | IN_INDEX) == CLAIMED;
        is_span.then_some(Self { queue, first, count: word & ((1 << COUNT_BITS) - 1) })
    }

    fn holds(self, emptied: Emptied) -> bool {
        self.queue == emptied.queue && (emptied.sequence.wrapping_sub(self.first) & (emptied.modulus - 1)) < self.count
    }
}

/// A segment that its queue gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Emptied {
    pub(super) queue: Queue,
    pub(super) sequence: u64,
    /// Sequence numbers are modulo this.
    pub(super) modulus: u64,
}

/// The tags of the entries that stood in a segment, and now and then of one that did not: a filter in blocks of a word (Putze, Sanders and Singler,
/// JEA 2009). It has a word for each 64 bytes of the segment. Where entries have 256 bytes one other tag in 1,000 at most seems to be there, too; where they
/// have 16, the least, one in 100: a searcher that is stopped then holds back one segment in 100 of those that are emptied meanwhile.
pub(super) struct Tags {
    words: Box<[u64]>,
}

impl Tags {
    /// Bytes of a segment for each word.
    const BYTES_FOR_WORD: usize = 64;
    /// Bits for each tag, all in one word.
    const BITS: u32 = 4;

    /// Room for those of a segment of so many bytes, which is a power of two.
    pub(super) fn none(segment_bytes: usize) -> Self {
        Self { words: vec![0; segment_bytes / Self::BYTES_FOR_WORD].into() }
    }

    pub(super) fn heap_bytes(&self) -> u64 {
        size_of_val(&*self.words) as u64
    }

    pub(super) fn clear(&mut self) {
        self.words.fill(0);
    }

    /// The word of a tag, and its bits in it.
    #[inline]
    fn place(&self, tag: u64) -> (usize, u64) {
        let mixed = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let bits = (0..Self::BITS).fold(0, |bits, part| bits | 1 << (mixed >> (58 - 6 * part) & 63));
        ((mixed >> 20) as usize & (self.words.len() - 1), bits)
    }

    #[inline]
    pub(super) fn add(&mut self, tag: u64) {
        let (word, bits) = self.place(tag);
        self.words[word] |= bits;
    }

    pub(super) fn may_have(&self, tag: u64) -> bool {
        let (word, bits) = self.place(tag);
        self.words[word] & bits == bits
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
    /// For a cache that may take so many chunks: a line for two of them, within bounds.
    pub(super) fn new(max_chunks: usize) -> Self {
        let lines = (max_chunks / 2).clamp(*LINES.start(), *LINES.end()).next_power_of_two();
        let line = || Line { reading: AtomicU64::new(0), hits: AtomicU64::new(0), misses: AtomicU64::new(0) };
        Self { lines: (0..lines).map(|_| line()).collect() }
    }

    /// Heap memory of the lines.
    pub(super) fn heap_bytes(&self) -> u64 {
        size_of_val(&*self.lines) as u64
    }

    /// Claims a line, which says that the index is used for entries with this tag; `None` if all are taken, be it by this very thread. `hint` is the
    /// same each time for a thread and another for each.
    #[inline]
    pub(super) fn begin(&self, hint: usize, tag: u64) -> Option<Reading<'_>> {
        for step in 0..self.lines.len() {
            let line = &self.lines[hint.wrapping_add(step) & (self.lines.len() - 1)];
            // SeqCst: the first of the reader's two steps.
            let claimed =
                line.reading.compare_exchange(0, CLAIMED | IN_INDEX | tag, Ordering::SeqCst, Ordering::Relaxed);
            if claimed.is_ok() {
                order();
                return Some(Reading { line });
            }
        }
        None
    }

    /// The lines, a bit each, whose readers may be reading this segment, which the index means no more. `tags` are those of all entries that stood in
    /// it, and it is not written before [`Readers::still_reading`] of these lines is 0.
    pub(super) fn reading(&self, emptied: Emptied, tags: impl Fn(u64) -> bool) -> u64 {
        // Between the evictor's two steps: the index, then the lines.
        fence(Ordering::SeqCst);
        self.lines_that(u64::MAX, |word| match Span::of_word(word) {
            Some(span) => span.holds(emptied),
            None => word & IN_INDEX > 0 && tags(word & !(CLAIMED | IN_INDEX)),
        })
    }

    /// Which of these lines, that [`Readers::reading`] returned, may read it still.
    pub(super) fn still_reading(&self, lines: u64, emptied: Emptied) -> u64 {
        self.lines_that(lines, |word| match Span::of_word(word) {
            Some(span) => span.holds(emptied),
            None => word & IN_INDEX > 0,
        })
    }

    /// The lines whose readers may look at a page that was just given up: its cells lead elsewhere.
    pub(super) fn in_index(&self) -> u64 {
        // Between the two steps of who gives it up: the cells, then the lines.
        fence(Ordering::SeqCst);
        self.still_in_index(u64::MAX)
    }

    /// Which of these lines use the index, still or again.
    pub(super) fn still_in_index(&self, lines: u64) -> u64 {
        self.lines_that(lines, |word| word & IN_INDEX > 0)
    }

    fn lines_that(&self, lines: u64, mut is_so: impl FnMut(u64) -> bool) -> u64 {
        let asked = self.lines.iter().enumerate().filter(|(at, _)| lines >> at & 1 == 1);
        // SeqCst: the second of the evictor's two steps; pairs with `begin`. Also an Acquire: who left has read all.
        asked.fold(0, |said, (at, line)| said | u64::from(is_so(line.reading.load(Ordering::SeqCst))) << at)
    }

    /// Look-ups that found something, and that did not.
    pub(super) fn hits_and_misses(&self) -> (u64, u64) {
        let sum = |of: fn(&Line) -> &AtomicU64| self.lines.iter().map(|line| of(line).load(Ordering::Relaxed)).sum();
        (sum(|line| &line.hits), sum(|line| &line.misses))
    }
}

impl Reading<'_> {
    /// The index is used no more, and this is what is read from here on: a part of what was held up to now.
    #[inline]
    pub(super) fn leave_index(&self, span: Span) {
        // Release: the index was read before; pairs with the loads in `lines_that`.
        self.line.reading.store(span.word(), Ordering::Release);
    }

    /// Counts a look-up that found something. Nobody else writes the count meanwhile: the line is claimed.
    #[inline]
    pub(super) fn count_hit(&self) {
        self.line.hits.store(self.line.hits.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Counts one that did not; likewise.
    #[inline]
    pub(super) fn count_miss(&self) {
        self.line.misses.store(self.line.misses.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

impl Drop for Reading<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: what was read was read before; pairs with the load in `lines_that`.
        self.line.reading.store(0, Ordering::Release);
    }
}

/// Between a reader's two steps. Its SeqCst accesses are in order by themselves; loom knows an order of SeqCst fences only.
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

    const EMPTIED: Emptied = Emptied { queue: Queue::Main, sequence: 3, modulus: 8 };
    const TAG: u64 = 77;

    /// One segment, and the slot of the index that means the entry in it: 0 or the number that its bytes are. The slot stands in a page, and a cell
    /// leads there: 1, or 0 where the page was given up.
    struct Model {
        readers: Readers,
        cell: AtomicU64,
        page: UnsafeCell<u64>,
        slot: AtomicU64,
        /// Leads to the segment: 0, or 1 once a later one of the queue has its place in the ring.
        ring: AtomicU64,
        bytes: UnsafeCell<u64>,
        /// Of the later one, that is written while readers look for what the slot meant.
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

        /// What whoever holds the lock does with a segment that nobody reads.
        fn enter(&self, number: u64) {
            #[allow(unsafe_code, reason = "loom's cell wants it")]
            // SAFETY (of the model): loom reports a race if there is one.
            self.bytes.with_mut(|bytes| unsafe { *bytes = number });
            self.ring.store(0, Ordering::Release);
            self.slot.store(number, Ordering::Release);
        }

        /// Takes the entry out of the index, and says whether its segment may be written.
        fn evict(&self) -> bool {
            self.slot.store(0, Ordering::Release);
            self.ring.store(1, Ordering::Release);
            #[allow(unsafe_code, reason = "loom's cell wants it")]
            // SAFETY (of the model): loom reports a race if there is one.
            self.later.with_mut(|bytes| unsafe { *bytes = 3 });
            let mut tags = Tags::none(4096);
            tags.add(TAG);
            let mut lines = self.readers.reading(EMPTIED, |tag| tags.may_have(tag));
            if lines > 0 {
                thread::yield_now();
                lines = self.readers.still_reading(lines, EMPTIED);
            }
            lines == 0
        }

        /// Writes the entry over with the same number, if nobody looks; whether it did.
        fn write_over(&self) -> bool {
            let number = self.slot.swap(0, Ordering::AcqRel);
            let free = self.readers.reading(EMPTIED, |tag| tag == TAG) == 0;
            if free {
                #[allow(unsafe_code, reason = "loom's cell wants it")]
                // SAFETY (of the model): loom reports a race if there is one.
                self.bytes.with_mut(|bytes| unsafe { *bytes = number });
            }
            self.slot.store(number, Ordering::Release);
            free
        }

        /// Gives the page of the index up, and writes over it if nobody looks at it.
        fn give_page_up(&self) {
            self.cell.store(0, Ordering::Release);
            let mut lines = self.readers.in_index();
            if lines > 0 {
                thread::yield_now();
                lines = self.readers.still_in_index(lines);
            }
            if lines == 0 {
                #[allow(unsafe_code, reason = "loom's cell wants it")]
                // SAFETY (of the model): loom reports a race if there is one.
                self.page.with_mut(|page| unsafe { *page = 1 });
            }
        }

        /// Looks for the entry with this number; whether it was there.
        fn read(&self, hint: usize, number: u64) -> bool {
            let reading = self.readers.begin(hint, TAG).expect("there are two lines");
            if self.cell.load(Ordering::SeqCst) == 0 {
                return false;
            }
            #[allow(unsafe_code, reason = "loom's cell wants it")]
            // SAFETY (of the model): loom reports a race if there is one.
            let written_over = self.page.with(|page| unsafe { *page });
            assert_eq!(written_over, 0);
            if self.slot.load(Ordering::SeqCst) != number {
                return false;
            }
            let segment = if self.ring.load(Ordering::Acquire) == 0 { &self.bytes } else { &self.later };
            if self.slot.load(Ordering::Acquire) != number {
                return false;
            }
            reading.leave_index(Span { queue: Queue::Main, first: 3, count: 1 });
            #[allow(unsafe_code, reason = "loom's cell wants it")]
            // SAFETY (of the model): loom reports a race if there is one.
            let found = segment.with(|bytes| unsafe { *bytes });
            assert_eq!(found, number);
            true
        }
    }

    #[test]
    fn loom_bytes_that_somebody_reads_are_not_written() {
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
            let mut tags = Tags::none(4096);
            tags.add(TAG);
            assert_eq!(model.readers.reading(EMPTIED, |tag| tags.may_have(tag)), 0, "every line is free again");
        });
    }

    #[test]
    fn loom_an_entry_is_not_written_over_while_somebody_looks_at_it() {
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
    fn loom_a_page_of_the_index_that_somebody_uses_is_not_written_over() {
        loom::model(|| {
            let model = Model::holding(1);
            let reader = thread::spawn({
                let model = Arc::clone(&model);
                move || model.read(0, 1)
            });
            model.give_page_up();
            let found = reader.join().unwrap();
            assert!(!model.read(1, 1), "the cell leads elsewhere");
            assert_eq!((found, model.readers.in_index()), (found, 0), "every line is free again");
        });
    }

    #[test]
    fn loom_two_readers_do_not_hide_each_other() {
        // Every order of three threads would take hours; two switches where nobody waits are enough for two readers to meet.
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
    fn a_span_holds_its_segments_also_where_their_numbers_begin_again() {
        let span = Span { queue: Queue::Small, first: 6, count: 3 };
        assert_eq!(Span::of_word(span.word()), Some(span));
        let held: Vec<_> = (0..8).filter(|sequence| span.holds(emptied(Queue::Small, *sequence))).collect();
        assert_eq!(held, [0, 6, 7]);
        assert!(!span.holds(emptied(Queue::Main, 6)));
    }

    #[test]
    fn tags_that_were_added_are_there_and_few_others_seem_to_be() {
        // As many entries as a segment of 64 KiB has of 256 bytes, and of the least that there are; of a thousand other tags so many may seem to be there.
        for (entries, most) in [(256, 1), (4096, 10)] {
            let (entries, looks) = if cfg!(miri) { (entries / 16, 1000) } else { (entries, 100_000) };
            let mut tags = Tags::none(if cfg!(miri) { 4096 } else { 65_536 });
            let tag = |number: u64| checksum(1, &number.to_le_bytes()) >> 40;
            (0..entries).for_each(|number| tags.add(tag(number)));
            assert!((0..entries).all(|number| tags.may_have(tag(number))));
            let others = (entries..entries + looks).filter(|number| tags.may_have(tag(*number))).count() as u64;
            assert!(others * 1000 <= looks * most, "{others} of {looks} seem to be there beside {entries}");
            tags.clear();
            assert!(!(0..entries).any(|number| tags.may_have(tag(number))));
        }
    }

    #[test]
    fn who_searches_the_index_holds_segments_with_the_tag_and_who_has_found_holds_those_of_the_entry() {
        let readers = Readers::new(64);
        let mut tags = Tags::none(4096);
        tags.add(0xff_ffff);
        let reading = readers.begin(2, 0xff_ffff).unwrap();
        let segment = emptied(Queue::Main, 5);
        assert_eq!((readers.reading(segment, |tag| tags.may_have(tag)), readers.in_index()), (4, 4));
        assert_eq!(readers.reading(segment, |_| false), 0);
        reading.leave_index(Span { queue: Queue::Main, first: 5, count: 1 });
        assert_eq!((readers.reading(segment, |_| false), readers.in_index()), (4, 0));
        assert_eq!(readers.reading(emptied(Queue::Main, 6), |tag| tags.may_have(tag)), 0);
        assert_eq!(readers.still_reading(4, segment), 4);
        drop(reading);
        assert_eq!((readers.still_reading(4, segment), readers.reading(segment, |tag| tags.may_have(tag))), (0, 0));
    }
}
