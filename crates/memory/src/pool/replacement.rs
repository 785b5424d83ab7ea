//! The pool's replacement policy: which frames are free, which are evicted next, and how many
//! chunks the pool keeps. All of it runs under the pool's lock.
//!
//! A new page takes a free frame; the evictor keeps some free. If there is none, the pool takes a
//! new chunk while the budget has more than its headroom. Otherwise it evicts a page, in this
//! order:
//!
//! 1. from the pages accessed only by scans, oldest first, except for a ring of the youngest;
//! 2. from probation, where every cold page begins, oldest first, while it holds more than a tenth
//!    of the frames. A page that was accessed again moves to the clock; any other is evicted and
//!    leaves a ghost ([`super::ghosts`]). A miss that finds a ghost loads the page hot and skips
//!    probation. Pages accessed once therefore displace only each other;
//! 3. from the clock, whose hand walks the descriptors of pages in no queue: it cools hot pages by
//!    one degree and evicts cold ones.
//!
//! To give a chunk back, a second hand picks the coldest of the next few chunks. Probation and
//! ghosts are those of S3-FIFO (Yang et al., SOSP 2023); its main queue is the clock.
//!
//! Invariants:
//! 1. A frame in the free queue is free, and its chunk is held; a frame of a chunk not held is free
//!    and in no queue.
//! 2. Held and loading frames keep their pages.
//! 3. The pool never shrinks below `min_chunks` once it has them. It asks the budget for free
//!    chunks only.

use super::Touch;
use super::frame::{Frame, Heat, PageKey, State};
use super::frames::{FRAMES_PER_CHUNK, Frames};
use super::ghosts::{Ghosts, Left};
use super::hazard;
use super::load::Loads;
use super::queues::{Queue, Queues};
use super::slots::{Slots, frames_of};
use crate::budget::chunk::{CHUNK_BYTES, Chunk};
use crate::budget::{Budget, Kind};
use crate::page::PAGE_BYTES;
use crate::turnover::Turnover;

/// The most scanned pages that are tried to find an unpinned one; also the most doomed pages, which
/// are tried first.
const SCANNED_TRIES: usize = 16;
const DOOMED_TRIES: usize = 4;

/// The most pages on probation that are tried to find one that was not accessed again. Pages that
/// were accessed again leave the queue, so each is tried once.
const PROBATION_TRIES: usize = 64;

/// Pages on probation are not evicted while they are fewer than one in this many of the frames.
const PROBATION_PART: usize = 10;

/// Size of the ring, as a fraction of the frames and as a maximum. The ring retains the pages that
/// scans loaded last, because they may have been read ahead, and a scan may revisit them.
const RING_PART: usize = 8;
const RING_FRAMES_MAX: usize = 64;

/// Frames examined by the clock per acquisition of the lock. After that, a caller that needs a
/// frame at once takes any unpinned page.
const FRAMES_PER_LOCK: usize = 1024;

/// Number of chunks among which the coldest is chosen.
const CHUNK_CHOICES: usize = 64;

/// Rounds of the hand after which every unpinned page is evicted: one more than the number of
/// rounds that the hottest page survives.
const CLOCK_ROUNDS: usize = Heat::HotAndTouched as usize;

pub(super) struct Replacement {
    pub(super) slots: Slots,
    queues: Queues,
    ghosts: Ghosts,
    /// The frame that the clock examines next.
    hand: u32,
    /// The next candidate chunk to return.
    chunk_hand: u32,
    min_chunks: usize,
    /// Free chunks left to other holders.
    headroom: usize,
    /// Scratch space for the held frames while chunks are returned, which must not allocate.
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

/// A page that moves from one frame to another.
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

impl Replacement {
    /// Heap bytes for this many chunks.
    pub(super) fn heap_bytes(chunks: usize) -> usize {
        let frames = chunks * FRAMES_PER_CHUNK;
        Slots::heap_bytes(chunks)
            + hazard::HELD_MAX * size_of::<usize>()
            + Queues::heap_bytes(frames)
            + Ghosts::heap_bytes(frames)
    }

    /// Makes the replacement policy of a pool of at most `max_chunks`.
    pub(super) fn new(max_chunks: usize, min_chunks: usize, headroom: usize) -> Self {
        Self {
            slots: Slots::new(max_chunks),
            queues: Queues::new(max_chunks * FRAMES_PER_CHUNK),
            ghosts: Ghosts::new(max_chunks * FRAMES_PER_CHUNK),
            hand: 0,
            chunk_hand: 0,
            min_chunks,
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
        if max_chunks <= self.slots.max() {
            return;
        }
        if max_chunks > self.slots.len() {
            self.slots.reserve(max_chunks);
            self.queues.grow(max_chunks * FRAMES_PER_CHUNK);
            self.ghosts.resize(max_chunks * FRAMES_PER_CHUNK);
            frames.grow(max_chunks);
        }
        self.slots.set_max(max_chunks);
    }

    /// Shrinks the tables to the maximum, or to the highest slot that still holds a chunk.
    pub(super) fn shrink(&mut self, frames: &Frames) {
        let used = self.slots.len();
        self.slots.shrink();
        let slots = self.slots.capacity();
        self.queues.shrink(slots * FRAMES_PER_CHUNK);
        self.ghosts.resize(slots * FRAMES_PER_CHUNK);
        frames.shrink(slots, used);
    }

    /// Moves up to `count` chunks out of slots above the maximum into lower ones. Returns how many.
    /// Chunks with a held page stay.
    pub(super) fn move_down(&mut self, frames: &Frames, count: usize) -> usize {
        let mut moved = 0;
        for from in (self.slots.max() as u32..self.slots.len() as u32).rev() {
            if moved == count || !self.slots.has_vacant_slot() {
                break;
            }
            moved += usize::from(self.slots.is_occupied(from) && self.move_chunk(frames, from));
        }
        moved
    }

    /// Moves a chunk and its pages into a lower slot. The bytes stay in place and get other
    /// descriptors.
    fn move_chunk(&mut self, frames: &Frames, from: u32) -> bool {
        let mut left = [const { None }; FRAMES_PER_CHUNK];
        let is_empty = frames_of(from).zip(&mut left).all(|(frame, page)| {
            *page = self.take_out(frames, frame);
            page.is_some()
        });
        let to = if is_empty { self.slots.move_down(frames, from) } else { from };
        for (frame, page) in frames_of(to).zip(left) {
            match page {
                Some(Some(page)) => self.put_back(frames, frame, page),
                Some(None) => self.queues.push_front(Queue::Free, frame),
                None => {}
            }
        }
        is_empty
    }

    /// Removes a page from its frame and returns it, or removes a frame from the free queue and
    /// returns `Some(None)`. Returns `None` if the page has to stay.
    fn take_out(&mut self, frames: &Frames, frame: u32) -> Option<Option<Moved>> {
        let (seen, key) = (frames.get(frame).state(), frames.get(frame).key());
        let is_free = seen.is_free();
        let moved = Moved { key, heat: seen.heat(), queue: self.queues.of(frame) };
        // A free frame outside the queues is about to be filled.
        if is_free && moved.queue.is_none() || !is_free && !frames.get(frame).try_evict(seen) {
            return None;
        }
        if !is_free {
            frames.forget(frame);
        }
        self.queues.unlink(frame);
        Some((!is_free).then_some(moved))
    }

    /// Undoes [`Replacement::take_out`], in the same frame or in another frame with the same bytes.
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

    /// Sets the number of free frames below which the evictor is called, and the headroom.
    pub(super) fn set_watermarks(&mut self, low_frames: usize, headroom: usize) {
        (self.low_frames, self.headroom) = (low_frames, headroom);
    }

    /// Sets the headroom.
    pub(super) fn set_headroom(&mut self, headroom: usize) {
        self.headroom = headroom;
    }

    pub(super) fn room(&self) -> Room {
        Room {
            free: self.queues.len(Queue::Free),
            frames: self.slots.held() * FRAMES_PER_CHUNK,
            taken: self.taken,
        }
    }

    /// Whether free frames are few and the budget cannot supply any.
    pub(super) fn is_short(&self, budget: &Budget) -> bool {
        self.queues.len(Queue::Free) < self.low_frames && !self.can_grow(budget)
    }

    /// Whether the pool can take another chunk and still leave the headroom free.
    pub(super) fn can_grow(&self, budget: &Budget) -> bool {
        self.slots.has_room() && (budget.free_bytes() / CHUNK_BYTES as u64) as usize > self.headroom
    }

    /// Whether a frame is available without an eviction.
    pub(super) fn has_spare(&self, budget: &Budget) -> bool {
        self.queues.len(Queue::Free) > self.low_frames || self.can_grow(budget)
    }

    /// The size of the pool, and the hits that a larger pool would have had.
    pub(super) fn turnover(&self) -> Turnover {
        let window = self.ghosts.window(self.slots.held() * FRAMES_PER_CHUNK);
        Turnover {
            held_bytes: (self.slots.held() * CHUNK_BYTES) as u64,
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

    /// Heat of a page that `touch` loads: hot if it was recently evicted from probation.
    pub(super) fn first_heat(&mut self, key: PageKey, touch: Touch) -> Heat {
        let frames = self.slots.held() * FRAMES_PER_CHUNK;
        match Heat::first(touch) {
            Heat::Cold if self.ghosts.take(key, frames) == Some(Left::Probation) => Heat::Hot,
            heat => heat,
        }
    }

    /// Evicts up to `wanted` pages, and examines at most [`FRAMES_PER_LOCK`] frames. Returns the
    /// numbers of pages evicted and frames examined.
    pub(super) fn free_frames(&mut self, frames: &Frames, wanted: usize) -> (usize, usize) {
        let (mut freed, mut looks) = (0, 0);
        while freed < wanted && looks < FRAMES_PER_LOCK {
            let Some(frame) = self.evict_one(frames, FRAMES_PER_LOCK - looks, 0, &mut looks) else {
                break;
            };
            looks += 1;
            self.queues.push_back(Queue::Free, frame);
            freed += 1;
        }
        (freed, looks)
    }

    /// Frames to examine until the clock has made enough rounds to evict every evictable page.
    pub(super) fn looks_max(&self) -> usize {
        CLOCK_ROUNDS * self.slots.len() * FRAMES_PER_CHUNK
    }

    /// Adds the four frames of a chunk, for which there is a slot.
    pub(super) fn adopt(&mut self, frames: &Frames, chunk: Chunk) {
        let slot = self.slots.add(frames, chunk);
        // Push the frames in reverse, so that the lowest one is taken first.
        frames_of(slot).rev().for_each(|frame| self.queues.push_front(Queue::Free, frame));
    }

    /// Frees a frame after a failed load or a single eviction.
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

    /// Evicts a page that will not be needed again, or dooms it if it is pinned.
    pub(super) fn discard(&mut self, frames: &Frames, frame: u32) {
        frames.get(frame).make_coldest();
        self.queues.unlink(frame);
        if self.evict(frames, frame, frames.get(frame).state()) {
            self.release(frame);
        } else {
            self.queues.push_back(Queue::Doomed, frame);
        }
    }

    /// Evicts every page that is not pinned.
    pub(super) fn clear(&mut self, frames: &Frames) {
        for frame in 0..(self.slots.len() * FRAMES_PER_CHUNK) as u32 {
            if self.evict(frames, frame, frames.get(frame).state()) {
                self.release(frame);
            }
        }
    }

    /// Releases all chunks without a held page.
    pub(super) fn release_all(&mut self, frames: &Frames) {
        self.min_chunks = 0;
        self.release_chunks(frames, usize::MAX);
    }

    /// Releases up to `wanted` chunks. Returns how many.
    pub(super) fn release_chunks(&mut self, frames: &Frames, wanted: usize) -> usize {
        let wanted = wanted.min(self.slots.held().saturating_sub(self.min_chunks));
        let mut given = 0;
        // A reader may pin a page of a chosen chunk, so allow for failed attempts.
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
        let count = self.slots.len() * FRAMES_PER_CHUNK;
        let examined_max = FRAMES_PER_LOCK.min((CLOCK_ROUNDS - 1) * count);
        let frame = self.evict_one(frames, examined_max, count, &mut 0);
        self.inline_evictions += u64::from(frame.is_some());
        frame
    }

    /// Evicts a page, in the order that the module describes.
    fn evict_one(
        &mut self,
        frames: &Frames,
        examined_max: usize,
        more: usize,
        looks: &mut usize,
    ) -> Option<u32> {
        if let Some(frame) = self.evict_scanned(frames) {
            return Some(frame);
        }
        let least = self.slots.held() * FRAMES_PER_CHUNK / PROBATION_PART;
        self.evict_on_probation(frames, least, looks)
            .or_else(|| self.evict_by_clock(frames, examined_max, 0, looks))
            .or_else(|| self.evict_on_probation(frames, 0, looks))
            .or_else(|| self.evict_by_clock(frames, 0, more, looks))
    }

    /// Size of the ring of scanned pages.
    pub(super) fn ring(&self) -> usize {
        (self.slots.held() * FRAMES_PER_CHUNK / RING_PART).min(RING_FRAMES_MAX)
    }

    /// Evicts a doomed page, or else a page that only scans accessed and that is outside the ring.
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

    /// Examines up to `examined_max` frames to find a cold one outside the queues, then up to
    /// `more` to find any unpinned one, because readers may heat pages faster than the clock cools
    /// them.
    fn evict_by_clock(
        &mut self,
        frames: &Frames,
        examined_max: usize,
        more: usize,
        looks: &mut usize,
    ) -> Option<u32> {
        let count = (self.slots.len() * FRAMES_PER_CHUNK) as u32;
        for look in 0..examined_max + more {
            if count == 0 {
                return None;
            }
            *looks += 1;
            let at = if self.hand < count { self.hand } else { 0 };
            self.hand = at + 1;
            let frame = frames.get(at);
            let (seen, key) = (frame.state(), frame.key());
            let in_need = look >= examined_max;
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

    /// The coldest of the next few chunks that have no pinned or published frame.
    fn choose_chunk(&mut self, frames: &Frames) -> Option<u32> {
        let count = self.slots.len() as u32;
        let mut coldest: Option<(u32, u32)> = None;
        let mut choices = 0;
        for step in 0..count {
            let slot = (self.chunk_hand + step) % count;
            if !self.slots.is_occupied(slot) {
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

    /// Evicts a chunk's pages and returns it, unless one of them was pinned meanwhile.
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
        self.slots.release(frames, slot);
        true
    }
}

enum Verdict {
    Keep,
    Cool,
    Evict,
}

/// The clock's decision for a frame.
fn verdict(seen: State, hot_too: bool) -> Verdict {
    if !seen.is_resident() || seen.is_pinned() {
        Verdict::Keep
    } else if seen.heat() > Heat::Cold && !hot_too {
        Verdict::Cool
    } else {
        Verdict::Evict
    }
}

/// Sum of the heat of a chunk's pages; `None` if the chunk has to stay.
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
