//! Writes a store as a stream that any version and any machine can read back: [`records`] is its
//! format, [`super::restore`] its reader.
//!
//! - Without history: each keyspace with its settings and the newest value of each of its keys, as
//!   of one moment. Writers, flushes and the trimming of the log continue meanwhile.
//! - With history: everything that the log holds, in its order. If the log was trimmed, the
//!   versions that the index still has from before come first. Trimming is suspended meanwhile.
//!
//! Invariant: memory is bounded by a piece of a value, a key, and a commit's own entry.

pub(crate) mod records;
pub(crate) mod stream;

use std::io::{BufWriter, Write};
use std::ops::{Bound, RangeInclusive};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError};

use plimsoll_disk::codec::push_varint;
use plimsoll_disk::random::entropy;
use plimsoll_log::entry::EntryMeta;
use plimsoll_log::error::LogError;
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_memory::budget::Kind;
use plimsoll_memory::chunk::Chunk;

use crate::api::admin::dump::records::{Change, Content, Header, PIECE_BYTES, Record, SystemKey};
use crate::api::admin::dump::stream::DumpWriter;
use crate::api::commit::Commit;
use crate::api::snapshot::Snapshot;
use crate::engine::{Engine, branch_commits, keyspace_commits};
use crate::index::iter::handle::Detachable;
use crate::index::iter::versions::Versions;
use crate::index::manifest::limits::Limits;
use crate::read::point::ValueReader;
use crate::types::cancel::Cancel;
use crate::types::error::{Error, Lift, Result};
use crate::types::expiry::Expiry;
use crate::types::index_key::{IndexKey, KeyBuffer};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::{BRANCHES, CURSORS, Keyspace, SIDE, SYSTEM, TAGS};
use crate::types::version::Stored;

/// The content of a dump.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let dir = tempfile::tempdir().unwrap();
/// # let options = Options::new().memory_bytes(16 << 20);
/// # let db = Db::in_memory(options.clone())?;
/// # let notes = db.keyspace("notes")?;
/// let first = db.put(&notes, "a", "one")?;
/// db.put(&notes, "a", "two")?;
/// let mut dump = Vec::new();
/// db.dump(DumpOptions::new().history(true), &mut dump)?;
/// let path = dir.path().join("restored");
/// Db::restore(&path, options.clone(), &mut &dump[..])?;
/// let restored = Db::open(&path, options)?;
/// let then = restored.snapshot_at(Moment::Glsn(first))?;
/// assert_eq!(then.get(&restored.keyspace("notes")?, "a")?.unwrap(), b"one");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct DumpOptions {
    pub(crate) history: bool,
    pub(crate) keyspace: Option<String>,
    pub(crate) cancel: Cancel,
}

impl DumpOptions {
    /// The newest value of each key of all keyspaces. Such a dump fails if the store has branches
    /// besides main, because only a dump with history includes them.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether to dump every retained commit instead, with its GLSN, its time and its metadata, and
    /// the user's own streams, the cursors, the tags and the branches.
    #[must_use]
    pub fn history(self, history: bool) -> Self {
        Self { history, ..self }
    }

    /// Dumps only this keyspace, and of it only the versions on main.
    #[must_use]
    pub fn keyspace(self, name: impl Into<String>) -> Self {
        Self { keyspace: Some(name.into()), ..self }
    }

    /// Gives up once `flag` is set, with [`Error::Cancelled`].
    #[must_use]
    pub fn cancel_on(self, flag: Arc<AtomicBool>) -> Self {
        Self { cancel: Cancel::on(flag), ..self }
    }
}

/// The result of a dump.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// let glsn = db.put(&notes, "a", "one")?;
/// let report = db.dump(DumpOptions::new(), std::io::sink())?;
/// assert_eq!((report.glsn, report.changes), (glsn, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DumpReport {
    /// The moment of the dump.
    pub glsn: Glsn,
    /// Commits in the dump; 0 without history.
    pub commits: u64,
    /// Changes of keys in the dump; without history, keys.
    pub changes: u64,
    /// Bytes of the stream.
    pub bytes: u64,
}

/// [`Db::dump`](crate::Db::dump).
pub(crate) fn dump(
    store: &Arc<Engine>,
    options: &DumpOptions,
    to: &mut dyn Write,
) -> Result<DumpReport> {
    store.check_open()?;
    let ids = match &options.keyspace {
        Some(name) if keyspace_commits::find(store, name)?.is_none() => {
            return Err(InvalidInput::NoKeyspace { name: name.clone() }.into());
        }
        Some(name) => Some(store.reader.keyspaces.ids_of(name)),
        None => None,
    };
    let mut to = BufWriter::with_capacity(PIECE_BYTES, to);
    if options.history {
        dump_history(store, options, ids, &mut to)
    } else {
        dump_newest(store, options, &mut to)
    }
}

/// A dump that is being written.
struct Dump<'a> {
    store: &'a Arc<Engine>,
    options: &'a DumpOptions,
    /// The only keyspaces that are dumped.
    ids: Option<Vec<u32>>,
    out: DumpWriter<'a>,
    piece: Chunk,
    report: DumpReport,
}

impl<'a> Dump<'a> {
    fn begin(
        store: &'a Arc<Engine>,
        options: &'a DumpOptions,
        ids: Option<Vec<u32>>,
        to: &'a mut dyn Write,
        (first, last, floor_micros): (Glsn, Glsn, u64),
    ) -> Result<Self> {
        let header = Header {
            content: if options.history { Content::History } else { Content::Newest },
            store: store.reader.log.id(),
            dump: entropy()?,
            first,
            last,
            floor_micros,
            keyspace: options.keyspace.clone().unwrap_or_default(),
        };
        let piece = store.reader.budget.take(Kind::Staging)?;
        let out = DumpWriter::begin(to, &header)?;
        let report = DumpReport { glsn: last, ..DumpReport::default() };
        Ok(Self { store, options, ids, out, piece, report })
    }

    fn end(mut self) -> Result<DumpReport> {
        self.report.bytes = self.out.end()?;
        Ok(self.report)
    }

    /// Writes a change of a key. `old`: the GLSN of the change if it is older than the log.
    fn change(
        &mut self,
        (space, key): (u32, &[u8]),
        (glsn, stored): (Glsn, Stored<'_>),
        old: Option<Glsn>,
    ) -> Result<()> {
        self.report.changes += 1;
        let own = stored.inline_value();
        match space {
            SYSTEM => {
                let change = Change::System { key: SystemKey::of(key), value: own };
                return self.out.write(&record_of(change, old));
            }
            CURSORS => {
                let change = Change::Cursor { name: key, next: own };
                return self.out.write(&record_of(change, old));
            }
            TAGS => {
                let change = Change::Tag { name: key, record: own };
                return self.out.write(&record_of(change, old));
            }
            BRANCHES => {
                let change = Change::Branch { key, record: own };
                return self.out.write(&record_of(change, old));
            }
            _ => {}
        }
        if stored == Stored::Deleted {
            return self.out.write(&record_of(Change::Delete { space, key }, old));
        }
        let value = ValueReader::of_logged(&self.store.reader, glsn, stored);
        self.value((space, key), value, stored.expiry(), old)
    }

    /// Writes a put, and its value piece by piece.
    fn value(
        &mut self,
        (space, key): (u32, &[u8]),
        mut value: ValueReader,
        expiry: Option<Expiry>,
        old: Option<Glsn>,
    ) -> Result<()> {
        let (len, bytes) = (value.len(), value.read_piece(&mut self.piece)?);
        let piece = &self.piece[..bytes];
        self.out.write(&record_of(Change::Put { space, key, expiry, len, piece }, old))?;
        let mut written = bytes as u64;
        while written < len {
            self.options.cancel.check()?;
            let bytes = value.read_piece(&mut self.piece)?;
            self.out.write(&Record::Piece(&self.piece[..bytes]))?;
            written += bytes as u64;
        }
        Ok(())
    }
}

fn record_of(change: Change<'_>, old: Option<Glsn>) -> Record<'_> {
    match old {
        Some(glsn) => Record::Version { glsn, change },
        None => Record::Change(change),
    }
}

/// Dumps the newest value of each key.
fn dump_newest(
    store: &Arc<Engine>,
    options: &DumpOptions,
    to: &mut dyn Write,
) -> Result<DumpReport> {
    let snapshot = Snapshot::newest(store);
    let at = snapshot.read_at()?.glsn;
    if options.keyspace.is_none() && !branch_commits::all(store)?.is_empty() {
        return Err(InvalidInput::DumpWithoutBranches.into());
    }
    let mut dump = Dump::begin(store, options, None, to, (at.next(), at, 0))?;
    let mut names: Vec<Arc<str>> = store.reader.keyspaces.names().into_values().collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        if options.keyspace.as_ref().is_some_and(|only| **only != *name) {
            continue;
        }
        let Some(keyspace) = snapshot.keyspace(&name)? else { continue };
        let id = store.reader.keyspaces.id_of(&keyspace)?;
        let Some(record) = store.reader.keyspaces.record(id) else { continue };
        let settings = record.as_set().encode();
        dump.out.write(&Record::Keyspace { name: name.as_bytes(), settings: &settings })?;
        dump.rows(&snapshot, &keyspace, id)?;
    }
    dump.end()
}

impl Dump<'_> {
    /// Writes the rows of a keyspace. A value that memory does not hold is read piece by piece.
    fn rows(&mut self, snapshot: &Snapshot, keyspace: &Keyspace, id: u32) -> Result<()> {
        let mut from = Bound::Unbounded;
        loop {
            let bounds = |from: &Bound<Vec<u8>>| (from.clone(), Bound::<Vec<u8>>::Unbounded);
            let mut rows = snapshot.range(keyspace, bounds(&from))?;
            loop {
                self.options.cancel.check()?;
                let (key, value, expiry) = match rows.advance_expiring() {
                    Ok(Some(row)) => row,
                    Ok(None) => return Ok(()),
                    Err(Error::OutOfBudget(_)) => break,
                    Err(error) => return Err(error),
                };
                self.report.changes += 1;
                let mut pieces = value.chunks(PIECE_BYTES);
                let (len, piece) = (value.len() as u64, pieces.next().unwrap_or_default());
                let put = Change::Put { space: id, key, expiry, len, piece };
                self.out.write(&Record::Change(put))?;
                for piece in pieces {
                    self.out.write(&Record::Piece(piece))?;
                }
                from = Bound::Excluded(key.to_vec());
            }
            drop(rows);
            let next = snapshot.range(keyspace, bounds(&from))?.keys_only().next().transpose()?;
            let Some((key, _)) = next else { return Ok(()) };
            let key = key.to_vec();
            if let Some(value) = snapshot.get_reader(keyspace, &key)? {
                self.report.changes += 1;
                let index_key = KeyBuffer::new(id, &key)?;
                let expiry =
                    self.store.reader.expiry(index_key.get(), snapshot.read_at()?)?.flatten();
                self.value((id, &key), value, expiry, None)?;
            }
            from = Bound::Excluded(key);
        }
    }
}

/// Dumps everything in the log, and the older versions in the index.
fn dump_history(
    store: &Arc<Engine>,
    options: &DumpOptions,
    ids: Option<Vec<u32>>,
    to: &mut dyn Write,
) -> Result<DumpReport> {
    let _no_trim = store.space.trim_lock.lock().unwrap_or_else(PoisonError::into_inner);
    store.check_open()?;
    let _held = store.hold_files()?;
    let log = &store.reader.log;
    // Retain superseded versions until those that are older than the log are written.
    let newest = store.committer.open_newest_floor();
    let last = newest.readable()?.glsn;
    let first = log.bounds().first;
    let floor_micros = match log.glsn_at(0) {
        // The header of the first segment has the time of the last trimmed record.
        Err(LogError::TimeTrimmed { since_micros, .. }) if first > Glsn::FIRST => since_micros,
        _ => 0,
    };
    let mut dump = Dump::begin(store, options, ids, to, (first, last, floor_micros))?;
    if first > Glsn::FIRST {
        dump.old_versions(first)?;
    }
    drop(newest);
    let mut next = first;
    while next <= last {
        options.cancel.check()?;
        let meta = log.meta(next).lift()?;
        next = dump.entries(meta, last)?.end().next();
    }
    dump.end()
}

impl Dump<'_> {
    fn is_dumped(&self, space: u32, key: &[u8]) -> bool {
        match (&self.ids, space) {
            (None, _) => true,
            (Some(_), CURSORS | TAGS | BRANCHES | SIDE) => false,
            (Some(_), SYSTEM) => match SystemKey::of(key) {
                SystemKey::Live(name) | SystemKey::Dropped(_, name) => {
                    self.options.keyspace.as_ref().is_some_and(|only| only.as_bytes() == name)
                }
                SystemKey::Mark(_) => false,
            },
            (Some(ids), space) => ids.contains(&space),
        }
    }

    /// Writes the versions that are older than the log, all from one set of runs.
    fn old_versions(&mut self, first: Glsn) -> Result<()> {
        let (manifest, _, view) = self.store.reader.index.runs.files();
        if manifest.head.checkpoint.glsn.next() < first {
            // Another process writes the store, and this one has not seen its newest runs.
            return Err(Error::trimmed(manifest.head.checkpoint.glsn.next(), first));
        }
        let mut limits = Vec::new();
        encode_limits(&manifest.head.limits, &mut limits);
        self.out.write(&Record::Limits(&limits))?;
        let everything = (Bound::Unbounded, Bound::Unbounded);
        let mut versions = Versions::new(everything, Glsn::NONE, Glsn(first.0 - 1));
        versions.attach(&view, b"")?;
        let (mut key, before) = (Vec::new(), self.report.changes);
        while let Some(version) = versions.next(&mut key)? {
            self.options.cancel.check()?;
            let (space, user_key) = (version.keyspace(), IndexKey::new(version.key).user_key());
            if self.is_dumped(space, user_key) {
                let glsn = version.glsn;
                self.change((space, user_key), (glsn, version.stored), Some(glsn))?;
            }
        }
        self.out.write(&Record::VersionsEnd { versions: self.report.changes - before })
    }

    /// Writes a commit, or the entries of one append; returns their GLSNs.
    fn entries(&mut self, meta: EntryMeta, last: Glsn) -> Result<RangeInclusive<Glsn>> {
        let (first, micros) = (meta.glsn, meta.timestamp_micros);
        if meta.stream == StreamId::TRANSACTIONS {
            self.commit(meta)?;
            return Ok(first..=first);
        }
        let end = Glsn(meta.record_first.0 + u64::from(meta.record_count) - 1).min(last);
        let count = end.0 - first.0 + 1;
        if meta.stream == StreamId::DROPPED {
            self.out.write(&Record::Lost { first, count, micros })?;
            return Ok(first..=end);
        }
        if self.ids.is_some() {
            self.out.write(&Record::Empty { first, count, micros })?;
            return Ok(first..=end);
        }
        self.out.write(&Record::Entries { first, count, micros, stream: meta.stream.0 })?;
        for glsn in first.0..=end.0 {
            let entry = self.store.reader.log.read(Glsn(glsn)).lift()?;
            let mut pieces = entry.chunks(PIECE_BYTES);
            let (len, piece) = (entry.len() as u64, pieces.next().unwrap_or_default());
            self.out.write(&Record::Entry { len, piece })?;
            for piece in pieces {
                self.out.write(&Record::Piece(piece))?;
            }
        }
        Ok(first..=end)
    }

    fn commit(&mut self, meta: EntryMeta) -> Result<()> {
        let (glsn, micros, read_at) = (meta.glsn, meta.timestamp_micros, meta.read_at);
        let entry = self.store.reader.log.read(glsn).lift()?;
        let commit = Commit::new(self.store, entry, None);
        let before = self.report.changes;
        // A commit that only changed other keyspaces is dumped as an empty one, which keeps its
        // GLSN.
        let mut is_begun = false;
        if self.ids.is_none() {
            let metadata = commit.metadata()?;
            self.out.write(&Record::Commit { glsn, micros, read_at, metadata })?;
            is_begun = true;
        }
        for change in commit.stored_changes()? {
            let change = change?;
            if !self.is_dumped(change.space(), change.key()) {
                continue;
            }
            if !is_begun {
                let metadata = commit.metadata()?;
                self.out.write(&Record::Commit { glsn, micros, read_at, metadata })?;
                is_begun = true;
            }
            if let Some((_, end)) = change.deleted_range() {
                let end = match end {
                    Bound::Excluded(end) | Bound::Included(end) => Some(end),
                    Bound::Unbounded => None,
                };
                let (space, first) = (change.space(), change.key());
                self.report.changes += 1;
                self.out.write(&Record::Change(Change::DeleteRange { space, first, end }))?;
                continue;
            }
            let place = (change.space(), change.key());
            self.change(place, (glsn, change.stored()), None)?;
        }
        if !is_begun {
            return self.out.write(&Record::Empty { first: glsn, count: 1, micros });
        }
        self.report.commits += 1;
        self.out.write(&Record::CommitEnd { changes: self.report.changes - before })
    }
}

/// Encodes the limits on the moments at which old versions can be read.
fn encode_limits(limits: &Limits, out: &mut Vec<u8>) {
    push_varint(out, limits.deletions_moved.0);
    push_varint(out, limits.oldest_readable.0);
    let floors = limits.readable_in.iter().map(|(space, readable)| (*space, readable.floor));
    for list in [floors.collect(), limits.deletions_dropped_in.clone()] {
        push_varint(out, list.len() as u64);
        for (space, glsn) in list {
            push_varint(out, u64::from(space));
            push_varint(out, glsn.0);
        }
    }
    for (_, readable) in &limits.readable_in {
        push_varint(out, readable.pins.len() as u64);
        readable.pins.iter().for_each(|pinned| push_varint(out, pinned.0));
    }
}
