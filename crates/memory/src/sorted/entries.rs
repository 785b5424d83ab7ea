//! Entries in chunks, linked into a skip list.
//!
//! ```text
//!    -4*height ...  -8         -4        0       8            10            12
//!    | link h-1 ... | link 1   | link 0  | order | key length | value length | key .. | value .. |
//!                                        ^ position: chunk << 13 | offset / 8
//! ```
//!
//! Invariants:
//! 1. A position read from a link names an entry whose bytes never change again and whose chunk
//!    stays until the list is dropped.
//! 2. An entry on level n is on every level below n, in the same order.
//! 3. At least sixteen bytes are readable from the start of a key, whatever its length.
#![allow(
    unsafe_code,
    reason = "lays entries over the bytes of chunks that readers and the writer share"
)]

use std::cmp::Ordering;
use std::num::NonZeroU32;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{self, AtomicPtr, AtomicU64, AtomicUsize};

use super::Entry;
use super::link::{Link, splice};
use crate::budget::chunk::CHUNK_BYTES;

/// The most levels of a tower.
pub(super) const MAX_HEIGHT: usize = 12;
/// One in four entries on a level is also on the next level; four is 2 to the power of this.
pub(super) const BITS_A_LEVEL: usize = 2;

/// No entry; as the start of a search, the head.
const NONE: u32 = 0;

/// Bytes in front of the key: order and two lengths.
pub(super) const HEADER_BYTES: usize = 12;

pub(super) const LINK_BYTES: usize = size_of::<u32>();

const UNIT_BYTES: usize = 8;
const UNIT_BITS: u32 = (CHUNK_BYTES / UNIT_BYTES).ilog2();
/// Bytes of keys that are compared at once. The keys of a memtable begin with four bytes that most
/// of them have in common.
pub(super) const PREFIX_BYTES: usize = 16;

/// Chunks that the first segment of the table has room for; each further segment has twice as many
/// as the one before.
const FIRST_SEGMENT: usize = 8;
const SEGMENTS: usize = 16;

/// The most chunks that positions can name: 32 GiB.
pub(super) const MAX_CHUNKS: usize = FIRST_SEGMENT * ((1 << SEGMENTS) - 1);

const _: () = assert!(MAX_CHUNKS <= 1 << (u32::BITS - UNIT_BITS));

/// The place of an entry; valid for the map that gave it, as long as that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    at: NonZeroU32,
    /// The id of the map. It is never reused: 64 bits do not wrap in the life of a process.
    map: u64,
}

/// A search key, prepared for comparison.
pub(super) struct Probe<'a> {
    prefix: u128,
    key: &'a [u8],
    order: u64,
}

impl<'a> Probe<'a> {
    pub(super) fn new(key: &'a [u8], order: u64) -> Self {
        let mut prefix = [0; PREFIX_BYTES];
        let length = key.len().min(PREFIX_BYTES);
        prefix[..length].copy_from_slice(&key[..length]);
        Self { prefix: u128::from_be_bytes(prefix), key, order }
    }
}

/// A gap between two neighbours, on every level: entries of one list with none between them.
#[derive(Clone, Debug)]
pub(super) struct Gap {
    before: [u32; MAX_HEIGHT],
    after: [u32; MAX_HEIGHT],
}

impl Gap {
    /// The only gap of an empty list.
    pub(super) fn whole() -> Self {
        Self { before: [NONE; MAX_HEIGHT], after: [NONE; MAX_HEIGHT] }
    }
}

/// The place of a new entry in a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placement {
    pub(super) chunk: usize,
    /// The offset of the header; the tower is in front of it.
    pub(super) offset: usize,
    pub(super) height: usize,
}

impl Placement {
    /// The place of an entry in a chunk, or in a piece of one, of `room` bytes that are free from
    /// `start` on; and the first byte after it. `None` if it does not fit.
    pub(super) fn fit(
        chunk: usize,
        room: usize,
        start: usize,
        height: usize,
        payload_bytes: usize,
    ) -> Option<(Self, usize)> {
        let offset = (start + height * LINK_BYTES).next_multiple_of(UNIT_BYTES);
        let end = offset + HEADER_BYTES + payload_bytes.max(PREFIX_BYTES);
        let end = end.next_multiple_of(LINK_BYTES);
        (end <= room).then_some((Self { chunk, offset, height }, end))
    }

    fn position(&self) -> u32 {
        (self.chunk as u32) << UNIT_BITS | (self.offset / UNIT_BYTES) as u32
    }
}

/// An entry that is written but not linked to neighbours yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unlinked {
    at: u32,
    height: u32,
}

impl Unlinked {
    /// Its position.
    pub(super) fn at(self) -> u32 {
        self.at
    }
}

/// Number of descents interleaved.
pub(super) const DESCENTS: usize = 8;

/// A search on its way down. It is on the level below `levels`, after `before`.
struct Descent<'a> {
    levels: usize,
    before: u32,
    /// The entry at which the level above stopped.
    after: u32,
    /// The entry being prefetched.
    next: u32,
    probe: Probe<'a>,
}

/// The skip list: a head, and a table of chunks that is read without a lock.
pub(super) struct Entries {
    /// Distinguishes positions of this list from those of others.
    id: u64,
    head: [Link; MAX_HEIGHT],
    height: AtomicUsize,
    /// The number of towers of each height, from one on.
    towers: [AtomicU64; MAX_HEIGHT],
    segments: [OnceLock<Box<[AtomicPtr<u8>]>>; SEGMENTS],
}

impl Entries {
    pub(super) fn new() -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        Self {
            id: IDS.fetch_add(1, atomic::Ordering::Relaxed),
            head: std::array::from_fn(|_| Link::none()),
            height: AtomicUsize::new(1),
            towers: std::array::from_fn(|_| AtomicU64::new(0)),
            segments: std::array::from_fn(|_| OnceLock::new()),
        }
    }

    /// Capacity of the segment that must be allocated for the chunk with this index; 0 if the table
    /// has room already.
    pub(super) fn segment_missing(&self, chunk: usize) -> usize {
        let (segment, _) = segment_of(chunk);
        if self.segments[segment].get().is_some() { 0 } else { FIRST_SEGMENT << segment }
    }

    /// Heap bytes of a segment for this many chunks.
    pub(super) fn segment_bytes(chunks: usize) -> usize {
        chunks * size_of::<AtomicPtr<u8>>()
    }

    /// Stores the address of a chunk, or of a piece of one, in the table. Its holder keeps it until
    /// `self` is dropped, or calls `forget_chunk`.
    pub(super) fn enter_chunk(&self, index: usize, address: NonNull<u8>) {
        let (segment, at) = segment_of(index);
        let table = self.segments[segment].get_or_init(|| {
            (0..FIRST_SEGMENT << segment).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect()
        });
        // Release: pairs with the Acquire in `chunk_address`.
        table[at].store(address.as_ptr(), atomic::Ordering::Release);
    }

    /// Removes from the table a chunk in which no entry was ever written.
    pub(super) fn forget_chunk(&self, index: usize) {
        let (segment, at) = segment_of(index);
        if let Some(table) = self.segments[segment].get() {
            table[at].store(std::ptr::null_mut(), atomic::Ordering::Release);
        }
    }

    fn chunk_address(&self, index: usize) -> NonNull<u8> {
        let (segment, at) = segment_of(index);
        let table = self.segments[segment].get().expect("a position names a chunk of the table");
        // Acquire: pairs with the Release in `enter_chunk`.
        NonNull::new(table[at].load(atomic::Ordering::Acquire))
            .expect("a position names a chunk of the table")
    }

    /// Address of the header of the entry at `at`.
    fn address(&self, at: u32) -> NonNull<u8> {
        let chunk = self.chunk_address((at >> UNIT_BITS) as usize);
        let offset = (at as usize & ((1 << UNIT_BITS) - 1)) * UNIT_BYTES;
        // SAFETY: an offset of `UNIT_BITS` bits, times a unit, lies inside a chunk.
        unsafe { chunk.add(offset) }
    }

    /// The link of `level` that leads on from `at` ([`NONE`]: from the head).
    ///
    /// # Safety
    /// `at` is [`NONE`] or names an entry of this list with more than `level` levels, or one about
    /// to be written there.
    unsafe fn link(&self, at: u32, level: usize) -> &Link {
        if at == NONE {
            return &self.head[level];
        }
        // SAFETY: the tower precedes the header in the same chunk, with the alignment of headers;
        // its bytes are accessed only through `Link`, which is laid out like a `u32`.
        unsafe { self.address(at).sub((level + 1) * LINK_BYTES).cast::<Link>().as_ref() }
    }

    /// The first entry.
    pub(super) fn first(&self) -> Option<Position> {
        self.position(self.head[0].follow())
    }

    /// The last entry.
    pub(super) fn last(&self) -> Option<Position> {
        let mut at = NONE;
        for level in (0..self.height.load(atomic::Ordering::Relaxed)).rev() {
            loop {
                // SAFETY: `at` is the head or was reached on this level or a higher one.
                match unsafe { self.link(at, level) }.follow() {
                    NONE => break,
                    next => at = next,
                }
            }
        }
        self.position(at)
    }

    /// The next entry.
    pub(super) fn next(&self, position: Position) -> Option<Position> {
        // SAFETY: it is an entry of this list, as `own` checks, and every entry has a level 0.
        self.position(unsafe { self.link(self.own(position), 0) }.follow())
    }

    /// The entry itself.
    pub(super) fn entry(&self, position: Position) -> Entry<'_> {
        // SAFETY: it is an entry of this list, as `own` checks.
        unsafe { self.read(self.own(position)) }
    }

    /// The last entry before the probe, and the first at or after it.
    pub(super) fn around(&self, probe: &Probe<'_>) -> (Option<Position>, Option<Position>) {
        let (before, after) = self.search(probe, |_, _, _| {});
        (self.position(before), self.position(after))
    }

    /// Calls `each` with entries from the probe `from` up to `to`, at most about four times `least`
    /// of them, drawn by the heights of their towers. Returns the number of entries of the list per
    /// entry of the sample.
    pub(super) fn sample(
        &self,
        from: &Probe<'_>,
        to: Option<&Probe<'_>>,
        least: usize,
        mut each: impl FnMut(Position),
    ) -> f64 {
        let mut first = [NONE; MAX_HEIGHT];
        self.search(from, |level, _, after| first[level] = after);
        let on = |level: usize| {
            std::iter::successors(Some(first[level]), move |&at| {
                // SAFETY: `at` was reached on this level.
                Some(unsafe { self.link(at, level) }.follow())
            })
            .take_while(move |&at| {
                // SAFETY: a link points to an entry.
                let is_below = |to| unsafe { self.compare(at, to) } == Ordering::Less;
                at != NONE && to.is_none_or(is_below)
            })
        };
        let levels = self.height.load(atomic::Ordering::Relaxed);
        let level =
            (1..levels).rev().find(|&level| on(level).take(least).count() == least).unwrap_or(0);
        on(level).filter_map(|at| self.position(at)).for_each(&mut each);
        // Relaxed: the result is an estimate, and the counters change while they are read.
        let towers = |from: usize| {
            self.towers[from..]
                .iter()
                .map(|count| count.load(atomic::Ordering::Relaxed))
                .sum::<u64>()
        };
        towers(0) as f64 / towers(level).max(1) as f64
    }

    fn position(&self, at: u32) -> Option<Position> {
        NonZeroU32::new(at).map(|at| Position { at, map: self.id })
    }

    fn own(&self, position: Position) -> u32 {
        assert_eq!(position.map, self.id, "a position is valid for the map that gave it");
        position.at.get()
    }

    /// The entry at `at`.
    ///
    /// # Safety
    /// `at` names an entry of this list.
    unsafe fn read(&self, at: u32) -> Entry<'_> {
        let address = self.address(at);
        // SAFETY: an entry begins with its order, aligned to eight, and two lengths, and never
        // changes.
        let (order, key_bytes, value_bytes) = unsafe {
            (
                address.cast::<u64>().read(),
                usize::from(address.add(8).cast::<u16>().read()),
                usize::from(address.add(10).cast::<u16>().read()),
            )
        };
        // SAFETY: this many bytes were written after the header, in the same chunk, and never
        // change while `self` lives.
        let (key, value) = unsafe {
            let key = address.add(HEADER_BYTES);
            (
                std::slice::from_raw_parts(key.as_ptr(), key_bytes),
                std::slice::from_raw_parts(key.add(key_bytes).as_ptr(), value_bytes),
            )
        };
        Entry { key, order, value }
    }

    /// Compares the entry at `at` with the probe: `Less` means that the entry comes first.
    ///
    /// # Safety
    /// `at` names an entry of this list.
    #[inline]
    unsafe fn compare(&self, at: u32, probe: &Probe<'_>) -> Ordering {
        let address = self.address(at);
        // SAFETY: an entry has its key's length there, and sixteen readable bytes where the key
        // starts (invariant 3).
        let (key_bytes, prefix) = unsafe {
            (
                usize::from(address.add(8).cast::<u16>().read()),
                u128::from_be(address.add(HEADER_BYTES).cast::<u128>().read_unaligned()),
            )
        };
        // Bytes after a short key are not part of it.
        let prefix = if key_bytes < PREFIX_BYTES {
            prefix & !(u128::MAX >> (8 * key_bytes))
        } else {
            prefix
        };
        if prefix != probe.prefix {
            return prefix.cmp(&probe.prefix);
        }
        // SAFETY: the caller guarantees it.
        let entry = unsafe { self.read(at) };
        entry.key.cmp(probe.key).then(probe.order.cmp(&entry.order))
    }

    /// The neighbours of the probe's place: the last entry before it and the first at or after it.
    /// Calls `record` with the neighbours on every level in use.
    fn search(&self, probe: &Probe<'_>, record: impl FnMut(usize, u32, u32)) -> (u32, u32) {
        self.search_below(self.height.load(atomic::Ordering::Relaxed), (NONE, NONE), probe, record)
    }

    /// Like [`Entries::search`], but on the lowest `levels` levels. Starts between two entries that
    /// are on all of these levels and enclose the place.
    fn search_below(
        &self,
        levels: usize,
        (mut before, mut after): (u32, u32),
        probe: &Probe<'_>,
        mut record: impl FnMut(usize, u32, u32),
    ) -> (u32, u32) {
        for level in (0..levels).rev() {
            let not_before = after;
            loop {
                // SAFETY: `before` is the head or was reached on this level or a higher one.
                after = unsafe { self.link(before, level) }.follow();
                if after == NONE || after == not_before {
                    break;
                }
                // SAFETY: a link points to an entry.
                if unsafe { self.compare(after, probe) } != Ordering::Less {
                    break;
                }
                before = after;
            }
            record(level, before, after);
        }
        (before, after)
    }

    /// Descends to the places of all of these keys, one step of each in turn, so that the memory
    /// latencies overlap.
    pub(super) fn fetch_paths(&self, keys: &[&[u8]]) {
        let levels = self.height.load(atomic::Ordering::Relaxed);
        let begin = |at: usize| {
            let probe = Probe::new(keys.get(at)?, u64::MAX);
            Some(Descent { levels, before: NONE, after: NONE, next: NONE, probe })
        };
        let mut descents: [Option<Descent<'_>>; DESCENTS] = std::array::from_fn(begin);
        let mut more = true;
        while more {
            more = false;
            for descent in descents.iter_mut().flatten().filter(|descent| descent.levels > 0) {
                self.advance(descent);
                more = true;
            }
        }
    }

    /// Compares the entry prefetched last, and prefetches the next.
    fn advance(&self, descent: &mut Descent<'_>) {
        let next = std::mem::replace(&mut descent.next, NONE);
        // SAFETY: a link led there.
        if next != NONE && unsafe { self.compare(next, &descent.probe) } == Ordering::Less {
            descent.before = next;
        } else if next != NONE {
            descent.after = next;
            descent.levels -= 1;
        }
        while descent.levels > 0 {
            // SAFETY: `before` is the head or was reached on this level or a higher one.
            let next = unsafe { self.link(descent.before, descent.levels - 1) }.follow();
            if next != NONE && next != descent.after {
                descent.next = next;
                return self.fetch(next);
            }
            descent.levels -= 1;
        }
    }

    /// Prefetches an entry's tower and key.
    pub(super) fn fetch(&self, at: u32) {
        let address = self.address(at).as_ptr();
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        for place in [
            address.wrapping_sub(2 * LINK_BYTES),
            address.wrapping_add(HEADER_BYTES + PREFIX_BYTES / 2),
        ] {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: it is a hint that reads nothing, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = address;
    }

    /// Compares an entry with the probe; `for_none` is the result for [`NONE`].
    fn compare_or(&self, at: u32, probe: &Probe<'_>, for_none: Ordering) -> Ordering {
        // SAFETY: gaps and searches yield entries of this list only.
        if at == NONE { for_none } else { unsafe { self.compare(at, probe) } }
    }

    /// Whether everything from the first of `first` to the last of `last` belongs in `gap`, which
    /// was found in this list.
    pub(super) fn is_in_gap(&self, gap: &Gap, first: &[u8], last: &[u8]) -> bool {
        let (first, last) = (Probe::new(first, u64::MAX), Probe::new(last, 0));
        self.compare_or(gap.before[0], &first, Ordering::Less) == Ordering::Less
            && self.compare_or(gap.after[0], &last, Ordering::Greater) == Ordering::Greater
    }

    /// Moves `gap` to the probe's place. The gap was found in this list, and nothing was inserted
    /// elsewhere since. Returns whether no entry has the probe's key and order. A place shortly
    /// after the gap is found in a few steps, without a descent from the top.
    pub(super) fn find_gap(&self, gap: &mut Gap, probe: &Probe<'_>) -> bool {
        let mut levels = self.height.load(atomic::Ordering::Relaxed);
        let mut between = (NONE, NONE);
        if self.compare_or(gap.before[0], probe, Ordering::Less) == Ordering::Less {
            let behind = |level: usize| self.compare_or(gap.after[level], probe, Ordering::Greater);
            match behind(0) {
                Ordering::Less => {}
                order => return order == Ordering::Greater,
            }
            // On the first level where the gap is wide enough its sides are correct; on the levels
            // below, search from the entries passed.
            levels = (1..levels).find(|&level| behind(level) != Ordering::Less).unwrap_or(levels);
            between = (gap.after[levels - 1], gap.after.get(levels).map_or(NONE, |after| *after));
        }
        let (_, after) = self.search_below(levels, between, probe, |level, before, after| {
            gap.before[level] = before;
            gap.after[level] = after;
        });
        self.compare_or(after, probe, Ordering::Greater) != Ordering::Equal
    }

    /// Writes an entry at `place`, where readers cannot find it yet. The value comes in two parts.
    ///
    /// # Safety
    /// The caller is the only writer; `place` came from [`Placement::fit`] for these lengths in a
    /// chunk of the table, and its bytes, tower included, belong to no other entry.
    pub(super) unsafe fn write(
        &self,
        place: Placement,
        key: &[u8],
        order: u64,
        [head, body]: [&[u8]; 2],
    ) -> Unlinked {
        let at = place.position();
        let address = self.address(at);
        // SAFETY: the header's bytes are aligned, inside the chunk, and not read before the entry
        // is linked.
        unsafe {
            address.cast::<u64>().write(order);
            address.add(8).cast::<u16>().write(key.len() as u16);
            address.add(10).cast::<u16>().write((head.len() + body.len()) as u16);
        }
        // SAFETY: as above for the bytes after the header; the key and the parts are readable, so
        // they cannot overlap bytes that no reader can reach yet.
        unsafe {
            let to = address.add(HEADER_BYTES);
            to.copy_from_nonoverlapping(NonNull::from(key).cast(), key.len());
            let to = to.add(key.len());
            to.copy_from_nonoverlapping(NonNull::from(head).cast(), head.len());
            to.add(head.len()).copy_from_nonoverlapping(NonNull::from(body).cast(), body.len());
        }
        Unlinked { at, height: place.height as u32 }
    }

    /// Links a written entry into `gap`, which becomes the gap after the entry.
    ///
    /// # Safety
    /// The caller is the only writer; [`Entries::write`] of this list gave `entry`, and it was not
    /// linked before; `gap` holds neighbours of its place.
    pub(super) unsafe fn link_in(&self, entry: Unlinked, gap: &mut Gap) {
        let (at, height) = (entry.at, entry.height as usize);
        // SAFETY: the entry's tower has this many levels, and the predecessor in `gap` on a level
        // has that level.
        splice(
            at,
            height,
            |level| unsafe { self.link(at, level) },
            |level| unsafe { self.link(gap.before[level], level) },
            &gap.after,
        );
        gap.before[..height].fill(at);
        self.height.fetch_max(height, atomic::Ordering::Relaxed);
        // A load and a store suffice, because there is only one writer at a time.
        let count = &self.towers[height - 1];
        count.store(count.load(atomic::Ordering::Relaxed) + 1, atomic::Ordering::Relaxed);
    }

    /// The bytes of an entry that is not linked yet.
    ///
    /// # Safety
    /// [`Entries::write`] of this list returned it, on the caller's own thread or on one that
    /// happened before.
    pub(super) unsafe fn unlinked(&self, entry: Unlinked) -> Entry<'_> {
        // SAFETY: its bytes are written, and the caller guarantees the rest.
        unsafe { self.read(entry.at) }
    }
}

/// The table segment of a chunk, and the chunk's place in it.
fn segment_of(chunk: usize) -> (usize, usize) {
    let shifted = chunk + FIRST_SEGMENT;
    let segment = (shifted.ilog2() - FIRST_SEGMENT.ilog2()) as usize;
    (segment, shifted - (FIRST_SEGMENT << segment))
}
