//! What happens under the cache's lock: entering, removing, and making room.
//!
//! Laws:
//! 1. Segments in use never exceed the limit: room is made first, and only then is anything written.
//! 2. Two segments beyond what was asked for stay free, so that moving an entry from one queue to the other never needs what is not there.
//! 3. Whatever leaves its place leaves the index first; a segment that somebody still reads waits aside and counts as used.
//! 4. Entries + what is dead = what stands between the ends of the queues, at every moment.

mod warm;

use std::sync::atomic::{AtomicU64, Ordering};

use super::Shared;
use super::entry::{Header, Placed};
use super::index::{GHOST_TICKS, Pages};
use super::policy::{Occupancy, Policy, Queue, Verdict};
use super::queue::{Ends, offset_of, sequence_modulus};
use super::readers::{Emptied, Tags};
use super::segments::Owner;
use super::slot::{Kind, PLACE_MASK, Slot, tag};
use super::small_part::SmallPart;
use crate::chunk::CHUNK_BYTES;
pub use warm::{BroughtBack, Census, Changes, Copied, Copies, Standing};

/// Segments that stay free for moves.
const RESERVE: usize = 2;

/// The limit becomes smaller by so much at once, or by a segment.
pub(super) const BITE_BYTES: usize = 256 << 10;

/// Segments beside the index, at least: of the smallest cache.
const LEAST_SEGMENTS: usize = 12;

/// Below so many chunks a limit is not a number of whole ones.
const LEAST_WHOLE_CHUNKS: usize = 8;

/// Dead bytes are cleaned away once they are more than this part of the cache.
const DEAD_PART: u64 = 32;

/// An entry larger than this part of the cache must be worth what it displaces before it enters the main queue.
const LARGE_PART: u64 = 64;

/// A touch of a large entry weighs as much as so many of those it displaces. One would serve hits best and bytes worst.
const WEIGHT_OF_LARGE: u64 = 4;

/// While no segment is to spare, an entry that enters has others leave for so many parts in four of its bytes: the segment after the one that is
/// written is free a little before it is needed, and nobody evicts a whole one at once.
const LEAVE_FOR_FOUR: u64 = 5;

/// So many entries are looked at for one that enters, at most, unless it has no room without them.
const TURNS_AHEAD: u32 = 16;

/// No entry stands there.
const NOWHERE: u64 = u64::MAX;

/// So many victims are looked at, to say what all are worth.
const VICTIMS_LOOKED_AT: u64 = 1024;

/// What the bytes of a cache are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    Everything,
    /// Bytes of values, so many at most.
    Values {
        limit: u64,
    },
}

/// What was asked to be entered.
pub(super) struct Arrival<'a> {
    pub(super) hash: u64,
    pub(super) key: &'a [u8],
    /// Its parts, one behind the other.
    pub(super) value: &'a [&'a [u8]],
    pub(super) expires_at: Option<u64>,
}

impl Arrival<'_> {
    fn header(&self) -> Header {
        Header::new(self.key, self.value.iter().map(|part| part.len()).sum(), self.expires_at.is_some())
    }
}

/// Counters, under the lock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) insertions: u64,
    pub(super) refusals: u64,
    pub(super) evictions: u64,
    pub(super) returns: u64,
    pub(super) moved_bytes: u64,
    pub(super) entries: u64,
    /// Look-ups under the lock that found something.
    pub(super) hits: u64,
    /// And that did not.
    pub(super) misses: u64,
}

/// A segment that was given up while somebody read it.
struct Aside {
    segment: u32,
    readers: AsideFor,
}

/// Who may read it.
enum AsideFor {
    /// Those who looked for its entries, or at them, through these lines when it was given up.
    Queue { lines: u64, emptied: Emptied },
    /// Those who use the index through these lines since it was given up.
    Index { lines: u64 },
}

/// The writer.
pub(super) struct Keeper {
    pub(super) owner: Owner,
    pub(super) pages: Pages,
    ends: [Ends; 2],
    /// By queue: the tags of all entries that stood in the segment in which its old end is.
    passed: [Tags; 2],
    /// By queue: the position of the entry that is looked at next, and the hash of its key.
    ahead: [(u64, u64); 2],
    policy: Box<dyn Policy>,
    measure: Measure,
    /// The largest entry, in parts of 65,536 of the cache.
    largest_part: u64,
    aside: Vec<Aside>,
    was_full: bool,
    small_part: SmallPart,
    /// Whether each entry that enters makes room for the next.
    pub(super) evicts_ahead: bool,
    /// The time that ghosts die at: so many times did a part of what ghosts reach back leave the small queue for good.
    tick: u64,
    /// Bytes that left it since the last tick.
    bytes_since_tick: u64,
    pub(super) counters: Counters,
    /// Milliseconds; entries that expire at or before are as good as gone.
    pub(super) now: u64,
}

impl Keeper {
    pub(super) fn new(
        owner: Owner,
        pages: Pages,
        policy: Box<dyn Policy>,
        measure: Measure,
        largest_part: u64,
    ) -> Self {
        let ends = [Ends::new(Queue::Small), Ends::new(Queue::Main)];
        Self {
            owner,
            pages,
            ends,
            passed: [Tags::none(), Tags::none()],
            ahead: [(NOWHERE, 0); 2],
            policy,
            measure,
            largest_part,
            aside: Vec::with_capacity(64),
            was_full: false,
            small_part: SmallPart::new(),
            evicts_ahead: true,
            tick: 0,
            bytes_since_tick: 0,
            counters: Counters::default(),
            now: 0,
        }
    }

    fn ends(&mut self, queue: Queue) -> &mut Ends {
        &mut self.ends[queue as usize]
    }

    /// The segments of a limit of so many bytes: whole chunks, so that what is held is no more than that either, unless that would take much of a
    /// very small cache; at least as many that entries of some size can still be kept beside the index.
    pub(super) fn limit_for(&self, shared: &Shared, bytes: u64) -> usize {
        let of_chunk = CHUNK_BYTES / shared.segments.bytes();
        let segments = (bytes / shared.segments.bytes() as u64) as usize;
        let whole = if segments < LEAST_WHOLE_CHUNKS * of_chunk { segments } else { segments / of_chunk * of_chunk };
        whole.max(self.pages.len() + LEAST_SEGMENTS)
    }

    /// How many bytes there may be, in the measure that counts.
    pub(super) fn limit(&self, shared: &Shared) -> u64 {
        match self.measure {
            Measure::Everything => {
                (self.owner.limit().saturating_sub(self.pages.len()) * shared.segments.bytes()) as u64
            }
            Measure::Values { limit } => limit,
        }
    }

    /// The weight of an entry, in the measure that counts.
    fn weight(&self, header: Header) -> u64 {
        match self.measure {
            Measure::Everything => header.bytes(),
            Measure::Values { .. } => header.value_bytes as u64,
        }
    }

    /// Bytes of entries in the small and in the main queue, in the measure that counts.
    fn queued(&self) -> [u64; 2] {
        self.ends.each_ref().map(|ends| match self.measure {
            Measure::Everything => ends.live_bytes,
            Measure::Values { .. } => ends.value_bytes,
        })
    }

    fn occupancy(&self, shared: &Shared) -> Occupancy {
        let [small, main] = self.queued();
        Occupancy { small, main, small_limit: self.small_bytes(shared), was_full: self.was_full }
    }

    /// What the small queue may have.
    pub(super) fn small_bytes(&self, shared: &Shared) -> u64 {
        self.small_part.of(self.limit(shared))
    }

    /// What an entry takes on average, and the main queue, as parts of the cache.
    fn parts(&self, shared: &Shared) -> (f64, f64) {
        let [small, main] = self.queued();
        let limit = self.limit(shared).max(1) as f64;
        ((small + main) as f64 / self.counters.entries.max(1) as f64 / limit, main as f64 / limit)
    }

    /// How far back ghosts reach, in bytes that left the small queue: half as far again as the main queue, in which returning entries would have been, is
    /// long. They have the room, and loops a little longer than the cache are seen by those ghosts only.
    pub(super) fn window_bytes(&self, shared: &Shared) -> u64 {
        self.limit(shared) / 20 * 27
    }

    /// Bytes leave the small queue for good.
    fn count_evicted(&mut self, shared: &Shared, bytes: u64) {
        let of_tick = (self.window_bytes(shared) / GHOST_TICKS).max(1);
        self.bytes_since_tick += bytes;
        // One entry may be many ticks' worth.
        while self.bytes_since_tick >= of_tick {
            self.bytes_since_tick -= of_tick;
            self.tick += 1;
            self.pages.forget_ghosts(&shared.segments, self.tick);
        }
    }

    /// Bytes of entries, and bytes between the ends that none needs.
    pub(super) fn live_and_dead_bytes(&self) -> (u64, u64) {
        let [small, main] = &self.ends;
        (small.live_bytes + main.live_bytes, small.dead_bytes() + main.dead_bytes())
    }

    /// Enters an entry, in the place of one with the same key; whether it did. One that is refused removes its predecessor all the same:
    /// that one is no longer true.
    pub(super) fn insert(&mut self, shared: &Shared, arrival: &Arrival<'_>) -> bool {
        self.remove(shared, arrival.hash, arrival.key);
        let header = arrival.header();
        let entered = self.fits(shared, header) && self.enter(shared, arrival, header);
        self.count_arrival(entered)
    }

    /// Enters an entry in the place of one with the same key, in the same queue and with the same touches, if there is one; whether it did.
    /// One that is refused removes its predecessor all the same.
    pub(super) fn replace(&mut self, shared: &Shared, arrival: &Arrival<'_>) -> bool {
        let Some((slot, placed)) = self.find(shared, arrival.hash, arrival.key) else {
            return false;
        };
        let (queue, touches) = (placed.queue, Slot(slot.load(Ordering::Relaxed)).touches());
        if !self.remove(shared, arrival.hash, arrival.key) {
            return false;
        }
        let header = arrival.header();
        let entered = self.fits(shared, header) && {
            self.evict_ahead(shared, header);
            self.place(shared, arrival, header, queue, touches)
        };
        self.count_arrival(entered)
    }

    fn count_arrival(&mut self, entered: bool) -> bool {
        self.counters.insertions += u64::from(entered);
        self.counters.refusals += u64::from(!entered);
        entered
    }

    fn fits(&self, shared: &Shared, header: Header) -> bool {
        let largest = ((u128::from(self.limit(shared)) * u128::from(self.largest_part)) >> 16) as u64;
        header.value_at() <= shared.segments.bytes() / 4
            && header.key_bytes <= usize::from(u16::MAX)
            && u32::try_from(header.value_bytes).is_ok()
            && self.weight(header) <= largest
    }

    fn enter(&mut self, shared: &Shared, arrival: &Arrival<'_>, header: Header) -> bool {
        self.evict_ahead(shared, header);
        let age = self.pages.take_ghost(&shared.index, &shared.segments, arrival.hash, self.tick);
        let returned = age.is_some();
        if let Some(ticks) = age {
            self.counters.returns += 1;
            self.small_part.came_back(ticks, self.parts(shared).0);
        }
        let worth = !returned || self.is_worth_its_place(shared, header, 1);
        let queue = self.policy.begin(returned && worth, &self.occupancy(shared));
        self.place(shared, arrival, header, queue, 0)
    }

    /// Puts an entry that the index does not have at the young end of a queue.
    fn place(&mut self, shared: &Shared, arrival: &Arrival<'_>, header: Header, queue: Queue, touches: u8) -> bool {
        if !self.make_room(shared, queue, header) || !self.make_room_in_index(shared, queue, header, arrival.hash) {
            return false;
        }
        let position = self.write(shared, queue, header, arrival);
        let slot = Slot::entry(arrival.hash, queue, touches, position);
        let entered = self.pages.insert(&shared.index, &shared.segments, arrival.hash, slot, self.tick).is_ok();
        if entered {
            self.ends(queue).count(header);
            self.counters.entries += 1;
        }
        entered
    }

    /// An entry is going to be written, and does its part of the work for the segment that is written next, unless there is one to spare.
    fn evict_ahead(&mut self, shared: &Shared, header: Header) {
        if !self.evicts_ahead {
            return;
        }
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

    fn write(&mut self, shared: &Shared, queue: Queue, header: Header, arrival: &Arrival<'_>) -> u64 {
        let (segments, ring, owner) = (&shared.segments, shared.ring(queue), &mut self.owner);
        let ends = &mut self.ends[queue as usize];
        if let Some(position) = ends.write_within(segments, ring, header, arrival.key, arrival.value) {
            return position;
        }
        let (position, mut at) = ends.write_head(segments, ring, owner, header, arrival.expires_at, arrival.key);
        for part in arrival.value {
            at = ends.write_value(segments, ring, owner, at, part);
        }
        ends.end_entry(at);
        position
    }

    /// Evicts until the entry can be written; whether it can.
    fn make_room(&mut self, shared: &Shared, queue: Queue, header: Header) -> bool {
        loop {
            let wanted = self.ends[queue as usize].segments_for(&shared.segments, header);
            if self.has_room(shared, wanted, self.weight(header)) {
                return true;
            }
            if !self.shrink_index(shared) && !self.turn(shared) {
                return false;
            }
        }
    }

    /// Whether so many segments can be taken, and so much weight added.
    fn has_room(&mut self, shared: &Shared, segments: usize, weight: u64) -> bool {
        if let Measure::Values { limit } = self.measure {
            let values: u64 = self.ends.iter().map(|ends| ends.value_bytes).sum();
            if values + weight > limit {
                return false;
            }
        }
        if self.owner.provide(&shared.segments, segments + RESERVE) {
            return true;
        }
        self.take_back_what_is_read_no_more(shared);
        self.owner.provide(&shared.segments, segments + RESERVE)
    }

    /// Lets a crowded page of the index share. Without memory for that it goes on as it is, at the cost of ghosts.
    fn make_room_in_index(&mut self, shared: &Shared, queue: Queue, header: Header, hash: u64) -> bool {
        if !self.pages.is_crowded(&shared.index, hash, self.mean_bytes()) {
            return true;
        }
        loop {
            let wanted = self.ends[queue as usize].segments_for(&shared.segments, header) + 1;
            if self.has_room(shared, wanted, self.weight(header)) {
                break;
            }
            if !self.turn(shared) {
                return false;
            }
        }
        let segment = self.owner.take(&shared.segments).expect("provided just before");
        match self.pages.grow(&shared.index, &shared.segments, hash, segment, self.tick) {
            Some(lost) => lost.into_iter().for_each(|slot| self.lose(shared, slot)),
            None => self.owner.give_back(&shared.segments, segment),
        }
        true
    }

    /// Bytes of an entry, on average.
    fn mean_bytes(&self) -> u64 {
        self.ends.iter().map(|ends| ends.live_bytes).sum::<u64>() / self.counters.entries.max(1)
    }

    /// Looks at one page of the index, and gives it up if its neighbours can do without; whether it did.
    fn shrink_index(&mut self, shared: &Shared) -> bool {
        let mean_bytes = self.mean_bytes();
        let Some(at) = self.pages.next_spare(&shared.index, mean_bytes) else { return false };
        let (segment, lost) = self.pages.merge(&shared.index, &shared.segments, at, self.tick);
        lost.into_iter().for_each(|slot| self.lose(shared, slot));
        match shared.readers.in_index() {
            0 => self.owner.give_back(&shared.segments, segment),
            lines => self.aside.push(Aside { segment, readers: AsideFor::Index { lines } }),
        }
        true
    }

    /// An entry that the index has no room for is dead.
    fn lose(&mut self, shared: &Shared, slot: Slot) {
        if let Kind::Entry(queue) = slot.kind() {
            let ends = &self.ends[queue as usize];
            let position = ends.old + (slot.place().wrapping_sub(ends.old) & PLACE_MASK);
            let header = ends.entry_at(&shared.segments, shared.ring(queue), position).header;
            self.ends(queue).uncount(header);
            self.counters.entries -= 1;
            self.counters.evictions += 1;
        }
    }

    /// Removes an entry; whether it was there.
    pub(super) fn remove(&mut self, shared: &Shared, hash: u64, key: &[u8]) -> bool {
        let Some((slot, placed)) = self.find(shared, hash, key) else {
            return false;
        };
        let (queue, header) = (placed.queue, placed.header);
        let live = placed.expires_at().is_none_or(|at| at > self.now);
        // Release: pairs with the readers' second look at the slot.
        slot.store(Slot::EMPTY.0, Ordering::Release);
        self.pages.forget(&shared.index, hash);
        self.uncount(queue, header);
        live
    }

    fn uncount(&mut self, queue: Queue, header: Header) {
        self.ends(queue).uncount(header);
        self.counters.entries -= 1;
    }

    /// The slot of a key's entry, and the entry; expired ones too.
    pub(super) fn find<'a>(&self, shared: &'a Shared, hash: u64, key: &[u8]) -> Option<(&'a AtomicU64, Placed<'a>)> {
        shared.index.candidates(&shared.segments, hash).find_map(|slot| {
            let word = Slot(slot.load(Ordering::Relaxed));
            let queue = word.entry_for(hash)?;
            let ends = &self.ends[queue as usize];
            let position = ends.old + (word.place().wrapping_sub(ends.old) & PLACE_MASK);
            let placed = ends.entry_at(&shared.segments, shared.ring(queue), position);
            placed.is_of(key).then_some((slot, placed))
        })
    }

    /// The slot that means the entry at this position, if one does.
    fn slot_of(shared: &Shared, hash: u64, queue: Queue, position: u64) -> Option<&AtomicU64> {
        let meant = Slot::entry(hash, queue, 0, position);
        let mut candidates = shared.index.candidates(&shared.segments, hash);
        candidates.find(|slot| Slot(slot.load(Ordering::Relaxed)).is_same_entry(meant))
    }

    /// Looks at the oldest entry of a queue, which stays or leaves; `false` if there is none.
    pub(super) fn turn(&mut self, shared: &Shared) -> bool {
        let limit = self.limit(shared);
        let dead = self.ends.each_ref().map(Ends::dead_bytes);
        let cleans = self.measure == Measure::Everything && dead[0] + dead[1] > limit / DEAD_PART;
        let chosen = match cleans {
            true if dead[0] > dead[1] => Queue::Small,
            true => Queue::Main,
            false => self.policy.turn(&self.occupancy(shared)),
        };
        let queue = match (self.ends[0].is_empty(), self.ends[1].is_empty()) {
            (true, true) => return false,
            (true, false) => Queue::Main,
            (false, true) => Queue::Small,
            (false, false) => chosen,
        };
        self.was_full |= !cleans;
        self.turn_oldest(shared, queue, cleans);
        self.look_ahead(shared, queue);
        true
    }

    /// Begins to bring near what a look at the next entry of a queue needs.
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
        let placed = self.ends[queue as usize].entry_at(&shared.segments, shared.ring(queue), position);
        let end = position + placed.header.words();
        if placed.header.is_filler() {
            self.pass(shared, queue, None, end);
            return;
        }
        let hash = match self.ahead[queue as usize] {
            (at, hash) if at == position => hash,
            _ => shared.hash(placed.key()),
        };
        let tag = Some(tag(hash));
        let slot = Self::slot_of(shared, hash, queue, position);
        let Some(slot) = slot else {
            self.pass(shared, queue, tag, end);
            return;
        };
        let touches = Slot(slot.load(Ordering::Relaxed)).touches();
        if queue == Queue::Main && touches == 1 && !cleans {
            let (entry, main) = self.parts(shared);
            self.small_part.found_once(main, entry);
        }
        let (target, kept_touches) = match self.verdict(shared, &placed, touches, cleans) {
            Some(kept) => kept,
            None => {
                self.evict(shared, slot, hash, queue, placed.header);
                self.pass(shared, queue, tag, end);
                return;
            }
        };
        if self.move_entry(shared, slot, hash, &placed, position, target, kept_touches) {
            self.counters.moved_bytes += placed.header.bytes();
        } else {
            self.evict(shared, slot, hash, queue, placed.header);
        }
        self.pass(shared, queue, tag, end);
    }

    /// Where the entry goes and with how many touches, or `None` if it leaves.
    fn verdict(&self, shared: &Shared, placed: &Placed<'_>, touches: u8, cleans: bool) -> Option<(Queue, u8)> {
        if placed.expires_at().is_some_and(|at| at <= self.now) {
            return None;
        }
        if cleans {
            return Some((placed.queue, touches));
        }
        match self.policy.judge(placed.queue, touches) {
            Verdict::Evict => None,
            Verdict::Keep { touches: kept } => {
                let worth = placed.queue == Queue::Main || self.is_worth_its_place(shared, placed.header, touches);
                worth.then_some((Queue::Main, kept))
            }
        }
    }

    /// Whether an entry that would enter the main queue is worth the oldest there, which leave for it: small ones always are, large ones
    /// if they were touched as often as all of those together, a large one's touch counting for several.
    fn is_worth_its_place(&self, shared: &Shared, header: Header, touches: u8) -> bool {
        let weight = self.weight(header);
        if weight <= self.limit(shared) / LARGE_PART {
            return true;
        }
        let worth = u64::from(touches) * WEIGHT_OF_LARGE;
        let ends = &self.ends[Queue::Main as usize];
        let (mut position, mut displaced, mut touched) = (ends.old, 0, 0);
        for _ in 0..VICTIMS_LOOKED_AT {
            if position == ends.young || displaced >= weight {
                break;
            }
            let victim = ends.entry_at(&shared.segments, shared.ring(Queue::Main), position);
            if !victim.header.is_filler() {
                let hash = shared.hash(victim.key());
                if let Some(slot) = Self::slot_of(shared, hash, Queue::Main, position) {
                    touched += u64::from(Slot(slot.load(Ordering::Relaxed)).touches());
                    displaced += self.weight(victim.header);
                }
            }
            if touched > worth {
                return false;
            }
            position += victim.header.words();
        }
        // Where not all were looked at, the others are taken to be like those.
        let all_seen = position == ends.young || displaced >= weight;
        all_seen || touched * weight <= worth * displaced
    }

    fn evict(&mut self, shared: &Shared, slot: &AtomicU64, hash: u64, queue: Queue, header: Header) {
        match queue {
            Queue::Small => self.pages.bury(&shared.index, &shared.segments, hash, slot, self.tick),
            Queue::Main => {
                // Release: pairs with the readers' second look at the slot.
                slot.store(Slot::EMPTY.0, Ordering::Release);
                self.pages.forget(&shared.index, hash);
            }
        }
        self.uncount(queue, header);
        self.counters.evictions += 1;
        if queue == Queue::Small {
            self.count_evicted(shared, self.weight(header));
        }
    }

    /// Copies an entry to the young end of `target`; `false` if there is no room, and nothing is changed.
    #[allow(clippy::too_many_arguments, reason = "an entry, where it stands, and where it goes")]
    fn move_entry(
        &mut self,
        shared: &Shared,
        slot: &AtomicU64,
        hash: u64,
        placed: &Placed<'_>,
        position: u64,
        target: Queue,
        touches: u8,
    ) -> bool {
        let wanted = self.ends[target as usize].segments_for(&shared.segments, placed.header);
        let at_once = self.owner.provide_to_move(&shared.segments, wanted);
        if !at_once && !self.can_move_in_steps(shared, slot, hash, placed, position) {
            return false;
        }
        let ring = shared.ring(target);
        self.ends(placed.queue).uncount(placed.header);
        let whole = placed.whole().and_then(|bytes| self.ends(target).copy_within(&shared.segments, ring, bytes));
        let moved_to = whole.unwrap_or_else(|| self.copy_in_pieces(shared, placed, position, target, at_once));
        self.ends(target).count(placed.header);
        // Release: the copy was written before; pairs with the reader's Acquire.
        slot.store(Slot::entry(hash, target, touches, moved_to).0, Ordering::Release);
        true
    }

    /// Copies an entry, segment by segment, to the young end of `target`; gives each segment up before the next is needed, unless all are there `at_once`.
    /// Returns where the copy begins.
    fn copy_in_pieces(
        &mut self,
        shared: &Shared,
        placed: &Placed<'_>,
        position: u64,
        target: Queue,
        at_once: bool,
    ) -> u64 {
        let (segments, ring) = (&shared.segments, shared.ring(target));
        let (header, expires_at) = (placed.header, placed.expires_at());
        let ends = &mut self.ends[target as usize];
        let (moved_to, mut at) = ends.write_head(segments, ring, &mut self.owner, header, expires_at, placed.key());
        let mut pieces = placed.pieces();
        let mut piece = pieces.next();
        let mut read_to = position * 8 + header.value_at() as u64;
        while let Some(bytes) = piece {
            let ends = &mut self.ends[target as usize];
            at = ends.write_value(segments, ring, &mut self.owner, at, bytes);
            read_to += bytes.len() as u64;
            // The next piece is looked up before its predecessor is given up.
            piece = pieces.next();
            if !at_once && piece.is_some() {
                self.pass_unread(shared, placed.queue, read_to / 8);
            }
        }
        self.ends(target).end_entry(at);
        moved_to
    }

    /// Whether a long entry can be moved segment by segment, each given up before the next is needed: nobody may read it or what stood before it in
    /// its first segment, and from here on nobody does, since the index means it no more.
    fn can_move_in_steps(
        &mut self,
        shared: &Shared,
        slot: &AtomicU64,
        hash: u64,
        placed: &Placed<'_>,
        position: u64,
    ) -> bool {
        let count = placed.segment_count();
        if count < 2 || !self.owner.provide_to_move(&shared.segments, RESERVE) {
            return false;
        }
        let modulus = sequence_modulus(&shared.segments);
        let first = (position & PLACE_MASK) >> shared.segments.words_shift();
        let before = slot.swap(Slot::EMPTY.0, Ordering::AcqRel);
        let passed = &mut self.passed[placed.queue as usize];
        passed.add(tag(hash));
        let is_read = (0..count).any(|step| {
            let emptied = Emptied { queue: placed.queue, sequence: (first + step) & (modulus - 1), modulus };
            shared.readers.reading(emptied, passed) > 0
        });
        if is_read {
            slot.store(before, Ordering::Release);
        }
        !is_read
    }

    /// Moves a queue's old end over what stands there: an entry with this tag, or none; the segments it leaves are free, or wait aside for who reads
    /// them.
    fn pass(&mut self, shared: &Shared, queue: Queue, tag: Option<u64>, to: u64) {
        let modulus = sequence_modulus(&shared.segments);
        let (owner, aside, passed) = (&mut self.owner, &mut self.aside, &mut self.passed[queue as usize]);
        tag.into_iter().for_each(|tag| passed.add(tag));
        let mut leaves = false;
        self.ends[queue as usize].pass(&shared.segments, shared.ring(queue), to, |sequence, segment| {
            leaves = true;
            let emptied = Emptied { queue, sequence, modulus };
            match shared.readers.reading(emptied, passed) {
                0 => owner.give_back(&shared.segments, segment),
                lines => aside.push(Aside { segment, readers: AsideFor::Queue { lines, emptied } }),
            }
        });
        if leaves {
            passed.clear();
            // It may reach into the segment that comes next.
            tag.into_iter().for_each(|tag| passed.add(tag));
        }
    }

    /// Moves a queue's old end over entry after entry, of which none is in the index, so that a reader who still looks for one of them holds back
    /// no more than that one.
    fn pass_each(&mut self, shared: &Shared, queue: Queue) {
        while !self.ends[queue as usize].is_empty() {
            let position = self.ends[queue as usize].old;
            let placed = self.ends[queue as usize].entry_at(&shared.segments, shared.ring(queue), position);
            let tag = (!placed.header.is_filler()).then(|| tag(shared.hash(placed.key())));
            self.pass(shared, queue, tag, position + placed.header.words());
        }
    }

    /// As [`Keeper::pass`], where nobody reads what is left.
    fn pass_unread(&mut self, shared: &Shared, queue: Queue, to: u64) {
        let owner = &mut self.owner;
        let give_back = |_, segment| owner.give_back(&shared.segments, segment);
        self.ends[queue as usize].pass(&shared.segments, shared.ring(queue), to, give_back);
    }

    fn take_back_what_is_read_no_more(&mut self, shared: &Shared) {
        if self.aside.is_empty() {
            return;
        }
        let owner = &mut self.owner;
        self.aside.retain_mut(|aside| {
            let is_read = match &mut aside.readers {
                AsideFor::Queue { lines, emptied } => {
                    *lines = shared.readers.still_reading(*lines, *emptied);
                    *lines > 0
                }
                AsideFor::Index { lines } => {
                    *lines = shared.readers.still_in_index(*lines);
                    *lines > 0
                }
            };
            if !is_read {
                owner.give_back(&shared.segments, aside.segment);
            }
            is_read
        });
    }

    /// Brings the limit nearer to `wanted_bytes`, or there at once where it becomes larger: smaller by no more than [`BITE_BYTES`] each time, so
    /// that nobody waits long for the lock. Whether it is where it should be, or readers hold more than that.
    pub(super) fn approach(&mut self, shared: &Shared, wanted_bytes: u64) -> bool {
        let wanted = self.limit_for(shared, wanted_bytes);
        let bite = (BITE_BYTES / shared.segments.bytes()).max(1);
        // What nobody uses needs no eviction.
        let limit = wanted.max(self.owner.limit().min(self.owner.used() + RESERVE).saturating_sub(bite));
        self.owner.set_limit(limit);
        let is_within = self.shrink(shared);
        self.owner.end_shrinking();
        // With fewer entries the index can do with fewer pages; what they free is part of the next step.
        let pages = self.pages.len();
        (0..pages).any(|_| self.shrink_index(shared));
        self.owner.release_chunks(&shared.segments, usize::MAX, RESERVE);
        (limit == wanted && self.pages.len() == pages) || !is_within
    }

    /// Evicts until no more than the limit is in use; `false` if readers hold more than that.
    fn shrink(&mut self, shared: &Shared) -> bool {
        while self.owner.used() > self.owner.limit() {
            self.take_back_what_is_read_no_more(shared);
            if self.owner.used() > self.owner.limit() && !self.turn(shared) {
                return false;
            }
        }
        true
    }

    /// Gives up to `chunks` chunks back to the budget, evicting for them; how many. As long as there are entries, the room to move them stays.
    pub(super) fn give_back(&mut self, shared: &Shared, chunks: usize) -> usize {
        let mut given = self.owner.release_chunks(&shared.segments, chunks, RESERVE);
        while given < chunks {
            self.take_back_what_is_read_no_more(shared);
            let goes_on = self.turn(shared);
            let kept = if goes_on { RESERVE } else { 0 };
            given += self.owner.release_chunks(&shared.segments, chunks - given, kept);
            if !goes_on {
                break;
            }
        }
        given
    }

    /// Drops every entry and every ghost.
    pub(super) fn clear(&mut self, shared: &Shared) {
        self.pages.clear(&shared.segments);
        for queue in [Queue::Small, Queue::Main] {
            let ends = self.ends(queue);
            (ends.live_bytes, ends.value_bytes) = (0, 0);
            let young = ends.young;
            match shared.readers.in_index() {
                // Who looks for something from here on finds nothing.
                0 => self.pass(shared, queue, None, young),
                _ => self.pass_each(shared, queue),
            }
        }
        self.counters.entries = 0;
    }

    /// Counts everything anew and compares.
    pub(super) fn check(&mut self, shared: &Shared) {
        self.take_back_what_is_read_no_more(shared);
        let mut meant = 0;
        self.pages.for_each(&shared.segments, |slot| meant += usize::from(matches!(slot.kind(), Kind::Entry(_))));
        assert_eq!(meant, self.pages.entries(), "entries in the index, by its pages");
        let mut queued = 0;
        let mut spanned = self.pages.len() + self.aside.len();
        for ends in &self.ends {
            let (mut live, mut values, mut position) = (0, 0, ends.old);
            while position < ends.young {
                let placed = ends.entry_at(&shared.segments, shared.ring(ends.queue), position);
                let hash = shared.hash(placed.key());
                let is_meant =
                    !placed.header.is_filler() && Self::slot_of(shared, hash, ends.queue, position).is_some();
                if is_meant {
                    queued += 1;
                    live += placed.header.bytes();
                    values += placed.header.value_bytes as u64;
                }
                position += placed.header.words();
            }
            assert_eq!(position, ends.young, "entries end where the queue does");
            assert_eq!((live, values), (ends.live_bytes, ends.value_bytes), "bytes of entries");
            let shift = shared.segments.words_shift();
            let last = ends.young + u64::from(offset_of(&shared.segments, ends.young) > 0) * ((1 << shift) - 1);
            spanned += ((last >> shift) - (ends.old >> shift)) as usize;
        }
        assert_eq!((queued, queued as u64), (meant, self.counters.entries), "entries in queues and in the index");
        assert_eq!(spanned, self.owner.used(), "segments of the queues, the index, and aside");
        assert!(self.owner.used() <= self.owner.limit(), "segments in use and the limit");
        self.owner.check(&shared.segments);
    }
}
