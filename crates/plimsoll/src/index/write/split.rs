//! Decides the disposition of each version in a flush or a merge: it stays current, goes into
//! history, or is dropped.
//!
//! The newest version of each key stays current. An older version goes into history as long as a
//! retained moment sees it. Otherwise it is dropped, and reads below the version that superseded it
//! are refused, except at retained moments.
//!
//! A deletion that is the newest version only hides older ones. If the merge includes the oldest
//! current run, nothing older is left in the current runs, so the deletion leaves them as well. It
//! is dropped if no retained moment sees a version that it hides and history has no version of its
//! key. Otherwise it goes into history, where it still records when the key was deleted.
//!
//! A value that has expired for every moment that is kept is dropped like a deletion, but only if
//! history has no version of its key. Until then it stays, and hides older versions.
//!
//! Invariant: all versions of a key are decided by one set of retained moments. The set may grow at
//! any time, and a dropped deletion requires that everything older is dropped with it: an older
//! version that stayed would become visible again.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_log::glsn::Glsn;

use crate::index::env::Horizon;
use crate::index::env::moment_set::{MomentSet, Release};
use crate::index::manifest::limits::Limits;
use crate::types::index_key::IndexKey;
use crate::types::keyspaces::SIDE;
use crate::types::version::{Stored, Version};

/// The disposition of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// The newest version of its key.
    Current,
    /// Superseded but still needed. `first`: it is the first version of its key in the history
    /// output.
    History { first: bool },
    /// Not needed.
    Dropped,
}

/// The moments for which a history run keeps versions of a keyspace. As long as they are retained,
/// another merge of the run would drop none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptFor {
    /// No version may be dropped before the floor has reached this moment.
    floor: Glsn,
    /// The pins that see a version.
    pins: BTreeSet<Glsn>,
}

/// The moments for which a history run keeps versions, by keyspace.
pub(crate) type KeptIn = BTreeMap<u32, KeptFor>;

impl Default for KeptFor {
    fn default() -> Self {
        Self { floor: Glsn::MAX, pins: BTreeSet::new() }
    }
}

impl KeptFor {
    fn add(&mut self, release: Release) {
        match release {
            Release::Floor(at) => self.floor = self.floor.min(at),
            Release::Pin(at) => _ = self.pins.insert(at),
        }
    }

    /// Whether all those moments are in `retained`.
    pub(crate) fn are_retained(&self, retained: &MomentSet) -> bool {
        retained.floor < self.floor && self.pins.iter().all(|at| retained.contains(*at))
    }
}

/// The kind of the merged runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inputs {
    /// Current runs; whether the oldest is among them.
    Current { oldest: bool },
    /// History runs.
    History,
}

/// Facts about a key outside the merge, looked up only if the decision depends on them.
pub(crate) trait OutsideFacts {
    /// Whether history runs hold a version of the key that is not younger than `at`.
    fn in_history(&mut self, key: &[u8], at: Glsn) -> crate::types::error::Result<bool>;

    /// Whether current runs have any version of the key, and the newest one that is not younger
    /// than `at`.
    fn in_runs(
        &mut self,
        key: &[u8],
        at: Glsn,
    ) -> crate::types::error::Result<(bool, Option<Glsn>)>;
}

/// No facts, for a flush, which needs none.
pub(crate) struct NoFacts;

impl OutsideFacts for NoFacts {
    fn in_history(&mut self, _: &[u8], _: Glsn) -> crate::types::error::Result<bool> {
        Ok(true)
    }

    fn in_runs(&mut self, _: &[u8], _: Glsn) -> crate::types::error::Result<(bool, Option<Glsn>)> {
        Ok((true, None))
    }
}

/// Passes over versions in order and decides the disposition of each.
#[derive(Debug)]
pub(crate) struct Splitter {
    inputs: Inputs,
    /// Whether the merge includes all history runs.
    all_history: bool,
    key: Vec<u8>,
    /// The preceding version of `key`; for the first version of `key` in a history run, the version
    /// that superseded it, if known.
    younger: Option<Glsn>,
    history_begun: bool,
    /// The keyspace of `key`, and its retained moments.
    retained: (u32, MomentSet),
    /// Whether the retained moments are looked up again at the next key.
    is_stale: bool,
    /// The last lookup of the values that have expired in the keyspace, for a retained moment and
    /// all later ones.
    expired: Option<(Glsn, (Glsn, u64))>,
    /// The youngest version that superseded a dropped one since the retained moments were looked
    /// up.
    dropped_by: Glsn,
    /// The limits of readable GLSNs that follow from the versions dropped before that lookup, and
    /// from the moved ones.
    limits: Limits,
    /// For a merge of history: why versions were kept.
    kept: KeptIn,
}

impl Splitter {
    /// A splitter before the first version. `all_history`: a merge of history includes all of it.
    pub(crate) fn new(inputs: Inputs, all_history: bool) -> Self {
        Self {
            inputs,
            all_history,
            key: Vec::new(),
            younger: None,
            history_begun: false,
            retained: (0, MomentSet::all()),
            is_stale: true,
            expired: None,
            dropped_by: Glsn::NONE,
            limits: Limits::default(),
            kept: KeptIn::new(),
        }
    }

    /// The moments for which a merge of history has kept versions.
    pub(crate) fn into_kept(self) -> KeptIn {
        self.kept
    }

    /// Records that a table of history is kept unread: none of its versions can be dropped before
    /// the floor of its keyspace has reached `floor`.
    pub(crate) fn keeps_table(&mut self, keyspace: u32, floor: Glsn) {
        self.kept.entry(keyspace).or_default().add(Release::Floor(floor));
    }

    /// Looks the retained moments up again at the next key, because they change while a job runs.
    pub(crate) fn refresh(&mut self) {
        self.is_stale = true;
    }

    /// The limits of readable GLSNs that follow from the dropped and moved versions.
    pub(crate) fn limits(&mut self) -> &mut Limits {
        if self.dropped_by > Glsn::NONE {
            let (keyspace, retained) = &self.retained;
            self.limits.dropped(*keyspace, self.dropped_by, &retained.pins);
            self.dropped_by = Glsn::NONE;
        }
        &mut self.limits
    }

    /// The disposition of the next version. A version with the same key and GLSN as the previous
    /// one is a copy and is dropped.
    pub(crate) fn disposition(
        &mut self,
        version: &Version<'_>,
        horizon: &dyn Horizon,
        outside: &mut dyn OutsideFacts,
    ) -> crate::types::error::Result<Disposition> {
        if version.key == self.key {
            if self.younger == Some(version.glsn) {
                return Ok(Disposition::Dropped);
            }
            let superseded_by = self.younger.replace(version.glsn);
            return Ok(self.older(version.glsn, superseded_by));
        }
        self.begin_key(version.key, horizon);
        self.key.clear();
        self.key.extend_from_slice(version.key);
        self.history_begun = false;
        self.younger = Some(version.glsn);
        match self.inputs {
            Inputs::Current { oldest: false } => Ok(Disposition::Current),
            Inputs::Current { oldest: true } if version.stored != Stored::Deleted => {
                self.value(version, horizon, outside)
            }
            Inputs::Current { oldest: true } => self.deletion(version.glsn, outside),
            Inputs::History => self.newest_of_history(version, outside),
        }
    }

    /// Looks up the retained moments of a key at its first version.
    fn begin_key(&mut self, key: &[u8], horizon: &dyn Horizon) {
        let keyspace = IndexKey::new(key).keyspace();
        if self.is_stale || self.retained.0 != keyspace {
            // Record the limits of the versions dropped so far, before the retained moments change.
            self.limits();
            self.retained = (keyspace, horizon.retained(keyspace));
            (self.is_stale, self.expired) = (false, None);
        }
    }

    /// The disposition of a version that was superseded by `superseded_by`.
    fn older(&mut self, glsn: Glsn, superseded_by: Option<Glsn>) -> Disposition {
        let retained = &self.retained.1;
        let Some(by) = superseded_by else {
            return self.keep_in_history(Release::Floor(retained.floor.next()));
        };
        match retained.release_of(glsn, by) {
            Some(release) => self.keep_in_history(release),
            None => {
                self.dropped_by = self.dropped_by.max(by);
                Disposition::Dropped
            }
        }
    }

    /// Notes that the newest version of its key, a deletion, is dropped with all that it hides.
    fn drop_deletion(&mut self, glsn: Glsn) -> Disposition {
        self.limits.deletion_dropped(self.retained.0, glsn);
        Disposition::Dropped
    }

    /// FixedHorizon a version in history until `release`.
    fn keep_in_history(&mut self, release: Release) -> Disposition {
        if self.inputs == Inputs::History {
            self.kept.entry(self.retained.0).or_default().add(release);
        }
        Disposition::History { first: !std::mem::replace(&mut self.history_begun, true) }
    }

    /// The disposition of a value that is the newest version of its key, if older versions are only
    /// in this merge and in history.
    fn value(
        &mut self,
        version: &Version<'_>,
        horizon: &dyn Horizon,
        outside: &mut dyn OutsideFacts,
    ) -> crate::types::error::Result<Disposition> {
        let Some(expiry) = version.stored.expiry() else { return Ok(Disposition::Current) };
        // It hides the versions of the branch's ancestors.
        if version.keyspace() == SIDE {
            return Ok(Disposition::Current);
        }
        let oldest = self.retained.1.oldest_from(version.glsn);
        let (since, micros) = match self.expired {
            Some((of, expired)) if of == oldest => expired,
            _ => self.expired.insert((oldest, horizon.expired(oldest))).1,
        };
        // Every retained moment that is not before the value is at or after `since`, so it sees
        // that the value has expired.
        let is_unseen = expiry.has_passed(micros) && version.glsn <= since;
        if !is_unseen
            || self.hides_retained(version.glsn, outside)?
            || outside.in_history(&self.key, Glsn::MAX)?
        {
            return Ok(Disposition::Current);
        }
        // Older moments may have seen it.
        self.dropped_by = self.dropped_by.max(since);
        Ok(self.drop_deletion(version.glsn))
    }

    /// Whether the current runs have a version of the key that is superseded by the one at `glsn`,
    /// and that a pin sees.
    fn hides_retained(
        &self,
        glsn: Glsn,
        outside: &mut dyn OutsideFacts,
    ) -> crate::types::error::Result<bool> {
        match self.retained.1.pin_below(glsn) {
            Some(pinned) => Ok(outside.in_runs(&self.key, pinned)?.1.is_some()),
            None => Ok(false),
        }
    }

    /// The disposition of a deletion that is the newest version of its key, if older versions are
    /// only in this merge and in history.
    fn deletion(
        &mut self,
        glsn: Glsn,
        outside: &mut dyn OutsideFacts,
    ) -> crate::types::error::Result<Disposition> {
        if glsn <= self.retained.1.floor
            && !self.hides_retained(glsn, outside)?
            && !outside.in_history(&self.key, Glsn::MAX)?
        {
            return Ok(self.drop_deletion(glsn));
        }
        self.limits.deletions_moved = self.limits.deletions_moved.max(glsn);
        Ok(self.keep_in_history(Release::Floor(glsn)))
    }

    /// The disposition of the newest version of its key in the merged history runs. The version
    /// that superseded it is in the current runs, unless it is itself a moved deletion.
    fn newest_of_history(
        &mut self,
        version: &Version<'_>,
        outside: &mut dyn OutsideFacts,
    ) -> crate::types::error::Result<Disposition> {
        let (glsn, retained) = (version.glsn, &self.retained.1);
        if glsn > retained.floor {
            return Ok(self.keep_in_history(Release::Floor(glsn)));
        }
        let mut release = Release::Floor(retained.floor.next());
        let (any, mut by) = outside.in_runs(version.key, retained.floor)?;
        // The version that superseded it may be older than the newest one up to the floor: a pin
        // sees it only if the runs have nothing in between.
        while let Some(superseded_by) = by.filter(|by| *by > glsn) {
            match retained.pin_below(superseded_by).filter(|pinned| *pinned >= glsn) {
                Some(pinned) => {
                    release = Release::Pin(pinned);
                    by = outside.in_runs(version.key, pinned)?.1;
                }
                None => return Ok(self.older(glsn, by)),
            }
        }
        if version.stored == Stored::Deleted && !any && self.all_history {
            let hides_retained = match retained.pin_below(glsn) {
                Some(pinned) => {
                    release = Release::Pin(pinned);
                    outside.in_history(version.key, pinned)?
                }
                None => false,
            };
            // Older versions in this merge are dropped as well, because no retained moment sees
            // them.
            if !hides_retained {
                return Ok(self.drop_deletion(glsn));
            }
        }
        Ok(self.keep_in_history(release))
    }
}

#[cfg(test)]
mod tests {
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
        FixedHorizon(MomentSet {
            floor: Glsn(floor),
            pins: pins.iter().map(|at| Glsn(*at)).collect(),
        })
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

        fn in_runs(
            &mut self,
            _: &[u8],
            at: Glsn,
        ) -> crate::types::error::Result<(bool, Option<Glsn>)> {
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
            let version =
                Version { key: b"\0\0\0\x05key", glsn: Glsn(version.unsigned_abs()), stored };
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
            let (dispositions, limits) =
                dispositions_and_limits(CURRENT, horizon, NOTHING, &versions);
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
            let version =
                Version { key: b"\0\0\0\x05key", glsn: Glsn(version.unsigned_abs()), stored };
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
            let (mut splitter, retained) =
                (Splitter::new(inputs, true), Expires(retained, expired));
            let mut versions =
                [(9, expiring), (7, Stored::Inline(b"old"))].map(|(glsn, stored)| {
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

        fn in_runs(
            &mut self,
            _: &[u8],
            at: Glsn,
        ) -> crate::types::error::Result<(bool, Option<Glsn>)> {
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
}
