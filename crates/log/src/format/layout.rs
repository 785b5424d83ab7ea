//! The placement of a record's bytes in blocks: arithmetic only, without data.
//!
//! A record that fits into the rest of a block is one fragment there. A small record that does not
//! fit begins with the next block, so that small entries never span two blocks. A larger record is
//! cut at block boundaries.

use std::ops::Range;

use crate::format::BLOCK_BYTES;
use crate::format::fragment::{CONTINUED_HEADER_BYTES, FRAGMENT_HEADER_BYTES};
use crate::format::record::ENTRY_HEADER_BYTES;

/// Records up to this size are never cut.
pub const SMALL_RECORD_BYTES: usize = 4096;

/// The most bytes left unused at the end of a block because an entry's header does not fit.
const LOST_BYTES: usize = ENTRY_HEADER_BYTES - 8;

/// The start of a record of `record_bytes` in a segment that ends at `end`, and an upper bound on
/// its end. The record's first `head_bytes` must be in its first fragment.
pub fn place_record(end: u32, head_bytes: usize, record_bytes: usize) -> (u64, u64) {
    let end = u64::from(end);
    let room = block_end(end) - end;
    let whole = (FRAGMENT_HEADER_BYTES + record_bytes) as u64;
    if whole <= room {
        return (end, end + whole);
    }
    let cut =
        record_bytes > SMALL_RECORD_BYTES && (FRAGMENT_HEADER_BYTES + head_bytes) as u64 <= room;
    let start = if cut { end } else { block_end(end) };
    if !cut && whole <= BLOCK_BYTES as u64 {
        return (start, start + whole);
    }
    let blocks =
        record_bytes.div_ceil(BLOCK_BYTES - CONTINUED_HEADER_BYTES - LOST_BYTES) as u64 + 1;
    (start, block_of(start) * BLOCK_BYTES as u64 + blocks * BLOCK_BYTES as u64)
}

/// The block that an offset lies in.
pub fn block_of(offset: u64) -> u64 {
    offset / BLOCK_BYTES as u64
}

/// The end of the block that contains an offset; an offset at a boundary belongs to the block after
/// it.
pub fn block_end(offset: u64) -> u64 {
    (block_of(offset) + 1) * BLOCK_BYTES as u64
}

/// The ranges of the segment, one per block, that hold `range` of the payload of the entry at
/// `entry_offset`.
pub fn payload_pieces(entry_offset: u32, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let start = u64::from(entry_offset) + ENTRY_HEADER_BYTES as u64;
    let in_first = block_end(u64::from(entry_offset)) - start;
    let mut done = range.start;
    std::iter::from_fn(move || {
        if done >= range.end {
            return None;
        }
        let at = if done < in_first {
            start + done
        } else {
            let full = (BLOCK_BYTES - CONTINUED_HEADER_BYTES) as u64;
            let (blocks, within) = ((done - in_first) / full, (done - in_first) % full);
            block_end(u64::from(entry_offset))
                + blocks * BLOCK_BYTES as u64
                + CONTINUED_HEADER_BYTES as u64
                + within
        };
        let len = (block_end(at) - at).min(range.end - done);
        done += len;
        Some(at..at + len)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = BLOCK_BYTES as u64;

    #[test]
    fn fitting_record_starts_at_the_previous_end() {
        assert_eq!(place_record(128, 80, 1000), (128, 1144));
        assert_eq!(place_record(0, 80, BLOCK_BYTES - 16), (0, BLOCK));
    }

    #[test]
    fn small_record_that_does_not_fit_starts_in_the_next_block() {
        assert_eq!(place_record(16_000, 80, 1000), (BLOCK, BLOCK + 1016));
    }

    #[test]
    fn large_record_is_split_unless_its_head_does_not_fit() {
        assert_eq!(place_record(16_000, 80, 5000).0, 16_000);
        assert_eq!(place_record(16_380, 80, 5000), (BLOCK, BLOCK + 5016));
        assert!(place_record(16_000, 80, 100_000).1 >= 16_000 + 100_000 + 7 * 16);
    }

    #[test]
    fn payload_pieces_skip_fragment_headers() {
        let pieces: Vec<_> = payload_pieces(BLOCK as u32 - 116, 0..20_000).collect();
        assert_eq!(
            pieces,
            [BLOCK - 100..BLOCK, BLOCK + 32..2 * BLOCK, 2 * BLOCK + 32..2 * BLOCK + 32 + 3548]
        );
        let within: Vec<_> = payload_pieces(BLOCK as u32 - 116, 90..110).collect();
        assert_eq!(within, [BLOCK - 10..BLOCK, BLOCK + 32..BLOCK + 42]);
        let bare = payload_pieces(BLOCK as u32 - 16, 0..8).next();
        assert_eq!(bare, Some(BLOCK + 32..BLOCK + 40));
        assert_eq!(payload_pieces(200, 5..5).count(), 0);
    }
}
