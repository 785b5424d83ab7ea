//! Cursors of finished visits (`txn/range/visit.rs`), kept for later ones, because otherwise a
//! visit of a few rows would spend a tenth of its time on allocations.
//!
//! Invariants:
//! 1. Kept cursors hold nothing of the index: no tables, no pages, no memtables.
//! 2. They are charged as long as they are kept, at most [`KEPT_BYTES_MAX`] in each of [`PARTS`]
//!    parts.
//! 3. A visit does not wait for another one: if there are no kept cursors, it makes its own.

use std::fmt;
use std::sync::{Arc, Mutex};

use plimsoll_memory::budget::OutOfBudget;
use plimsoll_memory::budget::account::Charge;

use crate::index::run::table::Table;
use crate::index::sources::merge::Merge;
use crate::types::thread_part::{PARTS, part_of_thread};

/// Cursors that have grown larger, because of many runs or long keys, are dropped.
const KEPT_BYTES_MAX: usize = 4 << 10;

/// The kept cursors of an index.
#[derive(Debug, Default)]
pub(crate) struct Keep {
    parts: [Part; PARTS],
}

/// A part, on its own cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Part(Mutex<Option<Box<KeptCursors>>>);

impl Keep {
    /// Takes the cursors that are kept for this thread, if any.
    pub(crate) fn take(&self) -> Option<Box<KeptCursors>> {
        self.parts[part_of_thread()].0.try_lock().ok()?.take()
    }

    /// Keeps `cursors` for a later visit if they are small and charged.
    pub(crate) fn keep(&self, mut cursors: Box<KeptCursors>) {
        let bytes = cursors.heap_bytes();
        if bytes <= KEPT_BYTES_MAX
            && bytes as u64 <= cursors.charge.bytes()
            && let Ok(mut part) = self.parts[part_of_thread()].0.try_lock()
        {
            if cursors.charge.bytes() > KEPT_BYTES_MAX as u64 {
                // Release the part of the charge that only the visit needed.
                cursors.charge.set(KEPT_BYTES_MAX as u64).expect("reducing a charge never fails");
            }
            *part = Some(cursors);
        }
    }
}

/// Cursors without sources, and the buffers of a visit.
pub(crate) struct KeptCursors {
    /// A merge without cursors in use.
    merge: Merge,
    /// An empty list.
    nothing: Arc<[Table]>,
    /// A buffer for the visit's key.
    pub(crate) key: Vec<u8>,
    charge: Charge,
}

impl KeptCursors {
    /// No cursors yet, and an empty charge.
    pub(crate) fn new(charge: Charge) -> Self {
        Self { merge: Merge::default(), nothing: Arc::from([]), key: Vec::new(), charge }
    }

    /// Lends the merge, which is to be returned when the iterator releases its sources.
    pub(crate) fn lend(&mut self) -> Merge {
        std::mem::take(&mut self.merge)
    }

    /// Takes a merge back. It releases its sources.
    pub(crate) fn put_back(&mut self, mut merge: Merge) {
        merge.end(&self.nothing);
        self.merge = merge;
    }

    /// Raises the charge to `bytes`, including the iterator's share.
    ///
    /// # Errors
    /// [`OutOfBudget`]; the charge is unchanged.
    pub(crate) fn cover(&mut self, bytes: usize) -> Result<(), OutOfBudget> {
        if bytes as u64 <= self.charge.bytes() { Ok(()) } else { self.charge.set(bytes as u64) }
    }

    /// Whether nothing is charged yet.
    pub(crate) fn is_free(&self) -> bool {
        self.charge.bytes() == 0
    }

    /// Heap size including itself, without a lent merge.
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.merge.heap_bytes() + self.key.capacity()
    }
}

impl fmt::Debug for KeptCursors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeptCursors({} bytes)", self.heap_bytes())
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_log::glsn::Glsn;
    use plimsoll_memory::budget::account::Account;
    use plimsoll_memory::budget::{Backing, Budget, Kind};

    use super::*;
    use crate::index::sources::merge::{Cursor, Direction};
    use crate::index::sources::source::Memtable;

    fn account() -> (Budget, Arc<Account>) {
        let budget = Budget::new(1 << 20, Backing::Heap).unwrap();
        let account = Account::new(&budget, Kind::Iterators).unwrap();
        (budget, account)
    }

    #[test]
    fn kept_cursors_hold_no_sources_and_stay_charged() {
        let (budget, account) = account();
        let (memtable, tables) = (Arc::new(Memtable::new(&budget)), Arc::from([]));
        let keep = Keep::default();
        assert!(keep.take().is_none());
        let mut cursors = Box::new(KeptCursors::new(account.charge()));
        for _ in 0..3 {
            let mut merge = cursors.lend();
            merge.begin(Direction::Forward);
            merge.add(Cursor::memtable(&memtable), Glsn::MAX);
            merge.add_run(&tables, Glsn::MAX);
            assert_eq!((Arc::strong_count(&memtable), Arc::strong_count(&tables)), (2, 2));
            cursors.put_back(merge);
            assert_eq!((Arc::strong_count(&memtable), Arc::strong_count(&tables)), (1, 1));
            cursors.cover(1000 + cursors.heap_bytes()).unwrap();
            keep.keep(cursors);
            assert!(account.charged_bytes() >= 1000);
            cursors = keep.take().expect("this thread kept cursors");
            assert!(keep.take().is_none());
        }
        drop(cursors);
        assert_eq!(account.charged_bytes(), 0);
    }

    #[test]
    fn large_or_uncharged_cursors_are_not_kept() {
        let (_budget, account) = account();
        let keep = Keep::default();
        keep.keep(Box::new(KeptCursors::new(account.charge())));
        assert!(keep.take().is_none());
        let mut large = Box::new(KeptCursors::new(account.charge()));
        large.key.reserve(KEPT_BYTES_MAX);
        large.cover(2 * KEPT_BYTES_MAX).unwrap();
        keep.keep(large);
        assert!(keep.take().is_none());
        assert_eq!(account.charged_bytes(), 0);
    }

    #[test]
    fn kept_cursors_are_charged_only_for_themselves() {
        let (_budget, account) = account();
        let keep = Keep::default();
        let mut cursors = Box::new(KeptCursors::new(account.charge()));
        // A backward visit of a range with long bounds.
        cursors.cover(20_000).unwrap();
        keep.keep(cursors);
        assert!(account.charged_bytes() <= KEPT_BYTES_MAX as u64, "{}", account.charged_bytes());
    }
}
