//! The read set of a transaction. The commit checks whether others have changed a key in it.
//!
//! A point read is a range of one key. If the set outgrows its share of the budget, it is
//! coarsened: adjacent ranges are merged into one that covers them. This may report a conflict for
//! a change in between, but never misses one.

use std::ops::Bound;

use plimsoll_memory::budget::{Budget, Kind, Lease, OutOfBudget};

use crate::borders::{Border, hit};

/// A range of index keys that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadRange {
    /// The first key.
    pub(crate) first: Vec<u8>,
    /// The upper bound: the last key, or an exclusive bound; `None`: only `first` was read.
    pub(crate) last: Option<Bound<Vec<u8>>>,
}

impl ReadRange {
    /// Heap size of its keys.
    fn key_bytes(&self) -> u64 {
        let last = match &self.last {
            Some(Bound::Included(key) | Bound::Excluded(key)) => key.len(),
            _ => 0,
        };
        (self.first.len() + last) as u64
    }

    /// The upper bound in the form that the index uses.
    pub(crate) fn upper(&self) -> Bound<&[u8]> {
        match &self.last {
            None => Bound::Included(&self.first),
            Some(Bound::Included(key)) => Bound::Included(key),
            Some(Bound::Excluded(key)) => Bound::Excluded(key),
            Some(Bound::Unbounded) => Bound::Unbounded,
        }
    }
}

/// Number of most recent ranges that may be extended.
const WIDENED: usize = 8;

/// The read set. Invariant: its lease covers its list of ranges and their keys.
#[derive(Debug)]
pub(crate) struct ReadSet {
    ranges: Vec<ReadRange>,
    lease: Lease,
    limit_bytes: u64,
}

impl ReadSet {
    /// An empty set that may grow to `limit_bytes`.
    pub(crate) fn new(budget: &Budget, limit_bytes: u64) -> Self {
        Self { ranges: Vec::new(), lease: budget.empty_lease(Kind::ReadSet), limit_bytes }
    }

    /// Records that the keys from `first` to `last` were read.
    ///
    /// # Errors
    /// The budget has no room even after coarsening.
    pub(crate) fn add(
        &mut self,
        first: &[u8],
        last: Option<Bound<&[u8]>>,
    ) -> Result<(), OutOfBudget> {
        if last.is_none()
            && self.ranges.last().is_some_and(|range| range.last.is_none() && range.first == first)
        {
            return Ok(());
        }
        if let Some(upper) = last
            && self.widen_recent(first, upper)
        {
            return Ok(());
        }
        let range =
            ReadRange { first: first.to_vec(), last: last.map(|bound| bound.map(<[u8]>::to_vec)) };
        let more = self.list_bytes_for_one_more() + range.key_bytes();
        if self.lease.bytes() + more > self.limit_bytes || self.lease.grow(more).is_err() {
            self.coarsen();
            self.lease.grow(self.list_bytes_for_one_more() + range.key_bytes())?;
        }
        self.ranges.reserve_exact(self.capacity_for_one_more() - self.ranges.len());
        self.ranges.push(range);
        Ok(())
    }

    /// Extends one of the most recent ranges if it overlaps with the given one. Returns whether the
    /// set now covers the given range. This keeps the set small if a consumer of a queue reads from
    /// the same end again and again, or if several scans advance alternately.
    fn widen_recent(&mut self, first: &[u8], upper: Bound<&[u8]>) -> bool {
        let touches = |range: &ReadRange| {
            range.last.is_some()
                && begins_by(first, range.upper())
                && begins_by(&range.first, upper)
        };
        let mut recent = self.ranges.iter_mut().rev().take(WIDENED);
        let Some(range) = recent.find(|range| touches(range)) else { return false };
        let wider_first = (*first < *range.first).then(|| first.to_vec());
        let wider_last =
            compare_upper(upper, range.upper()).is_gt().then(|| upper.map(<[u8]>::to_vec));
        if wider_first.is_none() && wider_last.is_none() {
            return true;
        }
        let wider = ReadRange {
            first: wider_first.unwrap_or_else(|| range.first.clone()),
            last: wider_last.or_else(|| range.last.clone()),
        };
        let (before, after) = (range.key_bytes(), wider.key_bytes());
        let more = after.saturating_sub(before);
        if self.lease.bytes() + more > self.limit_bytes
            || (more > 0 && self.lease.grow(more).is_err())
        {
            return false;
        }
        *range = wider;
        if before > after {
            self.lease.shrink(before - after);
        }
        true
    }

    /// The capacity of the list that another range needs. The first capacity is one range, because
    /// most transactions that stay open for long read little.
    fn capacity_for_one_more(&self) -> usize {
        let (len, capacity) = (self.ranges.len(), self.ranges.capacity());
        if len < capacity { capacity } else { (2 * len).max(1) }
    }

    /// Bytes by which the list grows when another range is pushed.
    fn list_bytes_for_one_more(&self) -> u64 {
        list_bytes(self.capacity_for_one_more() - self.ranges.capacity())
    }

    /// Coarsens the set to the full range: everything counts as read. Needs no memory.
    pub(crate) fn add_all(&mut self) {
        hit(Border::AllRead);
        self.ranges.clear();
        self.ranges.push(ReadRange { first: Vec::new(), last: Some(Bound::Unbounded) });
        // Release the charge of the keys.
        self.lease.shrink(self.lease.bytes().saturating_sub(list_bytes(self.ranges.capacity())));
    }

    /// The ranges.
    pub(crate) fn ranges(&self) -> &[ReadRange] {
        &self.ranges
    }

    /// Bytes that are charged, and bytes held.
    #[cfg(feature = "testing")]
    pub(crate) fn charges(&self) -> (u64, u64) {
        let keys = self.ranges.iter().map(ReadRange::key_bytes).sum::<u64>();
        (self.lease.bytes(), list_bytes(self.ranges.capacity()) + keys)
    }

    /// Merges each eight adjacent ranges into one.
    fn coarsen(&mut self) {
        hit(Border::ReadSetCoarsened);
        let mut ranges = std::mem::take(&mut self.ranges);
        ranges.sort_by(|a, b| a.first.cmp(&b.first));
        // Keep a group of one range as it is, because a single key takes half the bytes of a range.
        let merge =
            |group: &[ReadRange]| if let [only] = group { only.clone() } else { cover(group) };
        self.ranges = ranges.chunks(8).map(merge).collect();
        self.ranges.shrink_to_fit();
        let bytes = list_bytes(self.ranges.capacity())
            + self.ranges.iter().map(ReadRange::key_bytes).sum::<u64>();
        let spare = self.lease.bytes().saturating_sub(bytes);
        self.lease.shrink(spare);
    }
}

/// Heap bytes of a list with room for this many ranges.
fn list_bytes(ranges: usize) -> u64 {
    (ranges * size_of::<ReadRange>()) as u64
}

/// The smallest range that covers `ranges`, which must be sorted by first key and not empty.
fn cover(ranges: &[ReadRange]) -> ReadRange {
    let last = ranges
        .iter()
        .map(ReadRange::upper)
        .max_by(|a, b| compare_upper(*a, *b))
        .expect("chunks are not empty");
    let last = match last {
        Bound::Included(key) => Bound::Included(key.to_vec()),
        Bound::Excluded(key) => Bound::Excluded(key.to_vec()),
        Bound::Unbounded => Bound::Unbounded,
    };
    ReadRange { first: ranges[0].first.clone(), last: Some(last) }
}

/// Whether a range that begins at `first` overlaps with or touches one with this upper bound.
fn begins_by(first: &[u8], upper: Bound<&[u8]>) -> bool {
    match upper {
        Bound::Included(last) => first <= last,
        Bound::Excluded(end) => first <= end,
        Bound::Unbounded => true,
    }
}

fn compare_upper(a: Bound<&[u8]>, b: Bound<&[u8]>) -> std::cmp::Ordering {
    let rank = |bound| match bound {
        Bound::Excluded(key) => (0, key, 0),
        Bound::Included(key) => (0, key, 1),
        Bound::Unbounded => (1, &[][..], 0),
    };
    rank(a).cmp(&rank(b))
}

#[cfg(test)]
mod tests {
    use plimsoll_memory::budget::Backing;

    use super::*;

    fn covers(range: &ReadRange, key: &[u8]) -> bool {
        key >= &range.first[..]
            && match range.upper() {
                Bound::Included(last) => key <= last,
                Bound::Excluded(last) => key < last,
                Bound::Unbounded => true,
            }
    }

    #[test]
    fn a_coarsened_set_still_covers_every_key_that_was_read() {
        let budget = Budget::new(16 << 20, Backing::Heap).unwrap();
        let mut set = ReadSet::new(&budget, 4096);
        let keys: Vec<Vec<u8>> =
            (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761)).to_be_bytes().to_vec()).collect();
        for (i, key) in keys.iter().enumerate() {
            let upper = [key.as_slice(), b"~"].concat();
            set.add(key, (i % 7 == 0).then_some(Bound::Excluded(&upper))).unwrap();
        }
        let keys_bytes: u64 = set.ranges().iter().map(ReadRange::key_bytes).sum();
        assert_eq!(set.lease.bytes(), list_bytes(set.ranges.capacity()) + keys_bytes);
        assert!(set.lease.bytes() <= 4096);
        for key in &keys {
            assert!(set.ranges().iter().any(|range| covers(range, key)));
        }
        drop(set);
        assert_eq!(budget.free_bytes(), budget.limit_bytes());
    }

    #[test]
    fn a_coarsened_set_holds_no_more_than_it_charges() {
        let budget = Budget::new(16 << 20, Backing::Heap).unwrap();
        let mut set = ReadSet::new(&budget, 1 << 20);
        for key in 0..8u8 {
            set.add(&[key], None).unwrap();
        }
        set.add(&[9; 4096], None).unwrap();
        let charged = set.lease.bytes();
        set.coarsen();
        let held = list_bytes(set.ranges.capacity())
            + set.ranges.iter().map(ReadRange::key_bytes).sum::<u64>();
        assert_eq!(set.ranges.len(), 2);
        assert_eq!(set.lease.bytes(), held);
        assert!(held <= charged);
    }

    #[test]
    fn a_range_read_again_and_further_is_kept_once() {
        let budget = Budget::new(16 << 20, Backing::Heap).unwrap();
        let mut set = ReadSet::new(&budget, 1 << 20);
        for last in 0..1000u32 {
            set.add(b"", Some(Bound::Included(&last.to_be_bytes()))).unwrap();
        }
        set.add(&[1], Some(Bound::Excluded(&[9]))).unwrap();
        for first in (0..900u32).rev() {
            set.add(&[&[5][..], &first.to_be_bytes()].concat(), Some(Bound::Excluded(&[6])))
                .unwrap();
        }
        let ranges: Vec<_> =
            set.ranges().iter().map(|range| (&range.first[..], range.upper())).collect();
        assert_eq!(
            ranges,
            [
                (&b""[..], Bound::Included(&999u32.to_be_bytes()[..])),
                (&[1][..], Bound::Excluded(&[9][..]))
            ]
        );
        let keys_bytes: u64 = set.ranges().iter().map(ReadRange::key_bytes).sum();
        assert_eq!(set.lease.bytes(), list_bytes(set.ranges.capacity()) + keys_bytes);
    }

    #[test]
    fn scans_that_advance_alternately_keep_one_range_each() {
        let budget = Budget::new(16 << 20, Backing::Heap).unwrap();
        let mut set = ReadSet::new(&budget, 1 << 20);
        for last in 0..1000u32 {
            for walk in [1, 2, 3] {
                set.add(
                    &[walk],
                    Some(Bound::Included(&[&[walk][..], &last.to_be_bytes()].concat())),
                )
                .unwrap();
            }
        }
        assert_eq!(set.ranges().len(), 3);
    }

    #[test]
    fn a_set_that_fits_is_kept_key_by_key() {
        let budget = Budget::new(16 << 20, Backing::Heap).unwrap();
        let mut set = ReadSet::new(&budget, 1 << 20);
        set.add(b"a", None).unwrap();
        set.add(b"a", None).unwrap();
        set.add(b"c", None).unwrap();
        assert!(!set.ranges().iter().any(|range| covers(range, b"b")));
        assert_eq!(set.ranges().len(), 2);
    }
}
