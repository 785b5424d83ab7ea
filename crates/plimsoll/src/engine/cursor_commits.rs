//! Creates, moves and drops the named cursors of the log.
//!
//! A cursor is a row of an internal keyspace, so moving it is an ordinary commit. The key is the
//! cursor's name, the value is the GLSN to read next (u64, little-endian). The keyspace keeps only
//! the newest versions.
//!
//! Other members of the store move cursors as well, so each change reads the cursor that it
//! changes, and is retried if another change came first.

use std::sync::{Arc, PoisonError};

use plimsoll_log::glsn::Glsn;

use crate::borders::{Border, hit};
use crate::engine::Engine;
use crate::txn::transaction::Transaction;
use crate::types::cursors::decode_cursor;
use crate::types::error::{Error, Lift, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::{CURSORS, Keyspace, check_name};

/// The most cursors of a store.
const MAX_CURSORS: usize = 1000;

fn keyspace(store: &Engine) -> Keyspace {
    store.reader.keyspaces.handle(CURSORS, "".into())
}

/// Opens the cursor with this name, created at `from` if it does not exist; returns the GLSN to
/// read next.
pub(crate) fn open(store: &Arc<Engine>, name: &str, from: Glsn) -> Result<Glsn> {
    check_name(name)?;
    let _moving = store.catalog.records.cursors.lock_moving();
    store.committer.fresh()?;
    if let Some(next) = store.catalog.records.cursors.find(name) {
        return Ok(next);
    }
    store.check_writable()?;
    let from = from.max(Glsn::FIRST);
    check_not_ahead(store, from)?;
    // Other members do not trim either until they can know of the cursor.
    let _held = store.hold_files()?;
    hold(store, from)?;
    hit(Border::CursorHeld);
    let written = change(store, name, |now| Ok(Some(now.unwrap_or(from))));
    store.catalog.records.cursors.places().set_pending(None);
    Ok(written?.unwrap_or(from))
}

/// Retains everything at or after `from` from now on.
fn hold(store: &Engine, from: Glsn) -> Result<()> {
    // No trim runs while this is held, so entries that exist now stay.
    let _no_trim = store.space.trim_lock.lock().unwrap_or_else(PoisonError::into_inner);
    let first = store.reader.log.bounds().first;
    if from < first {
        return Err(Error::trimmed(from, first));
    }
    let mut places = store.catalog.records.cursors.places();
    if places.len() >= MAX_CURSORS {
        return Err(InvalidInput::TooManyCursors { limit: MAX_CURSORS as u64 }.into());
    }
    places.set_pending(Some(from));
    Ok(())
}

/// Moves a cursor forward: everything below `next` was processed.
pub(crate) fn advance(store: &Arc<Engine>, name: &str, next: Glsn) -> Result<()> {
    let _moving = store.catalog.records.cursors.lock_moving();
    store.committer.fresh()?;
    let now = store.catalog.records.cursors.find(name).ok_or_else(|| not_there(name))?;
    if next == now {
        return Ok(());
    }
    let forward = |now: Glsn| match next < now {
        true => {
            Err(InvalidInput::CursorGoesBack { name: name.to_owned(), at: now, asked: next }.into())
        }
        false => Ok(Some(next)),
    };
    forward(now)?;
    check_not_ahead(store, next)?;
    change(store, name, |now| forward(now.ok_or_else(|| not_there(name))?)).map(drop)
}

/// Removes a cursor, which no longer prevents trimming of the log.
pub(crate) fn drop_cursor(store: &Arc<Engine>, name: &str) -> Result<()> {
    let _moving = store.catalog.records.cursors.lock_moving();
    store.committer.fresh()?;
    store.catalog.records.cursors.find(name).ok_or_else(|| not_there(name))?;
    change(store, name, |_| Ok(None)).map(drop)
}

fn not_there(name: &str) -> Error {
    InvalidInput::NoCursor { name: name.to_owned() }.into()
}

fn check_not_ahead(store: &Engine, next: Glsn) -> Result<()> {
    let newest = store.newest()?;
    if next > newest.next() { Err(Error::Future { asked: next, newest }) } else { Ok(()) }
}

/// Commits the position that `to` computes from a cursor's present one (`None` if there is no such
/// cursor), waits until it is durable, even if commits are buffered, and returns it.
fn change(
    store: &Arc<Engine>,
    name: &str,
    to: impl Fn(Option<Glsn>) -> Result<Option<Glsn>>,
) -> Result<Option<Glsn>> {
    loop {
        // Cursor changes that another member has ordered are known here, whether durable or not.
        let mut tx = Transaction::ordered(&store.committer);
        let now = tx
            .get(&keyspace(store), name.as_bytes())?
            .map(|record| decode_cursor(&record))
            .transpose()?;
        let next = to(now)?;
        match next {
            Some(next) => tx.put(&keyspace(store), name.as_bytes(), &next.0.to_le_bytes())?,
            None => tx.delete(&keyspace(store), name.as_bytes())?,
        }
        let glsn = match tx.commit() {
            Err(Error::Conflict { .. }) => continue,
            committed => Glsn(committed?.0),
        };
        store.reader.log.wait_durable(glsn).lift()?;
        store.catalog.records.cursors.places().moved(name, next, glsn);
        return Ok(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::open;
    use crate::types::options::Options;

    #[test]
    fn a_cursor_that_another_member_has_ordered_is_moved_before_it_is_durable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let join = || {
            open::open(&path, Options::new().memory_bytes(16 << 20).background(false).shared(true))
                .unwrap()
        };
        let (one, other) = (join(), join());
        // An entry to read.
        let mut tx = Transaction::new(&one.committer);
        tx.put(&one.reader.keyspaces.find("default").unwrap().0, b"row", b"value").unwrap();
        tx.commit().unwrap();
        // As `change`, by a process that is stopped before it has synced.
        let mut tx = Transaction::new(&one.committer);
        tx.put(&keyspace(&one), b"mine", &1u64.to_le_bytes()).unwrap();
        let ordered = tx.commit_submit().unwrap();
        drop(Transaction::ordered(&other.committer));
        assert_eq!(other.catalog.records.cursors.find("mine"), Some(Glsn(1)), "it is known");
        assert!(!ordered.is_durable());
        advance(&other, "mine", Glsn(2)).unwrap();
        assert_eq!(open(&other, "mine", Glsn(1)).unwrap(), Glsn(2));
        assert!(
            other.newest().unwrap() > ordered.glsn(),
            "the earlier move was made durable with this one"
        );
    }
}
