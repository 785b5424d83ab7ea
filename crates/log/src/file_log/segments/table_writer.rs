//! Writes the offset table of a segment that is being sealed, or whose table was lost.
//!
//! Entries are sorted by stream in a scratch buffer of bounded size, in several rounds if
//! necessary, so that a table can be written under any budget.

use std::io;

use plimsoll_disk::vfs::{Caching, Disk, File, Open};
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::buffer::Buffer;
use plimsoll_memory::page::{PAGE_BYTES, PAGE_HEADER_BYTES, PAGE_PAYLOAD_BYTES, seal_page};

use crate::error::LogError;
use crate::file_log::files::names::TablePlace;
use crate::format::offset_table::{
    BLOB_PAGE, DIRECTORY_PAGE, DirectoryItem, HEADER_PAGE, NamedBlob, OFFSET_PAGE, POSTING_PAGE,
    TableHeader,
};
use crate::format::put;
use crate::glsn::StreamId;

/// The size of the scratch buffer when memory is short, in numbers.
const SCRATCH_MIN: usize = 8192;

/// The source of a table's contents.
pub(crate) trait TableSource {
    /// Calls `each` with the offset of every entry, in order.
    fn offsets(
        &mut self,
        each: &mut dyn FnMut(u32) -> Result<(), LogError>,
    ) -> Result<(), LogError>;

    /// Calls `each` with the stream of every entry, in order. Called several times.
    fn streams(&mut self, each: &mut dyn FnMut(StreamId)) -> Result<(), LogError>;

    /// Calls `each` with every blob file, in order.
    fn blobs(
        &mut self,
        each: &mut dyn FnMut(NamedBlob) -> Result<(), LogError>,
    ) -> Result<(), LogError>;
}

/// The scratch buffer for sorting: a part is reserved, the rest is taken while the budget has room.
#[derive(Debug)]
pub(crate) struct SortScratch {
    budget: Budget,
    set_aside: Buffer<u64>,
    larger: Option<Buffer<u64>>,
}

impl SortScratch {
    pub(crate) fn new(budget: &Budget) -> Result<Self, LogError> {
        let set_aside = Buffer::with_capacity(budget, Kind::LogTable, SCRATCH_MIN)?;
        Ok(Self { budget: budget.clone(), set_aside, larger: None })
    }

    /// Grows to `count` numbers as far as the budget allows.
    fn grow(&mut self, count: usize) {
        if count > SCRATCH_MIN {
            self.larger = Buffer::with_capacity(&self.budget, Kind::LogTable, count).ok();
        }
    }

    /// Releases everything but the reserved part.
    fn shrink(&mut self) {
        self.larger = None;
    }

    fn numbers(&mut self) -> &mut Buffer<u64> {
        self.larger.as_mut().unwrap_or(&mut self.set_aside)
    }
}

/// Writes the table of a segment. `streams` and `blobs` of `header` are counted here. The file is
/// not synced.
pub(crate) fn write_table(
    disk: &dyn Disk,
    place: &TablePlace,
    mut header: TableHeader,
    file_seed: u64,
    source: &mut dyn TableSource,
    scratch: &mut SortScratch,
    staging: &mut [u8],
) -> Result<TableHeader, LogError> {
    let path = place.draft.as_ref().unwrap_or(&place.path);
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let file = disk.open(path, Open::CreateNew, Caching::Buffered)?;
    let mut pages = PageWriter::new(&*file, file_seed, staging, 1);
    source.offsets(&mut |offset| pages.push(OFFSET_PAGE, &offset.to_le_bytes()))?;
    pages.end_section(OFFSET_PAGE)?;
    scratch.grow(header.count as usize);
    header.streams = write_streams(&mut pages, header.count, source, scratch)?;
    scratch.shrink();
    header.blobs = 0;
    source.blobs(&mut |blob| {
        header.blobs += 1;
        pages.push(BLOB_PAGE, &blob.encode())
    })?;
    pages.end_section(BLOB_PAGE)?;
    pages.flush()?;
    let mut first = PageWriter::new(&*file, file_seed, staging, 0);
    first.push(HEADER_PAGE, &header.encode())?;
    first.end_section(HEADER_PAGE)?;
    first.flush()?;
    if let Some(draft) = &place.draft {
        disk.rename(draft, &place.path)?;
    }
    Ok(header)
}

/// Writes postings and directory; returns the number of streams.
fn write_streams(
    pages: &mut PageWriter<'_>,
    count: u32,
    source: &mut dyn TableSource,
    scratch: &mut SortScratch,
) -> Result<u32, LogError> {
    in_order_of_streams(count, source, scratch, &mut |_, index| {
        pages.push(POSTING_PAGE, &index.to_le_bytes())
    })?;
    pages.end_section(POSTING_PAGE)?;
    let mut streams = 0;
    let mut item: Option<DirectoryItem> = None;
    let mut postings = 0;
    in_order_of_streams(count, source, scratch, &mut |stream, _| {
        postings += 1;
        if let Some(item) = item.as_mut().filter(|item| item.stream == stream) {
            item.count += 1;
            return Ok(());
        }
        streams += 1;
        let next = DirectoryItem { stream, start: postings - 1, count: 1 };
        item.replace(next).map_or(Ok(()), |done| pages.push(DIRECTORY_PAGE, &done.encode()))
    })?;
    if let Some(last) = item {
        pages.push(DIRECTORY_PAGE, &last.encode())?;
    }
    pages.end_section(DIRECTORY_PAGE)?;
    Ok(streams)
}

/// Calls `each` with each entry's stream and index, sorted by stream and then by index. Each round
/// gathers the smallest pairs that were not passed yet.
fn in_order_of_streams(
    count: u32,
    source: &mut dyn TableSource,
    scratch: &mut SortScratch,
    each: &mut dyn FnMut(StreamId, u32) -> Result<(), LogError>,
) -> Result<(), LogError> {
    let round = scratch.numbers();
    let room = round.capacity();
    let mut given = 0;
    let mut last: Option<u64> = None;
    while given < count {
        gather_smallest(round, room, last, source)?;
        round.sort_unstable();
        for number in round.iter() {
            each(StreamId((number >> 32) as u32), *number as u32)?;
        }
        given += round.len() as u32;
        last = round.last().copied();
        if round.is_empty() {
            return Err(LogError::Format {
                message: "the streams of a segment changed while they were sorted".into(),
            });
        }
    }
    Ok(())
}

fn gather_smallest(
    round: &mut Buffer<u64>,
    room: usize,
    above: Option<u64>,
    source: &mut dyn TableSource,
) -> Result<(), LogError> {
    round.clear();
    let mut index = 0u64;
    let mut limit = u64::MAX;
    source.streams(&mut |stream| {
        let number = u64::from(stream.0) << 32 | index;
        index += 1;
        if above.is_some_and(|above| number <= above) || number >= limit {
            return;
        }
        if round.len() == room {
            let half = room / 2;
            limit = *round.select_nth_unstable(half).1;
            round.truncate(half);
        }
        if number < limit {
            round.push(number);
        }
    })
}

/// Packs items into sealed pages and writes these in large steps.
struct PageWriter<'a> {
    file: &'a dyn File,
    seed: u64,
    staging: &'a mut [u8],
    /// Number of the first page in `staging`.
    first: u32,
    /// Pages in `staging` that are sealed.
    sealed: usize,
    /// Payload bytes of the page after the sealed ones.
    filled: usize,
}

impl<'a> PageWriter<'a> {
    fn new(file: &'a dyn File, seed: u64, staging: &'a mut [u8], first: u32) -> Self {
        Self { file, seed, staging, first, sealed: 0, filled: 0 }
    }

    fn push(&mut self, kind: u8, item: &[u8]) -> Result<(), LogError> {
        if self.filled + item.len() > PAGE_PAYLOAD_BYTES {
            self.seal(kind)?;
        }
        put(self.staging, self.sealed * PAGE_BYTES + PAGE_HEADER_BYTES + self.filled, item);
        self.filled += item.len();
        Ok(())
    }

    /// Ends the page: the next item begins a new one.
    fn end_section(&mut self, kind: u8) -> Result<(), LogError> {
        if self.filled > 0 { self.seal(kind) } else { Ok(()) }
    }

    fn seal(&mut self, kind: u8) -> Result<(), LogError> {
        let at = self.sealed * PAGE_BYTES;
        let number = self.first + self.sealed as u32;
        seal_page(&mut self.staging[at..at + PAGE_BYTES], self.seed, number, kind, self.filled);
        self.filled = 0;
        self.sealed += 1;
        if (self.sealed + 1) * PAGE_BYTES > self.staging.len() { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), LogError> {
        let bytes = &self.staging[..self.sealed * PAGE_BYTES];
        self.file.write_at(bytes, u64::from(self.first) * PAGE_BYTES as u64)?;
        self.first += self.sealed as u32;
        self.sealed = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_memory::budget::Backing;

    use super::*;

    struct Streams(Vec<u32>);

    impl TableSource for Streams {
        fn offsets(
            &mut self,
            _: &mut dyn FnMut(u32) -> Result<(), LogError>,
        ) -> Result<(), LogError> {
            Ok(())
        }

        fn streams(&mut self, each: &mut dyn FnMut(StreamId)) -> Result<(), LogError> {
            self.0.iter().for_each(|stream| each(StreamId(*stream)));
            Ok(())
        }

        fn blobs(
            &mut self,
            _: &mut dyn FnMut(NamedBlob) -> Result<(), LogError>,
        ) -> Result<(), LogError> {
            Ok(())
        }
    }

    #[test]
    fn entries_are_sorted_by_stream_whatever_room_there_is() {
        let budget = Budget::new(1 << 20, Backing::Heap).unwrap();
        let mut random = plimsoll_disk::random::Random::new(5);
        let streams: Vec<u32> = (0..50_000).map(|_| random.below(300) as u32).collect();
        let mut expected: Vec<(u32, u32)> = streams.iter().copied().zip(0..).collect();
        expected.sort_unstable();
        for generous in [false, true] {
            let mut scratch = SortScratch::new(&budget).unwrap();
            if generous {
                scratch.grow(streams.len());
            }
            let mut got = Vec::new();
            in_order_of_streams(
                streams.len() as u32,
                &mut Streams(streams.clone()),
                &mut scratch,
                &mut |stream, index| {
                    got.push((stream.0, index));
                    Ok(())
                },
            )
            .unwrap();
            assert_eq!(got, expected);
            scratch.shrink();
            assert_eq!(budget.usage().of(Kind::LogTable), 65_536);
        }
    }
}
