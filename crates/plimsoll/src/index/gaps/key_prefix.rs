//! The beginning of an index key as a number, in the order of the keys: comparing numbers is cheap.

/// The first 16 bytes of a key as a number: the prefix and the beginning of the user's key decide
/// most comparisons.
pub(crate) fn prefix(key: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    let len = key.len().min(16);
    bytes[..len].copy_from_slice(&key[..len]);
    u128::from_be_bytes(bytes)
}
