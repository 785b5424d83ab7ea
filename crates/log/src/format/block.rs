//! Checks of a whole block, made once: when the block is read from disk.
//!
//! Each fragment is checked by itself and against its predecessor: records follow each other by
//! GLSN and chain hash, and a fragment whose record continues in the next block reaches to the end
//! of its own block. Readers that cross from one block to the next check that the blocks follow
//! each other: see `OpenLog::follow` and `FileScan`.

use crate::format::fragment::{FRAGMENT_HEADER_BYTES, Found, Fragment, FragmentType, fragment_at};
use crate::format::record::{Mark, RecordHeader};
use crate::format::segment_header::{HeaderError, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::{BLOCK_BYTES, align8};
use crate::glsn::Glsn;

/// Damage found in a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadBlock {
    /// Offset in the block.
    pub at: usize,
    /// The damage.
    pub what: String,
}

/// Offset of the first fragment in a block.
pub fn first_fragment(block_number: u32) -> usize {
    if block_number == 0 { SEGMENT_HEADER_BYTES } else { 0 }
}

/// Checks every fragment of a block (and in block 0 the segment's header); returns where its
/// fragments end.
///
/// # Errors
/// The damage and its offset.
pub fn check_block(block: &[u8], block_number: u32, segment_seed: u64) -> Result<usize, BadBlock> {
    let bad = |at, what: &str| BadBlock { at, what: what.to_owned() };
    if block.len() != BLOCK_BYTES {
        return Err(bad(0, "the block is truncated"));
    }
    let Some(block_offset) = block_number.checked_mul(BLOCK_BYTES as u32) else {
        return Err(bad(0, "the block is beyond the maximum size of a segment"));
    };
    if block_number == 0 {
        SegmentHeader::decode(block).map_err(|error| match error {
            HeaderError::Bad(what) => bad(0, what),
            HeaderError::Newer(what) => BadBlock { at: 0, what },
        })?;
    }
    let mut at = first_fragment(block_number);
    let mut so_far = SoFar { epoch: 0, continues: false, begins: block_number > 0, next: None };
    loop {
        match fragment_at(block, at, block_offset, segment_seed) {
            Found::Fragment(fragment) => {
                let end = at + align8(fragment.whole_bytes());
                so_far.take(&fragment, end).map_err(|what| bad(at, what))?;
                at = end;
            }
            Found::Nothing => return Ok(at),
            Found::Bad(refusal) => return Err(bad(at, refusal.what)),
        }
    }
}

/// Whether a fragment with a valid checksum begins at or after `from`.
pub fn has_fragment(block: &[u8], from: usize, block_number: u32, segment_seed: u64) -> bool {
    let Some(block_offset) = block_number.checked_mul(BLOCK_BYTES as u32) else { return false };
    let is_fragment =
        |at| matches!(fragment_at(block, at, block_offset, segment_seed), Found::Fragment(_));
    block[from..].iter().any(|byte| *byte != 0) && (from..BLOCK_BYTES).step_by(8).any(is_fragment)
}

/// Zeroes the damaged parts of a block that failed its check, so that its other records can be
/// read; returns whether a fragment is left.
///
/// Precondition: the whole segment was written in `epoch`. Then no part of it was cut and
/// rewritten, so a fragment with a valid checksum is the one that was written there. Readers find
/// no record in zeros.
pub fn blank_damage(block: &mut [u8], block_number: u32, segment_seed: u64, epoch: u32) -> bool {
    let Some(block_offset) = block_number.checked_mul(BLOCK_BYTES as u32) else { return false };
    if block.len() != BLOCK_BYTES || (block_number == 0 && SegmentHeader::decode(block).is_err()) {
        return false;
    }
    let start = first_fragment(block_number);
    let sound_end =
        |block: &[u8], at: usize| match fragment_at(block, at, block_offset, segment_seed) {
            Found::Fragment(fragment) if fragment.epoch == epoch => {
                let end = at + align8(fragment.whole_bytes());
                // Check the fragment by itself, because its predecessor may be missing.
                let mut alone = SoFar {
                    epoch,
                    continues: false,
                    begins: at == start && block_number > 0,
                    next: None,
                };
                alone.take(&fragment, end).is_ok().then_some(end)
            }
            _ => None,
        };
    let (mut at, mut is_left) = (start, false);
    while at < BLOCK_BYTES {
        match sound_end(block, at) {
            Some(end) => (at, is_left) = (end, true),
            None => {
                let next =
                    (at + 8..BLOCK_BYTES).step_by(8).find(|next| sound_end(block, *next).is_some());
                let damaged_end = next.unwrap_or(BLOCK_BYTES);
                block[at..damaged_end].fill(0);
                at = damaged_end;
            }
        }
    }
    is_left
}

/// State of the check after some fragments of a block.
struct SoFar {
    epoch: u32,
    /// Whether the last fragment continues in the next block.
    continues: bool,
    /// Whether no fragment of this block was seen yet: only its first one may continue a record of
    /// the block before.
    begins: bool,
    /// If the last record ends in this block: the chain hash after it, which the next record must
    /// continue. If the last record also begins in this block: the GLSN that the next record must
    /// have.
    next: Option<(Option<Glsn>, u64)>,
}

impl SoFar {
    /// Adds the next fragment, which ends at `end`; `Err` has the reason that it does not follow.
    fn take(&mut self, fragment: &Fragment<'_>, end: usize) -> Result<(), &'static str> {
        if self.continues {
            return Err(
                "a fragment that follows a part of a record that continues in the next block",
            );
        }
        if fragment.epoch < self.epoch {
            return Err("a fragment of an earlier epoch: stale bytes");
        }
        match fragment.part {
            FragmentType::Whole | FragmentType::First => {
                let header =
                    RecordHeader::decode(fragment.bytes).map_err(|refusal| refusal.what)?;
                if !self.leads_to(header.first, header.previous_chain) {
                    return Err("a record that does not follow the one before it");
                }
                self.next = fragment
                    .chain
                    .map(|content| (Some(header.last().next()), header.chain_after(content)));
            }
            FragmentType::Middle | FragmentType::Last if !self.begins => {
                return Err("a part of a record whose beginning is missing");
            }
            FragmentType::Middle | FragmentType::Last => {
                self.next = fragment.chain.map(|chain| (None, chain))
            }
            FragmentType::Mark => {
                let mark = Mark::decode(fragment.bytes).ok_or("a mark of an impossible length")?;
                if !self.leads_to(mark.durable.next(), mark.chain) {
                    return Err("a mark that does not follow the record before it");
                }
            }
        }
        self.begins = false;
        self.epoch = fragment.epoch;
        self.continues = matches!(fragment.part, FragmentType::First | FragmentType::Middle);
        if self.continues && end + FRAGMENT_HEADER_BYTES <= BLOCK_BYTES {
            return Err("a part of a record that ends before its block does");
        }
        Ok(())
    }

    /// Whether a record with this GLSN and this previous chain hash follows the last one, as far as
    /// that is known.
    fn leads_to(&self, first: Glsn, chain: u64) -> bool {
        self.next
            .is_none_or(|(next, after)| after == chain && next.is_none_or(|next| next == first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::fragment::{Continues, FragmentType, seal_fragment};

    const SEED: u64 = 5;

    /// Puts a fragment of `bytes` bytes at `at` of block 1; returns its end and the hash of its
    /// content.
    fn put_fragment(
        block: &mut [u8],
        at: usize,
        bytes: usize,
        epoch: u32,
        part: FragmentType,
    ) -> (usize, u64) {
        let end = at + FRAGMENT_HEADER_BYTES + bytes;
        let (_, content) =
            seal_fragment(&mut block[at..end], SEED, epoch, (BLOCK_BYTES + at) as u32, part);
        (end, content.unwrap_or(0))
    }

    /// Puts a record of one entry at `at`; returns its end and the chain hash after it.
    fn put_record(block: &mut [u8], at: usize, first: u64, chain: u64, epoch: u32) -> (usize, u64) {
        let header = RecordHeader {
            first: Glsn(first),
            read_at: Glsn::NONE,
            previous_chain: chain,
            durable: Glsn::NONE,
            timestamp_micros: first,
            last_blob_id: 0,
            body_bytes: 16,
            count: 1,
            blobs: 0,
            dropped: None,
        };
        let from = at + FRAGMENT_HEADER_BYTES;
        block[from..from + 64].copy_from_slice(&header.encode());
        put_fragment(block, at, 80, epoch, FragmentType::Whole)
    }

    #[test]
    fn block_is_valid_if_all_fragments_are() {
        let mut block = vec![0; BLOCK_BYTES];
        let (at, chain) = put_record(&mut block, 0, 7, 3, 1);
        let (end, _) = put_record(&mut block, at, 8, chain, 1);
        assert_eq!(check_block(&block, 1, SEED), Ok(end));
        assert!(check_block(&block, 2, SEED).is_err());
        block[end - 1] ^= 1;
        assert_eq!(check_block(&block, 1, SEED).unwrap_err().at, at);
    }

    #[test]
    fn records_must_follow_each_other() {
        // (GLSN, chain hash off by, epoch) of the second record.
        for (first, off, epoch) in [(9, 0, 1), (8, 1, 1), (7, 0, 1), (8, 0, 0)] {
            let mut block = vec![0; BLOCK_BYTES];
            let (at, chain) = put_record(&mut block, 0, 7, 3, 1);
            put_record(&mut block, at, first, chain + off, epoch);
            assert_eq!(check_block(&block, 1, SEED).unwrap_err().at, at, "{first} {off} {epoch}");
        }
    }

    #[test]
    fn parts_continue_from_block_start_to_block_end() {
        let mut block = vec![0; BLOCK_BYTES];
        Continues { head: 2, chain: 3 }.put(&mut block);
        let (at, _) = put_fragment(&mut block, 0, 80, 1, FragmentType::Last);
        let mut other = block.clone();
        let (end, _) = put_record(&mut block, at, 7, 3, 1);
        assert_eq!(check_block(&block, 1, SEED), Ok(end));
        put_record(&mut other, at, 7, 4, 1);
        assert_eq!(
            check_block(&other, 1, SEED).unwrap_err().at,
            at,
            "the part says where its record leads"
        );
        put_fragment(&mut block, end, 80, 1, FragmentType::Last);
        assert_eq!(check_block(&block, 1, SEED).unwrap_err().at, end);

        let mut block = vec![0; BLOCK_BYTES];
        put_fragment(&mut block, 0, BLOCK_BYTES - 16, 1, FragmentType::Middle);
        assert_eq!(check_block(&block, 1, SEED), Ok(BLOCK_BYTES));
        put_fragment(&mut block, 0, BLOCK_BYTES - 24, 1, FragmentType::Middle);
        block[BLOCK_BYTES - 8..].fill(0);
        assert_eq!(check_block(&block, 1, SEED), Ok(BLOCK_BYTES - 8));
        let mut block = vec![0; BLOCK_BYTES];
        put_fragment(&mut block, 0, 80, 1, FragmentType::Middle);
        assert!(check_block(&block, 1, SEED).is_err());
    }

    #[test]
    fn check_accepts_any_bytes() {
        let mut random = plimsoll_disk::random::Random::new(1);
        let mut block = vec![0; BLOCK_BYTES];
        for round in 0..200 {
            block.iter_mut().for_each(|byte| *byte = (random.next_u64() & 0x1f) as u8);
            let number = [0, 1, u32::MAX][round % 3];
            assert!(check_block(&block, number, 5).is_err());
        }
        assert!(check_block(&block[..100], 1, 5).is_err());
    }

    #[test]
    fn sound_fragments_of_a_damaged_block_are_kept() {
        let mut block = vec![0; BLOCK_BYTES];
        let (mut ends, mut chain, mut at) = (vec![0], 0, 0);
        for number in 0..6u64 {
            (at, chain) = put_record(&mut block, at, 1 + number, chain, 3);
            ends.push(at);
        }
        for damaged in 0..6 {
            for byte in ends[damaged]..ends[damaged + 1] {
                let mut bad = block.clone();
                bad[byte] ^= 0x40;
                assert!(check_block(&bad, 1, SEED).is_err());
                assert!(!blank_damage(&mut bad.clone(), 1, SEED, 2), "of another epoch");
                assert!(blank_damage(&mut bad, 1, SEED, 3));
                assert!(
                    bad[ends[damaged]..ends[damaged + 1]].iter().all(|byte| *byte == 0),
                    "byte {byte}"
                );
                assert_eq!(bad[..ends[damaged]], block[..ends[damaged]]);
                assert_eq!(bad[ends[damaged + 1]..], block[ends[damaged + 1]..]);
            }
        }
        assert!(!blank_damage(&mut vec![7; BLOCK_BYTES], 1, SEED, 3), "no fragment is sound");
        assert!(!blank_damage(&mut vec![0; BLOCK_BYTES], 1, SEED, 3), "zeros are not a fragment");
        assert!(!blank_damage(&mut block[..100], 1, SEED, 3), "a part of a block");
    }
}
