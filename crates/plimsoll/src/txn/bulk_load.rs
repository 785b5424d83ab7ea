//! Bulk loads: many rows of one keyspace in one commit, in any order.
//!
//! Rows are collected in memory, sorted by the beginnings of their keys, and written as a run into blob files; nothing goes through a
//! memtable, and a row costs its share of a sort instead of a place in a map. At the end the runs are merged into one, which the index adopts
//! by one record of the log. Rows that come in order are written once and never merged.
//!
//! Law: of several rows with one key the last one wins, within what is in memory (`plimsoll_memory::sort_buffer`) and among runs (a newer
//! one hides an older one).

use std::fmt;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Kind;
use plimsoll_memory::chunk::CHUNK_BYTES;
use plimsoll_memory::sort_buffer::SortBuffer;

use crate::borders::{Border, hit};
use crate::read::point::KeyBuffer;
use crate::txn::committer::Committer;
use crate::txn::read_set::ReadSet;
use crate::txn::spill::SpillBuilder;
use crate::txn::transaction::check_value_bytes;
use crate::txn::write_set::WriteSet;
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::Keyspace;
use crate::types::version::{INLINE_BYTES, Stored};

/// The fewest runs that are merged at once where memory is short.
const FAN_IN_MIN: usize = 8;

/// Divisor: rows that would take at most this part of a record are committed as an ordinary transaction commits them.
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
    writes: WriteSet,
    rows: SortBuffer,
    /// Memory for rows, after which they are written.
    limit_bytes: u64,
    /// Bytes of the rows in memory, as operations of a record.
    operation_bytes: u64,
    /// The newest run: rows that are all greater continue it.
    open: Option<Box<OpenRun>>,
    len: u64,
    encoded: Vec<u8>,
    /// Set when a put failed half-way.
    spoiled: bool,
}

/// A run that is being written.
struct OpenRun {
    builder: SpillBuilder,
    last_key: Vec<u8>,
}

impl BulkLoad {
    pub(crate) fn new(committer: &Arc<Committer>, keyspace: &Keyspace) -> Result<Self> {
        committer.check_writable()?;
        let (reader, options) = (&committer.reader, &committer.options);
        let memory_bytes = reader.budget.limit_bytes();
        let (limit_bytes, body_limit) = (options.bulk_load_limit_bytes(memory_bytes), options.body_limit_bytes());
        let writes =
            WriteSet::new(&committer.patience, &reader.log, limit_bytes, options.sizes.table_bytes, body_limit);
        Ok(Self {
            keyspace: reader.keyspaces.id_to_put(keyspace)?,
            writes,
            rows: SortBuffer::new(&reader.budget, Kind::Sort)?,
            limit_bytes,
            operation_bytes: 0,
            open: None,
            len: 0,
            encoded: Vec::new(),
            spoiled: false,
            committer: Arc::clone(committer),
        })
    }

    /// Gives a key a value, in place of any that it has in the store or was given before. Keys may come in any order; in ascending order they
    /// are loaded fastest.
    ///
    /// # Errors
    /// Key or value is too long (the load goes on without the row); the disk or the budget, after which the load can only be dropped.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_bytes(key.as_ref(), value.as_ref())
    }

    fn put_bytes(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if self.spoiled {
            return Err(InvalidInput::TransactionFailed.into());
        }
        self.committer.reader.owner.check()?;
        let key = KeyBuffer::new(self.keyspace, key)?;
        check_value_bytes(value.len() as u64)?;
        let taken = self.take(key.get(), value);
        self.spoiled |= taken.is_err();
        taken
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if self.rows.held_bytes() > self.limit_bytes {
            self.write_rows()?;
        }
        let mut encoded = std::mem::take(&mut self.encoded);
        encoded.clear();
        if value.len() <= INLINE_BYTES {
            Stored::Inline(value).encode(&mut encoded);
        } else {
            self.writes.put_outside(value)?.encode(&mut encoded);
        }
        if self.rows.push(key, &encoded).is_err() {
            // What is in memory makes room, or others do.
            self.write_rows()?;
            let rows = &mut self.rows;
            self.committer.patience.in_transaction(true, || Ok(rows.push(key, &encoded)?))?;
        }
        self.operation_bytes += key.len() as u64 + encoded.len() as u64 + OPERATION_BYTES;
        self.len += 1;
        self.encoded = encoded;
        Ok(())
    }

    /// How many rows were put, those included that a later one with the same key replaces.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing was put.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes the rows in memory as a run, or behind the newest one if they are all greater.
    fn write_rows(&mut self) -> Result<()> {
        self.committer.check_writable()?;
        if self.rows.is_empty() {
            return Ok(());
        }
        self.rows.sort();
        let mut rows = self.rows.rows().peekable();
        let &(first, _) = rows.peek().expect("there are rows");
        if self.open.as_ref().is_none_or(|run| &run.last_key[..] >= first) {
            Self::end_run(&mut self.open, &mut self.writes)?;
        } else {
            hit(Border::BulkRunContinued);
        }
        let spill = self.writes.spilled_mut();
        let begun = || Box::new(OpenRun { builder: spill.begin(), last_key: Vec::new() });
        let run = self.open.get_or_insert_with(begun);
        let mut key: &[u8] = &[];
        for (next, stored) in rows {
            key = next;
            spill.add(&mut run.builder, key, Stored::decode(stored).expect("it was encoded here"))?;
        }
        run.last_key.clear();
        run.last_key.extend_from_slice(key);
        self.rows.clear();
        self.operation_bytes = 0;
        Ok(())
    }

    fn end_run(open: &mut Option<Box<OpenRun>>, writes: &mut WriteSet) -> Result<()> {
        match open.take() {
            Some(run) => writes.spilled_mut().end(run.builder),
            None => Ok(()),
        }
    }

    /// Commits all rows at once; returns the commit's GLSN once it is durable (as the store's durability says) and visible. It never
    /// conflicts. A load without rows returns the GLSN of the newest commit.
    ///
    /// # Errors
    /// Nothing was committed, except with [`Error::Poisoned`], after which that is unknown until the store is reopened, and [`Error::Stalled`]: it may
    /// have been ordered. The keyspace was dropped, the disk, or the budget.
    pub fn commit(mut self) -> Result<Glsn> {
        if self.spoiled {
            return Err(InvalidInput::TransactionFailed.into());
        }
        if self.is_empty() {
            return Ok(self.committer.open_newest().at());
        }
        let body_bytes = self.committer.options.body_limit_bytes() / SMALL_PART;
        if self.open.is_none() && self.writes.is_empty() && self.operation_bytes <= body_bytes {
            self.keep_rows_in_record()?;
        } else {
            self.write_rows()?;
            Self::end_run(&mut self.open, &mut self.writes)?;
            self.merge_runs()?;
        }
        let Self { committer, writes, rows, keyspace, .. } = self;
        drop(rows);
        // Opened only now: a moment that is held keeps old versions.
        let moment = committer.open_newest();
        let reads = ReadSet::new(&committer.reader.budget, 0);
        committer.commit(&moment, reads, writes, Vec::new(), &[keyspace], &[])?.wait()
    }

    fn keep_rows_in_record(&mut self) -> Result<()> {
        self.rows.sort();
        let mut rows = self.rows.rows();
        rows.try_for_each(|(key, stored)| {
            self.writes.put_stored(key, Stored::decode(stored).expect("it was encoded here"))
        })
    }

    /// Merges the runs with the memory that the rows have left; fewer at once if the budget refuses.
    fn merge_runs(&mut self) -> Result<()> {
        let Self { committer, writes, limit_bytes, .. } = self;
        let mut fan_in = (*limit_bytes as usize / CHUNK_BYTES).max(FAN_IN_MIN);
        loop {
            let merged = committer.patience.in_transaction(true, || writes.spilled_mut().merge_all(fan_in));
            match merged {
                Err(Error::OutOfBudget(_)) if fan_in > FAN_IN_MIN => fan_in = (fan_in / 2).max(FAN_IN_MIN),
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
