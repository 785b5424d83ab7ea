//! Blind commits: commits of transactions that have read nothing. In a shared store, a process that
//! has not read for a while orders them and makes them durable without applying them to its index.
//! They stay in the log until the process reads. If the process is the keeper, its apply job
//! applies them earlier.
//!
//! A blind commit conflicts with nothing, so it can be ordered without applying the commits of
//! other processes, which is most of the work of a process that only writes (decision 13).
//!
//! Invariants:
//! 1. A read sees every commit that was durable in any process when its snapshot was opened,
//!    because it first applies the unapplied part of the log.
//! 2. A process orders a blind commit only if it has applied every commit that changes records of
//!    keyspaces, and loaded those records. Commits that write the store's own records are never
//!    left in the log.
//! 3. The unapplied part of the log is bounded. Beyond the bound, a commit applies it and waits for
//!    the keeper, like all writers.

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

/// A member leaves at most this many bytes of the log unapplied.
const LEFT_BYTES_MAX: u64 = 16 << 20;

/// A member leaves at most this many memtables' worth of the log unapplied. The keeper's memtables
/// may hold that much that is not in the runs yet; the part that is in the runs is skipped.
const LEFT_MEMTABLES: u64 = 2;

/// The keeper has to apply every entry and leaves at most this many unapplied, because applying
/// them together before it takes the turn costs less than applying each separately.
const LEFT_ENTRIES_OF_KEEPER: u64 = 256;

/// Number of unapplied entries at which the keeper's apply job is woken.
const APPLIED_BEHIND: u64 = 64;

/// If other threads wait for their posts and at least this many entries are unapplied, a thread of
/// the keeper applies these before it posts. This takes about 50 µs, less than a sync.
const APPLIED_BESIDE: u64 = 32;

/// A process whose posts are ordered by others reads the log once it has more new entries than
/// this.
const READ_AT_ONCE: u64 = 128;

/// The commits that this process leaves in the log.
pub(crate) struct BlindCommits {
    follower: Arc<Follower>,
    pub(crate) blindness: Blindness,
    /// Wakes the keeper's apply job.
    pub(crate) applier: Arc<Bell>,
    /// Whether the apply job was woken and has not finished since.
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

    /// Orders an independent commit and leaves it in the log; `None` if it must be applied.
    pub(crate) fn order(&self, commit: &Commit<'_>) -> Result<Option<Glsn>> {
        if !commit.is_independent() {
            return Ok(None);
        }
        let Some(mut turn) = self.turn()? else { return Ok(None) };
        // Check under the turn, because a drop by this process is ordered under a turn as well, and
        // its record must be loaded.
        commit.check_keyspaces()?;
        let glsn = commit.append(|draft| turn.submit(draft))?;
        hit(Border::LeftInLog);
        Ok(Some(glsn))
    }

    /// Posts an independent commit, so that it is ordered together with those of other threads and
    /// processes, and waits until it is durable. `None` if it must be ordered separately.
    pub(crate) fn post(&self, commit: &Commit<'_>) -> Result<Option<Glsn>> {
        if !commit.waits() || !commit.is_independent() || self.follower.is_buffered {
            return Ok(None);
        }
        let Some(parts) = commit.payload() else { return Ok(None) };
        let Some(known) = self.may_post()? else { return Ok(None) };
        // Check after reading `known`, so that any later keyspace drop rejects the post.
        commit.check_keyspaces()?;
        let posted = Posted { parts: &parts, read_at: commit.at(), known };
        let glsn = self.follower.log.commit_posted(&posted).lift()?;
        if glsn.is_some() {
            hit(Border::LeftInLog);
        }
        Ok(glsn)
    }

    /// Takes the turn for a blind commit that is left in the log. `None` if the commit must be
    /// applied, because this process reads, too much of the log is unapplied, or a change of
    /// keyspaces is unapplied.
    fn turn(&self) -> Result<Option<Turn<'_>>> {
        let follower = &*self.follower;
        let is_blind = self.blindness.is_blind();
        self.blindness.note_commit();
        if !is_blind || !follower.is_known() {
            return Ok(None);
        }
        if follower.members.marks.next().0 > follower.log.bounds().next.0 + FEW {
            // Read new entries before taking the turn, because other processes wait for the turn.
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

    /// Number of entries that are read but not applied.
    fn left(&self) -> u64 {
        // Load `applied` first, because it never exceeds the entries read.
        let applied = self.follower.sequencer.applied();
        self.follower.log.bounds().next.0 - applied.next().0
    }

    /// Wakes the keeper's apply job if enough entries are unapplied.
    fn call_to_apply(&self) {
        let is_time = || self.left() >= APPLIED_BEHIND && self.follower.members.keeper.is_keeper();
        // Relaxed, here and below: if a call is lost, the next commit repeats it.
        if !self.is_called.load(Ordering::Relaxed)
            && is_time()
            && !self.is_called.swap(true, Ordering::Relaxed)
        {
            self.applier.ring();
        }
    }

    /// The work of the keeper's apply job: applies the entries left in the log once there are
    /// [`APPLIED_BEHIND`].
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
        // Wait for room before taking the lock, so that others commit while a memtable is flushed.
        let bytes = follower.log.bytes_behind(follower.sequencer.applied()).unwrap_or_default();
        follower.index.memtables.wait_for_room(bytes as usize)?;
        follower.apply_rest(&follower.sequencer.lock()?)
    }

    /// The GLSN up to which this process has applied all commits and loaded changed records, if its
    /// next commit may be posted.
    fn may_post(&self) -> Result<Option<Glsn>> {
        let follower = &*self.follower;
        let known = follower.sequencer.applied();
        if !self.blindness.is_blind() || !follower.is_known() {
            return Ok(None);
        }
        if follower.members.marks.next().0 > follower.log.bounds().next.0 + READ_AT_ONCE {
            follower.log.catch_up().lift()?;
        }
        // Ignore an error: the commit that has to apply everything reports it.
        let _ = self.apply_beside();
        self.call_to_apply();
        Ok(Some(known).filter(|_| self.may_leave()))
    }

    /// In the keeper: applies the entries left in the log while other threads of the process commit
    /// without waiting for it.
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

    /// Whether the unapplied part of the log is within the bounds.
    fn may_leave(&self) -> bool {
        let follower = &*self.follower;
        let (applied, entries) = (follower.sequencer.applied(), self.left());
        let bytes_max = LEFT_BYTES_MAX.min(LEFT_MEMTABLES * follower.index.memtables.limit_bytes());
        (entries <= LEFT_ENTRIES_OF_KEEPER || !follower.members.keeper.is_keeper())
            && follower.log.bytes_behind(applied).is_some_and(|left| left <= bytes_max)
    }

    /// Applies everything readable in any process, so that other members need not retain the log
    /// for this one. A process that only writes need not apply them: it reads the log, and skips
    /// the records that are already in the runs.
    pub(crate) fn apply_while_blind(&self, now_nanos: u64) -> Result<()> {
        let follower = &*self.follower;
        let is_blind = self.blindness.is_blind()
            && !follower.members.keeper.is_keeper()
            && !follower.members.table.is_reader();
        // A request to close memtables means that other processes want the log to be freed.
        if !is_blind || follower.members.marks.close_requested() > follower.sequencer.applied() {
            return follower.apply_readable();
        }
        follower.index.following.follow(&follower.members)?;
        if follower.members.keeper.is_keeper() {
            // This process has just become the keeper.
            return follower.apply_readable();
        }
        follower.log.catch_up().lift()?;
        let is_unread = self.blindness.is_blind_for_long(now_nanos)
            || follower.index.env.context.row_cache.is_empty();
        if is_unread && follower.index.runs.checkpoint().glsn > follower.sequencer.applied() {
            let lock = follower.sequencer.lock()?;
            // A read may have applied the commits up to the checkpoint in the meantime.
            follower.skip_to_checkpoint(&lock);
            follower.load_own_records()?;
        }
        if self.may_leave() { Ok(()) } else { follower.apply_readable() }
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
    use crate::types::options::Options;
    use crate::types::retention::Retention;
    use crate::types::sizes::Sizes;

    /// A member that leaves every blind commit in the log.
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

    fn poll(store: &Engine) {
        membership::poll(&store.space, &store.committer, store.shared()).unwrap();
    }

    #[test]
    fn commits_left_in_the_log_are_seen_by_the_next_read_of_any_process() {
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
    fn a_late_first_read_sees_the_snapshot_of_the_transactions_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (one, two) = (join(&path), join(&path));
        let newest = put(&one, 1);
        let tx = Transaction::new(&two.committer);
        assert_eq!(tx.at(), newest);
        put_into(&one, &default(&one), 1, b"younger").unwrap();
        put(&two, 2);
        // Another member's read applies it, and it is flushed while the snapshot is open.
        assert!(has(&two, 2) && has(&one, 2));
        one.flush().unwrap();
        poll(&two);
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
    fn an_unread_transaction_finds_nothing_in_memory() {
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
    fn an_empty_transaction_commits_even_if_others_are_ahead() {
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
    fn an_ordered_transaction_counts_as_a_read() {
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
    fn estimates_count_commits_left_in_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let store = join(&dir.path().join("store"));
        (0..50).for_each(|key| {
            put(&store, key);
        });
        let len = crate::api::sizes::approximate_len(&store, &default(&store), &(..)).unwrap();
        assert!(len > 25, "{len}");
    }

    #[test]
    fn nothing_is_skipped_after_a_read_has_applied_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (keeper, other) = (join(&path), join(&path));
        put(&keeper, 1);
        keeper.flush().unwrap();
        put(&keeper, 2);
        assert!(has(&other, 2));
        other.reader.index.following.follow(other.membership.members().unwrap()).unwrap();
        let follower = &other.shared().follower;
        follower.skip_to_checkpoint(&follower.sequencer.lock().unwrap());
        follower.load_own_records().unwrap();
        assert_eq!(
            other.reader.index.sources.view().active.max_glsn(),
            Glsn(2),
            "the memtable was not closed"
        );
    }

    #[test]
    fn cached_rows_reflect_only_applied_commits() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (keeper, other) = (join(&path), join(&path));
        put(&keeper, 1);
        assert!(has(&other, 1));
        keeper.flush().unwrap();
        // The other member releases the memtable whose rows are in the runs now.
        poll(&other);
        put(&keeper, 2);
        keeper.flush().unwrap();
        other.reader.index.following.follow(other.membership.members().unwrap()).unwrap();
        other.reader.log.catch_up().unwrap();
        let told = || {
            other
                .reader
                .index
                .runs
                .rows_invalidated_upto(applied(&other))
                .unwrap()
                .map(|position| position.glsn)
        };
        assert_eq!((told(), other.reader.index.runs.checkpoint().glsn), (Some(Glsn(1)), Glsn(2)));
        assert!(has(&other, 2));
        poll(&other);
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
            matches!(&refused, Err(Error::InvalidInput(InvalidInput::KeyspaceDropped { .. }))),
            "{refused:?}"
        );
        // Further commits are left in the log again.
        let before = applied(&two);
        put(&two, 4);
        assert_eq!(applied(&two), before);
    }

    #[test]
    fn the_keeper_leaves_a_bounded_number_of_entries() {
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
    fn entries_left_by_the_keeper_are_applied_in_the_background() {
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
    fn the_keeper_has_an_apply_thread() {
        let dir = tempfile::tempdir().unwrap();
        let keeper =
            open(&dir.path().join("store"), Options::new().memory_bytes(16 << 20).shared(true))
                .unwrap();
        let blind = &keeper.shared().blind;
        blind.is_called.store(true, Ordering::Relaxed);
        blind.applier.ring();
        // Nothing else resets the call.
        let clock = &keeper.options.clock;
        let begun = clock.monotonic_nanos();
        while blind.is_called.load(Ordering::Relaxed) {
            assert!(
                clock.monotonic_nanos() - begun < 120_000_000_000,
                "the apply job does not answer"
            );
            clock.sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn other_members_leave_a_bounded_number_of_bytes() {
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
    fn commits_in_runs_are_skipped_and_still_visible() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (keeper, other) = (join(&path), join(&path));
        put(&other, 1);
        assert!(has(&other, 1));
        put(&other, 2);
        let held = Snapshot::newest(&other);
        // Changes while the other member does not read: a new row, an overwritten row, a keyspace.
        put(&keeper, 3);
        put_into(&keeper, &default(&keeper), 1, b"younger").unwrap();
        let theirs = keyspace_commits::open(&keeper, "new").unwrap();
        put_into(&keeper, &theirs, 7, b"x").unwrap();
        keeper.flush().unwrap();
        put(&keeper, 4);
        poll(&other);
        let checkpoint = keeper.reader.index.runs.checkpoint().glsn;
        assert_eq!(
            applied(&other),
            checkpoint,
            "skipped up to the checkpoint, and the rest was left"
        );
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
    fn the_log_is_retained_for_a_blind_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (keeper, other) = (join(&path), join(&path));
        put(&other, 1);
        poll(&other);
        let before = applied(&other);
        (0..10).for_each(|key| {
            put(&keeper, key);
        });
        keeper.flush().unwrap();
        // The other member loads the manifest, and promises to open no snapshot before the newest.
        other.reader.index.following.follow(other.membership.members().unwrap()).unwrap();
        other.committer.publish_floor();
        let keepers = keeper.membership.members().unwrap();
        assert!(keepers.slots.oldest_floor() > before);
        assert_eq!(keepers.slots.oldest_needed(), before.next());
        poll(&other);
        assert!(keepers.slots.oldest_needed() > before.next());
    }

    #[test]
    fn commits_left_in_the_log_are_in_the_store_after_all_have_closed_it() {
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
