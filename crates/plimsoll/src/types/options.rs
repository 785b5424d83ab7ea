//! What a user can choose when a store is opened.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::room::{OsRoomGauge, RoomGauge};
use plimsoll_disk::vfs::Disk;
use plimsoll_log::draft::MAX_BODY_BYTES;

use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::io::Io;
pub use crate::types::machine_memory::MIN_MEMORY_BYTES;
use crate::types::machine_memory::default_memory_bytes;
use crate::types::retention::Retention;

/// What a segment may need beside a record's body: its header, the record's, a mark, and what is lost at the ends of blocks.
const SEGMENT_OVERHEAD_BYTES: u64 = 48 << 10;

/// How often the warm image is written.
const WARM_INTERVAL: Duration = Duration::from_secs(30);

/// The least time between two images: each looks over all frames.
const MIN_WARM_INTERVAL: Duration = Duration::from_millis(100);

/// What may be read or written of it in a second, and the least that makes sense.
const WARM_BYTES_PER_SECOND: u64 = 256 << 20;
const MIN_WARM_BYTES_PER_SECOND: u64 = 64 << 10;

/// When a commit counts as done.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// # db.close()?;
/// let db = Db::open(&path, Options::new().memory_bytes(16 << 20).durability(Durability::Buffered))?;
/// let notes = db.keyspace("notes")?;
/// db.put(&notes, "a", "a crash may lose it")?;
/// db.flush()?;
/// assert_eq!(db.log().bounds().durable, db.newest());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When it survives a power cut (the default). Commits that wait at the same time share one sync.
    #[default]
    Sync,
    /// As soon as it is ordered and visible. It is synced within about 200 ms and at close; a crash may lose the newest commits, always
    /// a suffix: what is left is some earlier moment of the store, whole.
    Buffered,
}

/// Sizes at which the store begins something new. Only simulations need others than the defaults: theirs are so small that much
/// happens in a short run.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "testing"), allow(unreachable_pub, reason = "simulations reach it"))]
pub struct Sizes {
    /// A table file of a run is full.
    pub table_bytes: u64,
    /// A step of compaction ends after so many bytes of input.
    pub step_bytes: u64,
    /// A transaction that wrote more is spilled; by default a share of the budget.
    pub write_set_bytes: Option<u64>,
    /// A transaction that read more remembers it in less detail; by default a share of the budget.
    pub read_set_bytes: Option<u64>,
    /// A step of taking a warm image in ends after so many pages that were read to find out what is true.
    pub restore_loads: u64,
}

#[cfg_attr(not(feature = "testing"), allow(unreachable_pub, reason = "simulations reach it"))]
impl Sizes {
    /// What every user has.
    pub const USUAL: Sizes = Sizes {
        table_bytes: 64 << 20,
        step_bytes: 4 << 20,
        write_set_bytes: None,
        read_set_bytes: None,
        restore_loads: 64,
    };
}

/// How a store is opened.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # db.close()?;
/// let options = Options::new()
///     .memory_bytes(64 << 20)
///     .durability(Durability::Buffered)
///     .retention(Retention::Latest);
/// let db = Db::open(&path, options)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) memory_bytes: u64,
    pub(crate) durability: Durability,
    pub(crate) read_only: bool,
    pub(crate) create: bool,
    pub(crate) retention: Retention,
    pub(crate) background: bool,
    pub(crate) evictor: bool,
    pub(crate) row_cache: bool,
    pub(crate) memtable_bytes: Option<u64>,
    pub(crate) segment_bytes: Option<u64>,
    pub(crate) warm: bool,
    pub(crate) warm_interval: Duration,
    pub(crate) warm_bytes_per_second: u64,
    pub(crate) sizes: Sizes,
    pub(crate) io: Io,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) room_gauge: Arc<dyn RoomGauge>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory_bytes: default_memory_bytes(),
            durability: Durability::Sync,
            read_only: false,
            create: true,
            retention: Retention::Forever,
            background: true,
            evictor: true,
            row_cache: true,
            memtable_bytes: None,
            segment_bytes: None,
            warm: true,
            warm_interval: WARM_INTERVAL,
            warm_bytes_per_second: WARM_BYTES_PER_SECOND,
            sizes: Sizes::USUAL,
            io: Io::Auto,
            disk: Arc::new(OsDisk::new()),
            clock: Arc::new(SystemClock::new()),
            room_gauge: Arc::new(OsRoomGauge),
        }
    }
}

impl Options {
    /// The defaults: a quarter of the container's memory limit (or of the machine's memory), commits that survive a power cut, a store
    /// that is made if it is not there, and every version kept.
    pub fn new() -> Self {
        Self::default()
    }

    /// The memory budget in bytes: everything that grows with data stays below it. At least [`MIN_MEMORY_BYTES`].
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// When a commit counts as done.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Opens without changing anything on disk; works beside a process that writes. It sees what was durable when it was opened.
    /// What that process drops from then on (by a keyspace's retention, by a trim) is [`crate::Error::Trimmed`] here: open the store again to see what
    /// there is now.
    pub fn read_only(mut self, yes: bool) -> Self {
        self.read_only = yes;
        self
    }

    /// Whether a store is made where there is none (the default), or that is an error.
    pub fn create(mut self, yes: bool) -> Self {
        self.create = yes;
        self
    }

    /// Which past versions keyspaces keep that are made from now on without saying so themselves, and the keyspace "default" for as long as
    /// [`crate::Db::set_retention`] has not been called for it.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Whether flush and compaction run in threads of their own (the default). If not, writers flush where they must, and the owner
    /// calls `Db::step`.
    #[cfg(any(test, feature = "testing"))]
    pub fn background(mut self, yes: bool) -> Self {
        self.background = yes;
        self
    }

    /// Whether room is made ahead of those who need it (the default); if not, everybody evicts for himself. For measuring.
    pub fn evictor(mut self, yes: bool) -> Self {
        self.evictor = yes;
        self
    }

    /// Whether hot values are kept as rows where memory is too short for the pages that they stand in (the default). If not, all memory
    /// that nobody else needs holds pages. For measuring.
    pub fn row_cache(mut self, yes: bool) -> Self {
        self.row_cache = yes;
        self
    }

    /// Bytes at which a memtable is flushed; by default a share of the budget.
    pub fn memtable_bytes(mut self, bytes: u64) -> Self {
        self.memtable_bytes = Some(bytes);
        self
    }

    /// Bytes of a segment of the log, 64 KiB to 1 GiB; 64 MiB by default.
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes = Some(bytes);
        self
    }

    /// Whether what is hot is there again after a restart (the default): an image of it is written now and then and at close, and taken in in the
    /// background after opening. Without it the image that is there is left alone.
    pub fn warm(mut self, yes: bool) -> Self {
        self.warm = yes;
        self
    }

    /// How often the warm image is written, where something changed: what was hot in the last interval is lost to a kill. 30 seconds by
    /// default, at least 100 ms.
    pub fn warm_interval(mut self, interval: Duration) -> Self {
        self.warm_interval = interval;
        self
    }

    /// What may be read in a second to become warm, and written to stay so; 256 MiB by default, at least 64 KiB. Less is kinder to those who read
    /// right after a restart, more makes them warm sooner.
    pub fn warm_bytes_per_second(mut self, bytes: u64) -> Self {
        self.warm_bytes_per_second = bytes;
        self
    }

    /// Whether reads go through the system's page cache, past it, or either as memory is free (the default). The page cache is not part of the budget: the
    /// system takes its memory back when it is wanted for something else.
    pub fn io(mut self, io: Io) -> Self {
        self.io = io;
        self
    }

    /// Other sizes than the usual ones: for simulations.
    #[doc(hidden)]
    #[cfg(any(test, feature = "testing"))]
    pub fn sizes(mut self, sizes: Sizes) -> Self {
        self.sizes = sizes;
        self
    }

    /// Runs the store on another disk and clock: for simulations.
    #[doc(hidden)]
    #[cfg(any(test, feature = "testing"))]
    pub fn world(mut self, disk: Arc<dyn Disk>, clock: Arc<dyn Clock>) -> Self {
        self.disk = disk;
        self.clock = clock;
        self
    }

    /// Learns from another gauge how much memory is free: for tests.
    #[doc(hidden)]
    #[cfg(any(test, feature = "testing"))]
    pub fn room_gauge(mut self, gauge: Arc<dyn RoomGauge>) -> Self {
        self.room_gauge = gauge;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_memory_bytes(self.memory_bytes)?;
        if let Some(bytes) = self.segment_bytes
            && !(64 << 10..=1 << 30).contains(&bytes)
        {
            return Err(Error::invalid(format!("a segment has 64 KiB to 1 GiB, not {bytes} bytes")));
        }
        if self.warm_bytes_per_second < MIN_WARM_BYTES_PER_SECOND {
            return Err(Error::invalid(format!(
                "a warm image needs an allowance of at least 64 KiB a second, not {} bytes; to do without it, switch it off",
                self.warm_bytes_per_second
            )));
        }
        if self.warm_interval < MIN_WARM_INTERVAL {
            return Err(Error::invalid(format!(
                "a warm image is written every 100 ms at most, not every {:?}; to do without it, switch it off",
                self.warm_interval
            )));
        }
        Ok(())
    }

    pub(crate) fn segment_limit_bytes(&self) -> u64 {
        self.segment_bytes.unwrap_or(64 << 20)
    }

    /// What a transaction may hold of its writes under a budget.
    pub(crate) fn write_set_limit_bytes(&self, memory_bytes: u64) -> u64 {
        self.sizes.write_set_bytes.unwrap_or_else(|| (memory_bytes / 8).clamp(1 << 20, 64 << 20))
    }

    /// What a transaction may hold of what it read.
    pub(crate) fn read_set_limit_bytes(&self, memory_bytes: u64) -> u64 {
        self.sizes.read_set_bytes.unwrap_or_else(|| (memory_bytes / 64).clamp(128 << 10, 16 << 20))
    }

    /// The most bytes of a record's body: it must fit into a segment, beside what the log itself needs there.
    pub(crate) fn body_limit_bytes(&self) -> u64 {
        (self.segment_limit_bytes() - SEGMENT_OVERHEAD_BYTES).min(MAX_BODY_BYTES as u64)
    }
}

/// Refuses a budget below the minimum.
pub(crate) fn check_memory_bytes(bytes: u64) -> Result<()> {
    if bytes >= MIN_MEMORY_BYTES {
        return Ok(());
    }
    Err(InvalidInput::BudgetTooSmall { bytes, min_bytes: MIN_MEMORY_BYTES }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_that_would_do_nothing_but_write_is_refused() {
        assert!(Options::new().warm_interval(Duration::ZERO).check().is_err());
        assert_eq!(Options::new().warm_interval(MIN_WARM_INTERVAL).check(), Ok(()));
    }

    #[test]
    fn an_allowance_below_a_segment_a_second_is_refused() {
        assert!(Options::new().warm_bytes_per_second(MIN_WARM_BYTES_PER_SECOND - 1).check().is_err());
        assert_eq!(Options::new().warm_bytes_per_second(MIN_WARM_BYTES_PER_SECOND).check(), Ok(()));
    }

    #[test]
    fn a_budget_below_the_minimum_is_refused_with_the_minimum() {
        let refusal = Options::new().memory_bytes(MIN_MEMORY_BYTES - 1).check().unwrap_err();
        assert!(refusal.to_string().contains("16 MiB"), "{refusal}");
        assert_eq!(Options::new().memory_bytes(MIN_MEMORY_BYTES).check(), Ok(()));
    }
}
