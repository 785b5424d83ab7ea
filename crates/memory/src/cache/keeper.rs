//! The cache's writer: finds, inserts and removes entries under the cache's lock. The files in this
//! folder make room:
//!
//! ```text
//! room.rs     the oldest leave or go round, until there is enough     moving.rs   an entry goes to a young end
//! pages.rs    pages of the index are shared and given up              passing.rs  an old end moves on, and segments become free
//! size.rs     the number changes, memory goes back to the budget      over.rs     an entry is written over the one that it replaces
//! warm.rs     what is worth having after a restart                    check.rs    everything is counted anew
//! ```
//!
//! Laws:
//! 1. Segments in use never exceed the limit: room is made first, and only then is anything
//!    written.
//! 2. Two segments beyond a request stay free, so that an entry can always be moved from one queue
//!    to the other.
//! 3. An entry leaves the index before it leaves its place; a segment that is still being read is
//!    set aside and counts as used.
//! 4. Entries + dead bytes = the bytes between the ends of the queues, at every moment.

mod check;
mod moving;
mod over;
mod pages;
mod passing;
mod room;
mod size;
mod warm;

use std::sync::atomic::{AtomicU64, Ordering};

use super::Shared;
use super::entry::{Arrival, Header, Placed};
use super::index::Pages;
use super::policy;
use super::policy::{Occupancy, Queue};
use super::probation_part::ProbationPart;
use super::queue::Ends;
use super::readers::FingerprintFilter;
use super::segments::Owner;
use super::slot::Slot;
use passing::Aside;
pub use warm::{BroughtBack, Census, Changes, Copied, Copies, Returning, Standing, Stopped};

/// Segments that stay free for moves.
const RESERVE: usize = 2;

/// Segments that can be set aside without a lease for the list. More of them take some 40 bytes for
/// each segment of at least 4 KiB.
const ASIDE: usize = 16;

/// No position.
const NOWHERE: u64 = u64::MAX;

/// Counters, under the lock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) insertions: u64,
    pub(super) refusals: u64,
    pub(super) evictions: u64,
    pub(super) returns: u64,
    pub(super) moved_bytes: u64,
    pub(super) entries: u64,
    /// Successful look-ups under the lock.
    pub(super) hits: u64,
    /// Unsuccessful look-ups under the lock.
    pub(super) misses: u64,
}

/// An entry that the index refers to, and its place.
#[derive(Clone, Copy)]
pub(super) struct Meant<'a> {
    pub(super) slot: &'a AtomicU64,
    hash: u64,
    position: u64,
    pub(super) placed: Placed<'a>,
}

/// The writer.
pub(super) struct Keeper {
    pub(super) owner: Owner,
    pub(super) pages: Pages,
    ends: [Ends; 2],
    /// By queue: the fingerprints of all entries that were in the segment of its old end.
    passed: [FingerprintFilter; 2],
    /// By queue: the position of the entry to be looked at next, and the hash of its key.
    ahead: [(u64, u64); 2],
    /// The largest entry, in parts of 65,536 of the cache.
    largest_part: u64,
    aside: Vec<Aside>,
    was_full: bool,
    probation_part: ProbationPart,
    /// The clock of the ghosts. It ticks each time that a fixed fraction of the ghosts' window has
    /// left the probation queue for good.
    tick: u64,
    /// Bytes that left the probation queue since the last tick.
    bytes_since_tick: u64,
    pub(super) counters: Counters,
    /// Milliseconds; entries that expire at or before this count as gone.
    pub(super) now: u64,
}

impl Keeper {
    pub(super) fn new(owner: Owner, pages: Pages, largest_part: u64, segment_bytes: usize) -> Self {
        let ends = [Ends::new(Queue::Probation), Ends::new(Queue::Protected)];
        Self {
            owner,
            pages,
            ends,
            passed: [(); 2].map(|()| FingerprintFilter::none(segment_bytes)),
            ahead: [(NOWHERE, 0); 2],
            largest_part,
            aside: Vec::with_capacity(ASIDE),
            was_full: false,
            probation_part: ProbationPart::new(),
            tick: 0,
            bytes_since_tick: 0,
            counters: Counters::default(),
            now: 0,
        }
    }

    /// Heap memory allocated in [`Keeper::new`].
    pub(super) fn heap_bytes(&self) -> u64 {
        let fingerprints: u64 = self.passed.iter().map(FingerprintFilter::heap_bytes).sum();
        fingerprints + (self.aside.capacity() * size_of::<Aside>()) as u64
    }

    fn ends(&mut self, queue: Queue) -> &mut Ends {
        &mut self.ends[queue as usize]
    }

    /// The limit on the segments of the queues, in bytes.
    pub(super) fn limit(&self, shared: &Shared) -> u64 {
        (self.owner.limit().saturating_sub(self.pages.len()) * shared.segments.bytes()) as u64
    }

    /// Bytes of entries on probation and in the protected queue.
    fn queued(&self) -> [u64; 2] {
        self.ends.each_ref().map(|ends| ends.live_bytes)
    }

    fn occupancy(&self, shared: &Shared) -> Occupancy {
        let [probation, protected] = self.queued();
        Occupancy {
            probation,
            protected,
            probation_limit: self.probation_bytes(shared),
            was_full: self.was_full,
        }
    }

    /// Target size of the probation queue.
    pub(super) fn probation_bytes(&self, shared: &Shared) -> u64 {
        self.probation_part.of(self.limit(shared))
    }

    /// Mean size of an entry, and size of the protected queue, as fractions of the cache.
    fn parts(&self, shared: &Shared) -> (f64, f64) {
        let [probation, protected] = self.queued();
        let limit = self.limit(shared).max(1) as f64;
        (
            (probation + protected) as f64 / self.counters.entries.max(1) as f64 / limit,
            protected as f64 / limit,
        )
    }

    /// The ghosts' window, in bytes that left the probation queue: one and a half times the length
    /// of the protected queue, where returning entries would have been. The index has room for
    /// them, and only these ghosts detect loops a little longer than the cache.
    pub(super) fn window_bytes(&self, shared: &Shared) -> u64 {
        self.limit(shared) / 20 * 27
    }

    /// Bytes of live entries, and dead bytes between the ends.
    pub(super) fn live_and_dead_bytes(&self) -> (u64, u64) {
        let [probation, protected] = &self.ends;
        (
            probation.live_bytes + protected.live_bytes,
            probation.dead_bytes() + protected.dead_bytes(),
        )
    }

    /// Inserts an entry, replacing one with the same key. Returns whether it did. A refused entry
    /// still removes its predecessor, which is out of date.
    pub(super) fn insert(&mut self, shared: &Shared, arrival: &Arrival<'_>) -> bool {
        let header = arrival.header();
        let fits = self.fits(shared, header);
        if let Some(before) = self.find(shared, arrival.hash, arrival.key) {
            if fits && self.write_over(shared, &before, arrival, header) {
                return self.count_arrival(true);
            }
            self.take_out(shared, &before);
        }
        let entered = fits && self.enter(shared, arrival, header);
        self.count_arrival(entered)
    }

    /// Replaces the entry with the same key, in the same queue and with the same touches, if there
    /// is one. Returns whether it did. A refused entry still removes its predecessor. The new entry
    /// gets a new place, so that a saver that goes by places finds it there.
    pub(super) fn replace(&mut self, shared: &Shared, arrival: &Arrival<'_>) -> bool {
        let Some(before) = self.find(shared, arrival.hash, arrival.key) else {
            return false;
        };
        let (queue, touches) =
            (before.placed.queue, Slot(before.slot.load(Ordering::Relaxed)).touches());
        self.take_out(shared, &before);
        if self.has_expired(&before) {
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
        let largest =
            ((u128::from(self.limit(shared)) * u128::from(self.largest_part)) >> 16) as u64;
        header.value_at() <= shared.segments.bytes() / 4
            && header.key_bytes <= usize::from(u16::MAX)
            && u32::try_from(header.value_bytes).is_ok()
            && header.bytes() <= largest
    }

    fn enter(&mut self, shared: &Shared, arrival: &Arrival<'_>, header: Header) -> bool {
        self.evict_ahead(shared, header);
        let age = self.pages.take_ghost(&shared.index, &shared.segments, arrival.hash, self.tick);
        let returned = age.is_some();
        if let Some(ticks) = age {
            self.counters.returns += 1;
            self.probation_part.came_back(ticks, self.parts(shared).0);
        }
        let worth = !returned || self.is_worth_its_place(shared, header, 1);
        let queue = policy::first_queue(returned && worth, &self.occupancy(shared));
        self.place(shared, arrival, header, queue, 0)
    }

    /// Writes an entry that the index does not have at the young end of a queue.
    fn place(
        &mut self,
        shared: &Shared,
        arrival: &Arrival<'_>,
        header: Header,
        queue: Queue,
        touches: u8,
    ) -> bool {
        if !self.make_room(shared, queue, header)
            || !self.make_room_in_index(shared, queue, header, arrival.hash)
        {
            return false;
        }
        let position = self.write(shared, queue, header, arrival);
        let slot = Slot::entry(arrival.hash, queue, touches, position);
        let enter = |keeper: &mut Self| {
            keeper
                .pages
                .insert(&shared.index, &shared.segments, arrival.hash, slot, keeper.tick)
                .is_ok()
        };
        let entered = enter(self) || (self.share_full_page(shared, arrival.hash) && enter(self));
        if entered {
            self.ends(queue).count(header);
            self.counters.entries += 1;
        }
        entered
    }

    fn write(
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

    /// Removes an entry. Returns whether it was there.
    pub(super) fn remove(&mut self, shared: &Shared, hash: u64, key: &[u8]) -> bool {
        let Some(entry) = self.find(shared, hash, key) else {
            return false;
        };
        self.take_out(shared, &entry);
        !self.has_expired(&entry)
    }

    fn take_out(&mut self, shared: &Shared, entry: &Meant<'_>) {
        self.empty_slot(shared, entry.slot, entry.hash);
        self.uncount(entry.placed.queue, entry.placed.header);
    }

    pub(super) fn has_expired(&self, entry: &Meant<'_>) -> bool {
        entry.placed.expires_at().is_some_and(|at| at <= self.now)
    }

    /// Empties the slot of an entry with this hash.
    fn empty_slot(&mut self, shared: &Shared, slot: &AtomicU64, hash: u64) {
        // Release: pairs with the readers' second look at the slot.
        slot.store(Slot::EMPTY.0, Ordering::Release);
        self.pages.forget(&shared.index, hash);
    }

    fn uncount(&mut self, queue: Queue, header: Header) {
        self.ends(queue).uncount(header);
        self.counters.entries -= 1;
    }

    /// Finds the entry of a key, including an expired one.
    pub(super) fn find<'a>(&self, shared: &'a Shared, hash: u64, key: &[u8]) -> Option<Meant<'a>> {
        shared.index.candidates(&shared.segments, hash).find_map(|slot| {
            let word = Slot(slot.load(Ordering::Relaxed));
            let queue = word.entry_for(hash)?;
            let ends = &self.ends[queue as usize];
            let position = ends.position_of(word.place());
            let placed = ends.entry_at(&shared.segments, shared.ring(queue), position);
            placed.is_of(key).then_some(Meant { slot, hash, position, placed })
        })
    }

    /// The slot that refers to the entry at this position, if any.
    fn slot_of(shared: &Shared, hash: u64, queue: Queue, position: u64) -> Option<&AtomicU64> {
        let meant = Slot::entry(hash, queue, 0, position);
        let mut candidates = shared.index.candidates(&shared.segments, hash);
        candidates.find(|slot| Slot(slot.load(Ordering::Relaxed)).is_same_entry(meant))
    }

    /// Drops every entry and every ghost.
    pub(super) fn clear(&mut self, shared: &Shared) {
        self.pages.clear(&shared.segments);
        for queue in [Queue::Probation, Queue::Protected] {
            let ends = self.ends(queue);
            ends.live_bytes = 0;
            let young = ends.young;
            match shared.readers.in_index() {
                // Look-ups from here on find nothing.
                0 => {
                    self.ends(queue).filled_bytes = 0;
                    self.pass(shared, queue, None, young);
                }
                _ => self.pass_each(shared, queue),
            }
        }
        self.counters.entries = 0;
    }
}
