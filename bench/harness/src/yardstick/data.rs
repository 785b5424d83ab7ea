//! Keys and values of the yardstick, the same for every store. All derive from a number, so nothing
//! has to be stored to check them.
//!
//! A key has 16 bytes: the digits of 64 bits. A value compresses to about half: its second half
//! repeats the first, which does not compress, and its first 8 bytes name its key, whichever
//! version it is.

use crate::payload;

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 16;

/// Bytes of a value that name its key.
const NAME_BYTES: usize = 8;

/// The key of a number, in random order.
pub(crate) fn key(number: u64) -> [u8; KEY_BYTES] {
    digits(payload::mix(number))
}

/// The key of a number, in ascending order.
pub(crate) fn key_in_order(number: u64) -> [u8; KEY_BYTES] {
    digits(number)
}

/// A key of no number below 2^63, near existing keys.
pub(crate) fn missing_key(number: u64) -> [u8; KEY_BYTES] {
    key(number | 1 << 63)
}

fn digits(bits: u64) -> [u8; KEY_BYTES] {
    std::array::from_fn(|i| b"0123456789abcdef"[(bits >> (60 - 4 * i)) as usize & 15])
}

/// Fills in a version of the value of a number.
pub(crate) fn fill_value(number: u64, version: u64, value: &mut [u8]) {
    let (first, second) = value.split_at_mut(value.len().div_ceil(2));
    payload::fill(number ^ payload::mix(version), first);
    let name = first.len().min(NAME_BYTES);
    first[..name].copy_from_slice(&number.to_le_bytes()[..name]);
    second.copy_from_slice(&first[..second.len()]);
}

/// Whether this can be a value of a number.
pub(crate) fn is_value_of(number: u64, value: &[u8], value_bytes: usize) -> bool {
    value.len() == value_bytes && value.starts_with(&number.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_ordered_as_their_bits_are() {
        assert_eq!(&key_in_order(0x0123_4567_89ab_cdef), b"0123456789abcdef");
        assert!(key_in_order(9) < key_in_order(10) && key_in_order(255) < key_in_order(256));
        assert!((0..1000).all(|number| key(number) != missing_key(number)));
    }

    #[test]
    fn a_value_names_its_number_in_every_version() {
        let mut value = [0; 100];
        for version in 0..3 {
            fill_value(7, version, &mut value);
            assert!(is_value_of(7, &value, 100));
            assert!(!is_value_of(8, &value, 100) && !is_value_of(7, &value, 101));
            assert_eq!(value[..50], value[50..]);
        }
        let mut other = [0; 100];
        fill_value(7, 3, &mut other);
        assert_ne!(value, other);
    }
}
