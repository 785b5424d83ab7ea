//! The end of the log: the active segment's numbers and newest bytes, as submitters leave them and readers find them.
//!
//! It stands under one read-write lock: a submitter writes while it lays a record down, readers and the one who writes to the file
//! read. Law: everything below `end` belongs to complete records; what lies in the file only need be in no buffer.

pub(crate) mod buffer;

use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::file_log::segments::entry_offsets::Numbers;
use crate::file_log::segments::named_blobs::NamedSides;
use crate::file_log::segments::segment::Segment;
use crate::file_log::tail::buffer::Buffer;
use crate::format::BLOCK_BYTES;
use crate::format::layout::block_of;
use crate::glsn::Glsn;

/// The place behind the last complete record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// Offset in the active segment.
    pub(crate) offset: u32,
    /// The GLSN that the next entry gets.
    pub(crate) next: Glsn,
    /// Chain hash of the last record.
    pub(crate) chain: u64,
    /// Timestamp of the last record.
    pub(crate) timestamp: u64,
}

/// The end of the log.
#[derive(Debug)]
pub(crate) struct Tail {
    /// First GLSN of the active segment.
    pub(crate) first: Glsn,
    /// The active segment.
    pub(crate) segment: Arc<Segment>,
    /// Timestamp of its first record, 0 while it has none.
    pub(crate) first_timestamp: u64,
    /// Offset and stream of each of its entries.
    pub(crate) numbers: Numbers,
    /// Side files that its records name.
    pub(crate) sides: NamedSides,
    /// Its newest bytes.
    pub(crate) buffer: Buffer,
    /// Behind its last record.
    pub(crate) end: End,
}

impl Tail {
    /// Whether `block` of the segment that begins with `first` is still being filled, so that it can be had only from here.
    pub(crate) fn is_open_block(&self, first: Glsn, block: u64) -> bool {
        first == self.first && block == block_of(u64::from(self.end.offset))
    }

    /// Copies a block of the segment that begins with `first`, if it is in the buffer; what is not written yet is zero.
    pub(crate) fn copy_block(&self, first: Glsn, block: u32, into: &mut [u8]) -> bool {
        let offset = u64::from(block) * BLOCK_BYTES as u64;
        if first != self.first || offset >= u64::from(self.end.offset) {
            return false;
        }
        let Some(bytes) = self.buffer.bytes_at(offset) else { return false };
        let filled = (u64::from(self.end.offset) - offset).min(BLOCK_BYTES as u64) as usize;
        into[..filled].copy_from_slice(&bytes[..filled]);
        into[filled..].fill(0);
        true
    }
}

/// The lock around the end of the log.
#[derive(Debug)]
pub(crate) struct TailLock(RwLock<Tail>);

impl TailLock {
    pub(crate) fn new(tail: Tail) -> Self {
        Self(RwLock::new(tail))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Tail> {
        self.0.read().expect("no code under this lock panics")
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Tail> {
        self.0.write().expect("no code under this lock panics")
    }
}
