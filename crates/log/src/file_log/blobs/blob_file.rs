//! Side files: written front to back, read through the pool.

use std::io;
use std::sync::Arc;

use plimsoll_disk::vfs::{Caching, File, Open};
use plimsoll_memory::page::{
    PAGE_BYTES, PAGE_HEADER_BYTES, PAGE_PAYLOAD_BYTES, check_page, page_kind, page_payload, seal_page,
};
use plimsoll_memory::pool::{LoadError, PageSource};

use crate::error::LogError;
use crate::file_log::files::aligned::AlignedBytes;
use crate::file_log::files::names::FileName;
use crate::file_log::files::open_files::OpenFiles;
use crate::file_log::open_log::Core;
use crate::format::segment_header::HeaderError;
use crate::format::side_seed;
use crate::format::side_trailer::{SIDE_TRAILER_BYTES, SIDE_TRAILER_PAGE, SideTrailer, extend_side_hash};
use crate::glsn::Glsn;
use crate::side::{SIDE_BYTES_PAGE, Side, SideId, SideRef, SideWriter};

/// Bytes written at a time; less where the budget is short.
const WRITE_BYTES: [usize; 3] = [256 << 10, 64 << 10, PAGE_BYTES];

/// Writes one side file.
pub(crate) struct FileSideWriter {
    core: Arc<Core>,
    id: SideId,
    seed: u64,
    file: Arc<dyn File>,
    staging: AlignedBytes,
    /// For pages that are read back.
    reading: Option<AlignedBytes>,
    /// Pages in the file.
    written: u32,
    /// Sealed pages in `staging`.
    sealed: usize,
    /// Plain bytes on the page behind them.
    filled: usize,
    hash: u64,
    position: u64,
    finished: bool,
}

impl FileSideWriter {
    /// Starts a side file.
    pub(crate) fn create(core: &Arc<Core>) -> Result<Self, LogError> {
        core.writing()?;
        core.syncer.check()?;
        let budget = &core.options.budget;
        let [large, middle, small] = WRITE_BYTES;
        let staging = AlignedBytes::new(large, budget)
            .or_else(|_| AlignedBytes::new(middle, budget))
            .or_else(|_| AlignedBytes::new(small, budget))?;
        let id = core.sides.begin();
        let path = core.files.path(FileName::Side(id));
        let file = core
            .options
            .disk
            .open(&path, Open::CreateNew, core.options.caching)
            .inspect_err(|_| core.sides.forget(id))?;
        Ok(Self {
            core: Arc::clone(core),
            id,
            seed: side_seed(core.id, id.0),
            file,
            staging,
            reading: None,
            written: 0,
            sealed: 0,
            filled: 0,
            hash: 0,
            position: 0,
            finished: false,
        })
    }

    /// Number of the page that comes next.
    fn next_page(&self) -> u32 {
        self.written + self.sealed as u32
    }

    fn seal(&mut self, kind: u8, payload_bytes: usize) -> Result<(), LogError> {
        let (seed, number) = (self.seed, self.next_page());
        seal_page(self.page_mut(), seed, number, kind, payload_bytes);
        self.page_is_sealed()
    }

    fn page_mut(&mut self) -> &mut [u8] {
        let at = self.sealed * PAGE_BYTES;
        &mut self.staging.get_mut()[at..at + PAGE_BYTES]
    }

    fn page_is_sealed(&mut self) -> Result<(), LogError> {
        let at = self.sealed * PAGE_BYTES;
        self.hash = extend_side_hash(self.hash, &self.staging.get()[at..]);
        self.sealed += 1;
        self.filled = 0;
        if (self.sealed + 1) * PAGE_BYTES > self.staging.get().len() { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), LogError> {
        let bytes = &self.staging.get()[..self.sealed * PAGE_BYTES];
        self.file.write_at(bytes, u64::from(self.written) * PAGE_BYTES as u64)?;
        self.written += self.sealed as u32;
        self.sealed = 0;
        Ok(())
    }

    /// Copies plain bytes from `offset` on that stand on one page; returns how many.
    fn copy_back(&mut self, offset: u64, into: &mut [u8]) -> Result<usize, LogError> {
        let (number, within) = (offset / PAGE_PAYLOAD_BYTES as u64, (offset % PAGE_PAYLOAD_BYTES as u64) as usize);
        let len = into.len().min(PAGE_PAYLOAD_BYTES - within);
        let from = PAGE_HEADER_BYTES + within;
        if number >= u64::from(self.written) {
            let at = (number - u64::from(self.written)) as usize * PAGE_BYTES + from;
            into[..len].copy_from_slice(&self.staging.get()[at..at + len]);
            return Ok(len);
        }
        if self.reading.is_none() {
            self.reading = Some(AlignedBytes::new(PAGE_BYTES, &self.core.options.budget)?);
        }
        let page = self.reading.as_mut().expect("it was just made").get_mut();
        let place = number * PAGE_BYTES as u64;
        self.file.read_exact_at(page, place)?;
        check_page(page, self.seed, number as u32).map_err(|what| self.core.corrupt_side(self.id, place, what))?;
        into[..len].copy_from_slice(&page[from..from + len]);
        Ok(len)
    }

    fn write_all_and_sync(&mut self) -> Result<SideRef, LogError> {
        if self.filled > 0 {
            self.seal(SIDE_BYTES_PAGE, self.filled)?;
        }
        let side = SideRef { id: self.id, pages: self.next_page(), hash: self.hash };
        let trailer = SideTrailer { log_id: self.core.id, side }.encode();
        self.page_mut()[PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + SIDE_TRAILER_BYTES].copy_from_slice(&trailer);
        self.seal(SIDE_TRAILER_PAGE, SIDE_TRAILER_BYTES)?;
        self.flush()?;
        self.file.sync()?;
        self.core.options.disk.sync_dir(&self.core.options.dir)?;
        Ok(side)
    }
}

impl SideWriter for FileSideWriter {
    fn id(&self) -> SideId {
        self.id
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<(), LogError> {
        while !bytes.is_empty() {
            let step = bytes.len().min(PAGE_PAYLOAD_BYTES - self.filled);
            let at = PAGE_HEADER_BYTES + self.filled;
            self.page_mut()[at..at + step].copy_from_slice(&bytes[..step]);
            self.filled += step;
            self.position += step as u64;
            bytes = &bytes[step..];
            if self.filled == PAGE_PAYLOAD_BYTES {
                self.seal(SIDE_BYTES_PAGE, PAGE_PAYLOAD_BYTES)?;
            }
        }
        Ok(())
    }

    fn write_page(&mut self, page: &[u8]) -> Result<(), LogError> {
        assert_eq!(self.filled, 0, "plain bytes and whole pages are not mixed");
        debug_assert_eq!(check_page(page, self.seed, self.next_page()), Ok(()));
        self.page_mut().copy_from_slice(page);
        self.position += 1;
        self.page_is_sealed()
    }

    fn read_back(&mut self, offset: u64, into: &mut [u8]) -> Result<(), LogError> {
        let end = offset.checked_add(into.len() as u64);
        if end.is_none_or(|end| end > self.position) {
            return Err(LogError::Io {
                kind: io::ErrorKind::UnexpectedEof,
                message: format!("{} bytes at {offset} of a side file of {} bytes", into.len(), self.position),
            });
        }
        let mut done = 0;
        while done < into.len() {
            done += self.copy_back(offset + done as u64, &mut into[done..])?;
        }
        Ok(())
    }

    fn position(&self) -> u64 {
        self.position
    }

    fn finish(mut self: Box<Self>) -> Result<SideRef, LogError> {
        let side = self.write_all_and_sync()?;
        self.finished = true;
        Ok(side)
    }
}

impl Drop for FileSideWriter {
    fn drop(&mut self) {
        if !self.finished {
            // Where it cannot be removed now, the next sweep does.
            let _ = self.core.discard_side(self.id);
        }
    }
}

impl Core {
    /// Removes a side file that no record names. Once the log is closed, the next opening has swept it, and may have given its id to
    /// another file.
    pub(crate) fn discard_side(&self, id: SideId) -> Result<(), LogError> {
        self.syncer.check()?;
        self.remove_side(id).map(|_| ())
    }

    /// Removes a side file, if it is there.
    pub(crate) fn remove_side(&self, id: SideId) -> Result<bool, LogError> {
        let name = FileName::Side(id);
        self.sides.forget(id);
        self.files.forget(name);
        match self.options.disk.remove(&self.files.path(name)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a finished side file.
    pub(crate) fn open_side_file(&self, id: SideId) -> Result<Side, LogError> {
        if let Some(side) = self.sides.find_open(id) {
            return Ok(side);
        }
        let trailer = self.read_trailer(id)?;
        let seed = side_seed(self.id, id.0);
        let source = SidePages {
            id,
            seed,
            pages: trailer.side.pages,
            caching: self.options.caching,
            files: Arc::clone(&self.files),
        };
        let side = Side { file: self.options.pool.attach(Arc::new(source)), seed, pages: trailer.side.pages };
        Ok(self.sides.keep_open(id, side)?)
    }

    /// What a side file says about itself.
    pub(crate) fn read_trailer(&self, id: SideId) -> Result<SideTrailer, LogError> {
        let file = self.files.get(FileName::Side(id), self.options.caching).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                self.notice_trim();
                self.corrupt_side(id, 0, "the side file is missing")
            }
            _ => error.into(),
        })?;
        let pages = file.len()? / PAGE_BYTES as u64;
        let Some(number) = pages.checked_sub(1).and_then(|number| u32::try_from(number).ok()) else {
            return Err(self.corrupt_side(id, 0, "the side file was never finished"));
        };
        let place = u64::from(number) * PAGE_BYTES as u64;
        let mut page = AlignedBytes::new(PAGE_BYTES, &self.options.budget)?;
        file.read_exact_at(page.get_mut(), place)?;
        let page = page.get();
        check_page(page, side_seed(self.id, id.0), number).map_err(|what| self.corrupt_side(id, place, what))?;
        if page_kind(page) != SIDE_TRAILER_PAGE {
            return Err(self.corrupt_side(id, place, "the side file was never finished"));
        }
        let trailer = SideTrailer::decode(page_payload(page)).map_err(|error| match error {
            HeaderError::Bad(what) => self.corrupt_side(id, place, what),
            HeaderError::Newer(message) => LogError::Format { message },
        })?;
        if trailer.log_id != self.id || trailer.side.id != id || trailer.side.pages != number {
            return Err(self.corrupt_side(id, place, "the side file belongs elsewhere, or was cut"));
        }
        Ok(trailer)
    }

    pub(crate) fn corrupt_side(&self, id: SideId, offset: u64, what: &str) -> LogError {
        LogError::Corrupt { glsn: Glsn::NONE, file: FileName::Side(id).name(), offset, what: what.to_owned() }
    }
}

/// Pages of a side file, checked as they are read.
struct SidePages {
    id: SideId,
    seed: u64,
    pages: u32,
    caching: Caching,
    files: Arc<OpenFiles>,
}

impl PageSource for SidePages {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        let name = FileName::Side(self.id);
        let corrupt = |what: &str| LoadError::Corrupt { message: format!("{}, page {number}: {what}", name.name()) };
        if number >= self.pages {
            return Err(corrupt("the side file ends before it"));
        }
        let file = self.files.get(name, self.caching)?;
        let n = file.read_at(page, u64::from(number) * PAGE_BYTES as u64)?;
        check_page(&page[..n], self.seed, number).map_err(corrupt)
    }
}
