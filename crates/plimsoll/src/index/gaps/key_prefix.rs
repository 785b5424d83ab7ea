//! The prefix of an index key as a number, in key order, so that comparisons are cheap.

/// The first 16 bytes of a key as a number. The keyspace and the beginning of the user's key decide
/// most comparisons.
pub(crate) fn prefix(key: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    let len = key.len().min(16);
    bytes[..len].copy_from_slice(&key[..len]);
    u128::from_be_bytes(bytes)
}
