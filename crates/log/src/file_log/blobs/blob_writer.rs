//! Writes one blob file, front to back: pages, then a trailer.
//!
//! The file is synced when it is finished. If only a record will name it and commits are buffered,
//! its first [`LATER_BYTES`] are written through the page cache and synced before that record is
//! written ([`unsynced_blobs`](crate::file_log::durability::unsynced_blobs)).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use plimsoll_disk::fork::Origin;
use plimsoll_disk::vfs::{Caching, File, Open};
use plimsoll_memory::page::{
    PAGE_BYTES, PAGE_HEADER_BYTES, PAGE_PAYLOAD_BYTES, check_page, seal_page,
};
use plimsoll_memory::pool::PoolFile;

use crate::blob::{BLOB_BYTES_PAGE, Blob, BlobId, BlobRef};
use crate::error::LogError;
use crate::file_log::blobs::blob_files::{Blobs, corrupt_blob};
use crate::file_log::files::aligned::AlignedBytes;
use crate::file_log::files::names::FileName;
use crate::format::blob_seed;
use crate::format::blob_trailer::{
    BLOB_TRAILER_BYTES, BLOB_TRAILER_PAGE, BlobTrailer, extend_blob_hash,
};

/// Bytes written at a time; less where the budget is short.
const WRITE_BYTES: [usize; 3] = [256 << 10, 64 << 10, PAGE_BYTES];

/// The most bytes of a file that are synced after it is finished. Bytes beyond them bypass the page
/// cache.
const LATER_BYTES: u64 = 8 << 20;

/// The time at which a blob file is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Synced {
    /// When it is finished. After that, anything may name the file.
    Finished,
    /// If commits are buffered: before the record that names the file is written. Nothing else may
    /// name the file until then.
    ForRecord,
}

/// Writes one blob file. If it is dropped before it is finished, no file remains.
pub struct BlobWriter {
    blobs: Arc<Blobs>,
    id: BlobId,
    seed: u64,
    file: Arc<dyn File>,
    /// Its pages in the pool.
    pool_file: PoolFile,
    pages: Arc<AtomicU32>,
    staging: AlignedBytes,
    /// Buffer for pages that are read back.
    reading: Option<AlignedBytes>,
    /// Pages in the file.
    written: u32,
    /// Sealed pages in `staging`.
    sealed: usize,
    /// Bytes on the page after the sealed ones, which is not sealed yet.
    filled: usize,
    hash: u64,
    position: u64,
    /// Whether the written bytes are in the page cache and synced later.
    later: bool,
    finished: bool,
    origin: Origin,
}

impl BlobWriter {
    /// Starts a blob file.
    pub(crate) fn create(blobs: &Arc<Blobs>, synced: Synced) -> Result<Self, LogError> {
        let env = &blobs.env;
        blobs.durability.group.check()?;
        blobs.durability.check_own()?;
        let budget = &env.options.budget;
        let [large, middle, small] = WRITE_BYTES;
        let staging = AlignedBytes::new(large, budget)
            .or_else(|_| AlignedBytes::new(middle, budget))
            .or_else(|_| AlignedBytes::new(small, budget))?;
        let id = blobs.registry.begin().ok_or_else(|| LogError::Format {
            message: "all 2^48 ids of blob files of the log are used up: scan its keyspaces and \
                      load them into a new store"
                .to_owned(),
        })?;
        let path = env.files.path(FileName::Blob(id));
        let file = env
            .options
            .disk
            .open(&path, Open::CreateNew, env.options.caching)
            .inspect_err(|_| blobs.registry.forget(id))?;
        let later = synced == Synced::ForRecord && blobs.durability.syncs_blobs_later();
        if later {
            file.turn(Caching::Buffered);
        }
        let (pool_file, pages) = blobs.attach(id);
        Ok(Self {
            blobs: Arc::clone(blobs),
            id,
            seed: blob_seed(env.id, id.0),
            file,
            pool_file,
            pages,
            staging,
            reading: None,
            written: 0,
            sealed: 0,
            filled: 0,
            hash: 0,
            position: 0,
            later,
            finished: false,
            origin: Origin::here(),
        })
    }

    /// Number of the next page.
    fn next_page(&self) -> u32 {
        self.written + self.sealed as u32
    }

    fn seal(&mut self, kind: u8, payload_bytes: usize) -> Result<(), LogError> {
        let (seed, number) = (self.seed, self.next_page());
        seal_page(self.page_mut(), seed, number, kind, payload_bytes);
        if kind == BLOB_BYTES_PAGE {
            // Cached, because a value that was just written is likely to be read.
            let at = self.sealed * PAGE_BYTES;
            self.pool_file.put_if_free(number, &self.staging.get()[at..at + PAGE_BYTES]);
        }
        self.page_is_sealed()
    }

    fn page_mut(&mut self) -> &mut [u8] {
        let at = self.sealed * PAGE_BYTES;
        &mut self.staging.get_mut()[at..at + PAGE_BYTES]
    }

    fn page_is_sealed(&mut self) -> Result<(), LogError> {
        let at = self.sealed * PAGE_BYTES;
        self.hash = extend_blob_hash(self.hash, &self.staging.get()[at..]);
        self.sealed += 1;
        self.filled = 0;
        if (self.sealed + 1) * PAGE_BYTES > self.staging.get().len() {
            self.flush()
        } else {
            Ok(())
        }
    }

    fn flush(&mut self) -> Result<(), LogError> {
        let place = u64::from(self.written) * PAGE_BYTES as u64;
        if self.later && place >= LATER_BYTES {
            self.file.sync()?;
            self.blobs.durability.forget_blob(self.id);
            self.file.turn(self.blobs.env.options.caching);
            self.later = false;
        }
        let bytes = &self.staging.get()[..self.sealed * PAGE_BYTES];
        self.file.write_at(bytes, place)?;
        self.written += self.sealed as u32;
        self.sealed = 0;
        if self.later {
            self.blobs.durability.wrote_blob(self.id, &self.file, bytes.len() as u64);
        }
        Ok(())
    }

    /// Copies plain bytes of one page, from `offset` on; returns how many.
    fn copy_back(&mut self, offset: u64, into: &mut [u8]) -> Result<usize, LogError> {
        let (number, within) =
            (offset / PAGE_PAYLOAD_BYTES as u64, (offset % PAGE_PAYLOAD_BYTES as u64) as usize);
        let len = into.len().min(PAGE_PAYLOAD_BYTES - within);
        let from = PAGE_HEADER_BYTES + within;
        if number >= u64::from(self.written) {
            let at = (number - u64::from(self.written)) as usize * PAGE_BYTES + from;
            into[..len].copy_from_slice(&self.staging.get()[at..at + len]);
            return Ok(len);
        }
        if self.reading.is_none() {
            self.reading = Some(AlignedBytes::new(PAGE_BYTES, &self.blobs.env.options.budget)?);
        }
        let page = self.reading.as_mut().expect("the buffer was just allocated").get_mut();
        let place = number * PAGE_BYTES as u64;
        self.file.read_exact_at(page, place)?;
        check_page(page, self.seed, number as u32)
            .map_err(|what| corrupt_blob(self.id, place, what))?;
        into[..len].copy_from_slice(&page[from..from + len]);
        Ok(len)
    }

    /// Writes the rest of the file, and syncs it unless that is done later.
    fn write_all(&mut self) -> Result<BlobRef, LogError> {
        if self.filled > 0 {
            self.seal(BLOB_BYTES_PAGE, self.filled)?;
        }
        let blob = BlobRef { id: self.id, pages: self.next_page(), hash: self.hash };
        let trailer = BlobTrailer { log_id: self.blobs.env.id, blob }.encode();
        self.page_mut()[PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + BLOB_TRAILER_BYTES]
            .copy_from_slice(&trailer);
        self.seal(BLOB_TRAILER_PAGE, BLOB_TRAILER_BYTES)?;
        self.flush()?;
        if !self.later {
            self.file.sync()?;
            self.blobs.env.options.disk.sync_dir(&self.blobs.env.options.dir)?;
        }
        Ok(blob)
    }
}

impl BlobWriter {
    /// The file's id.
    pub fn id(&self) -> BlobId {
        self.id
    }

    /// The seed under which its pages are sealed ([`plimsoll_memory::page::seal_page`]).
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Appends plain bytes, packed into pages of kind [`BLOB_BYTES_PAGE`]. They are read by byte
    /// offset, which counts payload bytes only: offset o is on page `o / PAGE_PAYLOAD_BYTES`. A
    /// file holds either plain bytes or whole pages.
    ///
    /// # Errors
    /// An I/O error, or the budget has no room. The file cannot be used after that.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), LogError> {
        while !bytes.is_empty() {
            let step = bytes.len().min(PAGE_PAYLOAD_BYTES - self.filled);
            let at = PAGE_HEADER_BYTES + self.filled;
            self.page_mut()[at..at + step].copy_from_slice(&bytes[..step]);
            self.filled += step;
            self.position += step as u64;
            bytes = &bytes[step..];
            if self.filled == PAGE_PAYLOAD_BYTES {
                self.seal(BLOB_BYTES_PAGE, PAGE_PAYLOAD_BYTES)?;
            }
        }
        Ok(())
    }

    /// Appends one page that the caller sealed under [`BlobWriter::seed`] with the next page
    /// number, starting at 0.
    ///
    /// # Errors
    /// As for `write`.
    pub fn write_page(&mut self, page: &[u8]) -> Result<(), LogError> {
        assert_eq!(self.filled, 0, "plain bytes and whole pages are not mixed");
        debug_assert_eq!(check_page(page, self.seed, self.next_page()), Ok(()));
        self.page_mut().copy_from_slice(page);
        self.position += 1;
        self.page_is_sealed()
    }

    /// Reads back plain bytes that were written before (a transaction reads its own large values),
    /// from memory or from the file.
    ///
    /// # Errors
    /// An I/O error, the budget has no room, or the range was not written.
    pub fn read_back(&mut self, offset: u64, into: &mut [u8]) -> Result<(), LogError> {
        let end = offset.checked_add(into.len() as u64);
        if end.is_none_or(|end| end > self.position) {
            return Err(LogError::Io {
                kind: io::ErrorKind::UnexpectedEof,
                message: format!(
                    "cannot read back {} bytes at offset {offset}: the blob file has {} bytes",
                    into.len(),
                    self.position
                ),
                source: None,
            });
        }
        let mut done = 0;
        while done < into.len() {
            done += self.copy_back(offset + done as u64, &mut into[done..])?;
        }
        Ok(())
    }

    /// Plain bytes, or pages, written so far.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Ends the file. A record may name it only after that. The file and its name are synced here,
    /// or before that record is written
    /// ([`FileLog::create_blob_for_record`](crate::file_log::FileLog::create_blob_for_record)).
    ///
    /// # Errors
    /// An I/O error. No file remains.
    pub fn finish(mut self) -> Result<BlobRef, LogError> {
        let blob = self.write_all()?;
        self.finished = true;
        // Release: pairs with the Acquire of a reader.
        self.pages.store(blob.pages, Ordering::Release);
        let open = Blob { file: self.pool_file.clone(), seed: self.seed, pages: blob.pages };
        // Without memory for the handle, the first reader opens the file.
        let _ = self.blobs.registry.keep_open(self.id, open);
        Ok(blob)
    }
}

impl Drop for BlobWriter {
    fn drop(&mut self) {
        if !self.finished && !self.origin.is_foreign() {
            // If it cannot be removed now, the next sweep removes it.
            let _ = self.blobs.discard(self.id);
        }
    }
}
