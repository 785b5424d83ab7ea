//! Guide pages (filter and index block in one): a filter over the keys of a group of leaves, and
//! the separators of the leaves.
//!
//! ```text
//! 0        2        4            8       12         48
//! | leaves | blocks | first leaf | keys  | zeros    | filter (blocks of 64 bytes) | fences |
//! ```
//!
//! Invariants:
//! 1. The leaves of a group are consecutive pages, directly followed by the guide.
//! 2. Every key of the leaves passes the filter.
//!
//! One page therefore shows, without reading a leaf, that a key is absent, or which leaf contains
//! it. The filter begins on a cache line.

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::page::PAGE_PAYLOAD_BYTES;

use crate::index::run::bytes::{u16_at, u32_at};
use crate::index::run::fences::{Fence, FenceDraft, Fences};
use crate::index::run::filter::{self, BLOCK_BYTES};

/// The kind byte of guide pages.
pub(crate) const GUIDE_PAGE: u8 = 17;

/// Offset of the filter in the payload; it is 64 bytes from the start of the page.
const FILTER_START: usize = 48;

/// Maximum number of keys in a group: the capacity of a filter that fills the page.
pub(crate) const MAX_GUIDE_KEYS: usize = filter::max_keys(PAGE_PAYLOAD_BYTES);

/// A group of leaves that is being collected.
#[derive(Debug)]
pub(crate) struct GuideDraft {
    fences: FenceDraft,
    keys: usize,
}

impl GuideDraft {
    /// An empty draft.
    pub(crate) fn new() -> Self {
        Self { fences: FenceDraft::new(false), keys: 0 }
    }

    /// Number of keys in the leaves; a key in two leaves counts twice.
    pub(crate) fn keys(&self) -> usize {
        self.keys
    }

    /// Whether it has no leaves.
    pub(crate) fn is_empty(&self) -> bool {
        self.fences.children() == 0
    }

    /// Whether a leaf with this many keys, after `fence`, fits.
    pub(crate) fn has_room(&self, raw: &[u8], fence: Fence<'_>, keys: usize) -> bool {
        let filter_bytes = filter::blocks_for(self.keys + keys) * BLOCK_BYTES;
        self.fences.bytes_with(raw, fence).is_some_and(|fences_bytes| {
            FILTER_START + filter_bytes + fences_bytes <= PAGE_PAYLOAD_BYTES
        })
    }

    /// Adds a leaf, which must fit.
    pub(crate) fn add(&mut self, raw: &mut [u8], leaf: u32, fence: Fence<'_>, keys: usize) {
        self.fences.add(raw, leaf, fence);
        self.keys += keys;
    }

    /// The fence before the first leaf.
    pub(crate) fn first_fence<'a>(&self, raw: &'a [u8]) -> Fence<'a> {
        self.fences.first(raw).1
    }

    /// Writes the page's payload and starts a new group. `hashes` are those of its keys. Returns
    /// the payload's length.
    pub(crate) fn finish(
        &mut self,
        raw: &[u8],
        payload: &mut [u8],
        hashes: impl Iterator<Item = u32>,
    ) -> usize {
        let room = (PAGE_PAYLOAD_BYTES - FILTER_START - self.fences.bytes()) / BLOCK_BYTES;
        let blocks = filter::blocks_within(self.keys, room);
        let fences_start = FILTER_START + blocks * BLOCK_BYTES;
        payload[..fences_start].fill(0);
        payload[..2].copy_from_slice(&(self.fences.children() as u16).to_le_bytes());
        payload[2..4].copy_from_slice(&(blocks as u16).to_le_bytes());
        payload[4..8].copy_from_slice(&self.fences.first(raw).0.to_le_bytes());
        payload[8..12].copy_from_slice(&(self.keys as u32).to_le_bytes());
        hashes.for_each(|hash| filter::insert(&mut payload[FILTER_START..fences_start], hash));
        let bytes = fences_start + self.fences.bytes();
        self.fences.finish(raw, payload, fences_start);
        self.keys = 0;
        bytes
    }
}

/// Reads a guide. Its methods accept any bytes and return `None` if they cannot be decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guide<'a> {
    leaves: u32,
    first_leaf: u32,
    keys: u32,
    filter: &'a [u8],
    fences: Fences<'a>,
}

impl<'a> Guide<'a> {
    /// Reads the head of a guide's payload.
    pub(crate) fn new(payload: &'a [u8]) -> Option<Self> {
        let leaves = u16_at(payload, 0)?;
        let first_leaf = u32_at(payload, 4)?;
        let fences_start = FILTER_START + u16_at(payload, 2)? * BLOCK_BYTES;
        let filter = payload.get(FILTER_START..fences_start)?;
        // Page 0 is the header.
        if filter.is_empty() || first_leaf == 0 || first_leaf.checked_add(leaves as u32).is_none() {
            return None;
        }
        let fences = Fences::new(payload, fences_start, leaves.checked_sub(1)?, false)?;
        Some(Self { leaves: leaves as u32, first_leaf, keys: u32_at(payload, 8)?, filter, fences })
    }

    /// Whether a key with this hash may be in the leaves.
    pub(crate) fn may_contain(&self, hash: u32) -> bool {
        filter::may_contain(self.filter, hash)
    }

    /// The page of the leaf that contains (`key`, `glsn`).
    pub(crate) fn find(&self, key: &[u8], glsn: Glsn) -> Option<u32> {
        Some(self.first_leaf + self.fences.find(key, glsn)? as u32)
    }

    /// The page of the first leaf.
    pub(crate) fn first_leaf(&self) -> u32 {
        self.first_leaf
    }

    /// Number of leaves.
    pub(crate) fn leaves(&self) -> u32 {
        self.leaves
    }

    /// Number of keys in the leaves; a key in two leaves counts twice.
    pub(crate) fn keys(&self) -> u32 {
        self.keys
    }

    /// The separators of the leaves.
    pub(crate) fn fences(&self) -> &Fences<'a> {
        &self.fences
    }
}

/// Decodes a whole guide.
///
/// # Errors
/// The fault of the guide.
pub(crate) fn check_guide(payload: &[u8]) -> Result<Guide<'_>, &'static str> {
    let guide = Guide::new(payload).ok_or("the guide's head is invalid")?;
    guide.fences.check()?;
    Ok(guide)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_guide_finds_each_of_its_leaves() {
        for key_bytes in (0..60).chain([4000, 4096]) {
            for keys in [1, 2, 15, 333, 1310, 3744] {
                let (mut raw, mut payload) = (vec![0; 2 * 16384], vec![0; PAGE_PAYLOAD_BYTES]);
                let mut draft = GuideDraft::new();
                let fence =
                    |n: usize| [&vec![7; key_bytes][..], &(n as u32).to_be_bytes()].concat();
                let mut leaves = 0;
                while draft.has_room(&raw, Fence { key: &fence(leaves), below: 0 }, keys) {
                    draft.add(
                        &mut raw,
                        5 + leaves as u32,
                        Fence { key: &fence(leaves), below: 0 },
                        keys,
                    );
                    leaves += 1;
                }
                assert!(leaves > 0, "one leaf always fits");
                let bytes =
                    draft.finish(&raw, &mut payload, (0..(leaves * keys) as u32).map(|n| n << 12));
                let guide = check_guide(&payload[..bytes]).unwrap();
                assert_eq!((guide.first_leaf(), guide.leaves() as usize), (5, leaves));
                for n in 0..leaves {
                    assert_eq!(
                        guide.find(&fence(n), Glsn::MAX),
                        Some(5 + n as u32),
                        "{key_bytes} and {keys}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_guide_whose_first_leaf_is_the_header_page_is_invalid() {
        for first_leaf in [0, 1] {
            let (mut raw, mut payload) = (vec![0; 2 * 16384], vec![0; PAGE_PAYLOAD_BYTES]);
            let mut draft = GuideDraft::new();
            draft.add(&mut raw, first_leaf, Fence { key: b"some key", below: 0 }, 1);
            let bytes = draft.finish(&raw, &mut payload, [7].into_iter());
            assert_eq!(Guide::new(&payload[..bytes]).is_some(), first_leaf > 0);
        }
    }
}
