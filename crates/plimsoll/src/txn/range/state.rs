//! The state of an iterator that has begun: the base, own writes, and the interval it has passed.

use std::ops::Bound;
use std::sync::{Arc, Weak};

use plimsoll_log::glsn::Glsn;

use crate::index::iter::handle::IteratorHandle;
use crate::index::iter::visible::Visible;
use crate::index::sources::view::{Direction, View};
use crate::read::open_moments::OpenMoment;
use crate::read::span::Span;
use crate::txn::own_writes::{OwnWrites, UpdatedKeys};
use crate::txn::write_set::WriteSet;
use crate::types::as_of::{AsOf, Expiries};
use crate::types::error::Result;
use crate::types::version::Version;

/// The moment that an iterator reads.
#[derive(Clone)]
pub(super) enum When<'t> {
    /// For a snapshot, whose versions are retained as long as the iterator lives.
    Snapshot(Arc<OpenMoment>),
    /// For a transaction, which must know what its reads depend on.
    Transaction(&'t OpenMoment, &'t Expiries),
}

impl When<'_> {
    pub(super) fn as_of(&self, has_expired: bool) -> AsOf<'_> {
        let at = match self {
            Self::Snapshot(moment) => moment.as_of(),
            Self::Transaction(moment, expiries) => moment.as_of().noting(expiries),
        };
        if has_expired { AsOf::unexpiring(at.glsn) } else { at }
    }
}

/// The state of an iterator that has begun.
pub(super) struct RangeState<'t> {
    /// The iterator over the committed versions.
    pub(super) base: IteratorHandle<Visible>,
    /// The last key of the base, if it differs from the last key of the range.
    pub(super) base_key: Vec<u8>,
    /// A base version that was found but is returned later, because it is after the next own write
    /// or after rows read ahead.
    pub(super) waiting: Option<Waiting>,
    pub(super) base_done: bool,
    pub(super) own: Option<OwnWrites<'t>>,
    /// The interval since the last returned key.
    pub(super) passed: Passed,
}

/// The interval without visible keys that an iterator with own writes has passed since its last
/// returned key.
#[derive(Default)]
pub(super) struct Passed {
    /// Number of own deletions stepped over.
    pub(super) dead: u64,
    /// The beginning (forward) or the end (backward, exclusive) of the interval; `None`: the bound
    /// of the iterator's range.
    pub(super) edge: Option<Vec<u8>>,
    /// Whether the interval begins at the end of a gap.
    pub(super) skipped: bool,
}

impl RangeState<'_> {
    /// Heap size, without the charge of the handle.
    pub(super) fn heap_bytes(&self) -> usize {
        let waiting = self.waiting.as_ref().map_or(0, |waiting| waiting.encoded.capacity());
        let own = self.own.as_ref().map_or(0, OwnWrites::heap_bytes);
        let edge = self.passed.edge.as_ref().map_or(0, Vec::capacity);
        size_of::<Self>() + self.base_key.capacity() + waiting + own + edge
    }
}

/// The next key's version. Records the expiries that a transaction's commit must check.
pub(super) fn next_of<'a>(
    base: &'a mut Visible,
    key: &'a mut Vec<u8>,
    at: &AsOf<'_>,
) -> Result<Option<Version<'a>>> {
    let found = base.step(key)?;
    if base.has_passed_expired() {
        at.note_missed();
    }
    Ok(if found { base.current(key) } else { None })
}

/// A copy of a version of the base's last key.
pub(super) struct Waiting {
    pub(super) glsn: Glsn,
    pub(super) encoded: Vec<u8>,
    /// The view in which it was found.
    pub(super) view: Weak<View>,
}

/// An iterator over a transaction's own writes in a span, on the first one.
pub(super) fn begin_own<'t>(
    set: (&'t WriteSet, &UpdatedKeys),
    direction: Direction,
    span: &Span,
) -> Result<OwnWrites<'t>> {
    let from = match (direction, span.lower(), span.upper()) {
        (Direction::Forward, Bound::Included(key) | Bound::Excluded(key), _) => Some(key),
        (Direction::Backward, _, Bound::Excluded(key)) => Some(key),
        // A backward iterator begins before the given key, so give it the successor of `key`.
        (Direction::Backward, _, Bound::Included(key)) => {
            let own = OwnWrites::new(set, direction, Some(&[key, &[0][..]].concat()))?;
            return skip_before_span(own, direction, span);
        }
        _ => None,
    };
    skip_before_span(OwnWrites::new(set, direction, from)?, direction, span)
}

/// Skips keys that come before the span in the iterator's direction, such as an excluded first key.
fn skip_before_span<'t>(
    mut own: OwnWrites<'t>,
    direction: Direction,
    span: &Span,
) -> Result<OwnWrites<'t>> {
    while let Some(key) = own.key() {
        let before = match direction {
            Direction::Forward => {
                matches!(span.lower(), Bound::Excluded(lower) if key <= lower)
            }
            Direction::Backward => match span.upper() {
                Bound::Excluded(upper) => key >= upper,
                Bound::Included(upper) => key > upper,
                Bound::Unbounded => false,
            },
        };
        if !before {
            break;
        }
        own.advance()?;
    }
    Ok(own)
}
