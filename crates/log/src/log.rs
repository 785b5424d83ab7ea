//! The interface between the log and the store above it.
//!
//! Laws that every implementation keeps:
//! 1. GLSNs are dense: each submitted entry gets the next number.
//! 2. `durable` never decreases, and everything up to it survives a power cut.
//! 3. After a failed write or sync the log is poisoned: every later submit fails, and so does every
//!    wait for an entry that is not durable. Durable entries can still be read.
//! 4. A read returns the bytes that were submitted, or an error: never other bytes.

use std::fmt::Debug;
use std::ops::Range;
use std::time::Duration;

use crate::blob::{Blob, BlobId, BlobRef, BlobWriter};
use crate::draft::{Draft, Ticket};
use crate::entry::{Entry, EntryMeta, EntryView};
use crate::error::LogError;
use crate::glsn::{Bounds, Glsn, Position, StreamId};

/// When an append returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When it survives a power cut. One sync serves all waiters.
    #[default]
    Sync,
    /// As soon as it is ordered. It is written and synced within about [`BUFFERED_DELAY`], and at
    /// close. A crash of the process or of the machine may lose the appends since the last sync;
    /// these are always a suffix of the order.
    Buffered,
}

/// How long a buffered append may stay unsynced.
pub const BUFFERED_DELAY: Duration = Duration::from_millis(200);

/// One total order of entries.
pub trait Log: Send + Sync + Debug {
    /// The log's id, which was assigned at its creation.
    fn id(&self) -> u128;

    /// The bounds of the log.
    fn bounds(&self) -> Bounds;

    /// Checks which segments another process has trimmed since; called when a file is missing.
    /// Afterwards the bounds begin after them.
    fn notice_trim(&self);

    /// The newest durable position.
    fn position(&self) -> Position;

    /// The chain hash of the record that ends with `glsn`; `None` if no record ends there (or it is
    /// trimmed).
    ///
    /// # Errors
    /// The disk, the budget, or corruption.
    fn chain_at(&self, glsn: Glsn) -> Result<Option<u64>, LogError>;

    /// Fails once the folder of the log or of its store was moved, removed or replaced, or its lock
    /// is lost: from then on no file in it may be changed. The log is poisoned then.
    ///
    /// # Errors
    /// `Poisoned`, with that reason; `ReadOnly`.
    fn check_own(&self) -> Result<(), LogError>;

    /// Assigns a record its place in the order; it is not durable yet. With `expected`, only if its
    /// first GLSN is that one.
    ///
    /// # Errors
    /// `Conflict`, `TooLarge`, `Poisoned`, `ReadOnly`, `OutOfBudget`: nothing was appended.
    fn submit(&self, draft: &Draft<'_>, expected: Option<Glsn>) -> Result<Ticket, LogError>;

    /// Waits until everything up to `glsn` is durable; takes part in a group sync (also in
    /// `Durability::Buffered`).
    ///
    /// # Errors
    /// `Poisoned`: whether the entry survives a crash is unknown. `NotYet` if it was never
    /// submitted.
    fn wait_durable(&self, glsn: Glsn) -> Result<(), LogError>;

    /// Waits until `next` of the bounds is beyond `glsn` and that entry is readable (durable, or
    /// submitted in `Durability::Buffered`), until `patience` has elapsed, or until `is_ended`
    /// returns true, which is called after each [`Log::wake_waiters`]. Never polls. Returns the
    /// last readable GLSN.
    ///
    /// # Errors
    /// `Poisoned`.
    fn wait_beyond(
        &self,
        glsn: Glsn,
        patience: Duration,
        is_ended: &dyn Fn() -> bool,
    ) -> Result<Glsn, LogError>;

    /// Wakes all threads that wait in [`Log::wait_beyond`], so that each checks whether its wait
    /// has ended.
    fn wake_waiters(&self);

    /// The last GLSN that readers may see: durable, or submitted in `Durability::Buffered`.
    fn readable(&self) -> Glsn;

    /// Reads one entry (any that was submitted, durable or not).
    ///
    /// # Errors
    /// `Trimmed`, `NotYet`, `Corrupt`, the disk, the budget.
    fn read(&self, glsn: Glsn) -> Result<Entry, LogError>;

    /// The metadata of an entry; its payload is not read.
    ///
    /// # Errors
    /// As for `read`.
    fn meta(&self, glsn: Glsn) -> Result<EntryMeta, LogError> {
        Ok(self.read(glsn)?.meta)
    }

    /// Fills `into` with payload bytes of entry `glsn` from `offset` on: reads only the blocks it
    /// needs. Returns whether any block with these bytes had to be loaded.
    ///
    /// # Errors
    /// As for `read`; `Corrupt` if the payload ends before.
    fn read_range(&self, glsn: Glsn, offset: u64, into: &mut [u8]) -> Result<bool, LogError>;

    /// Blob files of the record that entry `glsn` belongs to.
    ///
    /// # Errors
    /// As for `read`.
    fn blobs_of(&self, glsn: Glsn) -> Result<Vec<BlobRef>, LogError>;

    /// Entries of `range` that were readable when the scan began or become so while it runs, of one
    /// stream or of all; ends at the end of the range or at the last readable entry.
    ///
    /// # Errors
    /// `Trimmed` if the range begins below the first GLSN, the disk, the budget.
    fn scan(
        &self,
        range: Range<Glsn>,
        stream: Option<StreamId>,
    ) -> Result<Box<dyn Scan + '_>, LogError>;

    /// The last GLSN in log order whose timestamp is at most `micros` since 1970 UTC; `Glsn::NONE`
    /// if there is none. Records before a restart of the log's time count as at least as old as the
    /// restart.
    ///
    /// # Errors
    /// `TimeTrimmed` if that lies below the last GLSN that was trimmed, the disk, the budget.
    fn glsn_at(&self, micros: u64) -> Result<Glsn, LogError>;

    /// Frees whole segments below `until`, and the blob files of their records except those for
    /// which `keep` returns true. Returns the new first GLSN, which may be lower than `until`.
    /// Never trims entries that are not durable.
    ///
    /// # Errors
    /// The disk; segments that were freed before the failure stay freed.
    fn trim(&self, until: Glsn, keep: &dyn Fn(BlobId) -> bool) -> Result<Glsn, LogError>;

    /// Removes blob files that no record in the log names, except those for which `keep` returns
    /// true and those being written.
    ///
    /// # Errors
    /// The disk.
    fn sweep_blobs(&self, keep: &dyn Fn(BlobId) -> bool) -> Result<u64, LogError>;

    /// As [`Log::sweep_blobs`], for these files alone; it costs nothing for other files.
    ///
    /// # Errors
    /// The disk.
    fn sweep_these_blobs(
        &self,
        blobs: &[BlobId],
        keep: &dyn Fn(BlobId) -> bool,
    ) -> Result<u64, LogError>;

    /// From now on only `keep` protects a finished blob file from sweeps: no record will name it,
    /// and the caller has recorded it durably.
    fn hand_over_blob(&self, id: BlobId);

    /// Starts a blob file. Once it is finished it is durable: anything may name it.
    ///
    /// # Errors
    /// The disk, the budget, `Poisoned`, `ReadOnly`.
    fn create_blob(&self) -> Result<Box<dyn BlobWriter>, LogError>;

    /// Starts a blob file that only a record will name. In [`Durability::Buffered`] it may become
    /// durable together with that record; the caller must not name it elsewhere before the record
    /// is durable.
    ///
    /// # Errors
    /// As for `create_blob`.
    fn create_blob_for_record(&self) -> Result<Box<dyn BlobWriter>, LogError>;

    /// Removes a finished blob file that no record names (a transaction that was aborted).
    ///
    /// # Errors
    /// The disk.
    fn discard_blob(&self, id: BlobId) -> Result<(), LogError>;

    /// Opens a finished blob file; opening one twice gives the same pool file.
    ///
    /// # Errors
    /// `Corrupt` if it is missing or not what its header says.
    fn open_blob(&self, id: BlobId) -> Result<Blob, LogError>;
}

/// An iteration over entries in GLSN order.
pub trait Scan: Send {
    /// The next entry, lent until the next call; `None` at the end. No allocation and no copy per
    /// entry (one that spans two blocks is copied into the scan's own buffer).
    fn next(&mut self) -> Option<Result<EntryView<'_>, LogError>>;
}
