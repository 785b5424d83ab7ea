//! Options for opening a store.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::free_memory::{OsRoomGauge, RoomGauge};
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::Disk;
use plimsoll_log::draft::MAX_BODY_BYTES;
pub use plimsoll_log::members::MAX_PROCESSES;

use crate::order::Order;
use crate::types::compression::Compression;
use crate::types::error::Result;
use crate::types::invalid_input::InvalidInput;
use crate::types::io::Io;
pub use crate::types::machine_memory::MIN_MEMORY_BYTES;
use crate::types::machine_memory::default_memory_bytes;
use crate::types::retention::Retention;
use crate::types::sizes::Sizes;

/// Space in a segment beyond a record's body: the segment's header, the record's header, a mark,
/// and padding at the ends of blocks.
const SEGMENT_OVERHEAD_BYTES: u64 = 48 << 10;

/// Default interval between two writes of the warm image.
const WARM_INTERVAL: Duration = Duration::from_secs(30);

/// Minimum interval between two warm images, because each scans all frames.
const MIN_WARM_INTERVAL: Duration = Duration::from_millis(100);

/// Default limit in bytes per second for reading and for writing the warm image, and the minimum of
/// that limit.
const WARM_BYTES_PER_SECOND: u64 = 256 << 20;
const MIN_WARM_BYTES_PER_SECOND: u64 = 64 << 10;

/// The default of [`Options::order_timeout`].
const ORDER_TIMEOUT: Duration = Duration::from_secs(10);

/// The minimum size of the segments of a replica: each record of any replica fits into one.
const MIN_ORDERED_SEGMENT_BYTES: u64 = 2 << 20;

/// When a commit is acknowledged.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// # db.close()?;
/// let options = Options::new().memory_bytes(16 << 20).durability(Durability::Buffered);
/// let db = Db::open(&path, options)?;
/// let notes = db.keyspace("notes")?;
/// db.put(&notes, "a", "a crash may lose it")?;
/// db.sync()?;
/// assert_eq!(db.log().bounds().durable, db.newest());
/// # Ok(())
/// # }
/// ```
pub use plimsoll_log::durability::Durability;

/// Options for opening a store.
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
    /// Whether the caller has set the memory budget.
    pub(crate) has_memory_bytes: bool,
    pub(crate) durability: Durability,
    pub(crate) read_only: bool,
    pub(crate) shared: bool,
    pub(crate) memory_total: Option<u64>,
    pub(crate) order: Option<Arc<dyn Order>>,
    pub(crate) order_timeout: Duration,
    pub(crate) max_staleness: Option<Duration>,
    pub(crate) create: bool,
    pub(crate) retention: Retention,
    pub(crate) compression: Compression,
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
            has_memory_bytes: false,
            durability: Durability::Sync,
            read_only: false,
            shared: false,
            memory_total: None,
            order: None,
            order_timeout: ORDER_TIMEOUT,
            max_staleness: None,
            create: true,
            retention: Retention::Forever,
            compression: Compression::None,
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
    /// The defaults: a quarter of the container's memory limit (or of the machine's memory),
    /// commits that survive a power cut, a store created if there is none, and every version kept.
    pub fn new() -> Self {
        Self::default()
    }

    /// The memory budget in bytes: total size limit of everything that grows with the data. At
    /// least [`MIN_MEMORY_BYTES`].
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        (self.memory_bytes, self.has_memory_bytes) = (bytes, true);
        self
    }

    /// When a commit is acknowledged.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Opens the store without changing anything on disk; works while another process writes. Shows
    /// the state that was durable at opening; with [`Options::shared`] the newest state at each
    /// read. Commits that the writer has not flushed yet are read from the log and held in memory.
    /// They take as much memory as the writer's memtables, each of which has an eighth of the
    /// writer's budget, at most 64 MiB. With a budget too small for them, opening fails with
    /// [`crate::Error::OutOfBudget`]. Reads of
    /// data that the writer drops later (by a keyspace's retention or a trim) fail with
    /// [`crate::Error::Trimmed`]: reopen the store to see its current state.
    pub fn read_only(mut self, yes: bool) -> Self {
        self.read_only = yes;
        self
    }

    /// Whether other processes can have the store open at the same time, to read and to write, if
    /// they set this option too; [`MAX_PROCESSES`] processes in all. A commit of one process is
    /// visible to the others at once; transactions are serializable over all of them. While
    /// processes share the store, opening it without this option fails, and vice versa.
    /// `docs/explanation/processes.md` describes what is shared and what it costs.
    ///
    /// With [`Options::read_only`], the process follows the processes that share the store, even if
    /// none has opened it yet, and writes only its own entry in their list of members. Without
    /// permission to write to the folder it has no entry. The other processes then do not retain
    /// the versions that it reads, and reads of older moments can fail with
    /// [`crate::Error::Trimmed`].
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("store");
    /// use plimsoll::{Db, Options};
    ///
    /// // In each worker process: all workers together use at most 256 MiB.
    /// let db = Db::open(&path, Options::new().shared(true).memory_total(256 << 20))?;
    /// let users = db.keyspace("users")?;
    /// db.put(&users, b"ada", b"Ada Lovelace")?;
    /// # db.close()
    /// # }
    /// ```
    pub fn shared(mut self, yes: bool) -> Self {
        self.shared = yes;
        self
    }

    /// The total memory budget, in bytes, of all processes that have the store open with
    /// [`Options::shared`]. Each process gets an equal share, but no more than its own
    /// [`Options::memory_bytes`] if that is set as well; shares shrink and grow as processes open
    /// and close the store. The total that was given last applies to all. It must allow at least
    /// [`MIN_MEMORY_BYTES`] for each process.
    pub fn memory_total(mut self, bytes: u64) -> Self {
        self.memory_total = Some(bytes);
        self
    }

    /// Makes the store a replica: `order`, which is outside of it, orders the commits of all
    /// replicas, and makes them durable. A new store gets the contents that the order has, and an
    /// empty order begins with the contents of the store. From then on the store can be opened for
    /// writing only with this order. A read sees the commits of other replicas once these are
    /// applied here ([`Db::sync`](crate::Db::sync), [`Options::max_staleness`]). Every commit
    /// returns only once the order has it, even [`Transaction::commit_submit`], whose ticket is
    /// waited for later; [`Options::durability`] has no effect.
    ///
    /// Opening fails if [`Options::shared`] or [`Options::read_only`] is set as well, or segments
    /// below 2 MiB.
    ///
    /// [`Transaction::commit_submit`]: crate::Transaction::commit_submit
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use plimsoll::{Db, Options, order::Order};
    /// # fn example(order: Arc<dyn Order>) -> plimsoll::Result<()> {
    /// let db = Db::open("replica.plimsoll", Options::new().order(order))?;
    /// let users = db.keyspace("users")?;
    /// db.put(&users, "ann", "1")?;
    /// // Read what other replicas have committed until now.
    /// db.sync()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn order(mut self, order: Arc<dyn Order>) -> Self {
        self.order = Some(order);
        self
    }

    /// The time for which a commit of a replica waits for an order that is unavailable, before it
    /// fails with [`Error::Unavailable`](crate::Error::Unavailable) or
    /// [`Error::InDoubt`](crate::Error::InDoubt). By default 10 seconds.
    pub fn order_timeout(mut self, timeout: Duration) -> Self {
        self.order_timeout = timeout;
        self
    }

    /// A read of a replica first applies the commits of other replicas if they were last applied
    /// longer ago than this; with zero, every read does. The read fails with
    /// [`Error::Behind`](crate::Error::Behind) if the order is unavailable. By default no read
    /// waits: commits of others are applied in the background.
    pub fn max_staleness(mut self, age: Duration) -> Self {
        self.max_staleness = Some(age);
        self
    }

    /// Whether to create the store if there is none (the default). If not, a missing store is an
    /// error.
    pub fn create(mut self, yes: bool) -> Self {
        self.create = yes;
        self
    }

    /// The retention of keyspaces created from now on without one of their own, and of the keyspace
    /// "default" until [`crate::Db::set_retention`] is called for it.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// The compression of keyspaces created from now on, and of the keyspace "default" until
    /// [`crate::Db::set_compression`] is called for it. None by default.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Whether flush and compaction run in background threads (the default). If not, writers flush
    /// when they must, and the caller calls `Db::step`.
    #[cfg(any(test, feature = "testing"))]
    pub fn background(mut self, yes: bool) -> Self {
        self.background = yes;
        self
    }

    /// Whether a background evictor frees memory in advance (the default). If not, each thread
    /// evicts for itself. For measurements.
    pub fn evictor(mut self, yes: bool) -> Self {
        self.evictor = yes;
        self
    }

    /// Whether hot values are cached as rows when memory is too small for the pages that contain
    /// them (the default). If not, all memory without another use caches pages. For measurements.
    pub fn row_cache(mut self, yes: bool) -> Self {
        self.row_cache = yes;
        self
    }

    /// Size in bytes at which a memtable is flushed; by default a share of the budget.
    pub fn memtable_bytes(mut self, bytes: u64) -> Self {
        self.memtable_bytes = Some(bytes);
        self
    }

    /// Maximum size of a log segment in bytes, 64 KiB to 1 GiB; 64 MiB by default. If the log is
    /// trimmed automatically, segments end at 16 MiB or more while the index is small.
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.segment_bytes = Some(bytes);
        self
    }

    /// Enables warm restart (the default): the hot set is saved as an image, periodically and at
    /// close, and restored in the background after opening. If disabled, an existing image is left
    /// alone.
    pub fn warm(mut self, yes: bool) -> Self {
        self.warm = yes;
        self
    }

    /// Interval between writes of the warm image, if anything changed. A kill loses the changes to
    /// the hot set since the last write. 30 seconds by default, at least 100 ms.
    pub fn warm_interval(mut self, interval: Duration) -> Self {
        self.warm_interval = interval;
        self
    }

    /// Bandwidth limit in bytes per second for reading the warm image's data after opening, and for
    /// writing the image; 256 MiB by default, at least 64 KiB. Reading may use the allowance of the
    /// first second at once. A lower limit disturbs reads right after a restart less; a higher one
    /// warms the caches sooner.
    pub fn warm_bytes_per_second(mut self, bytes: u64) -> Self {
        self.warm_bytes_per_second = bytes;
        self
    }

    /// Whether reads use the system's page cache, direct I/O, or either depending on free memory
    /// (the default). The page cache is not part of the budget: the system reclaims it when memory
    /// is needed elsewhere.
    pub fn io(mut self, io: Io) -> Self {
        self.io = io;
        self
    }

    /// Replaces the default sizes, for simulations.
    #[doc(hidden)]
    #[cfg(any(test, feature = "testing"))]
    pub fn sizes(mut self, sizes: Sizes) -> Self {
        self.sizes = sizes;
        self
    }

    /// Runs the store on another disk and clock, for simulations and measurements.
    #[doc(hidden)]
    #[cfg(any(test, feature = "world"))]
    pub fn world(mut self, disk: Arc<dyn Disk>, clock: Arc<dyn Clock>) -> Self {
        self.disk = disk;
        self.clock = clock;
        self
    }

    /// Reads free memory from another gauge, for tests.
    #[doc(hidden)]
    #[cfg(any(test, feature = "testing"))]
    pub fn room_gauge(mut self, gauge: Arc<dyn RoomGauge>) -> Self {
        self.room_gauge = gauge;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_memory_bytes(self.memory_bytes)?;
        if let Some(bytes) = self.memory_total {
            check_memory_bytes(bytes)?;
        }
        if let Some(bytes) = self.segment_bytes
            && !(64 << 10..=1 << 30).contains(&bytes)
        {
            return Err(InvalidInput::SegmentSize { bytes }.into());
        }
        if self.order.is_some() {
            self.check_with_order()?;
        }
        if self.warm_bytes_per_second < MIN_WARM_BYTES_PER_SECOND {
            return Err(InvalidInput::WarmAllowanceTooSmall {
                bytes_per_second: self.warm_bytes_per_second,
            }
            .into());
        }
        if self.warm_interval < MIN_WARM_INTERVAL {
            return Err(InvalidInput::WarmIntervalTooShort { interval: self.warm_interval }.into());
        }
        self.compression.check()
    }

    fn check_with_order(&self) -> Result<()> {
        if self.shared {
            return Err(InvalidInput::OrderOfSharedStore.into());
        }
        if self.read_only {
            return Err(InvalidInput::OrderOfReader.into());
        }
        match self.segment_bytes {
            // Otherwise a record of another replica may be too long for a segment.
            Some(bytes) if bytes < MIN_ORDERED_SEGMENT_BYTES => {
                Err(InvalidInput::SegmentSizeWithOrder { bytes }.into())
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn segment_limit_bytes(&self) -> u64 {
        self.segment_bytes.unwrap_or(64 << 20)
    }

    /// Maximum size of a record's body, which must fit into a segment together with the log's own
    /// overhead.
    pub(crate) fn body_limit_bytes(&self) -> u64 {
        (self.segment_limit_bytes() - SEGMENT_OVERHEAD_BYTES).min(MAX_BODY_BYTES as u64)
    }
}

/// Rejects a budget below the minimum.
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
    fn an_interval_that_would_write_continuously_is_refused() {
        assert!(Options::new().warm_interval(Duration::ZERO).check().is_err());
        assert_eq!(Options::new().warm_interval(MIN_WARM_INTERVAL).check(), Ok(()));
    }

    #[test]
    fn an_allowance_below_a_segment_a_second_is_refused() {
        assert!(
            Options::new().warm_bytes_per_second(MIN_WARM_BYTES_PER_SECOND - 1).check().is_err()
        );
        assert_eq!(Options::new().warm_bytes_per_second(MIN_WARM_BYTES_PER_SECOND).check(), Ok(()));
    }

    #[test]
    fn a_budget_below_the_minimum_is_refused_with_the_minimum() {
        let refusal = Options::new().memory_bytes(MIN_MEMORY_BYTES - 1).check().unwrap_err();
        assert!(refusal.to_string().contains("16 MiB"), "{refusal}");
        assert_eq!(Options::new().memory_bytes(MIN_MEMORY_BYTES).check(), Ok(()));
    }
}
