//! The blob files of an open log: opened through the pool, checked, and removed.

use std::io;
use std::sync::Arc;

use plimsoll_disk::vfs::Caching;
use plimsoll_memory::budget::OutOfBudget;
use plimsoll_memory::page::{PAGE_BYTES, check_page, page_kind, page_payload};
use plimsoll_memory::pool::{LoadError, PageSource};

use crate::error::LogError;
use crate::file_log::blobs::registry::Registry;
use crate::file_log::durability::Durability;
use crate::file_log::env::Env;
use crate::file_log::files::aligned::AlignedBytes;
use crate::file_log::files::names::FileName;
use crate::file_log::files::open_files::OpenFiles;
use crate::file_log::segments::list::Segments;
use crate::format::segment_header::HeaderError;
use crate::format::side_seed;
use crate::format::side_trailer::{SIDE_TRAILER_PAGE, SideTrailer};
use crate::glsn::Glsn;
use crate::side::{Side, SideId};

/// The blob files of an open log.
#[derive(Debug)]
pub(crate) struct Blobs {
    pub(crate) env: Arc<Env>,
    segments: Arc<Segments>,
    pub(crate) durability: Arc<Durability>,
    /// Ids that were given out, and files that are open.
    pub(crate) registry: Registry,
}

impl Blobs {
    pub(crate) fn new(
        env: &Arc<Env>,
        segments: &Arc<Segments>,
        durability: &Arc<Durability>,
        side_mark: u64,
    ) -> Result<Self, OutOfBudget> {
        let registry = Registry::new(side_mark, &env.options.budget)?;
        Ok(Self { env: Arc::clone(env), segments: Arc::clone(segments), durability: Arc::clone(durability), registry })
    }

    /// Removes a side file that no record names. Once the log is closed, the next opening has swept it, and may have given its id to
    /// another file.
    pub(crate) fn discard(&self, id: SideId) -> Result<(), LogError> {
        self.durability.group.check()?;
        self.remove(id).map(|_| ())
    }

    /// Removes a side file, if it is there.
    pub(crate) fn remove(&self, id: SideId) -> Result<bool, LogError> {
        let name = FileName::Side(id);
        self.registry.forget(id);
        self.env.files.forget(name);
        match self.env.options.disk.remove(&self.env.files.path(name)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a finished side file.
    pub(crate) fn open(&self, id: SideId) -> Result<Side, LogError> {
        if let Some(side) = self.registry.find_open(id) {
            return Ok(side);
        }
        let trailer = self.read_trailer(id)?;
        let seed = side_seed(self.env.id, id.0);
        let source = SidePages {
            id,
            seed,
            pages: trailer.side.pages,
            caching: self.env.options.caching,
            files: Arc::clone(&self.env.files),
        };
        let side = Side { file: self.env.options.pool.attach(Arc::new(source)), seed, pages: trailer.side.pages };
        Ok(self.registry.keep_open(id, side)?)
    }

    /// What a side file says about itself.
    pub(crate) fn read_trailer(&self, id: SideId) -> Result<SideTrailer, LogError> {
        let file =
            self.env.files.get(FileName::Side(id), self.env.options.caching).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => {
                    self.segments.notice_trim();
                    corrupt_side(id, 0, "the side file is missing")
                }
                _ => error.into(),
            })?;
        let pages = file.len()? / PAGE_BYTES as u64;
        let Some(number) = pages.checked_sub(1).and_then(|number| u32::try_from(number).ok()) else {
            return Err(corrupt_side(id, 0, "the side file was never finished"));
        };
        let place = u64::from(number) * PAGE_BYTES as u64;
        let mut page = AlignedBytes::new(PAGE_BYTES, &self.env.options.budget)?;
        file.read_exact_at(page.get_mut(), place)?;
        let page = page.get();
        check_page(page, side_seed(self.env.id, id.0), number).map_err(|what| corrupt_side(id, place, what))?;
        if page_kind(page) != SIDE_TRAILER_PAGE {
            return Err(corrupt_side(id, place, "the side file was never finished"));
        }
        let trailer = SideTrailer::decode(page_payload(page)).map_err(|error| match error {
            HeaderError::Bad(what) => corrupt_side(id, place, what),
            HeaderError::Newer(message) => LogError::Format { message },
        })?;
        if trailer.log_id != self.env.id || trailer.side.id != id || trailer.side.pages != number {
            return Err(corrupt_side(id, place, "the side file belongs elsewhere, or was cut"));
        }
        Ok(trailer)
    }
}

pub(crate) fn corrupt_side(id: SideId, offset: u64, what: &str) -> LogError {
    LogError::Corrupt { glsn: Glsn::NONE, file: FileName::Side(id).name(), offset, what: what.to_owned() }
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
