//! Named keyspaces, and each one's retention of past versions.
//!
//! System keyspace 0 maps a keyspace's name to its record, so creating a keyspace is an ordinary
//! commit.
//!
//! ```text
//! u32     id (little-endian)
//! u8      retention: 0 for ever, 1 latest, 2 GLSNs, 3 time, 255 not set
//! varint  GLSNs, or microseconds (0 otherwise)
//! settings, each absent if it is the default:
//! u8      2: time to live; then varint microseconds
//! u8      1: compression; then u8 codec (0 none, 1 LZ4, 2 zstd, 255 not set), u8 level (0 but
//!         for zstd), u8 1 if values were ever compressed with zstd, else 0
//! ```
//!
//! Only the keyspace `default` may have settings that were never set. For these, each process uses
//! its own options.
//!
//! The record of a dropped keyspace is kept under another key, which is never a valid name, because
//! the id is never reused, the retention still determines how long the past of the keyspace is
//! kept, and the name is still reported with its commits.
//!
//! ```text
//! u8      2
//! u32     id (big-endian)
//! bytes   name
//! ```

use plimsoll_log::glsn::Glsn;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use plimsoll_disk::codec::{Reader, push_varint};

use crate::types::compression::{Codec, Compression, HAS_ZSTD, no_zstd};
use crate::types::error::{Error, Result};
use crate::types::expiry::check_ttl;
use crate::types::invalid_input::InvalidInput;
use crate::types::retention::Retention;

/// The keyspace that stores the records of the others.
pub(crate) const SYSTEM: u32 = 0;

/// The keyspace that always exists: name and id.
pub(crate) const DEFAULT: (&str, u32) = ("default", 1);

/// The keyspace that stores the cursors of the log (`cursors`).
pub(crate) const CURSORS: u32 = 2;

/// The keyspace that stores the tags (`tags`).
pub(crate) const TAGS: u32 = 3;

/// The keyspace that stores the chains (`branches`).
pub(crate) const BRANCHES: u32 = 4;

/// The keyspace that stores the versions of all branches but main (`branch_key`).
pub(crate) const SIDE: u32 = 5;

/// The keyspace that stores the ids of commits (`sync/ids`).
pub(crate) const IDS: u32 = 6;

/// The key in [`IDS`] of the first GLSN whose commit has no known id. The key exists once ids have
/// been requested.
pub(crate) const IDS_POSITION: &[u8] = b"p";

/// The first byte of the keys in [`IDS`] that record the place of a commit; its id follows, then
/// u32 chain and u64 GLSN.
pub(crate) const PLACE: u8 = b'i';

/// The first byte of the keys in [`IDS`] that mark the commits of which a partial clone lacks
/// parents; the id follows. The value is empty for a boundary commit.
pub(crate) const BOUNDARY: u8 = b'b';

/// The first id of a keyspace that a user creates.
pub(crate) const FIRST_ID: u32 = 16;

/// Whether a keyspace stores the store's own records, or the versions on branches.
#[inline]
pub(crate) fn is_internal(id: u32) -> bool {
    id < FIRST_ID && id != DEFAULT.1
}

/// A key in the store's own keyspaces that never has a value; no keyspace and no cursor can have
/// this name. It is deleted by commits that have nothing else to write.
pub(crate) const TIME_MARK: &str = "\u{1}time";

/// The maximum length of a name in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 255;

/// The maximum number of keyspaces in a store.
pub(crate) const MAX_KEYSPACES: usize = 10_000;

/// Identifies one opening of a store; shared by the clones of a `Db`. Unique within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Opening(u64);

impl Default for Opening {
    fn default() -> Self {
        static OPENINGS: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only the number itself matters.
        Self(OPENINGS.fetch_add(1, Ordering::Relaxed))
    }
}

/// A handle to a named keyspace of a store. Cheap to clone.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// let (cats, dogs) = (db.keyspace("cats")?, db.keyspace("dogs")?);
/// db.put(&cats, "tom", "grey")?;
/// assert_eq!((cats.name(), db.get(&dogs, "tom")?), ("cats", None));
/// # Ok(())
/// # }
/// ```
///
/// A handle belongs to the [`crate::Db`] that returned it, and to the clones of that `Db`. Calls on
/// another store reject it, and so do calls on the same store after it was closed and reopened: get
/// a new handle from the new `Db`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Keyspace {
    id: u32,
    name: Arc<str>,
    opening: Opening,
}

impl Keyspace {
    /// The keyspace's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Name and settings of a keyspace.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// let names: Vec<String> = db.keyspaces().into_iter().map(|info| info.name).collect();
/// assert_eq!(names, ["default", "notes"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyspaceInfo {
    /// Its name.
    pub name: String,
    /// The past versions that it keeps.
    pub retention: Retention,
    /// The compression of values that are written from now on.
    pub compression: Compression,
    /// The time to live of values that are written from now on; `None`: they do not expire unless
    /// the write sets an expiry.
    pub ttl: Option<Duration>,
}

/// The result of dropping a keyspace.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// db.put(&notes, "a", "one")?;
/// let report = db.drop_keyspace(&notes)?;
/// assert_eq!((report.keys, report.glsn), (1, db.newest()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DropReport {
    /// The commit that dropped the keyspace. At earlier moments the keyspace can still be read.
    pub glsn: Glsn,
    /// Keys that were deleted with it, including those whose values had expired but were still
    /// stored.
    pub keys: u64,
}

/// A keyspace's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) id: u32,
    pub(crate) retention: Retention,
    pub(crate) compression: Compression,
    /// The time to live of values that are put, if they have one.
    pub(crate) ttl: Option<Duration>,
    /// Whether values may be compressed with zstd.
    pub(crate) has_zstd: bool,
    /// Whether the retention is set, rather than taken from the options.
    sets_retention: bool,
    /// Whether the compression is set, rather than taken from the options.
    sets_compression: bool,
}

/// Encodes a setting that was never set.
const NOT_SET: u8 = 255;

/// The first byte of a record's compression setting.
const COMPRESSION: u8 = 1;

/// The first byte of a record's time to live.
const TTL: u8 = 2;

impl Record {
    pub(crate) fn new(id: u32, retention: Retention, compression: Compression) -> Self {
        Self::of_options(id, retention, compression).as_set()
    }

    /// A record of a keyspace whose settings are those of the options.
    pub(crate) fn of_options(id: u32, retention: Retention, compression: Compression) -> Self {
        let has_zstd = compression.codec() == Some(Codec::Zstd);
        let (sets_retention, sets_compression) = (false, false);
        let ttl = None;
        Self { id, retention, compression, ttl, has_zstd, sets_retention, sets_compression }
    }

    /// The record with its settings set.
    pub(crate) fn as_set(self) -> Self {
        Self { sets_retention: true, sets_compression: true, ..self }
    }

    /// The record with another retention.
    pub(crate) fn with_retention(self, retention: Retention) -> Self {
        Self { retention, sets_retention: true, ..self }
    }

    /// The record with another compression. Values that exist stay as they are.
    pub(crate) fn with_compression(self, compression: Compression) -> Self {
        let has_zstd = self.has_zstd || compression.codec() == Some(Codec::Zstd);
        Self { compression, has_zstd, sets_compression: true, ..self }
    }

    /// The record with another time to live. Values that exist keep their expiry.
    pub(crate) fn with_ttl(self, ttl: Option<Duration>) -> Self {
        Self { ttl, ..self }
    }

    /// The record with the mark that values may be compressed with zstd.
    pub(crate) fn with_zstd(self) -> Self {
        Self { has_zstd: true, ..self }
    }

    /// This record, with the settings that it does not set taken from `other`.
    pub(crate) fn or(self, other: Self) -> Self {
        let retention = if self.sets_retention { self.retention } else { other.retention };
        let compression = if self.sets_compression { self.compression } else { other.compression };
        let has_zstd = self.has_zstd || (!self.sets_compression && other.has_zstd);
        Self { retention, compression, has_zstd, ..self }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let (tag, number) = match self.retention {
            _ if !self.sets_retention => (NOT_SET, 0),
            Retention::Forever => (0, 0),
            Retention::Latest => (1, 0),
            Retention::Glsns(glsns) => (2, glsns),
            Retention::Time(age) => (3, u64::try_from(age.as_micros()).unwrap_or(u64::MAX)),
        };
        let mut out = self.id.to_le_bytes().to_vec();
        out.push(tag);
        push_varint(&mut out, number);
        let is_none = self.sets_compression && self.compression == Compression::None;
        let is_default = if self.id == DEFAULT.1 { !self.sets_compression } else { is_none };
        if !is_default || self.has_zstd {
            let (codec, level) = match (self.compression, self.sets_compression) {
                (_, false) => (NOT_SET, 0),
                (Compression::None, _) => (0, 0),
                (Compression::Lz4, _) => (Codec::Lz4 as u8, 0),
                (Compression::Zstd(level), _) => {
                    (Codec::Zstd as u8, u8::try_from(level).expect("it was checked"))
                }
            };
            out.extend_from_slice(&[COMPRESSION, codec, level, u8::from(self.has_zstd)]);
        }
        if let Some(ttl) = self.ttl {
            out.push(TTL);
            push_varint(&mut out, ttl.as_micros() as u64);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let damaged = || Error::damaged("the record of a keyspace cannot be decoded");
        let mut reader = Reader::new(bytes);
        let id = reader.u32().ok_or_else(damaged)?;
        let tag = reader.u8().ok_or_else(damaged)?;
        let number = reader.varint().ok_or_else(damaged)?;
        let retention = match tag {
            0 | NOT_SET => Retention::Forever,
            1 => Retention::Latest,
            2 => Retention::Glsns(number),
            3 => Retention::Time(Duration::from_micros(number)),
            _ => return Err(damaged()),
        };
        let mut record = Self::of_options(id, retention, Compression::None);
        record.sets_retention = tag != NOT_SET;
        record.sets_compression = id != DEFAULT.1;
        while let Some(setting) = reader.u8() {
            match setting {
                COMPRESSION => record.decode_compression(&mut reader).ok_or_else(damaged)?,
                TTL => {
                    let ttl = Duration::from_micros(reader.varint().ok_or_else(damaged)?);
                    check_ttl(ttl).map_err(|_| damaged())?;
                    record.ttl = Some(ttl);
                }
                _ => {
                    return Err(Error::format(format!(
                        "keyspace {id} has a setting of kind {setting} that this version does not \
                         know; use a newer Plimsoll"
                    )));
                }
            }
        }
        if record.has_zstd && !HAS_ZSTD {
            return Err(no_zstd(&format!("keyspace {id}")));
        }
        Ok(record)
    }

    fn decode_compression(&mut self, reader: &mut Reader<'_>) -> Option<()> {
        let (codec, level, has_zstd) = (reader.u8()?, i32::from(reader.u8()?), reader.u8()?);
        self.compression = match Codec::from_number(codec) {
            Some(Codec::Lz4) => Compression::Lz4,
            Some(Codec::Zstd) => Compression::Zstd(level),
            None if codec == 0 || codec == NOT_SET => Compression::None,
            None => return None,
        };
        self.sets_compression = codec != NOT_SET;
        self.has_zstd = has_zstd != 0;
        Some(())
    }
}

/// First byte of the system key of a dropped keyspace's record.
pub(crate) const DROPPED: u8 = 2;

/// The system key of a dropped keyspace's record.
pub(crate) fn dropped_key(id: u32, name: &str) -> Vec<u8> {
    [&[DROPPED], &id.to_be_bytes()[..], name.as_bytes()].concat()
}

/// The name in the system key of a dropped keyspace's record; `None` for other keys.
pub(crate) fn dropped_name(key: &[u8]) -> Option<&[u8]> {
    key.strip_prefix(&[DROPPED]).and_then(|rest| rest.get(size_of::<u32>()..))
}

/// The keyspaces of an open store.
#[derive(Debug, Default)]
pub(crate) struct Keyspaces {
    opening: Opening,
    known: RwLock<Known>,
    /// Whether a keyspace was dropped or is being dropped. Writers check which one only if this is
    /// set.
    any_dropped: AtomicBool,
    /// Whether a keyspace has a compression.
    any_compressed: AtomicBool,
    /// Whether a keyspace has a time to live.
    any_ttl: AtomicBool,
    /// Held while a keyspace is created or changed, so that changes are recorded in commit order.
    pub(crate) making: Mutex<()>,
}

/// The known keyspaces.
#[derive(Debug, Default)]
struct Known {
    by_name: BTreeMap<Arc<str>, Record>,
    /// Dropped keyspaces by id, with their former names.
    dropped: BTreeMap<u32, (Arc<str>, Record)>,
    /// The compression of the keyspaces that have one.
    compressed: BTreeMap<u32, Compression>,
    /// The time to live of the keyspaces that have one.
    ttls: BTreeMap<u32, Duration>,
    /// The keyspace that is being dropped.
    dropping: Option<u32>,
}

/// A drop of a keyspace that is in progress.
pub(crate) struct Dropping<'a>(&'a Keyspaces);

impl Drop for Dropping<'_> {
    fn drop(&mut self) {
        self.0.write().dropping = None;
    }
}

impl Known {
    fn is_closed(&self, id: u32) -> bool {
        self.dropping == Some(id) || self.dropped.contains_key(&id)
    }
}

impl Keyspaces {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, Known> {
        self.known.read().expect("no code under this lock panics")
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Known> {
        self.known.write().expect("no code under this lock panics")
    }

    /// Records a new keyspace, or its new settings.
    pub(crate) fn load(&self, name: &str, record: Record) {
        let mut known = self.write();
        let before = known.by_name.get(name).filter(|before| before.id == record.id);
        let has_zstd = record.has_zstd || before.is_some_and(|before| before.has_zstd);
        let record = before.map_or(record, |before| Record { has_zstd, ..record.or(*before) });
        known.by_name.insert(name.into(), record);
        match record.ttl {
            Some(ttl) => _ = known.ttls.insert(record.id, ttl),
            None => _ = known.ttls.remove(&record.id),
        }
        // Relaxed, like the settings of compression.
        self.any_ttl.store(!known.ttls.is_empty(), Ordering::Relaxed);
        drop(known);
        self.load_compression(record.id, record.compression);
    }

    /// Records the compression of values that are put into a keyspace from now on.
    pub(crate) fn load_compression(&self, id: u32, compression: Compression) {
        let mut known = self.write();
        match compression {
            Compression::None => _ = known.compressed.remove(&id),
            compression => _ = known.compressed.insert(id, compression),
        }
        // Relaxed: a put that misses the newest setting stores its value as it is.
        self.any_compressed.store(!known.compressed.is_empty(), Ordering::Relaxed);
    }

    /// Whether a keyspace has a compression.
    pub(crate) fn any_compressed(&self) -> bool {
        self.any_compressed.load(Ordering::Relaxed)
    }

    /// The compression of a keyspace.
    pub(crate) fn compression(&self, id: u32) -> Compression {
        if !self.any_compressed() {
            return Compression::None;
        }
        self.read().compressed.get(&id).copied().unwrap_or_default()
    }

    /// The time to live of values that are put into a keyspace, if they have one.
    #[inline]
    pub(crate) fn ttl(&self, id: u32) -> Option<Duration> {
        if !self.any_ttl.load(Ordering::Relaxed) {
            return None;
        }
        self.read().ttls.get(&id).copied()
    }

    /// Rejects all puts into the keyspace until the returned guard ends. Then the keyspace counts
    /// as dropped if `load_dropped` was called, and as unchanged otherwise.
    #[must_use]
    pub(crate) fn begin_drop(&self, id: u32) -> Dropping<'_> {
        self.write().dropping = Some(id);
        self.any_dropped.store(true, Ordering::Release);
        Dropping(self)
    }

    /// Records that a keyspace was dropped.
    pub(crate) fn load_dropped(&self, name: &str, record: Record) {
        let mut known = self.write();
        if known.by_name.get(name).is_some_and(|live| live.id == record.id) {
            known.by_name.remove(name);
        }
        known.dropped.insert(record.id, (name.into(), record));
        known.compressed.remove(&record.id);
        known.ttls.remove(&record.id);
        self.any_compressed.store(!known.compressed.is_empty(), Ordering::Relaxed);
        self.any_dropped.store(true, Ordering::Release);
    }

    /// Rejects keyspaces that were dropped or are being dropped. Checked under the commit lock too,
    /// because a drop is announced before the keys of the keyspace are read.
    pub(crate) fn check_take_more(&self, ids: impl IntoIterator<Item = u32>) -> Result<()> {
        if !self.any_dropped.load(Ordering::Acquire) {
            return Ok(());
        }
        let known = self.read();
        match ids.into_iter().find(|&id| known.is_closed(id)) {
            None => Ok(()),
            Some(id) => {
                drop(known);
                let name = self.name(id).unwrap_or_default().to_string();
                Err(InvalidInput::KeyspaceDropped { name }.into())
            }
        }
    }

    /// The id of a handle's keyspace, for a put; rejects dropped keyspaces too.
    pub(crate) fn id_to_put(&self, keyspace: &Keyspace) -> Result<u32> {
        let id = self.id_of(keyspace)?;
        self.check_take_more([id])?;
        Ok(id)
    }

    pub(crate) fn find(&self, name: &str) -> Option<(Keyspace, Record)> {
        let known = self.read();
        let (name, record) = known.by_name.get_key_value(name)?;
        Some((self.handle(record.id, Arc::clone(name)), *record))
    }

    /// The ids of the keyspaces that have this name or had it before they were dropped, in
    /// ascending order.
    pub(crate) fn ids_of(&self, name: &str) -> Vec<u32> {
        let known = self.read();
        let dropped = known.dropped.iter().filter(|(_, (of, _))| **of == *name).map(|(id, _)| *id);
        let mut ids: Vec<u32> =
            dropped.chain(known.by_name.get(name).map(|record| record.id)).collect();
        ids.sort_unstable();
        ids
    }

    /// Makes a handle of this opening.
    pub(crate) fn handle(&self, id: u32, name: Arc<str>) -> Keyspace {
        Keyspace { id, name, opening: self.opening }
    }

    /// The id of a handle's keyspace. Rejects a handle of another opening, because its id may
    /// denote another keyspace or none.
    pub(crate) fn id_of(&self, keyspace: &Keyspace) -> Result<u32> {
        if keyspace.opening == self.opening {
            return Ok(keyspace.id);
        }
        Err(InvalidInput::ForeignKeyspace { name: keyspace.name.to_string() }.into())
    }

    /// The record of an existing or dropped keyspace.
    pub(crate) fn record(&self, id: u32) -> Option<Record> {
        let known = self.read();
        let live = known.by_name.values().find(|record| record.id == id).copied();
        live.or_else(|| known.dropped.get(&id).map(|&(_, record)| record))
    }

    /// The name of an existing or dropped keyspace.
    pub(crate) fn name(&self, id: u32) -> Option<Arc<str>> {
        let known = self.read();
        let live = known
            .by_name
            .iter()
            .find(|(_, record)| record.id == id)
            .map(|(name, _)| Arc::clone(name));
        live.or_else(|| known.dropped.get(&id).map(|(name, _)| Arc::clone(name)))
    }

    /// The names of all keyspaces by id, dropped ones included.
    pub(crate) fn names(&self) -> BTreeMap<u32, Arc<str>> {
        let known = self.read();
        let dropped = known.dropped.iter().map(|(&id, (name, _))| (id, Arc::clone(name)));
        dropped
            .chain(known.by_name.iter().map(|(name, record)| (record.id, Arc::clone(name))))
            .collect()
    }

    /// All existing keyspaces.
    pub(crate) fn all(&self) -> Vec<(Arc<str>, Record)> {
        self.read().by_name.iter().map(|(name, record)| (Arc::clone(name), *record)).collect()
    }

    /// The records of all keyspaces, dropped ones included.
    pub(crate) fn records(&self) -> Vec<Record> {
        let known = self.read();
        let dropped = known.dropped.values().map(|&(_, record)| record);
        known.by_name.values().copied().chain(dropped).collect()
    }
}

/// Rejects invalid names.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        return Err(InvalidInput::Name {
            name: name.to_owned(),
            limit_bytes: MAX_NAME_BYTES as u64,
        }
        .into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_record_decodes_to_itself() {
        let retentions = [
            Retention::Forever,
            Retention::Latest,
            Retention::Glsns(1 << 40),
            Retention::Time(Duration::from_secs(86_400)),
        ];
        for (id, retention) in (7..).zip(retentions) {
            for compression in [Compression::None, Compression::Lz4] {
                let record = Record::new(id, retention, compression);
                assert_eq!(Record::decode(&record.encode()), Ok(record));
                let expiring = record.with_ttl(Some(Duration::from_secs(300)));
                assert_eq!(Record::decode(&expiring.encode()), Ok(expiring));
            }
        }
        let (id, retention) = (DEFAULT.1, Retention::Time(Duration::from_secs(1)));
        let unset = Record::of_options(id, Retention::Forever, Compression::None);
        let all = [
            unset,
            unset.with_retention(retention),
            unset.with_compression(Compression::None),
            unset.with_compression(Compression::Lz4),
            unset.with_retention(retention).with_compression(Compression::None),
        ];
        for record in all {
            assert_eq!(Record::decode(&record.encode()), Ok(record));
            let options = Record::of_options(id, Retention::Latest, Compression::Lz4);
            let both = Record::decode(&record.encode()).unwrap().or(options);
            let kept = if record.sets_retention { record.retention } else { Retention::Latest };
            assert_eq!(both.retention, kept);
            let used = if record.sets_compression { record.compression } else { Compression::Lz4 };
            assert_eq!(both.compression, used);
        }
        assert!(Record::decode(&[1, 2, 3]).is_err());
        let newer = [&Record::new(7, Retention::Latest, Compression::None).encode()[..], &[99]];
        assert!(matches!(Record::decode(&newer.concat()), Err(Error::Format { .. })));
    }

    #[test]
    fn a_keyspace_that_had_zstd_needs_a_build_with_zstd() {
        let zstd = Record::new(7, Retention::Latest, Compression::Zstd(9));
        for record in [zstd, zstd.with_compression(Compression::None)] {
            match Record::decode(&record.encode()) {
                Ok(decoded) => assert!(HAS_ZSTD && decoded == record),
                Err(Error::Format { message, .. }) => {
                    assert!(!HAS_ZSTD && message.contains("feature `zstd`"), "{message}");
                }
                Err(other) => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_keyspace_whose_drop_panicked_accepts_puts() {
        let keyspaces = Keyspaces::default();
        keyspaces.load("rows", Record::new(7, Retention::Latest, Compression::None));
        let dropped = catch_unwind(AssertUnwindSafe(|| {
            let _dropping = keyspaces.begin_drop(7);
            assert!(keyspaces.check_take_more([7]).is_err());
            panic!("while its keys are read");
        }));
        assert!(dropped.is_err());
        keyspaces.check_take_more([7]).unwrap();
    }

    #[test]
    fn invalid_names_are_refused() {
        assert!(check_name("").is_err());
        assert!(check_name("a\nb").is_err());
        assert!(check_name(&"x".repeat(256)).is_err());
        assert!(check_name("users").is_ok());
    }
}
