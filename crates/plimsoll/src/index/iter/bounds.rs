//! The range of an iterator, and its progress in it.

use std::ops::Bound;

use crate::index::sources::merge::Direction;
use crate::index::sources::view::{KeyRange, OwnRange};
use crate::types::index_key::{KeptKey, bound_heap_bytes};

/// The bounds of the range that is not scanned yet.
#[derive(Debug)]
pub(super) struct Bounds {
    lower: Bound<KeptKey>,
    upper: Bound<KeptKey>,
    /// Whether the iterator has passed the bound at which it began.
    is_past: bool,
}

impl Bounds {
    pub(super) fn new((lower, upper): OwnRange) -> Self {
        Self { lower, upper, is_past: false }
    }

    pub(super) fn lower(&self) -> Bound<&[u8]> {
        self.lower.as_ref().map(|key| &key[..])
    }

    pub(super) fn upper(&self) -> Bound<&[u8]> {
        self.upper.as_ref().map(|key| &key[..])
    }

    /// Both bounds. The one at which the iterator began is exact only until [`Bounds::pass`].
    pub(super) fn copy(&self) -> OwnRange {
        let copy = |bound: Bound<&[u8]>| bound.map(KeptKey::from_slice);
        (copy(self.lower()), copy(self.upper()))
    }

    /// To be called as soon as the iterator has a key to continue from. It keeps only the keyspace
    /// of the bound at which the iterator began, for
    /// [`crate::index::sources::view::View::check_readable`].
    pub(super) fn pass(&mut self, direction: Direction) {
        if !std::mem::replace(&mut self.is_past, true) {
            match (direction, &mut self.lower) {
                (Direction::Backward, _) => self.upper = Bound::Unbounded,
                (_, Bound::Included(key) | Bound::Excluded(key)) => key.truncate_to_prefix(),
                (_, Bound::Unbounded) => {}
            }
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        bound_heap_bytes(&self.lower) + bound_heap_bytes(&self.upper)
    }
}

/// The progress of an iterator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Before,
    /// At its key, which was not returned yet.
    At,
    /// Past its key, which was returned or skipped.
    Past,
    Done,
}

/// The rest of an iterator's range.
pub(super) fn rest_of<'a>(
    bounds: &'a Bounds,
    place: Place,
    direction: Direction,
    key: &'a [u8],
) -> KeyRange<'a> {
    let (lower, upper) = (bounds.lower(), bounds.upper());
    let end = match place {
        Place::Before | Place::Done => return (lower, upper),
        Place::At => Bound::Included(key),
        Place::Past => Bound::Excluded(key),
    };
    match direction {
        Direction::Forward => (end, upper),
        Direction::Backward => (lower, end),
    }
}
