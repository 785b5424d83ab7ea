//! A fragment: bytes of one record within one block.
//!
//! ```text
//! 0          8       12       14     15      16
//! | checksum | epoch | length | type | codec | bytes ...                  | 16 + length
//! middle and last parts:
//! | checksum | epoch | length | type | codec | head | chain | bytes ...   | 16 + length
//! ```
//!
//! `checksum` covers everything after it and is seeded with the log's id, the segment's first GLSN
//! and the fragment's offset in the segment, so that stale bytes, misplaced bytes and bytes of
//! another log all fail the check. `length` is a multiple of 8. Sixteen zero bytes in place of a
//! header end the block.
//!
//! In a fragment that is a whole record, `checksum` is A XOR B. A is the record's chain hash, the
//! hash of its content (`content`); B is the seeded hash of the bytes between the checksum and the
//! content. A middle or last part begins with the checksum of its record's first part (`head`) and
//! the record's chain hash. These identify its record, and provide the chain without hashing the
//! record again.

use plimsoll_disk::checksum::checksum;

use crate::format::{BLOCK_BYTES, CODEC_NONE, put, u32_at, u64_at};

/// Bytes of a fragment's header.
pub const FRAGMENT_HEADER_BYTES: usize = 16;
/// Bytes of the header of a middle or last part.
pub const CONTINUED_HEADER_BYTES: usize = 32;

/// Offset in a record's header where its content begins, which the chain hash covers.
pub const CONTENT_AT: usize = 24;

/// The seed of the hash of a record's content.
pub(crate) const CONTENT_SEED: u64 = 0;

/// The offset of the content of a whole record in its fragment.
const WHOLE_CONTENT_AT: usize = FRAGMENT_HEADER_BYTES + CONTENT_AT;

/// The part of its record that a fragment holds.
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
    /// A mark rather than a record: everything before it is durable.
    Mark = 5,
}

impl FragmentType {
    /// Bytes of the header of such a fragment.
    pub const fn header_bytes(self) -> usize {
        match self {
            Self::Middle | Self::Last => CONTINUED_HEADER_BYTES,
            Self::Whole | Self::First | Self::Mark => FRAGMENT_HEADER_BYTES,
        }
    }
}

/// A checked fragment.
#[derive(Clone, Copy, Debug)]
pub struct Fragment<'a> {
    /// Which part of its record it is.
    pub part: FragmentType,
    /// The epoch in which it was written.
    pub epoch: u32,
    /// Its checksum.
    pub checksum: u64,
    /// The chain hash of its record: for a whole record the hash of its content, for a middle or
    /// last part the stored one; `None` for a first part and for a mark.
    pub chain: Option<u64>,
    /// The record that a middle or last part continues.
    pub continues: Option<Continues>,
    /// Its bytes after the header.
    pub bytes: &'a [u8],
}

impl Fragment<'_> {
    /// Bytes of the whole fragment, header included.
    pub fn whole_bytes(&self) -> usize {
        self.part.header_bytes() + self.bytes.len()
    }
}

/// The record that a middle or last part continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Continues {
    /// Checksum of the record's first part.
    pub head: u64,
    /// Chain hash after the record.
    pub chain: u64,
}

impl Continues {
    /// Writes it into a fragment.
    pub fn put(&self, fragment: &mut [u8]) {
        put(fragment, FRAGMENT_HEADER_BYTES, &self.head.to_le_bytes());
        put(fragment, FRAGMENT_HEADER_BYTES + 8, &self.chain.to_le_bytes());
    }

    /// Reads it from a middle or last part.
    pub fn decode(fragment: &[u8]) -> Option<Self> {
        let bytes = fragment.get(..CONTINUED_HEADER_BYTES)?;
        Some(Self {
            head: u64_at(bytes, FRAGMENT_HEADER_BYTES),
            chain: u64_at(bytes, FRAGMENT_HEADER_BYTES + 8),
        })
    }
}

/// The header of a fragment in a block that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentHeader {
    /// Its checksum.
    pub checksum: u64,
    /// The epoch in which it was written.
    pub epoch: u32,
    /// Bytes of the whole fragment, header included.
    pub bytes: usize,
    /// Which part of its record it is.
    pub part: FragmentType,
}

impl FragmentHeader {
    /// Reads the header at the front of `bytes`, which passed their checksum; `None` if no fragment
    /// begins there.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; FRAGMENT_HEADER_BYTES] =
            bytes.get(..FRAGMENT_HEADER_BYTES)?.try_into().ok()?;
        let length = usize::from(u16::from_le_bytes([bytes[12], bytes[13]]));
        Some(Self {
            checksum: u64_at(bytes, 0),
            epoch: u32_at(bytes, 8),
            bytes: FRAGMENT_HEADER_BYTES + length,
            part: part_of(bytes[14])?,
        })
    }

    /// Whether the record continues in the next block.
    pub fn continues_after(&self) -> bool {
        matches!(self.part, FragmentType::First | FragmentType::Middle)
    }

    /// Whether it continues a record that began in an earlier block.
    pub fn continues(&self) -> bool {
        matches!(self.part, FragmentType::Middle | FragmentType::Last)
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
    /// Whether the bytes are intact but of an unknown format, and therefore not a torn tail.
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

/// The hash of a record in one fragment, from its bytes from [`CONTENT_AT`] on.
pub fn content_hash(content: &[u8]) -> u64 {
    checksum(CONTENT_SEED, content)
}

/// Fills in the header of `fragment`, whose other bytes are in place; returns its checksum and, of
/// a whole record, the hash of its content.
pub fn seal_fragment(
    fragment: &mut [u8],
    segment_seed: u64,
    epoch: u32,
    offset: u32,
    part: FragmentType,
) -> (u64, Option<u64>) {
    let length = fragment.len() - FRAGMENT_HEADER_BYTES;
    debug_assert!(length > 0 && length.is_multiple_of(8) && fragment.len() <= BLOCK_BYTES);
    put(fragment, 8, &epoch.to_le_bytes());
    put(fragment, 12, &(length as u16).to_le_bytes());
    fragment[14] = part as u8;
    fragment[15] = CODEC_NONE;
    let (sum, content) =
        sum_of(fragment, fragment_seed(segment_seed, offset), part == FragmentType::Whole);
    put(fragment, 0, &sum.to_le_bytes());
    (sum, content)
}

/// The checksum of a fragment and, of a whole record, the hash of its content.
fn sum_of(fragment: &[u8], seed: u64, is_whole: bool) -> (u64, Option<u64>) {
    match fragment.get(WHOLE_CONTENT_AT..).filter(|content| is_whole && !content.is_empty()) {
        Some(content) => {
            let content = content_hash(content);
            (place_hash(fragment, seed) ^ content, Some(content))
        }
        None => (checksum(seed, &fragment[8..]), None),
    }
}

/// The hash of the bytes before the content of a whole record, seeded with its place.
fn place_hash(fragment: &[u8], seed: u64) -> u64 {
    checksum(seed, &fragment[8..WHOLE_CONTENT_AT])
}

/// The hash of a whole record's content, from a fragment at `offset` that passed its checksum.
pub fn content_of_whole(fragment: &[u8], segment_seed: u64, offset: u32) -> Option<u64> {
    let fragment = fragment.get(..WHOLE_CONTENT_AT)?;
    Some(u64_at(fragment, 0) ^ place_hash(fragment, fragment_seed(segment_seed, offset)))
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
    let part = part_of(header[14]).filter(|_| header[15] == CODEC_NONE);
    let seed = fragment_seed(segment_seed, block_offset + at as u32);
    let (sum, content) = sum_of(fragment, seed, part == Some(FragmentType::Whole));
    if sum != u64_at(header, 0) {
        return Found::Bad(Refusal::bad(
            "the checksum of a fragment does not match its bytes and place",
        ));
    }
    let Some(part) = part else {
        return Found::Bad(Refusal::newer(
            "a fragment of a type or codec that this version does not know",
        ));
    };
    if fragment.len() <= part.header_bytes() {
        return Found::Bad(Refusal::bad("a fragment of an impossible length"));
    }
    let continues =
        Continues::decode(fragment).filter(|_| part.header_bytes() == CONTINUED_HEADER_BYTES);
    Found::Fragment(Fragment {
        part,
        epoch: u32_at(header, 8),
        checksum: sum,
        chain: content.or(continues.map(|continues| continues.chain)),
        continues,
        bytes: &fragment[part.header_bytes()..],
    })
}

/// The seed of a fragment at `offset`. The epoch is among the bytes that are hashed.
fn fragment_seed(segment_seed: u64, offset: u32) -> u64 {
    segment_seed.wrapping_add(u64::from(offset))
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
    fn fragment_is_valid_only_in_place_and_unchanged() {
        let mut block = vec![0; BLOCK_BYTES];
        block[64 + 16..64 + 56].fill(9);
        seal_fragment(&mut block[64..120], 7, 3, 64, FragmentType::Whole);
        let Found::Fragment(found) = fragment_at(&block, 64, 0, 7) else { panic!("not found") };
        assert_eq!(
            (found.part, found.epoch, found.bytes),
            (FragmentType::Whole, 3, &[9u8; 40][..])
        );
        assert!(matches!(fragment_at(&block, 64, 16384, 7), Found::Bad(_)));
        assert!(matches!(fragment_at(&block, 64, 0, 8), Found::Bad(_)));
        assert!(matches!(fragment_at(&block, 120, 0, 7), Found::Nothing));
        assert!(matches!(fragment_at(&block, BLOCK_BYTES - 8, 0, 7), Found::Nothing));
        assert_eq!(content_of_whole(&block[64..], 7, 64), found.chain);
        assert_eq!(found.chain, Some(content_hash(&[9; 16])));
        for at in 64..120 {
            block[at] ^= 1;
            assert!(matches!(fragment_at(&block, 64, 0, 7), Found::Bad(_)), "byte {at}");
            block[at] ^= 1;
        }
    }

    #[test]
    fn part_identifies_its_record() {
        let mut block = vec![0; BLOCK_BYTES];
        let continues = Continues { head: 5, chain: 6 };
        continues.put(&mut block);
        block[32..40].fill(9);
        seal_fragment(&mut block[..40], 7, 3, 16384, FragmentType::Last);
        let Found::Fragment(found) = fragment_at(&block, 0, 16384, 7) else { panic!("not found") };
        assert_eq!(
            (found.continues, found.chain, found.bytes),
            (Some(continues), Some(6), &[9u8; 8][..])
        );
        assert_eq!(found.whole_bytes(), 40);
        seal_fragment(&mut block[..32], 7, 3, 16384, FragmentType::Middle);
        assert!(matches!(fragment_at(&block, 0, 16384, 7), Found::Bad(_)), "a part without bytes");
    }
}
