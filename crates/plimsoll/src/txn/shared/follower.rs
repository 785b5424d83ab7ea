//! Follows what other members of the store commit: their commits are applied to this process's
//! index before it reads a moment that holds them, and before it orders a commit of its own that
//! has read something ([`crate::txn::shared::blind`] has the others).
//!
//! Law: what was durable anywhere when a read begins is seen by it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_log::error::LogError;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::file_log::shared::turn::Turn;
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_log::members::Members;
use plimsoll_memory::budget::Budget;

use crate::borders::{Border, hit};
use crate::index::OpenIndex;
use crate::read::own_records::OwnRecords;
use crate::txn::apply::{Apply, Touched, When};
use crate::txn::sequencer::{CommitLock, CommitSequencer};
use crate::types::error::{Error, Lift, Result};

/// Entries that are taken in under the turn: for so few, one look at the log is cheaper than two.
pub(crate) const FEW: u64 = 16;

/// How often more is taken in, where a moment was dropped that was about to be read.
const ROUNDS: u32 = 16;

/// What a member needs to follow the others.
pub(crate) struct Follower {
    pub(crate) members: Arc<Members>,
    pub(crate) log: Arc<FileLog>,
    pub(crate) budget: Budget,
    pub(crate) index: Arc<OpenIndex>,
    pub(crate) sequencer: Arc<CommitSequencer>,
    /// Whether commits are readable before they are durable.
    pub(crate) is_buffered: bool,
    pub(crate) records: Arc<OwnRecords>,
    /// Which of the store's own records have changed and are to be read.
    pub(crate) to_learn: Mutex<Touched>,
    pub(crate) is_to_learn: Arc<AtomicBool>,
}

impl Follower {
    /// The newest commit that is readable anywhere now.
    pub(crate) fn readable(&self) -> Result<Glsn> {
        match self.is_buffered {
            true if !self.members.table.is_reader() => self.ordered(),
            _ => self.members.following.newest().lift(),
        }
    }

    /// The newest commit that was ordered anywhere.
    fn ordered(&self) -> Result<Glsn> {
        self.members.marks.newest_ordered().lift()
    }

    /// The newest commit that a process which reads what is ordered applies now.
    pub(crate) fn ordered_to_read(&self) -> Glsn {
        let newest = if self.members.table.is_reader() { self.readable() } else { self.ordered() };
        newest.unwrap_or(Glsn::NONE)
    }

    /// Whether everything that is readable anywhere was taken in. Reads words in memory.
    ///
    /// # Errors
    /// Nobody is followed any more.
    pub(crate) fn is_fresh(&self) -> Result<bool> {
        // Acquire: partner of the store that clears it in `learn`.
        Ok(self.sequencer.visible() >= self.readable()?
            && !self.is_to_learn.load(Ordering::Acquire))
    }

    /// Takes in what is readable anywhere now.
    pub(crate) fn take_in(&self) -> Result<()> {
        if self.is_fresh()? { Ok(()) } else { self.catch_up() }
    }

    /// Takes in everything that was ordered anywhere.
    pub(crate) fn take_in_ordered(&self) -> Result<()> {
        if self.sequencer.applied() >= self.ordered()? { Ok(()) } else { self.catch_up() }
    }

    /// Whether the store's own records have changed and are to be read.
    pub(crate) fn has_to_learn(&self) -> bool {
        self.is_to_learn.load(Ordering::Acquire)
    }

    /// Whether every commit that changes the records of keyspaces is applied and learned. Does not
    /// change while the turn is held.
    pub(crate) fn is_known(&self) -> bool {
        // In this order: what was applied and is not learned yet says so before it counts as
        // applied.
        let is_applied = self.members.marks.to_be_known() <= self.sequencer.applied();
        is_applied && !self.is_to_learn.load(Ordering::Acquire)
    }

    fn catch_up(&self) -> Result<()> {
        let mut rounds = 0;
        loop {
            rounds += 1;
            match self.catch_up_once() {
                // The manifest is ahead of what was taken in. What dropped the moment is younger,
                // and is there to be taken in.
                Err(Error::Trimmed { .. }) if rounds < ROUNDS => {}
                done => return done.map_err(|error| self.of_catching_up(error)),
            }
        }
    }

    fn catch_up_once(&self) -> Result<()> {
        let lock = self.sequencer.lock()?;
        match self.log.catch_up() {
            Err(LogError::Trimmed { .. }) if self.members.table.is_reader() => self.leap(&lock)?,
            done => done.lift()?,
        }
        match self.apply_rest(&lock) {
            // It was freed after it was taken in, and the runs hold it.
            Err(Error::Trimmed { .. }) if self.members.table.is_reader() => {
                self.index.following.follow(&self.members)?;
                self.pass_over(&lock);
                self.apply_rest(&lock)
            }
            applied => applied,
        }
    }

    /// Goes on behind what the runs hold, without applying it.
    pub(crate) fn pass_over(&self, lock: &CommitLock<'_>) {
        let (applied, next) = (self.sequencer.applied(), self.log.bounds().next);
        if let Some(last) = self.index.memtables.pass_over(&self.members, applied, next) {
            hit(Border::PassedOver);
            self.passed(lock, last);
        }
    }

    /// Nothing was kept for this process, and what it was to take in next is gone: it goes on from
    /// the newest manifest, which holds that.
    fn leap(&self, lock: &CommitLock<'_>) -> Result<()> {
        let mut rounds = 0;
        let first = loop {
            rounds += 1;
            let known = self.index.memtables.leap(&self.members, self.sequencer.applied())?;
            match self.log.leap(known) {
                Err(LogError::Trimmed { .. }) if rounds < ROUNDS => {}
                leapt => break leapt.map_err(|error| self.of_catching_up(Error::of_log(error)))?,
            }
        };
        self.passed(lock, Glsn(first.0 - 1));
        self.log.catch_up().map_err(|error| self.of_catching_up(Error::of_log(error)))
    }

    /// Everything up to `last` is in the runs, and counts as applied. What others have changed
    /// meanwhile of the store's own records was not seen.
    pub(crate) fn passed(&self, lock: &CommitLock<'_>, last: Glsn) {
        *self.to_learn.lock().unwrap_or_else(PoisonError::into_inner) =
            Touched { keyspaces: true, cursors: true };
        self.is_to_learn.store(true, Ordering::Relaxed);
        self.sequencer.took_in(lock, last);
    }

    /// What a process is told for which nothing was kept.
    fn of_catching_up(&self, error: Error) -> Error {
        match error {
            Error::Trimmed { asked, first } if self.members.table.is_reader() => Error::Behind {
                cause: format!(
                    "the log was trimmed below GLSN {first}, and this process has taken in only \
                     what is before {asked}; nothing is kept for one that may not write to the \
                     store's folder, nor by one that has the store for itself"
                ),
            },
            error => error,
        }
    }

    /// Takes in everything that was committed anywhere, and waits until it is durable.
    pub(crate) fn take_in_durably(&self) -> Result<()> {
        self.take_in()?;
        let applied = self.sequencer.applied();
        if self.is_buffered && !self.members.table.is_reader() && applied > Glsn::NONE {
            self.log.wait_durable(applied).lift()?;
        }
        Ok(())
    }

    /// Waits for the right to order a commit; no lock is held meanwhile. If others have ordered
    /// more than a few entries, takes these in first, so that little is left to do while they wait.
    pub(crate) fn wait_for_turn(&self) -> Result<Turn<'_>> {
        if self.members.marks.next().0 > self.sequencer.applied().next().0 + FEW {
            self.catch_up()?;
        }
        Ok(self.log.turn().lift()?.expect("a member's log has turns"))
    }

    /// Takes in everything that was ordered, under the turn: from here on nothing else is. False if
    /// a memtable has to be flushed before: not under the turn, but by [`Follower::apply_rest`].
    pub(crate) fn begin(&self, turn: &mut Turn<'_>, lock: &CommitLock<'_>) -> Result<bool> {
        let tip = turn.begin().lift()?;
        self.apply(lock, tip.next(), When::InTurn)
    }

    /// Applies what was taken into the log. May wait for a flush.
    pub(crate) fn apply_rest(&self, lock: &CommitLock<'_>) -> Result<()> {
        self.apply(lock, self.log.bounds().next, When::Live).map(drop)
    }

    /// Applies what was taken into the log, up to `next`. False if there is no room for it now.
    fn apply(&self, lock: &CommitLock<'_>, next: Glsn, when: When) -> Result<bool> {
        let from = self.sequencer.applied().next();
        if from >= next {
            return self.learn().map(|()| true);
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
        // All at once, in the order of their keys: one by one, each would wait for memory by
        // itself.
        apply.settle();
        // Before it is visible: a thread that sees the commit also sees that there is something to
        // learn.
        let touched = apply.touched();
        if touched != Touched::default() {
            let mut to_learn = self.to_learn.lock().unwrap_or_else(PoisonError::into_inner);
            to_learn.keyspaces |= touched.keyspaces;
            to_learn.cursors |= touched.cursors;
            self.is_to_learn.store(true, Ordering::Relaxed);
        }
        // Entries of other streams may come last. And the log may have been taken in further
        // meanwhile, by a thread that has not the lock.
        if applied.is_err() && apply.applied() >= from {
            hit(Border::CatchUpFailed);
        }
        let last =
            if applied.is_ok() { Glsn(next.0 - 1).max(apply.applied()) } else { apply.applied() };
        self.sequencer.took_in(lock, last);
        if apply.lacks_room() {
            return Ok(false);
        }
        applied?;
        self.learn().map(|()| true)
    }

    /// Learns, in the order of the commits, what this process has changed of the records of
    /// keyspaces: another member may have changed them since. What fails is learned the next time.
    pub(crate) fn learn_own(&self) -> Result<()> {
        let _lock = self.sequencer.lock()?;
        self.to_learn.lock().unwrap_or_else(PoisonError::into_inner).keyspaces = true;
        self.is_to_learn.store(true, Ordering::Relaxed);
        self.learn()
    }

    /// Learns what the commits that were applied have changed of the store's own records. What
    /// fails is done the next time.
    pub(crate) fn learn(&self) -> Result<()> {
        if !self.is_to_learn.load(Ordering::Relaxed) || !self.records.is_loaded() {
            return Ok(());
        }
        hit(Border::Learning);
        let mut to_learn = self.to_learn.lock().unwrap_or_else(PoisonError::into_inner);
        if to_learn.keyspaces {
            self.records.refresh_keyspaces(self.sequencer.applied())?;
            to_learn.keyspaces = false;
        }
        if to_learn.cursors {
            self.records.refresh_cursors(self.sequencer.applied())?;
            to_learn.cursors = false;
        }
        // Release: who sees that nothing is to be learned sees what was.
        self.is_to_learn.store(false, Ordering::Release);
        Ok(())
    }
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Follower({:?})", self.members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::snapshot::Snapshot;
    use crate::engine::cursor_commits;
    use crate::engine::keyspace_commits;
    use crate::engine::open::open;
    use crate::engine::steps;
    use crate::txn::transaction::Transaction;
    use crate::types::options::Options;
    use crate::types::retention::Retention;

    /// A thread that waits for news of the log, or asks for a trim, takes in what was ordered
    /// without holding the lock of commits.
    #[test]
    fn what_is_applied_is_told_where_the_log_was_taken_in_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let join = || {
            open(&path, Options::new().memory_bytes(16 << 20).background(false).shared(true))
                .unwrap()
        };
        let (one, two) = (join(), join());
        let put = |key: u32| {
            let mut tx = Transaction::new(&one.committer);
            tx.put(&one.reader.keyspaces.find("default").unwrap().0, key.to_be_bytes(), b"x")
                .unwrap();
            tx.commit().unwrap();
        };
        put(1);
        drop(Snapshot::newest(&two));
        put(2);
        let follower = &two.shared().follower;
        follower.log.catch_up().unwrap();
        // As `apply_rest` does; then another thread catches up.
        let next = follower.log.bounds().next;
        put(3);
        follower.log.catch_up().unwrap();
        let lock = follower.sequencer.lock().unwrap();
        follower.apply(&lock, next, When::Live).unwrap();
        drop(lock);
        let in_memory = two.reader.index.sources.view().active.max_glsn();
        assert_eq!(follower.sequencer.applied(), in_memory);
    }

    /// The same, and what that commit did is not durable yet.
    #[test]
    fn no_run_holds_what_a_crash_could_take_back_where_the_log_was_taken_in_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let join = || {
            open(&path, Options::new().memory_bytes(16 << 20).background(false).shared(true))
                .unwrap()
        };
        let (keeper, other) = (join(), join());
        let put = |key: u32| {
            let mut tx = Transaction::new(&other.committer);
            tx.put(&other.reader.keyspaces.find("default").unwrap().0, key.to_be_bytes(), b"x")
                .unwrap();
            tx.commit_submit().unwrap()
        };
        put(1).wait().unwrap();
        drop(Snapshot::newest(&keeper));
        put(2).wait().unwrap();
        let follower = &keeper.shared().follower;
        follower.log.catch_up().unwrap();
        let next = follower.log.bounds().next;
        let not_durable = put(3);
        follower.log.catch_up().unwrap();
        let lock = follower.sequencer.lock().unwrap();
        follower.apply(&lock, next, When::Live).unwrap();
        drop(lock);
        keeper.committer.flush().unwrap();
        let in_runs = keeper.reader.index.sources.view().newest_in_runs;
        let durable = follower.members.marks.durable_glsn();
        assert!(in_runs <= durable, "a run holds {in_runs:?}, durable is {durable:?}");
        drop(not_durable);
    }

    #[test]
    fn what_a_member_makes_and_drops_of_keyspaces_the_others_know_once_they_have_taken_it_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let join = || {
            open(&path, Options::new().memory_bytes(16 << 20).background(false).shared(true))
                .unwrap()
        };
        let (one, two) = (join(), join());
        let is_known = || {
            two.committer.fresh().unwrap();
            two.reader.keyspaces.find("notes").is_some()
        };
        for _ in 0..2 {
            assert!(!is_known());
            let notes = keyspace_commits::create(&one, "notes", Retention::Latest).unwrap();
            assert!(is_known());
            keyspace_commits::drop_keyspace(&one, &notes).unwrap();
        }
    }

    #[test]
    fn nobody_finds_all_taken_in_while_it_is_not_known_where_cursors_stand() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let join = || {
            open(&path, Options::new().memory_bytes(16 << 20).background(false).shared(true))
                .unwrap()
        };
        let (one, two) = (join(), join());
        drop(Snapshot::newest(&one));
        cursor_commits::open(&two, "c", Glsn(1)).unwrap();
        let (follower, clock) = (&one.shared().follower, &one.options.clock);
        let is_known = || one.catalog.records.cursors.find("c").is_some();
        // The thread that takes it in is kept from noting that there is something to learn.
        let (to_learn, mut is_right) = (follower.to_learn.lock().unwrap(), true);
        std::thread::scope(|scope| {
            scope.spawn(|| one.committer.fresh().unwrap());
            while one.reader.index.sources.view().active.max_glsn() < follower.ordered().unwrap() {
                std::thread::yield_now();
            }
            for _ in 0..100 {
                clock.sleep(std::time::Duration::from_millis(1));
                is_right &= is_known() || !follower.is_fresh().unwrap();
            }
            drop(to_learn);
        });
        assert!(is_right);
        assert!(is_known() && follower.is_fresh().unwrap());
    }

    #[test]
    fn the_log_that_a_durable_cursor_needs_stays_while_another_thread_takes_that_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let options = || {
            Options::new()
                .memory_bytes(16 << 20)
                .background(false)
                .shared(true)
                .segment_bytes(64 << 10)
                .retention(Retention::Latest)
        };
        let join = || open(&path, options()).unwrap();
        let (one, two) = (join(), join());
        let space = one.reader.keyspaces.find("default").unwrap().0;
        for row in 0..3000u32 {
            let mut tx = Transaction::new(&one.committer);
            tx.put(&space, row.to_be_bytes(), [7; 100]).unwrap();
            drop(tx.commit_submit().unwrap());
        }
        one.committer.flush().unwrap();
        drop(Snapshot::newest(&two));
        let members = &two.shared().follower.members;
        two.reader.index.following.follow(members).unwrap();
        // What the runs hold it does not need from the log.
        two.committer
            .sequencer
            .try_at_applied(|applied| two.reader.index.memtables.close_up_to(applied));
        two.reader.index.following.follow(members).unwrap();
        cursor_commits::open(&two, "c", Glsn(1)).unwrap();
        two.reader.index.following.follow(members).unwrap();
        two.committer.promise_floor();
        let (follower, clock) = (&one.shared().follower, &one.options.clock);
        let before = one.reader.log.bounds().first;
        let to_learn = follower.to_learn.lock().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| one.committer.fresh().unwrap());
            while one.reader.index.sources.view().active.max_glsn() < follower.ordered().unwrap() {
                std::thread::yield_now();
            }
            clock.sleep(std::time::Duration::from_millis(100));
            // Where nothing is found to take in, it does not wait for the other thread.
            if follower.is_fresh().unwrap() {
                steps::free_log(&one.space).unwrap();
            }
            drop(to_learn);
        });
        let after = one.reader.log.bounds().first;
        assert_eq!((after, one.catalog.records.cursors.find("c")), (before, Some(Glsn(1))));
    }

    /// A reader without threads, which has taken in the first commit; what its writer did
    /// afterwards; and a first member that does not finish joining.
    fn while_one_joins(
        then: impl FnOnce(&std::path::Path),
    ) -> Result<Option<crate::types::value::Value>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let options = || Options::new().memory_bytes(16 << 20).background(false).shared(true);
        let writer = open(&path, options()).unwrap();
        let reader = open(&path, options().read_only(true)).unwrap();
        let space = writer.reader.keyspaces.find("default").unwrap().0;
        let put = |key: &[u8]| {
            let mut tx = Transaction::new(&writer.committer);
            tx.put(&space, key, b"x").unwrap();
            tx.commit().unwrap();
        };
        put(b"first");
        assert!(
            Snapshot::newest(&reader)
                .get(&reader.reader.keyspaces.find("default").unwrap().0, b"first")
                .unwrap()
                .is_some()
        );
        put(b"last");
        writer.close().unwrap();
        then(&path);
        let patience = std::time::Duration::from_secs(1);
        let joins =
            Members::join(&reader.options.disk, &reader.options.clock, &path, patience).unwrap();
        joins.begin(true, 7, 0).unwrap();
        Snapshot::newest(&reader).get(&reader.reader.keyspaces.find("default").unwrap().0, b"last")
    }

    #[test]
    fn a_reader_sees_the_last_commits_of_those_that_left_while_a_first_member_joins() {
        assert_eq!(&while_one_joins(|_| ()).unwrap().unwrap()[..], b"x");
    }

    #[test]
    fn a_reader_is_behind_while_a_first_member_joins_after_one_that_had_the_store_alone() {
        let read = while_one_joins(|path| {
            let alone =
                open(path, Options::new().memory_bytes(16 << 20).background(false)).unwrap();
            alone.close().unwrap();
        });
        assert!(matches!(read, Err(Error::Behind { .. })), "{read:?}");
    }
}
