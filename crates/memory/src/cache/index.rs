//! From a key's hash to the slot that says where its entry stands.
//!
//! The index is a row of pages, each a segment of buckets of eight slots (a cache line). The topmost bits of a hash choose a *cell*;
//! cells lie side by side in pages; a page that gets crowded and its neighbour share with a third, so growing never stops the world
//! and pages stay between two thirds and full. The lowest bits choose a bucket, and the tag another: a key stands in one of its two.
//! Buckets do not depend on the page, so that a slot can move to another page without its key.
//!
//! Laws:
//! 1. Only whoever holds the cache's lock writes slots, but for one thing: a reader may count a touch in a slot, by compare-and-exchange.
//! 2. Ghosts live in what entries leave free; entries never make way for ghosts.
//! 3. A reader that finds nothing while pages share looks again (`changes`).
#![allow(unsafe_code, reason = "the pages are segments seen as atomics")]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::segments::Segments;
use super::slot::{Kind, PLACE_MASK, Slot};

/// Slots of a bucket: one cache line.
const BUCKET: usize = 8;

/// The most cells; their number must fit in a slot's tag, with room to tell entries apart.
const MAX_CELLS: usize = 1 << 20;

/// A page is crowded once so many parts of a hundred of its slots are entries.
const CROWDED_PERCENT: usize = 45;

/// No bucket of the two has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// What readers see.
pub(super) struct Index {
    /// By cell: the page's segment.
    cells: Box<[AtomicU32]>,
    cell_shift: u32,
    buckets: usize,
    /// Odd while pages share.
    changes: AtomicU64,
}

impl Index {
    /// An index that may come to consist of `max_segments`.
    pub(super) fn new(segments: &Segments, max_segments: usize) -> Self {
        let cells = (max_segments * 2).next_power_of_two().clamp(2, MAX_CELLS);
        Self {
            cells: (0..cells).map(|_| AtomicU32::new(0)).collect(),
            cell_shift: 64 - cells.ilog2(),
            buckets: segments.bytes() / 8 / BUCKET,
            changes: AtomicU64::new(0),
        }
    }

    /// Heap memory of the table of cells.
    pub(super) fn heap_bytes(&self) -> u64 {
        size_of_val(&*self.cells) as u64
    }

    /// Changes each time that pages share; odd while they do.
    #[inline]
    pub(super) fn changes(&self) -> u64 {
        // Acquire: pairs with the Release in `Pages::grow`; what was moved before is seen.
        self.changes.load(Ordering::Acquire)
    }

    /// The slots in which a key with this hash can be.
    #[inline]
    pub(super) fn slots<'a>(&self, segments: &'a Segments, hash: u64) -> impl Iterator<Item = &'a AtomicU64> {
        let [first, second] = self.buckets_of(segments, hash);
        first.iter().chain(second)
    }

    #[inline]
    fn buckets_of<'a>(&self, segments: &'a Segments, hash: u64) -> [&'a [AtomicU64]; 2] {
        // Acquire: pairs with the Release in `Pages`: the page was zeroed before.
        let page = self.cells[(hash >> self.cell_shift) as usize].load(Ordering::Acquire);
        // SAFETY: cells name segments that belong to the index.
        let slots = unsafe { segments.words(page) };
        let first = hash as usize & (self.buckets - 1);
        let second = self.other_bucket(first, hash);
        [&slots[first * BUCKET..][..BUCKET], &slots[second * BUCKET..][..BUCKET]]
    }

    /// The other bucket of a key of which only the topmost bits of the hash are known.
    #[inline]
    fn other_bucket(&self, bucket: usize, hash: u64) -> usize {
        let tag = (hash >> 40) as usize;
        // Never zero, so that there are two.
        let distance = (tag.wrapping_mul(0x9e37_79b1) >> 7) & (self.buckets - 1) | 1;
        (bucket ^ distance) & (self.buckets - 1)
    }
}

/// A page of the index.
#[derive(Clone, Copy, Debug)]
struct Page {
    segment: u32,
    first_cell: usize,
    cells: usize,
    /// Entries in it.
    entries: usize,
}

/// The writer's part. Under the cache's lock.
pub(super) struct Pages {
    /// In the order of their cells.
    pages: Vec<Page>,
    /// Ghosts younger than this, in words that left the small queue, count.
    pub(super) ghost_age_max: u64,
}

impl Pages {
    /// The writer's part of `index`, whose only page is `segment`.
    pub(super) fn new(index: &Index, segments: &Segments, segment: u32, max_segments: usize) -> Self {
        clear_page(segments, segment);
        let mut pages = Vec::with_capacity(max_segments.min(index.cells.len()));
        pages.push(Page { segment, first_cell: 0, cells: index.cells.len(), entries: 0 });
        index.cells.iter().for_each(|cell| cell.store(segment, Ordering::Release));
        Self { pages, ghost_age_max: 0 }
    }

    /// Heap memory.
    pub(super) fn heap_bytes(&self) -> u64 {
        (self.pages.capacity() * size_of::<Page>()) as u64
    }

    /// Pages there are.
    pub(super) fn len(&self) -> usize {
        self.pages.len()
    }

    fn page_of(&self, index: &Index, hash: u64) -> usize {
        let cell = (hash >> index.cell_shift) as usize;
        self.pages.partition_point(|page| page.first_cell <= cell) - 1
    }

    /// Whether the page of this hash should share with another soon.
    pub(super) fn is_crowded(&self, index: &Index, hash: u64) -> bool {
        let page = &self.pages[self.page_of(index, hash)];
        page.entries * 100 >= index.buckets * BUCKET * CROWDED_PERCENT
    }

    fn is_stale(&self, ghost: Slot, now: u64) -> bool {
        now.wrapping_sub(ghost.place()) & PLACE_MASK > self.ghost_age_max
    }

    /// Takes the ghost of a key with this hash, if there is one that still counts.
    pub(super) fn take_ghost(&self, index: &Index, segments: &Segments, hash: u64, now: u64) -> bool {
        let mut found = false;
        for slot in index.slots(segments, hash) {
            let ghost = Slot(slot.load(Ordering::Relaxed));
            if ghost.kind() == Kind::Ghost && ghost.has_tag_of(hash) {
                found |= !self.is_stale(ghost, now);
                slot.store(0, Ordering::Relaxed);
            }
        }
        found
    }

    /// Enters an entry.
    ///
    /// # Errors
    /// Both buckets are full of entries; nothing is changed.
    pub(super) fn insert(
        &mut self,
        index: &Index,
        segments: &Segments,
        hash: u64,
        entry: Slot,
        now: u64,
    ) -> Result<(), Full> {
        let slot = self.room_in(index.buckets_of(segments, hash), now).ok_or(Full)?;
        // Release: the entry's bytes were written before; pairs with the reader's Acquire.
        slot.store(entry.0, Ordering::Release);
        let page = self.page_of(index, hash);
        self.pages[page].entries += 1;
        Ok(())
    }

    /// An entry of this hash has left its slot.
    pub(super) fn forget(&mut self, index: &Index, hash: u64) {
        let page = self.page_of(index, hash);
        self.pages[page].entries -= 1;
    }

    /// An empty slot of the emptier bucket, or else the oldest ghost's.
    fn room_in<'a>(&self, buckets: [&'a [AtomicU64]; 2], now: u64) -> Option<&'a AtomicU64> {
        let load = |slot: &AtomicU64| Slot(slot.load(Ordering::Relaxed));
        let is_empty = |slot: &&AtomicU64| load(slot).kind() == Kind::Empty;
        let [first, second] = buckets;
        let empty = |bucket: &[AtomicU64]| bucket.iter().filter(is_empty).count();
        let roomier = if empty(second) > empty(first) { second } else { first };
        let age = |slot: &&AtomicU64| now.wrapping_sub(load(slot).place()) & PLACE_MASK;
        roomier.iter().find(is_empty).or_else(|| {
            let ghosts = first.iter().chain(second).filter(|slot| load(slot).kind() == Kind::Ghost);
            ghosts.max_by_key(age)
        })
    }

    /// Shares the page of this hash, and a neighbour's if there is one, with a new page in `segment`. Entries for which no bucket has room
    /// are returned: they are lost (a handful in a lifetime). `None` if the cells cannot be shared any further; then nothing is changed.
    pub(super) fn grow(
        &mut self,
        index: &Index,
        segments: &Segments,
        hash: u64,
        segment: u32,
        now: u64,
    ) -> Option<Vec<Slot>> {
        let at = self.page_of(index, hash);
        let (first, sharing) = self.sharing(at);
        let from = self.pages[first].first_cell;
        let cells: usize = self.pages[first..first + sharing].iter().map(|page| page.cells).sum();
        if cells <= sharing {
            return None;
        }
        let mut lost = Vec::new();
        clear_page(segments, segment);
        // Release on both: pairs with `Index::changes`.
        index.changes.fetch_add(1, Ordering::AcqRel);
        self.pages.insert(first + 1, Page { segment, first_cell: 0, cells: 0, entries: 0 });
        let shared = first..first + sharing + 1;
        for (place, page) in shared.clone().enumerate() {
            let (start, end) = (from + cells * place / (sharing + 1), from + cells * (place + 1) / (sharing + 1));
            let page = &mut self.pages[page];
            (page.first_cell, page.cells) = (start, end - start);
            index.cells[start..end].iter().for_each(|cell| cell.store(page.segment, Ordering::Release));
        }
        // Nothing stands in the new page that would have to leave it.
        for page in shared.filter(|page| *page != first + 1) {
            self.move_out(index, segments, page, now, &mut lost);
        }
        index.changes.fetch_add(1, Ordering::AcqRel);
        Some(lost)
    }

    /// The first of the pages that share, and how many they are: the page and its larger neighbour.
    fn sharing(&self, at: usize) -> (usize, usize) {
        let cells = |at: Option<usize>| at.and_then(|at| self.pages.get(at)).map_or(0, |page| page.cells);
        let (before, after) = (at.checked_sub(1), Some(at + 1));
        match (cells(before), cells(after)) {
            (0, 0) => (at, 1),
            (left, right) if left > right => (at - 1, 2),
            _ => (at, 2),
        }
    }

    /// Moves what stands in a page and belongs elsewhere now.
    fn move_out(&mut self, index: &Index, segments: &Segments, page: usize, now: u64, lost: &mut Vec<Slot>) {
        let source = self.pages[page];
        // SAFETY: pages are segments that belong to the index.
        let slots = unsafe { segments.words(source.segment) };
        for (at, slot) in slots.iter().enumerate() {
            let word = Slot(slot.load(Ordering::Relaxed));
            if word.kind() == Kind::Empty {
                continue;
            }
            let to = self.page_of(index, word.hash_top());
            if to == page {
                continue;
            }
            // With the touches that were counted up to now. Release: whoever finds nothing here sees that something changes.
            let word = Slot(slot.swap(0, Ordering::Release));
            let is_entry = matches!(word.kind(), Kind::Entry(_));
            self.pages[page].entries -= usize::from(is_entry);
            if self.settle(index, segments, to, at / BUCKET, word, now) {
                self.pages[to].entries += usize::from(is_entry);
            } else if is_entry {
                lost.push(word);
            }
        }
    }

    /// Puts a slot that stood in `bucket` of another page into this one; whether there was room.
    fn settle(&self, index: &Index, segments: &Segments, page: usize, bucket: usize, word: Slot, now: u64) -> bool {
        // SAFETY: as above.
        let slots = unsafe { segments.words(self.pages[page].segment) };
        let other = index.other_bucket(bucket, word.hash_top());
        let buckets = [&slots[bucket * BUCKET..][..BUCKET], &slots[other * BUCKET..][..BUCKET]];
        let room = match word.kind() {
            Kind::Entry(_) => self.room_in(buckets, now),
            _ => buckets[0].iter().find(|slot| slot.load(Ordering::Relaxed) == 0),
        };
        room.map(|slot| slot.store(word.0, Ordering::Release)).is_some()
    }

    /// Calls `each` with every slot that is not empty.
    pub(super) fn for_each(&self, segments: &Segments, mut each: impl FnMut(Slot)) {
        for page in &self.pages {
            // SAFETY: as above.
            let slots = unsafe { segments.words(page.segment) };
            slots
                .iter()
                .map(|slot| Slot(slot.load(Ordering::Relaxed)))
                .filter(|slot| *slot != Slot::EMPTY)
                .for_each(&mut each);
        }
    }

    /// Empties every slot.
    pub(super) fn clear(&mut self, segments: &Segments) {
        for page in &mut self.pages {
            clear_page(segments, page.segment);
            page.entries = 0;
        }
    }

    /// Entries by the pages' own count.
    pub(super) fn entries(&self) -> usize {
        self.pages.iter().map(|page| page.entries).sum()
    }
}

fn clear_page(segments: &Segments, segment: u32) {
    // SAFETY: the caller has just given the segment to the index, and nobody else has it.
    unsafe { segments.words(segment) }.iter().for_each(|slot| slot.store(0, Ordering::Relaxed));
}
