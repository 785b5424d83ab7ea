//! The blob files that the records of a segment name, in memory.

use plimsoll_memory::budget::{Budget, Kind, OutOfBudget};
use plimsoll_memory::buffer::Buffer;

use crate::format::offset_table::NamedSide;

/// Room is made for so many side files at a time.
const SIDES_MIN: usize = 16;

/// Side files named by records, under a lease.
#[derive(Debug)]
pub(crate) struct NamedSides {
    list: Buffer<NamedSide>,
}

impl NamedSides {
    pub(crate) fn new(budget: &Budget) -> Result<Self, OutOfBudget> {
        Ok(Self { list: Buffer::with_capacity(budget, Kind::LogTable, 0)? })
    }

    /// Makes room for `more`.
    pub(crate) fn reserve(&mut self, more: usize) -> Result<(), OutOfBudget> {
        if more == 0 { Ok(()) } else { self.list.reserve(more.max(SIDES_MIN)) }
    }

    pub(crate) fn push(&mut self, side: NamedSide) {
        self.list.push(side);
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.list.truncate(len);
    }

    pub(crate) fn clear(&mut self) {
        self.list.release();
    }

    pub(crate) fn list(&self) -> &[NamedSide] {
        &self.list
    }
}
