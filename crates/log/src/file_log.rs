//! The log in files: segments of records, offset tables, blob files.
//!
//! Invariants:
//! 1. GLSNs are dense: each submitted entry gets the next number.
//! 2. `durable` never decreases, and everything up to it survives a power cut.
//! 3. After a failed write or sync the log is poisoned: every later submit fails, and so does every
//!    wait for an entry that is not durable. Durable entries can still be read.
//! 4. A read returns the bytes that were submitted, or an error: never other bytes.
//!
//! This file has the public calls; each part has a folder, and each folder uses only those before
//! it in this list: `options`, `files` (names, open handles, replacing a file), `env` (shared by
//! all), `segments` (the list of segments and their offset tables), `tail` (the end of the log in
//! memory), `durability` (writer and group commit), `blobs`, `open_log` (the owners of all that),
//! `append`, `shared` (a log that several processes append to), `read`, `keep` (trimming, backup),
//! `recovery` (opening), `repair` (verify, survey, recover).
//!
//! A write goes `append` → `record_writer` → the tail's buffer (ordered), then `group_commit` →
//! `writer` (durable). A read goes `read::point` or `read::scan` → an offset table → the pool → a
//! segment's file, or the tail's buffer.

mod append;
mod blobs;
mod copies;
mod durability;
mod env;
mod files;
pub mod keep;
mod open_log;
pub mod open_report;
pub mod options;
pub mod read;
mod recovery;
pub mod repair;
mod segments;
pub mod shared;
mod tail;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use plimsoll_disk::job_pool::Job;

use crate::blob::{Blob, BlobId, BlobRef};
use crate::draft::{Draft, Ticket};
use crate::durability::Durability;
use crate::entry::{Entry, EntryMeta};
use crate::error::LogError;
use crate::file_log::blobs::blob_writer::Synced;
pub use crate::file_log::blobs::{blob_copy::BlobFileReader, blob_writer::BlobWriter};
use crate::file_log::durability::flusher::Flusher;
pub use crate::file_log::env::TimeLead;
use crate::file_log::env::lock;
pub use crate::file_log::files::names::UNFINISHED;
use crate::file_log::keep::backup::BackupFile;
use crate::file_log::keep::complete::CompletePages;
pub use crate::file_log::keep::ending::LONG_SEGMENT_BYTES;
use crate::file_log::open_log::OpenLog;
use crate::file_log::open_report::OpenReport;
use crate::file_log::options::{FileLogOptions, Mode};
use crate::file_log::read::scan::FileScan;
use crate::file_log::repair::verify::{self, Finding, VerifyProgress, VerifyScope};
pub use crate::file_log::segments::header_file::id_in;
use crate::file_log::shared::catch_up::{catch_up, wait_for_members};
use crate::file_log::shared::leap::leap;
use crate::file_log::shared::posting::{self, Posted};
use crate::file_log::shared::turn::{Turn, with_order};
use crate::glsn::{Bounds, Glsn, Position, StreamId};

/// A log in a folder.
pub struct FileLog {
    log: OpenLog,
    flusher: Mutex<Option<Flusher>>,
    /// Seals segments in the background; `None` if they are sealed by calls of
    /// [`FileLog::seal_behind`].
    sealer: Option<Job>,
    closed: AtomicBool,
    /// The number of files that other members had removed when this process last checked.
    removed_seen: AtomicU64,
}

impl FileLog {
    /// Calls `each` with each blob file that a record names. A blob file that several records name
    /// may be passed more than once.
    ///
    /// # Errors
    /// Damage, the disk, the budget.
    pub fn for_each_named_blob(&self, each: &mut dyn FnMut(BlobId)) -> Result<(), LogError> {
        self.log.for_each_named_blob(each)
    }

    /// Opens a log, or creates one.
    ///
    /// # Errors
    /// `Corrupt`, `Forked`, `Format`, `Locked`, the disk, the budget. On failure nothing was
    /// changed, except that a torn tail may have been cut.
    pub fn open(options: FileLogOptions) -> Result<(Self, OpenReport), LogError> {
        let background = options.background && options.mode != Mode::ReadOnly;
        let threaded = background && options.durability == Durability::Buffered;
        let options = FileLogOptions { background: threaded, ..options };
        let (log, report) = recovery::open(options)?;
        let flusher = if threaded { Some(log.durability.start_flusher()?) } else { None };
        let sealer = if background { Some(log.start_sealer()?) } else { None };
        let (closed, removed_seen) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok((Self { log, flusher: Mutex::new(flusher), sealer, closed, removed_seen }, report))
    }

    /// Scans the entries of `range`, of one stream or of all, including those that become readable
    /// while it runs. Ends at the end of the range or at the last readable entry.
    ///
    /// # Errors
    /// `Trimmed` if the range begins below the first GLSN, the disk, the budget.
    #[inline]
    pub fn scan(
        &self,
        range: Range<Glsn>,
        stream: Option<StreamId>,
    ) -> Result<FileScan<'_>, LogError> {
        FileScan::new(&self.log, range, stream)
    }

    /// Reads one entry (any that was submitted, durable or not).
    ///
    /// # Errors
    /// `Trimmed`, `NotYet`, `Corrupt`, the disk, the budget.
    #[inline]
    pub fn read(&self, glsn: Glsn) -> Result<Entry, LogError> {
        self.log.read_entry(glsn)
    }

    /// Syncs everything that was appended, for all waiters: one step of the thread of
    /// [`Durability::Buffered`].
    ///
    /// # Errors
    /// `Poisoned`, `ReadOnly`.
    pub fn sync(&self) -> Result<(), LogError> {
        self.log.env.check_writable()?;
        self.log.durability.wait(self.log.tail.last())
    }

    /// Seals the active segment if it has at least `bytes`, so that the next opening of the log
    /// need not read it. Closing the log seals a segment of at least [`LONG_SEGMENT_BYTES`]. Syncs
    /// the segment's entries. If the disk has no room, the segment stays active.
    ///
    /// # Errors
    /// `Poisoned`, `ReadOnly`.
    pub fn seal_from(&self, bytes: u64) -> Result<(), LogError> {
        self.log.seal_from(bytes)
    }

    /// The number of microseconds by which the log's time is ahead of the clock.
    ///
    /// # Errors
    /// As for [`FileLog::catch_up`].
    pub fn time_lead_micros(&self) -> Result<u64, LogError> {
        self.catch_up()?;
        Ok(self
            .log
            .tail
            .read()
            .end
            .timestamp
            .saturating_sub(self.log.env.options.clock.wall_micros()))
    }

    /// The time at which a record would be committed now, in microseconds since 1970 UTC: that of
    /// the clock, but later than the last record that this process knows.
    pub fn now_micros(&self) -> u64 {
        self.log.env.options.clock.wall_micros().max(self.log.tail.timestamp() + 1)
    }

    /// The time of the last record that this process knows, in microseconds since 1970 UTC.
    pub fn last_micros(&self) -> u64 {
        self.log.tail.timestamp()
    }

    /// The time of an entry, in microseconds since 1970 UTC. If the entry was trimmed, the time of
    /// a later one: that of the last record that was trimmed. If its block is damaged, the time of
    /// the last record of its segment.
    ///
    /// # Errors
    /// As for [`FileLog::read`], except `Trimmed` and `Corrupt`.
    pub fn time_or_later(&self, glsn: Glsn) -> Result<u64, LogError> {
        match self.log.read_meta(glsn) {
            Ok(meta) => Ok(meta.timestamp_micros),
            Err(LogError::Trimmed { .. }) => Ok(self.log.trimmed_micros()),
            Err(LogError::Corrupt { .. }) => Ok(self.log.end_of_segment_micros(glsn)),
            Err(error) => Err(error),
        }
    }

    /// Until the result is dropped, records are accepted even if the log's time is too far ahead of
    /// the clock.
    pub fn allow_time_lead(&self) -> TimeLead<'_> {
        self.log.env.is_restarting_time.store(true, Ordering::Release);
        TimeLead(&self.log.env.is_restarting_time)
    }

    /// Restarts the log's time at the clock, durably, if it is ahead of the clock. This ends the
    /// active segment, so the caller first appends an entry to it (under
    /// [`FileLog::allow_time_lead`]).
    ///
    /// # Errors
    /// `InvalidDraft` if the active segment has no entry; `Poisoned`, `ReadOnly`, the disk, the
    /// budget.
    pub fn restart_time(&self) -> Result<(), LogError> {
        self.log.env.check_writable()?;
        with_order(&self.log, |order| append::restart_time(&self.log, order))?;
        self.log.durability.sync_to_end().map(drop)
    }

    /// Ends the active segment so that a trim can free it, if all its entries are below `until` and
    /// this frees at least `bytes`. The blob files that it names and for which `keep` returns false
    /// count as freed. If the disk or the budget has no room, the segment stays active.
    ///
    /// # Errors
    /// `Poisoned`, `ReadOnly`.
    pub fn end_segment_below(
        &self,
        until: Glsn,
        bytes: u64,
        keep: &dyn Fn(BlobId) -> bool,
    ) -> Result<(), LogError> {
        self.log.end_segment_below(until, bytes, keep)
    }

    /// From now on, ends the active segment at this length, if that is below the configured segment
    /// size. The log is freed in whole segments, so smaller segments are freed earlier.
    pub fn end_segments_at(&self, bytes: u64) {
        self.log.env.end_segments_at(bytes);
    }

    /// Bytes of the sealed segments that hold GLSNs from `from` on and end below `until`: the bytes
    /// that are freed when trims advance from `from` to `until`.
    pub fn segment_bytes_between(&self, from: Glsn, until: Glsn) -> u64 {
        let segments = self.log.segments.read();
        let ends = segments.iter().map_while(|segment| segment.sealed());
        ends.filter(|end| from < end.next && end.next <= until).map(|end| u64::from(end.end)).sum()
    }

    /// Bytes of the blob files that records of the active segment name. They can be freed only
    /// after the segment has ended.
    pub fn active_blob_bytes(&self) -> u64 {
        self.log.tail.read().blobs.bytes()
    }

    /// Bytes of the active segment and of the blob files that its records name, if all its records
    /// are below `until`: a trim frees them once the segment has ended.
    ///
    /// # Errors
    /// Those of [`FileLog::end_segment_below`].
    pub fn active_bytes_below(&self, until: Glsn) -> Result<u64, LogError> {
        with_order(&self.log, |order| {
            if order.end.next > until {
                return Ok(0);
            }
            Ok(u64::from(order.end.offset) + self.log.tail.read().blobs.bytes())
        })
    }

    /// Seals a segment that is followed by another one: one step of the sealing job. Returns
    /// whether a segment was waiting to be sealed.
    pub fn seal_behind(&self) -> bool {
        self.log.seal_behind()
    }

    /// Reads every file of the log, bypassing all caches of this process, and returns the damage
    /// found. A blob file that no record names is needed if `kept` returns true for it. The blob
    /// files in `needed` must exist.
    ///
    /// # Errors
    /// The disk, the budget. Bad bytes are findings, not errors.
    pub fn verify(
        &self,
        kept: &dyn Fn(BlobId) -> bool,
        needed: &[BlobId],
        progress: &mut dyn FnMut(VerifyProgress),
    ) -> Result<Vec<Finding>, LogError> {
        if !self.log.env.is_read_only() {
            append::seal(&self.log)?;
        }
        let options = &self.log.env.options;
        // A blob file that another process may still be writing need not be finished.
        let is_of_another = |id| !kept(id) && self.log.may_be_in_writing(id);
        let unfinished = |id| self.log.blobs.registry.is_unnamed(id) || is_of_another(id);
        let scope = VerifyScope {
            disk: &*options.disk,
            dir: &options.dir,
            budget: &options.budget,
            durable: Some(self.log.durability.group.durable()),
            unfinished: &unfinished,
            kept,
            needed,
        };
        verify::verify(&scope, progress)
    }

    /// Syncs the log, lists the files of a consistent copy that ends there, and returns that
    /// position. Blob files and sealed segments are listed first, the active segment last. Segments
    /// that begin below `from` are left out, with their blob files. Nothing is trimmed or swept
    /// before this returns; appends continue.
    ///
    /// # Errors
    /// `Poisoned`, the disk, the budget, and what `each` returns.
    pub fn files_for_backup(
        &self,
        from: Glsn,
        each: &mut dyn FnMut(&BackupFile) -> Result<(), LogError>,
    ) -> Result<Position, LogError> {
        self.log.list_backup(from, each)
    }

    /// Checks whole blocks or pages of a file that [`FileLog::files_for_backup`] listed, as read
    /// for the copy. They begin at the offset `at`; bytes after the offset `end`, where the copy
    /// ends or the next piece begins, are zeros. `immutable` is the value that the listing had for
    /// the file.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn check_piece(
        &self,
        name: &str,
        immutable: bool,
        at: u64,
        end: u64,
        bytes: &[u8],
    ) -> Result<(), LogError> {
        self.log.check_piece(name, immutable, at, end, bytes)
    }

    /// All segments at this time, oldest first; of the active segment, only the blocks before the
    /// one being filled.
    pub fn complete_pages(&self) -> Vec<CompletePages> {
        self.log.complete_pages()
    }

    /// The number of files in the log's folder.
    ///
    /// # Errors
    /// The disk.
    pub fn file_count(&self) -> Result<usize, LogError> {
        Ok(self.log.env.options.disk.names(&self.log.env.options.dir)?.len())
    }

    /// Closes the handles of files that other members have removed since the last call.
    pub fn close_removed(&self) {
        let Some(members) = self.log.env.members() else { return };
        let removed = members.holds.removed();
        if self.removed_seen.swap(removed, Ordering::Relaxed) != removed {
            self.log.blobs.close_removed();
        }
    }

    /// Treats segments that end at or below `until` as trimmed from now on, because another process
    /// is removing them.
    pub fn trimmed_below(&self, until: Glsn) {
        let _trimming = lock(&self.log.segments.trimming);
        self.log.segments.trimmed_below(until);
    }

    /// Syncs everything, writes a mark that records it, and unlocks the folder; nothing more is
    /// accepted. Dropping the log does the same but hides errors. Later calls do nothing.
    ///
    /// # Errors
    /// `Poisoned`, the disk.
    pub fn close(&self) -> Result<(), LogError> {
        self.close_as(self.log.env.members().is_none())
    }

    /// As [`FileLog::close`]; `is_last`: no other process has the log open for writing. If other
    /// processes have it open, no mark is written: only the records that were ordered are synced.
    ///
    /// # Errors
    /// As for [`FileLog::close`].
    pub fn close_as(&self, is_last: bool) -> Result<(), LogError> {
        drop(lock(&self.flusher).take());
        if self.log.env.is_read_only() || self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        if let Some(sealer) = &self.sealer {
            sealer.stop();
        }
        self.log.close(is_last)
    }
}

impl FileLog {
    /// Loads the records that other members have published so far into this process's tail. Does
    /// nothing if this process has the log alone.
    ///
    /// # Errors
    /// `Corrupt`, the disk, the budget.
    pub fn catch_up(&self) -> Result<(), LogError> {
        match self.log.env.members() {
            Some(members) => catch_up(&self.log, members, &mut *self.log.tail.order()?),
            None => Ok(()),
        }
    }

    /// The bytes of the loaded part of the log after `glsn`; `None` if the next entry is not in the
    /// active segment.
    pub fn bytes_behind(&self, glsn: Glsn) -> Option<u64> {
        self.log.tail.read().bytes_behind(glsn)
    }

    /// Resumes after the trimmed part once [`FileLog::catch_up`] has failed with `Trimmed`. Entries
    /// up to `known` are not needed. Returns the first GLSN to be read next, which is not loaded
    /// yet.
    ///
    /// # Errors
    /// `Trimmed` if an entry after `known` is trimmed; `Corrupt`, the disk, the budget.
    pub fn leap(&self, known: Glsn) -> Result<Glsn, LogError> {
        leap(&self.log, &mut *self.log.tail.order()?, known)
    }

    /// Waits for the right to order the next record; `None` if this process has the log alone.
    ///
    /// # Errors
    /// `Stalled`, `Poisoned`, the operating system.
    pub fn turn(&self) -> Result<Option<Turn<'_>>, LogError> {
        self.log.env.members().map(|members| Turn::take(&self.log, members)).transpose()
    }

    /// Commits a record of one entry, together with records that other threads and processes commit
    /// at the same time, and waits until it is durable. Returns its GLSN, or `None` if the caller
    /// must order the record itself.
    ///
    /// # Errors
    /// `Stalled` if the record may still be ordered later; `Poisoned`, the operating system.
    pub fn commit_posted(&self, commit: &Posted<'_>) -> Result<Option<Glsn>, LogError> {
        match self.log.env.members() {
            Some(members) => posting::commit(&self.log, members, commit),
            None => Ok(None),
        }
    }

    /// Fails, and poisons the log, if a file that the processes share was removed, replaced or
    /// overwritten.
    ///
    /// # Errors
    /// `Poisoned`, with that reason; the operating system.
    pub fn check_shared(&self) -> Result<(), LogError> {
        self.log.durability.check_shared()
    }

    /// The entries of a stream from `from` on that are loaded, durable or not.
    ///
    /// # Errors
    /// As for [`FileLog::scan`].
    pub fn scan_ordered(&self, from: Glsn, stream: StreamId) -> Result<FileScan<'_>, LogError> {
        FileScan::of_ordered(&self.log, from..self.log.tail.next(), Some(stream))
    }
}

impl Drop for FileLog {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

impl fmt::Debug for FileLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileLog")
            .field("dir", &self.log.env.options.dir)
            .field("bounds", &self.log.bounds())
            .finish()
    }
}

impl FileLog {
    /// The log's id, made at its creation.
    pub fn id(&self) -> u128 {
        self.log.env.id
    }

    /// The bounds of the log.
    pub fn bounds(&self) -> Bounds {
        self.log.bounds()
    }

    /// Called when a file is missing. Finds out which segments another process has trimmed, and
    /// moves the log's first GLSN past them.
    pub fn notice_trim(&self) {
        self.log.segments.notice_trim();
    }

    /// The newest durable position.
    pub fn position(&self) -> Position {
        self.log.durability.group.position()
    }

    /// The chain hash of the record that ends with `glsn`; `None` if no record ends there (or it is
    /// trimmed).
    ///
    /// # Errors
    /// The disk, the budget, or corruption.
    pub fn chain_at(&self, glsn: Glsn) -> Result<Option<u64>, LogError> {
        self.log.chain_after(glsn)
    }

    /// Fails, and poisons the log, once the folder of the log or of its store was moved, removed or
    /// replaced, or its lock is lost. No file in these folders may be changed after that.
    ///
    /// # Errors
    /// `Poisoned`, with that reason; `ReadOnly`.
    pub fn check_own(&self) -> Result<(), LogError> {
        self.log.durability.check_own()
    }

    /// Assigns a record its place in the order; the record is not durable yet. If `expected` is
    /// given, the record's first GLSN must be that.
    ///
    /// # Errors
    /// `Conflict`, `TooLarge`, `Poisoned`, `ReadOnly`, `OutOfBudget`: nothing was appended.
    pub fn submit(&self, draft: &Draft<'_>, expected: Option<Glsn>) -> Result<Ticket, LogError> {
        match self.log.env.members() {
            Some(members) => Turn::take(&self.log, members)?.submit_expecting(draft, expected),
            None => append::submit(&self.log, draft, expected),
        }
    }

    /// Waits until everything up to `glsn` is durable; takes part in a group sync (also in
    /// `Durability::Buffered`).
    ///
    /// # Errors
    /// `Poisoned`: whether the entry survives a crash is unknown. `NotYet` if it was never
    /// submitted.
    pub fn wait_durable(&self, glsn: Glsn) -> Result<(), LogError> {
        let next = self.log.tail.next();
        if glsn >= next {
            return Err(LogError::NotYet { asked: glsn, next });
        }
        self.log.durability.wait(glsn)
    }

    /// Waits until an entry after `glsn` is readable ([`FileLog::readable`]), `timeout` is over, or
    /// `is_ended` returns true. Calls `is_ended` after each [`FileLog::wake_waiters`]. Polls only
    /// without the right to write to the shared words. Returns the last readable GLSN.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn wait_beyond(
        &self,
        glsn: Glsn,
        timeout: Duration,
        is_ended: &dyn Fn() -> bool,
    ) -> Result<Glsn, LogError> {
        if self.log.readable() <= glsn {
            match self.log.env.members() {
                Some(members) => wait_for_members(&self.log, members, glsn, timeout, is_ended)?,
                None => {
                    let is_over = || self.log.readable() > glsn || is_ended();
                    self.log.durability.group.wait_until(timeout, &is_over);
                }
            }
        }
        let readable = self.log.readable();
        if readable <= glsn {
            self.log.durability.group.check()?;
        }
        Ok(readable)
    }

    /// Wakes all threads in [`FileLog::wait_beyond`], so that each checks whether its wait is
    /// ended.
    pub fn wake_waiters(&self) {
        match self.log.env.members() {
            Some(members) => members.syncs.wake_followers(),
            None => self.log.durability.group.notify_followers(),
        }
    }

    /// The last GLSN that readers may see: durable, or submitted in `Durability::Buffered`.
    pub fn readable(&self) -> Glsn {
        self.log.readable()
    }

    /// The metadata of an entry; its payload is not read.
    ///
    /// # Errors
    /// As for `read`.
    pub fn meta(&self, glsn: Glsn) -> Result<EntryMeta, LogError> {
        self.log.read_meta(glsn)
    }

    /// Fills `into` with payload bytes of entry `glsn` from `offset` on: reads only the blocks it
    /// needs. Returns whether any of the blocks with these bytes was not in memory.
    ///
    /// # Errors
    /// As for `read`; `Corrupt` if the payload ends before the requested bytes do.
    pub fn read_range(&self, glsn: Glsn, offset: u64, into: &mut [u8]) -> Result<bool, LogError> {
        self.log.read_part(glsn, offset, into)
    }

    /// Blob files of the record that entry `glsn` belongs to.
    ///
    /// # Errors
    /// As for `read`.
    pub fn blobs_of(&self, glsn: Glsn) -> Result<Vec<BlobRef>, LogError> {
        self.log.read_blobs(glsn)
    }

    /// The last GLSN in log order whose timestamp is at most `micros` since 1970 UTC; `Glsn::NONE`
    /// if there is none. Records before a restart of the log's time count as at least as old as the
    /// restart.
    ///
    /// # Errors
    /// `TimeTrimmed` if that lies below the last GLSN that was trimmed, the disk, the budget.
    pub fn glsn_at(&self, micros: u64) -> Result<Glsn, LogError> {
        self.log.last_not_younger(micros)
    }

    /// Frees whole segments below `until`, and the blob files of their records except those for
    /// which `keep` returns true. Returns the new first GLSN, which may be lower than `until`.
    /// Never trims entries that are not durable.
    ///
    /// # Errors
    /// The disk; segments that were freed before the failure stay freed.
    pub fn trim(&self, until: Glsn, keep: &dyn Fn(BlobId) -> bool) -> Result<Glsn, LogError> {
        self.trim_after(until, keep, &mut || Ok(()))
    }

    /// As [`FileLog::trim`]; calls `note` before the first file is removed, if one is.
    ///
    /// # Errors
    /// As for [`FileLog::trim`], and the error of `note`, after which nothing was removed.
    pub fn trim_after(
        &self,
        until: Glsn,
        keep: &dyn Fn(BlobId) -> bool,
        note: &mut dyn FnMut() -> Result<(), LogError>,
    ) -> Result<Glsn, LogError> {
        self.log.trim_below(until, keep, note)
    }

    /// Removes blob files that no record in the log names, except those for which `keep` returns
    /// true and those being written. Returns how many were removed.
    ///
    /// # Errors
    /// The disk.
    pub fn sweep_blobs(&self, keep: &dyn Fn(BlobId) -> bool) -> Result<u64, LogError> {
        self.log.sweep(keep)
    }

    /// As [`FileLog::sweep_blobs`], but examines only the files in `blobs`.
    ///
    /// # Errors
    /// The disk.
    pub fn sweep_listed_blobs(
        &self,
        blobs: &[BlobId],
        keep: &dyn Fn(BlobId) -> bool,
    ) -> Result<u64, LogError> {
        self.log.sweep_listed(blobs, keep)
    }

    /// Starts a blob file. It is durable once it is finished, so anything may name it then.
    ///
    /// # Errors
    /// The disk, the budget, `Poisoned`, `ReadOnly`.
    pub fn create_blob(&self) -> Result<BlobWriter, LogError> {
        BlobWriter::create(&self.log.blobs, Synced::Finished)
    }

    /// Starts a blob file that only a record will name. In [`Durability::Buffered`] it may become
    /// durable only together with that record, so nothing else may name it before then.
    ///
    /// # Errors
    /// As for `create_blob`.
    pub fn create_blob_for_record(&self) -> Result<BlobWriter, LogError> {
        BlobWriter::create(&self.log.blobs, Synced::ForRecord)
    }

    /// Notes that no record will name this finished blob file, and that the caller has recorded it
    /// durably elsewhere. From now on, only the `keep` of a sweep protects the file.
    pub fn hand_over_blob(&self, id: BlobId) {
        self.log.blobs.registry.handed_over(id);
    }

    /// Removes a finished blob file that no record names (a transaction that was aborted).
    ///
    /// # Errors
    /// The disk.
    pub fn discard_blob(&self, id: BlobId) -> Result<(), LogError> {
        self.log.env.check_writable()?;
        self.log.blobs.discard(id)
    }

    /// Opens a finished blob file; opening one twice gives the same pool file.
    ///
    /// # Errors
    /// `Corrupt` if it is missing, was never finished, or does not match its trailer.
    pub fn open_blob(&self, id: BlobId) -> Result<Blob, LogError> {
        self.log.blobs.open(id)
    }
}
