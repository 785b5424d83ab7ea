//! What a trace is replayed against: the cache itself under its policies, or a plain model of a policy that others use.
//!
//! The models are bounded by bytes like the cache, but are made of ordinary maps: for hit ratios, not for speed. With everything counted
//! they are charged 40 bytes an entry beside key and value, the most that the cache takes for one.

use std::collections::HashMap;

use plimsoll_disk::checksum::checksum;
use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::cache::{Cache, CacheOptions, Counting, Eviction};

use super::lists::{Links, List};
use super::sketch::Sketch;
use crate::args::{Count, Policy};
use crate::exit::{Exit, Failure};

const OVERHEAD_BYTES: u64 = 40;

/// The smallest cache.
pub(super) const MIN_MEMORY_BYTES: u64 = plimsoll_memory::cache::MIN_CACHE_BYTES;

/// The largest cache. With [`Count::Value`] keys and all else beside the values come out of the same.
pub(super) fn max_memory_bytes(count: Count) -> u64 {
    match count {
        Count::Everything => plimsoll_memory::cache::MAX_CACHE_BYTES,
        Count::Value => plimsoll_memory::cache::MAX_CACHE_BYTES / 2,
    }
}

/// Something that keeps some of what it is given.
pub(super) trait Subject {
    /// Whether there is a value.
    fn find(&mut self, key: &[u8]) -> bool;
    /// Enters a value of so many bytes; `filler` is at least as long, or the value is too large to be kept.
    fn set(&mut self, key: &[u8], value_bytes: u64, filler: &[u8]);
    /// Removes a value.
    fn remove(&mut self, key: &[u8]);
    /// Entries that left to make room, entries there are, and the memory in use by its own count.
    fn counts(&self) -> Counts;
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) evictions: u64,
    pub(super) entries: u64,
    pub(super) memory_bytes: u64,
}

/// The subject for a policy, of `memory_bytes`.
pub(super) fn of(policy: Policy, memory_bytes: u64, count: Count, largest: f64) -> Result<Box<dyn Subject>, Failure> {
    let eviction = match policy {
        Policy::S3Fifo => Eviction::S3Fifo,
        Policy::Clock => Eviction::Clock,
        Policy::Fifo => Eviction::Fifo,
        Policy::Lru | Policy::Sieve | Policy::Wtinylfu => {
            return Ok(Box::new(Model::new(policy, memory_bytes, count, largest)));
        }
    };
    let mut options = CacheOptions::of_bytes(memory_bytes);
    options.eviction = eviction;
    options.largest_part = largest;
    let room = match count {
        Count::Everything => memory_bytes + memory_bytes / 64 + (1 << 20),
        // Values of a few bytes may need many times their own bytes beside them.
        Count::Value => {
            options.counting = Counting::Values;
            (memory_bytes * 16 + (64 << 20)).min(plimsoll_memory::cache::MAX_CACHE_BYTES)
        }
    };
    let budget = Budget::new(room, Backing::Mapped).map_err(|error| Failure::system(format!("no memory: {error}")))?;
    let cache = Cache::new(&budget, options).map_err(|refusal| Failure::new(Exit::Memory, refusal.to_string()))?;
    Ok(Box::new(cache))
}

impl Subject for Cache {
    fn find(&mut self, key: &[u8]) -> bool {
        // Each cache line is looked at, as by somebody who wants the value.
        let look_at = |piece: &[u8]| {
            std::hint::black_box(sum_of(piece));
        };
        self.read(key, |value| value.pieces().for_each(look_at)).is_some()
    }

    fn set(&mut self, key: &[u8], value_bytes: u64, filler: &[u8]) {
        match usize::try_from(value_bytes).ok().and_then(|len| filler.get(..len)) {
            Some(value) => {
                self.insert(key, value);
            }
            None => Subject::remove(self, key),
        }
    }

    fn remove(&mut self, key: &[u8]) {
        Cache::remove(self, key);
    }

    fn counts(&self) -> Counts {
        let stats = self.stats();
        Counts { evictions: stats.evictions, entries: stats.entries, memory_bytes: stats.memory_bytes }
    }
}

/// The first byte of each cache line, added up.
fn sum_of(piece: &[u8]) -> u64 {
    piece.iter().step_by(64).map(|byte| u64::from(*byte)).sum()
}

/// A policy of others, over the hashes of keys.
struct Model {
    policy: Policy,
    limit: u64,
    largest: u64,
    count: Count,
    places: HashMap<u64, u32>,
    links: Links,
    /// LRU and SIEVE use the first; W-TinyLFU has a window, a probation and a protected list.
    lists: [List; 3],
    hand: Option<u32>,
    sketch: Sketch,
    evictions: u64,
}

const WINDOW: usize = 1;
const PROTECTED: usize = 2;

impl Model {
    fn new(policy: Policy, limit: u64, count: Count, largest: f64) -> Self {
        Self {
            policy,
            limit,
            largest: (limit as f64 * largest) as u64,
            count,
            places: HashMap::new(),
            links: Links::default(),
            lists: [List::default(); 3],
            hand: None,
            sketch: Sketch::new(limit / 512),
            evictions: 0,
        }
    }

    fn used(&self) -> u64 {
        self.lists.iter().map(|list| list.bytes).sum()
    }

    fn drop_place(&mut self, place: u32) {
        let node = self.links.node(place);
        if self.hand == Some(place) {
            self.hand = node.younger;
        }
        self.places.remove(&node.hash);
        self.links.remove(&mut self.lists[usize::from(node.list)], place);
    }

    fn evict(&mut self, place: u32) {
        self.drop_place(place);
        self.evictions += 1;
    }

    /// Moves to the young end of a list.
    fn move_to(&mut self, place: u32, list: usize) {
        let from = usize::from(self.links.node(place).list);
        let node = self.links.unlink(&mut self.lists[from], place);
        self.links.push(&mut self.lists[list], place, list as u8, node);
    }

    fn touch(&mut self, place: u32) {
        match (self.policy, usize::from(self.links.node(place).list)) {
            (Policy::Sieve, _) => self.links.mark(place, true),
            (Policy::Wtinylfu, 0 | PROTECTED) => {
                self.move_to(place, PROTECTED);
                // Four fifths of all but the window.
                while self.lists[PROTECTED].bytes > self.limit / 100 * 79 {
                    let Some(oldest) = self.lists[PROTECTED].oldest else { break };
                    self.move_to(oldest, 0);
                }
            }
            (_, list) => self.move_to(place, list),
        }
    }

    /// SIEVE: the hand goes from old to young, spares what is marked, and stays where it is.
    fn evict_by_hand(&mut self) {
        while let Some(place) = self.hand.or(self.lists[0].oldest) {
            if !self.links.node(place).marked {
                self.hand = self.links.node(place).younger;
                self.evict(place);
                return;
            }
            self.links.mark(place, false);
            self.hand = self.links.node(place).younger;
        }
    }

    /// W-TinyLFU: what the window has no room for enters the main part if it was asked for more often than all that it displaces.
    fn settle_window(&mut self) {
        let main = self.limit - self.limit / 100;
        while self.lists[WINDOW].bytes > self.limit / 100 {
            let Some(candidate) = self.lists[WINDOW].oldest else { return };
            let (hash, bytes) = (self.links.node(candidate).hash, self.links.node(candidate).bytes);
            let worth = self.sketch.frequency(hash);
            let (mut victims, mut freed, mut displaced) = (Vec::new(), 0, 0);
            let mut next = self.lists[0].oldest.or(self.lists[PROTECTED].oldest);
            let missing = (self.lists[0].bytes + self.lists[PROTECTED].bytes + bytes).saturating_sub(main);
            while let Some(place) = next.filter(|_| freed < missing && displaced < worth) {
                let node = self.links.node(place);
                displaced += self.sketch.frequency(node.hash);
                freed += node.bytes;
                victims.push(place);
                next = node.younger.or(if node.list == 0 { self.lists[PROTECTED].oldest } else { None });
            }
            if freed < missing || (missing > 0 && displaced >= worth) {
                self.evict(candidate);
            } else {
                victims.into_iter().for_each(|victim| self.evict(victim));
                self.move_to(candidate, 0);
            }
        }
    }
}

impl Subject for Model {
    fn find(&mut self, key: &[u8]) -> bool {
        let hash = checksum(0, key);
        self.sketch.add(hash);
        let place = self.places.get(&hash).copied();
        place.inspect(|place| self.touch(*place)).is_some()
    }

    fn set(&mut self, key: &[u8], value_bytes: u64, _: &[u8]) {
        self.remove(key);
        let bytes = match self.count {
            Count::Value => value_bytes,
            Count::Everything => value_bytes + key.len() as u64 + OVERHEAD_BYTES,
        };
        if bytes > self.largest {
            return;
        }
        let hash = checksum(0, key);
        let list = if self.policy == Policy::Wtinylfu { WINDOW } else { 0 };
        match self.policy {
            Policy::Sieve => {
                while self.used() + bytes > self.limit {
                    self.evict_by_hand();
                }
            }
            Policy::Wtinylfu => {}
            _ => {
                while self.used() + bytes > self.limit {
                    let oldest = self.lists[0].oldest.expect("an entry that is in use");
                    self.evict(oldest);
                }
            }
        }
        let place = self.links.enter(&mut self.lists[list], list as u8, hash, bytes);
        self.places.insert(hash, place);
        if self.policy == Policy::Wtinylfu {
            self.settle_window();
        }
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(place) = self.places.get(&checksum(0, key)).copied() {
            self.drop_place(place);
        }
    }

    fn counts(&self) -> Counts {
        Counts { evictions: self.evictions, entries: self.places.len() as u64, memory_bytes: self.used() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_or_set(subject: &mut dyn Subject, key: u64, bytes: u64) -> bool {
        let key = key.to_le_bytes();
        let found = subject.find(&key);
        if !found {
            subject.set(&key, bytes, &[0; 64 << 10]);
        }
        found
    }

    #[test]
    fn no_policy_keeps_more_bytes_than_it_may() {
        for policy in [Policy::Lru, Policy::Sieve, Policy::Wtinylfu] {
            let mut model = Model::new(policy, 64 << 10, Count::Value, 0.5);
            let mut random = fastrand::Rng::with_seed(1);
            for _ in 0..20_000 {
                let key = random.u64(..200) * random.u64(..20);
                find_or_set(&mut model, key, 1 + key % 3000);
                assert!(model.used() <= 64 << 10, "{policy:?}");
                assert_eq!(model.lists.iter().map(|list| list.len).sum::<usize>(), model.places.len());
            }
            assert!(model.counts().entries > 20, "{policy:?}");
        }
    }

    #[test]
    fn lru_keeps_what_was_used_last_and_sieve_what_was_used_at_all() {
        let mut lru = Model::new(Policy::Lru, 300, Count::Value, 1.0);
        let mut sieve = Model::new(Policy::Sieve, 300, Count::Value, 1.0);
        for model in [&mut lru, &mut sieve] {
            for key in [1, 2, 3, 1, 4] {
                find_or_set(model, key, 100);
            }
            assert!(model.find(&1_u64.to_le_bytes()) && !model.find(&2_u64.to_le_bytes()));
        }
    }

    #[test]
    fn the_cache_as_a_subject_counts_like_the_models() {
        for (policy, least) in [(Policy::S3Fifo, 0.4), (Policy::Wtinylfu, 0.4), (Policy::Fifo, 0.2)] {
            let mut subject = of(policy, 1 << 20, Count::Value, 0.25).unwrap();
            let mut random = fastrand::Rng::with_seed(2);
            let hits = (0..50_000).filter(|_| {
                let key = (random.f64().powi(4) * 10_000.0) as u64;
                find_or_set(&mut *subject, key, 500)
            });
            let ratio = hits.count() as f64 / 50_000.0;
            assert!(ratio > least, "{policy:?}: {ratio}");
        }
    }
}
