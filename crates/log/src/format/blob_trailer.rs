//! The last page of a blob file: it describes the pages before it.
//!
//! ```text
//! 0       8         12           16             20      24       40   48     56
//! | magic | version | compatible | incompatible | pages | log id | id | hash | 56
//! ```
//!
//! `pages` counts the pages before it; `hash` covers their checksums in order. The trailer is
//! written last, so a blob file without a trailer was never finished.

use plimsoll_disk::checksum::checksum;

use crate::blob::{BlobId, BlobRef};
use crate::format::segment_header::{HeaderError, check_format};
use crate::format::{FORMAT_VERSION, put, u32_at, u64_at, u128_at};

/// Kind byte of the page.
pub const BLOB_TRAILER_PAGE: u8 = 0x20;

/// Bytes of the page's payload.
pub const BLOB_TRAILER_BYTES: usize = 56;

const MAGIC: [u8; 8] = *b"PLIMBLOB";

/// The trailer of a blob file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobTrailer {
    /// The log that it belongs to.
    pub log_id: u128,
    /// The reference by which a record names the file.
    pub blob: BlobRef,
}

/// Extends the hash by one page, whose first eight bytes are its checksum.
pub fn extend_blob_hash(hash: u64, page: &[u8]) -> u64 {
    checksum(hash, &page[..8])
}

impl BlobTrailer {
    /// The payload of the page.
    pub fn encode(&self) -> [u8; BLOB_TRAILER_BYTES] {
        let mut out = [0; BLOB_TRAILER_BYTES];
        put(&mut out, 0, &MAGIC);
        put(&mut out, 8, &FORMAT_VERSION.to_le_bytes());
        put(&mut out, 20, &self.blob.pages.to_le_bytes());
        put(&mut out, 24, &self.log_id.to_le_bytes());
        put(&mut out, 40, &self.blob.id.0.to_le_bytes());
        put(&mut out, 48, &self.blob.hash.to_le_bytes());
        out
    }

    /// Reads the payload of the page.
    ///
    /// # Errors
    /// The bytes are not a trailer of a format that this version reads.
    pub fn decode(payload: &[u8]) -> Result<Self, HeaderError> {
        if payload.len() != BLOB_TRAILER_BYTES || payload[..8] != MAGIC {
            return Err(HeaderError::Bad(
                "the file has no trailer of a blob file: it was never finished",
            ));
        }
        check_format(u32_at(payload, 8), u32_at(payload, 16)).map_err(HeaderError::Newer)?;
        let blob = BlobRef {
            id: BlobId(u64_at(payload, 40)),
            pages: u32_at(payload, 20),
            hash: u64_at(payload, 48),
        };
        Ok(Self { log_id: u128_at(payload, 24), blob })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blob_trailer_round_trips() {
        let trailer = BlobTrailer { log_id: 1, blob: BlobRef { id: BlobId(2), pages: 3, hash: 4 } };
        assert_eq!(BlobTrailer::decode(&trailer.encode()), Ok(trailer));
        assert!(BlobTrailer::decode(&trailer.encode()[..55]).is_err());
        let mut newer = trailer.encode();
        newer[16] = 1;
        assert!(matches!(BlobTrailer::decode(&newer), Err(HeaderError::Newer(_))));
    }
}
