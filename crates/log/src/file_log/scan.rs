//! Walks over entries in GLSN order: places from the tables, a handful at a time, and payloads lent from pinned pages.
//!
//! Law: no allocation and no copy per entry. An entry that spans blocks is put together in one buffer of the scan's own; the block that
//! is still being filled is copied once, and again when there is more in it.

use std::ops::Range;
use std::sync::Arc;

use plimsoll_memory::budget::{Kind, Lease};
use plimsoll_memory::chunk::Chunk;
use plimsoll_memory::pool::{Page, Touch};

use crate::entry::EntryView;
use crate::error::LogError;
use crate::file_log::core::Core;
use crate::file_log::segment::Segment;
use crate::file_log::table::StreamCursor;
use crate::format::BLOCK_BYTES;
use crate::format::layout::{block_of, payload_pieces};
use crate::format::record::{ENTRY_HEADER_BYTES, EntryHeader, RecordHeader};
use crate::glsn::{Glsn, StreamId};
use crate::log::Scan;

/// Places that are looked up at a time.
const BATCH: usize = 32;

/// From so many entries on, a scan does not push anything else out of the pool.
const LONG_SCAN: u64 = 4096;

/// A walk over entries of a file log.
pub struct FileScan<'a> {
    core: &'a Core,
    stream: Option<StreamId>,
    /// The next GLSN to look up.
    next: Glsn,
    end: Glsn,
    touch: Touch,
    segment: Option<Arc<Segment>>,
    /// Entries looked up: number in the segment, offset of the header.
    indexes: [u32; BATCH],
    offsets: [u32; BATCH],
    batch: Range<usize>,
    /// Where the stream goes on in the segment, if that is sealed.
    cursor: Option<StreamCursor>,
    block: Block,
    /// The record of the last entry, and where its header stands.
    record: Option<(u32, RecordHeader)>,
    /// An entry that spans blocks.
    whole: Vec<u8>,
    whole_lease: Option<Lease>,
    over: bool,
}

/// The block that the scan stands on.
enum Block {
    None,
    Complete {
        number: u64,
        page: Page,
    },
    /// A copy of the block that is being filled, up to `filled`.
    Open {
        number: u64,
        copy: Chunk,
        filled: usize,
    },
}

/// Where the payload that is lent next stands.
enum Found {
    InBlock(Range<usize>),
    Whole,
}

impl<'a> FileScan<'a> {
    pub(crate) fn new(core: &'a Core, range: Range<Glsn>, stream: Option<StreamId>) -> Result<Self, LogError> {
        let first = core.segments.first();
        if range.start < first && range.start < range.end {
            return Err(LogError::Trimmed { asked: range.start, first });
        }
        let long = range.end.0.saturating_sub(range.start.0) > LONG_SCAN;
        Ok(Self {
            core,
            stream,
            next: range.start,
            end: range.end,
            touch: if long { Touch::Scan } else { Touch::Point },
            segment: None,
            indexes: [0; BATCH],
            offsets: [0; BATCH],
            batch: 0..0,
            cursor: None,
            block: Block::None,
            record: None,
            whole: Vec::new(),
            whole_lease: None,
            over: false,
        })
    }

    /// The next entry, lent until the next call; `None` at the end.
    #[inline]
    pub fn next_entry(&mut self) -> Option<Result<EntryView<'_>, LogError>> {
        if self.over {
            return None;
        }
        match self.step() {
            Ok(Some((meta, found))) => {
                let payload = match (&found, &self.block) {
                    (Found::InBlock(range), Block::Complete { page, .. }) => &page[range.clone()],
                    (Found::InBlock(range), Block::Open { copy, .. }) => &copy[range.clone()],
                    (Found::InBlock(_), Block::None) => &[],
                    (Found::Whole, _) => &self.whole[..],
                };
                Some(Ok(EntryView { meta, payload }))
            }
            Ok(None) => {
                self.over = true;
                None
            }
            Err(error) => {
                self.over = true;
                Some(Err(error))
            }
        }
    }

    #[inline]
    fn step(&mut self) -> Result<Option<(crate::entry::EntryMeta, Found)>, LogError> {
        if self.batch.is_empty() && !self.look_up()? {
            return Ok(None);
        }
        let at = self.batch.start;
        self.batch.start += 1;
        let Some(segment) = self.segment.clone() else { return Ok(None) };
        let offset = self.offsets[at];
        let glsn = Glsn(segment.first().0 + u64::from(self.indexes[at]));
        self.turn_to_block(&segment, glsn, offset)?;
        let within = offset as usize % BLOCK_BYTES;
        let core = self.core;
        let Some(header) = self.block_bytes().get(within..).and_then(EntryHeader::decode) else {
            return Err(core.not_there(&segment, glsn, offset));
        };
        let record = self.record_of(&segment, glsn, offset, &header)?;
        let meta = core.meta_of(&segment, glsn, offset, &header, &record)?;
        let payload = within + ENTRY_HEADER_BYTES..within + ENTRY_HEADER_BYTES + header.payload_bytes as usize;
        if payload.end <= self.block_filled() {
            return Ok(Some((meta, Found::InBlock(payload))));
        }
        core.check_extent(&segment, glsn, offset, &header, &record)?;
        self.put_together(&segment, glsn, offset, header.payload_bytes as usize)?;
        Ok(Some((meta, Found::Whole)))
    }

    #[inline]
    fn record_of(
        &mut self,
        segment: &Segment,
        glsn: Glsn,
        offset: u32,
        header: &EntryHeader,
    ) -> Result<RecordHeader, LogError> {
        let at = offset.wrapping_sub(header.back);
        if let Some((known_at, record)) = &self.record
            && *known_at == at
        {
            return Ok(*record);
        }
        let page = match &self.block {
            Block::Complete { page, .. } => Some(page),
            _ => None,
        };
        let record = self.core.record_of(segment, glsn, offset, header, page)?;
        self.record = Some((at, record));
        Ok(record)
    }

    fn block_bytes(&self) -> &[u8] {
        match &self.block {
            Block::None => &[],
            Block::Complete { page, .. } => page,
            Block::Open { copy, filled, .. } => &copy[..*filled],
        }
    }

    fn block_filled(&self) -> usize {
        self.block_bytes().len()
    }

    #[inline]
    fn turn_to_block(&mut self, segment: &Segment, glsn: Glsn, offset: u32) -> Result<(), LogError> {
        let wanted = block_of(u64::from(offset));
        match &self.block {
            Block::Complete { number, .. } if *number == wanted => Ok(()),
            Block::Open { number, filled, .. } if *number == wanted && *filled > offset as usize % BLOCK_BYTES => {
                Ok(())
            }
            _ => self.load_block(segment, glsn, wanted),
        }
    }

    fn load_block(&mut self, segment: &Segment, glsn: Glsn, number: u64) -> Result<(), LogError> {
        if self.copy_open_block(segment, number)? {
            return Ok(());
        }
        self.block = Block::None;
        self.block = Block::Complete { number, page: self.core.page(segment, number, glsn, self.touch)? };
        Ok(())
    }

    fn copy_open_block(&mut self, segment: &Segment, wanted: u64) -> Result<bool, LogError> {
        if !self.core.tail.read().is_open_block(segment.first(), wanted) {
            return Ok(false);
        }
        let mut chunk = match std::mem::replace(&mut self.block, Block::None) {
            Block::Open { copy, .. } => copy,
            _ => self.core.options.budget.take(Kind::Staging)?,
        };
        let tail = self.core.tail.read();
        if !tail.is_open_block(segment.first(), wanted)
            || !tail.copy_block(segment.first(), wanted as u32, &mut chunk[..BLOCK_BYTES])
        {
            return Ok(false);
        }
        let filled = tail.end.offset as usize % BLOCK_BYTES;
        self.block = Block::Open { number: wanted, copy: chunk, filled };
        Ok(true)
    }

    /// Copies an entry that spans blocks into the scan's own buffer.
    fn put_together(&mut self, segment: &Segment, glsn: Glsn, offset: u32, len: usize) -> Result<(), LogError> {
        if len > self.whole.capacity() {
            let capacity = len.next_power_of_two();
            self.whole = Vec::new();
            self.whole_lease = None;
            self.whole_lease = Some(self.core.options.budget.lease(Kind::Staging, capacity as u64)?);
            self.whole = Vec::with_capacity(capacity);
        }
        self.whole.resize(len, 0);
        let mut done = 0;
        for piece in payload_pieces(offset, 0..len as u64) {
            let n = (piece.end - piece.start) as usize;
            let into = &mut self.whole[done..done + n];
            let within = (piece.start % BLOCK_BYTES as u64) as usize;
            match &self.block {
                Block::Complete { number, page } if *number == block_of(piece.start) => {
                    into.copy_from_slice(&page[within..within + n]);
                }
                _ => self.core.copy(segment, glsn, piece.start, into)?,
            }
            done += n;
        }
        Ok(())
    }

    /// Looks up the next places; `false` at the end.
    fn look_up(&mut self) -> Result<bool, LogError> {
        loop {
            let limit = self.end.min(self.core.readable().next());
            if self.next >= limit {
                return Ok(false);
            }
            let found = match self.look_up_in_tail(limit) {
                Some(found) => found,
                None => self.look_up_sealed(limit)?,
            };
            if found > 0 {
                self.batch = 0..found;
                return Ok(true);
            }
        }
    }

    /// Looks into the active segment; `None` if the next entry is in a sealed one.
    fn look_up_in_tail(&mut self, limit: Glsn) -> Option<usize> {
        let core = self.core;
        let tail = core.tail.read();
        if self.next < tail.first {
            return None;
        }
        if self.segment.as_ref().is_none_or(|segment| segment.first() != tail.first) {
            let segment = Arc::clone(&tail.segment);
            self.enter(segment);
        }
        let from = (self.next.0 - tail.first.0) as u32;
        let below = (limit.0 - tail.first.0).min(u64::from(tail.numbers.len())) as u32;
        let mut found = 0;
        let mut index = from;
        while found < BATCH && index < below {
            if let Some(stream) = self.stream {
                match tail.numbers.find(stream, index, below) {
                    Some(at) => index = at,
                    None => {
                        index = below;
                        break;
                    }
                }
            }
            let Some(offset) = tail.numbers.offset(index) else { break };
            self.indexes[found] = index;
            self.offsets[found] = offset;
            found += 1;
            index += 1;
        }
        self.next = Glsn(tail.first.0 + u64::from(index));
        Some(found)
    }

    fn look_up_sealed(&mut self, limit: Glsn) -> Result<usize, LogError> {
        let core = self.core;
        let first = core.segments.first();
        let trimmed = LogError::Trimmed { asked: self.next, first };
        let known = self.segment.clone().filter(|segment| {
            segment.first() <= self.next && segment.behind().is_some_and(|behind| self.next < behind.next)
        });
        let segment = match known {
            Some(segment) => segment,
            None => {
                let segment = core.segments.find(self.next).ok_or(trimmed)?;
                self.enter(Arc::clone(&segment));
                segment
            }
        };
        let Some(behind) = segment.behind() else { return Ok(0) };
        let from = (self.next.0 - segment.first().0) as u32;
        let below = (limit.min(behind.next).0 - segment.first().0) as u32;
        match self.stream {
            None => {
                let wanted = BATCH.min((below - from) as usize);
                let offsets = &mut self.offsets[..wanted];
                let found = core.with_table(&segment, |table| table.offsets(from, offsets))?;
                (0..found).for_each(|i| self.indexes[i] = from + i as u32);
                self.next = Glsn(self.next.0 + found as u64);
                Ok(found)
            }
            Some(stream) => self.look_up_stream(&segment, stream, from, below),
        }
    }

    fn look_up_stream(
        &mut self,
        segment: &Arc<Segment>,
        stream: StreamId,
        from: u32,
        below: u32,
    ) -> Result<usize, LogError> {
        let core = self.core;
        let mut cursor = match self.cursor {
            Some(cursor) => cursor,
            None => core.with_table(segment, |table| table.stream(stream, from))?,
        };
        let indexes = &mut self.indexes;
        let mut found = core.with_table(segment, |table| table.next_of_stream(stream, &mut cursor, indexes))?;
        self.cursor = Some(cursor);
        let beyond = found == 0 || indexes[found - 1] >= below;
        found = indexes[..found].partition_point(|index| *index < below);
        for i in 0..found {
            let index = self.indexes[i];
            self.offsets[i] = core.with_table(segment, |table| table.offset(index))?;
        }
        let next = if beyond { below } else { self.indexes[found - 1] + 1 };
        self.next = Glsn(segment.first().0 + u64::from(next));
        if beyond {
            // The cursor may have passed entries that become readable later.
            self.cursor = None;
        }
        Ok(found)
    }

    fn enter(&mut self, segment: Arc<Segment>) {
        self.segment = Some(segment);
        self.cursor = None;
        self.block = Block::None;
        self.record = None;
    }
}

impl Scan for FileScan<'_> {
    fn next(&mut self) -> Option<Result<EntryView<'_>, LogError>> {
        self.next_entry()
    }
}
