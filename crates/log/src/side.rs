//! Side files: immutable bytes that are too large for a record's body.
//!
//! A side file is a sequence of pages ([`plimsoll_memory::page`]), so that it is checked page by page and read through the pool.
//! It is written front to back, synced, and then named by a record; one that no record names is swept after recovery.
//! What the pages mean is the business of who wrote them: a run's pages, or plain bytes ([`SideWriter::write`]).

use plimsoll_memory::pool::PoolFile;

use crate::error::LogError;

/// Name of a side file within its log; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SideId(pub u64);

impl SideId {
    /// Name of its file in the log's folder.
    pub fn file_name(self) -> String {
        format!("{:020}.side", self.0)
    }
}

/// How a record names a side file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SideRef {
    /// Which.
    pub id: SideId,
    /// Its pages.
    pub pages: u32,
    /// Hash over the checksums of its pages, in order.
    pub hash: u64,
}

/// Writes one side file. Dropped before it is finished, it leaves nothing behind.
pub trait SideWriter: Send {
    /// The file's id.
    fn id(&self) -> SideId;

    /// The seed under which its pages are sealed ([`plimsoll_memory::page::seal_page`]).
    fn seed(&self) -> u64;

    /// Appends plain bytes, packed into pages of kind [`SIDE_BYTES_PAGE`]; they are read back by byte offset, which counts payload
    /// bytes only: offset o stands on page `o / PAGE_PAYLOAD_BYTES`. Plain bytes and whole pages are not mixed in one file.
    ///
    /// # Errors
    /// The disk or the budget refuses; the file is then of no use.
    fn write(&mut self, bytes: &[u8]) -> Result<(), LogError>;

    /// Appends one page that the caller sealed under [`SideWriter::seed`] with the next page number, starting at 0.
    ///
    /// # Errors
    /// As for `write`.
    fn write_page(&mut self, page: &[u8]) -> Result<(), LogError>;

    /// Reads back plain bytes that were written before (a transaction reads its own large values), from memory or from the file.
    ///
    /// # Errors
    /// The disk or the budget refuses, or the range was not written.
    fn read_back(&mut self, offset: u64, into: &mut [u8]) -> Result<(), LogError>;

    /// Plain bytes, or pages, written so far.
    fn position(&self) -> u64;

    /// Syncs the file and its name. Only then may a record name it.
    ///
    /// # Errors
    /// The disk refuses; nothing is left behind.
    fn finish(self: Box<Self>) -> Result<SideRef, LogError>;
}

/// Kind byte of pages of plain bytes.
pub const SIDE_BYTES_PAGE: u8 = 1;

/// Kind byte of a page in the place of one that was damaged and that a salvage dropped; it has no payload.
pub const SIDE_DROPPED_PAGE: u8 = 0x21;

/// A side file to read, through the pool.
#[derive(Clone, Debug)]
pub struct Side {
    /// Its pages.
    pub file: PoolFile,
    /// The seed of its pages.
    pub seed: u64,
    /// Number of pages.
    pub pages: u32,
}
