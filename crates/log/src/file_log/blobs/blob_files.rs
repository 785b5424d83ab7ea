//! The blob files of an open log: opened through the pool, checked, and removed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use plimsoll_disk::vfs::Caching;
use plimsoll_memory::budget::OutOfBudget;
use plimsoll_memory::page::{PAGE_BYTES, check_page, page_kind, page_payload};
use plimsoll_memory::pool::{LoadError, PageSource, PoolFile};

use crate::blob::{Blob, BlobId};
use crate::error::LogError;
use crate::file_log::blobs::registry::Registry;
use crate::file_log::durability::DurabilityState;
use crate::file_log::env::Env;
use crate::file_log::files::aligned::AlignedBytes;
use crate::file_log::files::names::FileName;
use crate::file_log::files::open_files::OpenFiles;
use crate::file_log::segments::list::Segments;
use crate::format::blob_seed;
use crate::format::blob_trailer::{BLOB_TRAILER_PAGE, BlobTrailer};
use crate::format::segment_header::HeaderError;
use crate::glsn::Glsn;

/// The blob files of an open log.
#[derive(Debug)]
pub(crate) struct Blobs {
    pub(crate) env: Arc<Env>,
    segments: Arc<Segments>,
    pub(crate) durability: Arc<DurabilityState>,
    /// Assigned ids and open files.
    pub(crate) registry: Registry,
}

impl Blobs {
    pub(crate) fn new(
        env: &Arc<Env>,
        segments: &Arc<Segments>,
        durability: &Arc<DurabilityState>,
        last_blob_id: u64,
    ) -> Result<Self, OutOfBudget> {
        let members = env.options.shared.as_ref().map(|shared| Arc::clone(&shared.members));
        let registry = Registry::new(last_blob_id, members, &env.options.budget)?;
        Ok(Self {
            env: Arc::clone(env),
            segments: Arc::clone(segments),
            durability: Arc::clone(durability),
            registry,
        })
    }

    /// Removes a blob file that no record names. Fails once the log is closed, because a later
    /// opening may have swept the file and assigned its id to another file.
    pub(crate) fn discard(&self, id: BlobId) -> Result<(), LogError> {
        self.durability.group.check()?;
        self.remove(id).map(|_| ())
    }

    /// Removes a blob file, if it exists.
    pub(crate) fn remove(&self, id: BlobId) -> Result<bool, LogError> {
        let name = FileName::Blob(id);
        self.registry.forget(id);
        self.env.files.forget(name);
        self.durability.forget_blob(id);
        self.env.remove_file(name)
    }

    /// Closes the handles of files that other members have removed.
    pub(crate) fn close_removed(&self) {
        for name in self.env.files.close_removed() {
            if let FileName::Blob(id) = name {
                self.registry.forget(id);
            }
        }
    }

    /// Opens a finished blob file.
    pub(crate) fn open(&self, id: BlobId) -> Result<Blob, LogError> {
        if let Some(blob) = self.registry.find_open(id) {
            return Ok(blob);
        }
        let trailer = self.read_trailer(id)?;
        let (file, pages) = self.attach(id);
        pages.store(trailer.blob.pages, Ordering::Release);
        let blob = Blob { file, seed: blob_seed(self.env.id, id.0), pages: trailer.blob.pages };
        Ok(self.registry.keep_open(id, blob)?)
    }

    /// The pages of a blob file in the pool. Their number is set once the file is finished; no page
    /// is read before that.
    pub(crate) fn attach(&self, id: BlobId) -> (PoolFile, Arc<AtomicU32>) {
        let pages = Arc::new(AtomicU32::new(0));
        let source = BlobPages {
            id,
            seed: blob_seed(self.env.id, id.0),
            pages: Arc::clone(&pages),
            caching: self.env.options.caching,
            files: Arc::clone(&self.env.files),
        };
        (self.env.options.pool.attach(Arc::new(source)), pages)
    }

    /// Reads the trailer of a blob file.
    pub(crate) fn read_trailer(&self, id: BlobId) -> Result<BlobTrailer, LogError> {
        let file =
            self.env.files.get(FileName::Blob(id), self.env.options.caching).map_err(|error| {
                match error.kind() {
                    io::ErrorKind::NotFound => {
                        self.segments.notice_trim();
                        corrupt_blob(id, 0, "the blob file is missing")
                    }
                    _ => error.into(),
                }
            })?;
        let pages = file.len()? / PAGE_BYTES as u64;
        let Some(number) = pages.checked_sub(1).and_then(|number| u32::try_from(number).ok())
        else {
            return Err(corrupt_blob(id, 0, "the blob file was never finished"));
        };
        let place = u64::from(number) * PAGE_BYTES as u64;
        let mut page = AlignedBytes::new(PAGE_BYTES, &self.env.options.budget)?;
        file.read_exact_at(page.get_mut(), place)?;
        let page = page.get();
        check_page(page, blob_seed(self.env.id, id.0), number)
            .map_err(|what| corrupt_blob(id, place, what))?;
        if page_kind(page) != BLOB_TRAILER_PAGE {
            return Err(corrupt_blob(id, place, "the blob file was never finished"));
        }
        let trailer = BlobTrailer::decode(page_payload(page)).map_err(|error| match error {
            HeaderError::Bad(what) => corrupt_blob(id, place, what),
            HeaderError::Newer(message) => LogError::Format { message },
        })?;
        if trailer.log_id != self.env.id || trailer.blob.id != id || trailer.blob.pages != number {
            return Err(corrupt_blob(
                id,
                place,
                "the blob file belongs to another log or was truncated",
            ));
        }
        Ok(trailer)
    }
}

pub(crate) fn corrupt_blob(id: BlobId, offset: u64, what: &str) -> LogError {
    LogError::Corrupt {
        glsn: Glsn::NONE,
        file: FileName::Blob(id).name(),
        offset,
        what: what.to_owned(),
    }
}

/// Pages of a blob file, checked as they are read.
struct BlobPages {
    id: BlobId,
    seed: u64,
    pages: Arc<AtomicU32>,
    caching: Caching,
    files: Arc<OpenFiles>,
}

impl PageSource for BlobPages {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        self.load_run(number, page)
    }

    fn load_run(&self, first: u32, pages: &mut [u8]) -> Result<(), LoadError> {
        let name = FileName::Blob(self.id);
        let corrupt = |number: u32, what: &str| LoadError::Corrupt {
            message: format!("{}, page {number}: {what}", name.name()),
        };
        // Acquire: pairs with the Release of the thread that finished or opened the file.
        let end = self.pages.load(Ordering::Acquire);
        if u64::from(first) + (pages.len() / PAGE_BYTES) as u64 > u64::from(end) {
            return Err(corrupt(first.max(end), "the blob file ends before it"));
        }
        let file = self.files.get(name, self.caching)?;
        let n = file.read_at(pages, u64::from(first) * PAGE_BYTES as u64)?;
        for (number, page) in (first..).zip(pages.chunks_exact(PAGE_BYTES)) {
            let there = n.saturating_sub((number - first) as usize * PAGE_BYTES).min(PAGE_BYTES);
            check_page(&page[..there], self.seed, number).map_err(|what| corrupt(number, what))?;
        }
        Ok(())
    }

    fn is_sound(&self, number: u32, page: &[u8]) -> bool {
        check_page(page, self.seed, number).is_ok()
    }
}
