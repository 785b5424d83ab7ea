//! A set of moments: every moment from a floor on, and single ones, the pins, below it.

use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

/// The most single moments that a keyspace retains below its floor. Each takes eight bytes for each
/// keyspace that lost versions, in memory and in the manifest.
pub(crate) const PINS_MAX: usize = 32;

/// A change of a set of moments. Before it happens, some moment of the set still sees a certain
/// version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// The floor reaches this moment.
    Floor(Glsn),
    /// This pin is released.
    Pin(Glsn),
}

/// A set of moments. Cloning it copies no pins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MomentSet {
    /// Every moment from here on is in the set.
    pub(crate) floor: Glsn,
    /// Single moments in the set, ascending; those from `floor` on add nothing.
    pub(crate) pins: Arc<[Glsn]>,
}

impl MomentSet {
    /// Every moment.
    pub(crate) fn all() -> Self {
        Self::default()
    }

    /// Every moment from `floor` on.
    pub(crate) fn since(floor: Glsn) -> Self {
        Self { floor, pins: Arc::default() }
    }

    /// Every moment from `floor` on, and the single moments `pins`, in any order. If there are more
    /// than [`PINS_MAX`] of them, the oldest stay single, and the floor is lowered to the next one.
    pub(crate) fn bounded(floor: Glsn, pins: impl IntoIterator<Item = Glsn>) -> Self {
        let mut pins: Vec<Glsn> = pins.into_iter().filter(|at| *at < floor).collect();
        pins.sort_unstable();
        pins.dedup();
        let floor = pins.get(PINS_MAX).copied().unwrap_or(floor);
        pins.truncate(PINS_MAX);
        Self { floor, pins: pins.into() }
    }

    /// The oldest moment at or after `from`, or the floor if that is before `from`.
    pub(crate) fn oldest_from(&self, from: Glsn) -> Glsn {
        let before = self.pins.partition_point(|pinned| *pinned < from);
        self.pins.get(before).copied().unwrap_or(self.floor)
    }

    /// The set with the single moments `pins` added, in any order.
    pub(crate) fn and_pins(self, pins: &[Glsn]) -> Self {
        if pins.is_empty() {
            return self;
        }
        Self::bounded(self.floor, self.pins.iter().chain(pins).copied())
    }

    /// The set with every moment from `floor` on added.
    pub(crate) fn and_since(self, floor: Glsn) -> Self {
        match floor < self.floor {
            true => Self::bounded(floor, self.pins.iter().copied()),
            false => self,
        }
    }

    #[inline]
    pub(crate) fn contains(&self, at: Glsn) -> bool {
        at >= self.floor || self.pins.binary_search(&at).is_ok()
    }

    /// Whether one of the moments sees a version at `glsn` that the version at `superseded_by`
    /// superseded.
    pub(crate) fn sees(&self, glsn: Glsn, superseded_by: Glsn) -> bool {
        self.release_of(glsn, superseded_by).is_some()
    }

    /// A change before which some moment still sees the version at `glsn`, which the version at
    /// `superseded_by` superseded; `None` if no moment sees it now.
    pub(crate) fn release_of(&self, glsn: Glsn, superseded_by: Glsn) -> Option<Release> {
        if superseded_by > self.floor {
            return Some(Release::Floor(superseded_by));
        }
        self.pin_below(superseded_by).filter(|pinned| *pinned >= glsn).map(Release::Pin)
    }

    /// The newest pin below `before`.
    pub(crate) fn pin_below(&self, before: Glsn) -> Option<Glsn> {
        let below = self.pins.partition_point(|pinned| *pinned < before);
        self.pins[..below].last().copied()
    }

    /// The moments that are in both sets.
    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let floor = self.floor.max(other.floor);
        let is_in_both = |at: &Glsn| *at < floor && self.contains(*at) && other.contains(*at);
        let mut pins: Vec<Glsn> =
            self.pins.iter().chain(&*other.pins).copied().filter(is_in_both).collect();
        pins.sort_unstable();
        pins.dedup();
        Self { floor, pins: pins.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(floor: u64, pins: &[u64]) -> MomentSet {
        MomentSet { floor: Glsn(floor), pins: pins.iter().map(|at| Glsn(*at)).collect() }
    }

    #[test]
    fn a_version_is_seen_from_its_commit_to_the_next() {
        let moments = set(10, &[3, 6]);
        for (glsn, superseded_by, is_seen) in [
            (1, 2, false),
            (1, 3, false),
            (1, 4, true),
            (3, 4, true),
            (4, 6, false),
            (4, 7, true),
            (7, 10, false),
            (7, 11, true),
            (12, 13, true),
        ] {
            assert_eq!(
                moments.sees(Glsn(glsn), Glsn(superseded_by)),
                is_seen,
                "{glsn} until {superseded_by}"
            );
        }
    }

    #[test]
    fn too_many_single_moments_lower_the_floor() {
        let many = || (0..2 * PINS_MAX as u64).rev().map(|at| Glsn(at / 2 * 3));
        let all = MomentSet::bounded(Glsn(1000), many());
        assert_eq!((all.floor, all.pins.len()), (Glsn(1000), PINS_MAX));
        let bounded = MomentSet::bounded(Glsn(1000), many().chain([Glsn(1), Glsn(999)]));
        assert_eq!((bounded.floor, bounded.pins.len()), (Glsn(3 * PINS_MAX as u64 - 3), PINS_MAX));
        assert!(many().all(|at| bounded.contains(at)));
        assert!(bounded.contains(Glsn(1)) && !bounded.contains(Glsn(2)));
        let lowered = all.clone().and_since(Glsn(7));
        assert_eq!(lowered, set(7, &[0, 3, 6]));
        assert_eq!(all.clone().and_since(Glsn(2000)), all);
    }

    #[test]
    fn an_intersection_has_the_moments_of_both() {
        let sets = [set(0, &[]), set(4, &[1, 3]), set(6, &[3, 5]), set(9, &[1, 7]), set(6, &[7])];
        for (a, b) in sets.iter().flat_map(|a| sets.iter().map(move |b| (a, b))) {
            let both = a.intersection(b);
            for at in (0..12).map(Glsn) {
                assert_eq!(both.contains(at), a.contains(at) && b.contains(at), "{a:?} {b:?} {at}");
            }
        }
    }
}
