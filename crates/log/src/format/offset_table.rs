//! The offset table of a sealed segment (`<first GLSN>.idx`): pages that map a GLSN, or a stream,
//! to offsets in the segment.
//!
//! ```text
//! page 0            header
//! offset pages      for each entry the offset of its header in the segment, u32
//! posting pages     for each stream, the sorted numbers of its entries (GLSN - first), u32
//! directory pages   for each stream, sorted: stream u32, first posting u32, postings u32
//! blob pages        for each blob file named by a record: record's first GLSN u64, id u64,
//!                   hash u64, pages u32, entries u32
//! ```
//!
//! The header's payload:
//! ```text
//! 0       8         12           16             20      24       40      48      56
//! | magic | version | compatible | incompatible | count | log id | first | chain | last timestamp
//!
//! 64    68        72      76         80                88
//! | end | streams | blobs | reserved | first timestamp |
//! ```
//!
//! The table is not synced, because it can always be rebuilt from the segment. If a page fails its
//! check, the table is rebuilt.

use plimsoll_memory::page::PAGE_PAYLOAD_BYTES;

use crate::blob::{BlobId, BlobRef};
use crate::format::segment_header::{HeaderError, check_format};
use crate::format::{FORMAT_VERSION, put, u32_at, u64_at, u128_at};
use crate::glsn::{Glsn, StreamId};

/// Kind bytes of the table's pages.
pub const HEADER_PAGE: u8 = 0x10;
/// Offsets.
pub const OFFSET_PAGE: u8 = 0x11;
/// Postings.
pub const POSTING_PAGE: u8 = 0x12;
/// Directory of streams.
pub const DIRECTORY_PAGE: u8 = 0x13;
/// Blob files.
pub const BLOB_PAGE: u8 = 0x14;

/// Bytes of the header's payload.
pub const TABLE_HEADER_BYTES: usize = 88;
/// Bytes of an item of the directory.
pub const DIRECTORY_ITEM_BYTES: usize = 12;
/// Bytes of an item of the blob pages.
pub const BLOB_ITEM_BYTES: usize = 32;
/// Offsets, or postings, on a page.
pub const NUMBERS_PER_PAGE: u32 = (PAGE_PAYLOAD_BYTES / 4) as u32;
/// Items of the directory on a page.
pub const STREAMS_PER_PAGE: u32 = (PAGE_PAYLOAD_BYTES / DIRECTORY_ITEM_BYTES) as u32;
/// Blob files on a page.
pub const BLOBS_PER_PAGE: u32 = (PAGE_PAYLOAD_BYTES / BLOB_ITEM_BYTES) as u32;

const MAGIC: [u8; 8] = *b"PLIMSTAB";

/// The header of an offset table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableHeader {
    /// The log that it belongs to.
    pub log_id: u128,
    /// GLSN of the segment's first entry.
    pub first: Glsn,
    /// Entries in the segment.
    pub count: u32,
    /// Chain hash of the segment's last record.
    pub chain: u64,
    /// Timestamp of the segment's first record.
    pub first_timestamp: u64,
    /// Timestamp of the segment's last record.
    pub last_timestamp: u64,
    /// The end of the segment's fragments.
    pub end: u32,
    /// Streams with an entry in the segment.
    pub streams: u32,
    /// Blob files named by the segment's records.
    pub blobs: u32,
}

impl TableHeader {
    /// The header as the payload of page 0.
    pub fn encode(&self) -> [u8; TABLE_HEADER_BYTES] {
        let mut out = [0; TABLE_HEADER_BYTES];
        put(&mut out, 0, &MAGIC);
        put(&mut out, 8, &FORMAT_VERSION.to_le_bytes());
        put(&mut out, 20, &self.count.to_le_bytes());
        put(&mut out, 24, &self.log_id.to_le_bytes());
        put(&mut out, 40, &self.first.0.to_le_bytes());
        put(&mut out, 48, &self.chain.to_le_bytes());
        put(&mut out, 56, &self.last_timestamp.to_le_bytes());
        put(&mut out, 64, &self.end.to_le_bytes());
        put(&mut out, 68, &self.streams.to_le_bytes());
        put(&mut out, 72, &self.blobs.to_le_bytes());
        put(&mut out, 80, &self.first_timestamp.to_le_bytes());
        out
    }

    /// Reads the payload of page 0.
    ///
    /// # Errors
    /// The bytes are not a header of a format that this version reads.
    pub fn decode(payload: &[u8]) -> Result<Self, HeaderError> {
        if payload.len() < TABLE_HEADER_BYTES || payload[..8] != MAGIC {
            return Err(HeaderError::Bad("the file has no header of an offset table"));
        }
        check_format(u32_at(payload, 8), u32_at(payload, 16)).map_err(HeaderError::Newer)?;
        let header = Self {
            log_id: u128_at(payload, 24),
            first: Glsn(u64_at(payload, 40)),
            count: u32_at(payload, 20),
            chain: u64_at(payload, 48),
            first_timestamp: u64_at(payload, 80),
            last_timestamp: u64_at(payload, 56),
            end: u32_at(payload, 64),
            streams: u32_at(payload, 68),
            blobs: u32_at(payload, 72),
        };
        // Every entry takes at least 16 bytes of the segment, which is below 4 GiB.
        if header.count > u32::MAX / 16
            || header.streams > header.count
            || header.blobs > u32::MAX / 16
        {
            return Err(HeaderError::Bad("an offset table with impossible numbers"));
        }
        Ok(header)
    }

    /// Page of the offset of entry `index`, and its place there.
    pub fn offset_place(&self, index: u32) -> (u32, usize) {
        number_place(1, index)
    }

    /// Page of posting `index`, and its place there.
    pub fn posting_place(&self, index: u32) -> (u32, usize) {
        number_place(self.posting_start(), index)
    }

    /// Page of item `index` of the directory, and its place there.
    pub fn stream_place(&self, index: u32) -> (u32, usize) {
        let start = self.directory_start();
        (
            start + index / STREAMS_PER_PAGE,
            (index % STREAMS_PER_PAGE) as usize * DIRECTORY_ITEM_BYTES,
        )
    }

    /// Page of blob file `index`, and its place there.
    pub fn blob_place(&self, index: u32) -> (u32, usize) {
        let start = self.blob_start();
        (start + index / BLOBS_PER_PAGE, (index % BLOBS_PER_PAGE) as usize * BLOB_ITEM_BYTES)
    }

    /// Pages of the whole table.
    pub fn pages(&self) -> u32 {
        self.blob_start() + self.blobs.div_ceil(BLOBS_PER_PAGE)
    }

    fn posting_start(&self) -> u32 {
        1 + self.count.div_ceil(NUMBERS_PER_PAGE)
    }

    fn directory_start(&self) -> u32 {
        self.posting_start() + self.count.div_ceil(NUMBERS_PER_PAGE)
    }

    fn blob_start(&self) -> u32 {
        self.directory_start() + self.streams.div_ceil(STREAMS_PER_PAGE)
    }
}

fn number_place(start: u32, index: u32) -> (u32, usize) {
    (start + index / NUMBERS_PER_PAGE, (index % NUMBERS_PER_PAGE) as usize * 4)
}

/// A stream's part of the postings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryItem {
    /// The stream.
    pub stream: StreamId,
    /// Number of its first posting.
    pub start: u32,
    /// Its postings.
    pub count: u32,
}

impl DirectoryItem {
    /// The item as bytes.
    pub fn encode(&self) -> [u8; DIRECTORY_ITEM_BYTES] {
        let mut out = [0; DIRECTORY_ITEM_BYTES];
        put(&mut out, 0, &self.stream.0.to_le_bytes());
        put(&mut out, 4, &self.start.to_le_bytes());
        put(&mut out, 8, &self.count.to_le_bytes());
        out
    }

    /// Reads an item from the front of `bytes`.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..DIRECTORY_ITEM_BYTES)?;
        Some(Self {
            stream: StreamId(u32_at(bytes, 0)),
            start: u32_at(bytes, 4),
            count: u32_at(bytes, 8),
        })
    }
}

/// A blob file and the record that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedBlob {
    /// First GLSN of the record.
    pub record_first: Glsn,
    /// Entries of the record.
    pub record_count: u32,
    /// The blob file.
    pub blob: BlobRef,
}

impl NamedBlob {
    /// The item as bytes.
    pub fn encode(&self) -> [u8; BLOB_ITEM_BYTES] {
        let mut out = [0; BLOB_ITEM_BYTES];
        put(&mut out, 0, &self.record_first.0.to_le_bytes());
        put(&mut out, 8, &self.blob.id.0.to_le_bytes());
        put(&mut out, 16, &self.blob.hash.to_le_bytes());
        put(&mut out, 24, &self.blob.pages.to_le_bytes());
        put(&mut out, 28, &self.record_count.to_le_bytes());
        out
    }

    /// Reads an item from the front of `bytes`.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..BLOB_ITEM_BYTES)?;
        let blob = BlobRef {
            id: BlobId(u64_at(bytes, 8)),
            hash: u64_at(bytes, 16),
            pages: u32_at(bytes, 24),
        };
        Some(Self { record_first: Glsn(u64_at(bytes, 0)), record_count: u32_at(bytes, 28), blob })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_table_round_trips() {
        let header = TableHeader {
            log_id: 1,
            first: Glsn(2),
            count: 9000,
            chain: 4,
            first_timestamp: 9,
            last_timestamp: 5,
            end: 6,
            streams: 1365,
            blobs: 1,
        };
        assert_eq!(TableHeader::decode(&header.encode()), Ok(header));
        assert_eq!((header.offset_place(4092), header.posting_place(0)), ((2, 0), (4, 0)));
        assert_eq!(
            (header.stream_place(1364), header.blob_place(0), header.pages()),
            ((8, 0), (9, 0), 10)
        );
        let item = DirectoryItem { stream: StreamId(1), start: 2, count: 3 };
        assert_eq!(DirectoryItem::decode(&item.encode()), Some(item));
        let blob = BlobRef { id: BlobId(1), hash: 2, pages: 3 };
        let named = NamedBlob { record_first: Glsn(4), record_count: 5, blob };
        assert_eq!(NamedBlob::decode(&named.encode()), Some(named));
    }

    #[test]
    fn newer_table_and_impossible_numbers_are_rejected() {
        let good = TableHeader {
            log_id: 1,
            first: Glsn(2),
            count: 3,
            chain: 4,
            first_timestamp: 0,
            last_timestamp: 5,
            end: 6,
            streams: 2,
            blobs: 1,
        };
        let crowd = TableHeader { count: u32::MAX, ..good };
        let streams = TableHeader { streams: 4, ..good };
        for bad in [crowd, streams] {
            assert!(matches!(TableHeader::decode(&bad.encode()), Err(HeaderError::Bad(_))));
        }
        let mut newer = good.encode();
        newer[8] = 3;
        assert!(matches!(TableHeader::decode(&newer), Err(HeaderError::Newer(_))));
    }
}
