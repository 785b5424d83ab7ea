//! Makes and changes keyspaces, by commits like others.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use plimsoll_log::glsn::Glsn;

use crate::error::{Error, Result};
use crate::index::view::Direction;
use crate::keyspaces::{DEFAULT, Keyspace, MAX_KEYSPACES, Record, SYSTEM, check_name};
use crate::options::Retention;
use crate::range::Span;
use crate::store::Store;
use crate::transaction::Transaction;
use crate::version::Stored;

/// Ids below are the store's own.
const FIRST_ID: u32 = 16;

/// Stands beside the keyspaces' names once the user has appended to a stream of his own; no keyspace can have this name.
const STREAMS_MARK: &str = "\u{1}streams";

fn system() -> Keyspace {
    Keyspace { id: SYSTEM, name: "".into() }
}

/// The keyspace with this name, made if it is not there.
pub(crate) fn open(store: &Arc<Store>, name: &str) -> Result<Keyspace> {
    check_name(name)?;
    match store.keyspaces.find(name) {
        Some((keyspace, _)) => Ok(keyspace),
        None if store.options.read_only => {
            Err(Error::invalid(format!("there is no keyspace {name:?}, and the store is open to read only")))
        }
        None => create(store, name, store.options.retention),
    }
}

/// The keyspace with this name and retention, made or changed where needed.
pub(crate) fn create(store: &Arc<Store>, name: &str, retention: Retention) -> Result<Keyspace> {
    check_name(name)?;
    let _making = store.keyspaces.making.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    loop {
        match try_create(store, name, retention) {
            Err(Error::Conflict { .. }) => {}
            done => return done,
        }
    }
}

fn try_create(store: &Arc<Store>, name: &str, retention: Retention) -> Result<Keyspace> {
    // Where there is nothing to change no commit says so: what was submitted must be visible before that is decided.
    let applied = Glsn(store.applied.load(Ordering::Acquire));
    if applied > store.visible() {
        store.log.wait_durable(applied)?;
    }
    let mut tx = Transaction::new(store);
    // Read through the transaction, so that two who make keyspaces at once are told apart.
    let (mut next_id, mut count, mut known) = (FIRST_ID, 0, None);
    let mut all = tx.range(&system(), ..)?;
    while let Some((key, value)) = all.advance()? {
        if key == STREAMS_MARK.as_bytes() {
            continue;
        }
        let record = Record::decode(value)?;
        next_id = next_id.max(record.id.saturating_add(1));
        count += 1;
        if key == name.as_bytes() {
            known = Some(record);
        }
    }
    drop(all);
    let known = known.or_else(|| store.keyspaces.find(name).map(|(_, record)| record));
    let record = match known {
        Some(record) => Record { retention, ..record },
        None if count >= MAX_KEYSPACES => {
            return Err(Error::invalid(format!("a store has at most {MAX_KEYSPACES} keyspaces")));
        }
        None => Record::new(next_id, retention),
    };
    if known != Some(record) {
        tx.put(&system(), name.as_bytes(), &record.encode())?;
        tx.commit()?;
        store.keyspaces.learn(name, record);
    }
    Ok(Keyspace { id: record.id, name: name.into() })
}

/// Remembers, once, that the log carries streams of the user's own: it is then never trimmed unasked.
pub(crate) fn note_streams(store: &Arc<Store>) -> Result<()> {
    if !store.streams_known.load(Ordering::Acquire) {
        let mut tx = Transaction::new(store);
        tx.put(&system(), STREAMS_MARK.as_bytes(), b"")?;
        tx.commit()?;
        store.streams_known.store(true, Ordering::Release);
    }
    Ok(())
}

/// Reads all keyspaces as of `at`.
pub(crate) fn load(store: &Store, at: Glsn) -> Result<()> {
    let (name, id) = DEFAULT;
    store.keyspaces.learn(name, Record::new(id, store.options.retention));
    let span = Span::new(SYSTEM, &(..))?;
    let mut walk = store.index.view().visible(span.lower(), span.upper(), at, Direction::Forward)?;
    while let Some(version) = walk.next()? {
        if &version.key[4..] == STREAMS_MARK.as_bytes() {
            store.streams_known.store(true, Ordering::Release);
            continue;
        }
        let Stored::Inline(record) = version.stored else {
            return Err(Error::corrupt("the record of a keyspace is not where it belongs; see `plimsoll verify`"));
        };
        let name = std::str::from_utf8(&version.key[4..])
            .map_err(|_| Error::corrupt("the name of a keyspace is not text; see `plimsoll verify`"))?;
        store.keyspaces.learn(name, Record::decode(record)?);
    }
    Ok(())
}
