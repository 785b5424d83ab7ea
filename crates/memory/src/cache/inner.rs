//! An open cache: the shared state, the writer and its lock, the loads in progress, and look-ups.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LockResult, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use plimsoll_disk::clock::Clock;

use super::entry::{Arrival, Value};
use super::loads::Loads;
use super::shared::{Found, Shared, touch};
use super::slot::fingerprint;
use super::writer::Writer;
use crate::budget::{Lease, Reclaim};

/// Attempts to take the lock before a thread sleeps for it, and pauses between two attempts.
const LOCK_ATTEMPTS: u32 = 64;
const PAUSES_BETWEEN_ATTEMPTS: u32 = 8;

pub(super) struct Inner {
    pub(super) shared: Shared,
    pub(super) writer: Mutex<Writer>,
    pub(super) loads: Loads,
    pub(super) clock: Arc<dyn Clock>,
    /// Whether an entry with a time to live was ever inserted. Until then the clock is not read.
    pub(super) expires: AtomicBool,
    pub(super) tables: Lease,
    pub(super) max_bytes: u64,
}

impl Inner {
    pub(super) fn lock(&self) -> MutexGuard<'_, Writer> {
        let mut writer =
            self.wait_for_writer().expect("the cache is not used after its writer panicked");
        if self.expires.load(Ordering::Relaxed) {
            writer.entries.now = self.now();
        }
        writer
    }

    /// Spins on the lock for a while before it sleeps, because a critical section is much shorter
    /// than a wake-up. The second half of the spins yields the processor, because the holder of the
    /// lock may be waiting for a processor.
    fn wait_for_writer(&self) -> LockResult<MutexGuard<'_, Writer>> {
        for attempt in 0..LOCK_ATTEMPTS {
            match self.writer.try_lock() {
                Ok(writer) => return Ok(writer),
                Err(TryLockError::Poisoned(poisoned)) => return Err(poisoned),
                Err(TryLockError::WouldBlock) if attempt < LOCK_ATTEMPTS / 2 => {
                    (0..PAUSES_BETWEEN_ATTEMPTS).for_each(|_| std::hint::spin_loop());
                }
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        self.writer.lock()
    }

    pub(super) fn limit_bytes(&self, writer: &Writer) -> u64 {
        writer.entries.queues.owner.limit_bytes(&self.shared.segments) + self.tables.bytes()
    }

    /// Milliseconds of the monotonic clock.
    pub(super) fn now(&self) -> u64 {
        self.clock.monotonic_nanos() / 1_000_000
    }

    /// Expiry time of an entry with this time to live, if inserted now.
    pub(super) fn expiry(&self, time_to_live: Duration) -> u64 {
        // Relaxed: a thread that finds the entry synchronises through its slot.
        self.expires.store(true, Ordering::Relaxed);
        let millis = u64::try_from(time_to_live.as_millis()).unwrap_or(u64::MAX);
        self.now().saturating_add(millis)
    }

    pub(super) fn change(&self, key: &[u8], value: &[u8], expires_at: Option<u64>) -> bool {
        self.loads.supersede(key);
        self.insert(key, value, expires_at)
    }

    pub(super) fn insert(&self, key: &[u8], value: &[u8], expires_at: Option<u64>) -> bool {
        let arrival = Arrival { hash: self.shared.hash(key), key, value: &[value], expires_at };
        self.lock().insert(&self.shared, &arrival)
    }

    #[inline]
    pub(super) fn read<R>(
        &self,
        key: &[u8],
        look: impl FnOnce(Value<'_>) -> Option<R>,
    ) -> Option<R> {
        self.find(key, true, look)
    }

    /// Calls `look` with the value. If `counts`, records a touch, and a hit if `look` returns
    /// something.
    #[inline]
    pub(super) fn find<R>(
        &self,
        key: &[u8],
        counts: bool,
        look: impl FnOnce(Value<'_>) -> Option<R>,
    ) -> Option<R> {
        let shared = &self.shared;
        let hash = shared.hash(key);
        // Prefetch before the line is claimed, because the processor delays all later reads until
        // the claim is done.
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
                // If the index changed meanwhile, the entry may have moved between pages.
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

    /// Like `find`, for a reader that finds no free line. It must not wait for one, because the
    /// calling thread may hold the lines itself.
    #[cold]
    fn find_under_lock<R>(
        &self,
        key: &[u8],
        hash: u64,
        counts: bool,
        look: impl FnOnce(Value<'_>) -> Option<R>,
    ) -> Option<R> {
        let writer = self.lock();
        let copy = writer.entries.find(&self.shared, hash, key).and_then(|entry| {
            if counts {
                touch(entry.slot, entry.word());
            }
            (!writer.entries.has_expired(&entry)).then(|| Value::new(entry.placed).to_vec())
        });
        // Release the lock first, because `look` may insert.
        drop(writer);
        let result = copy.and_then(|copy| look(Value::copied(&copy)));
        if counts {
            let counters = &mut self.lock().counters;
            *if result.is_some() { &mut counters.hits } else { &mut counters.misses } += 1;
        }
        result
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
        self.lock().release_chunks(&self.shared, chunks)
    }
}
