//! A record to be appended.

use crate::blob::BlobRef;
use crate::error::LogError;
use crate::glsn::{Glsn, StreamId};

/// The most payload bytes of one record, over all entries; larger payloads go into a blob file.
pub const MAX_BODY_BYTES: usize = 1 << 20;

/// One entry to append.
#[derive(Clone, Copy, Debug)]
pub struct DraftEntry<'a> {
    /// The stream it belongs to.
    pub stream: StreamId,
    /// Its payload, as parts that are written one after the other.
    pub parts: &'a [&'a [u8]],
}

/// One record to append: all of its entries or none.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// At least one entry; their payloads add up to at most [`MAX_BODY_BYTES`].
    pub entries: &'a [DraftEntry<'a>],
    /// The GLSN that the transaction read at ([`Glsn::NONE`] for plain appends).
    pub read_at: Glsn,
    /// Blob files that the record names, at most [`MAX_BLOBS`]. They are finished before the record
    /// is submitted, and durable before it is written.
    pub blobs: &'a [BlobRef],
    /// The times at which the record may be committed.
    pub times: CommitTimes,
}

impl<'a> Draft<'a> {
    /// A record that depends on no read, names no blob files, and may be committed at any time.
    pub fn of(entries: &'a [DraftEntry<'a>]) -> Self {
        Self { entries, read_at: Glsn::NONE, blobs: &[], times: CommitTimes::ANY }
    }
}

/// The times at which a record may be committed, in microseconds since 1970 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitTimes {
    /// Before this time the record is refused with [`LogError::Late`](crate::error::LogError),
    /// which happens if the clock was set back.
    pub from_micros: u64,
    /// From this time on the record is refused as well.
    pub before_micros: u64,
}

impl CommitTimes {
    /// Any time.
    pub const ANY: Self = Self { from_micros: 0, before_micros: u64::MAX };

    /// Refuses a time outside these times.
    ///
    /// # Errors
    /// [`LogError::Late`].
    pub fn check(self, micros: u64) -> Result<(), LogError> {
        match (self.from_micros..self.before_micros).contains(&micros) {
            true => Ok(()),
            false => Err(LogError::Late { micros }),
        }
    }
}

/// The most blob files of one record.
pub const MAX_BLOBS: usize = 64;

impl DraftEntry<'_> {
    /// Bytes of the payload.
    pub fn payload_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }
}

/// The GLSNs assigned to a draft that is not durable yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// GLSN of the first entry.
    pub first: Glsn,
    /// GLSN of the last entry.
    pub last: Glsn,
    /// The record's timestamp: microseconds since 1970 UTC, strictly increasing from record to
    /// record.
    pub timestamp_micros: u64,
}
