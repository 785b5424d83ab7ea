//! The file of an offset table, read through the pool.

use std::sync::Arc;

use plimsoll_disk::vfs::Caching;
use plimsoll_memory::page::{PAGE_BYTES, PAGE_HEADER_BYTES, check_page, page_kind, page_payload};
use plimsoll_memory::pool::{LoadError, Page, PageSource, PoolFile, Touch};

use crate::file_log::env::Env;
use crate::file_log::files::names::FileName;
use crate::file_log::files::open_files::OpenFiles;
use crate::format::offset_table::{
    BLOB_PAGE, DIRECTORY_ITEM_BYTES, DIRECTORY_PAGE, DirectoryItem, NUMBERS_PER_PAGE, NamedBlob,
    OFFSET_PAGE, POSTING_PAGE, STREAMS_PER_PAGE, TableHeader,
};
use crate::format::segment_header::HeaderError;
use crate::format::{table_seed, u32_at};
use crate::glsn::{Glsn, StreamId};

/// The file of an offset table.
#[derive(Debug)]
pub(crate) struct TableFile {
    pub(crate) header: TableHeader,
    pages: PoolFile,
}

impl TableFile {
    /// Opens the table of the segment that begins with `first`.
    pub(crate) fn open(env: &Env, first: Glsn) -> Result<Self, LoadError> {
        let seed = table_seed(env.id, first);
        let source = TablePages {
            name: FileName::Table(first),
            seed,
            caching: env.options.caching,
            files: Arc::clone(&env.files),
        };
        let pages = env.options.pool.attach(Arc::new(source));
        let page = pages.get(0, Touch::Point)?;
        let header = TableHeader::decode(page_payload(&page)).map_err(|error| match error {
            HeaderError::Bad(what) => LoadError::Corrupt { message: what.to_owned() },
            HeaderError::Newer(message) => LoadError::Corrupt { message },
        })?;
        drop(page);
        if header.log_id != env.id || header.first != first {
            return Err(LoadError::Corrupt {
                message: "an offset table of another segment".to_owned(),
            });
        }
        Ok(Self { header, pages })
    }

    /// The offset of an entry.
    pub(crate) fn offset(&self, index: u32) -> Result<u32, LoadError> {
        let (page, at) = self.header.offset_place(index);
        let page = self.page(page, OFFSET_PAGE, Touch::Point)?;
        item(&page, at, 4).map(|bytes| u32_at(bytes, 0))
    }

    /// Fills `into` with the offsets of the entries from `index` on, at most those on one page;
    /// returns how many.
    pub(crate) fn offsets(&self, index: u32, into: &mut [u32]) -> Result<usize, LoadError> {
        self.numbers(
            self.header.offset_place(index),
            OFFSET_PAGE,
            NUMBERS_PER_PAGE - index % NUMBERS_PER_PAGE,
            into,
        )
    }

    /// Fills `into` with postings from number `posting` on, at most those on one page; returns how
    /// many.
    pub(crate) fn postings(&self, posting: u32, into: &mut [u32]) -> Result<usize, LoadError> {
        let on_page = NUMBERS_PER_PAGE - posting % NUMBERS_PER_PAGE;
        self.numbers(self.header.posting_place(posting), POSTING_PAGE, on_page, into)
    }

    /// The first posting of `item` whose entry is not below `index`.
    pub(crate) fn posting_from(&self, item: &DirectoryItem, index: u32) -> Result<u32, LoadError> {
        let (mut low, mut high) = (item.start, item.start + item.count);
        while low < high {
            let middle = low + (high - low) / 2;
            let mut number = [0];
            self.postings(middle, &mut number)?;
            if number[0] < index { low = middle + 1 } else { high = middle }
        }
        Ok(low)
    }

    /// A stream's item of the directory; `None` if it has no entry in the segment.
    pub(crate) fn stream(&self, stream: StreamId) -> Result<Option<DirectoryItem>, LoadError> {
        let (mut low, mut high) = (0, self.header.streams);
        while low < high {
            let middle = low + (high - low) / 2;
            let found = self.directory_item(middle)?;
            match found.stream.cmp(&stream) {
                std::cmp::Ordering::Equal => return Ok(Some(found)),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Ok(None)
    }

    /// Blob file number `index`.
    pub(crate) fn blob(&self, index: u32) -> Result<NamedBlob, LoadError> {
        let (page, at) = self.header.blob_place(index);
        let page = self.page(page, BLOB_PAGE, Touch::Scan)?;
        NamedBlob::decode(item(&page, at, 32)?).ok_or_else(out_of_place)
    }

    fn directory_item(&self, index: u32) -> Result<DirectoryItem, LoadError> {
        let (page, at) = self.header.stream_place(index);
        debug_assert!(index % STREAMS_PER_PAGE == (at / DIRECTORY_ITEM_BYTES) as u32);
        let page = self.page(page, DIRECTORY_PAGE, Touch::Point)?;
        let found = DirectoryItem::decode(item(&page, at, DIRECTORY_ITEM_BYTES)?)
            .ok_or_else(out_of_place)?;
        let end = found.start.checked_add(found.count);
        if end.is_none_or(|end| end > self.header.count) {
            return Err(LoadError::Corrupt {
                message: "an offset table whose directory is out of bounds".to_owned(),
            });
        }
        Ok(found)
    }

    fn numbers(
        &self,
        (page, at): (u32, usize),
        kind: u8,
        on_page: u32,
        into: &mut [u32],
    ) -> Result<usize, LoadError> {
        let page = self.page(page, kind, Touch::Point)?;
        let n = into.len().min(on_page as usize);
        let bytes = item(&page, at, n * 4)?;
        for (number, bytes) in into.iter_mut().zip(bytes.chunks_exact(4)) {
            *number = u32_at(bytes, 0);
        }
        Ok(n)
    }

    fn page(&self, number: u32, kind: u8, touch: Touch) -> Result<Page, LoadError> {
        let page = self.pages.get(number, touch)?;
        if page_kind(&page) == kind { Ok(page) } else { Err(out_of_place()) }
    }
}

fn item(page: &Page, at: usize, len: usize) -> Result<&[u8], LoadError> {
    let end = PAGE_HEADER_BYTES + page_payload(page).len();
    let at = PAGE_HEADER_BYTES + at;
    if at + len <= end { Ok(&page[at..at + len]) } else { Err(out_of_place()) }
}

fn out_of_place() -> LoadError {
    LoadError::Corrupt { message: "an offset table whose pages do not fit its header".to_owned() }
}

/// Pages of an offset table, checked as they are read.
struct TablePages {
    name: FileName,
    seed: u64,
    caching: Caching,
    files: Arc<OpenFiles>,
}

impl PageSource for TablePages {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        let file = self.files.get(self.name, self.caching)?;
        let n = file.read_at(page, u64::from(number) * PAGE_BYTES as u64)?;
        check_page(&page[..n], self.seed, number)
            .map_err(|what| LoadError::Corrupt { message: format!("{what} (page {number})") })
    }
}
