//! The bytes of a record, before it is split into fragments.
//!
//! ```text
//! record header, 64 bytes
//! 0         8           16           20        21      22         24      32
//! | durable | last blob | body bytes | version | codec | reserved | first | read at
//!
//! 40               48          56      60     61      62         64
//! | previous chain | timestamp | count | kind | blobs | reserved |
//!
//! blob reference, 24 bytes, `blobs` times
//! 0    8      16      20
//! | id | hash | pages | reserved | 24
//! entry, `count` times
//! 0        4        8      12
//! | stream | length | back | index | 16 payload ..., zeros up to a multiple of 8
//! ```
//!
//! Invariant: an entry's header never crosses the end of a fragment; the header of the first entry
//! is in the record's first fragment. `back` is the distance in bytes from the entry's header to
//! its record's header in the segment; `index` counts the entries of the record, so that an entry's
//! GLSN is known. `body bytes` is the sum of all entries, headers and padding included. The chain
//! hash of the record covers its header from `first` on, its references and its entries
//! (`content`).
//!
//! A record of kind 1, a lost record, replaces records that a recovery could not read. Its entries
//! are of the stream [`StreamId::DROPPED`] and have no content. Its field `read at` holds the chain
//! hash of the last record that it replaces, from which the chain continues.

use crate::blob::{BlobId, BlobRef};
use crate::draft::MAX_BLOBS;
use crate::format::fragment::Refusal;
use crate::format::{CODEC_NONE, FORMAT_VERSION, align8, put, u32_at, u64_at};
use crate::glsn::{Glsn, StreamId};

/// Bytes of a record's header.
pub const RECORD_HEADER_BYTES: usize = 64;
/// Bytes of a reference to a blob file.
pub const BLOB_REF_BYTES: usize = 24;
/// Bytes of an entry's header.
pub const ENTRY_HEADER_BYTES: usize = 16;
/// The most entries of one record.
pub const MAX_ENTRIES: usize = 1 << 16;
/// Bytes of a mark: durable GLSN, chain hash there, timestamp.
pub const MARK_BYTES: usize = 24;

/// A plain record.
pub const KIND_PLAIN: u8 = 0;
/// A lost record: it replaces records that a recovery could not read.
pub const KIND_DROPPED: u8 = 1;
/// Reserved: a record with a place in a shared order but without effect.
pub const KIND_VOID: u8 = 2;
/// Reserved: a record that orders nothing but itself.
pub const KIND_BARRIER: u8 = 3;
/// Reserved: a record that names a snapshot of the store.
pub const KIND_SNAPSHOT: u8 = 4;

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// GLSN of its first entry.
    pub first: Glsn,
    /// The GLSN that its transaction read at.
    pub read_at: Glsn,
    /// Chain hash of the record before it.
    pub previous_chain: u64,
    /// The highest GLSN known to be durable when it was written.
    pub durable: Glsn,
    /// Microseconds since 1970 UTC.
    pub timestamp_micros: u64,
    /// The highest blob file id given out when it was written.
    pub last_blob_id: u64,
    /// Bytes of its entries, headers and padding included.
    pub body_bytes: u32,
    /// Its entries.
    pub count: u32,
    /// Its blob files.
    pub blobs: u8,
    /// In a lost record, the chain hash after the records that it replaces; otherwise `None`.
    pub dropped: Option<u64>,
}

impl RecordHeader {
    /// The header as bytes.
    pub fn encode(&self) -> [u8; RECORD_HEADER_BYTES] {
        let mut out = [0; RECORD_HEADER_BYTES];
        put(&mut out, 0, &self.durable.0.to_le_bytes());
        put(&mut out, 8, &self.last_blob_id.to_le_bytes());
        put(&mut out, 16, &self.body_bytes.to_le_bytes());
        out[20] = FORMAT_VERSION as u8;
        out[21] = CODEC_NONE;
        put(&mut out, 24, &self.first.0.to_le_bytes());
        put(&mut out, 32, &self.dropped.unwrap_or(self.read_at.0).to_le_bytes());
        put(&mut out, 40, &self.previous_chain.to_le_bytes());
        put(&mut out, 48, &self.timestamp_micros.to_le_bytes());
        put(&mut out, 56, &self.count.to_le_bytes());
        out[60] = if self.dropped.is_some() { KIND_DROPPED } else { KIND_PLAIN };
        out[61] = self.blobs;
        out
    }

    /// Reads a header from the front of `bytes`, which passed their checksum.
    ///
    /// # Errors
    /// The numbers are impossible, or of a newer format.
    pub fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        if bytes.len() < RECORD_HEADER_BYTES {
            return Err(Refusal::bad("a record's header is truncated"));
        }
        if u32::from(bytes[20]) != FORMAT_VERSION
            || bytes[21] != CODEC_NONE
            || bytes[60] > KIND_DROPPED
        {
            return Err(Refusal::newer(unknown(bytes[60])));
        }
        let is_dropped = bytes[60] == KIND_DROPPED;
        let header = Self {
            first: Glsn(u64_at(bytes, 24)),
            read_at: if is_dropped { Glsn::NONE } else { Glsn(u64_at(bytes, 32)) },
            previous_chain: u64_at(bytes, 40),
            durable: Glsn(u64_at(bytes, 0)),
            timestamp_micros: u64_at(bytes, 48),
            last_blob_id: u64_at(bytes, 8),
            body_bytes: u32_at(bytes, 16),
            count: u32_at(bytes, 56),
            blobs: bytes[61],
            dropped: is_dropped.then(|| u64_at(bytes, 32)),
        };
        let least = u64::from(header.count) * ENTRY_HEADER_BYTES as u64;
        if header.count == 0
            || (header.count as usize > MAX_ENTRIES && !is_dropped)
            || u64::from(header.body_bytes) < least
            || usize::from(header.blobs) > MAX_BLOBS
            || header.first == Glsn::NONE
            || header.first.0.checked_add(u64::from(header.count)).is_none()
        {
            return Err(Refusal::bad("a record's header with impossible numbers"));
        }
        Ok(header)
    }

    /// GLSN of the last entry.
    pub fn last(&self) -> Glsn {
        Glsn(self.first.0 + u64::from(self.count) - 1)
    }

    /// The chain hash after the record, where `content` is the hash of its content.
    pub fn chain_after(&self, content: u64) -> u64 {
        self.dropped.unwrap_or(content)
    }

    /// Bytes of the header and of the references after it.
    pub fn head_bytes(&self) -> usize {
        head_bytes(usize::from(self.blobs))
    }
}

/// The bytes before the first entry of a record with this number of blob files.
pub const fn head_bytes(blobs: usize) -> usize {
    RECORD_HEADER_BYTES + blobs * BLOB_REF_BYTES
}

/// The reason for which a record of this kind, or of a newer format, is rejected.
fn unknown(kind: u8) -> &'static str {
    match kind {
        KIND_VOID => "a record of kind void (2), which this version does not read",
        KIND_BARRIER => "a record of kind barrier (3), which this version does not read",
        KIND_SNAPSHOT => "a record of kind snapshot (4), which this version does not read",
        _ => "a record of a format, kind or codec that this version does not know",
    }
}

/// A reference to a blob file as bytes.
pub fn encode_blob(blob: &BlobRef) -> [u8; BLOB_REF_BYTES] {
    let mut out = [0; BLOB_REF_BYTES];
    put(&mut out, 0, &blob.id.0.to_le_bytes());
    put(&mut out, 8, &blob.hash.to_le_bytes());
    put(&mut out, 16, &blob.pages.to_le_bytes());
    out
}

/// Reads a reference from the front of `bytes`.
pub fn decode_blob(bytes: &[u8]) -> Option<BlobRef> {
    let bytes = bytes.get(..BLOB_REF_BYTES)?;
    Some(BlobRef { id: BlobId(u64_at(bytes, 0)), hash: u64_at(bytes, 8), pages: u32_at(bytes, 16) })
}

/// The header of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryHeader {
    /// Its stream.
    pub stream: StreamId,
    /// Bytes of its payload.
    pub payload_bytes: u32,
    /// Distance in bytes from this header to its record's header.
    pub back: u32,
    /// The number of entries before this one in its record.
    pub index: u32,
}

impl EntryHeader {
    /// The header as bytes.
    pub fn encode(&self) -> [u8; ENTRY_HEADER_BYTES] {
        let mut out = [0; ENTRY_HEADER_BYTES];
        put(&mut out, 0, &self.stream.0.to_le_bytes());
        put(&mut out, 4, &self.payload_bytes.to_le_bytes());
        put(&mut out, 8, &self.back.to_le_bytes());
        put(&mut out, 12, &self.index.to_le_bytes());
        out
    }

    /// Reads a header from the front of `bytes`.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ENTRY_HEADER_BYTES] = bytes.get(..ENTRY_HEADER_BYTES)?.try_into().ok()?;
        Some(Self {
            stream: StreamId(u32_at(bytes, 0)),
            payload_bytes: u32_at(bytes, 4),
            back: u32_at(bytes, 8),
            index: u32_at(bytes, 12),
        })
    }
}

/// Bytes that an entry takes of its record.
pub fn entry_bytes(payload_bytes: usize) -> usize {
    ENTRY_HEADER_BYTES + align8(payload_bytes)
}

/// A mark: everything up to a GLSN is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Everything up to here.
    pub durable: Glsn,
    /// Chain hash there.
    pub chain: u64,
    /// Timestamp of the record there.
    pub timestamp_micros: u64,
}

impl Mark {
    /// The mark as bytes.
    pub fn encode(&self) -> [u8; MARK_BYTES] {
        let mut out = [0; MARK_BYTES];
        put(&mut out, 0, &self.durable.0.to_le_bytes());
        put(&mut out, 8, &self.chain.to_le_bytes());
        put(&mut out, 16, &self.timestamp_micros.to_le_bytes());
        out
    }

    /// Reads a mark.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        (bytes.len() == MARK_BYTES).then(|| Self {
            durable: Glsn(u64_at(bytes, 0)),
            chain: u64_at(bytes, 8),
            timestamp_micros: u64_at(bytes, 16),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> RecordHeader {
        RecordHeader {
            first: Glsn(7),
            read_at: Glsn(5),
            previous_chain: 1,
            durable: Glsn(6),
            timestamp_micros: 2,
            last_blob_id: 3,
            body_bytes: 48,
            count: 2,
            blobs: 1,
            dropped: None,
        }
    }

    #[test]
    fn record_headers_and_references_round_trip() {
        assert_eq!(RecordHeader::decode(&header().encode()), Ok(header()));
        let dropped = RecordHeader {
            dropped: Some(9),
            read_at: Glsn::NONE,
            count: 1 << 20,
            body_bytes: 1 << 24,
            ..header()
        };
        assert_eq!(RecordHeader::decode(&dropped.encode()), Ok(dropped));
        let entry = EntryHeader { stream: StreamId(1), payload_bytes: 2, back: 3, index: 4 };
        assert_eq!(EntryHeader::decode(&entry.encode()), Some(entry));
        let blob = BlobRef { id: BlobId(1), pages: 2, hash: 3 };
        assert_eq!(decode_blob(&encode_blob(&blob)), Some(blob));
        let mark = Mark { durable: Glsn(1), chain: 2, timestamp_micros: 3 };
        assert_eq!(Mark::decode(&mark.encode()), Some(mark));
    }

    #[test]
    fn impossible_record_numbers_are_rejected() {
        let none = RecordHeader { count: 0, ..header() };
        let crowd = RecordHeader { count: u32::MAX, ..header() };
        let hollow = RecordHeader { body_bytes: 31, ..header() };
        let blobs = RecordHeader { blobs: 65, ..header() };
        let beyond = RecordHeader { first: Glsn::MAX, ..header() };
        for bad in [none, crowd, hollow, blobs, beyond] {
            assert!(RecordHeader::decode(&bad.encode()).is_err(), "{bad:?}");
        }
        assert!(RecordHeader::decode(&header().encode()[..63]).is_err());
    }

    #[test]
    fn record_of_unknown_kind_codec_or_version_is_rejected() {
        for at in [20, 21, 60] {
            let mut bytes = header().encode();
            bytes[at] = 9;
            assert!(RecordHeader::decode(&bytes).unwrap_err().newer, "byte {at}");
        }
    }

    #[test]
    fn reserved_kind_is_named_in_the_error() {
        for (kind, name) in
            [(KIND_VOID, "void"), (KIND_BARRIER, "barrier"), (KIND_SNAPSHOT, "snapshot")]
        {
            let mut bytes = header().encode();
            bytes[60] = kind;
            let refusal = RecordHeader::decode(&bytes).unwrap_err();
            assert!(refusal.newer && refusal.what.contains(name), "{refusal:?}");
        }
    }
}
