//! The state of appending: the end of the active segment, and the extent of its file.

use std::io;
use std::sync::Arc;

use plimsoll_disk::vfs::File;
use plimsoll_memory::chunk::CHUNK_BYTES;

use crate::file_log::segments::entry_offsets::ENTRIES_PER_PAIR;
use crate::format::BLOCK_BYTES;
use crate::format::record::MAX_ENTRIES;
use crate::format::segment_header::SegmentHeader;
use crate::glsn::Glsn;
use crate::members::words;

/// The end of the last complete record.
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

/// Minimum number of bytes zeroed ahead at a time, for small commits.
pub(crate) const ZERO_STEP_MIN: u64 = 256 << 10;

/// The state of appending.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) file: Arc<dyn File>,
    pub(crate) header: SegmentHeader,
    pub(crate) epoch: u32,
    pub(crate) end: End,
    /// The file has bytes, at least zeros, up to this offset.
    pub(crate) zeroed: u64,
    /// Whether another process may have extended the file beyond that, so that its length must be
    /// read.
    pub(crate) may_be_zeroed_further: bool,
    /// Step by which the file grows.
    pub(crate) zero_step: u64,
    /// The most entries of a segment.
    pub(crate) entries_max: u32,
    /// Whether the last fragment is a mark.
    pub(crate) marked: bool,
}

impl Order {
    /// The limit of records: they end at or below this offset, because the last block is reserved
    /// for a mark.
    pub(crate) fn limit(&self) -> u64 {
        u64::from(self.header.segment_bytes) - BLOCK_BYTES as u64
    }

    /// Reads the extent of the file, if another process may have extended it.
    pub(crate) fn read_extent(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.may_be_zeroed_further) {
            self.zeroed =
                self.file.len()?.min(u64::from(self.header.segment_bytes)).max(self.zeroed);
        }
        Ok(())
    }

    /// The end of the log as its members know it.
    pub(crate) fn published_end(&self) -> words::End {
        let End { offset, next, chain, timestamp } = self.end;
        words::End { segment: self.header.first, offset, next, chain, timestamp, epoch: self.epoch }
    }

    /// Entries of the active segment.
    pub(crate) fn entries(&self) -> u64 {
        self.end.next.0 - self.header.first.0
    }
}

/// The most entries of a segment under a budget.
pub(crate) fn entries_max(entry_offsets_bytes: u64) -> u32 {
    let pairs = (entry_offsets_bytes / (2 * CHUNK_BYTES as u64)).clamp(1, 1 << 14) as u32;
    (pairs * ENTRIES_PER_PAIR).max(MAX_ENTRIES as u32)
}
