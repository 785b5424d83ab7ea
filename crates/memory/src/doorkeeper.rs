//! A doorkeeper: an admission filter that remembers recently requested keys, so that a cache does
//! not admit keys that are requested only once.
//!
//! Invariants:
//! 1. It may report a new key as seen, and may forget a key. Neither changes an answer.
//! 2. A key is recognized until newer keys have taken a quarter of the slots. In an endless stream
//!    of new keys, a third is reported as new; the others share a slot with a key of the last two
//!    generations.
//! 3. A request writes at most one byte, and nothing if the key was seen in this generation.
#![allow(unsafe_code, reason = "makes an array of atomics from zeroed memory")]

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::budget::{Budget, Kind, Lease};
use crate::reserved::Reserved;

/// One new key in this many is counted, chosen by its hash. If all were counted, every thread would
/// write the counter.
const NEWCOMERS_A_COUNT: u64 = 64;

/// A generation ends when its new keys have taken one slot in this many. If a generation needed
/// more than half of the slots, nearly every slot would hold a known key, and no generation would
/// end.
const GENERATION_PART: u64 = 4;

/// A table of the generations in which keys were seen last.
pub struct Doorkeeper {
    /// Indexed by hash: the generation in which a key with this hash was last seen; 0 if never.
    slots: Reserved<AtomicU8>,
    /// The present generation, from 1 on. Keys of this generation and the one before it are known.
    generation: AtomicU8,
    /// Counted newcomers of this generation.
    newcomers: AtomicU64,
    _lease: Lease,
}

impl Doorkeeper {
    /// Makes a doorkeeper of `slots` slots, each a byte of `budget`; `None` if the budget has no
    /// room.
    pub fn new(budget: &Budget, slots: u64) -> Option<Self> {
        let slots = usize::try_from(slots).ok()?.clamp(1, u32::MAX as usize);
        let lease = budget.lease(Kind::Objects, slots as u64).ok()?;
        // SAFETY: all-zero bytes are a valid zero, and a slot is an atomic.
        let slots = unsafe { Reserved::zeroed(slots, budget.backing()) }.ok()?;
        Some(Self {
            slots,
            generation: AtomicU8::new(1),
            newcomers: AtomicU64::new(0),
            _lease: lease,
        })
    }

    /// Whether a key with this hash was seen recently. Records that it was seen now.
    #[inline]
    pub fn has_seen(&self, hash: u64) -> bool {
        let slot =
            &self.slots[(((hash & u64::from(u32::MAX)) * self.slots.len() as u64) >> 32) as usize];
        // Relaxed, here and below: a stale generation only causes a wrong report (invariant 1).
        let (now, seen) = (self.generation.load(Ordering::Relaxed), slot.load(Ordering::Relaxed));
        if seen == now {
            return true;
        }
        slot.store(now, Ordering::Relaxed);
        let is_known = seen > 0 && after(seen) == now;
        if !is_known && (hash >> 32).is_multiple_of(NEWCOMERS_A_COUNT) {
            self.count();
        }
        is_known
    }

    /// Counts a newcomer. Begins the next generation once newcomers have taken their part of the
    /// slots.
    #[cold]
    fn count(&self) {
        let counted = self.newcomers.fetch_add(1, Ordering::Relaxed) + 1;
        if counted * NEWCOMERS_A_COUNT >= self.slots.len() as u64 / GENERATION_PART {
            self.newcomers.store(0, Ordering::Relaxed);
            self.generation
                .store(after(self.generation.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }
}

/// The next generation. Numbers recur after 255 generations, which invariant 1 allows.
fn after(generation: u8) -> u8 {
    if generation == u8::MAX { 1 } else { generation + 1 }
}

impl fmt::Debug for Doorkeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Doorkeeper({} slots, generation {})",
            self.slots.len(),
            self.generation.load(Ordering::Relaxed)
        )
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use super::*;
    use crate::budget::Backing;

    fn hash(key: u64) -> u64 {
        plimsoll_disk::checksum::checksum(0, &key.to_le_bytes())
    }

    /// A doorkeeper of 16,384 slots.
    fn doorkeeper() -> Doorkeeper {
        Doorkeeper::new(&Budget::new(1 << 20, Backing::Heap).unwrap(), 1 << 14).unwrap()
    }

    #[test]
    fn has_seen_recognizes_a_key_on_its_second_request() {
        let door = doorkeeper();
        let strangers = (0..1000).filter(|key| !door.has_seen(hash(*key))).count();
        assert!(strangers > 950, "{strangers}: few share a slot with an earlier key");
        assert!((0..1000).all(|key| door.has_seen(hash(key))));
    }

    #[test]
    fn key_is_forgotten_after_many_newcomers() {
        let door = doorkeeper();
        let strangers_of =
            |keys: std::ops::Range<u64>| keys.filter(|key| !door.has_seen(hash(*key))).count();
        strangers_of(0..1000);
        // Ten times as many as there are slots.
        strangers_of(1000..165_000);
        let (forgotten, new) = (strangers_of(0..1000), strangers_of(200_000..201_000));
        assert!(forgotten > 100 && new > 100, "{forgotten} {new} {door:?}");
        let again = strangers_of(200_000..201_000);
        assert!(again < 20, "{again}");
    }

    #[test]
    fn new_returns_none_without_memory() {
        let budget = Budget::new(1 << 20, Backing::Heap).unwrap();
        let rest = budget.lease(Kind::Sort, budget.free_bytes()).unwrap();
        assert!(Doorkeeper::new(&budget, 1 << 14).is_none());
        drop(rest);
        assert!(Doorkeeper::new(&budget, 1 << 14).is_some());
    }
}
