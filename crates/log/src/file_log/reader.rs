//! Reads entries by their number: a look-up in a table and a decode, nothing between.

use std::sync::Arc;

use plimsoll_memory::budget::Kind;
use plimsoll_memory::pool::{Page, Touch};

use crate::entry::{Entry, EntryMeta};
use crate::error::LogError;
use crate::file_log::core::Core;
use crate::file_log::names::FileName;
use crate::file_log::segment::Segment;
use crate::format::BLOCK_BYTES;
use crate::format::layout::{block_of, payload_pieces};
use crate::format::record::{
    ENTRY_HEADER_BYTES, EntryHeader, RECORD_HEADER_BYTES, RecordHeader, SIDE_REF_BYTES, decode_side,
};
use crate::glsn::Glsn;
use crate::side::SideRef;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Where an entry is.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) segment: Arc<Segment>,
    pub(crate) offset: u32,
    /// Whether it begins in the block that is still being filled.
    pub(crate) open: bool,
}

impl Core {
    /// Where entry `glsn` is.
    pub(crate) fn locate(&self, glsn: Glsn) -> Result<Place, LogError> {
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
        let offset = self.with_table(&segment, |table| table.offset(index))?;
        Ok(Place { segment, offset, open: false })
    }

    fn locate_in_tail(&self, glsn: Glsn) -> Result<Option<Place>, LogError> {
        let tail = self.tail.read();
        if glsn < tail.first {
            return Ok(None);
        }
        if glsn >= tail.end.next {
            return Err(LogError::NotYet { asked: glsn, next: tail.end.next });
        }
        let offset = tail.numbers.offset((glsn.0 - tail.first.0) as u32);
        let offset = offset.ok_or(LogError::NotYet { asked: glsn, next: tail.end.next })?;
        let open = tail.is_open_block(tail.first, block_of(u64::from(offset)));
        Ok(Some(Place { segment: Arc::clone(&tail.segment), offset, open }))
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
        let header = entry_header(&page[at..]).ok_or_else(|| self.not_there(segment, glsn, place.offset))?;
        let record = self.record_of(segment, glsn, place.offset, &header, Some(&page))?;
        let meta = self.meta_of(segment, glsn, place.offset, &header, &record)?;
        let payload = at + ENTRY_HEADER_BYTES..at + ENTRY_HEADER_BYTES + header.payload_bytes as usize;
        if payload.end <= BLOCK_BYTES {
            return Ok(Entry::pinned(meta, page, payload));
        }
        drop(page);
        self.check_extent(segment, glsn, place.offset, &header, record.body_bytes)?;
        let lease = self.options.budget.lease(Kind::Staging, u64::from(header.payload_bytes))?;
        let mut bytes = vec![0; header.payload_bytes as usize];
        self.copy_payload(segment, glsn, place.offset, 0, &mut bytes)?;
        Ok(Entry::copied(meta, bytes, lease))
    }

    /// Reads an entry in the block that is being filled; `None` if the block was completed meanwhile.
    fn read_open(&self, glsn: Glsn, place: &Place) -> Result<Option<Entry>, LogError> {
        let segment = &*place.segment;
        let (header, bytes, lease) = {
            let tail = self.tail.read();
            if !tail.is_open_block(segment.first(), block_of(u64::from(place.offset))) {
                return Ok(None);
            }
            let Some(found) = tail.buffer.bytes_at(u64::from(place.offset)) else { return Ok(None) };
            let header = entry_header(found).ok_or_else(|| self.not_there(segment, glsn, place.offset))?;
            let end = ENTRY_HEADER_BYTES + header.payload_bytes as usize;
            let payload =
                found.get(ENTRY_HEADER_BYTES..end).ok_or_else(|| self.not_there(segment, glsn, place.offset))?;
            let lease = self.options.budget.lease(Kind::Staging, payload.len() as u64)?;
            (header, payload.to_vec(), lease)
        };
        let record = self.record_of(segment, glsn, place.offset, &header, None)?;
        let meta = self.meta_of(segment, glsn, place.offset, &header, &record)?;
        Ok(Some(Entry::copied(meta, bytes, lease)))
    }

    /// What is known of an entry, without its payload.
    pub(crate) fn read_meta(&self, glsn: Glsn) -> Result<EntryMeta, LogError> {
        let place = self.locate(glsn)?;
        let (header, record) = self.headers(glsn, &place)?;
        self.meta_of(&place.segment, glsn, place.offset, &header, &record)
    }

    /// Fills `into` with a part of an entry's payload.
    pub(crate) fn read_part(&self, glsn: Glsn, offset: u64, into: &mut [u8]) -> Result<(), LogError> {
        let place = self.locate(glsn)?;
        let (header, record) = self.headers(glsn, &place)?;
        self.meta_of(&place.segment, glsn, place.offset, &header, &record)?;
        self.check_extent(&place.segment, glsn, place.offset, &header, record.body_bytes)?;
        let end = offset.checked_add(into.len() as u64);
        if end.is_none_or(|end| end > u64::from(header.payload_bytes)) {
            let what = format!(
                "{} bytes at {offset} were asked for, the entry's payload has {}",
                into.len(),
                header.payload_bytes
            );
            return Err(self.corrupt(&place.segment, glsn, u64::from(place.offset), what));
        }
        self.copy_payload(&place.segment, glsn, place.offset, offset, into)
    }

    /// Side files of an entry's record.
    pub(crate) fn read_sides(&self, glsn: Glsn) -> Result<Vec<SideRef>, LogError> {
        let place = self.locate(glsn)?;
        let (header, record) = self.headers(glsn, &place)?;
        self.meta_of(&place.segment, glsn, place.offset, &header, &record)?;
        let mut sides = Vec::with_capacity(usize::from(record.sides));
        let start = u64::from(place.offset - header.back) + RECORD_HEADER_BYTES as u64;
        for index in 0..u64::from(record.sides) {
            let mut bytes = [0; SIDE_REF_BYTES];
            self.copy(&place.segment, glsn, start + index * SIDE_REF_BYTES as u64, &mut bytes)?;
            sides.extend(decode_side(&bytes));
        }
        Ok(sides)
    }

    /// Chain hash of the record that ends with `glsn`.
    pub(crate) fn chain_behind(&self, glsn: Glsn) -> Result<Option<u64>, LogError> {
        let behind = glsn.next();
        let first = self.segments.first();
        if behind < first {
            return Ok(None);
        }
        if let Some(segment) = self.segments.find(behind).filter(|segment| segment.first() == behind) {
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
        self.meta_of(&place.segment, behind, place.offset, &header, &record)?;
        Ok((record.first == behind).then_some(record.previous_chain))
    }

    /// The last GLSN whose record is not younger than `micros`.
    pub(crate) fn last_not_younger(&self, micros: u64) -> Result<Glsn, LogError> {
        let readable = self.readable();
        let first = self.segments.first();
        let (mut low, mut high) = {
            let all = self.segments.read();
            let behind = all.partition_point(|segment| segment.header.timestamp_floor <= micros);
            let Some(at) = behind.checked_sub(1) else {
                return Err(LogError::Trimmed { asked: Glsn(first.0.saturating_sub(1)), first });
            };
            (all[at].first().0 - 1, all.get(behind).map_or(readable.0, |next| next.first().0 - 1))
        };
        high = high.min(readable.0);
        // Everything up to `low` is not younger; everything behind `high` is.
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            let meta = self.read_meta(Glsn(middle))?;
            if meta.timestamp_micros <= micros { low = middle } else { high = middle - 1 }
        }
        if low > 0 && Glsn(low) < first {
            return Err(LogError::Trimmed { asked: Glsn(low), first });
        }
        Ok(Glsn(low))
    }

    /// The page of a block that is complete.
    pub(crate) fn page(&self, segment: &Segment, block: u64, glsn: Glsn, touch: Touch) -> Result<Page, LogError> {
        segment
            .pages
            .get(block as u32, touch)
            .map_err(|error| self.load_error(error, FileName::Segment(segment.first()), glsn, block * BLOCK))
    }

    /// Copies bytes that lie within one block, wherever that is.
    pub(crate) fn copy(&self, segment: &Segment, glsn: Glsn, at: u64, into: &mut [u8]) -> Result<(), LogError> {
        let within = (at % BLOCK) as usize;
        let range = within..within + into.len();
        if range.end > BLOCK_BYTES {
            return Err(self.not_there(segment, glsn, at as u32));
        }
        {
            let tail = self.tail.read();
            if tail.is_open_block(segment.first(), block_of(at))
                && let Some(bytes) = tail.buffer.bytes_at(at).and_then(|bytes| bytes.get(..into.len()))
            {
                into.copy_from_slice(bytes);
                return Ok(());
            }
        }
        into.copy_from_slice(&self.page(segment, block_of(at), glsn, Touch::Point)?[range]);
        Ok(())
    }

    fn copy_payload(
        &self,
        segment: &Segment,
        glsn: Glsn,
        entry_offset: u32,
        from: u64,
        into: &mut [u8],
    ) -> Result<(), LogError> {
        let mut done = 0;
        for piece in payload_pieces(entry_offset, from..from + into.len() as u64) {
            let len = (piece.end - piece.start) as usize;
            self.copy(segment, glsn, piece.start, &mut into[done..done + len])?;
            done += len;
        }
        Ok(())
    }

    fn headers(&self, glsn: Glsn, place: &Place) -> Result<(EntryHeader, RecordHeader), LogError> {
        let mut bytes = [0; ENTRY_HEADER_BYTES];
        self.copy(&place.segment, glsn, u64::from(place.offset), &mut bytes)?;
        let header = entry_header(&bytes).ok_or_else(|| self.not_there(&place.segment, glsn, place.offset))?;
        let record = self.record_of(&place.segment, glsn, place.offset, &header, None)?;
        Ok((header, record))
    }

    /// The header of the record that an entry belongs to; `page` is the entry's, if at hand.
    pub(crate) fn record_of(
        &self,
        segment: &Segment,
        glsn: Glsn,
        offset: u32,
        header: &EntryHeader,
        page: Option<&Page>,
    ) -> Result<RecordHeader, LogError> {
        let Some(at) = offset.checked_sub(header.back) else { return Err(self.not_there(segment, glsn, offset)) };
        let within = at as usize % BLOCK_BYTES;
        let same_block = block_of(u64::from(at)) == block_of(u64::from(offset));
        let decoded = match page.filter(|_| same_block) {
            Some(page) => RecordHeader::decode(&page[within..]),
            None => {
                let mut bytes = [0; RECORD_HEADER_BYTES];
                self.copy(segment, glsn, u64::from(at), &mut bytes)?;
                RecordHeader::decode(&bytes)
            }
        };
        decoded.map_err(|refusal| self.corrupt(segment, glsn, u64::from(at), refusal.what.to_owned()))
    }

    /// What is known of an entry, if it stands at its own place.
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
            sides: record.sides,
        })
    }

    /// A payload is never longer than its record's body: checked before anything is allocated for it.
    pub(crate) fn check_extent(
        &self,
        segment: &Segment,
        glsn: Glsn,
        offset: u32,
        header: &EntryHeader,
        body_bytes: u32,
    ) -> Result<(), LogError> {
        let in_record = header.payload_bytes <= body_bytes;
        if in_record && u64::from(offset) + u64::from(header.payload_bytes) <= u64::from(segment.header.segment_bytes) {
            return Ok(());
        }
        Err(self.not_there(segment, glsn, offset))
    }

    pub(crate) fn not_there(&self, segment: &Segment, glsn: Glsn, offset: u32) -> LogError {
        self.corrupt(segment, glsn, u64::from(offset), "the entry does not stand where its table says".to_owned())
    }

    fn corrupt(&self, segment: &Segment, glsn: Glsn, offset: u64, what: String) -> LogError {
        LogError::Corrupt { glsn, file: FileName::Segment(segment.first()).name(), offset, what }
    }
}

fn entry_header(bytes: &[u8]) -> Option<EntryHeader> {
    EntryHeader::decode(bytes)
}
