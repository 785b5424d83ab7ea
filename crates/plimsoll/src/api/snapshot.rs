//! Snapshots: the store as of one moment.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use plimsoll_log::glsn::Glsn;

use crate::engine::Engine;
use crate::engine::keyspace_commits;
use crate::read::lens::Lens;
use crate::read::open_moments::OpenMoment;
use crate::read::point::ValueReader;
use crate::read::resident::{Resident, resident};
use crate::read::span::Span;
use crate::txn::range::Range;
use crate::txn::read_trait::reads_by_its_own_methods;
use crate::types::as_of::AsOf;
use crate::types::branch_key;
use crate::types::error::{Error, Lift, Result};
use crate::types::expiry::Ttl;
use crate::types::index_key::{IndexKey, KeyBuffer, check_key};
use crate::types::invalid_input::InvalidInput;
use crate::types::key_range::KeyRange;
use crate::types::keyspaces::{Keyspace, is_internal};
use crate::types::times::{of_micros, to_micros};
use crate::types::value::Value;

/// A moment in the history of a store.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// let notes = db.keyspace("notes")?;
/// let first = db.put(&notes, "a", "one")?;
/// let noon = std::time::SystemTime::now();
/// db.put(&notes, "a", "two")?;
/// for then in [Moment::Glsn(first), Moment::Time(noon)] {
///     assert_eq!(db.snapshot_at(then)?.get(&notes, "a")?.unwrap(), b"one");
/// }
/// assert_eq!(db.snapshot_at(Moment::Newest)?.get(&notes, "a")?.unwrap(), b"two");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Moment {
    /// The newest readable moment.
    Newest,
    /// Right after the commit with this GLSN.
    Glsn(Glsn),
    /// After the last commit made at this time or earlier. A time before the first commit is
    /// refused.
    Time(SystemTime),
}

impl From<Glsn> for Moment {
    fn from(glsn: Glsn) -> Self {
        Self::Glsn(glsn)
    }
}

impl From<SystemTime> for Moment {
    fn from(time: SystemTime) -> Self {
        Self::Time(time)
    }
}

/// The store as it was at one moment. A snapshot never changes, never waits for writers and never
/// blocks them. While it is open, no version that it can see is dropped. Versions that were written
/// and superseded after it was opened are dropped, unless the keyspace's retention or another
/// snapshot keeps them. (They are also kept if more than 32 different moments are open, or if the
/// snapshot belongs to another process.) For a past moment that a keyspace's retention does not
/// cover, the guarantee is weaker; see [`crate::Db::snapshot_at`].
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// let notes = db.keyspace("notes")?;
/// db.put(&notes, "a", "one")?;
/// let before = db.snapshot();
/// db.put(&notes, "b", "two")?;
/// assert_eq!((before.len(&notes)?, db.snapshot().len(&notes)?), (1, 2));
/// assert_eq!(db.snapshot().last(&notes)?.unwrap().0, b"b");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Snapshot {
    store: Arc<Engine>,
    moment: Arc<OpenMoment>,
    /// The branch; `None`: main.
    lens: Option<Arc<Lens>>,
}

impl Snapshot {
    pub(crate) fn newest(store: &Arc<Engine>) -> Self {
        Self { store: Arc::clone(store), moment: Arc::new(store.open_newest()), lens: None }
    }

    pub(crate) fn of(store: &Arc<Engine>, moment: Moment) -> Result<Self> {
        store.check_open()?;
        let (at, since) = match moment {
            Moment::Newest => return Ok(Self::newest(store)),
            Moment::Glsn(glsn) => (glsn, None),
            Moment::Time(time) => {
                // Read the newest moment first, so that the commits of other processes are applied
                // and their times are known.
                let newest = store.newest()?;
                match store.reader.log.glsn_at(to_micros(time)).lift()?.min(newest) {
                    Glsn::NONE => return Err(before_first(store, time)?.into()),
                    at => (at, Some(to_micros(time))),
                }
            }
        };
        let newest = store.newest()?;
        if at > newest {
            return Err(Error::Future { asked: at, newest });
        }
        let as_of = match since {
            None => store.committer.as_of(at)?,
            Some(micros) => {
                let commit = store.committer.as_of_past(at)?.micros();
                AsOf::new(at, commit.max(micros.min(store.reader.log.now_micros())))
            }
        };
        Self::ordered_at(store, as_of)
    }

    /// A snapshot at a moment up to which all commits are applied, durable or not.
    pub(crate) fn ordered_at(store: &Arc<Engine>, at: AsOf<'static>) -> Result<Self> {
        let moment = Arc::new(store.committer.open_at(at)?);
        Ok(Self { store: Arc::clone(store), moment, lens: None })
    }

    /// The same moment, seen on a branch.
    pub(crate) fn on_branch(self, lens: &Arc<Lens>) -> Self {
        Self { lens: Some(Arc::clone(lens)), ..self }
    }

    /// The branch that it sees; `None`: main.
    pub(crate) fn lens(&self) -> Option<&Arc<Lens>> {
        self.lens.as_ref()
    }

    pub(crate) fn moment(&self) -> &OpenMoment {
        &self.moment
    }

    /// GLSN of the snapshot's moment.
    pub fn at(&self) -> Glsn {
        self.moment.at()
    }

    /// The moment to read at.
    pub(crate) fn read_at(&self) -> Result<AsOf<'static>> {
        self.moment.readable()
    }

    pub(crate) fn store(&self) -> &Arc<Engine> {
        &self.store
    }

    /// Time of the last commit in the snapshot; `None` for an empty store, or if the log no longer
    /// held that commit when the snapshot was opened.
    ///
    /// # Errors
    /// Disk errors, the budget, or corruption.
    pub fn time(&self) -> Result<Option<SystemTime>> {
        time_of(&self.store, self.read_at()?.glsn)
    }

    /// The keyspace that had this name at the snapshot's moment, even if it was dropped since;
    /// `None` if there was none.
    ///
    /// # Errors
    /// The name is invalid, disk errors, the budget, or corruption.
    pub fn keyspace(&self, name: &str) -> Result<Option<Keyspace>> {
        keyspace_commits::at(&self.store, name, self.read_at()?.glsn)
    }

    /// The value of a key; `None` if it has none.
    ///
    /// # Errors
    /// [`Error::Trimmed`] if the moment is no longer retained, the key is too long, disk errors,
    /// the budget, or corruption. [`Error::Behind`] from every read of the snapshot if the commits
    /// of other processes could not be applied when it was opened.
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        let key = self.key(keyspace, key.as_ref())?;
        let (key, at) = self.place(&key)?;
        self.store.reader.get(&key, at)
    }

    /// Calls `look` with the value of a key, and returns its result; `None` if the key had no
    /// value. The value is borrowed from where it is in memory, so a small one is neither copied
    /// nor allocated. `look` may use the store but should be short, because the memory that this
    /// read uses is not freed while it runs.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
    /// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
    /// let counters = db.keyspace("counters")?;
    /// db.put(&counters, "visits", 7u64.to_le_bytes())?;
    /// let number = |value: &[u8]| value.try_into().map_or(0, u64::from_le_bytes);
    /// assert_eq!(db.snapshot().get_with(&counters, "visits", number)?, Some(7));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Snapshot::get`].
    pub fn get_with<T>(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        let key = self.key(keyspace, key.as_ref())?;
        let (key, at) = self.place(&key)?;
        self.store.reader.get_with(&key, at, look)
    }

    /// As [`Snapshot::get_with`], but answers only from memory: see [`crate::Db::get_resident`].
    ///
    /// # Errors
    /// As for [`Snapshot::get`].
    pub fn get_resident<T>(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<Resident<T>> {
        let key = self.key(keyspace, key.as_ref())?;
        let (key, at) = match &self.lens {
            None => self.place(&key)?,
            Some(_) => match resident(|| self.place(&key).map(Some)) {
                Resident::Value(place) => place,
                _ => return Ok(Resident::NotResident),
            },
        };
        self.store.reader.get_resident(&key, at, look)
    }

    /// The index key of the branch's own versions of a key.
    pub(crate) fn key(&self, keyspace: &Keyspace, key: &[u8]) -> Result<KeyBuffer> {
        let keyspace = self.store.reader.keyspaces.id_of(keyspace)?;
        match &self.lens {
            Some(lens) if !is_internal(keyspace) => {
                check_key(key).map(|()| lens.key(keyspace, key))
            }
            _ => KeyBuffer::new(keyspace, key),
        }
    }

    /// Where the value of an index key is read: the index key of the version that the snapshot
    /// sees, and the moment.
    pub(crate) fn place<'k>(&self, key: &'k [u8]) -> Result<(Cow<'k, [u8]>, AsOf<'static>)> {
        let at = self.read_at()?;
        match &self.lens {
            Some(lens) if branch_key::is_of_branch(key) => {
                lens.resolve(&self.store.reader, key, at)
            }
            _ => Ok((Cow::Borrowed(key), at)),
        }
    }

    /// The last commit that wrote or deleted the value of a key that the snapshot sees; `None` if
    /// there is none, or its deletion is no longer stored.
    pub(crate) fn written_by(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<Glsn>> {
        let key = self.key(keyspace, key)?;
        let (key, at) = self.place(&key)?;
        self.store.reader.read(|view| view.written_by(&key, at.glsn))
    }

    /// A reader of a key's value, for values too large to hold in memory; `None` if the key has
    /// none.
    ///
    /// # Errors
    /// As for [`Snapshot::get`].
    pub fn get_reader(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<ValueReader>> {
        let key = self.key(keyspace, key.as_ref())?;
        let (key, at) = self.place(&key)?;
        self.store.committer.value_reader(&key, at)
    }

    /// Whether a key has a value; does not read the value.
    ///
    /// # Errors
    /// As for [`Snapshot::get`].
    pub fn contains_key(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        let key = self.key(keyspace, key.as_ref())?;
        let (key, at) = self.place(&key)?;
        self.store.reader.contains(&key, at)
    }

    /// When the value of a key expires. Does not read the value.
    ///
    /// # Errors
    /// As for [`Snapshot::get`].
    pub fn ttl(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Ttl> {
        let key = self.key(keyspace, key.as_ref())?;
        let (key, at) = self.place(&key)?;
        Ok(Ttl::new(self.store.reader.expiry(&key, at)?, at.micros()))
    }

    /// Iterates over a range of keys.
    ///
    /// # Errors
    /// [`Error::Trimmed`], or [`Error::InvalidInput`] if the handle belongs to another store or
    /// opening.
    pub fn range(&self, keyspace: &Keyspace, range: impl KeyRange) -> Result<Range<'static>> {
        self.scan(Span::new(self.store.reader.keyspaces.id_of(keyspace)?, &range))
    }

    /// Iterates over the keys that begin with `prefix`.
    ///
    /// # Errors
    /// As for [`Snapshot::range`].
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<Range<'static>> {
        self.scan(Span::prefix(self.store.reader.keyspaces.id_of(keyspace)?, prefix.as_ref()))
    }

    /// Iterates over a span of index keys of main, or over the same keys on the snapshot's branch.
    pub(crate) fn scan(&self, span: Span) -> Result<Range<'static>> {
        self.store.check_open()?;
        let at = self.read_at()?;
        let is_seen = !is_internal(IndexKey::new(&span.first()).keyspace());
        let lens = self.lens.as_ref().filter(|_| is_seen);
        let on_main = lens.map_or(at, |lens| lens.on_main(at));
        // Whether the moment is retained is checked here to fail early, and again when the iterator
        // begins.
        self.store
            .reader
            .index
            .sources
            .current_view()
            .check_readable(&span.first(), on_main.glsn)?;
        let range = Range::at_moment(&self.store.committer, span, &self.moment);
        Ok(match lens {
            None => range,
            Some(lens) => range.on_branch(lens),
        })
    }
}

reads_by_its_own_methods!(Snapshot, 'static);

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot(at {})", self.moment.at())
    }
}

/// The error for a time before the first commit.
fn before_first(store: &Engine, asked: SystemTime) -> Result<InvalidInput> {
    let first = if store.newest()? == Glsn::NONE { None } else { time_of(store, Glsn::FIRST)? };
    Ok(InvalidInput::TimeBeforeFirst { asked, first })
}

/// Time of a commit; `None` if the log no longer holds it, and neither a snapshot nor a tag has
/// kept its time.
pub(crate) fn time_of(store: &Engine, glsn: Glsn) -> Result<Option<SystemTime>> {
    store.check_open()?;
    Ok(store.reader.time_of(glsn)?.map(of_micros))
}
