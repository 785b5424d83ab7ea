//! Creates, changes and drops keyspaces, by ordinary commits.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use plimsoll_log::glsn::Glsn;

use crate::engine::Engine;
use crate::read::system_records::STREAMS_MARK;
use crate::txn::transaction::Transaction;
use crate::types::as_of::AsOf;
use crate::types::compression::{Codec, Compression};
use crate::types::error::{Error, Result};
use crate::types::events;
use crate::types::expiry::Expiry;
use crate::types::index_key::{IndexKey, KeyBuffer};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::{
    DEFAULT, DropReport, FIRST_ID, Keyspace, MAX_KEYSPACES, Record, SYSTEM, check_name,
    dropped_key, dropped_name,
};
use crate::types::retention::Retention;

/// A handle of the keyspace that holds the records of all keyspaces.
pub(crate) fn system(store: &Engine) -> Keyspace {
    store.reader.keyspaces.handle(SYSTEM, "".into())
}

/// The keyspace with this name, created if it does not exist.
pub(crate) fn open(store: &Arc<Engine>, name: &str) -> Result<Keyspace> {
    check_name(name)?;
    // Another process may have created or dropped the keyspace.
    let taken_in = store.committer.fresh();
    // A stale handle returns an error where it is used.
    if let Some((keyspace, _)) = store.reader.keyspaces.find(name) {
        return Ok(keyspace);
    }
    taken_in?;
    if store.options.read_only {
        store.check_open()?;
        return Err(InvalidInput::NoKeyspace { name: name.to_owned() }.into());
    }
    settle(store, name, Target::Exists)
}

/// The keyspace that has this name, or the last one that had it before it was dropped; creates
/// none.
pub(crate) fn find(store: &Engine, name: &str) -> Result<Option<Keyspace>> {
    check_name(name)?;
    store.check_open()?;
    store.committer.fresh()?;
    let keyspaces = &store.reader.keyspaces;
    let last = || keyspaces.ids_of(name).last().map(|id| keyspaces.handle(*id, name.into()));
    Ok(keyspaces.find(name).map(|(keyspace, _)| keyspace).or_else(last))
}

/// The keyspace with this name and retention, created if it does not exist.
pub(crate) fn create(store: &Arc<Engine>, name: &str, retention: Retention) -> Result<Keyspace> {
    check_name(name)?;
    settle(store, name, Target::Keeps(retention.as_recorded()))
}

/// Changes which past versions a keyspace keeps.
pub(crate) fn set_retention(
    store: &Arc<Engine>,
    keyspace: &Keyspace,
    retention: Retention,
) -> Result<()> {
    let id = store.reader.keyspaces.id_to_put(keyspace)?;
    store.check_writable()?;
    let change = Change::Retention(retention.as_recorded());
    settle(store, keyspace.name(), Target::Becomes(id, change)).map(|_| ())
}

/// Changes the compression of values that are put into a keyspace from then on.
pub(crate) fn set_compression(
    store: &Arc<Engine>,
    keyspace: &Keyspace,
    compression: Compression,
) -> Result<()> {
    compression.check()?;
    let id = store.reader.keyspaces.id_to_put(keyspace)?;
    store.check_writable()?;
    let change = Change::Compression(compression);
    settle(store, keyspace.name(), Target::Becomes(id, change))?;
    events::compression_changed(keyspace.name(), compression);
    Ok(())
}

/// Changes the time to live of values of a keyspace that are put from then on.
pub(crate) fn set_ttl(
    store: &Arc<Engine>,
    keyspace: &Keyspace,
    ttl: Option<Duration>,
) -> Result<()> {
    ttl.map_or(Ok(()), |ttl| Expiry::after(store.reader.log.now_micros(), ttl).map(drop))?;
    let id = store.reader.keyspaces.id_to_put(keyspace)?;
    store.check_writable()?;
    // Round the time to live as the record does.
    let ttl = ttl.map(|ttl| Duration::from_micros(ttl.as_micros() as u64));
    settle(store, keyspace.name(), Target::Becomes(id, Change::Ttl(ttl))).map(|_| ())
}

/// The requested state of a keyspace.
#[derive(Clone, Copy)]
enum Target {
    /// The keyspace exists; if it has to be created, it gets the settings of the options.
    Exists,
    /// The keyspace exists with this retention.
    Keeps(Retention),
    /// The keyspace with this id is changed.
    Becomes(u32, Change),
    /// The record of the keyspace says that values may be compressed with zstd.
    HasZstd,
}

/// A change of a keyspace's settings.
#[derive(Clone, Copy)]
enum Change {
    Retention(Retention),
    Compression(Compression),
    Ttl(Option<Duration>),
}

impl Change {
    fn of(self, record: Record) -> Record {
        match self {
            Self::Retention(retention) => record.with_retention(retention),
            Self::Compression(compression) => record.with_compression(compression),
            Self::Ttl(ttl) => record.with_ttl(ttl),
        }
    }
}

fn settle(store: &Arc<Engine>, name: &str, target: Target) -> Result<Keyspace> {
    let _making =
        store.reader.keyspaces.making.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    loop {
        match try_settle(store, name, target) {
            Err(Error::Conflict { .. }) => {}
            done => return done,
        }
    }
}

/// The first id above those of all keys, because damage may have destroyed the record of a keyspace
/// that has keys.
fn unused_id(store: &Engine) -> u32 {
    let view = store.reader.index.sources.view();
    let in_runs = view.infos().map(|info| &*info.last_key);
    let newest = in_runs
        .chain(view.memtables().filter_map(|memtable| memtable.last_key()))
        .map(|key| IndexKey::new(key).keyspace())
        .max();
    newest.map_or(FIRST_ID, |id| id.saturating_add(1).max(FIRST_ID))
}

fn try_settle(store: &Arc<Engine>, name: &str, target: Target) -> Result<Keyspace> {
    // If nothing has to change, this call makes no commit that could conflict, so all submitted
    // commits must be visible before that is decided.
    store.committer.sequencer.wait_visible()?;
    let mut tx = Transaction::new(&store.committer);
    // Read through the transaction, so that two concurrent creations conflict.
    let (mut next_id, mut count, mut recorded) = (unused_id(store), 0, None);
    let mut all = tx.range(&system(store), ..)?;
    while let Some((key, value)) = all.advance()? {
        if key == STREAMS_MARK.as_bytes() {
            continue;
        }
        let record = Record::decode(value)?;
        next_id = next_id.max(record.id.saturating_add(1));
        if dropped_name(key).is_some() {
            continue;
        }
        count += 1;
        if key == name.as_bytes() {
            recorded = Some(record);
        }
    }
    drop(all);
    // The default keyspace has no record until a setting of it is changed, and its record has only
    // the settings that were changed.
    let known = if name == DEFAULT.0 {
        let options = of_options(store);
        Some(recorded.map_or(options, |record: Record| record.or(options)))
    } else {
        recorded
    };
    let is_recorded = |record: &Record| recorded.map(|it| it.encode()) == Some(record.encode());
    let record = match (known, target) {
        (known, Target::Becomes(id, _)) if known.is_none_or(|record| record.id != id) => {
            return Err(dropped(name));
        }
        (Some(record), Target::Becomes(_, change)) if !is_recorded(&change.of(record)) => {
            change.of(record)
        }
        (Some(record), Target::HasZstd)
            if record.compression.codec() == Some(Codec::Zstd)
                && !recorded.is_some_and(|record| record.has_zstd) =>
        {
            record.with_zstd()
        }
        (Some(record), Target::Keeps(retention)) if record.retention != retention => {
            let (name, keeps) = (name.to_owned(), record.retention);
            return Err(InvalidInput::OtherRetention { name, keeps, asked: retention }.into());
        }
        (Some(record), _) => return Ok(store.reader.keyspaces.handle(record.id, name.into())),
        (None, _) if count >= MAX_KEYSPACES => {
            return Err(InvalidInput::TooManyKeyspaces { limit: MAX_KEYSPACES as u64 }.into());
        }
        (None, Target::Keeps(retention)) => {
            Record::new(next_id, retention, store.options.compression)
        }
        (None, Target::Exists | Target::Becomes(..) | Target::HasZstd) => {
            let options = &store.options;
            Record::new(next_id, options.retention.as_recorded(), options.compression)
        }
    };
    tx.put(&system(store), name.as_bytes(), &record.encode())?;
    tx.commit()?;
    if !store.space.peers.reread_keyspaces()? {
        store.reader.keyspaces.load(name, record);
    }
    // Compaction may now drop versions that the keyspace has kept so far.
    store.reader.index.env.signals.call_compaction();
    Ok(store.reader.keyspaces.handle(record.id, name.into()))
}

/// The error if another member has dropped the keyspace. A keyspace of the same name may have been
/// created since.
fn dropped(name: &str) -> Error {
    InvalidInput::KeyspaceDropped { name: name.to_owned() }.into()
}

/// Keys to delete are collected up to this many bytes at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Deletes all keys of a keyspace and its record, in one commit. The keyspace's past versions are
/// kept according to its retention.
pub(crate) fn drop_keyspace(store: &Arc<Engine>, keyspace: &Keyspace) -> Result<DropReport> {
    drop_with(store, keyspace, |record| record)
}

/// As [`drop_keyspace`], but its past versions are not kept.
pub(crate) fn forget_keyspace(store: &Arc<Engine>, keyspace: &Keyspace) -> Result<DropReport> {
    drop_with(store, keyspace, |record| record.with_retention(Retention::Latest))
}

/// Drops a keyspace; `keep` makes the record that remains of it.
fn drop_with(
    store: &Arc<Engine>,
    keyspace: &Keyspace,
    keep: fn(Record) -> Record,
) -> Result<DropReport> {
    let id = store.reader.keyspaces.id_to_put(keyspace)?;
    store.check_writable()?;
    if id == DEFAULT.1 {
        return Err(InvalidInput::DropOfDefaultKeyspace.into());
    }
    let _making =
        store.reader.keyspaces.making.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // Another call may have dropped the keyspace while this call waited for the lock.
    store.reader.keyspaces.id_to_put(keyspace)?;
    let _dropping = store.reader.keyspaces.begin_drop(id);
    loop {
        match try_drop(store, keyspace, id, keep) {
            // Try again: a commit wrote to the keyspace before it saw the drop.
            Err(Error::Conflict { .. }) => {}
            done => return done,
        }
    }
}

fn try_drop(
    store: &Arc<Engine>,
    keyspace: &Keyspace,
    id: u32,
    keep: fn(Record) -> Record,
) -> Result<DropReport> {
    let name = keyspace.name();
    let mut tx = Transaction::new(&store.committer);
    // Read through the transaction, so that a drop by another member is a conflict.
    let record = tx
        .get(&system(store), name.as_bytes())?
        .map(|record| Record::decode(&record))
        .transpose()?;
    let Some(record) = record.filter(|record| record.id == id) else { return Err(dropped(name)) };
    let mut keys = 0;
    let mut from = Bound::Unbounded;
    loop {
        let (mut piece, mut bytes) = (Vec::new(), 0);
        // Read through the transaction, so that a concurrent insert is a conflict. Expired values
        // are deleted, too, and a value that expires before the commit does not conflict.
        let mut range = tx
            .range(keyspace, (from.as_ref().map(Vec::as_slice), Bound::Unbounded))?
            .unexpiring()
            .keys_only();
        while bytes < PIECE_BYTES
            && let Some((key, _)) = range.advance()?
        {
            bytes += key.len() + size_of::<Vec<u8>>();
            piece.push(key.to_vec());
        }
        drop(range);
        let Some(last) = piece.last().cloned() else { break };
        for key in &piece {
            tx.delete(keyspace, key)?;
        }
        keys += piece.len() as u64;
        from = Bound::Excluded(last);
    }
    tx.delete(&system(store), name.as_bytes())?;
    let record = keep(record);
    tx.put(&system(store), &dropped_key(record.id, name), &record.encode())?;
    let glsn = tx.commit()?;
    store.reader.keyspaces.load_dropped(name, record);
    Ok(DropReport { glsn, keys })
}

/// The keyspace with this name at a moment.
pub(crate) fn at(store: &Engine, name: &str, at: Glsn) -> Result<Option<Keyspace>> {
    check_name(name)?;
    let key = KeyBuffer::new(SYSTEM, name.as_bytes())?;
    let record = store.reader.get(key.get(), AsOf::unexpiring(at))?;
    let id = match record {
        Some(record) => Record::decode(&record)?.id,
        // The default keyspace has no record until a setting of it is changed.
        None if name == DEFAULT.0 => DEFAULT.1,
        None => return Ok(None),
    };
    Ok(Some(store.reader.keyspaces.handle(id, name.into())))
}

/// Records, once, that the log contains streams of the user, after which it is never trimmed
/// automatically.
pub(crate) fn note_streams(store: &Arc<Engine>) -> Result<()> {
    if !store.catalog.records.streams_known.load(Ordering::Acquire) {
        let mut tx = Transaction::new(&store.committer);
        tx.put(&system(store), STREAMS_MARK.as_bytes(), b"")?;
        tx.commit()?;
        store.catalog.records.streams_known.store(true, Ordering::Release);
    }
    Ok(())
}

/// The settings that the default keyspace has where none is recorded.
pub(crate) fn of_options(store: &Engine) -> Record {
    let options = &store.options;
    Record::of_options(DEFAULT.1, options.retention.as_recorded(), options.compression)
}

/// Records that values of the default keyspace may be compressed with zstd, if the options say so
/// and its record does not: a build without zstd must refuse the store.
pub(crate) fn record_zstd(store: &Arc<Engine>) -> Result<()> {
    if store.options.compression.codec() != Some(Codec::Zstd) || store.options.read_only {
        return Ok(());
    }
    settle(store, DEFAULT.0, Target::HasZstd).map(|_| ())
}
