//! Named cursors: how far followers of the log have come. The log is not trimmed past the oldest of them.
//!
//! Law: in memory a cursor is never ahead of what is durable. So no crash leaves one that names an entry that was trimmed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_log::glsn::Glsn;

/// A named place in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CursorInfo {
    /// Its name.
    pub name: String,
    /// The GLSN to read next: everything below was dealt with.
    pub next: Glsn,
}

/// The cursors of an open store.
#[derive(Debug, Default)]
pub(crate) struct Cursors {
    /// What each holds back.
    places: Mutex<BTreeMap<String, Glsn>>,
    /// Held while a cursor is made, moved or dropped.
    moving: Mutex<()>,
}

impl Cursors {
    pub(crate) fn places(&self) -> MutexGuard<'_, BTreeMap<String, Glsn>> {
        // No code under this lock leaves it half changed.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The oldest place that a cursor names; [`Glsn::MAX`] if there is none.
    pub(crate) fn oldest(&self) -> Glsn {
        self.places().values().min().copied().unwrap_or(Glsn::MAX)
    }

    /// All of them, by name.
    pub(crate) fn all(&self) -> Vec<CursorInfo> {
        self.places().iter().map(|(name, next)| CursorInfo { name: name.clone(), next: *next }).collect()
    }

    pub(crate) fn find(&self, name: &str) -> Option<Glsn> {
        self.places().get(name).copied()
    }

    /// Taken while a cursor is made, moved or dropped.
    pub(crate) fn lock_moving(&self) -> MutexGuard<'_, ()> {
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
