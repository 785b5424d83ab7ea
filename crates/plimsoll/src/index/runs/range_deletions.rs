//! The memory of range deletions, and which of them a change of the runs leaves in the store.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, Kind, Lease, OutOfBudget};

use crate::index::env::moment_set::MomentSet;
use crate::index::ranges::{Fragment, RangeSet};
use crate::index::runs::Change;
use crate::index::sources::source::Run;
use crate::index::sources::view::{Content, View, tables_in};
use crate::types::lock::lock;

/// Range deletions take at most this part of the budget (a divisor).
const BUDGET_PART: u64 = 32;

/// The charge for the range deletions.
pub(super) struct RangeMemory {
    budget: Budget,
    lease: Mutex<Lease>,
}

impl RangeMemory {
    /// Charges for `ranges`.
    pub(super) fn new(budget: &Budget, ranges: &RangeSet) -> Result<Self, OutOfBudget> {
        let mut lease = budget.empty_lease(Kind::Metadata);
        lease.grow(ranges.bytes())?;
        Ok(Self { budget: budget.clone(), lease: Mutex::new(lease) })
    }

    /// Whether the set may grow by a range: it stays small beside the budget.
    pub(super) fn has_room(&self, ranges: &RangeSet, first: &[u8], end: &[u8]) -> bool {
        let bytes = ranges.bytes() + ranges.bytes_of_one_more(first, end);
        bytes <= self.budget.limit_bytes() / BUDGET_PART
    }

    /// Charges for more ranges (first keys and ends).
    ///
    /// # Errors
    /// The budget has no room.
    pub(super) fn make_room<'r>(
        &self,
        ranges: &RangeSet,
        more: impl Iterator<Item = (&'r [u8], &'r [u8])>,
    ) -> Result<(), OutOfBudget> {
        let more: u64 = more.map(|(first, end)| ranges.bytes_of_one_more(first, end)).sum();
        let mut lease = lock(&self.lease);
        let missing = (ranges.bytes() + more).saturating_sub(lease.bytes());
        lease.grow(missing)
    }

    /// Gives back what `ranges` do not need.
    pub(super) fn give_back(&self, ranges: &RangeSet) {
        let mut lease = lock(&self.lease);
        let spare = lease.bytes().saturating_sub(ranges.bytes());
        lease.shrink(spare);
    }
}

/// The range deletions after a change.
pub(super) struct Left {
    /// Those that some source may need.
    pub(super) needed: RangeSet,
    /// Those that every source has absorbed.
    pub(super) absorbed: RangeSet,
    /// By keyspace, if deletions were left out: of the moments before this one, only the retained
    /// ones can still be read.
    pub(super) readable_from: BTreeMap<u32, Glsn>,
}

/// The range deletions of a view after `change` with `checkpoint`; `retained` are the retained
/// moments of the keyspaces of which an interval was deleted more than once.
pub(super) fn left_by(
    view: &View,
    change: &Change,
    checkpoint: Glsn,
    retained: &BTreeMap<u32, MomentSet>,
) -> Left {
    // Only a flush or a merge ends the readability of moments, and only of durable ones.
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
/// What is behind the checkpoint is not durable yet, or not known to be in the manifest.
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
