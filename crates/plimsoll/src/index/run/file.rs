//! Table files: files in the index's folder, and blob files of the log.
//!
//! A run file is named by its id: twenty digits and `.run`. It consists only of pages, or is packed
//! ([`packed`]). It is written past the system's page cache, and read through the cache or past it
//! ([`plimsoll_disk::switching`]), but never before it is complete. An unfinished file is removed
//! when its sink is dropped, or swept at the next open.
//!
//! [`packed`]: crate::index::run::packed

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_disk::vfs::{Caching, Disk, File, Open};
use plimsoll_log::blob::{BlobId, BlobRef};
use plimsoll_log::file_log::BlobWriter;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::chunk::{CHUNK_BYTES, Chunk};
use plimsoll_memory::page::{PAGE_BYTES, PAGE_HEADER_BYTES, check_page, page_kind, page_payload};
use plimsoll_memory::pool::{PageSource, Pool, PoolFile};

use crate::index::run::builder::PageSink;
use crate::index::run::ends::{
    BLOBS_PAGE, FOOTER_PAGE, Footer, HEADER_PAGE, check_blobs, check_footer, check_header,
};
use crate::index::run::leaf::LEAF_PAGE;
use crate::index::run::packed::{
    Access, BLOCK_BYTES, BLOCK_HEADER_BYTES, BLOCK_PAYLOAD_BYTES, Decoders, PackedFile, PagePacker,
    Shape, check_blocks, seal_block,
};
use crate::index::run::plain::{RunFile, run_seed};
use crate::index::run::table::{Table, TableId, TableInfo, run_file_name};
use crate::index::run::warmth::{Scale, Warmth};
use crate::types::error::{Error, Lift, Result};
use crate::types::keyspaces::Keyspaces;

/// Maximum number of chunks that are written together.
const WAITING_CHUNKS: usize = 16;

/// Gaps of at most this size between warm ranges are fetched with them: one request takes less time
/// than two.
const GAP_BYTES: u64 = 4 * PAGE_BYTES as u64;

/// Minimum number of pages of a table: header, leaf, guide, footer.
const MIN_PAGES: u32 = 4;

/// The highest valid run id. With the gap that each open leaves, this allows 2^31 opens. A file
/// with a higher number does not belong to the index, because it would leave no ids above it.
const LAST_RUN: u64 = u64::MAX / 2;

/// The id of the run with this file name; `None` if it is not the name of a run.
pub(crate) fn run_id_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".run")?;
    let id = digits.parse().ok()?;
    (id <= LAST_RUN && run_file_name(id) == name).then_some(id)
}

/// The id of the log in the header of a run's file, of which `start` is the first page; `None` if
/// the header is damaged.
pub(crate) fn log_id_in(start: &[u8], id: u64) -> Option<u128> {
    let log_id_at = |header: usize| {
        let bytes = start.get(header + PAGE_HEADER_BYTES..)?.get(16..32)?;
        Some(u128::from_le_bytes(bytes.try_into().expect("16 bytes")))
    };
    let unpacked = log_id_at(0)?;
    if check_page(start, run_seed(unpacked, id), 0).is_ok() {
        return Some(unpacked);
    }
    // The stream of a packed file begins with the uncompressed header.
    let packed = log_id_at(BLOCK_HEADER_BYTES)?;
    check_blocks(start, run_seed(packed, id), 0).then_some(packed)
}

/// Checks the bytes from offset `at` of a run's file on that were read for a copy: whole pages, or
/// the blocks in their place. Ignores files that are not runs.
pub(crate) fn check_piece(log_id: u128, name: &str, at: u64, bytes: &[u8]) -> Result<()> {
    let Some(id) = run_id_of(name) else { return Ok(()) };
    let seed = run_seed(log_id, id);
    for (number, page) in ((at / PAGE_BYTES as u64) as u32..).zip(bytes.chunks(PAGE_BYTES)) {
        if check_blocks(page, seed, number) {
            continue;
        }
        check_page(page, seed, number).map_err(|what| {
            Error::damaged(format_args!("index/{name}, page {number}: {what}"))
                .in_file(|| format!("index/{name}"))
        })?;
    }
    Ok(())
}

/// Writes a run file. If the sink is dropped before it is finished, the file is removed.
pub(crate) struct RunFileSink {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    file: Arc<dyn File>,
    id: u64,
    log_id: u128,
    seed: u64,
    /// Pages to be written together: one chunk, and more if memory is free.
    waiting: Vec<Chunk>,
    waiting_bytes: usize,
    written_bytes: u64,
    finished: bool,
    warmer: Option<Warmer>,
    /// Number of pages that were passed to the sink so far.
    pages: u32,
    /// The packer, if the file is packed.
    packing: Option<Packing>,
}

/// The packer of a packed file.
struct Packing {
    packer: PagePacker,
    decoders: Arc<Decoders>,
    /// Bytes of the open block, which follows the waiting bytes; 0 if no block is open.
    block_bytes: usize,
}

/// Inserts the warm pages of a run into the pool while it is written.
struct Warmer {
    pool: Arc<Pool>,
    scale: Scale,
    /// Opened at the first warm page: the pool's handle, and the file for reading.
    file: Option<(PoolFile, Arc<dyn File>)>,
    /// The ranges of the file whose pages entered the pool; `None` if no other process reads them.
    /// At most 16 KiB for a table of 64 MiB.
    told: Option<Vec<Range<u64>>>,
}

impl Warmer {
    /// Records that the page at `at` entered the pool.
    fn note(&mut self, at: u64) {
        let Some(told) = &mut self.told else { return };
        let end = at + PAGE_BYTES as u64;
        match told.last_mut() {
            Some(last) if at <= last.end + GAP_BYTES => last.end = end,
            _ => told.push(at..end),
        }
    }

    /// Announces the warm ranges of the complete file if other processes read it.
    fn finish(self) -> Option<PoolFile> {
        let (pooled, file) = self.file?;
        for part in self.told.unwrap_or_default() {
            file.will_read(part.start, part.end - part.start);
        }
        Some(pooled)
    }
}

/// Which processes read a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    /// Only this process, whose pool has the warm pages.
    Here,
    /// Other processes as well. Their pools have pages of the replaced runs, so the warm pages are
    /// fetched into the shared page cache, if reads go through it.
    Others,
}

impl RunFileSink {
    /// Creates a file in `dir`; the sink holds one chunk of `Kind::Staging`.
    pub(crate) fn create(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        id: u64,
        log_id: u128,
        budget: &Budget,
    ) -> Result<Self> {
        let waiting = budget.take(Kind::Staging)?;
        let path = dir.join(run_file_name(id));
        let file = disk.open(&path, Open::CreateNew, Caching::Direct)?;
        Ok(Self {
            disk: Arc::clone(disk),
            path,
            file,
            id,
            log_id,
            seed: run_seed(log_id, id),
            waiting: vec![waiting],
            waiting_bytes: 0,
            written_bytes: 0,
            finished: false,
            warmer: None,
            pages: 0,
            packing: None,
        })
    }

    /// Inserts warm pages into `pool` while they are written.
    pub(crate) fn warm(mut self, pool: &Arc<Pool>, readers: Readers) -> Self {
        let told = (readers == Readers::Others).then(Vec::new);
        let warmer = Warmer { pool: Arc::clone(pool), scale: Scale::default(), file: None, told };
        self.warmer = Some(warmer);
        self
    }

    /// Compresses the pages as the settings of `keyspaces` say, if any keyspace is compressed.
    /// Takes memory from `budget`; encoders take theirs from the budget of the store.
    pub(crate) fn compress(
        mut self,
        keyspaces: &Arc<Keyspaces>,
        budget: &Budget,
        decoders: &Arc<Decoders>,
    ) -> Self {
        if keyspaces.any_compressed() {
            let packer = PagePacker::new(budget, decoders.budget(), keyspaces);
            let decoders = Arc::clone(decoders);
            self.packing = Some(Packing { packer, decoders, block_bytes: 0 });
        }
        self
    }

    /// Records the warmth of the version that was just added, of this many bytes.
    pub(crate) fn weigh(&mut self, bytes: u64, warmth: Warmth) {
        if let Some(warmer) = &mut self.warmer {
            warmer.scale.add(bytes, warmth);
        }
    }

    /// Writes the buffered pages and syncs the file. The caller must sync the folder, too; only
    /// then does the file survive a power cut. Returns the metadata with the size of the file, and
    /// the pool's handle if pages entered the pool.
    pub(crate) fn finish(mut self, info: TableInfo) -> Result<(TableInfo, Option<PoolFile>)> {
        let packed = match self.packing.take() {
            Some(packing) => Some(self.finish_packed(packing)?),
            None => None,
        };
        self.write_waiting()?;
        self.file.sync()?;
        self.finished = true;
        Ok((TableInfo { packed, ..info }, self.warmer.take().and_then(Warmer::finish)))
    }

    /// Ends the last block and writes the directory. Returns the pages that the file has room for.
    fn finish_packed(&mut self, mut packing: Packing) -> Result<u32> {
        let zeros = [0; BLOCK_PAYLOAD_BYTES];
        let open = &mut packing.block_bytes;
        while *open > 0 || !self.offset().is_multiple_of(PAGE_BYTES as u64) {
            let missing = BLOCK_BYTES - (*open).max(BLOCK_HEADER_BYTES);
            self.write_stream(open, &zeros[..missing])?;
        }
        let packer = &packing.packer;
        for _copy in 0..2 {
            for number in 0..packer.directory_pages() {
                self.make_room()?;
                let place = (self.offset() / PAGE_BYTES as u64) as u32;
                let seed = self.seed;
                packer.write_directory(number, self.room(PAGE_BYTES), seed, place);
                self.waiting_bytes += PAGE_BYTES;
            }
        }
        Ok((self.offset() / PAGE_BYTES as u64) as u32)
    }

    /// Inserts the next page into the pool if it is warm.
    fn put_warm(&mut self, page: &[u8]) {
        let at = self.offset();
        let Some(warmer) = &mut self.warmer else { return };
        let warmth = if page_kind(page) == LEAF_PAGE {
            warmer.scale.take_leaf()
        } else {
            warmer.scale.take_above()
        };
        if warmth == Warmth::Unread && !warmer.pool.has_free_memory() {
            return;
        }
        if warmer.file.is_none() {
            // If the file cannot be opened now, its pages are loaded when they are read, like all
            // others.
            let Some(directory) = self.path.parent() else { return };
            let Ok(run) = RunFile::open(&*self.disk, directory, self.id, self.log_id) else {
                return;
            };
            let file = Arc::clone(&run.file);
            let source: Arc<dyn PageSource> = match &self.packing {
                Some(packing) => {
                    let access = Access::Pool(Arc::clone(&warmer.pool));
                    Arc::new(PackedFile::new(run, None, access, &packing.decoders))
                }
                None => Arc::new(run),
            };
            warmer.file = Some((warmer.pool.attach(source), file));
        }
        if let Some((pooled, _)) = &warmer.file {
            let number = self.pages;
            match warmth {
                Warmth::Unread => pooled.put_if_free(number, page),
                Warmth::Read | Warmth::Hot => pooled.put(number, page, warmth == Warmth::Hot),
            }
            warmer.note(at);
        }
    }

    /// Another chunk for waiting pages, if memory is free.
    fn another_chunk(&self) -> Option<Chunk> {
        let pool = &self.warmer.as_ref()?.pool;
        if self.waiting.len() < WAITING_CHUNKS { pool.take_if_free(Kind::Sort) } else { None }
    }

    /// The offset in the file after the waiting bytes.
    fn offset(&self) -> u64 {
        self.written_bytes + self.waiting_bytes as u64
    }

    /// Makes room for a page or a block after the waiting bytes.
    fn make_room(&mut self) -> Result<()> {
        if self.waiting_bytes == self.waiting.len() * CHUNK_BYTES {
            match self.another_chunk() {
                Some(chunk) => self.waiting.push(chunk),
                None => self.write_waiting()?,
            }
        }
        Ok(())
    }

    /// The memory after the waiting bytes.
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        let (chunk, at) = (self.waiting_bytes / CHUNK_BYTES, self.waiting_bytes % CHUNK_BYTES);
        &mut self.waiting[chunk][at..at + bytes]
    }

    /// Appends bytes to the blocks of a packed file. `block_bytes`: see [`Packing`].
    fn write_stream(&mut self, block_bytes: &mut usize, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if *block_bytes == 0 {
                self.make_room()?;
                *block_bytes = BLOCK_HEADER_BYTES;
            }
            let (some, rest) = bytes.split_at(bytes.len().min(BLOCK_BYTES - *block_bytes));
            let (seed, number) = (self.seed, self.offset() / BLOCK_BYTES as u64);
            let block = self.room(BLOCK_BYTES);
            block[*block_bytes..*block_bytes + some.len()].copy_from_slice(some);
            *block_bytes += some.len();
            bytes = rest;
            if *block_bytes == BLOCK_BYTES {
                seal_block(block, seed, number);
                (self.waiting_bytes, *block_bytes) = (self.waiting_bytes + BLOCK_BYTES, 0);
            }
        }
        Ok(())
    }

    fn write_waiting(&mut self) -> Result<()> {
        let bytes_of = |at: usize| (self.waiting_bytes - at * CHUNK_BYTES).min(CHUNK_BYTES);
        let count = self.waiting_bytes.div_ceil(CHUNK_BYTES);
        let parts: Vec<_> = self.waiting[..count]
            .iter()
            .enumerate()
            .map(|(at, chunk)| &chunk[..bytes_of(at)])
            .collect();
        self.file.write_parts_at(&parts, self.written_bytes)?;
        self.written_bytes += self.waiting_bytes as u64;
        self.waiting_bytes = 0;
        Ok(())
    }
}

impl PageSink for RunFileSink {
    fn id(&self) -> TableId {
        TableId::Run(self.id)
    }

    fn log_id(&self) -> u128 {
        self.log_id
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn write_page(&mut self, page: &[u8]) -> Result<()> {
        self.put_warm(page);
        self.pages += 1;
        let Some(mut packing) = self.packing.take() else {
            self.make_room()?;
            self.room(PAGE_BYTES).copy_from_slice(page);
            self.waiting_bytes += PAGE_BYTES;
            return Ok(());
        };
        let stored = packing.packer.pack(page)?;
        self.write_stream(&mut packing.block_bytes, stored)?;
        self.packing = Some(packing);
        Ok(())
    }
}

impl Drop for RunFileSink {
    fn drop(&mut self) {
        if !self.finished {
            // A file that cannot be removed now is swept at the next open, because no manifest
            // names it.
            let _ = self.disk.remove(&self.path);
        }
    }
}

impl fmt::Debug for RunFileSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunFileSink({})", self.path.display())
    }
}

/// Writes a table into a blob file of the log.
pub(crate) struct BlobSink {
    writer: BlobWriter,
}

impl BlobSink {
    /// A sink over an empty blob file.
    pub(crate) fn new(writer: BlobWriter) -> Self {
        Self { writer }
    }

    /// Ends the file ([`BlobWriter::finish`]). A record may name it only after that.
    pub(crate) fn finish(self) -> Result<BlobRef> {
        self.writer.finish().lift()
    }
}

impl PageSink for BlobSink {
    fn id(&self) -> TableId {
        TableId::Blob(self.writer.id())
    }

    fn seed(&self) -> u64 {
        self.writer.seed()
    }

    fn write_page(&mut self, page: &[u8]) -> Result<()> {
        self.writer.write_page(page).lift()
    }
}

impl fmt::Debug for BlobSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlobSink({:?})", self.writer.id())
    }
}

/// Opens a table of the index's folder.
pub(crate) fn open_run(
    disk: &dyn Disk,
    dir: &Path,
    (pool, decoders): (&Arc<Pool>, &Arc<Decoders>),
    log_id: u128,
    info: TableInfo,
) -> Result<Table> {
    let TableId::Run(id) = info.id else { panic!("{} is not in the index's folder", info.id) };
    let file = RunFile::open(disk, dir, id, log_id)?;
    let (pages, expected) = (file.pages()?, info.packed.unwrap_or(info.pages));
    if pages != expected {
        let path = file.path.display();
        return Err(Error::damaged(format_args!(
            "{path}: the file has {pages} pages, the manifest has {expected}"
        )));
    }
    let source: Arc<dyn PageSource> = match info.packed {
        None => Arc::new(file),
        Some(file_pages) => {
            let shape = Shape { pages: info.pages, file_pages };
            let access = Access::Pool(Arc::clone(pool));
            Arc::new(PackedFile::new(file, Some(shape), access, decoders))
        }
    };
    Ok(Table { info: Arc::new(info), file: pool.attach(source) })
}

/// The pages of a run file that is read without a manifest.
pub(crate) struct FoundRun {
    pub(crate) source: Arc<dyn PageSource>,
    /// The number of whole pages.
    pub(crate) pages: u32,
    /// If the file is packed: the pages that it has room for.
    packed: Option<u32>,
}

impl FoundRun {
    /// Opens a file of any length.
    pub(crate) fn open(
        disk: &dyn Disk,
        dir: &Path,
        log_id: u128,
        id: u64,
        (access, decoders): (Access, &Arc<Decoders>),
    ) -> Result<Self> {
        let file = RunFile::open(disk, dir, id, log_id)?;
        Ok(match PackedFile::find_shape(&file).lift()? {
            Some(shape) => Self {
                source: Arc::new(PackedFile::new(file, Some(shape), access, decoders)),
                pages: shape.pages,
                packed: Some(shape.file_pages),
            },
            None => {
                let bytes = file.file.len()?;
                let pages = u32::try_from(bytes / PAGE_BYTES as u64).unwrap_or(u32::MAX);
                Self { source: Arc::new(file), pages, packed: None }
            }
        })
    }

    /// The table's metadata, from its own pages. The caller leases its memory.
    pub(crate) fn read_info(&self, id: TableId, budget: &Budget) -> Result<TableInfo> {
        let info = read_info(&*self.source, self.pages, id, budget)?;
        Ok(TableInfo { packed: self.packed, ..info })
    }
}

/// The youngest version in the readable run files of a folder.
pub(crate) fn newest_in_folder(
    disk: &dyn Disk,
    dir: &Path,
    log_id: u128,
    budget: &Budget,
) -> Result<Glsn> {
    let mut newest = Glsn::NONE;
    if disk.entry(dir)?.is_none() {
        return Ok(newest);
    }
    let decoders = Arc::new(Decoders::new(budget));
    for id in disk.names(dir)?.iter().filter_map(|name| run_id_of(name)) {
        let info = FoundRun::open(disk, dir, log_id, id, (Access::Chunk, &decoders))
            .and_then(|run| run.read_info(TableId::Run(id), budget));
        match info {
            Ok(info) => newest = newest.max(info.max_glsn),
            Err(Error::Corrupt { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(newest)
}

/// Reads a table's metadata from its own pages, bypassing the pool. The caller leases its memory.
pub(crate) fn read_info(
    source: &dyn PageSource,
    pages: u32,
    id: TableId,
    budget: &Budget,
) -> Result<TableInfo> {
    let mut ends = Ends { source, id, page: budget.take(Kind::Staging)? };
    if pages < MIN_PAGES {
        return Err(ends.corrupt(0, "too few pages for a table"));
    }
    let header = ends.read(0, HEADER_PAGE, check_header)?;
    if header.id != id {
        return Err(ends.corrupt(0, &format!("the header of {}", header.id)));
    }
    let last = pages - 1;
    let footer = ends.read(last, FOOTER_PAGE, check_footer)?;
    if footer.pages != pages || footer.pending != header.pending {
        return Err(ends.corrupt(last, "a footer that does not match the file"));
    }
    let blobs = ends.read_blobs(&footer)?;
    Ok(footer.into_info(id, blobs))
}

/// Reads the first and last pages of a table, one at a time.
struct Ends<'a> {
    source: &'a dyn PageSource,
    id: TableId,
    page: Chunk,
}

impl Ends<'_> {
    fn read<T>(
        &mut self,
        number: u32,
        kind: u8,
        read: impl FnOnce(&[u8]) -> Result<T, &'static str>,
    ) -> Result<T> {
        let page = &mut self.page[..PAGE_BYTES];
        self.source.load(number, page).lift()?;
        let payload = if page_kind(page) == kind {
            Ok(page_payload(page))
        } else {
            Err("a page of the wrong kind")
        };
        payload.and_then(read).map_err(|what| self.corrupt(number, what))
    }

    fn read_blobs(&mut self, footer: &Footer) -> Result<Vec<BlobId>> {
        let (count, last) = (footer.blobs as usize, footer.pages - 1);
        let mut blobs = Vec::new();
        for number in footer.blobs_page..last {
            self.read(number, BLOBS_PAGE, |payload| {
                check_blobs(payload, |blob| {
                    // One id more than allowed is enough to detect an excess.
                    if blobs.len() <= count {
                        blobs.push(blob);
                    }
                })
            })?;
        }
        if blobs.len() != count || !blobs.is_sorted_by(|a, b| a < b) {
            return Err(self.corrupt(last, "a footer that does not match the list of blob files"));
        }
        Ok(blobs)
    }

    fn corrupt(&self, number: u32, what: &str) -> Error {
        Error::corrupt(format!("{}, page {number}: found {what}", self.id))
            .in_file(|| self.id.file())
    }
}
