//! Tests of following the files that another process writes.

use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_disk::lying::LyingDisk;

use crate::api::snapshot::Snapshot;
use crate::engine::open::open;
use crate::engine::{Engine, compact_and_free};
use crate::txn::transaction::Transaction;
use crate::types::keyspaces::Keyspace;
use crate::types::options::Options;

use super::*;

fn join(path: &std::path::Path) -> Arc<Engine> {
    open(path, Options::new().memory_bytes(16 << 20).background(false).shared(true)).unwrap()
}

fn members(store: &Engine) -> Arc<Members> {
    Arc::clone(store.membership.members().unwrap())
}

fn default(store: &Engine) -> Keyspace {
    store.reader.keyspaces.find("default").unwrap().0
}

fn put(store: &Arc<Engine>, key: u32) {
    let mut tx = Transaction::new(&store.committer);
    tx.put(&default(store), key.to_be_bytes(), b"x").unwrap();
    tx.commit().unwrap();
}

fn put_value(store: &Arc<Engine>, key: u32, value: &[u8]) {
    let mut tx = Transaction::new(&store.committer);
    tx.put(&default(store), key.to_be_bytes(), value).unwrap();
    tx.commit().unwrap();
}

fn value_of(store: &Arc<Engine>, key: u32) -> Vec<u8> {
    Snapshot::newest(store).get(&default(store), key.to_be_bytes()).unwrap().unwrap().to_vec()
}

/// Two members. The second has a cached row of key 1 and no closed memtable.
fn with_a_row(path: &std::path::Path) -> (Arc<Engine>, Arc<Engine>) {
    let (keeper, other) = (join(path), join(path));
    put_value(&keeper, 1, b"1");
    assert_eq!(value_of(&other, 1), b"1");
    other.reader.index.memtables.close_up_to(other.committer.sequencer.applied());
    keeper.flush().unwrap();
    other.reader.index.following.follow(&members(&other)).unwrap();
    assert!(other.reader.index.sources.view().closed.is_empty());
    other.maintenance.pool.clear();
    assert_eq!(value_of(&other, 1), b"1");
    assert_eq!(other.reader.row_cache.stats().unwrap().0.entries, 1);
    (keeper, other)
}

#[test]
fn releasing_several_memtables_caches_the_newest_versions() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, other) = with_a_row(&dir.path().join("store"));
    for value in [b"2", b"3"] {
        put_value(&keeper, 1, value);
        assert_eq!(value_of(&other, 1), value);
        other.reader.index.memtables.close_up_to(other.committer.sequencer.applied());
    }
    keeper.flush().unwrap();
    other.reader.index.following.follow(&members(&other)).unwrap();
    assert!(other.reader.index.sources.view().closed.is_empty());
    assert_eq!(value_of(&other, 1), b"3");
}

/// A large commit becomes runs, and another member loads a manifest that names them before it
/// applies the commit.
#[test]
fn runs_loaded_before_their_commit_is_applied_supersede_rows_and_memtables() {
    for has_row in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (keeper, other) = if has_row { with_a_row(&path) } else { (join(&path), join(&path)) };
        if !has_row {
            put_value(&keeper, 1, b"1");
            assert_eq!(value_of(&other, 1), b"1");
        }
        let mut late = Transaction::new(&other.committer);
        let space = default(&other);
        assert_eq!(late.get(&space, 1u32.to_be_bytes()).unwrap().unwrap(), b"1"[..]);
        late.put(&space, 2u32.to_be_bytes(), b"as it was").unwrap();
        let mut large = Transaction::new(&keeper.committer);
        for key in 1..20_000u32 {
            large.put(&default(&keeper), key.to_be_bytes(), [2; 700]).unwrap();
        }
        large.commit().unwrap();
        keeper.flush().unwrap();
        other.reader.index.following.follow(&members(&other)).unwrap();
        assert!(matches!(late.commit(), Err(Error::Conflict { .. })), "has a row: {has_row}");
        assert_eq!(value_of(&other, 1), [2; 700], "has a row: {has_row}");
        other.reader.index.following.follow(&members(&other)).unwrap();
        assert!(other.reader.index.sources.view().closed.is_empty());
        for key in [1, 2, 19_999] {
            assert_eq!(value_of(&other, key), [2; 700]);
        }
        // Its manifest names no table twice after it has become the keeper.
        drop(keeper);
        put_value(&other, 20_000, b"new");
        other.flush().unwrap();
        let view = other.reader.index.sources.view();
        let ids: BTreeSet<_> = view.infos().map(|info| info.id).collect();
        assert_eq!(ids.len(), view.infos().count());
    }
}

/// After a merge, another member's pool has pages of the old runs; it finds those of the new run in
/// the page cache.
#[test]
fn written_pages_are_fetched_into_the_page_cache_only_for_other_members() {
    for has_other in [false, true] {
        let disk = LyingDisk::new(1);
        let options = || {
            let shared = Options::new().memory_bytes(16 << 20).background(false).shared(true);
            Options { disk: Arc::new(disk.clone()), ..shared }
        };
        let path = std::path::Path::new("/store");
        let keeper = open(path, options()).unwrap();
        let _other = has_other.then(|| open(path, options()).unwrap());
        for key in 0..300 {
            put_value(&keeper, key, &[1; 1000]);
        }
        let before = disk.announced_bytes();
        keeper.flush().unwrap();
        let flushed = disk.announced_bytes() - before;
        put_value(&keeper, 0, b"new");
        keeper.flush().unwrap();
        let before = disk.announced_bytes();
        keeper.reader.index.compaction.run_all(Glsn::MAX).unwrap();
        let merged = disk.announced_bytes() - before;
        for bytes in [flushed, merged] {
            let is_right = if has_other { bytes >= 300_000 } else { bytes == 0 };
            assert!(
                is_right,
                "{flushed} and {merged} bytes announced, another member: {has_other}"
            );
        }
    }
}

#[test]
fn a_keeper_replaced_during_its_takeover_installs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (first, slow, keeper) = (join(&path), join(&path), join(&path));
    put(&first, 1);
    first.close().unwrap();
    assert!(members(&slow).keeper.try_acquire().unwrap());
    assert!(
        keeper
            .reader
            .index
            .following
            .replace(&members(&keeper), members(&keeper).keeper.heartbeat())
            .unwrap()
    );
    let went_on = slow.reader.index.following.prepare_to_keep(&members(&slow));
    assert!(matches!(went_on, Err(Error::NotKeeper { .. })), "{went_on:?}");
    put(&keeper, 2);
    keeper.flush().unwrap();
    assert_eq!(members(&keeper).keeper.term(), Some(1));
}

#[test]
fn a_new_keeper_behind_the_manifest_does_not_lower_the_checkpoint() {
    for is_closed_before in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (before, next) = (join(&path), join(&path));
        put(&before, 1);
        drop(Snapshot::newest(&next));
        let index = &next.reader.index;
        let close = || index.memtables.close_up_to(next.committer.sequencer.applied());
        if is_closed_before {
            close();
        }
        put(&before, 2);
        before.flush().unwrap();
        let checkpoint = before.reader.index.runs.checkpoint().glsn;
        assert!(
            index.following.replace(&members(&next), members(&next).keeper.heartbeat()).unwrap()
        );
        if !is_closed_before {
            close();
        }
        while index.memtables.flush_step().unwrap() == Progress::Worked {}
        assert_eq!(index.runs.checkpoint().glsn, checkpoint);
        for key in 1..3u32 {
            let space = next.reader.keyspaces.find("default").unwrap().0;
            assert!(Snapshot::newest(&next).get(&space, key.to_be_bytes()).unwrap().is_some());
        }
    }
}

#[test]
fn a_new_keeper_keeps_the_files_of_its_own_running_backup() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (before, next) = (join(&path), join(&path));
    for key in 0..3 {
        put(&before, key);
        before.flush().unwrap();
    }
    let held = next.hold_files().unwrap();
    let (_, files, read) = next.reader.index.runs.files();
    compact_and_free::compact(&before.space, &before.committer).unwrap();
    before.close().unwrap();
    next.reader.index.following.follow(&members(&next)).unwrap();
    assert!(members(&next).keeper.is_keeper());
    let are_there =
        || files.iter().filter(|file| next.options.disk.entry(file).unwrap().is_some()).count();
    assert_eq!((files.len(), are_there()), (3, 3));
    drop((held, read));
    assert_eq!(are_there(), 0);
}

#[test]
fn a_new_keeper_defers_removals_until_no_member_reads_all_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (before, next, reads) = (join(&path), join(&path), join(&path));
    for key in 0..3 {
        put(&before, key);
        before.flush().unwrap();
    }
    let held = reads.hold_files().unwrap();
    let (_, files, read) = reads.reader.index.runs.files();
    compact_and_free::compact(&before.space, &before.committer).unwrap();
    before.close().unwrap();
    next.reader.index.following.follow(&members(&next)).unwrap();
    assert!(members(&next).keeper.is_keeper());
    let are_there =
        || files.iter().filter(|file| next.options.disk.entry(file).unwrap().is_some()).count();
    next.reader.index.runs.files.remove_left();
    assert_eq!((files.len(), are_there()), (3, 3));
    drop((held, read));
    next.reader.index.runs.files.remove_left();
    assert_eq!(are_there(), 0);
    assert!(Snapshot::newest(&next).get(&default(&next), 1u32.to_be_bytes()).unwrap().is_some());
}

#[test]
fn loading_a_manifest_sets_the_newest_version_in_runs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (keeper, other) = (join(&path), join(&path));
    put(&keeper, 1);
    drop(Snapshot::newest(&other));
    keeper.flush().unwrap();
    other.reader.index.following.load_newest_manifest(&members(&other)).unwrap();
    let view = other.reader.index.sources.view();
    assert_eq!((view.runs.len(), view.newest_in_runs), (1, Glsn(1)));
}

#[test]
fn a_commit_that_needs_a_flush_fails_while_the_store_closes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (_keeper, other) = (join(&path), join(&path));
    put(&other, 1);
    let (index, applied) = (&other.reader.index, other.committer.sequencer.applied());
    index.memtables.close_up_to(applied);
    put(&other, 2);
    index.env.signals.close();
    let refused = index.memtables.reserve(index.memtables.limit_bytes() as usize, applied.next());
    assert!(matches!(refused, Err(Error::Closed)));
}

/// A flush holds the commit lock in this test.
#[test]
fn other_members_commit_while_a_thread_waits_for_the_commit_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (keeper, other) = (join(&path), join(&path));
    put(&keeper, 1);
    let mut waits = Transaction::new(&other.committer);
    assert!(waits.get(&default(&other), 1u32.to_be_bytes()).unwrap().is_some());
    waits.put(&default(&other), 3u32.to_be_bytes(), b"x").unwrap();
    std::thread::scope(|scope| {
        let held = other.committer.sequencer.lock().unwrap();
        let waiting = scope.spawn(|| waits.commit());
        while other.committer.sequencer.waiting() == 0 {
            std::thread::yield_now();
        }
        let mut reads = Transaction::new(&keeper.committer);
        assert!(reads.get(&default(&keeper), 1u32.to_be_bytes()).unwrap().is_some());
        reads.put(&default(&keeper), 2u32.to_be_bytes(), b"x").unwrap();
        let done = reads.commit();
        drop(held);
        waiting.join().unwrap().unwrap();
        done.unwrap();
    });
}

/// A commit finds room before it takes the turn. After it has applied the commits of others, there
/// is no room left.
#[test]
fn other_members_commit_while_one_waits_for_a_flush() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (keeper, other) = (join(&path), join(&path));
    let put_rows = |store: &Arc<Engine>, rows: u32| {
        let mut tx = Transaction::new(&store.committer);
        let space = store.reader.keyspaces.find("default").unwrap().0;
        // Read first: a blind commit would only be left in the log.
        tx.get(&space, b"none").unwrap();
        (0..rows).for_each(|row| tx.put(&space, row.to_be_bytes(), [7; 900]).unwrap());
        tx
    };
    put(&other, 1);
    let index = &other.reader.index;
    index.memtables.close_up_to(other.committer.sequencer.applied());
    // Leave room for a hundred rows, but not for three hundred.
    while index.sources.view().active.map().used_bytes() + 300 * 1000
        < index.memtables.limit_bytes()
    {
        put_rows(&other, 100).commit().unwrap();
    }
    drop(Snapshot::newest(&keeper));
    let waits = put_rows(&other, 1);
    for _ in 0..4 {
        put_rows(&keeper, 100).commit().unwrap();
    }
    let (has_ended, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (done, ended) = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let done = waits.commit();
            has_ended.store(true, Ordering::SeqCst);
            done
        });
        // The keeper is slow, but not stopped.
        scope.spawn(|| {
            let mut pings = 0;
            while !is_over.load(Ordering::SeqCst) {
                pings = members(&keeper).keeper.answer_ping(pings, Duration::from_millis(100));
            }
        });
        keeper.options.clock.sleep(Duration::from_millis(500));
        let has_waited = !has_ended.load(Ordering::SeqCst);
        put(&keeper, 2);
        let ended = (has_waited, has_ended.load(Ordering::SeqCst));
        keeper.flush().unwrap();
        let done = waiting.join().unwrap();
        is_over.store(true, Ordering::SeqCst);
        (done, ended)
    });
    done.unwrap();
    assert_eq!(
        ended,
        (true, false),
        "it was still waiting when the other member's commit was done"
    );
}
