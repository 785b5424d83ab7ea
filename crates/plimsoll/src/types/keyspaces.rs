//! Named keyspaces, and how long each keeps past versions.
//!
//! They are themselves keys: in the system keyspace 0 a keyspace's name has its record, so that making one is a commit like others.
//!
//! ```text
//! u32     id (little-endian)
//! u8      retention: 0 for ever, 1 latest, 2 GLSNs, 3 time
//! varint  GLSNs, or microseconds (0 otherwise)
//! ```
//!
//! A keyspace that was dropped has its record under another key, which no name can be: its id is never given out again, its retention goes on to say how
//! long its past is kept, and its name is still told with its commits.
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

use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::retention::Retention;

/// The keyspace that holds the records of the others.
pub(crate) const SYSTEM: u32 = 0;

/// The keyspace that always works.
pub(crate) const DEFAULT: (&str, u32) = ("default", 1);

/// The keyspace that holds the cursors of the log (`cursors`).
pub(crate) const CURSORS: u32 = 2;

/// The longest name in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 255;

/// The most keyspaces of a store.
pub(crate) const MAX_KEYSPACES: usize = 10_000;

/// One opening of a store; the clones of a `Db` share it. No two openings in a process have the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Opening(u64);

impl Default for Opening {
    fn default() -> Self {
        static OPENINGS: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only the number itself matters.
        Self(OPENINGS.fetch_add(1, Ordering::Relaxed))
    }
}

/// A named keyspace of a store: a handle, cheap to clone.
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
/// It belongs to the [`crate::Db`] that it was asked of, and to that one's clones. Every call of another store refuses it, and so does the same store
/// when it was closed and opened again: ask the new `Db` for its keyspace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Keyspace {
    id: u32,
    name: Arc<str>,
    opening: Opening,
}

impl Keyspace {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// What is known of a keyspace.
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
    /// Which past versions it keeps.
    pub retention: Retention,
}

/// What dropping a keyspace came to.
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
    /// The commit that dropped it: the moment before is the last at which it can be read.
    pub glsn: Glsn,
    /// Keys that were deleted with it.
    pub keys: u64,
}

/// A keyspace's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) id: u32,
    pub(crate) retention: Retention,
}

impl Record {
    pub(crate) fn new(id: u32, retention: Retention) -> Self {
        Self { id, retention }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let (tag, number) = match self.retention {
            Retention::Forever => (0, 0),
            Retention::Latest => (1, 0),
            Retention::Glsns(glsns) => (2, glsns),
            Retention::Time(age) => (3, u64::try_from(age.as_micros()).unwrap_or(u64::MAX)),
        };
        let mut out = self.id.to_le_bytes().to_vec();
        out.push(tag);
        push_varint(&mut out, number);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let damaged = || Error::corrupt("the record of a keyspace cannot be decoded; see `plimsoll verify`");
        let mut reader = Reader::new(bytes);
        let id = reader.u32().ok_or_else(damaged)?;
        let tag = reader.u8().ok_or_else(damaged)?;
        let number = reader.varint().ok_or_else(damaged)?;
        let retention = match tag {
            0 => Retention::Forever,
            1 => Retention::Latest,
            2 => Retention::Glsns(number),
            3 => Retention::Time(Duration::from_micros(number)),
            _ => return Err(damaged()),
        };
        Ok(Self { id, retention })
    }
}

/// What the system key of a dropped keyspace's record begins with.
const DROPPED: u8 = 2;

/// The system key of a dropped keyspace's record.
pub(crate) fn dropped_key(id: u32, name: &str) -> Vec<u8> {
    [&[DROPPED], &id.to_be_bytes()[..], name.as_bytes()].concat()
}

/// The name of a dropped keyspace, if this is the system key of one's record.
pub(crate) fn dropped_name(key: &[u8]) -> Option<&[u8]> {
    key.strip_prefix(&[DROPPED]).and_then(|rest| rest.get(4..))
}

/// The keyspaces of an open store.
#[derive(Debug, Default)]
pub(crate) struct Keyspaces {
    opening: Opening,
    known: RwLock<Known>,
    /// Whether a keyspace is, or is being, dropped: only then those who write look which.
    any_dropped: AtomicBool,
    /// Held while a keyspace is made or changed: what is learnt last is what was committed last.
    pub(crate) making: Mutex<()>,
}

/// What is known of keyspaces.
#[derive(Debug, Default)]
struct Known {
    by_name: BTreeMap<Arc<str>, Record>,
    /// By id: those that were dropped, with the names that they had.
    dropped: BTreeMap<u32, (Arc<str>, Retention)>,
    /// The one that is being dropped.
    dropping: Option<u32>,
}

impl Known {
    fn takes_no_more(&self, id: u32) -> bool {
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

    /// Learns a keyspace, or its new retention.
    pub(crate) fn learn(&self, name: &str, record: Record) {
        self.write().by_name.insert(name.into(), record);
    }

    /// From now on until [`Keyspaces::end_drop`] no commit puts anything into the keyspace.
    pub(crate) fn begin_drop(&self, id: u32) {
        self.write().dropping = Some(id);
        self.any_dropped.store(true, Ordering::Release);
    }

    /// What was being dropped is dropped, if `learn_dropped` said so, or there as it was.
    pub(crate) fn end_drop(&self) {
        self.write().dropping = None;
    }

    /// Learns that a keyspace was dropped.
    pub(crate) fn learn_dropped(&self, name: &str, record: Record) {
        let mut known = self.write();
        if known.by_name.get(name).is_some_and(|live| live.id == record.id) {
            known.by_name.remove(name);
        }
        known.dropped.insert(record.id, (name.into(), record.retention));
        self.any_dropped.store(true, Ordering::Release);
    }

    /// Refuses keyspaces that were dropped, or are being dropped. Checked under the commit lock too: a drop is announced before its keys are read.
    pub(crate) fn check_take_more(&self, ids: impl IntoIterator<Item = u32>) -> Result<()> {
        if !self.any_dropped.load(Ordering::Acquire) {
            return Ok(());
        }
        let known = self.read();
        match ids.into_iter().find(|&id| known.takes_no_more(id)) {
            None => Ok(()),
            Some(id) => {
                drop(known);
                let name = self.name(id).unwrap_or_default().to_string();
                Err(InvalidInput::KeyspaceDropped { name }.into())
            }
        }
    }

    /// The id of a handle's keyspace, to put something into it: refuses also what was dropped.
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

    /// A handle of this opening.
    pub(crate) fn handle(&self, id: u32, name: Arc<str>) -> Keyspace {
        Keyspace { id, name, opening: self.opening }
    }

    /// The id of a handle's keyspace; refuses a handle of another opening, whose ids mean other keyspaces or none.
    pub(crate) fn id_of(&self, keyspace: &Keyspace) -> Result<u32> {
        if keyspace.opening == self.opening {
            return Ok(keyspace.id);
        }
        Err(InvalidInput::ForeignKeyspace { name: keyspace.name.to_string() }.into())
    }

    /// Of a keyspace that is there, or was dropped.
    pub(crate) fn record(&self, id: u32) -> Option<Record> {
        let known = self.read();
        let live = known.by_name.values().find(|record| record.id == id).copied();
        live.or_else(|| known.dropped.get(&id).map(|&(_, retention)| Record { id, retention }))
    }

    /// Of a keyspace that is there, or was dropped.
    pub(crate) fn name(&self, id: u32) -> Option<Arc<str>> {
        let known = self.read();
        let live = known.by_name.iter().find(|(_, record)| record.id == id).map(|(name, _)| Arc::clone(name));
        live.or_else(|| known.dropped.get(&id).map(|(name, _)| Arc::clone(name)))
    }

    /// Those that are there.
    pub(crate) fn all(&self) -> Vec<(Arc<str>, Record)> {
        self.read().by_name.iter().map(|(name, record)| (Arc::clone(name), *record)).collect()
    }

    /// What is kept of each keyspace's past, also of those that were dropped.
    pub(crate) fn records(&self) -> Vec<Record> {
        let known = self.read();
        let dropped = known.dropped.iter().map(|(&id, &(_, retention))| Record { id, retention });
        known.by_name.values().copied().chain(dropped).collect()
    }
}

/// Refuses names that cannot be.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        return Err(InvalidInput::Name { name: name.to_owned(), limit_bytes: MAX_NAME_BYTES as u64 }.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        let retentions = [
            Retention::Forever,
            Retention::Latest,
            Retention::Glsns(1 << 40),
            Retention::Time(Duration::from_secs(86_400)),
        ];
        for (id, retention) in (7..).zip(retentions) {
            let record = Record::new(id, retention);
            assert_eq!(Record::decode(&record.encode()), Ok(record));
        }
        assert!(Record::decode(&[1, 2, 3]).is_err());
    }

    #[test]
    fn names_that_cannot_be_are_refused() {
        assert!(check_name("").is_err());
        assert!(check_name("a\nb").is_err());
        assert!(check_name(&"x".repeat(256)).is_err());
        assert!(check_name("users").is_ok());
    }
}
