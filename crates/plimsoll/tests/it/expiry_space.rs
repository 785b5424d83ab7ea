//! The space of values that have expired.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use plimsoll::{Db, Error, Keyspace, Moment, Retention};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::vfs::Disk;

use crate::expiry::{SECOND, START, World, keys, options_on, world};

/// Bytes of the files of the index that hold runs.
fn run_bytes(world: &World) -> u64 {
    let files = world.disk.list(Path::new("/store/index")).unwrap();
    files.iter().filter(|file| file.name.ends_with(".run")).map(|file| file.len).sum()
}

/// Steps until nothing is left to do.
fn settle(db: &Db) {
    let mut idle = 0;
    while idle < 4 {
        idle = if db.step().unwrap() { 0 } else { idle + 1 };
    }
}

/// A store whose keyspace keeps no past versions.
fn latest() -> World {
    let mut world = world();
    world.space = world.db.create_keyspace("latest", Retention::Latest).unwrap();
    world
}

/// Values that expire after ten seconds, in whole tables.
fn put_many(db: &Db, space: &Keyspace) {
    put_for(db, space, SECOND * 10);
}

/// Forty thousand values that expire after some time, in whole tables.
fn put_for(db: &Db, space: &Keyspace, ttl: Duration) {
    for keys in 0..20u32 {
        let mut tx = db.begin();
        for key in 0..2000u32 {
            let key = (2000 * keys + key).to_be_bytes();
            tx.put_with_ttl(space, key, [7; 200], ttl).unwrap();
        }
        tx.commit().unwrap();
    }
    db.flush().unwrap();
    settle(db);
}

/// A durable commit, which takes log time to that of the clock.
fn commit_now(db: &Db) {
    let other = db.keyspace("other").unwrap();
    db.put(&other, "now", "").unwrap();
    db.sync().unwrap();
}

#[test]
fn the_space_of_expired_values_returns_after_the_next_commit() {
    for reopened in [false, true] {
        let mut world = latest();
        world.db.keyspace("other").unwrap();
        put_many(&world.db, &world.space);
        world.pass(11);
        settle(&world.db);
        assert!(run_bytes(&world) > 40_000 * 200, "the clock alone frees nothing");
        commit_now(&world.db);
        if reopened {
            world = world.reopen();
            world.space = world.db.keyspace("latest").unwrap();
        }
        let newest = world.db.newest();
        settle(&world.db);
        assert!(run_bytes(&world) < 1 << 20, "{}", run_bytes(&world));
        let written = world.db.stats().index.bytes_compaction_written;
        assert!(written < 1 << 20, "whole tables are dropped, not rewritten: {written}");
        assert_eq!(world.db.newest(), newest, "nothing was written");
        assert!(world.db.snapshot().is_empty(&world.space).unwrap());
        assert!(world.db.verify(&mut |_| {}).unwrap().problems.is_empty());
        world.put("again", "", 10);
        assert!(world.has("again"));
    }
}

#[test]
fn the_space_of_expired_values_of_several_keyspaces_returns_without_rewriting_the_others() {
    // The sizes of the keyspaces in values of 200 bytes; a full table has more of them.
    for sizes in [vec![4000, 4000, 4000], vec![100, 4000, 100, 4000]] {
        let world = world();
        let spaces = Vec::from_iter((0..sizes.len()).map(|number| {
            world.db.create_keyspace(&format!("latest {number}"), Retention::Latest).unwrap()
        }));
        for (number, (space, size)) in spaces.iter().zip(&sizes).enumerate() {
            let mut tx = world.db.begin();
            for key in 0..*size as u32 {
                let ttl = SECOND * 10 * (number as u32 + 1);
                tx.put_with_ttl(space, key.to_be_bytes(), [7; 200], ttl).unwrap();
            }
            tx.commit().unwrap();
        }
        world.db.flush().unwrap();
        settle(&world.db);
        for number in 0..sizes.len() {
            world.pass(10);
            commit_now(&world.db);
            settle(&world.db);
            let left: u64 = sizes[number + 1..].iter().sum();
            let bytes = run_bytes(&world);
            assert!(bytes < left * 250 + (1 << 17), "{bytes} bytes for {left} values");
            for space in &spaces[number + 1..] {
                assert!(!world.db.snapshot().is_empty(space).unwrap());
            }
        }
        let written = world.db.stats().index.bytes_compaction_written;
        assert!(written < 1 << 18, "whole tables are dropped, not rewritten: {written}");
        assert!(world.db.verify(&mut |_| {}).unwrap().problems.is_empty());
    }
}

#[test]
fn many_small_keyspaces_with_expiring_values_share_tables() {
    let world = world();
    for number in 0..200 {
        let space = world.db.create_keyspace(&format!("{number}"), Retention::Latest).unwrap();
        world.db.put_with_ttl(&space, "key", "value", SECOND).unwrap();
    }
    world.db.flush().unwrap();
    let files = world.disk.list(Path::new("/store/index")).unwrap();
    let runs = files.iter().filter(|file| file.name.ends_with(".run")).count();
    assert!((1..=18).contains(&runs), "{runs}");
}

#[test]
fn a_clock_that_is_ahead_for_a_while_destroys_nothing() {
    for commits in [false, true] {
        let world = latest();
        let there = world.now();
        put_many(&world.db, &world.space);
        let written = world.db.newest();
        world.clock.set_wall_micros(there + 1000 * 86_400_000_000);
        settle(&world.db);
        world.db.compact().unwrap();
        world.clock.set_wall_micros(there);
        if commits {
            commit_now(&world.db);
        }
        settle(&world.db);
        let then = world.db.snapshot_at(Moment::Glsn(written)).unwrap();
        for read in [&then, &world.db.snapshot()] {
            assert_eq!(read.len(&world.space).unwrap(), 40_000);
        }
    }
}

#[test]
fn a_moment_does_not_lose_values_that_were_alive_at_it() {
    let world = latest();
    put_many(&world.db, &world.space);
    let written = world.db.newest();
    world.pass(11);
    settle(&world.db);
    world.db.compact().unwrap();
    commit_now(&world.db);
    let then = || world.db.snapshot_at(Moment::Glsn(written)).unwrap().len(&world.space);
    assert_eq!(then().unwrap(), 40_000);
    settle(&world.db);
    world.db.compact().unwrap();
    assert!(matches!(then(), Err(Error::Trimmed { .. })));
}

/// The number of the step that compacts.
const COMPACT: usize = 3;

#[test]
fn a_store_can_be_read_if_the_commit_after_an_expiry_is_lost() {
    for seed in 0..4 {
        let disk = Arc::new(LyingDisk::new(seed));
        let clock = Arc::new(ManualClock::new(START));
        let open = || Db::open("/store", options_on(disk.clone(), &clock)).unwrap();
        let db = open();
        let other = db.keyspace("other").unwrap();
        let space = db.create_keyspace("latest", Retention::Latest).unwrap();
        db.put(&space, "lasting", "").unwrap();
        put_many(&db, &space);
        clock.advance(SECOND * 11);
        settle(&db);
        db.put(&other, "lost", "").unwrap();
        // A merge that drops what has expired comes before the sync that is due.
        (0..2).for_each(|_| _ = db.step_from(COMPACT).unwrap());
        disk.cut_power();
        drop(db);
        disk.restore_power();
        let db = open();
        let space = db.keyspace("latest").unwrap();
        assert_eq!(keys(&db.snapshot(), &space), ["lasting"], "{seed}");
        db.close().unwrap();
    }
}

#[test]
fn no_older_value_takes_the_place_of_an_expired_one() {
    for (older_runs, merged) in [(0, false), (1, false), (3, false), (1, true)] {
        let world = latest();
        world.db.put(&world.space, "k", "old").unwrap();
        for run in 0..older_runs {
            world.db.flush().unwrap();
            world.db.put(&world.space, format!("other{run}"), [7; 1000]).unwrap();
        }
        world.put("k", "new", 10);
        world.put("l", "new", 20);
        world.db.flush().unwrap();
        if merged {
            world.db.compact().unwrap();
        }
        let before = world.db.snapshot();
        world.pass(11);
        for _ in 0..2 {
            commit_now(&world.db);
            settle(&world.db);
            world.db.compact().unwrap();
            assert!(!world.has("k") && world.has("l"));
            assert_eq!(before.get(&world.space, "k").unwrap().unwrap(), b"new");
        }
        drop(before);
        commit_now(&world.db);
        settle(&world.db);
        world.db.compact().unwrap();
        assert!(!world.has("k") && world.has("l"));
        world.pass(10);
        commit_now(&world.db);
        world.db.compact().unwrap();
        let world = world.reopen();
        let space = world.db.keyspace("latest").unwrap();
        assert_eq!(keys(&world.db.snapshot(), &space).len(), older_runs);
    }
}

#[test]
fn an_expired_version_stays_as_long_as_its_moment_is_retained() {
    let world = world();
    world.put("k", "v", 10);
    let first = world.db.newest();
    world.pass(11);
    world.db.put(&world.space, "other", "").unwrap();
    world.db.compact().unwrap();
    let then = world.db.snapshot_at(Moment::Glsn(first)).unwrap();
    assert_eq!(then.get(&world.space, "k").unwrap().unwrap(), b"v");
    assert_eq!(world.db.history(&world.space, "k").unwrap().count(), 1);
    drop(then);
    // Without the past, its moment cannot be read any more.
    world.db.set_retention(&world.space, Retention::Latest).unwrap();
    world.db.compact().unwrap();
    let then = world.db.snapshot_at(Moment::Glsn(first)).unwrap();
    assert!(matches!(then.get(&world.space, "k"), Err(Error::Trimmed { .. })));
    assert_eq!(world.db.history(&world.space, "k").unwrap().count(), 0);
}

#[test]
fn values_expire_by_the_clock_again_once_log_time_was_restarted() {
    let world = latest();
    let there = world.now();
    put_many(&world.db, &world.space);
    world.clock.set_wall_micros(there + 1000 * 86_400_000_000);
    commit_now(&world.db);
    world.clock.set_wall_micros(there);
    world.db.log().restart_time().unwrap();
    settle(&world.db);
    world.db.compact().unwrap();
    assert_eq!(world.db.snapshot().len(&world.space).unwrap(), 40_000);
}

#[test]
fn an_open_snapshot_of_after_the_expiry_does_not_keep_the_space() {
    let world = latest();
    put_many(&world.db, &world.space);
    let held = world.db.snapshot();
    world.pass(11);
    commit_now(&world.db);
    settle(&world.db);
    world.db.compact().unwrap();
    assert_eq!(held.len(&world.space).unwrap(), 40_000);
    let before = run_bytes(&world);
    drop(held);
    let _later = world.db.snapshot();
    commit_now(&world.db);
    settle(&world.db);
    world.db.compact().unwrap();
    assert!(run_bytes(&world) < before / 20, "{} of {before}", run_bytes(&world));
}

#[test]
fn a_moment_of_an_open_snapshot_keeps_its_time_once_the_log_is_freed() {
    let world = latest();
    let (db, space) = (&world.db, &world.space);
    world.put("a", "1", 100);
    let held = db.snapshot();
    world.pass(101);
    for _ in 0..30 {
        db.put(space, "other", vec![7; 1 << 20]).unwrap();
    }
    db.flush().unwrap();
    db.compact().unwrap();
    db.log().trim(db.newest()).unwrap();
    assert!(db.log().bounds().first > held.at());
    assert!(held.contains_key(space, "a").unwrap());
    assert!(db.snapshot_at(Moment::Glsn(held.at())).unwrap().contains_key(space, "a").unwrap());
}

/// Lets a keyspace's values expire in an idle store whose clock is steady, and does all work.
fn expire_idly(world: &World, seconds: u64) {
    settle(&world.db);
    for passed in (0..seconds).step_by(5) {
        world.pass((seconds - passed).min(5));
        settle(&world.db);
    }
}

#[test]
fn an_idle_store_frees_the_space_of_expired_values_by_one_commit() {
    for retention in [Retention::Latest, Retention::Glsns(0), Retention::Time(SECOND * 30)] {
        let mut world = world();
        world.space = world.db.create_keyspace("idle", retention).unwrap();
        put_for(&world.db, &world.space, SECOND * 100);
        let written = world.db.newest();
        expire_idly(&world, 99);
        assert_eq!(world.db.newest(), written, "{retention:?}");
        // Retention by age keeps the moments before the commit for 30 seconds more.
        (0..2).for_each(|_| expire_idly(&world, 31));
        assert_eq!(world.db.newest(), written.next(), "{retention:?}");
        assert!(run_bytes(&world) < 1 << 20, "{retention:?}: {}", run_bytes(&world));
        expire_idly(&world, 1000);
        assert_eq!(world.db.newest(), written.next(), "{retention:?}");
        let commits = world.db.log().commits(written.next()).unwrap();
        assert_eq!(commits.count(), 0, "the feed does not list it");
        let commit = world.db.log().commit(written.next()).unwrap().unwrap();
        assert_eq!(commit.metadata().unwrap(), br#"{"time_advanced":true}"#);
        assert!(world.db.log().cursors().is_empty());
        assert!(world.db.verify(&mut |_| {}).unwrap().problems.is_empty());
        world = world.reopen();
        assert_eq!(world.db.newest(), written.next());
    }
}

#[test]
fn an_idle_store_frees_the_log_of_large_expired_values() {
    let world = latest();
    let bytes = || -> u64 {
        let files = |dir| world.disk.list(Path::new(dir)).unwrap();
        ["/store/log", "/store/index"].iter().flat_map(files).map(|file| file.len).sum()
    };
    for key in 0..10_000u32 {
        let (key, ttl) = (key.to_be_bytes(), SECOND * 100);
        world.db.put_with_ttl(&world.space, key, vec![7; 5000], ttl).unwrap();
    }
    let before = bytes();
    // The memtable is flushed after two seconds.
    [5, 110, 10].into_iter().for_each(|seconds| expire_idly(&world, seconds));
    assert!(bytes() < before / 4, "{} of {before}", bytes());
}

#[test]
fn an_idle_store_writes_nothing_if_no_space_would_return() {
    let world = world();
    let forever = world.db.keyspace("forever").unwrap();
    let mixed = world.db.create_keyspace("mixed", Retention::Latest).unwrap();
    put_for(&world.db, &forever, SECOND * 100);
    for key in 0..2000u32 {
        let key = key.to_be_bytes();
        if key[3] % 4 == 0 {
            world.db.put_with_ttl(&mixed, key, [7; 1000], SECOND * 100).unwrap();
        } else {
            world.db.put(&mixed, key, [7; 1000]).unwrap();
        }
    }
    world.db.flush().unwrap();
    let written = world.db.newest();
    for _ in 0..5 {
        expire_idly(&world, 70);
    }
    assert_eq!(world.db.newest(), written);
}

#[test]
fn an_idle_store_trusts_no_clock_that_has_jumped_within_a_minute() {
    let world = latest();
    put_many(&world.db, &world.space);
    let written = world.db.newest();
    expire_idly(&world, 5);
    let there = world.now();
    world.clock.set_wall_micros(there + 1000 * 86_400_000_000);
    expire_idly(&world, 50);
    world.clock.set_wall_micros(there);
    settle(&world.db);
    assert_eq!(world.db.newest(), written);
    assert_eq!(world.db.snapshot().len(&world.space).unwrap(), 40_000);
    expire_idly(&world, 61);
    assert_eq!(world.db.newest(), written.next());
    settle(&world.db);
    assert!(run_bytes(&world) < 1 << 20);
}

#[test]
fn an_idle_store_that_only_reads_writes_nothing() {
    let world = latest();
    put_many(&world.db, &world.space);
    let (disk, clock) = (Arc::clone(&world.disk), Arc::clone(&world.clock));
    world.db.close().unwrap();
    let options = options_on(disk, &clock).read_only(true);
    let db = Db::open("/store", options).unwrap();
    let newest = db.newest();
    settle(&db);
    clock.advance(SECOND * 100);
    settle(&db);
    assert_eq!(db.newest(), newest);
}

#[test]
fn one_of_several_idle_processes_frees_the_space_of_expired_values() {
    let (dir, clock) = (tempfile::tempdir().unwrap(), Arc::new(ManualClock::new(START)));
    let open = || {
        let disk = Arc::new(plimsoll_disk::os::OsDisk::new());
        Db::open(dir.path().join("store"), options_on(disk, &clock).shared(true)).unwrap()
    };
    let (one, two) = (open(), open());
    let space = one.create_keyspace("latest", Retention::Latest).unwrap();
    put_for(&one, &space, SECOND * 60);
    let written = one.newest();
    let bytes = || one.stats().index.runs.iter().sum::<u64>();
    assert!(bytes() > 40_000 * 200);
    for _ in 0..30 {
        clock.advance(SECOND * 5);
        [&one, &two].into_iter().for_each(settle);
    }
    assert!(bytes() < 1 << 20, "{}", bytes());
    assert_eq!((one.newest(), two.newest()), (written.next(), written.next()));
}

/// Bytes of the blob files of the log.
fn blob_bytes(world: &World) -> u64 {
    let files = world.disk.list(Path::new("/store/log")).unwrap();
    files.iter().filter(|file| file.name.ends_with(".blob")).map(|file| file.len).sum()
}

#[test]
fn an_idle_store_frees_the_blob_files_of_few_expired_values() {
    for count in [1, 3] {
        let world = latest();
        world.db.put(&world.space, "small", "lasting").unwrap();
        for key in 0..count {
            world.put(&format!("large{key}"), vec![7; 1 << 20], 100);
        }
        assert!(blob_bytes(&world) >= count << 20);
        [5, 100, 90].into_iter().for_each(|seconds| expire_idly(&world, seconds));
        assert_eq!(blob_bytes(&world), 0, "{count}");
        assert!(world.has("small"));
        assert!(world.db.verify(&mut |_| {}).unwrap().problems.is_empty());
    }
}

#[test]
fn an_idle_store_frees_the_blob_files_of_few_superseded_values() {
    let world = latest();
    for value in 0..3 {
        world.db.put(&world.space, "large", vec![value; 1 << 20]).unwrap();
    }
    world.db.put(&world.space, "deleted", vec![7; 1 << 20]).unwrap();
    world.db.delete(&world.space, "deleted").unwrap();
    assert!(blob_bytes(&world) >= 4 << 20);
    expire_idly(&world, 10);
    assert!((1 << 20..2 << 20).contains(&blob_bytes(&world)), "{}", blob_bytes(&world));
    assert_eq!(world.db.get(&world.space, "large").unwrap().unwrap(), [2; 1 << 20][..]);
}
