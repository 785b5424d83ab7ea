//! Leaf pages: the versions themselves.
//!
//! ```text
//! 0         2           10       12              14
//! | entries | base glsn | prefix | bodies' start | hints (4 bytes each) | restarts (4 bytes each)
//!
//! | entry ... entry | body ... body |
//! ```
//!
//! An entry:
//!
//! ```text
//! | shared:4 rest:4 | shared - 15? | rest - 15? | glsn | length and tag | key's rest |
//!   one byte          varint         varint       varint   varint
//! ```
//!
//! Keys and bodies (the stored values) are apart because a search reads only keys. The keys of a
//! *block*, which are the entries from one restart to the next, are in a few consecutive cache
//! lines, regardless of the size of the values. The hints follow the head for the same reason. A
//! search therefore waits for memory about three times: head, block, body.
//!
//! Invariants:
//! 1. Entries are sorted by key, then newest first; no two are equal.
//! 2. Every 16th entry is a *restart*: it shares bytes with the page's first key, every other entry
//!    with the previous key. The shared length is always maximal, so that a search can often order
//!    a key by that length alone. For each restart the leaf has the offsets of its entry and its
//!    body (u16 each).
//! 3. `prefix` is the number of leading bytes that all keys share. A restart's hint is the next
//!    four bytes of its key (zeros after its end), so that a search finds its block within few
//!    cache lines.
//! 4. `glsn` is the zigzag-encoded difference from the page's base.
//!
//! The bytes have passed their checksum but are not trusted: all methods accept any bytes and
//! return `None` if they cannot be decoded.

pub(crate) mod check;

#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use plimsoll_disk::codec::{put_varint, varint_len};
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::cpu_prefetch::{prefetch, prefetch_at};
use plimsoll_memory::page::PAGE_PAYLOAD_BYTES;

use crate::index::run::bytes::{common_prefix, compare, u16_at, unzigzag, varint_at, zigzag};
use crate::types::index_key::MAX_INDEX_KEY_BYTES;
use crate::types::version::{MAX_STORED_BYTES, Stored};

/// The kind byte of leaf pages.
pub(crate) const LEAF_PAGE: u8 = 16;

/// The interval of restarts, which can be decoded without preceding entries.
const RESTART_EVERY: usize = 16;

/// Offset of the hints.
const HINTS_START: usize = 14;

const HINT_BYTES: usize = 4;

/// Size of a restart's offsets: of its entry and of its body.
const OFFSETS_BYTES: usize = 4;

/// Size of a restart.
const RESTART_BYTES: usize = HINT_BYTES + OFFSETS_BYTES;

/// A length of at least this value is stored in an additional varint.
const NIBBLE: usize = 15;

/// Size of the longest entry: head, two lengths, GLSN, length and tag, key, body.
const MAX_ENTRY_BYTES: usize = 1 + 2 + 2 + 10 + 2 + MAX_INDEX_KEY_BYTES + MAX_STORED_BYTES;

/// Maximum number of keys in a leaf: each takes at least four bytes and a share of a restart.
pub(crate) const MAX_LEAF_KEYS: usize =
    (PAGE_PAYLOAD_BYTES / (4 * RESTART_EVERY + RESTART_BYTES) + 1) * RESTART_EVERY;

const _: () = assert!(
    HINTS_START + MAX_ENTRY_BYTES + RESTART_BYTES <= PAGE_PAYLOAD_BYTES,
    "a leaf has room for at least one entry"
);

/// A leaf that is being written. Its bytes are in a draft of [`PAGE_PAYLOAD_BYTES`] that the caller
/// passes to every call: entries grow from the front, bodies from the end.
#[derive(Debug)]
pub(crate) struct LeafDraft {
    entries: usize,
    /// Bytes of the entries.
    keys: usize,
    /// Bytes of the bodies.
    bodies: usize,
    base: u64,
    first_key: (usize, usize),
}

impl LeafDraft {
    /// An empty leaf.
    pub(crate) fn new() -> Self {
        Self { entries: 0, keys: 0, bodies: 0, base: 0, first_key: (0, 0) }
    }

    /// Number of entries.
    pub(crate) fn entries(&self) -> usize {
        self.entries
    }

    /// Size of its payload.
    pub(crate) fn bytes(&self) -> usize {
        HINTS_START + RESTART_BYTES * self.entries.div_ceil(RESTART_EVERY) + self.keys + self.bodies
    }

    /// Adds an entry whose key shares `common` bytes with the previous key. `false` if it does not
    /// fit. `stored` is encoded.
    pub(crate) fn add(
        &mut self,
        draft: &mut [u8],
        key: &[u8],
        common: usize,
        glsn: Glsn,
        stored: &[u8],
    ) -> bool {
        let restart = self.entries.is_multiple_of(RESTART_EVERY);
        let shared = match self.entries {
            0 => 0,
            _ if restart => common_prefix(&draft[self.first_key.0..self.first_key.1], key),
            _ => common,
        };
        let base = if self.entries == 0 { glsn.0 } else { self.base };
        let entry = EntryDraft {
            shared,
            rest: &key[shared..],
            distance: glsn.0.wrapping_sub(base) as i64,
            stored,
        };
        let (entry_bytes, body) = (entry.bytes(), &stored[1..]);
        if self.bytes() + entry_bytes + body.len() + if restart { RESTART_BYTES } else { 0 }
            > PAGE_PAYLOAD_BYTES
        {
            return false;
        }
        entry.write(&mut draft[self.keys..]);
        self.keys += entry_bytes;
        self.bodies += body.len();
        let body_at = PAGE_PAYLOAD_BYTES - self.bodies;
        draft[body_at..body_at + body.len()].copy_from_slice(body);
        if self.entries == 0 {
            self.base = base;
            self.first_key = (self.keys - key.len(), self.keys);
        }
        self.entries += 1;
        true
    }

    /// Writes the leaf of a draft to `payload` and starts an empty leaf. `last_key` is the key of
    /// the last entry. Returns the payload's length.
    pub(crate) fn finish(&mut self, draft: &[u8], payload: &mut [u8], last_key: &[u8]) -> usize {
        let bytes = self.bytes();
        let prefix = common_prefix(&draft[self.first_key.0..self.first_key.1], last_key);
        let bodies = bytes - self.bodies;
        payload[..2].copy_from_slice(&(self.entries as u16).to_le_bytes());
        payload[2..10].copy_from_slice(&self.base.to_le_bytes());
        payload[10..12].copy_from_slice(&(prefix as u16).to_le_bytes());
        payload[12..HINTS_START].copy_from_slice(&(bodies as u16).to_le_bytes());
        payload[bodies - self.keys..bodies].copy_from_slice(&draft[..self.keys]);
        let shape = LeafShape::of(&payload[..bytes], None)
            .expect("the head and the first entry were just written");
        let (mut offset, mut body, mut drafted) = (shape.keys_start(), bodies, PAGE_PAYLOAD_BYTES);
        for number in 0..self.entries {
            let entry = shape
                .on(&payload[..bytes])
                .entry(offset, body)
                .expect("the restart was written at these offsets");
            if number.is_multiple_of(RESTART_EVERY) {
                let hint = shape.on(&payload[..bytes]).hint_of(&entry, prefix);
                let (block, offsets) = (number / RESTART_EVERY, shape.offsets_start());
                payload[HINTS_START + HINT_BYTES * block..][..HINT_BYTES]
                    .copy_from_slice(&hint.to_be_bytes());
                let at = offsets + OFFSETS_BYTES * block;
                payload[at..at + 2].copy_from_slice(&(offset as u16).to_le_bytes());
                payload[at + 2..at + OFFSETS_BYTES].copy_from_slice(&(body as u16).to_le_bytes());
            }
            drafted -= entry.end - entry.body;
            payload[entry.body..entry.end]
                .copy_from_slice(&draft[drafted..drafted + entry.end - entry.body]);
            (offset, body) = (entry.next, entry.end);
        }
        *self = Self::new();
        bytes
    }
}

struct EntryDraft<'a> {
    shared: usize,
    rest: &'a [u8],
    distance: i64,
    stored: &'a [u8],
}

impl EntryDraft<'_> {
    /// The length of the body, with its tag in the low bits.
    fn length_and_tag(&self) -> u64 {
        ((self.stored.len() as u64 - 1) << 2) | u64::from(self.stored[0])
    }

    /// Size without the body.
    fn bytes(&self) -> usize {
        1 + extension_len(self.shared)
            + extension_len(self.rest.len())
            + varint_len(zigzag(self.distance))
            + varint_len(self.length_and_tag())
            + self.rest.len()
    }

    /// Writes the entry without its body.
    fn write(&self, out: &mut [u8]) {
        out[0] = (self.shared.min(NIBBLE) << 4 | self.rest.len().min(NIBBLE)) as u8;
        let mut at = 1;
        for len in [self.shared, self.rest.len()] {
            if len >= NIBBLE {
                at += put_varint(&mut out[at..], (len - NIBBLE) as u64);
            }
        }
        at += put_varint(&mut out[at..], zigzag(self.distance));
        at += put_varint(&mut out[at..], self.length_and_tag());
        out[at..at + self.rest.len()].copy_from_slice(self.rest);
    }
}

fn extension_len(len: usize) -> usize {
    if len < NIBBLE { 0 } else { varint_len((len - NIBBLE) as u64) }
}

/// The shape of a leaf: sufficient to read the payload again without decoding its first entry.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeafShape {
    entries: usize,
    base: u64,
    /// Number of leading bytes that all keys share.
    prefix: usize,
    fixed: Option<Glsn>,
    /// End of the entries and offset of the first body.
    bodies: usize,
    first_key: (usize, usize),
}

/// The fault of a leaf that has versions of branches.
pub(crate) const BRANCHES: &str = "versions of a branch, written by a newer version of Plimsoll";

/// Reserved bit of the entry count: each entry has a branch id after its GLSN. Never set in leaves
/// of the main branch.
const HAS_BRANCHES: u16 = 1 << 15;

/// Whether a leaf has versions of branches, which only newer versions of Plimsoll write.
pub(crate) fn has_branches(payload: &[u8]) -> bool {
    u16_at(payload, 0).is_some_and(|entries| entries & usize::from(HAS_BRANCHES) != 0)
}

impl LeafShape {
    /// Reads the shape from a payload. If `fixed` is set, every entry has that GLSN.
    pub(crate) fn of(payload: &[u8], fixed: Option<Glsn>) -> Option<Self> {
        let entries = u16_at(payload, 0)?;
        let base = u64::from_le_bytes(payload.get(2..10)?.try_into().ok()?);
        let prefix = u16_at(payload, 10)?;
        let bodies = u16_at(payload, 12)?;
        let mut shape = Self { entries, base, prefix, fixed, bodies, first_key: (0, 0) };
        let is_whole = (shape.keys_start() + 1..=payload.len()).contains(&bodies);
        if !(1..usize::from(HAS_BRANCHES)).contains(&entries) || !is_whole {
            return None;
        }
        let first = shape.on(payload).first()?;
        shape.first_key = (first.rest, first.next);
        (first.shared == 0).then_some(shape)
    }

    /// Offset of the restarts' offsets.
    fn offsets_start(&self) -> usize {
        HINTS_START + HINT_BYTES * self.blocks()
    }

    /// Offset of the first entry.
    fn keys_start(&self) -> usize {
        HINTS_START + RESTART_BYTES * self.blocks()
    }

    fn blocks(&self) -> usize {
        self.entries.div_ceil(RESTART_EVERY)
    }

    /// The leaf in `payload`, from which the shape was read.
    pub(crate) fn on(self, payload: &[u8]) -> Leaf<'_> {
        Leaf { shape: self, payload }
    }
}

/// A leaf to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf<'a> {
    shape: LeafShape,
    payload: &'a [u8],
}

/// One entry: offsets into the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Number of bytes of its key that are stored in another entry.
    shared: usize,
    /// Offset of the rest of its key.
    rest: usize,
    /// End of its key, and offset of the next entry.
    next: usize,
    /// Offset of its body.
    pub(crate) body: usize,
    /// End of its body, and offset of the next body.
    pub(crate) end: usize,
    /// The kind of [`Stored`] in the body. A `u64` like its neighbours, so that an entry is copied
    /// in whole words.
    pub(crate) tag: u64,
    /// The commit that wrote it.
    pub(crate) glsn: Glsn,
}

/// An entry and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// Its number in the leaf, from 0.
    pub(crate) number: usize,
    /// The entry.
    pub(crate) entry: Entry,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stepped {
    /// To an older version of the same key.
    ToSameKey,
    ToNextKey,
    /// There is no next entry in the leaf.
    AtEnd,
}

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeekResult {
    /// At an entry, and whether its key is the sought key.
    At(Spot, bool),
    /// After the last entry.
    After,
}

impl<'a> Leaf<'a> {
    /// Reads a leaf's payload.
    pub(crate) fn new(payload: &'a [u8], fixed: Option<Glsn>) -> Option<Self> {
        Some(LeafShape::of(payload, fixed)?.on(payload))
    }

    /// Number of entries.
    pub(crate) fn entries(&self) -> usize {
        self.shape.entries
    }

    /// Its shape.
    pub(crate) fn shape(&self) -> LeafShape {
        self.shape
    }

    /// The first entry at or after (`key`, `at`).
    pub(crate) fn seek(&self, key: &[u8], at: Glsn) -> Option<SeekResult> {
        let first = self.first_key();
        let (common, order) = compare(first, key);
        let entry = self.first()?;
        if !comes_before(order, entry.glsn, at) {
            return Some(SeekResult::At(Spot { number: 0, entry }, order == Ordering::Equal));
        }
        if common < self.shape.prefix {
            // The key is greater than all keys with the common prefix.
            return Some(SeekResult::After);
        }
        let block = self.block_before(key, at, common)?;
        self.seek_in_block(block, common, key, at)
    }

    /// The last block whose restart comes before (`key`, `at`). The first entry is before it, and
    /// its key shares `common` bytes with `key`.
    fn block_before(&self, key: &[u8], at: Glsn, common: usize) -> Option<usize> {
        let hint = hint(|i| key.get(self.shape.prefix + i));
        let hints = self.hints()?;
        let mut below = partition_point(hints, |other| other < hint).saturating_sub(1);
        // Only restarts with the same hint as the key need a comparison.
        let mut above =
            below + 1 + partition_point(&hints[HINT_BYTES * (below + 1)..], |other| other <= hint);
        while above - below > 1 {
            let middle = below.midpoint(above);
            let entry = self.restart(middle)?;
            let (_, order) = self.compare_after(&entry, key, common);
            if comes_before(order, entry.glsn, at) { below = middle } else { above = middle }
        }
        Some(below)
    }

    /// Searches a block whose restart comes before (`key`, `at`). The first key shares `common`
    /// bytes with `key`.
    fn seek_in_block(
        &self,
        block: usize,
        common: usize,
        key: &[u8],
        at: Glsn,
    ) -> Option<SeekResult> {
        let (start, body) = self.restart_offsets(block)?;
        // Prefetch the block's lines. They are consecutive, but the hardware prefetcher would start
        // only after some of them were loaded.
        let is_last = (block + 1) * RESTART_EVERY >= self.shape.entries;
        let next = if is_last { None } else { self.restart_offsets(block + 1) };
        let end = next.map_or(self.shape.bodies, |(end, _)| end.min(self.shape.bodies));
        prefetch(self.payload.get(start..end).unwrap_or_default());
        let mut before = self.entry(start, body)?;
        let mut matched =
            if block == 0 { common } else { self.compare_after(&before, key, common).0 };
        let behind = ((block + 1) * RESTART_EVERY).min(self.shape.entries);
        for number in block * RESTART_EVERY + 1..behind {
            let entry = self.after_entry(&before)?;
            let (agreed, order) = self.compare_after(&entry, key, matched);
            if !comes_before(order, entry.glsn, at) {
                return Some(SeekResult::At(Spot { number, entry }, order == Ordering::Equal));
            }
            (matched, before) = (agreed, entry);
        }
        if behind == self.shape.entries {
            return Some(SeekResult::After);
        }
        let entry = self.restart(block + 1)?;
        let (_, order) = self.compare_after(&entry, key, common);
        Some(SeekResult::At(Spot { number: behind, entry }, order == Ordering::Equal))
    }

    /// Compares an entry's key with `key`. The preceding key (the one that the entry shares bytes
    /// with) is not after `key`, and shares `matched` bytes with it. Returns the number of bytes
    /// that the entry's key shares with `key`, and its order to `key`.
    fn compare_after(&self, entry: &Entry, key: &[u8], matched: usize) -> (usize, Ordering) {
        match entry.shared.cmp(&matched) {
            // The entry's key shares the byte in which the preceding key is less than `key`.
            Ordering::Greater => (matched, Ordering::Less),
            // The entry's key differs from the preceding key in a byte that the preceding key
            // shares with `key`, so it is greater than both.
            Ordering::Less => (entry.shared, Ordering::Greater),
            Ordering::Equal => {
                let (common, order) =
                    compare(&self.payload[entry.rest..entry.next], &key[matched..]);
                (matched + common, order)
            }
        }
    }

    /// Entry `number`. Its key is assembled in `key`.
    pub(crate) fn spot(&self, number: usize, key: &mut Vec<u8>) -> Option<Spot> {
        let block = number / RESTART_EVERY;
        let mut entry = self.restart(block)?;
        self.restart_key(&entry, key)?;
        for _ in 0..number % RESTART_EVERY {
            let before = entry.glsn;
            entry = self.after_entry(&entry)?;
            self.extend_key(&entry, before, key)?;
        }
        Some(Spot { number, entry })
    }

    /// Assembles in `key` the key of the entry that a search for `sought` has found, from the
    /// sought key rather than entry by entry.
    pub(crate) fn found_key(&self, found: &Spot, sought: &[u8], key: &mut Vec<u8>) -> Option<()> {
        if found.number.is_multiple_of(RESTART_EVERY) {
            return self.restart_key(&found.entry, key);
        }
        // The preceding key is not after the sought key, and shares at least as many bytes with it
        // as with the found key (`compare_after`).
        let front = sought.get(..found.entry.shared)?;
        key.clear();
        key.extend_from_slice(front);
        key.extend_from_slice(&self.payload[found.entry.rest..found.entry.next]);
        Some(())
    }

    /// Moves `spot` to the next entry. `key` must hold the key of `spot` and is changed to the new
    /// key. After `None`, both are unchanged or invalid.
    ///
    /// Works in place because an iterator takes a step per version: copying a value that was just
    /// written would stall on the processor's store buffer.
    #[inline]
    pub(crate) fn step(&self, spot: &mut Spot, key: &mut Vec<u8>) -> Option<Stepped> {
        let number = spot.number + 1;
        if number >= self.shape.entries {
            return Some(Stepped::AtEnd);
        }
        let before = spot.entry.glsn;
        let entry = self.after_entry(&spot.entry)?;
        let stepped = if number.is_multiple_of(RESTART_EVERY) {
            let order = self.order_to_restart(&entry, key)?;
            if !comes_before(order, before, entry.glsn) {
                return None;
            }
            self.restart_key(&entry, key)?;
            if order == Ordering::Equal { Stepped::ToSameKey } else { Stepped::ToNextKey }
        } else {
            self.extend_key(&entry, before, key)?;
            // The shared length is maximal (invariant 2).
            if entry.rest == entry.next { Stepped::ToSameKey } else { Stepped::ToNextKey }
        };
        *spot = Spot { number, entry };
        Some(stepped)
    }

    /// Prefetches the byte at an offset of the payload.
    #[inline]
    pub(crate) fn fetch(&self, offset: usize) {
        prefetch_at(self.payload, offset);
    }

    /// The version at an entry.
    #[inline]
    pub(crate) fn stored(&self, entry: &Entry) -> Option<Stored<'a>> {
        Stored::from_parts(entry.tag as u8, self.payload.get(entry.body..entry.end)?)
    }

    fn restart_key(&self, entry: &Entry, key: &mut Vec<u8>) -> Option<()> {
        key.clear();
        key.extend_from_slice(self.first_key().get(..entry.shared)?);
        key.extend_from_slice(&self.payload[entry.rest..entry.next]);
        Some(())
    }

    /// Changes `key` from the previous entry's key (with GLSN `before`) to the key of `entry`;
    /// `None` if the two are out of order.
    #[inline]
    fn extend_key(&self, entry: &Entry, before: Glsn, key: &mut Vec<u8>) -> Option<()> {
        let rest = &self.payload[entry.rest..entry.next];
        // The shared length is maximal (invariant 2), so the first byte after it decides the order.
        let follows = match (key.get(entry.shared), rest.first()) {
            (Some(old), Some(new)) => old < new,
            (Some(_), None) => false,
            (None, Some(_)) => entry.shared == key.len(),
            (None, None) => entry.shared == key.len() && entry.glsn < before,
        };
        if !follows {
            return None;
        }
        key.truncate(entry.shared);
        key.extend_from_slice(rest);
        Some(())
    }

    /// The order of `key` to the key of a restart.
    fn order_to_restart(&self, restart: &Entry, key: &[u8]) -> Option<Ordering> {
        let front = self.first_key().get(..restart.shared)?;
        let rest = &self.payload[restart.rest..restart.next];
        Some(match key.split_at_checked(front.len()) {
            Some((same, other)) => same.cmp(front).then_with(|| other.cmp(rest)),
            // `key` is shorter than the shared part, so it is never equal.
            None => key.cmp(front),
        })
    }

    pub(crate) fn first_key(&self) -> &'a [u8] {
        &self.payload[self.shape.first_key.0..self.shape.first_key.1]
    }

    fn restart(&self, block: usize) -> Option<Entry> {
        let (offset, body) = self.restart_offsets(block)?;
        self.entry(offset, body)
    }

    /// The offsets of a restart's entry and of its body.
    fn restart_offsets(&self, block: usize) -> Option<(usize, usize)> {
        let at = self.shape.offsets_start() + OFFSETS_BYTES * block;
        Some((u16_at(self.payload, at)?, u16_at(self.payload, at + 2)?))
    }

    fn hints(&self) -> Option<&'a [u8]> {
        self.payload.get(HINTS_START..self.shape.offsets_start())
    }

    /// The hint of a restart, if all keys share `prefix` bytes.
    fn hint_of(&self, restart: &Entry, prefix: usize) -> u32 {
        let rest = &self.payload[restart.rest..restart.next];
        hint(|i| match (prefix + i).checked_sub(restart.shared) {
            Some(at) => rest.get(at),
            None => self.first_key().get(prefix + i),
        })
    }

    fn first(&self) -> Option<Entry> {
        self.entry(self.shape.keys_start(), self.shape.bodies)
    }

    #[inline]
    fn after_entry(&self, entry: &Entry) -> Option<Entry> {
        self.entry(entry.next, entry.end)
    }

    /// The entry at offset `offset`, with its body at offset `body`.
    #[inline(always)]
    fn entry(&self, offset: usize, body: usize) -> Option<Entry> {
        let bytes = self.payload.get(..self.shape.bodies)?;
        let head = usize::from(*bytes.get(offset)?);
        let mut at = offset + 1;
        let shared = extended(bytes, &mut at, head >> 4)?;
        let rest_len = extended(bytes, &mut at, head & NIBBLE)?;
        let distance = unzigzag(varint_at(bytes, &mut at)?);
        let length_and_tag = varint_at(bytes, &mut at)?;
        let body_len = (length_and_tag >> 2) as usize;
        if rest_len > bytes.len() || body_len > self.payload.len() {
            return None;
        }
        let (next, end) = (at + rest_len, body + body_len);
        let glsn = self.shape.fixed.unwrap_or(Glsn(self.shape.base.wrapping_add_signed(distance)));
        let is_inside = next <= bytes.len() && end <= self.payload.len();
        is_inside.then_some(Entry {
            shared,
            rest: at,
            next,
            body,
            end,
            tag: length_and_tag & 3,
            glsn,
        })
    }
}

/// The four bytes that `byte` returns, as a number with the same order. Missing bytes count as
/// zeros.
fn hint<'b>(byte: impl Fn(usize) -> Option<&'b u8>) -> u32 {
    (0..HINT_BYTES).fold(0, |hint, i| hint << 8 | u32::from(*byte(i).unwrap_or(&0)))
}

/// The number of leading `hints` for which `is_near` holds; they are sorted.
fn partition_point(hints: &[u8], is_near: impl Fn(u32) -> bool) -> usize {
    let (mut start, mut len) = (0, hints.len() / HINT_BYTES);
    while len > 0 {
        let half = len / 2;
        let at = HINT_BYTES * (start + half);
        let hint = u32::from_be_bytes([hints[at], hints[at + 1], hints[at + 2], hints[at + 3]]);
        (start, len) =
            if is_near(hint) { (start + half + 1, len - half - 1) } else { (start, half) };
    }
    start
}

/// Whether a version at `glsn` comes before (sought key, `at`), if its key is in `order` to the
/// sought key.
pub(crate) fn comes_before(order: Ordering, glsn: Glsn, at: Glsn) -> bool {
    order == Ordering::Less || order == Ordering::Equal && glsn > at
}

#[inline]
fn extended(bytes: &[u8], at: &mut usize, nibble: usize) -> Option<usize> {
    if nibble < NIBBLE {
        return Some(nibble);
    }
    let more = varint_at(bytes, at)?;
    (more <= bytes.len() as u64).then_some(NIBBLE + more as usize)
}
