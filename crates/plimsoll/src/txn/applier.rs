//! Applies the commits that the log holds and the index does not: those that other processes, or
//! other replicas, have ordered.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_memory::budget::Budget;

use crate::borders::{Border, hit};
use crate::index::OpenIndex;
use crate::read::system_records::OwnRecords;
use crate::txn::apply::{Apply, Touched, When};
use crate::txn::sequencer::{CommitLock, CommitSequencer};
use crate::types::error::{Lift, Result};
use crate::types::lock::lock;

/// The parts of a store to which commits of others are applied.
pub(crate) struct Applier {
    pub(crate) log: Arc<FileLog>,
    pub(crate) budget: Budget,
    pub(crate) index: Arc<OpenIndex>,
    pub(crate) sequencer: Arc<CommitSequencer>,
    pub(crate) records: Arc<OwnRecords>,
    /// The store's own records that have changed and must be loaded.
    pub(crate) to_load: Mutex<Touched>,
    pub(crate) must_load_records: Arc<AtomicBool>,
}

impl Applier {
    /// Whether the store's own records have changed and must be loaded.
    pub(crate) fn must_load_own_records(&self) -> bool {
        self.must_load_records.load(Ordering::Acquire)
    }

    /// Records that the runs hold everything up to `last`, so that these entries count as applied
    /// without having been read. They may have changed the store's own records, so all of those are
    /// loaded again.
    pub(crate) fn passed(&self, held: &CommitLock<'_>, last: Glsn) {
        *lock(&self.to_load) = Touched::ALL;
        self.must_load_records.store(true, Ordering::Relaxed);
        self.sequencer.took_in(held, last);
    }

    /// Applies the entries that were read, up to `next`. False if there is no room now.
    pub(crate) fn apply(&self, held: &CommitLock<'_>, next: Glsn, when: When) -> Result<bool> {
        let from = self.sequencer.applied().next();
        if from >= next {
            return self.load_own_records().map(|()| true);
        }
        let mut scan = self.log.scan_ordered(from, StreamId::TRANSACTIONS).lift()?;
        let mut apply =
            Apply::new(&self.log, &self.budget, &self.index, when, self.sequencer.applied());
        let applied = loop {
            match scan.next_entry() {
                None => break Ok(()),
                Some(entry) => {
                    if let Err(error) = entry.lift().and_then(|entry| apply.apply(&entry)) {
                        break Err(error);
                    }
                }
            }
        };
        // Link all versions at once in key order, because linking them one by one would wait for
        // memory each time.
        apply.settle();
        // Mark the records before the commits become visible, so that a thread that sees a commit
        // also sees that records must be loaded.
        let touched = apply.touched();
        if touched.restarts_time {
            // The restart sets the time of the log back. Cached rows could then show values that
            // had expired and that merges have dropped.
            self.index.env.context.row_cache.clear();
        }
        if touched != Touched::default() {
            let mut to_load = lock(&self.to_load);
            to_load.add(touched);
            self.must_load_records.store(true, Ordering::Relaxed);
        }
        if applied.is_err() && apply.applied() >= from {
            hit(Border::CatchUpFailed);
        }
        // Everything before `next` counts as applied: the entries after the last commit belong to
        // other streams. `apply` may be beyond `next`, because a thread that does not hold the
        // commit lock may have read more entries since.
        let last =
            if applied.is_ok() { Glsn(next.0 - 1).max(apply.applied()) } else { apply.applied() };
        self.sequencer.took_in(held, last);
        if apply.lacks_room() {
            return Ok(false);
        }
        applied?;
        self.load_own_records().map(|()| true)
    }

    /// Loads the records of keyspaces again after this process has changed one, because another
    /// member may have changed them since. Loads under the commit lock, between two commits. After
    /// an error, they are loaded the next time.
    pub(crate) fn load_own_keyspaces(&self) -> Result<()> {
        let _lock = self.sequencer.lock()?;
        lock(&self.to_load).keyspaces = true;
        self.must_load_records.store(true, Ordering::Relaxed);
        self.load_own_records()
    }

    /// Loads the store's own records that were changed by applied commits. After an error, they are
    /// loaded the next time.
    pub(crate) fn load_own_records(&self) -> Result<()> {
        if !self.must_load_records.load(Ordering::Relaxed) || !self.records.is_loaded() {
            return Ok(());
        }
        hit(Border::OwnRecordsLoading);
        let mut to_load = lock(&self.to_load);
        if to_load.keyspaces {
            self.records.refresh_keyspaces(self.sequencer.applied())?;
            to_load.keyspaces = false;
        }
        if to_load.cursors {
            self.records.refresh_cursors(self.sequencer.applied())?;
            to_load.cursors = false;
        }
        if to_load.tags {
            self.records.refresh_tags(self.sequencer.applied())?;
            // Load the branches as well: a tag that was unknown here may retain the base of a merge
            // that this process has forgotten.
            to_load.branches = true;
            to_load.tags = false;
        }
        if to_load.branches {
            self.records.refresh_branches(self.sequencer.applied())?;
            to_load.branches = false;
        }
        // Versions that were retained before may be dropped from now on.
        self.index.env.signals.call_compaction();
        // Release: a thread that reads `false` also sees the loaded records.
        self.must_load_records.store(false, Ordering::Release);
        Ok(())
    }
}
