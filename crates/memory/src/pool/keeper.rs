//! Which frames are free, which are next to go, and how many chunks the pool keeps. All of it happens under the pool's lock.
//!
//! A frame comes from the free ones; else from a new chunk while the budget has more than its headroom; else from what only scans
//! touched, oldest first; else from the clock, whose hand walks the descriptors: it takes a degree of heat from hot pages and evicts
//! cold ones. Chunks go back by a hand of their own, the coldest of the next few first.
//!
//! Laws:
//! 1. A frame in the queue of free ones is free, and its chunk is held; a frame of a chunk not held is free and in no queue.
//! 2. Pinned and loading frames stay.
//! 3. Never fewer chunks than `min_chunks` once they are there; nothing here asks the budget for more than is free.

use super::frame::{Frame, Heat, State};
use super::frames::{FRAMES_PER_CHUNK, Frames};
use super::load::Loads;
use super::queues::{Queue, Queues};
use crate::budget::{Budget, Kind};
use crate::chunk::{CHUNK_BYTES, Chunk};

/// How many scanned pages are looked at for one that nobody has pinned.
const SCANNED_TRIES: usize = 16;

/// Among how many chunks the coldest is chosen.
const CHUNK_CHOICES: usize = 64;

/// Rounds of the hand until all that is not pinned is out: as many as the hottest page survives, and one.
const CLOCK_ROUNDS: usize = Heat::HotAndTouched as usize;

pub(super) struct Keeper {
    /// By slot; `None` where a chunk was given back.
    chunks: Vec<Option<Chunk>>,
    vacant: Vec<u32>,
    queues: Queues,
    /// The frame that the clock looks at next.
    hand: u32,
    /// The chunk that is looked at next when one is to go back.
    chunk_hand: u32,
    min_chunks: usize,
    /// Free chunks that are left to others.
    headroom: usize,
    pub(super) waited_for: Loads,
    pub(super) loads: u64,
    pub(super) waits: u64,
    evictions: u64,
}

impl Keeper {
    /// Bytes of heap for so many chunks.
    pub(super) fn heap_bytes(chunks: usize) -> usize {
        chunks * (size_of::<Option<Chunk>>() + size_of::<u32>()) + Queues::heap_bytes(chunks * FRAMES_PER_CHUNK)
    }

    /// A keeper that will never hold more than `max_chunks`.
    pub(super) fn new(max_chunks: usize, min_chunks: usize, headroom: usize) -> Self {
        Self {
            chunks: Vec::with_capacity(max_chunks),
            vacant: Vec::with_capacity(max_chunks),
            queues: Queues::new(max_chunks * FRAMES_PER_CHUNK),
            hand: 0,
            chunk_hand: 0,
            min_chunks,
            headroom,
            waited_for: Loads::default(),
            loads: 0,
            waits: 0,
            evictions: 0,
        }
    }

    /// Chunks held now.
    pub(super) fn held(&self) -> usize {
        self.chunks.len() - self.vacant.len()
    }

    /// Slots that ever held a chunk.
    pub(super) fn slots(&self) -> usize {
        self.chunks.len()
    }

    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// A frame to fill: free and in no queue. `None` if all are pinned and the budget has no chunk to spare.
    pub(super) fn frame(&mut self, frames: &Frames, budget: &Budget) -> Option<u32> {
        self.queues
            .pop_front(Queue::Free)
            .or_else(|| self.grow(frames, budget))
            .or_else(|| self.evict_scanned(frames))
            .or_else(|| self.evict_by_clock(frames))
    }

    /// Four frames more.
    pub(super) fn adopt(&mut self, frames: &Frames, chunk: Chunk) {
        let slot = self.vacant.pop().unwrap_or(self.chunks.len() as u32);
        frames.set_chunk(slot, Some(&chunk));
        if slot as usize == self.chunks.len() {
            self.chunks.push(Some(chunk));
        } else {
            self.chunks[slot as usize] = Some(chunk);
        }
        // Backwards, so that the lowest comes out first.
        frames_of(slot).rev().for_each(|frame| self.queues.push_front(Queue::Free, frame));
    }

    /// A frame whose page could not be loaded, or was evicted for its own sake.
    pub(super) fn release(&mut self, frame: u32) {
        self.queues.push_front(Queue::Free, frame);
    }

    /// A frame whose page is resident now.
    pub(super) fn filled(&mut self, frames: &Frames, frame: u32) {
        if frames.get(frame).state().heat() == Heat::Scan {
            self.queues.push_back(Queue::Scanned, frame);
        }
    }

    /// Evicts a page that nobody will want again; if it is pinned, as soon as it is not.
    pub(super) fn discard(&mut self, frames: &Frames, frame: u32) {
        frames.get(frame).chill();
        self.queues.unlink(frame);
        if self.evict(frames, frame, frames.get(frame).state()) {
            self.release(frame);
        } else {
            self.queues.push_front(Queue::Scanned, frame);
        }
    }

    /// Evicts everything that is not pinned.
    pub(super) fn clear(&mut self, frames: &Frames) {
        for frame in 0..(self.slots() * FRAMES_PER_CHUNK) as u32 {
            if self.evict(frames, frame, frames.get(frame).state()) {
                self.release(frame);
            }
        }
    }

    /// Gives back up to `wanted` chunks; how many it gave.
    pub(super) fn give_back(&mut self, frames: &Frames, wanted: usize) -> usize {
        let wanted = wanted.min(self.held().saturating_sub(self.min_chunks));
        let mut given = 0;
        // A chosen chunk is lost again if somebody pins a page of it right then.
        let mut tries = 2 * wanted;
        while given < wanted && tries > 0 {
            let Some(slot) = self.choose_chunk(frames) else { break };
            given += usize::from(self.empty(frames, slot));
            tries -= 1;
        }
        given
    }

    fn grow(&mut self, frames: &Frames, budget: &Budget) -> Option<u32> {
        let spare = (budget.free_bytes() / CHUNK_BYTES as u64) as usize;
        if spare <= self.headroom {
            return None;
        }
        let chunk = budget.take_free(Kind::Pages).ok()?;
        self.adopt(frames, chunk);
        self.queues.pop_front(Queue::Free)
    }

    fn evict_scanned(&mut self, frames: &Frames) -> Option<u32> {
        for _ in 0..SCANNED_TRIES {
            let frame = self.queues.pop_front(Queue::Scanned)?;
            let seen = frames.get(frame).state();
            if seen.heat() > Heat::Scan {
                continue;
            }
            if self.evict(frames, frame, seen) {
                return Some(frame);
            }
            self.queues.push_back(Queue::Scanned, frame);
        }
        None
    }

    fn evict_by_clock(&mut self, frames: &Frames) -> Option<u32> {
        let count = (self.slots() * FRAMES_PER_CHUNK) as u32;
        let looks = CLOCK_ROUNDS * count as usize;
        for look in 0..looks {
            let at = if self.hand < count { self.hand } else { 0 };
            self.hand = at + 1;
            let frame = frames.get(at);
            let seen = frame.state();
            // In the last round anything will do: readers may touch pages faster than they are cooled.
            let last_round = look + count as usize >= looks;
            match verdict(seen, last_round) {
                Verdict::Keep => {}
                Verdict::Cool => frame.cool(seen),
                Verdict::Evict => {
                    if self.evict(frames, at, seen) {
                        return Some(at);
                    }
                }
            }
        }
        None
    }

    /// Evicts a page, if it is unpinned and nothing happened to it since `seen`. The frame is then free and in no queue.
    fn evict(&mut self, frames: &Frames, frame: u32, seen: State) -> bool {
        let evicted = frames.get(frame).try_evict(seen);
        if evicted {
            frames.forget(frame);
            self.queues.unlink(frame);
            self.evictions += 1;
        }
        evicted
    }

    /// The coldest of the next few chunks that have no pinned frame.
    fn choose_chunk(&mut self, frames: &Frames) -> Option<u32> {
        let count = self.slots() as u32;
        let mut coldest: Option<(u32, u32)> = None;
        let mut choices = 0;
        for step in 0..count {
            let slot = (self.chunk_hand + step) % count;
            if self.chunks[slot as usize].is_none() {
                continue;
            }
            if let Some(heat) = heat_of_chunk(frames_of(slot).map(|frame| frames.get(frame)))
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
            let seen = frames.get(frame).state();
            if self.evict(frames, frame, seen) {
                self.release(frame);
            } else if !seen.is_free() {
                return false;
            }
        }
        frames_of(slot).for_each(|frame| self.queues.unlink(frame));
        frames.set_chunk(slot, None);
        self.chunks[slot as usize] = None;
        self.vacant.push(slot);
        true
    }
}

enum Verdict {
    Keep,
    Cool,
    Evict,
}

/// What the clock does with a frame that it passes.
fn verdict(seen: State, hot_too: bool) -> Verdict {
    if !seen.is_resident() || seen.is_pinned() {
        Verdict::Keep
    } else if seen.heat() > Heat::Cold && !hot_too {
        Verdict::Cool
    } else {
        Verdict::Evict
    }
}

/// How much a chunk's pages are worth; `None` if it has to stay.
fn heat_of_chunk<'a>(mut frames: impl Iterator<Item = &'a Frame>) -> Option<u32> {
    frames.try_fold(0, |sum, frame| {
        let state = frame.state();
        match state.is_free() {
            true => Some(sum),
            // Loading frames are pinned.
            false => (!state.is_pinned()).then(|| sum + 1 + state.heat() as u32),
        }
    })
}

fn frames_of(slot: u32) -> impl DoubleEndedIterator<Item = u32> {
    let first = slot * FRAMES_PER_CHUNK as u32;
    first..first + FRAMES_PER_CHUNK as u32
}
