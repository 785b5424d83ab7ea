//! Borders: code points of the store that simulations count, and at which they can inject an
//! action.
//!
//! A simulation that never spills a transaction proves nothing about spilling. It therefore counts
//! the borders it crosses and fails if it misses one. `at_next` runs the work of another thread on
//! this thread, between two of its instructions, so that each run of a seed does that work at the
//! same place.
//!
//! Without the feature `testing`, [`hit`] is empty and nothing is counted.

macro_rules! borders {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A border.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(usize)]
        pub enum Border {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Border {
            /// All borders, in order.
            pub const ALL: &'static [Border] = &[$(Border::$name,)+];
        }
    };
}

borders! {
    /// A spilled transaction commits.
    SpilledCommit,
    /// A commit written as runs is inserted into the memtable.
    RunsInserted,
    /// A spilled commit is replayed.
    SpilledReplay,
    /// Spilled runs are merged into one.
    SpillsMerged,
    /// Spilled runs without overlap are concatenated.
    SpillsConcatenated,
    /// The in-memory rows of a bulk load extend its newest run.
    BulkRunContinued,
    /// A table file of a run is full, and the next one is started.
    TableFull,
    /// The versions of one key continue in another leaf.
    KeyOverLeaf,
    /// The index block of a group of leaves is full.
    IndexBlockFull,
    /// A read set is coarsened.
    ReadSetCoarsened,
    /// An iterator resumes in newer sources than those it started with.
    IteratorReattached,
    /// A reader finds a value at its new place.
    ValueMoved,
    /// A merge stops while copying a value.
    RelocationStopped,
    /// A merge stops between two versions.
    MergeStopped,
    /// A merge installs its finished part and continues.
    PartInstalled,
    /// A write conflicts with a deletion that was moved into history.
    MovedDeletionConflict,
    /// A reverse scan looks up the newest of many versions of a key.
    ReverseLookup,
    /// A row of the warm image is valid although the runs have newer versions of other keys.
    RowValidated,
    /// A snapshot is about to be opened.
    MomentAsked,
    /// A read has acquired its sources.
    SourcesTaken,
    /// A value was loaded and is about to become a row.
    ValueLoaded,
    /// An iterator has acquired its sources.
    IteratorAttached,
    /// An iterator skips a gap of the transaction itself.
    OwnGapSkipped,
    /// A transaction pops a row that was read ahead.
    PoppedAhead,
    /// A search for a gap follows a commit with many deletions.
    GapSearched,
    /// An iterator publishes a gap of deleted keys.
    GapPublished,
    /// An iterator skips a gap that another iterator published.
    GapSkipped,
    /// A process leaves another's blind commit in the log, unapplied.
    LeftInLog,
    /// A write-only process skips ahead to the log position that the runs cover.
    SkippedToCheckpoint,
    /// The log is retained for a cursor that is being created.
    CursorHeld,
    /// A piece of a large value was written to a blob file.
    LargeWritten,
    /// A trim has read what is flushed, but not yet what the runs need.
    TrimAsked,
    /// A trim has chosen the segments to free.
    TrimChosen,
    /// A part of the warm image is about to be written.
    ImageMade,
    /// The runs of a flush or merge are written, but no manifest names them yet.
    RunsWritten,
    /// A manifest is written, but no reader uses it yet.
    ManifestWritten,
    /// A process is about to apply another's change of keyspaces or cursors.
    OwnRecordsLoading,
    /// A batch of deletions, or of rows read ahead of pops, ends because of its size.
    BatchByBytes,
    /// A transaction that pops reaches the end.
    PoppedToTheEnd,
    /// A read set cannot allocate memory, so everything counts as read.
    AllRead,
    /// An adopted run cuts the gaps that it overlaps.
    GapCutByRun,
    /// A large value is cached.
    LargeKept,
    /// A cached large value is superseded.
    LargeSuperseded,
    /// A large value is offered to the cache after it was superseded.
    LargeOfferedLate,
    /// A row of one past snapshot replaces that of another.
    PastExchanged,
    /// A row answers with a value that expires later.
    ExpiringRowRead,
    /// A row answers that its value has expired.
    ExpiredRowRead,
    /// A row of the warm image is rejected because a run may have a newer version.
    RowRefused,
    /// Rows of the warm image were read and compared with the runs.
    RowsRead,
    /// A flush stops the restore of rows.
    RestoreStopped,
    /// A part of the history is merged.
    PartOfHistoryMerged,
    /// A process fails while catching up, with some commits applied.
    CatchUpFailed,
    /// Unapplied commits of a process keep a trim from freeing the log.
    TrimHeldBack,
    /// Another process becomes the keeper.
    KeeperReplaced,
    /// The append lock is found abandoned by a dead process.
    TurnAbandoned,
    /// A commit is encoded and has not taken the commit lock yet.
    CommitEncoded,
    /// The posts of a group have their places in the log, but none is published.
    PostsPlaced,
    /// A segment is ended because of its blob files.
    SegmentEndedForBlobs,
    /// An opening cuts the torn tail of the log.
    TailCut,
    /// An update is computed again under the commit lock, because its key has a younger version.
    UpdateRebased,
}

/// Counts nothing.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn hit(_: Border) {}

#[cfg(feature = "testing")]
pub use counted::{at_next, at_nth, count_here, counts, forget, hit, run_pending, without_pending};

#[cfg(feature = "testing")]
mod counted {
    use std::cell::{Cell, RefCell};
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::Border;

    const ALL: &[Border] = Border::ALL;

    static COUNTS: [AtomicU64; ALL.len()] = [const { AtomicU64::new(0) }; ALL.len()];

    type Action = Box<dyn FnOnce()>;

    thread_local! {
        static ARMED: RefCell<Option<(Border, u64, Action)>> = const { RefCell::new(None) };
        static HERE: [Cell<u64>; ALL.len()] = const { [const { Cell::new(0) }; ALL.len()] };
    }

    /// Counts the border and runs the pending action, if any.
    pub fn hit(border: Border) {
        // Relaxed: a counter that is read after all counting threads have ended.
        COUNTS[border as usize].fetch_add(1, Ordering::Relaxed);
        HERE.with(|counts| counts[border as usize].update(|count| count + 1));
        let is_due = |(at, crossings, _): &mut (Border, u64, Action)| {
            *crossings -= u64::from(*at == border);
            *crossings == 0
        };
        let deed = ARMED.with_borrow_mut(|armed| armed.take_if(is_due));
        if let Some((_, _, deed)) = deed {
            deed();
        }
    }

    /// The number of crossings of each border in this process, over all threads.
    #[must_use]
    pub fn counts() -> Vec<(Border, u64)> {
        ALL.iter()
            .map(|border| (*border, COUNTS[*border as usize].load(Ordering::Relaxed)))
            .collect()
    }

    /// The number of times this thread has crossed a border; for tests that run in parallel.
    #[must_use]
    pub fn count_here(border: Border) -> u64 {
        HERE.with(|counts| counts[border as usize].get())
    }

    /// Runs an action when this thread next crosses a border; replaces a pending action.
    pub fn at_next(border: Border, deed: impl FnOnce() + 'static) {
        at_nth(border, 1, deed);
    }

    /// Like [`at_next`], at the `n`-th crossing from now.
    pub fn at_nth(border: Border, n: u64, deed: impl FnOnce() + 'static) {
        ARMED.with_borrow_mut(|armed| *armed = Some((border, n.max(1), Box::new(deed))));
    }

    /// Drops the pending action.
    pub fn forget() {
        ARMED.set(None);
    }

    /// Calls `work` without the pending action: for work of another process that this thread does
    /// meanwhile.
    pub fn without_pending<T>(work: impl FnOnce() -> T) -> T {
        let armed = ARMED.take();
        let done = work();
        ARMED.set(armed);
        done
    }

    /// Runs the pending action now; returns whether there was one.
    pub fn run_pending() -> bool {
        let armed = ARMED.with_borrow_mut(Option::take);
        armed.map(|(_, _, deed)| deed()).is_some()
    }

    #[cfg(test)]
    mod tests {
        use std::rc::Rc;

        use crate::thread;

        use super::*;

        #[test]
        fn each_border_has_its_own_count() {
            assert!(ALL.iter().enumerate().all(|(at, border)| *border as usize == at));
        }

        #[test]
        fn thread_counts_its_own_crossings() {
            // A machine with one processor runs all tests in one thread.
            let before = count_here(Border::TableFull);
            hit(Border::TableFull);
            thread::spawn("borders", || (0..3).for_each(|_| hit(Border::TableFull)))
                .unwrap()
                .join()
                .unwrap();
            assert_eq!(count_here(Border::TableFull) - before, 1);
            assert!(counts()[Border::TableFull as usize].1 >= 4);
        }

        #[test]
        fn pending_action_runs_once_at_its_border() {
            let done = Rc::new(Cell::new(0));
            let deed = Rc::clone(&done);
            at_next(Border::TableFull, move || deed.set(deed.get() + 1));
            hit(Border::SpillsMerged);
            assert_eq!(done.get(), 0);
            hit(Border::TableFull);
            hit(Border::TableFull);
            assert_eq!((done.get(), run_pending()), (1, false));
            let deed = Rc::clone(&done);
            at_next(Border::TableFull, move || deed.set(deed.get() + 1));
            assert_eq!((run_pending(), done.get()), (true, 2));
            let deed = Rc::clone(&done);
            at_nth(Border::TableFull, 2, move || deed.set(deed.get() + 1));
            hit(Border::TableFull);
            assert_eq!(done.get(), 2);
            hit(Border::TableFull);
            assert_eq!(done.get(), 3);
            at_next(Border::TableFull, || panic!("it was forgotten"));
            forget();
            hit(Border::TableFull);
        }
    }
}
