//! The page pool: pages of immutable files in frames, evicted by a clock.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

use crate::budget::{Budget, OutOfBudget};

/// Why a page could not be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The file could not be read.
    Io {
        /// Kind of the system's error.
        kind: io::ErrorKind,
        /// What the system said, with the file's path.
        message: String,
    },
    /// The bytes are not what was written there.
    Corrupt {
        /// What is wrong, with file and page.
        message: String,
    },
    /// No frame could be had.
    OutOfBudget(OutOfBudget),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { message, .. } | Self::Corrupt { message } => f.write_str(message),
            Self::OutOfBudget(refusal) => refusal.fmt(f),
        }
    }
}

impl std::error::Error for LoadError {}

impl From<io::Error> for LoadError {
    fn from(error: io::Error) -> Self {
        Self::Io { kind: error.kind(), message: error.to_string() }
    }
}

/// A file of pages, as the pool sees it.
pub trait PageSource: Send + Sync {
    /// Reads page `number` into `page` ([`crate::page::PAGE_BYTES`] long, aligned for direct reads) and checks it.
    ///
    /// # Errors
    /// [`LoadError::Io`] or [`LoadError::Corrupt`]; it reaches everybody who waits for this page.
    fn load(&self, number: u32, page: &mut [u8]) -> Result<(), LoadError>;
}

/// How a page is going to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// By a point read or a short scan: a second touch makes it hot.
    Point,
    /// By a long scan: it never becomes hot through this touch and leaves first.
    Scan,
}

/// The pool. One per budget.
#[derive(Debug)]
pub struct Pool;

/// A file whose pages the pool may hold. Its pages are forgotten when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct PoolFile;

/// A pinned page: it stays where it is until dropped. Clones pin once more.
#[derive(Clone, Debug)]
pub struct Page;

/// Counters since the pool was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Pages found.
    pub hits: u64,
    /// Pages read from their file.
    pub loads: u64,
    /// Times that somebody waited for another's load.
    pub waits: u64,
    /// Pages evicted.
    pub evictions: u64,
    /// Frames held now.
    pub frames: u64,
    /// Frames with a page now.
    pub resident: u64,
    /// Frames pinned now.
    pub pinned: u64,
}

impl Pool {
    /// A pool that takes its frames from `budget`, four to a chunk, keeps at least `min_bytes` once it has them, and gives the rest
    /// back when the budget asks (it registers itself as a reclaimer).
    ///
    /// # Errors
    /// The budget cannot give `min_bytes`.
    pub fn new(budget: &Budget, min_bytes: u64) -> Result<Arc<Pool>, OutOfBudget> {
        let _ = (budget, min_bytes);
        unimplemented!()
    }

    /// Attaches a file. It gets an id of its own that is never used again.
    pub fn attach(self: &Arc<Self>, source: Arc<dyn PageSource>) -> PoolFile {
        let _ = source;
        unimplemented!()
    }

    /// Evicts every page that is not pinned.
    pub fn clear(&self) {
        unimplemented!()
    }

    /// Counters.
    pub fn stats(&self) -> PoolStats {
        unimplemented!()
    }
}

impl PoolFile {
    /// Page `number`: from its frame, or loaded; one load however many ask at once.
    ///
    /// # Errors
    /// What the source said, or no frame could be had (all are pinned and the budget has none to give).
    pub fn get(&self, number: u32, touch: Touch) -> Result<Page, LoadError> {
        let _ = (number, touch);
        unimplemented!()
    }

    /// Puts a page that was just written into the pool (hot if `hot`), if a frame can be had without waiting; else does nothing.
    pub fn put(&self, number: u32, bytes: &[u8], hot: bool) {
        let _ = (number, bytes, hot);
        unimplemented!()
    }

    /// Whether page `number` is resident and hot: what compaction asks before it hands heat on.
    pub fn is_hot(&self, number: u32) -> bool {
        let _ = number;
        unimplemented!()
    }
}

impl Deref for Page {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        unimplemented!()
    }
}
