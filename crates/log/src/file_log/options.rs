//! Options of a file log.

use std::path::PathBuf;
use std::sync::{Arc, Weak};

use plimsoll_disk::clock::Clock;
use plimsoll_disk::job_pool::JobPool;
use plimsoll_disk::vfs::{Caching, DirLock, Disk};
use plimsoll_memory::budget::Budget;
use plimsoll_memory::pool::Pool;

use crate::durability::Durability;
use crate::format::BLOCK_BYTES;
use crate::glsn::{Glsn, Position};
use crate::members::Members;

/// The usual size of a segment: 64 MiB.
pub const SEGMENT_BYTES: u32 = 64 << 20;
/// The smallest size of a segment.
pub const MIN_SEGMENT_BYTES: u32 = 4 * BLOCK_BYTES as u32;
/// The largest size of a segment.
pub const MAX_SEGMENT_BYTES: u32 = 1 << 30;

/// The access mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Read and write; created if it does not exist.
    Create,
    /// Read and write; an error if it does not exist.
    Write,
    /// Read the log as it is now. Nothing on disk is changed, and another process may be writing.
    ReadOnly,
}

/// A log that several processes have open for writing.
#[derive(Clone, Debug)]
pub struct Shared {
    /// This process's membership.
    pub members: Arc<Members>,
    /// Whether this process is the first member, which alone recovers the log.
    pub is_first: bool,
}

/// Options of a file log.
#[derive(Clone, Debug)]
pub struct FileLogOptions {
    /// The disk of its folder.
    pub disk: Arc<dyn Disk>,
    /// The source of timestamps.
    pub clock: Arc<dyn Clock>,
    /// Its folder; its parent must exist.
    pub dir: PathBuf,
    /// The pool that caches its pages.
    pub pool: Arc<Pool>,
    /// The budget of its memory.
    pub budget: Budget,
    /// The access mode.
    pub mode: Mode,
    /// When an append returns.
    pub durability: Durability,
    /// The most bytes of a segment; rounded to blocks, between [`MIN_SEGMENT_BYTES`] and
    /// [`MAX_SEGMENT_BYTES`].
    pub segment_bytes: u32,
    /// The maximum memory for the entry offsets of the active segment. The segment is sealed early
    /// when its entry offsets take as much. By default a 32nd of the budget.
    pub entry_offsets_bytes: Option<u64>,
    /// A position that is known to be durable: an entry at or below it is never treated as part of
    /// a torn tail.
    pub known: Option<Position>,
    /// Whether there are background threads that sync appends of [`Durability::Buffered`] and seal
    /// segments. Without them, an append is synced by a thread that waits for it, or by closing,
    /// and a segment is sealed when the segment after it ends.
    pub background: bool,
    /// The threads of the background jobs; by default the log has its own thread for them.
    pub job_pool: Arc<JobPool>,
    /// The id of a new log; random by default.
    pub id: Option<u128>,
    /// The place at which a new log begins: the GLSN of its first entry, and a time in microseconds
    /// since 1970 UTC, which is before the time of that entry. By default the first GLSN, and time
    /// 0.
    pub begin: (Glsn, u64),
    /// The caching of sealed segments, offset tables and blob files when they are read.
    pub caching: Caching,
    /// The lock of the folder that contains the log's folder. It is checked together with the log's
    /// own lock before each sync of this process.
    pub outer_lock: Option<Weak<dyn DirLock>>,
    /// The membership of a log that several processes may have open together.
    pub shared: Option<Shared>,
    /// Called with the cause when a failure poisons the log. It is called only once, and without a
    /// lock of the group commit held.
    pub on_poison: Option<fn(&str)>,
}

impl FileLogOptions {
    /// The default options.
    pub fn new(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        dir: PathBuf,
        pool: Arc<Pool>,
        budget: Budget,
    ) -> Self {
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
            job_pool: JobPool::new(1),
            id: None,
            begin: (Glsn::FIRST, 0),
            caching: Caching::Direct,
            outer_lock: None,
            shared: None,
            on_poison: None,
        }
    }

    /// The size of new segments in bytes.
    pub(crate) fn segment_size(&self) -> u32 {
        let bytes = self.segment_bytes.clamp(MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES);
        bytes - bytes % BLOCK_BYTES as u32
    }
}
