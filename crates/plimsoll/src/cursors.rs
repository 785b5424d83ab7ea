//! Named cursors: how far followers of the log have come. The log is not trimmed past the oldest of them.
//!
//! They are keys of a keyspace of the store's own, so that moving one is a commit like others: the name, and the GLSN to read next (u64,
//! little-endian). Of that keyspace only the newest versions are kept.
//!
//! Law: in memory a cursor is never ahead of what is durable. So no crash leaves one that names an entry that was trimmed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_log::glsn::Glsn;

use crate::error::{Error, Result};
use crate::index::view::Direction;
use crate::keyspaces::{CURSORS, Keyspace, check_name};
use crate::range::Span;
use crate::store::Store;
use crate::transaction::Transaction;
use crate::version::Stored;

/// The most cursors of a store.
const MAX_CURSORS: usize = 1000;

/// A named place in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CursorInfo {
    /// Its name.
    pub name: String,
    /// The GLSN to read next: everything below was dealt with.
    pub next: u64,
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
    fn places(&self) -> MutexGuard<'_, BTreeMap<String, Glsn>> {
        // No code under this lock leaves it half changed.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The oldest place that a cursor names; [`Glsn::MAX`] if there is none.
    pub(crate) fn oldest(&self) -> Glsn {
        self.places().values().min().copied().unwrap_or(Glsn::MAX)
    }

    /// All of them, by name.
    pub(crate) fn all(&self) -> Vec<CursorInfo> {
        self.places().iter().map(|(name, next)| CursorInfo { name: name.clone(), next: next.0 }).collect()
    }

    fn find(&self, name: &str) -> Option<Glsn> {
        self.places().get(name).copied()
    }
}

fn keyspace(store: &Store) -> Keyspace {
    store.keyspaces.handle(CURSORS, "".into())
}

fn lock_moving(store: &Store) -> MutexGuard<'_, ()> {
    store.cursors.moving.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cursor with this name, made at `from` if it is not there; the GLSN to read next.
pub(crate) fn open(store: &Arc<Store>, name: &str, from: Glsn) -> Result<Glsn> {
    check_name(name)?;
    let _moving = lock_moving(store);
    if let Some(next) = store.cursors.find(name) {
        return Ok(next);
    }
    store.check_writable()?;
    let from = from.max(Glsn::FIRST);
    check_not_ahead(store, from)?;
    hold(store, name, from)?;
    let written = write(store, name, Some(from));
    if written.is_err() {
        store.cursors.places().remove(name);
    }
    written.map(|()| from)
}

/// From now on nothing from `from` on is trimmed.
fn hold(store: &Store, name: &str, from: Glsn) -> Result<()> {
    // Nothing is being trimmed: what is there now stays.
    let _no_trim = store.trim_turn.lock().unwrap_or_else(PoisonError::into_inner);
    let first = store.log.bounds().first;
    if from < first {
        return Err(Error::Trimmed { asked: from.0, first: first.0 });
    }
    let mut places = store.cursors.places();
    if places.len() >= MAX_CURSORS {
        return Err(Error::invalid(format!("a store has at most {MAX_CURSORS} cursors; drop one by Log::drop_cursor")));
    }
    places.insert(name.to_owned(), from);
    Ok(())
}

/// Moves a cursor on: everything below `next` was dealt with.
pub(crate) fn advance(store: &Arc<Store>, name: &str, next: Glsn) -> Result<()> {
    let _moving = lock_moving(store);
    let now = store.cursors.find(name).ok_or_else(|| not_there(name))?;
    if next < now {
        return Err(Error::invalid(format!(
            "cursor {name:?} is at GLSN {now} and does not go back to {next}: what lies below may be trimmed"
        )));
    }
    check_not_ahead(store, next)?;
    if next > now {
        write(store, name, Some(next))?;
        store.cursors.places().insert(name.to_owned(), next);
    }
    Ok(())
}

/// Removes a cursor: the log may be trimmed without regard to it.
pub(crate) fn drop_cursor(store: &Arc<Store>, name: &str) -> Result<()> {
    let _moving = lock_moving(store);
    store.cursors.find(name).ok_or_else(|| not_there(name))?;
    write(store, name, None)?;
    store.cursors.places().remove(name);
    Ok(())
}

fn not_there(name: &str) -> Error {
    Error::invalid(format!("there is no cursor {name:?}; make it by Log::cursor"))
}

fn check_not_ahead(store: &Store, next: Glsn) -> Result<()> {
    let newest = store.visible();
    if next > newest.next() { Err(Error::Future { asked: next.0, newest: newest.0 }) } else { Ok(()) }
}

/// Commits where a cursor is, and waits until that is durable, also where commits are buffered.
fn write(store: &Arc<Store>, name: &str, next: Option<Glsn>) -> Result<()> {
    let mut tx = Transaction::new(store);
    match next {
        Some(next) => tx.put(&keyspace(store), name.as_bytes(), &next.0.to_le_bytes())?,
        None => tx.delete(&keyspace(store), name.as_bytes())?,
    }
    let glsn = Glsn(tx.commit()?);
    Ok(store.log.wait_durable(glsn)?)
}

/// Reads all cursors as of `at`.
pub(crate) fn load(store: &Store, at: Glsn) -> Result<()> {
    let damaged = || Error::corrupt("the record of a cursor cannot be decoded; see `plimsoll verify`");
    let span = Span::new(CURSORS, &(..))?;
    let mut walk = store.index.view().visible(span.lower(), span.upper(), at, Direction::Forward)?;
    let mut key = Vec::new();
    while let Some(version) = walk.next(&mut key)? {
        let Stored::Inline(record) = version.stored else { return Err(damaged()) };
        let next = u64::from_le_bytes(record.try_into().map_err(|_| damaged())?);
        let name = std::str::from_utf8(&version.key[4..]).map_err(|_| damaged())?;
        store.cursors.places().insert(name.to_owned(), Glsn(next));
    }
    Ok(())
}
