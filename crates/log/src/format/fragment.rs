//! A fragment: bytes of one record within one block.
//!
//! ```text
//! 0          8       12       14     15      16
//! | checksum | epoch | length | type | codec | bytes ... | 16 + length
//! ```
//!
//! `checksum` covers everything after it and is seeded with the log's id, the segment's first GLSN, the epoch and the
//! fragment's offset in the segment: stale bytes, bytes of another place and bytes of another log all fail. `length` is
//! a multiple of 8. Sixteen zero bytes in place of a header end the block.

use plimsoll_disk::checksum::{checksum, seed_with};

use crate::format::{BLOCK_BYTES, CODEC_NONE, put, u32_at, u64_at};

/// Bytes of a fragment's header.
pub const FRAGMENT_HEADER_BYTES: usize = 16;

/// Which part of its record a fragment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FragmentType {
    /// A whole record.
    Whole = 1,
    /// The beginning: record header, blob references, at least one entry header.
    First = 2,
    /// Neither beginning nor end.
    Middle = 3,
    /// The end.
    Last = 4,
    /// No record: everything before it is durable.
    Mark = 5,
}

/// A checked fragment.
#[derive(Clone, Copy, Debug)]
pub struct Fragment<'a> {
    /// Its part of the record.
    pub part: FragmentType,
    /// The epoch in which it was written.
    pub epoch: u32,
    /// Its checksum, an input of the chain hash.
    pub checksum: u64,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// The header of a fragment in a block that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentHeader {
    /// Its checksum, an input of the chain hash.
    pub checksum: u64,
    /// The epoch in which it was written.
    pub epoch: u32,
    /// Bytes of the whole fragment, header included.
    pub bytes: usize,
    /// Its part of the record.
    pub part: FragmentType,
}

impl FragmentHeader {
    /// Reads the header at the front of `bytes`, which passed their checksum; `None` if no fragment begins there.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; FRAGMENT_HEADER_BYTES] = bytes.get(..FRAGMENT_HEADER_BYTES)?.try_into().ok()?;
        let length = usize::from(u16::from_le_bytes([bytes[12], bytes[13]]));
        Some(Self {
            checksum: u64_at(bytes, 0),
            epoch: u32_at(bytes, 8),
            bytes: FRAGMENT_HEADER_BYTES + length,
            part: part_of(bytes[14])?,
        })
    }

    /// Whether the record goes on in the next block.
    pub fn goes_on(&self) -> bool {
        matches!(self.part, FragmentType::First | FragmentType::Middle)
    }

    /// Whether it continues a record that began in an earlier block, in this epoch.
    pub fn continues(&self, epoch: u32) -> bool {
        matches!(self.part, FragmentType::Middle | FragmentType::Last) && self.epoch == epoch
    }
}

/// The bytes at a place where a fragment may begin.
#[derive(Clone, Copy, Debug)]
pub enum Found<'a> {
    /// A good fragment.
    Fragment(Fragment<'a>),
    /// Zeros: the block has no more fragments.
    Nothing,
    /// Anything else.
    Bad(Refusal),
}

/// Why bytes were rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub what: &'static str,
    /// The bytes are intact, and of a format that this version does not know: they must not be taken for a torn tail.
    pub newer: bool,
}

impl Refusal {
    /// Bytes that are damaged.
    pub fn bad(what: &'static str) -> Self {
        Self { what, newer: false }
    }

    /// Bytes of a newer format.
    pub fn newer(what: &'static str) -> Self {
        Self { what, newer: true }
    }
}

/// The chain hash after a fragment.
pub fn extend_chain(chain: u64, fragment_checksum: u64) -> u64 {
    checksum(chain, &fragment_checksum.to_le_bytes())
}

/// Fills in the header of `fragment`, whose other bytes are in place, and returns its checksum.
pub fn seal_fragment(fragment: &mut [u8], segment_seed: u64, epoch: u32, offset: u32, part: FragmentType) -> u64 {
    let length = fragment.len() - FRAGMENT_HEADER_BYTES;
    debug_assert!(length > 0 && length.is_multiple_of(8) && fragment.len() <= BLOCK_BYTES);
    put(fragment, 8, &epoch.to_le_bytes());
    put(fragment, 12, &(length as u16).to_le_bytes());
    fragment[14] = part as u8;
    fragment[15] = CODEC_NONE;
    let sum = checksum(fragment_seed(segment_seed, epoch, offset), &fragment[8..]);
    put(fragment, 0, &sum.to_le_bytes());
    sum
}

/// Decodes the fragment at `at` in a block that begins at `block_offset` of its segment.
pub fn fragment_at(block: &[u8], at: usize, block_offset: u32, segment_seed: u64) -> Found<'_> {
    let Some(header) = block.get(at..at + FRAGMENT_HEADER_BYTES) else { return Found::Nothing };
    if header.iter().all(|byte| *byte == 0) {
        return Found::Nothing;
    }
    let length = usize::from(u16::from_le_bytes([header[12], header[13]]));
    let Some(fragment) = block.get(at..at + FRAGMENT_HEADER_BYTES + length) else {
        return Found::Bad(Refusal::bad("a fragment that reaches beyond its block"));
    };
    if length == 0 || !length.is_multiple_of(8) {
        return Found::Bad(Refusal::bad("a fragment of an impossible length"));
    }
    let epoch = u32_at(header, 8);
    let sum = u64_at(header, 0);
    if sum != checksum(fragment_seed(segment_seed, epoch, block_offset + at as u32), &fragment[8..]) {
        return Found::Bad(Refusal::bad("the checksum of a fragment does not match its bytes and place"));
    }
    match part_of(header[14]).filter(|_| header[15] == CODEC_NONE) {
        Some(part) => {
            Found::Fragment(Fragment { part, epoch, checksum: sum, bytes: &fragment[FRAGMENT_HEADER_BYTES..] })
        }
        None => Found::Bad(Refusal::newer("a fragment of a type or codec that this version does not know")),
    }
}

fn fragment_seed(segment_seed: u64, epoch: u32, offset: u32) -> u64 {
    seed_with(segment_seed, u64::from(epoch) << 32 | u64::from(offset))
}

fn part_of(byte: u8) -> Option<FragmentType> {
    Some(match byte {
        1 => FragmentType::Whole,
        2 => FragmentType::First,
        3 => FragmentType::Middle,
        4 => FragmentType::Last,
        5 => FragmentType::Mark,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fragment_is_good_only_at_its_place_and_only_unchanged() {
        let mut block = vec![0; BLOCK_BYTES];
        block[64 + 16..64 + 56].fill(9);
        seal_fragment(&mut block[64..120], 7, 3, 64, FragmentType::Whole);
        let Found::Fragment(found) = fragment_at(&block, 64, 0, 7) else { panic!("not found") };
        assert_eq!((found.part, found.epoch, found.bytes), (FragmentType::Whole, 3, &[9u8; 40][..]));
        assert!(matches!(fragment_at(&block, 64, 16384, 7), Found::Bad(_)));
        assert!(matches!(fragment_at(&block, 64, 0, 8), Found::Bad(_)));
        assert!(matches!(fragment_at(&block, 120, 0, 7), Found::Nothing));
        assert!(matches!(fragment_at(&block, BLOCK_BYTES - 8, 0, 7), Found::Nothing));
        for at in 64..120 {
            block[at] ^= 1;
            assert!(matches!(fragment_at(&block, 64, 0, 7), Found::Bad(_)), "byte {at}");
            block[at] ^= 1;
        }
    }
}
