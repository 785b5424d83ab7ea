//! Key comparison and varint decoding for the hot paths of pages.

use std::cmp::Ordering;

use plimsoll_disk::codec::Reader;

/// Length of the common prefix of two keys.
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let bound = a.len().min(b.len());
    let mut at = 0;
    // Compare eight bytes at a time, because sorted keys have long common prefixes.
    for (left, right) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        let difference = word(left) ^ word(right);
        if difference != 0 {
            return at + (difference.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while at < bound && a[at] == b[at] {
        at += 1;
    }
    at
}

/// The length of the common prefix, and the order of two keys.
pub(crate) fn compare(a: &[u8], b: &[u8]) -> (usize, Ordering) {
    let common = common_prefix(a, b);
    let order = match (a.get(common), b.get(common)) {
        (Some(left), Some(right)) => left.cmp(right),
        (left, right) => left.is_some().cmp(&right.is_some()),
    };
    (common, order)
}

/// Decodes the varint at `at`, and moves `at` past it.
#[inline]
pub(crate) fn varint_at(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let first = *bytes.get(*at)?;
    if first < 0x80 {
        *at += 1;
        return Some(u64::from(first));
    }
    // Two bytes are as frequent as one: values of 32 bytes and more have a two-byte length.
    if let Some(&second @ 1..0x80) = bytes.get(*at + 1) {
        *at += 2;
        return Some(u64::from(first & 0x7f) | u64::from(second) << 7);
    }
    let mut reader = Reader::new(bytes.get(*at..)?);
    let value = reader.varint()?;
    *at += reader.position();
    Some(value)
}

/// The two little-endian bytes at `at`.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + 2)?;
    Some(usize::from(u16::from_le_bytes([bytes[0], bytes[1]])))
}

/// The four little-endian bytes at `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

/// Maps a signed distance to an unsigned number that is small for small distances in both
/// directions.
pub(crate) fn zigzag(distance: i64) -> u64 {
    ((distance << 1) ^ (distance >> 63)) as u64
}

/// Undoes [`zigzag`].
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("chunks are eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_prefix_is_exact_at_every_length() {
        let key: Vec<u8> = (0..40).collect();
        for a_len in 0..40 {
            for b_len in 0..40 {
                for changed in 0..40 {
                    let mut other = key.clone();
                    other[changed] ^= 0x80;
                    let common = changed.min(a_len).min(b_len);
                    assert_eq!(common_prefix(&key[..a_len], &other[..b_len]), common);
                    assert_eq!(
                        compare(&key[..a_len], &other[..b_len]),
                        (common, key[..a_len].cmp(&other[..b_len]))
                    );
                }
            }
        }
    }

    #[test]
    fn zigzag_round_trips() {
        for distance in [0, 1, -1, 63, -64, i64::MAX, i64::MIN] {
            assert_eq!(unzigzag(zigzag(distance)), distance);
        }
        assert!(zigzag(-3) < 8 && zigzag(3) < 8);
    }
}
