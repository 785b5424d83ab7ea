//! The index: maps a key's hash to the slot that holds the place of its entry.
//!
//! The index is a row of pages. A page is a segment of buckets of eight slots (a cache line). The
//! top bits of a hash choose a *cell*, and each page serves a run of adjacent cells. When a page
//! gets crowded, it and a neighbour give some of their cells to a new page. The index therefore
//! grows page by page, and pages stay at least two thirds full. The lowest bits of the hash choose
//! a bucket, and the fingerprint a second one; a key is in one of the two. Buckets do not depend on
//! the page, so a slot can move to another page without its key. If both buckets of a key are full,
//! one of their entries moves to its other bucket. A page whose contents fit into its neighbours
//! returns its segment.
//!
//! Invariants:
//! 1. Slots are written under the cache's lock, with one exception: a reader may count a touch in a
//!    slot, by compare-and-exchange, while its line publishes the use of the index
//!    ([`super::readers`]).
//! 2. Ghosts use free slots, two in each; a ghost never displaces an entry.
//! 3. A reader that finds nothing while slots move searches again (`changes`).
//! 4. The segment of a removed page is not reused while a reader may use it.
#![allow(unsafe_code, reason = "the pages are segments seen as atomics")]

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::segments::{Segments, zeros};
use super::slot::{Ghost, Kind, Slot};

/// Slots of a bucket: one cache line.
const BUCKET: usize = 8;

/// The most cells; their number must fit in a slot's fingerprint, with room to tell entries apart.
const MAX_CELLS: usize = 1 << 20;

/// A page is crowded once this percentage of its slots are entries, given the mean size of an
/// entry. The other slots are for ghosts. A small entry is worth more than the ghosts that would
/// fit in its slot. With large entries, room for all useful ghosts costs next to nothing.
fn crowded_percent(mean_bytes: u64) -> usize {
    match mean_bytes {
        0..256 => 88,
        256..1024 => 75,
        _ => 50,
    }
}

/// Number of pages that give cells to a new page.
const SHARING: usize = 2;

/// A page is spare if its neighbours, after taking over its contents, would have at most this
/// percentage of their slots in use. The value is well below the crowded threshold, so that pages
/// do not come and go.
fn merged_percent(mean_bytes: u64) -> usize {
    (crowded_percent(mean_bytes) * 6 / 7).min(64)
}

/// Age in ticks up to which a ghost counts.
pub(super) const GHOST_TICKS: u64 = 32;

/// Error of [`Pages::insert`]: both buckets of the key are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// Slots that lie in one cache line.
type Bucket = [AtomicU64; BUCKET];

/// The part of the index that readers use.
pub(super) struct Index {
    /// Indexed by cell: the page's segment.
    cells: Box<[AtomicU32]>,
    cell_shift: u32,
    buckets: usize,
    /// Odd while slots move.
    changes: AtomicU64,
}

impl Index {
    /// Makes an index that may grow to `max_segments`.
    pub(super) fn new(segments: &Segments, max_segments: usize) -> Self {
        // At least two cells for each page, because a small entry needs twice as much memory as its
        // slot.
        let cells = max_segments.next_power_of_two().clamp(2, MAX_CELLS);
        Self {
            cells: zeros(cells),
            cell_shift: 64 - cells.ilog2(),
            buckets: segments.bytes() / 8 / BUCKET,
            changes: AtomicU64::new(0),
        }
    }

    /// Heap memory of the table of cells.
    pub(super) fn heap_bytes(&self) -> u64 {
        size_of_val(&*self.cells) as u64
    }

    /// Changes each time that slots move; odd while they do.
    #[inline]
    pub(super) fn changes(&self) -> u64 {
        // Acquire: pairs with the Release in `Index::change`; slots moved before are visible.
        self.changes.load(Ordering::Acquire)
    }

    /// The slots that may refer to the entry of a key with this hash, with the values read from
    /// them.
    #[inline]
    pub(super) fn candidates<'a>(&self, segments: &'a Segments, hash: u64) -> Candidates<'a> {
        let place = self.place_of(segments, hash);
        let is_so = |slot: Slot| slot.may_be_entry_of(hash);
        Candidates {
            place,
            slots: matches(place.bucket(0), is_so) | matches(place.bucket(1), is_so) << BUCKET,
        }
    }

    /// The page of keys with this hash.
    #[inline]
    fn page_of(&self, hash: u64) -> u32 {
        // SeqCst: a reader's second step, after its line has published the use of the index. Also
        // an Acquire, which pairs with the Release in `Pages`: the page was zeroed before.
        self.cells[(hash >> self.cell_shift) as usize].load(Ordering::SeqCst)
    }

    #[inline]
    fn place_of<'a>(&self, segments: &'a Segments, hash: u64) -> Place<'a> {
        let page = self.page_of(hash);
        // SAFETY: cells name segments that belong to the index, and readers prevent the reuse of a
        // removed page ([`super::readers`]).
        let buckets = in_buckets(unsafe { segments.words(page) });
        self.place_in(buckets, self.first_bucket(hash), hash)
    }

    #[inline]
    fn place_in<'a>(&self, buckets: &'a [Bucket], number: usize, hash: u64) -> Place<'a> {
        Place { buckets, numbers: [number, self.other_bucket(number, hash)] }
    }

    /// Prefetches the slots in which a key with this hash can be.
    #[inline]
    pub(super) fn prefetch(&self, segments: &Segments, hash: u64) {
        // Prefetch by address without reading, because the page may have been reused meanwhile.
        let (page, number) = (self.page_of(hash), self.first_bucket(hash));
        for number in [number, self.other_bucket(number, hash)] {
            segments.prefetch(page, number * size_of::<Bucket>());
        }
    }

    /// Runs `change`, which moves slots. Readers that find nothing meanwhile search again.
    fn change<R>(&self, change: impl FnOnce() -> R) -> R {
        // AcqRel on both: pairs with `Index::changes`.
        self.changes.fetch_add(1, Ordering::AcqRel);
        let changed = change();
        self.changes.fetch_add(1, Ordering::AcqRel);
        changed
    }

    #[inline]
    fn first_bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets - 1)
    }

    /// The other bucket of a key, from one bucket and the top bits of the hash.
    #[inline]
    fn other_bucket(&self, bucket: usize, hash: u64) -> usize {
        let fingerprint = (hash >> 40) as usize;
        // The distance is never zero, so the two buckets differ.
        let distance = (fingerprint.wrapping_mul(0x9e37_79b1) >> 7) & (self.buckets - 1) | 1;
        (bucket ^ distance) & (self.buckets - 1)
    }
}

/// Matching slots of a place, found by comparing all of them at once.
pub(super) struct Candidates<'a> {
    place: Place<'a>,
    /// Bitmask of the slots still to be visited: the lower eight bits for the first bucket.
    slots: u32,
}

impl<'a> Iterator for Candidates<'a> {
    type Item = &'a AtomicU64;

    #[inline]
    fn next(&mut self) -> Option<&'a AtomicU64> {
        if self.slots == 0 {
            return None;
        }
        let at = self.slots.trailing_zeros() as usize;
        self.slots &= self.slots - 1;
        Some(&self.place.bucket(at / BUCKET)[at % BUCKET])
    }
}

/// Bitmask of the slots of a bucket that satisfy the predicate. Branch-free, because the match
/// position is unpredictable.
#[inline(always)]
fn matches(bucket: &Bucket, is_so: impl Fn(Slot) -> bool) -> u32 {
    let mut bits = 0;
    for (at, slot) in bucket.iter().enumerate() {
        // SeqCst: a reader's second step. Also an Acquire: pairs with the Release of the writer
        // that entered or moved the entry, after its bytes were written.
        bits |= u32::from(is_so(Slot(slot.load(Ordering::SeqCst)))) << at;
    }
    bits
}

/// The place of a key: two buckets of a page.
#[derive(Clone, Copy)]
struct Place<'a> {
    buckets: &'a [Bucket],
    numbers: [usize; 2],
}

impl<'a> Place<'a> {
    #[inline]
    fn bucket(&self, which: usize) -> &'a Bucket {
        &self.buckets[self.numbers[which]]
    }

    /// A slot without an entry, from the bucket that has fewer entries: an empty one, or else the
    /// one with the oldest ghosts.
    fn room(&self, now: u64) -> Option<&'a AtomicU64> {
        let [first, second] = [self.bucket(0), self.bucket(1)];
        let entries = |bucket| matches(bucket, is_entry).count_ones();
        let bucket = if entries(second) < entries(first) { second } else { first };
        let empty = matches(bucket, |slot| slot == Slot::EMPTY);
        if empty > 0 {
            return Some(&bucket[empty.trailing_zeros() as usize]);
        }
        bucket.iter().filter(|slot| !is_entry(load(slot))).max_by_key(|slot| load(slot).age(now))
    }
}

#[inline]
fn in_buckets(slots: &[AtomicU64]) -> &[Bucket] {
    slots.as_chunks().0
}

#[inline]
fn load(slot: &AtomicU64) -> Slot {
    Slot(slot.load(Ordering::Relaxed))
}

#[inline]
fn is_entry(slot: Slot) -> bool {
    matches!(slot.kind(), Kind::Entry(_))
}

/// Whether a ghost is empty, or too old to count.
fn is_stale(ghost: Ghost, now: u64) -> bool {
    ghost.is_none() || ghost.age(now) > GHOST_TICKS
}

/// A page of the index.
#[derive(Clone, Copy, Debug)]
struct Page {
    segment: u32,
    first_cell: u32,
    cells: u32,
}

impl Page {
    /// Sets the page's cells to this range. The range must contain its present cells and may only
    /// add cells that no other page claims.
    fn take_over(&mut self, index: &Index, start: usize, end: usize) {
        (self.first_cell, self.cells) = (start as u32, (end - start) as u32);
        // Release: pairs with the load in `place_of`.
        index.cells[start..end].iter().for_each(|cell| cell.store(self.segment, Ordering::Release));
    }
}

/// The part of the index that only the writer uses, under the cache's lock.
pub(super) struct Pages {
    /// The pages, in the order of their cells.
    pages: Vec<Page>,
    /// Indexed by segment: the number of entries in it, if it is a page.
    entries: Box<[u16]>,
    /// The next page to check for being spare.
    next: usize,
    /// The clock of the ghosts, which [`Pages::tick`] advances.
    now: u64,
}

impl Pages {
    /// The writer's part of `index`, whose only page is `segment`.
    pub(super) fn new(
        index: &Index,
        segments: &Segments,
        segment: u32,
        max_segments: usize,
    ) -> Self {
        clear_page(segments, segment);
        let mut pages = Vec::with_capacity((max_segments / 2 + 2).min(index.cells.len()));
        pages.push(Page { segment, first_cell: 0, cells: index.cells.len() as u32 });
        index.cells.iter().for_each(|cell| cell.store(segment, Ordering::Release));
        Self { pages, entries: vec![0; max_segments].into(), next: 0, now: 0 }
    }

    /// Heap memory.
    pub(super) fn heap_bytes(&self) -> u64 {
        (self.pages.capacity() * size_of::<Page>() + size_of_val(&*self.entries)) as u64
    }

    /// The count of entries in the page of this hash.
    #[inline]
    fn entries_of(&mut self, index: &Index, hash: u64) -> &mut u16 {
        &mut self.entries[index.page_of(hash) as usize]
    }

    fn entries_in(&self, page: usize) -> usize {
        self.entries[self.pages[page].segment as usize] as usize
    }

    /// Number of pages.
    pub(super) fn len(&self) -> usize {
        self.pages.len()
    }

    fn page_of(&self, index: &Index, hash: u64) -> usize {
        let cell = (hash >> index.cell_shift) as u32;
        self.pages.partition_point(|page| page.first_cell <= cell) - 1
    }

    /// Whether the page of this hash should be split, given the mean size of an entry.
    pub(super) fn is_crowded(&self, index: &Index, hash: u64, mean_bytes: u64) -> bool {
        let most = index.buckets * BUCKET * crowded_percent(mean_bytes);
        self.entries[index.page_of(hash) as usize] as usize * 100 >= most
    }

    /// A hash of the page with the most cells, if this many entries of this mean size would make it
    /// crowded.
    pub(super) fn widest(&self, index: &Index, entries: u64, mean_bytes: u64) -> Option<u64> {
        let widest = self.pages.iter().max_by_key(|page| page.cells)?;
        let most = (index.buckets * BUCKET * crowded_percent(mean_bytes) / 100) as u128;
        let its = u128::from(entries) * u128::from(widest.cells) / index.cells.len() as u128;
        // Add a sixteenth, because entries are not spread evenly.
        (its + its / 16 >= most).then_some(u64::from(widest.first_cell) << index.cell_shift)
    }

    /// Takes the ghost of a key with this hash, if one still counts. Returns its age in ticks.
    pub(super) fn take_ghost(&self, index: &Index, segments: &Segments, hash: u64) -> Option<u64> {
        let place = index.place_of(segments, hash);
        let ages = [0, 1].map(|which| Self::take_ghost_of(place.bucket(which), hash, self.now));
        ages.into_iter().flatten().min()
    }

    fn take_ghost_of(bucket: &Bucket, hash: u64, now: u64) -> Option<u64> {
        let mut found = None;
        let mut its = matches(bucket, |slot| slot.may_have_ghost_of(hash));
        while its > 0 {
            let slot = &bucket[its.trailing_zeros() as usize];
            its &= its - 1;
            let before = load(slot);
            let after = before.map_ghosts(|ghost| {
                let taken = ghost.is_of(hash);
                if taken && !is_stale(ghost, now) {
                    found = Some(ghost.age(now).min(found.unwrap_or(u64::MAX)));
                }
                !taken
            });
            if after != before {
                slot.store(after.0, Ordering::Relaxed);
            }
        }
        found
    }

    /// Frees the slot of an entry with this hash, and leaves a ghost.
    pub(super) fn replace_with_ghost(
        &mut self,
        index: &Index,
        segments: &Segments,
        hash: u64,
        slot: &AtomicU64,
    ) {
        let now = self.now;
        let place = index.place_of(segments, hash);
        let in_first = place.bucket(0).as_ptr_range().contains(&std::ptr::from_ref(slot));
        let beside = place.bucket(usize::from(!in_first));
        let ghost = Ghost::new(hash, now);
        let mut with_ghosts = matches(beside, |slot| slot.kind() == Kind::Ghosts);
        let mut shared = None;
        while with_ghosts > 0 && shared.is_none() {
            let other = &beside[with_ghosts.trailing_zeros() as usize];
            with_ghosts &= with_ghosts - 1;
            let both = load(other).with_ghost(ghost, |other| is_stale(other, now));
            shared = both.map(|both| (other, both));
        }
        let left = match shared {
            Some((other, both)) => {
                other.store(both.0, Ordering::Relaxed);
                Slot::EMPTY
            }
            None => Slot::EMPTY
                .with_ghost(ghost, Ghost::is_none)
                .expect("an empty slot has room for a ghost"),
        };
        // Release: pairs with a reader's second load of the slot.
        slot.store(left.0, Ordering::Release);
        self.forget(index, hash);
    }

    /// Advances the clock of the ghosts, and clears ghosts that no longer count from one in
    /// [`GHOST_TICKS`] pages. Every page is visited before a tick number recurs.
    pub(super) fn tick(&mut self, segments: &Segments) {
        self.now += 1;
        let now = self.now;
        for page in
            self.pages.iter().skip((now % GHOST_TICKS) as usize).step_by(GHOST_TICKS as usize)
        {
            // SAFETY: pages are segments that belong to the index.
            for slot in unsafe { segments.words(page.segment) } {
                let before = load(slot);
                let after = before.map_ghosts(|ghost| !is_stale(ghost, now));
                if after != before {
                    slot.store(after.0, Ordering::Relaxed);
                }
            }
        }
    }

    /// Enters an entry.
    ///
    /// # Errors
    /// Both buckets are full, and so is the other bucket of each of their entries; nothing is
    /// changed.
    pub(super) fn insert(
        &mut self,
        index: &Index,
        segments: &Segments,
        hash: u64,
        entry: Slot,
    ) -> Result<(), Full> {
        let place = index.place_of(segments, hash);
        let slot = place
            .room(self.now)
            .or_else(|| index.change(|| Self::displace(index, place)))
            .ok_or(Full)?;
        // Release: the entry's bytes were written before; pairs with the reader's Acquire.
        slot.store(entry.0, Ordering::Release);
        *self.entries_of(index, hash) += 1;
        Ok(())
    }

    /// Moves an entry of two full buckets to its other bucket, and returns the slot that it leaves.
    /// Within [`Index::change`].
    fn displace<'a>(index: &Index, place: Place<'a>) -> Option<&'a AtomicU64> {
        let mut slots = place
            .numbers
            .into_iter()
            .flat_map(|number| place.buckets[number].iter().map(move |slot| (number, slot)));
        let (from, to) = slots.find_map(|(number, from)| {
            let others = index.place_in(place.buckets, number, load(from).hash_top()).bucket(1);
            Some((from, others.iter().find(|slot| !is_entry(load(slot)))?))
        })?;
        // Release: a reader that finds the slot empty also sees that slots move.
        to.store(from.swap(0, Ordering::Release), Ordering::Release);
        Some(from)
    }

    /// Counts that an entry with this hash was removed from its slot.
    pub(super) fn forget(&mut self, index: &Index, hash: u64) {
        *self.entries_of(index, hash) -= 1;
    }

    /// Divides the cells of the page of this hash and of one neighbour among these two pages and a
    /// new one in `segment`. Returns the entries that no longer fit in a bucket, which are lost (a
    /// handful in the life of a cache). Returns `None` without any change if the cells cannot be
    /// divided further.
    pub(super) fn grow(
        &mut self,
        index: &Index,
        segments: &Segments,
        hash: u64,
        segment: u32,
    ) -> Option<Vec<Slot>> {
        let sharing = self.sharing(self.page_of(index, hash), SHARING);
        let cells: usize = self.pages[sharing.clone()].iter().map(|page| page.cells as usize).sum();
        if cells <= sharing.len() || self.pages.len() == self.pages.capacity() {
            return None;
        }
        let mut lost = Vec::new();
        clear_page(segments, segment);
        self.entries[segment as usize] = 0;
        index.change(|| {
            let from = self.pages[sharing.start].first_cell as usize;
            let new = sharing.start + sharing.len().div_ceil(2);
            self.pages.insert(new, Page { segment, first_cell: 0, cells: 0 });
            let (shared, parts) = (sharing.start..sharing.end + 1, sharing.len() + 1);
            for (place, page) in shared.clone().enumerate() {
                let [start, end] = [place, place + 1].map(|place| from + cells * place / parts);
                self.pages[page].take_over(index, start, end);
            }
            // Proceed from the new page outwards, so that each page has moved entries out before it
            // gets its neighbour's. The new page has no entries yet.
            for page in (shared.start..new).rev().chain(new + 1..shared.end) {
                self.move_out(index, segments, page, &mut lost);
            }
        });
        Some(lost)
    }

    /// Checks one page per call, round-robin. Returns the page if its neighbours could take over
    /// its contents, given the mean size of an entry.
    pub(super) fn next_spare(&mut self, index: &Index, mean_bytes: u64) -> Option<usize> {
        let at = self.next % self.pages.len();
        self.next = at + 1;
        let most = index.buckets * BUCKET * merged_percent(mean_bytes) / 100;
        let entries: usize = self.neighbourhood(at).map(|page| self.entries_in(page)).sum();
        let cells: usize = self.neighbourhood(at).map(|page| self.pages[page].cells as usize).sum();
        let largest =
            self.after_merge(at).into_iter().flatten().map(|(_, start, end)| end - start).max()?;
        (entries * largest <= most * cells).then_some(at)
    }

    fn neighbourhood(&self, at: usize) -> Range<usize> {
        at.saturating_sub(1)..(at + 2).min(self.pages.len())
    }

    /// The cells of a page's neighbours after the page is removed: page, first cell, end.
    /// Distributes the cells evenly.
    fn after_merge(&self, at: usize) -> [Option<(usize, usize, usize)>; 2] {
        let around = self.neighbourhood(at);
        let cells_of = |at: usize| {
            let Page { first_cell, cells, .. } = self.pages[at];
            (first_cell as usize, (first_cell + cells) as usize)
        };
        let (start, end, gone) =
            (cells_of(around.start).0, cells_of(around.end - 1).1, cells_of(at));
        match around.len() {
            1 => [None; 2],
            2 => [Some((if around.start == at { at + 1 } else { at - 1 }, start, end)), None],
            _ => {
                let middle = ((start + end) / 2).clamp(gone.0, gone.1);
                [Some((at - 1, start, middle)), Some((at + 1, middle, end))]
            }
        }
    }

    /// Merges a spare page into its neighbours. Returns its segment, which readers may still use,
    /// and lost entries as [`Pages::grow`] does.
    pub(super) fn merge(
        &mut self,
        index: &Index,
        segments: &Segments,
        at: usize,
    ) -> (u32, Vec<Slot>) {
        let neighbours = self.after_merge(at);
        let mut lost = Vec::new();
        index.change(|| {
            // Without cells, all contents of the page belong elsewhere. An empty range sorts before
            // the range that begins at the same cell.
            self.pages[at].cells = 0;
            for (page, start, end) in neighbours.into_iter().flatten() {
                self.pages[page].take_over(index, start, end);
                if page > at {
                    self.pages[at].first_cell = start as u32;
                }
            }
            if at + 1 == self.pages.len() {
                // Its position is after all cells.
                self.pages[at].first_cell = index.cells.len() as u32;
            }
            self.move_out(index, segments, at, &mut lost);
            debug_assert_eq!(self.entries_in(at), 0);
        });
        (self.pages.remove(at).segment, lost)
    }

    /// The pages to split: this one and its neighbours, `most` in all; neighbours with more cells
    /// first.
    fn sharing(&self, at: usize, most: usize) -> Range<usize> {
        let cells =
            |at: Option<usize>| at.and_then(|at| self.pages.get(at)).map_or(0, |page| page.cells);
        let mut sharing = at..at + 1;
        while sharing.len() < most {
            match (cells(sharing.start.checked_sub(1)), cells(Some(sharing.end))) {
                (0, 0) => break,
                (left, right) if left > right => sharing.start -= 1,
                _ => sharing.end += 1,
            }
        }
        sharing
    }

    /// Moves the slots of a page that now belong to other pages.
    fn move_out(&mut self, index: &Index, segments: &Segments, page: usize, lost: &mut Vec<Slot>) {
        let now = self.now;
        // SAFETY: pages are segments that belong to the index.
        let slots = unsafe { segments.words(self.pages[page].segment) };
        for (at, slot) in slots.iter().enumerate() {
            let word = load(slot);
            if word.kind() == Kind::Ghosts {
                let stays = word.map_ghosts(|ghost| {
                    !is_stale(ghost, now) && self.page_of(index, ghost.hash_top()) == page
                });
                if stays != word {
                    slot.store(stays.0, Ordering::Relaxed);
                    let moves = word.ghosts().into_iter().filter(|ghost| !is_stale(*ghost, now));
                    for ghost in moves.filter(|ghost| !stays.ghosts().contains(ghost)) {
                        self.settle_ghost(
                            segments,
                            self.page_of(index, ghost.hash_top()),
                            at / BUCKET,
                            ghost,
                        );
                    }
                }
            }
            if !is_entry(word) {
                continue;
            }
            let to = self.page_of(index, word.hash_top());
            if to == page {
                continue;
            }
            // Includes the touches counted so far. Release: a reader that finds the slot empty sees
            // that slots move.
            let word = Slot(slot.swap(0, Ordering::Release));
            let [from, to] = [page, to].map(|page| self.pages[page].segment);
            self.entries[from as usize] -= 1;
            // SAFETY: as above.
            let buckets = in_buckets(unsafe { segments.words(to) });
            let place = index.place_in(buckets, at / BUCKET, word.hash_top());
            match place.room(now).or_else(|| Self::displace(index, place)) {
                Some(room) => {
                    room.store(word.0, Ordering::Release);
                    self.entries[to as usize] += 1;
                }
                None => lost.push(word),
            }
        }
    }

    /// Moves a ghost from `bucket` of another page into this one, if there is room.
    fn settle_ghost(&self, segments: &Segments, page: usize, bucket: usize, ghost: Ghost) {
        // SAFETY: as above.
        let slots = unsafe { segments.words(self.pages[page].segment) };
        let room = slots[bucket * BUCKET..][..BUCKET].iter().find_map(|slot| {
            let with = load(slot).with_ghost(ghost, |other| is_stale(other, self.now))?;
            Some((slot, with))
        });
        if let Some((slot, with)) = room {
            slot.store(with.0, Ordering::Relaxed);
        }
    }

    /// Calls `each` with every non-empty slot.
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
        for page in &self.pages {
            clear_page(segments, page.segment);
            self.entries[page.segment as usize] = 0;
        }
    }

    /// The sum of the pages' counts of entries.
    pub(super) fn entries(&self) -> usize {
        (0..self.pages.len()).map(|page| self.entries_in(page)).sum()
    }
}

fn clear_page(segments: &Segments, segment: u32) {
    // SAFETY: the caller has just given the segment to the index, which is its only user.
    unsafe { segments.words(segment) }.iter().for_each(|slot| slot.store(0, Ordering::Relaxed));
}
