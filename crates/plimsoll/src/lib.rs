//! Plimsoll: an embedded, versioned, transactional key-value store.
//!
//! **The log is the truth; everything else is a cache of it, and all caches together stay under one line.** A user gives it a folder
//! and one number, the memory budget, and it keeps to that number: through bulk loads, scans, large transactions and recovery.
//!
//! - [`Db::open`] opens or makes a store; [`Db::keyspace`] names a set of keys in it.
//! - [`Db::begin`] starts a [`Transaction`]: optimistic, serializable, as large as the disk allows.
//! - [`Db::snapshot`] and [`Db::snapshot_at`] read the store as it is, and as it was.
//! - [`Db::history`] and [`Db::diff`] tell what changed; [`Db::log`] is the change feed, and carries streams of the user's own.
//! - [`Db::verify`], [`Db::backup`], [`rebuild`] and [`salvage`] look after the bytes.
//!
//! Keys have up to 4 KiB and compare as bytes, values up to 1 GiB. Every call may be made from many threads at once.

mod backup;
#[doc(hidden)]
pub mod borders;
mod checkpoints;
mod collect_stats;
mod commit;
mod committer;
mod cursor_commits;
mod cursors;
mod damage;
mod db;
mod diagnose;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod history;
mod index;
mod io;
mod io_choice;
mod keyspace_commits;
mod keyspaces;
mod machine_memory;
mod memory_limit;
mod objects;
mod open;
mod options;
mod own_writes;
mod patience;
mod payload;
mod range;
mod read_path;
mod read_set;
mod reader;
mod repair;
mod replay;
mod retention;
mod run;
mod salvage_drop;
mod salvage_index;
mod sequencer;
mod sizes;
mod skip;
mod snapshot;
mod snapshots;
mod span;
mod spill;
mod stats;
mod steps;
mod store;
mod transaction;
mod trim;
mod upkeep;
mod user_log;
mod value;
mod value_buffer;
mod verify;
mod verify_values;
mod version;
mod warm;
mod write_path;
mod write_set;

pub use backup::BackupReport;
pub use commit::{Commit, Op, OpChange};
pub use cursors::CursorInfo;
pub use damage::{Damage, DamagedKey, DamagedKeys};
pub use db::Db;
pub use error::{Error, Result};
pub use history::{Change, Diff, History, VersionInfo};
pub use io::Io;
pub use keyspaces::{DropReport, Keyspace, KeyspaceInfo};
#[doc(hidden)]
pub use options::Sizes;
pub use options::{Durability, MIN_MEMORY_BYTES, Options, Retention};
pub use payload::MAX_METADATA_BYTES;
pub use range::Range;
pub use read_path::ValueReader;
pub use repair::{RebuildReport, SalvageReport, rebuild, salvage};
pub use salvage_drop::{DropSalvageReport, DropTarget, salvage_drop};
pub use salvage_index::{IndexSalvageReport, salvage_from_index};
pub use sizes::KeyspaceSize;
pub use skip::Skipped;
pub use snapshot::{Moment, Snapshot};
pub use stats::{
    EvictorStats, IndexStats, IoStats, LogBounds, MemoryStats, ObjectStats, OpeningStats, PoolStats, PressureStats,
    StallStats, Stats, Waits, WarmStats,
};
pub use transaction::Transaction;
pub use user_log::{DROPPED_STREAM, Log, LogEntry, LogEntryRef, LogFollow, LogScan};
pub use value::Value;
pub use verify::{VerifyProgress, VerifyReport, verify};
pub use version::{INLINE_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES};
pub use warm::image::{WarmImage, delete_warm_image, warm_image};
pub use write_path::CommitTicket;
