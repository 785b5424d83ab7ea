//! The oldest snapshot that other processes may read. Versions that it needs are not dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_log::glsn::Glsn;
use plimsoll_log::members::Members;

/// The floors promised by other processes, and whether the retention of keyspaces is up to date.
#[derive(Clone, Debug, Default)]
pub(crate) struct Floors {
    /// `None` if no other process has the store open.
    members: Option<Arc<Members>>,
    /// Whether the store's own records have changed and were not loaded yet.
    pub(crate) must_load_records: Arc<AtomicBool>,
}

impl Floors {
    pub(crate) fn of(members: Option<&Arc<Members>>) -> Self {
        Self { members: members.cloned(), must_load_records: Arc::default() }
    }

    /// The oldest GLSN that another process may read.
    pub(crate) fn oldest(&self) -> Glsn {
        self.members.as_ref().map_or(Glsn::MAX, |members| members.slots.oldest_floor())
    }

    /// Whether the retention of keyspaces and the tags are loaded as of everything applied here,
    /// and all changes of them that any process has ordered are applied. `applied` is called after
    /// those are known.
    pub(crate) fn is_retention_known(&self, applied: impl FnOnce() -> Glsn) -> bool {
        let ordered = self.members.as_ref().map(|members| members.marks.must_apply_upto());
        // Acquire: pairs with the store that clears it.
        ordered.is_none_or(|ordered| ordered <= applied())
            && !self.must_load_records.load(Ordering::Acquire)
    }
}
