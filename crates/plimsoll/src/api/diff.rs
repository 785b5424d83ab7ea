//! The keys that differ between two moments, or between two states of branches.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::api::history::{Difference, Measure, VersionInfo, begin, measure};
use crate::api::snapshot::Snapshot;
use crate::api::state_diff::StateDiff;
use crate::api::written::Changes;
use crate::engine::{Engine, keyspace_lives};
use crate::index::iter::versions::Versions;
use crate::read::open_moments::OpenMoment;
use crate::read::point::find;
use crate::read::span::Span;
use crate::types::error::{Error, Result};
use crate::types::index_key::KeptKey;
use crate::types::keyspaces::Keyspace;

/// The keys whose values differ between two moments, or between two states of branches, in key
/// order. A key rewritten with the same value is not a difference, and neither is a key whose value
/// only expired in between: no commit changed it. At each moment the keyspace is the one that had
/// the name then.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// let notes = db.keyspace("notes")?;
/// let before = db.put(&notes, "a", "one")?;
/// let by = db.put(&notes, "b", "two")?;
/// let changes = db.diff(&notes, before, db.newest(), "")?.collect::<Result<Vec<_>>>()?;
/// assert_eq!((changes.len(), &changes[0].key[..], changes[0].by), (1, &b"b"[..], by));
/// assert!(changes[0].before.is_none());
/// # Ok(())
/// # }
/// ```
pub struct Diff(Kind);

enum Kind {
    Moments(Box<MomentsDiff>),
    States(Box<StateDiff>),
}

/// The keys whose values differ between two moments of main.
struct MomentsDiff {
    store: Arc<Engine>,
    /// The changes in the keyspace that had the name at the first moment; `None` once all are
    /// returned, or if there is no such keyspace.
    old: Option<Changes>,
    /// The changes in the keyspace that had the name at the second moment, if that is a different
    /// one; `None` if it is the same keyspace, or once all are returned.
    new: Option<Changes>,
    /// Whether both moments have the same keyspace.
    is_one: bool,
    /// Keyspaces that had the name in between, oldest first.
    between: Vec<u32>,
    before: Glsn,
    after: Glsn,
    backwards: bool,
    moments: [OpenMoment; 2],
}

/// As [`Changes::advance`]; sets `changes` to `None` at the end.
fn advance(store: &Engine, changes: &mut Option<Changes>) -> Result<()> {
    if let Some(there) = changes
        && !there.advance(store)?
    {
        *changes = None;
    }
    Ok(())
}

impl Diff {
    /// Between two states.
    pub(crate) fn of_states(
        keyspace: &Keyspace,
        states: [&Snapshot; 2],
        prefix: &[u8],
    ) -> Result<Self> {
        Ok(Self(Kind::States(Box::new(StateDiff::new(keyspace, states, prefix)?))))
    }

    /// Between two moments of main.
    pub(crate) fn new(
        store: &Arc<Engine>,
        keyspace: &Keyspace,
        a: Glsn,
        b: Glsn,
        prefix: &[u8],
    ) -> Result<Self> {
        let diff = MomentsDiff::new(store, keyspace, a, b, prefix)?;
        Ok(Self(Kind::Moments(Box::new(diff))))
    }
}

impl MomentsDiff {
    fn new(
        store: &Arc<Engine>,
        keyspace: &Keyspace,
        a: Glsn,
        b: Glsn,
        prefix: &[u8],
    ) -> Result<Self> {
        store.check_open()?;
        let newest = store.newest()?;
        let (before, after) = (a.min(b), a.max(b));
        if after > newest {
            return Err(Error::Future { asked: after, newest });
        }
        // The floor also retains the versions after `before`, because the commits in between are
        // reported.
        let at = |glsn| store.committer.as_of(glsn);
        let moments =
            [store.committer.open_floor(at(before)?)?, store.committer.open_at(at(after)?)?];
        let ids = keyspace_lives::ids(store, keyspace)?;
        let position_at = |at| keyspace_lives::position_at(store, keyspace.name(), &ids, at);
        let changes = |id, readable_at| {
            Changes::new(store, Span::prefix(id, prefix), (before, after), readable_at).map(Some)
        };
        let (mut old, mut new, mut between) = (None, None, Vec::new());
        let (first, last) = (position_at(before)?, position_at(after)?);
        if let Some(first) = first {
            // Both moments are checked, because the earlier one may be readable although the later
            // one is not.
            old = changes(ids[first], [before, after])?;
            // A keyspace that was dropped by then has no key at the second moment.
            if let Some(last) = last.filter(|last| *last > first) {
                new = changes(ids[last], [after, after])?;
            }
            between = ids[first + 1..last.unwrap_or(ids.len()).max(first + 1)].to_vec();
        }
        let (store, is_one, backwards) = (Arc::clone(store), first == last, a > b);
        Ok(Self { store, old, new, is_one, between, before, after, backwards, moments })
    }

    fn step(&mut self) -> Result<Option<Difference>> {
        self.store.check_open()?;
        loop {
            advance(&self.store, &mut self.old)?;
            advance(&self.store, &mut self.new)?;
            let (is_old, is_new) = match (&self.old, &self.new) {
                (None, None) => return Ok(None),
                (Some(_), None) => (true, false),
                (None, Some(_)) => (false, true),
                (Some(old), Some(new)) => {
                    (old.user_key() <= new.user_key(), new.user_key() <= old.user_key())
                }
            };
            let old = if is_old { self.old.as_mut() } else { None };
            let new = if is_new { self.new.as_mut() } else { None };
            let (old_head, new_head) = (take_head(old), take_head(new));
            let at_second = if self.is_one { old_head } else { new_head };
            let after = match at_second {
                Some(measure) if measure.is_live(self.moments[1].as_of()) => {
                    let changes = if is_new { &self.new } else { &self.old };
                    let key = changes.as_ref().map_or(&[][..], Changes::index_key);
                    Some(VersionInfo::new(&self.store, key, measure)?)
                }
                _ => None,
            };
            let before = if is_old { self.at_first()? } else { None };
            let same = match (&before, &after) {
                (None, None) => true,
                (Some(before), Some(after)) => {
                    before.bytes == after.bytes && self.is_same_value(is_new)?
                }
                _ => false,
            };
            if same {
                continue;
            }
            let Some(key) = self.last_key(is_new).map(<[u8]>::to_vec) else { return Ok(None) };
            let by = match (new_head, old_head) {
                (Some(head), _) => head.glsn,
                (None, Some(head)) => self.changed_between(&key)?.unwrap_or(head.glsn),
                (None, None) => return Ok(None),
            };
            let (before, after) = if self.backwards { (after, before) } else { (before, after) };
            return Ok(Some(Difference { key, by, before, after }));
        }
    }

    /// The user's part of the last step's key.
    fn last_key(&self, is_new: bool) -> Option<&[u8]> {
        let changes = if is_new { &self.new } else { &self.old };
        changes.as_ref().map(Changes::user_key)
    }

    /// The version of the last key at the first moment, in the keyspace of that moment.
    fn at_first(&self) -> Result<Option<VersionInfo>> {
        let Some(old) = &self.old else { return Ok(None) };
        self.store.reader.read(|view| {
            let hit = find(view, old.index_key(), self.moments[0].as_of())?;
            hit.map(|hit| {
                let measure = measure(old.index_key(), hit.glsn(), hit.stored());
                VersionInfo::new(&self.store, old.index_key(), measure)
            })
            .transpose()
        })
    }

    /// The last commit that wrote or deleted a key in a keyspace that had the name in between.
    fn changed_between(&self, key: &[u8]) -> Result<Option<Glsn>> {
        for id in self.between.iter().rev() {
            // Not a point read, which does not return a deletion without an older version beneath
            // it.
            let key = KeptKey::new(*id, key)?;
            let range = (Bound::Included(key.clone()), Bound::Included(key));
            let mut versions = begin(&self.store, Versions::new(range, self.before, self.after))?;
            let newest =
                self.store.reader.step(&mut versions, &mut Vec::new(), |versions, key| {
                    Ok(versions.next(key)?.map(|version| version.glsn))
                })?;
            if newest.is_some() {
                return Ok(newest);
            }
        }
        Ok(None)
    }

    /// Whether the last key has the same bytes at both moments.
    fn is_same_value(&self, is_new: bool) -> Result<bool> {
        let [before, after] = &self.moments;
        let at_second = if is_new { &self.new } else { &self.old };
        let (Some(at_first), Some(at_second)) = (&self.old, at_second) else { return Ok(false) };
        let reader = |changes: &Changes, moment: &OpenMoment| {
            self.store.reader.reader(changes.index_key(), moment.as_of())
        };
        let (Some(mut before), Some(mut after)) =
            (reader(at_first, before)?, reader(at_second, after)?)
        else {
            return Ok(false);
        };
        before.has_bytes_of(&mut after)
    }
}

fn take_head(changes: Option<&mut Changes>) -> Option<Measure> {
    changes.and_then(Changes::take_head)
}

impl Iterator for Diff {
    type Item = Result<Difference>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Kind::Moments(diff) => {
                let next = diff.step().transpose();
                if !matches!(next, Some(Ok(_))) {
                    (diff.old, diff.new) = (None, None);
                }
                next
            }
            Kind::States(diff) => diff.next(),
        }
    }
}

impl fmt::Debug for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Diff")
    }
}
