//! Every version of a key, and the changes between two moments.

use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use plimsoll_log::glsn::Glsn;

use crate::api::snapshot::time_of;
use crate::engine::{Engine, lives};
use crate::index::walk::seat::Seat;
use crate::index::walk::versions::Versions;
use crate::read::moments::OpenMoment;
use crate::read::point::find;
use crate::read::span::Span;
use crate::types::as_of::AsOf;
use crate::types::branch_key;
use crate::types::error::{Error, Result};
use crate::types::expiry::Expiry;
use crate::types::index_key::{IndexKey, KeptKey};
use crate::types::keyspaces::Keyspace;
use crate::types::value::Value;
use crate::types::version::{OwnedStored, Stored};

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
/// assert_eq!(version.value()?.unwrap(), b"one");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct VersionInfo {
    /// The commit that wrote it.
    pub glsn: Glsn,
    /// Time of that commit; `None` if the log no longer holds it.
    pub time: Option<SystemTime>,
    /// Length of the value in bytes; `None` if the key was deleted.
    pub bytes: Option<u64>,
    /// When the value expires or has expired; `None` if it does not expire. An expired version is
    /// retained like any other, so its value can still be read here.
    pub expires: Option<SystemTime>,
    /// Weak: a version that is kept does not keep the store open.
    store: Weak<Engine>,
    index_key: Arc<[u8]>,
}

impl VersionInfo {
    /// Describes a version of an index key.
    fn new(
        store: &Arc<Engine>,
        index_key: &[u8],
        Measure { glsn, bytes, expiry }: Measure,
    ) -> Result<Self> {
        let (time, expires) = (time_of(store, glsn)?, expiry.map(Expiry::time));
        let store = Arc::downgrade(store);
        Ok(Self { glsn, time, bytes, expires, store, index_key: index_key.into() })
    }

    /// The value; `None` if the key was deleted.
    ///
    /// # Errors
    /// [`Error::Trimmed`] if the version is no longer retained; [`Error::Closed`], disk errors, the
    /// budget, or corruption.
    pub fn value(&self) -> Result<Option<Value>> {
        if self.bytes.is_none() {
            return Ok(None);
        }
        let store = self.store.upgrade().ok_or(Error::Closed)?;
        store.check_open()?;
        let bound = || Bound::Included(KeptKey::from_slice(&self.index_key));
        let before = Glsn(self.glsn.0.saturating_sub(1));
        let mut versions = begin(&store, Versions::new((bound(), bound()), before, self.glsn))?;
        let stored = store.reader.walk(&mut versions, &mut Vec::new(), |versions, key| {
            Ok(versions.next(key)?.map(|version| OwnedStored::new(version.stored)))
        })?;
        drop(versions);
        match stored {
            None => {
                let first = store.reader.oldest_readable(IndexKey::new(&self.index_key).keyspace());
                Err(Error::trimmed(self.glsn, first))
            }
            Some(OwnedStored::Inline(value)) => Ok(Some(value)),
            Some(OwnedStored::Elsewhere(stored)) => {
                let load = |bytes: &mut _| store.reader.load(self.glsn, stored, bytes).map(|_| ());
                Value::of_len(&store.reader.budget, stored.value_bytes(), load).map(Some)
            }
        }
    }
}

impl PartialEq for VersionInfo {
    fn eq(&self, other: &Self) -> bool {
        let fields = |it: &Self| (it.glsn, it.time, it.bytes, it.expires);
        fields(self) == fields(other)
    }
}

impl Eq for VersionInfo {}

impl fmt::Debug for VersionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("VersionInfo");
        shown.field("glsn", &self.glsn).field("time", &self.time);
        shown.field("bytes", &self.bytes).field("expires", &self.expires).finish_non_exhaustive()
    }
}

/// What is known of a version without reading its value.
#[derive(Clone, Copy)]
struct Measure {
    glsn: Glsn,
    /// The length of its value unless it is a deletion.
    bytes: Option<u64>,
    expiry: Option<Expiry>,
}

impl Measure {
    /// Whether the key has a value as of a moment, if this is its newest version.
    fn is_live(&self, at: AsOf<'_>) -> bool {
        self.bytes.is_some() && self.expiry.is_none_or(|expiry| !expiry.has_passed(at.micros()))
    }
}

fn measure(glsn: Glsn, stored: Stored<'_>) -> Measure {
    let bytes = (stored != Stored::Deleted).then(|| stored.value_bytes());
    Measure { glsn, bytes, expiry: stored.expiry() }
}

/// Puts a scan that has not begun into a [`Seat`]; waits for memory as writers do.
fn begin(store: &Engine, versions: Versions) -> Result<Seat<Versions>> {
    let seats = &store.reader.index.seats;
    let charge =
        store.committer.patience.in_transaction(true, || Ok(seats.charge_for(&versions)?))?;
    Ok(Seat::new(seats, versions, charge))
}

/// Charges the budget for the memory that an iterator and its user hold after a step.
fn charge(store: &Engine, versions: &mut Seat<Versions>, bytes: usize) -> Result<()> {
    store.committer.patience.in_transaction(false, || Ok(versions.charge_user(bytes)?))
}

/// The retained versions of a key, newest first, in all keyspaces that have or had the keyspace's
/// name. Dropping a keyspace counts as a deletion of each of its keys.
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
    /// The versions in one keyspace; `None` past the end.
    versions: Option<Seat<Versions>>,
    /// The keyspaces that had the name before, oldest first.
    older: Vec<u32>,
    /// The index key, in the keyspace of `versions`; empty once that is the oldest keyspace.
    wanted: KeptKey,
    /// The index key of the version that was returned last.
    key: Vec<u8>,
    moment: OpenMoment,
}

impl History {
    pub(crate) fn new(store: &Arc<Engine>, keyspace: &Keyspace, key: &[u8]) -> Result<Self> {
        store.check_open()?;
        let moment = store.open_newest();
        moment.readable()?;
        let mut older = lives::ids(store, keyspace)?;
        let newest = older.pop().expect("the keyspace itself is among them");
        let wanted = KeptKey::new(newest, key)?;
        let (store, key) = (Arc::clone(store), Vec::new());
        let mut history = Self { store, versions: None, older, wanted, key, moment };
        let mut versions = history.begin()?;
        history.forget_wanted();
        charge(
            &history.store,
            &mut versions,
            own_bytes(&history.older, &history.key, &history.wanted),
        )?;
        history.versions = Some(versions);
        Ok(history)
    }

    /// An iterator over the versions of the wanted index key.
    fn begin(&self) -> Result<Seat<Versions>> {
        // Cloning a long key would allocate a power of two of bytes.
        let bound = || Bound::Included(KeptKey::from_slice(&self.wanted));
        let range = (bound(), bound());
        begin(&self.store, Versions::new(range, Glsn::NONE, self.moment.readable()?.glsn))
    }

    fn step(&mut self) -> Result<Option<VersionInfo>> {
        self.store.check_open()?;
        while let Some(versions) = &mut self.versions {
            let next = self.store.reader.walk(versions, &mut self.key, |versions, key| {
                Ok(versions.next(key)?.map(|version| measure(version.glsn, version.stored)))
            })?;
            let own_bytes = own_bytes(&self.older, &self.key, &self.wanted);
            charge(&self.store, versions, own_bytes)?;
            if let Some(version) = next {
                return VersionInfo::new(&self.store, &self.key, version).map(Some);
            }
            self.versions = None;
            if let Some(id) = self.older.pop() {
                self.wanted.set_keyspace(id);
                self.key.clear();
                self.versions = Some(self.begin()?);
                self.forget_wanted();
            }
        }
        Ok(None)
    }

    /// Releases the key if no older keyspace needs it: the iterator has its own copies.
    fn forget_wanted(&mut self) {
        if self.older.is_empty() {
            self.wanted = KeptKey::default();
        }
    }
}

/// Memory that a history holds in addition to its iterator over the index.
fn own_bytes(older: &Vec<u32>, key: &Vec<u8>, wanted: &KeptKey) -> usize {
    size_of::<History>() + older.capacity() * size_of::<u32>() + key.capacity() + wanted.len()
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

/// The keys whose values differ between two moments, in key order. A key rewritten with the same
/// value is not a difference, and neither is a key whose value only expired in between: no commit
/// changed it. At each moment the keyspace is the one that had the name then.
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
    /// The changes in the keyspace of the first moment; `None` if they have ended, or there is no
    /// such keyspace.
    old: Option<Changes>,
    /// The changes in the keyspace of the second moment, if that is a different one; `None` as for
    /// `old`.
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

/// The keys of one keyspace that were written or deleted between the two moments of a [`Diff`],
/// each with its newest version up to the second moment.
pub(crate) struct Changes {
    versions: Seat<Versions>,
    /// The index key of the last change.
    key: Vec<u8>,
    /// The last change, until it is used.
    head: Option<Measure>,
    /// Of keys on branches: the chains whose changes are wanted, ascending.
    chains: Option<Vec<u32>>,
}

impl Changes {
    pub(crate) fn new(
        store: &Engine,
        span: Span,
        (after, upto): (Glsn, Glsn),
        readable_at: [Glsn; 2],
    ) -> Result<Self> {
        // Checked here to fail early; checked again in each view that the iterator uses.
        let view = store.reader.index.sources.current_view();
        readable_at.into_iter().try_for_each(|at| view.check_readable(&span.first(), at))?;
        let versions = Versions::new(span.into_range(), after, upto).readable_at(readable_at);
        let versions = begin(store, versions)?;
        Ok(Self { versions, key: Vec::new(), head: None, chains: None })
    }

    /// Only the changes of these chains, which are sorted, of a span of keys on branches.
    pub(crate) fn of_chains(self, chains: Vec<u32>) -> Self {
        Self { chains: Some(chains), ..self }
    }

    /// Advances to the next key if the last one was used; false at the end.
    pub(crate) fn advance(&mut self, store: &Engine) -> Result<bool> {
        if self.head.is_none() {
            let Self { versions, key, chains, .. } = self;
            let is_wanted = |key: &[u8]| match &*chains {
                None => true,
                Some(chains) => chains.binary_search(&branch_key::split(key).1).is_ok(),
            };
            self.head = store.reader.walk(versions, key, |versions, key| {
                while let Some(version) = versions.next(key)? {
                    let found = measure(version.glsn, version.stored);
                    if versions.is_first_of_key() && is_wanted(key) {
                        return Ok(Some(found));
                    }
                }
                Ok(None)
            })?;
            charge(store, &mut self.versions, size_of::<Diff>() + self.key.capacity())?;
        }
        Ok(self.head.is_some())
    }

    /// The user's part of the key.
    pub(crate) fn user_key(&self) -> &[u8] {
        IndexKey::new(&self.key).user_key()
    }

    /// The index key.
    pub(crate) fn index_key(&self) -> &[u8] {
        &self.key
    }

    /// Marks the last change as used.
    pub(crate) fn pass(&mut self) {
        self.head = None;
    }
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
    pub(crate) fn new(
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
        // The commits in between are reported.
        let at = |glsn| store.committer.as_of(glsn);
        let moments =
            [store.committer.open_floor(at(before)?)?, store.committer.open_at(at(after)?)?];
        let ids = lives::ids(store, keyspace)?;
        let position_at = |at| lives::position_at(store, keyspace.name(), &ids, at);
        let changes = |id, readable_at| {
            Changes::new(store, Span::prefix(id, prefix), (before, after), readable_at).map(Some)
        };
        let (mut old, mut new, mut between) = (None, None, Vec::new());
        let (first, last) = (position_at(before)?, position_at(after)?);
        if let Some(first) = first {
            // Both, because a moment may be readable although a later one is not.
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
                    let key = changes.as_ref().map_or(&[][..], |changes| &changes.key);
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

    /// The user's key of the last step.
    fn last_key(&self, is_new: bool) -> Option<&[u8]> {
        let changes = if is_new { &self.new } else { &self.old };
        changes.as_ref().map(Changes::user_key)
    }

    /// The version of the last key at the first moment, in the keyspace of that moment.
    fn at_first(&self) -> Result<Option<VersionInfo>> {
        let Some(old) = &self.old else { return Ok(None) };
        self.store.reader.read(|view| {
            let hit = find(view, &old.key, self.moments[0].as_of())?;
            hit.map(|hit| {
                VersionInfo::new(&self.store, &old.key, measure(hit.glsn(), hit.stored()))
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
                self.store.reader.walk(&mut versions, &mut Vec::new(), |versions, key| {
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
            self.store.reader.reader(&changes.key, moment.as_of())
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
    changes.and_then(|changes| changes.head.take())
}

impl Iterator for Diff {
    type Item = Result<Difference>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.step().transpose();
        if !matches!(next, Some(Ok(_))) {
            (self.old, self.new) = (None, None);
        }
        next
    }
}

impl fmt::Debug for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Diff")
    }
}
