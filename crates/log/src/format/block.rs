//! A whole block: checked once, when it is read from disk.

use crate::format::fragment::{FRAGMENT_HEADER_BYTES, Found, fragment_at};
use crate::format::segment_header::{HeaderError, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::{BLOCK_BYTES, align8};

/// What is wrong with a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadBlock {
    /// Offset in the block.
    pub at: usize,
    /// What is wrong there.
    pub what: String,
}

/// Offset of the first fragment in a block.
pub fn first_fragment(block_number: u32) -> usize {
    if block_number == 0 { SEGMENT_HEADER_BYTES } else { 0 }
}

/// Checks every fragment of a block (and in block 0 the segment's header); returns where its fragments end.
///
/// # Errors
/// What is wrong, and where.
pub fn check_block(block: &[u8], block_number: u32, segment_seed: u64) -> Result<usize, BadBlock> {
    let bad = |at, what: &str| BadBlock { at, what: what.to_owned() };
    if block.len() != BLOCK_BYTES {
        return Err(bad(0, "the block is cut short"));
    }
    let Some(block_offset) = block_number.checked_mul(BLOCK_BYTES as u32) else {
        return Err(bad(0, "the block lies beyond what a segment may hold"));
    };
    if block_number == 0 {
        SegmentHeader::decode(block).map_err(|error| match error {
            HeaderError::Bad(what) => bad(0, what),
            HeaderError::Newer(what) => BadBlock { at: 0, what },
        })?;
    }
    let mut at = first_fragment(block_number);
    loop {
        match fragment_at(block, at, block_offset, segment_seed) {
            Found::Fragment(fragment) => at += align8(FRAGMENT_HEADER_BYTES + fragment.bytes.len()),
            Found::Nothing => return Ok(at),
            Found::Bad(refusal) => return Err(bad(at, refusal.what)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::fragment::{FragmentType, seal_fragment};

    #[test]
    fn a_block_is_good_if_all_of_its_fragments_are() {
        let mut block = vec![0; BLOCK_BYTES];
        seal_fragment(&mut block[0..48], 5, 0, BLOCK_BYTES as u32, FragmentType::Whole);
        seal_fragment(&mut block[48..120], 5, 0, BLOCK_BYTES as u32 + 48, FragmentType::Whole);
        assert_eq!(check_block(&block, 1, 5), Ok(120));
        assert!(check_block(&block, 2, 5).is_err());
        block[119] ^= 1;
        assert_eq!(check_block(&block, 1, 5).unwrap_err().at, 48);
    }

    #[test]
    fn any_bytes_may_be_checked() {
        let mut random = plimsoll_disk::random::Random::new(1);
        let mut block = vec![0; BLOCK_BYTES];
        for round in 0..200 {
            block.iter_mut().for_each(|byte| *byte = (random.next_u64() & 0x1f) as u8);
            let number = [0, 1, u32::MAX][round % 3];
            assert!(check_block(&block, number, 5).is_err());
        }
        assert!(check_block(&block[..100], 1, 5).is_err());
    }
}
