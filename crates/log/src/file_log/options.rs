//! How a file log is opened, and what is reported about it.

use std::path::PathBuf;
use std::sync::{Arc, Weak};

use plimsoll_disk::clock::Clock;
use plimsoll_disk::vfs::{Caching, DirLock, Disk};
use plimsoll_memory::budget::Budget;
use plimsoll_memory::pool::Pool;

use crate::format::BLOCK_BYTES;
use crate::glsn::{Glsn, Position};
use crate::log::Durability;

/// The usual size of a segment: 64 MiB.
pub const SEGMENT_BYTES: u32 = 64 << 20;
/// The smallest size of a segment.
pub const MIN_SEGMENT_BYTES: u32 = 4 * BLOCK_BYTES as u32;
/// The largest size of a segment.
pub const MAX_SEGMENT_BYTES: u32 = 1 << 30;

/// What a log is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// To read and write; made if it is not there.
    Create,
    /// To read and write; an error if it is not there.
    Write,
    /// To read what is there now. Nothing on disk is changed, and a writer may be at work.
    ReadOnly,
}

/// How a file log is opened.
#[derive(Clone, Debug)]
pub struct FileLogOptions {
    /// Where its folder is.
    pub disk: Arc<dyn Disk>,
    /// What timestamps come from.
    pub clock: Arc<dyn Clock>,
    /// Its folder; its parent must exist.
    pub dir: PathBuf,
    /// What its pages are read through.
    pub pool: Arc<Pool>,
    /// What its memory is taken from.
    pub budget: Budget,
    /// What it is opened for.
    pub mode: Mode,
    /// When an append counts as done.
    pub durability: Durability,
    /// A segment is never longer; rounded to blocks, between [`MIN_SEGMENT_BYTES`] and [`MAX_SEGMENT_BYTES`].
    pub segment_bytes: u32,
    /// The most memory for the numbers of the active segment, which is sealed early when it is reached; by default a 32nd of
    /// the budget.
    pub entry_offsets_bytes: Option<u64>,
    /// A place that is known to be durable: what lies at or below it is never taken for a torn tail.
    pub known: Option<Position>,
    /// Whether a thread syncs what [`Durability::Buffered`] leaves unsynced. Without it, it is synced by whoever waits, and at close.
    pub background: bool,
    /// The id of a log that is made; by default one from the operating system.
    pub id: Option<u128>,
    /// How sealed segments, offset tables and blob files are read.
    pub caching: Caching,
    /// The lock of a folder around the log's: looked at together with the log's own before each sync, as long as it is held.
    pub outer_lock: Option<Weak<dyn DirLock>>,
}

impl FileLogOptions {
    /// The usual options.
    pub fn new(disk: Arc<dyn Disk>, clock: Arc<dyn Clock>, dir: PathBuf, pool: Arc<Pool>, budget: Budget) -> Self {
        Self {
            disk,
            clock,
            dir,
            pool,
            budget,
            mode: Mode::Create,
            durability: Durability::Sync,
            segment_bytes: SEGMENT_BYTES,
            entry_offsets_bytes: None,
            known: None,
            background: true,
            id: None,
            caching: Caching::Direct,
            outer_lock: None,
        }
    }

    /// The size of new segments in bytes.
    pub(crate) fn segment_size(&self) -> u32 {
        let bytes = self.segment_bytes.clamp(MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES);
        bytes - bytes % BLOCK_BYTES as u32
    }
}

/// What was found when a log was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// Whether the log was made.
    pub created: bool,
    /// Entries of the active segment that were read and checked.
    pub replayed: u64,
    /// What was cut off its end.
    pub cut: Option<Cut>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// A torn tail that was cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The GLSN that the first cut entry would have had; the next append gets it.
    pub from: Glsn,
    /// Offset in the segment where it was cut.
    pub offset: u64,
    /// Bytes up to the last one that was not zero.
    pub bytes: u64,
    /// What was wrong there.
    pub why: String,
}
