//! The directory of a packed table: where the stored form of each page is in the stream.
//!
//! ```text
//! a page of it:
//! | pages of the table u32 | first page u32 | start u64 | entries, u32 each ... |
//! ```
//!
//! An entry is `end << 2 | codec`. `end` is the offset after the stored page, counted from the
//! `start` of the directory page. Codec 0: the stored form is the page without the zeros after its
//! payload. 1: LZ4, 2: zstd, of the whole page.
//!
//! A stored page begins where the one before it ends. The directory is written twice, because
//! without it no page can be found.

use plimsoll_memory::page::{PAGE_BYTES, PAGE_HEADER_BYTES, PAGE_PAYLOAD_BYTES};

use crate::index::run::packed::blocks::{BLOCK_PAYLOAD_BYTES, PAGE_BLOCKS};
use crate::types::compression::Codec;

/// The kind byte of a page of the directory.
pub(super) const DIRECTORY_PAGE: u8 = 22;

const HEAD_BYTES: usize = 16;
const ENTRY_BYTES: usize = 4;
const CODEC_BITS: u32 = 2;

/// Number of pages that one page of the directory describes; together they have just below 64 MiB.
pub(super) const ENTRIES: u32 = ((PAGE_PAYLOAD_BYTES - HEAD_BYTES) / ENTRY_BYTES) as u32;

const _: () =
    assert!((ENTRIES as u64 * PAGE_BYTES as u64) < 1 << (32 - CODEC_BITS), "an entry has room");

/// The stored form of a page, in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) start: u64,
    pub(super) bytes: usize,
    /// `None`: not compressed.
    pub(super) codec: Option<Codec>,
}

impl Extent {
    pub(super) fn end(&self) -> u64 {
        self.start + self.bytes as u64
    }
}

/// The parts of a packed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Pages of the table.
    pub(crate) pages: u32,
    /// Pages that the file has room for.
    pub(crate) file_pages: u32,
}

impl Shape {
    /// Pages of one copy of the directory.
    pub(super) fn directory_pages(self) -> u32 {
        self.pages.div_ceil(ENTRIES)
    }

    /// The place of the first page of the directory, in pages; the stream ends before it.
    pub(super) fn directory_at(self) -> u32 {
        self.file_pages - 2 * self.directory_pages()
    }

    /// The most bytes that the stream can have.
    pub(super) fn stream_bytes_max(self) -> u64 {
        u64::from(self.directory_at()) * (PAGE_BLOCKS * BLOCK_PAYLOAD_BYTES) as u64
    }

    /// Whether the file has room for a directory of that many pages, and for a stream.
    pub(crate) fn is_possible(self) -> bool {
        self.pages > 0 && u64::from(self.file_pages) > 2 * u64::from(self.directory_pages())
    }
}

/// A page of the directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Directory<'a> {
    pub(super) pages: u32,
    pub(super) first: u32,
    start: u64,
    entries: &'a [u8],
}

impl<'a> Directory<'a> {
    /// Reads the payload of a page of the directory.
    pub(super) fn new(payload: &'a [u8]) -> Option<Self> {
        let (head, entries) = payload.split_first_chunk::<HEAD_BYTES>()?;
        let (numbers, start) = head.split_at(8);
        let number = |at: usize| u32::from_le_bytes(numbers[at..at + 4].try_into().expect("4"));
        let start = u64::from_le_bytes(start.try_into().expect("the head's second half"));
        let (pages, first) = (number(0), number(4));
        let count = pages.checked_sub(first)?.min(ENTRIES) as usize;
        let is_sound =
            first.is_multiple_of(ENTRIES) && count > 0 && entries.len() == count * ENTRY_BYTES;
        is_sound.then_some(Self { pages, first, start, entries })
    }

    /// Where page `number` is stored; `None` if the entry is impossible.
    pub(super) fn extent(&self, number: u32) -> Option<Extent> {
        let at = number.checked_sub(self.first)? as usize;
        let (start, _) = if at == 0 { (0, 0) } else { self.entry(at - 1)? };
        let (end, codec) = self.entry(at)?;
        let bytes = end.checked_sub(start)? as usize;
        let codec = match codec {
            0 => None,
            number => Some(Codec::from_number(number)?),
        };
        let start = self.start.checked_add(u64::from(start))?;
        let is_sound = (1..=PAGE_BYTES).contains(&bytes)
            && (codec.is_some() || bytes >= PAGE_HEADER_BYTES)
            && start.checked_add(bytes as u64).is_some();
        is_sound.then_some(Extent { start, bytes, codec })
    }

    /// The offset and the codec of an entry.
    fn entry(&self, at: usize) -> Option<(u32, u8)> {
        let bytes = self.entries.get(at * ENTRY_BYTES..)?.first_chunk()?;
        let entry = u32::from_le_bytes(*bytes);
        Some((entry >> CODEC_BITS, (entry & ((1 << CODEC_BITS) - 1)) as u8))
    }
}

/// Writes the payload of a page of the directory of a table of `pages`; returns its length.
pub(super) fn write_directory(
    payload: &mut [u8],
    (pages, first): (u32, u32),
    start: u64,
    entries: impl Iterator<Item = u32>,
) -> usize {
    payload[..4].copy_from_slice(&pages.to_le_bytes());
    payload[4..8].copy_from_slice(&first.to_le_bytes());
    payload[8..HEAD_BYTES].copy_from_slice(&start.to_le_bytes());
    let mut at = HEAD_BYTES;
    for entry in entries {
        payload[at..at + ENTRY_BYTES].copy_from_slice(&entry.to_le_bytes());
        at += ENTRY_BYTES;
    }
    at
}

/// The offset in an entry.
pub(super) fn entry_end(entry: u32) -> u64 {
    u64::from(entry >> CODEC_BITS)
}

/// The entry of a page that ends `end` bytes after the start of its directory page.
pub(super) fn entry(end: u64, codec: Option<Codec>) -> u32 {
    let end = u32::try_from(end).expect("a directory page covers less than 64 MiB");
    end << CODEC_BITS | codec.map_or(0, |codec| codec as u32)
}
