//! Models of policies that the object cache does not have: FIFO, CLOCK, LRU, SIEVE and W-TinyLFU.
//!
//! A model keeps hashes of keys in ordinary maps, and is limited by bytes like the cache. It
//! compares hit ratios, not speed. An entry costs 40 bytes in addition to its key and value, the
//! maximum overhead of the cache.

use std::collections::HashMap;

use plimsoll_disk::checksum::checksum;

use crate::lists::{Links, List};
use crate::policy::Policy;
use crate::sketch::Sketch;
use crate::subject::{Held, Subject};

const OVERHEAD_BYTES: u64 = 40;

/// A model of a policy.
pub(crate) struct Model {
    policy: Policy,
    limit: u64,
    largest: u64,
    places: HashMap<u64, u32>,
    links: Links,
    /// All policies but W-TinyLFU use only the first list. W-TinyLFU has a probation, a window and
    /// a protected list, in this order.
    lists: [List; 3],
    /// The hand of SIEVE.
    hand: Option<u32>,
    sketch: Sketch,
    evictions: u64,
}

const WINDOW: usize = 1;
const PROTECTED: usize = 2;

impl Model {
    /// The model of a policy other than [`Policy::S3Fifo`].
    pub(crate) fn new(policy: Policy, limit: u64, largest: f64) -> Self {
        Self {
            policy,
            limit,
            largest: (limit as f64 * largest) as u64,
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
            (Policy::Fifo, _) => {}
            (Policy::Clock | Policy::Sieve, _) => self.links.mark(place, true),
            (Policy::Wtinylfu, 0 | PROTECTED) => {
                self.move_to(place, PROTECTED);
                // Four fifths of the memory outside the window.
                while self.lists[PROTECTED].bytes > self.limit / 100 * 79 {
                    let Some(oldest) = self.lists[PROTECTED].oldest else { break };
                    self.move_to(oldest, 0);
                }
            }
            (_, list) => self.move_to(place, list),
        }
    }

    /// CLOCK: moves marked entries from the old end to the young one, clears their marks, and
    /// evicts the first unmarked entry.
    fn evict_by_clock(&mut self) {
        while let Some(oldest) = self.lists[0].oldest {
            if !self.links.node(oldest).marked {
                self.evict(oldest);
                return;
            }
            self.links.mark(oldest, false);
            self.move_to(oldest, 0);
        }
    }

    /// SIEVE: the hand moves from old to young, clears marks, evicts the first unmarked entry, and
    /// stays there.
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

    /// W-TinyLFU: moves the oldest entry of a full window to the main part if it was requested more
    /// often than all entries it displaces together; evicts it otherwise.
    fn settle_window(&mut self) {
        let main = self.limit - self.limit / 100;
        while self.lists[WINDOW].bytes > self.limit / 100 {
            let Some(candidate) = self.lists[WINDOW].oldest else { return };
            let (hash, bytes) = (self.links.node(candidate).hash, self.links.node(candidate).bytes);
            let worth = self.sketch.frequency(hash);
            let (mut victims, mut freed, mut displaced) = (Vec::new(), 0, 0);
            let mut next = self.lists[0].oldest.or(self.lists[PROTECTED].oldest);
            let missing =
                (self.lists[0].bytes + self.lists[PROTECTED].bytes + bytes).saturating_sub(main);
            while let Some(place) = next.filter(|_| freed < missing && displaced < worth) {
                let node = self.links.node(place);
                displaced += self.sketch.frequency(node.hash);
                freed += node.bytes;
                victims.push(place);
                next = node.younger.or(if node.list == 0 {
                    self.lists[PROTECTED].oldest
                } else {
                    None
                });
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
        let bytes = value_bytes.saturating_add(key.len() as u64 + OVERHEAD_BYTES);
        if bytes > self.largest {
            return;
        }
        let hash = checksum(0, key);
        let list = if self.policy == Policy::Wtinylfu { WINDOW } else { 0 };
        match self.policy {
            Policy::Clock => {
                while self.used() + bytes > self.limit {
                    self.evict_by_clock();
                }
            }
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

    fn held(&self) -> Held {
        Held {
            evictions: self.evictions,
            entries: self.places.len() as u64,
            memory_bytes: self.used(),
        }
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
    fn policies_keep_to_the_limit() {
        for policy in [Policy::Fifo, Policy::Clock, Policy::Lru, Policy::Sieve, Policy::Wtinylfu] {
            let mut model = Model::new(policy, 64 << 10, 0.5);
            let mut random = fastrand::Rng::with_seed(1);
            for _ in 0..20_000 {
                let key = random.u64(..200) * random.u64(..20);
                find_or_set(&mut model, key, 1 + key % 3000);
                assert!(model.used() <= 64 << 10, "{policy:?}");
                assert_eq!(
                    model.lists.iter().map(|list| list.len).sum::<usize>(),
                    model.places.len()
                );
            }
            assert!(model.held().entries > 20, "{policy:?}");
        }
    }

    #[test]
    fn only_fifo_evicts_a_used_entry() {
        let three_entries = 3 * (100 + 8 + OVERHEAD_BYTES);
        for policy in [Policy::Fifo, Policy::Clock, Policy::Lru, Policy::Sieve] {
            let mut model = Model::new(policy, three_entries, 1.0);
            for key in [1, 2, 3, 1, 4] {
                find_or_set(&mut model, key, 100);
            }
            let has = [1, 2, 3, 4_u64]
                .map(|key| model.places.contains_key(&checksum(0, &key.to_le_bytes())));
            assert_eq!(
                has,
                if policy == Policy::Fifo {
                    [false, true, true, true]
                } else {
                    [true, false, true, true]
                }
            );
        }
    }
}
