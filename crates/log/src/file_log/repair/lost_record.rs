//! Writes a lost record (kind 1) in place of damaged records: it spans exactly from the last good
//! record to the next one, so that GLSNs stay dense and every other record stays in place.
//!
//! Its entries are empty except for the last, whose zeros fill the rest.

use plimsoll_disk::vfs::File;

use crate::error::LogError;
use crate::file_log::files::names::FileName;
use crate::file_log::options::MAX_SEGMENT_BYTES;
use crate::file_log::segments::walk::Lost;
use crate::format::fragment::{
    CONTINUED_HEADER_BYTES, Continues, FRAGMENT_HEADER_BYTES, FragmentType, seal_fragment,
};
use crate::format::layout::block_end;
use crate::format::record::{
    ENTRY_HEADER_BYTES, EntryHeader, MARK_BYTES, Mark, RECORD_HEADER_BYTES, RecordHeader,
};
use crate::format::segment_header::SegmentHeader;
use crate::format::{BLOCK_BYTES, segment_seed};
use crate::glsn::{Glsn, StreamId};

/// The number of entry headers, rounded up, that would fit into the space that the segment's and
/// the record's headers take in the first block.
const SEGMENT_SLACK: usize = 16;

/// Minimum bytes of a record's first fragment.
const HEAD_BYTES: u64 = (FRAGMENT_HEADER_BYTES + RECORD_HEADER_BYTES + ENTRY_HEADER_BYTES) as u64;

/// Fills the zeros between `lost.start` and `lost.end`.
pub(crate) fn fill(file: &dyn File, segment: &SegmentHeader, lost: &Lost) -> Result<(), LogError> {
    if lost.from == lost.next {
        return fill_with_marks(file, segment, lost);
    }
    let Some((fragments, last_payload)) = plan(lost) else {
        let what = format!(
            "{} bytes are too few for the headers of {} lost entries",
            lost.end - lost.start,
            lost.next.0 - lost.from.0
        );
        let file = FileName::Segment(segment.first).name();
        return Err(LogError::Corrupt {
            glsn: lost.from,
            file,
            offset: u64::from(lost.start),
            what,
        });
    };
    let count = (lost.next.0 - lost.from.0) as u32;
    let header = RecordHeader {
        first: lost.from,
        read_at: Glsn::NONE,
        previous_chain: lost.chain,
        durable: Glsn(lost.from.0 - 1),
        timestamp_micros: lost.timestamp + 1,
        last_blob_id: 0,
        body_bytes: count * ENTRY_HEADER_BYTES as u32 + last_payload,
        count,
        blobs: 0,
        dropped: Some(lost.chain_after),
    };
    let seed = segment_seed(segment.log_id, segment.first);
    let record_at = fragments[0].at + FRAGMENT_HEADER_BYTES as u64;
    let (mut index, mut head) = (0, 0);
    for (number, fragment) in fragments.iter().enumerate() {
        let mut at = header_bytes(number);
        let mut bytes = vec![0; at + fragment.bytes];
        if number > 0 {
            Continues { head, chain: lost.chain_after }.put(&mut bytes);
        } else {
            bytes[at..at + RECORD_HEADER_BYTES].copy_from_slice(&header.encode());
            at += RECORD_HEADER_BYTES;
        }
        for _ in 0..fragment.entries {
            let entry = EntryHeader {
                stream: StreamId::DROPPED,
                payload_bytes: if index + 1 == count { last_payload } else { 0 },
                back: (fragment.at + at as u64 - record_at) as u32,
                index,
            };
            bytes[at..at + ENTRY_HEADER_BYTES].copy_from_slice(&entry.encode());
            (at, index) = (at + ENTRY_HEADER_BYTES, index + 1);
        }
        let part = match (number == 0, number + 1 == fragments.len()) {
            (true, true) => FragmentType::Whole,
            (true, false) => FragmentType::First,
            (false, false) => FragmentType::Middle,
            (false, true) => FragmentType::Last,
        };
        let (sum, _) = seal_fragment(&mut bytes, seed, lost.epoch, fragment.at as u32, part);
        head = if number == 0 { sum } else { head };
        file.write_at(&bytes, fragment.at)?;
    }
    Ok(())
}

/// Bytes of the header of fragment `number` (from 0) of a record.
fn header_bytes(number: usize) -> usize {
    if number == 0 { FRAGMENT_HEADER_BYTES } else { CONTINUED_HEADER_BYTES }
}

/// Writes new marks in place of damaged ones, where only marks were damaged.
fn fill_with_marks(file: &dyn File, segment: &SegmentHeader, lost: &Lost) -> Result<(), LogError> {
    let mark = Mark {
        durable: Glsn(lost.from.0 - 1),
        chain: lost.chain,
        timestamp_micros: lost.timestamp,
    };
    let bytes = (FRAGMENT_HEADER_BYTES + MARK_BYTES) as u32;
    let mut at = lost.start;
    while at + bytes <= lost.end {
        let end = block_end(u64::from(at)) as u32;
        if end - at < bytes {
            // The marks continue in the next block, as the damaged ones did.
            at = end;
            continue;
        }
        let mut fragment = [0; FRAGMENT_HEADER_BYTES + MARK_BYTES];
        fragment[FRAGMENT_HEADER_BYTES..].copy_from_slice(&mark.encode());
        let seed = segment_seed(segment.log_id, segment.first);
        seal_fragment(&mut fragment, seed, lost.epoch, at, FragmentType::Mark);
        file.write_at(&fragment, u64::from(at))?;
        at += bytes;
    }
    Ok(())
}

/// Whether a lost record of these entries fits between two offsets.
pub(crate) fn fits(lost: &Lost) -> bool {
    plan(lost).is_some()
}

/// The end of `entries` lost entries that start at the front of a segment, rounded up to whole
/// blocks. `None` if a segment cannot hold that many.
pub(crate) fn room_for(entries: u64) -> Option<u32> {
    let in_a_block =
        ((BLOCK_BYTES - CONTINUED_HEADER_BYTES) / ENTRY_HEADER_BYTES - SEGMENT_SLACK) as u64;
    let blocks = entries.div_ceil(in_a_block);
    u32::try_from(blocks.checked_mul(BLOCK_BYTES as u64)?)
        .ok()
        .filter(|end| *end <= MAX_SEGMENT_BYTES)
}

/// A fragment of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Planned {
    at: u64,
    /// Bytes after its header.
    bytes: usize,
    /// Entries that begin in it.
    entries: u64,
}

/// Plans the fragments of the record and the bytes of its last entry; `None` if there is not enough
/// room.
fn plan(lost: &Lost) -> Option<(Vec<Planned>, u32)> {
    let end = u64::from(lost.end);
    let mut at = u64::from(lost.start);
    if block_end(at) - at < HEAD_BYTES {
        at = block_end(at);
    }
    let mut left = lost.next.0 - lost.from.0;
    let (mut fragments, mut payload) =
        (Vec::with_capacity((end.saturating_sub(at)) as usize / BLOCK_BYTES + 2), 0);
    while at < end {
        let header = header_bytes(fragments.len()) as u64;
        let room = (block_end(at).min(end) - at).checked_sub(header).filter(|room| *room > 0)?;
        let head = if fragments.is_empty() { RECORD_HEADER_BYTES as u64 } else { 0 };
        let entries = left.min(room.checked_sub(head)? / ENTRY_HEADER_BYTES as u64);
        left -= entries;
        let used = head + entries * ENTRY_HEADER_BYTES as u64;
        let bytes = if left > 0 { used } else { room };
        payload += bytes - used;
        if bytes == 0 || (fragments.is_empty() && entries == 0) {
            return None;
        }
        fragments.push(Planned { at, bytes: bytes as usize, entries });
        at = block_end(at);
    }
    Some((fragments, u32::try_from(payload).ok()?))
        .filter(|(fragments, _)| left == 0 && !fragments.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_log::segments::walk::Problem;

    fn lost(start: u32, end: u32, entries: u64) -> Lost {
        Lost {
            problem: Problem { at: 0, what: "", newer: false },
            start,
            end,
            from: Glsn(10),
            next: Glsn(10 + entries),
            chain: 1,
            chain_after: 2,
            epoch: 1,
            timestamp: 5,
        }
    }

    #[test]
    fn a_lost_record_fills_its_room_to_the_last_byte() {
        assert_eq!(
            plan(&lost(128, 224, 1)),
            Some((vec![Planned { at: 128, bytes: 80, entries: 1 }], 0))
        );
        assert_eq!(
            plan(&lost(128, 1000, 2)),
            Some((vec![Planned { at: 128, bytes: 856, entries: 2 }], 760))
        );
        let block = BLOCK_BYTES as u32;
        let (fragments, _) = plan(&lost(128, 2 * block + 40, 1)).unwrap();
        let ends: Vec<_> = (0..)
            .zip(&fragments)
            .map(|(n, it)| it.at + (header_bytes(n) + it.bytes) as u64)
            .collect();
        assert_eq!(ends, [u64::from(block), u64::from(2 * block), u64::from(2 * block) + 40]);
        // The record begins with the next block, because its first bytes do not fit into this one.
        assert_eq!(plan(&lost(block - 88, block + 96, 1)).unwrap().0[0].at, u64::from(block));
    }

    #[test]
    fn there_is_no_record_where_there_is_no_room() {
        assert_eq!(plan(&lost(128, 216, 1)), None);
        assert_eq!(plan(&lost(128, 128 + 16 + 64 + 16 * 3, 4)), None);
        assert!(plan(&lost(128, 128 + 16 + 64 + 16 * 4, 4)).is_some());
        assert_eq!(plan(&lost(128, 128, 1)), None);
    }

    #[test]
    fn the_room_for_entries_holds_them() {
        for entries in [1, 2, 1000, 1001, 1002, 5000, 100_000] {
            assert!(fits(&lost(128, room_for(entries).unwrap(), entries)), "{entries}");
        }
        assert_eq!(room_for(u64::MAX), None);
    }

    #[test]
    fn entries_never_cross_a_block() {
        let block = BLOCK_BYTES as u64;
        let (fragments, _) = plan(&lost(128, 3 * block as u32, 1200)).unwrap();
        assert_eq!(fragments.iter().map(|it| it.entries).sum::<u64>(), 1200);
        assert!(
            (0..)
                .zip(&fragments)
                .all(|(n, it)| it.at % block + (header_bytes(n) + it.bytes) as u64 <= block)
        );
    }
}
