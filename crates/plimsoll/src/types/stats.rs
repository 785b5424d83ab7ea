//! Statistics: memory use by purpose, event counts, and the store's position.

use crate::types::io::Io;
use plimsoll_log::glsn::Glsn;

/// Memory use under the budget.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// let memory: MemoryStats = db.stats().memory;
/// assert!(memory.peak_bytes <= 16 << 20);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// The budget in bytes.
    pub limit_bytes: u64,
    /// Unused bytes.
    pub free_bytes: u64,
    /// Peak use in bytes since the store was opened.
    pub peak_bytes: u64,
    /// Bytes in use, by purpose.
    pub by_kind: Vec<(&'static str, u64)>,
}

/// Memory shortage since the store was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PressureStats {
    /// Pages evicted by a thread that missed a page and found no free frame.
    pub inline_page_evictions: u64,
    /// Times that a thread found no free memory for a purpose other than pages and made the pool
    /// evict.
    pub inline_chunk_evictions: u64,
    /// Times that a thread waited for memory.
    pub waits: u64,
    /// Memory reservations refused. Most callers then flush, spill their writes or coarsen their
    /// read set, and continue.
    pub refusals: u64,
}

/// Activity of the evictor since the store was opened; zeros if it is disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EvictorStats {
    /// Batches of pages evicted.
    pub rounds: u64,
    /// Pages evicted.
    pub victims: u64,
    /// Bytes freed.
    pub bytes: u64,
    /// Of these, bytes for purposes other than pages.
    pub chunk_bytes: u64,
    /// Times it was woken because few frames for pages were free.
    pub woken_for_frames: u64,
    /// Times it was woken because memory for other purposes was low.
    pub woken_for_chunks: u64,
    /// Times it was woken by a thread that had to evict for itself.
    pub woken_inline: u64,
    /// Average nanoseconds from a wake-up to the first freed memory.
    pub reaction_nanos: u64,
    /// Bytes that it keeps free for pages and for other purposes, at the measured rate.
    pub room_bytes: (u64, u64),
}

/// Activity of the page pool since the store was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Pages found in memory.
    pub hits: u64,
    /// Pages read from disk.
    pub loads: u64,
    /// Of these, pages read ahead of a scan.
    pub read_ahead: u64,
    /// Times that a reader waited for a page that another thread was loading.
    pub waits: u64,
    /// Pages evicted, by the evictor or by other threads.
    pub evictions: u64,
    /// Pages in memory now.
    pub resident_pages: u64,
    /// Size of a page in bytes.
    pub page_bytes: u64,
}

/// Activity of the row cache since the store was opened; zeros if it is disabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowCacheStats {
    /// Reads answered by a row.
    pub hits: u64,
    /// Reads not answered by a row, which went to the pages.
    pub misses: u64,
    /// Rows inserted.
    pub insertions: u64,
    /// Rows evicted.
    pub evictions: u64,
    /// Rows cached now.
    pub entries: u64,
    /// Bytes of these rows, with their keys and headers.
    pub live_bytes: u64,
    /// Memory used by the rows, all overhead included.
    pub held_bytes: u64,
    /// Current limit: the rows' share of the memory for pages and rows.
    pub limit_bytes: u64,
    /// Rows requested soon after their eviction: reads that a larger row cache would have saved.
    pub returns: u64,
    /// Pages loaded again soon after their eviction: reads that a larger page pool would have
    /// saved.
    pub page_returns: u64,
    /// Steps that moved memory from pages to rows.
    pub steps_to_rows: u64,
    /// Steps that moved memory from rows to pages.
    pub steps_to_pages: u64,
}

/// Cost of opening the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpeningStats {
    /// Total nanoseconds.
    pub nanos: u64,
    /// Of the total: opening the log, which includes reading its newest segment.
    pub log_nanos: u64,
    /// Of the total: reading the transactions that are not yet in any run back into memory.
    pub replay_nanos: u64,
    /// Transactions replayed into memory: those left by a process that did not close the store.
    pub replayed: u64,
    /// Bytes of the log entries replayed.
    pub replayed_bytes: u64,
    /// Bytes of the log's torn tail, which opening cut: records of commits that had not returned
    /// when the process was killed or the power failed. A read-only store cuts nothing.
    pub torn_bytes: u64,
}

/// All statistics of a store.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// db.put(&notes, "a", "one")?;
/// let stats = db.stats();
/// assert!(stats.memory.peak_bytes <= 16 << 20);
/// assert_eq!(stats.log.next, db.newest().next());
/// println!("{:?} {:?}", stats.index, stats.pool);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Cost of opening the store.
    pub opening: OpeningStats,
    /// Memory use under the budget.
    pub memory: MemoryStats,
    /// Memory shortage.
    pub pressure: PressureStats,
    /// The evictor, which frees memory in advance.
    pub evictor: EvictorStats,
    /// The page pool.
    pub pool: PoolStats,
    /// The row cache.
    pub row_cache: RowCacheStats,
    /// The log.
    pub log: LogBounds,
    /// The index.
    pub index: IndexStats,
    /// How files are read.
    pub io: IoStats,
    /// The warm image.
    pub warm: WarmStats,
    /// The newest readable moment.
    pub newest: Glsn,
    /// The oldest moment at which every keyspace can be read.
    pub oldest: Glsn,
    /// Open snapshots and transactions.
    pub open_snapshots: u64,
    /// Number of keyspaces.
    pub keyspaces: u64,
    /// Total bytes of the store's files.
    pub disk_bytes: u64,
    /// Warnings from opening the store: commits whose time is far ahead of the clock, bytes behind
    /// the end of a segment's contents, an ignored warm image.
    pub warnings: Vec<String>,
}

/// Bounds of the log's contents.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// let glsn = db.put(&notes, "a", "one")?;
/// let LogBounds { first, next, durable, .. } = db.log().bounds();
/// assert!(first <= glsn && glsn < next && glsn <= durable);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogBounds {
    /// The lowest GLSN that is not trimmed.
    pub first: Glsn,
    /// The GLSN that the next entry will get.
    pub next: Glsn,
    /// Every entry up to here survives a power cut.
    pub durable: Glsn,
}

/// Counters of the index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexStats {
    /// Bytes in memtables, flushed or not.
    pub memtable_bytes: u64,
    /// Memtables, the active one included.
    pub memtables: u64,
    /// Bytes of the files of each run of current versions, newest run first.
    pub runs: Vec<u64>,
    /// Read amplification: the greatest number of these runs that can hold one key. Writers are
    /// slowed down by it.
    pub depth: u64,
    /// Bytes of the files of each run of superseded versions.
    pub history_runs: Vec<u64>,
    /// Bytes of the pages of all runs, uncompressed.
    pub page_bytes: u64,
    /// Ranges of keys whose deletion is not applied to all runs yet.
    pub deleted_ranges: u64,
    /// Tables in all runs.
    pub tables: u64,
    /// Versions in all runs.
    pub versions: u64,
    /// Bytes that user commits put into memtables (keys and stored values).
    pub bytes_in: u64,
    /// Bytes written by flushes.
    pub bytes_flushed: u64,
    /// Bytes read by compactions.
    pub bytes_compaction_read: u64,
    /// Bytes written by compactions.
    pub bytes_compaction_written: u64,
    /// Flushes done.
    pub flushes: u64,
    /// Compactions done.
    pub compactions: u64,
    /// Writer stalls.
    pub stalls: StallStats,
    /// Error of the last flush or compaction, if it failed. It is retried; after damage, compaction
    /// waits for the next open.
    pub last_error: Option<String>,
}

/// Waits for one cause since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waits {
    /// Number of waits.
    pub times: u64,
    /// Total duration in nanoseconds.
    pub nanos: u64,
}

/// Writer stalls since the store was opened, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StallStats {
    /// No room in a memtable: the maximum number of memtables was waiting for a flush, or the
    /// budget was exhausted. The writer flushed, or waited for the one that did.
    pub room: Waits,
    /// Slowed down because a flush lags behind while the active memtable fills up.
    pub flush_pace: Waits,
    /// Slowed down because merges lag behind: too many runs can hold one key.
    pub merge_pace: Waits,
    /// Stopped until merges catch up: so many runs can hold one key that an iterator over them
    /// would need too many pages at once.
    pub depth: Waits,
}

impl StallStats {
    /// Total of all waits.
    pub fn total(&self) -> Waits {
        [self.room, self.flush_pace, self.merge_pace, self.depth].iter().fold(
            Waits::default(),
            |sum, one| Waits { times: sum.times + one.times, nanos: sum.nanos + one.nanos },
        )
    }
}

/// Activity of warm restart since the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WarmStats {
    /// Whether warm restart is enabled.
    pub on: bool,
    /// Whether the restore from the image is still running.
    pub restoring: bool,
    /// Pages read because the image named them.
    pub pages_restored: u64,
    /// Pages named by the image that no longer exist, because their file was compacted away.
    pub pages_gone: u64,
    /// Rows restored from the image.
    pub rows_restored: u64,
    /// Rows of the image that were not restored, because the runs may hold newer versions.
    pub rows_stale: u64,
    /// Segments of the image written.
    pub segments_written: u64,
    /// Bytes of these segments.
    pub bytes_written: u64,
    /// Error of the last write of the image, if it failed; it is retried.
    pub last_error: Option<String>,
}

/// Current read mode of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IoStats {
    /// The mode set in the options.
    pub asked: Io,
    /// Whether reads currently go through the page cache.
    pub cached: bool,
    /// Number of mode changes since the store was opened.
    pub switches: u64,
    /// Latest measurement of free memory: the minimum over the machine and each cgroup, minus the
    /// memory that the budget allows but that is not in use yet. `None` if the mode is fixed.
    pub room_bytes: Option<u64>,
}
