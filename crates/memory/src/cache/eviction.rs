//! Eviction: makes room by moving or evicting the oldest entries of the queues, one by one, until
//! there is enough. Runs under the cache's lock.
//!
//! [`super::policy`] chooses the queue and decides which entries stay. This file decides when to
//! evict, when to reclaim dead bytes, and whether a large entry is worth its room.

use std::sync::atomic::Ordering;

use super::entries::Entries;
use super::entry::Header;
use super::policy::{self, Occupancy, Queue};
use super::probation_part::ProbationPart;
use super::queue::Ends;
use super::queues::{Located, RESERVE};
use super::shared::Shared;
use super::slot::Slot;

/// Cleaning starts once the dead bytes that it recovers exceed one part in this many of the cache.
const DEAD_PART: u64 = 32;

/// An entry larger than one part in this many of the cache must be worth the entries that it
/// displaces before it enters the protected queue.
const LARGE_PART: u64 = 64;

/// A touch of a large entry weighs as much as this many touches of the entries that it displaces. A
/// weight of one would maximise the hit rate and minimise the byte hit rate.
const WEIGHT_OF_LARGE: u64 = 4;

/// While no segment is spare, each insertion evicts this many quarters of its own size. So the next
/// segment is free a little before it is needed, and no insertion evicts a whole segment at once.
const QUARTERS_EVICTED_AHEAD: u64 = 5;

/// Upper bound on the entries processed per insertion, unless the insertion needs more for its own
/// room.
const ENTRIES_PROCESSED_AHEAD: u32 = 16;

/// Upper bound on the victims examined to estimate the value of all victims.
const VICTIMS_EXAMINED: u64 = 1024;

/// No position.
const NOWHERE: u64 = u64::MAX;

pub(super) struct Eviction {
    /// Whether anything was ever evicted for room.
    was_full: bool,
    probation_part: ProbationPart,
    /// Indexed by queue: the position of the entry to be processed next, and the hash of its key.
    next: [(u64, u64); 2],
    moved_bytes: u64,
    returns: u64,
}

impl Eviction {
    pub(super) fn new() -> Self {
        Self {
            was_full: false,
            probation_part: ProbationPart::new(),
            next: [(NOWHERE, 0); 2],
            moved_bytes: 0,
            returns: 0,
        }
    }

    /// Bytes of entries that were moved to keep them.
    pub(super) fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// Insertions that found a ghost of their key.
    pub(super) fn returns(&self) -> u64 {
        self.returns
    }

    /// Target size of the probation queue.
    pub(super) fn probation_bytes(&self, shared: &Shared, entries: &Entries) -> u64 {
        self.probation_part.of(entries.limit_bytes(shared))
    }

    fn occupancy(&self, shared: &Shared, entries: &Entries) -> Occupancy {
        let [probation, protected] = entries.queues.live_bytes();
        Occupancy {
            probation,
            protected,
            probation_limit: self.probation_bytes(shared, entries),
            was_full: self.was_full,
        }
    }

    /// The queue in which a new entry begins. Takes the ghost of its key.
    pub(super) fn first_queue(
        &mut self,
        shared: &Shared,
        entries: &mut Entries,
        hash: u64,
        header: Header,
    ) -> Queue {
        let age = entries.take_ghost(shared, hash);
        if let Some(ticks) = age {
            self.returns += 1;
            self.probation_part.note_return(ticks, parts(shared, entries).0);
        }
        let returned = age.is_some() && is_worth_its_place(shared, entries, header, 1);
        policy::first_queue(returned, &self.occupancy(shared, entries))
    }

    /// Whether an entry at this position will stay about as long as one inserted now. Always true
    /// in a cache that never had to evict, and in the protected queue, where the entry makes
    /// another round. In the probation queue, the entry must be in the younger half.
    pub(super) fn is_recent(&self, entries: &Entries, queue: Queue, position: u64) -> bool {
        let ends = entries.queues.ends(queue);
        !self.was_full
            || queue == Queue::Protected
            || (ends.young - position) * 2 <= ends.young - ends.old
    }

    /// Evicts in proportion to the size of an entry that is about to be written, so that the next
    /// segment is free before it is needed. Does nothing while a segment is spare.
    pub(super) fn evict_ahead(&mut self, shared: &Shared, entries: &mut Entries, header: Header) {
        let words =
            (header.words() * QUARTERS_EVICTED_AHEAD / 4).min(1 << shared.segments.words_shift());
        let wanted = entries.queues.words().saturating_sub(words);
        for _ in 0..ENTRIES_PROCESSED_AHEAD {
            let owner = &entries.queues.owner;
            if owner.used() + RESERVE < owner.limit()
                || entries.queues.words() <= wanted
                || !self.process_oldest(shared, entries)
            {
                return;
            }
        }
    }

    /// Evicts until the entry can be written to the queue, and to the index. Returns whether it
    /// can.
    pub(super) fn make_room(
        &mut self,
        shared: &Shared,
        entries: &mut Entries,
        queue: Queue,
        header: Header,
        hash: u64,
    ) -> bool {
        loop {
            let wanted = entries.queues.ends(queue).segments_for(&shared.segments, header);
            if entries.queues.reserve(shared, wanted) {
                break;
            }
            if !entries.merge_spare_page(shared) && !self.process_oldest(shared, entries) {
                return false;
            }
        }
        if !entries.is_page_crowded(shared, hash) {
            return true;
        }
        loop {
            let wanted = entries.queues.ends(queue).segments_for(&shared.segments, header) + 1;
            if entries.queues.reserve(shared, wanted) {
                break;
            }
            if !self.process_oldest(shared, entries) {
                return false;
            }
        }
        entries.split_page(shared, hash);
        true
    }

    /// Evicts until the segments in use are within the limit. Returns `false` if readers hold more
    /// than the limit.
    pub(super) fn shrink_to_limit(&mut self, shared: &Shared, entries: &mut Entries) -> bool {
        let is_over =
            |entries: &Entries| entries.queues.owner.used() > entries.queues.owner.limit();
        while is_over(entries) {
            entries.queues.reclaim(shared);
            if is_over(entries) && !self.process_oldest(shared, entries) {
                return false;
            }
        }
        true
    }

    /// Processes the oldest entry of a queue, which stays or leaves. Returns `false` if there is
    /// none.
    pub(super) fn process_oldest(&mut self, shared: &Shared, entries: &mut Entries) -> bool {
        let queues = [Queue::Probation, Queue::Protected].map(|queue| entries.queues.ends(queue));
        // Processing each entry once without evicting removes all of these bytes, so cleaning ends
        // even if the heads of entries are long.
        let dead = queues.map(Ends::cleanable_bytes);
        let cleans = dead[0] + dead[1] > entries.limit_bytes(shared) / DEAD_PART;
        let chosen = match cleans {
            true if dead[0] > dead[1] => Queue::Probation,
            true => Queue::Protected,
            false => policy::next_queue(&self.occupancy(shared, entries)),
        };
        let queue = match queues.map(Ends::is_empty) {
            [true, true] => return false,
            [true, false] => Queue::Protected,
            [false, true] => Queue::Probation,
            [false, false] => chosen,
        };
        self.was_full |= !cleans;
        self.process(shared, entries, queue, cleans);
        self.prefetch_next(shared, entries, queue);
        true
    }

    fn process(&mut self, shared: &Shared, entries: &mut Entries, queue: Queue, cleans: bool) {
        let position = entries.queues.ends(queue).old;
        let placed = entries.queues.entry_at(shared, queue, position);
        if placed.header.is_filler() {
            entries.queues.pop_filler(shared, queue, placed.header);
            return;
        }
        let end = position + placed.header.words();
        let hash = match self.next[queue as usize] {
            (at, hash) if at == position => hash,
            _ => shared.hash(placed.key()),
        };
        if let Some(slot) = shared.slot_of(hash, queue, position) {
            let entry = Located { slot, hash, position, placed };
            self.move_or_evict(shared, entries, &entry, cleans);
        }
        entries.queues.pop_entry(shared, queue, hash, end);
    }

    /// Prefetches the data for the next entry of a queue.
    fn prefetch_next(&mut self, shared: &Shared, entries: &Entries, queue: Queue) {
        let ends = entries.queues.ends(queue);
        if !ends.is_empty() {
            let next = entries.queues.entry_at(shared, queue, ends.old);
            if !next.header.is_filler() {
                let hash = shared.hash(next.key());
                shared.index.prefetch(&shared.segments, hash);
                self.next[queue as usize] = (ends.old, hash);
                ends.prefetch(&shared.segments, shared.ring(queue), ends.old + next.header.words());
            }
        }
    }

    /// Moves the oldest entry of a queue to its next place. Evicts it if the policy decides so, or
    /// if there is no room for it.
    fn move_or_evict(
        &mut self,
        shared: &Shared,
        entries: &mut Entries,
        entry: &Located<'_>,
        cleans: bool,
    ) {
        let touches = entry.word().touches();
        if entry.placed.queue == Queue::Protected && touches == 1 && !cleans {
            let (mean, protected) = parts(shared, entries);
            self.probation_part.found_once(protected, mean);
        }
        let kept = verdict(shared, entries, entry, touches, cleans);
        if kept.is_some_and(|(target, touches)| {
            entries.queues.move_entry(shared, entry, target, touches)
        }) {
            self.moved_bytes += entry.placed.header.bytes();
        } else {
            entries.evict(shared, entry);
        }
    }
}

/// Mean size of an entry, and size of the protected queue, as fractions of the cache.
fn parts(shared: &Shared, entries: &Entries) -> (f64, f64) {
    let [probation, protected] = entries.queues.live_bytes();
    let limit = entries.limit_bytes(shared).max(1) as f64;
    (
        (probation + protected) as f64 / entries.count().max(1) as f64 / limit,
        protected as f64 / limit,
    )
}

/// The entry's next queue and its touches there, or `None` if it is evicted.
fn verdict(
    shared: &Shared,
    entries: &Entries,
    entry: &Located<'_>,
    touches: u8,
    cleans: bool,
) -> Option<(Queue, u8)> {
    let placed = &entry.placed;
    if entries.has_expired(entry) {
        return None;
    }
    if cleans {
        return Some((placed.queue, touches));
    }
    let kept = policy::touches_if_kept(placed.queue, touches)?;
    let worth = placed.queue == Queue::Protected
        || is_worth_its_place(shared, entries, placed.header, touches);
    worth.then_some((Queue::Protected, kept))
}

/// Whether an entry is worth the oldest entries of the protected queue that it would displace. A
/// small entry always is. A large entry is worth them if its touches outweigh those of all
/// displaced entries together; each of its touches counts for several.
fn is_worth_its_place(shared: &Shared, entries: &Entries, header: Header, touches: u8) -> bool {
    let bytes = header.bytes();
    if bytes <= entries.limit_bytes(shared) / LARGE_PART {
        return true;
    }
    let worth = u64::from(touches) * WEIGHT_OF_LARGE;
    let ends = entries.queues.ends(Queue::Protected);
    let (mut position, mut displaced, mut touched) = (ends.old, 0, 0);
    for _ in 0..VICTIMS_EXAMINED {
        if position == ends.young || displaced >= bytes {
            break;
        }
        let victim = entries.queues.entry_at(shared, Queue::Protected, position);
        if !victim.header.is_filler() {
            let hash = shared.hash(victim.key());
            if let Some(slot) = shared.slot_of(hash, Queue::Protected, position) {
                touched += u64::from(Slot(slot.load(Ordering::Relaxed)).touches());
                displaced += victim.header.bytes();
            }
        }
        if touched > worth {
            return false;
        }
        position += victim.header.words();
    }
    // If not all victims were examined, the others are assumed to be similar.
    let all_seen = position == ends.young || displaced >= bytes;
    all_seen || touched * bytes <= worth * displaced
}
