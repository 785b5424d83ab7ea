//! Range deletions that still apply to some source: disjoint intervals of index keys in key order,
//! each with the GLSNs of the commits that deleted it.
//!
//! A range deletion at `g` hides every version of its keys with a GLSN below `g`. Versions of the
//! same commit have the same GLSN, so they survive.
//!
//! Invariants:
//! 1. A set is immutable and belongs to a view, so that a reader sees a change of the runs together
//!    with the change of the ranges that it causes.
//! 2. Keeping a range longer than needed changes no answer, because it hides only deleted versions.
//!    A range leaves the set when every source that overlaps with it has absorbed it, which means
//!    that the source holds a point deletion wherever the range deleted a version.

#[cfg(test)]
mod tests;

mod chunk;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;
use smallvec::SmallVec;

use crate::index::env::moment_set::MomentSet;
use crate::index::ranges::chunk::{Chunk, Chunks, Directory, MOST, chunks_of, joined};
use crate::types::index_key::{IndexKey, MAX_INDEX_KEY_BYTES};

/// The longest bound of a range: the immediate successor of the longest key.
pub(crate) const MAX_BOUND_BYTES: usize = MAX_INDEX_KEY_BYTES + 1;

/// Upper bound on the bytes that an interval takes in its chunk, without its keys and GLSNs.
const FRAGMENT_BYTES: usize = size_of::<Fragment>() + 6 * size_of::<usize>() + size_of::<u128>();

/// Upper bound on the bytes that a chunk takes in its set, without its intervals and the prefix
/// that their keys share.
const CHUNK_BYTES: usize = size_of::<Chunk>() + 4 * size_of::<usize>() + size_of::<u128>();

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
        self.glsns.get(self.glsns.partition_point(|glsn| *glsn > at)).copied()
    }

    /// The oldest deletion that is younger than `after`.
    pub(crate) fn oldest_after(&self, after: Glsn) -> Option<Glsn> {
        self.glsns[..self.glsns.partition_point(|glsn| *glsn > after)].last().copied()
    }

    /// The GLSNs of the interval's deletions with `glsn` added, in order.
    fn deleted_at(&self, glsn: Glsn) -> SmallVec<[Glsn; 2]> {
        match self.glsns.binary_search_by(|other| glsn.cmp(other)) {
            Ok(_) => self.glsns.clone(),
            Err(place) => {
                let mut glsns = SmallVec::with_capacity(self.glsns.len() + 1);
                glsns.extend_from_slice(&self.glsns[..place]);
                glsns.push(glsn);
                glsns.extend_from_slice(&self.glsns[place..]);
                glsns
            }
        }
    }

    fn keyspace(&self) -> u32 {
        IndexKey::new(&self.first).keyspace()
    }

    /// Whether all of its keys are of one keyspace.
    fn is_of_one_keyspace(&self) -> bool {
        let (keyspace, end) = (self.keyspace(), IndexKey::new(&self.end));
        let ends_it = || end.begins_keyspace() && end.keyspace() == keyspace.wrapping_add(1);
        end.is_in(keyspace) || ends_it()
    }

    fn bytes(&self) -> usize {
        let glsns =
            if self.glsns.spilled() { self.glsns.capacity() * size_of::<Glsn>() } else { 0 };
        size_of::<Self>() + 4 * size_of::<usize>() + self.first.len() + self.end.len() + glsns
    }
}

/// The range deletions of a store. Sets share the chunks in which they do not differ.
#[derive(Clone, Default)]
pub(crate) struct RangeSet {
    chunks: Vec<Arc<Chunk>>,
    directory: Directory,
    len: usize,
    bytes: usize,
    /// The newest deletion.
    newest: Glsn,
    /// The end of the last interval.
    end: Option<Arc<[u8]>>,
}

impl PartialEq for RangeSet {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.fragments().eq(other.fragments())
    }
}

impl Eq for RangeSet {}

impl fmt::Debug for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.fragments()).finish()
    }
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
        (in_order && fragments.iter().all(is_sound)).then(|| Self::new(chunks_of(fragments)))
    }

    fn new(chunks: Vec<Arc<Chunk>>) -> Self {
        let directory = Directory::new(chunks.iter().map(|chunk| chunk.first()));
        let len = chunks.iter().map(|chunk| chunk.fragments.len()).sum();
        let bytes = chunks.iter().map(|chunk| chunk.bytes + size_of::<Arc<Chunk>>()).sum();
        let newest = chunks.iter().map(|chunk| chunk.newest).max().unwrap_or(Glsn::NONE);
        let last = chunks.last().and_then(|chunk| chunk.fragments.last());
        let end = last.map(|last| Arc::clone(&last.end));
        Self { chunks, directory, len, bytes, newest, end }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Number of its intervals.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The newest deletion; [`Glsn::NONE`] if there is none.
    #[inline]
    pub(crate) fn newest(&self) -> Glsn {
        self.newest
    }

    /// Its intervals, in key order.
    pub(crate) fn fragments(&self) -> impl Iterator<Item = &Fragment> + Clone {
        self.chunks.iter().flat_map(|chunk| &chunk.fragments)
    }

    /// Heap size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.bytes + self.directory.bytes()) as u64
    }

    /// An upper bound of the bytes that a further range from `first` to `end` adds.
    pub(crate) fn bytes_of_one_more(&self, first: &[u8], end: &[u8]) -> u64 {
        let touched = self.within((Bound::Included(first), Bound::Excluded(end)));
        let edges = touched.clone().take(1).chain(touched.clone().last());
        let of_edges: usize = edges.map(|edge| size_of_val(&edge.glsns[..])).sum();
        // One GLSN more may move a list of two to the heap.
        let of_glsns = |fragment: &Fragment| match fragment.glsns.spilled() {
            true => size_of::<Glsn>(),
            false => 3 * size_of::<Glsn>(),
        };
        // The range adds intervals at its ends and between those that it touches.
        let of_one =
            |next: &Fragment| of_glsns(next) + FRAGMENT_BYTES + next.first.len() + next.end.len();
        let of_ends = 2 * FRAGMENT_BYTES + 4 * (first.len() + end.len());
        // The changed chunks are divided anew, so the keys of each may share a longer prefix.
        let changed = &self.chunks[self.changed_by(first, end)];
        let old_keys = changed.iter().flat_map(|chunk| &chunk.fragments).map(|old| old.first.len());
        let longest = old_keys.chain([first.len(), end.len()]).max().unwrap_or(0);
        let intervals = touched.clone().count() + 2;
        let chunks = changed.len() + 2 * intervals / (MOST / 2) + 2;
        let of_chunks = chunks * (CHUNK_BYTES + longest) + longest;
        (of_edges + touched.map(of_one).sum::<usize>() + of_ends + of_chunks) as u64
    }

    /// The chunks that contain the intervals touched by a range from `first` to `end`, and their
    /// neighbours.
    fn changed_by(&self, first: &[u8], end: &[u8]) -> std::ops::Range<usize> {
        let upto = (self.begun(end).chunk + 1).min(self.chunks.len());
        self.begun(first).chunk.min(upto)..upto
    }

    /// The place after the intervals that begin at or before `key`.
    #[inline]
    fn begun(&self, key: &[u8]) -> Place {
        match self.directory.begun(key, |at| self.chunks[at].first()) {
            0 => Place { chunk: 0, at: 0 },
            chunks => Place { chunk: chunks - 1, at: self.chunks[chunks - 1].begun(key) },
        }
    }

    /// The interval before a place.
    #[inline]
    fn before(&self, place: Place) -> Option<&Fragment> {
        let at = place.at.checked_sub(1)?;
        self.chunks.get(place.chunk)?.fragments.get(at)
    }

    /// The intervals from a place on.
    fn after(&self, place: Place) -> impl Iterator<Item = &Fragment> + Clone {
        let chunks = self.chunks.get(place.chunk..).unwrap_or_default();
        chunks.iter().flat_map(|chunk| &chunk.fragments).skip(place.at)
    }

    /// The interval that contains a key.
    #[inline]
    pub(crate) fn over(&self, key: &[u8]) -> Option<&Fragment> {
        if self.end.as_ref().is_none_or(|end| **end <= *key) {
            return None;
        }
        self.before(self.begun(key)).filter(|last| *last.end > *key)
    }

    /// The newest deletion of a key that is not younger than `at`; [`Glsn::NONE`] if there is none.
    #[inline]
    pub(crate) fn newest_over(&self, key: &[u8], at: Glsn) -> Glsn {
        match self.over(key) {
            None => Glsn::NONE,
            Some(fragment) => fragment.newest_until(at).unwrap_or(Glsn::NONE),
        }
    }

    /// The oldest range deletion that deleted the version of `key` at `glsn`: it is younger than
    /// that version and older than the key's next younger version, which is at `younger`.
    pub(crate) fn deletion_of(&self, key: &[u8], glsn: Glsn, younger: Glsn) -> Option<Glsn> {
        if self.newest <= glsn {
            return None;
        }
        self.over(key)?.oldest_after(glsn).filter(|deletion| *deletion < younger)
    }

    /// The deletion of a key as of snapshot `at`, and the surrounding keys for which it is the
    /// same.
    pub(crate) fn cover_of(&self, key: &[u8], at: Glsn) -> Cover {
        let begun = self.begun(key);
        let is_left_out = false;
        match self.before(begun) {
            Some(over) if *over.end > *key => Cover {
                first: Some(Arc::clone(&over.first)),
                end: Some(Arc::clone(&over.end)),
                deleted_at: over.newest_until(at).unwrap_or(Glsn::NONE),
                is_left_out,
            },
            before => {
                let first = before.map(|before| Arc::clone(&before.end));
                let end = self.after(begun).next().map(|next| Arc::clone(&next.first));
                Cover { first, end, deleted_at: Glsn::NONE, is_left_out }
            }
        }
    }

    /// The intervals that may hold keys of a range.
    pub(crate) fn within<'s>(
        &'s self,
        (lower, upper): (Bound<&'s [u8]>, Bound<&'s [u8]>),
    ) -> impl Iterator<Item = &'s Fragment> + Clone {
        let from = match lower {
            Bound::Included(key) | Bound::Excluded(key) => {
                let mut begun = self.begun(key);
                if self.before(begun).is_some_and(|before| *before.end > *key) {
                    begun.at -= 1;
                }
                begun
            }
            Bound::Unbounded => Place { chunk: 0, at: 0 },
        };
        self.after(from).take_while(move |fragment| match upper {
            Bound::Included(key) => *fragment.first <= *key,
            Bound::Excluded(key) => *fragment.first < *key,
            Bound::Unbounded => true,
        })
    }

    /// The set with one more range. Adding a range that is present changes nothing.
    pub(crate) fn with(&self, first: &[u8], end: &[u8], glsn: Glsn) -> Self {
        if first >= end {
            return self.clone();
        }
        let range = self.changed_by(first, end);
        let changed = self.chunks[range.clone()].iter().flat_map(|chunk| &chunk.fragments);
        let new = added(changed, first, end, glsn);
        let mut chunks = Vec::with_capacity(self.chunks.len() + 2);
        chunks.extend_from_slice(&self.chunks[..range.start]);
        chunks.extend(chunks_of(joined(new)));
        chunks.extend_from_slice(&self.chunks[range.end..]);
        Self::new(chunks)
    }

    /// The set with only those deletions of intervals that `keeps` selects.
    pub(crate) fn retained(&self, mut keeps: impl FnMut(&Fragment, Glsn) -> bool) -> Self {
        self.mapped(|fragment| {
            fragment.glsns.iter().copied().filter(|glsn| keeps(fragment, *glsn)).collect()
        })
    }

    /// Two sets: one with the deletions of intervals that `keeps` selects, one with the others.
    pub(crate) fn parted(&self, mut keeps: impl FnMut(&Fragment, Glsn) -> bool) -> (Self, Self) {
        let mut others = Vec::new();
        let kept = self.mapped(|fragment| {
            let (kept, left_out): (SmallVec<[Glsn; 2]>, SmallVec<[Glsn; 2]>) =
                fragment.glsns.iter().copied().partition(|glsn| keeps(fragment, *glsn));
            if !left_out.is_empty() {
                let (first, end) = (Arc::clone(&fragment.first), Arc::clone(&fragment.end));
                others.push(Fragment { first, end, glsns: left_out });
            }
            kept
        });
        (kept, Self::new(chunks_of(joined(others))))
    }

    /// The keyspaces with an interval that was deleted more than once.
    pub(crate) fn keyspaces_deleted_again(&self) -> BTreeSet<u32> {
        self.fragments()
            .filter(|fragment| fragment.glsns.len() > 1)
            .map(Fragment::keyspace)
            .collect()
    }

    /// The set without each deletion that no retained moment of its keyspace sees unless it also
    /// sees the next younger one. Also returns, for each keyspace that loses a deletion, the
    /// youngest GLSN of a deletion that made an older one superfluous: of the moments before it,
    /// only the retained ones can be read.
    pub(crate) fn settled(
        &self,
        retained: impl Fn(u32) -> MomentSet,
    ) -> (Self, BTreeMap<u32, Glsn>) {
        let mut readable_from = BTreeMap::new();
        let settled = self.mapped(|fragment| {
            if !fragment.is_of_one_keyspace() {
                return fragment.glsns.clone();
            }
            let keyspace = fragment.keyspace();
            let retained = retained(keyspace);
            let mut kept = SmallVec::from_slice(&fragment.glsns[..1]);
            // A deletion is retained like a version that the next younger one supersedes.
            for pair in fragment.glsns.windows(2) {
                if retained.sees(pair[1], pair[0]) {
                    kept.push(pair[1]);
                } else {
                    let from: &mut Glsn = readable_from.entry(keyspace).or_insert(Glsn::NONE);
                    *from = pair[0].max(*from);
                }
            }
            kept
        });
        (settled, readable_from)
    }

    /// The set with a subset of the deletions of each interval.
    /// Both sets share the chunks that do not change.
    fn mapped(&self, mut glsns_of: impl FnMut(&Fragment) -> SmallVec<[Glsn; 2]>) -> Self {
        let mut chunks = Chunks::default();
        for chunk in &self.chunks {
            let glsns: Vec<_> = chunk.fragments.iter().map(&mut glsns_of).collect();
            if chunk.fragments.iter().map(|fragment| &fragment.glsns).eq(&glsns) {
                chunks.share(chunk);
                continue;
            }
            let mapped = chunk.fragments.iter().zip(glsns).filter(|(_, glsns)| !glsns.is_empty());
            chunks.changed.extend(mapped.map(|(old, glsns)| Fragment { glsns, ..old.clone() }));
        }
        Self::new(chunks.finish())
    }

    /// The union of both sets. It shares the chunks of this set in which the other has nothing.
    pub(crate) fn union(&self, other: &RangeSet) -> Self {
        if other.is_empty() {
            return self.clone();
        }
        let mut chunks = Chunks::default();
        let mut others = other.fragments().cloned();
        let mut next = others.next();
        for chunk in &self.chunks {
            while let Some(before) = next.take_if(|next| *next.end <= *chunk.first()) {
                chunks.changed.push(before);
                next = others.next();
            }
            if next.as_ref().is_none_or(|next| chunk.end() <= &*next.first) {
                chunks.share(chunk);
                continue;
            }
            for fragment in &chunk.fragments {
                let mut rest = Some(fragment.clone());
                while let Some(old) = rest.take() {
                    let Some(new) = next.take_if(|next| next.first < old.end) else {
                        chunks.changed.push(old);
                        break;
                    };
                    (rest, next) = merged(old, new, &mut chunks.changed);
                    next = next.or_else(|| others.next());
                }
            }
        }
        chunks.changed.extend(next.into_iter().chain(others));
        Self::new(chunks.finish())
    }

    /// Whether one interval of the set contains all keys of `fragment` and was deleted at `glsn`.
    pub(crate) fn has(&self, fragment: &Fragment, glsn: Glsn) -> bool {
        let over = self.over(&fragment.first).filter(|over| over.end >= fragment.end);
        over.is_some_and(|over| over.glsns.contains(&glsn))
    }
}

/// Adds the union of two intervals to `all`, up to the lower of their ends, and returns the rest of
/// each. If they do not overlap, it adds only the one that comes first.
fn merged(
    old: Fragment,
    new: Fragment,
    all: &mut Vec<Fragment>,
) -> (Option<Fragment>, Option<Fragment>) {
    if new.end <= old.first {
        all.push(new);
        return (Some(old), None);
    }
    let (begun, both) = ((&old.first).max(&new.first), (&old.end).min(&new.end));
    for one in [&old, &new].into_iter().filter(|one| one.first < *begun) {
        all.push(Fragment { end: Arc::clone(begun), ..one.clone() });
    }
    let mut glsns: SmallVec<[Glsn; 2]> = old.glsns.iter().chain(&new.glsns).copied().collect();
    glsns.sort_unstable_by(|a, b| b.cmp(a));
    glsns.dedup();
    all.push(Fragment { first: Arc::clone(begun), end: Arc::clone(both), glsns });
    let rest = |one: &Fragment| {
        (one.end > *both).then(|| Fragment { first: Arc::clone(both), ..one.clone() })
    };
    (rest(&old), rest(&new))
}

/// A place in a set: after the first `at` intervals of a chunk.
#[derive(Clone, Copy, Debug)]
struct Place {
    chunk: usize,
    at: usize,
}

/// The intervals that result from adding one more range to `fragments`.
fn added<'f>(
    fragments: impl Iterator<Item = &'f Fragment>,
    first: &[u8],
    end: &[u8],
    glsn: Glsn,
) -> Vec<Fragment> {
    let (new_first, new_end): (Arc<[u8]>, Arc<[u8]>) = (first.into(), end.into());
    let mut all = Vec::with_capacity(2 * MOST);
    let mut add = |first: &Arc<[u8]>, end: &Arc<[u8]>, glsns: SmallVec<[Glsn; 2]>| {
        if first < end {
            all.push(Fragment { first: Arc::clone(first), end: Arc::clone(end), glsns });
        }
    };
    let once = || SmallVec::from_slice(&[glsn]);
    // The rest of the new range begins here.
    let mut at = Arc::clone(&new_first);
    for old in fragments {
        if old.end <= new_first {
            add(&old.first, &old.end, old.glsns.clone());
            continue;
        }
        if old.first >= new_end {
            add(&at, &new_end, once());
            at = Arc::clone(&new_end);
            add(&old.first, &old.end, old.glsns.clone());
            continue;
        }
        add(&old.first, &new_first, old.glsns.clone());
        add(&at, &old.first, once());
        let (inner_first, inner_end) = ((&old.first).max(&new_first), (&old.end).min(&new_end));
        add(inner_first, inner_end, old.deleted_at(glsn));
        add(&new_end, &old.end, old.glsns.clone());
        at = Arc::clone(inner_end);
    }
    add(&at, &new_end, once());
    all
}

/// An interval of keys that an iterator is in, and its deletion as of the iterator's moment.
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

/// Adds point deletions for range deletions to a sequence of versions in order (keys ascending, one
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
