//! Which moments are being read, so that nobody drops what they need.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, Kind, Lease};

use crate::error::Result;

/// Bytes that one open snapshot costs at most.
const SNAPSHOT_BYTES: u64 = 128;

/// The moments that are open.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    open: Mutex<BTreeMap<Glsn, u64>>,
}

/// Keeps one moment open until dropped.
#[derive(Debug)]
pub(crate) struct OpenMoment {
    at: Glsn,
    snapshots: Arc<Snapshots>,
    _lease: Option<Lease>,
}

impl Snapshots {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Glsn, u64>> {
        self.open.lock().expect("no code under this lock panics")
    }

    /// Opens the moment that `choose` names. It is called under the lock that [`Snapshots::oldest`] takes, so that a horizon computed
    /// at the same time is never above it.
    pub(crate) fn open(self: &Arc<Self>, budget: &Budget, choose: impl FnOnce() -> Glsn) -> Result<OpenMoment> {
        let lease = budget.lease(Kind::Metadata, SNAPSHOT_BYTES)?;
        Ok(self.open_with(Some(lease), choose))
    }

    /// As [`Snapshots::open`], for the few that the store itself opens.
    pub(crate) fn open_unleased(self: &Arc<Self>, choose: impl FnOnce() -> Glsn) -> OpenMoment {
        self.open_with(None, choose)
    }

    fn open_with(self: &Arc<Self>, lease: Option<Lease>, choose: impl FnOnce() -> Glsn) -> OpenMoment {
        let mut open = self.lock();
        let at = choose();
        *open.entry(at).or_default() += 1;
        OpenMoment { at, snapshots: Arc::clone(self), _lease: lease }
    }

    /// The oldest open moment, or what `newest` says if none is open.
    pub(crate) fn oldest(&self, newest: impl FnOnce() -> Glsn) -> Glsn {
        let open = self.lock();
        let newest = newest();
        open.keys().next().map_or(newest, |&oldest| oldest.min(newest))
    }

    /// How many are open.
    pub(crate) fn count(&self) -> u64 {
        self.lock().values().sum()
    }
}

impl OpenMoment {
    /// The moment.
    pub(crate) fn at(&self) -> Glsn {
        self.at
    }
}

impl Drop for OpenMoment {
    fn drop(&mut self) {
        let mut open = self.snapshots.lock();
        if let Some(count) = open.get_mut(&self.at) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_open_moment_is_known_until_it_is_dropped() {
        let snapshots = Arc::new(Snapshots::default());
        let old = snapshots.open_unleased(|| Glsn(3));
        let again = snapshots.open_unleased(|| Glsn(3));
        let young = snapshots.open_unleased(|| Glsn(9));
        assert_eq!((snapshots.oldest(|| Glsn(20)), snapshots.count()), (Glsn(3), 3));
        drop((old, again));
        assert_eq!(snapshots.oldest(|| Glsn(20)), Glsn(9));
        drop(young);
        assert_eq!(snapshots.oldest(|| Glsn(20)), Glsn(20));
    }
}
