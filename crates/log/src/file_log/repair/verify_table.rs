//! Compares an offset table with the segment that it belongs to, for `verify`.

use plimsoll_disk::checksum::seed;
use plimsoll_disk::vfs::File;
use plimsoll_memory::page::{PAGE_BYTES, check_page, page_kind, page_payload};

use crate::error::LogError;
use crate::file_log::segments::walk::Outcome;
use crate::format::offset_table::{
    BLOB_ITEM_BYTES, BLOB_PAGE, DIRECTORY_ITEM_BYTES, DIRECTORY_PAGE, DirectoryItem, NamedBlob,
    OFFSET_PAGE, POSTING_PAGE, TableHeader,
};
use crate::format::segment_header::SegmentHeader;
use crate::format::u32_at;
use crate::glsn::StreamId;

/// A summary of a segment's entries, to be compared with its table.
pub(crate) struct SegmentSummary {
    /// The sum of the hashes of the entries, so that their order does not matter.
    pub(crate) hash: u64,
    pub(crate) count: u32,
    /// Hash over the blob files in order, and their number.
    pub(crate) blobs: (u64, u32),
}

pub(crate) fn entry_hash(offset: u32, stream: StreamId, index: u32) -> (u64, u64) {
    let by_place = seed(&[u64::from(offset), u64::from(index)]);
    let by_stream = seed(&[u64::from(stream.0), u64::from(index), 1]);
    (by_place, by_stream)
}

pub(crate) fn blob_hash(hash: u64, blob: &NamedBlob) -> u64 {
    seed(&[hash, blob.record_first.0, u64::from(blob.record_count), blob.blob.id.0, blob.blob.hash])
}

/// Checks the pages of a table.
pub(crate) struct TableCheck<'a> {
    pub(crate) file: &'a dyn File,
    pub(crate) seed: u64,
    pub(crate) page: &'a mut [u8],
}

impl TableCheck<'_> {
    /// Reads a page; `Err` is its damage.
    fn get(
        &mut self,
        number: u32,
        kind: Option<u8>,
    ) -> Result<Result<&[u8], &'static str>, LogError> {
        let n = self.file.read_at(self.page, u64::from(number) * PAGE_BYTES as u64)?;
        if let Err(what) = check_page(&self.page[..n], self.seed, number) {
            return Ok(Err(what));
        }
        if kind.is_some_and(|kind| kind != page_kind(self.page)) {
            return Ok(Err("a page of an unexpected kind"));
        }
        Ok(Ok(page_payload(self.page)))
    }

    /// An item of a table, through the one page that is held.
    fn item(
        &mut self,
        held: &mut u32,
        place: (u32, usize),
        kind: u8,
        len: usize,
    ) -> Result<Result<&[u8], &'static str>, LogError> {
        if *held != place.0 {
            if let Err(what) = self.get(place.0, Some(kind))? {
                return Ok(Err(what));
            }
            *held = place.0;
        }
        Ok(page_payload(self.page).get(place.1..place.1 + len).ok_or("a page that ends too early"))
    }

    /// Compares the whole table; returns the offset and the kind of the damage.
    pub(crate) fn table(
        &mut self,
        segment: &SegmentHeader,
        outcome: &Outcome,
        seen: &SegmentSummary,
    ) -> Result<Option<(u64, &'static str)>, LogError> {
        let header = match self.get(0, None)? {
            Err(what) => return Ok(Some((0, what))),
            Ok(payload) => match TableHeader::decode(payload) {
                Ok(header) => header,
                Err(_) => return Ok(Some((0, "the header cannot be read"))),
            },
        };
        let fits = header.log_id == segment.log_id
            && header.first == segment.first
            && header.count == seen.count
            && header.chain == outcome.chain
            && header.blobs == seen.blobs.1;
        if !fits {
            return Ok(Some((0, "the table does not fit its segment")));
        }
        let mut hash = 0u64;
        let mut held = u32::MAX;
        for index in 0..header.count {
            let place = header.offset_place(index);
            match self.item(&mut held, place, OFFSET_PAGE, 4)? {
                Err(what) => return Ok(Some((u64::from(place.0) * PAGE_BYTES as u64, what))),
                Ok(bytes) => {
                    hash = hash.wrapping_add(entry_hash(u32_at(bytes, 0), StreamId(0), index).0)
                }
            }
        }
        if let Some(found) = self.postings(&header, &mut hash)? {
            return Ok(Some(found));
        }
        if hash != seen.hash {
            return Ok(Some((
                PAGE_BYTES as u64,
                "offsets or postings differ from those of the segment",
            )));
        }
        self.blobs(&header, seen)
    }

    fn postings(
        &mut self,
        header: &TableHeader,
        hash: &mut u64,
    ) -> Result<Option<(u64, &'static str)>, LogError> {
        let mut held = u32::MAX;
        let mut next = 0;
        for number in 0..header.streams {
            let place = header.stream_place(number);
            let item = match self.item(&mut held, place, DIRECTORY_PAGE, DIRECTORY_ITEM_BYTES)? {
                Err(what) => return Ok(Some((u64::from(place.0) * PAGE_BYTES as u64, what))),
                Ok(bytes) => DirectoryItem::decode(bytes),
            };
            let Some(item) = item.filter(|item| item.start == next) else {
                return Ok(Some((
                    u64::from(place.0) * PAGE_BYTES as u64,
                    "the directory has a hole",
                )));
            };
            next = item.start.saturating_add(item.count);
            if next > header.count {
                return Ok(Some((
                    u64::from(place.0) * PAGE_BYTES as u64,
                    "the directory is out of bounds",
                )));
            }
            for posting in item.start..next {
                let place = header.posting_place(posting);
                match self.item(&mut held, place, POSTING_PAGE, 4)? {
                    Err(what) => return Ok(Some((u64::from(place.0) * PAGE_BYTES as u64, what))),
                    Ok(bytes) => {
                        *hash = hash.wrapping_add(entry_hash(0, item.stream, u32_at(bytes, 0)).1)
                    }
                }
            }
        }
        Ok(None)
    }

    fn blobs(
        &mut self,
        header: &TableHeader,
        seen: &SegmentSummary,
    ) -> Result<Option<(u64, &'static str)>, LogError> {
        let mut held = u32::MAX;
        let mut hash = 0;
        for index in 0..header.blobs {
            let place = header.blob_place(index);
            match self.item(&mut held, place, BLOB_PAGE, BLOB_ITEM_BYTES)? {
                Err(what) => return Ok(Some((u64::from(place.0) * PAGE_BYTES as u64, what))),
                Ok(bytes) => {
                    hash = NamedBlob::decode(bytes).map_or(hash, |blob| blob_hash(hash, &blob))
                }
            }
        }
        Ok((hash != seen.blobs.0).then_some((0, "the blob files differ from those of the segment")))
    }
}
