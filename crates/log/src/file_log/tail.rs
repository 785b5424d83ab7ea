//! The end of the log in memory: the active segment's newest bytes and the places of its entries.
//!
//! An append holds [`Tail::order`] from the choice of the GLSN until the record is in the buffer.
//! The state has its own read-write lock: an append holds the write lock while it copies a record
//! into the buffer; readers and the segment writer hold the read lock.
//!
//! Invariant: all bytes below `end` belong to complete records; bytes not in the file are in the
//! buffer.

pub(crate) mod buffer;
pub(crate) mod order;
pub(crate) mod segment_source;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::error::LogError;
use crate::file_log::env::lock;
use crate::file_log::segments::entry_offsets::EntryOffsets;
use crate::file_log::segments::named_blobs::NamedBlobs;
use crate::file_log::segments::segment::Segment;
use crate::file_log::tail::buffer::TailBuffer;
use crate::file_log::tail::order::{End, Order};
use crate::format::BLOCK_BYTES;
use crate::format::layout::block_of;
use crate::glsn::Glsn;

/// The end of an open log.
#[derive(Debug)]
pub(crate) struct Tail {
    /// `None` if the log is open read-only and not shared.
    order: Option<Mutex<Order>>,
    state: RwLock<TailState>,
    /// The GLSN of the next entry.
    next: AtomicU64,
    /// The timestamp of the last record.
    timestamp: AtomicU64,
}

/// The state of the tail, under its lock.
#[derive(Debug)]
pub(crate) struct TailState {
    /// First GLSN of the active segment.
    pub(crate) first: Glsn,
    /// The active segment.
    pub(crate) segment: Arc<Segment>,
    /// Timestamp of its first record, 0 while it has none.
    pub(crate) first_timestamp: u64,
    /// Offset and stream of each of its entries.
    pub(crate) entry_offsets: EntryOffsets,
    /// Blob files named by its records.
    pub(crate) blobs: NamedBlobs,
    /// Its newest bytes.
    pub(crate) buffer: TailBuffer,
    /// The end of its last record.
    pub(crate) end: End,
}

impl Tail {
    pub(crate) fn new(state: TailState, order: Option<Order>) -> Self {
        let next = AtomicU64::new(state.end.next.0);
        let timestamp = AtomicU64::new(state.end.timestamp);
        Self { order: order.map(Mutex::new), state: RwLock::new(state), next, timestamp }
    }

    /// Locks the order for an append; `ReadOnly` if the log is open read-only and not shared.
    pub(crate) fn order(&self) -> Result<MutexGuard<'_, Order>, LogError> {
        self.order.as_ref().map(lock).ok_or(LogError::ReadOnly)
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, TailState> {
        self.state.read().expect("no code under this lock panics")
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, TailState> {
        self.state.write().expect("no code under this lock panics")
    }

    /// The GLSN of the next entry.
    pub(crate) fn next(&self) -> Glsn {
        // Acquire: pairs with the Release in `set_end`, so that every entry below is readable.
        Glsn(self.next.load(Ordering::Acquire))
    }

    /// The GLSN of the last entry.
    pub(crate) fn last(&self) -> Glsn {
        Glsn(self.next().0 - 1)
    }

    /// The timestamp of the last record. If it is read after [`Tail::next`], it is at least the
    /// timestamp of every entry below that GLSN.
    pub(crate) fn timestamp(&self) -> u64 {
        self.timestamp.load(Ordering::Acquire)
    }

    /// Publishes a complete record to readers, or the end of an empty segment.
    pub(crate) fn set_end(&self, end: &End) {
        self.timestamp.store(end.timestamp, Ordering::Release);
        // Release: pairs with the Acquire in `next`.
        self.next.store(end.next.0, Ordering::Release);
    }

    /// The offset where the complete records of the segment that begins with `first` end; 0 if that
    /// segment is not the active one.
    pub(crate) fn end_of(&self, first: Glsn) -> u32 {
        let state = self.read();
        if state.first == first { state.end.offset } else { 0 }
    }
}

impl TailState {
    /// The bytes of the log after `glsn`; `None` if the next entry is not in the active segment.
    pub(crate) fn bytes_behind(&self, glsn: Glsn) -> Option<u64> {
        if glsn.next() == self.end.next {
            return Some(0);
        }
        let index = u32::try_from(glsn.next().0.checked_sub(self.first.0)?).ok()?;
        let offset = self.entry_offsets.offset(index)?;
        Some(u64::from(self.end.offset.saturating_sub(offset)))
    }

    /// Whether `block` of the segment that begins with `first` is still being filled and exists
    /// only in the buffer.
    pub(crate) fn is_open_block(&self, first: Glsn, block: u64) -> bool {
        first == self.first && block == block_of(u64::from(self.end.offset))
    }

    /// Copies a block of the segment that begins with `first`, if it is in the buffer; bytes after
    /// the end are zero.
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
