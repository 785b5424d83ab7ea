//! The oldest snapshot that other processes may read. Versions that it needs are not dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;
use plimsoll_log::members::Members;

/// Replicas keep moments of this age readable in every keyspace, so that a commit of another
/// replica can name them. The age is measured by the times of the log, not by a clock, so that all
/// replicas retain the same moments when they apply that commit.
const NAMED_AGE: Duration = Duration::from_secs(15 * 60);

/// The greatest age of a moment that a tag or a branch of a replica may name. Less than
/// [`NAMED_AGE`], because the moment ages until its commit is ordered.
pub(crate) const NAMED_AGE_MAX: Duration = Duration::from_secs(10 * 60);

/// The floors promised by other processes, and whether the retention of keyspaces is up to date.
#[derive(Clone, Debug, Default)]
pub(crate) struct Floors {
    /// `None` if no other process has the store open.
    members: Option<Arc<Members>>,
    /// Whether the store's own records have changed and were not loaded yet.
    pub(crate) must_load_records: Arc<AtomicBool>,
    /// Whether other replicas may name moments, by tags and branches, that are not known here yet.
    pub(crate) has_replicas: bool,
}

impl Floors {
    pub(crate) fn of(members: Option<&Arc<Members>>) -> Self {
        let must_load_records = Arc::default();
        Self { members: members.cloned(), must_load_records, has_replicas: false }
    }

    /// The oldest moment of `log` that a commit of another replica, not applied here yet, may name
    /// by a tag or a branch: one that is at most [`NAMED_AGE`] older than the last record.
    pub(crate) fn oldest_named(&self, log: &FileLog) -> Glsn {
        if !self.has_replicas {
            return Glsn::MAX;
        }
        let then = log.last_micros().saturating_sub(NAMED_AGE.as_micros() as u64);
        log.glsn_at(then).unwrap_or_else(|_| Glsn(log.bounds().first.0 - 1))
    }

    /// The oldest GLSN that another process may read.
    pub(crate) fn oldest(&self) -> Glsn {
        self.members.as_ref().map_or(Glsn::MAX, |members| members.slots.oldest_floor())
    }

    /// Whether the tags and the retention of keyspaces are loaded as of everything applied here,
    /// and every change of them that any process has ordered is applied. Calls `applied` after
    /// reading the position of the last such change.
    pub(crate) fn is_retention_known(&self, applied: impl FnOnce() -> Glsn) -> bool {
        let ordered = self.members.as_ref().map(|members| members.marks.must_apply_upto());
        // Acquire: pairs with the store that clears the flag.
        ordered.is_none_or(|ordered| ordered <= applied())
            && !self.must_load_records.load(Ordering::Acquire)
    }
}
