//! The state of the tree at each moment, computed rather than stored: tiers of leaves that are
//! written in turn, and a queue of keys created at one end and removed at the other.
//!
//! Unpublished parameters are chosen here and documented in `bench/README.md`: the share of writes
//! and reads for groups of leaves.

use super::leaf::Leaf;
use super::tier::Tier;

/// A part of the tree: leaves, how many of them for each entry of the large folder, and their share
/// of overwrites and of reads.
struct Part {
    leaf: fn(u64) -> Leaf,
    /// Leaves, as a part of the entries: from one over the first to one over the second.
    from: u64,
    to: u64,
    write_share: u32,
    read_share: u32,
}

/// Balances and counters of all contracts, the hot ones first; storages of some; keys of big maps.
const PARTS: [Part; 8] = [
    Part { leaf: Leaf::Balance, from: 0, to: 2000, write_share: 20, read_share: 14 },
    Part { leaf: Leaf::Balance, from: 2000, to: 40, write_share: 12, read_share: 10 },
    Part { leaf: Leaf::Balance, from: 40, to: 1, write_share: 3, read_share: 3 },
    Part { leaf: Leaf::Counter, from: 0, to: 2000, write_share: 8, read_share: 7 },
    Part { leaf: Leaf::Counter, from: 2000, to: 1, write_share: 0, read_share: 1 },
    Part { leaf: Leaf::Storage, from: 0, to: 1000, write_share: 9, read_share: 8 },
    Part { leaf: Leaf::BigMap, from: 0, to: 400, write_share: 6, read_share: 5 },
    Part { leaf: Leaf::BigMap, from: 400, to: 20, write_share: 4, read_share: 2 },
];

/// One key of the queue before the first commit per this many entries.
const QUEUED: u64 = 100;

/// Big-map keys from here on belong to the queue.
const QUEUE_FIRST: u64 = 1 << 40;

/// Contracts from here on do not exist.
const NOBODY_FIRST: u64 = 1 << 40;

/// A leaf that exists, existed, or never did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    InTier { tier: usize, slot: u64 },
    InQueue(u64),
    Nowhere(u64),
}

/// The tree.
#[derive(Clone, Debug)]
pub(super) struct Model {
    tiers: Vec<Tier>,
    removed: u64,
    added: u64,
}

impl Model {
    /// The tree before the first commit, with so many entries in its large folder.
    pub(super) fn new(entries: u64, seed: u64) -> Self {
        // A small number of entries still has a leaf of each kind.
        let bound =
            |part: u64, least: u64| entries.checked_div(part).map_or(0, |leaves| leaves.max(least));
        let tier = |part: &Part| {
            let first = bound(part.from, 1);
            Tier::new(
                part.leaf,
                first,
                bound(part.to, first + 1) - first,
                seed ^ u64::from(part.write_share),
            )
        };
        Self { tiers: PARTS.iter().map(tier).collect(), removed: 0, added: bound(QUEUED, 1) }
    }

    /// All leaves that exist before the first commit.
    pub(super) fn population(&self) -> impl Iterator<Item = Leaf> {
        let of_tiers =
            self.tiers.iter().flat_map(|tier| (0..tier.count).map(|slot| tier.leaf(slot)));
        of_tiers.chain((self.removed..self.added).map(queued))
    }

    /// The leaf of a place, and its version if it exists.
    pub(super) fn look(&self, place: Place) -> (Leaf, Option<u64>) {
        match place {
            Place::InTier { tier, slot } => {
                (self.tiers[tier].leaf(slot), Some(self.tiers[tier].version(slot)))
            }
            Place::InQueue(number) => {
                (queued(number), (self.removed..self.added).contains(&number).then_some(0))
            }
            Place::Nowhere(number) => (Leaf::Balance(NOBODY_FIRST + number), None),
        }
    }

    /// Overwrites a leaf.
    pub(super) fn overwrite(&mut self, random: &mut fastrand::Rng) -> Place {
        let tier = draw(random, |part| part.write_share);
        Place::InTier { tier, slot: self.tiers[tier].write() }
    }

    /// Adds a missing leaf.
    pub(super) fn add(&mut self) -> Place {
        self.added += 1;
        Place::InQueue(self.added - 1)
    }

    /// Removes the oldest leaf of the queue; `None` if there is none.
    pub(super) fn remove(&mut self) -> Option<Place> {
        (self.removed < self.added).then(|| {
            self.removed += 1;
            Place::InQueue(self.removed - 1)
        })
    }

    /// An existing leaf, favouring popular ones.
    pub(super) fn somewhere(&self, random: &mut fastrand::Rng) -> Place {
        let tier = draw(random, |part| part.read_share);
        Place::InTier { tier, slot: random.u64(..self.tiers[tier].count) }
    }

    /// A missing leaf: a contract that never existed, a removed key, or a future one.
    pub(super) fn nowhere(&self, random: &mut fastrand::Rng) -> Place {
        match random.u32(..4) {
            0 if self.removed > 0 => Place::InQueue(random.u64(..self.removed)),
            1 => Place::InQueue(self.added + random.u64(..1000)),
            _ => Place::Nowhere(random.u64(..1 << 20)),
        }
    }
}

fn queued(number: u64) -> Leaf {
    Leaf::BigMap(QUEUE_FIRST + number)
}

/// A part of the tree, with probability proportional to its share.
fn draw(random: &mut fastrand::Rng, share: fn(&Part) -> u32) -> usize {
    let all: u32 = PARTS.iter().map(share).sum();
    let mut at = random.u32(..all);
    let found = PARTS.iter().position(|part| match at.checked_sub(share(part)) {
        Some(rest) => {
            at = rest;
            false
        }
        None => true,
    });
    found.expect("the number is below the sum of the shares")
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    #[test]
    fn the_large_folder_has_its_entries_and_no_leaf_comes_twice() {
        let model = Model::new(4000, 1);
        let leaves: Vec<Leaf> = model.population().collect();
        let balances = leaves.iter().filter(|leaf| matches!(leaf, Leaf::Balance(_))).count();
        assert_eq!(balances, 4000);
        assert_eq!(leaves.iter().collect::<HashSet<_>>().len(), leaves.len());
    }

    #[test]
    fn the_model_agrees_with_a_map() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut model = Model::new(500, 9);
        let mut map: HashMap<Leaf, u64> = model.population().map(|leaf| (leaf, 0)).collect();
        let look = |model: &Model, place| model.look(place);
        for step in 0..20_000 {
            match step % 16 {
                0 => {
                    let removed = model.remove().map(|place| model.look(place).0);
                    assert!(removed.is_none_or(|leaf| map.remove(&leaf).is_some()));
                }
                1 | 2 => {
                    let place = model.add();
                    let (leaf, version) = look(&model, place);
                    assert!(map.insert(leaf, version.unwrap()).is_none());
                }
                _ => {
                    let place = model.overwrite(&mut random);
                    let (leaf, version) = look(&model, place);
                    assert_ne!(map.insert(leaf, version.unwrap()), version, "{leaf:?}");
                }
            }
            for place in [model.somewhere(&mut random), model.nowhere(&mut random)] {
                let (leaf, version) = look(&model, place);
                assert_eq!(map.get(&leaf).copied(), version, "{leaf:?}");
            }
        }
    }
}
