//! The end of the log: the active segment's numbers and newest bytes, as submitters leave them and readers find them.
//!
//! It stands under one read-write lock: a submitter writes while it lays a record down, readers and the one who writes to the file
//! read. Law: everything below `end` belongs to complete records; what lies in the file only need be in no buffer.

use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use plimsoll_memory::budget::{Budget, Kind, OutOfBudget};
use plimsoll_memory::buffer;

use crate::file_log::buffer::Buffer;
use crate::file_log::numbers::Numbers;
use crate::file_log::segment::Segment;
use crate::format::BLOCK_BYTES;
use crate::format::layout::block_of;
use crate::format::offset_table::NamedSide;
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

/// Room is made for so many side files at a time.
const SIDES_MIN: usize = 16;

/// Side files named by records, under a lease.
#[derive(Debug)]
pub(crate) struct NamedSides {
    list: buffer::Buffer<NamedSide>,
}

impl NamedSides {
    pub(crate) fn new(budget: &Budget) -> Result<Self, OutOfBudget> {
        Ok(Self { list: buffer::Buffer::with_capacity(budget, Kind::LogTable, 0)? })
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
