//! The only source of randomness.
//!
//! [`Random`] is for choices that a seed must replay (simulated faults, sampling); [`entropy`] is
//! for ids that must differ between machines; [`first_id_after`] is for file ids that must differ
//! between openings. None is for secrets. Algorithm of [`Random`]: splitmix64 (Sebastiano Vigna).

use std::io;

use rustix::rand::GetRandomFlags;

use crate::checksum::seed;

/// A stream of numbers determined by its seed.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number, uniformly distributed.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// `true` with probability `p`: never at 0, always at 1.
    pub fn chance(&mut self, p: f64) -> bool {
        // 53 bits, as many as the fraction holds, so that the quotient is exact and below 1.
        ((self.next_u64() >> 11) as f64 / (1u64 << 53) as f64) < p
    }
}

/// The first id that an opening assigns to a new file: above all known ids (`last`), plus a gap
/// below 2 to the power of `gap_bits` (at most 63) that depends on the clock.
///
/// An id seeds the checksums of its file's pages. A removed file leaves no trace of its id, but its
/// pages may still be on the disk. If an id were assigned twice, a lost write could leave an old
/// page with a valid checksum. Ids of n bits last for at least 2^(n - `gap_bits`) openings.
pub fn first_id_after(last: u64, wall_micros: u64, gap_bits: u32) -> u64 {
    let gap = seed(&[last, wall_micros]) & ((1 << gap_bits) - 1);
    last.saturating_add(1).saturating_add(gap)
}

/// 128 bits from the operating system.
pub fn entropy() -> io::Result<u128> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::io::retry_on_intr(|| {
            rustix::rand::getrandom(&mut bytes[filled..], GetRandomFlags::empty())
        })?;
    }
    Ok(u128::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_determines_the_stream() {
        let mut random = Random::new(1234567);
        assert_eq!(random.next_u64(), 6457827717110365317);
        assert_eq!(random.next_u64(), 3203168211198807973);
        let mut again = Random::new(1234567);
        assert_eq!(again.next_u64(), 6457827717110365317);
        assert_ne!(Random::new(1).next_u64(), Random::new(2).next_u64());
    }

    #[test]
    fn ids_differ_between_openings() {
        assert_ne!(first_id_after(7, 1_000_000, 32), first_id_after(7, 1_000_001, 32));
        assert!(
            (0..1000).all(|micros| (8..8 + (1 << 20)).contains(&first_id_after(7, micros, 20)))
        );
        assert!((0..1000).any(|micros| first_id_after(7, micros, 20) > 1 << 19));
        assert_eq!(first_id_after(u64::MAX, 5, 32), u64::MAX);
    }

    #[test]
    fn below_is_exhaustive_and_bounded() {
        let mut random = Random::new(3);
        let mut seen = [0; 5];
        (0..1000).for_each(|_| seen[random.below(5) as usize] += 1);
        assert!(seen.iter().all(|count| (150..250).contains(count)), "{seen:?}");
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn chance_matches_its_probability() {
        let mut random = Random::new(4);
        let hits = (0..10_000).filter(|_| random.chance(0.3)).count();
        assert!((2800..3200).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| !random.chance(0.0) && random.chance(1.0)));
    }

    #[test]
    fn entropy_differs_per_call() {
        assert_ne!(entropy().unwrap(), entropy().unwrap());
    }
}
