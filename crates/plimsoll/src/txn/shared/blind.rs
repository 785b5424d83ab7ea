//! Blind commits: commits of transactions that have read nothing. A process that shares a store and
//! has lately read nothing orders them and makes them durable without applying them to its index.
//! They stay in the log until the process reads; in the keeper, until its apply thread takes them.
//!
//! A blind commit conflicts with nothing, so it can be ordered without the commits of other
//! processes. Inserting these is most of the work of a process that only writes (decision 14).
//!
//! Laws:
//! 1. A read sees every commit that was durable in any process when its moment was opened: it
//!    applies what was left in the log first.
//! 2. A process orders a blind commit only if it has applied and learned every commit that changes
//!    the records of keyspaces. Commits that write the store's own records are never left in the
//!    log.
//! 3. The unapplied part of the log is bounded. Beyond the bound, a commit applies it and waits for
//!    the keeper, as all writers do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_disk::worker::Bell;
use plimsoll_log::file_log::shared::posting::Posted;
use plimsoll_log::file_log::shared::turn::Turn;
use plimsoll_log::glsn::Glsn;

use crate::borders::{Border, hit};
use crate::txn::commit::Commit;
use crate::txn::shared::blindness::Blindness;
use crate::txn::shared::follower::{FEW, Follower};
use crate::types::error::{Lift, Result};

/// A member leaves at most this many bytes of the log unapplied, and at most this many memtables'
/// worth. The runs do not hold the contents of the keeper's memtables yet; the part that they hold
/// is passed over.
const LEFT_BYTES_MAX: u64 = 16 << 20;
const LEFT_MEMTABLES: u64 = 2;

/// The keeper, which has to apply every entry, leaves at most this many unapplied: applying them
/// together, before it takes the turn, costs less than applying each by itself.
const LEFT_ENTRIES_OF_KEEPER: u64 = 256;

/// Unapplied entries at which the keeper's apply thread is woken.
const APPLIED_BEHIND: u64 = 64;

/// Entries that a thread of the keeper applies before it posts, while other threads wait for their
/// posts. It takes some 50 us, less than a sync.
const APPLIED_BESIDE: u64 = 32;

/// A process whose posts others order reads the log when it has more new entries than this.
const READ_AT_ONCE: u64 = 128;

/// The commits that this process leaves in the log.
pub(crate) struct BlindCommits {
    follower: Arc<Follower>,
    pub(crate) blindness: Blindness,
    /// Wakes the keeper's apply thread.
    pub(crate) applier: Arc<Bell>,
    /// Whether the apply thread was woken and has not applied anything since.
    is_called: AtomicBool,
}

impl BlindCommits {
    /// A process that leaves commits in the log after `after` of them without a read in between.
    pub(crate) fn new(follower: &Arc<Follower>, after: u32) -> Self {
        Self {
            follower: Arc::clone(follower),
            blindness: Blindness::new(after),
            applier: Arc::default(),
            is_called: AtomicBool::new(false),
        }
    }

    /// Orders a commit that depends on no other, and leaves it in the log; `None` if it is to be
    /// applied.
    pub(crate) fn order(&self, commit: &Commit<'_>) -> Result<Option<Glsn>> {
        if !commit.is_independent() {
            return Ok(None);
        }
        let Some(mut turn) = self.turn()? else { return Ok(None) };
        // A drop by this process is ordered in a turn, too, and its record is to be known.
        commit.check_keyspaces()?;
        let glsn = commit.append(|draft| turn.submit(draft))?;
        hit(Border::LeftInLog);
        Ok(Some(glsn))
    }

    /// Commits what depends on no other commit together with what other threads and processes
    /// commit now, and waits until it is durable. `None` if it is to be ordered by itself.
    pub(crate) fn post(&self, commit: &Commit<'_>) -> Result<Option<Glsn>> {
        if !commit.waits() || !commit.is_independent() || self.follower.is_buffered {
            return Ok(None);
        }
        let Some(parts) = commit.payload() else { return Ok(None) };
        let Some(known) = self.may_post()? else { return Ok(None) };
        // Checked after reading `known`, so that any later keyspace drop rejects the post.
        commit.check_keyspaces()?;
        let posted = Posted { parts: &parts, read_at: commit.at(), known };
        let glsn = self.follower.log.commit_posted(&posted).lift()?;
        if glsn.is_some() {
            hit(Border::LeftInLog);
        }
        Ok(glsn)
    }

    /// Takes the turn for a blind commit that is left in the log. `None` if the commit is to be
    /// applied: the process reads, too much of the log is unapplied, or a change of keyspaces is.
    fn turn(&self) -> Result<Option<Turn<'_>>> {
        let follower = &*self.follower;
        let is_blind = self.blindness.is_blind();
        self.blindness.note_commit();
        if !is_blind || !follower.is_known() {
            return Ok(None);
        }
        if follower.members.marks.next().0 > follower.log.bounds().next.0 + FEW {
            // Before the turn is taken: others wait for it.
            follower.log.catch_up().lift()?;
        }
        if !self.may_leave() {
            return Ok(None);
        }
        let mut turn = follower.log.turn().lift()?.expect("a member's log has turns");
        turn.begin().lift()?;
        turn.begin_to_post();
        let turn = Some(turn).filter(|_| follower.is_known() && self.may_leave());
        if turn.is_some() {
            self.call_to_apply();
        }
        Ok(turn)
    }

    /// The entries that are read and not applied.
    fn left(&self) -> u64 {
        // In this order: what is applied is read.
        let applied = self.follower.sequencer.applied();
        self.follower.log.bounds().next.0 - applied.next().0
    }

    /// Wakes the keeper's apply thread, if it is time.
    fn call_to_apply(&self) {
        let is_time = || self.left() >= APPLIED_BEHIND && self.follower.members.keeper.is_keeper();
        // Relaxed, here and below: if a call is lost, the next commit makes it.
        if !self.is_called.load(Ordering::Relaxed)
            && is_time()
            && !self.is_called.swap(true, Ordering::Relaxed)
        {
            self.applier.ring();
        }
    }

    /// The work of the keeper's apply thread: applies what is left in the log once
    /// [`APPLIED_BEHIND`] entries are.
    pub(crate) fn apply_left(&self) -> Result<()> {
        let applied = if self.left() >= APPLIED_BEHIND && self.follower.members.keeper.is_keeper() {
            self.apply_now()
        } else {
            Ok(())
        };
        self.is_called.store(false, Ordering::Relaxed);
        applied
    }

    fn apply_now(&self) -> Result<()> {
        let follower = &*self.follower;
        // Before the lock is taken: others commit while a memtable is flushed.
        let bytes = follower.log.bytes_behind(follower.sequencer.applied()).unwrap_or_default();
        follower.index.memtables.wait_for_room(bytes as usize)?;
        follower.apply_rest(&follower.sequencer.lock()?)
    }

    /// The GLSN up to which this process has applied and learned all changes, if its next commit
    /// may be posted.
    fn may_post(&self) -> Result<Option<Glsn>> {
        let follower = &*self.follower;
        let known = follower.sequencer.applied();
        if !self.blindness.is_blind() || !follower.is_known() {
            return Ok(None);
        }
        if follower.members.marks.next().0 > follower.log.bounds().next.0 + READ_AT_ONCE {
            follower.log.catch_up().lift()?;
        }
        // If it fails, the commit that has to apply everything learns why.
        let _ = self.apply_beside();
        self.call_to_apply();
        Ok(Some(known).filter(|_| self.may_leave()))
    }

    /// The keeper, which has to apply everything, applies what is left while other threads of its
    /// process commit: they do not wait for it.
    fn apply_beside(&self) -> Result<()> {
        let follower = &*self.follower;
        if self.left() < APPLIED_BESIDE
            || !follower.members.keeper.is_keeper()
            || !follower.members.posts.has_posts()
        {
            return Ok(());
        }
        match follower.sequencer.try_lock()? {
            Some(lock) => follower.apply_rest(&lock),
            None => Ok(()),
        }
    }

    /// Whether little enough of what this process has read of the log is unapplied.
    fn may_leave(&self) -> bool {
        let follower = &*self.follower;
        let (applied, entries) = (follower.sequencer.applied(), self.left());
        let bytes_max = LEFT_BYTES_MAX.min(LEFT_MEMTABLES * follower.index.memtables.limit_bytes());
        (entries <= LEFT_ENTRIES_OF_KEEPER || !follower.members.keeper.is_keeper())
            && follower.log.bytes_behind(applied).is_some_and(|left| left <= bytes_max)
    }

    /// Takes in what is readable anywhere now, so that other members need not keep the log for this
    /// one. A process that reads nothing reads the log and passes over what the runs hold, without
    /// applying it.
    pub(crate) fn keep_up(&self, now_nanos: u64) -> Result<()> {
        let follower = &*self.follower;
        let is_blind = self.blindness.is_blind()
            && !follower.members.keeper.is_keeper()
            && !follower.members.table.is_reader();
        // Others want the log freed.
        if !is_blind || follower.members.marks.close_wanted() > follower.sequencer.applied() {
            return follower.take_in();
        }
        follower.index.following.follow(&follower.members)?;
        if follower.members.keeper.is_keeper() {
            // It has become the keeper just now.
            return follower.take_in();
        }
        follower.log.catch_up().lift()?;
        let is_unread = self.blindness.is_blind_for_long(now_nanos)
            || follower.index.env.context.row_cache.is_empty();
        if is_unread && follower.index.runs.checkpoint().glsn > follower.sequencer.applied() {
            let lock = follower.sequencer.lock()?;
            // A read may have applied it since.
            follower.pass_over(&lock);
            follower.learn()?;
        }
        if self.may_leave() { Ok(()) } else { follower.take_in() }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::api::snapshot::Snapshot;
    use crate::engine::open::open;
    use crate::engine::shared::membership;
    use crate::engine::{Engine, keyspace_commits};
    use crate::read::resident::Resident;
    use crate::txn::transaction::Transaction;
    use crate::types::error::Error;
    use crate::types::invalid_input::InvalidInput;
    use crate::types::keyspaces::Keyspace;
    use crate::types::options::{Options, Sizes};
    use crate::types::retention::Retention;

    /// A member that leaves each commit in the log that has read nothing.
    fn join(path: &Path) -> Arc<Engine> {
        let sizes = Sizes { blind_after: 0, ..Sizes::USUAL };
        let options =
            Options::new().memory_bytes(16 << 20).retention(Retention::Latest).sizes(sizes);
        open(path, options.background(false).shared(true)).unwrap()
    }

    fn default(store: &Engine) -> Keyspace {
        store.reader.keyspaces.find("default").unwrap().0
    }

    fn put_into(store: &Arc<Engine>, space: &Keyspace, key: u32, value: &[u8]) -> Result<Glsn> {
        let mut tx = Transaction::new(&store.committer);
        tx.put(space, key.to_be_bytes(), value)?;
        tx.commit()
    }

    fn put(store: &Arc<Engine>, key: u32) -> Glsn {
        put_into(store, &default(store), key, b"value").unwrap()
    }

    fn has(store: &Arc<Engine>, key: u32) -> bool {
        Snapshot::newest(store).get(&default(store), key.to_be_bytes()).unwrap().is_some()
    }

    fn applied(store: &Engine) -> Glsn {
        store.committer.sequencer.applied()
    }

    fn look(store: &Engine) {
        membership::look(&store.space, &store.committer, store.shared()).unwrap();
    }

    #[test]
    fn what_is_left_in_the_log_is_there_for_the_next_read_of_any_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (keeper, other) = (join(&path), join(&path));
        let before = applied(&other);
        put(&keeper, 1);
        put(&other, 2);
        let last = put(&other, 3);
        assert_eq!(applied(&other), before, "nothing was applied");
        assert!(other.shared().members().marks.durable_glsn() >= last);
        assert!((1..4).all(|key| has(&keeper, key) && has(&other, key)));
        assert_eq!((applied(&other), other.visible()), (last, last));
    }

    #[test]
    fn a_process_that_reads_applies_its_commits_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let sizes = Sizes { blind_after: 3, ..Sizes::USUAL };
        let options =
            Options::new().memory_bytes(16 << 20).sizes(sizes).background(false).shared(true);
        let store = open(&dir.path().join("store"), options).unwrap();
        let is_applied = |key| put(&store, key) == applied(&store);
        assert_eq!([1, 2, 3, 4, 5].map(is_applied), [true, true, true, false, false]);
        assert!(has(&store, 5));
        assert_eq!([6, 7, 8, 9].map(is_applied), [true, true, true, false]);
    }

    #[test]
    fn a_transaction_reads_as_of_its_beginning_however_late_it_first_reads() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (one, two) = (join(&path), join(&path));
        let newest = put(&one, 1);
        let tx = Transaction::new(&two.committer);
        assert_eq!(tx.at(), newest);
        put_into(&one, &default(&one), 1, b"younger").unwrap();
        put(&two, 2);
        // It is applied by another one's read, and flushed, with the moment open.
        assert!(has(&two, 2) && has(&one, 2));
        one.flush().unwrap();
        look(&two);
        let space = default(&two);
        assert_eq!(tx.get(&space, 1u32.to_be_bytes()).unwrap().unwrap(), b"value");
        assert!(tx.get(&space, 2u32.to_be_bytes()).unwrap().is_none());
        assert!(matches!(
            {
                let mut tx = tx;
                tx.put(&space, b"x", b"x").unwrap();
                tx.commit()
            },
            Err(Error::Conflict { .. })
        ));
    }

    #[test]
    fn a_transaction_that_was_not_shown_what_it_sees_finds_nothing_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (one, two) = (join(&path), join(&path));
        put(&one, 1);
        let (space, tx) = (default(&two), Transaction::new(&two.committer));
        let is_there = || tx.get_resident(&space, 1u32.to_be_bytes(), |_| ()).unwrap();
        assert_eq!(is_there(), Resident::NotResident);
        tx.get(&space, b"none").unwrap();
        assert_eq!(is_there(), Resident::Value(()));
    }

    #[test]
    fn a_transaction_that_does_nothing_commits_also_where_others_are_ahead() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (one, two) = (join(&path), join(&path));
        let newest = put(&one, 1);
        let ticket = Transaction::new(&two.committer).commit_submit().unwrap();
        assert!(ticket.is_durable());
        assert_eq!(ticket.wait().unwrap(), newest);
        assert!(applied(&two) < newest);
    }

    #[test]
    fn a_process_that_reads_what_is_ordered_reads() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let sizes = Sizes { blind_after: 1, ..Sizes::USUAL };
        let options =
            Options::new().memory_bytes(16 << 20).sizes(sizes).background(false).shared(true);
        let store = open(&path, options).unwrap();
        put(&store, 1);
        put(&store, 2);
        assert!(store.committer.peers.only_writes());
        drop(Transaction::ordered(&store.committer));
        assert!(!store.committer.peers.only_writes());
    }

    #[test]
    fn estimates_count_what_is_left_in_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let store = join(&dir.path().join("store"));
        (0..50).for_each(|key| {
            put(&store, key);
        });
        let len = crate::api::sizes::approximate_len(&store, &default(&store), &(..)).unwrap();
        assert!(len > 25, "{len}");
    }

    #[test]
    fn a_read_that_comes_before_makes_passing_over_needless() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (keeper, other) = (join(&path), join(&path));
        put(&keeper, 1);
        keeper.flush().unwrap();
        put(&keeper, 2);
        assert!(has(&other, 2));
        other.reader.index.following.follow(other.membership.members().unwrap()).unwrap();
        let follower = &other.shared().follower;
        follower.pass_over(&follower.sequencer.lock().unwrap());
        follower.learn().unwrap();
        assert_eq!(
            other.reader.index.sources.view().active.max_glsn(),
            Glsn(2),
            "the memtable was not closed"
        );
    }

    #[test]
    fn rows_know_no_more_than_was_applied() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (keeper, other) = (join(&path), join(&path));
        put(&keeper, 1);
        assert!(has(&other, 1));
        keeper.flush().unwrap();
        // Its memtable is released.
        look(&other);
        put(&keeper, 2);
        keeper.flush().unwrap();
        other.reader.index.following.follow(other.membership.members().unwrap()).unwrap();
        other.reader.log.catch_up().unwrap();
        let told = || {
            other
                .reader
                .index
                .runs
                .told_to_rows(applied(&other))
                .unwrap()
                .map(|position| position.glsn)
        };
        assert_eq!((told(), other.reader.index.runs.checkpoint().glsn), (Some(Glsn(1)), Glsn(2)));
        assert!(has(&other, 2));
        look(&other);
        assert_eq!(told(), Some(Glsn(2)));
    }

    #[test]
    fn a_commit_into_a_keyspace_that_another_process_has_dropped_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (one, two) = (join(&path), join(&path));
        let theirs = keyspace_commits::open(&one, "passing").unwrap();
        let own = keyspace_commits::open(&two, "passing").unwrap();
        put_into(&two, &own, 1, b"x").unwrap();
        put_into(&two, &own, 2, b"x").unwrap();
        keyspace_commits::drop_keyspace(&one, &theirs).unwrap();
        let refused = put_into(&two, &own, 3, b"x");
        assert!(
            matches!(&refused, Err(Error::InvalidInput(input)) if matches!(input, InvalidInput::KeyspaceDropped { .. })),
            "{refused:?}"
        );
        // Others are left in the log again.
        let before = applied(&two);
        put(&two, 4);
        assert_eq!(applied(&two), before);
    }

    #[test]
    fn the_keeper_leaves_so_many_entries_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = join(&dir.path().join("store"));
        (0..3 * LEFT_ENTRIES_OF_KEEPER as u32).for_each(|key| {
            put(&keeper, key);
        });
        let left = keeper.reader.log.bounds().next.0 - 1 - applied(&keeper).0;
        assert!((1..=LEFT_ENTRIES_OF_KEEPER).contains(&left), "{left}");
        keeper.flush().unwrap();
        assert_eq!(keeper.reader.index.runs.checkpoint().glsn, keeper.visible());
    }

    #[test]
    fn what_the_keeper_leaves_is_applied_behind_its_commits() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = join(&dir.path().join("store"));
        let blind = &keeper.shared().blind;
        let mut key = 0;
        let mut leave = |entries| {
            while blind.left() < entries {
                key += 1;
                put(&keeper, key);
            }
        };
        leave(APPLIED_BEHIND - 1);
        blind.apply_left().unwrap();
        assert_eq!(
            (blind.left(), blind.is_called.load(Ordering::Relaxed)),
            (APPLIED_BEHIND - 1, false)
        );
        leave(APPLIED_BEHIND + 1);
        assert!(blind.is_called.load(Ordering::Relaxed));
        blind.apply_left().unwrap();
        assert_eq!((blind.left(), blind.is_called.load(Ordering::Relaxed)), (0, false));
    }

    #[test]
    fn a_thread_is_there_that_applies_what_the_keeper_leaves() {
        let dir = tempfile::tempdir().unwrap();
        let keeper =
            open(&dir.path().join("store"), Options::new().memory_bytes(16 << 20).shared(true))
                .unwrap();
        let blind = &keeper.shared().blind;
        blind.is_called.store(true, Ordering::Relaxed);
        blind.applier.ring();
        // Nothing else takes a call back.
        let clock = &keeper.options.clock;
        let begun = clock.monotonic_nanos();
        while blind.is_called.load(Ordering::Relaxed) {
            assert!(
                clock.monotonic_nanos() - begun < 120_000_000_000,
                "the apply thread does not answer"
            );
            clock.sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn others_leave_so_many_bytes_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (keeper, other) = (join(&path), join(&path));
        let bytes_max =
            LEFT_BYTES_MAX.min(LEFT_MEMTABLES * other.reader.index.memtables.limit_bytes());
        let space = default(&other);
        let mut most = 0;
        for key in 0..2 * bytes_max as u32 / 60_000 {
            put_into(&other, &space, key, &[7; 60_000]).unwrap();
            most = most.max(other.reader.log.bytes_behind(applied(&other)).unwrap());
        }
        assert!((bytes_max / 2..bytes_max + 100_000).contains(&most), "{most} of {bytes_max}");
        assert!(has(&keeper, 5) && has(&other, 5));
    }

    #[test]
    fn what_the_runs_hold_is_passed_over_and_known_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (keeper, other) = (join(&path), join(&path));
        put(&other, 1);
        assert!(has(&other, 1));
        put(&other, 2);
        let held = Snapshot::newest(&other);
        // While it does not look: a new row, one written over, a keyspace.
        put(&keeper, 3);
        put_into(&keeper, &default(&keeper), 1, b"younger").unwrap();
        let theirs = keyspace_commits::open(&keeper, "new").unwrap();
        put_into(&keeper, &theirs, 7, b"x").unwrap();
        keeper.flush().unwrap();
        put(&keeper, 4);
        look(&other);
        let checkpoint = keeper.reader.index.runs.checkpoint().glsn;
        assert_eq!(applied(&other), checkpoint, "passed over, and what is behind it was left");
        assert_eq!(other.reader.index.sources.view().active.max_glsn(), Glsn::NONE);
        assert!(other.reader.keyspaces.find("new").is_some());
        let get = |snapshot: &Snapshot, key: u32| {
            snapshot.get(&default(&other), key.to_be_bytes()).unwrap()
        };
        assert_eq!(get(&held, 1).unwrap(), b"value");
        assert!(get(&held, 3).is_none());
        let now = Snapshot::newest(&other);
        assert_eq!(get(&now, 1).unwrap(), b"younger");
        assert!((1..5).all(|key| get(&now, key).is_some()));
    }

    #[test]
    fn the_log_stays_that_a_blind_process_has_not_applied() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (keeper, other) = (join(&path), join(&path));
        put(&other, 1);
        look(&other);
        let before = applied(&other);
        (0..10).for_each(|key| {
            put(&keeper, key);
        });
        keeper.flush().unwrap();
        // It takes in the manifest, and has promised to open no moment before the newest.
        other.reader.index.following.follow(other.membership.members().unwrap()).unwrap();
        other.committer.promise_floor();
        let keepers = keeper.membership.members().unwrap();
        assert!(keepers.slots.oldest_floor() > before);
        assert_eq!(keepers.slots.oldest_needed(), before.next());
        look(&other);
        assert!(keepers.slots.oldest_needed() > before.next());
    }

    #[test]
    fn what_was_left_in_the_log_is_in_the_store_when_all_have_closed_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (keeper, other) = (join(&path), join(&path));
        (0..5).for_each(|key| {
            put(&keeper, key);
        });
        (5..10).for_each(|key| {
            put(&other, key);
        });
        keeper.close().unwrap();
        (10..15).for_each(|key| {
            put(&other, key);
        });
        other.close().unwrap();
        let store = join(&path);
        assert!((0..15).all(|key| has(&store, key)));
    }
}
