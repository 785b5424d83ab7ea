//! Repeated removal of the first or the last key of a keyspace.
//!
//! A transaction that pops from the same end again reads rows ahead, because beginning a scan costs
//! several times as much as a row.
//!
//! Invariants:
//! 1. The rows ahead are the rows that the transaction sees after its last pop. An own write to a
//!    key that is not after all of them discards them.
//! 2. Only popped keys count as read, together with all keys before them. They are added to the
//!    read set and the gaps before anything uses these: a scan, a commit, or a write among the
//!    popped keys.
//! 3. Rows read ahead are charged. If the budget refuses, each pop begins a scan.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::{Mutex, PoisonError};

use plimsoll_memory::budget::account::Charge;

use crate::index::gaps::list::successor;
use crate::index::iter::handle::Iterators;
use crate::index::sources::merge::Direction;
use crate::read::span::Span;
use crate::txn::own_gaps::OwnGaps;
use crate::txn::read_set::ReadSet;
use crate::types::index_key::{IndexKey, Prefix};

/// Maximum number of rows read ahead at once.
const ROWS_MAX: usize = 128;

/// Maximum size of the keys and values read ahead at once.
const BYTES_MAX: usize = 16 << 10;

/// Space reserved per row when few rows are read ahead.
const BYTES_FOR_A_ROW: usize = 512;

/// The position at which a transaction pops, and the rows read ahead there.
#[derive(Debug, Default)]
pub(crate) struct Pops {
    /// The keyspace and the end of the last pop; `None` if nothing was popped, or something was
    /// written there since.
    place: Option<(u32, Direction)>,
    /// The last popped index key.
    last: Vec<u8>,
    /// Pops that are not in the read set and the gaps yet.
    unrecorded: u64,
    /// Index keys and values of the rows ahead, concatenated.
    bytes: Vec<u8>,
    rows: VecDeque<Ends>,
    /// Offset of the first row.
    begin: usize,
    /// Maximum number of rows of the last read-ahead.
    at_once: usize,
    charge: Option<Charge>,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    key: usize,
    value: usize,
}

impl Pops {
    /// Whether a write to this index key lies before the end of the keys popped or read ahead. If
    /// so, the caller must record the popped rows and discard the rest.
    pub(crate) fn is_disturbed_by(&self, key: &[u8]) -> bool {
        let Some((space, direction)) = self.place else { return false };
        let farthest = match self.rows.back() {
            Some(last) => {
                let begin = self
                    .rows
                    .len()
                    .checked_sub(2)
                    .map_or(self.begin, |before| self.rows[before].value);
                &self.bytes[begin..last.key]
            }
            None => &self.last,
        };
        IndexKey::new(key).is_in(space)
            && match direction {
                Direction::Forward => key <= farthest,
                Direction::Backward => key >= farthest,
            }
    }

    pub(crate) fn forget(&mut self) {
        self.place = None;
        self.clear();
        self.at_once = 0;
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.rows.clear();
        self.begin = 0;
    }

    /// Makes room for more rows than last time. Returns how many.
    pub(crate) fn reserve(&mut self, iterators: &Iterators) -> usize {
        self.clear();
        let rows = (2 * self.at_once).clamp(4, ROWS_MAX);
        let bytes = (rows * BYTES_FOR_A_ROW).min(BYTES_MAX);
        let charge = self.charge.get_or_insert_with(|| iterators.charge());
        // Charge the capacity that is kept from an earlier, larger read-ahead as well.
        let (bytes_kept, rows_kept) =
            (self.bytes.capacity().max(bytes), self.rows.capacity().max(2 * rows));
        if charge.set((bytes_kept + rows_kept * size_of::<Ends>()) as u64).is_err() {
            return 0;
        }
        self.bytes.reserve_exact(bytes);
        self.rows.reserve_exact(rows);
        self.at_once = rows;
        rows
    }

    /// Adds a row; false if there is no room for it.
    pub(crate) fn push(&mut self, space: u32, key: &[u8], value: &[u8]) -> bool {
        let prefix = Prefix::of(space);
        let row_bytes = prefix.as_bytes().len() + key.len() + value.len();
        if self.bytes.len() + row_bytes > self.bytes.capacity() {
            return false;
        }
        self.bytes.extend_from_slice(prefix.as_bytes());
        self.bytes.extend_from_slice(key);
        let key = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.rows.push_back(Ends { key, value: self.bytes.len() });
        true
    }

    /// The index key and the value of the first row.
    pub(crate) fn first(&self) -> Option<(&[u8], &[u8])> {
        let ends = self.rows.front()?;
        Some((&self.bytes[self.begin..ends.key], &self.bytes[ends.key..ends.value]))
    }

    /// Removes the first row, which was popped.
    pub(crate) fn pass(&mut self) {
        let ends = self.rows.pop_front().expect("the caller has seen the row");
        self.last.clear();
        self.last.extend_from_slice(&self.bytes[self.begin..ends.key]);
        self.begin = ends.value;
        self.unrecorded += 1;
    }

    /// Bytes that are charged, and bytes of the rows ahead.
    #[cfg(feature = "testing")]
    pub(crate) fn charges(&self) -> (u64, u64) {
        let held = self.bytes.capacity() + self.rows.capacity() * size_of::<Ends>();
        (self.charge.as_ref().map_or(0, Charge::bytes), held as u64)
    }

    /// Whether the last pop was from this end of this keyspace.
    pub(crate) fn are_at(&self, space: u32, direction: Direction) -> bool {
        self.place == Some((space, direction))
    }

    /// Records the first pop at this position. The read set has the key already.
    pub(crate) fn begin(&mut self, space: u32, direction: Direction, key: &[u8]) {
        self.forget();
        self.place = Some((space, direction));
        self.last.clear();
        self.last.extend_from_slice(Prefix::of(space).as_bytes());
        self.last.extend_from_slice(key);
    }

    /// Records a pop of a key that was not read ahead.
    pub(crate) fn continue_after(&mut self, index_key: Vec<u8>) {
        self.last = index_key;
        self.unrecorded += 1;
    }

    /// The last popped key.
    pub(crate) fn last_key(&self) -> &[u8] {
        IndexKey::new(&self.last).user_key()
    }

    /// Adds the popped rows to the read set and the gaps.
    pub(crate) fn record(
        &mut self,
        reads: &Mutex<ReadSet>,
        gaps: &Mutex<OwnGaps>,
        iterators: &Iterators,
    ) {
        let dead = std::mem::take(&mut self.unrecorded);
        let Some((space, direction)) = self.place.filter(|_| dead > 0) else { return };
        let span = Span::of_keyspace(space);
        let (first, upper, end) = match direction {
            Direction::Forward => {
                (span.first(), Bound::Included(&self.last[..]), Some(successor(&self.last).into()))
            }
            Direction::Backward => (Cow::Borrowed(&self.last[..]), span.upper(), span.end()),
        };
        let mut reads = reads.lock().unwrap_or_else(PoisonError::into_inner);
        if reads.add(&first, Some(upper)).is_err() {
            // As in a scan, everything counts as read if there is no room.
            reads.add_all();
        }
        drop(reads);
        if let Some(end) = end {
            gaps.lock().unwrap_or_else(PoisonError::into_inner).add(iterators, &first, &end, dead);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::open::open;
    use crate::types::options::Options;

    use super::*;

    #[test]
    fn the_kept_capacity_of_many_rows_is_charged_while_few_are_read_ahead() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(
            &dir.path().join("store"),
            Options::new().memory_bytes(16 << 20).background(false),
        )
        .unwrap();
        let iterators = &store.reader.index.iterators;
        let mut pops = Pops::default();
        while pops.reserve(iterators) < ROWS_MAX {}
        pops.forget();
        assert!(pops.reserve(iterators) < ROWS_MAX);
        let kept = pops.bytes.capacity() + pops.rows.capacity() * size_of::<Ends>();
        let charged = pops.charge.as_ref().unwrap().bytes();
        assert!(charged >= kept as u64, "{charged} of {kept}");
    }
}
