//! The expiries of a watch that come next, in bounded memory.
//!
//! The horizon is the first expiry that the window may lack. Invariant: the window has each expiry
//! that is before the horizon, belongs to a current value, and was not reported. Entries may be
//! stale, because their value may have been replaced or deleted.

use std::collections::BTreeSet;

use plimsoll_memory::budget::{Budget, Kind, Lease};

use crate::types::error::Result;

/// The most memory of a window.
const BYTES_MAX: u64 = 1 << 20;

/// The least memory of a window. It is reserved as long as the watch exists.
const BYTES_MIN: u64 = 72 << 10;

/// By how much the memory grows.
const BYTES_STEP: u64 = 32 << 10;

/// Memory that is not for entries: the horizon, the last reported expiries, and the keys that one
/// step of a scan has found.
const RESERVED_BYTES: usize = 40 << 10;

/// An expiry in its order: its time, in microseconds since 1970 UTC, and the user's key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) micros: u64,
    pub(super) key: Box<[u8]>,
}

impl Place {
    /// Before all expiries at a time.
    pub(super) fn at(micros: u64) -> Self {
        Self { micros, key: Box::default() }
    }

    /// Right after this expiry.
    pub(super) fn next(&self) -> Self {
        Self { micros: self.micros, key: [&self.key, &[0][..]].concat().into() }
    }

    /// Upper bound of the heap memory of an entry. A node of the set may be half empty.
    fn bytes(&self) -> usize {
        2 * size_of::<Self>() + 48 + self.key.len()
    }
}

/// The expiries that come next.
#[derive(Debug)]
pub(super) struct Window {
    entries: BTreeSet<Place>,
    /// The sum of [`Place::bytes`].
    bytes: usize,
    /// `None`: the window has all expiries.
    horizon: Option<Place>,
    lease: Lease,
    bytes_max: u64,
    /// Whether the budget has refused more memory since the window was filled.
    is_short: bool,
}

impl Window {
    /// An empty window with the horizon `from`.
    ///
    /// # Errors
    /// The budget.
    pub(super) fn new(budget: &Budget, from: Place) -> Result<Self> {
        Ok(Self {
            entries: BTreeSet::new(),
            bytes: 0,
            horizon: Some(from),
            lease: budget.lease(Kind::Metadata, BYTES_MIN)?,
            bytes_max: BYTES_MAX,
            is_short: false,
        })
    }

    /// Limits the memory of the entries, for simulations.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn limit(&mut self, entry_bytes: usize) {
        self.bytes_max = RESERVED_BYTES as u64 + entry_bytes as u64;
    }

    /// The time of the first entry, or of the horizon if there is no entry; `None` if no expiry
    /// follows.
    pub(super) fn next_micros(&self) -> Option<u64> {
        self.first().or(self.horizon.as_ref()).map(|place| place.micros)
    }

    pub(super) fn first(&self) -> Option<&Place> {
        self.entries.first()
    }

    pub(super) fn pop_first(&mut self) -> Option<Place> {
        let first = self.entries.pop_first()?;
        self.bytes -= first.bytes();
        Some(first)
    }

    /// The time of the horizon if the window is empty and further expiries may follow.
    pub(super) fn must_fill_before(&self) -> Option<u64> {
        let horizon = self.horizon.as_ref().filter(|_| self.entries.is_empty());
        horizon.map(|place| place.micros)
    }

    /// Adds an expiry, unless it is after the horizon. If there is no memory for it, the last entry
    /// leaves, and the horizon moves back to it.
    pub(super) fn enter(&mut self, place: Place) {
        if self.horizon.as_ref().is_some_and(|horizon| place >= *horizon) {
            return;
        }
        let bytes = place.bytes();
        if !self.entries.insert(place) {
            return;
        }
        self.bytes += bytes;
        while self.bytes > self.room() && !self.grow() {
            let last = self.entries.pop_last().expect("one entry was added");
            self.bytes -= last.bytes();
            self.horizon = Some(last);
        }
    }

    /// Begins to fill the empty window with all expiries from the horizon on, which is returned.
    /// [`Window::enter`] may move the horizon back meanwhile.
    pub(super) fn begin_to_fill(&mut self) -> Place {
        self.is_short = false;
        self.horizon.take().unwrap_or(Place::at(0))
    }

    /// Returns to the state before [`Window::begin_to_fill`], because not all expiries were found.
    pub(super) fn fail_to_fill(&mut self, from: Place) {
        self.entries.clear();
        self.bytes = 0;
        self.horizon = Some(from);
    }

    /// Gives back memory that the window does not need.
    pub(super) fn shrink(&mut self) {
        let needed = (self.bytes + RESERVED_BYTES) as u64 + BYTES_STEP;
        let excess = self.lease.bytes().saturating_sub(needed.max(BYTES_MIN));
        if excess >= 2 * BYTES_STEP {
            self.lease.shrink(excess);
        }
    }

    /// The bytes that entries may have.
    fn room(&self) -> usize {
        self.lease.bytes().min(self.bytes_max) as usize - RESERVED_BYTES
    }

    fn grow(&mut self) -> bool {
        if self.is_short || self.lease.bytes() + BYTES_STEP > self.bytes_max {
            return false;
        }
        self.is_short = self.lease.grow(BYTES_STEP).is_err();
        !self.is_short
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_memory::budget::Backing;

    use super::*;

    fn place(micros: u64, key: &str) -> Place {
        Place { micros, key: key.as_bytes().into() }
    }

    fn window(budget_bytes: u64) -> (Budget, Window) {
        let budget = Budget::new(budget_bytes, Backing::Heap).unwrap();
        let window = Window::new(&budget, Place::at(0)).unwrap();
        (budget, window)
    }

    fn drained(window: &mut Window) -> Vec<u64> {
        std::iter::from_fn(|| window.pop_first()).map(|place| place.micros).collect()
    }

    #[test]
    fn the_first_expiries_stay_and_the_horizon_is_the_first_one_that_left() {
        let (_budget, mut window) = window(16 << 20);
        window.limit(3 * place(0, "k").bytes());
        assert_eq!(window.begin_to_fill(), Place::at(0));
        for micros in [9, 3, 7, 5, 1, 8] {
            window.enter(place(micros, "k"));
        }
        assert_eq!((window.next_micros(), window.must_fill_before()), (Some(1), None));
        window.enter(place(6, "k"));
        assert_eq!(drained(&mut window), [1, 3, 5]);
        assert_eq!((window.next_micros(), window.must_fill_before()), (Some(6), Some(6)));
        // Those after the horizon are found by the next scan.
        window.enter(place(6, "l"));
        window.enter(place(4, "k"));
        assert_eq!(drained(&mut window), [4]);
    }

    #[test]
    fn a_failed_scan_leaves_the_horizon() {
        let (_budget, mut window) = window(16 << 20);
        window.begin_to_fill();
        window.fail_to_fill(place(5, "k"));
        window.enter(place(7, "k"));
        window.enter(place(4, "k"));
        assert_eq!(drained(&mut window), [4]);
        let from = window.begin_to_fill();
        assert_eq!(from, place(5, "k"));
        window.enter(place(7, "k"));
        window.fail_to_fill(from);
        assert_eq!((window.first(), window.must_fill_before()), (None, Some(5)));
    }

    #[test]
    fn memory_stays_within_the_lease_and_the_limit() {
        let (budget, mut window) = window(16 << 20);
        window.begin_to_fill();
        for micros in 0..20_000 {
            window.enter(place(micros, "0123456789"));
        }
        assert!(window.bytes + RESERVED_BYTES <= window.lease.bytes() as usize);
        assert!((BYTES_MAX - BYTES_STEP..=BYTES_MAX).contains(&window.lease.bytes()));
        assert!(window.entries.len() > 5000 && window.horizon.is_some());
        while window.pop_first().is_some() {}
        window.shrink();
        assert_eq!(window.lease.bytes(), BYTES_MIN.max(RESERVED_BYTES as u64 + BYTES_STEP));
        // A full budget makes it smaller.
        let mut others = Vec::new();
        while let Ok(chunk) = budget.take(Kind::Pages) {
            others.push(chunk);
        }
        window.begin_to_fill();
        for micros in 0..20_000 {
            window.enter(place(micros, "0123456789"));
        }
        assert!(window.lease.bytes() <= BYTES_MIN + BYTES_STEP && window.horizon.is_some());
        assert!(window.entries.len() > 100);
        assert!(Window::new(&budget, Place::at(0)).is_err());
    }

    #[test]
    fn the_next_place_is_after_its_expiry_and_before_all_others() {
        let one = place(5, "k");
        assert!(one < one.next() && one.next() < place(5, "k\0\0") && one.next() < place(5, "l"));
    }
}
