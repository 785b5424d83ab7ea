//! Leaves with equal write frequency, and the contents of each after any number of writes, without
//! recording them.
//!
//! Invariant: writes go in rounds; each round writes every leaf once, in a separate order that can
//! be evaluated in both directions. So the last write of a leaf is in this round or the previous
//! one, and its number can be computed.

use super::leaf::Leaf;
use super::permutation::Permutation;
use crate::payload::mix;

/// Leaves `first` to `first + count - 1` of a kind.
#[derive(Clone, Debug)]
pub(super) struct Tier {
    leaf: fn(u64) -> Leaf,
    first: u64,
    pub(super) count: u64,
    seed: u64,
    writes: u64,
}

impl Tier {
    /// Leaves not written yet.
    pub(super) fn new(leaf: fn(u64) -> Leaf, first: u64, count: u64, seed: u64) -> Self {
        Self { leaf, first, count, seed: mix(mix(first) ^ seed), writes: 0 }
    }

    /// A leaf by its number in the tier.
    pub(super) fn leaf(&self, slot: u64) -> Leaf {
        (self.leaf)(self.first + slot)
    }

    /// The leaf of the next write.
    pub(super) fn write(&mut self) -> u64 {
        let slot = self.order(self.writes / self.count).at(self.writes % self.count);
        self.writes += 1;
        slot
    }

    /// The number of a leaf's last write within the tier; 0: none.
    pub(super) fn version(&self, slot: u64) -> u64 {
        let (round, done) = (self.writes / self.count, self.writes % self.count);
        let place = self.order(round).place_of(slot);
        if place < done {
            return round * self.count + place + 1;
        }
        round
            .checked_sub(1)
            .map_or(0, |before| before * self.count + self.order(before).place_of(slot) + 1)
    }

    fn order(&self, round: u64) -> Permutation {
        Permutation::new(self.count, mix(self.seed.wrapping_add(round)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leafs_version_is_the_number_of_its_last_write() {
        for count in [1, 7, 100] {
            let mut tier = Tier::new(Leaf::Balance, 1000, count, 3);
            let mut noted = vec![0; count as usize];
            for write in 1..=4 * count + 2 {
                noted[tier.write() as usize] = write;
                assert!(
                    (0..count).all(|slot| tier.version(slot) == noted[slot as usize]),
                    "{count} {write}"
                );
            }
        }
    }

    #[test]
    fn rounds_differ() {
        let mut tier = Tier::new(Leaf::Counter, 0, 100, 3);
        let mut round = || (0..100).map(|_| tier.write()).collect::<Vec<_>>();
        assert_ne!(round(), round());
    }
}
