//! Entries as the log returns them.

use std::fmt;
use std::ops::{Deref, Range};

use plimsoll_memory::buffer::Buffer;
use plimsoll_memory::pool::Page;

use crate::glsn::{Glsn, StreamId};

/// The metadata of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryMeta {
    /// Its GLSN.
    pub glsn: Glsn,
    /// Its stream.
    pub stream: StreamId,
    /// Its record's timestamp in microseconds since 1970 UTC.
    pub timestamp_micros: u64,
    /// First GLSN of its record.
    pub record_first: Glsn,
    /// Entries in its record.
    pub record_count: u32,
    /// The GLSN that its record's transaction read at.
    pub read_at: Glsn,
    /// Blob files of its record.
    pub blobs: u8,
}

/// An entry of a scan, valid until the scan's next call.
#[derive(Clone, Copy, Debug)]
pub struct EntryView<'a> {
    /// The metadata.
    pub meta: EntryMeta,
    /// The payload.
    pub payload: &'a [u8],
}

/// An entry read by its GLSN; dereferences to its payload. It pins the page of its payload, or owns
/// a copy under a lease if the payload spans several blocks.
pub struct Entry {
    /// The metadata.
    pub meta: EntryMeta,
    payload: Payload,
}

enum Payload {
    Pinned { page: Page, range: Range<usize> },
    Copied { bytes: Buffer },
}

impl Entry {
    /// An entry whose payload is on a pinned page.
    pub fn pinned(meta: EntryMeta, page: Page, range: Range<usize>) -> Self {
        debug_assert!(range.end <= page.len());
        Self { meta, payload: Payload::Pinned { page, range } }
    }

    /// An entry that owns its payload.
    pub fn copied(meta: EntryMeta, bytes: Buffer) -> Self {
        Self { meta, payload: Payload::Copied { bytes } }
    }
}

impl Deref for Entry {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.payload {
            Payload::Pinned { page, range } => &page[range.clone()],
            Payload::Copied { bytes } => bytes,
        }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({:?}, {} bytes)", self.meta, self.len())
    }
}
