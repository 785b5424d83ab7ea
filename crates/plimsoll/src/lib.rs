//! Plimsoll: an embedded, versioned, transactional key-value store.
//!
//! **The log is the source of truth; everything else is a cache of it, and all caches together stay
//! within one limit.** A user gives Plimsoll a folder and one number, the memory budget. Plimsoll
//! stays within that budget through bulk loads, scans, large transactions and recovery.
//!
//! - [`Db::open`] opens or makes a store; [`Db::keyspace`] names a set of keys in it.
//! - [`Db::begin`] starts a [`Transaction`]: optimistic, serializable, as large as the disk allows.
//! - [`Db::add`], [`Db::append`], [`Db::compare_and_swap`] and [`Db::update`] change a key without
//!   a conflict.
//! - [`Db::snapshot`] and [`Db::snapshot_at`] read the store as it is, and as it was.
//! - [`Db::tag`] names a moment, which then stays readable.
//! - [`Db::history`] and [`Db::diff`] list what changed; [`Log::commits`] and [`Db::watch`] are the
//!   change feed; [`Db::log`] also carries streams of the user's own.
//! - [`Db::revert`] undoes a commit, and [`Db::reset_to`] goes back to a moment, by a new commit.
//! - [`Db::create_branch`] begins a separate line of history; [`Db::merge`] merges a branch into
//!   another, and [`Db::cherry_pick`] applies one commit of a branch to another.
//! - [`Db::verify`], [`Db::backup`] and [`Db::recover`] check, copy and rescue a store.
//!
//! Keys have up to 4 KiB and compare as bytes, values up to 1 GiB. Every type can be sent to and
//! shared with other threads; one thread at a time writes into a transaction.

mod api;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod borders;
#[cfg(not(feature = "testing"))]
#[allow(unreachable_pub, reason = "simulations reach it")]
mod borders;
mod compression;
mod engine;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzz;
mod index;
mod merge;
pub mod order;
mod read;
mod rowcache;
mod sync;
mod txn;
mod types;
mod warm;

pub use plimsoll_disk::io_cause::IoCause;
pub use plimsoll_log::glsn::Glsn;
pub use plimsoll_memory::budget::{Kind as MemoryKind, OutOfBudget, Usage as MemoryUsage};

pub use api::admin::backup::BackupReport;
pub use api::admin::backup_options::BackupOptions;
pub use api::admin::dump::{DumpOptions, DumpReport};
pub use api::admin::files::{FileKind, FileReader, FileScope, LogPosition, StoreFile};
pub use api::admin::members::{MemberInfo, members};
#[doc(hidden)]
pub use api::admin::order_batch::OrderBatch;
pub use api::admin::order_place::{OrderPlace, recorded_order_place};
pub use api::admin::recover::{IndexSource, RecoverReport};
pub use api::admin::restore::RestoreReport;
pub use api::admin::verify::{VerifyProgress, VerifyReport, verify};
pub use api::branch_log::BranchLog;
pub use api::branches::Branch;
pub use api::change_feed::Commits;
pub use api::commit::{Change, Changes, Commit};
pub use api::db::Db;
pub use api::diff::Diff;
pub use api::feed_handle::FeedHandle;
pub use api::follow::LogFollow;
pub use api::history::{Difference, History, VersionInfo};
pub use api::log::{Log, LogScan};
pub use api::log_entry::{DROPPED_STREAM, LogEntry, LogEntryRef};
pub use api::log_hold::LogHold;
pub use api::sizes::KeyspaceSize;
pub use api::skip_damage::Skipped;
pub use api::snapshot::{Moment, Snapshot};
pub use api::state_hash::StateHash;
pub use api::watch_events::{WatchEvent, WatchEvents};
pub use merge::branches::BranchMerge;
pub use merge::driver::MergeOutcome;
pub use merge::pick::CherryPick;
pub use merge::reset::Reset;
pub use merge::revert::Revert;
pub use merge::rule::{MergeDecision, MergeFunction, MergeInput, MergeRule};
pub use merge::steps::{MergeAction, MergeSide, MergeStep, MergeSteps};
pub use read::point::ValueReader;
pub use read::resident::Resident;
pub use sync::address::absolute_address;
pub use sync::commit_id::CommitId;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use sync::forging;
pub use sync::import::{HistoryImport, ImportCommit, MAX_SOURCE_BYTES};
pub use sync::partial::CloneDepth;
pub use sync::remote::{ORIGIN, RemoteInfo};
pub use sync::transfer::{Moved, Pulled};
pub use sync::wire::client::SyncConnection;
pub use txn::bulk_load::BulkLoad;
pub use txn::payload::MAX_METADATA_BYTES;
pub use txn::range::Range;
pub use txn::read_trait::Read;
pub use txn::removals::ExtractIf;
pub use txn::ticket::CommitTicket;
pub use txn::transaction::Transaction;
pub use types::branches::BranchInfo;
pub use types::compression::Compression;
pub use types::cursors::CursorInfo;
pub use types::damage::{Damage, DamagedKey, DamagedKeys};
pub use types::error::{Error, Result};
pub use types::expiry::Ttl;
pub use types::index_key::MAX_KEY_BYTES;
pub use types::invalid_input::InvalidInput;
pub use types::io::Io;
pub use types::key_range::KeyRange;
pub use types::keyspaces::{DropReport, Keyspace, KeyspaceInfo};
pub use types::options::{Durability, MAX_PROCESSES, MIN_MEMORY_BYTES, Options};
pub use types::retention::Retention;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use types::sizes::Sizes;
pub use types::stats::{
    EvictorStats, IndexStats, IoStats, LogBounds, MemoryStats, OpeningStats, PoolStats,
    PressureStats, RowCacheStats, StallStats, Stats, Waits, WarmStats,
};
pub use types::tags::TagInfo;
pub use types::update::Overflow;
pub use types::value::Value;
pub use types::version::{INLINE_BYTES, MAX_VALUE_BYTES};
pub use warm::image::{WarmImage, delete_warm_image, warm_image};

/// The examples of the documents, which `cargo test` runs.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/tutorial.md")]
    struct Tutorial;
    #[doc = include_str!("../../../docs/how-to/memory-in-a-container.md")]
    struct MemoryInAContainer;
    #[doc = include_str!("../../../docs/how-to/choose-durability.md")]
    struct ChooseDurability;
    #[doc = include_str!("../../../docs/how-to/update-a-key.md")]
    struct UpdateAKey;
    #[doc = include_str!("../../../docs/how-to/expire-values.md")]
    struct ExpireValues;
    #[doc = include_str!("../../../docs/how-to/delete-a-range.md")]
    struct DeleteARange;
    #[doc = include_str!("../../../docs/how-to/name-a-moment.md")]
    struct NameAMoment;
    #[doc = include_str!("../../../docs/how-to/use-branches.md")]
    struct UseBranches;
    #[doc = include_str!("../../../docs/how-to/sync-two-stores.md")]
    struct SyncTwoStores;
    #[doc = include_str!("../../../docs/how-to/undo-a-commit.md")]
    struct UndoACommit;
    #[doc = include_str!("../../../docs/how-to/share-a-store-between-processes.md")]
    struct ShareAStore;
    #[doc = include_str!("../../../docs/how-to/follow-the-log.md")]
    struct FollowTheLog;
    #[doc = include_str!("../../../docs/explanation/processes.md")]
    struct Processes;
    #[doc = include_str!("../../../docs/explanation/replicas.md")]
    struct Replicas;
}
