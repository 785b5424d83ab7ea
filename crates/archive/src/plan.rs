//! Chooses what a restore reads: which base, and which part of the log. Pure.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use plimsoll::Glsn;

use crate::catalog::Catalog;
use crate::manifest::{Base, End, Piece};

/// The moment to restore, to the extent known before the log is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The lowest GLSN that it can have.
    pub(crate) from: u64,
    /// The highest GLSN that it can have.
    pub(crate) to: u64,
    /// Its time, if it is looked up by time.
    pub(crate) micros: Option<u64>,
}

impl Target {
    pub(crate) fn glsn(glsn: u64) -> Self {
        Self { from: glsn, to: glsn, micros: None }
    }

    /// Whether it is known to be at a base, or after it.
    fn is_from(&self, base: &Base) -> bool {
        let is_by_time = self.micros.is_some_and(|micros| base.micros <= micros);
        base.glsn <= self.from || (base.glsn <= self.to && is_by_time)
    }
}

/// The source of a restore.
#[derive(Clone, Debug)]
pub(crate) struct Plan<'a> {
    /// `None`: the log, from its beginning.
    pub(crate) base: Option<&'a Base>,
    /// The pieces of the log, in order.
    pub(crate) pieces: Vec<&'a Piece>,
    /// Whether it reaches the target. Otherwise it ends with its last piece.
    pub(crate) is_whole: bool,
}

impl Plan<'_> {
    pub(crate) fn end(&self) -> End {
        self.pieces.last().map_or_else(End::default, |piece| piece.end)
    }
}

/// Objects that cannot be used, and why.
pub(crate) type Bad = BTreeMap<String, String>;

/// The consecutive pieces of the log that can be replayed on a base.
fn reach<'a>(catalog: &'a Catalog, base: Option<&'a Base>, bad: &'a Bad) -> Vec<&'a Piece> {
    let log_first = base.map_or(1, |base| base.log_first);
    if base.is_some_and(|base| bad.contains_key(&base.list.name)) {
        return Vec::new();
    }
    let bad_blobs: Vec<_> =
        catalog.blobs.values().filter(|blob| bad.contains_key(&blob.object.name)).collect();
    let is_good = move |piece: &Piece| {
        let needs = |blob: &&crate::manifest::Blob| {
            blob.segment == piece.segment && blob.glsn <= piece.end.glsn
        };
        !bad.contains_key(&piece.object.name) && !bad_blobs.iter().any(needs)
    };
    let pieces: Vec<_> = catalog.run_from(log_first, is_good).collect();
    let end = pieces.last().map_or(0, |piece| piece.end.glsn);
    if base.is_some_and(|base| end < base.glsn) { Vec::new() } else { pieces }
}

/// All possible beginnings: each base, newest first, and the beginning of the log.
fn beginnings<'a>(
    catalog: &'a Catalog,
    bad: &'a Bad,
) -> impl Iterator<Item = (Option<&'a Base>, Vec<&'a Piece>)> {
    let bases = catalog.bases.iter().rev().map(Some).chain([None]);
    bases.map(|base| (base, reach(catalog, base, bad))).filter(|(_, pieces)| !pieces.is_empty())
}

/// Chooses the newest base from which the target can be reached. If none reaches it because objects
/// are bad, chooses the plan that comes closest to it from below. `None` if nothing can be
/// restored.
pub(crate) fn plan<'a>(catalog: &'a Catalog, target: Target, bad: &'a Bad) -> Option<Plan<'a>> {
    let mut closest: Option<Plan<'a>> = None;
    for (base, mut pieces) in beginnings(catalog, bad) {
        if base.is_some_and(|base| !target.is_from(base)) {
            continue;
        }
        let is_whole = pieces.last().is_some_and(|piece| piece.end.glsn >= target.to);
        // Keep the pieces up to the one that contains the target, but at least one.
        let to = target.to;
        if let Some(last) = pieces.iter().position(|piece| piece.end.glsn >= to) {
            // An empty segment may follow a moment that is given by its GLSN.
            let empty = |piece: &&&Piece| target.from == target.to && piece.end.glsn == to;
            let more = pieces[last + 1..].iter().take_while(empty).count();
            pieces.truncate(last + 1 + more);
        }
        let plan = Plan { base, pieces, is_whole };
        if is_whole {
            return Some(plan);
        }
        if closest.as_ref().is_none_or(|other| other.end().glsn < plan.end().glsn) {
            closest = Some(plan);
        }
    }
    closest.filter(|_| !bad.is_empty())
}

/// The moments that can be restored, in order.
pub(crate) fn restorable(catalog: &Catalog, bad: &Bad) -> Vec<RangeInclusive<Glsn>> {
    let mut ranges: Vec<(u64, u64)> = beginnings(catalog, bad)
        .map(|(base, pieces)| {
            let end = pieces.last().map_or(0, |piece| piece.end.glsn);
            (base.map_or(0, |base| base.glsn), end)
        })
        .collect();
    ranges.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (from, to) in ranges {
        match joined.last_mut() {
            Some(last) if from <= last.1 + 1 => last.1 = last.1.max(to),
            _ => joined.push((from, to)),
        }
    }
    joined.into_iter().map(|(from, to)| Glsn(from)..=Glsn(to)).collect()
}

/// The target for a time, in the last piece of the log whose first record is not younger than the
/// time. `None` if all are younger. Also returns whether the result is exact. It is not if records
/// are missing between that piece and the next one, or between that piece and the `end` of the
/// archive.
pub(crate) fn target_of_time(catalog: &Catalog, end: u64, micros: u64) -> Option<(Target, bool)> {
    let mut next = end + 1;
    for piece in catalog.pieces().rev() {
        if piece.has_records() && piece.first_micros <= micros {
            let to = piece.end.glsn;
            return Some(match piece.end.micros <= micros {
                true => (Target { from: to, to, micros: None }, next == to + 1),
                false => (Target { from: piece.first, to, micros: Some(micros) }, true),
            });
        }
        next = piece.first;
        // The log before this piece may have been dropped, or never archived.
        let before = catalog.bases.iter().find(|base| base.glsn + 1 == next);
        if let Some(base) = before.filter(|base| base.micros <= micros) {
            return Some((Target { from: base.glsn, to: base.glsn, micros: None }, true));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Blob, Entry};
    use crate::object::ObjectRef;

    fn object(name: &str) -> ObjectRef {
        ObjectRef { name: name.to_owned(), length: 1 }
    }

    /// GLSN n has the time 100 n.
    fn piece(
        name: &str,
        segment: u64,
        bytes: (u64, u64),
        glsns: (u64, u64),
        sealed: bool,
    ) -> Entry {
        let end = End { glsn: glsns.1, chain: glsns.1, micros: glsns.1 * 100 };
        Entry::Piece(Piece {
            segment,
            from: bytes.0,
            to: bytes.1,
            first: glsns.0,
            first_micros: glsns.0 * 100,
            end,
            sealed,
            previous_end: 99,
            object: object(name),
        })
    }

    fn base(name: &str, glsn: u64, log_first: u64) -> Entry {
        Entry::Base(Base { glsn, micros: glsn * 100, log_first, bytes: 1, list: object(name) })
    }

    fn blob(name: &str, segment: u64, glsn: u64) -> Entry {
        Entry::Blob(Blob { id: glsn, segment, glsn, object: object(name) })
    }

    /// A log from its beginning, a base at 25 that needs the log from 11 on, a gap from 41 to 50,
    /// and a base at 60.
    fn catalog() -> Catalog {
        Catalog::of([
            piece("a", 1, (0, 100), (1, 10), true),
            piece("b", 11, (0, 50), (11, 20), false),
            blob("blob", 11, 25),
            piece("c", 11, (32, 90), (21, 25), false),
            base("base 25", 25, 11),
            piece("d", 11, (64, 99), (26, 30), true),
            piece("e", 31, (0, 50), (31, 40), true),
            piece("f", 51, (0, 80), (51, 60), false),
            base("base 60", 60, 51),
            piece("g", 51, (64, 90), (61, 70), false),
        ])
    }

    fn chosen(catalog: &Catalog, glsn: u64, bad: &[&str]) -> Option<(u64, String, u64, bool)> {
        let bad: Bad = bad.iter().map(|name| ((*name).to_owned(), String::new())).collect();
        let plan = plan(catalog, Target::glsn(glsn), &bad)?;
        let names: Vec<&str> = plan.pieces.iter().map(|piece| &*piece.object.name).collect();
        let base = plan.base.map_or(0, |base| base.glsn);
        Some((base, names.concat(), plan.end().glsn, plan.is_whole))
    }

    #[test]
    fn the_newest_base_that_reaches_the_moment_is_chosen() {
        let catalog = catalog();
        let cases = [
            (0_u64, Some((0, "a", 10))),
            (10, Some((0, "a", 10))),
            (11, Some((0, "ab", 20))),
            (24, Some((0, "abc", 25))),
            (25, Some((25, "bc", 25))),
            (40, Some((25, "bcde", 40))),
            (45, None),
            (59, None),
            (61, Some((60, "fg", 70))),
        ];
        for (glsn, expected) in cases {
            let expected = expected.map(|(base, names, end)| (base, names.to_owned(), end, true));
            assert_eq!(chosen(&catalog, glsn, &[]), expected, "{glsn}");
        }
        let ranges: Vec<_> = restorable(&catalog, &Bad::new())
            .into_iter()
            .map(|r| (r.start().0, r.end().0))
            .collect();
        assert_eq!(ranges, [(0, 40), (60, 70)]);
    }

    #[test]
    fn damage_ends_the_log_before_it_unless_a_base_lies_behind() {
        let catalog = catalog();
        let plan = |glsn, bad: &[&str]| chosen(&catalog, glsn, bad);
        assert_eq!(plan(30, &["a"]), Some((25, "bcd".to_owned(), 30, true)));
        assert_eq!(plan(30, &["base 25"]), Some((0, "abcd".to_owned(), 30, true)));
        assert_eq!(plan(30, &["d"]), Some((25, "bc".to_owned(), 25, false)));
        assert_eq!(plan(30, &["blob"]), Some((0, "ab".to_owned(), 20, false)));
        assert_eq!(plan(70, &["g"]), Some((60, "f".to_owned(), 60, false)));
        assert_eq!(plan(70, &["base 60"]), Some((25, "bcde".to_owned(), 40, false)));
        assert_eq!(plan(5, &["a"]), None);
    }

    #[test]
    fn a_segment_follows_an_unsealed_one_if_it_says_that_this_one_is_complete() {
        for (to, is_complete) in [(99, true), (98, false)] {
            let catalog = Catalog::of([
                piece("a", 1, (0, to), (1, 10), false),
                piece("b", 11, (0, 50), (11, 20), false),
            ]);
            assert_eq!(chosen(&catalog, 20, &[]).is_some(), is_complete);
        }
    }

    #[test]
    fn a_time_is_looked_up_in_the_last_piece_that_begins_before_it() {
        let catalog = catalog();
        let target = |end, micros| {
            target_of_time(&catalog, end, micros).map(|(it, is_known)| (it.from, it.to, is_known))
        };
        assert_eq!(target(70, 99), None);
        assert_eq!(target(70, 100), Some((1, 10, true)));
        assert_eq!(target(70, 1000), Some((10, 10, true)));
        assert_eq!(target(70, 1050), Some((10, 10, true)));
        assert_eq!(target(70, 2150), Some((21, 25, true)));
        // The time lies between the end of one part of the log and the beginning of the next.
        assert_eq!(target(70, 4000), Some((40, 40, false)));
        assert_eq!(target(70, 4550), Some((40, 40, false)));
        assert_eq!(target(70, u64::MAX), Some((70, 70, true)));
        assert_eq!(target(80, u64::MAX), Some((70, 70, false)));
    }

    #[test]
    fn a_time_after_a_base_in_a_piece_begins_with_that_base() {
        let catalog = Catalog::of([
            piece("old", 51, (0, 80), (51, 60), false),
            base("base 60", 60, 51),
            piece("whole", 51, (0, 90), (51, 70), false),
        ]);
        for (micros, is_reached) in [(5950, false), (6000, true), (6950, true), (7000, true)] {
            let (target, _) = target_of_time(&catalog, 70, micros).unwrap();
            let bad = Bad::new();
            let plan = plan(&catalog, target, &bad);
            assert_eq!(plan.is_some_and(|plan| plan.base.is_some()), is_reached, "{micros}");
        }
    }

    #[test]
    fn a_time_between_a_base_and_the_first_piece_after_it_is_at_that_base() {
        let pieces = || [base("base 60", 60, 61), piece("after", 61, (0, 50), (61, 70), false)];
        let earlier = [piece("before", 1, (0, 99), (1, 40), true)];
        for catalog in [Catalog::of(pieces()), Catalog::of(earlier.into_iter().chain(pieces()))] {
            let (target, is_known) = target_of_time(&catalog, 70, 6050).unwrap();
            assert_eq!((target.from, target.to, is_known), (60, 60, true));
            let bad = Bad::new();
            let plan = plan(&catalog, target, &bad).unwrap();
            assert_eq!(plan.base.map(|base| base.glsn), Some(60));
        }
    }

    #[test]
    fn a_segment_without_records_belongs_to_the_moment_before_it() {
        let mut catalog = catalog();
        catalog.add(piece("h", 51, (64, 99), (71, 75), true));
        catalog.add(piece("empty", 76, (0, 10), (76, 75), false));
        assert_eq!(chosen(&catalog, 75, &[]), Some((60, "fghempty".to_owned(), 75, true)));
        let (target, _) = target_of_time(&catalog, 75, 7150).unwrap();
        let bad = Bad::new();
        let plan = plan(&catalog, target, &bad).unwrap();
        assert_eq!(plan.pieces.last().unwrap().object.name, "h");
        // The store continued in the segment before it, and began another one.
        catalog.add(piece("more", 51, (64, 120), (76, 80), true));
        catalog.add(piece("next", 81, (0, 10), (81, 85), false));
        assert_eq!(chosen(&catalog, 85, &[]), Some((60, "fghmorenext".to_owned(), 85, true)));
        assert_eq!(catalog.replaced.last().unwrap().name, "empty");
    }

    #[test]
    fn a_whole_segment_replaces_its_pieces() {
        let mut catalog = catalog();
        catalog.add(piece("whole", 11, (0, 99), (11, 30), true));
        assert_eq!(chosen(&catalog, 30, &["b"]), Some((25, "whole".to_owned(), 30, true)));
    }
}
