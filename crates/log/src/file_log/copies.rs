//! A log that is one of several copies: its records, and the blob files that they name, are ordered
//! elsewhere.

use std::io::Read;

use crate::blob::{BlobId, BlobRef};
use crate::draft::{CommitTimes, Draft, Ticket};
use crate::error::LogError;
use crate::file_log::FileLog;
use crate::file_log::append;
use crate::file_log::blobs::blob_copy::{self, BlobFileReader};
use crate::file_log::env::lock;
use crate::file_log::files::names::FileName;
use crate::glsn::Glsn;

impl FileLog {
    /// Appends a record that was ordered elsewhere: its first entry is `first`, and its time is
    /// `timestamp_micros`.
    ///
    /// # Errors
    /// As for [`FileLog::submit`]: `Conflict` if another entry is next, and `InvalidDraft` if the
    /// last record is not older.
    pub fn submit_ordered(
        &self,
        draft: &Draft<'_>,
        first: Glsn,
        timestamp_micros: u64,
    ) -> Result<Ticket, LogError> {
        self.log.env.check_writable()?;
        append::submit_ordered(&self.log, draft, first, timestamp_micros)
    }

    /// Checks the sizes of a record, before another copy gets it.
    ///
    /// # Errors
    /// `TooLarge`, `InvalidDraft`.
    pub fn check_draft(&self, draft: &Draft<'_>) -> Result<(), LogError> {
        append::check_draft(draft)
    }

    /// The time of a record that is committed now, after one with the time `last_micros`. It may be
    /// ahead of the clock by any amount, because the time of the other copies cannot be restarted.
    ///
    /// # Errors
    /// `Late` if it is not one of `times`.
    pub fn time_after(&self, last_micros: u64, times: CommitTimes) -> Result<u64, LogError> {
        let micros = self.log.env.options.clock.wall_micros().max(last_micros + 1);
        times.check(micros).map(|()| micros)
    }

    /// Sets the node of the ids of blob files that are written from now on ([`BlobId::node`]).
    pub fn set_node(&self, node: u16) {
        self.log.blobs.registry.set_node(node);
    }

    /// Reads the whole file of a finished blob.
    ///
    /// # Errors
    /// `Corrupt` if it is missing or was never finished, the disk, the budget.
    pub fn read_blob_file(&self, id: BlobId) -> Result<BlobFileReader, LogError> {
        BlobFileReader::open(&self.log.blobs, id)
    }

    /// Writes the blob file that a record of another copy names, durably. A file of this id that
    /// exists here is replaced; no record may name it.
    ///
    /// # Errors
    /// `Corrupt` if `bytes` are not that file; the disk, the budget, `Poisoned`.
    pub fn copy_blob(&self, blob: BlobRef, bytes: &mut dyn Read) -> Result<(), LogError> {
        self.log.env.check_writable()?;
        blob_copy::copy(&self.log.blobs, &self.log.segments.trimming, blob, bytes)
    }

    /// Makes a whole blob file durable that no record names, because a process that was killed may
    /// have left it unsynced.
    ///
    /// # Errors
    /// The disk, `Poisoned`.
    pub fn sync_blob(&self, id: BlobId) -> Result<(), LogError> {
        self.log.env.check_writable()?;
        blob_copy::sync(&self.log.blobs, id)
    }

    /// Keeps a blob file from being swept until a record names it, whether it is there already or
    /// not. A sweep in progress ends first.
    pub fn expect_blob(&self, id: BlobId) {
        let _no_sweep = lock(&self.log.segments.trimming);
        self.log.blobs.registry.begin_copy(id);
    }

    /// Whether there is a blob file of this id, whole or not.
    ///
    /// # Errors
    /// The disk.
    pub fn has_blob_file(&self, id: BlobId) -> Result<bool, LogError> {
        let path = self.log.env.files.path(FileName::Blob(id));
        Ok(self.log.env.options.disk.entry(&path)?.is_some())
    }

    /// The chain hash of everything appended.
    pub fn end_chain(&self) -> u64 {
        self.log.tail.read().end.chain
    }

    /// Whether a record of the log names a blob file.
    ///
    /// # Errors
    /// Damage, the disk, the budget.
    pub fn is_blob_named(&self, id: BlobId) -> Result<bool, LogError> {
        let mut is_named = false;
        self.for_each_named_blob(&mut |named| is_named |= named == id)?;
        Ok(is_named)
    }
}
