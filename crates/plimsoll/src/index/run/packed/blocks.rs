//! The blocks of a packed table.
//!
//! ```text
//! | checksum u64 | 4088 bytes of the stream |
//! ```
//!
//! The checksum covers the bytes of the stream. Its seed is made from the seed of the run's pages
//! and the number of the block, so that a misplaced block fails the check.

use plimsoll_disk::checksum::{checksum, seed};
use plimsoll_memory::page::PAGE_BYTES;

/// Size of a block, and the alignment of direct reads.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// Bytes of a block before those of the stream.
pub(crate) const BLOCK_HEADER_BYTES: usize = 8;

/// Bytes of the stream in a block.
pub(crate) const BLOCK_PAYLOAD_BYTES: usize = BLOCK_BYTES - BLOCK_HEADER_BYTES;

/// Blocks in the place of a page.
pub(super) const PAGE_BLOCKS: usize = PAGE_BYTES / BLOCK_BYTES;

/// The most blocks that the stored form of one page touches.
pub(super) const EXTENT_BLOCKS_MAX: usize = (PAGE_BYTES - 1).div_ceil(BLOCK_PAYLOAD_BYTES) + 1;

const BLOCK_SEED: u64 = 0x5041_434b_424c_4b31;

fn sum(payload: &[u8], file_seed: u64, number: u64) -> u64 {
    checksum(seed(&[BLOCK_SEED, file_seed, number]), payload)
}

/// Writes the checksum of a block whose part of the stream is in place.
pub(crate) fn seal_block(block: &mut [u8], file_seed: u64, number: u64) {
    let sum = sum(&block[BLOCK_HEADER_BYTES..], file_seed, number);
    block[..BLOCK_HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
}

/// Whether a block has the bytes that were written to this place.
pub(super) fn check_block(block: &[u8], file_seed: u64, number: u64) -> bool {
    let (written, payload) = block.split_at(BLOCK_HEADER_BYTES);
    written == sum(payload, file_seed, number).to_le_bytes()
}

/// Whether the bytes in the place of page `place` of a file are sound blocks.
pub(crate) fn check_blocks(bytes: &[u8], file_seed: u64, place: u32) -> bool {
    let first = u64::from(place) * PAGE_BLOCKS as u64;
    bytes.len() == PAGE_BYTES
        && (first..)
            .zip(bytes.chunks_exact(BLOCK_BYTES))
            .all(|(number, block)| check_block(block, file_seed, number))
}

/// The first block with bytes of a part of the stream, and the number of its blocks.
pub(super) fn blocks_of(start: u64, bytes: usize) -> (u64, usize) {
    let first = start / BLOCK_PAYLOAD_BYTES as u64;
    let end = (start + bytes as u64).div_ceil(BLOCK_PAYLOAD_BYTES as u64);
    (first, (end - first) as usize)
}

/// Closes the gaps that the headers of consecutive blocks leave in the stream, and returns the
/// stream.
pub(super) fn join(blocks: &mut [u8]) -> &mut [u8] {
    let count = blocks.len() / BLOCK_BYTES;
    for block in 1..count {
        let from = block * BLOCK_BYTES + BLOCK_HEADER_BYTES;
        let to = BLOCK_HEADER_BYTES + block * BLOCK_PAYLOAD_BYTES;
        blocks.copy_within(from..from + BLOCK_PAYLOAD_BYTES, to);
    }
    &mut blocks[BLOCK_HEADER_BYTES..][..count * BLOCK_PAYLOAD_BYTES]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_stored_page_touches_at_most_the_stated_blocks() {
        for start in 0..2 * BLOCK_PAYLOAD_BYTES as u64 {
            let (first, count) = blocks_of(start, PAGE_BYTES);
            assert!(count <= EXTENT_BLOCKS_MAX);
            assert!(first * BLOCK_PAYLOAD_BYTES as u64 <= start);
            let end = (first + count as u64) * BLOCK_PAYLOAD_BYTES as u64;
            assert!((1..=BLOCK_PAYLOAD_BYTES as u64).contains(&(end - start - 16383)));
        }
    }

    #[test]
    fn joined_blocks_are_the_stream() {
        let stream: Vec<u8> = (0..3 * BLOCK_PAYLOAD_BYTES).map(|at| (at / 7) as u8).collect();
        let mut blocks = vec![0; 3 * BLOCK_BYTES];
        for (block, part) in
            blocks.chunks_mut(BLOCK_BYTES).zip(stream.chunks_exact(BLOCK_PAYLOAD_BYTES))
        {
            block[BLOCK_HEADER_BYTES..].copy_from_slice(part);
        }
        assert_eq!(join(&mut blocks), stream);
    }

    #[test]
    fn check_blocks_rejects_changed_or_misplaced_blocks() {
        let mut bytes = vec![7; PAGE_BYTES];
        for (number, block) in (8..).zip(bytes.chunks_mut(BLOCK_BYTES)) {
            seal_block(block, 5, number);
        }
        assert!(check_blocks(&bytes, 5, 2));
        assert!(!check_blocks(&bytes, 5, 3));
        assert!(!check_blocks(&bytes, 6, 2));
        for at in (0..PAGE_BYTES).step_by(61) {
            bytes[at] ^= 1;
            assert!(!check_blocks(&bytes, 5, 2), "byte {at}");
            bytes[at] ^= 1;
        }
    }
}
