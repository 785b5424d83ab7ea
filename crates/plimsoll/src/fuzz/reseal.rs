//! Recomputes the checksums and the chain hash of log records after their bytes were changed.

use plimsoll_log::format::content::ContentHash;
use plimsoll_log::format::fragment::{
    CONTINUED_HEADER_BYTES, Continues, FRAGMENT_HEADER_BYTES, FragmentType, seal_fragment,
};
use plimsoll_log::format::record::{RecordHeader, head_bytes};

/// A fragment in a segment: its start, its end and its type.
pub type Placed = (usize, usize, FragmentType);

/// Offset of the previous record's chain hash in the first fragment of a record.
const PREVIOUS_CHAIN_AT: usize = FRAGMENT_HEADER_BYTES + 40;

/// Seals the fragments of one record, or a mark, in `segment`. `chain` is the chain hash before it;
/// returns the one after it. With `follows`, `chain` is also written into the record's header.
pub fn reseal(
    segment: &mut [u8],
    parts: &[Placed],
    segment_seed: u64,
    epoch: u32,
    chain: u64,
    follows: bool,
) -> u64 {
    let Some((&(start, end, part), rest)) = parts.split_first() else { return chain };
    let Some(first) = segment.get_mut(start..end) else { return chain };
    let begins = matches!(part, FragmentType::Whole | FragmentType::First);
    if let Some(before) =
        first.get_mut(PREVIOUS_CHAIN_AT..PREVIOUS_CHAIN_AT + 8).filter(|_| begins && follows)
    {
        before.copy_from_slice(&chain.to_le_bytes());
    }
    let header = RecordHeader::decode(&first[FRAGMENT_HEADER_BYTES..]).ok().filter(|_| begins);
    let (head, content) = seal_fragment(first, segment_seed, epoch, start as u32, part);
    let after = match content {
        Some(content) => content,
        None if begins => {
            let head = header.map_or(head_bytes(0), |header| header.head_bytes());
            let mut content = ContentHash::of_first(&first[FRAGMENT_HEADER_BYTES..], head);
            for &(start, end, _) in rest {
                content
                    .fragment(segment.get(start + CONTINUED_HEADER_BYTES..end).unwrap_or_default());
            }
            content.sum()
        }
        None => chain,
    };
    let after = header.map_or(after, |header| header.chain_after(after));
    for &(start, end, part) in rest {
        let Some(fragment) = segment.get_mut(start..end) else { break };
        if fragment.len() >= CONTINUED_HEADER_BYTES {
            Continues { head, chain: after }.put(fragment);
        }
        seal_fragment(fragment, segment_seed, epoch, start as u32, part);
    }
    after
}

/// Whether a fragment continues the record of the previous fragment.
pub fn continues(part: FragmentType) -> bool {
    matches!(part, FragmentType::Middle | FragmentType::Last)
}
