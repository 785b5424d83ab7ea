//! Every version of a key, and what changed between two moments.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::time::SystemTime;

use plimsoll_log::glsn::Glsn;

use crate::api::snapshot::time_of;
use crate::engine::Engine;
use crate::index::seat::Seat;
use crate::index::walk::versions::Versions;
use crate::read::moments::OpenMoment;
use crate::read::point::{KeyBuffer, find};
use crate::read::reader::check_retained;
use crate::read::span::Span;
use crate::types::error::{Error, Result};
use crate::types::keyspaces::Keyspace;
use crate::types::version::{KeptKey, Stored};

/// Bytes per step when two values are compared.
const COMPARED_BYTES: usize = 8 * 1024;

/// One version of a key.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// let glsn = db.put(&notes, "a", "one")?;
/// let version: VersionInfo = db.history(&notes, "a")?.next().expect("there is one")?;
/// assert_eq!((version.glsn, version.bytes), (glsn, Some(3)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionInfo {
    /// The commit that wrote it.
    pub glsn: Glsn,
    /// Time of that commit; `None` if the log no longer holds it.
    pub time: Option<SystemTime>,
    /// Length of the value in bytes; `None` if the key was deleted.
    pub bytes: Option<u64>,
}

impl VersionInfo {
    /// Describes the version written at `glsn` with a value of `bytes`.
    fn new(store: &Engine, (glsn, bytes): (Glsn, Option<u64>)) -> Result<Self> {
        Ok(Self { glsn, time: time_of(store, glsn)?, bytes })
    }
}

/// A version's GLSN, and the length of its value unless it is a deletion.
fn measure(glsn: Glsn, stored: Stored<'_>) -> (Glsn, Option<u64>) {
    (glsn, (stored != Stored::Deleted).then(|| stored.value_bytes()))
}

/// Wraps a walk that has not begun in a seat; waits for memory as writers do.
fn begin(store: &Engine, versions: Versions) -> Result<Seat<Versions>> {
    let seats = store.reader.index.seats();
    let charge = store.committer.patience.in_transaction(true, || Ok(seats.charge_for(&versions)?))?;
    Ok(Seat::new(seats, versions, charge))
}

/// Charges the budget for the memory that a walk and its user hold after a step.
fn charge(store: &Engine, versions: &mut Seat<Versions>, bytes: usize) -> Result<()> {
    store.committer.patience.in_transaction(false, || Ok(versions.charge_user(bytes)?))
}

/// The retained versions of a key, newest first.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// let notes = db.keyspace("notes")?;
/// let first = db.put(&notes, "a", "one")?;
/// let gone = db.delete(&notes, "a")?;
/// let versions = db.history(&notes, "a")?.collect::<Result<Vec<_>>>()?;
/// assert_eq!((versions[0].glsn, versions[0].bytes), (gone, None));
/// assert_eq!((versions[1].glsn, versions[1].bytes), (first, Some(3)));
/// # Ok(())
/// # }
/// ```
pub struct History {
    store: Arc<Engine>,
    /// `None` past the end.
    versions: Option<Seat<Versions>>,
    key: Vec<u8>,
    _moment: OpenMoment,
}

impl History {
    pub(crate) fn new(store: &Arc<Engine>, keyspace: &Keyspace, key: &[u8]) -> Result<Self> {
        store.check_open()?;
        let moment = store.open_newest();
        let key = KeyBuffer::new(store.reader.keyspaces.id_of(keyspace)?, key)?;
        let range = (Bound::Included(KeptKey::from_slice(key.get())), Bound::Included(KeptKey::from_slice(key.get())));
        let versions = Versions::new(range, Glsn::NONE, moment.readable()?);
        let versions = Some(begin(store, versions)?);
        Ok(Self { store: Arc::clone(store), versions, key: Vec::new(), _moment: moment })
    }

    fn step(&mut self) -> Result<Option<VersionInfo>> {
        self.store.check_open()?;
        let Some(versions) = &mut self.versions else { return Ok(None) };
        let next = self.store.reader.walk(versions, &mut self.key, |versions, key| {
            Ok(versions.next(key)?.map(|version| measure(version.glsn, version.stored)))
        })?;
        charge(&self.store, versions, size_of::<Self>() + self.key.capacity())?;
        next.map(|version| VersionInfo::new(&self.store, version)).transpose()
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

/// A key with different values at two moments.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// let before = db.newest();
/// let by = db.put(&notes, "a", "one")?;
/// let difference: Difference = db.diff(&notes, before, by, "")?.next().expect("there is one")?;
/// assert_eq!((&difference.key[..], difference.by, difference.before), (&b"a"[..], by, None));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The key.
    pub key: Vec<u8>,
    /// The last commit between the two moments that wrote or deleted it.
    pub by: Glsn,
    /// Its version at the first moment; `None` if it did not exist.
    pub before: Option<VersionInfo>,
    /// Its version at the second moment; `None` if it did not exist.
    pub after: Option<VersionInfo>,
}

/// The keys whose values differ between two moments, in key order. A key rewritten with the same value is not a difference.
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
pub struct Diff {
    store: Arc<Engine>,
    /// `None` past the end.
    versions: Option<Seat<Versions>>,
    before: Glsn,
    last_key: Vec<u8>,
    backwards: bool,
    moments: [OpenMoment; 2],
}

impl Diff {
    pub(crate) fn new(store: &Arc<Engine>, keyspace: &Keyspace, a: Glsn, b: Glsn, prefix: &[u8]) -> Result<Self> {
        store.check_open()?;
        let newest = store.newest()?;
        let (before, after) = (a.min(b), a.max(b));
        if after > newest {
            return Err(Error::Future { asked: after, newest });
        }
        let open = |at| store.committer.open_at(at);
        let moments = [open(before)?, open(after)?];
        let span = Span::prefix(store.reader.keyspaces.id_of(keyspace)?, prefix);
        // Checked here to fail early; checked again in each view that the walk uses.
        check_retained(&store.reader.index.current_view(), &span.first(), before)?;
        let versions = Versions::new(span.into_range(), before, after).readable_at(before);
        Ok(Self {
            store: Arc::clone(store),
            versions: Some(begin(store, versions)?),
            before,
            last_key: Vec::new(),
            backwards: a > b,
            moments,
        })
    }

    fn step(&mut self) -> Result<Option<Difference>> {
        self.store.check_open()?;
        loop {
            let Some(versions) = &mut self.versions else { return Ok(None) };
            let next = self.store.reader.walk(versions, &mut self.last_key, |versions, key| {
                while let Some(version) = versions.next(key)? {
                    let found = measure(version.glsn, version.stored);
                    if versions.is_first_of_key() {
                        return Ok(Some(found));
                    }
                }
                Ok(None)
            })?;
            charge(&self.store, versions, size_of::<Self>() + self.last_key.capacity())?;
            let Some((by, bytes)) = next else { return Ok(None) };
            let after = bytes.map(|bytes| VersionInfo::new(&self.store, (by, Some(bytes)))).transpose()?;
            let before = self.store.reader.read(|view| {
                let hit = find(view, &self.last_key, self.before)?;
                hit.map(|hit| VersionInfo::new(&self.store, measure(hit.glsn(), hit.stored()))).transpose()
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
            return Ok(Some(Difference { key: self.last_key[4..].to_vec(), by, before, after }));
        }
    }
}

impl Diff {
    /// Whether the last key has the same bytes at both moments.
    fn is_same_value(&self) -> Result<bool> {
        let [before, after] = &self.moments;
        let reader = |moment| self.store.reader.reader(&self.last_key, moment);
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
    type Item = Result<Difference>;

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
