//! Borders that a run of the store crosses, for simulations: they are counted, and something can be
//! done at the moment one is crossed.
//!
//! A simulation that never spills a transaction says nothing about spilling; so it counts what it
//! came through and fails where it came nowhere. And what another thread could do between two
//! instructions is done there by the same thread, in the same place in every run of a seed
//! (`at_next`).
//!
//! Only with the feature `testing` is there anything of this: without it [`hit`] is empty.

macro_rules! borders {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A border.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(usize)]
        pub enum Border {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Border {
            /// All of them, in their order.
            pub const ALL: &'static [Border] = &[$(Border::$name,)+];
        }
    };
}

borders! {
    /// A transaction that was spilled is committed.
    SpilledCommit,
    /// A commit that was written as runs is inserted into the memtable.
    RunsInserted,
    /// A commit that was spilled is replayed.
    SpilledReplay,
    /// Spilled runs are merged into one.
    SpillsMerged,
    /// Spilled runs that do not overlap become one.
    SpillsStrung,
    /// The rows in memory of a bulk load continue its newest run.
    BulkRunContinued,
    /// A table file of a run is full, and the next one begins.
    TableFull,
    /// The versions of one key go on in another leaf.
    KeyOverLeaf,
    /// The index block of a group of leaves is full.
    IndexBlockFull,
    /// A read set gives up detail.
    ReadSetCoarsened,
    /// A walk goes on in sources that are newer than those in which it began.
    WalkResumed,
    /// A reader of a value finds it at a new place.
    ValueMoved,
    /// A merge stops within the copying of a value.
    RelocationStopped,
    /// A merge stops between two versions.
    MergeStopped,
    /// A merge installs what it has done, and goes on.
    PartInstalled,
    /// A conflict with a deletion that was moved into history.
    MovedDeletionConflict,
    /// A walk back looks up the newest of many versions of a key.
    ReverseLookup,
    /// A row of an image is taken in although the runs have younger versions of other keys.
    RowBelieved,
    /// A moment is about to be opened.
    MomentAsked,
    /// A read has taken its sources.
    SourcesTaken,
    /// A value was loaded, and is about to become a row.
    ValueLoaded,
    /// A walk has sat down in its sources.
    WalkSat,
    /// A walk seeks over a gap of its transaction.
    OwnGapSkipped,
    /// A transaction pops a row that it has read ahead.
    PoppedAhead,
    /// A commit that deleted much is followed by a search for a gap.
    GapSearched,
    /// A walk publishes a gap of deleted keys.
    GapPublished,
    /// A walk seeks over a gap that another one published.
    GapSkipped,
    /// A member leaves a commit that has read nothing in the log.
    LeftInLog,
    /// A member that reads nothing goes on behind what the runs hold.
    PassedOver,
    /// The log is held for a cursor that is being created.
    CursorHeld,
    /// A piece of a large value was written to a blob file.
    LargeWritten,
    /// A trim has chosen what to free.
    TrimChosen,
    /// A part of the warm image is about to be written.
    ImageMade,
    /// The runs of a flush or of a merge are written, and no manifest names them.
    RunsWritten,
    /// A manifest is written, and nobody reads by it yet.
    ManifestWritten,
    /// A member is about to learn what another one has changed of keyspaces or cursors.
    Learning,
    /// A batch of a removal, or of rows ahead of pops, ends by its bytes.
    BatchByBytes,
    /// A transaction that has popped finds nothing left.
    PoppedToTheEnd,
    /// A read set has no memory: everything counts as read.
    AllRead,
    /// A run that is adopted cuts the gaps that it reaches over.
    GapCutByRun,
    /// A large value is kept.
    LargeKept,
    /// A large value that is kept is superseded.
    LargeSuperseded,
    /// A large value is offered after it was superseded.
    LargeOfferedLate,
    /// A row of the past makes place for one of another moment.
    PastExchanged,
    /// A row of an image is not taken in, because a run may have a younger version.
    RowRefused,
    /// Rows of an image were read and compared with the runs.
    RowsRead,
    /// The restore of rows is stopped by a flush.
    RestoreStopped,
    /// A part of the history is merged.
    PartOfHistoryMerged,
    /// A member fails in catching up, and has applied some of it.
    CatchUpFailed,
    /// A trim is held back by what a member has not applied.
    TrimHeldBack,
    /// A member takes the keeper's place.
    KeeperReplaced,
    /// The turn is found abandoned by a member that has ended.
    TurnAbandoned,
    /// The posts of a group have their places, and none is published.
    PostsPlaced,
    /// A segment is ended for its blob files.
    SegmentEndedForBlobs,
    /// An opening cuts the log's tail.
    TailCut,
}

/// Nothing is counted.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn hit(_: Border) {}

#[cfg(feature = "testing")]
pub use counted::{at_next, at_nth, count_here, counts, do_now, forget, hit};

#[cfg(feature = "testing")]
mod counted {
    use std::cell::{Cell, RefCell};
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::Border;

    const ALL: &[Border] = Border::ALL;

    static COUNTS: [AtomicU64; ALL.len()] = [const { AtomicU64::new(0) }; ALL.len()];

    type Deed = Box<dyn FnOnce()>;

    thread_local! {
        static ARMED: RefCell<Option<(Border, u64, Deed)>> = const { RefCell::new(None) };
        static HERE: [Cell<u64>; ALL.len()] = const { [const { Cell::new(0) }; ALL.len()] };
    }

    /// Counts, and does what waits for it.
    pub fn hit(border: Border) {
        // Relaxed: a count, read when all threads that count have ended.
        COUNTS[border as usize].fetch_add(1, Ordering::Relaxed);
        HERE.with(|counts| counts[border as usize].update(|count| count + 1));
        let is_due = |(at, crossings, _): &mut (Border, u64, Deed)| {
            *crossings -= u64::from(*at == border);
            *crossings == 0
        };
        let deed = ARMED.with_borrow_mut(|armed| armed.take_if(is_due));
        if let Some((_, _, deed)) = deed {
            deed();
        }
    }

    /// How often each border was crossed in this process, in all its threads.
    #[must_use]
    pub fn counts() -> Vec<(Border, u64)> {
        ALL.iter()
            .map(|border| (*border, COUNTS[*border as usize].load(Ordering::Relaxed)))
            .collect()
    }

    /// How often this thread has crossed a border: for tests that run beside others.
    #[must_use]
    pub fn count_here(border: Border) -> u64 {
        HERE.with(|counts| counts[border as usize].get())
    }

    /// Does something when this thread crosses a border the next time; whatever waited before is
    /// forgotten.
    pub fn at_next(border: Border, deed: impl FnOnce() + 'static) {
        at_nth(border, 1, deed);
    }

    /// As [`at_next`], when it crosses the border for the `n`-th time from now.
    pub fn at_nth(border: Border, n: u64, deed: impl FnOnce() + 'static) {
        ARMED.with_borrow_mut(|armed| *armed = Some((border, n.max(1), Box::new(deed))));
    }

    /// Forgets what still waits for a border.
    pub fn forget() {
        ARMED.set(None);
    }

    /// Does what still waits for a border; whether something did.
    pub fn do_now() -> bool {
        let armed = ARMED.with_borrow_mut(Option::take);
        armed.map(|(_, _, deed)| deed()).is_some()
    }

    #[cfg(test)]
    mod tests {
        use std::rc::Rc;

        use crate::thread;

        use super::*;

        #[test]
        fn every_border_has_its_own_count() {
            assert!(ALL.iter().enumerate().all(|(at, border)| *border as usize == at));
        }

        #[test]
        fn a_thread_counts_what_it_crosses_itself() {
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
        fn what_waits_for_a_border_is_done_once_and_there() {
            let done = Rc::new(Cell::new(0));
            let deed = Rc::clone(&done);
            at_next(Border::TableFull, move || deed.set(deed.get() + 1));
            hit(Border::SpillsMerged);
            assert_eq!(done.get(), 0);
            hit(Border::TableFull);
            hit(Border::TableFull);
            assert_eq!((done.get(), do_now()), (1, false));
            let deed = Rc::clone(&done);
            at_next(Border::TableFull, move || deed.set(deed.get() + 1));
            assert_eq!((do_now(), done.get()), (true, 2));
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
