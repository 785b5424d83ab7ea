//! The ranges of keys that a transaction deletes.
//!
//! Their number is bounded, because they are stored in the head of the record. A transaction
//! without room for another range deletes key by key.

use crate::txn::payload::DeletedRange;
use crate::types::index_key::IndexKey;

/// Maximum size of a transaction's ranges.
const LIMIT_BYTES: usize = 64 << 10;

/// The ranges, sorted. Ranges of one keyspace do not touch.
#[derive(Debug, Default)]
pub(crate) struct OwnRanges {
    list: Vec<DeletedRange>,
}

impl OwnRanges {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The ranges.
    pub(crate) fn list(&self) -> &[DeletedRange] {
        &self.list
    }

    /// Whether there is room for another range.
    pub(crate) fn has_room(&self) -> bool {
        self.encoded_bytes() < LIMIT_BYTES
    }

    /// An upper bound of their size in a payload.
    pub(crate) fn encoded_bytes(&self) -> usize {
        self.list.iter().map(DeletedRange::encoded_bytes).sum()
    }

    /// Adds the range from `first` up to `end`.
    pub(crate) fn add(&mut self, first: &[u8], end: &[u8]) {
        let from = self.list.partition_point(|range| !touches(&range.end, first));
        let to = self.list.partition_point(|range| touches(end, &range.first));
        let mut joined = DeletedRange { first: first.to_vec(), end: end.to_vec() };
        for old in self.list.drain(from..to) {
            joined.first = joined.first.min(old.first);
            joined.end = joined.end.max(old.end);
        }
        self.list.insert(from, joined);
    }

    /// The range that contains a key.
    pub(crate) fn over(&self, key: &[u8]) -> Option<&DeletedRange> {
        let begun = self.list.partition_point(|range| *range.first <= *key);
        self.list[..begun].last().filter(|range| *range.end > *key)
    }
}

/// Whether a range with this end is joined with a range with this first key. Ranges of two
/// keyspaces are never joined, so that each range of a commit is in one keyspace.
fn touches(end: &[u8], first: &[u8]) -> bool {
    first < end || (first == end && !IndexKey::new(first).begins_keyspace())
}

#[cfg(test)]
mod tests {
    use plimsoll_disk::random::Random;

    use super::*;

    #[test]
    fn ranges_of_two_keyspaces_are_not_joined() {
        let mut ranges = OwnRanges::default();
        ranges.add(&[0, 0, 0, 17], &[0, 0, 0, 17, 5]);
        ranges.add(&[0, 0, 0, 16, 1], &[0, 0, 0, 17]);
        ranges.add(&[0, 0, 0, 17, 5], &[0, 0, 0, 18]);
        let found: Vec<_> = ranges.list().iter().map(|range| (&range.first, &range.end)).collect();
        let wanted =
            [(vec![0, 0, 0, 16, 1], vec![0, 0, 0, 17]), (vec![0, 0, 0, 17], vec![0, 0, 0, 18])];
        assert!(found.into_iter().eq(wanted.iter().map(|(first, end)| (first, end))));
    }

    #[test]
    fn ranges_that_touch_are_joined() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let (mut ranges, mut deleted) = (OwnRanges::default(), [false; 256]);
            for _ in 0..20 {
                let first = random.below(250) as u8;
                let end = first + 1 + random.below(5) as u8;
                ranges.add(&[first], &[end]);
                (first..end).for_each(|key| deleted[usize::from(key)] = true);
                for key in 0..=255u8 {
                    assert_eq!(ranges.over(&[key]).is_some(), deleted[usize::from(key)]);
                }
                let apart = |pair: &[DeletedRange]| pair[0].end < pair[1].first;
                assert!(ranges.list().windows(2).all(apart), "seed {seed}: {ranges:?}");
            }
        }
    }
}
