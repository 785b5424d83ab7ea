//! Every version of a key, and what changed between two moments.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::error::{Error, Result};
use crate::index::view::Versions;
use crate::keyspaces::Keyspace;
use crate::range::Span;
use crate::read_path::KeyBuffer;
use crate::snapshot::time_of;
use crate::snapshots::OpenMoment;
use crate::store::Store;
use crate::version::{Stored, Version};

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
    versions: Versions,
    _moment: OpenMoment,
}

impl History {
    pub(crate) fn new(store: &Arc<Store>, keyspace: &Keyspace, key: &[u8]) -> Result<Self> {
        let moment = store.open_newest();
        let key = KeyBuffer::new(keyspace.id, key)?;
        let (lower, upper) = (Bound::Included(key.get()), Bound::Included(key.get()));
        let versions = store.index.view().versions(lower, upper, Glsn::NONE, moment.at())?;
        Ok(Self { store: Arc::clone(store), versions, _moment: moment })
    }
}

impl Iterator for History {
    type Item = Result<VersionInfo>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.versions.next() {
            Ok(None) => None,
            Ok(Some(version)) => Some(VersionInfo::new(&self.store, &version)),
            Err(error) => Some(Err(error)),
        }
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
    /// Its version at the first moment; `None` if it did not exist.
    pub before: Option<VersionInfo>,
    /// Its version at the second moment; `None` if it did not exist.
    pub after: Option<VersionInfo>,
}

/// The keys of which there is another version at one moment than at another, in key order.
pub struct Diff {
    store: Arc<Store>,
    versions: Versions,
    before: Glsn,
    last_key: Vec<u8>,
    backwards: bool,
    _moments: [OpenMoment; 2],
}

impl Diff {
    pub(crate) fn new(store: &Arc<Store>, keyspace: &Keyspace, a: u64, b: u64, prefix: &[u8]) -> Result<Self> {
        let newest = store.visible();
        let (before, after) = (Glsn(a.min(b)), Glsn(a.max(b)));
        if after > newest {
            return Err(Error::Future { asked: after.0, newest: newest.0 });
        }
        let open = |at| store.snapshots.open(&store.budget, || at);
        let moments = [open(before)?, open(after)?];
        store.check_retained(keyspace.id, before)?;
        let span = Span::prefix(keyspace.id, prefix)?;
        let versions = store.index.view().versions(span.lower(), span.upper(), before, after)?;
        Ok(Self {
            store: Arc::clone(store),
            versions,
            before,
            last_key: Vec::new(),
            backwards: a > b,
            _moments: moments,
        })
    }

    fn step(&mut self) -> Result<Option<Change>> {
        loop {
            let Some(version) = self.versions.next()? else { return Ok(None) };
            if version.key == self.last_key {
                continue;
            }
            self.last_key.clear();
            self.last_key.extend_from_slice(version.key);
            let after = match version.stored {
                Stored::Deleted => None,
                _ => Some(VersionInfo::new(&self.store, &version)?),
            };
            let hit = self.store.index.view().get(&self.last_key, self.before)?;
            let before = match &hit {
                Some(hit) if hit.stored() != Stored::Deleted => {
                    let version = Version { key: &self.last_key, glsn: hit.glsn(), stored: hit.stored() };
                    Some(VersionInfo::new(&self.store, &version)?)
                }
                _ => None,
            };
            if before.is_none() && after.is_none() {
                continue;
            }
            let (before, after) = if self.backwards { (after, before) } else { (before, after) };
            return Ok(Some(Change { key: self.last_key[4..].to_vec(), before, after }));
        }
    }
}

impl Iterator for Diff {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}

impl fmt::Debug for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Diff")
    }
}
