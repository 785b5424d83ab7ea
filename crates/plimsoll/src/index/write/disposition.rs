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
//! A value that has expired for every retained moment is dropped like a deletion, but only if
//! history has no version of its key. Until then it stays, and hides older versions.
//!
//! Invariant: all versions of a key are decided by one set of retained moments. The set may grow at
//! any time, and a dropped deletion requires that everything older is dropped with it: an older
//! version that stayed would become visible again.

#[cfg(test)]
mod tests;

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
    /// The last call of [`Horizon::expired`] in this keyspace: the moment that was passed, and the
    /// result.
    expired: Option<(Glsn, (Glsn, u64))>,
    /// The youngest version that superseded a dropped one since the retained moments were looked
    /// up.
    dropped_by: Glsn,
    /// The limits of readable GLSNs that follow from the moved versions, and from the versions that
    /// were dropped before the retained moments were last looked up.
    limits: Limits,
    /// For a merge of history: the moments for which versions were kept.
    kept: KeptIn,
}

impl Splitter {
    /// A splitter before the first version. `all_history`: whether a merge of history includes all
    /// history runs.
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

    /// Records that a table of history is kept unread, because none of its versions can be dropped
    /// before the floor of its keyspace has reached `floor`.
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

    /// Keeps a version in history until `release`.
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
        // A value on a branch hides the versions of the branch's ancestors, even after it has
        // expired.
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
        // Older moments may have seen the value.
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

    /// The disposition of the newest version of its key in the merged history runs. Another
    /// version, in the current runs, superseded it, unless it is itself a moved deletion.
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
        // `by` is the newest version up to the floor, but an older one may have superseded this
        // version. Search for it: a pin sees this version only if the current runs have no version
        // between the two.
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
