//! A queue of entries: a stream of bytes over segments, written at its young end and freed at its
//! old end.
//!
//! A position counts words from the queue's very first entry on; a ring maps the position to the
//! segment. Written entries stay in place until the old end passes them.

use std::sync::atomic::{AtomicU32, Ordering};

use super::entry::{Arrival, Header, Placed};
use super::policy::Queue;
use super::readers::Emptied;
use super::segments::{Owner, Segments, zeros};
use super::slot::PLACE_MASK;

/// Maps a segment's number in the queue to the segment.
pub(super) struct Ring {
    segments: Box<[AtomicU32]>,
}

impl Ring {
    /// For a queue of at most this many segments at once; its capacity is [`Ring::len`].
    pub(super) fn new(segments: usize) -> Self {
        Self { segments: zeros(segments.next_power_of_two()) }
    }

    /// Segments that a queue can have.
    pub(super) fn len(&self) -> usize {
        self.segments.len()
    }

    pub(super) fn heap_bytes(&self) -> u64 {
        size_of_val(&*self.segments) as u64
    }

    #[inline]
    pub(super) fn get(&self, sequence: u64) -> u32 {
        // Acquire: pairs with the Release in `set`. A reader that sees a later segment also sees
        // that the index no longer refers to the earlier one.
        self.segments[sequence as usize & (self.segments.len() - 1)].load(Ordering::Acquire)
    }

    fn set(&self, sequence: u64, segment: u32) {
        self.segments[sequence as usize & (self.segments.len() - 1)]
            .store(segment, Ordering::Release);
    }
}

/// The ends of a queue. Under the cache's lock.
pub(super) struct Ends {
    pub(super) queue: Queue,
    /// Position of the oldest entry.
    pub(super) old: u64,
    /// Position after the youngest entry.
    pub(super) young: u64,
    /// Bytes of the entries that the index refers to.
    pub(super) live_bytes: u64,
    /// Bytes of fillers that end where a segment does. Most exist because the head of the next
    /// entry did not fit.
    pub(super) filled_bytes: u64,
}

/// The emptied segment at a position of a queue, in the form in which readers' lines are compared
/// with it.
pub(super) fn emptied(segments: &Segments, queue: Queue, position: u64) -> Emptied {
    let modulus = (PLACE_MASK + 1) >> segments.words_shift();
    Emptied { queue, sequence: sequence_of(segments, position), modulus }
}

/// The number of the segment at a position or place.
#[inline]
pub(super) fn sequence_of(segments: &Segments, place: u64) -> u64 {
    (place & PLACE_MASK) >> segments.words_shift()
}

/// Bytes from the segment's start to a position or place.
#[inline]
pub(super) fn offset_of(segments: &Segments, place: u64) -> usize {
    (place as usize & ((1 << segments.words_shift()) - 1)) * 8
}

impl Ends {
    pub(super) fn new(queue: Queue) -> Self {
        Self { queue, old: 0, young: 0, live_bytes: 0, filled_bytes: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.old == self.young
    }

    /// The position between the ends whose low bits are `place`, the part that a slot holds.
    pub(super) fn position_of(&self, place: u64) -> u64 {
        self.old + (place.wrapping_sub(self.old) & PLACE_MASK)
    }

    /// Bytes between the ends that belong to no entry.
    pub(super) fn dead_bytes(&self) -> u64 {
        (self.young - self.old) * 8 - self.live_bytes
    }

    /// The dead bytes that cleaning recovers: all but the fillers at the ends of segments, which
    /// would reappear elsewhere.
    pub(super) fn cleanable_bytes(&self) -> u64 {
        self.dead_bytes() - self.filled_bytes
    }

    /// The bytes that a filler at this position adds to [`Ends::filled_bytes`].
    pub(super) fn filled_by(segments: &Segments, position: u64, filler: Header) -> u64 {
        let ends_segment = offset_of(segments, position + filler.words()) == 0;
        if ends_segment { filler.bytes() } else { 0 }
    }

    /// Accounts for a filler that the old end is about to pass.
    pub(super) fn passes_filler(&mut self, segments: &Segments, filler: Header) {
        self.filled_bytes -= Self::filled_by(segments, self.old, filler);
    }

    pub(super) fn count(&mut self, header: Header) {
        self.live_bytes += header.bytes();
    }

    pub(super) fn uncount(&mut self, header: Header) {
        self.live_bytes -= header.bytes();
    }

    /// Room in the segment of the young end; zero if the segment is full or there is none yet.
    fn room(&self, segments: &Segments) -> usize {
        match offset_of(segments, self.young) {
            0 => 0,
            offset => segments.bytes() - offset,
        }
    }

    /// Number of segments that must be taken to write this entry.
    pub(super) fn segments_for(&self, segments: &Segments, header: Header) -> usize {
        let room = self.room(segments);
        // The bytes before the value must be contiguous.
        let room = if room < header.value_at() { 0 } else { room };
        (header.bytes() as usize).saturating_sub(room).div_ceil(segments.bytes())
    }

    /// Writes an entry into the rest of the segment at the young end. Returns its position, or
    /// `None` if it does not fit.
    pub(super) fn write_within(
        &mut self,
        segments: &Segments,
        ring: &Ring,
        arrival: &Arrival<'_>,
    ) -> Option<u64> {
        let header = arrival.header();
        if header.bytes() as usize > self.room(segments) {
            return None;
        }
        let position = self.young;
        self.write_parts(segments, ring, position, arrival);
        self.young += header.words();
        Some(position)
    }

    /// Overwrites an entry of `room` words, which is in one segment. The index must not refer to
    /// the entry any more, and the entry must have no reader. The remaining words become a filler.
    #[allow(unsafe_code, reason = "writes bytes without readers")]
    pub(super) fn write_over(
        &mut self,
        segments: &Segments,
        ring: &Ring,
        (position, room): (u64, u64),
        arrival: &Arrival<'_>,
    ) {
        self.write_parts(segments, ring, position, arrival);
        let words = arrival.header().words();
        if words < room {
            let (end, filler) = (position + words, Header::filler((room - words) as usize * 8));
            let (segment, at) = (ring.get(sequence_of(segments, end)), offset_of(segments, end));
            // SAFETY: as in `write_parts`.
            unsafe { segments.write(segment, at, &filler.encode()) }
            self.filled_bytes += Self::filled_by(segments, end, filler);
        }
    }

    /// Writes the parts of an entry consecutively, within one segment.
    #[allow(unsafe_code, reason = "writes bytes without readers")]
    fn write_parts(&self, segments: &Segments, ring: &Ring, position: u64, arrival: &Arrival<'_>) {
        let segment = ring.get(sequence_of(segments, position));
        let mut at = offset_of(segments, position);
        let mut write = |bytes: &[u8]| {
            // SAFETY: there is no published entry after the young end. Elsewhere, the caller has
            // removed the entry that was here, and it has no reader. The caller holds the lock.
            unsafe { segments.write(segment, at, bytes) }
            at += bytes.len();
        };
        write(&arrival.header().encode());
        if let Some(expires_at) = arrival.expires_at {
            write(&expires_at.to_le_bytes());
        }
        write(arrival.key);
        arrival.value.iter().for_each(|part| write(part));
    }

    /// Copies the bytes of an entry into the rest of the segment at the young end. Returns its
    /// position, or `None` if it does not fit.
    #[allow(unsafe_code, reason = "writes at the young end")]
    pub(super) fn copy_within(
        &mut self,
        segments: &Segments,
        ring: &Ring,
        entry: &[u8],
    ) -> Option<u64> {
        if entry.len() > self.room(segments) {
            return None;
        }
        let (position, segment) = (self.young, ring.get(sequence_of(segments, self.young)));
        // SAFETY: as in `put`.
        unsafe { segments.write(segment, offset_of(segments, position), entry) }
        self.young += (entry.len() / 8) as u64;
        Some(position)
    }

    /// Writes the part before the value. Returns the position of the entry, and the place of the
    /// value, in the form that `write_value` takes.
    pub(super) fn write_head(
        &mut self,
        segments: &Segments,
        ring: &Ring,
        owner: &mut Owner,
        header: Header,
        expires_at: Option<u64>,
        key: &[u8],
    ) -> (u64, usize) {
        let room = self.room(segments);
        if room > 0 && room < header.value_at() {
            self.write(segments, ring, owner, &Header::filler(room).encode());
            self.young += (room as u64 - 8) / 8;
            self.filled_bytes += room as u64;
        }
        let position = self.young;
        self.write(segments, ring, owner, &header.encode());
        if let Some(at) = expires_at {
            self.write(segments, ring, owner, &at.to_le_bytes());
        }
        self.put(segments, ring, 0, key);
        self.young += (key.len() / 8) as u64;
        (position, key.len() % 8)
    }

    /// Writes one piece of the value, which begins `at` bytes after the whole words written so far.
    /// Returns the place of the next.
    pub(super) fn write_value(
        &mut self,
        segments: &Segments,
        ring: &Ring,
        owner: &mut Owner,
        mut at: usize,
        mut piece: &[u8],
    ) -> usize {
        while !piece.is_empty() {
            if at == 0 && offset_of(segments, self.young) == 0 {
                let before = ring.get(sequence_of(segments, self.young - 1));
                let segment = self.begin_segment(segments, ring, owner);
                segments.link(before, segment);
            }
            let room = segments.bytes() - offset_of(segments, self.young) - at;
            let (now, later) = piece.split_at(piece.len().min(room));
            self.put(segments, ring, at, now);
            at += now.len();
            // Advance over whole words at once, so that the young end is at a segment's start when
            // the segment is full.
            self.young += (at / 8) as u64;
            at %= 8;
            piece = later;
        }
        at
    }

    /// Ends the entry whose last byte was just written; `at` as `write_value` returned it.
    pub(super) fn end_entry(&mut self, at: usize) {
        self.young += u64::from(at > 0);
    }

    fn write(&mut self, segments: &Segments, ring: &Ring, owner: &mut Owner, word: &[u8; 8]) {
        if offset_of(segments, self.young) == 0 {
            self.begin_segment(segments, ring, owner);
        }
        self.put(segments, ring, 0, word);
        self.young += 1;
    }

    #[allow(unsafe_code, reason = "writes at the young end")]
    fn put(&self, segments: &Segments, ring: &Ring, at: usize, bytes: &[u8]) {
        if !bytes.is_empty() {
            let segment = ring.get(sequence_of(segments, self.young));
            // SAFETY: there is no published entry after the young end, and the caller holds the
            // lock.
            unsafe { segments.write(segment, offset_of(segments, self.young) + at, bytes) }
        }
    }

    fn begin_segment(&mut self, segments: &Segments, ring: &Ring, owner: &mut Owner) -> u32 {
        let segment = owner.take(segments).expect("room was provided before an entry is written");
        ring.set(sequence_of(segments, self.young), segment);
        segment
    }

    /// The entry or filler at a position between the ends.
    #[allow(unsafe_code, reason = "reads entries between the ends")]
    pub(super) fn entry_at<'a>(
        &self,
        segments: &'a Segments,
        ring: &Ring,
        position: u64,
    ) -> Placed<'a> {
        debug_assert!((self.old..self.young).contains(&position));
        let segment = ring.get(sequence_of(segments, position));
        // SAFETY: nothing is written between the ends, and they move only under the lock, which the
        // caller holds.
        unsafe { Placed::at(segments, self.queue, segment, offset_of(segments, position)) }
    }

    /// Prefetches the entry at a position, if that is between the ends.
    pub(super) fn prefetch(&self, segments: &Segments, ring: &Ring, position: u64) {
        if position < self.young {
            segments
                .prefetch(ring.get(sequence_of(segments, position)), offset_of(segments, position));
        }
    }

    /// Moves the old end to `to`; calls `leave` with each segment that it leaves.
    pub(super) fn pass(
        &mut self,
        segments: &Segments,
        ring: &Ring,
        to: u64,
        mut leave: impl FnMut(Emptied, u32),
    ) {
        let shift = segments.words_shift();
        for number in self.old >> shift..to >> shift {
            let left = emptied(segments, self.queue, number << shift);
            leave(left, ring.get(left.sequence));
        }
        self.old = to;
        if self.is_empty() && offset_of(segments, to) > 0 {
            // Both ends are in one segment, which is now empty. The next entry begins in a new
            // segment.
            let left = emptied(segments, self.queue, to);
            leave(left, ring.get(left.sequence));
            self.old = ((to >> shift) + 1) << shift;
            self.young = self.old;
        }
    }
}
