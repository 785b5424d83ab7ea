//! Makes a store from a dump ([`super::dump`]).
//!
//! ```text
//! DEST.new-restore/  while the dump is read
//!   LOCK             held meanwhile
//!   RESTORE          which dump is read
//!   store/           the store as far as it is made
//! DEST               that store, in the end
//! ```
//!
//! Invariants:
//! 1. The destination has no store until the whole dump has been read and verified.
//! 2. With history, each entry keeps its GLSN and its time. An interrupted restore continues after
//!    the last durable entry; it needs the same dump, or a later one of the same store that begins
//!    with the same entry.
//! 3. Without history, an interrupted restore of the same dump continues after the last durable
//!    rows. With another dump, it starts again.

mod base;
mod place;

use std::io::{self, BufReader, Read};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use plimsoll_disk::clock::Clock;
use plimsoll_log::draft::MAX_BODY_BYTES;
use plimsoll_log::glsn::{Glsn, StreamId};

use crate::api::admin::dump::records::{Change, Content, Header, PIECE_BYTES, Record};
use crate::api::admin::dump::stream::DumpReader;
use crate::api::admin::restore::place::Place;
use crate::engine::open::open_by;
use crate::engine::{Engine, keyspace_commits};
use crate::index::manifest::Manifest;
use crate::read::span::Span as KeySpan;
use crate::read::system_records::STREAMS_MARK;
use crate::txn::payload::{Payload, encode_head};
use crate::txn::transaction::{Transaction, fill};
use crate::types::as_of::AsOf;
use crate::types::compression::Compression;
use crate::types::error::{Error, Lift, Result};
use crate::types::expiry::Expiry;
use crate::types::index_key::KeyBuffer;
use crate::types::keyspaces::{BRANCHES, CURSORS, Keyspace, Record as Settings, SYSTEM, TAGS};
use crate::types::options::{Durability, Options};

/// A batch of rows is committed once it has this many bytes or rows.
const BATCH_BYTES: u64 = 1 << 20;
const BATCH_ROWS: u64 = 10_000;

/// The most entries of one record of the log.
const ENTRIES_MAX: u64 = 1 << 16;

/// The result of a restore.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let dir = tempfile::tempdir().unwrap();
/// # let options = Options::new().memory_bytes(16 << 20);
/// # let db = Db::in_memory(options.clone())?;
/// # let notes = db.keyspace("notes")?;
/// db.put(&notes, "a", "one")?;
/// let mut dump = Vec::new();
/// db.dump(DumpOptions::new(), &mut dump)?;
/// let report = Db::restore(dir.path().join("restored"), options, &mut &dump[..])?;
/// assert_eq!((report.changes, report.resumed), (1, false));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// The newest GLSN of the new store.
    pub glsn: Glsn,
    /// Number of changes of keys that this call has restored; if the dump has no history, number of
    /// keys.
    pub changes: u64,
    /// Whether it continued an interrupted restore.
    pub resumed: bool,
}

/// [`Db::restore`](crate::Db::restore).
pub(crate) fn restore(dest: &Path, options: Options, from: &mut dyn Read) -> Result<RestoreReport> {
    let options = options.read_only(false).shared(false).create(true).warm(false);
    options.check()?;
    let options = options.durability(Durability::Buffered);
    let mut from = BufReader::with_capacity(PIECE_BYTES, from);
    let (mut from, header) = DumpReader::begin(&mut from)?;
    let place = Place::take(dest, &options, &header)?;
    let mut report = RestoreReport { resumed: place.is_resumed, ..RestoreReport::default() };
    report.glsn = match header.content {
        Content::Newest => restore_newest(&place, &options, &mut from, &mut report)?,
        Content::History => restore_history(&place, &options, &header, &mut from, &mut report)?,
    };
    place.finish()?;
    Ok(report)
}

/// A clock that shows the time of the entry that is restored.
#[derive(Debug)]
struct EntryClock {
    clock: Arc<dyn Clock>,
    wall_micros: AtomicU64,
}

impl Clock for EntryClock {
    fn wall_micros(&self) -> u64 {
        // Relaxed: the thread that sets the time is the one that appends.
        self.wall_micros.load(Ordering::Relaxed)
    }

    fn monotonic_nanos(&self) -> u64 {
        self.clock.monotonic_nanos()
    }

    fn sleep(&self, duration: Duration) {
        self.clock.sleep(duration);
    }
}

/// Restores a dump with history; returns the newest GLSN.
fn restore_history(
    place: &Place,
    options: &Options,
    header: &Header,
    from: &mut DumpReader<'_>,
    report: &mut RestoreReport,
) -> Result<Glsn> {
    let begins_later = header.first > Glsn::FIRST;
    let has_manifest = || Manifest::read_of_store(&*options.disk, &place.store);
    let mut limits = None;
    if begins_later && place.is_resumed && has_manifest()?.is_some() {
        limits = Some(base::pass(from)?);
    } else if begins_later {
        place.clear_store()?;
        report.resumed = false;
        let (versions, known) = base::write(place, options, header, from)?;
        report.changes += versions;
        limits = Some(known);
    }
    let clock = Arc::new(EntryClock {
        clock: Arc::clone(&options.clock),
        wall_micros: AtomicU64::new(header.floor_micros),
    });
    // The records of keyspaces decide how values are compressed. A compression from the options
    // would need a record that the history does not have.
    let options = options.clone().compression(Compression::None);
    let of_entries = Options { clock: Arc::clone(&clock) as _, ..options };
    let store = open_by(&place.store, of_entries)?;
    // Retain everything: this opening knows the retention of keyspaces only as of its beginning,
    // and the history may change it.
    let everything = store.committer.open_floor(AsOf::unexpiring(Glsn::NONE))?;
    let mut history = History { store: &store, clock: &clock, from, report, last_micros: 0 };
    let outcome = history.restore(header).and_then(|()| match limits {
        Some(limits) => store.reader.index.runs.note_limits(limits),
        None => Ok(()),
    });
    // Keep the complete commits for the next attempt.
    let closed = store.sync().and_then(|newest| store.close().map(|()| newest));
    drop(everything);
    outcome?;
    closed
}

/// A history that is being restored.
struct History<'a, 'd> {
    store: &'a Arc<Engine>,
    clock: &'a EntryClock,
    from: &'a mut DumpReader<'d>,
    report: &'a mut RestoreReport,
    /// The time of the last entry.
    last_micros: u64,
}

/// Consecutive entries, and their time.
struct Span {
    first: Glsn,
    count: u64,
    micros: u64,
}

/// The kind of a record of the dump, which determines the entries that follow it.
enum Begun {
    Commit { read_at: Glsn, metadata: Vec<u8> },
    Entries { stream: u32 },
    Lost,
    Empty,
}

impl History<'_, '_> {
    fn restore(&mut self, header: &Header) -> Result<()> {
        let done = self.store.newest()?;
        self.last_micros = header.floor_micros;
        loop {
            let (entries, begun) = match self.from.read()? {
                Record::Commit { glsn, micros, read_at, metadata } => {
                    let metadata = metadata.to_vec();
                    let entries = Span { first: glsn, count: 1, micros };
                    (entries, Begun::Commit { read_at, metadata })
                }
                Record::Entries { first, count, micros, stream } => {
                    (Span { first, count, micros }, Begun::Entries { stream })
                }
                Record::Lost { first, count, micros } => {
                    (Span { first, count, micros }, Begun::Lost)
                }
                Record::Empty { first, count, micros } => {
                    (Span { first, count, micros }, Begun::Empty)
                }
                Record::End { .. } => break,
                _ => return Err(self.from.out_of_place()),
            };
            if entries.count == 0 || entries.count > u64::from(u32::MAX) {
                return Err(self.from.out_of_place());
            }
            let last = Glsn(entries.first.0.saturating_add(entries.count - 1));
            if last <= done {
                self.pass(&entries, last, done, begun)?;
            } else {
                self.begin(&entries)?;
                self.append(&entries, begun)?;
                if self.store.committer.sequencer.applied() != last {
                    return Err(self.other_history(last));
                }
            }
            self.last_micros = entries.micros;
        }
        if self.store.committer.sequencer.applied() == header.last {
            Ok(())
        } else {
            Err(self.from.out_of_place())
        }
    }

    fn other_history(&self, at: Glsn) -> Error {
        Error::corrupt(format!(
            "the unfinished restore and this dump have different histories (they differ at GLSN \
             {at}): delete the folder of the unfinished restore, and restore the dump again"
        ))
    }

    /// Skips entries that an earlier attempt has restored.
    fn pass(&mut self, entries: &Span, last: Glsn, done: Glsn, begun: Begun) -> Result<()> {
        if last == done {
            let restored = self.store.reader.log.meta(done).lift()?;
            if restored.timestamp_micros != entries.micros {
                return Err(self.other_history(done));
            }
        }
        match begun {
            Begun::Commit { .. } => loop {
                match self.from.read()? {
                    Record::Change(_) | Record::Piece(_) => {}
                    Record::CommitEnd { .. } => return Ok(()),
                    _ => return Err(self.from.out_of_place()),
                }
            },
            Begun::Entries { .. } => {
                for _ in 0..entries.count {
                    self.entry()?;
                }
                Ok(())
            }
            Begun::Lost | Begun::Empty => Ok(()),
        }
    }

    /// Sets the time at which the next entries are appended.
    fn begin(&mut self, entries: &Span) -> Result<()> {
        let next = self.store.committer.sequencer.applied().next();
        if entries.first != next {
            return Err(self.other_history(next));
        }
        self.clock.wall_micros.store(entries.micros, Ordering::Relaxed);
        if entries.micros <= self.last_micros && next > Glsn::FIRST {
            self.store.reader.log.restart_time().lift()?;
        }
        Ok(())
    }

    fn append(&mut self, entries: &Span, begun: Begun) -> Result<()> {
        match begun {
            Begun::Commit { read_at, metadata } => self.commit(read_at, &metadata),
            Begun::Lost => self.append_equal(StreamId::DROPPED, entries.count, b""),
            Begun::Empty => self.append_empty(entries.count, b""),
            Begun::Entries { stream } => {
                let (mut payloads, mut bytes) = (Vec::new(), 0);
                for _ in 0..entries.count {
                    let payload = self.entry()?;
                    bytes += payload.len();
                    if bytes > MAX_BODY_BYTES {
                        return Err(self.from.out_of_place());
                    }
                    payloads.push(payload);
                }
                let payloads: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
                self.store.committer.append(StreamId(stream), &payloads)?;
                Ok(())
            }
        }
    }

    /// Appends commits without changes.
    fn append_empty(&self, count: u64, metadata: &[u8]) -> Result<()> {
        let mut payload = Vec::new();
        encode_head(metadata, &[], 0, &mut payload);
        self.append_equal(StreamId::TRANSACTIONS, count, &payload)
    }

    fn append_equal(&self, stream: StreamId, count: u64, payload: &[u8]) -> Result<()> {
        let at_once = (MAX_BODY_BYTES / payload.len().max(1)) as u64;
        let mut left = count;
        while left > 0 {
            let some = left.min(ENTRIES_MAX).min(at_once);
            self.store.committer.append(stream, &vec![payload; some as usize])?;
            left -= some;
        }
        Ok(())
    }

    /// The payload of the next entry.
    fn entry(&mut self) -> Result<Vec<u8>> {
        let (len, mut payload) = match self.from.read()? {
            Record::Entry { len, piece } if len <= MAX_BODY_BYTES as u64 => (len, piece.to_vec()),
            _ => return Err(self.from.out_of_place()),
        };
        while (payload.len() as u64) < len {
            match self.from.read()? {
                Record::Piece(piece) if !piece.is_empty() => payload.extend_from_slice(piece),
                _ => return Err(self.from.out_of_place()),
            }
        }
        if payload.len() as u64 == len { Ok(payload) } else { Err(self.from.out_of_place()) }
    }

    fn commit(&mut self, read_at: Glsn, metadata: &[u8]) -> Result<()> {
        let committer = &self.store.committer;
        let mut tx =
            Transaction::at_moment(committer, committer.open_at(AsOf::unexpiring(read_at))?);
        tx.set_metadata(metadata)?;
        let mut changes = 0;
        loop {
            match self.from.read()? {
                Record::CommitEnd { changes: all } if all == changes => break,
                Record::Change(change) => {
                    changes += 1;
                    let change = Owned::of(change)?;
                    note_compression(self.store, &change)?;
                    apply(self.store, &mut tx, change, self.from)?;
                }
                _ => return Err(self.from.out_of_place()),
            }
        }
        self.report.changes += changes;
        if changes == 0 {
            return self.append_empty(1, metadata);
        }
        drop(tx.commit_submit()?);
        Ok(())
    }
}

/// A change that owns its bytes.
enum Owned {
    Delete { space: u32, key: Vec<u8> },
    DeleteRange { space: u32, first: Vec<u8>, end: Bound<Vec<u8>> },
    Put { space: u32, key: Vec<u8>, expiry: Option<Expiry>, len: u64, piece: Vec<u8> },
}

impl Owned {
    fn of(change: Change<'_>) -> Result<Self> {
        let own = |space, key: Vec<u8>, value: Option<&[u8]>| match value {
            Some(value) => {
                let (len, piece) = (value.len() as u64, value.to_vec());
                Self::Put { space, key, expiry: None, len, piece }
            }
            None => Self::Delete { space, key },
        };
        Ok(match change {
            Change::Delete { space, key } => own(user_space(space)?, key.to_vec(), None),
            Change::DeleteRange { space, first, end } => {
                let end = end.map_or(Bound::Unbounded, |end| Bound::Excluded(end.to_vec()));
                Self::DeleteRange { space: range_space(space)?, first: first.to_vec(), end }
            }
            Change::Put { space, key, expiry, len, piece } => {
                let (key, piece) = (key.to_vec(), piece.to_vec());
                Self::Put { space: user_space(space)?, key, expiry, len, piece }
            }
            Change::System { key, value } => own(SYSTEM, key.key(), value),
            Change::Cursor { name, next } => own(CURSORS, name.to_vec(), next),
            Change::Tag { name, record } => own(TAGS, name.to_vec(), record),
            Change::Branch { key, record } => own(BRANCHES, key.to_vec(), record),
        })
    }
}

/// The keyspace of a deleted range. Besides the user's keyspaces it may be that of branches,
/// because the deletion of a branch deletes the records of its merges as a range.
fn range_space(space: u32) -> Result<u32> {
    if space == BRANCHES { Ok(space) } else { user_space(space) }
}

/// The keyspace of a changed key. It must be the user's: a dump has separate kinds of changes for
/// the records of the store itself.
fn user_space(space: u32) -> Result<u32> {
    match space {
        SYSTEM | CURSORS | TAGS | BRANCHES => Err(Error::corrupt(format!(
            "the dump changes a key of keyspace {space}, which is internal to the store; take \
             another dump"
        ))),
        space => Ok(space),
    }
}

/// Records the compression of a keyspace, which applies to later puts.
fn note_compression(store: &Engine, change: &Owned) -> Result<()> {
    match change {
        Owned::Put { space: SYSTEM, key, piece, .. } if key != STREAMS_MARK.as_bytes() => {
            let settings = Settings::decode(piece)?;
            store.reader.keyspaces.load_compression(settings.id, settings.compression);
            Ok(())
        }
        _ => Ok(()),
    }
}

fn apply(
    store: &Engine,
    tx: &mut Transaction,
    change: Owned,
    from: &mut DumpReader<'_>,
) -> Result<u64> {
    let handle = |space| store.reader.keyspaces.handle(space, "".into());
    match change {
        Owned::Delete { space, key } => tx.delete(&handle(space), key).map(|()| 0),
        Owned::DeleteRange { space, first, end } => {
            let span = KeySpan::new(space, &(Bound::Included(first), end));
            tx.repeat_range(&handle(space), &span).map(|()| 0)
        }
        Owned::Put { space, key, expiry, len, piece } => {
            put(tx, &handle(space), (&key, expiry), (len, piece), from)
        }
    }
}

/// Puts a value, whose beginning is `piece`; returns its length.
fn put(
    tx: &mut Transaction,
    keyspace: &Keyspace,
    (key, expiry): (&[u8], Option<Expiry>),
    (len, piece): (u64, Vec<u8>),
    from: &mut DumpReader<'_>,
) -> Result<u64> {
    let key = KeyBuffer::new(tx.space_to_put(keyspace)?, key)?;
    if piece.len() as u64 == len {
        return tx.put_expiring(&key, &piece, expiry).map(|()| len);
    }
    let left = len - piece.len() as u64;
    let mut value = ValueOf { from, piece, at: 0, left, failure: None };
    let put = tx.put_pieces(&key, expiry, &mut |piece| fill(&mut value, piece));
    match value.failure {
        Some(failure) => Err(failure),
        None => put,
    }
}

/// The bytes of a value that continues in further records.
struct ValueOf<'a, 'd> {
    from: &'a mut DumpReader<'d>,
    piece: Vec<u8>,
    /// Bytes of the piece that were read.
    at: usize,
    /// Bytes of the value after the piece.
    left: u64,
    failure: Option<Error>,
}

impl ValueOf<'_, '_> {
    fn next_piece(&mut self) -> Result<()> {
        match self.from.read()? {
            Record::Piece(piece) if piece.len() as u64 == self.left.min(PIECE_BYTES as u64) => {
                self.piece.clear();
                self.piece.extend_from_slice(piece);
            }
            _ => return Err(self.from.out_of_place()),
        }
        self.left -= self.piece.len() as u64;
        self.at = 0;
        Ok(())
    }
}

impl Read for ValueOf<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.at == self.piece.len() && self.left > 0 {
            self.next_piece().map_err(|error| {
                let told = io::Error::other(error.to_string());
                self.failure = Some(error);
                told
            })?;
        }
        let bytes = into.len().min(self.piece.len() - self.at);
        into[..bytes].copy_from_slice(&self.piece[self.at..self.at + bytes]);
        self.at += bytes;
        Ok(bytes)
    }
}

/// Skips the rest of a value.
fn skip_value(from: &mut DumpReader<'_>, mut left: u64) -> Result<()> {
    while left > 0 {
        left = match from.read()? {
            Record::Piece(piece) if piece.len() as u64 == left.min(PIECE_BYTES as u64) => {
                left - piece.len() as u64
            }
            _ => return Err(from.out_of_place()),
        };
    }
    Ok(())
}

/// Restores the newest value of each key; returns the newest GLSN.
fn restore_newest(
    place: &Place,
    options: &Options,
    from: &mut DumpReader<'_>,
    report: &mut RestoreReport,
) -> Result<Glsn> {
    let store = open_by(&place.store, options.clone())?;
    let outcome =
        restore_rows(&store, from, report).and_then(|()| keyspace_commits::record_zstd(&store));
    let closed = store.sync().and_then(|newest| store.close().map(|()| newest));
    outcome?;
    closed
}

fn restore_rows(
    store: &Arc<Engine>,
    from: &mut DumpReader<'_>,
    report: &mut RestoreReport,
) -> Result<()> {
    let done = rows_done(store)?;
    let mut batch = Batch { tx: Transaction::new(&store.committer), bytes: 0, rows: 0 };
    let mut rows = 0;
    let mut open: Option<(u32, Keyspace)> = None;
    loop {
        match from.read()? {
            Record::Keyspace { name, settings } => {
                let settings = Settings::decode(settings)?;
                let name = String::from_utf8(name.to_vec()).map_err(|_| {
                    Error::corrupt(
                        "the name of a keyspace in the dump is not valid UTF-8; take another dump",
                    )
                })?;
                batch.commit(store, rows)?;
                open = Some((settings.id, make_keyspace(store, &name, settings)?));
            }
            Record::Change(Change::Put { space, key, expiry, len, piece }) => {
                rows += 1;
                let keyspace = match &open {
                    Some((id, keyspace)) if *id == space => keyspace,
                    _ => return Err(from.out_of_place()),
                };
                if rows <= done {
                    let left = len - piece.len() as u64;
                    skip_value(from, left)?;
                    continue;
                }
                let (key, piece) = (key.to_vec(), piece.to_vec());
                batch.bytes += key.len() as u64;
                batch.bytes += put(&mut batch.tx, keyspace, (&key, expiry), (len, piece), from)?;
                batch.rows += 1;
                report.changes += 1;
                if batch.bytes >= BATCH_BYTES || batch.rows >= BATCH_ROWS {
                    batch.commit(store, rows)?;
                }
            }
            Record::End { .. } => return batch.commit(store, rows),
            _ => return Err(from.out_of_place()),
        }
    }
}

/// Rows that are not committed yet.
struct Batch {
    tx: Transaction,
    bytes: u64,
    rows: u64,
}

const ROWS_BEGIN: &str = "{\"restored\":{\"rows\":";
const ROWS_END: &str = "}}";

impl Batch {
    /// Commits the rows. `all` is the number of rows restored by then, which the metadata records.
    fn commit(&mut self, store: &Arc<Engine>, all: u64) -> Result<()> {
        let mut tx = std::mem::replace(&mut self.tx, Transaction::new(&store.committer));
        if self.rows > 0 {
            tx.set_metadata(format!("{ROWS_BEGIN}{all}{ROWS_END}").as_bytes())?;
            drop(tx.commit_submit()?);
        }
        (self.bytes, self.rows) = (0, 0);
        Ok(())
    }
}

/// The number of rows that an earlier attempt has restored, from the metadata of its last batch.
fn rows_done(store: &Arc<Engine>) -> Result<u64> {
    let (first, newest) = (store.reader.log.bounds().first, store.newest()?);
    for glsn in (first.0..=newest.0).rev() {
        let entry = store.reader.log.read(Glsn(glsn)).lift()?;
        let metadata = std::str::from_utf8(Payload::decode(&entry)?.metadata).unwrap_or_default();
        let rows = metadata.strip_prefix(ROWS_BEGIN).and_then(|rest| rest.strip_suffix(ROWS_END));
        if let Some(rows) = rows.and_then(|rows| rows.parse().ok()) {
            return Ok(rows);
        }
    }
    Ok(0)
}

fn make_keyspace(store: &Arc<Engine>, name: &str, settings: Settings) -> Result<Keyspace> {
    let known = store.reader.keyspaces.find(name);
    // Every store has the default keyspace; others may be from an earlier attempt.
    let (keyspace, record) = match known {
        Some(known) => known,
        None => {
            let keyspace = keyspace_commits::create(store, name, settings.retention)?;
            let record = store.reader.keyspaces.record(store.reader.keyspaces.id_of(&keyspace)?);
            (keyspace, record.expect("it was just made"))
        }
    };
    if record.retention != settings.retention {
        keyspace_commits::set_retention(store, &keyspace, settings.retention)?;
    }
    if record.compression != settings.compression {
        keyspace_commits::set_compression(store, &keyspace, settings.compression)?;
    }
    if record.ttl != settings.ttl {
        keyspace_commits::set_ttl(store, &keyspace, settings.ttl)?;
    }
    Ok(keyspace)
}
