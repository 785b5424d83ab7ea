//! Shared by all owners of the index: its location and settings, the process's role, signals and
//! counters.

pub(crate) mod counters;
pub(crate) mod moment_set;
pub(crate) mod role;
pub(crate) mod signals;
pub(crate) mod stalls;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use plimsoll_disk::clock::Clock;
use plimsoll_disk::job_pool::JobPool;
use plimsoll_disk::vfs::Disk;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Budget;
use plimsoll_memory::pool::Pool;

use crate::index::env::counters::Counters;
use crate::index::env::moment_set::MomentSet;
use crate::index::env::role::Role;
use crate::index::env::signals::Signals;
use crate::rowcache::RowCache;
use crate::types::error::Error;
use crate::types::keyspaces::Keyspaces;

/// The environment of the index: its location, its services and its settings.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The index's folder, which exists.
    pub(crate) dir: PathBuf,
    pub(crate) budget: Budget,
    pub(crate) pool: Arc<Pool>,
    pub(crate) log: Arc<FileLog>,
    /// How keyspaces are compressed.
    pub(crate) keyspaces: Arc<Keyspaces>,
    /// Notified when keys enter the runs, so that cached rows of older versions are invalidated.
    pub(crate) row_cache: Arc<RowCache>,
    /// Size at which a memtable is flushed; `None`: a share of the budget.
    pub(crate) memtable_bytes: Option<u64>,
    /// Size in bytes at which a table is cut.
    pub(crate) table_bytes: u64,
    /// Bytes of input that one step of compaction processes.
    pub(crate) step_bytes: u64,
    /// Whether this process changes the files.
    pub(crate) role: Role,
    /// Whether flush and compaction are jobs of the job pool. If not, `reserve` flushes when
    /// necessary, and the owner calls the steps.
    pub(crate) background: bool,
    pub(crate) job_pool: Arc<JobPool>,
}

/// The moments that must stay readable, and the values that must be moved.
pub(crate) trait Horizon: Send + Sync {
    /// The moments at which `keyspace` must stay readable. A version may be dropped if none of them
    /// sees it; a deletion, if it is at or below their floor and none of them sees a version that
    /// it hides. The set contains the moment of every open transaction. It may grow at any time,
    /// for example when a past snapshot is opened.
    fn retained(&self, keyspace: u32) -> MomentSet;

    /// Whether moments of `keyspace` may become unreadable without a change of its settings.
    fn may_give_up(&self, _keyspace: u32) -> bool {
        true
    }

    /// Returns a moment at or below `oldest` (a retained moment of a keyspace), and a time in
    /// microseconds since 1970 UTC. Every read at that moment or a later one judges expiries by
    /// that time or a later one. `Glsn::NONE`: no such moment is known.
    fn expired(&self, _oldest: Glsn) -> (Glsn, u64) {
        (Glsn::NONE, 0)
    }

    /// The log below this GLSN is to be freed: compaction copies live values that point below it
    /// into a blob file of plain bytes. `Glsn::NONE`: nothing is to be freed.
    fn relocate_below(&self) -> Glsn;

    /// The part of [`Horizon::relocate_below`] that was requested. Merges move these values as
    /// well, and fail if they cannot.
    fn must_relocate_below(&self) -> Glsn {
        self.relocate_below()
    }

    /// An unrequested relocation below `below` has failed. The values stay where they are for a
    /// while, or for good if something is damaged.
    fn stop_relocating(&self, _below: Glsn, _error: &Error) {}
}

/// Frees the segments of the log that can be freed, unless past versions are retained, and leaves
/// the others to later calls. The argument: whether the memtable may be closed to free more.
pub(crate) type FreeLog = Box<dyn Fn(bool) + Send + Sync>;

/// Makes a commit in an idle store if values have expired by the clock. The commit advances log
/// time past their expiry, so that merges can free their space.
pub(crate) type AdvanceTime = Box<dyn Fn() + Send + Sync>;

/// The state that all owners of the index share.
pub(crate) struct Env {
    pub(crate) context: Context,
    pub(crate) horizon: Arc<dyn Horizon>,
    pub(crate) signals: Signals,
    pub(crate) counters: Counters,
    /// Set when the store is open.
    free_log: OnceLock<FreeLog>,
    /// Set when the store is open, if it has background work.
    advance_time: OnceLock<AdvanceTime>,
}

impl Env {
    pub(crate) fn new(context: Context, horizon: Arc<dyn Horizon>) -> Self {
        Self {
            context,
            horizon,
            signals: Signals::default(),
            counters: Counters::default(),
            free_log: OnceLock::new(),
            advance_time: OnceLock::new(),
        }
    }

    /// Which process changes the files.
    pub(crate) fn role(&self) -> &Role {
        &self.context.role
    }

    /// Sets the function that frees the log. The index calls the function in the background when
    /// its runs have changed.
    pub(crate) fn free_log_by(&self, free_log: FreeLog) {
        let _ = self.free_log.set(free_log);
    }

    /// Frees as much of the log as possible; with `may_flush`, closes the memtable if that frees
    /// more.
    pub(crate) fn free_log(&self, may_flush: bool) {
        if let Some(free_log) = self.free_log.get() {
            free_log(may_flush);
        }
    }

    /// Sets the function that advances log time. The index calls the function in the background
    /// while it is idle.
    pub(crate) fn advance_time_by(&self, advance_time: AdvanceTime) {
        let _ = self.advance_time.set(advance_time);
    }

    /// Advances log time if that frees the space of expired values.
    pub(crate) fn advance_time(&self) {
        if !self.signals.is_closing()
            && let Some(advance_time) = self.advance_time.get()
        {
            advance_time();
        }
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Env({})", self.context.dir.display())
    }
}

/// The outcome of one step of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// There was nothing to do.
    Idle,
    /// Something was done; there may be more.
    Worked,
}
