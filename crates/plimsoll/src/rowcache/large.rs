//! Large values, each in one contiguous allocation, so that readers can borrow them.
//!
//! An entry states the same as a row: *of all versions of this key that are in runs, the newest has
//! GLSN v, and these are its bytes*; the invariants of the row cache hold for it. Without this
//! cache, each reader copies the value, because the object cache and the pages store a value of
//! this size in several parts.
//!
//! Invariants:
//! 1. A value is added only if at least one part in [`KEPT_FREE`] of the budget is free after that.
//!    Values are dropped when less is free.
//! 2. Large values are in lent memory: the budget reclaims it before it makes the page pool evict a
//!    page.
//! 3. Every byte is charged. An entry that is dropped while a reader uses it is charged until that
//!    reader releases it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_disk::checksum::checksum;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, Kind, Lease, Reclaim};
use plimsoll_memory::buffer::Buffer;
use plimsoll_memory::cache::CacheStats;
use plimsoll_memory::chunk::CHUNK_BYTES;

use crate::borders::{Border, hit};
use crate::rowcache::share::KEPT_FREE;
use crate::types::expiry::Expiry;

/// A shorter value is a row like any other.
pub(crate) const LARGE_BYTES: usize = CHUNK_BYTES;

/// The most entries; with more, the filter would have too many false positives.
const ENTRIES_MAX: usize = 1 << 14;

/// Bits of the filter.
const FILTER_BITS: u64 = 1 << 17;

/// Bytes charged for an entry in addition to its key and value.
const ENTRY_BYTES: usize = 256;

/// The most entries that are dropped for a new one.
const DROPPED_FOR_ONE: usize = 8;

/// The large values of a store.
pub(crate) struct LargeValues {
    budget: Budget,
    entries: Mutex<Entries>,
    /// A filter of the keys that have an entry, so that a read of any other key takes no lock. The
    /// bit of an existing entry is never cleared.
    filter: Box<[AtomicU64]>,
    hits: AtomicU64,
    insertions: AtomicU64,
    _filter_lease: Lease,
}

/// Invariant: `by_hash` and `order` have the same keys.
#[derive(Default)]
struct Entries {
    /// By the hash of the key. Of two keys with the same hash only one can be cached.
    by_hash: BTreeMap<u64, Arc<Entry>>,
    /// In eviction order. An entry that was read since it was queued is queued again instead of
    /// evicted.
    order: VecDeque<u64>,
    /// The number of filter bits that were set since the filter was built from the entries.
    bits_set: usize,
    /// Scratch space to rebuild the filter.
    spare: Vec<u64>,
}

/// A value, pinned by each holder of a reference.
pub(crate) struct Entry {
    key: Box<[u8]>,
    glsn: Glsn,
    expiry: Option<Expiry>,
    value: Buffer,
    is_read: AtomicBool,
    _lease: Lease,
}

impl Entry {
    pub(crate) fn value(&self) -> &[u8] {
        &self.value
    }

    pub(crate) fn expiry(&self) -> Option<Expiry> {
        self.expiry
    }
}

impl LargeValues {
    /// An empty set of large values.
    pub(crate) fn new(budget: &Budget) -> Option<Arc<Self>> {
        let lease = budget.lease(Kind::Objects, 2 * FILTER_BITS / 8).ok()?;
        let filter = (0..FILTER_BITS / 64).map(|_| AtomicU64::new(0)).collect();
        let spare = vec![0; (FILTER_BITS / 64) as usize];
        let values = Arc::new(Self {
            budget: budget.clone(),
            entries: Mutex::new(Entries { spare, ..Entries::default() }),
            filter,
            hits: AtomicU64::new(0),
            insertions: AtomicU64::new(0),
            _filter_lease: lease,
        });
        budget.add_lender(Arc::downgrade(&values) as _);
        Some(values)
    }

    /// The value of an index key as of `at`; the condition of [`crate::rowcache::RowHandle::get`]
    /// applies.
    pub(crate) fn find(&self, key: &[u8], at: Glsn) -> Option<Arc<Entry>> {
        let hash = checksum(0, key);
        let (word, bit) = self.bit(hash);
        // Relaxed: if a bit is not visible yet, the value is copied from elsewhere.
        if word.load(Ordering::Relaxed) & bit == 0 {
            return None;
        }
        let entry = Arc::clone(
            self.lock()
                .by_hash
                .get(&hash)
                .filter(|entry| *entry.key == *key && entry.glsn <= at)?,
        );
        entry.is_read.store(true, Ordering::Relaxed);
        // Relaxed: a counter. All readers write it, but each of them also reads a value of a
        // thousand cache lines.
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(entry)
    }

    /// Caches a value if memory is free and `is_current` returns true, which is called under the
    /// lock: see [`crate::rowcache::RowCache::fill`]. Returns false if the caller may cache it
    /// elsewhere.
    pub(crate) fn offer(
        &self,
        key: &[u8],
        (glsn, expiry): (Glsn, Option<Expiry>),
        value: &[u8],
        is_current: impl Fn() -> bool,
    ) -> bool {
        let needed = (value.len() + key.len() + ENTRY_BYTES) as u64;
        if !self.make_room(needed) {
            return false;
        }
        // Allocate without the lock, because the budget may ask for memory back.
        let Ok(mut kept) = Buffer::with_capacity(&self.budget, Kind::Objects, value.len()) else {
            return false;
        };
        let Ok(lease) = self.budget.lease(Kind::Objects, (key.len() + ENTRY_BYTES) as u64) else {
            return false;
        };
        kept.extend_from_slice(value);
        let entry = Entry {
            key: key.into(),
            glsn,
            expiry,
            value: kept,
            is_read: AtomicBool::new(false),
            _lease: lease,
        };
        let hash = checksum(0, key);
        let mut entries = self.lock();
        if !is_current() {
            hit(Border::LargeOfferedLate);
            return true;
        }
        if entries.by_hash.len() >= ENTRIES_MAX && !entries.by_hash.contains_key(&hash) {
            return false;
        }
        let before = entries.by_hash.insert(hash, Arc::new(entry));
        if before.is_none() {
            entries.order.push_back(hash);
        }
        let (word, bit) = self.bit(hash);
        word.fetch_or(bit, Ordering::Relaxed);
        entries.bits_set += 1;
        if entries.bits_set > 2 * ENTRIES_MAX {
            self.renew_filter(&mut entries);
        }
        self.insertions.fetch_add(1, Ordering::Relaxed);
        hit(Border::LargeKept);
        drop(entries);
        drop(before);
        true
    }

    /// Whether that much memory is free beyond the reserve; if not, evicts a few entries that were
    /// not read for long.
    fn make_room(&self, needed: u64) -> bool {
        let kept_free = self.budget.limit_bytes() / KEPT_FREE;
        for _ in 0..DROPPED_FOR_ONE {
            if self.budget.free_bytes() >= kept_free + needed {
                return true;
            }
            let Some(dropped) = self.lock().pop(false) else { return false };
            drop(dropped);
        }
        self.budget.free_bytes() >= kept_free + needed
    }

    /// Removes a key whose value changes or is deleted.
    pub(crate) fn remove(&self, key: &[u8]) {
        let hash = checksum(0, key);
        let (word, bit) = self.bit(hash);
        // Relaxed: the caller has taken the lock since it changed the runs' number
        // ([`crate::rowcache::RowCache::begin_runs`]). Earlier fills have set their bits; later
        // ones fail.
        if word.load(Ordering::Relaxed) & bit == 0 {
            return;
        }
        let mut entries = self.lock();
        if entries.by_hash.get(&hash).is_none_or(|entry| *entry.key != *key) {
            return;
        }
        hit(Border::LargeSuperseded);
        let removed = entries.by_hash.remove(&hash);
        entries.order.retain(|&other| other != hash);
        drop(entries);
        drop(removed);
    }

    /// Drops the entries that `is_stale` selects by their key and the GLSN of their version.
    pub(crate) fn drop_stale(&self, is_stale: impl Fn(&[u8], Glsn) -> bool) {
        let dropped: Vec<_> = {
            let mut entries = self.lock();
            let Entries { by_hash, order, .. } = &mut *entries;
            let dropped = by_hash.extract_if(.., |_, entry| is_stale(&entry.key, entry.glsn));
            let dropped: Vec<_> = dropped.collect();
            if !dropped.is_empty() {
                order.retain(|hash| by_hash.contains_key(hash));
            }
            dropped
        };
        drop(dropped);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().by_hash.is_empty()
    }

    /// Adds its counters to those of the object cache, which has counted each hit here as a miss.
    pub(crate) fn count_in(&self, stats: &mut CacheStats) {
        let hits = self.hits.load(Ordering::Relaxed);
        stats.hits += hits;
        stats.misses = stats.misses.saturating_sub(hits);
        stats.insertions += self.insertions.load(Ordering::Relaxed);
        let entries = self.lock();
        stats.entries += entries.by_hash.len() as u64;
        stats.live_bytes +=
            entries.by_hash.values().map(|entry| entry.value.len() as u64).sum::<u64>();
        stats.memory_bytes +=
            entries.by_hash.values().map(|entry| entry.value.charged_bytes()).sum::<u64>();
    }

    /// Drops all entries.
    pub(crate) fn clear(&self) {
        let dropped = {
            let mut entries = self.lock();
            // Clear the filter under the lock, because bits are set under it.
            self.filter.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            entries.bits_set = 0;
            (std::mem::take(&mut entries.by_hash), std::mem::take(&mut entries.order))
        };
        drop(dropped);
    }

    /// Releases memory until the reserve of the budget is free again.
    pub(crate) fn release(&self) {
        let kept_free = self.budget.limit_bytes() / KEPT_FREE;
        while self.budget.free_bytes() < kept_free {
            let Some(dropped) = self.lock().pop(true) else { return };
            drop(dropped);
        }
    }

    /// Rebuilds the filter without keys that have no entry any more. Each word is replaced
    /// atomically, because [`LargeValues::remove`] reads the filter without the lock and must never
    /// miss the bit of an existing entry.
    fn renew_filter(&self, entries: &mut Entries) {
        let Entries { by_hash, spare, bits_set, .. } = entries;
        spare.fill(0);
        for hash in by_hash.keys() {
            let (word, bit) = place_of(*hash);
            spare[word] |= bit;
        }
        self.filter
            .iter()
            .zip(&*spare)
            .for_each(|(word, bits)| word.store(*bits, Ordering::Relaxed));
        *bits_set = by_hash.len();
    }

    fn bit(&self, hash: u64) -> (&AtomicU64, u64) {
        let (word, bit) = place_of(hash);
        (&self.filter[word], bit)
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The word and the bit of a key's hash in the filter.
fn place_of(hash: u64) -> (usize, u64) {
    let bit = hash % FILTER_BITS;
    ((bit / 64) as usize, 1 << (bit % 64))
}

impl Entries {
    /// Removes an entry that was not read since it was queued. With `must`, if all were read,
    /// removes the oldest one.
    fn pop(&mut self, must: bool) -> Option<Arc<Entry>> {
        for _ in 0..self.order.len() {
            let hash = self.order.pop_front()?;
            if !self.by_hash.get(&hash)?.is_read.swap(false, Ordering::Relaxed) {
                return self.by_hash.remove(&hash);
            }
            self.order.push_back(hash);
        }
        let hash = if must { self.order.pop_front()? } else { return None };
        self.by_hash.remove(&hash)
    }
}

impl Reclaim for LargeValues {
    fn reclaim(&self, chunks: usize) -> usize {
        let mut given = 0;
        while given < chunks {
            let Some(entry) = self.lock().pop(true) else { break };
            // If a reader uses it, its memory is released later.
            if let Ok(entry) = Arc::try_unwrap(entry) {
                given += (entry.value.charged_bytes() as usize / CHUNK_BYTES).max(1);
            }
        }
        given
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_memory::budget::Backing;

    use super::*;

    fn values(budget_bytes: u64) -> (Budget, Arc<LargeValues>) {
        let budget = Budget::new(budget_bytes, Backing::Heap).unwrap();
        let values = LargeValues::new(&budget).unwrap();
        (budget, values)
    }

    fn found(values: &LargeValues, key: &[u8], at: u64) -> Option<u8> {
        values.find(key, Glsn(at)).map(|entry| entry.value()[0])
    }

    #[test]
    fn a_value_answers_moments_from_its_version_until_its_key_is_removed() {
        let (_budget, values) = values(16 << 20);
        assert!(values.offer(b"k", (Glsn(5), None), &[1; 100_000], || true));
        assert_eq!([4, 5, 6].map(|at| found(&values, b"k", at)), [None, Some(1), Some(1)]);
        assert_eq!(found(&values, b"other", 6), None);
        assert!(values.offer(b"k", (Glsn(7), None), &[2; 100_000], || false));
        assert_eq!(found(&values, b"k", 8), Some(1), "a stale value is not cached");
        assert!(values.offer(b"k", (Glsn(7), None), &[2; 100_000], || true));
        assert_eq!([6, 7].map(|at| found(&values, b"k", at)), [None, Some(2)]);
        values.remove(b"k");
        assert_eq!((found(&values, b"k", 8), values.is_empty()), (None, true));
    }

    #[test]
    fn memory_is_returned_to_other_uses_and_an_eighth_stays_free() {
        let (budget, values) = values(32 << 20);
        let mut kept = 0;
        for number in 0..100u8 {
            kept +=
                u32::from(
                    values.offer(&[number], (Glsn(1), None), &vec![number; 1 << 20], || true),
                );
        }
        assert!(kept >= 90, "entries that were not read are evicted for later ones");
        assert!(budget.free_bytes() >= 4 << 20);
        let there =
            || (0..100u8).filter(|&number| found(&values, &[number], 1) == Some(number)).count();
        assert!((20..28).contains(&there()), "{}", there());
        let lease = budget.lease(Kind::Sort, 24 << 20).unwrap();
        assert!((1..8).contains(&there()), "{}", there());
        drop(lease);
        // All were read, so none is evicted for another.
        let before = there();
        let lease = budget.lease(Kind::Sort, budget.free_bytes() - (4 << 20)).unwrap();
        assert!(!values.offer(b"new", (Glsn(1), None), &[1; 1 << 20], || true));
        assert_eq!(there(), before);
        drop((lease, values));
        assert_eq!(budget.free_bytes() + budget.usage().of(Kind::Spare), 32 << 20);
    }

    #[test]
    fn the_filter_drops_removed_keys_and_keeps_existing_ones() {
        let (_budget, values) = values(16 << 20);
        let mut bits_most = 0;
        for number in 0..5 * ENTRIES_MAX as u32 {
            // Short values, because this type does not check the length.
            assert!(values.offer(&number.to_be_bytes(), (Glsn(1), None), b"v", || true));
            if number >= 100 {
                values.remove(&(number - 100).to_be_bytes());
            }
            if number % 1000 == 0 {
                let bits: u32 = values
                    .filter
                    .iter()
                    .map(|word| word.load(Ordering::Relaxed).count_ones())
                    .sum();
                bits_most = bits_most.max(bits as usize);
                let last = (number.saturating_sub(99)..=number)
                    .filter(|n| found(&values, &n.to_be_bytes(), 1).is_some());
                assert_eq!(last.count(), 100.min(number as usize + 1));
            }
        }
        assert!(bits_most > ENTRIES_MAX && bits_most <= 2 * ENTRIES_MAX, "{bits_most}");
    }

    #[test]
    fn a_value_that_is_dropped_while_it_is_read_stays_readable_and_charged() {
        let (budget, values) = values(16 << 20);
        assert!(values.offer(b"k", (Glsn(5), None), &[1; 1 << 20], || true));
        let reader = values.find(b"k", Glsn(9)).unwrap();
        values.clear();
        assert!(budget.usage().of(Kind::Objects) >= 1 << 20);
        assert_eq!(reader.value(), [1; 1 << 20]);
        drop(reader);
        assert!(budget.usage().of(Kind::Objects) < 1 << 20);
    }
}
