//! The blob files named by the records of a segment, in memory.

use plimsoll_memory::budget::{Budget, Kind, OutOfBudget};
use plimsoll_memory::buffer::Buffer;

use crate::format::offset_table::NamedBlob;

/// The least room that is made at a time.
const BLOBS_MIN: usize = 16;

/// Blob files named by records, under a lease.
#[derive(Debug)]
pub(crate) struct NamedBlobs {
    list: Buffer<NamedBlob>,
}

impl NamedBlobs {
    pub(crate) fn new(budget: &Budget) -> Result<Self, OutOfBudget> {
        Ok(Self { list: Buffer::with_capacity(budget, Kind::LogTable, 0)? })
    }

    /// Makes room for `more` names.
    pub(crate) fn reserve(&mut self, more: usize) -> Result<(), OutOfBudget> {
        if more == 0 { Ok(()) } else { self.list.reserve(more.max(BLOBS_MIN)) }
    }

    pub(crate) fn push(&mut self, blob: NamedBlob) {
        self.list.push(blob);
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.list.truncate(len);
    }

    /// Takes all names and leaves none.
    pub(crate) fn take(&mut self) -> Self {
        Self { list: self.list.take() }
    }

    pub(crate) fn clear(&mut self) {
        self.list.release();
    }

    pub(crate) fn list(&self) -> &[NamedBlob] {
        &self.list
    }
}
