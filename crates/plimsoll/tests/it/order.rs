//! Replicas of one store in folders of their own: an order outside of them orders their commits.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use plimsoll::order::memory::MemoryOrder;
use plimsoll::{Db, Error, Glsn, InvalidInput, Keyspace, Options};
use plimsoll_disk::random::Random;

/// Options of a replica without background threads.
pub(crate) fn options(order: &MemoryOrder) -> Options {
    Options::new()
        .memory_bytes(16 << 20)
        .background(false)
        .warm(false)
        .order_timeout(Duration::from_millis(200))
        .order(Arc::new(order.clone()))
}

/// All entries of the log: GLSN, time, stream, payload.
pub(crate) fn entries(db: &Db) -> Vec<(Glsn, u64, u32, Vec<u8>)> {
    let mut all = Vec::new();
    let log = db.log();
    let mut scan = log.scan(.., None).unwrap();
    while let Some(entry) = scan.next() {
        let entry = entry.unwrap();
        let micros = entry.time.duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
        all.push((entry.glsn, micros as u64, entry.stream, entry.payload.to_vec()));
    }
    all
}

/// All keys and values of a keyspace.
pub(crate) fn rows(db: &Db, space: &Keyspace) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let snapshot = db.snapshot();
    let range = snapshot.range(space, ..).unwrap();
    range.map(|row| row.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap()).collect()
}

/// Checks that the stores have equal logs and equal rows once they have applied everything.
pub(crate) fn check_equal(replicas: &[&Db], names: &[&str]) {
    for db in replicas {
        db.sync().unwrap();
    }
    let [first, others @ ..] = replicas else { return };
    let log = entries(first);
    for other in others {
        assert!(entries(other) == log, "the logs differ");
        for name in names {
            let of = |db: &Db| rows(db, &db.keyspace(name).unwrap());
            assert!(of(first) == of(other), "the rows of {name} differ");
        }
    }
}

fn put(db: &Db, key: &str, value: &str) -> Result<Glsn, Error> {
    db.put(&db.keyspace("default").unwrap(), key, value)
}

fn get(db: &Db, key: &str) -> Option<String> {
    let value = db.get(&db.keyspace("default").unwrap(), key).unwrap();
    value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}

#[test]
fn a_commit_of_one_replica_is_read_in_another() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(1));
    let open = |name: &str| Db::open(dir.path().join(name), options(&order)).unwrap();
    let (one, two) = (open("one"), open("two"));
    assert_eq!(one.id(), two.id());
    let at = put(&one, "a", "1").unwrap();
    assert_eq!(get(&one, "a").as_deref(), Some("1"));
    assert_eq!(get(&two, "a"), None, "it is not applied before a sync");
    assert_eq!(two.sync().unwrap(), at);
    assert_eq!(get(&two, "a").as_deref(), Some("1"));
    // This one has not applied the commit that takes the position.
    put(&two, "b", "2").unwrap();
    put(&one, "c", "3").unwrap();
    assert_eq!(get(&one, "b").as_deref(), Some("2"));
    check_equal(&[&one, &two], &["default"]);
    // One that comes later gets everything.
    let three = open("three");
    assert_eq!(get(&three, "c").as_deref(), Some("3"));
    check_equal(&[&one, &three], &["default"]);
}

#[test]
fn a_store_begins_an_order_and_copies_of_it_join() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(1));
    let (first, copy) = (dir.path().join("first"), dir.path().join("copy"));
    {
        let alone = Options::new().memory_bytes(16 << 20).background(false).warm(false);
        let db = Db::open(&first, alone).unwrap();
        put(&db, "before", "1").unwrap();
        db.backup(&copy).unwrap();
        db.close().unwrap();
    }
    let one = Db::open(&first, options(&order)).unwrap();
    put(&one, "after", "2").unwrap();
    let two = Db::open(&copy, options(&order)).unwrap();
    assert_eq!(get(&two, "before").as_deref(), Some("1"));
    assert_eq!(get(&two, "after").as_deref(), Some("2"));
    put(&two, "of two", "3").unwrap();
    check_equal(&[&one, &two], &["default"]);
    // A new store cannot have what was before the order.
    let error = Db::open(dir.path().join("new"), options(&order)).unwrap_err();
    assert!(matches!(error, Error::Behind { .. }), "{error:?}");
    let other = dir.path().join("other");
    let alone = Options::new().memory_bytes(16 << 20).background(false).warm(false);
    put(&Db::open(&other, alone).unwrap(), "x", "1").unwrap();
    let error = Db::open(&other, options(&order)).unwrap_err();
    assert!(matches!(error, Error::Forked { .. }), "{error:?}");
}

#[test]
fn a_replica_opens_for_writing_only_with_its_order() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(1));
    let path = dir.path().join("store");
    let db = Db::open(&path, options(&order)).unwrap();
    put(&db, "a", "1").unwrap();
    db.close().unwrap();
    let plain = || Options::new().memory_bytes(16 << 20).background(false).warm(false);
    for options in [plain(), plain().shared(true)] {
        let error = Db::open(&path, options).unwrap_err();
        let is_missing = matches!(&error, Error::InvalidInput(InvalidInput::OrderIsMissing { .. }));
        assert!(is_missing, "{error:?}");
    }
    let reader = Db::open(&path, plain().read_only(true)).unwrap();
    assert_eq!(get(&reader, "a").as_deref(), Some("1"));
    for (bad, wanted) in [
        (options(&order).shared(true), InvalidInput::OrderOfSharedStore),
        (options(&order).read_only(true), InvalidInput::OrderOfReader),
        (
            options(&order).segment_bytes(1 << 20),
            InvalidInput::SegmentSizeWithOrder { bytes: 1 << 20 },
        ),
    ] {
        assert_eq!(Db::open(&path, bad).unwrap_err(), Error::InvalidInput(wanted));
    }
}

#[test]
fn a_conflict_with_another_replica_is_found() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(1));
    let open = |name: &str| Db::open(dir.path().join(name), options(&order)).unwrap();
    let (one, two) = (open("one"), open("two"));
    put(&one, "a", "1").unwrap();
    two.sync().unwrap();
    let space = two.keyspace("default").unwrap();
    let mut tx = two.begin();
    assert!(tx.get(&space, "a").unwrap().is_some());
    tx.put(&space, "b", "of a = 1").unwrap();
    put(&one, "a", "2").unwrap();
    let error = tx.commit().unwrap_err();
    assert!(matches!(&error, Error::Conflict { key, .. } if key == b"a"), "{error:?}");
    // It has applied the commit that it conflicts with.
    assert_eq!(get(&two, "a").as_deref(), Some("2"));
    assert_eq!(get(&two, "b"), None);
}

/// A transfer between two of the accounts, or none if the account has too little.
fn transfer(db: &Db, space: &Keyspace, random: &mut Random) -> Result<(), Error> {
    let (from, to) = (random.below(8), random.below(8));
    let amount = 1 + random.below(20);
    let mut tx = db.begin();
    let read = |tx: &plimsoll::Transaction, account: u64| {
        let value = tx.get(space, account.to_be_bytes()).unwrap().unwrap();
        u64::from_le_bytes(value[..].try_into().unwrap())
    };
    let (have, has) = (read(&tx, from), read(&tx, to));
    if from == to || have < amount {
        return Ok(());
    }
    tx.put(space, from.to_be_bytes(), (have - amount).to_le_bytes())?;
    tx.put(space, to.to_be_bytes(), (has + amount).to_le_bytes())?;
    tx.commit().map(drop)
}

fn open_bank(db: &Db) -> Keyspace {
    let space = db.keyspace("bank").unwrap();
    let mut tx = db.begin();
    (0..8u64).for_each(|it| tx.put(&space, it.to_be_bytes(), 100u64.to_le_bytes()).unwrap());
    tx.commit().unwrap();
    space
}

pub(crate) fn money(db: &Db) -> u64 {
    let rows = rows(db, &db.keyspace("bank").unwrap());
    rows.values().map(|value| u64::from_le_bytes(value[..].try_into().unwrap())).sum()
}

#[test]
fn transfers_of_three_replicas_keep_the_sum_and_equal_logs() {
    for seed in 0..8 {
        let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(seed));
        let open = |n: u64| Db::open(dir.path().join(n.to_string()), options(&order)).unwrap();
        let replicas: Vec<Db> = (0..3).map(open).collect();
        open_bank(&replicas[0]);
        for db in &replicas {
            db.sync().unwrap();
        }
        let mut random = Random::new(seed);
        let mut conflicts = 0;
        for _ in 0..150 {
            let db = &replicas[random.below(3) as usize];
            match random.below(12) {
                0 => drop(db.step().unwrap()),
                1 => db.flush().unwrap(),
                2 => assert_eq!(money(db), 800, "seed {seed}"),
                _ => match transfer(db, &db.keyspace("bank").unwrap(), &mut random) {
                    Err(Error::Conflict { .. }) => conflicts += 1,
                    done => done.unwrap(),
                },
            }
        }
        assert!(conflicts > 0);
        let all: Vec<&Db> = replicas.iter().collect();
        check_equal(&all, &["bank", "default"]);
        assert_eq!(money(&replicas[2]), 800);
    }
}

#[test]
fn concurrent_transfers_of_replicas_with_threads_keep_the_sum() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(5));
    order.set_delay(Duration::from_micros(300));
    let open = |n: u64| {
        let options = options(&order).background(true).order_timeout(Duration::from_secs(20));
        Db::open(dir.path().join(n.to_string()), options).unwrap()
    };
    let replicas: Vec<Db> = (0..2).map(open).collect();
    open_bank(&replicas[0]);
    replicas[1].sync().unwrap();
    let committed = AtomicU64::new(0);
    thread::scope(|scope| {
        for worker in 0..6u64 {
            let (db, committed) = (&replicas[worker as usize % 2], &committed);
            scope.spawn(move || {
                let space = db.keyspace("bank").unwrap();
                let mut random = Random::new(worker);
                for _ in 0..40 {
                    match transfer(db, &space, &mut random) {
                        Ok(()) => drop(committed.fetch_add(1, Ordering::Relaxed)),
                        Err(Error::Conflict { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    assert_eq!(money(db), 800);
                }
            });
        }
    });
    assert!(committed.into_inner() > 20);
    check_equal(&replicas.iter().collect::<Vec<_>>(), &["bank"]);
}

#[test]
fn concurrent_commits_share_a_batch() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(5));
    let options = options(&order).background(true).order_timeout(Duration::from_secs(30));
    let db = Db::open(dir.path().join("store"), options).unwrap();
    let space = db.keyspace("rows").unwrap();
    let (before, _) = order.calls();
    order.set_delay(Duration::from_millis(5));
    const COMMITTERS: u64 = 64;
    const COMMITS: u64 = 10;
    thread::scope(|scope| {
        for worker in 0..COMMITTERS {
            let (db, space) = (&db, &space);
            scope.spawn(move || {
                for number in 0..COMMITS {
                    let key = [worker.to_be_bytes(), number.to_be_bytes()].concat();
                    let at = db.put(space, &key, b"value").unwrap();
                    let found = db.get(space, &key).unwrap();
                    assert!(found.is_some() && at <= db.newest(), "a commit reads its own write");
                }
            });
        }
    });
    let batches = order.calls().0 - before;
    assert_eq!(rows(&db, &space).len() as u64, COMMITTERS * COMMITS);
    assert!(batches <= COMMITTERS * COMMITS / 10, "{batches} batches");
}

#[test]
fn updates_of_one_counter_are_all_counted() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(5));
    order.set_delay(Duration::from_micros(200));
    let open = |n: u64| {
        let options = options(&order).background(true).order_timeout(Duration::from_secs(30));
        Db::open(dir.path().join(n.to_string()), options).unwrap()
    };
    let replicas: Vec<Db> = (0..2).map(open).collect();
    thread::scope(|scope| {
        for worker in 0..6usize {
            let db = &replicas[worker % 2];
            scope.spawn(move || {
                let space = db.keyspace("counters").unwrap();
                for _ in 0..25 {
                    loop {
                        match db.add(&space, "n", 1, plimsoll::Overflow::Checked) {
                            Ok(_) => break,
                            Err(Error::Conflict { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
    });
    check_equal(&replicas.iter().collect::<Vec<_>>(), &["counters"]);
    let space = replicas[0].keyspace("counters").unwrap();
    let value = replicas[0].get(&space, "n").unwrap().unwrap();
    assert_eq!(i64::from_le_bytes(value[..].try_into().unwrap()), 150);
}

#[test]
fn no_replica_starves_beside_one_that_always_commits() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(5));
    order.set_delay(Duration::from_millis(2));
    let open = |n: u64| {
        let options = options(&order).background(true).order_timeout(Duration::from_secs(30));
        Db::open(dir.path().join(n.to_string()), options).unwrap()
    };
    let replicas: Vec<Db> = (0..3).map(open).collect();
    let done: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
    let begun = std::time::Instant::now();
    thread::scope(|scope| {
        for (number, db) in replicas.iter().enumerate() {
            let done = &done;
            scope.spawn(move || {
                while begun.elapsed() < Duration::from_secs(3) {
                    put(db, &number.to_string(), "x").unwrap();
                    done[number].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let done: Vec<u64> = done.into_iter().map(AtomicU64::into_inner).collect();
    let (least, most) = (done.iter().min().unwrap(), done.iter().max().unwrap());
    assert!(*least > 10 && *most < 20 * least, "{done:?}");
}

/// Copies a folder with the attributes of its files, as for a backup.
fn copy_folder(from: &Path, to: &Path) {
    let done = std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(done.success());
}

#[test]
fn a_copied_folder_becomes_another_replica() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(5));
    let path = |name: &str| dir.path().join(name);
    let one = Db::open(path("one"), options(&order)).unwrap();
    put(&one, "a", &"x".repeat(300_000)).unwrap();
    one.close().unwrap();
    copy_folder(&path("one"), &path("copy"));
    std::fs::rename(path("one"), path("moved")).unwrap();
    let before = order.last();
    let one = Db::open(path("moved"), options(&order)).unwrap();
    assert_eq!(order.last(), before, "a moved folder is the same replica");
    let copy = Db::open(path("copy"), options(&order)).unwrap();
    assert_eq!(order.last(), before + 1, "the copy has claimed a number");
    for round in 0..3 {
        put(&one, &format!("one {round}"), &"1".repeat(300_000)).unwrap();
        put(&copy, &format!("copy {round}"), &"2".repeat(300_000)).unwrap();
    }
    check_equal(&[&one, &copy], &["default"]);
    copy.close().unwrap();
    let before = order.last();
    let copy = Db::open(path("copy"), options(&order)).unwrap();
    assert_eq!(order.last(), before, "it keeps its number");
    check_equal(&[&one, &copy], &["default"]);
}

#[test]
fn a_background_thread_applies_commits_of_others() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(5));
    let open = |n: u64| {
        let options = options(&order).background(true);
        Db::open(dir.path().join(n.to_string()), options).unwrap()
    };
    let (one, two) = (open(1), open(2));
    put(&one, "a", "1").unwrap();
    let begun = std::time::Instant::now();
    while get(&two, "a").is_none() {
        assert!(begun.elapsed() < Duration::from_secs(20), "nothing was applied");
        thread::sleep(Duration::from_millis(5));
    }
    // A read that must not be stale does not wait for that thread.
    let fresh = options(&order).max_staleness(Duration::ZERO);
    let three = Db::open(dir.path().join("three"), fresh).unwrap();
    put(&one, "b", "2").unwrap();
    assert_eq!(get(&three, "b").as_deref(), Some("2"));
    let space = three.keyspace("default").unwrap();
    order.set_available(false);
    let error = three.get(&space, "b").unwrap_err();
    assert!(matches!(error, Error::Behind { .. }), "{error:?}");
}

#[test]
fn a_replica_is_opened_again_where_it_ended() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(5));
    let path = |name: &str| dir.path().join(name);
    let one = Db::open(path("one"), options(&order)).unwrap();
    for round in 0..4 {
        let two = Db::open(path("two"), options(&order)).unwrap();
        put(&two, &format!("two {round}"), "x").unwrap();
        two.close().unwrap();
        put(&one, &format!("one {round}"), "x").unwrap();
    }
    let before = order.calls().1;
    let two = Db::open(path("two"), options(&order)).unwrap();
    assert!(order.calls().1 - before <= 4, "it reads the order only from its place on");
    check_equal(&[&one, &two], &["default"]);
    assert!(Path::new(&path("two")).join("REPLICA").exists());
}
