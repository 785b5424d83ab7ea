//! Bulk loads: many rows of one keyspace in one commit, in any order.
//!
//! Rows are collected in memory, sorted by key prefix, and written as runs into blob files while
//! the next rows are collected. Nothing passes through a memtable, and a row costs its share of a
//! sort instead of an insertion. At the end, the runs are merged into one, in as many parallel
//! parts as there are processors, and the index adopts it by one log record. Rows in key order are
//! written once and not merged.
//!
//! Invariant: the last of several rows with one key wins, both in memory
//! (`plimsoll_memory::sort_buffer`) and among runs (a newer one hides an older one).

mod run_writer;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use plimsoll_disk::processors;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Kind;
use plimsoll_memory::chunk::CHUNK_BYTES;
use plimsoll_memory::sort_buffer::SortBuffer;

use crate::txn::bulk_load::run_writer::RunWriter;
use crate::txn::commit::CommitOptions;
use crate::txn::committer::Committer;
use crate::txn::read_set::ReadSet;
use crate::txn::spill::{MergeMeans, Spill};
use crate::txn::ticket::CommitTicket;
use crate::txn::transaction::refresh_keyspaces;
use crate::txn::write_set::WriteSet;
use crate::types::cancel::Cancel;
use crate::types::error::{Error, Result};
use crate::types::index_key::{Prefix, check_key};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::Keyspace;
use crate::types::version::{INLINE_BYTES, Stored, check_value_bytes};

/// Minimum number of runs that are merged at once if memory is short.
const FAN_IN_MIN: usize = 8;

/// Maximum number of parallel parts of a merge, because each part reads all runs.
const MERGE_THREADS_MAX: usize = 4;

/// Number of row buffers: one is filled while the other is written.
const ROW_BUFFERS: usize = 2;

/// Divisor: rows that take at most this part of a record are committed like an ordinary
/// transaction.
const SMALL_PART: u64 = 2;

/// Maximum size of an operation besides its key and value.
const OPERATION_BYTES: u64 = 16;

/// An open bulk load, see [`crate::Db::begin_bulk_load`]. If it is dropped without a commit, it
/// leaves no trace.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
/// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
/// let squares = db.keyspace("squares")?;
/// let mut load = db.begin_bulk_load(&squares)?;
/// for number in (0..100_000_u64).rev() {
///     load.put(number.to_be_bytes(), (number * number).to_be_bytes())?;
/// }
/// load.commit()?;
/// assert_eq!(db.get(&squares, 12_u64.to_be_bytes())?.unwrap(), 144_u64.to_be_bytes());
/// # Ok(())
/// # }
/// ```
pub struct BulkLoad {
    committer: Arc<Committer>,
    keyspace: u32,
    /// The index key of the last row: the keyspace, then the user's key.
    key: Vec<u8>,
    writes: WriteSet,
    rows: SortBuffer,
    /// Memory for rows; when it is full, they are written.
    limit_bytes: u64,
    /// Size of the rows in memory as operations of a record.
    operation_bytes: u64,
    runs: RunWriter,
    len: u64,
    encoded: Vec<u8>,
    /// Set when a put failed halfway.
    spoiled: bool,
    cancel: Cancel,
}

impl BulkLoad {
    pub(crate) fn new(committer: &Arc<Committer>, keyspace: &Keyspace) -> Result<Self> {
        committer.check_writable()?;
        refresh_keyspaces(committer)?;
        let (reader, options) = (&committer.reader, &committer.options);
        let memory_bytes = reader.budget.limit_bytes();
        let (limit_bytes, body_limit) =
            (options.sizes.bulk_load_limit_bytes(memory_bytes), options.body_limit_bytes());
        let writes = WriteSet::new(
            &committer.writer_memory,
            (&reader.log, &reader.keyspaces),
            limit_bytes,
            options.sizes.table_bytes,
            body_limit,
        );
        let spill = Spill::new(&reader.budget, &reader.log, options.sizes.table_bytes);
        let rows = || SortBuffer::new(&reader.budget, Kind::Sort);
        let keyspace = reader.keyspaces.id_to_put(keyspace)?;
        Ok(Self {
            keyspace,
            key: Vec::new(),
            writes,
            rows: rows()?,
            limit_bytes,
            operation_bytes: 0,
            runs: RunWriter::new(spill, rows()?, options.background),
            len: 0,
            encoded: Vec::new(),
            spoiled: false,
            cancel: Cancel::default(),
            committer: Arc::clone(committer),
        })
    }

    /// Sets the value of a key, replacing its value in the store or from an earlier put. Keys may
    /// come in any order; ascending order is fastest.
    ///
    /// # Errors
    /// The key or value is too long (the load continues without the row). After a disk error or a
    /// refusal by the budget, the load can only be dropped.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_bytes(key.as_ref(), value.as_ref())
    }

    fn put_bytes(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if self.spoiled {
            return Err(InvalidInput::TransactionFailed.into());
        }
        self.committer.reader.owner.check()?;
        check_key(key)?;
        check_value_bytes(value.len() as u64)?;
        // If the call panics, the load stays spoiled.
        self.spoiled = true;
        self.take(key, value)?;
        self.spoiled = false;
        Ok(())
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.key.clear();
        self.key.extend_from_slice(Prefix::of(self.keyspace).as_bytes());
        self.key.extend_from_slice(key);
        if self.rows.row_bytes() > self.limit_bytes {
            self.write_rows()?;
        }
        let expiry = self.committer.reader.expiry_of_put(&self.key)?;
        let mut encoded = std::mem::take(&mut self.encoded);
        encoded.clear();
        if value.len() <= INLINE_BYTES {
            Stored::Inline(value).expiring(expiry).encode(&mut encoded);
        } else {
            let stored = self.writes.put_outside(&self.key, value)?;
            stored.expiring(expiry).encode(&mut encoded);
        }
        if self.rows.push(&self.key, &encoded).is_err() {
            // Free memory and try again: first the memory of the other buffer, then that of the
            // rows in memory. Other users of the budget may free memory as well.
            self.runs.release_rows()?;
            if self.rows.push(&self.key, &encoded).is_err() {
                self.write_rows()?;
                self.release_rows()?;
                let Self { committer, rows, key, .. } = self;
                committer.writer_memory.in_transaction(true, || Ok(rows.push(key, &encoded)?))?;
            }
        }
        self.operation_bytes += self.key.len() as u64 + encoded.len() as u64 + OPERATION_BYTES;
        self.len += 1;
        self.encoded = encoded;
        Ok(())
    }

    /// Allows another thread or a signal handler to cancel the commit, which sorts and merges the
    /// rows and may take as long as the puts. Once `flag` is set, [`BulkLoad::commit`] soon fails
    /// with [`Error::Cancelled`] and leaves nothing. After the commit is ordered in the log, the
    /// flag has no effect.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
    /// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    ///
    /// let keyspace = db.keyspace("default")?;
    /// let given_up = Arc::new(AtomicBool::new(false));
    /// let mut load = db.begin_bulk_load(&keyspace)?;
    /// load.cancel_on(Arc::clone(&given_up));
    /// load.put("key", "value")?;
    /// given_up.store(true, Ordering::Relaxed);
    /// assert_eq!(load.commit(), Err(plimsoll::Error::Cancelled));
    /// assert_eq!(db.get(&keyspace, "key")?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancel_on(&mut self, flag: Arc<AtomicBool>) {
        self.cancel = Cancel::on(flag);
        self.runs.cancel_by(self.cancel.clone());
    }

    /// Number of rows that were put, including rows that a later one with the same key replaces.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing was put.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Starts writing the rows in memory.
    fn write_rows(&mut self) -> Result<()> {
        self.committer.check_writable()?;
        self.operation_bytes = 0;
        self.runs.write(&mut self.rows)
    }

    /// Waits until all rows are written, and releases their memory.
    fn release_rows(&mut self) -> Result<()> {
        self.rows.release();
        self.runs.release_rows()
    }

    /// Commits all rows at once. Returns the commit's GLSN once it is durable (according to the
    /// store's durability) and visible. It never conflicts. A load without rows returns the GLSN of
    /// the newest commit.
    ///
    /// # Errors
    /// The keyspace was dropped, the load was cancelled, the disk failed, or the budget refused;
    /// nothing was committed. After [`Error::Poisoned`], the outcome is unknown until the store is
    /// reopened; after [`Error::Stalled`], the commit may have been ordered.
    pub fn commit(mut self) -> Result<Glsn> {
        if self.spoiled {
            return Err(InvalidInput::TransactionFailed.into());
        }
        self.cancel.check()?;
        if self.is_empty() {
            return Ok(self.committer.open_newest().at());
        }
        let body_bytes = self.committer.options.body_limit_bytes() / SMALL_PART;
        self.committer.reader.owner.check()?;
        if self.runs.is_empty()? && self.writes.is_empty() && self.operation_bytes <= body_bytes {
            self.keep_rows_in_record()?;
        } else {
            self.write_rows()?;
            self.release_rows()?;
            self.cancel.check()?;
            self.runs.end()?;
            self.merge_runs()?;
            self.runs.exchange(self.writes.spilled_mut());
        }
        self.cancel.check()?;
        let Self { committer, writes, rows, runs, keyspace, .. } = self;
        drop((rows, runs));
        // Opened as late as possible, because an open snapshot retains old versions.
        let moment = committer.open_newest();
        let reads = ReadSet::new(&committer.reader.budget, 0);
        let options =
            CommitOptions { spaces: &[keyspace], metadata: &[], waits: false, lens: None };
        let ordered = committer.commit(&moment, reads, writes, Vec::new(), options)?;
        CommitTicket::of_commit(&committer, ordered).wait()
    }

    fn keep_rows_in_record(&mut self) -> Result<()> {
        self.rows.sort();
        let mut rows = self.rows.rows();
        rows.try_for_each(|(key, stored)| {
            self.writes.put_stored(key, Stored::decode(stored).expect("`put` encoded it"))
        })
    }

    /// Merges the runs in the memory that the rows have released. If the budget refuses, merges
    /// fewer runs at a time.
    fn merge_runs(&mut self) -> Result<()> {
        let Self { committer, runs, limit_bytes, .. } = self;
        let threads = if committer.options.background {
            processors::available().min(MERGE_THREADS_MAX)
        } else {
            1
        };
        let mut buffers = (ROW_BUFFERS * *limit_bytes as usize / CHUNK_BYTES).max(FAN_IN_MIN);
        loop {
            let merged = committer
                .writer_memory
                .in_transaction(true, || runs.merge(MergeMeans { buffers, threads }));
            match merged {
                Err(Error::OutOfBudget(_)) if buffers > FAN_IN_MIN => {
                    buffers = (buffers / 2).max(FAN_IN_MIN)
                }
                merged => return merged,
            }
        }
    }
}

impl fmt::Debug for BulkLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BulkLoad({} rows)", self.len)
    }
}

#[cfg(test)]
mod tests;
