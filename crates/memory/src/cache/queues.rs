//! The two queues under the cache's lock: their segments, and the bytes of the entries in them.
//!
//! Writes, overwrites and moves entries, and advances the old ends. Updates the slot of an entry
//! whose bytes change, but never adds or removes a slot: [`super::entries`] keeps index and queues
//! in step.
//!
//! Invariants:
//! 1. Segments in use never exceed the limit: segments are reserved before anything is written.
//! 2. [`RESERVE`] segments beyond a reservation stay free, so that an entry can always be moved
//!    from one queue to the other.
//! 3. An entry leaves the index before the old end passes it. A segment that the old end leaves
//!    while a reader uses it is retired. It counts as used until the reader is gone.
//! 4. Entries + dead bytes = the bytes between the ends of the queues, at every moment.
//! 5. A position is used for one key only ([`super::slot`]). A reader that sees the same index word
//!    twice has therefore seen an entry of its key throughout.

use std::sync::atomic::{AtomicU64, Ordering};

use super::entry::{Arrival, Header, Placed};
use super::policy::Queue;
use super::queue::{Ends, emptied, offset_of};
use super::readers::{Emptied, FingerprintFilter};
use super::segments::Owner;
use super::shared::Shared;
use super::slot::{Slot, fingerprint};

/// Segments that stay free for moves.
pub(super) const RESERVE: usize = 2;

/// The number of retired segments whose list is leased with the tables. Each further element of the
/// list takes some 40 bytes without a lease, which is little beside its segment of at least 4 KiB.
const RETIRED: usize = 16;

/// An entry that the index refers to, and its place.
#[derive(Clone, Copy)]
pub(super) struct Located<'a> {
    pub(super) slot: &'a AtomicU64,
    pub(super) hash: u64,
    pub(super) position: u64,
    pub(super) placed: Placed<'a>,
}

impl Located<'_> {
    /// The word of the slot. Readers may add touches meanwhile.
    pub(super) fn word(&self) -> Slot {
        Slot(self.slot.load(Ordering::Relaxed))
    }
}

/// A segment that was given up while a reader used it.
struct Retired {
    segment: u32,
    readers: RetiredFrom,
}

/// The possible readers of a retired segment.
enum RetiredFrom {
    /// The lines whose readers searched for the segment's entries, or read them, when it was given
    /// up.
    Queue { lines: u64, emptied: Emptied },
    /// The segment was a page of the index: the lines whose readers used the index when the page
    /// was given up, and have not stopped since.
    Index { lines: u64 },
}

impl RetiredFrom {
    fn is_read(&mut self, shared: &Shared) -> bool {
        let lines = match self {
            Self::Queue { lines, emptied } => {
                *lines = shared.readers.still_reading(*lines, *emptied);
                lines
            }
            Self::Index { lines } => {
                *lines = shared.readers.still_in_index(*lines);
                lines
            }
        };
        *lines > 0
    }
}

pub(super) struct Queues {
    pub(super) owner: Owner,
    ends: [Ends; 2],
    /// Indexed by queue: the fingerprints of all entries that were in the segment of its old end.
    passed: [FingerprintFilter; 2],
    retired: Vec<Retired>,
}

impl Queues {
    pub(super) fn new(owner: Owner, segment_bytes: usize) -> Self {
        Self {
            owner,
            ends: [Ends::new(Queue::Probation), Ends::new(Queue::Protected)],
            passed: [(); 2].map(|()| FingerprintFilter::none(segment_bytes)),
            retired: Vec::with_capacity(RETIRED),
        }
    }

    /// Heap memory allocated in [`Queues::new`], without that of the owner.
    pub(super) fn heap_bytes(&self) -> u64 {
        let fingerprints: u64 = self.passed.iter().map(FingerprintFilter::heap_bytes).sum();
        fingerprints + (self.retired.capacity() * size_of::<Retired>()) as u64
    }

    pub(super) fn ends(&self, queue: Queue) -> &Ends {
        &self.ends[queue as usize]
    }

    fn ends_mut(&mut self, queue: Queue) -> &mut Ends {
        &mut self.ends[queue as usize]
    }

    /// Bytes of entries on probation and in the protected queue.
    pub(super) fn live_bytes(&self) -> [u64; 2] {
        self.ends.each_ref().map(|ends| ends.live_bytes)
    }

    /// Bytes between the ends that belong to no entry.
    pub(super) fn dead_bytes(&self) -> u64 {
        self.ends.iter().map(Ends::dead_bytes).sum()
    }

    /// Words between the ends.
    pub(super) fn words(&self) -> u64 {
        self.ends.iter().map(|ends| ends.young - ends.old).sum()
    }

    /// The entry or filler at a position between the ends of a queue.
    pub(super) fn entry_at<'a>(
        &self,
        shared: &'a Shared,
        queue: Queue,
        position: u64,
    ) -> Placed<'a> {
        self.ends(queue).entry_at(&shared.segments, shared.ring(queue), position)
    }

    /// Makes `segments` available, without eviction. Returns whether they are.
    pub(super) fn reserve(&mut self, shared: &Shared, segments: usize) -> bool {
        if self.owner.ensure_free(&shared.segments, segments + RESERVE) {
            return true;
        }
        self.reclaim(shared);
        self.owner.ensure_free(&shared.segments, segments + RESERVE)
    }

    /// Frees the retired segments that no reader uses any more.
    pub(super) fn reclaim(&mut self, shared: &Shared) {
        let owner = &mut self.owner;
        self.retired.retain_mut(|retired| {
            let is_read = retired.readers.is_read(shared);
            if !is_read {
                owner.release(&shared.segments, retired.segment);
            }
            is_read
        });
    }

    /// Frees the segment of a page that was removed from the index, once it has no reader.
    pub(super) fn retire_page(&mut self, shared: &Shared, segment: u32) {
        match shared.readers.in_index() {
            0 => self.owner.release(&shared.segments, segment),
            lines => self.retired.push(Retired { segment, readers: RetiredFrom::Index { lines } }),
        }
    }

    /// Writes an entry at the young end of a queue, in reserved segments. Returns its position. The
    /// entry counts as dead until [`Queues::count`].
    pub(super) fn write(
        &mut self,
        shared: &Shared,
        queue: Queue,
        header: Header,
        arrival: &Arrival<'_>,
    ) -> u64 {
        let (segments, ring, owner) = (&shared.segments, shared.ring(queue), &mut self.owner);
        let ends = &mut self.ends[queue as usize];
        if let Some(position) = ends.write_within(segments, ring, arrival) {
            return position;
        }
        let (position, mut at) =
            ends.write_head(segments, ring, owner, header, arrival.expires_at, arrival.key);
        for part in arrival.value {
            at = ends.write_value(segments, ring, owner, at, part);
        }
        ends.end_entry(at);
        position
    }

    /// Counts an entry as live.
    pub(super) fn count(&mut self, queue: Queue, header: Header) {
        self.ends_mut(queue).count(header);
    }

    /// Counts an entry as dead.
    pub(super) fn uncount(&mut self, queue: Queue, header: Header) {
        self.ends_mut(queue).uncount(header);
    }

    /// Overwrites the entry of the same key in its place. This leaves no dead bytes to clean, and
    /// counts as a touch. Returns `false` without any change if the new entry is larger, the old
    /// one crosses segments, or a reader may use it. The readers' lines show whether a reader may
    /// use the entry ([`super::readers`]): once the slot is empty, the entry has no reader if no
    /// line holds its fingerprint or its segment.
    pub(super) fn write_over(
        &mut self,
        shared: &Shared,
        before: &Located<'_>,
        arrival: &Arrival<'_>,
        header: Header,
    ) -> bool {
        let Placed { queue, header: old, .. } = before.placed;
        if header.words() > old.words() || before.placed.whole().is_none() {
            return false;
        }
        let word = Slot(before.slot.swap(Slot::EMPTY.0, Ordering::AcqRel));
        let its_segment = emptied(&shared.segments, queue, before.position);
        if shared.readers.reading(its_segment, |other| other == fingerprint(before.hash)) > 0 {
            before.slot.store(word.0, Ordering::Release);
            return false;
        }
        let ends = self.ends_mut(queue);
        ends.uncount(old);
        let place = (before.position, old.words());
        ends.write_over(&shared.segments, shared.ring(queue), place, arrival);
        ends.count(header);
        // Release: the entry's bytes were written before; pairs with the reader's Acquire.
        before.slot.store(word.touched().unwrap_or(word).0, Ordering::Release);
        true
    }

    /// Copies an entry to the young end of `target`: at once, or, if it is long, segment by
    /// segment. Returns `false` without any change if there is no room.
    pub(super) fn move_entry(
        &mut self,
        shared: &Shared,
        entry: &Located<'_>,
        target: Queue,
        touches: u8,
    ) -> bool {
        let placed = &entry.placed;
        let wanted = self.ends(target).segments_for(&shared.segments, placed.header);
        let at_once = self.owner.ensure_free_for_move(&shared.segments, wanted);
        if !at_once && !self.can_move_in_steps(shared, entry) {
            return false;
        }
        self.uncount(placed.queue, placed.header);
        let whole = placed.whole().and_then(|bytes| {
            self.ends_mut(target).copy_within(&shared.segments, shared.ring(target), bytes)
        });
        let moved_to = whole.unwrap_or_else(|| self.copy_in_pieces(shared, entry, target, at_once));
        self.count(target, placed.header);
        // Release: the copy was written before; pairs with the reader's Acquire.
        entry.slot.store(Slot::entry(entry.hash, target, touches, moved_to).0, Ordering::Release);
        true
    }

    /// Copies an entry, segment by segment, to the young end of `target`. Gives each segment up
    /// before the next is needed, unless all are available `at_once`. Returns the start of the
    /// copy.
    fn copy_in_pieces(
        &mut self,
        shared: &Shared,
        entry: &Located<'_>,
        target: Queue,
        at_once: bool,
    ) -> u64 {
        let (segments, ring, placed) = (&shared.segments, shared.ring(target), &entry.placed);
        let (header, expires_at) = (placed.header, placed.expires_at());
        let ends = &mut self.ends[target as usize];
        let (moved_to, mut at) =
            ends.write_head(segments, ring, &mut self.owner, header, expires_at, placed.key());
        let mut pieces = placed.pieces();
        let mut piece = pieces.next();
        let mut read_to = entry.position * 8 + header.value_at() as u64;
        while let Some(bytes) = piece {
            let ends = &mut self.ends[target as usize];
            at = ends.write_value(segments, ring, &mut self.owner, at, bytes);
            read_to += bytes.len() as u64;
            // Find the next piece before giving up the segment of this one.
            piece = pieces.next();
            if !at_once && piece.is_some() {
                self.advance_unread(shared, placed.queue, read_to / 8);
            }
        }
        self.ends_mut(target).end_entry(at);
        moved_to
    }

    /// Whether a long entry can be moved segment by segment, giving up each before the next is
    /// needed. It can if no reader uses the entry or the entries before it in its first segment.
    /// Later readers do not find these entries, because the index no longer refers to them.
    fn can_move_in_steps(&mut self, shared: &Shared, entry: &Located<'_>) -> bool {
        let (queue, count) = (entry.placed.queue, entry.placed.segment_count());
        if count < 2 || !self.owner.ensure_free_for_move(&shared.segments, RESERVE) {
            return false;
        }
        let before = entry.slot.swap(Slot::EMPTY.0, Ordering::AcqRel);
        let passed = &mut self.passed[queue as usize];
        passed.add(fingerprint(entry.hash));
        let is_read = (0..count).any(|step| {
            let emptied = emptied(
                &shared.segments,
                queue,
                entry.position + (step << shared.segments.words_shift()),
            );
            shared.readers.reading(emptied, |fingerprint| passed.may_have(fingerprint)) > 0
        });
        if is_read {
            entry.slot.store(before, Ordering::Release);
        }
        !is_read
    }

    /// Advances a queue's old end to `to`, over an entry with this fingerprint, or over a filler or
    /// dead bytes. The segments that it leaves become free, or retired while they have readers.
    fn advance(&mut self, shared: &Shared, queue: Queue, fingerprint: Option<u64>, to: u64) {
        let (owner, retired, passed) =
            (&mut self.owner, &mut self.retired, &mut self.passed[queue as usize]);
        fingerprint.into_iter().for_each(|fingerprint| passed.add(fingerprint));
        let mut leaves = false;
        self.ends[queue as usize].pass(
            &shared.segments,
            shared.ring(queue),
            to,
            |emptied, segment| {
                leaves = true;
                match shared.readers.reading(emptied, |fingerprint| passed.may_have(fingerprint)) {
                    0 => owner.release(&shared.segments, segment),
                    lines => retired
                        .push(Retired { segment, readers: RetiredFrom::Queue { lines, emptied } }),
                }
            },
        );
        if leaves {
            passed.clear();
            // The entry may extend into the next segment.
            fingerprint.into_iter().for_each(|fingerprint| passed.add(fingerprint));
        }
    }

    /// Advances a queue's old end over its oldest entry, which the index no longer refers to. The
    /// hash is that of its key.
    pub(super) fn pop_entry(&mut self, shared: &Shared, queue: Queue, hash: u64, end: u64) {
        self.advance(shared, queue, Some(fingerprint(hash)), end);
    }

    /// Advances a queue's old end over a filler.
    pub(super) fn pop_filler(&mut self, shared: &Shared, queue: Queue, filler: Header) {
        let ends = self.ends_mut(queue);
        ends.passes_filler(&shared.segments, filler);
        let end = ends.old + filler.words();
        self.advance(shared, queue, None, end);
    }

    /// Like [`Queues::advance`], for segments without readers.
    fn advance_unread(&mut self, shared: &Shared, queue: Queue, to: u64) {
        let owner = &mut self.owner;
        let release = |_, segment| owner.release(&shared.segments, segment);
        self.ends[queue as usize].pass(&shared.segments, shared.ring(queue), to, release);
    }

    /// Advances both old ends to the young ends. The index refers to no entry any more.
    pub(super) fn clear(&mut self, shared: &Shared) {
        for queue in [Queue::Probation, Queue::Protected] {
            let ends = self.ends_mut(queue);
            ends.live_bytes = 0;
            let young = ends.young;
            match shared.readers.in_index() {
                // Look-ups from here on find nothing.
                0 => {
                    ends.filled_bytes = 0;
                    self.advance(shared, queue, None, young);
                }
                _ => self.pop_each(shared, queue),
            }
        }
    }

    /// Advances a queue's old end entry by entry, so that a reader still searching for one of them
    /// retains only the segments of that one.
    fn pop_each(&mut self, shared: &Shared, queue: Queue) {
        while !self.ends(queue).is_empty() {
            let position = self.ends(queue).old;
            let placed = self.entry_at(shared, queue, position);
            if placed.header.is_filler() {
                self.pop_filler(shared, queue, placed.header);
            } else {
                let hash = shared.hash(placed.key());
                self.pop_entry(shared, queue, hash, position + placed.header.words());
            }
        }
    }

    /// Recounts everything and compares it with the counters. Returns the number of entries that
    /// the index refers to.
    pub(super) fn check(&mut self, shared: &Shared, index_segments: usize) -> usize {
        self.reclaim(shared);
        let mut entries = 0;
        let mut spanned = index_segments + self.retired.len();
        for ends in &self.ends {
            let (mut live, mut filled, mut position) = (0, 0, ends.old);
            while position < ends.young {
                let placed = ends.entry_at(&shared.segments, shared.ring(ends.queue), position);
                let is_live = !placed.header.is_filler()
                    && shared.slot_of(shared.hash(placed.key()), ends.queue, position).is_some();
                if is_live {
                    entries += 1;
                    live += placed.header.bytes();
                }
                if placed.header.is_filler() {
                    filled += Ends::filled_by(&shared.segments, position, placed.header);
                }
                position += placed.header.words();
            }
            assert_eq!(position, ends.young, "entries end where the queue does");
            assert_eq!(live, ends.live_bytes, "bytes of entries");
            assert_eq!(filled, ends.filled_bytes, "fillers that end where a segment does");
            let shift = shared.segments.words_shift();
            let last = ends.young
                + u64::from(offset_of(&shared.segments, ends.young) > 0) * ((1 << shift) - 1);
            spanned += ((last >> shift) - (ends.old >> shift)) as usize;
        }
        assert_eq!(spanned, self.owner.used(), "segments of the queues, the index, and retired");
        assert!(self.owner.used() <= self.owner.limit(), "segments in use are within the limit");
        self.owner.check(&shared.segments);
        entries
    }
}
