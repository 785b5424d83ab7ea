//! The pool's replacement policy: which frames are free, which are evicted next, and how many
//! chunks the pool keeps. Everything here runs under the pool's lock.
//!
//! A new page takes a free frame, which the evictor keeps in stock. If there is none, it takes a
//! new chunk while the budget has more than its headroom. Otherwise a page is evicted, in this
//! order:
//!
//! 1. from the pages that only scans accessed, oldest first, except for a ring of the youngest;
//! 2. from probation, where every page begins that came in cold, oldest first, while it holds more
//!    than a tenth of the frames. A page that was accessed again moves to the clock; any other is
//!    evicted and leaves a ghost ([`super::ghosts`]). A miss that finds a ghost brings the page
//!    back hot, past probation. Pages accessed once therefore displace only each other;
//! 3. from the clock, whose hand walks the descriptors of pages in no queue: it takes a degree of
//!    heat from hot pages and evicts cold ones.
//!
//! Chunks are given back by a hand of their own, which picks the coldest of the next few. Probation
//! and ghosts are those of S3-FIFO (Yang et al., SOSP 2023); its main queue is the clock.
//!
//! Laws:
//! 1. A frame in the free queue is free, and its chunk is held; a frame of a chunk not held is free
//!    and in no queue.
//! 2. Held and loading frames stay.
//! 3. The pool never shrinks below `min_chunks` once it has them; nothing here asks the budget for
//!    more than is free.
//! 4. No chunk enters a slot at or above `max_chunks`. When `max_chunks` is lowered, a chunk above
//!    it moves, goes back, or stays as long as a page of it is held ([`super::resize`]).

use super::Touch;
use super::frame::{Frame, Heat, PageKey, State};
use super::frames::{FRAMES_PER_CHUNK, Frames};
use super::ghosts::{Ghosts, Left};
use super::hazard;
use super::load::Loads;
use super::queues::{Queue, Queues};
use crate::budget::chunk::{CHUNK_BYTES, Chunk};
use crate::budget::{Budget, Kind};
use crate::page::PAGE_BYTES;
use crate::turnover::Turnover;

/// How many scanned pages are tried for an unpinned one, and how many doomed pages before them.
const SCANNED_TRIES: usize = 16;
const DOOMED_TRIES: usize = 4;

/// Pages on probation tried for one that was not accessed again. Pages that were accessed again
/// leave the queue, so each is tried once.
const PROBATION_TRIES: usize = 64;

/// Pages on probation are not evicted while they are fewer than one in this many of the frames.
const PROBATION_PART: usize = 10;

/// Size of the ring, as a fraction of the frames and as a maximum. The ring keeps the pages that
/// scans brought in last, although they were not accessed again: pages read ahead, and pages that a
/// scan goes back to.
const RING_PART: usize = 8;
const RING_FRAMES_MAX: usize = 64;

/// Frames that the clock looks at per acquisition of the lock. A caller that needs a frame at once
/// then takes any page.
const LOOKS_AT_ONCE: usize = 1024;

/// Number of chunks among which the coldest is chosen.
const CHUNK_CHOICES: usize = 64;

/// Rounds of the hand after which every unpinned page is evicted: the rounds that the hottest page
/// survives, and one more.
const CLOCK_ROUNDS: usize = Heat::HotAndTouched as usize;

pub(super) struct Keeper {
    /// By slot; `None` where a chunk was given back.
    chunks: Vec<Option<Chunk>>,
    /// Slots below `max_chunks` without a chunk.
    vacant: Vec<u32>,
    held: usize,
    queues: Queues,
    ghosts: Ghosts,
    /// The frame that the clock looks at next.
    hand: u32,
    /// The next candidate chunk to give back.
    chunk_hand: u32,
    min_chunks: usize,
    /// Minimum capacity of the tables.
    max_chunks: usize,
    /// Free chunks left to others.
    headroom: usize,
    /// Scratch space for the held frames while chunks are given back: that must not allocate.
    held_frames: Vec<usize>,
    /// The evictor is called when fewer frames than this are free.
    low_frames: usize,
    pub(super) waited_for: Loads,
    pub(super) waits: u64,
    /// Total frames taken.
    taken: u64,
    evictions: u64,
    inline_evictions: u64,
}

/// A page between two frames.
struct Moved {
    key: PageKey,
    heat: Heat,
    queue: Option<Queue>,
}

/// Frames without a page, all frames, and the total of frames taken.
pub(crate) struct Room {
    pub(crate) free: usize,
    pub(crate) frames: usize,
    pub(crate) taken: u64,
}

impl Keeper {
    /// Heap bytes for this many chunks.
    pub(super) fn heap_bytes(chunks: usize) -> usize {
        let frames = chunks * FRAMES_PER_CHUNK;
        chunks * (size_of::<Option<Chunk>>() + size_of::<u32>())
            + hazard::HELD_MAX * size_of::<usize>()
            + Queues::heap_bytes(frames)
            + Ghosts::heap_bytes(frames)
    }

    /// A keeper that will never hold more than `max_chunks`.
    pub(super) fn new(max_chunks: usize, min_chunks: usize, headroom: usize) -> Self {
        Self {
            chunks: Vec::with_capacity(max_chunks),
            vacant: Vec::with_capacity(max_chunks),
            held: 0,
            queues: Queues::new(max_chunks * FRAMES_PER_CHUNK),
            ghosts: Ghosts::new(max_chunks * FRAMES_PER_CHUNK),
            hand: 0,
            chunk_hand: 0,
            min_chunks,
            max_chunks,
            headroom,
            held_frames: Vec::with_capacity(hazard::HELD_MAX),
            low_frames: 0,
            waited_for: Loads::default(),
            waits: 0,
            taken: 0,
            evictions: 0,
            inline_evictions: 0,
        }
    }

    /// Enlarges the tables to `max_chunks`, the new maximum.
    pub(super) fn enlarge(&mut self, frames: &Frames, max_chunks: usize) {
        if max_chunks <= self.max_chunks {
            return;
        }
        if max_chunks > self.slots() {
            self.chunks.reserve_exact(max_chunks - self.chunks.len());
            self.queues.grow(max_chunks * FRAMES_PER_CHUNK);
            self.ghosts.resize(max_chunks * FRAMES_PER_CHUNK);
            frames.grow(max_chunks);
        }
        self.set_max_chunks(max_chunks);
    }

    /// Lowers the maximum: no chunk enters a slot at or above `max_chunks` any more. The tables
    /// stay as they are.
    pub(super) fn set_max_chunks(&mut self, max_chunks: usize) {
        let first_unused = self.chunks.len().min(max_chunks);
        self.vacant.clear();
        self.vacant.reserve_exact(max_chunks);
        // The lowest is taken first.
        self.vacant.extend(
            (0..first_unused as u32).rev().filter(|&slot| self.chunks[slot as usize].is_none()),
        );
        self.max_chunks = max_chunks;
    }

    /// Shrinks the tables to `max_chunks`, or to the highest slot that still holds a chunk.
    pub(super) fn shrink(&mut self, frames: &Frames) {
        let used = self.chunks.len();
        self.chunks
            .truncate(self.chunks.iter().rposition(Option::is_some).map_or(0, |last| last + 1));
        self.vacant.retain(|&slot| (slot as usize) < self.chunks.len());
        let slots = self.slots_max();
        self.chunks.shrink_to(slots);
        self.vacant.shrink_to(self.max_chunks);
        self.queues.shrink(slots * FRAMES_PER_CHUNK);
        self.ghosts.resize(slots * FRAMES_PER_CHUNK);
        frames.shrink(slots, used);
    }

    /// Capacity of the tables in slots.
    pub(super) fn slots_max(&self) -> usize {
        self.max_chunks.max(self.chunks.len())
    }

    /// Moves up to `count` chunks out of slots above the maximum into lower ones. Returns how many.
    /// Chunks with a held page stay.
    pub(super) fn move_down(&mut self, frames: &Frames, count: usize) -> usize {
        let mut moved = 0;
        for from in (self.max_chunks..self.chunks.len()).rev() {
            if moved == count || !self.has_vacancy() {
                break;
            }
            moved +=
                usize::from(self.chunks[from].is_some() && self.move_chunk(frames, from as u32));
        }
        moved
    }

    /// Moves a chunk into a lower slot, with its pages: their bytes stay where they are, and get
    /// other descriptors.
    fn move_chunk(&mut self, frames: &Frames, from: u32) -> bool {
        let mut left = [const { None }; FRAMES_PER_CHUNK];
        let is_empty = frames_of(from).zip(&mut left).all(|(frame, page)| {
            *page = self.take_out(frames, frame);
            page.is_some()
        });
        let to = match is_empty {
            true => {
                let chunk =
                    self.chunks[from as usize].take().expect("a chunk that is moved is held");
                frames.set_chunk(from, None);
                self.settle(frames, chunk)
            }
            false => from,
        };
        for (frame, page) in frames_of(to).zip(left) {
            match page {
                Some(Some(page)) => self.put_back(frames, frame, page),
                Some(None) => self.queues.push_front(Queue::Free, frame),
                None => {}
            }
        }
        is_empty
    }

    /// Takes a page out of its frame, or a frame out of the free queue; `None` if the page has to
    /// stay.
    fn take_out(&mut self, frames: &Frames, frame: u32) -> Option<Option<Moved>> {
        let (seen, key) = (frames.get(frame).state(), frames.get(frame).key());
        let is_free = seen.is_free();
        let moved = Moved { key, heat: seen.heat(), queue: self.queues.of(frame) };
        // A free frame in no queue is about to be filled.
        if is_free && moved.queue.is_none() || !is_free && !frames.get(frame).try_evict(seen) {
            return None;
        }
        if !is_free {
            frames.forget(frame);
        }
        self.queues.unlink(frame);
        Some((!is_free).then_some(moved))
    }

    /// Undoes [`Keeper::take_out`], in this frame or in another of the same bytes.
    fn put_back(&mut self, frames: &Frames, at: u32, page: Moved) {
        let frame = frames.get(at);
        frame.begin(page.key, page.heat);
        frame.finish();
        frame.unpin();
        frames.enter(at);
        if let Some(queue) = page.queue {
            self.queues.push_back(queue, at);
        }
    }

    /// Sets the minimum to `min_chunks`, and returns the old one.
    pub(super) fn set_min_chunks(&mut self, min_chunks: usize) -> usize {
        std::mem::replace(&mut self.min_chunks, min_chunks)
    }

    /// Sets the number of free frames below which the evictor is called, and the number of free
    /// chunks left to others.
    pub(super) fn set_watermarks(&mut self, low_frames: usize, headroom: usize) {
        (self.low_frames, self.headroom) = (low_frames, headroom);
    }

    /// Sets the number of free chunks left to others.
    pub(super) fn set_headroom(&mut self, headroom: usize) {
        self.headroom = headroom;
    }

    pub(super) fn room(&self) -> Room {
        Room {
            free: self.queues.len(Queue::Free),
            frames: self.held() * FRAMES_PER_CHUNK,
            taken: self.taken,
        }
    }

    /// Whether free frames are few and the budget cannot supply any.
    pub(super) fn is_short(&self, budget: &Budget) -> bool {
        self.queues.len(Queue::Free) < self.low_frames && !self.can_grow(budget)
    }

    /// Whether the pool may take another chunk without pressing on others.
    pub(super) fn can_grow(&self, budget: &Budget) -> bool {
        self.has_slots() && (budget.free_bytes() / CHUNK_BYTES as u64) as usize > self.headroom
    }

    /// Whether a frame is available without an eviction.
    pub(super) fn has_spare(&self, budget: &Budget) -> bool {
        self.queues.len(Queue::Free) > self.low_frames || self.can_grow(budget)
    }

    /// Whether the pool may hold another chunk. Chunks in slots above the maximum have the first
    /// claim on lower slots.
    pub(super) fn has_slots(&self) -> bool {
        self.held < self.max_chunks && self.has_vacancy()
    }

    /// Whether a slot below `max_chunks` is without a chunk.
    fn has_vacancy(&self) -> bool {
        !self.vacant.is_empty() || self.chunks.len() < self.max_chunks
    }

    /// Whether no chunk is in a slot above the maximum.
    pub(super) fn is_within_slots(&self) -> bool {
        self.chunks.iter().skip(self.max_chunks).all(Option::is_none)
    }

    /// The most chunks that the pool may hold, apart from chunks with held pages.
    pub(super) fn max_chunks(&self) -> usize {
        self.max_chunks
    }

    /// Chunks held now.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Slots that ever held a chunk.
    pub(super) fn slots(&self) -> usize {
        self.chunks.len()
    }

    /// The pool's miss traffic, and how much of it a larger pool would have kept.
    pub(super) fn turnover(&self) -> Turnover {
        let window = self.ghosts.window(self.held() * FRAMES_PER_CHUNK);
        Turnover {
            held_bytes: (self.held() * CHUNK_BYTES) as u64,
            limit_bytes: u64::MAX,
            returns: self.ghosts.returns(),
            window_bytes: (window * PAGE_BYTES) as u64,
        }
    }

    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    pub(super) fn inline_evictions(&self) -> u64 {
        self.inline_evictions
    }

    /// Returns a frame to fill: free and in no queue. `None` if all are pinned and the budget has
    /// no chunk to spare.
    pub(super) fn frame(&mut self, frames: &Frames, budget: &Budget) -> Option<u32> {
        let frame = self
            .queues
            .pop_front(Queue::Free)
            .or_else(|| self.grow(frames, budget))
            .or_else(|| self.evict_inline(frames));
        self.taken += u64::from(frame.is_some());
        frame
    }

    /// Heat of a page that `touch` brings in: hot if it was evicted a moment ago.
    pub(super) fn first_heat(&mut self, key: PageKey, touch: Touch) -> Heat {
        let frames = self.held() * FRAMES_PER_CHUNK;
        match Heat::first(touch) {
            Heat::Cold if self.ghosts.take(key, frames) == Some(Left::Probation) => Heat::Hot,
            heat => heat,
        }
    }

    /// Evicts up to `wanted` pages, looking at no more frames than one acquisition of the lock
    /// allows. Returns how many it evicted and how many frames it looked at.
    pub(super) fn free_frames(&mut self, frames: &Frames, wanted: usize) -> (usize, usize) {
        let (mut freed, mut looks) = (0, 0);
        while freed < wanted && looks < LOOKS_AT_ONCE {
            let Some(frame) = self.evict_one(frames, LOOKS_AT_ONCE - looks, 0, &mut looks) else {
                break;
            };
            looks += 1;
            self.queues.push_back(Queue::Free, frame);
            freed += 1;
        }
        (freed, looks)
    }

    /// Frames to look at until the clock has gone round often enough to evict every evictable page.
    pub(super) fn looks_max(&self) -> usize {
        CLOCK_ROUNDS * self.slots() * FRAMES_PER_CHUNK
    }

    /// Adds the four frames of a chunk, for which there is a slot.
    pub(super) fn adopt(&mut self, frames: &Frames, chunk: Chunk) {
        let slot = self.settle(frames, chunk);
        self.held += 1;
        // Backwards, so that the lowest comes out first.
        frames_of(slot).rev().for_each(|frame| self.queues.push_front(Queue::Free, frame));
    }

    /// Gives a chunk a slot, whose frames are free and in no queue.
    fn settle(&mut self, frames: &Frames, chunk: Chunk) -> u32 {
        assert!(self.has_vacancy(), "the tables are made for {} chunks", self.max_chunks);
        let slot = self.vacant.pop().unwrap_or(self.chunks.len() as u32);
        frames.renew(slot);
        frames.set_chunk(slot, Some(&chunk));
        if slot as usize == self.chunks.len() {
            self.chunks.push(Some(chunk));
        } else {
            self.chunks[slot as usize] = Some(chunk);
        }
        slot
    }

    /// Frees a frame whose page could not be loaded, or was evicted individually.
    pub(super) fn release(&mut self, frame: u32) {
        self.queues.push_front(Queue::Free, frame);
    }

    /// Queues a frame whose page has become resident.
    pub(super) fn filled(&mut self, frames: &Frames, frame: u32) {
        match frames.get(frame).state().heat() {
            Heat::Scan => self.queues.push_back(Queue::Scanned, frame),
            Heat::Cold => self.queues.push_back(Queue::Probation, frame),
            Heat::Hot | Heat::HotAndTouched => {}
        }
    }

    /// Evicts a page that will not be needed again; if it is pinned, as soon as it is not.
    pub(super) fn discard(&mut self, frames: &Frames, frame: u32) {
        frames.get(frame).chill();
        self.queues.unlink(frame);
        if self.evict(frames, frame, frames.get(frame).state()) {
            self.release(frame);
        } else {
            self.queues.push_back(Queue::Doomed, frame);
        }
    }

    /// Evicts every page that is not pinned.
    pub(super) fn clear(&mut self, frames: &Frames) {
        for frame in 0..(self.slots() * FRAMES_PER_CHUNK) as u32 {
            if self.evict(frames, frame, frames.get(frame).state()) {
                self.release(frame);
            }
        }
    }

    /// Gives back all chunks without a held page.
    pub(super) fn give_all_back(&mut self, frames: &Frames) {
        self.min_chunks = 0;
        self.give_back(frames, usize::MAX);
    }

    /// Gives back up to `wanted` chunks. Returns how many.
    pub(super) fn give_back(&mut self, frames: &Frames, wanted: usize) -> usize {
        let wanted = wanted.min(self.held().saturating_sub(self.min_chunks));
        let mut given = 0;
        // A chosen chunk is lost again if a page of it is pinned right then.
        let mut tries = 2 * wanted;
        if wanted > 0 {
            hazard::note_held(&frames.addresses(), &mut self.held_frames);
        }
        while given < wanted && tries > 0 {
            let Some(slot) = self.choose_chunk(frames) else { break };
            if self.empty(frames, slot) {
                given += 1;
            } else {
                hazard::note_held(&frames.addresses(), &mut self.held_frames);
            }
            tries -= 1;
        }
        given
    }

    fn grow(&mut self, frames: &Frames, budget: &Budget) -> Option<u32> {
        if !self.can_grow(budget) {
            return None;
        }
        let chunk = budget.try_take(Kind::Pages)?;
        self.adopt(frames, chunk);
        self.queues.pop_front(Queue::Free)
    }

    /// Evicts a page for a caller that cannot wait for the evictor.
    fn evict_inline(&mut self, frames: &Frames) -> Option<u32> {
        let count = self.slots() * FRAMES_PER_CHUNK;
        let patience = LOOKS_AT_ONCE.min((CLOCK_ROUNDS - 1) * count);
        let frame = self.evict_one(frames, patience, count, &mut 0);
        self.inline_evictions += u64::from(frame.is_some());
        frame
    }

    /// Evicts a page: of scans, of probation, or of the clock ([`Keeper::evict_by_clock`]).
    fn evict_one(
        &mut self,
        frames: &Frames,
        patience: usize,
        more: usize,
        looks: &mut usize,
    ) -> Option<u32> {
        if let Some(frame) = self.evict_scanned(frames) {
            return Some(frame);
        }
        let least = self.held() * FRAMES_PER_CHUNK / PROBATION_PART;
        self.evict_on_probation(frames, least, looks)
            .or_else(|| self.evict_by_clock(frames, patience, 0, looks))
            .or_else(|| self.evict_on_probation(frames, 0, looks))
            .or_else(|| self.evict_by_clock(frames, 0, more, looks))
    }

    /// Size of the ring of scanned pages.
    pub(super) fn ring(&self) -> usize {
        (self.held() * FRAMES_PER_CHUNK / RING_PART).min(RING_FRAMES_MAX)
    }

    /// Evicts a discarded page, or else a page that only scans accessed and that is not in the
    /// ring.
    fn evict_scanned(&mut self, frames: &Frames) -> Option<u32> {
        for _ in 0..DOOMED_TRIES {
            let Some(frame) = self.queues.pop_front(Queue::Doomed) else { break };
            if self.evict(frames, frame, frames.get(frame).state()) {
                return Some(frame);
            }
            self.queues.push_back(Queue::Doomed, frame);
        }
        let ring = self.ring();
        for _ in 0..SCANNED_TRIES {
            if self.queues.len(Queue::Scanned) <= ring {
                return None;
            }
            let frame = self.queues.pop_front(Queue::Scanned)?;
            let seen = frames.get(frame).state();
            if seen.heat() > Heat::Scan {
                self.queues.push_back(Queue::Probation, frame);
                continue;
            }
            if self.evict(frames, frame, seen) {
                return Some(frame);
            }
            self.queues.push_back(Queue::Scanned, frame);
        }
        None
    }

    /// Evicts the oldest page on probation that was not accessed again, while there are more than
    /// `least`. Pages that were accessed again move to the clock.
    fn evict_on_probation(
        &mut self,
        frames: &Frames,
        least: usize,
        looks: &mut usize,
    ) -> Option<u32> {
        for _ in 0..PROBATION_TRIES {
            if self.queues.len(Queue::Probation) <= least {
                return None;
            }
            let frame = self.queues.pop_front(Queue::Probation)?;
            *looks += 1;
            let (seen, key) = (frames.get(frame).state(), frames.get(frame).key());
            if seen.heat() > Heat::Cold {
                continue;
            }
            if self.evict(frames, frame, seen) {
                self.ghosts.note(key, Left::Probation);
                return Some(frame);
            }
            self.queues.push_back(Queue::Probation, frame);
        }
        None
    }

    /// Looks at up to `patience` frames for a cold one in no queue, then at `more` for any that is
    /// not pinned: readers may heat pages faster than the clock cools them.
    fn evict_by_clock(
        &mut self,
        frames: &Frames,
        patience: usize,
        more: usize,
        looks: &mut usize,
    ) -> Option<u32> {
        let count = (self.slots() * FRAMES_PER_CHUNK) as u32;
        for look in 0..patience + more {
            if count == 0 {
                return None;
            }
            *looks += 1;
            let at = if self.hand < count { self.hand } else { 0 };
            self.hand = at + 1;
            let frame = frames.get(at);
            let (seen, key) = (frame.state(), frame.key());
            let in_need = look >= patience;
            if !in_need && !self.queues.is_out(at) {
                continue;
            }
            match verdict(seen, in_need) {
                Verdict::Keep => {}
                Verdict::Cool => frame.cool(seen),
                Verdict::Evict => {
                    if self.evict(frames, at, seen) {
                        self.ghosts.note(key, Left::Clock);
                        return Some(at);
                    }
                }
            }
        }
        None
    }

    /// Evicts a page if it is not held and its state is still `seen`. The frame is then free and in
    /// no queue.
    fn evict(&mut self, frames: &Frames, frame: u32, seen: State) -> bool {
        let evicted = frames.get(frame).try_evict(seen);
        if evicted {
            frames.forget(frame);
            self.queues.unlink(frame);
            self.evictions += 1;
        }
        evicted
    }

    /// The coldest of the next few chunks without a pinned or recently held frame.
    fn choose_chunk(&mut self, frames: &Frames) -> Option<u32> {
        let count = self.slots() as u32;
        let mut coldest: Option<(u32, u32)> = None;
        let mut choices = 0;
        for step in 0..count {
            let slot = (self.chunk_hand + step) % count;
            if self.chunks[slot as usize].is_none() {
                continue;
            }
            if let Some(heat) =
                heat_of_chunk(frames_of(slot).map(|frame| frames.get(frame)), &self.held_frames)
                && coldest.is_none_or(|(least, _)| heat < least)
            {
                coldest = Some((heat, slot));
            }
            choices += 1;
            if choices >= CHUNK_CHOICES && coldest.is_some() {
                self.chunk_hand = (slot + 1) % count;
                break;
            }
        }
        coldest.map(|(_, slot)| slot)
    }

    /// Evicts a chunk's pages and gives it back, unless one of them was pinned meanwhile.
    fn empty(&mut self, frames: &Frames, slot: u32) -> bool {
        for frame in frames_of(slot) {
            let (seen, key) = (frames.get(frame).state(), frames.get(frame).key());
            let on_probation = seen.heat() == Heat::Cold && !self.queues.is_out(frame);
            if self.evict(frames, frame, seen) {
                if seen.heat() > Heat::Scan {
                    self.ghosts.note(key, if on_probation { Left::Probation } else { Left::Clock });
                }
                self.release(frame);
            } else if !seen.is_free() {
                return false;
            }
        }
        frames_of(slot).for_each(|frame| self.queues.unlink(frame));
        frames.set_chunk(slot, None);
        self.chunks[slot as usize] = None;
        self.held -= 1;
        if (slot as usize) < self.max_chunks {
            self.vacant.push(slot);
        }
        true
    }
}

enum Verdict {
    Keep,
    Cool,
    Evict,
}

/// The clock's decision for a frame that it passes.
fn verdict(seen: State, hot_too: bool) -> Verdict {
    if !seen.is_resident() || seen.is_pinned() {
        Verdict::Keep
    } else if seen.heat() > Heat::Cold && !hot_too {
        Verdict::Cool
    } else {
        Verdict::Evict
    }
}

/// Sum of the heat of a chunk's pages; `None` if it has to stay.
fn heat_of_chunk<'a>(mut frames: impl Iterator<Item = &'a Frame>, held: &[usize]) -> Option<u32> {
    frames.try_fold(0, |sum, frame| {
        let state = frame.state();
        match state.is_free() {
            true => Some(sum),
            // Loading frames are pinned.
            false => (!state.is_pinned() && held.binary_search(&frame.address()).is_err())
                .then(|| sum + 1 + state.heat() as u32),
        }
    })
}

fn frames_of(slot: u32) -> impl DoubleEndedIterator<Item = u32> {
    let first = slot * FRAMES_PER_CHUNK as u32;
    first..first + FRAMES_PER_CHUNK as u32
}
