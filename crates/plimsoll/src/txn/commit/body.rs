//! The log entry of a transaction: how the operations of its write set are encoded.

use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::buffer::Buffer;
use plimsoll_memory::sorted::SortedMap;

use crate::txn::payload::{encode_expiry, encode_head, encode_operation, encode_put, encode_runs};
use crate::txn::resolution::{InRecord, Resolution};
use crate::txn::write_set::{Write, WriteSet};
use crate::types::error::Result;
use crate::types::version::{INLINE_BYTES, MAX_POINTER_BYTES, Stored, value_sum};

/// An encoded log entry of a transaction.
pub(super) struct Body {
    /// The bytes before the operations.
    pub(super) head: Vec<u8>,
    /// Number of operations.
    pub(super) count: u64,
    /// Everything after the head except values that remain in the write set's buffer and long
    /// values computed by updates.
    pub(super) small: Buffer,
    /// The parts after the head, in order.
    pub(super) parts: Vec<Part>,
    /// Size of the versions in the memtable.
    pub(super) room_bytes: usize,
}

pub(super) enum Part {
    Small {
        start: usize,
        end: usize,
    },
    Buffered {
        offset: u64,
        len: u64,
    },
    /// A value computed by an update.
    Updated {
        number: usize,
        len: u64,
    },
}

impl Body {
    /// Size of the entry.
    pub(super) fn bytes(&self) -> u64 {
        let part = |part: &Part| match part {
            Part::Small { start, end } => (end - start) as u64,
            Part::Buffered { len, .. } | Part::Updated { len, .. } => *len,
        };
        self.head.len() as u64 + self.parts.iter().map(part).sum::<u64>()
    }

    pub(super) fn new(
        budget: &Budget,
        writes: &WriteSet,
        updates: &Resolution<'_>,
        metadata: &[u8],
    ) -> Result<Self> {
        let (small, parts) = (Buffer::default(), Vec::new());
        let mut body = Self { head: Vec::new(), count: 0, small, parts, room_bytes: 0 };
        if writes.spilled().is_empty() {
            body.encode_operations(budget, writes, updates, metadata)?;
        } else {
            let mut encoded = Vec::new();
            encode_runs(metadata, writes.ranges(), &writes.spilled().layout(), &mut encoded);
            if writes.is_in_memory() {
                body.room_bytes = writes
                    .in_memory()
                    .map(|(key, stored)| SortedMap::entry_bytes(key.len(), stored.max_bytes()))
                    .sum();
            }
            body.small = encoded.into();
            body.parts.push(Part::Small { start: 0, end: body.small.len() });
        }
        Ok(body)
    }

    fn encode_operations(
        &mut self,
        budget: &Budget,
        writes: &WriteSet,
        updates: &Resolution<'_>,
        metadata: &[u8],
    ) -> Result<()> {
        let small_bytes = writes.operation_bytes() + updates.operation_bytes();
        self.small = Buffer::with_capacity(budget, Kind::Staging, small_bytes as usize)?;
        let mut encoded = Vec::new();
        let mut start = 0;
        let mut updated = updates.in_record().peekable();
        let mut at = writes.map().first();
        while let Some(position) = at {
            let (key, write) = writes.at(position);
            while let Some(before) = updated.next_if(|updated| updated.key < key) {
                self.encode_updated(before, &mut start, &mut encoded);
            }
            encoded.clear();
            let mut inline: &[u8] = &[];
            match write {
                Write::Stored(stored) => inline = encode_operation(key, stored, &mut encoded),
                Write::Buffered { len, packed, expiry, .. } => {
                    encode_expiry(expiry, &mut encoded);
                    encode_put(key, len, packed, &mut encoded);
                }
            }
            self.small.extend_from_slice(&encoded);
            self.small.extend_from_slice(inline);
            if let Write::Buffered { offset, len, sum, .. } = write {
                self.parts.push(Part::Small { start, end: self.small.len() });
                self.parts.push(Part::Buffered { offset, len });
                start = self.small.len();
                self.small.extend_from_slice(&sum.to_le_bytes());
            }
            let stored_bytes = match write {
                Write::Stored(stored) => stored.max_bytes(),
                Write::Buffered { .. } => MAX_POINTER_BYTES,
            };
            self.room_bytes += SortedMap::entry_bytes(key.len(), stored_bytes);
            self.count += 1;
            at = writes.after_key(position);
        }
        updated.for_each(|updated| self.encode_updated(updated, &mut start, &mut encoded));
        self.parts.push(Part::Small { start, end: self.small.len() });
        encode_head(metadata, writes.ranges(), self.count, &mut self.head);
        Ok(())
    }

    /// Encodes an updated key. The part of `small` from `start` on is not in `parts` yet.
    fn encode_updated(
        &mut self,
        InRecord { number, key, value, expiry }: InRecord<'_>,
        start: &mut usize,
        encoded: &mut Vec<u8>,
    ) {
        encoded.clear();
        let inline = value.filter(|value| value.len() <= INLINE_BYTES);
        let stored = inline.map_or(Stored::Deleted, Stored::Inline).expiring(expiry);
        let mut stored_bytes = stored.max_bytes();
        match value.filter(|value| value.len() > INLINE_BYTES) {
            None => {
                let inline = encode_operation(key, stored, encoded);
                self.small.extend_from_slice(encoded);
                self.small.extend_from_slice(inline);
            }
            Some(value) => {
                encode_expiry(expiry, encoded);
                encode_put(key, value.len() as u64, None, encoded);
                self.small.extend_from_slice(encoded);
                self.parts.push(Part::Small { start: *start, end: self.small.len() });
                self.parts.push(Part::Updated { number, len: value.len() as u64 });
                *start = self.small.len();
                self.small.extend_from_slice(&value_sum(value).to_le_bytes());
                stored_bytes = MAX_POINTER_BYTES;
            }
        }
        self.room_bytes += SortedMap::entry_bytes(key.len(), stored_bytes);
        self.count += 1;
    }
}
