//! Makes room: the oldest entry of a queue is evicted or moved on, repeatedly, until there is
//! enough.
//!
//! The policy chooses the queue and decides who stays. This file decides when to consult it, and
//! how much a large entry must be worth.

use std::sync::atomic::Ordering;

use super::super::Shared;
use super::super::entry::{Header, Placed};
use super::super::index::GHOST_TICKS;
use super::super::policy::{self, Queue};
use super::super::queue::Ends;
use super::super::slot::{Slot, fingerprint};
use super::{Keeper, Meant, RESERVE};

/// Dead bytes that cleaning recovers are cleaned away once they exceed one part in this many of the
/// cache.
const DEAD_PART: u64 = 32;

/// An entry larger than one part in this many of the cache must be worth the entries that it
/// displaces before it enters the protected queue.
const LARGE_PART: u64 = 64;

/// A touch of a large entry weighs as much as this many of those it displaces. A weight of one
/// would serve hits best and bytes worst.
const WEIGHT_OF_LARGE: u64 = 4;

/// While no segment is to spare, each insertion evicts this many quarters of its own size, so that
/// the next segment is free a little before it is needed, and no insertion evicts a whole one at
/// once.
const LEAVE_FOR_FOUR: u64 = 5;

/// Upper bound on the entries looked at per insertion, unless the insertion has no room without
/// more.
const TURNS_AHEAD: u32 = 16;

/// Upper bound on the victims examined to estimate the worth of all.
const VICTIMS_LOOKED_AT: u64 = 1024;

impl Keeper {
    /// Evicts the share of an entry that is about to be written, for the next segment, unless one
    /// is to spare.
    pub(super) fn evict_ahead(&mut self, shared: &Shared, header: Header) {
        let leave = (header.words() * LEAVE_FOR_FOUR / 4).min(1 << shared.segments.words_shift());
        let wanted = self.words_in_queues().saturating_sub(leave);
        for _ in 0..TURNS_AHEAD {
            if self.owner.used() + RESERVE < self.owner.limit()
                || self.words_in_queues() <= wanted
                || !self.turn(shared)
            {
                return;
            }
        }
    }

    /// Words between the ends of the queues.
    fn words_in_queues(&self) -> u64 {
        self.ends.iter().map(|ends| ends.young - ends.old).sum()
    }

    /// Evicts until the entry can be written. Returns whether it can.
    pub(super) fn make_room(&mut self, shared: &Shared, queue: Queue, header: Header) -> bool {
        loop {
            let wanted = self.ends[queue as usize].segments_for(&shared.segments, header);
            if self.has_room(shared, wanted) {
                return true;
            }
            if !self.shrink_index(shared) && !self.turn(shared) {
                return false;
            }
        }
    }

    /// Whether this many segments can be taken.
    pub(super) fn has_room(&mut self, shared: &Shared, segments: usize) -> bool {
        if self.owner.provide(&shared.segments, segments + RESERVE) {
            return true;
        }
        self.take_back_what_is_read_no_more(shared);
        self.owner.provide(&shared.segments, segments + RESERVE)
    }

    /// Processes the oldest entry of a queue, which stays or leaves. Returns `false` if there is
    /// none.
    pub(in super::super) fn turn(&mut self, shared: &Shared) -> bool {
        let limit = self.limit(shared);
        // One round without evicting leaves none of these: cleaning ends, however long the heads of
        // entries are.
        let dead = self.ends.each_ref().map(Ends::cleanable_bytes);
        let cleans = dead[0] + dead[1] > limit / DEAD_PART;
        let chosen = match cleans {
            true if dead[0] > dead[1] => Queue::Probation,
            true => Queue::Protected,
            false => policy::next_queue(&self.occupancy(shared)),
        };
        let queue = match (self.ends[0].is_empty(), self.ends[1].is_empty()) {
            (true, true) => return false,
            (true, false) => Queue::Protected,
            (false, true) => Queue::Probation,
            (false, false) => chosen,
        };
        self.was_full |= !cleans;
        self.turn_oldest(shared, queue, cleans);
        self.look_ahead(shared, queue);
        true
    }

    /// Prefetches the data for the next entry of a queue.
    fn look_ahead(&mut self, shared: &Shared, queue: Queue) {
        let ends = &self.ends[queue as usize];
        if !ends.is_empty() {
            let next = ends.entry_at(&shared.segments, shared.ring(queue), ends.old);
            if !next.header.is_filler() {
                let hash = shared.hash(next.key());
                shared.index.prefetch(&shared.segments, hash);
                self.ahead[queue as usize] = (ends.old, hash);
                ends.prefetch(&shared.segments, shared.ring(queue), ends.old + next.header.words());
            }
        }
    }

    fn turn_oldest(&mut self, shared: &Shared, queue: Queue, cleans: bool) {
        let position = self.ends[queue as usize].old;
        let placed =
            self.ends[queue as usize].entry_at(&shared.segments, shared.ring(queue), position);
        let end = position + placed.header.words();
        if placed.header.is_filler() {
            self.ends(queue).passes_filler(&shared.segments, placed.header);
            self.pass(shared, queue, None, end);
            return;
        }
        let hash = match self.ahead[queue as usize] {
            (at, hash) if at == position => hash,
            _ => shared.hash(placed.key()),
        };
        if let Some(slot) = Self::slot_of(shared, hash, queue, position) {
            self.turn_entry(shared, &Meant { slot, hash, position, placed }, cleans);
        }
        self.pass(shared, queue, Some(fingerprint(hash)), end);
    }

    /// Moves the oldest entry of a queue to its next place, or evicts it, including when there is
    /// no room for it.
    fn turn_entry(&mut self, shared: &Shared, entry: &Meant<'_>, cleans: bool) {
        let touches = Slot(entry.slot.load(Ordering::Relaxed)).touches();
        if entry.placed.queue == Queue::Protected && touches == 1 && !cleans {
            let (of_entry, protected) = self.parts(shared);
            self.probation_part.found_once(protected, of_entry);
        }
        let kept = self.verdict(shared, entry, touches, cleans);
        if kept.is_some_and(|(target, touches)| self.move_entry(shared, entry, target, touches)) {
            self.counters.moved_bytes += entry.placed.header.bytes();
        } else {
            self.evict(shared, entry);
        }
    }

    /// The entry's next queue and its touches there, or `None` if it leaves.
    fn verdict(
        &self,
        shared: &Shared,
        entry: &Meant<'_>,
        touches: u8,
        cleans: bool,
    ) -> Option<(Queue, u8)> {
        let placed = &entry.placed;
        if self.has_expired(entry) {
            return None;
        }
        if cleans {
            return Some((placed.queue, touches));
        }
        let kept = policy::touches_if_kept(placed.queue, touches)?;
        let worth = placed.queue == Queue::Protected
            || self.is_worth_its_place(shared, placed.header, touches);
        worth.then_some((Queue::Protected, kept))
    }

    /// Whether an entry is worth the oldest entries of the protected queue that it would displace.
    /// Small entries always are. A large one is if its touches outweigh those of all displaced
    /// entries together; each of its touches counts for several.
    pub(super) fn is_worth_its_place(&self, shared: &Shared, header: Header, touches: u8) -> bool {
        let bytes = header.bytes();
        if bytes <= self.limit(shared) / LARGE_PART {
            return true;
        }
        let worth = u64::from(touches) * WEIGHT_OF_LARGE;
        let ends = &self.ends[Queue::Protected as usize];
        let (mut position, mut displaced, mut touched) = (ends.old, 0, 0);
        for _ in 0..VICTIMS_LOOKED_AT {
            if position == ends.young || displaced >= bytes {
                break;
            }
            let victim = ends.entry_at(&shared.segments, shared.ring(Queue::Protected), position);
            if !victim.header.is_filler() {
                let hash = shared.hash(victim.key());
                if let Some(slot) = Self::slot_of(shared, hash, Queue::Protected, position) {
                    touched += u64::from(Slot(slot.load(Ordering::Relaxed)).touches());
                    displaced += victim.header.bytes();
                }
            }
            if touched > worth {
                return false;
            }
            position += victim.header.words();
        }
        // If not all were examined, the others are assumed to be similar.
        let all_seen = position == ends.young || displaced >= bytes;
        all_seen || touched * bytes <= worth * displaced
    }

    fn evict(&mut self, shared: &Shared, entry: &Meant<'_>) {
        let Placed { queue, header, .. } = entry.placed;
        match queue {
            Queue::Probation => {
                self.pages.bury(&shared.index, &shared.segments, entry.hash, entry.slot, self.tick)
            }
            Queue::Protected => self.empty_slot(shared, entry.slot, entry.hash),
        }
        self.uncount(queue, header);
        self.counters.evictions += 1;
        if queue == Queue::Probation {
            self.count_evicted(shared, header.bytes());
        }
    }

    /// Counts bytes that leave the probation queue for good.
    fn count_evicted(&mut self, shared: &Shared, bytes: u64) {
        let of_tick = (self.window_bytes(shared) / GHOST_TICKS).max(1);
        self.bytes_since_tick += bytes;
        // One entry may be worth many ticks.
        while self.bytes_since_tick >= of_tick {
            self.bytes_since_tick -= of_tick;
            self.tick += 1;
            self.pages.forget_ghosts(&shared.segments, self.tick);
        }
    }
}
