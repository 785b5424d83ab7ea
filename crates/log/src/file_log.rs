//! The log in files: segments of records, offset tables, side files.
//!
//! This is the door to it; each part has a file of its own. A write goes `appender` → `pen` → `buffer` (ordered), then `syncer` → `writer`
//! (durable). A read goes `reader` or `scan` → `table` → the pool → `segment`. `recovery` opens, `trim` frees, `side_file` keeps what is
//! large.

mod append;
mod blobs;
mod durability;
mod files;
pub mod keep;
mod open_log;
pub mod options;
pub mod read;
mod recovery;
pub mod repair;
mod segments;
mod tail;

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::draft::{Draft, Ticket};
use crate::entry::{Entry, EntryMeta};
use crate::error::LogError;
use crate::file_log::blobs::blob_file::FileSideWriter;
use crate::file_log::durability::flusher::Background;
use crate::file_log::keep::backup::BackupFile;
use crate::file_log::open_log::{Core, lock};
use crate::file_log::options::{FileLogOptions, Mode, OpenReport};
use crate::file_log::read::scan::FileScan;
use crate::file_log::repair::verify::{self, Finding, VerifyProgress, VerifyScope};
use crate::glsn::{Bounds, Glsn, Position, StreamId};
use crate::log::{Durability, Log, Scan};
use crate::side::{Side, SideId, SideRef, SideWriter};

/// A segment of more bytes is sealed when the log is closed: reading it would hold up the next process.
pub const LONG_SEGMENT_BYTES: u64 = 4 << 20;

/// A log in a folder.
pub struct FileLog {
    core: Arc<Core>,
    background: Mutex<Option<Background>>,
    closed: AtomicBool,
}

impl FileLog {
    /// Opens a log, or makes one.
    ///
    /// # Errors
    /// `Corrupt`, `Forked`, `Format`, `Locked`, the disk, the budget. Nothing was changed then but a torn tail that was cut.
    pub fn open(options: FileLogOptions) -> Result<(Self, OpenReport), LogError> {
        let threaded =
            options.background && options.durability == Durability::Buffered && options.mode != Mode::ReadOnly;
        let options = FileLogOptions { background: threaded, ..options };
        let (core, report) = recovery::open(options)?;
        let background = if threaded { Some(Background::start(&core)?) } else { None };
        Ok((Self { core, background: Mutex::new(background), closed: AtomicBool::new(false) }, report))
    }

    /// Entries of `range`: as [`Log::scan`], without a box.
    ///
    /// # Errors
    /// As for [`Log::scan`].
    #[inline]
    pub fn scan(&self, range: Range<Glsn>, stream: Option<StreamId>) -> Result<FileScan<'_>, LogError> {
        FileScan::new(&self.core, range, stream)
    }

    /// Reads one entry: as [`Log::read`].
    ///
    /// # Errors
    /// As for [`Log::read`].
    #[inline]
    pub fn read(&self, glsn: Glsn) -> Result<Entry, LogError> {
        self.core.read_entry(glsn)
    }

    /// Syncs everything that was appended, whoever waits for it: the step that the thread of [`Durability::Buffered`] makes.
    ///
    /// # Errors
    /// `Poisoned`, `ReadOnly`.
    pub fn sync(&self) -> Result<(), LogError> {
        self.core.writing()?;
        self.wait_durable(Glsn(self.core.next().0 - 1))
    }

    /// Seals the active segment if it has at least `bytes`, so that whoever opens the log next need not read it; closing does so from
    /// [`LONG_SEGMENT_BYTES`] on. What is in it is synced. Without room for that it stays as it is.
    ///
    /// # Errors
    /// `Poisoned`, `ReadOnly`.
    pub fn seal_from(&self, bytes: u64) -> Result<(), LogError> {
        append::seal_what_is_long(&self.core, bytes)
    }

    /// Reads everything that belongs to the log, past all caches of this process; returns what is not as it was written. Side files that
    /// no record names are needed if they are `kept`.
    ///
    /// # Errors
    /// The disk, the budget. Bad bytes are findings, not errors.
    pub fn verify(
        &self,
        kept: &dyn Fn(SideId) -> bool,
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<Vec<Finding>, LogError> {
        let options = &self.core.options;
        let unfinished = |id| self.core.sides.is_unnamed(id) || self.core.may_be_in_writing(id);
        let scope = VerifyScope {
            disk: &*options.disk,
            dir: &options.dir,
            budget: &options.budget,
            durable: Some(self.core.syncer.durable()),
            unfinished: &unfinished,
            kept,
        };
        verify::verify(&scope, progress)
    }

    /// Syncs the log and names the files of a consistent copy that ends there; returns that place. Side files and sealed segments come
    /// first, the active segment last. Nothing is trimmed or swept before this returns; appends go on.
    ///
    /// # Errors
    /// `Poisoned`, the disk, the budget, and what `each` returns.
    pub fn files_for_backup(
        &self,
        each: &mut dyn FnMut(&BackupFile) -> Result<(), LogError>,
    ) -> Result<Position, LogError> {
        self.core.list_backup(each)
    }

    /// Checks blocks or pages of a file that [`FileLog::files_for_backup`] named, as they were read to be copied: whole ones, from the
    /// offset `at` on, with zeros behind the offset `end`, where what is copied ends or the next piece begins.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn check_piece(&self, name: &str, at: u64, end: u64, bytes: &[u8]) -> Result<(), LogError> {
        self.core.check_piece(name, at, end, bytes)
    }

    /// How many files its folder has.
    ///
    /// # Errors
    /// The disk.
    pub fn file_count(&self) -> Result<usize, LogError> {
        Ok(self.core.options.disk.names(&self.core.options.dir)?.len())
    }

    /// Of a log that is open to read only: takes notice of what the process that writes has trimmed since. [`Log::bounds`] begins behind it then.
    pub fn notice_trim(&self) {
        self.core.notice_trim();
    }

    /// Syncs everything, notes that it was, and lets go of the folder; nothing more is accepted. Dropping the log does the same and tells
    /// nobody how it went. Later calls do nothing.
    ///
    /// # Errors
    /// `Poisoned`, the disk.
    pub fn close(&self) -> Result<(), LogError> {
        drop(lock(&self.background).take());
        let Some(writing) = &self.core.writing else { return Ok(()) };
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let sealed = append::seal_what_is_long(&self.core, LONG_SEGMENT_BYTES);
        let marked = sealed.and_then(|()| append::write_mark(&self.core));
        if marked.is_ok() {
            append::cut_zeros(&self.core);
        }
        self.core.syncer.poison(&LogError::Format { message: "the log is closed".to_owned() });
        lock(&writing.lock).take();
        marked
    }
}

impl Drop for FileLog {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

impl fmt::Debug for FileLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileLog").field("dir", &self.core.options.dir).field("bounds", &self.core.bounds()).finish()
    }
}

impl Log for FileLog {
    fn id(&self) -> u128 {
        self.core.id
    }

    fn bounds(&self) -> Bounds {
        self.core.bounds()
    }

    fn position(&self) -> Position {
        self.core.syncer.position()
    }

    fn chain_at(&self, glsn: Glsn) -> Result<Option<u64>, LogError> {
        self.core.chain_behind(glsn)
    }

    fn submit(&self, draft: &Draft<'_>, expected: Option<Glsn>) -> Result<Ticket, LogError> {
        append::submit(&self.core, draft, expected)
    }

    fn wait_durable(&self, glsn: Glsn) -> Result<(), LogError> {
        let next = self.core.next();
        if glsn >= next {
            return Err(LogError::NotYet { asked: glsn, next });
        }
        self.core.syncer.wait(glsn, &*self.core.options.clock, &|| self.core.write_and_sync())
    }

    fn wait_beyond(&self, glsn: Glsn, patience: Duration) -> Result<Glsn, LogError> {
        if self.core.readable() <= glsn {
            self.core.syncer.wait_for_news(patience, &|| self.core.readable() > glsn);
        }
        let readable = self.core.readable();
        if readable <= glsn {
            self.core.syncer.check()?;
        }
        Ok(readable)
    }

    fn readable(&self) -> Glsn {
        self.core.readable()
    }

    fn read(&self, glsn: Glsn) -> Result<Entry, LogError> {
        self.core.read_entry(glsn)
    }

    fn meta(&self, glsn: Glsn) -> Result<EntryMeta, LogError> {
        self.core.read_meta(glsn)
    }

    fn read_range(&self, glsn: Glsn, offset: u64, into: &mut [u8]) -> Result<(), LogError> {
        self.core.read_part(glsn, offset, into)
    }

    fn sides_of(&self, glsn: Glsn) -> Result<Vec<SideRef>, LogError> {
        self.core.read_sides(glsn)
    }

    fn scan(&self, range: Range<Glsn>, stream: Option<StreamId>) -> Result<Box<dyn Scan + '_>, LogError> {
        Ok(Box::new(FileScan::new(&self.core, range, stream)?))
    }

    fn glsn_at(&self, micros: u64) -> Result<Glsn, LogError> {
        self.core.last_not_younger(micros)
    }

    fn trim(&self, until: Glsn, keep: &dyn Fn(SideId) -> bool) -> Result<Glsn, LogError> {
        self.core.trim_below(until, keep)
    }

    fn sweep_sides(&self, keep: &dyn Fn(SideId) -> bool) -> Result<u64, LogError> {
        self.core.sweep(keep)
    }

    fn create_side(&self) -> Result<Box<dyn SideWriter>, LogError> {
        Ok(Box::new(FileSideWriter::create(&self.core)?))
    }

    fn discard_side(&self, id: SideId) -> Result<(), LogError> {
        self.core.writing()?;
        self.core.discard_side(id)
    }

    fn open_side(&self, id: SideId) -> Result<Side, LogError> {
        self.core.open_side_file(id)
    }
}
