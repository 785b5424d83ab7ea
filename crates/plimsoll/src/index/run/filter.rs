//! Filters, which answer whether a key may be in a guide's leaves.
//!
//! A blocked Bloom filter: a key's hash selects one block of 64 bytes (one cache line) and
//! [`PROBES`] bits in it. An absent key passes with a probability below 1 %; a present one always
//! does. After Putze, Sanders and Singler, "Cache-, Hash- and Space-Efficient Bloom Filters"
//! (2007).

use plimsoll_disk::checksum::checksum;

use crate::types::branch_key;

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 64;

/// Number of bits set for a key.
const PROBES: u32 = 6;

/// Minimum number of bits per key, in tenths.
const TENTHS_OF_BITS: usize = 105;

/// More bits per key than this bring nothing with [`PROBES`].
const MAX_BITS: usize = 16;

/// The hash of an index key that filters use. It leaves out the chain of a branch, so that one
/// probe answers for all chains of a group.
pub(crate) fn key_hash(key: &[u8]) -> u32 {
    let is_of_branch = branch_key::is_of_branch(key);
    stem_hash(if is_of_branch { branch_key::split(key).0 } else { key })
}

/// The hash of all keys of [`SIDE`](crate::types::keyspaces::SIDE) with this stem.
pub(crate) fn stem_hash(stem: &[u8]) -> u32 {
    (checksum(0, stem) >> 32) as u32
}

/// Minimum number of blocks for this many keys.
pub(crate) fn blocks_for(keys: usize) -> usize {
    (keys * TENTHS_OF_BITS).div_ceil(10 * 8 * BLOCK_BYTES).max(1)
}

/// Maximum number of keys in a filter of at most this many bytes.
pub(crate) const fn max_keys(bytes: usize) -> usize {
    bytes * 8 * 10 / TENTHS_OF_BITS
}

/// Number of blocks for this many keys, at most `room`.
pub(crate) fn blocks_within(keys: usize, room: usize) -> usize {
    room.min((keys * MAX_BITS).div_ceil(8 * BLOCK_BYTES).max(1))
}

/// Adds a key to a filter, whose size is a whole number of blocks.
pub(crate) fn insert(filter: &mut [u8], hash: u32) {
    let at = block_of(filter.len(), hash);
    let block = &mut filter[at..at + BLOCK_BYTES];
    for bit in bits(hash) {
        block[bit / 8] |= 1 << (bit % 8);
    }
}

/// Whether a key may have been added.
pub(crate) fn may_contain(filter: &[u8], hash: u32) -> bool {
    let at = block_of(filter.len(), hash);
    let block = &filter[at..at + BLOCK_BYTES];
    // Test all bits without a branch, because they are in one cache line, and a branch per bit
    // would be mispredicted for most absent keys.
    bits(hash).fold(1, |all, bit| all & (block[bit / 8] >> (bit % 8))) != 0
}

fn block_of(filter_bytes: usize, hash: u32) -> usize {
    let blocks = (filter_bytes / BLOCK_BYTES) as u64;
    ((u64::from(hash) * blocks) >> 32) as usize * BLOCK_BYTES
}

/// The bits of a key in its block.
fn bits(hash: u32) -> impl Iterator<Item = usize> {
    // The upper bits of the hash select the block. This mixing step (from MurmurHash3's finalizer)
    // makes every probe depend on all bits.
    let mut stirred = u64::from(hash).wrapping_mul(0xff51_afd7_ed55_8ccd);
    stirred ^= stirred >> 33;
    stirred = stirred.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (0..PROBES).map(move |probe| (stirred >> (55 - 9 * probe)) as usize % (8 * BLOCK_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn present_keys_always_pass_and_absent_keys_rarely() {
        for keys in [1usize, 100, 1000, 12_000] {
            let mut filter = vec![0; blocks_for(keys) * BLOCK_BYTES];
            let hash =
                |n: usize| key_hash(&[&[0, 0, 0, 1], &(n as u64).to_be_bytes()[..]].concat());
            (0..keys).for_each(|n| insert(&mut filter, hash(n)));
            assert!((0..keys).all(|n| may_contain(&filter, hash(n))));
            let wrong = (keys..keys + 100_000).filter(|&n| may_contain(&filter, hash(n))).count();
            println!("{keys} keys: {wrong} of 100000 pass");
            assert!(wrong <= 1100, "{keys} keys: {wrong} of 100000");
        }
    }
}
