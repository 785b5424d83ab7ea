//! The one checksum: XXH3, 64 bits, seeded.
//!
//! The seed says *where* the bytes must stand (which store, which file, which place), so that good bytes in a wrong place fail
//! as well. Algorithm: Yann Collet, xxHash (XXH3_64bits_withSeed).

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Checksum of `bytes` under `seed`.
pub fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}

/// Mixes parts of a place (store, file, offset) into a seed; the order of the parts matters.
pub fn seed(parts: &[u64]) -> u64 {
    parts.iter().fold(0x706c_696d_736f_6c6c, |seed, part| seed_with(seed, *part))
}

/// Mixes one part more into a seed: `seed(&[a, b])` is `seed_with(seed(&[a]), b)`.
#[inline]
pub fn seed_with(seed: u64, part: u64) -> u64 {
    xxh3_64_with_seed(&part.to_le_bytes(), seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_depends_on_the_bytes_and_on_the_place() {
        assert_ne!(checksum(1, b"abc"), checksum(1, b"abd"));
        assert_ne!(checksum(1, b"abc"), checksum(2, b"abc"));
        assert_ne!(seed(&[1, 2]), seed(&[2, 1]));
        assert_eq!(seed(&[1, 2]), seed_with(seed(&[1]), 2));
    }

    #[test]
    fn the_bytes_on_disk_never_change_their_checksum() {
        assert_eq!(checksum(0, b""), 0x2d06_8005_38d3_94c2);
    }
}
