//! Bulk loads: many rows of one keyspace in one commit, in any order.
//!
//! Rows are collected in memory, sorted by the beginnings of their keys, and written as a run into
//! blob files, while the next ones are collected; nothing goes through a memtable, and a row costs
//! its share of a sort instead of a place in a map. At the end the runs are merged into one, in as
//! many parts at once as there are processors, and the index adopts it by one record of the log.
//! Rows that come in order are written once and never merged.
//!
//! Law: of several rows with one key the last one wins, within what is in memory
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
use crate::txn::write_set::WriteSet;
use crate::types::cancel::Cancel;
use crate::types::error::{Error, Result};
use crate::types::index_key::{Prefix, check_key};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::Keyspace;
use crate::types::version::{INLINE_BYTES, Stored, check_value_bytes};

/// The fewest runs that are merged at once where memory is short.
const FAN_IN_MIN: usize = 8;

/// The most parts of a merge, whatever the number of processors: each reads all runs.
const MERGE_THREADS_MAX: usize = 4;

/// Buffers of rows: one is filled while the other is written.
const ROW_BUFFERS: usize = 2;

/// Divisor: rows that would take at most this part of a record are committed as an ordinary
/// transaction commits them.
const SMALL_PART: u64 = 2;

/// Bytes of an operation beside key and value, at most.
const OPERATION_BYTES: u64 = 16;

/// An open bulk load: [`crate::Db::begin_bulk_load`]. Dropped without a commit, it leaves no trace.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let db = plimsoll::Db::open(dir.path().join("store"), plimsoll::Options::new().memory_bytes(16 << 20))?;
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
    /// Memory for rows, after which they are written.
    limit_bytes: u64,
    /// Bytes of the rows in memory, as operations of a record.
    operation_bytes: u64,
    runs: RunWriter,
    len: u64,
    encoded: Vec<u8>,
    /// Set when a put failed half-way.
    spoiled: bool,
    cancel: Cancel,
}

impl BulkLoad {
    pub(crate) fn new(committer: &Arc<Committer>, keyspace: &Keyspace) -> Result<Self> {
        committer.check_writable()?;
        let (reader, options) = (&committer.reader, &committer.options);
        let memory_bytes = reader.budget.limit_bytes();
        let (limit_bytes, body_limit) =
            (options.bulk_load_limit_bytes(memory_bytes), options.body_limit_bytes());
        let writes = WriteSet::new(
            &committer.patience,
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

    /// Gives a key a value, in place of any that it has in the store or was given before. Keys may
    /// come in any order; in ascending order they are loaded fastest.
    ///
    /// # Errors
    /// Key or value is too long (the load goes on without the row); the disk or the budget, after
    /// which the load can only be dropped.
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
        // A panic that the caller survives leaves it so.
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
        let mut encoded = std::mem::take(&mut self.encoded);
        encoded.clear();
        if value.len() <= INLINE_BYTES {
            Stored::Inline(value).encode(&mut encoded);
        } else {
            self.writes.put_outside(&self.key, value)?.encode(&mut encoded);
        }
        if self.rows.push(&self.key, &encoded).is_err() {
            // The other buffer makes room, then what is in memory, or others do.
            self.runs.release_rows()?;
            if self.rows.push(&self.key, &encoded).is_err() {
                self.write_rows()?;
                self.release_rows()?;
                let Self { committer, rows, key, .. } = self;
                committer.patience.in_transaction(true, || Ok(rows.push(key, &encoded)?))?;
            }
        }
        self.operation_bytes += self.key.len() as u64 + encoded.len() as u64 + OPERATION_BYTES;
        self.len += 1;
        self.encoded = encoded;
        Ok(())
    }

    /// Lets another thread or a signal handler give up the commit, which sorts and merges what was
    /// put and may take as long as the puts: once `flag` is set, [`BulkLoad::commit`] soon fails
    /// with [`Error::Cancelled`] and leaves nothing. It comes too late once the commit has its
    /// place in the log.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = plimsoll::Db::open(dir.path().join("store"), plimsoll::Options::new().memory_bytes(16 << 20))?;
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

    /// How many rows were put, those included that a later one with the same key replaces.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing was put.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Has the rows in memory written.
    fn write_rows(&mut self) -> Result<()> {
        self.committer.check_writable()?;
        self.operation_bytes = 0;
        self.runs.write(&mut self.rows)
    }

    /// Waits until all rows are written, and gives back their memory.
    fn release_rows(&mut self) -> Result<()> {
        self.rows.release();
        self.runs.release_rows()
    }

    /// Commits all rows at once; returns the commit's GLSN once it is durable (as the store's
    /// durability says) and visible. It never conflicts. A load without rows returns the GLSN of
    /// the newest commit.
    ///
    /// # Errors
    /// Nothing was committed, except with [`Error::Poisoned`], after which that is unknown until
    /// the store is reopened, and [`Error::Stalled`]: it may have been ordered. The keyspace was
    /// dropped, the disk, or the budget; or the load was cancelled.
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
        // Opened only now: a moment that is held keeps old versions.
        let moment = committer.open_newest();
        let reads = ReadSet::new(&committer.reader.budget, 0);
        let options = CommitOptions { spaces: &[keyspace], metadata: &[], waits: false };
        let ordered = committer.commit(&moment, reads, writes, Vec::new(), options)?;
        CommitTicket::of_commit(&committer, ordered).wait()
    }

    fn keep_rows_in_record(&mut self) -> Result<()> {
        self.rows.sort();
        let mut rows = self.rows.rows();
        rows.try_for_each(|(key, stored)| {
            self.writes.put_stored(key, Stored::decode(stored).expect("it was encoded here"))
        })
    }

    /// Merges the runs with the memory that the rows have left; fewer at once if the budget
    /// refuses.
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
                .patience
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
