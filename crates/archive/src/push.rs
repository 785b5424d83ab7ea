//! One pass: sends everything durable of a store to its archive.
//!
//! A pass lists the store's files under a hold ([`Db::files`]), sends those that the archive lacks,
//! and then writes the next manifest. A file that never changes is sent once. Only the new part of
//! the active segment is sent, from the start of the block in which the archived part ends, because
//! a store rewrites that block.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll::{Db, FileKind, FileScope, Glsn, LogPosition, StoreFile};

use crate::bucket::{Bucket, Call};
use crate::catalog::Catalog;
use crate::error::{Damage, Error, Result};
use crate::manifest::{
    self, Base, BaseFile, BaseKind, Blob, Dropped, End, Entry, Found, Manifest, Piece, write_json,
};
use crate::object::{Encoder, ObjectRef};

/// A sealed segment that was sent in more pieces than this is sent again as a whole, so that the
/// number of objects does not grow with the number of passes.
const PIECES_MAX: usize = 16;

/// The same for the active segment. The limit is higher, because the segment still grows and would
/// be sent as a whole often.
const ACTIVE_PIECES_MAX: usize = 256;

/// A manifest names at most this many entries itself; more are moved into a list.
const ENTRIES_MAX: usize = 64;

/// A manifest names at most this many lists, or twice as many as the catalog needs. Beyond that,
/// all lists are rewritten without the replaced entries.
const LISTS_MAX: usize = 16;

/// The result of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PushReport {
    /// The newest GLSN in the archive.
    pub glsn: Glsn,
    /// Objects that were sent, without manifests.
    pub objects: u64,
    /// Bytes that were sent.
    pub bytes: u64,
    /// Whether the index was archived: by the first pass, by the first pass after an unarchived
    /// part of the log was trimmed, or after many bytes of log.
    pub is_base: bool,
    /// Damaged manifests, instead of which this pass continued from an earlier one. Moments that
    /// only the damaged ones name are lost, unless the store still has them.
    pub damage: Vec<Damage>,
}

/// The state of an archiver between two passes.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) newest: Found,
    /// The highest number of a manifest, whether it can be read or not.
    pub(crate) number: u64,
    /// The manifests with higher numbers, which are damaged, until a pass has reported them.
    damage: Vec<Damage>,
    pub(crate) catalog: Catalog,
    _lock: Option<Lock>,
}

/// The lock of the archive.
struct Lock(#[allow(dead_code, reason = "held, not read")] Box<dyn Send + Sync>);

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lock")
    }
}

impl State {
    /// Reads the archive, or begins one for the store with this log.
    pub(crate) fn load(bucket: &dyn Bucket, place: &str, log_id: u128) -> Result<Self> {
        let lock = bucket.lock()?;
        let mut damage = Vec::new();
        let number = manifest::numbers(bucket)?.last().copied().unwrap_or(0);
        // A manifest that cannot be read now may be intact. Continuing without it would lose
        // objects that only it names.
        let newest = match manifest::newest(bucket, manifest::read, &mut damage)? {
            Some(found) => found,
            None if damage.is_empty() => Found { manifest: Manifest::empty(log_id), hash: 0 },
            None => return Err(Error::Damaged { damage }),
        };
        if newest.manifest.log_id != log_id {
            return Err(Error::OtherStore {
                place: place.to_owned(),
                archived: newest.manifest.log_id,
                store: log_id,
            });
        }
        // Damage to one copy of the newest manifest loses nothing.
        damage.truncate(if number > newest.manifest.number { damage.len() } else { 0 });
        let mut lists = Vec::new();
        let catalog = Catalog::read(bucket, &newest.manifest, &mut lists)?;
        if !lists.is_empty() {
            return Err(Error::Damaged { damage: lists });
        }
        if newest.manifest.number > 0 {
            manifest::complete(bucket, &newest)?;
        }
        Ok(Self { newest, number, damage, catalog, _lock: lock.map(Lock) })
    }
}

impl State {
    /// Begins the next manifest. Deletes the objects that only removed manifests need.
    pub(crate) fn begin_manifest(&self, to: &Call<'_>) -> Result<Manifest> {
        let (manifest, over) = self.newest.manifest.next(self.number + 1, self.newest.hash);
        for Dropped { object, .. } in over {
            to.bucket.delete(&object.name).map_err(|error| Error::storage(&object.name, error))?;
        }
        Ok(manifest)
    }

    /// Writes the manifest that was begun.
    pub(crate) fn end_manifest(&mut self, to: &Call<'_>, manifest: Manifest) -> Result<()> {
        let Some(hash) = manifest::write(to.bucket, &manifest)? else {
            return Err(Error::OtherArchiver { place: to.place.to_owned(), pid: None });
        };
        self.number = manifest.number;
        self.newest = Found { manifest, hash };
        Ok(())
    }

    /// Whether the archive belongs to the store with this log.
    pub(crate) fn is_of(&self, log_id: u128) -> bool {
        self.newest.manifest.log_id == log_id
    }
}

/// The frequency of bases, and the part of the past that is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// The index is archived after this many bytes of log.
    pub(crate) base_bytes: u64,
    /// The index is also archived whenever the last base is as old as the retained past.
    pub(crate) keep_micros: Option<u64>,
}

impl Policy {
    /// Whether the index is to be archived now.
    fn is_base_due(&self, catalog: &Catalog) -> bool {
        let Some(base) = catalog.bases.last() else { return true };
        let end = catalog.end();
        let is_old = |keep| end.glsn > base.glsn && end.micros.saturating_sub(base.micros) >= keep;
        catalog.log_bytes_after(base.glsn) >= self.base_bytes.max(base.bytes)
            || self.keep_micros.is_some_and(is_old)
    }
}

/// Makes one pass.
pub(crate) fn push(
    to: &Call<'_>,
    state: &mut State,
    db: &Db,
    policy: &Policy,
) -> Result<PushReport> {
    let place = to.place;
    let last = state.catalog.last().cloned();
    let is_due = policy.is_base_due(&state.catalog);
    let scope = match &last {
        Some(last) if !is_due => {
            FileScope::LogFrom { segment: last.segment.into(), after: last.end.position() }
        }
        _ => FileScope::Whole,
    };
    if let (FileScope::Whole, Some(last)) = (scope, &last) {
        check_history(db, place, last)?;
    }
    let mut pass = Pass::new(*to, state);
    let end = match pass.run(db, scope) {
        Ok(end) if pass.report.is_base || pass.continues() => end,
        // The store has trimmed a part of its log that was not archived, so the archive needs a new
        // base.
        Ok(_) | Err(Error::Store(plimsoll::Error::Trimmed { .. })) => {
            pass = Pass::new(*to, state);
            pass.run(db, FileScope::Whole)?
        }
        Err(error) => return Err(explain(error, place)),
    };
    let report = pass.report.clone();
    let entries = std::mem::take(&mut pass.entries);
    let mut report = finish(to, state, entries, end, report)?;
    report.damage = std::mem::take(&mut state.damage);
    Ok(report)
}

/// Fails if the store does not have the archive's history. Succeeds if the store has trimmed that
/// part.
fn check_history(db: &Db, place: &str, last: &Piece) -> Result<()> {
    let scope = FileScope::LogFrom { segment: Glsn(u64::MAX), after: last.end.position() };
    match db.files(scope, &mut |_| Ok(())) {
        Ok(_) | Err(plimsoll::Error::Trimmed { .. }) => Ok(()),
        Err(error) => Err(explain(error.into(), place)),
    }
}

fn explain(error: Error, place: &str) -> Error {
    match error {
        Error::Store(plimsoll::Error::Forked { message, .. }) => {
            Error::OtherHistory { place: place.to_owned(), what: message }
        }
        error => error,
    }
}

/// Writes the manifest of a pass, if it has anything new.
fn finish(
    to: &Call<'_>,
    state: &mut State,
    new: Vec<Entry>,
    end: LogPosition,
    mut report: PushReport,
) -> Result<PushReport> {
    report.glsn = end.glsn;
    if new.is_empty() {
        return Ok(report);
    }
    state.catalog.extend(new.iter().cloned());
    let mut manifest = state.begin_manifest(to)?;
    manifest.drop_objects(state.catalog.replaced.drain(..));
    manifest.entries.extend(new);
    manifest.end = state.catalog.end();
    assert_eq!(manifest.end.position(), end, "the last piece ends where the store's copy ends");
    if manifest.entries.len() > ENTRIES_MAX {
        let most = LISTS_MAX.max(2 * state.catalog.entry_count().div_ceil(manifest::LIST_ENTRIES));
        let (lists, bytes) = match manifest.lists.len() < most {
            true => (1, manifest.list_entries(to.bucket)?),
            false => manifest.rewrite_lists(to.bucket, state.catalog.entries())?,
        };
        report.objects += lists;
        report.bytes += bytes;
    }
    state.end_manifest(to, manifest)?;
    Ok(report)
}

/// A pass in progress.
struct Pass<'a> {
    to: Call<'a>,
    catalog: &'a Catalog,
    /// The archive's last piece.
    last: Option<&'a Piece>,
    /// The files of the last base that are archived.
    known: BTreeMap<(BaseKind, u64), ObjectRef>,
    entries: Vec<Entry>,
    /// Blob files of the next segment: their ids and objects.
    blobs: Vec<(u64, ObjectRef)>,
    /// The first segment in the listing, and its `previous_end`.
    first_listed: Option<(u64, u64)>,
    base: Vec<BaseFile>,
    report: PushReport,
}

impl<'a> Pass<'a> {
    fn new(to: Call<'a>, state: &'a State) -> Self {
        Self {
            to,
            catalog: &state.catalog,
            last: state.catalog.last(),
            known: BTreeMap::new(),
            entries: Vec::new(),
            blobs: Vec::new(),
            first_listed: None,
            base: Vec::new(),
            report: PushReport::default(),
        }
    }

    /// Whether the listed log continues the archived one without a gap.
    fn continues(&self) -> bool {
        match (self.last, self.first_listed) {
            (Some(last), Some((first, previous_end))) => {
                first <= last.segment || last.is_before(first, previous_end)
            }
            _ => true,
        }
    }

    /// Sends the files that the archive lacks. If the listing is complete, its files form a base.
    fn run(&mut self, db: &Db, scope: FileScope) -> Result<LogPosition> {
        if scope == FileScope::Whole {
            self.load_known()?;
        }
        let mut failure = None;
        let listed = db.files(scope, &mut |file| {
            self.file(file).map_err(|error| match error {
                Error::Store(error) => error,
                error => {
                    failure = Some(error);
                    plimsoll::Error::Cancelled
                }
            })
        });
        match failure {
            Some(error) => Err(error),
            None => Ok(listed?),
        }
    }

    /// Loads the files of the last base. If its list cannot be read, all files are sent again.
    fn load_known(&mut self) -> Result<()> {
        let Some(base) = self.catalog.bases.last() else { return Ok(()) };
        if let Ok(files) = manifest::read_json::<Vec<BaseFile>>(self.to.bucket, &base.list)? {
            self.known =
                files.into_iter().map(|file| ((file.kind, file.id), file.object)).collect();
        }
        Ok(())
    }

    fn file(&mut self, file: &StoreFile<'_>) -> Result<()> {
        match file.kind() {
            FileKind::Blob { id } => {
                let known = self.catalog.blobs.get(&id).map(|blob| blob.object.clone());
                let known = known.or_else(|| self.known.get(&(BaseKind::Blob, id)).cloned());
                let object = match known {
                    Some(object) => object,
                    None => self.send(file, 0, &format!("blobs/{id:020}"))?,
                };
                self.blobs.push((id, object));
                Ok(())
            }
            FileKind::Segment { first, end, previous_end } => {
                self.segment(file, first.0, end, previous_end)
            }
            FileKind::Run { id } => {
                self.base_file(file, BaseKind::Run, id, &format!("index/run-{id:020}"))
            }
            FileKind::Manifest { number, log_first, .. } => {
                // Blob files after the active segment are needed only by the index.
                let blobs = std::mem::take(&mut self.blobs).into_iter();
                self.base.extend(blobs.map(|(id, object)| BaseFile {
                    kind: BaseKind::Blob,
                    id,
                    object,
                }));
                let name = format!("index/manifest-{number:020}");
                self.base_file(file, BaseKind::Index, number, &name)?;
                self.end_base(log_first.0)
            }
            _ => Ok(()),
        }
    }

    fn segment(
        &mut self,
        file: &StoreFile<'_>,
        first: u64,
        end: LogPosition,
        previous_end: u64,
    ) -> Result<()> {
        self.first_listed.get_or_insert((first, previous_end));
        let pieces = self.catalog.segments.get(&first).map_or(&[][..], Vec::as_slice);
        let (last, sealed) = (pieces.last(), file.is_immutable());
        // A clean close leaves a mark after the last record.
        let is_known = last.is_some_and(|last| {
            let is_all = last.sealed || (!sealed && last.to == file.bytes());
            last.end.position() == end && is_all
        });
        if !is_known {
            let most = if sealed { PIECES_MAX } else { ACTIVE_PIECES_MAX };
            let from = match last {
                Some(last) if !last.sealed && pieces.len() <= most => {
                    StoreFile::page_start(last.to)
                }
                _ => 0,
            };
            let first_glsn =
                if from == 0 { first } else { last.map_or(first, |it| it.end.glsn + 1) };
            let time = |glsn: u64| -> Result<u64> { Ok(file.time_micros(Glsn(glsn))?) };
            let has_records = first_glsn <= end.glsn.0;
            // Without records, the piece has the time of the last record before it.
            let first_micros = if has_records { time(first_glsn)? } else { 0 };
            let micros = if end.glsn == Glsn::NONE { 0 } else { time(end.glsn.0)? };
            let name = format!("segments/{first:020}-{from:010}-{:010}", file.bytes());
            let object = self.send(file, from, &name)?;
            self.entries.push(Entry::Piece(Piece {
                segment: first,
                from,
                to: file.bytes(),
                first: first_glsn,
                first_micros,
                end: End { glsn: end.glsn.0, chain: end.chain, micros },
                sealed,
                previous_end,
                object,
            }));
        }
        for (id, object) in std::mem::take(&mut self.blobs) {
            if !self.catalog.blobs.contains_key(&id) {
                let (segment, glsn) = (first, end.glsn.0);
                self.entries.push(Entry::Blob(Blob { id, segment, glsn, object }));
            }
        }
        Ok(())
    }

    fn base_file(
        &mut self,
        file: &StoreFile<'_>,
        kind: BaseKind,
        id: u64,
        name: &str,
    ) -> Result<()> {
        let object = match self.known.get(&(kind, id)).filter(|_| kind == BaseKind::Run) {
            Some(object) => object.clone(),
            None => self.send(file, 0, name)?,
        };
        self.base.push(BaseFile { kind, id, object });
        Ok(())
    }

    fn end_base(&mut self, log_first: u64) -> Result<()> {
        let End { glsn, micros, .. } = self.end();
        let bytes = self.base.iter().map(|file| file.object.length).sum();
        let (list, sent) =
            write_json(self.to.bucket, &format!("index/list-{glsn:020}"), &self.base)?;
        self.report.objects += 1;
        self.report.bytes += sent;
        self.report.is_base = true;
        self.entries.push(Entry::Base(Base { glsn, micros, log_first, bytes, list }));
        Ok(())
    }

    /// The newest position that is archived, with what this pass has sent.
    fn end(&self) -> End {
        let new = self.entries.iter().filter_map(|entry| match entry {
            Entry::Piece(piece) => Some(piece.end),
            _ => None,
        });
        let ends = new.chain(self.last.map(|last| last.end));
        ends.max_by_key(|end| (end.glsn, end.micros)).unwrap_or_default()
    }

    /// Sends a file's bytes from `from` on, which begins a page.
    fn send(&mut self, file: &StoreFile<'_>, from: u64, name: &str) -> Result<ObjectRef> {
        let failed = |error: io::Error| Error::storage(file.name(), error);
        let read = || -> Result<_> {
            Ok(Cancellable { reader: file.read_from(from)?, cancel: self.to.cancel })
        };
        let object = ObjectRef::of(name, &mut read()?).map_err(failed)?;
        let mut encoder = Encoder::new(&object, read()?).map_err(failed)?;
        let put = self.to.bucket.put_new(&object.name, &mut encoder);
        put.map_err(|error| Error::storage(&object.name, error))?;
        self.report.objects += 1;
        self.report.bytes += encoder.bytes;
        Ok(object)
    }
}

/// A reader that fails once the pass is cancelled.
struct Cancellable<'a, R> {
    reader: R,
    cancel: &'a AtomicBool,
}

impl<R: Read> Read for Cancellable<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // Relaxed: the flag passes nothing but itself.
        match self.cancel.load(Ordering::Relaxed) {
            true => Err(io::Error::other(plimsoll::Error::Cancelled)),
            false => self.reader.read(into),
        }
    }
}

/// The damage of an archive without a usable manifest.
pub(crate) fn unusable(place: &str, damage: Vec<Damage>) -> Error {
    match damage.is_empty() {
        true => Error::NotAnArchive { place: place.to_owned() },
        false => Error::Damaged { damage },
    }
}
