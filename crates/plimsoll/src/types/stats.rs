//! Statistics: who uses how much memory, how often something happened, and how far the store has come.

use crate::types::io::Io;
use plimsoll_log::glsn::Glsn;

/// Memory under the budget.
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
    /// Bytes that nobody holds.
    pub free_bytes: u64,
    /// The most bytes that were held at once since the store was opened.
    pub peak_bytes: u64,
    /// Bytes held, by what they are for.
    pub by_kind: Vec<(&'static str, u64)>,
}

/// How often memory was short since the store was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PressureStats {
    /// Pages that somebody who missed a page had to evict himself, because no frame was free.
    pub inline_page_evictions: u64,
    /// Times that somebody who wanted other memory found none free, and made the pool evict.
    pub inline_chunk_evictions: u64,
    /// Times that somebody waited for memory.
    pub waits: u64,
    /// Times that somebody was refused memory; most then flush, spill or coarsen, and go on.
    pub refusals: u64,
}

/// What the evictor did since the store was opened; zeros where it is switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EvictorStats {
    /// Batches of pages evicted.
    pub rounds: u64,
    /// Pages evicted.
    pub victims: u64,
    /// Bytes made free.
    pub bytes: u64,
    /// Of these, bytes for other things than pages.
    pub chunk_bytes: u64,
    /// Times it was woken because free frames for pages were few.
    pub woken_for_frames: u64,
    /// Times it was woken because memory for other things was low.
    pub woken_for_chunks: u64,
    /// Times it was woken by somebody who had to evict for himself.
    pub woken_inline: u64,
    /// Nanoseconds from a call to the first room, on average.
    pub reaction_nanos: u64,
    /// Bytes that it keeps free for pages, and for other things, at the measured rate.
    pub room_bytes: (u64, u64),
}

/// The page pool since the store was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Pages found in memory.
    pub hits: u64,
    /// Pages read from disk.
    pub loads: u64,
    /// Of these, pages read ahead of a scan.
    pub read_ahead: u64,
    /// Times that a reader waited for a page that another was loading.
    pub waits: u64,
    /// Pages evicted, by whomever.
    pub evictions: u64,
    /// Pages in memory now.
    pub resident_pages: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
}

/// Values kept as rows rather than by their pages, since the store was opened; zeros where they are switched off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowCacheStats {
    /// Reads answered by a row.
    pub hits: u64,
    /// Reads that had to go to the pages.
    pub misses: u64,
    /// RowCache that entered.
    pub insertions: u64,
    /// RowCache that left to make room.
    pub evictions: u64,
    /// RowCache now.
    pub entries: u64,
    /// Bytes of these rows, with their keys and headers.
    pub live_bytes: u64,
    /// Memory that they take with everything counted.
    pub held_bytes: u64,
    /// What they may take now: their share of what pages and rows have together.
    pub limit_bytes: u64,
    /// RowCache that were wanted again soon after they left: reads that more room for rows would have spared.
    pub returns: u64,
    /// Pages that were loaded again soon after they left: reads that more room for pages would have spared.
    pub page_returns: u64,
    /// Steps by which room moved from pages to rows.
    pub steps_to_rows: u64,
    /// Steps by which room moved back.
    pub steps_to_pages: u64,
}

/// What it took to open the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpeningStats {
    /// Nanoseconds in all.
    pub nanos: u64,
    /// Of these, nanoseconds until the log was open: its newest segment is read for that.
    pub log_nanos: u64,
    /// Of these, nanoseconds until the transactions that no run held yet were in memory again.
    pub replay_nanos: u64,
    /// Transactions that were put into memory again: those that a process left which did not close the store.
    pub replayed: u64,
    /// Bytes of their entries in the log.
    pub replayed_bytes: u64,
}

/// Everything that is counted.
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
    /// What opening took.
    pub opening: OpeningStats,
    /// Memory under the budget.
    pub memory: MemoryStats,
    /// How often memory was short.
    pub pressure: PressureStats,
    /// Who keeps room in memory.
    pub evictor: EvictorStats,
    /// The page pool.
    pub pool: PoolStats,
    /// Values kept as rows.
    pub row_cache: RowCacheStats,
    /// The log.
    pub log: LogBounds,
    /// The index.
    pub index: IndexStats,
    /// How files are read.
    pub io: IoStats,
    /// The warm image.
    pub warm: WarmStats,
    /// The newest moment that can be read.
    pub newest: Glsn,
    /// The oldest moment at which every keyspace can be read.
    pub oldest: Glsn,
    /// Snapshots and transactions that are open.
    pub open_snapshots: u64,
    /// Keyspaces.
    pub keyspaces: u64,
    /// Bytes of all files of the store.
    pub disk_bytes: u64,
    /// What opening the store had to say: a torn tail that was cut, a clock that jumped, a warm image that is ignored.
    pub warnings: Vec<String>,
}

/// What the log holds.
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
    /// The first GLSN that is not trimmed.
    pub first: Glsn,
    /// The GLSN that the next entry will get.
    pub next: Glsn,
    /// Everything up to here survives a power cut.
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
    /// Runs of current versions, newest first: bytes of each.
    pub runs: Vec<u64>,
    /// The most of these runs that one key can lie in: what a read may have to ask, and what writers are paced by.
    pub depth: u64,
    /// Runs of superseded versions: bytes of each.
    pub history_runs: Vec<u64>,
    /// Tables in all runs.
    pub tables: u64,
    /// Versions in all runs.
    pub versions: u64,
    /// Bytes that users' commits put into memtables (keys and stored values).
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
    /// What writers waited for.
    pub stalls: StallStats,
    /// Why the last flush or compaction failed, if it did. It is tried again; after damage compaction waits for the next open.
    pub last_error: Option<String>,
}

/// Waits for one thing since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waits {
    /// How many there were.
    pub times: u64,
    /// How long they took together, in nanoseconds.
    pub nanos: u64,
}

/// What writers waited for since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StallStats {
    /// Room for what was written: as many memtables waited to be flushed as may, or the budget had no memory for more, and the writer flushed,
    /// or stood behind the one who did.
    pub room: Waits,
    /// Slowed down because a flush lags behind and the active memtable fills up meanwhile.
    pub flush_pace: Waits,
    /// Slowed down because merges lag behind: a key may lie in many runs.
    pub merge_pace: Waits,
    /// Stopped until merges have caught up: a key may lie in so many runs that a walk over them would need too many pages at once.
    pub depth: Waits,
}

impl StallStats {
    /// All of them together.
    pub fn total(&self) -> Waits {
        [self.room, self.flush_pace, self.merge_pace, self.depth]
            .iter()
            .fold(Waits::default(), |sum, one| Waits { times: sum.times + one.times, nanos: sum.nanos + one.nanos })
    }
}

/// What the warm image did since the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WarmStats {
    /// Whether the store takes in and writes a warm image.
    pub on: bool,
    /// Whether the image that was found is still being taken in.
    pub restoring: bool,
    /// Pages that were read because the image named them.
    pub pages_restored: u64,
    /// Pages that the image named and that are not there any more: their file was compacted away.
    pub pages_gone: u64,
    /// RowCache that are kept again because the image had them.
    pub rows_restored: u64,
    /// RowCache that the image had and that were left out, because younger versions may be in the runs.
    pub rows_doubted: u64,
    /// Segments of the image that were written.
    pub segments_written: u64,
    /// Bytes of these.
    pub bytes_written: u64,
    /// Why the image could not be written the last time, if it could not; it is tried again.
    pub last_error: Option<String>,
}

/// How the store reads now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IoStats {
    /// As the options say.
    pub asked: Io,
    /// Whether reads go through the page cache now.
    pub cached: bool,
    /// How often that changed since the store was opened.
    pub switches: u64,
    /// The least free memory that was found last, of the machine and of each cgroup, without what the budget may still take; `None` where nothing is chosen.
    pub room_bytes: Option<u64>,
}
