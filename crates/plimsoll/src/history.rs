//! Every version of a key, and what changed between two moments.

use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Weak};

use plimsoll_log::glsn::Glsn;

use crate::error::{Error, Result};
use crate::index::view::{Versions, View};
use crate::keyspaces::Keyspace;
use crate::range::Span;
use crate::read_path::{KeyBuffer, find};
use crate::snapshot::time_of;
use crate::snapshots::OpenMoment;
use crate::store::{Store, check_retained};
use crate::version::{Stored, Version};

/// Bytes of two values that are compared at a time.
const COMPARED_BYTES: usize = 8 * 1024;

/// One version of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionInfo {
    /// The commit that wrote it.
    pub glsn: u64,
    /// When that commit was made, in microseconds since 1970 UTC; `None` where the log is trimmed.
    pub time_micros: Option<u64>,
    /// Length of the value in bytes; `None` if the key was deleted.
    pub bytes: Option<u64>,
}

impl VersionInfo {
    fn new(store: &Store, version: &Version<'_>) -> Result<Self> {
        let bytes = (version.stored != Stored::Deleted).then(|| version.stored.value_bytes());
        Ok(Self { glsn: version.glsn.0, time_micros: time_of(store, version.glsn)?, bytes })
    }
}

/// The retained versions of a key, newest first.
pub struct History {
    store: Arc<Store>,
    key: KeyBuffer,
    versions: Option<Versions>,
    view: Weak<View>,
    /// Versions up to here are still to come.
    upto: Glsn,
    _moment: OpenMoment,
}

impl History {
    pub(crate) fn new(store: &Arc<Store>, keyspace: &Keyspace, key: &[u8]) -> Result<Self> {
        store.check_open()?;
        let moment = store.open_newest();
        let key = KeyBuffer::new(store.keyspaces.id_of(keyspace)?, key)?;
        let mut history = Self {
            store: Arc::clone(store),
            key,
            versions: None,
            view: Weak::new(),
            upto: moment.at(),
            _moment: moment,
        };
        history.begin(store.index.view())?;
        Ok(history)
    }

    fn begin(&mut self, view: Arc<View>) -> Result<()> {
        let (lower, upper) = (Bound::Included(self.key.get()), Bound::Included(self.key.get()));
        self.versions = Some(view.versions(lower, upper, Glsn::NONE, self.upto)?);
        self.view = Arc::downgrade(&view);
        Ok(())
    }

    fn step(&mut self) -> Result<Option<VersionInfo>> {
        self.store.check_open()?;
        loop {
            let Some(versions) = &mut self.versions else { return Ok(None) };
            let error = match versions.next() {
                Ok(None) => return Ok(None),
                Ok(Some(version)) => {
                    self.upto = Glsn(version.glsn.0 - 1);
                    return VersionInfo::new(&self.store, &version).map(Some);
                }
                Err(error) => error,
            };
            // What the old sources needed may be gone; the new ones have it.
            let view = self.store.newer_view(&self.view).ok_or(error)?;
            self.begin(view)?;
        }
    }
}

impl Iterator for History {
    type Item = Result<VersionInfo>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.step().transpose();
        if !matches!(next, Some(Ok(_))) {
            self.versions = None;
        }
        next
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("History")
    }
}

/// A key that differs between two moments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: Vec<u8>,
    /// The last commit between the two moments that wrote or deleted it.
    pub by: u64,
    /// Its version at the first moment; `None` if it did not exist.
    pub before: Option<VersionInfo>,
    /// Its version at the second moment; `None` if it did not exist.
    pub after: Option<VersionInfo>,
}

/// The keys whose values differ between two moments, in key order. A value that was written again and is the same is no difference.
pub struct Diff {
    store: Arc<Store>,
    /// `None` behind the end.
    versions: Option<Versions>,
    view: Weak<View>,
    span: Span,
    before: Glsn,
    after: Glsn,
    last_key: Vec<u8>,
    backwards: bool,
    moments: [OpenMoment; 2],
}

impl Diff {
    pub(crate) fn new(store: &Arc<Store>, keyspace: &Keyspace, a: u64, b: u64, prefix: &[u8]) -> Result<Self> {
        store.check_open()?;
        let newest = store.visible();
        let (before, after) = (Glsn(a.min(b)), Glsn(a.max(b)));
        if after > newest {
            return Err(Error::Future { asked: after.0, newest: newest.0 });
        }
        let open = |at| store.snapshots.open(&store.budget, || at);
        let moments = [open(before)?, open(after)?];
        let mut diff = Self {
            store: Arc::clone(store),
            versions: None,
            view: Weak::new(),
            span: Span::prefix(store.keyspaces.id_of(keyspace)?, prefix)?,
            before,
            after,
            last_key: Vec::new(),
            backwards: a > b,
            moments,
        };
        diff.begin(store.index.view())?;
        Ok(diff)
    }

    /// Begins behind the last key.
    fn begin(&mut self, view: Arc<View>) -> Result<()> {
        check_retained(&view, &self.span.first(), self.before)?;
        let lower = if self.last_key.is_empty() { self.span.lower() } else { Bound::Excluded(&self.last_key[..]) };
        self.versions = Some(view.versions(lower, self.span.upper(), self.before, self.after)?);
        self.view = Arc::downgrade(&view);
        Ok(())
    }

    fn step(&mut self) -> Result<Option<Change>> {
        self.store.check_open()?;
        loop {
            let Some(versions) = &mut self.versions else { return Ok(None) };
            let version = match versions.next() {
                Ok(None) => return Ok(None),
                Ok(Some(version)) => version,
                Err(error) => {
                    // What the old sources needed may be gone; the new ones have it.
                    let view = self.store.newer_view(&self.view).ok_or(error)?;
                    self.begin(view)?;
                    continue;
                }
            };
            if version.key == self.last_key {
                continue;
            }
            self.last_key.clear();
            self.last_key.extend_from_slice(version.key);
            let by = version.glsn;
            let after = match version.stored {
                Stored::Deleted => None,
                _ => Some(VersionInfo::new(&self.store, &version)?),
            };
            let before = self.store.read(|view| {
                let Some(hit) = find(view, &self.last_key, self.before)? else { return Ok(None) };
                let version = Version { key: &self.last_key, glsn: hit.glsn(), stored: hit.stored() };
                VersionInfo::new(&self.store, &version).map(Some)
            })?;
            let same = match (&before, &after) {
                (None, None) => true,
                (Some(before), Some(after)) => before.bytes == after.bytes && self.is_same_value()?,
                _ => false,
            };
            if same {
                continue;
            }
            let (before, after) = if self.backwards { (after, before) } else { (before, after) };
            return Ok(Some(Change { key: self.last_key[4..].to_vec(), by: by.0, before, after }));
        }
    }
}

impl Diff {
    /// Whether the last key has the same bytes at both moments.
    fn is_same_value(&self) -> Result<bool> {
        let [before, after] = &self.moments;
        let reader = |moment| self.store.reader(&self.last_key, moment);
        let (Some(mut before), Some(mut after)) = (reader(before)?, reader(after)?) else { return Ok(false) };
        let (mut a, mut b) = ([0; COMPARED_BYTES], [0; COMPARED_BYTES]);
        loop {
            let bytes = before.read_piece(&mut a)?;
            if bytes != after.read_piece(&mut b)? || a[..bytes] != b[..bytes] {
                return Ok(false);
            }
            if bytes == 0 {
                return Ok(true);
            }
        }
    }
}

impl Iterator for Diff {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.step().transpose();
        if !matches!(next, Some(Ok(_))) {
            self.versions = None;
        }
        next
    }
}

impl fmt::Debug for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Diff")
    }
}
