//! The entries of a cache, under its lock: index and queues in step, and the ghosts of evicted
//! entries.
//!
//! An entry is inserted in the index once its bytes are in a queue, and leaves the index before its
//! bytes are dropped. [`super::eviction`] decides which entries to evict.

use std::sync::atomic::{AtomicU64, Ordering};

use super::entry::{Arrival, Header};
use super::index::{GHOST_TICKS, Pages};
use super::policy::Queue;
use super::queues::{Located, Queues};
use super::shared::Shared;
use super::slot::{Kind, Slot};

/// Pages that are added per acquisition of the lock.
const PAGES_AT_ONCE: usize = 16;

pub(super) struct Entries {
    pub(super) queues: Queues,
    pages: Pages,
    count: u64,
    evictions: u64,
    /// Bytes evicted from the probation queue since the last tick of the ghosts' clock. The clock
    /// ticks each time that a [`GHOST_TICKS`]th of the ghosts' window was evicted.
    bytes_since_tick: u64,
    /// Milliseconds; entries that expire at or before this count as gone.
    pub(super) now: u64,
}

impl Entries {
    pub(super) fn new(queues: Queues, pages: Pages) -> Self {
        Self { queues, pages, count: 0, evictions: 0, bytes_since_tick: 0, now: 0 }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    pub(super) fn index_pages(&self) -> usize {
        self.pages.len()
    }

    /// Number of ghosts. Scans the index.
    pub(super) fn ghosts(&self, shared: &Shared) -> u64 {
        let mut ghosts = 0;
        self.pages.for_each(&shared.segments, |slot| {
            ghosts += slot.ghosts().iter().filter(|ghost| !ghost.is_none()).count() as u64;
        });
        ghosts
    }

    /// The limit on the segments of the queues, in bytes.
    pub(super) fn limit_bytes(&self, shared: &Shared) -> u64 {
        let segments = self.queues.owner.limit().saturating_sub(self.pages.len());
        (segments * shared.segments.bytes()) as u64
    }

    /// The window of the ghosts, in bytes that left the probation queue: one and a half times the
    /// length of the protected queue. The index has room for them, and only such a long window
    /// detects loops that are a little longer than the cache.
    pub(super) fn window_bytes(&self, shared: &Shared) -> u64 {
        self.limit_bytes(shared) / 20 * 27
    }

    /// Mean size of an entry.
    fn mean_bytes(&self) -> u64 {
        self.queues.live_bytes().iter().sum::<u64>() / self.count.max(1)
    }

    /// Finds the entry of a key, including an expired one.
    pub(super) fn find<'a>(
        &self,
        shared: &'a Shared,
        hash: u64,
        key: &[u8],
    ) -> Option<Located<'a>> {
        shared.index.candidates(&shared.segments, hash).find_map(|slot| {
            let word = Slot(slot.load(Ordering::Relaxed));
            let queue = word.entry_for(hash)?;
            let position = self.queues.ends(queue).position_of(word.place());
            let placed = self.queues.entry_at(shared, queue, position);
            placed.is_of(key).then_some(Located { slot, hash, position, placed })
        })
    }

    pub(super) fn has_expired(&self, entry: &Located<'_>) -> bool {
        entry.placed.expires_at().is_some_and(|at| at <= self.now)
    }

    /// Writes an entry that the index does not have at the young end of a queue, in segments that
    /// the caller reserved. Returns `false` if the index has no slot for it.
    pub(super) fn insert(
        &mut self,
        shared: &Shared,
        queue: Queue,
        touches: u8,
        header: Header,
        arrival: &Arrival<'_>,
    ) -> bool {
        let position = self.queues.write(shared, queue, header, arrival);
        let slot = Slot::entry(arrival.hash, queue, touches, position);
        let insert = |entries: &mut Self| {
            entries.pages.insert(&shared.index, &shared.segments, arrival.hash, slot).is_ok()
        };
        let inserted = insert(self) || (self.split_full_page(shared, arrival.hash) && insert(self));
        if inserted {
            self.queues.count(queue, header);
            self.count += 1;
        }
        inserted
    }

    /// Removes an entry without a ghost.
    pub(super) fn remove(&mut self, shared: &Shared, entry: &Located<'_>) {
        self.empty_slot(shared, entry.slot, entry.hash);
        self.uncount(entry.placed.queue, entry.placed.header);
    }

    /// Removes an entry; leaves a ghost if the entry was on probation.
    pub(super) fn evict(&mut self, shared: &Shared, entry: &Located<'_>) {
        let (queue, header) = (entry.placed.queue, entry.placed.header);
        match queue {
            Queue::Probation => self.pages.replace_with_ghost(
                &shared.index,
                &shared.segments,
                entry.hash,
                entry.slot,
            ),
            Queue::Protected => self.empty_slot(shared, entry.slot, entry.hash),
        }
        self.uncount(queue, header);
        self.evictions += 1;
        if queue == Queue::Probation {
            self.advance_ghost_clock(shared, header.bytes());
        }
    }

    /// Takes the ghost of a key with this hash, if there is one. Returns its age in ticks.
    pub(super) fn take_ghost(&mut self, shared: &Shared, hash: u64) -> Option<u64> {
        self.pages.take_ghost(&shared.index, &shared.segments, hash)
    }

    /// Removes every entry and every ghost.
    pub(super) fn clear(&mut self, shared: &Shared) {
        self.pages.clear(&shared.segments);
        self.queues.clear(shared);
        self.count = 0;
    }

    fn empty_slot(&mut self, shared: &Shared, slot: &AtomicU64, hash: u64) {
        // Release: pairs with a reader's second load of the slot.
        slot.store(Slot::EMPTY.0, Ordering::Release);
        self.pages.forget(&shared.index, hash);
    }

    fn uncount(&mut self, queue: Queue, header: Header) {
        self.queues.uncount(queue, header);
        self.count -= 1;
    }

    fn advance_ghost_clock(&mut self, shared: &Shared, evicted_bytes: u64) {
        let bytes_per_tick = (self.window_bytes(shared) / GHOST_TICKS).max(1);
        self.bytes_since_tick += evicted_bytes;
        // One entry may be worth many ticks.
        while self.bytes_since_tick >= bytes_per_tick {
            self.bytes_since_tick -= bytes_per_tick;
            self.pages.tick(&shared.segments);
        }
    }

    /// Whether the index page of this hash should be split before another entry is inserted.
    pub(super) fn is_page_crowded(&self, shared: &Shared, hash: u64) -> bool {
        self.pages.is_crowded(&shared.index, hash, self.mean_bytes())
    }

    /// Adds pages to the index for this many entries of this mean size: only some at a time,
    /// because the lock is held. Returns whether there is more to add.
    pub(super) fn add_pages_for(&mut self, shared: &Shared, entries: u64, mean_bytes: u64) -> bool {
        for _ in 0..PAGES_AT_ONCE {
            let Some(hash) = self.pages.widest(&shared.index, entries, mean_bytes) else {
                return false;
            };
            if !self.split_full_page(shared, hash) {
                return false;
            }
        }
        true
    }

    /// Splits the page of this hash because both buckets of the hash are full, although the page is
    /// not crowded. Returns whether it did.
    fn split_full_page(&mut self, shared: &Shared, hash: u64) -> bool {
        self.queues.reserve(shared, 1) && self.split_page(shared, hash)
    }

    /// Splits the page of this hash, with a segment that the caller reserved. Returns whether it
    /// did. An index that cannot grow stays as it is, at the cost of ghosts.
    pub(super) fn split_page(&mut self, shared: &Shared, hash: u64) -> bool {
        let owner = &mut self.queues.owner;
        let segment = owner.take(&shared.segments).expect("provided just before");
        let grown = self.pages.grow(&shared.index, &shared.segments, hash, segment);
        let has_grown = grown.is_some();
        match grown {
            Some(lost) => lost.into_iter().for_each(|slot| self.lose(shared, slot)),
            None => owner.release(&shared.segments, segment),
        }
        has_grown
    }

    /// Checks one page of the index, and gives it up if its neighbours can take over its contents.
    /// Returns whether it did.
    pub(super) fn merge_spare_page(&mut self, shared: &Shared) -> bool {
        let mean_bytes = self.mean_bytes();
        let Some(at) = self.pages.next_spare(&shared.index, mean_bytes) else { return false };
        let (segment, lost) = self.pages.merge(&shared.index, &shared.segments, at);
        lost.into_iter().for_each(|slot| self.lose(shared, slot));
        self.queues.retire_page(shared, segment);
        true
    }

    /// Counts an entry as dead because it lost its slot: the index moved slots between pages, and
    /// both buckets of the entry were full.
    fn lose(&mut self, shared: &Shared, slot: Slot) {
        if let Kind::Entry(queue) = slot.kind() {
            let position = self.queues.ends(queue).position_of(slot.place());
            let header = self.queues.entry_at(shared, queue, position).header;
            self.uncount(queue, header);
            self.evictions += 1;
        }
    }

    /// Recounts everything and compares it with the counters.
    pub(super) fn check(&mut self, shared: &Shared) {
        let mut indexed = 0;
        self.pages.for_each(&shared.segments, |slot| {
            indexed += usize::from(matches!(slot.kind(), Kind::Entry(_)))
        });
        assert_eq!(
            indexed,
            self.pages.entries(),
            "entries in the index, and the sum over its pages"
        );
        let queued = self.queues.check(shared, self.pages.len());
        assert_eq!(
            (queued, queued as u64),
            (indexed, self.count),
            "entries in queues and in the index"
        );
    }
}
