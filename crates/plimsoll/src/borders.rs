//! Borders that a run of the store crosses, for simulations: they are counted, and something can be done at the moment one is crossed.
//!
//! A simulation that never spills a transaction says nothing about spilling; so it counts what it came through and fails where it came
//! nowhere. And what another thread could do between two instructions is done there by the same thread, in the same place in every run of
//! a seed (`at_next`).
//!
//! Only with the feature `testing` is there anything of this: without it [`hit`] is empty.

/// A border.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Border {
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
}

#[cfg(not(feature = "testing"))]
#[inline(always)]
pub(crate) fn hit(_: Border) {}

#[cfg(feature = "testing")]
pub(crate) use counted::hit;
#[cfg(feature = "testing")]
pub use counted::{at_next, count_here, counts, do_now};

#[cfg(feature = "testing")]
mod counted {
    use std::cell::{Cell, RefCell};
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::Border;

    /// Every border, in their order.
    const ALL: [Border; 29] = [
        Border::SpilledCommit,
        Border::RunsInserted,
        Border::SpilledReplay,
        Border::SpillsMerged,
        Border::SpillsStrung,
        Border::BulkRunContinued,
        Border::TableFull,
        Border::KeyOverLeaf,
        Border::IndexBlockFull,
        Border::ReadSetCoarsened,
        Border::WalkResumed,
        Border::ValueMoved,
        Border::RelocationStopped,
        Border::MergeStopped,
        Border::PartInstalled,
        Border::MovedDeletionConflict,
        Border::ReverseLookup,
        Border::RowBelieved,
        Border::MomentAsked,
        Border::SourcesTaken,
        Border::ValueLoaded,
        Border::WalkSat,
        Border::OwnGapSkipped,
        Border::PoppedAhead,
        Border::GapSearched,
        Border::GapPublished,
        Border::GapSkipped,
        Border::LeftInLog,
        Border::PassedOver,
    ];

    static COUNTS: [AtomicU64; ALL.len()] = [const { AtomicU64::new(0) }; ALL.len()];

    type Deed = Box<dyn FnOnce()>;

    thread_local! {
        static ARMED: RefCell<Option<(Border, Deed)>> = const { RefCell::new(None) };
        static HERE: [Cell<u64>; ALL.len()] = const { [const { Cell::new(0) }; ALL.len()] };
    }

    /// Counts, and does what waits for it.
    pub(crate) fn hit(border: Border) {
        // Relaxed: a count, read when all threads that count have ended.
        COUNTS[border as usize].fetch_add(1, Ordering::Relaxed);
        HERE.with(|counts| counts[border as usize].update(|count| count + 1));
        let deed = ARMED.with_borrow_mut(|armed| armed.take_if(|(at, _)| *at == border));
        if let Some((_, deed)) = deed {
            deed();
        }
    }

    /// How often each border was crossed in this process, in all its threads.
    #[must_use]
    pub fn counts() -> Vec<(Border, u64)> {
        ALL.iter().map(|border| (*border, COUNTS[*border as usize].load(Ordering::Relaxed))).collect()
    }

    /// How often this thread has crossed a border: for tests that run beside others.
    #[must_use]
    pub fn count_here(border: Border) -> u64 {
        HERE.with(|counts| counts[border as usize].get())
    }

    /// Does something when this thread crosses a border the next time; whatever waited before is forgotten.
    pub fn at_next(border: Border, deed: impl FnOnce() + 'static) {
        ARMED.with_borrow_mut(|armed| *armed = Some((border, Box::new(deed))));
    }

    /// Does what still waits for a border; whether something did.
    pub fn do_now() -> bool {
        let armed = ARMED.with_borrow_mut(Option::take);
        armed.map(|(_, deed)| deed()).is_some()
    }

    #[cfg(test)]
    mod tests {
        use std::rc::Rc;

        use plimsoll_disk::thread;

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
            thread::spawn("borders", || (0..3).for_each(|_| hit(Border::TableFull))).unwrap().join().unwrap();
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
        }
    }
}
