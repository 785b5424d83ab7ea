//! The records of a log in memory, in order.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use plimsoll_disk::checksum::{checksum, seed};
use plimsoll_memory::budget::{Budget, Lease};

use crate::blob::{BlobId, BlobRef};
use crate::draft::Draft;
use crate::entry::EntryMeta;
use crate::error::LogError;
use crate::glsn::{Glsn, Position, StreamId};
use crate::mem_log::ACCOUNT;

/// One record.
#[derive(Clone, Debug)]
pub(crate) struct MemRecord {
    pub(crate) first: Glsn,
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) blobs: Vec<BlobRef>,
    entries: Vec<MemEntry>,
    read_at: Glsn,
    timestamp_micros: u64,
    /// Chain hash after it.
    chain: u64,
}

#[derive(Clone, Debug)]
struct MemEntry {
    stream: StreamId,
    payload: Range<usize>,
    checksum: u64,
}

impl MemRecord {
    pub(crate) fn new(draft: &Draft<'_>, first: Glsn, timestamp_micros: u64) -> Self {
        let mut bytes = Vec::with_capacity(draft.entries.iter().map(|entry| entry.payload_bytes()).sum());
        let mut entries = Vec::with_capacity(draft.entries.len());
        for (index, entry) in draft.entries.iter().enumerate() {
            let start = bytes.len();
            entry.parts.iter().for_each(|part| bytes.extend_from_slice(part));
            let payload = start..bytes.len();
            let checksum = checksum(first.0 + index as u64, &bytes[payload.clone()]);
            entries.push(MemEntry { stream: entry.stream, payload, checksum });
        }
        let (bytes, blobs, read_at) = (bytes.into(), draft.blobs.to_vec(), draft.read_at);
        Self { first, bytes, blobs, entries, read_at, timestamp_micros, chain: 0 }
    }

    /// GLSN of the last entry.
    pub(crate) fn last(&self) -> Glsn {
        Glsn(self.first.0 + self.entries.len() as u64 - 1)
    }

    /// The metadata of an entry.
    pub(crate) fn meta(&self, index: usize) -> EntryMeta {
        EntryMeta {
            glsn: Glsn(self.first.0 + index as u64),
            stream: self.entries[index].stream,
            timestamp_micros: self.timestamp_micros,
            record_first: self.first,
            record_count: self.entries.len() as u32,
            read_at: self.read_at,
            blobs: self.blobs.len() as u8,
        }
    }

    /// The payload of an entry within `bytes`, if its checksum is right.
    pub(crate) fn checked_payload(&self, index: usize) -> Result<Range<usize>, LogError> {
        let entry = &self.entries[index];
        if checksum(self.first.0 + index as u64, &self.bytes[entry.payload.clone()]) == entry.checksum {
            Ok(entry.payload.clone())
        } else {
            Err(self.corrupt(index, "the checksum of the entry does not match"))
        }
    }

    pub(crate) fn corrupt(&self, index: usize, what: &str) -> LogError {
        let glsn = Glsn(self.first.0 + index as u64);
        let offset = self.entries[index].payload.start as u64;
        LogError::Corrupt { glsn, file: "memory".to_owned(), offset, what: what.to_owned() }
    }

    fn extend(&self, chain: u64) -> u64 {
        let mut parts = vec![chain, self.first.0, self.read_at.0, self.timestamp_micros];
        for entry in &self.entries {
            parts.extend([u64::from(entry.stream.0), entry.payload.len() as u64, entry.checksum]);
        }
        parts.extend(self.blobs.iter().flat_map(|blob| [blob.id.0, u64::from(blob.pages), blob.hash]));
        seed(&parts)
    }

    fn heap_bytes(&self) -> u64 {
        let entries = self.entries.capacity() * size_of::<MemEntry>();
        let blobs = self.blobs.capacity() * size_of::<BlobRef>();
        (self.bytes.len() + entries + blobs + 2 * size_of::<Self>()) as u64
    }
}

/// All records that are not trimmed.
pub(crate) struct Records {
    list: VecDeque<MemRecord>,
    /// Chain hash before the first.
    before: u64,
    /// Timestamp before the first.
    floor: u64,
    first: Glsn,
    lease: Option<Lease>,
}

impl Records {
    pub(crate) fn new(chain: u64, budget: Option<&Budget>) -> Result<Self, LogError> {
        let lease = budget.map(|budget| budget.lease(ACCOUNT, 0)).transpose()?;
        Ok(Self { list: VecDeque::new(), before: chain, floor: 0, first: Glsn::FIRST, lease })
    }

    pub(crate) fn first(&self) -> Glsn {
        self.first
    }

    pub(crate) fn next(&self) -> Glsn {
        self.list.back().map_or(self.first, |record| record.last().next())
    }

    pub(crate) fn end(&self) -> Position {
        Position { glsn: Glsn(self.next().0 - 1), chain: self.list.back().map_or(self.before, |record| record.chain) }
    }

    pub(crate) fn last_timestamp(&self) -> u64 {
        self.list.back().map_or(self.floor, |record| record.timestamp_micros)
    }

    pub(crate) fn push(&mut self, mut record: MemRecord) -> Result<(), LogError> {
        if let Some(lease) = &mut self.lease {
            lease.grow(record.heap_bytes())?;
        }
        record.chain = record.extend(self.end().chain);
        self.list.push_back(record);
        Ok(())
    }

    /// The record of an entry, and the entry's number in it.
    pub(crate) fn find(&self, glsn: Glsn) -> Result<(MemRecord, usize), LogError> {
        let at = self.at(glsn)?;
        let record = &self.list[at];
        Ok((record.clone(), (glsn.0 - record.first.0) as usize))
    }

    /// The first entry of `stream` (or of any) from `from` on and up to `last`.
    pub(crate) fn find_from(&self, from: Glsn, last: Glsn, stream: Option<StreamId>) -> Option<(&MemRecord, usize)> {
        let mut at = self.at(from).ok()?;
        let mut index = (from.0 - self.list[at].first.0) as usize;
        while let Some(record) = self.list.get(at) {
            for (number, entry) in record.entries.iter().enumerate().skip(index) {
                if record.first.0 + number as u64 > last.0 {
                    return None;
                }
                if stream.is_none_or(|stream| stream == entry.stream) {
                    return Some((record, number));
                }
            }
            at += 1;
            index = 0;
        }
        None
    }

    pub(crate) fn chain_at(&self, glsn: Glsn) -> Option<u64> {
        if glsn.next() == self.first {
            return Some(self.before);
        }
        let record = &self.list[self.at(glsn).ok()?];
        (record.last() == glsn).then_some(record.chain)
    }

    pub(crate) fn last_not_younger(&self, micros: u64) -> Result<Glsn, LogError> {
        let behind = self.list.partition_point(|record| record.timestamp_micros <= micros);
        match behind.checked_sub(1) {
            Some(at) => Ok(self.list[at].last()),
            None if self.first == Glsn::FIRST => Ok(Glsn::NONE),
            None => Err(LogError::Trimmed { asked: Glsn(self.first.0 - 1), first: self.first }),
        }
    }

    /// Removes records that end below `until`; returns their blob files.
    pub(crate) fn trim(&mut self, until: Glsn) -> Vec<BlobId> {
        let mut blobs = Vec::new();
        while self.list.front().is_some_and(|record| record.last() < until) {
            let record = self.list.pop_front().expect("it is there");
            self.first = record.last().next();
            self.before = record.chain;
            self.floor = record.timestamp_micros;
            blobs.extend(record.blobs.iter().map(|blob| blob.id));
            self.give_back(&record);
        }
        blobs
    }

    /// Removes records after `durable`, except the first `kept` of them.
    pub(crate) fn cut(&mut self, durable: Glsn, kept: usize) {
        let keep = self.list.partition_point(|record| record.last() <= durable).saturating_add(kept);
        while self.list.len() > keep
            && let Some(record) = self.list.pop_back()
        {
            self.give_back(&record);
        }
    }

    /// Flips bits of a payload byte.
    pub(crate) fn corrupt(&mut self, glsn: Glsn, byte: usize, mask: u8) -> bool {
        let Ok(at) = self.at(glsn) else { return false };
        let record = &mut self.list[at];
        let payload = record.entries[(glsn.0 - record.first.0) as usize].payload.clone();
        let mut bytes = record.bytes.to_vec();
        let changed = bytes[payload].get_mut(byte).map(|byte| *byte ^= mask).is_some();
        record.bytes = bytes.into();
        changed
    }

    /// Every blob file that a record names.
    pub(crate) fn named_blobs(&self) -> BTreeSet<BlobId> {
        self.list.iter().flat_map(|record| record.blobs.iter().map(|blob| blob.id)).collect()
    }

    fn at(&self, glsn: Glsn) -> Result<usize, LogError> {
        if glsn < self.first {
            return Err(LogError::Trimmed { asked: glsn, first: self.first });
        }
        if glsn >= self.next() {
            return Err(LogError::NotYet { asked: glsn, next: self.next() });
        }
        Ok(self.list.partition_point(|record| record.last() < glsn))
    }

    fn give_back(&mut self, record: &MemRecord) {
        if let Some(lease) = &mut self.lease {
            lease.shrink(record.heap_bytes());
        }
    }
}
