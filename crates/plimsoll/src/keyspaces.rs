//! Named keyspaces, and how long each keeps past versions.
//!
//! They are themselves keys: in the system keyspace 0 a keyspace's name has its record, so that making one is a commit like others.
//!
//! ```text
//! u32     id (little-endian)
//! u8      retention: 0 for ever, 1 latest, 2 GLSNs, 3 time
//! varint  GLSNs, or microseconds (0 otherwise)
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use plimsoll_disk::codec::{Reader, push_varint};

use crate::error::{Error, Result};
use crate::options::Retention;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyspaceInfo {
    /// Its name.
    pub name: String,
    /// Which past versions it keeps.
    pub retention: Retention,
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

/// The keyspaces of an open store, by name.
#[derive(Debug, Default)]
pub(crate) struct Keyspaces {
    opening: Opening,
    by_name: RwLock<BTreeMap<Arc<str>, Record>>,
    /// Held while a keyspace is made or changed: what is learnt last is what was committed last.
    pub(crate) making: Mutex<()>,
}

impl Keyspaces {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<Arc<str>, Record>> {
        self.by_name.read().expect("no code under this lock panics")
    }

    /// Learns a keyspace, or its new retention.
    pub(crate) fn learn(&self, name: &str, record: Record) {
        self.by_name.write().expect("no code under this lock panics").insert(name.into(), record);
    }

    pub(crate) fn find(&self, name: &str) -> Option<(Keyspace, Record)> {
        let by_name = self.read();
        let (name, record) = by_name.get_key_value(name)?;
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
        Err(Error::invalid(format!(
            "the handle of keyspace {:?} belongs to another store, or to an earlier opening of this one; get it from the Db that is used here, \
             by Db::keyspace",
            keyspace.name
        )))
    }

    pub(crate) fn record(&self, id: u32) -> Option<Record> {
        self.read().values().find(|record| record.id == id).copied()
    }

    pub(crate) fn name(&self, id: u32) -> Option<Arc<str>> {
        self.read().iter().find(|(_, record)| record.id == id).map(|(name, _)| Arc::clone(name))
    }

    pub(crate) fn all(&self) -> Vec<(Arc<str>, Record)> {
        self.read().iter().map(|(name, record)| (Arc::clone(name), *record)).collect()
    }
}

/// Refuses names that cannot be.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        return Err(Error::invalid(format!(
            "a keyspace's name has 1 to {MAX_NAME_BYTES} bytes and no control characters, unlike {name:?}"
        )));
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
