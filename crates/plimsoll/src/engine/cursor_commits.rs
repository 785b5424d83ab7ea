//! Creates, moves and drops the named cursors of the log, and loads them when a store is opened.
//!
//! Cursors are keys of an internal keyspace, so moving one is an ordinary commit: the name, and the GLSN to read next (u64, little-endian).
//! That keyspace keeps only the newest versions.

use std::sync::{Arc, PoisonError};

use plimsoll_log::glsn::Glsn;

use crate::engine::Engine;
use crate::index::view::Direction;
use crate::read::span::Span;
use crate::txn::transaction::Transaction;
use crate::types::error::{Error, Lift, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::{CURSORS, Keyspace, check_name};
use crate::types::version::Stored;

/// The most cursors of a store.
const MAX_CURSORS: usize = 1000;

fn keyspace(store: &Engine) -> Keyspace {
    store.reader.keyspaces.handle(CURSORS, "".into())
}

/// Opens the cursor with this name, created at `from` if it does not exist; returns the GLSN to read next.
pub(crate) fn open(store: &Arc<Engine>, name: &str, from: Glsn) -> Result<Glsn> {
    check_name(name)?;
    let _moving = store.catalog.cursors.lock_moving();
    if let Some(next) = store.catalog.cursors.find(name) {
        return Ok(next);
    }
    store.check_writable()?;
    let from = from.max(Glsn::FIRST);
    check_not_ahead(store, from)?;
    hold(store, name, from)?;
    let written = write(store, name, Some(from));
    if written.is_err() {
        store.catalog.cursors.places().remove(name);
    }
    written.map(|()| from)
}

/// From now on, nothing at or after `from` is trimmed.
fn hold(store: &Engine, name: &str, from: Glsn) -> Result<()> {
    // No trim is running: entries that exist now stay.
    let _no_trim = store.space.trim_lock.lock().unwrap_or_else(PoisonError::into_inner);
    let first = store.reader.log.bounds().first;
    if from < first {
        return Err(Error::Trimmed { asked: from, first });
    }
    let mut places = store.catalog.cursors.places();
    if places.len() >= MAX_CURSORS {
        return Err(InvalidInput::TooManyCursors { limit: MAX_CURSORS as u64 }.into());
    }
    places.insert(name.to_owned(), from);
    Ok(())
}

/// Moves a cursor forward: everything below `next` was processed.
pub(crate) fn advance(store: &Arc<Engine>, name: &str, next: Glsn) -> Result<()> {
    let _moving = store.catalog.cursors.lock_moving();
    let now = store.catalog.cursors.find(name).ok_or_else(|| not_there(name))?;
    if next < now {
        return Err(InvalidInput::CursorGoesBack { name: name.to_owned(), at: now, asked: next }.into());
    }
    check_not_ahead(store, next)?;
    if next > now {
        write(store, name, Some(next))?;
        store.catalog.cursors.places().insert(name.to_owned(), next);
    }
    Ok(())
}

/// Removes a cursor: it no longer holds back the trimming of the log.
pub(crate) fn drop_cursor(store: &Arc<Engine>, name: &str) -> Result<()> {
    let _moving = store.catalog.cursors.lock_moving();
    store.catalog.cursors.find(name).ok_or_else(|| not_there(name))?;
    write(store, name, None)?;
    store.catalog.cursors.places().remove(name);
    Ok(())
}

fn not_there(name: &str) -> Error {
    InvalidInput::NoCursor { name: name.to_owned() }.into()
}

fn check_not_ahead(store: &Engine, next: Glsn) -> Result<()> {
    let newest = store.visible();
    if next > newest.next() { Err(Error::Future { asked: next, newest }) } else { Ok(()) }
}

/// Commits a cursor's position and waits until it is durable, also if commits are buffered.
fn write(store: &Arc<Engine>, name: &str, next: Option<Glsn>) -> Result<()> {
    let mut tx = Transaction::new(&store.committer);
    match next {
        Some(next) => tx.put(&keyspace(store), name.as_bytes(), &next.0.to_le_bytes())?,
        None => tx.delete(&keyspace(store), name.as_bytes())?,
    }
    let glsn = Glsn(tx.commit()?.0);
    store.reader.log.wait_durable(glsn).lift()
}

/// Loads all cursors as of `at`.
pub(crate) fn load(store: &Engine, at: Glsn) -> Result<()> {
    let damaged = || Error::corrupt("the record of a cursor cannot be decoded; see `plimsoll verify`");
    let span = Span::new(CURSORS, &(..))?;
    let mut walk = store.reader.index.view().visible(span.lower(), span.upper(), at, Direction::Forward)?;
    let mut key = Vec::new();
    while let Some(version) = walk.next(&mut key)? {
        let Stored::Inline(record) = version.stored else { return Err(damaged()) };
        let next = u64::from_le_bytes(record.try_into().map_err(|_| damaged())?);
        let name = std::str::from_utf8(&version.key[4..]).map_err(|_| damaged())?;
        store.catalog.cursors.places().insert(name.to_owned(), Glsn(next));
    }
    Ok(())
}
