//! The object cache: keys and values of any size, under one byte limit that counts everything.
//!
//! Entries are bytes in segments of the budget's chunks, stored one after the other in two queues.
//! Eviction processes the queues from their old ends, and thereby compacts them. There are no size
//! classes that would waste memory. The index, its ghosts (records of evicted entries) and the
//! half-filled segments count toward the limit. Tables whose size is proportional to that of the
//! cache are leased from the same budget.
//!
//! ```text
//! index   pages of 8-byte slots: fingerprint, touches, place       (index.rs, slot.rs)
//!            |            \ ghosts of entries evicted from probation
//! queues  probation: old ... young  protected: old ... young       (queue.rs, entry.rs)
//!            evicted or promoted ->    evicted or moved round      (policy.rs, eviction.rs)
//! memory  segments of 4 to 64 KiB of the budget's chunks           (segments.rs)
//! ```
//!
//! Invariants:
//! 1. Segments in use never exceed the limit, at any moment and with any number of threads.
//! 2. A hit takes no lock (except for the 65th concurrent reader, or the 17th in a cache of a MiB).
//!    It claims a line of its own ([`readers`]), counts a touch unless the entry has three already,
//!    copies the value, and frees the line. The bytes under a reader do not change. A stalled
//!    reader retains the segments of one entry.
//! 3. Dropping all entries at any moment only turns hits into misses. A removed
//!    or replaced value is never found again. A long entry is moved in steps, and is not found
//!    while it moves.
//! 4. Lock order: a load's lock, the cache's lock, the budget's lock. Under its lock, the cache
//!    takes only chunks that are free in the budget; it does not make the budget ask the
//!    reclaimers.
//!
//! A cache may use all of its budget. Several caches can share a budget; each keeps to its own
//! limit.
//!
//! ```
//! use std::time::Duration;
//!
//! use plimsoll_memory::budget::{Backing, Budget};
//! use plimsoll_memory::cache::{Cache, CacheOptions};
//!
//! let budget = Budget::new(16 << 20, Backing::Mapped)?;
//! let cache = Cache::new(&budget, CacheOptions::of_bytes(16 << 20))?;
//! cache.insert(b"colour", b"red");
//! assert_eq!(cache.get(b"colour").as_deref(), Some(&b"red"[..]));
//! let loaded = cache.get_or_load(b"size", || Ok::<_, std::io::Error>(b"large".to_vec()))?;
//! assert_eq!(loaded, b"large");
//! cache.insert_for(b"session", b"ada", Duration::from_secs(600));
//! assert!(cache.remove(b"colour"));
//! let stats = cache.stats();
//! assert_eq!((stats.entries, stats.hits), (2, 1));
//! assert!(stats.memory_bytes <= 16 << 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod entries;
mod entry;
mod eviction;
mod index;
mod inner;
mod loads;
mod options;
mod policy;
mod probation_part;
mod queue;
mod queues;
mod readers;
mod removal;
mod segments;
mod shared;
mod slot;
mod stats;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod warm;
mod writer;

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::budget::chunk::CHUNK_BYTES;
use crate::budget::{Budget, Kind, OutOfBudget};
use crate::turnover::Turnover;
use entries::Entries;
use entry::Arrival;
pub use entry::{Pieces, Value};
use index::{Index, Pages};
use inner::Inner;
pub use loads::LoadFailed;
use loads::{Loads, Turn};
pub use options::CacheOptions;
use queue::Ring;
use queues::Queues;
use readers::Readers;
use segments::{Owner, Segments};
use shared::Shared;
use slot::MAX_TOUCHES;
pub use stats::CacheStats;
pub use warm::{Census, Changes, Copied, Copies, QueueKind, Restorable, Restored, Stopped};
use writer::Writer;

/// The smallest cache: two queues, an index, and room to move.
pub const MIN_CACHE_BYTES: u64 = 64 << 10;

/// The largest cache that the place field of an index slot can address.
pub const MAX_CACHE_BYTES: u64 = 128 << 30;

/// The minimum capacity of a queue in segments, however small the cache.
const LEAST_IN_QUEUE: usize = 32;

/// A cache of byte strings by byte strings. See the [module](self).
pub struct Cache {
    inner: Arc<Inner>,
}

impl Cache {
    /// Makes a cache that takes its memory from `budget` as it fills. It registers itself as a
    /// reclaimer, and gives memory back when the budget asks.
    ///
    /// # Errors
    /// The budget cannot give a first segment and the tables.
    ///
    /// # Panics
    /// The limit is below [`MIN_CACHE_BYTES`], or the largest size that the cache can reach is
    /// above [`MAX_CACHE_BYTES`]; `largest_part` is not within 0 and 0.5.
    pub fn new(budget: &Budget, options: CacheOptions) -> Result<Self, OutOfBudget> {
        assert!(
            options.memory_bytes >= MIN_CACHE_BYTES,
            "a cache has at least {MIN_CACHE_BYTES} bytes"
        );
        assert!(
            (0.0..=0.5).contains(&options.largest_part),
            "the largest entry is at most half the cache"
        );
        let max_bytes = options.max_bytes.max(options.memory_bytes).min(budget.limit_bytes());
        assert!(
            max_bytes <= MAX_CACHE_BYTES,
            "an object cache has at most {MAX_CACHE_BYTES} bytes"
        );
        // The last chunk may be used only in part.
        let max_chunks = (max_bytes / CHUNK_BYTES as u64) as usize + 1;
        let segments = Segments::new(options.memory_bytes, max_chunks);
        let of_chunk = CHUNK_BYTES / segments.bytes();
        let max_segments = max_chunks * of_chunk;
        let max_in_queue = (max_segments - of_chunk).max(LEAST_IN_QUEUE);
        let limit_bytes = options.memory_bytes.min(max_bytes);
        let shared = Shared {
            index: Index::new(&segments, max_segments),
            probation: Ring::new(max_in_queue),
            protected: Ring::new(max_in_queue),
            readers: Readers::new(max_chunks),
            segments,
        };
        let mut owner = Owner::new(budget, &shared.segments, limit_bytes);
        let mut tables = budget.lease(Kind::Objects, shared.heap_bytes() + owner.heap_bytes())?;
        owner.adopt(&shared.segments, budget.take(Kind::Objects)?);
        let first = owner.take(&shared.segments).expect("a chunk was adopted just before");
        let pages = Pages::new(&shared.index, &shared.segments, first, max_segments);
        tables.grow(pages.heap_bytes())?;
        let largest_part = (options.largest_part * 65_536.0) as u64;
        let queues = Queues::new(owner, shared.segments.bytes());
        tables.grow(queues.heap_bytes())?;
        let mut writer = Writer::new(Entries::new(queues, pages), largest_part);
        writer.set_limit(&shared, limit_bytes.saturating_sub(tables.bytes()));
        let inner = Arc::new(Inner {
            shared,
            writer: Mutex::new(writer),
            loads: Loads::default(),
            clock: options.clock,
            expires: AtomicBool::new(false),
            tables,
            max_bytes,
        });
        let reclaimer = Arc::downgrade(&inner);
        budget.add_reclaimer(reclaimer);
        Ok(Self { inner })
    }

    /// A copy of the value of `key`.
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.read(key, |value| value.to_vec())
    }

    /// Appends the value of `key` to `out`. Returns whether there is one.
    pub fn get_into(&self, key: &[u8], out: &mut Vec<u8>) -> bool {
        self.read(key, |value| value.append_to(out)).is_some()
    }

    /// Calls `look` with the value of `key` in place, without a copy (except for the 65th
    /// concurrent reader, which gets one). The segments of the value cannot be reused meanwhile, so
    /// `look` should not take long. It may use the cache.
    #[inline]
    pub fn read<R>(&self, key: &[u8], look: impl FnOnce(Value<'_>) -> R) -> Option<R> {
        self.inner.read(key, |value| Some(look(value)))
    }

    /// Like [`Cache::read`], but `look` can reject the value, which then counts as a miss. The
    /// entry is touched in both cases.
    #[inline]
    pub fn read_if<R>(&self, key: &[u8], look: impl FnOnce(Value<'_>) -> Option<R>) -> Option<R> {
        self.inner.read(key, look)
    }

    /// Like [`Cache::read`], without any effect on the statistics or on the entry's eviction state.
    #[inline]
    pub fn peek<R>(&self, key: &[u8], look: impl FnOnce(Value<'_>) -> R) -> Option<R> {
        self.inner.find(key, false, |value| Some(look(value)))
    }

    /// Inserts a value, replacing an existing one. Returns `false` if it is too large or no room
    /// could be made; the key then has no value.
    ///
    /// Key and value together are at most [`CacheOptions::largest_part`] of the cache. A key alone
    /// may have 1,000 bytes in any cache, and 16,000 in one of 16 MiB or more.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> bool {
        self.inner.change(key, value, None)
    }

    /// Like [`Cache::insert`], for a value in parts, and only if `is_current` returns true.
    /// `is_current` is called under the cache's lock. An invalidator that first changes the result
    /// of `is_current`, and then removes or replaces the key, leaves no stale value: either this
    /// insertion sees the change, or the invalidator removes the value. Use it to insert a value
    /// that was loaded a while ago. Returns `false` without any change if `is_current` does. As for
    /// [`Cache::insert`], the result of a load of the key that is in progress is not cached, even
    /// if `is_current` returns false.
    pub fn insert_if(
        &self,
        key: &[u8],
        parts: &[&[u8]],
        is_current: impl FnOnce() -> bool,
    ) -> bool {
        // Supersede a load before the cache's lock is taken, because a load takes its own lock
        // first.
        self.inner.loads.supersede(key);
        let arrival =
            Arrival { hash: self.inner.shared.hash(key), key, value: parts, expires_at: None };
        let mut writer = self.inner.lock();
        is_current() && writer.insert(&self.inner.shared, &arrival)
    }

    /// Like [`Cache::insert_if`], but does nothing if the key has a value already or another thread
    /// holds the writer's lock. For insertions that are not worth waiting for.
    pub fn offer(&self, key: &[u8], parts: &[&[u8]], is_current: impl FnOnce() -> bool) -> bool {
        self.inner.loads.supersede(key);
        let hash = self.inner.shared.hash(key);
        let Ok(mut writer) = self.inner.writer.try_lock() else { return false };
        if self.inner.expires.load(Ordering::Relaxed) {
            writer.entries.now = self.inner.now();
        }
        let arrival = Arrival { hash, key, value: parts, expires_at: None };
        let shared = &self.inner.shared;
        writer.entries.find(shared, hash, key).is_none()
            && is_current()
            && writer.insert(shared, &arrival)
    }

    /// Replaces the value of `key` with the concatenated `parts`. The new entry inherits the
    /// eviction state of the old one. Returns `false` if the key has no value, or in the cases of
    /// [`Cache::insert`].
    pub fn replace(&self, key: &[u8], parts: &[&[u8]]) -> bool {
        self.inner.loads.supersede(key);
        let arrival =
            Arrival { hash: self.inner.shared.hash(key), key, value: parts, expires_at: None };
        self.inner.lock().replace(&self.inner.shared, &arrival)
    }

    /// Whether there is no entry. A concurrent insertion counts as before or after.
    pub fn is_empty(&self) -> bool {
        self.inner.lock().entries.count() == 0
    }

    /// Like [`Cache::insert`]; the value expires after `time_to_live`.
    pub fn insert_for(&self, key: &[u8], value: &[u8], time_to_live: Duration) -> bool {
        self.inner.change(key, value, Some(self.inner.expiry(time_to_live)))
    }

    /// Removes the value of `key`; returns whether there was one. A value that is being loaded
    /// meanwhile is not cached.
    pub fn remove(&self, key: &[u8]) -> bool {
        self.inner.loads.supersede(key);
        let hash = self.inner.shared.hash(key);
        self.inner.lock().remove(&self.inner.shared, hash, key)
    }

    /// Returns the value of `key`, or else the result of `load`. One of the concurrent callers
    /// loads, the others wait. `load` may use the cache, but deadlocks if it loads the same key.
    ///
    /// # Errors
    /// The error of `load`, for every caller that waited for it.
    pub fn get_or_load<E>(
        &self,
        key: &[u8],
        load: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, LoadFailed>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.load(key, None, load)
    }

    /// Like [`Cache::get_or_load`]; a loaded value expires after `time_to_live`.
    ///
    /// # Errors
    /// As for [`Cache::get_or_load`].
    pub fn get_or_load_for<E>(
        &self,
        key: &[u8],
        time_to_live: Duration,
        load: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, LoadFailed>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.load(key, Some(time_to_live), load)
    }

    fn load<E>(
        &self,
        key: &[u8],
        time_to_live: Option<Duration>,
        load: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, LoadFailed>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if let Some(value) = self.get(key) {
            return Ok(value);
        }
        let inner = &self.inner;
        let loading = loop {
            match inner.loads.begin(key) {
                Turn::Load(loading) => break loading,
                Turn::Take(loaded) => return loaded.map(|value| value.to_vec()),
                Turn::Again => {}
            }
        };
        // Another load may have ended between the look-up and the registration.
        if let Some(value) = inner.find(key, false, |value| Some(value.to_vec())) {
            return loading.end(Ok::<_, E>(value), |_| {}).map(take);
        }
        let loaded = load();
        // Return the value even if there is no room to cache it.
        let cache = |value: &[u8]| {
            inner.insert(key, value, time_to_live.map(|time| inner.expiry(time)));
        };
        loading.end(loaded, cache).map(take)
    }

    /// Drops every entry. Values that are being loaded meanwhile are not cached.
    pub fn clear(&self) {
        self.inner.loads.supersede_all();
        self.inner.lock().entries.clear(&self.inner.shared);
    }

    /// Removes the entries that `is_unwanted` selects by key and value. Values that are being
    /// loaded meanwhile are not cached; an entry that is inserted meanwhile may stay. Other threads
    /// can use the cache meanwhile; `is_unwanted` is called under its lock.
    pub fn remove_if(&self, mut is_unwanted: impl FnMut(&[u8], Value<'_>) -> bool) {
        self.inner.loads.supersede_all();
        removal::remove_if(&self.inner, &mut is_unwanted);
    }

    /// Changes the limit, up to [`CacheOptions::max_bytes`]. Evicts the excess, least used first,
    /// and gives its memory back to the budget. Other threads can use the cache meanwhile.
    ///
    /// Returns the new limit: higher than requested if the request has no room for the tables and
    /// some entries.
    pub fn set_memory(&self, memory_bytes: u64) -> u64 {
        while !self.approach_memory(memory_bytes).1 {}
        self.inner.limit_bytes(&self.inner.lock())
    }

    /// One step of [`Cache::set_memory`], which lowers the limit by at most 256 KiB; for callers
    /// that have other work to do in between. Returns the new limit, and whether it is the final
    /// one.
    pub fn approach_memory(&self, memory_bytes: u64) -> (u64, bool) {
        let mut writer = self.inner.lock();
        let wanted =
            memory_bytes.min(self.inner.max_bytes).saturating_sub(self.inner.tables.bytes());
        let is_there = writer.approach(&self.inner.shared, wanted);
        (self.inner.limit_bytes(&writer), is_there)
    }

    /// The size of the cache, and the hits that a larger cache would have had.
    pub fn turnover(&self) -> Turnover {
        let shared = &self.inner.shared;
        let writer = self.inner.lock();
        Turnover {
            held_bytes: (writer.entries.queues.owner.used() * shared.segments.bytes()) as u64
                + self.inner.tables.bytes(),
            limit_bytes: self.inner.limit_bytes(&writer),
            returns: writer.eviction.returns(),
            window_bytes: writer.entries.window_bytes(shared),
        }
    }

    /// The range of places of the entries in one queue, oldest first. A place is never reused for
    /// another key. An entry keeps its place until it moves to the young end of a queue.
    /// [`Cache::insert`] may write a new value of the key in place; [`Cache::replace`] does not.
    pub fn places(&self, queue_kind: QueueKind) -> Range<u64> {
        let writer = self.inner.lock();
        let ends = writer.entries.queues.ends(queue_kind.queue());
        ends.old..ends.young
    }

    /// Counters that show whether the entries have changed.
    pub fn changes(&self) -> Changes {
        let writer = self.inner.lock();
        let (insertions, evictions) = (writer.counters.insertions, writer.entries.evictions());
        Changes {
            entered: insertions,
            removed: insertions.wrapping_sub(evictions).wrapping_sub(writer.entries.count()),
            turned: evictions.wrapping_add(writer.eviction.moved_bytes()),
        }
    }

    /// Empties `into`, and fills it with copies of the entries in this range of places, in order,
    /// until it has no room for the next. Skips an entry that expires or is larger than `into`.
    ///
    /// Returns the start of the next entry, which is at or after the end of `places` if there is
    /// none. `places` must begin at an entry: at the beginning of [`Cache::places`], or where an
    /// earlier call ended.
    pub fn copy_entries(
        &self,
        queue_kind: QueueKind,
        places: Range<u64>,
        into: &mut Copies,
    ) -> u64 {
        into.clear();
        warm::scan(&self.inner, queue_kind, places, &mut |placed, touches| {
            into.push(placed, touches)
        })
    }

    /// Counts the entries of at most `largest` bytes in this range of places. Takes and returns
    /// places as [`Cache::copy_entries`] does.
    pub fn count_entries(
        &self,
        queue_kind: QueueKind,
        places: Range<u64>,
        largest: usize,
    ) -> (Census, u64) {
        let mut census = Census::default();
        let next = warm::scan(&self.inner, queue_kind, places, &mut |placed, touches| {
            let counts = placed.header.key_bytes + placed.header.value_bytes <= largest;
            census.entries += u32::from(counts);
            census.touches += u32::from(counts) * u32::from(touches);
            true
        });
        (census, next)
    }

    /// Adds a few pages to the index for this many entries of this mean size, if there is room
    /// without an eviction. This saves moving entries as the index grows. Returns whether to call
    /// it again.
    pub fn expect_entries(&self, entries: u64, mean_bytes: u64) -> bool {
        // Limit the count to the entries that fit. Besides its key and value, an entry takes some
        // words, and some bytes in the index.
        let entries = entries.min(self.turnover().limit_bytes / (mean_bytes + 26));
        self.inner.lock().entries.add_pages_for(&self.inner.shared, entries, mean_bytes)
    }

    /// Prepares an entry that this cache or another had before, with its value in two parts, for
    /// [`Cache::restore_entries`]. Prefetches its place in the index, so prepare several entries
    /// before the first is restored.
    pub fn restorable<'a>(
        &self,
        key: &'a [u8],
        parts: [&'a [u8]; 2],
        touches: u8,
    ) -> Restorable<'a> {
        let shared = &self.inner.shared;
        let hash = shared.hash(key);
        shared.index.prefetch(&shared.segments, hash);
        Restorable { hash, key, parts, touches: touches.min(MAX_TOUCHES) }
    }

    /// Inserts entries in the protected queue, one after the other, until there is no room without
    /// an eviction. Skips an entry whose key has an entry already. None is inserted unless
    /// `is_current` returns true, as for [`Cache::insert_if`]. The cache's lock is held for all of
    /// them.
    pub fn restore_entries(
        &self,
        entries: &[Restorable<'_>],
        is_current: impl FnOnce() -> bool,
    ) -> Restored {
        let shared = &self.inner.shared;
        // Supersede loads before the cache's lock is taken, as in `Cache::insert_if`.
        entries.iter().for_each(|entry| self.inner.loads.supersede(entry.key));
        let mut writer = self.inner.lock();
        if !is_current() {
            return Restored { entered: 0, stopped: Some(Stopped::NotCurrent) };
        }
        let mut brought = Restored::default();
        for Restorable { hash, key, parts, touches } in entries {
            let arrival = Arrival { hash: *hash, key, value: parts, expires_at: None };
            match writer.restore(shared, &arrival, *touches) {
                Some(entered) => brought.entered += u64::from(entered),
                None => return Restored { stopped: Some(Stopped::NoRoom), ..brought },
            }
        }
        brought
    }

    /// The largest limit that [`Cache::set_memory`] can set.
    pub fn max_bytes(&self) -> u64 {
        self.inner.max_bytes
    }

    /// Counters and sizes. Scans the index.
    pub fn stats(&self) -> CacheStats {
        let shared = &self.inner.shared;
        let (hits, misses) = shared.readers.hits_and_misses();
        let writer = self.inner.lock();
        let Writer { entries, eviction, counters, .. } = &*writer;
        let bytes = |segments: usize| (segments * shared.segments.bytes()) as u64;
        CacheStats {
            hits: hits + counters.hits,
            misses: misses + counters.misses,
            insertions: counters.insertions,
            refusals: counters.refusals,
            evictions: entries.evictions(),
            returns: eviction.returns(),
            moved_bytes: eviction.moved_bytes(),
            entries: entries.count(),
            ghosts: entries.ghosts(shared),
            live_bytes: entries.queues.live_bytes().iter().sum(),
            dead_bytes: entries.queues.dead_bytes(),
            memory_bytes: bytes(entries.queues.owner.used()) + self.inner.tables.bytes(),
            index_bytes: bytes(entries.index_pages()),
            table_bytes: self.inner.tables.bytes(),
            limit_bytes: self.inner.limit_bytes(&writer),
            probation_bytes: eviction.probation_bytes(shared, entries),
        }
    }

    /// Recounts everything and compares the result with the running counters. For tests and
    /// debugging: scans the whole cache.
    ///
    /// # Panics
    /// A counter is wrong.
    pub fn check(&self) {
        self.inner.lock().entries.check(&self.inner.shared);
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

fn take(value: Arc<Vec<u8>>) -> Vec<u8> {
    Arc::try_unwrap(value).unwrap_or_else(|shared| shared.to_vec())
}
