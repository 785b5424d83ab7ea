//! The memory of range deletions, and which of them a change of the runs leaves in the store.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, Kind, Lease, OutOfBudget};

use crate::index::env::moment_set::MomentSet;
use crate::index::ranges::{Fragment, RangeSet};
use crate::index::runs::change::Change;
use crate::index::sources::source::Run;
use crate::index::sources::view::{Content, View, tables_in};
use crate::types::lock::lock;

/// Range deletions take at most this part of the budget (a divisor).
const BUDGET_PART: u64 = 16;

/// Upper bound on the number of copies of the set in memory: those of the newest view, of the last
/// manifest, and of a merge. They share the chunks in which they do not differ.
const COPIES: u64 = 3;

/// The charge for the range deletions. Invariant: the lease covers the set of the current view and
/// all [`RangeRoom`]s.
pub(super) struct RangeMemory {
    budget: Budget,
    charged: Mutex<Charged>,
}

struct Charged {
    lease: Lease,
    /// Bytes of the lease that commits need for ranges which they have not applied yet.
    reserved: u64,
}

/// Memory for ranges that are about to be applied. It is dropped after that.
#[must_use]
pub(crate) struct RangeRoom<'a> {
    memory: &'a RangeMemory,
    bytes: u64,
}

impl RangeMemory {
    /// Charges for `ranges`.
    pub(super) fn new(budget: &Budget, ranges: &RangeSet) -> Result<Self, OutOfBudget> {
        let mut lease = budget.empty_lease(Kind::Metadata);
        lease.grow(COPIES * ranges.bytes())?;
        let charged = Mutex::new(Charged { lease, reserved: 0 });
        Ok(Self { budget: budget.clone(), charged })
    }

    /// Whether the set may grow by `more` bytes: it stays small compared with the budget.
    pub(super) fn has_room(&self, ranges: &RangeSet, more: u64) -> bool {
        COPIES * (ranges.bytes() + more) <= self.budget.limit_bytes() / BUDGET_PART
    }

    /// Reserves memory for ranges that add `more` bytes to the set `ranges` of the current view.
    ///
    /// # Errors
    /// The budget has no room.
    pub(super) fn reserve(
        &self,
        ranges: &RangeSet,
        more: u64,
    ) -> Result<RangeRoom<'_>, OutOfBudget> {
        let bytes = COPIES * more;
        let mut charged = lock(&self.charged);
        let needed = COPIES * ranges.bytes() + charged.reserved + bytes;
        let missing = needed.saturating_sub(charged.lease.bytes());
        charged.lease.grow(missing)?;
        charged.reserved += bytes;
        Ok(RangeRoom { memory: self, bytes })
    }

    /// Releases memory that neither a reservation nor the current set needs. `set_bytes` returns
    /// the size of the current set.
    pub(super) fn release_unused(&self, set_bytes: impl FnOnce() -> u64) {
        let mut charged = lock(&self.charged);
        // Read under the lock: a commit publishes its ranges before it drops its reservation.
        let needed = COPIES * set_bytes() + charged.reserved;
        let spare = charged.lease.bytes().saturating_sub(needed);
        charged.lease.shrink(spare);
    }
}

impl Drop for RangeRoom<'_> {
    fn drop(&mut self) {
        lock(&self.memory.charged).reserved -= self.bytes;
    }
}

/// The range deletions after a change.
pub(super) struct Left {
    /// Range deletions that some source may need.
    pub(super) needed: RangeSet,
    /// Range deletions that every source has absorbed.
    pub(super) absorbed: RangeSet,
    /// For each keyspace that loses older deletions, a moment: of the moments before it, only the
    /// retained ones can be read.
    pub(super) readable_from: BTreeMap<u32, Glsn>,
}

/// The range deletions of a view after `change` with `checkpoint`. `retained` has the retained
/// moments of the keyspaces with an interval that was deleted more than once.
pub(super) fn left_by(
    view: &View,
    change: &Change,
    checkpoint: Glsn,
    retained: &BTreeMap<u32, MomentSet>,
) -> Left {
    // Only a flush or a merge may make moments unreadable, and only moments before the checkpoint.
    let settles = change.takes_closed.is_some() || !change.removed.is_empty();
    let retained_of = |keyspace: u32| {
        let retained = retained.get(&keyspace).cloned().unwrap_or_else(MomentSet::all);
        MomentSet { floor: retained.floor.min(checkpoint), ..retained }
    };
    let (settled, readable_from) = match settles && !retained.is_empty() {
        true => view.ranges.settled(retained_of),
        false => (RangeSet::clone(&view.ranges), BTreeMap::new()),
    };
    let is_needed = |range: &Fragment, glsn| is_needed(view, change, checkpoint, range, glsn);
    let (needed, absorbed) = settled.parted(is_needed);
    Left { needed, absorbed, readable_from }
}

/// Whether a range deletion may still hide a version once `change` is installed with `checkpoint`.
/// A range deletion after the checkpoint stays, because it may not be durable yet, or no manifest
/// may name the runs that absorbed it.
fn is_needed(view: &View, change: &Change, checkpoint: Glsn, range: &Fragment, glsn: Glsn) -> bool {
    let adopted = view.closed.iter().flat_map(|closed| match &closed.content {
        Content::Adopted(runs) => &runs[..],
        Content::Memtable(_) => &[],
    });
    let keys = (Bound::Included(&*range.first), Bound::Excluded(&*range.end));
    let hides_some_of =
        |run: &Arc<Run>| tables_in(run, keys).iter().any(|table| table.info.needs(range, glsn));
    glsn > checkpoint
        || view.has_unflushed_before(glsn, change.takes_closed.as_ref())
        || adopted.chain(&change.runs).chain(&change.history).any(hides_some_of)
}

#[cfg(test)]
mod tests {
    use plimsoll_memory::budget::Backing;

    use super::*;

    #[test]
    fn memory_reserved_for_a_range_is_not_given_back() {
        let budget = Budget::new(16 << 20, Backing::Heap).unwrap();
        let memory = RangeMemory::new(&budget, &RangeSet::default()).unwrap();
        let charged = || lock(&memory.charged).lease.bytes();
        let first = memory.reserve(&RangeSet::default(), 1000).unwrap();
        let second = memory.reserve(&RangeSet::default(), 500).unwrap();
        assert_eq!(charged(), COPIES * 1500);
        memory.release_unused(|| 0);
        assert_eq!(charged(), COPIES * 1500);
        drop(first);
        memory.release_unused(|| 200);
        assert_eq!(charged(), COPIES * 700);
        drop(second);
        memory.release_unused(|| 0);
        assert_eq!(charged(), 0);
    }
}
