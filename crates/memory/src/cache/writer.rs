//! The cache's writer, under the cache's lock: inserts, replaces and removes entries, and changes
//! the limit.
//!
//! Layers, each of which uses only those before it: [`super::segments::Owner`] (memory),
//! [`super::queues::Queues`] (bytes of entries), [`super::entries::Entries`] (index and queues in
//! step), [`super::eviction::Eviction`] (which entries leave), and the writer.

use super::entries::Entries;
use super::entry::{Arrival, Header, Placed};
use super::eviction::Eviction;
use super::policy::Queue;
use super::queues::RESERVE;
use super::shared::Shared;
use crate::budget::chunk::CHUNK_BYTES;

/// Step by which the limit is lowered; at least a segment.
const STEP_BYTES: usize = 256 << 10;

/// Minimum number of segments besides the index, in the smallest cache.
const LEAST_SEGMENTS: usize = 12;

/// Below this many chunks a limit is not rounded to whole ones.
const LEAST_WHOLE_CHUNKS: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) insertions: u64,
    pub(super) refusals: u64,
    /// Successful look-ups under the lock.
    pub(super) hits: u64,
    /// Unsuccessful look-ups under the lock.
    pub(super) misses: u64,
}

pub(super) struct Writer {
    pub(super) entries: Entries,
    pub(super) eviction: Eviction,
    /// Size of the largest entry, as a number of 65,536ths of the cache.
    largest_part: u64,
    pub(super) counters: Counters,
}

impl Writer {
    pub(super) fn new(entries: Entries, largest_part: u64) -> Self {
        Self { entries, eviction: Eviction::new(), largest_part, counters: Counters::default() }
    }

    /// Inserts an entry, replacing one with the same key. Returns whether it did. A refused entry
    /// still removes its predecessor, which is out of date.
    pub(super) fn insert(&mut self, shared: &Shared, arrival: &Arrival<'_>) -> bool {
        let header = arrival.header();
        let fits = self.fits(shared, header);
        if let Some(before) = self.entries.find(shared, arrival.hash, arrival.key) {
            let Placed { queue, .. } = before.placed;
            if fits
                && self.eviction.is_recent(&self.entries, queue, before.position)
                && self.entries.queues.write_over(shared, &before, arrival, header)
            {
                return self.count_arrival(true);
            }
            self.entries.remove(shared, &before);
        }
        let inserted = fits && {
            let Self { entries, eviction, .. } = self;
            eviction.evict_ahead(shared, entries, header);
            let queue = eviction.first_queue(shared, entries, arrival.hash, header);
            self.place(shared, arrival, header, queue, 0)
        };
        self.count_arrival(inserted)
    }

    /// Replaces the entry with the same key, in the same queue and with the same touches, if there
    /// is one. Returns whether it did. A refused entry still removes its predecessor. The new entry
    /// gets a new place, so that a copy of entries in the order of their places ([`super::warm`])
    /// does not miss it.
    pub(super) fn replace(&mut self, shared: &Shared, arrival: &Arrival<'_>) -> bool {
        let Some(before) = self.entries.find(shared, arrival.hash, arrival.key) else {
            return false;
        };
        let (queue, touches) = (before.placed.queue, before.word().touches());
        self.entries.remove(shared, &before);
        if self.entries.has_expired(&before) {
            return false;
        }
        let header = arrival.header();
        let inserted = self.fits(shared, header) && {
            self.eviction.evict_ahead(shared, &mut self.entries, header);
            self.place(shared, arrival, header, queue, touches)
        };
        self.count_arrival(inserted)
    }

    /// Inserts an entry in the protected queue, unless its key has one. Returns whether it did;
    /// `None` if there is no room without an eviction.
    pub(super) fn restore(
        &mut self,
        shared: &Shared,
        arrival: &Arrival<'_>,
        touches: u8,
    ) -> Option<bool> {
        let header = arrival.header();
        if !self.fits(shared, header)
            || self.entries.find(shared, arrival.hash, arrival.key).is_some()
        {
            return Some(false);
        }
        // One segment more than the entry needs, for a page of the index. With these segments,
        // nothing has to be evicted.
        let queues = &mut self.entries.queues;
        let wanted = queues.ends(Queue::Protected).segments_for(&shared.segments, header) + 1;
        if !queues.reserve(shared, wanted) {
            return None;
        }
        let inserted = self.place(shared, arrival, header, Queue::Protected, touches);
        Some(self.count_arrival(inserted))
    }

    /// Removes an entry. Returns whether it existed and had not expired.
    pub(super) fn remove(&mut self, shared: &Shared, hash: u64, key: &[u8]) -> bool {
        let Some(entry) = self.entries.find(shared, hash, key) else {
            return false;
        };
        self.entries.remove(shared, &entry);
        !self.entries.has_expired(&entry)
    }

    fn count_arrival(&mut self, inserted: bool) -> bool {
        self.counters.insertions += u64::from(inserted);
        self.counters.refusals += u64::from(!inserted);
        inserted
    }

    fn fits(&self, shared: &Shared, header: Header) -> bool {
        let limit_bytes = u128::from(self.entries.limit_bytes(shared));
        let largest = ((limit_bytes * u128::from(self.largest_part)) >> 16) as u64;
        header.value_at() <= shared.segments.bytes() / 4
            && header.key_bytes <= usize::from(u16::MAX)
            && u32::try_from(header.value_bytes).is_ok()
            && header.bytes() <= largest
    }

    /// Makes room for an entry that the index does not have, and inserts it.
    fn place(
        &mut self,
        shared: &Shared,
        arrival: &Arrival<'_>,
        header: Header,
        queue: Queue,
        touches: u8,
    ) -> bool {
        let Self { entries, eviction, .. } = self;
        eviction.make_room(shared, entries, queue, header, arrival.hash)
            && entries.insert(shared, queue, touches, header, arrival)
    }

    /// Sets the limit of a new cache.
    pub(super) fn set_limit(&mut self, shared: &Shared, bytes: u64) {
        let segments = self.limit_for(shared, bytes);
        self.entries.queues.owner.set_limit(segments);
        self.entries.queues.owner.end_shrinking();
    }

    /// The number of segments for a limit in bytes. Rounded down to whole chunks, so that the
    /// chunks held do not exceed the limit either, unless rounding would take much of a very small
    /// cache. At least enough to keep entries of some size besides the index.
    fn limit_for(&self, shared: &Shared, bytes: u64) -> usize {
        let of_chunk = CHUNK_BYTES / shared.segments.bytes();
        let segments = (bytes / shared.segments.bytes() as u64) as usize;
        let whole = if segments < LEAST_WHOLE_CHUNKS * of_chunk {
            segments
        } else {
            segments / of_chunk * of_chunk
        };
        whole.max(self.entries.index_pages() + LEAST_SEGMENTS).min(shared.probation.len())
    }

    /// Moves the limit toward `wanted_bytes`: at once if it grows, else by at most [`STEP_BYTES`],
    /// so that the lock is not held for long. Returns whether no further step is needed: the cache
    /// is at the final limit, or readers hold more memory than that, so that a further step would
    /// not help.
    pub(super) fn approach(&mut self, shared: &Shared, wanted_bytes: u64) -> bool {
        let wanted = self.limit_for(shared, wanted_bytes);
        let step = (STEP_BYTES / shared.segments.bytes()).max(1);
        let Self { entries, eviction, .. } = self;
        let owner = &mut entries.queues.owner;
        // Unused segments need no eviction.
        let limit = wanted.max(owner.limit().min(owner.used() + RESERVE).saturating_sub(step));
        owner.set_limit(limit);
        let is_within = eviction.shrink_to_limit(shared, entries);
        entries.queues.owner.end_shrinking();
        // With fewer entries the index needs fewer pages; the next step counts the freed ones.
        let pages = entries.index_pages();
        (0..pages).any(|_| entries.merge_spare_page(shared));
        entries.queues.owner.release_chunks(&shared.segments, usize::MAX, RESERVE);
        (limit == wanted && entries.index_pages() == pages) || !is_within
    }

    /// Gives up to `chunks` chunks back to the budget, evicting for them. Returns how many. While
    /// the cache has entries, it keeps the room to move them.
    pub(super) fn release_chunks(&mut self, shared: &Shared, chunks: usize) -> usize {
        let Self { entries, eviction, .. } = self;
        let mut given = entries.queues.owner.release_chunks(&shared.segments, chunks, RESERVE);
        while given < chunks {
            entries.queues.reclaim(shared);
            let has_entries = eviction.process_oldest(shared, entries);
            let kept = if has_entries { RESERVE } else { 0 };
            let owner = &mut entries.queues.owner;
            given += owner.release_chunks(&shared.segments, chunks - given, kept);
            if !has_entries {
                break;
            }
        }
        given
    }
}
