//! Blob files of a log in memory: the same pages as in files.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use plimsoll_memory::budget::Lease;
use plimsoll_memory::page::{PAGE_BYTES, PAGE_HEADER_BYTES, PAGE_PAYLOAD_BYTES, check_page, seal_page};
use plimsoll_memory::pool::{LoadError, PageSource, Pool};

use crate::blob::{BLOB_BYTES_PAGE, Blob, BlobId, BlobRef, BlobWriter};
use crate::error::LogError;
use crate::format::blob_seed;
use crate::format::blob_trailer::extend_blob_hash;
use crate::glsn::Glsn;
use crate::mem_log::{ACCOUNT, Inner};

/// A finished blob file.
#[derive(Debug)]
struct MemBlobPages {
    pages: Vec<Box<[u8]>>,
    _lease: Option<Lease>,
}

/// The blob files of a log.
#[derive(Default)]
pub(crate) struct MemBlobs {
    last_id: u64,
    finished: BTreeMap<BlobId, Arc<MemBlobPages>>,
    open: BTreeMap<BlobId, Blob>,
    /// Being written, or finished and not named by a record yet.
    unnamed: BTreeSet<BlobId>,
}

impl MemBlobs {
    pub(crate) fn begin(&mut self) -> BlobId {
        self.last_id += 1;
        let id = BlobId(self.last_id);
        self.unnamed.insert(id);
        id
    }

    pub(crate) fn named(&mut self, blobs: &[BlobRef]) {
        for blob in blobs {
            self.unnamed.remove(&blob.id);
        }
    }

    /// Finished files that neither a record nor `keep` needs.
    pub(crate) fn unnamed(&self, named: &BTreeSet<BlobId>, keep: &dyn Fn(BlobId) -> bool) -> Vec<BlobId> {
        let wanted = |id: &BlobId| named.contains(id) || keep(*id) || self.unnamed.contains(id);
        self.finished.keys().filter(|id| !wanted(id)).copied().collect()
    }

    /// Returns what the caller must drop outside of the log's lock.
    pub(crate) fn remove(&mut self, id: BlobId) -> Option<Blob> {
        self.unnamed.remove(&id);
        self.finished.remove(&id);
        self.open.remove(&id)
    }

    /// Writers are gone.
    pub(crate) fn crash(&mut self) {
        self.unnamed.clear();
    }

    pub(crate) fn open(&mut self, id: BlobId, log_id: u128, pool: &Arc<Pool>) -> Result<Blob, LogError> {
        if let Some(blob) = self.open.get(&id) {
            return Ok(blob.clone());
        }
        let Some(pages) = self.finished.get(&id).map(Arc::clone) else {
            let what = "the blob file is missing".to_owned();
            return Err(LogError::Corrupt { glsn: Glsn::NONE, file: format!("blob file {}", id.0), offset: 0, what });
        };
        let seed = blob_seed(log_id, id.0);
        let count = pages.pages.len() as u32;
        let blob = Blob { file: pool.attach(Arc::new(MemBlobSource { pages, seed })), seed, pages: count };
        self.open.insert(id, blob.clone());
        Ok(blob)
    }
}

struct MemBlobSource {
    pages: Arc<MemBlobPages>,
    seed: u64,
}

impl PageSource for MemBlobSource {
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError> {
        let corrupt = |what: &str| LoadError::Corrupt { message: format!("page {number} of a blob file: {what}") };
        let bytes = self.pages.pages.get(number as usize).ok_or_else(|| corrupt("it ends before"))?;
        page.copy_from_slice(bytes);
        check_page(page, self.seed, number).map_err(corrupt)
    }
}

/// Writes one blob file.
pub(crate) struct MemBlobWriter {
    log: Arc<Inner>,
    id: BlobId,
    seed: u64,
    pages: Vec<Box<[u8]>>,
    /// The page that plain bytes are filled into.
    page: Vec<u8>,
    hash: u64,
    position: u64,
    lease: Option<Lease>,
    finished: bool,
}

impl MemBlobWriter {
    pub(crate) fn new(log: Arc<Inner>, id: BlobId) -> Result<Self, LogError> {
        let lease = log.options.budget.as_ref().map(|budget| budget.lease(ACCOUNT, PAGE_BYTES as u64)).transpose()?;
        let seed = blob_seed(log.options.id, id.0);
        let page = Vec::with_capacity(PAGE_BYTES);
        Ok(Self { log, id, seed, pages: Vec::new(), page, hash: 0, position: 0, lease, finished: false })
    }

    fn add(&mut self, page: Box<[u8]>) -> Result<(), LogError> {
        if let Some(lease) = &mut self.lease {
            lease.grow((PAGE_BYTES + 16) as u64)?;
        }
        self.hash = extend_blob_hash(self.hash, &page);
        self.pages.push(page);
        Ok(())
    }

    fn seal(&mut self) -> Result<(), LogError> {
        let mut page = vec![0; PAGE_BYTES];
        page[PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + self.page.len()].copy_from_slice(&self.page);
        seal_page(&mut page, self.seed, self.pages.len() as u32, BLOB_BYTES_PAGE, self.page.len());
        self.page.clear();
        self.add(page.into())
    }
}

impl BlobWriter for MemBlobWriter {
    fn id(&self) -> BlobId {
        self.id
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<(), LogError> {
        while !bytes.is_empty() {
            let step = bytes.len().min(PAGE_PAYLOAD_BYTES - self.page.len());
            self.page.extend_from_slice(&bytes[..step]);
            self.position += step as u64;
            bytes = &bytes[step..];
            if self.page.len() == PAGE_PAYLOAD_BYTES {
                self.seal()?;
            }
        }
        Ok(())
    }

    fn write_page(&mut self, page: &[u8]) -> Result<(), LogError> {
        debug_assert_eq!(check_page(page, self.seed, self.pages.len() as u32), Ok(()));
        self.position += 1;
        self.add(page.into())
    }

    fn read_back(&mut self, offset: u64, into: &mut [u8]) -> Result<(), LogError> {
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > self.position) {
            let message = format!("{} bytes at {offset} of a blob file of {} bytes", into.len(), self.position);
            return Err(LogError::Io { kind: io::ErrorKind::UnexpectedEof, message, source: None });
        }
        for (at, byte) in (offset as usize..).zip(into) {
            let (number, within) = (at / PAGE_PAYLOAD_BYTES, at % PAGE_PAYLOAD_BYTES);
            *byte = match self.pages.get(number) {
                Some(page) => page[PAGE_HEADER_BYTES + within],
                None => self.page[within],
            };
        }
        Ok(())
    }

    fn position(&self) -> u64 {
        self.position
    }

    fn finish(mut self: Box<Self>) -> Result<BlobRef, LogError> {
        if !self.page.is_empty() {
            self.seal()?;
        }
        let mut state = self.log.state();
        state.check()?;
        let pages = MemBlobPages { pages: std::mem::take(&mut self.pages), _lease: self.lease.take() };
        let blob = BlobRef { id: self.id, pages: pages.pages.len() as u32, hash: self.hash };
        state.blobs.finished.insert(self.id, Arc::new(pages));
        drop(state);
        self.finished = true;
        Ok(blob)
    }
}

impl Drop for MemBlobWriter {
    fn drop(&mut self) {
        if !self.finished {
            drop(self.log.state().blobs.remove(self.id));
        }
    }
}
