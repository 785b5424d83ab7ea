//! The first 128 bytes of a segment.
//!
//! ```text
//! 0       8         12           16             20      24       40      48
//! | magic | version | compatible | incompatible | epoch | log id | first | previous chain
//!
//! 56                64          72             76             80         120        128
//! | timestamp floor | last blob | segment size | previous end | reserved | checksum |
//! ```
//!
//! `previous chain` is the chain hash of the record before `first`, and `previous end` the offset
//! where the fragments of the segment before this one end (0: there is none). These two link the
//! segments. `timestamp floor` is the timestamp of the record before `first`, or an earlier time if
//! the log's time is restarted here; timestamps increase within a segment. Blob files with ids up
//! to `last blob` existed when the segment was created. The reserved bytes are zero (room for an
//! encryption tag). The checksum covers bytes 0 to 120.

use plimsoll_disk::checksum::checksum;

use crate::format::{FORMAT_VERSION, KNOWN_INCOMPATIBLE, put, u32_at, u64_at, u128_at};
use crate::glsn::Glsn;

/// Bytes of a segment's header; the first fragment follows it.
pub const SEGMENT_HEADER_BYTES: usize = 128;

const MAGIC: [u8; 8] = *b"PLIMSLOG";
const CHECKED_BYTES: usize = 120;
const SEED: u64 = 0x5345_474d_454e_5431;

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The log that it belongs to.
    pub log_id: u128,
    /// Increases with every cut of the log. No fragment in the segment has a lower epoch.
    pub epoch: u32,
    /// GLSN of its first entry.
    pub first: Glsn,
    /// Chain hash of the record before its first record.
    pub previous_chain: u64,
    /// Timestamp of the record before its first record, or an earlier time if the log's time is
    /// restarted here; 0 if there is no such record.
    pub timestamp_floor: u64,
    /// The highest blob file id given out when it was created.
    pub last_blob_id: u64,
    /// The most bytes of the segment.
    pub segment_bytes: u32,
    /// The end of the fragments of the segment before it; 0 if there is none.
    pub previous_end: u32,
}

/// Why a segment's header was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// The bytes are not a header, or damaged.
    Bad(&'static str),
    /// The header is intact, and of a format that this version does not read.
    Newer(String),
}

impl SegmentHeader {
    /// The header as bytes.
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut out = [0; SEGMENT_HEADER_BYTES];
        put(&mut out, 0, &MAGIC);
        put(&mut out, 8, &FORMAT_VERSION.to_le_bytes());
        put(&mut out, 20, &self.epoch.to_le_bytes());
        put(&mut out, 24, &self.log_id.to_le_bytes());
        put(&mut out, 40, &self.first.0.to_le_bytes());
        put(&mut out, 48, &self.previous_chain.to_le_bytes());
        put(&mut out, 56, &self.timestamp_floor.to_le_bytes());
        put(&mut out, 64, &self.last_blob_id.to_le_bytes());
        put(&mut out, 72, &self.segment_bytes.to_le_bytes());
        put(&mut out, 76, &self.previous_end.to_le_bytes());
        let sum = checksum(SEED, &out[..CHECKED_BYTES]);
        put(&mut out, CHECKED_BYTES, &sum.to_le_bytes());
        out
    }

    /// Reads a header from the front of `bytes`.
    ///
    /// # Errors
    /// The bytes are not a header of a format that this version reads.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        if bytes.len() < SEGMENT_HEADER_BYTES {
            return Err(HeaderError::Bad("the segment's header is truncated"));
        }
        if bytes[..8] != MAGIC {
            return Err(HeaderError::Bad("the file has no header of a segment of a Plimsoll log"));
        }
        if u64_at(bytes, CHECKED_BYTES) != checksum(SEED, &bytes[..CHECKED_BYTES]) {
            return Err(HeaderError::Bad("the checksum of the segment's header does not match"));
        }
        check_format(u32_at(bytes, 8), u32_at(bytes, 16)).map_err(HeaderError::Newer)?;
        Ok(Self {
            log_id: u128_at(bytes, 24),
            epoch: u32_at(bytes, 20),
            first: Glsn(u64_at(bytes, 40)),
            previous_chain: u64_at(bytes, 48),
            timestamp_floor: u64_at(bytes, 56),
            last_blob_id: u64_at(bytes, 64),
            segment_bytes: u32_at(bytes, 72),
            previous_end: u32_at(bytes, 76),
        })
    }
}

/// Rejects formats and features that this version does not read; the error has the remedy.
pub(crate) fn check_format(version: u32, incompatible: u32) -> Result<(), String> {
    if version > FORMAT_VERSION {
        return Err(format!(
            "the log is of format {version}; this version of Plimsoll reads format \
             {FORMAT_VERSION}: use a newer one"
        ));
    }
    if version < FORMAT_VERSION {
        return Err(format!(
            "the log is of format {version}, which no published version wrote; this version \
             reads format {FORMAT_VERSION}: copy the data out with the version that wrote it"
        ));
    }
    let unknown = incompatible & !KNOWN_INCOMPATIBLE;
    if unknown != 0 {
        return Err(format!(
            "the log uses features that this version of Plimsoll does not know (bits \
             {unknown:#x}): use a newer one"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader {
            log_id: 0x1122,
            epoch: 3,
            first: Glsn(42),
            previous_chain: 5,
            timestamp_floor: 6,
            last_blob_id: 7,
            segment_bytes: 1 << 26,
            previous_end: 8,
        }
    }

    #[test]
    fn segment_header_round_trips_and_every_byte_is_checked() {
        let bytes = header().encode();
        assert_eq!(SegmentHeader::decode(&bytes), Ok(header()));
        for at in 0..bytes.len() {
            let mut bad = bytes;
            bad[at] ^= 1;
            assert!(SegmentHeader::decode(&bad).is_err(), "byte {at}");
        }
        assert!(SegmentHeader::decode(&bytes[..127]).is_err());
    }

    #[test]
    fn newer_format_and_unknown_feature_errors_have_a_remedy() {
        for (at, value) in [(8, 3u32), (16, 1u32)] {
            let mut bytes = header().encode();
            put(&mut bytes, at, &value.to_le_bytes());
            let sum = checksum(SEED, &bytes[..CHECKED_BYTES]);
            put(&mut bytes, CHECKED_BYTES, &sum.to_le_bytes());
            let Err(HeaderError::Newer(message)) = SegmentHeader::decode(&bytes) else {
                panic!("it was accepted")
            };
            assert!(message.contains("use a newer one"), "{message}");
        }
        let mut bytes = header().encode();
        put(&mut bytes, 12, &1u32.to_le_bytes());
        let sum = checksum(SEED, &bytes[..CHECKED_BYTES]);
        put(&mut bytes, CHECKED_BYTES, &sum.to_le_bytes());
        assert_eq!(
            SegmentHeader::decode(&bytes),
            Ok(header()),
            "a compatible feature does no harm"
        );
    }

    #[test]
    fn format_1_segment_is_rejected() {
        let mut bytes = header().encode();
        put(&mut bytes, 8, &1u32.to_le_bytes());
        let sum = checksum(SEED, &bytes[..CHECKED_BYTES]);
        put(&mut bytes, CHECKED_BYTES, &sum.to_le_bytes());
        assert!(matches!(SegmentHeader::decode(&bytes), Err(HeaderError::Newer(_))));
    }
}
