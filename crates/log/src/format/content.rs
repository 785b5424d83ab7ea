//! The chain hash: one number that covers a record's content and the whole log before it.
//!
//! It is XXH3-64 (seed 0) of the record's bytes from [`CONTENT_AT`] on, as if the record were one
//! fragment: the GLSN, the chain hash of the record before it, the other header fields that the
//! record's writer chose, the blob references, and the stream, length and payload of each entry.
//! Invariants:
//!
//! 1. It does not depend on segments, blocks, fragments or epochs: logs with equal contents have
//!    equal chains at every GLSN. Therefore [`EntryHeader::back`] counts no fragment headers here,
//!    and facts that depend on the writer's state (the durable GLSN, the last blob id) are stored
//!    before [`CONTENT_AT`].
//! 2. The payload of a record in one fragment is hashed once: the fragment's checksum is this hash
//!    XOR a hash of the fragment's place (`fragment`). If a record is in several fragments, each
//!    but the first holds the record's chain hash, so that readers need not hash it again.

use plimsoll_disk::checksum::Running;

use crate::blob::BlobRef;
use crate::format::align8;
use crate::format::fragment::{CONTENT_AT, CONTENT_SEED};
use crate::format::record::{
    ENTRY_HEADER_BYTES, EntryHeader, RECORD_HEADER_BYTES, RecordHeader, encode_blob,
};

/// The hash of a record in several fragments.
pub struct ContentHash {
    running: Running,
    /// Distance from the record's header, as if the record were one fragment.
    at: usize,
    /// Padded payload bytes of the last entry that were not added yet.
    payload_left: usize,
}

impl ContentHash {
    /// The hash of a record with this header and these blob references, before its first entry.
    pub fn new(header: &RecordHeader, blobs: &[BlobRef]) -> Self {
        let mut hash =
            Self { running: Running::new(CONTENT_SEED), at: RECORD_HEADER_BYTES, payload_left: 0 };
        hash.running.take(&header.encode()[CONTENT_AT..]);
        for blob in blobs {
            hash.take(&encode_blob(blob));
        }
        hash
    }

    /// The hash of a record whose first fragment begins with `bytes`, up to the end of that
    /// fragment. The first `head_bytes` bytes come before its first entry. The bytes need not be
    /// valid.
    pub fn of_first(bytes: &[u8], head_bytes: usize) -> Self {
        let mut hash =
            Self { running: Running::new(CONTENT_SEED), at: CONTENT_AT, payload_left: 0 };
        let head_bytes = head_bytes.min(bytes.len());
        hash.take(bytes.get(CONTENT_AT..head_bytes).unwrap_or_default());
        hash.fragment(&bytes[head_bytes..]);
        hash
    }

    fn take(&mut self, bytes: &[u8]) {
        self.running.take(bytes);
        self.at += bytes.len();
    }

    /// Adds an entry and its payload.
    pub fn entry<'a>(&mut self, header: EntryHeader, parts: impl Iterator<Item = &'a [u8]>) {
        self.entry_header(header);
        let mut len = 0;
        for part in parts {
            self.take(part);
            len += part.len();
        }
        self.take(&[0; 8][..align8(len) - len]);
    }

    fn entry_header(&mut self, header: EntryHeader) {
        self.take(&EntryHeader { back: self.at as u32, ..header }.encode());
    }

    /// Adds the entries in a fragment's bytes, which continue the bytes added before. The bytes
    /// need not be valid.
    pub fn fragment(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.payload_left > 0 {
                let (payload, rest) = bytes.split_at(self.payload_left.min(bytes.len()));
                self.payload_left -= payload.len();
                self.take(payload);
                bytes = rest;
                continue;
            }
            let Some(header) = EntryHeader::decode(bytes) else { return self.take(bytes) };
            self.entry_header(header);
            self.payload_left = align8(header.payload_bytes as usize);
            bytes = &bytes[ENTRY_HEADER_BYTES..];
        }
    }

    /// The hash of everything added.
    pub fn sum(&self) -> u64 {
        self.running.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::BlobId;
    use crate::format::fragment::content_hash;
    use crate::glsn::{Glsn, StreamId};

    fn header() -> RecordHeader {
        RecordHeader {
            first: Glsn(7),
            read_at: Glsn(5),
            previous_chain: 1,
            durable: Glsn(6),
            timestamp_micros: 2,
            last_blob_id: 3,
            body_bytes: 48,
            count: 1,
            blobs: 1,
            dropped: None,
        }
    }

    /// The record's bytes as one fragment.
    fn record(header: &RecordHeader, blob: &BlobRef, payload: &[u8]) -> Vec<u8> {
        let mut bytes = [&header.encode()[..], &encode_blob(blob)].concat();
        let entry = EntryHeader {
            stream: StreamId(1),
            payload_bytes: payload.len() as u32,
            back: bytes.len() as u32,
            index: 0,
        };
        bytes.extend(entry.encode());
        bytes.extend(payload);
        bytes.resize(align8(bytes.len()), 0);
        bytes
    }

    #[test]
    fn content_hash_is_independent_of_fragmentation() {
        let blob = BlobRef { id: BlobId(1), pages: 2, hash: 3 };
        let payload: Vec<u8> = (0..3001u32).map(|i| i as u8).collect();
        let whole = record(&header(), &blob, &payload);
        let expected = content_hash(&whole[CONTENT_AT..]);
        let head = header().head_bytes();
        let mut draft = ContentHash::new(&header(), &[blob]);
        let entry = EntryHeader { stream: StreamId(1), payload_bytes: 3001, back: 9999, index: 0 };
        draft.entry(entry, [&payload[..10], &payload[10..]].into_iter());
        assert_eq!(draft.sum(), expected);
        for cut in [head + 16, head + 24, 2000, whole.len() - 8] {
            let mut cut_up = ContentHash::of_first(&whole[..cut], head);
            cut_up.fragment(&whole[cut..]);
            assert_eq!(cut_up.sum(), expected, "cut at {cut}");
        }
    }

    #[test]
    fn content_hash_ignores_only_placement_fields() {
        let blob = BlobRef { id: BlobId(1), pages: 2, hash: 3 };
        let hash =
            |header: &RecordHeader| content_hash(&record(header, &blob, b"payload")[CONTENT_AT..]);
        let local = RecordHeader { durable: Glsn(0), last_blob_id: 99, ..header() };
        assert_eq!(hash(&local), hash(&header()));
        let others = [
            RecordHeader { first: Glsn(8), ..header() },
            RecordHeader { read_at: Glsn(4), ..header() },
            RecordHeader { previous_chain: 2, ..header() },
            RecordHeader { timestamp_micros: 3, ..header() },
            RecordHeader { count: 2, ..header() },
        ];
        for other in others {
            assert_ne!(hash(&other), hash(&header()), "{other:?}");
        }
    }
}
