//! The open snapshots: versions that they need are not dropped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, Kind, Lease};

use crate::borders::{Border, hit};
use crate::types::error::Result;

/// The most bytes that one open snapshot costs.
const SNAPSHOT_BYTES: u64 = 128;

/// Snapshots are charged to the budget in groups of this many: opening one is part of every read.
const CHARGED_TOGETHER: usize = 32;

/// The open moments.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// How often each moment is open.
    moments: BTreeMap<Glsn, u64>,
    /// The number of charged snapshots.
    charged: usize,
    /// Each for [`CHARGED_TOGETHER`] snapshots. One is kept if none is open.
    leases: Vec<Lease>,
}

/// Keeps a moment open until dropped.
#[derive(Debug)]
pub(crate) struct OpenMoment {
    at: Glsn,
    snapshots: Arc<Snapshots>,
    is_charged: bool,
}

impl Snapshots {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().expect("no code under this lock panics")
    }

    /// Opens the moment that `choose` returns. `choose` is called under the lock that [`Snapshots::oldest`] takes, so that a horizon
    /// computed at the same time is never above the moment.
    pub(crate) fn open(self: &Arc<Self>, budget: &Budget, choose: impl FnOnce() -> Glsn) -> Result<OpenMoment> {
        hit(Border::MomentAsked);
        let mut open = self.lock();
        if open.charged == open.leases.len() * CHARGED_TOGETHER {
            // Outside the lock: the budget may have to make room.
            drop(open);
            let lease = budget.lease(Kind::Metadata, CHARGED_TOGETHER as u64 * SNAPSHOT_BYTES)?;
            open = self.lock();
            open.leases.push(lease);
        }
        open.charged += 1;
        Ok(self.open_in(open, true, choose))
    }

    /// As [`Snapshots::open`], for the few snapshots that the store itself opens.
    pub(crate) fn open_unleased(self: &Arc<Self>, choose: impl FnOnce() -> Glsn) -> OpenMoment {
        self.open_in(self.lock(), false, choose)
    }

    fn open_in(
        self: &Arc<Self>,
        mut open: MutexGuard<'_, Open>,
        is_charged: bool,
        choose: impl FnOnce() -> Glsn,
    ) -> OpenMoment {
        let at = choose();
        *open.moments.entry(at).or_default() += 1;
        OpenMoment { at, snapshots: Arc::clone(self), is_charged }
    }

    /// The oldest open moment, or the result of `newest` if none is open.
    pub(crate) fn oldest(&self, newest: impl FnOnce() -> Glsn) -> Glsn {
        let open = self.lock();
        let newest = newest();
        open.moments.keys().next().map_or(newest, |&oldest| oldest.min(newest))
    }

    /// The number of open snapshots.
    pub(crate) fn count(&self) -> u64 {
        self.lock().moments.values().sum()
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
        if let Some(count) = open.moments.get_mut(&self.at) {
            *count -= 1;
            if *count == 0 {
                open.moments.remove(&self.at);
            }
        }
        open.charged -= usize::from(self.is_charged);
        // Hysteresis, so that opening and dropping at the border does not charge each time.
        let spare = open.charged + 2 * CHARGED_TOGETHER <= open.leases.len() * CHARGED_TOGETHER;
        let lease = if spare { open.leases.pop() } else { None };
        drop(open);
        drop(lease);
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_memory::budget::Backing;

    use super::*;

    #[test]
    fn open_snapshots_are_charged_and_what_they_cost_goes_back() {
        let budget = Budget::new(1 << 20, Backing::Heap).unwrap();
        let charged = || budget.usage().of(Kind::Metadata);
        let snapshots = Arc::new(Snapshots::default());
        let open = |n: u64| snapshots.open(&budget, || Glsn(n)).unwrap();
        let opened: Vec<_> = (0..1000).map(open).collect();
        assert!(charged() >= 1000 * SNAPSHOT_BYTES);
        assert_eq!(snapshots.count(), 1000);
        drop(opened);
        assert!(charged() <= 2 * CHARGED_TOGETHER as u64 * SNAPSHOT_BYTES);
        assert_eq!(snapshots.count(), 0);
        // A full budget refuses, and no snapshot is open then.
        let rest = budget.lease(Kind::Sort, budget.free_bytes()).unwrap();
        let mut opened = Vec::new();
        while let Ok(moment) = snapshots.open(&budget, || Glsn(1)) {
            opened.push(moment);
        }
        assert_eq!(snapshots.count(), opened.len() as u64);
        drop((opened, rest));
        open(2);
    }

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
