//! Lists and reads the files of a consistent copy of a store while it is in use: for backups and
//! for archives. Completes a store that was assembled from such files.
//!
//! The index's files are chosen first, then the log up to its durable end, so the log is at least
//! as new as the index. For the same reason, a member of a shared store refreshes its view of the
//! log after it has chosen the index files. Trimming is suspended meanwhile; readers and writers
//! are not blocked.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};

use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::{Caching, Disk, File, Open};
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::options::FileLogOptions;
use plimsoll_log::file_log::repair::cut::{Until, cut_after};
use plimsoll_log::glsn::{Glsn, Position};
use plimsoll_log::members::holds::Held;
use plimsoll_memory::budget::{Backing, Budget, Kind};
use plimsoll_memory::chunk::Chunk;
use plimsoll_memory::page::PAGE_BYTES;
use plimsoll_memory::pool::Pool;

use crate::api::snapshot::Moment;
use crate::engine::Engine;
use crate::engine::open::open_by;
use crate::index::manifest::Manifest;
use crate::index::manifest::names::manifest_name;
use crate::index::run::file::check_piece;
use crate::index::run::table::TableId;
use crate::types::as_of::AsOf;
use crate::types::error::{Error, Lift, Result};
use crate::types::options::{MIN_MEMORY_BYTES, Options};
use crate::types::times::to_micros;

/// Which files [`Db::files`](crate::Db::files) lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileScope {
    /// All files of a copy of the store.
    Whole,
    /// The files of the log from a segment on, for a caller that has everything up to a position.
    LogFrom {
        /// The first GLSN of the segment, which is its name.
        segment: Glsn,
        /// The position that the caller has reached; it is checked.
        after: LogPosition,
    },
}

/// A position in the log: the last GLSN of a record, and the chain hash there. Two logs with the
/// same position have the same records up to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// The last GLSN of a record; 0: the empty log.
    pub glsn: Glsn,
    /// The chain hash.
    pub chain: u64,
}

impl From<Position> for LogPosition {
    fn from(position: Position) -> Self {
        Self { glsn: position.glsn, chain: position.chain }
    }
}

/// The kind of a file of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// A segment of the log, and the position after its last record in the copy.
    Segment {
        /// Its first GLSN.
        first: Glsn,
        /// The position at its end.
        end: LogPosition,
        /// The byte offset at which the records of the previous segment end; 0 if this is the
        /// first segment of the log.
        previous_end: u64,
    },
    /// A blob file of the log. It is listed before the segment whose records name it, or before the
    /// active segment. Blob files that only the index needs are listed after the active segment.
    Blob {
        /// Its id.
        id: u64,
    },
    /// A run of the index.
    Run {
        /// Its id.
        id: u64,
    },
    /// The list of the index's files; the last file of a copy.
    Manifest {
        /// Its number.
        number: u64,
        /// The newest position of the log that the index knows: a log that ends earlier does not
        /// open with it.
        known: Glsn,
        /// The first GLSN of the log that the index needs.
        log_first: Glsn,
    },
    /// An offset table of a segment, which a store rebuilds if it is missing. Listed for backups
    /// only.
    #[doc(hidden)]
    Table,
}

/// A file of a copy of the store: its first [`bytes`](StoreFile::bytes) bytes.
#[derive(Debug)]
pub struct StoreFile<'a> {
    store: &'a Engine,
    kind: FileKind,
    path: PathBuf,
    bytes: u64,
    immutable: bool,
    /// The file, if it is in memory.
    memory: Option<Arc<dyn File>>,
}

impl StoreFile<'_> {
    /// Its kind.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Its path in the store's folder, such as `log/00000000000000000001.seg`.
    pub fn name(&self) -> String {
        let folder = match self.kind {
            FileKind::Run { .. } | FileKind::Manifest { .. } => "index",
            _ => "log",
        };
        format!("{folder}/{}", self.file_name())
    }

    /// The number of bytes that belong to the copy.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the file never changes again. The active segment still grows.
    pub fn is_immutable(&self) -> bool {
        self.immutable
    }

    /// The time of an entry of the log, in microseconds since 1970 UTC; of a trimmed entry, the
    /// time of the last one that was trimmed.
    ///
    /// # Errors
    /// [`Error::Future`], the disk, the budget, corruption.
    pub fn time_micros(&self, glsn: Glsn) -> Result<u64> {
        let log = &self.store.reader.log;
        match log.meta(glsn) {
            Err(LogError::Trimmed { .. }) => log.time_or_later(glsn).lift(),
            meta => Ok(meta.lift()?.timestamp_micros),
        }
    }

    /// Reads the file from `from` on, which is rounded down to a whole page of 16 KiB. Pages and
    /// blocks are checked while they are read; damaged or foreign data is an error. Takes 64 KiB of
    /// the budget.
    ///
    /// # Errors
    /// The disk, the budget.
    pub fn read_from(&self, from: u64) -> Result<FileReader<'_>> {
        let file = match &self.memory {
            Some(file) => Arc::clone(file),
            None => self.store.options.disk.open(&self.path, Open::Read, Caching::Buffered)?,
        };
        if self.is_unsynced() {
            match file.sync() {
                Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {}
                synced => synced?,
            }
        }
        let chunk = self.store.reader.budget.take(Kind::Staging)?;
        let at = from / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        Ok(FileReader { file: self, open: file, chunk, at, piece: 0..0 })
    }

    /// The offset at which [`StoreFile::read_from`] begins if it is called with `offset`.
    pub fn page_start(offset: u64) -> u64 {
        offset / PAGE_BYTES as u64 * PAGE_BYTES as u64
    }

    /// Whether the file may hold records that the process which wrote them has not synced. A store
    /// that is open read-only at the same time reads such records. Only the newest segment can,
    /// because creating a segment syncs the one before it.
    fn is_unsynced(&self) -> bool {
        matches!(self.kind, FileKind::Segment { .. })
            && !self.immutable
            && self.store.options.read_only
            && !self.store.options.shared
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file_name(&self) -> &str {
        self.path.file_name().and_then(|name| name.to_str()).expect("a store's files have names")
    }

    /// Checks the bytes from `at` to `end`, read into whole pages.
    pub(crate) fn check(&self, at: u64, end: u64, pages: &[u8]) -> Result<()> {
        let log = &self.store.reader.log;
        check_piece(log.id(), self.file_name(), at, pages)?;
        log.check_piece(self.file_name(), self.immutable, at, end, pages).lift()
    }
}

/// Reads a file of a store; see [`StoreFile::read_from`]. An error of the store is the inner error
/// of the `io::Error`.
#[derive(Debug)]
pub struct FileReader<'a> {
    file: &'a StoreFile<'a>,
    open: Arc<dyn File>,
    chunk: Chunk,
    /// Offset in the file after the piece.
    at: u64,
    /// The bytes of the chunk that were not returned yet.
    piece: std::ops::Range<usize>,
}

impl FileReader<'_> {
    /// Reads the next piece, and checks it.
    fn fill(&mut self) -> Result<()> {
        let bytes = (self.file.bytes - self.at).min(self.chunk.len() as u64) as usize;
        self.open.read_exact_at(&mut self.chunk[..bytes], self.at)?;
        let whole = bytes.next_multiple_of(PAGE_BYTES);
        self.chunk[bytes..whole].fill(0);
        let end = self.at + bytes as u64;
        self.file.check(self.at, end, &self.chunk[..whole])?;
        self.at = end;
        self.piece = 0..bytes;
        Ok(())
    }
}

impl Read for FileReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.piece.is_empty() && self.at < self.file.bytes {
            self.fill().map_err(io::Error::other)?;
        }
        let bytes = into.len().min(self.piece.len());
        let from = self.piece.start;
        into[..bytes].copy_from_slice(&self.chunk[from..from + bytes]);
        self.piece.start += bytes;
        Ok(bytes)
    }
}

/// Keeps the files of a store while they are listed and read.
pub(crate) struct Hold<'a> {
    store: &'a Engine,
    before: Sources,
    _held: Option<Held>,
    _no_trim: MutexGuard<'a, ()>,
}

impl<'a> Hold<'a> {
    pub(crate) fn take(store: &'a Engine) -> Result<Self> {
        let no_trim = store.space.trim_lock.lock().unwrap_or_else(PoisonError::into_inner);
        store.check_open()?;
        let held = store.hold_files()?;
        Ok(Self { store, before: Sources::of(store), _held: held, _no_trim: no_trim })
    }

    /// The error that names the cause, if `error` arose because another process has removed files
    /// of a store that is open read-only; otherwise `error`.
    pub(crate) fn explain(&self, error: Error) -> Error {
        match error {
            Error::Cancelled => error,
            error => self.before.left_behind(self.store).unwrap_or_else(|| match error {
                // The process that removed the file has not published the removal yet.
                Error::Io { kind: io::ErrorKind::NotFound, .. } if self.store.options.read_only => {
                    let bounds = self.store.reader.log.bounds();
                    Error::trimmed(bounds.first, bounds.next)
                }
                error => error,
            }),
        }
    }
}

/// The state of a store's files. If the store is open read-only, another process may drop files
/// later.
struct Sources {
    first: Glsn,
    manifest: u64,
}

impl Sources {
    fn of(store: &Engine) -> Self {
        Self {
            first: store.reader.log.bounds().first,
            manifest: store.reader.index.runs.manifest_number(),
        }
    }

    /// For a read-only store: the error if another process has merged its runs away, trimmed its
    /// log, or written a manifest that is newer than the store's view of the log. `None` if nothing
    /// changed.
    fn left_behind(&self, store: &Engine) -> Option<Error> {
        if !store.options.read_only {
            return None;
        }
        store.reader.log.notice_trim();
        // Ignore an unreadable manifest: the error that led here is more useful.
        let _ = store.reader.index.memtables.refresh();
        let (now, readable) = (Self::of(store), store.reader.log.readable());
        let known = store.reader.index.runs.files().0.head.durable.glsn;
        let left = now.first > self.first || now.manifest > self.manifest || known > readable;
        left.then(|| Error::trimmed(readable, known.max(readable.next())))
    }
}

/// Lists the files of a copy of the store, except its manifest, which is returned with the copy's
/// last position. The caller holds the files.
pub(crate) fn list_whole(
    store: &Engine,
    each: &mut dyn FnMut(&StoreFile<'_>) -> Result<()>,
) -> Result<(Manifest, Position)> {
    let (mut manifest, index_files, _pinned) = store.reader.index.runs.files();
    // The keeper may have installed this manifest since this process last read the log.
    store.committer.fresh()?;
    let readable = store.reader.log.readable();
    if store.options.read_only && manifest.head.durable.glsn > readable {
        // The manifest was refreshed from the writing process; the log was not.
        return Err(Error::trimmed(readable, manifest.head.durable.glsn));
    }
    let immutable = |path: PathBuf, kind| -> Result<StoreFile<'_>> {
        let bytes = store.options.disk.entry(&path)?.map_or(0, |entry| entry.len);
        Ok(StoreFile { store, kind, path, bytes, immutable: true, memory: None })
    };
    for path in index_files {
        let id = number_of(&path);
        each(&immutable(path, FileKind::Run { id })?)?;
    }
    let mut blobs = manifest_blobs(&manifest);
    let mut first: Option<Glsn> = None;
    let end = list_log(store, Glsn::NONE, &mut |file| {
        blobs.remove(file.file_name());
        if let FileKind::Segment { first: begins, .. } = file.kind {
            first = Some(first.map_or(begins, |first| first.min(begins)));
        }
        each(file)
    })?;
    // Another process may have trimmed the log since its manifest was read.
    manifest.head.log_begins = first;
    let (needed, first) = (manifest.head.checkpoint.glsn.next(), store.reader.log.bounds().first);
    if store.options.read_only && first > needed {
        // Another process has trimmed entries that the manifest needs, and this one has noticed:
        // the copy may lack them.
        return Err(Error::trimmed(needed, first));
    }
    // Blob files needed only by the index: the records that named them are trimmed.
    for blob in blobs {
        let path = store.path.join("log").join(blob);
        let id = number_of(&path);
        each(&immutable(path, FileKind::Blob { id })?)?;
    }
    Ok((manifest, end))
}

/// Lists the files of the log, from the segment `from` on.
fn list_log(
    store: &Engine,
    from: Glsn,
    each: &mut dyn FnMut(&StoreFile<'_>) -> Result<()>,
) -> Result<Position> {
    let folder = store.path.join("log");
    let mut failure = None;
    let end = store.reader.log.files_for_backup(from, &mut |file| {
        let path = folder.join(&file.name);
        let number = number_of(&path);
        let kind = match (path.extension().and_then(|kind| kind.to_str()), file.end) {
            (Some("seg"), Some(end)) => FileKind::Segment {
                first: Glsn(number),
                end: end.into(),
                previous_end: file.previous_end.into(),
            },
            (Some("blob"), _) => FileKind::Blob { id: number },
            (Some("idx"), _) => FileKind::Table,
            _ => {
                let (glsn, file) = (Glsn(number), file.name.clone());
                let what = "the end of the segment is unknown".to_owned();
                return Err(LogError::Corrupt { glsn, file, offset: 0, what });
            }
        };
        let (bytes, immutable) = (file.bytes, file.immutable);
        let file = StoreFile { store, kind, path, bytes, immutable, memory: None };
        each(&file).map_err(|error| {
            let message = error.to_string();
            failure = Some(error);
            LogError::Io { kind: io::ErrorKind::Other, message, source: None }
        })
    });
    match failure {
        Some(error) => Err(error),
        None => end.lift(),
    }
}

/// [`Db::files`](crate::Db::files).
pub(crate) fn for_each(
    store: &Engine,
    scope: FileScope,
    each: &mut dyn FnMut(&StoreFile<'_>) -> Result<()>,
) -> Result<LogPosition> {
    let hold = Hold::take(store)?;
    let mut listed = |file: &StoreFile<'_>| match file.kind {
        FileKind::Table => Ok(()),
        _ => each(file),
    };
    let end = match scope {
        FileScope::Whole => whole_with_manifest(store, &mut listed),
        FileScope::LogFrom { segment, after } => {
            check_position(store, after).and_then(|()| list_log(store, segment, &mut listed))
        }
    };
    end.map(LogPosition::from).map_err(|error| hold.explain(error))
}

fn whole_with_manifest(
    store: &Engine,
    each: &mut dyn FnMut(&StoreFile<'_>) -> Result<()>,
) -> Result<Position> {
    let (manifest, end) = list_whole(store, each)?;
    let (memory, folder) = (MemDisk::new(), Path::new("/index"));
    memory.create_dir(folder)?;
    manifest.write(&memory, folder)?;
    let path = folder.join(manifest_name(manifest.head.number));
    let file = memory.open(&path, Open::Read, Caching::Buffered)?;
    let (number, known) = (manifest.head.number, manifest.head.durable.glsn);
    let log_first = manifest.head.log_begins.unwrap_or(Glsn::FIRST);
    let kind = FileKind::Manifest { number, known, log_first };
    let (bytes, memory) = (file.len()?, Some(file));
    each(&StoreFile { store, kind, path, bytes, immutable: true, memory })?;
    Ok(end)
}

/// Fails unless the log has a record that ends at this position, and everything after it.
fn check_position(store: &Engine, after: LogPosition) -> Result<()> {
    let log = &store.reader.log;
    store.committer.fresh()?;
    let bounds = log.bounds();
    if after.glsn.next() < bounds.first {
        return Err(Error::trimmed(after.glsn.next(), bounds.first));
    }
    match log.chain_at(after.glsn).lift()? {
        Some(chain) if chain == after.chain => Ok(()),
        found => {
            let message = match found {
                None if after.glsn >= bounds.next => format!(
                    "the log of this store ends with GLSN {}, but the copy to be continued ends \
                     with GLSN {}; use the store that was copied, or begin a new copy",
                    bounds.next.0 - 1,
                    after.glsn
                ),
                _ => format!(
                    "the log of this store and the copy to be continued have different histories \
                     up to GLSN {}; use the store that was copied, or begin a new copy",
                    after.glsn
                ),
            };
            Err(Error::Forked { glsn: Some(after.glsn), message })
        }
    }
}

/// [`Db::complete_files`](crate::Db::complete_files).
pub(crate) fn complete(path: &Path, options: Options, until: Moment) -> Result<LogPosition> {
    let mut options = options.read_only(false).shared(false).create(false).warm(false);
    options.check()?;
    options.background = false;
    let until = match until {
        Moment::Newest => Until::Glsn(Glsn::MAX),
        Moment::Glsn(glsn) => Until::Glsn(glsn),
        Moment::Time(time) => Until::Micros(to_micros(time)),
    };
    let end = {
        let budget = Budget::new(MIN_MEMORY_BYTES, Backing::Heap)?;
        let pool = Pool::new(&budget, 0).lift()?;
        let (disk, clock) = (Arc::clone(&options.disk), Arc::clone(&options.clock));
        let log = FileLogOptions::new(disk, clock, path.join("log"), pool, budget);
        cut_after(&log, until).lift()?
    };
    let store = open_by(path, options)?;
    // Retain everything meanwhile, whatever the retention of the keyspaces is.
    let everything = store.committer.open_floor(AsOf::unexpiring(Glsn::NONE))?;
    let flushed = store.flush();
    drop(everything);
    let closed = store.close();
    flushed.and(closed)?;
    Ok(end.into())
}

/// Names of the blob files that the index needs.
fn manifest_blobs(manifest: &Manifest) -> BTreeSet<String> {
    let mut blobs = BTreeSet::new();
    for table in manifest.runs.iter().flat_map(|run| &run.tables) {
        if let TableId::Blob(blob) = table.id {
            blobs.insert(blob.file_name());
        }
        blobs.extend(table.blobs.iter().map(|blob| blob.file_name()));
    }
    blobs
}

/// The number that the name of a run, segment or blob file begins with.
fn number_of(path: &Path) -> u64 {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    stem.and_then(|stem| stem.parse().ok()).unwrap_or_default()
}
