//! The object cache: keys and values of any size, under one byte limit that counts everything.
//!
//! Entries are bytes in segments of the budget's chunks, stored one after the other in two queues.
//! Eviction reads the queues from their old ends; this also compacts them, so no memory is lost to
//! size classes. The index, its ghosts and the half-filled segments count toward the limit; tables
//! in proportion to the cache are leased from the same budget.
//!
//! ```text
//! index   pages of 8-byte slots: fingerprint, touches, place       (index.rs, slot.rs)
//!            |            \ ghosts of what left the probation queue too early
//! queues  probation: old ... young  protected: old ... young       (queue.rs, entry.rs)
//!            evicted or moved on ->    evicted or sent round       (policy.rs decides, keeper.rs does)
//! memory  segments of 4 to 64 KiB of the budget's chunks           (segments.rs)
//! ```
//!
//! Laws:
//! 1. Segments in use never exceed the limit, at any moment and with any number of threads.
//! 2. A hit takes no lock (except for the 65th concurrent reader, or the 17th in a cache of a MiB).
//!    It claims a line of its own ([`readers`]), the only thing that it waits for; counts a touch
//!    unless there are three already; copies; and frees the line. The bytes under a reader do not
//!    change. A stalled reader holds back the segments of one entry.
//! 3. Dropping everything at any moment changes no answer except from found to not found. A removed
//!    or replaced value is never found again. A long entry is moved in steps, and is not found
//!    while it moves.
//! 4. Lock order: a load's, the cache's, the budget's. The cache asks the budget for free chunks
//!    only.
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

mod entry;
mod index;
mod keeper;
mod loads;
mod options;
mod policy;
mod probation_part;
mod queue;
mod readers;
mod segments;
mod slot;
mod stats;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LockResult, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use plimsoll_disk::checksum::checksum;
use plimsoll_disk::clock::Clock;

use crate::budget::chunk::CHUNK_BYTES;
use crate::budget::{Budget, Kind, Lease, OutOfBudget, Reclaim};
use crate::turnover::Turnover;
use entry::{Arrival, Placed};
pub use entry::{Pieces, Value};
use index::{Index, Pages};
use keeper::Keeper;
pub use keeper::{BroughtBack, Census, Changes, Copied, Copies, Returning, Standing, Stopped};
pub use loads::LoadFailed;
use loads::{Loads, Turn};
pub use options::CacheOptions;
use policy::Queue;
use queue::{Ring, offset_of, sequence_of};
use readers::{Readers, Reading, Span};
use segments::{Owner, Segments};
use slot::{Slot, fingerprint};
pub use stats::CacheStats;

/// The smallest cache: two queues, an index, and room to move.
pub const MIN_CACHE_BYTES: u64 = 64 << 10;

/// The largest cache: the place field of an index slot addresses no more.
pub const MAX_CACHE_BYTES: u64 = 128 << 30;

/// The minimum capacity of a queue in segments, however small the cache.
const LEAST_IN_QUEUE: usize = 32;

/// Attempts to take the lock before a thread sleeps for it, and pauses between two attempts.
const LOOKS_AT_LOCK: u32 = 64;
const PAUSES_BETWEEN_LOOKS: u32 = 8;

/// A cache of byte strings by byte strings. See the [module](self).
pub struct Cache {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Shared,
    keeper: Mutex<Keeper>,
    loads: Loads,
    clock: Arc<dyn Clock>,
    /// Whether an entry with a time to live was ever inserted. Until then the clock is not read.
    expires: AtomicBool,
    tables: Lease,
    max_bytes: u64,
}

/// State that readers use without the lock.
struct Shared {
    segments: Segments,
    index: Index,
    probation: Ring,
    protected: Ring,
    readers: Readers,
}

impl Shared {
    #[inline]
    fn ring(&self, queue: Queue) -> &Ring {
        match queue {
            Queue::Probation => &self.probation,
            Queue::Protected => &self.protected,
        }
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        checksum(0, key)
    }
}

impl Cache {
    /// Makes a cache that takes its memory from `budget` as it fills, and gives it back when the
    /// budget asks: it registers itself as a reclaimer.
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
        // One more, of which only a part is used.
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
        let mut keeper = Keeper::new(owner, pages, largest_part, shared.segments.bytes());
        tables.grow(keeper.heap_bytes())?;
        keeper
            .owner
            .set_limit(keeper.limit_for(&shared, limit_bytes.saturating_sub(tables.bytes())));
        keeper.owner.end_shrinking();
        let inner = Arc::new(Inner {
            shared,
            keeper: Mutex::new(keeper),
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

    /// As [`Cache::read`], but `look` may reject the value: that counts as a miss and not as a
    /// touch.
    #[inline]
    pub fn read_if<R>(&self, key: &[u8], look: impl FnOnce(Value<'_>) -> Option<R>) -> Option<R> {
        self.inner.read(key, look)
    }

    /// As [`Cache::read`], without any effect on the statistics or on the entry's eviction state.
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

    /// As [`Cache::insert`], for a value in parts, and only if `is_current` returns true.
    /// `is_current` is called under the cache's lock. An invalidator that first changes its result
    /// and then removes or replaces the key either finds this value in the cache or has kept it
    /// out. Use it to insert a value that was loaded a while ago. Returns `false` without any
    /// change if `is_current` does. A load of the key that is under way is not cached, as for
    /// [`Cache::insert`], even if `is_current` returns false.
    pub fn insert_if(
        &self,
        key: &[u8],
        parts: &[&[u8]],
        is_current: impl FnOnce() -> bool,
    ) -> bool {
        // Before the cache's lock is taken: a load takes its own lock first.
        self.inner.loads.supersede(key);
        let arrival =
            Arrival { hash: self.inner.shared.hash(key), key, value: parts, expires_at: None };
        let mut keeper = self.inner.lock();
        is_current() && keeper.insert(&self.inner.shared, &arrival)
    }

    /// As [`Cache::insert_if`], unless the key has a value already, or another thread uses the
    /// writer's lock: for an insertion that is not worth waiting for.
    pub fn offer(&self, key: &[u8], parts: &[&[u8]], is_current: impl FnOnce() -> bool) -> bool {
        self.inner.loads.supersede(key);
        let hash = self.inner.shared.hash(key);
        let Ok(mut keeper) = self.inner.keeper.try_lock() else { return false };
        if self.inner.expires.load(Ordering::Relaxed) {
            keeper.now = self.inner.now();
        }
        let arrival = Arrival { hash, key, value: parts, expires_at: None };
        let shared = &self.inner.shared;
        keeper.find(shared, hash, key).is_none() && is_current() && keeper.insert(shared, &arrival)
    }

    /// Replaces the value of `key`, given in parts; the new entry inherits the eviction state of
    /// the old one. Returns `false` if there is none, or as for [`Cache::insert`].
    pub fn replace(&self, key: &[u8], parts: &[&[u8]]) -> bool {
        self.inner.loads.supersede(key);
        let arrival =
            Arrival { hash: self.inner.shared.hash(key), key, value: parts, expires_at: None };
        self.inner.lock().replace(&self.inner.shared, &arrival)
    }

    /// Whether there is no entry. A concurrent insertion counts as before or after.
    pub fn is_empty(&self) -> bool {
        self.inner.lock().counters.entries == 0
    }

    /// As [`Cache::insert`]; the value expires after `time_to_live`.
    pub fn insert_for(&self, key: &[u8], value: &[u8], time_to_live: Duration) -> bool {
        self.inner.change(key, value, Some(self.inner.expiry(time_to_live)))
    }

    /// Removes the value of `key`, and keeps a value that is being loaded from being cached.
    /// Returns whether there was one.
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

    /// As [`Cache::get_or_load`]; a loaded value expires after `time_to_live`.
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
        // Callers get the value even if there is no room to cache it.
        let cache = |value: &[u8]| {
            inner.insert(key, value, time_to_live.map(|time| inner.expiry(time)));
        };
        loading.end(loaded, cache).map(take)
    }

    /// Drops every entry, and keeps values that are being loaded from being cached.
    pub fn clear(&self) {
        self.inner.loads.supersede_all();
        self.inner.lock().clear(&self.inner.shared);
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
        let mut keeper = self.inner.lock();
        let wanted =
            memory_bytes.min(self.inner.max_bytes).saturating_sub(self.inner.tables.bytes());
        let is_there = keeper.approach(&self.inner.shared, wanted);
        (self.inner.limit_bytes(&keeper), is_there)
    }

    /// The cache's miss traffic, and how much of it a larger cache would have kept.
    pub fn turnover(&self) -> Turnover {
        let shared = &self.inner.shared;
        let keeper = self.inner.lock();
        Turnover {
            held_bytes: (keeper.owner.used() * shared.segments.bytes()) as u64
                + self.inner.tables.bytes(),
            limit_bytes: self.inner.limit_bytes(&keeper),
            returns: keeper.counters.returns,
            window_bytes: keeper.window_bytes(shared),
        }
    }

    /// The largest limit that [`Cache::set_memory`] can set.
    pub fn max_bytes(&self) -> u64 {
        self.inner.max_bytes
    }

    /// Counters and sizes. Walks the index.
    pub fn stats(&self) -> CacheStats {
        let shared = &self.inner.shared;
        let (hits, misses) = shared.readers.hits_and_misses();
        let keeper = self.inner.lock();
        let mut ghosts = 0;
        let count =
            |slot: Slot| slot.ghosts().iter().filter(|ghost| !ghost.is_none()).count() as u64;
        keeper.pages.for_each(&shared.segments, |slot| ghosts += count(slot));
        let (live_bytes, dead_bytes) = keeper.live_and_dead_bytes();
        let bytes = |segments: usize| (segments * shared.segments.bytes()) as u64;
        let counters = keeper.counters;
        CacheStats {
            hits: hits + counters.hits,
            misses: misses + counters.misses,
            insertions: counters.insertions,
            refusals: counters.refusals,
            evictions: counters.evictions,
            returns: counters.returns,
            moved_bytes: counters.moved_bytes,
            entries: counters.entries,
            ghosts,
            live_bytes,
            dead_bytes,
            memory_bytes: bytes(keeper.owner.used()) + self.inner.tables.bytes(),
            index_bytes: bytes(keeper.pages.len()),
            table_bytes: self.inner.tables.bytes(),
            limit_bytes: self.inner.limit_bytes(&keeper),
            probation_bytes: keeper.probation_bytes(shared),
        }
    }

    /// Recounts everything and compares the result with the running counters. For tests and
    /// debugging: walks the whole cache.
    ///
    /// # Panics
    /// A counter is wrong.
    pub fn check(&self) {
        self.inner.lock().check(&self.inner.shared);
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

impl Shared {
    fn heap_bytes(&self) -> u64 {
        let rings = self.probation.heap_bytes() + self.protected.heap_bytes();
        self.segments.heap_bytes() + self.index.heap_bytes() + rings + self.readers.heap_bytes()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Keeper> {
        let mut keeper =
            self.wait_for_keeper().expect("a cache whose writer panicked is not used any more");
        if self.expires.load(Ordering::Relaxed) {
            keeper.now = self.now();
        }
        keeper
    }

    /// Spins on the lock for a while before it sleeps: a critical section takes a fraction of the
    /// time of a wake-up. The second half of the spins yields the processor, since the holder of
    /// the lock may not be running.
    fn wait_for_keeper(&self) -> LockResult<MutexGuard<'_, Keeper>> {
        for look in 0..LOOKS_AT_LOCK {
            match self.keeper.try_lock() {
                Ok(keeper) => return Ok(keeper),
                Err(TryLockError::Poisoned(poisoned)) => return Err(poisoned),
                Err(TryLockError::WouldBlock) if look < LOOKS_AT_LOCK / 2 => {
                    (0..PAUSES_BETWEEN_LOOKS).for_each(|_| std::hint::spin_loop());
                }
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        self.keeper.lock()
    }

    fn limit_bytes(&self, keeper: &Keeper) -> u64 {
        keeper.owner.limit_bytes(&self.shared.segments) + self.tables.bytes()
    }

    /// Milliseconds of the monotonic clock.
    fn now(&self) -> u64 {
        self.clock.monotonic_nanos() / 1_000_000
    }

    /// When an entry with this time to live expires, if inserted now.
    fn expiry(&self, time_to_live: Duration) -> u64 {
        // Relaxed: a thread that finds the entry synchronises through its slot.
        self.expires.store(true, Ordering::Relaxed);
        let millis = u64::try_from(time_to_live.as_millis()).unwrap_or(u64::MAX);
        self.now().saturating_add(millis)
    }

    fn change(&self, key: &[u8], value: &[u8], expires_at: Option<u64>) -> bool {
        self.loads.supersede(key);
        self.insert(key, value, expires_at)
    }

    fn insert(&self, key: &[u8], value: &[u8], expires_at: Option<u64>) -> bool {
        let arrival = Arrival { hash: self.shared.hash(key), key, value: &[value], expires_at };
        self.lock().insert(&self.shared, &arrival)
    }

    #[inline]
    fn read<R>(&self, key: &[u8], look: impl FnOnce(Value<'_>) -> Option<R>) -> Option<R> {
        self.find(key, true, look)
    }

    /// Calls `look` with the value. If `counts`, records a touch, and a hit if `look` returns
    /// something.
    #[inline]
    fn find<R>(
        &self,
        key: &[u8],
        counts: bool,
        look: impl FnOnce(Value<'_>) -> Option<R>,
    ) -> Option<R> {
        let shared = &self.shared;
        let hash = shared.hash(key);
        // Before the line is claimed: all later reads wait for that claim.
        shared.index.prefetch(&shared.segments, hash);
        loop {
            let changes = shared.index.changes();
            let Some(reading) = shared.readers.begin(hint(), fingerprint(hash)) else {
                return self.find_under_lock(key, hash, counts, look);
            };
            let result = match shared.search(&reading, key, hash, counts) {
                Found::Here(placed) => match placed.expires_at() {
                    Some(at) if at <= self.now() => None,
                    _ => look(Value::new(placed)),
                },
                // Entries may have been on their way from one page of the index to another.
                Found::Nothing
                    if changes.is_multiple_of(2) && shared.index.changes() == changes =>
                {
                    None
                }
                Found::Nothing => {
                    std::hint::spin_loop();
                    continue;
                }
                Found::Moved => continue,
            };
            if counts {
                match &result {
                    Some(_) => reading.count_hit(),
                    None => reading.count_miss(),
                }
            }
            return result;
        }
    }

    /// As `find`, for a reader that finds no free line. It must not wait for one: the waiting
    /// thread may hold the lines itself.
    #[cold]
    fn find_under_lock<R>(
        &self,
        key: &[u8],
        hash: u64,
        counts: bool,
        look: impl FnOnce(Value<'_>) -> Option<R>,
    ) -> Option<R> {
        let keeper = self.lock();
        let copy = keeper.find(&self.shared, hash, key).and_then(|entry| {
            if counts {
                touch(entry.slot, Slot(entry.slot.load(Ordering::Relaxed)));
            }
            (!keeper.has_expired(&entry)).then(|| Value::new(entry.placed).to_vec())
        });
        // Not under the lock: `look` may insert.
        drop(keeper);
        let result = copy.and_then(|copy| look(Value::copied(&copy)));
        if counts {
            let counters = &mut self.lock().counters;
            *if result.is_some() { &mut counters.hits } else { &mut counters.misses } += 1;
        }
        result
    }
}

/// Records a touch, unless the slot has changed meanwhile: a lost touch does no harm.
#[inline]
fn touch(slot: &AtomicU64, word: Slot) {
    if let Some(touched) = word.touched() {
        // Relaxed: nothing is handed over.
        let _ = slot.compare_exchange(word.0, touched.0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Result of a reader's search.
enum Found<'a> {
    /// The reader's line now protects the entry, and no longer the index.
    Here(Placed<'a>),
    Nothing,
    /// A slot changed during the search: search again.
    Moved,
}

impl Shared {
    #[inline]
    fn search<'a>(
        &'a self,
        reading: &'a Reading<'_>,
        key: &[u8],
        hash: u64,
        touches: bool,
    ) -> Found<'a> {
        for slot in self.index.candidates(&self.segments, hash) {
            let word = Slot(slot.load(Ordering::SeqCst));
            let Some(placed) =
                word.entry_for(hash).and_then(|queue| self.placed(slot, word, queue))
            else {
                return Found::Moved;
            };
            if placed.is_of(key) {
                if touches {
                    touch(slot, word);
                }
                let first = sequence_of(&self.segments, word.place());
                reading.leave_index(Span {
                    queue: placed.queue,
                    first,
                    count: placed.segment_count(),
                });
                return Found::Here(placed);
            }
        }
        Found::Nothing
    }

    /// The place of a slot's entry, or nothing if the slot no longer refers to it.
    #[allow(unsafe_code, reason = "looks at an entry that a claimed line keeps in its place")]
    #[inline]
    fn placed(&self, slot: &AtomicU64, word: Slot, queue: Queue) -> Option<Placed<'_>> {
        let segment = self.ring(queue).get(sequence_of(&self.segments, word.place()));
        // Acquire: a second look, after the ring's. As long as the slot refers to the entry, the
        // ring leads to its segment.
        if !Slot(slot.load(Ordering::Acquire)).is_same_entry(word) {
            return None;
        }
        let offset = offset_of(&self.segments, word.place());
        // Prefetched together with the header's cache line: most entries extend into the next.
        self.segments.prefetch(segment, offset + 64);
        // SAFETY: the slot referred to this entry after the line published the use of the index for
        // its fingerprint. None of the entry's segments is written until the line changes, and it
        // changes to the use of these very segments or to nothing.
        Some(unsafe { Placed::at(&self.segments, queue, segment, offset) })
    }
}

/// A number unique to this thread, as long as there are few.
#[inline]
fn hint() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static HINT: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    let hint = HINT.get();
    if hint != usize::MAX {
        return hint;
    }
    // Relaxed: only distinctness matters.
    let new = NEXT.fetch_add(1, Ordering::Relaxed) % (usize::MAX / 2);
    HINT.set(new);
    new
}

impl Reclaim for Inner {
    fn reclaim(&self, chunks: usize) -> usize {
        self.lock().give_back(&self.shared, chunks)
    }
}
