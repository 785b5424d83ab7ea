//! Blob files: immutable bytes that are too large for a record's body.
//!
//! A blob file is a sequence of pages ([`plimsoll_memory::page`]), so that it is checked page by
//! page and read through the pool. The file is written front to back, synced, and then named by a
//! record. (With buffered commits, the record may be ordered before the sync, but it is written
//! after the sync.) A file that no record names is removed by a sweep. The caller decides the
//! content of the pages: pages of a run, or plain bytes
//! ([`BlobWriter::write`](crate::file_log::BlobWriter::write)).

use plimsoll_memory::pool::PoolFile;

/// Id of a blob file within its log; never reused. If the log is one of several copies whose
/// records are ordered elsewhere, the upper 16 bits are the *node*: the number of the copy that
/// assigned the id. So a file has the same id in all copies. Otherwise these bits are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobId(pub u64);

impl BlobId {
    /// The last id of node 0.
    pub const LAST: Self = Self((1 << 48) - 1);

    /// The id of the file of `node` with this `number`, which must be at most the number of
    /// [`BlobId::LAST`].
    pub fn of(node: u16, number: u64) -> Self {
        debug_assert!(number <= Self::LAST.0);
        Self(u64::from(node) << 48 | number)
    }

    /// The node that assigned the id.
    pub fn node(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The number that the node assigned.
    pub fn number(self) -> u64 {
        self.0 & Self::LAST.0
    }

    /// Name of its file in the log's folder.
    pub fn file_name(self) -> String {
        format!("{:020}.blob", self.0)
    }
}

/// A reference of a record to a blob file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobRef {
    /// The file's id.
    pub id: BlobId,
    /// Number of its pages.
    pub pages: u32,
    /// Hash over the checksums of its pages, in order.
    pub hash: u64,
}

/// Kind byte of pages of plain bytes.
pub const BLOB_BYTES_PAGE: u8 = 1;

/// Kind byte of a page without payload that replaces a page that recovery could not read.
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
