//! Named cursors: the positions of readers that follow the log. The log is not trimmed past the
//! oldest cursor.
//!
//! Invariant: a cursor in memory is never ahead of its durable position, so after a crash no cursor
//! names an entry that was trimmed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_log::glsn::Glsn;

use crate::types::error::{Error, Result};

/// A named position in the log.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// let next = db.log().cursor("mailer", db.newest().next())?;
/// let cursors = db.log().cursors();
/// assert_eq!((&*cursors[0].name, cursors[0].next), ("mailer", next));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CursorInfo {
    /// Its name.
    pub name: String,
    /// The GLSN to read next: everything below was processed.
    pub next: Glsn,
}

/// The cursors of an open store.
#[derive(Debug, Default)]
pub(crate) struct Cursors {
    places: Mutex<Places>,
    /// Held while a cursor is created, moved or dropped.
    moving: Mutex<()>,
}

/// The positions of all cursors.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// The position from which each cursor retains the log.
    durable: BTreeMap<String, Glsn>,
    /// The last commit that is reflected in these positions.
    as_of: Glsn,
    /// The position of a cursor that is being created. The log is retained from there.
    pending: Option<Glsn>,
}

impl Places {
    pub(crate) fn len(&self) -> usize {
        self.durable.len()
    }

    /// Retains the log for a cursor that is being created; `None` releases it.
    pub(crate) fn set_pending(&mut self, pending: Option<Glsn>) {
        self.pending = pending;
    }

    /// Notes that a commit of this process has created or moved a cursor, or (`None`) dropped it.
    pub(crate) fn moved(&mut self, name: &str, next: Option<Glsn>, glsn: Glsn) {
        // The positions already reflect a later commit.
        if glsn <= self.as_of {
            return;
        }
        self.as_of = glsn;
        match next {
            Some(next) => self.durable.insert(name.to_owned(), next),
            None => self.durable.remove(name),
        };
    }

    /// Sets all cursors as of `at`.
    pub(crate) fn load(&mut self, all: BTreeMap<String, Glsn>, at: Glsn) {
        if at >= self.as_of {
            self.durable = all;
            self.as_of = at;
        }
    }
}

impl Cursors {
    pub(crate) fn places(&self) -> MutexGuard<'_, Places> {
        // No code under this lock panics with the map half changed.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The oldest position of a cursor; [`Glsn::MAX`] if there is none.
    pub(crate) fn oldest(&self) -> Glsn {
        let places = self.places();
        places.durable.values().copied().chain(places.pending).min().unwrap_or(Glsn::MAX)
    }

    /// All cursors, by name.
    pub(crate) fn all(&self) -> Vec<CursorInfo> {
        self.places()
            .durable
            .iter()
            .map(|(name, next)| CursorInfo { name: name.clone(), next: *next })
            .collect()
    }

    pub(crate) fn find(&self, name: &str) -> Option<Glsn> {
        self.places().durable.get(name).copied()
    }

    /// Locks the creation, moving and dropping of cursors.
    pub(crate) fn lock_moving(&self) -> MutexGuard<'_, ()> {
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The GLSN to read next, from the record of a cursor.
pub(crate) fn decode_cursor(record: &[u8]) -> Result<Glsn> {
    record.try_into().map(|next| Glsn(u64::from_le_bytes(next))).map_err(|_| damaged_cursor())
}

/// The error for a record of a cursor that cannot be decoded.
pub(crate) fn damaged_cursor() -> Error {
    Error::damaged("the record of a cursor cannot be decoded")
}
