//! Reads the pages of a packed table.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use plimsoll_memory::budget::Kind;
use plimsoll_memory::chunk::{CHUNK_BYTES, Chunk};
use plimsoll_memory::page::{PAGE_BYTES, check_page, page_kind, page_payload};
use plimsoll_memory::pool::{LoadError, PageSource, Pool, PoolFile, Touch};

use crate::index::run::packed::blocks::{
    BLOCK_BYTES, BLOCK_PAYLOAD_BYTES, EXTENT_BLOCKS_MAX, PAGE_BLOCKS, blocks_of, check_block,
    check_blocks, join,
};
use crate::index::run::packed::decoders::Decoders;
use crate::index::run::packed::directory::{DIRECTORY_PAGE, Directory, ENTRIES, Extent, Shape};
use crate::index::run::plain::RunFile;
use crate::types::compression::Codec;

/// The most places at the end of a file that are searched for a page of its directory.
const SEARCHED_MAX: u32 = 64;

/// Where the pages of the directory are while they are used.
pub(crate) enum Access {
    /// In the pool.
    Pool(Arc<Pool>),
    /// One at a time, in a chunk: for reads that bypass the pool.
    Chunk,
}

/// The pages of a packed table.
pub(in crate::index::run) struct PackedFile {
    file: Arc<RunFile>,
    decoders: Arc<Decoders>,
    access: Access,
    /// Set when the shape is known; at the latest by the first load.
    directory: OnceLock<OpenDirectory>,
}

struct OpenDirectory {
    shape: Shape,
    pages: DirectoryPages,
}

enum DirectoryPages {
    Pool(PoolFile),
    Chunk { source: DirectorySource, held: Mutex<Option<HeldPage>> },
}

struct HeldPage {
    number: u32,
    chunk: Chunk,
}

/// Blocks that were read.
#[repr(align(4096))]
struct Scratch([u8; EXTENT_BLOCKS_MAX * BLOCK_BYTES]);

#[repr(align(4096))]
struct PageScratch([u8; PAGE_BYTES]);

impl PackedFile {
    /// The pages of a file, which need not be complete before the first load. `shape`: the file's
    /// shape, if it is known.
    pub(in crate::index::run) fn new(
        file: RunFile,
        shape: Option<Shape>,
        access: Access,
        decoders: &Arc<Decoders>,
    ) -> Self {
        let packed = Self {
            file: Arc::new(file),
            decoders: Arc::clone(decoders),
            access,
            directory: OnceLock::new(),
        };
        if let Some(shape) = shape {
            packed.directory.get_or_init(|| packed.open_directory(shape));
        }
        packed
    }

    /// The shape of a file, according to its directory; `None` if it has none. The file may have
    /// lost its end, or have bytes after its end.
    pub(in crate::index::run) fn find_shape(file: &RunFile) -> Result<Option<Shape>, LoadError> {
        let whole_pages = file.file.len()? / PAGE_BYTES as u64;
        let whole_pages = u32::try_from(whole_pages).unwrap_or(u32::MAX);
        let mut page = PageScratch([0; PAGE_BYTES]);
        let mut failed = None;
        for place in (0..whole_pages).rev().take(SEARCHED_MAX as usize) {
            match file.load(place, &mut page.0) {
                Err(LoadError::Corrupt { .. }) => continue,
                Err(error @ LoadError::Io { .. }) => {
                    failed.get_or_insert(error);
                    continue;
                }
                read => read?,
            }
            if page_kind(&page.0) != DIRECTORY_PAGE {
                break;
            }
            let Some(directory) = Directory::new(page_payload(&page.0)) else { continue };
            let [in_first, in_second] = shapes_of(&directory, place);
            // The page that is one copy's length before this one belongs to the other copy, or to
            // the stream.
            let before = place.checked_sub(directory.pages.div_ceil(ENTRIES));
            let is_in_second =
                before.and_then(|before| Self::is_directory(file, before, &mut page));
            let has_length = |shape: &Shape| shape.file_pages == whole_pages;
            let found = match is_in_second {
                Some(true) => in_second,
                Some(false) => in_first,
                None => in_second.filter(has_length).or(in_first),
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// Whether the page at `place` belongs to a directory (`true`) or to the stream; `None` if it
    /// is damaged.
    fn is_directory(file: &RunFile, place: u32, page: &mut PageScratch) -> Option<bool> {
        match file.load(place, &mut page.0) {
            Ok(()) => Some(page_kind(&page.0) == DIRECTORY_PAGE),
            Err(LoadError::Corrupt { .. }) => {
                check_blocks(&page.0, file.seed, place).then_some(false)
            }
            Err(_) => None,
        }
    }

    fn open_directory(&self, shape: Shape) -> OpenDirectory {
        let source = DirectorySource { file: Arc::clone(&self.file), shape };
        let pages = match &self.access {
            Access::Pool(pool) => DirectoryPages::Pool(pool.attach(Arc::new(source))),
            Access::Chunk => DirectoryPages::Chunk { source, held: Mutex::new(None) },
        };
        OpenDirectory { shape, pages }
    }

    fn directory(&self) -> Result<&OpenDirectory, LoadError> {
        if let Some(directory) = self.directory.get() {
            return Ok(directory);
        }
        let shape = Self::find_shape(&self.file)?
            .ok_or_else(|| self.file.corrupt(0, "the file has no readable directory"))?;
        Ok(self.directory.get_or_init(|| self.open_directory(shape)))
    }

    /// Where page `number` is stored.
    fn extent(&self, number: u32) -> Result<Extent, LoadError> {
        let directory = self.directory()?;
        let shape = directory.shape;
        let at = number / ENTRIES;
        let find = |page: &[u8]| {
            let extent = Directory::new(page_payload(page))?.extent(number)?;
            (extent.end() <= shape.stream_bytes_max()).then_some(extent)
        };
        let found = match &directory.pages {
            _ if number >= shape.pages => None,
            DirectoryPages::Pool(pages) => match pages.get(at, Touch::Point) {
                Ok(page) => find(&page),
                // All frames are pinned, one of them for the page that is being loaded.
                Err(LoadError::OutOfBudget(_)) => {
                    let mut page = PageScratch([0; PAGE_BYTES]);
                    pages.source().load(at, &mut page.0)?;
                    find(&page.0)
                }
                Err(error) => return Err(error),
            },
            DirectoryPages::Chunk { source, held } => {
                let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
                let page = match held.take() {
                    Some(page) if page.number == at => page,
                    other => {
                        let mut chunk = match other {
                            Some(page) => page.chunk,
                            None => self.decoders.budget().take(Kind::Staging)?,
                        };
                        source.load(at, &mut chunk[..PAGE_BYTES])?;
                        HeldPage { number: at, chunk }
                    }
                };
                let found = find(&page.chunk[..PAGE_BYTES]);
                *held = Some(page);
                found
            }
        };
        found.ok_or_else(|| self.file.corrupt(number, "the directory has no valid entry for it"))
    }

    /// Reads the part of the stream from `start` on into `scratch`, and checks it. `number`: the
    /// page that is reported if it is damaged.
    fn read_stream<'a>(
        &self,
        number: u32,
        (start, bytes): (u64, usize),
        scratch: &'a mut [u8],
    ) -> Result<&'a [u8], LoadError> {
        let (first, count) = blocks_of(start, bytes);
        let blocks = &mut scratch[..count * BLOCK_BYTES];
        match self.file.file.read_exact_at(blocks, first * BLOCK_BYTES as u64) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(self.file.corrupt(number, "the file ends before it"));
            }
            read => read?,
        }
        for (block, bytes) in (first..).zip(blocks.chunks_exact(BLOCK_BYTES)) {
            if !check_block(bytes, self.file.seed, block) {
                let what = "the checksum of a compressed block does not match its bytes and place";
                return Err(self.file.corrupt(number, what));
            }
        }
        let within = (start - first * BLOCK_PAYLOAD_BYTES as u64) as usize;
        Ok(&join(blocks)[within..within + bytes])
    }

    /// Restores page `number` from its stored form, and checks it.
    fn restore(
        &self,
        number: u32,
        codec: Option<Codec>,
        stored: &[u8],
        page: &mut [u8],
    ) -> Result<(), LoadError> {
        let is_restored = match codec {
            None => {
                let (front, zeros) = page.split_at_mut(stored.len());
                front.copy_from_slice(stored);
                zeros.fill(0);
                true
            }
            Some(codec) => self.decoders.decode(codec, stored, page)?,
        };
        if !is_restored {
            return Err(self.file.corrupt(number, "it cannot be decompressed"));
        }
        check_page(page, self.file.seed, number).map_err(|what| self.file.corrupt(number, what))
    }

    /// The pages from `first` on, at most `count`, whose stored forms fit into a chunk: their
    /// number, and their part of the stream.
    fn batch(&self, first: u32, count: u32) -> Result<(u32, (u64, usize)), LoadError> {
        let extent = self.extent(first)?;
        let (start, mut end, mut pages) = (extent.start, extent.end(), 1);
        while pages < count {
            let next = self.extent(first + pages)?;
            if next.start != end {
                break;
            }
            let bytes = (next.end() - start) as usize;
            if blocks_of(start, bytes).1 * BLOCK_BYTES > CHUNK_BYTES {
                break;
            }
            (end, pages) = (next.end(), pages + 1);
        }
        Ok((pages, (start, (end - start) as usize)))
    }
}

impl PageSource for PackedFile {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        let extent = self.extent(number)?;
        let mut scratch = Scratch([0; EXTENT_BLOCKS_MAX * BLOCK_BYTES]);
        let stored = self.read_stream(number, (extent.start, extent.bytes), &mut scratch.0)?;
        self.restore(number, extent.codec, stored, page)
    }

    fn load_run(&self, first: u32, pages: &mut [u8]) -> Result<(), LoadError> {
        let count = (pages.len() / PAGE_BYTES) as u32;
        let mut pages = pages.chunks_exact_mut(PAGE_BYTES);
        let chunk = if count > 1 { self.decoders.budget().try_take(Kind::Staging) } else { None };
        let Some(mut chunk) = chunk else {
            return (first..).zip(pages).try_for_each(|(number, page)| self.load(number, page));
        };
        let mut at = 0;
        while at < count {
            let (batch, (start, bytes)) = self.batch(first + at, count - at)?;
            let stream = self.read_stream(first + at, (start, bytes), &mut chunk)?;
            for (number, page) in (first + at..first + at + batch).zip(&mut pages) {
                let extent = self.extent(number)?;
                let from = (extent.start - start) as usize;
                self.restore(number, extent.codec, &stream[from..from + extent.bytes], page)?;
            }
            at += batch;
        }
        Ok(())
    }

    fn is_sound(&self, number: u32, page: &[u8]) -> bool {
        check_page(page, self.file.seed, number).is_ok()
    }

    fn check_rest(&self) -> Result<(), LoadError> {
        let shape = self.directory()?.shape;
        let mut page = PageScratch([0; PAGE_BYTES]);
        // The blocks after the last page.
        let last = self.extent(shape.pages - 1)?;
        let (first, count) = blocks_of(last.start, last.bytes);
        let filled = (first + count as u64).div_ceil(PAGE_BLOCKS as u64);
        let at_end = filled.saturating_sub(1) as u32..shape.directory_at();
        for place in at_end {
            self.file.file.read_exact_at(&mut page.0, u64::from(place) * PAGE_BYTES as u64)?;
            if !check_blocks(&page.0, self.file.seed, place) {
                let what = "a block after the last page is damaged";
                return Err(self.file.corrupt(shape.pages, what));
            }
        }
        let source = DirectorySource { file: Arc::clone(&self.file), shape };
        for place in shape.directory_at()..shape.file_pages {
            source.load_copy(place, &mut page.0)?;
        }
        Ok(())
    }
}

/// The shapes of files in which a page of the directory is at `place`: in the first copy, or in the
/// second.
fn shapes_of(directory: &Directory<'_>, place: u32) -> [Option<Shape>; 2] {
    let of_copy = directory.first / ENTRIES;
    let directory_pages = Shape { pages: directory.pages, file_pages: 0 }.directory_pages();
    [2_u32, 1].map(|copies| {
        let file_pages = copies
            .checked_mul(directory_pages)
            .and_then(|pages: u32| place.checked_sub(of_copy)?.checked_add(pages))?;
        Some(Shape { pages: directory.pages, file_pages }).filter(|shape| shape.is_possible())
    })
}

/// The pages of a directory, from the first copy, or from the second one if the first is damaged.
struct DirectorySource {
    file: Arc<RunFile>,
    shape: Shape,
}

impl DirectorySource {
    /// Reads the page of the directory at a place of the file.
    fn load_copy(&self, place: u32, page: &mut [u8]) -> Result<(), LoadError> {
        self.file.load(place, page)?;
        let of_copy = (place - self.shape.directory_at()) % self.shape.directory_pages();
        let directory = Some(&*page)
            .filter(|page| page_kind(page) == DIRECTORY_PAGE)
            .and_then(|page| Directory::new(page_payload(page)));
        match directory {
            Some(found) if (found.pages, found.first) == (self.shape.pages, of_copy * ENTRIES) => {
                Ok(())
            }
            _ => Err(self.file.corrupt(place, "it is not the expected page of the directory")),
        }
    }
}

impl PageSource for DirectorySource {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        let place = self.shape.directory_at() + number;
        match self.load_copy(place, page) {
            Err(error @ (LoadError::Corrupt { .. } | LoadError::Io { .. })) => {
                let second = place + self.shape.directory_pages();
                self.load_copy(second, page).map_err(|_| error)
            }
            loaded => loaded,
        }
    }
}
