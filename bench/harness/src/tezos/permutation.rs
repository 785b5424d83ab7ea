//! A seeded permutation of the numbers below a count, which can be evaluated in both directions and
//! takes no memory.
//!
//! A balanced Feistel network over the next power of four; results out of range are sent through
//! again until they are in range (Black and Rogaway, "Ciphers with arbitrary finite domains",
//! 2002). Its randomness suffices for a workload, and nothing more.

use crate::payload::mix;

const ROUNDS: u64 = 4;

#[derive(Clone, Copy, Debug)]
pub(super) struct Permutation {
    count: u64,
    half_bits: u32,
    seed: u64,
}

impl Permutation {
    /// A permutation of the numbers below `count`, which is not 0.
    pub(super) fn new(count: u64, seed: u64) -> Self {
        let bits = u64::BITS - (count - 1).leading_zeros();
        Self { count, half_bits: bits.div_ceil(2).max(1), seed }
    }

    /// The number at a place.
    pub(super) fn at(&self, place: u64) -> u64 {
        self.walk(place, |left, right, round| (right, left ^ self.scramble(right, round)), false)
    }

    /// The place of a number: `place_of(at(i)) == i`.
    pub(super) fn place_of(&self, number: u64) -> u64 {
        self.walk(number, |left, right, round| (right ^ self.scramble(left, round), left), true)
    }

    fn walk(&self, from: u64, step: impl Fn(u64, u64, u64) -> (u64, u64), backward: bool) -> u64 {
        let mut number = from;
        loop {
            let (mut left, mut right) = (number >> self.half_bits, number & self.mask());
            for round in 0..ROUNDS {
                let round = if backward { ROUNDS - 1 - round } else { round };
                (left, right) = step(left, right, round);
            }
            number = left << self.half_bits | right;
            if number < self.count {
                return number;
            }
        }
    }

    fn scramble(&self, half: u64, round: u64) -> u64 {
        mix(half.wrapping_add(self.seed).wrapping_add(round << 56)) & self.mask()
    }

    fn mask(&self) -> u64 {
        (1 << self.half_bits) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_one_place_and_is_found_there() {
        for count in [1, 2, 3, 10, 64, 1000, 4097] {
            let order = Permutation::new(count, 7);
            let mut numbers: Vec<u64> = (0..count).map(|place| order.at(place)).collect();
            assert!(
                (0..count).all(|place| order.place_of(numbers[place as usize]) == place),
                "{count}"
            );
            numbers.sort_unstable();
            assert!(numbers.into_iter().eq(0..count), "{count}");
        }
    }

    #[test]
    fn another_seed_is_another_order() {
        let orders = [1, 2].map(|seed| Permutation::new(1000, seed));
        let same = (0..1000).filter(|&place| orders[0].at(place) == orders[1].at(place)).count();
        assert!(same < 20, "{same}");
    }
}
