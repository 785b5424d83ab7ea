//! Fences: the separators between the children of a page.
//!
//! A fence is a position in the order of versions: a key and `below`. All versions at or after it
//! are to its right. If `below` is 0, these include all versions of the key; otherwise only those
//! with a GLSN less than `below` (one key's versions may fill several leaves).
//!
//! ```text
//! | prefix length | prefix | fence ... fence | offsets (u16 each) |
//!   u16                                        to the payload's end
//!
//! fence: | below  | child                 | key behind the prefix |
//!          varint   u32, only where named
//! ```
//!
//! All keys share the prefix. A page with n children has n − 1 fences: the fence before its first
//! child is in the parent page.

use std::cmp::Ordering;

use plimsoll_disk::codec::{put_varint, varint_len};
use plimsoll_log::glsn::Glsn;

use crate::index::run::bytes::{common_prefix, compare, u16_at, u32_at, varint_at};
use crate::types::index_key::MAX_INDEX_KEY_BYTES;

/// A fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fence<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) below: u64,
}

impl<'a> Fence<'a> {
    /// The shortest fence between two consecutive versions.
    pub(crate) fn between(last_key: &[u8], last_glsn: Glsn, key: &'a [u8]) -> Self {
        match compare(last_key, key) {
            (_, Ordering::Equal) => Self { key, below: last_glsn.0 },
            (common, _) => Self { key: &key[..common + 1], below: 0 },
        }
    }

    /// Whether (`key`, `glsn`) is to its right.
    pub(crate) fn is_left_of(&self, key: &[u8], glsn: Glsn) -> bool {
        is_left(self.key.cmp(key), self.below, glsn)
    }
}

/// A fence that owns its key.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnedFence {
    key: Vec<u8>,
    below: u64,
}

impl OwnedFence {
    /// The fence before all keys.
    pub(crate) fn lowest() -> Self {
        Self::default()
    }

    /// A borrowed view of the fence.
    pub(crate) fn get(&self) -> Fence<'_> {
        Fence { key: &self.key, below: self.below }
    }

    /// Copies `fence` into this one.
    pub(crate) fn set(&mut self, fence: Fence<'_>) {
        self.key.clear();
        self.key.extend_from_slice(fence.key);
        self.below = fence.below;
    }
}

impl From<Fence<'_>> for OwnedFence {
    fn from(fence: Fence<'_>) -> Self {
        Self { key: fence.key.to_vec(), below: fence.below }
    }
}

fn is_left(order: Ordering, below: u64, glsn: Glsn) -> bool {
    match order {
        Ordering::Less => true,
        Ordering::Equal => below == 0 || glsn.0 < below,
        Ordering::Greater => false,
    }
}

/// Size of a raw fence without its key: child, below, length.
const RAW_HEADER_BYTES: usize = 4 + 8 + 2;

/// The children collected for a page, each with the fence before it. Until their number and common
/// prefix are known, they are kept in a raw buffer that the caller passes to every call.
#[derive(Debug, Default)]
pub(crate) struct FenceDraft {
    names_children: bool,
    children: usize,
    used: usize,
    /// Offset of the second fence, the first one that the page itself stores.
    second: usize,
    prefix: usize,
    key_bytes: usize,
    other_bytes: usize,
}

impl FenceDraft {
    /// An empty draft. With `names_children`, the page stores each child's number.
    pub(crate) fn new(names_children: bool) -> Self {
        Self { names_children, ..Self::default() }
    }

    /// Number of children collected.
    pub(crate) fn children(&self) -> usize {
        self.children
    }

    /// Size of the page so far.
    pub(crate) fn bytes(&self) -> usize {
        2 + self.prefix + self.key_bytes - self.fences() * self.prefix + self.other_bytes
    }

    /// Its size with one more child, after `fence`; `None` if the buffer has no room for it.
    pub(crate) fn bytes_with(&self, raw: &[u8], fence: Fence<'_>) -> Option<usize> {
        if self.used + RAW_HEADER_BYTES + fence.key.len() > raw.len() {
            return None;
        }
        Some(self.grown(raw, fence).bytes())
    }

    /// Adds a child that fits according to `bytes_with`.
    pub(crate) fn add(&mut self, raw: &mut [u8], child: u32, fence: Fence<'_>) {
        let used = self.used;
        *self = self.grown(raw, fence);
        let out = &mut raw[used..self.used];
        out[..4].copy_from_slice(&child.to_le_bytes());
        out[4..12].copy_from_slice(&fence.below.to_le_bytes());
        out[12..14].copy_from_slice(&(fence.key.len() as u16).to_le_bytes());
        out[RAW_HEADER_BYTES..].copy_from_slice(fence.key);
    }

    /// The first child and the fence before it.
    pub(crate) fn first<'a>(&self, raw: &'a [u8]) -> (u32, Fence<'a>) {
        let (child, fence, _) = raw_fence(raw, 0);
        (child, fence)
    }

    /// Writes all fences but the first at `start` of a payload ([`FenceDraft::bytes`] bytes), and
    /// clears the draft.
    pub(crate) fn finish(&mut self, raw: &[u8], payload: &mut [u8], start: usize) {
        let offsets_start = start + self.bytes() - 2 * self.fences();
        payload[start..start + 2].copy_from_slice(&(self.prefix as u16).to_le_bytes());
        let mut at = start + 2;
        let mut raw_at = self.second;
        for number in 0..self.fences() {
            let (child, fence, raw_end) = raw_fence(raw, raw_at);
            if number == 0 {
                payload[at..at + self.prefix].copy_from_slice(&fence.key[..self.prefix]);
                at += self.prefix;
            }
            let offset_at = offsets_start + 2 * number;
            payload[offset_at..offset_at + 2].copy_from_slice(&(at as u16).to_le_bytes());
            at += put_varint(&mut payload[at..], fence.below);
            if self.names_children {
                payload[at..at + 4].copy_from_slice(&child.to_le_bytes());
                at += 4;
            }
            let rest = &fence.key[self.prefix..];
            payload[at..at + rest.len()].copy_from_slice(rest);
            at += rest.len();
            raw_at = raw_end;
        }
        *self = Self::new(self.names_children);
    }

    fn fences(&self) -> usize {
        self.children.saturating_sub(1)
    }

    fn grown(&self, raw: &[u8], fence: Fence<'_>) -> Self {
        let used = self.used + RAW_HEADER_BYTES + fence.key.len();
        let children = self.children + 1;
        if children == 1 {
            return Self {
                children,
                used,
                second: used,
                names_children: self.names_children,
                ..Self::default()
            };
        }
        let prefix = match children {
            2 => fence.key.len(),
            _ => common_prefix(&raw_fence(raw, self.second).1.key[..self.prefix], fence.key),
        };
        let child_bytes = if self.names_children { 4 } else { 0 };
        Self {
            children,
            used,
            prefix,
            key_bytes: self.key_bytes + fence.key.len(),
            other_bytes: self.other_bytes + varint_len(fence.below) + child_bytes + 2,
            ..*self
        }
    }
}

/// The raw fence at an offset: its child, the fence, and its end.
fn raw_fence(raw: &[u8], at: usize) -> (u32, Fence<'_>, usize) {
    let (header, rest) = raw[at..].split_at(RAW_HEADER_BYTES);
    let child = u32::from_le_bytes(header[..4].try_into().expect("four bytes"));
    let below = u64::from_le_bytes(header[4..12].try_into().expect("eight bytes"));
    let len = usize::from(u16::from_le_bytes([header[12], header[13]]));
    (child, Fence { key: &rest[..len], below }, at + RAW_HEADER_BYTES + len)
}

/// Reads the fences of a page. Its methods accept any bytes and return `None` if they cannot be
/// decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fences<'a> {
    payload: &'a [u8],
    count: usize,
    prefix: &'a [u8],
    offsets_start: usize,
    names_children: bool,
}

/// A fence in a page: its key after the page's prefix, and its child if the page stores children.
#[derive(Clone, Copy, Debug)]
struct PageFence<'a> {
    below: u64,
    child: u32,
    rest: &'a [u8],
}

impl<'a> Fences<'a> {
    /// The `count` fences that fill a payload from `start` on.
    pub(crate) fn new(
        payload: &'a [u8],
        start: usize,
        count: usize,
        names_children: bool,
    ) -> Option<Self> {
        let prefix_len = u16_at(payload, start)?;
        let offsets_start = payload.len().checked_sub(2 * count)?;
        let prefix = payload.get(start + 2..start + 2 + prefix_len)?;
        (start + 2 + prefix_len <= offsets_start).then_some(Self {
            payload,
            count,
            prefix,
            offsets_start,
            names_children,
        })
    }

    /// The number of the child that contains (`key`, `glsn`).
    pub(crate) fn find(&self, key: &[u8], glsn: Glsn) -> Option<usize> {
        let front = &key[..key.len().min(self.prefix.len())];
        match self.prefix.cmp(front) {
            Ordering::Less => return Some(self.count),
            Ordering::Greater => return Some(0),
            Ordering::Equal => {}
        }
        let rest = &key[self.prefix.len()..];
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            let fence = self.fence(middle)?;
            if is_left(compare(fence.rest, rest).1, fence.below, glsn) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Some(low)
    }

    /// The page of child `number`, which must not be the first.
    pub(crate) fn child(&self, number: usize) -> Option<u32> {
        Some(self.fence(number.checked_sub(1)?)?.child)
    }

    /// The fence before child `number`, which must not be the first. Its key is assembled in `key`.
    pub(crate) fn before<'k>(&self, number: usize, key: &'k mut Vec<u8>) -> Option<Fence<'k>> {
        let fence = self.fence(number.checked_sub(1)?)?;
        key.clear();
        key.extend_from_slice(self.prefix);
        key.extend_from_slice(fence.rest);
        Some(Fence { key, below: fence.below })
    }

    /// Decodes every fence.
    ///
    /// # Errors
    /// The fault.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let mut before: Option<PageFence<'_>> = None;
        for number in 0..self.count {
            let fence = self.fence(number).ok_or("a fence is truncated")?;
            if self.prefix.len() + fence.rest.len() > MAX_INDEX_KEY_BYTES {
                return Err("a fence's key is too long");
            }
            let ordered = before.is_none_or(|before| match before.rest.cmp(fence.rest) {
                Ordering::Less => true,
                Ordering::Equal => {
                    fence.below != 0 && (before.below == 0 || fence.below < before.below)
                }
                Ordering::Greater => false,
            });
            if !ordered {
                return Err("fences are out of order");
            }
            before = Some(fence);
        }
        Ok(())
    }

    fn fence(&self, number: usize) -> Option<PageFence<'a>> {
        let end_at = |number| {
            if number == self.count {
                Some(self.offsets_start)
            } else {
                u16_at(self.payload, self.offsets_start + 2 * number)
            }
        };
        let bytes = self.payload.get(..end_at(number + 1)?.min(self.offsets_start))?;
        let mut at = end_at(number)?;
        let below = varint_at(bytes, &mut at)?;
        let mut child = 0;
        if self.names_children {
            child = u32_at(bytes, at)?;
            at += 4;
        }
        Some(PageFence { below, child, rest: bytes.get(at..)? })
    }
}
