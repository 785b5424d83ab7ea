//! Decides the disposition of each version in a flush or a merge: it stays current, goes into
//! history, or is dropped.
//!
//! The newest version of each key stays current. An older version is needed as long as no younger
//! version of its key is at or below the horizon; it then goes into history. Otherwise it is
//! dropped, and reads below the version that superseded it are refused.
//!
//! A deletion that is the newest version only hides older ones. If the merge includes the oldest
//! current run, nothing older is left in the current runs, so the deletion leaves them as well. It
//! is dropped if no read below it is possible and history has no version of its key. Otherwise it
//! goes into history, where it still records when the key was deleted.
//!
//! Law: all versions of a key are decided by one horizon. The horizon may fall at any time, and a
//! dropped deletion requires that everything older is dropped with it: an older version that stayed
//! would become visible again.

use plimsoll_log::glsn::Glsn;

use crate::index::env::Horizon;
use crate::index::manifest::limits::Limits;
use crate::types::index_key::IndexKey;
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

/// The kind of the merged runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inputs {
    /// Current runs; whether the oldest is among them.
    Current { oldest: bool },
    /// History runs.
    History,
}

/// Facts about a key outside the merge, looked up only if the decision depends on them.
pub(crate) trait Elsewhere {
    /// Whether history runs outside this merge have a version of the key.
    fn in_history(&mut self, key: &[u8]) -> crate::types::error::Result<bool>;

    /// Whether current runs have any version of the key, and the newest one that is not younger
    /// than `at`.
    fn in_runs(
        &mut self,
        key: &[u8],
        at: Glsn,
    ) -> crate::types::error::Result<(bool, Option<Glsn>)>;
}

/// No facts, for a flush, which needs none.
pub(crate) struct Nowhere;

impl Elsewhere for Nowhere {
    fn in_history(&mut self, _: &[u8]) -> crate::types::error::Result<bool> {
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
    /// The keyspace of `key`, and its horizon.
    horizon: (u32, Glsn),
    /// Whether the horizon is looked up again at the next key.
    is_stale: bool,
    /// The limits of readable GLSNs that follow from the dropped and moved versions.
    pub(crate) limits: Limits,
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
            horizon: (0, Glsn::NONE),
            is_stale: true,
            limits: Limits::default(),
        }
    }

    /// Looks the horizon up again at the next key, because it moves while a job runs.
    pub(crate) fn refresh(&mut self) {
        self.is_stale = true;
    }

    /// The disposition of the next version. A version with the same key and GLSN as the previous
    /// one is a copy and is dropped.
    pub(crate) fn disposition(
        &mut self,
        version: &Version<'_>,
        horizon: &dyn Horizon,
        elsewhere: &mut dyn Elsewhere,
    ) -> crate::types::error::Result<Disposition> {
        if version.key == self.key {
            if self.younger == Some(version.glsn) {
                return Ok(Disposition::Dropped);
            }
            let superseded_by = self.younger.replace(version.glsn);
            let (keyspace, horizon) = self.horizon;
            return Ok(self.older(keyspace, horizon, superseded_by));
        }
        let (keyspace, horizon) = self.horizon_of(version.key, horizon);
        self.key.clear();
        self.key.extend_from_slice(version.key);
        self.history_begun = false;
        self.younger = Some(version.glsn);
        match self.inputs {
            Inputs::Current { oldest: false } => Ok(Disposition::Current),
            Inputs::Current { oldest: true } if version.stored != Stored::Deleted => {
                Ok(Disposition::Current)
            }
            Inputs::Current { oldest: true } => {
                self.deletion(version.glsn, keyspace, horizon, elsewhere)
            }
            Inputs::History => self.newest_of_history(version, keyspace, horizon, elsewhere),
        }
    }

    /// The keyspace and the horizon of a key at its first version.
    fn horizon_of(&mut self, key: &[u8], horizon: &dyn Horizon) -> (u32, Glsn) {
        let keyspace = IndexKey::new(key).keyspace();
        if self.is_stale || self.horizon.0 != keyspace {
            self.horizon = (keyspace, horizon.of(keyspace));
            self.is_stale = false;
        }
        self.horizon
    }

    /// The disposition of a version that was superseded by `superseded_by`.
    fn older(&mut self, keyspace: u32, horizon: Glsn, superseded_by: Option<Glsn>) -> Disposition {
        match superseded_by {
            Some(by) if by <= horizon => {
                self.limits.dropped(keyspace, by);
                Disposition::Dropped
            }
            _ => self.keep_in_history(),
        }
    }

    fn keep_in_history(&mut self) -> Disposition {
        Disposition::History { first: !std::mem::replace(&mut self.history_begun, true) }
    }

    /// The disposition of a deletion that is the newest version of its key, if older versions are
    /// only in this merge and in history.
    fn deletion(
        &mut self,
        glsn: Glsn,
        keyspace: u32,
        horizon: Glsn,
        elsewhere: &mut dyn Elsewhere,
    ) -> crate::types::error::Result<Disposition> {
        if glsn <= horizon && !elsewhere.in_history(&self.key)? {
            self.limits.deletion_dropped(keyspace, glsn);
            return Ok(Disposition::Dropped);
        }
        self.limits.deletions_moved = self.limits.deletions_moved.max(glsn);
        Ok(self.keep_in_history())
    }

    /// The disposition of the newest version of its key in the merged history runs. The version
    /// that superseded it is in the current runs, unless it is itself a moved deletion.
    fn newest_of_history(
        &mut self,
        version: &Version<'_>,
        keyspace: u32,
        horizon: Glsn,
        elsewhere: &mut dyn Elsewhere,
    ) -> crate::types::error::Result<Disposition> {
        if version.glsn > horizon {
            return Ok(self.keep_in_history());
        }
        let (any, by) = elsewhere.in_runs(version.key, horizon)?;
        if by.is_some_and(|by| by > version.glsn) {
            return Ok(self.older(keyspace, horizon, by));
        }
        if version.stored == Stored::Deleted && !any && self.all_history {
            // Older versions in this merge are dropped as well, because it is at or below the
            // horizon.
            self.limits.deletion_dropped(keyspace, version.glsn);
            return Ok(Disposition::Dropped);
        }
        Ok(self.keep_in_history())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same horizon for every keyspace.
    struct At(u64);

    impl Horizon for At {
        fn of(&self, _: u32) -> Glsn {
            Glsn(self.0)
        }

        fn relocate_below(&self) -> Glsn {
            Glsn::NONE
        }
    }

    /// The same facts for every key.
    struct Knows {
        in_history: bool,
        in_runs: Option<u64>,
    }

    const NOTHING: Knows = Knows { in_history: false, in_runs: None };

    impl Elsewhere for Knows {
        fn in_history(&mut self, _: &[u8]) -> crate::types::error::Result<bool> {
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
    fn dispositions(
        inputs: Inputs,
        horizon: u64,
        mut elsewhere: Knows,
        versions: &[i64],
    ) -> (String, Limits) {
        let mut splitter = Splitter::new(inputs, true);
        let mut told = String::new();
        for &version in versions {
            let stored = if version < 0 { Stored::Deleted } else { Stored::Inline(b"value") };
            let version =
                Version { key: b"\0\0\0\x05key", glsn: Glsn(version.unsigned_abs()), stored };
            told.push(
                match splitter.disposition(&version, &At(horizon), &mut elsewhere).unwrap() {
                    Disposition::Current => 'c',
                    Disposition::History { first } => {
                        assert_eq!(first, !told.contains('h'));
                        'h'
                    }
                    Disposition::Dropped => '-',
                },
            );
        }
        (told, splitter.limits)
    }

    fn told(inputs: Inputs, horizon: u64, elsewhere: Knows, versions: &[i64]) -> String {
        dispositions(inputs, horizon, elsewhere, versions).0
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
            let (dispositions, limits) = dispositions(CURRENT, horizon, NOTHING, &versions);
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
                limits.oldest_readable_in,
                if oldest > 0 { vec![(5, Glsn(oldest))] } else { vec![] }
            );
        }
    }

    #[test]
    fn a_copy_of_a_version_is_dropped_and_supersedes_nothing() {
        let (dispositions, limits) = dispositions(CURRENT, 99, NOTHING, &[9, 9, 9]);
        assert_eq!((&dispositions[..], limits), ("c--", Limits::default()));
    }

    #[test]
    fn a_deletion_stays_if_older_runs_may_hold_its_key() {
        assert_eq!(told(CURRENT, 99, NOTHING, &[-9, 5]), "c-");
        assert_eq!(told(CURRENT, 0, NOTHING, &[-9, 5]), "ch");
    }

    #[test]
    fn a_deletion_with_nothing_beneath_is_dropped_or_moved() {
        let (gone, limits) = dispositions(OLDEST, 99, NOTHING, &[-9, 5]);
        assert_eq!((&gone[..], limits.deletions_dropped_in), ("--", vec![(5, Glsn(9))]));
        let (moved, limits) = dispositions(OLDEST, 8, NOTHING, &[-9, 5]);
        assert_eq!((&moved[..], limits.deletions_dropped_in), ("hh", vec![]));
        assert_eq!(told(OLDEST, 0, NOTHING, &[-9, -5, 3]), "hhh");
        let (superseded, limits) = dispositions(OLDEST, 99, NOTHING, &[9, -5, 3]);
        assert_eq!(
            (&superseded[..], limits.deletions_dropped_in),
            ("c--", vec![]),
            "a younger version is still present"
        );
        let known = Knows { in_history: true, in_runs: None };
        let (dispositions, limits) = dispositions(OLDEST, 99, known, &[-9, 5]);
        assert_eq!(
            dispositions, "h-",
            "otherwise the key's versions in history would become visible again"
        );
        assert_eq!(limits.deletions_moved, Glsn(9));
    }

    /// The dispositions of one key's versions if the horizon falls to 0 after the first one.
    fn told_over_a_fall(inputs: Inputs, versions: &[i64]) -> String {
        let (mut splitter, mut told, mut horizon) =
            (Splitter::new(inputs, true), String::new(), At(99));
        let mut elsewhere = NOTHING;
        for &version in versions {
            let stored = if version < 0 { Stored::Deleted } else { Stored::Inline(b"value") };
            let version =
                Version { key: b"\0\0\0\x05key", glsn: Glsn(version.unsigned_abs()), stored };
            told.push(match splitter.disposition(&version, &horizon, &mut elsewhere).unwrap() {
                Disposition::Current => 'c',
                Disposition::History { .. } => 'h',
                Disposition::Dropped => '-',
            });
            horizon = At(0);
            splitter.refresh();
        }
        told
    }

    #[test]
    fn a_fallen_horizon_takes_effect_at_the_next_key() {
        for inputs in [OLDEST, Inputs::History] {
            assert_eq!(
                told_over_a_fall(inputs, &[-9, 5, 3]),
                "---",
                "the deleted versions would become visible again"
            );
        }
        assert_eq!(told_over_a_fall(CURRENT, &[9, 5, 3]), "c--");
        let mut splitter = Splitter::new(CURRENT, true);
        let mut told = |key: &[u8], glsn, horizon| {
            splitter.refresh();
            let version = Version { key, glsn: Glsn(glsn), stored: Stored::Inline(b"value") };
            splitter.disposition(&version, &At(horizon), &mut Nowhere).unwrap()
        };
        told(b"\0\0\0\x05key", 9, 99);
        told(b"\0\0\0\x05next", 9, 0);
        assert_eq!(told(b"\0\0\0\x05next", 5, 99), Disposition::History { first: true });
    }

    #[test]
    fn a_history_version_is_dropped_once_its_successor_is_at_the_horizon() {
        let by = |glsn| Knows { in_history: false, in_runs: Some(glsn) };
        assert_eq!(told(Inputs::History, 99, by(9), &[7, 5]), "--");
        assert_eq!(told(Inputs::History, 8, by(9), &[7, 5]), "h-");
        assert_eq!(told(Inputs::History, 6, by(9), &[7, 5]), "hh");
        assert_eq!(told(Inputs::History, 0, by(9), &[7, 5]), "hh");
        assert_eq!(
            told(Inputs::History, 99, NOTHING, &[7, 5]),
            "h-",
            "it stays because its successor is unknown"
        );
    }

    #[test]
    fn a_moved_deletion_is_dropped_once_nothing_of_its_key_is_left() {
        let older = Knows { in_history: false, in_runs: Some(5) };
        let (gone, limits) = dispositions(Inputs::History, 99, NOTHING, &[-9, 5]);
        assert_eq!((&gone[..], limits.deletions_dropped_in), ("--", vec![(5, Glsn(9))]));
        assert_eq!(told(Inputs::History, 8, NOTHING, &[-9, 5]), "hh");
        assert_eq!(
            told(Inputs::History, 99, older, &[-9]),
            "h",
            "an older run still holds what it deleted"
        );
    }
}
