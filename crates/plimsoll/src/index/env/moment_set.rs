//! A set of moments: every moment from a floor on, and single ones, the pins, below it.

use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

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

    #[inline]
    pub(crate) fn contains(&self, at: Glsn) -> bool {
        at >= self.floor || self.pins.binary_search(&at).is_ok()
    }

    /// Whether one of the moments sees a version at `glsn` that the version at `superseded_by`
    /// superseded.
    pub(crate) fn sees(&self, glsn: Glsn, superseded_by: Glsn) -> bool {
        superseded_by > self.floor
            || self.pin_below(superseded_by).is_some_and(|pinned| pinned >= glsn)
    }

    /// The newest pin below `before`.
    pub(crate) fn pin_below(&self, before: Glsn) -> Option<Glsn> {
        let below = self.pins.partition_point(|pinned| *pinned < before);
        self.pins[..below].last().copied()
    }

    /// Whether every moment of `other` is in the set. It may answer `false` where pins right below
    /// the floor do what a lower floor would.
    pub(crate) fn includes(&self, other: &Self) -> bool {
        self.floor <= other.floor && other.pins.iter().all(|pinned| self.contains(*pinned))
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
    fn an_intersection_has_the_moments_of_both() {
        let sets = [set(0, &[]), set(4, &[1, 3]), set(6, &[3, 5]), set(9, &[1, 7]), set(6, &[7])];
        for (a, b) in sets.iter().flat_map(|a| sets.iter().map(move |b| (a, b))) {
            let both = a.intersection(b);
            for at in (0..12).map(Glsn) {
                assert_eq!(both.contains(at), a.contains(at) && b.contains(at), "{a:?} {b:?} {at}");
            }
            assert!(a.includes(&both) && b.includes(&both), "{a:?} {b:?}");
            let is_subset = (0..12).map(Glsn).all(|at| a.contains(at) || !b.contains(at));
            assert_eq!(a.includes(b), is_subset, "{a:?} {b:?}");
        }
    }
}
