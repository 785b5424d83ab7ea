//! Every version of a key, and a key that differs between two states.

use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use plimsoll_log::glsn::Glsn;

use crate::api::snapshot::time_of;
use crate::engine::{Engine, keyspace_lives};
use crate::index::iter::handle::IteratorHandle;
use crate::index::iter::versions::Versions;
use crate::index::sources::view::View;
use crate::read::lens::Lens;
use crate::read::open_moments::OpenMoment;
use crate::types::as_of::AsOf;
use crate::types::branch_key::{self, Stem};
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
    pub(crate) fn new(
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
        let reader = &store.reader;
        loop {
            let Some((stored, view)) = self.find(&store)? else {
                let first = reader.oldest_readable(IndexKey::new(&self.index_key).keyspace());
                return Err(Error::trimmed(self.glsn, first));
            };
            let stored = match stored {
                OwnedStored::Inline(value) => return Ok(Some(value)),
                OwnedStored::Elsewhere(stored) => stored,
            };
            let load = |bytes: &mut _| reader.load(self.glsn, stored, bytes).map(|_| ());
            match Value::of_len(&reader.budget, stored.value_bytes(), load) {
                Ok(value) => return Ok(Some(value)),
                // The value may have moved.
                Err(error) => drop(reader.newer_view(&view).ok_or(error)?),
            }
        }
    }

    /// The stored version, and the sources in which it was found; `None` if it is not retained.
    fn find(&self, store: &Engine) -> Result<Option<(OwnedStored, Weak<View>)>> {
        let bound = || Bound::Included(KeptKey::from_slice(&self.index_key));
        let before = Glsn(self.glsn.0.saturating_sub(1));
        let mut versions = begin(store, Versions::new((bound(), bound()), before, self.glsn))?;
        store.reader.step(&mut versions, &mut Vec::new(), |versions, key| {
            let stored = versions.next(key)?.map(|version| OwnedStored::new(version.stored));
            let view = versions.view();
            Ok(stored.map(|stored| (stored, view)))
        })
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

/// The facts about a version that are known without reading its value.
#[derive(Clone, Copy)]
pub(crate) struct Measure {
    pub(crate) glsn: Glsn,
    /// The length of its value unless it is a deletion.
    pub(crate) bytes: Option<u64>,
    expiry: Option<Expiry>,
}

impl Measure {
    /// When the value expires.
    pub(crate) fn expiry(self) -> Option<Expiry> {
        self.expiry
    }

    /// Whether the key has a value as of a moment, if this is its newest version.
    pub(crate) fn is_live(&self, at: AsOf<'_>) -> bool {
        self.bytes.is_some() && self.expiry.is_none_or(|expiry| !expiry.has_passed(at.micros()))
    }
}

pub(crate) fn measure(key: &[u8], glsn: Glsn, stored: Stored<'_>) -> Measure {
    let is_value = |stored: &Stored<'_>| {
        // A deletion on a branch is stored as a value with this expiry.
        let is_hidden = stored.expiry() == Some(Expiry::OF_DELETION);
        *stored != Stored::Deleted && !(is_hidden && branch_key::is_of_branch(key))
    };
    let stored = Some(stored).filter(is_value);
    let bytes = stored.map(|stored| stored.value_bytes());
    Measure { glsn, bytes, expiry: stored.and_then(|stored| stored.expiry()) }
}

/// Puts a scan that has not begun into an [`IteratorHandle`]; waits for memory as writers do.
pub(crate) fn begin(store: &Engine, versions: Versions) -> Result<IteratorHandle<Versions>> {
    let iterators = &store.reader.index.iterators;
    let charge = store
        .committer
        .writer_memory
        .in_transaction(true, || Ok(iterators.charge_for(&versions)?))?;
    Ok(IteratorHandle::new(iterators, versions, charge))
}

/// Charges the budget for the memory that an iterator and its user hold after a step.
pub(crate) fn charge(
    store: &Engine,
    versions: &mut IteratorHandle<Versions>,
    bytes: usize,
) -> Result<()> {
    store.committer.writer_memory.in_transaction(false, || Ok(versions.charge_user(bytes)?))
}

/// The retained versions of a key, newest first, in all keyspaces that have or had the keyspace's
/// name. Dropping a keyspace counts as a deletion of each of its keys.
///
/// The history on a branch consists of the versions that were written there, then of those that its
/// ancestors and main had at the forks: see [`Branch::history`](crate::Branch::history).
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
    /// The branch; `None`: main.
    lens: Option<Arc<Lens>>,
    /// The versions of one index key; `None` past the end.
    versions: Option<IteratorHandle<Versions>>,
    /// The position in the branch's lineage: the number of the next chain; the number of chains
    /// stands for main, a greater number for the end of the keyspace.
    place: usize,
    /// The keyspaces that had the name before, oldest first.
    older: Vec<u32>,
    /// The key in main, in the keyspace of `versions`; empty once it is no longer needed.
    wanted: KeptKey,
    /// The index key of the version that was returned last.
    key: Vec<u8>,
    /// The GLSN of the version of `key` that was returned last.
    newer: Option<Glsn>,
    /// On a branch: the commit that dropped the keyspace, until the first version in it is found.
    /// The drop is not stored on branches, but is returned as a deletion of the key.
    dropped: Option<Glsn>,
    /// The version that the drop deleted. It is returned after the deletion.
    held: Option<Measure>,
    name: Arc<str>,
    moment: OpenMoment,
}

impl History {
    pub(crate) fn new(
        store: &Arc<Engine>,
        lens: Option<&Arc<Lens>>,
        keyspace: &Keyspace,
        key: &[u8],
    ) -> Result<Self> {
        store.check_open()?;
        let moment = store.open_newest();
        let at = moment.readable()?.glsn;
        lens.map_or(Ok(()), |lens| lens.check_exists(&store.reader, at))?;
        let mut older = keyspace_lives::ids(store, keyspace)?;
        let newest = older.pop().expect("the keyspace itself is among them");
        let wanted = KeptKey::new(newest, key)?;
        let mut history = Self {
            store: Arc::clone(store),
            lens: lens.map(Arc::clone),
            versions: None,
            place: 0,
            older,
            wanted,
            key: Vec::new(),
            newer: None,
            dropped: None,
            held: None,
            name: keyspace.name().into(),
            moment,
        };
        history.note_drop(newest)?;
        history.versions = history.next_part()?;
        history.charge()?;
        Ok(history)
    }

    /// On a branch, finds out when the keyspace was dropped. Not needed on main, where the drop is
    /// stored as a deletion of the key.
    fn note_drop(&mut self, keyspace: u32) -> Result<()> {
        self.dropped = None;
        if self.lens.is_some() {
            let at = self.moment.readable()?.glsn;
            let dropped = keyspace_lives::dropped_at(&self.store, keyspace, &self.name)?;
            self.dropped = dropped.filter(|dropped| *dropped <= at);
        }
        Ok(())
    }

    /// The versions of the key in the next part of the history: in the next chain of the lineage
    /// that has any, in main, or in the next older keyspace. `None` at the end.
    fn next_part(&mut self) -> Result<Option<IteratorHandle<Versions>>> {
        // These describe the version that was returned last, which is of the previous part.
        self.key.clear();
        self.newer = None;
        let chains = self.lens.as_ref().map_or(0, |lens| lens.ancestry().chains.len());
        if self.place > chains {
            let Some(id) = self.older.pop() else { return Ok(None) };
            self.wanted.set_keyspace(id);
            self.note_drop(id)?;
            self.place = 0;
        }
        let at = self.moment.readable()?.glsn;
        if let Some(lens) = &self.lens
            && self.place < chains
        {
            let stem = Stem::of_main(lens.ancestry().group, &self.wanted);
            let own = stem.of_chain(lens.ancestry().chain);
            if !branch_key::is_too_long(&own) {
                let (stem, _) = branch_key::split(&own);
                let decide = |view: &_| lens.decide(view, stem, self.place, at);
                if let Some(place) = self.store.reader.read(decide)? {
                    let (chain, limit) = lens.ancestry().chains[place];
                    let key = branch_key::key_of(stem, chain);
                    self.place = place + 1;
                    return self.begin(key.get(), at.min(limit)).map(Some);
                }
            }
        }
        self.place = chains + 1;
        let upto = self.lens.as_ref().map_or(at, |lens| at.min(lens.ancestry().main));
        let versions = self.begin(&self.wanted, upto)?;
        if self.older.is_empty() {
            self.wanted = KeptKey::default();
        }
        Ok(Some(versions))
    }

    /// An iterator over the versions of an index key.
    fn begin(&self, key: &[u8], upto: Glsn) -> Result<IteratorHandle<Versions>> {
        // Cloning a long key would allocate a power of two of bytes.
        let bound = || Bound::Included(KeptKey::from_slice(key));
        begin(&self.store, Versions::new((bound(), bound()), Glsn::NONE, upto))
    }

    fn charge(&mut self) -> Result<()> {
        let own_bytes = own_bytes(&self.older, &self.key, &self.wanted);
        match &mut self.versions {
            Some(versions) => charge(&self.store, versions, own_bytes),
            None => Ok(()),
        }
    }

    /// Whether a deletion may stem from a range deletion in a commit that put the key afterwards.
    /// A merge drops the value of that put once no readable moment sees it as the newest; the range
    /// deletion stays.
    fn may_be_overwritten(&self, version: Measure) -> bool {
        let Some(newer) = self.newer.filter(|_| version.bytes.is_none()) else { return false };
        let view = self.store.reader.index.sources.current_view();
        !view.is_seen(IndexKey::new(&self.key).keyspace(), version.glsn, newer)
    }

    fn step(&mut self) -> Result<Option<VersionInfo>> {
        self.store.check_open()?;
        if let Some(version) = self.held.take() {
            return VersionInfo::new(&self.store, &self.key, version).map(Some);
        }
        while let Some(versions) = &mut self.versions {
            let next = self.store.reader.step(versions, &mut self.key, |versions, key| {
                let version = versions.next(key)?;
                Ok(version.map(|version| measure(version.key, version.glsn, version.stored)))
            })?;
            self.charge()?;
            if let Some(version) = next {
                if self.may_be_overwritten(version) {
                    continue;
                }
                self.newer = Some(version.glsn);
                let dropped = self.dropped.take().filter(|_| version.bytes.is_some());
                let version = match dropped {
                    None => version,
                    Some(glsn) => {
                        self.held = Some(version);
                        Measure { glsn, bytes: None, expiry: None }
                    }
                };
                return VersionInfo::new(&self.store, &self.key, version).map(Some);
            }
            self.versions = None;
            self.versions = self.next_part()?;
        }
        Ok(None)
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
            (self.versions, self.held) = (None, None);
        }
        next
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("History")
    }
}

/// A key with different values at two moments, or in two states of branches.
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
    /// The last commit between the two moments that wrote or deleted the key. For states of
    /// different branches: the last such commit that only one of the two states contains. The
    /// deletion of a key that did not exist counts only if it is still retained.
    pub by: Glsn,
    /// Its version at the first moment, or in the first state; `None` if it did not exist.
    pub before: Option<VersionInfo>,
    /// Its version at the second moment, or in the second state; `None` if it did not exist.
    pub after: Option<VersionInfo>,
}
