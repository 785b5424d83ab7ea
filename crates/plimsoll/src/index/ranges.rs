//! Range deletions that still apply to some source: disjoint intervals of index keys in key order,
//! each with the GLSNs of the commits that deleted it.
//!
//! A range deletion at `g` hides every version of its keys with a GLSN below `g`. Versions of the
//! same commit have the same GLSN, so they survive.
//!
//! Laws:
//! 1. A set is immutable and belongs to a view, so that readers see changes of runs and ranges at
//!    once.
//! 2. Keeping a range longer than needed changes no answer, because it hides only deleted versions.
//!    A range leaves the set when every source that overlaps with it has absorbed it, which means
//!    that the source holds a point deletion wherever the range deleted a version.

use std::ops::Bound;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;
use smallvec::SmallVec;

use crate::types::index_key::MAX_INDEX_KEY_BYTES;

/// The longest bound of a range: the immediate successor of the longest key.
pub(crate) const MAX_BOUND_BYTES: usize = MAX_INDEX_KEY_BYTES + 1;

/// Size of an interval without its keys and GLSNs.
const FRAGMENT_BYTES: usize = size_of::<Fragment>() + 4 * size_of::<usize>();

/// An interval of index keys: from `first` up to `end`, exclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) first: Arc<[u8]>,
    pub(crate) end: Arc<[u8]>,
    /// The commits that deleted it, newest first; at least one.
    pub(crate) glsns: SmallVec<[Glsn; 2]>,
}

impl Fragment {
    /// The newest deletion that is not younger than `at`.
    pub(crate) fn newest_until(&self, at: Glsn) -> Option<Glsn> {
        self.glsns.iter().copied().find(|glsn| *glsn <= at)
    }

    /// The oldest deletion that is younger than `after`.
    pub(crate) fn oldest_after(&self, after: Glsn) -> Option<Glsn> {
        self.glsns.iter().copied().take_while(|glsn| *glsn > after).last()
    }

    fn bytes(&self) -> usize {
        let glsns =
            if self.glsns.spilled() { self.glsns.capacity() * size_of::<Glsn>() } else { 0 };
        FRAGMENT_BYTES + self.first.len() + self.end.len() + glsns
    }
}

/// The range deletions of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    fragments: Vec<Arc<Fragment>>,
    bytes: usize,
}

/// The exclusive end of a range that includes the last key.
pub(crate) fn end_of_all() -> Vec<u8> {
    vec![u8::MAX; MAX_BOUND_BYTES]
}

impl RangeSet {
    /// A set of intervals; `None` unless they ascend, do not overlap, and have descending GLSNs.
    pub(crate) fn of(fragments: Vec<Fragment>) -> Option<Self> {
        let is_sound = |fragment: &Fragment| {
            fragment.first < fragment.end
                && !fragment.glsns.is_empty()
                && fragment.glsns.is_sorted_by(|a, b| a > b)
        };
        let in_order = fragments.windows(2).all(|pair| pair[0].end <= pair[1].first);
        (in_order && fragments.iter().all(is_sound))
            .then(|| Self::new(fragments.into_iter().map(Arc::new).collect()))
    }

    fn new(fragments: Vec<Arc<Fragment>>) -> Self {
        let bytes = fragments.iter().map(|fragment| fragment.bytes()).sum();
        Self { fragments, bytes }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }

    /// The intervals, in key order.
    pub(crate) fn fragments(&self) -> impl ExactSizeIterator<Item = &Fragment> + Clone {
        self.fragments.iter().map(|fragment| &**fragment)
    }

    /// Heap size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.bytes + self.fragments.capacity() * size_of::<Arc<Fragment>>()) as u64
    }

    /// An upper bound of the bytes that a further range from `first` to `end` adds.
    pub(crate) fn bytes_of_one_more(&self, first: &[u8], end: &[u8]) -> u64 {
        let touched = self.touching(first, end).len() + 2;
        let bytes =
            touched * (2 * size_of::<Glsn>() + FRAGMENT_BYTES) + 2 * (first.len() + end.len());
        bytes as u64
    }

    /// The interval that contains a key.
    #[inline]
    pub(crate) fn over(&self, key: &[u8]) -> Option<&Fragment> {
        if self.fragments.is_empty() {
            return None;
        }
        let begun = self.fragments.partition_point(|fragment| *fragment.first <= *key);
        self.fragments[..begun].last().map(|last| &**last).filter(|last| *last.end > *key)
    }

    /// The newest deletion of a key that is not younger than `at`; [`Glsn::NONE`] if there is none.
    #[inline]
    pub(crate) fn newest_over(&self, key: &[u8], at: Glsn) -> Glsn {
        match self.over(key) {
            None => Glsn::NONE,
            Some(fragment) => fragment.newest_until(at).unwrap_or(Glsn::NONE),
        }
    }

    /// The oldest deletion of the version of `key` at `glsn` that is older than the key's next
    /// younger version, at `younger`.
    pub(crate) fn deletion_of(&self, key: &[u8], glsn: Glsn, younger: Glsn) -> Option<Glsn> {
        self.over(key)?.oldest_after(glsn).filter(|deletion| *deletion < younger)
    }

    /// The deletion of a key as of snapshot `at`, and the surrounding keys for which it is the
    /// same.
    pub(crate) fn cover_of(&self, key: &[u8], at: Glsn) -> Cover {
        let begun = self.fragments.partition_point(|fragment| *fragment.first <= *key);
        let next = self.fragments.get(begun).map(|next| Arc::clone(&next.first));
        let is_left_out = false;
        match self.fragments[..begun].last() {
            Some(over) if *over.end > *key => Cover {
                first: Some(Arc::clone(&over.first)),
                end: Some(Arc::clone(&over.end)),
                deleted_at: over.newest_until(at).unwrap_or(Glsn::NONE),
                is_left_out,
            },
            before => {
                let first = before.map(|before| Arc::clone(&before.end));
                Cover { first, end: next, deleted_at: Glsn::NONE, is_left_out }
            }
        }
    }

    fn touching(&self, first: &[u8], end: &[u8]) -> &[Arc<Fragment>] {
        let from = self.fragments.partition_point(|fragment| *fragment.end <= *first);
        let to = self.fragments.partition_point(|fragment| *fragment.first < *end);
        self.fragments.get(from..to).unwrap_or_default()
    }

    /// The intervals that may hold keys of a range.
    pub(crate) fn within(
        &self,
        (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
    ) -> impl Iterator<Item = &Fragment> {
        let from = match lower {
            Bound::Included(key) | Bound::Excluded(key) => {
                self.fragments.partition_point(|fragment| *fragment.end <= *key)
            }
            Bound::Unbounded => 0,
        };
        let to = match upper {
            Bound::Included(key) => {
                self.fragments.partition_point(|fragment| *fragment.first <= *key)
            }
            Bound::Excluded(key) => {
                self.fragments.partition_point(|fragment| *fragment.first < *key)
            }
            Bound::Unbounded => self.fragments.len(),
        };
        self.fragments.get(from..to).unwrap_or_default().iter().map(|fragment| &**fragment)
    }

    /// The set with one more range. Adding a range that is present changes nothing.
    pub(crate) fn with(&self, first: &[u8], end: &[u8], glsn: Glsn) -> Self {
        if first >= end {
            return self.clone();
        }
        let touched = self.touching(first, end);
        let from = self.fragments.partition_point(|fragment| *fragment.end <= *first);
        let mut fragments = Vec::with_capacity(self.fragments.len() + 2);
        fragments.extend_from_slice(&self.fragments[..from]);
        let (new_first, new_end): (Arc<[u8]>, Arc<[u8]>) = (first.into(), end.into());
        let mut add = |first: &Arc<[u8]>, end: &Arc<[u8]>, glsns: SmallVec<[Glsn; 2]>| {
            if first < end {
                let (first, end) = (Arc::clone(first), Arc::clone(end));
                fragments.push(Arc::new(Fragment { first, end, glsns }));
            }
        };
        let mut at = Arc::clone(&new_first);
        for old in touched {
            add(&old.first, &new_first, old.glsns.clone());
            add(&at, &old.first, SmallVec::from_slice(&[glsn]));
            let mut glsns = old.glsns.clone();
            if let Err(place) = glsns.binary_search_by(|other| glsn.cmp(other)) {
                glsns.insert(place, glsn);
            }
            let (inner_first, inner_end) = ((&old.first).max(&new_first), (&old.end).min(&new_end));
            add(inner_first, inner_end, glsns);
            add(&new_end, &old.end, old.glsns.clone());
            at = Arc::clone(inner_end);
        }
        add(&at, &new_end, SmallVec::from_slice(&[glsn]));
        fragments.extend_from_slice(&self.fragments[from + touched.len()..]);
        Self::new(joined(fragments))
    }

    /// The set with only the deletions of intervals that `keeps` selects.
    pub(crate) fn retained(&self, keeps: impl Fn(&Fragment, Glsn) -> bool) -> Self {
        let kept = |fragment: &Arc<Fragment>| {
            let glsns: SmallVec<[Glsn; 2]> =
                fragment.glsns.iter().copied().filter(|glsn| keeps(fragment, *glsn)).collect();
            match glsns.len() {
                0 => None,
                len if len == fragment.glsns.len() => Some(Arc::clone(fragment)),
                _ => Some(Arc::new(Fragment { glsns, ..Fragment::clone(fragment) })),
            }
        };
        Self::new(joined(self.fragments.iter().filter_map(kept).collect()))
    }

    /// The union of both sets.
    pub(crate) fn union(&self, other: &RangeSet) -> Self {
        let all = other.fragments().flat_map(|fragment| {
            fragment.glsns.iter().map(move |glsn| (&fragment.first, &fragment.end, *glsn))
        });
        all.fold(self.clone(), |set, (first, end, glsn)| set.with(first, end, glsn))
    }
}

/// The interval of keys that an iterator is in, and its deletion as of the iterator's snapshot.
#[derive(Debug, Default)]
pub(crate) struct Cover {
    /// `None`: from the first key.
    pub(crate) first: Option<Arc<[u8]>>,
    /// `None`: to the last key.
    pub(crate) end: Option<Arc<[u8]>>,
    /// [`Glsn::NONE`]: not deleted.
    pub(crate) deleted_at: Glsn,
    /// Whether sources without younger versions have skipped the interval.
    pub(crate) is_left_out: bool,
}

impl Cover {
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.first.as_ref().is_none_or(|first| **first <= *key)
            && self.end.as_ref().is_none_or(|end| *key < **end)
    }
}

/// Joins neighbours with the same deletions.
fn joined(fragments: Vec<Arc<Fragment>>) -> Vec<Arc<Fragment>> {
    let is_apart = |a: &Arc<Fragment>, b: &Arc<Fragment>| a.end != b.first || a.glsns != b.glsns;
    if fragments.windows(2).all(|pair| is_apart(&pair[0], &pair[1])) {
        return fragments;
    }
    let mut joined: Vec<Arc<Fragment>> = Vec::with_capacity(fragments.len());
    for fragment in fragments {
        match joined.last_mut() {
            Some(last) if !is_apart(last, &fragment) => {
                let first = Arc::clone(&last.first);
                *last = Arc::new(Fragment { first, ..Fragment::clone(&fragment) });
            }
            _ => joined.push(fragment),
        }
    }
    joined
}

/// Adds point deletions for range deletions while versions pass by in order (keys ascending, one
/// key's versions newest first).
#[derive(Debug)]
pub(crate) struct Absorber {
    ranges: Arc<RangeSet>,
    /// Only ranges up to this GLSN, which are durable, are absorbed.
    upto: Glsn,
    key: Vec<u8>,
    younger: Glsn,
}

impl Absorber {
    /// Absorbs the deletions of `ranges` up to `upto`.
    pub(crate) fn new(ranges: &RangeSet, upto: Glsn) -> Self {
        let ranges = Arc::new(ranges.retained(|_, glsn| glsn <= upto));
        Self { ranges, upto, key: Vec::new(), younger: Glsn::MAX }
    }

    /// The GLSN up to which ranges are absorbed.
    pub(crate) fn upto(&self) -> Glsn {
        self.upto
    }

    /// The ranges that are absorbed.
    pub(crate) fn ranges(&self) -> &RangeSet {
        &self.ranges
    }

    /// The point deletion to insert before the next version, if a range deleted that version.
    pub(crate) fn deletion_of(
        &mut self,
        key: &[u8],
        glsn: Glsn,
        is_deletion: bool,
    ) -> Option<Glsn> {
        if self.ranges.is_empty() {
            return None;
        }
        if self.key != key {
            self.key.clear();
            self.key.extend_from_slice(key);
            self.younger = Glsn::MAX;
        }
        let younger = std::mem::replace(&mut self.younger, glsn);
        if is_deletion { None } else { self.ranges.deletion_of(key, glsn, younger) }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_disk::random::Random;

    use super::*;

    fn key(number: u64) -> [u8; 5] {
        [0, 0, 0, 1, number as u8]
    }

    /// Compares a set with a list of ranges, at every key and GLSN.
    fn check(set: &RangeSet, list: &[(u64, u64, u64)]) {
        assert!(RangeSet::of(set.fragments().cloned().collect()).is_some(), "{set:?}");
        for number in 0..20 {
            let over = list.iter().filter(|(first, end, _)| (*first..*end).contains(&number));
            let mut glsns: Vec<u64> = over.map(|range| range.2).collect();
            glsns.sort_unstable_by(|a, b| b.cmp(a));
            glsns.dedup();
            for at in 0..20 {
                let newest = glsns.iter().copied().find(|glsn| *glsn <= at).unwrap_or(0);
                assert_eq!(set.newest_over(&key(number), Glsn(at)), Glsn(newest));
                let oldest = glsns.iter().rev().copied().find(|glsn| *glsn > at).map(Glsn);
                assert_eq!(set.deletion_of(&key(number), Glsn(at), Glsn::MAX), oldest);
            }
        }
    }

    #[test]
    fn a_set_answers_like_the_list_of_its_ranges() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let (mut set, mut list) = (RangeSet::default(), Vec::new());
            for _ in 0..8 {
                let (first, end, glsn) = (random.below(20), random.below(20), 1 + random.below(18));
                set = set.with(&key(first), &key(end), Glsn(glsn));
                list.push((first, end, glsn));
                check(&set, &list);
                assert_eq!(set.with(&key(first), &key(end), Glsn(glsn)), set, "seed {seed}");
            }
            let bound = random.below(18);
            let kept = set.retained(|_, glsn| glsn.0 > bound);
            list.retain(|range| range.2 > bound);
            check(&kept, &list);
            assert_eq!(RangeSet::default().union(&set), set);
        }
    }

    #[test]
    fn each_deleted_version_gets_its_oldest_range_deletion() {
        let set = RangeSet::default();
        let set = [5, 10, 12, 30].iter().fold(set, |set, glsn| set.with(b"a", b"m", Glsn(*glsn)));
        let mut absorber = Absorber::new(&set, Glsn(20));
        let mut ask = |key: &str, glsn, is_deletion| {
            absorber.deletion_of(key.as_bytes(), Glsn(glsn), is_deletion).map(|glsn| glsn.0)
        };
        assert_eq!(ask("b", 20, false), None, "the range at 30 is not durable yet");
        assert_eq!(ask("b", 10, false), Some(12), "the put of the same commit survives");
        assert_eq!(ask("b", 7, true), None);
        assert_eq!(ask("b", 3, false), Some(5));
        assert_eq!(ask("c", 11, false), Some(12));
        assert_eq!(ask("c", 10, false), None, "overwritten before the range deletion");
        assert_eq!(ask("m", 3, false), None);
    }
}
