//! Follows the commits of other members: they are applied to this process's index before the
//! process reads a snapshot that includes them, and before it orders a commit of its own that has
//! read something ([`crate::txn::shared::blind`] handles its other commits).
//!
//! Invariant: a read sees everything that was durable in any process when it began.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use plimsoll_log::error::LogError;
use plimsoll_log::file_log::shared::turn::Turn;
use plimsoll_log::glsn::Glsn;
use plimsoll_log::members::Members;

use crate::borders::{Border, hit};
use crate::txn::applier::Applier;
use crate::txn::apply::When;
use crate::txn::sequencer::CommitLock;
use crate::types::error::{Error, Lift, Result};

/// Up to this many entries are applied under the turn, which is cheaper than reading the log twice.
pub(crate) const FEW: u64 = 16;

/// Maximum number of further attempts to catch up if a snapshot that is about to be read was
/// dropped.
const ROUNDS: u32 = 16;

/// The means of a member to follow the others.
pub(crate) struct Follower {
    pub(crate) members: Arc<Members>,
    /// Whether commits are readable before they are durable.
    pub(crate) is_buffered: bool,
    pub(crate) applier: Applier,
}

impl Deref for Follower {
    type Target = Applier;

    fn deref(&self) -> &Applier {
        &self.applier
    }
}

impl Follower {
    /// The newest commit that is currently readable in any process.
    pub(crate) fn readable(&self) -> Result<Glsn> {
        match self.is_buffered {
            true if !self.members.table.is_reader() => self.ordered(),
            _ => self.members.following.newest().lift(),
        }
    }

    /// The newest commit ordered by any process.
    fn ordered(&self) -> Result<Glsn> {
        self.members.marks.newest_ordered().lift()
    }

    /// The newest commit that a process applies if it reads all ordered commits.
    pub(crate) fn ordered_to_read(&self) -> Glsn {
        let newest = if self.members.table.is_reader() { self.readable() } else { self.ordered() };
        newest.unwrap_or(Glsn::NONE)
    }

    /// Whether everything readable in any process is applied. Only reads memory.
    ///
    /// # Errors
    /// There is no process to follow any more.
    pub(crate) fn is_fresh(&self) -> Result<bool> {
        // Acquire: pairs with the store that clears it in `load_own_records`.
        Ok(self.sequencer.visible() >= self.readable()?
            && !self.must_load_records.load(Ordering::Acquire))
    }

    /// Applies everything that is currently readable in any process.
    pub(crate) fn apply_readable(&self) -> Result<()> {
        if self.is_fresh()? { Ok(()) } else { self.catch_up() }
    }

    /// Applies everything ordered by any process.
    pub(crate) fn apply_ordered(&self) -> Result<()> {
        if self.sequencer.applied() >= self.ordered()? { Ok(()) } else { self.catch_up() }
    }

    /// Whether every commit that changes records of keyspaces is applied, and the records are
    /// loaded. Does not change while the turn is held.
    pub(crate) fn is_known(&self) -> bool {
        // Read `applied` first: `must_load_records` is set before a commit with changed records
        // counts as applied.
        let is_applied = self.members.marks.must_apply_upto() <= self.sequencer.applied();
        is_applied && !self.must_load_records.load(Ordering::Acquire)
    }

    fn catch_up(&self) -> Result<()> {
        let mut rounds = 0;
        loop {
            rounds += 1;
            match self.catch_up_once() {
                // The manifest is ahead of the applied commits. The commit that dropped the
                // snapshot is younger and can be applied.
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
            // The entries were freed after they were read, so the runs have them.
            Err(Error::Trimmed { .. }) if self.members.table.is_reader() => {
                self.index.following.follow(&self.members)?;
                self.skip_to_checkpoint(&lock);
                self.apply_rest(&lock)
            }
            applied => applied,
        }
    }

    /// Skips the commits that the runs have, without applying them.
    pub(crate) fn skip_to_checkpoint(&self, lock: &CommitLock<'_>) {
        let (applied, next) = (self.sequencer.applied(), self.log.bounds().next);
        if let Some(last) = self.index.memtables.skip_to_checkpoint(&self.members, applied, next) {
            hit(Border::SkippedToCheckpoint);
            self.passed(lock, last);
        }
    }

    /// Continues from the newest manifest, whose runs have the next entries. Called if the log was
    /// not retained for this process, so that these entries are gone.
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

    /// The error of a process for which the log was not retained.
    fn of_catching_up(&self, error: Error) -> Error {
        match error {
            Error::Trimmed { asked, first, .. } if self.members.table.is_reader() => {
                Error::Behind {
                    cause: format!(
                        "the log was trimmed below GLSN {first}, but this process has applied only \
                         the entries before GLSN {asked}; open the store again (the log is \
                         retained only for processes that may write to the store's folder, and \
                         only while the store is shared)"
                    ),
                }
            }
            error => error,
        }
    }

    /// Applies everything committed by any process, and waits until it is durable.
    pub(crate) fn apply_durably(&self) -> Result<()> {
        self.apply_readable()?;
        let applied = self.sequencer.applied();
        if self.is_buffered && !self.members.table.is_reader() && applied > Glsn::NONE {
            self.log.wait_durable(applied).lift()?;
        }
        Ok(())
    }

    /// Waits for the right to order a commit, without holding a lock. If others have ordered more
    /// than a few entries, applies these first, so that little is left to do under the turn.
    pub(crate) fn wait_for_turn(&self) -> Result<Turn<'_>> {
        if self.members.marks.next().0 > self.sequencer.applied().next().0 + FEW {
            self.catch_up()?;
        }
        Ok(self.log.turn().lift()?.expect("a member's log has turns"))
    }

    /// Applies everything ordered, under the turn, so that nothing else is ordered from now on.
    /// False if a memtable has to be flushed first, which [`Follower::apply_rest`] does without the
    /// turn.
    pub(crate) fn begin(&self, turn: &mut Turn<'_>, lock: &CommitLock<'_>) -> Result<bool> {
        let tip = turn.begin().lift()?;
        self.apply(lock, tip.next(), When::InTurn)
    }

    /// Applies the entries that were read. May wait for a flush.
    pub(crate) fn apply_rest(&self, lock: &CommitLock<'_>) -> Result<()> {
        self.apply(lock, self.log.bounds().next, When::Live).map(drop)
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
    use crate::engine::compact_and_free;
    use crate::engine::cursor_commits;
    use crate::engine::keyspace_commits;
    use crate::engine::open::open;
    use crate::txn::transaction::Transaction;
    use crate::types::options::Options;
    use crate::types::retention::Retention;

    /// A thread that waits for log entries, or requests a trim, reads the ordered records without
    /// holding the commit lock.
    #[test]
    fn applied_is_exact_while_another_thread_reads_the_log() {
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
        // Like `apply_rest`; then another thread reads further entries.
        let next = follower.log.bounds().next;
        put(3);
        follower.log.catch_up().unwrap();
        let lock = follower.sequencer.lock().unwrap();
        follower.apply(&lock, next, When::Live).unwrap();
        drop(lock);
        let in_memory = two.reader.index.sources.view().active.max_glsn();
        assert_eq!(follower.sequencer.applied(), in_memory);
    }

    /// The same, with a further commit that is not durable yet.
    #[test]
    fn no_run_holds_undurable_commits_while_another_thread_reads_the_log() {
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
    fn members_see_keyspaces_created_and_dropped_by_others() {
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
    fn a_member_is_not_fresh_before_cursors_are_loaded() {
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
        // The thread that applies the commit is blocked before it can record that records must be
        // loaded.
        let (to_load, mut is_right) = (follower.to_load.lock().unwrap(), true);
        std::thread::scope(|scope| {
            scope.spawn(|| one.committer.fresh().unwrap());
            while one.reader.index.sources.view().active.max_glsn() < follower.ordered().unwrap() {
                std::thread::yield_now();
            }
            for _ in 0..100 {
                clock.sleep(std::time::Duration::from_millis(1));
                is_right &= is_known() || !follower.is_fresh().unwrap();
            }
            drop(to_load);
        });
        assert!(is_right);
        assert!(is_known() && follower.is_fresh().unwrap());
    }

    #[test]
    fn the_log_of_a_durable_cursor_is_retained_while_another_thread_applies_it() {
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
        // The second member does not need the log for data that is in the runs.
        two.committer
            .sequencer
            .try_between_commits(|applied| two.reader.index.memtables.close_up_to(applied));
        two.reader.index.following.follow(members).unwrap();
        cursor_commits::open(&two, "c", Glsn(1)).unwrap();
        two.reader.index.following.follow(members).unwrap();
        two.committer.publish_floor();
        let (follower, clock) = (&one.shared().follower, &one.options.clock);
        let before = one.reader.log.bounds().first;
        let to_load = follower.to_load.lock().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| one.committer.fresh().unwrap());
            while one.reader.index.sources.view().active.max_glsn() < follower.ordered().unwrap() {
                std::thread::yield_now();
            }
            clock.sleep(std::time::Duration::from_millis(100));
            // If nothing is to be applied, it does not wait for the other thread.
            if follower.is_fresh().unwrap() {
                compact_and_free::free_log(&one.space).unwrap();
            }
            drop(to_load);
        });
        let after = one.reader.log.bounds().first;
        assert_eq!((after, one.catalog.records.cursors.find("c")), (before, Some(Glsn(1))));
    }

    /// A reader without threads that has applied the first commit; then commits of the writer; and
    /// a first member that does not finish joining.
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
        let timeout = std::time::Duration::from_secs(1);
        let joins =
            Members::join(&reader.options.disk, &reader.options.clock, &path, timeout).unwrap();
        joins.begin(true, 7, 0).unwrap();
        Snapshot::newest(&reader).get(&reader.reader.keyspaces.find("default").unwrap().0, b"last")
    }

    #[test]
    fn a_reader_sees_the_last_commits_while_a_first_member_joins() {
        assert_eq!(&while_one_joins(|_| ()).unwrap().unwrap()[..], b"x");
    }

    #[test]
    fn a_reader_is_behind_while_a_first_member_joins_after_an_exclusive_process() {
        let read = while_one_joins(|path| {
            let alone =
                open(path, Options::new().memory_bytes(16 << 20).background(false)).unwrap();
            alone.close().unwrap();
        });
        assert!(matches!(read, Err(Error::Behind { .. })), "{read:?}");
    }
}
