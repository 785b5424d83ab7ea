//! The work that a killed process leaves for replay: little, once writers pause or some time has
//! passed.

use std::path::Path;
use std::time::Duration;

use plimsoll::{Db, Error, Keyspace, Options, Retention};
use plimsoll_disk::vfs::Disk;

use crate::warm_world::{STORE, World, key, put};

/// This many values are worth a run in the smallest budget, and do not fill a memtable.
const MANY: u32 = 2600;

fn value(number: u32) -> Vec<u8> {
    number.to_be_bytes().repeat(75)
}

fn open(world: &World) -> (Db, Keyspace) {
    let db = world.open();
    let keyspace = db.create_keyspace("objects", Retention::Forever).unwrap();
    (db, keyspace)
}

/// Lets this much time pass, half a second at a time, and does the work that is due.
fn pass(world: &World, db: &Db, time: Duration) {
    for _ in 0..time.as_millis() / 500 {
        while db.step().unwrap() {}
        world.clock.advance(Duration::from_millis(500));
    }
    while db.step().unwrap() {}
}

/// The transactions and bytes that are replayed after a kill now; checks that all of these keys
/// exist.
fn replayed_after_a_kill(world: &World, keys: u32) -> (u64, u64) {
    let world = world.after_a_kill();
    let (db, keyspace) = open(&world);
    for number in 0..keys {
        assert_eq!(
            db.snapshot().get(&keyspace, &key(number)).unwrap().unwrap(),
            &value(number)[..]
        );
    }
    let opening = db.stats().opening;
    (opening.replayed, opening.replayed_bytes)
}

#[test]
fn a_writer_that_is_open_briefly_sweeps_the_leftovers_of_a_killed_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let open = || Db::open(&path, Options::new().memory_bytes(16 << 20)).unwrap();
    open().close().unwrap();
    let left = path.join("log").join("00000000000000000003.blob");
    std::fs::write(&left, b"").unwrap();
    // Its threads have no time to sweep in so short a run.
    open().close().unwrap();
    assert!(!left.exists());
}

#[test]
fn writes_are_replayed_after_a_kill_unless_writers_have_paused() {
    let world = World::new(1);
    let (db, keyspace) = open(&world);
    put(&db, &keyspace, 0..MANY, value);
    pass(&world, &db, Duration::from_millis(1000));
    let (transactions, bytes) = replayed_after_a_kill(&world, MANY);
    assert!(
        transactions >= u64::from(MANY / 500) && bytes > u64::from(MANY) * 300,
        "{transactions}, {bytes}"
    );
    assert_eq!(db.stats().index.flushes, 0);
    pass(&world, &db, Duration::from_millis(2000));
    assert_eq!(replayed_after_a_kill(&world, MANY), (0, 0));
    assert_eq!(db.stats().index.flushes, 1);
    pass(&world, &db, Duration::from_secs(100));
    assert_eq!(db.stats().index.flushes, 1, "there is nothing more to flush");
}

#[test]
fn writes_that_are_not_worth_a_run_are_left_for_replay() {
    let world = World::new(2);
    let (db, keyspace) = open(&world);
    put(&db, &keyspace, 0..100, value);
    pass(&world, &db, Duration::from_secs(100));
    assert_eq!(db.stats().index.flushes, 0);
    assert!(replayed_after_a_kill(&world, 100).0 > 0);
}

#[test]
fn large_values_only_in_the_log_count_with_their_size_in_the_log() {
    let world = World::new(6);
    let (db, keyspace) = open(&world);
    let large = |_| vec![7; 200 << 10];
    for number in 0..30 {
        put(&db, &keyspace, number..number + 1, large);
    }
    pass(&world, &db, Duration::from_secs(3));
    assert_eq!(db.stats().index.flushes, 1, "a few pointers stand for 6 MB to be replayed");
    put(&db, &keyspace, 30..60, large);
    db.close().unwrap();
    let db = world.open();
    assert_eq!(db.stats().opening.replayed, 0);
}

#[test]
fn closing_after_a_small_write_leaves_no_run_and_the_next_opening_replays_it() {
    let world = World::new(7);
    for number in 0..20 {
        let (db, keyspace) = open(&world);
        assert_eq!(db.stats().opening.replayed, u64::from(number) + u64::from(number > 0));
        put(&db, &keyspace, number..number + 1, value);
        db.close().unwrap();
        assert!(
            world.files("index").iter().all(|name| name.starts_with("MANIFEST.")),
            "{:?}",
            world.files("index")
        );
    }
    let (db, keyspace) = open(&world);
    for number in 0..20 {
        assert_eq!(
            db.snapshot().get(&keyspace, &key(number)).unwrap().unwrap(),
            &value(number)[..]
        );
    }
    put(&db, &keyspace, 20..MANY, value);
    db.close().unwrap();
    assert!(
        world.files("index").iter().any(|name| name.ends_with(".run")),
        "this much is worth a run"
    );
    assert_eq!(world.open().stats().opening.replayed, 0);
}

#[test]
fn a_truncated_log_is_recognised_although_closing_wrote_no_run() {
    let world = World::new(8);
    let log = |world: &World| -> Vec<_> {
        let paths =
            world.files("log").into_iter().map(|name| Path::new(STORE).join("log").join(name));
        paths.map(|path| (path.clone(), world.read(&path))).collect()
    };
    let (db, keyspace) = open(&world);
    put(&db, &keyspace, 0..1, value);
    db.close().unwrap();
    let before = log(&world);
    let (db, keyspace) = open(&world);
    put(&db, &keyspace, 1..2, value);
    db.close().unwrap();
    before.iter().for_each(|(path, bytes)| world.write(path, bytes));
    let opened = Db::open(STORE, world.options());
    assert!(matches!(opened, Err(Error::Forked { .. } | Error::Corrupt { .. })), "{opened:?}");
}

#[test]
fn writes_older_than_half_a_minute_are_flushed_under_a_continuous_writer() {
    let world = World::new(3);
    let (db, keyspace) = open(&world);
    put(&db, &keyspace, 0..MANY, value);
    let mut most = 0;
    for number in 0..120 {
        put(&db, &keyspace, MANY + number..MANY + number + 1, value);
        pass(&world, &db, Duration::from_secs(1));
        if [31, 60, 119].contains(&number) {
            most = most.max(replayed_after_a_kill(&world, MANY + number).0);
        }
    }
    assert_eq!(db.stats().index.flushes, 1, "later writes are not worth another");
    assert!(most <= 120, "{most} transactions of one key each");
}

#[test]
fn a_long_segment_is_sealed_when_writers_pause() {
    let world = World::new(4);
    let options = || world.options().segment_bytes(64 << 20);
    let db = Db::open(STORE, options()).unwrap();
    let keyspace = db.create_keyspace("objects", Retention::Forever).unwrap();
    put(&db, &keyspace, 0..20_000, value);
    let segments = || world.files("log").into_iter().filter(|name| name.ends_with(".seg")).count();
    assert_eq!(segments(), 1);
    pass(&world, &db, Duration::from_secs(3));
    assert_eq!(segments(), 2);
    pass(&world, &db, Duration::from_secs(100));
    assert_eq!(segments(), 2, "an empty one is not long");
    put(&db, &keyspace, 20_000..20_001, value);
    replayed_after_a_kill(&world, 20_001);
}

#[test]
fn a_store_with_threads_flushes_when_writers_pause() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), Options::new().memory_bytes(16 << 20)).unwrap();
    let keyspace = db.keyspace("objects").unwrap();
    put(&db, &keyspace, 0..MANY, value);
    while db.stats().index.flushes == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    for number in 0..MANY {
        assert_eq!(
            db.snapshot().get(&keyspace, &key(number)).unwrap().unwrap(),
            &value(number)[..]
        );
    }
    db.close().unwrap();
}

#[test]
fn leftovers_of_a_killed_writer_are_swept_before_a_verification() {
    for background in [true, false] {
        let world = World::new(5);
        let (db, keyspace) = open(&world);
        put(&db, &keyspace, 0..10, value);
        db.close().unwrap();
        let left = Path::new(STORE).join("log").join("00000000000000000007.blob");
        world.write(&left, b"the beginning of a large value");
        let db = Db::open(STORE, world.options().background(background)).unwrap();
        let report = db.verify(&mut |_| {}).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        assert!(world.disk.entry(&left).unwrap().is_none());
        db.close().unwrap();
    }
}
