//! Blob files: immutable bytes that are too large for a record's body.
//!
//! A blob file is a sequence of pages ([`plimsoll_memory::page`]), so that it is checked page by
//! page and read through the pool. It is written front to back, synced, and then named by a record.
//! (Where commits are buffered, that record may be ordered before the sync, but it is written after
//! it.) A file that no record names is removed by a sweep. The caller decides what the pages hold:
//! pages of a run, or plain bytes ([`BlobWriter::write`]).

use plimsoll_memory::pool::PoolFile;

use crate::error::LogError;

/// Id of a blob file within its log; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobId(pub u64);

impl BlobId {
    /// The last id of node 0.
    pub const LAST: Self = Self((1 << 48) - 1);

    /// The node that assigned the id: its upper 16 bits, reserved. This version assigns and reads
    /// ids of node 0 only.
    pub fn node(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Name of its file in the log's folder.
    pub fn file_name(self) -> String {
        format!("{:020}.blob", self.0)
    }
}

/// How a record names a blob file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobRef {
    /// The file's id.
    pub id: BlobId,
    /// Number of its pages.
    pub pages: u32,
    /// Hash over the checksums of its pages, in order.
    pub hash: u64,
}

/// Writes one blob file. If it is dropped before it is finished, no file remains.
pub trait BlobWriter: Send {
    /// The file's id.
    fn id(&self) -> BlobId;

    /// The seed under which its pages are sealed ([`plimsoll_memory::page::seal_page`]).
    fn seed(&self) -> u64;

    /// Appends plain bytes, packed into pages of kind [`BLOB_BYTES_PAGE`]. They are read by byte
    /// offset, which counts payload bytes only: offset o is on page `o / PAGE_PAYLOAD_BYTES`. A
    /// file holds either plain bytes or whole pages.
    ///
    /// # Errors
    /// The disk or the budget refuses; the file cannot be used after that.
    fn write(&mut self, bytes: &[u8]) -> Result<(), LogError>;

    /// Appends one page that the caller sealed under [`BlobWriter::seed`] with the next page
    /// number, starting at 0.
    ///
    /// # Errors
    /// As for `write`.
    fn write_page(&mut self, page: &[u8]) -> Result<(), LogError>;

    /// Reads back plain bytes that were written before (a transaction reads its own large values),
    /// from memory or from the file.
    ///
    /// # Errors
    /// The disk or the budget refuses, or the range was not written.
    fn read_back(&mut self, offset: u64, into: &mut [u8]) -> Result<(), LogError>;

    /// Plain bytes, or pages, written so far.
    fn position(&self) -> u64;

    /// Ends the file. Only then may a record name it. The file and its name are synced here, or
    /// before that record is written
    /// ([`Log::create_blob_for_record`](crate::log::Log::create_blob_for_record)).
    ///
    /// # Errors
    /// The disk; no file remains.
    fn finish(self: Box<Self>) -> Result<BlobRef, LogError>;
}

/// Kind byte of pages of plain bytes.
pub const BLOB_BYTES_PAGE: u8 = 1;

/// Kind byte of a page that replaces one that a recovery could not read; it has no payload.
pub const BLOB_DROPPED_PAGE: u8 = 0x21;

/// A blob file to read, through the pool.
#[derive(Clone, Debug)]
pub struct Blob {
    /// Its pages.
    pub file: PoolFile,
    /// The seed of its pages.
    pub seed: u64,
    /// Number of pages.
    pub pages: u32,
}
