//! Reads entries by GLSN: one look-up in a table and one decode.
//!
//! Invariant: a record that spans blocks is read only through [`OpenLog::follow`], which checks
//! that the next block continues the same record. A block with a valid checksum may still be an
//! older version than the one written there last.

use std::sync::Arc;

use plimsoll_memory::budget::Kind;
use plimsoll_memory::buffer::Buffer;
use plimsoll_memory::pool::{Page, Touch};

use crate::blob::BlobRef;
use crate::entry::{Entry, EntryMeta};
use crate::error::LogError;
use crate::file_log::files::names::FileName;
use crate::file_log::open_log::OpenLog;
use crate::file_log::segments::segment::Segment;
use crate::format::BLOCK_BYTES;
use crate::format::fragment::{
    Continues, FRAGMENT_HEADER_BYTES, FragmentHeader, FragmentType, content_of_whole,
};
use crate::format::layout::{block_end, block_of, payload_pieces};
use crate::format::record::{
    BLOB_REF_BYTES, ENTRY_HEADER_BYTES, EntryHeader, RECORD_HEADER_BYTES, RecordHeader, decode_blob,
};
use crate::glsn::{Glsn, StreamId};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The place of an entry.
#[derive(Clone, Debug)]
pub(crate) struct EntryPlace {
    pub(crate) segment: Arc<Segment>,
    pub(crate) offset: u32,
    /// Whether the entry begins in the block that is still being filled.
    pub(crate) open: bool,
}

/// A record, as read from the beginning of its first fragment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordStart {
    /// The record's own header.
    pub(crate) header: RecordHeader,
    /// The header of its first fragment.
    pub(crate) fragment: FragmentHeader,
    /// Offset of that fragment in the segment.
    pub(crate) fragment_at: u32,
}

impl RecordStart {
    /// Reads a record at the front of its first fragment, which begins at `fragment_at`.
    pub(crate) fn decode(bytes: &[u8], fragment_at: u32) -> Result<Self, &'static str> {
        let fragment = FragmentHeader::decode(bytes)
            .filter(|fragment| matches!(fragment.part, FragmentType::Whole | FragmentType::First))
            .ok_or("no record begins at the offset that the entry names")?;
        let header =
            bytes.get(FRAGMENT_HEADER_BYTES..fragment.bytes.min(bytes.len())).unwrap_or_default();
        let header = RecordHeader::decode(header).map_err(|refusal| refusal.what)?;
        Ok(Self { header, fragment, fragment_at })
    }

    /// The chain hash after the record, if the record is in one fragment, which begins at the front
    /// of `bytes`.
    pub(crate) fn chain(&self, bytes: &[u8], segment_seed: u64) -> Option<u64> {
        if self.fragment.continues_after() {
            return None;
        }
        let content = content_of_whole(bytes, segment_seed, self.fragment_at)?;
        Some(self.header.chain_after(content))
    }

    /// The end of its first fragment in its block.
    pub(crate) fn fragment_end(&self) -> usize {
        self.fragment_at as usize % BLOCK_BYTES + self.fragment.bytes
    }
}

impl OpenLog {
    /// Finds entry `glsn`.
    pub(crate) fn locate(&self, glsn: Glsn) -> Result<EntryPlace, LogError> {
        let first = self.segments.first();
        if glsn < first {
            return Err(LogError::Trimmed { asked: glsn, first });
        }
        if let Some(place) = self.locate_in_tail(glsn)? {
            return Ok(place);
        }
        let segment = self.segments.find(glsn).ok_or(LogError::Trimmed { asked: glsn, first })?;
        if segment.first() > glsn {
            return Err(LogError::Trimmed { asked: glsn, first: self.segments.first() });
        }
        let index = (glsn.0 - segment.first().0) as u32;
        let offset = self.segments.with_table(&segment, |table| table.offset(index))?;
        Ok(EntryPlace { segment, offset, open: false })
    }

    fn locate_in_tail(&self, glsn: Glsn) -> Result<Option<EntryPlace>, LogError> {
        let tail = self.tail.read();
        if glsn < tail.first {
            return Ok(None);
        }
        if glsn >= tail.end.next {
            return Err(LogError::NotYet { asked: glsn, next: tail.end.next });
        }
        let offset = tail.entry_offsets.offset((glsn.0 - tail.first.0) as u32);
        let offset = offset.ok_or(LogError::NotYet { asked: glsn, next: tail.end.next })?;
        let open = tail.is_open_block(tail.first, block_of(u64::from(offset)));
        Ok(Some(EntryPlace { segment: Arc::clone(&tail.segment), offset, open }))
    }

    /// Reads one entry.
    pub(crate) fn read_entry(&self, glsn: Glsn) -> Result<Entry, LogError> {
        let place = self.locate(glsn)?;
        if place.open
            && let Some(entry) = self.read_open(glsn, &place)?
        {
            return Ok(entry);
        }
        let segment = &*place.segment;
        let page = self.page(segment, block_of(u64::from(place.offset)), glsn, Touch::Point)?;
        let at = place.offset as usize % BLOCK_BYTES;
        let header =
            entry_header(&page[at..]).ok_or_else(|| self.not_there(segment, glsn, place.offset))?;
        let record = self.record_of(segment, glsn, place.offset, &header, Some(&page))?;
        let meta = self.meta_of(segment, glsn, place.offset, &header, &record.header)?;
        check_is_there(&meta)?;
        let payload =
            at + ENTRY_HEADER_BYTES..at + ENTRY_HEADER_BYTES + header.payload_bytes as usize;
        if payload.end <= self.fragment_end(segment, glsn, place.offset, &record, &page)? {
            return Ok(Entry::pinned(meta, page, payload));
        }
        drop(page);
        self.check_extent(segment, glsn, place.offset, &header, record.header.body_bytes)?;
        let len = header.payload_bytes as usize;
        let mut bytes = Buffer::with_capacity(&self.env.options.budget, Kind::Staging, len)?;
        bytes.resize(len);
        self.copy_payload(segment, glsn, place.offset, &record, 0, &mut bytes)?;
        self.check_chain(segment, glsn, &record)?;
        Ok(Entry::copied(meta, bytes))
    }

    /// Compares a record that spans blocks with the chain hash after it. Without this check, an
    /// older record that began at the same place and was cut could be returned.
    fn check_chain(
        &self,
        segment: &Segment,
        glsn: Glsn,
        record: &RecordStart,
    ) -> Result<(), LogError> {
        let next = block_end(u64::from(record.fragment_at));
        let part = self.follow(segment, glsn, record.fragment.checksum, next, &mut [], false)?;
        match self.chain_after(record.header.last()) {
            Ok(Some(behind)) if behind != part.chain => {
                Err(self.broken_record(segment, glsn, next))
            }
            // The next record is damaged. If the segment was never cut, no other record was ever
            // started here.
            Err(LogError::Corrupt { .. }) if segment.was_never_cut() => Ok(()),
            behind => behind.map(|_| ()),
        }
    }

    /// Reads an entry in the block that is being filled; `None` if the block was completed
    /// meanwhile.
    fn read_open(&self, glsn: Glsn, place: &EntryPlace) -> Result<Option<Entry>, LogError> {
        let segment = &*place.segment;
        let (header, bytes) = {
            let tail = self.tail.read();
            if !tail.is_open_block(segment.first(), block_of(u64::from(place.offset))) {
                return Ok(None);
            }
            let Some(found) = tail.buffer.bytes_at(u64::from(place.offset)) else {
                return Ok(None);
            };
            let header =
                entry_header(found).ok_or_else(|| self.not_there(segment, glsn, place.offset))?;
            let end = ENTRY_HEADER_BYTES + header.payload_bytes as usize;
            let payload = found
                .get(ENTRY_HEADER_BYTES..end)
                .ok_or_else(|| self.not_there(segment, glsn, place.offset))?;
            let mut bytes =
                Buffer::with_capacity(&self.env.options.budget, Kind::Staging, payload.len())?;
            bytes.extend_from_slice(payload);
            (header, bytes)
        };
        let record = self.record_of(segment, glsn, place.offset, &header, None)?;
        let meta = self.meta_of(segment, glsn, place.offset, &header, &record.header)?;
        check_is_there(&meta)?;
        Ok(Some(Entry::copied(meta, bytes)))
    }

    /// The metadata of an entry.
    pub(crate) fn read_meta(&self, glsn: Glsn) -> Result<EntryMeta, LogError> {
        let place = self.locate(glsn)?;
        let (header, record) = self.headers(glsn, &place)?;
        self.meta_of(&place.segment, glsn, place.offset, &header, &record.header)
    }

    /// Fills `into` with a part of an entry's payload. Returns whether any block of that part was
    /// not in memory.
    pub(crate) fn read_part(
        &self,
        glsn: Glsn,
        offset: u64,
        into: &mut [u8],
    ) -> Result<bool, LogError> {
        let place = self.locate(glsn)?;
        // Check before the headers are read, because reading them may load the same block.
        let is_missing = |block| !self.is_buffered(&place.segment, block);
        let from = offset.min(u64::from(u32::MAX));
        let mut pieces = payload_pieces(place.offset, from..from + into.len() as u64);
        let missed = pieces.any(|piece| is_missing(block_of(piece.start)));
        let (header, record) = self.headers(glsn, &place)?;
        check_is_there(&self.meta_of(
            &place.segment,
            glsn,
            place.offset,
            &header,
            &record.header,
        )?)?;
        self.check_extent(&place.segment, glsn, place.offset, &header, record.header.body_bytes)?;
        let end = offset.checked_add(into.len() as u64);
        if end.is_none_or(|end| end > u64::from(header.payload_bytes)) {
            let what = format!(
                "{} bytes at {offset} were requested, but the entry's payload has {}",
                into.len(),
                header.payload_bytes
            );
            return Err(self.corrupt(&place.segment, glsn, u64::from(place.offset), what));
        }
        self.copy_payload(&place.segment, glsn, place.offset, &record, offset, into)?;
        Ok(missed)
    }

    /// Whether a block can be read without loading it.
    fn is_buffered(&self, segment: &Segment, block: u64) -> bool {
        segment.pages.is_resident(block as u32)
            || self.tail.read().is_open_block(segment.first(), block)
    }

    /// Blob files of an entry's record.
    pub(crate) fn read_blobs(&self, glsn: Glsn) -> Result<Vec<BlobRef>, LogError> {
        let place = self.locate(glsn)?;
        let (header, record) = self.headers(glsn, &place)?;
        self.meta_of(&place.segment, glsn, place.offset, &header, &record.header)?;
        let mut blobs = Vec::with_capacity(usize::from(record.header.blobs));
        let start = u64::from(place.offset - header.back) + RECORD_HEADER_BYTES as u64;
        for index in 0..u64::from(record.header.blobs) {
            let mut bytes = [0; BLOB_REF_BYTES];
            self.copy(&place.segment, glsn, start + index * BLOB_REF_BYTES as u64, &mut bytes)?;
            blobs.extend(decode_blob(&bytes));
        }
        Ok(blobs)
    }

    /// Chain hash of the record that ends with `glsn`.
    pub(crate) fn chain_after(&self, glsn: Glsn) -> Result<Option<u64>, LogError> {
        let behind = glsn.next();
        let first = self.segments.first();
        if behind < first {
            return Ok(None);
        }
        if let Some(segment) =
            self.segments.find(behind).filter(|segment| segment.first() == behind)
        {
            return Ok(Some(segment.header.previous_chain));
        }
        {
            let end = self.tail.read().end;
            if behind >= end.next {
                return Ok((behind == end.next).then_some(end.chain));
            }
        }
        let place = self.locate(behind)?;
        let (header, record) = self.headers(behind, &place)?;
        self.meta_of(&place.segment, behind, place.offset, &header, &record.header)?;
        Ok((record.header.first == behind).then_some(record.header.previous_chain))
    }

    /// The last GLSN in log order whose record is not younger than `micros`.
    pub(crate) fn last_not_younger(&self, micros: u64) -> Result<Glsn, LogError> {
        let readable = self.readable();
        let first = self.segments.first();
        let (mut low, mut high) = {
            let all = self.segments.read();
            // Search from the end, because after the log's time was restarted, older segments may
            // have later times, but still count as older.
            let Some(at) = all.iter().rposition(|segment| segment.header.timestamp_floor <= micros)
            else {
                drop(all);
                return Err(self.time_trimmed());
            };
            (all[at].first().0 - 1, all.get(at + 1).map_or(readable.0, |next| next.first().0 - 1))
        };
        // `low` is limited as well, because a segment may begin before the previous one is durable.
        high = high.min(readable.0);
        low = low.min(high);
        // Timestamps up to `low` are at most `micros`; those after `high` are greater.
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            let meta = self.read_meta(Glsn(middle))?;
            if meta.timestamp_micros <= micros { low = middle } else { high = middle - 1 }
        }
        // If `low` is the last trimmed entry, its time is known from the header of the first
        // segment.
        if low > 0 && Glsn(low).next() < first {
            return Err(self.time_trimmed());
        }
        Ok(Glsn(low))
    }

    /// The time of the last trimmed record, or a later one: another process may have trimmed the
    /// log up to a segment that this process does not know yet.
    pub(crate) fn trimmed_micros(&self) -> u64 {
        let (all, trimmed) = (self.segments.read(), self.segments.first());
        match all.first() {
            Some(segment) if segment.first() < trimmed => self.tail.timestamp(),
            first => first.map_or(0, |segment| segment.header.timestamp_floor),
        }
    }

    /// The time of the last record of an entry's segment.
    pub(crate) fn end_of_segment_micros(&self, glsn: Glsn) -> u64 {
        let all = self.segments.read();
        let next = all.iter().find(|segment| segment.first() > glsn);
        next.map_or_else(|| self.tail.timestamp(), |segment| segment.header.timestamp_floor)
    }

    /// The error for a time before the last trimmed record, whose time is in the header of the
    /// first segment.
    fn time_trimmed(&self) -> LogError {
        let all = self.segments.read();
        let (since_micros, first) = all.first().map_or((0, Glsn::FIRST), |segment| {
            (segment.header.timestamp_floor, Glsn(segment.first().0.saturating_sub(1)))
        });
        LogError::TimeTrimmed { since_micros, first }
    }

    /// The page of a block that is complete.
    pub(crate) fn page(
        &self,
        segment: &Segment,
        block: u64,
        glsn: Glsn,
        touch: Touch,
    ) -> Result<Page, LogError> {
        segment.pages.get(block as u32, touch).map_err(|error| {
            self.segments.load_error(error, FileName::Segment(segment.first()), glsn, block * BLOCK)
        })
    }

    /// Calls `then` with the filled bytes of a block, from the buffer or the pool.
    fn with_block<T>(
        &self,
        segment: &Segment,
        glsn: Glsn,
        block: u64,
        then: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, LogError> {
        {
            let tail = self.tail.read();
            if tail.is_open_block(segment.first(), block)
                && let Some(bytes) = tail.buffer.bytes_at(block * BLOCK)
            {
                return Ok(then(&bytes[..tail.end.offset as usize % BLOCK_BYTES]));
            }
        }
        Ok(then(&self.page(segment, block, glsn, Touch::Point)?))
    }

    /// Copies bytes within the block in which their record's fragment begins.
    pub(crate) fn copy(
        &self,
        segment: &Segment,
        glsn: Glsn,
        at: u64,
        into: &mut [u8],
    ) -> Result<(), LogError> {
        let within = (at % BLOCK) as usize;
        let copied = self.with_block(segment, glsn, block_of(at), |block| {
            block.get(within..within + into.len()).map(|bytes| into.copy_from_slice(bytes))
        })?;
        copied.ok_or_else(|| self.not_there(segment, glsn, at as u32))
    }

    /// Copies bytes at `at` of a record that began in an earlier block and whose first fragment has
    /// the checksum `head`. If `more` of the record is wanted, it must continue in the next block.
    pub(crate) fn follow(
        &self,
        segment: &Segment,
        glsn: Glsn,
        head: u64,
        at: u64,
        into: &mut [u8],
        more: bool,
    ) -> Result<Continues, LogError> {
        let within = (at % BLOCK) as usize;
        let range = within..within + into.len();
        let followed = self.with_block(segment, glsn, block_of(at), |block| {
            let (fragment, continues) = continued(block, head)?;
            let fits = range.end <= fragment.bytes && (fragment.continues_after() || !more);
            into.copy_from_slice(block.get(range).filter(|_| fits)?);
            Some(continues)
        })?;
        followed.ok_or_else(|| self.broken_record(segment, glsn, at))
    }

    fn copy_payload(
        &self,
        segment: &Segment,
        glsn: Glsn,
        entry_offset: u32,
        record: &RecordStart,
        from: u64,
        into: &mut [u8],
    ) -> Result<(), LogError> {
        let end = from + into.len() as u64;
        let mut done = 0;
        for piece in payload_pieces(entry_offset, from..end) {
            let len = (piece.end - piece.start) as usize;
            let piece_into = &mut into[done..done + len];
            done += len;
            if block_of(piece.start) == block_of(u64::from(record.fragment_at)) {
                self.check_first_piece(segment, glsn, record, &piece, from + (done as u64) < end)?;
                self.copy(segment, glsn, piece.start, piece_into)?;
            } else {
                let more = from + (done as u64) < end;
                self.follow(
                    segment,
                    glsn,
                    record.fragment.checksum,
                    piece.start,
                    piece_into,
                    more,
                )?;
            }
        }
        Ok(())
    }

    /// Checks that a piece of a payload lies in its record's first fragment.
    pub(crate) fn check_first_piece(
        &self,
        segment: &Segment,
        glsn: Glsn,
        record: &RecordStart,
        piece: &std::ops::Range<u64>,
        more: bool,
    ) -> Result<(), LogError> {
        let end = (piece.end - 1) as usize % BLOCK_BYTES + 1;
        if end <= record.fragment_end() && (record.fragment.continues_after() || !more) {
            return Ok(());
        }
        Err(self.broken_record(segment, glsn, piece.start))
    }

    fn headers(
        &self,
        glsn: Glsn,
        place: &EntryPlace,
    ) -> Result<(EntryHeader, RecordStart), LogError> {
        let mut bytes = [0; ENTRY_HEADER_BYTES];
        self.copy(&place.segment, glsn, u64::from(place.offset), &mut bytes)?;
        let header = entry_header(&bytes)
            .ok_or_else(|| self.not_there(&place.segment, glsn, place.offset))?;
        let record = self.record_of(&place.segment, glsn, place.offset, &header, None)?;
        if block_of(u64::from(place.offset)) != block_of(u64::from(record.fragment_at)) {
            let at = u64::from(place.offset);
            self.follow(&place.segment, glsn, record.fragment.checksum, at, &mut bytes, false)?;
        }
        Ok((header, record))
    }

    /// The record of an entry; `page` is the page of the entry, if the caller has it.
    pub(crate) fn record_of(
        &self,
        segment: &Segment,
        glsn: Glsn,
        offset: u32,
        header: &EntryHeader,
        page: Option<&Page>,
    ) -> Result<RecordStart, LogError> {
        let at = offset
            .checked_sub(header.back)
            .and_then(|at| at.checked_sub(FRAGMENT_HEADER_BYTES as u32));
        let Some(at) = at else { return Err(self.not_there(segment, glsn, offset)) };
        let within = at as usize % BLOCK_BYTES;
        let same_block = block_of(u64::from(at)) == block_of(u64::from(offset));
        let decoded = match page.filter(|_| same_block) {
            Some(page) => RecordStart::decode(&page[within..], at),
            None => {
                let mut bytes = [0; FRAGMENT_HEADER_BYTES + RECORD_HEADER_BYTES];
                self.copy(segment, glsn, u64::from(at), &mut bytes)?;
                RecordStart::decode(&bytes, at)
            }
        };
        decoded.map_err(|what| self.corrupt(segment, glsn, u64::from(at), what.to_owned()))
    }

    /// The end of the fragment that holds the entry at `offset`, within that entry's block. `block`
    /// holds the bytes of that block.
    pub(crate) fn fragment_end(
        &self,
        segment: &Segment,
        glsn: Glsn,
        offset: u32,
        record: &RecordStart,
        block: &[u8],
    ) -> Result<usize, LogError> {
        if block_of(u64::from(offset)) == block_of(u64::from(record.fragment_at)) {
            return Ok(record.fragment_end());
        }
        match continued(block, record.fragment.checksum) {
            Some((fragment, _)) => Ok(fragment.bytes),
            None => Err(self.broken_record(segment, glsn, u64::from(offset))),
        }
    }

    /// The metadata of an entry, if the headers agree with its GLSN.
    #[inline]
    pub(crate) fn meta_of(
        &self,
        segment: &Segment,
        glsn: Glsn,
        offset: u32,
        header: &EntryHeader,
        record: &RecordHeader,
    ) -> Result<EntryMeta, LogError> {
        if header.index >= record.count || record.first.0 + u64::from(header.index) != glsn.0 {
            return Err(self.not_there(segment, glsn, offset));
        }
        Ok(EntryMeta {
            glsn,
            stream: header.stream,
            timestamp_micros: record.timestamp_micros,
            record_first: record.first,
            record_count: record.count,
            read_at: record.read_at,
            blobs: record.blobs,
        })
    }

    /// Checks that a payload fits into its record's body before memory is allocated for it.
    pub(crate) fn check_extent(
        &self,
        segment: &Segment,
        glsn: Glsn,
        offset: u32,
        header: &EntryHeader,
        body_bytes: u32,
    ) -> Result<(), LogError> {
        let in_record = header.payload_bytes <= body_bytes;
        if in_record
            && u64::from(offset) + u64::from(header.payload_bytes)
                <= u64::from(segment.header.segment_bytes)
        {
            return Ok(());
        }
        Err(self.not_there(segment, glsn, offset))
    }

    pub(crate) fn not_there(&self, segment: &Segment, glsn: Glsn, offset: u32) -> LogError {
        self.corrupt(
            segment,
            glsn,
            u64::from(offset),
            "the entry is not at the offset that the segment's table names".to_owned(),
        )
    }

    pub(crate) fn broken_record(&self, segment: &Segment, glsn: Glsn, at: u64) -> LogError {
        let what = "the record does not continue in this block: the block's last write is missing";
        self.corrupt(segment, glsn, at, what.to_owned())
    }

    pub(crate) fn corrupt(
        &self,
        segment: &Segment,
        glsn: Glsn,
        offset: u64,
        what: String,
    ) -> LogError {
        LogError::Corrupt { glsn, file: FileName::Segment(segment.first()).name(), offset, what }
    }
}

/// The fragment at the front of a block, if it continues the record whose first fragment has the
/// checksum `head`.
pub(crate) fn continued(block: &[u8], head: u64) -> Option<(FragmentHeader, Continues)> {
    let fragment = FragmentHeader::decode(block).filter(FragmentHeader::continues)?;
    let continues = Continues::decode(block).filter(|continues| continues.head == head)?;
    Some((fragment, continues))
}

/// Returns an error for an entry that is lost.
fn check_is_there(meta: &EntryMeta) -> Result<(), LogError> {
    if meta.stream == StreamId::DROPPED {
        Err(LogError::Dropped { glsn: meta.glsn })
    } else {
        Ok(())
    }
}

fn entry_header(bytes: &[u8]) -> Option<EntryHeader> {
    EntryHeader::decode(bytes)
}
