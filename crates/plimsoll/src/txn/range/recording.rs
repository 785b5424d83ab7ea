//! The reads and gaps that an iterator records in its transaction.

use std::borrow::Cow;
use std::ops::Bound;
use std::sync::{Mutex, PoisonError};

use super::Range;
use super::state::Passed;
use crate::index::gaps::list::successor;
use crate::index::sources::view::Direction;
use crate::txn::read_set::ReadSet;

/// An iterator looks a gap up each time it has stepped over this many own deletions, and adds a gap
/// only if it has at least this many.
pub(super) const DEAD_FOR_A_GAP: u64 = 8;

impl Range<'_> {
    /// The key at which the iterator continues if it begins in a gap.
    pub(super) fn gap_at_begin(&self) -> Option<Vec<u8>> {
        let gaps = self.gaps?.lock().unwrap_or_else(PoisonError::into_inner);
        match self.direction {
            Direction::Forward => gaps.skip(self.direction, &self.span().first()),
            Direction::Backward => gaps.skip(self.direction, &self.span().end()?),
        }
    }

    /// Adds the interval passed since the last key to the transaction's gaps, if it has many
    /// deletions or extends a gap.
    pub(super) fn note_gap(&mut self, is_first: bool, at_end: bool) {
        let (Some(gaps), Some(state)) = (self.gaps, &mut self.state) else { return };
        let Passed { dead, edge, skipped } = std::mem::take(&mut state.passed);
        if (dead < DEAD_FOR_A_GAP && !skipped) || (edge.is_none() && !is_first) {
            return;
        }
        // Record the reads first, because a gap must be covered by the read set.
        self.note_reads(at_end);
        let span = self.span();
        let key = if at_end { Cow::Borrowed(&[][..]) } else { self.given_key() };
        let (first, end) = match self.direction {
            Direction::Forward => {
                let end = if at_end { span.end() } else { Some(key) };
                (edge.map_or_else(|| span.first(), Cow::Owned), end)
            }
            Direction::Backward => {
                let first = if at_end { span.first() } else { Cow::Owned(successor(&key)) };
                (first, edge.map(Cow::Owned).or_else(|| span.end()))
            }
        };
        if let Some(end) = end {
            let mut gaps = gaps.lock().unwrap_or_else(PoisonError::into_inner);
            gaps.add(&self.reader().index.iterators, &first, &end, dead);
        }
    }

    /// Records the read range in the transaction: the whole span, or the part up to the current
    /// key. Nothing is recorded after that.
    pub(super) fn remember(&mut self, whole: bool) {
        self.note_reads(whole);
        self.reads = None;
    }

    /// Records the range read so far in the transaction.
    pub(super) fn note_reads(&self, whole: bool) {
        let Some(reads) = self.reads else { return };
        let span = self.span();
        let key = self.given_key();
        let (first, last) = match (whole, self.direction, self.has_any) {
            (true, _, _) => (span.first(), span.upper()),
            (false, _, false) => return,
            (false, Direction::Forward, true) => (span.first(), Bound::Included(&*key)),
            (false, Direction::Backward, true) => (Cow::Borrowed(&*key), span.upper()),
        };
        if let Some(branch) = &self.branch {
            return branch.note_reads(reads, &first, last);
        }
        note_span(reads, &first, last);
    }
}

/// Records that the keys from `first` to `last` were read.
pub(super) fn note_span(reads: &Mutex<ReadSet>, first: &[u8], last: Bound<&[u8]>) {
    let mut reads = reads.lock().unwrap_or_else(PoisonError::into_inner);
    if reads.add(first, Some(last)).is_err() {
        // The read set has no room, so everything counts as read: any commit since the snapshot
        // is a conflict.
        reads.add_all();
    }
}
