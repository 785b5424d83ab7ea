//! The blob files named by the records of a segment, in memory.

use plimsoll_memory::budget::{Budget, Kind, OutOfBudget};
use plimsoll_memory::buffer::Buffer;
use plimsoll_memory::page::PAGE_BYTES;

use crate::format::offset_table::NamedBlob;

/// The least room that is made at a time.
const BLOBS_MIN: usize = 16;

/// Blob files named by records, under a lease.
#[derive(Debug)]
pub(crate) struct NamedBlobs {
    list: Buffer<NamedBlob>,
    /// The sum of the pages of these files.
    pages: u64,
}

impl NamedBlobs {
    pub(crate) fn new(budget: &Budget) -> Result<Self, OutOfBudget> {
        Ok(Self { list: Buffer::with_capacity(budget, Kind::LogTable, 0)?, pages: 0 })
    }

    /// Makes room for `more` names.
    pub(crate) fn reserve(&mut self, more: usize) -> Result<(), OutOfBudget> {
        if more == 0 { Ok(()) } else { self.list.reserve(more.max(BLOBS_MIN)) }
    }

    pub(crate) fn push(&mut self, blob: NamedBlob) {
        self.pages += u64::from(blob.blob.pages);
        self.list.push(blob);
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.pages -= self
            .list
            .get(len..)
            .unwrap_or_default()
            .iter()
            .map(|blob| u64::from(blob.blob.pages))
            .sum::<u64>();
        self.list.truncate(len);
    }

    /// Takes all names and leaves none.
    pub(crate) fn take(&mut self) -> Self {
        Self { list: self.list.take(), pages: std::mem::take(&mut self.pages) }
    }

    pub(crate) fn clear(&mut self) {
        self.list.release();
        self.pages = 0;
    }

    /// Bytes of all files in the list.
    pub(crate) fn bytes(&self) -> u64 {
        self.pages * PAGE_BYTES as u64
    }

    pub(crate) fn list(&self) -> &[NamedBlob] {
        &self.list
    }
}
