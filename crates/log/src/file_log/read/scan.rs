//! Scans entries in GLSN order: reads offsets from the tables in batches, and lends payloads from
//! pinned pages.
//!
//! Invariant: no allocation and no copy per entry. An entry that spans blocks is assembled in one
//! buffer of the scan; the block that is still being filled is copied once, and again when it has
//! grown. Consecutive records in different blocks are compared by chain hash, so that a stale block
//! with a matching checksum is detected; records within one block were compared when it was read
//! from disk.

use std::ops::Range;
use std::sync::Arc;

use plimsoll_disk::vfs::Caching;
use plimsoll_memory::budget::Kind;
use plimsoll_memory::buffer::Buffer;
use plimsoll_memory::chunk::Chunk;
use plimsoll_memory::cpu_prefetch::prefetch;
use plimsoll_memory::pool::{Page, Touch};

use crate::entry::{EntryMeta, EntryView};
use crate::error::LogError;
use crate::file_log::open_log::OpenLog;
use crate::file_log::read::point::{RecordStart, continued};
use crate::file_log::read::read_ahead::ReadAhead;
use crate::file_log::segments::offset_table::Postings;
use crate::file_log::segments::segment::Segment;
use crate::format::fragment::FRAGMENT_HEADER_BYTES;
use crate::format::layout::{block_of, payload_pieces};
use crate::format::record::{ENTRY_HEADER_BYTES, EntryHeader, RECORD_HEADER_BYTES};
use crate::format::{BLOCK_BYTES, segment_seed};
use crate::glsn::{Glsn, StreamId};

/// Offsets that are looked up at a time.
const BATCH: usize = 32;

/// The most entries of the active segment that are searched for a stream at a time. Writers can
/// take the lock in between.
const SEARCHED_AT_ONCE: u64 = 1 << 16;

/// A scan of more than this many entries evicts nothing else from the pool.
const LONG_SCAN: u64 = 4096;

/// Bytes are prefetched into the processor's cache up to this far ahead.
const AHEAD_BYTES: usize = 2048;

/// The next prefetch starts when at most this many prefetched bytes are left.
const AHEAD_LEFT_BYTES: usize = 1024;

/// Bytes to prefetch before an entry's offset (its record's header), and after it (enough for most
/// entries).
const BEFORE_ENTRY_BYTES: usize = RECORD_HEADER_BYTES;
const BEHIND_OFFSET_BYTES: u64 = 256;

/// A scan over entries of a file log.
pub struct FileScan<'a> {
    log: &'a OpenLog,
    stream: Option<StreamId>,
    /// Whether the scan also returns entries that are ordered but not readable yet.
    is_of_ordered: bool,
    /// The next GLSN to look up.
    next: Glsn,
    end: Glsn,
    touch: Touch,
    segment: Option<Arc<Segment>>,
    segment_first: Glsn,
    /// Entries looked up: index in the segment, offset of the header.
    indexes: [u32; BATCH],
    offsets: [u32; BATCH],
    batch: Range<usize>,
    /// The position of the stream in the file of the segment's table.
    postings: Option<Postings>,
    block: CurrentBlock,
    block_number: u64,
    /// Bytes of the block that are filled.
    filled: usize,
    /// The end of the prefetched bytes, as an offset in the block; `usize::MAX` if there is nothing
    /// more to prefetch.
    near: usize,
    /// The next block, pinned if it was resident when the scan approached it.
    next_block: Option<Page>,
    /// Offset in the segment at which the scan ends; `u64::MAX` if it continues to the segment's
    /// end.
    last_byte: u64,
    /// The offset of the header of the last entry's record, and the contents of that header.
    record_at: u32,
    record: EntryMeta,
    body_bytes: u32,
    /// Checksum of the record's first fragment.
    head: u64,
    /// The block that `fragment_end` belongs to.
    fragment_block: u64,
    /// The end of the fragment that holds the record's entries, as an offset in the block.
    fragment_end: usize,
    /// The GLSN and the chain hash after a record that began or ended in an earlier block.
    expected: Option<(Glsn, u64)>,
    /// An entry that spans blocks.
    whole: Buffer,
    ahead: ReadAhead,
    /// The error of a look-up.
    failure: Option<Box<LogError>>,
}

/// The scan's current block.
enum CurrentBlock {
    None,
    Complete(Page),
    /// A copy of the block that is being filled.
    Open(Chunk),
}

/// No block and no record.
const NOWHERE: u64 = u64::MAX;

/// No record.
const NOTHING: EntryMeta = EntryMeta {
    glsn: Glsn::NONE,
    stream: StreamId(0),
    timestamp_micros: 0,
    record_first: Glsn::NONE,
    record_count: 0,
    read_at: Glsn::NONE,
    blobs: 0,
};

impl<'a> FileScan<'a> {
    pub(crate) fn new(
        log: &'a OpenLog,
        range: Range<Glsn>,
        stream: Option<StreamId>,
    ) -> Result<Self, LogError> {
        let first = log.segments.first();
        if range.start < first && range.start < range.end {
            return Err(LogError::Trimmed { asked: range.start, first });
        }
        let long = range.end.0.saturating_sub(range.start.0) > LONG_SCAN;
        Ok(Self {
            log,
            stream,
            is_of_ordered: false,
            next: range.start,
            end: range.end,
            touch: if long { Touch::Scan } else { Touch::Point },
            segment: None,
            segment_first: Glsn::NONE,
            indexes: [0; BATCH],
            offsets: [0; BATCH],
            batch: 0..0,
            postings: None,
            block: CurrentBlock::None,
            block_number: NOWHERE,
            filled: 0,
            near: usize::MAX,
            next_block: None,
            last_byte: u64::MAX,
            record_at: u32::MAX,
            record: NOTHING,
            body_bytes: 0,
            head: 0,
            fragment_block: NOWHERE,
            fragment_end: 0,
            expected: None,
            whole: Buffer::default(),
            ahead: ReadAhead::default(),
            failure: None,
        })
    }

    /// A scan of entries that are ordered, readable or not.
    pub(crate) fn of_ordered(
        log: &'a OpenLog,
        range: Range<Glsn>,
        stream: Option<StreamId>,
    ) -> Result<Self, LogError> {
        Ok(Self { is_of_ordered: true, ..Self::new(log, range, stream)? })
    }

    /// The next entry, lent until the next call; `None` at the end.
    #[inline]
    pub fn next_entry(&mut self) -> Option<Result<EntryView<'_>, LogError>> {
        if self.batch.is_empty() && !matches!(self.look_up(), Ok(true)) {
            return self.end();
        }
        let at = self.batch.start;
        self.batch.start += 1;
        let offset = self.offsets[at];
        let glsn = Glsn(self.segment_first.0 + u64::from(self.indexes[at]));
        let within = offset as usize % BLOCK_BYTES;
        if (self.block_number != block_of(u64::from(offset)) || within >= self.filled)
            && let Err(error) = self.load_block(glsn, block_of(u64::from(offset)))
        {
            return self.fail(error);
        }
        if within + AHEAD_LEFT_BYTES > self.near {
            self.prefetch_near(within);
        }
        let Some(header) = self.block_bytes().get(within..).and_then(EntryHeader::decode) else {
            return self.fail_at(glsn, offset);
        };
        let record_at = offset.wrapping_sub(header.back);
        if (record_at != self.record_at || self.fragment_block != self.block_number)
            && let Err(error) = self.turn_to_record(glsn, offset, &header, record_at)
        {
            return self.fail(error);
        }
        if header.index >= self.record.record_count
            || self.record.record_first.0 + u64::from(header.index) != glsn.0
        {
            return self.fail_at(glsn, offset);
        }
        let meta = EntryMeta { glsn, stream: header.stream, ..self.record };
        if header.stream == StreamId::DROPPED {
            return Some(Ok(EntryView { meta, payload: &[] }));
        }
        let start = within + ENTRY_HEADER_BYTES;
        let end = start + header.payload_bytes as usize;
        if end <= self.fragment_end {
            return Some(Ok(EntryView { meta, payload: &self.block_bytes()[start..end] }));
        }
        if let Err(error) = self.put_together(glsn, offset, &header) {
            return self.fail(error);
        }
        Some(Ok(EntryView { meta, payload: &self.whole }))
    }

    #[cold]
    fn end(&mut self) -> Option<Result<EntryView<'_>, LogError>> {
        let error = self.failure.take();
        self.end = Glsn::NONE;
        error.map(|error| Err(*error))
    }

    #[cold]
    fn fail(&mut self, error: LogError) -> Option<Result<EntryView<'_>, LogError>> {
        self.batch = 0..0;
        self.end = Glsn::NONE;
        Some(Err(error))
    }

    #[cold]
    fn fail_at(&mut self, glsn: Glsn, offset: u32) -> Option<Result<EntryView<'_>, LogError>> {
        let error = match &self.segment {
            Some(segment) => self.log.not_there(segment, glsn, offset),
            None => LogError::NotYet { asked: glsn, next: self.log.tail.next() },
        };
        self.fail(error)
    }

    #[inline]
    fn block_bytes(&self) -> &[u8] {
        match &self.block {
            CurrentBlock::None => &[],
            CurrentBlock::Complete(page) => page,
            CurrentBlock::Open(copy) => &copy[..self.filled],
        }
    }

    /// Reads the header of the record at `record_at`, and determines how far the record reaches in
    /// this block.
    #[inline]
    fn turn_to_record(
        &mut self,
        glsn: Glsn,
        offset: u32,
        header: &EntryHeader,
        record_at: u32,
    ) -> Result<(), LogError> {
        let block = self.block_number;
        if record_at != self.record_at {
            let fragment_at = record_at.wrapping_sub(FRAGMENT_HEADER_BYTES as u32);
            let same_block = block_of(u64::from(fragment_at)) == block;
            let bytes =
                self.block_bytes().get(fragment_at as usize % BLOCK_BYTES..).filter(|_| same_block);
            let record = match bytes.map(|bytes| RecordStart::decode(bytes, fragment_at)) {
                Some(Ok(record)) => record,
                _ => {
                    let Some(segment) = &self.segment else { return Ok(()) };
                    self.log.record_of(segment, glsn, offset, header, None)?
                }
            };
            self.take_record(glsn, header, record_at, &record)?;
        }
        if self.fragment_block != block {
            self.continue_in_block(glsn, offset)?;
        }
        Ok(())
    }

    #[inline]
    fn take_record(
        &mut self,
        glsn: Glsn,
        header: &EntryHeader,
        record_at: u32,
        record: &RecordStart,
    ) -> Result<(), LogError> {
        let fragment_block = block_of(u64::from(record.fragment_at));
        let record_header = &record.header;
        if let Some((next, chain)) = self.expected.take()
            && next == record_header.first
            && chain != record_header.previous_chain
            && let Some(segment) = &self.segment
        {
            let what = "the chain hash does not match: an earlier record differs from the one \
                        that was written"
                .to_owned();
            return Err(self.log.corrupt(segment, glsn, u64::from(record_at), what));
        }
        self.record_at = record_at;
        self.record = EntryMeta {
            glsn,
            stream: header.stream,
            timestamp_micros: record_header.timestamp_micros,
            record_first: record_header.first,
            record_count: record_header.count,
            read_at: record_header.read_at,
            blobs: record_header.blobs,
        };
        self.body_bytes = record_header.body_bytes;
        self.head = record.fragment.checksum;
        self.fragment_block = fragment_block;
        self.fragment_end = record.fragment_end();
        Ok(())
    }

    /// Continues the current record, which began in an earlier block, in the current block.
    #[cold]
    fn continue_in_block(&mut self, glsn: Glsn, offset: u32) -> Result<(), LogError> {
        let Some((fragment, continues)) = continued(self.block_bytes(), self.head) else {
            let Some(segment) = &self.segment else { return Ok(()) };
            return Err(self.log.broken_record(segment, glsn, u64::from(offset)));
        };
        self.fragment_block = self.block_number;
        self.fragment_end = fragment.bytes;
        self.expected = Some((self.next_record(), continues.chain));
        Ok(())
    }

    /// The GLSN after the last record.
    fn next_record(&self) -> Glsn {
        Glsn(self.record.record_first.0 + u64::from(self.record.record_count))
    }

    /// Keeps the chain hash after the last record, if that record lies in the block that the scan
    /// leaves.
    fn leave_block(&mut self) {
        let fragment_at = self.record_at.wrapping_sub(FRAGMENT_HEADER_BYTES as u32);
        if self.record_at == u32::MAX || block_of(u64::from(fragment_at)) != self.block_number {
            return;
        }
        let Some(segment) = &self.segment else { return };
        let bytes =
            self.block_bytes().get(fragment_at as usize % BLOCK_BYTES..).unwrap_or_default();
        let record = RecordStart::decode(bytes, fragment_at).ok();
        let chain = record
            .and_then(|it| it.chain(bytes, segment_seed(segment.header.log_id, segment.first())));
        self.expected = chain.map(|chain| (self.next_record(), chain));
    }

    fn load_block(&mut self, glsn: Glsn, number: u64) -> Result<(), LogError> {
        self.leave_block();
        let Some(segment) = self.segment.as_deref() else { return Ok(()) };
        if segment.sealed().is_none() && self.copy_open_block(number)? {
            return Ok(());
        }
        let next_block =
            self.next_block.take().filter(|_| number == self.block_number.wrapping_add(1));
        self.block_number = NOWHERE;
        self.block = CurrentBlock::None;
        let Some(segment) = self.segment.clone() else { return Ok(()) };
        let resident = next_block.or_else(|| segment.pages.find(number as u32, self.touch));
        self.read_ahead(&segment, number, resident.is_none());
        let page = match resident {
            Some(page) => page,
            None => self.log.page(&segment, number, glsn, self.touch)?,
        };
        self.block = CurrentBlock::Complete(page);
        self.block_number = number;
        self.filled = BLOCK_BYTES;
        self.near = 0;
        Ok(())
    }

    /// Requests blocks of a segment that is read directly before the scan reaches them.
    fn read_ahead(&mut self, segment: &Arc<Segment>, number: u64, missing: bool) {
        if !missing && !self.ahead.has_begun() {
            return;
        }
        if !self.ahead.has_begun() {
            let Some(last) = self.last_block(segment) else { return };
            self.ahead.begin(last);
        }
        let most = u64::from(self.log.env.options.pool.read_ahead_max());
        if let Some(blocks) = self.ahead.advance_to(number, missing, most) {
            segment.pages.read_ahead(blocks.start as u32, (blocks.end - blocks.start) as u32);
        }
    }

    /// The block of the last entry that the scan reads in a segment; `None` if the scan skips
    /// blocks, or reads through the page cache.
    fn last_block(&self, segment: &Arc<Segment>) -> Option<u64> {
        let direct = self.log.env.options.caching == Caching::Direct;
        let sealed = segment.sealed().filter(|_| direct && self.stream.is_none())?;
        let last = match self.last_byte {
            u64::MAX => {
                let index = self.end.min(sealed.next).0 - self.segment_first.0 - 1;
                self.log.segments.with_table(segment, |table| table.offset(index as u32)).ok()?
            }
            _ => self.offsets[self.batch.end - 1],
        };
        Some(block_of(u64::from(last)))
    }

    /// Prefetches the bytes that the scan reads next, also at the front of the next block.
    fn prefetch_near(&mut self, within: usize) {
        let CurrentBlock::Complete(page) = &self.block else { return };
        let block_start = self.block_number * BLOCK_BYTES as u64;
        let last = self.last_byte.saturating_sub(block_start).min(BLOCK_BYTES as u64) as usize;
        let wanted = within + AHEAD_BYTES;
        let start = self.near.max(within.saturating_sub(BEFORE_ENTRY_BYTES));
        prefetch(page.get(start..wanted.min(last)).unwrap_or_default());
        self.near = if wanted < last { wanted } else { usize::MAX };
        if wanted >= BLOCK_BYTES
            && last == BLOCK_BYTES
            && let Some(segment) = &self.segment
        {
            self.next_block = segment.pages.find(self.block_number as u32 + 1, self.touch);
            if let Some(page) = &self.next_block {
                prefetch(&page[..AHEAD_BYTES]);
            }
        }
    }

    fn copy_open_block(&mut self, wanted: u64) -> Result<bool, LogError> {
        if !self.log.tail.read().is_open_block(self.segment_first, wanted) {
            return Ok(false);
        }
        self.block_number = NOWHERE;
        let mut chunk = match std::mem::replace(&mut self.block, CurrentBlock::None) {
            CurrentBlock::Open(copy) => copy,
            _ => self.log.env.options.budget.take(Kind::Staging)?,
        };
        let tail = self.log.tail.read();
        let first = self.segment_first;
        if !tail.is_open_block(first, wanted)
            || !tail.copy_block(first, wanted as u32, &mut chunk[..BLOCK_BYTES])
        {
            return Ok(false);
        }
        self.filled = tail.end.offset as usize % BLOCK_BYTES;
        self.near = usize::MAX;
        self.block_number = wanted;
        self.block = CurrentBlock::Open(chunk);
        Ok(true)
    }

    /// Assembles an entry that spans blocks in the scan's own buffer.
    #[cold]
    fn put_together(
        &mut self,
        glsn: Glsn,
        offset: u32,
        header: &EntryHeader,
    ) -> Result<(), LogError> {
        let Some(segment) = self.segment.as_deref() else { return Ok(()) };
        self.log.check_extent(segment, glsn, offset, header, self.body_bytes)?;
        let len = header.payload_bytes as usize;
        if len > self.whole.capacity() {
            let capacity = len.next_power_of_two();
            self.whole = Buffer::default();
            self.whole =
                Buffer::with_capacity(&self.log.env.options.budget, Kind::Staging, capacity)?;
        }
        self.whole.resize(len);
        let mut done = 0;
        for piece in payload_pieces(offset, 0..len as u64) {
            let n = (piece.end - piece.start) as usize;
            let into = &mut self.whole[done..done + n];
            done += n;
            let number = block_of(piece.start);
            if number == self.block_number {
                // The entry continues past its fragment, so that fragment must continue in the next
                // block; otherwise a different fragment is there.
                let within = (piece.start % BLOCK_BYTES as u64) as usize;
                let bytes = match &self.block {
                    CurrentBlock::Complete(page) => {
                        page.get(within..within + n).filter(|_| within + n <= self.fragment_end)
                    }
                    _ => None,
                };
                let bytes =
                    bytes.ok_or_else(|| self.log.broken_record(segment, glsn, piece.start))?;
                into.copy_from_slice(bytes);
            } else {
                let continues =
                    self.log.follow(segment, glsn, self.head, piece.start, into, done < len)?;
                self.expected = Some((self.next_record(), continues.chain));
            }
        }
        Ok(())
    }

    /// Looks up the next offsets. Returns `false` at the end. On `Err`, the error is in `failure`.
    #[inline]
    fn look_up(&mut self) -> Result<bool, ()> {
        self.try_look_up().map_err(|error| self.failure = Some(Box::new(error)))
    }

    fn try_look_up(&mut self) -> Result<bool, LogError> {
        loop {
            let newest =
                if self.is_of_ordered { self.log.tail.last() } else { self.log.readable() };
            let limit = self.end.min(newest.next());
            if self.next >= limit {
                return Ok(false);
            }
            let found = match self.look_up_in_tail(limit) {
                Some(found) => found,
                None => self.look_up_sealed(limit)?,
            };
            if found > 0 {
                self.batch = 0..found;
                let last = u64::from(self.offsets[found - 1]) + BEHIND_OFFSET_BYTES;
                self.last_byte = if self.next < limit { u64::MAX } else { last };
                return Ok(true);
            }
        }
    }

    /// Searches the active segment; `None` if the next entry is in a sealed one.
    fn look_up_in_tail(&mut self, limit: Glsn) -> Option<usize> {
        let log = self.log;
        let tail = log.tail.read();
        if self.next < tail.first {
            return None;
        }
        if self.segment.as_ref().is_none_or(|segment| segment.first() != tail.first) {
            let segment = Arc::clone(&tail.segment);
            self.enter(segment);
        }
        let from = (self.next.0 - tail.first.0) as u32;
        let below = (limit.0 - tail.first.0)
            .min(u64::from(tail.entry_offsets.len()))
            .min(u64::from(from) + SEARCHED_AT_ONCE) as u32;
        let mut found = 0;
        let mut index = from;
        while found < BATCH && index < below {
            if let Some(stream) = self.stream {
                match tail.entry_offsets.find(stream, index, below) {
                    Some(at) => index = at,
                    None => {
                        index = below;
                        break;
                    }
                }
            }
            let Some(offset) = tail.entry_offsets.offset(index) else { break };
            self.indexes[found] = index;
            self.offsets[found] = offset;
            found += 1;
            index += 1;
        }
        self.next = Glsn(tail.first.0 + u64::from(index));
        Some(found)
    }

    fn look_up_sealed(&mut self, limit: Glsn) -> Result<usize, LogError> {
        let log = self.log;
        let first = log.segments.first();
        let trimmed = LogError::Trimmed { asked: self.next, first };
        let known = self.segment.clone().filter(|segment| {
            segment.first() <= self.next
                && segment.sealed().is_some_and(|sealed| self.next < sealed.next)
        });
        let segment = match known {
            Some(segment) => segment,
            None => {
                let segment = log.segments.find(self.next).ok_or(trimmed)?;
                self.enter(Arc::clone(&segment));
                segment
            }
        };
        let Some(sealed) = segment.sealed() else { return Ok(0) };
        let from = (self.next.0 - segment.first().0) as u32;
        let below = (limit.min(sealed.next).0 - segment.first().0) as u32;
        match self.stream {
            None => {
                let wanted = BATCH.min((below - from) as usize);
                let offsets = &mut self.offsets[..wanted];
                let found =
                    log.segments.with_table(&segment, |table| table.offsets(from, offsets))?;
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
        let log = self.log;
        let (indexes, postings) = (&mut self.indexes, &mut self.postings);
        let mut found = log
            .segments
            .with_table(segment, |table| table.of_stream(stream, from, postings, indexes))?;
        let beyond = found == 0 || indexes[found - 1] >= below;
        found = indexes[..found].partition_point(|index| *index < below);
        for i in 0..found {
            let index = self.indexes[i];
            self.offsets[i] = log.segments.with_table(segment, |table| table.offset(index))?;
        }
        // The table ends early only if its postings are not in order, as in a forged table.
        let next = if beyond || found == 0 { below } else { self.indexes[found - 1] + 1 };
        self.next = Glsn(segment.first().0 + u64::from(next));
        if beyond {
            // These postings skipped entries that may become readable later.
            self.postings = None;
        }
        Ok(found)
    }

    fn enter(&mut self, segment: Arc<Segment>) {
        self.leave_block();
        self.segment_first = segment.first();
        self.segment = Some(segment);
        self.postings = None;
        self.block = CurrentBlock::None;
        self.next_block = None;
        self.ahead = ReadAhead::default();
        self.block_number = NOWHERE;
        self.fragment_block = NOWHERE;
        self.record_at = u32::MAX;
    }
}
