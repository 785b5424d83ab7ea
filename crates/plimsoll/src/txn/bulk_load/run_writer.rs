//! Writes the rows of a bulk load as runs, in parallel with the thread that puts the next rows.
//!
//! Invariants:
//! 1. Runs are written in the order of their puts, because a newer run hides an older one.
//! 2. When the writer is dropped, its thread has ended and its files are removed. In a forked
//!    child, which has no such thread, the files are left alone.

use std::mem::{forget, swap};
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use plimsoll_disk::fork::Origin;
use plimsoll_disk::thread::spawn;
use plimsoll_memory::sort_buffer::SortBuffer;

use crate::borders::{Border, hit};
use crate::txn::spill::run_builder::SpillBuilder;
use crate::txn::spill::{MergeMeans, Spill};
use crate::types::cancel::Cancel;
use crate::types::error::Result;
use crate::types::version::Stored;

/// Writes runs, one at a time.
pub(super) struct RunWriter {
    /// Locked by the thread while it writes.
    runs: Arc<Mutex<Runs>>,
    /// Writes the last rows handed over.
    thread: Option<JoinHandle<Result<()>>>,
    has_threads: bool,
    origin: Origin,
}

struct Runs {
    spill: Spill,
    /// The newest run. Rows with only greater keys are appended to it.
    open: Option<OpenRun>,
    /// Rows being written; otherwise empty.
    rows: SortBuffer,
}

/// A run that is being written.
struct OpenRun {
    builder: SpillBuilder,
    last_key: Vec<u8>,
}

impl RunWriter {
    /// A writer of runs into an empty `spill`. With `has_threads`, rows are written while others
    /// are put.
    pub(super) fn new(spill: Spill, rows: SortBuffer, has_threads: bool) -> Self {
        let runs = Arc::new(Mutex::new(Runs { spill, open: None, rows }));
        Self { runs, thread: None, has_threads, origin: Origin::here() }
    }

    /// Writes rows as a run, or appends them to the newest run if all keys are greater. Leaves an
    /// empty buffer in `rows`. Fails if these or earlier rows could not be written.
    pub(super) fn write(&mut self, rows: &mut SortBuffer) -> Result<()> {
        self.wait()?;
        if rows.is_empty() {
            return Ok(());
        }
        swap(&mut self.lock().rows, rows);
        if self.has_threads {
            let runs = Arc::clone(&self.runs);
            // If no thread can be started, the rows are written below.
            self.thread = spawn("plimsoll-load", move || lock(&runs).write()).ok();
        }
        if self.thread.is_none() {
            let mut runs = self.lock();
            runs.write()?;
            // Take the rows' buffer back: without a thread, one buffer is sufficient.
            swap(&mut runs.rows, rows);
        }
        Ok(())
    }

    /// Waits until all rows are written, and releases the memory of the buffer.
    pub(super) fn release_rows(&mut self) -> Result<()> {
        self.wait()?;
        self.lock().rows.release();
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        match self.thread.take() {
            Some(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            None => Ok(()),
        }
    }

    /// Whether there is no run yet.
    pub(super) fn is_empty(&mut self) -> Result<bool> {
        self.wait()?;
        let runs = self.lock();
        Ok(runs.open.is_none() && runs.spill.is_empty())
    }

    /// Number of finished runs.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().spill.runs()
    }

    /// Ends the newest run.
    pub(super) fn end(&mut self) -> Result<()> {
        self.wait()?;
        let Runs { spill, open, .. } = &mut *self.lock();
        end_run(open, spill)
    }

    /// Makes merges fail once `cancel` is set.
    pub(super) fn cancel_by(&mut self, cancel: Cancel) {
        self.lock().spill.cancel_by(cancel);
    }

    /// Merges all runs into one.
    pub(super) fn merge(&mut self, means: MergeMeans) -> Result<()> {
        self.lock().spill.merge_all(means)
    }

    /// Swaps the runs with an empty spill.
    pub(super) fn exchange(&mut self, spill: &mut Spill) {
        swap(&mut self.lock().spill, spill);
    }

    fn lock(&self) -> MutexGuard<'_, Runs> {
        lock(&self.runs)
    }
}

/// If a thread panics with the lock held, [`RunWriter::wait`] propagates the panic.
fn lock(runs: &Mutex<Runs>) -> MutexGuard<'_, Runs> {
    runs.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runs {
    fn write(&mut self) -> Result<()> {
        self.rows.sort();
        let mut rows = self.rows.rows().peekable();
        let &(first, _) = rows.peek().expect("there are rows");
        if self.open.as_ref().is_none_or(|run| &run.last_key[..] >= first) {
            end_run(&mut self.open, &mut self.spill)?;
        } else {
            hit(Border::BulkRunContinued);
        }
        let spill = &self.spill;
        let begun = || OpenRun { builder: spill.begin(), last_key: Vec::new() };
        let run = self.open.get_or_insert_with(begun);
        let mut key: &[u8] = &[];
        for (next, stored) in rows {
            key = next;
            run.builder.add(key, Stored::decode(stored).expect("`put` encoded it"))?;
        }
        run.last_key.clear();
        run.last_key.extend_from_slice(key);
        self.rows.clear();
        Ok(())
    }
}

fn end_run(open: &mut Option<OpenRun>, spill: &mut Spill) -> Result<()> {
    match open.take() {
        Some(run) => spill.end(run.builder),
        None => Ok(()),
    }
}

impl Drop for RunWriter {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.origin.is_foreign() {
            // The parent's thread does not exist in this process and would never end.
            forget(thread);
        } else {
            // The result is dropped together with the files.
            drop(thread.join());
        }
    }
}
