//! The bytes of values, derived from a length and a seed, so that the model need not hold the
//! bytes.

use plimsoll_disk::random::Random;

/// Longer values are compressed in several chunks.
const LONG_BYTES: usize = 64 << 10;

/// A value's bytes, by length and seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Content {
    /// The length.
    pub bytes: u32,
    /// The seed. Even seeds make bytes that compress well, odd ones bytes that do not. For one even
    /// seed in four, only the first half of each long value compresses.
    pub seed: u32,
}

impl Content {
    /// The bytes.
    pub fn make(&self) -> Vec<u8> {
        let len = self.bytes as usize;
        if len == 8 {
            // A number, so that it can be added to.
            return i64::from(self.seed).to_le_bytes().to_vec();
        }
        let mut random = Random::new(u64::from(self.seed) << 32 | u64::from(self.bytes));
        let mut out = Vec::with_capacity(len + 8);
        let repeated = self.seed.is_multiple_of(2).then(|| random.next_u64());
        let packed = if len > LONG_BYTES && self.seed % 8 == 4 { len / 2 } else { len };
        while out.len() < len {
            let word = repeated.filter(|_| out.len() < packed).map_or_else(
                || random.next_u64(),
                |word| word.wrapping_add(out.len() as u64 / 512),
            );
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.truncate(len);
        out
    }

    /// Whether these are the bytes.
    pub fn is(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.bytes as usize && bytes == self.make()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_matches_only_its_own_bytes() {
        for bytes in [0, 1, 7, 8, 9, 1000, 70_000] {
            for seed in [1, 2] {
                let content = Content { bytes, seed };
                let mut made = content.make();
                assert!(content.is(&made));
                if let Some(last) = made.last_mut() {
                    *last ^= 1;
                    assert!(!content.is(&made));
                }
            }
        }
        assert_ne!(Content { bytes: 64, seed: 2 }.make(), Content { bytes: 64, seed: 4 }.make());
    }
}
