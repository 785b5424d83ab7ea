//! Plimsoll for Python: the module `plimsoll._native`. The package `plimsoll` re-exports its public
//! names.
//!
//! Invariants:
//! 1. The GIL is held during reads from memory, and released around operations that can block:
//!    files, syncs, waits.
//! 2. No lock of this crate is awaited while the GIL is held (`lock_py_attached` and `try_lock`
//!    only), so a thread may wait for the GIL while it holds another lock.
//! 3. Objects of a store are neither used nor dropped in a forked child (`fork`).

mod admin;
mod archive;
mod block;
mod branch_log;
mod branches;
mod bytes_like;
mod calls;
mod cluster;
mod commits;
mod db;
mod diff;
mod dump;
mod errors;
mod feed;
mod fork;
mod history;
mod hold;
mod keyspace;
mod live_mapping;
mod log;
mod many;
mod members;
mod merge;
mod moments;
mod open;
mod options;
mod place;
mod read_mapping;
mod rows;
mod snapshot;
mod span;
mod stats;
mod store;
mod sync;
mod tags;
mod ticket;
mod transact;
mod transaction;
mod updates;
mod value_reader;
mod watch;
mod write_mapping;

#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::admin::{BackupReport, RecoverReport, VerifyReport, recover, verify};
    #[pymodule_export]
    use crate::archive::{
        ArchiveReport, ArchiveRestoreReport, ArchiveVerifyReport, archive, restore_archive,
        verify_archive,
    };
    #[pymodule_export]
    use crate::block::Block;
    #[pymodule_export]
    use crate::branch_log::BranchLog;
    #[pymodule_export]
    use crate::branches::{Branch, BranchInfo, BranchMapping};
    #[pymodule_export]
    use crate::cluster::{create_cluster, heal_cluster};
    #[pymodule_export]
    use crate::commits::{Change, Commit, Commits};
    #[pymodule_export]
    use crate::db::Db;
    #[pymodule_export]
    use crate::diff::{Diff, Difference};
    #[pymodule_export]
    use crate::dump::restore;
    #[pymodule_export]
    use crate::fork::_after_fork_in_child;
    #[pymodule_export]
    use crate::history::{History, Version};
    #[pymodule_export]
    use crate::hold::Hold;
    #[pymodule_export]
    use crate::keyspace::{Keyspace, KeyspaceSize};
    #[pymodule_export]
    use crate::live_mapping::LiveMapping;
    #[pymodule_export]
    use crate::log::{Log, LogBounds, LogEntry, LogFollow, LogScan};
    #[pymodule_export]
    use crate::members::{MemberInfo, members};
    #[pymodule_export]
    use crate::merge::{MergeStep, MergeSteps};
    #[pymodule_export]
    use crate::open::{in_memory, open};
    #[pymodule_export]
    use crate::read_mapping::ReadMapping;
    #[pymodule_export]
    use crate::rows::Rows;
    #[pymodule_export]
    use crate::snapshot::Snapshot;
    #[pymodule_export]
    use crate::store::_close_all;
    #[pymodule_export]
    use crate::sync::{Moved, Remote, clone, serve_sync};
    #[pymodule_export]
    use crate::tags::Tag;
    #[pymodule_export]
    use crate::ticket::Ticket;
    #[pymodule_export]
    use crate::transaction::Transaction;
    #[pymodule_export]
    use crate::value_reader::RawValueReader;
    #[pymodule_export]
    use crate::watch::Watch;
    #[pymodule_export]
    use crate::write_mapping::WriteMapping;

    #[allow(non_upper_case_globals, reason = "the name that Python gives it")]
    #[pymodule_export]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
