//! The checksum: XXH3, 64 bits, seeded.
//!
//! The seed encodes the intended place of the bytes (store, file, offset), so that valid bytes at
//! the wrong place fail too. Algorithm: Yann Collet, xxHash (XXH3_64bits_withSeed).

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// Checksum of `bytes` under `seed`.
pub fn checksum(seed: u64, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, seed)
}

/// A checksum computed incrementally.
#[derive(Clone)]
pub struct Running(Box<Xxh3>);

impl Running {
    /// Starts a checksum of zero bytes under `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Box::new(Xxh3::with_seed(seed)))
    }

    /// Adds the next bytes.
    pub fn take(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes so far.
    pub fn sum(&self) -> u64 {
        self.0.digest()
    }

    /// The checksum of all bytes so far in 128 bits, for names that must differ wherever contents
    /// differ.
    pub fn sum128(&self) -> u128 {
        self.0.digest128()
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Running({:016x})", self.sum())
    }
}

/// Mixes the parts of a place (store, file, offset) into a seed; the order of the parts matters.
pub fn seed(parts: &[u64]) -> u64 {
    parts.iter().fold(0x706c_696d_736f_6c6c, |seed, part| seed_with(seed, *part))
}

/// Mixes one more part into a seed: `seed(&[a, b])` is `seed_with(seed(&[a]), b)`.
#[inline]
pub fn seed_with(seed: u64, part: u64) -> u64 {
    xxh3_64_with_seed(&part.to_le_bytes(), seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_depends_on_bytes_and_place() {
        assert_ne!(checksum(1, b"abc"), checksum(1, b"abd"));
        assert_ne!(checksum(1, b"abc"), checksum(2, b"abc"));
        assert_ne!(seed(&[1, 2]), seed(&[2, 1]));
        assert_eq!(seed(&[1, 2]), seed_with(seed(&[1]), 2));
    }

    #[test]
    fn incremental_checksum_equals_the_whole() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
        let mut running = Running::new(7);
        for piece in bytes.chunks(333) {
            running.take(piece);
        }
        assert_eq!(running.sum(), checksum(7, &bytes));
        assert_eq!(running.sum128(), xxhash_rust::xxh3::xxh3_128_with_seed(&bytes, 7));
    }

    #[test]
    fn checksum_values_are_stable() {
        assert_eq!(checksum(0, b""), 0x2d06_8005_38d3_94c2);
    }
}
