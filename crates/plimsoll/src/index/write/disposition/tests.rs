//! Tests of the dispositions of versions.

use super::*;
use crate::types::expiry::Expiry;

/// The same retained moments for every keyspace.
struct FixedHorizon(MomentSet);

impl Horizon for FixedHorizon {
    fn retained(&self, _: u32) -> MomentSet {
        self.0.clone()
    }

    fn relocate_below(&self) -> Glsn {
        Glsn::NONE
    }
}

/// As [`FixedHorizon`], with expiries.
struct Expires(FixedHorizon, (u64, u64));

impl Horizon for Expires {
    fn retained(&self, keyspace: u32) -> MomentSet {
        self.0.retained(keyspace)
    }

    fn expired(&self, _: Glsn) -> (Glsn, u64) {
        (Glsn(self.1.0), self.1.1)
    }

    fn relocate_below(&self) -> Glsn {
        Glsn::NONE
    }
}

/// Retains every moment from `floor` on, and the pins.
fn keeps(floor: u64, pins: &[u64]) -> FixedHorizon {
    FixedHorizon(MomentSet { floor: Glsn(floor), pins: pins.iter().map(|at| Glsn(*at)).collect() })
}

/// The same facts for every key.
struct FixedFacts {
    in_history: bool,
    in_runs: Option<u64>,
}

const NOTHING: FixedFacts = FixedFacts { in_history: false, in_runs: None };

impl OutsideFacts for FixedFacts {
    fn in_history(&mut self, _: &[u8], _: Glsn) -> crate::types::error::Result<bool> {
        Ok(self.in_history)
    }

    fn in_runs(&mut self, _: &[u8], at: Glsn) -> crate::types::error::Result<(bool, Option<Glsn>)> {
        Ok((self.in_runs.is_some(), self.in_runs.map(Glsn).filter(|&glsn| glsn <= at)))
    }
}

const CURRENT: Inputs = Inputs::Current { oldest: false };
const OLDEST: Inputs = Inputs::Current { oldest: true };

/// The dispositions of one key's versions, newest first (a GLSN, negative for a deletion):
/// c(urrent), h(istory), - (dropped).
fn dispositions_and_limits(
    inputs: Inputs,
    floor: u64,
    outside: FixedFacts,
    versions: &[i64],
) -> (String, Limits) {
    dispositions_at(inputs, &keeps(floor, &[]), outside, versions)
}

fn dispositions_at(
    inputs: Inputs,
    retained: &FixedHorizon,
    mut outside: impl OutsideFacts,
    versions: &[i64],
) -> (String, Limits) {
    let mut splitter = Splitter::new(inputs, true);
    let mut letters = String::new();
    for &version in versions {
        let stored = if version < 0 { Stored::Deleted } else { Stored::Inline(b"value") };
        let version = Version { key: b"\0\0\0\x05key", glsn: Glsn(version.unsigned_abs()), stored };
        letters.push(match splitter.disposition(&version, retained, &mut outside).unwrap() {
            Disposition::Current => 'c',
            Disposition::History { first } => {
                assert_eq!(first, !letters.contains('h'));
                'h'
            }
            Disposition::Dropped => '-',
        });
    }
    (letters, std::mem::take(splitter.limits()))
}

fn dispositions(inputs: Inputs, horizon: u64, outside: FixedFacts, versions: &[i64]) -> String {
    dispositions_and_limits(inputs, horizon, outside, versions).0
}

#[test]
fn the_newest_version_stays_and_unreadable_older_ones_are_dropped() {
    let versions = [9, 7, 5, 3];
    for (horizon, expected) in [
        (0, "chhh"),
        (3, "chhh"),
        (4, "chhh"),
        (5, "chh-"),
        (6, "chh-"),
        (8, "ch--"),
        (9, "c---"),
        (99, "c---"),
    ] {
        let (dispositions, limits) = dispositions_and_limits(CURRENT, horizon, NOTHING, &versions);
        assert_eq!(dispositions, expected, "horizon {horizon}");
        // A read at the oldest readable GLSN returns the same as before.
        let oldest_kept = versions
            .iter()
            .zip(dispositions.chars())
            .filter(|(_, disposition)| *disposition != '-')
            .map(|(v, _)| *v)
            .min();
        let oldest = if dispositions.contains('-') { oldest_kept.unwrap() as u64 } else { 0 };
        assert_eq!(limits.oldest_readable, Glsn(oldest), "horizon {horizon}");
        assert_eq!(
            limits.readable_in,
            if oldest > 0 { vec![(5, MomentSet::since(Glsn(oldest)))] } else { vec![] }
        );
    }
}

#[test]
fn a_copy_of_a_version_is_dropped_and_supersedes_nothing() {
    let (dispositions, limits) = dispositions_and_limits(CURRENT, 99, NOTHING, &[9, 9, 9]);
    assert_eq!((&dispositions[..], limits), ("c--", Limits::default()));
}

#[test]
fn a_deletion_stays_if_older_runs_may_hold_its_key() {
    assert_eq!(dispositions(CURRENT, 99, NOTHING, &[-9, 5]), "c-");
    assert_eq!(dispositions(CURRENT, 0, NOTHING, &[-9, 5]), "ch");
}

#[test]
fn a_deletion_with_nothing_beneath_is_dropped_or_moved() {
    let (gone, limits) = dispositions_and_limits(OLDEST, 99, NOTHING, &[-9, 5]);
    assert_eq!((&gone[..], limits.deletions_dropped_in), ("--", vec![(5, Glsn(9))]));
    let (moved, limits) = dispositions_and_limits(OLDEST, 8, NOTHING, &[-9, 5]);
    assert_eq!((&moved[..], limits.deletions_dropped_in), ("hh", vec![]));
    assert_eq!(dispositions(OLDEST, 0, NOTHING, &[-9, -5, 3]), "hhh");
    let (superseded, limits) = dispositions_and_limits(OLDEST, 99, NOTHING, &[9, -5, 3]);
    assert_eq!(
        (&superseded[..], limits.deletions_dropped_in),
        ("c--", vec![]),
        "a younger version is still present"
    );
    let known = FixedFacts { in_history: true, in_runs: None };
    let (dispositions, limits) = dispositions_and_limits(OLDEST, 99, known, &[-9, 5]);
    assert_eq!(
        dispositions, "h-",
        "otherwise the key's versions in history would become visible again"
    );
    assert_eq!(limits.deletions_moved, Glsn(9));
}

/// The dispositions of one key's versions if the horizon falls to 0 after the first one.
fn dispositions_over_a_lowered_horizon(inputs: Inputs, versions: &[i64]) -> String {
    let (mut splitter, mut letters, mut horizon) =
        (Splitter::new(inputs, true), String::new(), keeps(99, &[]));
    let mut outside = NOTHING;
    for &version in versions {
        let stored = if version < 0 { Stored::Deleted } else { Stored::Inline(b"value") };
        let version = Version { key: b"\0\0\0\x05key", glsn: Glsn(version.unsigned_abs()), stored };
        letters.push(match splitter.disposition(&version, &horizon, &mut outside).unwrap() {
            Disposition::Current => 'c',
            Disposition::History { .. } => 'h',
            Disposition::Dropped => '-',
        });
        horizon = keeps(0, &[]);
        splitter.refresh();
    }
    letters
}

#[test]
fn an_expired_value_is_dropped_if_no_moment_sees_it_and_nothing_reappears() {
    let expiring = Stored::Inline(b"value").expiring(Expiry::from_micros(70));
    let outcome = |inputs, retained: FixedHorizon, expired, mut outside: FixedFacts| {
        let (mut splitter, retained) = (Splitter::new(inputs, true), Expires(retained, expired));
        let mut versions = [(9, expiring), (7, Stored::Inline(b"old"))].map(|(glsn, stored)| {
            let version = Version { key: b"\0\0\0\x10key", glsn: Glsn(glsn), stored };
            splitter.disposition(&version, &retained, &mut outside).unwrap()
        });
        versions.sort_by_key(|disposition| *disposition != Disposition::Current);
        (versions[0] == Disposition::Dropped, std::mem::take(splitter.limits()))
    };
    let (dropped, limits) = outcome(OLDEST, keeps(12, &[]), (12, 70), NOTHING);
    assert!(dropped);
    assert_eq!(limits.oldest_readable_in(16), Glsn(12), "moment 9 saw it");
    assert_eq!(limits.deletions_dropped_in(16), Glsn(9));
    let (dropped, _) = outcome(OLDEST, keeps(12, &[10]), (10, 70), NOTHING);
    assert!(dropped, "the pin sees that it has expired");
    let older = || FixedFacts { in_history: false, in_runs: Some(7) };
    let (dropped, limits) = outcome(OLDEST, keeps(12, &[6]), (12, 70), older());
    assert!(dropped, "the pin is older than the value and the one that it hides");
    assert!(limits.is_readable(16, Glsn(6)) && !limits.is_readable(16, Glsn(9)));
    for (inputs, floor, pins, expired, outside) in [
        (CURRENT, 12, &[][..], (12, 70), NOTHING),
        (OLDEST, 12, &[], (12, 69), NOTHING),
        (OLDEST, 12, &[], (8, 70), NOTHING),
        (OLDEST, 12, &[8], (8, 70), NOTHING),
        (OLDEST, 12, &[8], (12, 70), older()),
        (OLDEST, 12, &[], (12, 70), FixedFacts { in_history: true, in_runs: None }),
    ] {
        let (dropped, limits) = outcome(inputs, keeps(floor, pins), expired, outside);
        assert!(!dropped, "{inputs:?} {floor} {pins:?} {expired:?}");
        assert_eq!(limits.deletions_dropped_in(16), Glsn::NONE);
    }
}

#[test]
fn an_expired_value_on_a_branch_is_kept() {
    let key = [&SIDE.to_be_bytes()[..], b"key"].concat();
    for (inputs, micros) in [(OLDEST, 1), (OLDEST, 70), (CURRENT, 70)] {
        let stored = Stored::Inline(b"").expiring(Expiry::from_micros(micros));
        let (mut splitter, retained) =
            (Splitter::new(inputs, true), Expires(keeps(12, &[]), (12, 70)));
        let version = Version { key: &key, glsn: Glsn(9), stored };
        let mut outside = NOTHING;
        let kept = splitter.disposition(&version, &retained, &mut outside).unwrap();
        assert_eq!(kept, Disposition::Current);
    }
}

#[test]
fn a_fallen_horizon_takes_effect_at_the_next_key() {
    for inputs in [OLDEST, Inputs::History] {
        assert_eq!(
            dispositions_over_a_lowered_horizon(inputs, &[-9, 5, 3]),
            "---",
            "the deleted versions would become visible again"
        );
    }
    assert_eq!(dispositions_over_a_lowered_horizon(CURRENT, &[9, 5, 3]), "c--");
    let mut splitter = Splitter::new(CURRENT, true);
    let mut outcome = |key: &[u8], glsn, horizon| {
        splitter.refresh();
        let version = Version { key, glsn: Glsn(glsn), stored: Stored::Inline(b"value") };
        splitter.disposition(&version, &keeps(horizon, &[]), &mut NoFacts).unwrap()
    };
    outcome(b"\0\0\0\x05key", 9, 99);
    outcome(b"\0\0\0\x05next", 9, 0);
    assert_eq!(outcome(b"\0\0\0\x05next", 5, 99), Disposition::History { first: true });
}

#[test]
fn a_history_version_is_dropped_once_its_successor_is_at_the_horizon() {
    let by = |glsn| FixedFacts { in_history: false, in_runs: Some(glsn) };
    assert_eq!(dispositions(Inputs::History, 99, by(9), &[7, 5]), "--");
    assert_eq!(dispositions(Inputs::History, 8, by(9), &[7, 5]), "h-");
    assert_eq!(dispositions(Inputs::History, 6, by(9), &[7, 5]), "hh");
    assert_eq!(dispositions(Inputs::History, 0, by(9), &[7, 5]), "hh");
    assert_eq!(
        dispositions(Inputs::History, 99, NOTHING, &[7, 5]),
        "h-",
        "it stays because its successor is unknown"
    );
}

#[test]
fn a_moved_deletion_is_dropped_once_nothing_of_its_key_is_left() {
    let older = FixedFacts { in_history: false, in_runs: Some(5) };
    let (gone, limits) = dispositions_and_limits(Inputs::History, 99, NOTHING, &[-9, 5]);
    assert_eq!((&gone[..], limits.deletions_dropped_in), ("--", vec![(5, Glsn(9))]));
    assert_eq!(dispositions(Inputs::History, 8, NOTHING, &[-9, 5]), "hh");
    assert_eq!(
        dispositions(Inputs::History, 99, older, &[-9]),
        "h",
        "an older run still holds what it deleted"
    );
}

/// Versions of a key in the current runs and in history, newest first.
struct Holds<'v> {
    runs: &'v [u64],
    history: &'v [u64],
}

impl OutsideFacts for Holds<'_> {
    fn in_history(&mut self, _: &[u8], at: Glsn) -> crate::types::error::Result<bool> {
        Ok(self.history.iter().any(|glsn| *glsn <= at.0))
    }

    fn in_runs(&mut self, _: &[u8], at: Glsn) -> crate::types::error::Result<(bool, Option<Glsn>)> {
        let found = self.runs.iter().copied().find(|glsn| *glsn <= at.0).map(Glsn);
        Ok((!self.runs.is_empty(), found))
    }
}

#[test]
fn versions_that_a_pin_sees_go_into_history() {
    let versions = [9, 7, 5, 3];
    for (pins, expected, floor) in [
        (&[][..], "c---", 9),
        (&[2], "c---", 9),
        (&[3], "c--h", 9),
        (&[4], "c--h", 9),
        (&[6, 8], "chh-", 5),
        (&[3, 4, 8], "ch-h", 7),
        (&[10], "c---", 9),
    ] {
        let (letters, limits) = dispositions_at(CURRENT, &keeps(99, pins), NOTHING, &versions);
        assert_eq!(letters, expected, "{pins:?}");
        assert_eq!(limits.oldest_readable_in(5), Glsn(floor), "{pins:?}");
        assert!(pins.iter().all(|at| limits.is_readable(5, Glsn(*at))), "{pins:?}");
        assert!(!limits.is_readable(5, Glsn(1)) && limits.is_readable(6, Glsn(1)));
    }
}

#[test]
fn a_deletion_stays_while_a_pin_sees_what_it_hides() {
    let outcome = |inputs, pins: &[u64], runs: &[u64], history: &[u64], versions: &[i64]| {
        dispositions_at(inputs, &keeps(99, pins), Holds { runs, history }, versions).0
    };
    let runs = [9, 7, 5];
    assert_eq!(outcome(OLDEST, &[6], &runs, &[], &[-9, 7, 5]), "h-h");
    assert_eq!(outcome(OLDEST, &[8], &runs, &[], &[-9, 7, 5]), "hh-");
    assert_eq!(outcome(OLDEST, &[4], &runs, &[], &[-9, 7, 5]), "---", "created after the pin");
    assert_eq!(outcome(OLDEST, &[9], &runs, &[], &[-9, 7, 5]), "---", "deleted at the pin");
    let history = [9, 7, 5];
    assert_eq!(outcome(Inputs::History, &[6], &[], &history, &[-9, 7, 5]), "h-h");
    assert_eq!(outcome(Inputs::History, &[4], &[], &history, &[-9, 7, 5]), "---");
}

#[test]
fn a_pin_sees_a_version_in_history_only_up_to_the_next_one_in_the_runs() {
    let outcome = |pins: &[u64], runs: &[u64]| {
        let outside = Holds { runs, history: &[] };
        dispositions_at(Inputs::History, &keeps(30, pins), outside, &[7]).0
    };
    assert_eq!(outcome(&[6], &[20, 9]), "-");
    assert_eq!(outcome(&[8], &[20, 9]), "h");
    assert_eq!(outcome(&[9, 15], &[20, 9]), "-", "both see the version at 9");
    assert_eq!(outcome(&[8, 15], &[20, 9]), "h");
}

#[test]
fn history_is_merged_again_once_a_moment_that_it_is_kept_for_is_released() {
    let kept = |inputs, floor, pins: &[u64], runs: &[u64], versions: &[i64]| {
        let mut splitter = Splitter::new(inputs, true);
        let mut outside = Holds { runs, history: &[9, 7, 5, 3] };
        for &version in versions {
            let stored = if version < 0 { Stored::Deleted } else { Stored::Inline(b"value") };
            let glsn = Glsn(version.unsigned_abs());
            let version = Version { key: b"\0\0\0\x05key", glsn, stored };
            splitter.disposition(&version, &keeps(floor, pins), &mut outside).unwrap();
        }
        let kept = splitter.into_kept();
        move |floor, pins: &[u64]| {
            kept.values().all(|kept| kept.are_retained(&keeps(floor, pins).0))
        }
    };
    let same = kept(Inputs::History, 20, &[4, 8], &[20], &[7, 5, 3]);
    assert!(same(20, &[4, 8]) && same(900, &[4, 8]) && same(8, &[4]), "no version is released");
    assert!(!same(20, &[4]) && !same(20, &[8]) && !same(900, &[]));
    // Another pin keeps nothing of it.
    assert!(kept(Inputs::History, 20, &[2, 8, 12], &[20, 9], &[7])(20, &[8]));
    let same = kept(Inputs::History, 8, &[], &[20, 9], &[7, 5]);
    assert!(same(8, &[]) && !same(9, &[]), "the floor reaches the next version");
    let same = kept(Inputs::History, 20, &[8], &[], &[-9, 7]);
    assert!(same(900, &[8]) && !same(900, &[]), "a deletion hides what the pin sees");
    assert!(kept(CURRENT, 8, &[], &[], &[9, 7, 5])(900, &[]), "only history is merged again");
}

#[test]
fn a_pin_that_is_set_while_a_job_runs_is_readable_only_if_all_drops_kept_it() {
    let mut splitter = Splitter::new(CURRENT, true);
    let mut merge = |key: &[u8], retained: &FixedHorizon| {
        splitter.refresh();
        for glsn in [9, 8] {
            let version = Version { key, glsn: Glsn(glsn), stored: Stored::Deleted };
            splitter.disposition(&version, retained, &mut NoFacts).unwrap();
        }
        let limits = splitter.limits();
        [6, 7].map(|at| limits.is_readable(5, Glsn(at)))
    };
    assert_eq!(merge(b"\0\0\0\x05a", &keeps(99, &[6])), [true, false]);
    assert_eq!(merge(b"\0\0\0\x05b", &keeps(99, &[6, 7])), [true, false]);
    assert_eq!(merge(b"\0\0\0\x05c", &keeps(99, &[7])), [false, false]);
}
