//! The gaps of a transaction: intervals of keys in which it sees nothing, considering its snapshot
//! and its own writes.
//!
//! Without them, each scan would step over all keys that the transaction has deleted, and over the
//! rows that these deletions hide. A scan adds a gap after it has stepped over own deletions, and
//! seeks to the end of a known gap.
//!
//! Invariants:
//! 1. A scan adds only the range that it has passed, after the read set covers it. A deletion
//!    extends a gap; a put splits it.
//! 2. When the transaction is committed, its gaps become gaps of the index (`index::gaps`), because
//!    its reads of them were validated.
//! 3. A scan that seeks over a gap still reads it: the read set records the whole range. A commit
//!    of another transaction in a gap is therefore a conflict, as if the keys had been read one by
//!    one.
//! 4. The list is bounded and charged to the budget. If the budget refuses, the gaps are forgotten,
//!    and no scan fails.

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::account::Charge;

use crate::borders::{Border, hit};
use crate::index::gaps::list::{Gap, GapList};
use crate::index::iter::handle::Iterators;
use crate::index::sources::view::Direction;

/// Maximum size of a transaction's gaps.
const LIMIT_BYTES: usize = 16 << 10;

/// The charge is a multiple of this many bytes.
const CHARGE_BYTES: usize = 1 << 10;

/// The gaps of one transaction.
#[derive(Debug)]
pub(crate) struct OwnGaps {
    list: GapList,
    charge: Option<Charge>,
}

impl OwnGaps {
    /// No gaps; takes no memory.
    pub(crate) fn new() -> Self {
        Self { list: GapList::new(LIMIT_BYTES), charge: None }
    }

    /// Adds an interval without visible keys from `first` up to `end`, in which `dead` deletions
    /// were stepped over.
    pub(crate) fn add(&mut self, iterators: &Iterators, first: &[u8], end: &[u8], dead: u64) {
        // All gaps hold at the transaction's snapshot, so `since` is not used.
        self.list.add(first, end, Glsn::NONE, dead, Glsn::NONE);
        self.charge.get_or_insert_with(|| iterators.charge());
        self.fit();
    }

    /// If a scan from `from` on (forward), or below it (backward), begins in a gap, returns the key
    /// beyond the gap at which it continues.
    pub(crate) fn skip(&self, direction: Direction, from: &[u8]) -> Option<Vec<u8>> {
        let skip = match direction {
            Direction::Forward => self.list.past(from, Glsn::NONE),
            Direction::Backward => self.list.before(from, Glsn::NONE),
        };
        skip.map(|to| {
            hit(Border::OwnGapSkipped);
            to.to_vec()
        })
    }

    /// Records that the transaction puts a key.
    pub(crate) fn put(&mut self, key: &[u8]) {
        if !self.list.is_empty() {
            self.list.put(key);
            self.fit();
        }
    }

    /// Records that the transaction deletes a key.
    pub(crate) fn delete(&mut self, key: &[u8]) {
        if !self.list.is_empty() {
            self.list.delete(key);
            self.fit();
        }
    }

    /// The gaps, for a commit.
    pub(crate) fn into_gaps(self) -> Vec<Gap> {
        self.list.into_gaps()
    }

    fn fit(&mut self) {
        let bytes = self.list.bytes().next_multiple_of(CHARGE_BYTES) as u64;
        let refused = self
            .charge
            .as_mut()
            .is_none_or(|charge| charge.bytes() != bytes && charge.set(bytes).is_err());
        if refused {
            self.list.clear();
            self.charge = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_memory::budget::account::STEP_BYTES;

    use super::*;
    use crate::engine::open::open;
    use crate::types::options::Options;

    #[test]
    fn gaps_are_charged_and_forgotten_if_the_budget_refuses() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new().memory_bytes(16 << 20).background(false);
        let store = open(&dir.path().join("store"), options).unwrap();
        let (iterators, budget) = (&store.reader.index.iterators, &store.reader.budget);
        let mut others = iterators.charge();
        others.set(STEP_BYTES).unwrap();
        let mut gaps = OwnGaps::new();
        budget.fail_after(0);
        gaps.add(iterators, b"a", b"d", 8);
        assert_eq!(gaps.skip(Direction::Forward, b"b"), None);
        budget.fail_after(u64::MAX);
        gaps.add(iterators, b"a", b"d", 8);
        assert_eq!(gaps.skip(Direction::Forward, b"b"), Some(b"d".to_vec()));
        assert_eq!(gaps.charge.as_ref().unwrap().bytes(), CHARGE_BYTES as u64);
        for number in 0..10_000u32 {
            gaps.add(
                iterators,
                &[&b"e"[..], &number.to_be_bytes(), b"a"].concat(),
                &[&b"e"[..], &number.to_be_bytes(), b"b"].concat(),
                8,
            );
        }
        assert!(
            gaps.list.bytes() <= LIMIT_BYTES
                && gaps.charge.as_ref().unwrap().bytes() >= gaps.list.bytes() as u64
        );
    }
}
