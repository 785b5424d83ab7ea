//! Replicas whose order fails, is in doubt, or has other batches than before; and replicas that
//! are killed, or whose power is cut.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use plimsoll::order::memory::{Faults, MemoryOrder};
use plimsoll::order::{Order, OrderError};
use plimsoll::{Db, Error, Options};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::random::Random;

use crate::order::{check_equal, options, rows};

fn put(db: &Db, key: &str, value: &str) -> Result<(), Error> {
    db.put(&db.keyspace("default")?, key, value).map(drop)
}

fn get(db: &Db, key: &str) -> Option<Vec<u8>> {
    let space = db.keyspace("default").unwrap();
    db.get(&space, key).unwrap().map(|value| value.to_vec())
}

/// What is known of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Put {
    Made,
    NotMade,
    InDoubt,
}

fn known(done: &Result<(), Error>) -> Put {
    match done {
        Ok(()) => Put::Made,
        Err(Error::InDoubt { .. }) => Put::InDoubt,
        Err(Error::Unavailable { .. } | Error::Corrupt { .. }) => Put::NotMade,
        Err(error) => panic!("{error:?}"),
    }
}

/// Each put has a key of its own. The ones that were acknowledged are there, the ones that failed
/// are not.
fn check_puts(db: &Db, puts: &BTreeMap<String, Put>, what: &str) {
    let found = rows(db, &db.keyspace("default").unwrap());
    for (key, put) in puts {
        let is_there = found.contains_key(key.as_bytes());
        match put {
            Put::Made => assert!(is_there, "{what}: {key} was acknowledged and is lost"),
            Put::NotMade => assert!(!is_there, "{what}: {key} failed and is there"),
            Put::InDoubt => {}
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_with_an_order_that_fails_by_seed() {
    for seed in 0..24 {
        let order = MemoryOrder::new(seed);
        let disks: Vec<LyingDisk> = (0..3).map(|n| LyingDisk::new(seed * 3 + n)).collect();
        let open = |n: usize| {
            let clock = Arc::new(ManualClock::new(1_700_000_000_000_000 + n as u64));
            let options = options(&order).world(Arc::new(disks[n].clone()), clock);
            Db::open("/store", options).unwrap()
        };
        let replicas: Vec<Db> = (0..3).map(open).collect();
        let mut random = Random::new(seed);
        let mut puts = BTreeMap::new();
        for round in 0..12 {
            let chance = |random: &mut Random| [0.0, 0.05, 0.3][random.below(3) as usize];
            order.set_faults(Faults {
                refused: chance(&mut random),
                unavailable: chance(&mut random),
                in_doubt_done: chance(&mut random),
                in_doubt_lost: chance(&mut random),
                in_doubt_late: chance(&mut random),
                flipped: chance(&mut random),
                flipped_blob: chance(&mut random),
            });
            order.set_available(random.below(6) > 0);
            for number in 0..8 {
                let db = &replicas[random.below(3) as usize];
                let key = format!("{round} {number}");
                let value = if random.below(8) == 0 { "x".repeat(300_000) } else { key.clone() };
                match random.below(10) {
                    0 => drop(db.step().unwrap()),
                    1 => drop(db.sync()),
                    2 => db.flush().unwrap(),
                    _ => drop(puts.insert(key.clone(), known(&put(db, &key, &value)))),
                }
            }
        }
        order.set_faults(Faults::default());
        order.set_available(true);
        check_equal(&replicas.iter().collect::<Vec<_>>(), &["default"]);
        check_puts(&replicas[1], &puts, &format!("seed {seed}"));
        assert!(puts.values().any(|put| *put == Put::Made));
    }
}

#[test]
fn an_answer_that_was_lost_is_resolved_before_the_commit_returns() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(3));
    let open = |name: &str| {
        let options = options(&order).order_timeout(Duration::from_secs(60));
        Db::open(dir.path().join(name), options).unwrap()
    };
    let (one, two) = (open("one"), open("two"));
    for (in_doubt_done, in_doubt_lost) in [(0.7, 0.0), (0.0, 0.7), (0.4, 0.4)] {
        order.set_faults(Faults { in_doubt_done, in_doubt_lost, ..Faults::default() });
        for n in 0..20 {
            let space = one.keyspace("default").unwrap();
            one.add(&space, "n", 1, plimsoll::Overflow::Checked).unwrap();
            put(&two, &format!("{in_doubt_done} {n}"), "x").unwrap();
        }
    }
    order.set_faults(Faults::default());
    check_equal(&[&one, &two], &["default"]);
    assert_eq!(get(&two, "n").unwrap(), 60i64.to_le_bytes());
}

#[test]
fn an_order_that_stays_in_doubt_is_told_and_known_later() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(3));
    let db = Db::open(dir.path().join("one"), options(&order)).unwrap();
    put(&db, "a", "1").unwrap();
    order.set_faults(Faults { in_doubt_lost: 1.0, ..Faults::default() });
    let position = order.last() + 1;
    let error = put(&db, "b", "1").unwrap_err();
    assert!(matches!(error, Error::InDoubt { position: at, .. } if at == position), "{error:?}");
    order.set_faults(Faults::default());
    db.sync().unwrap();
    assert_eq!(get(&db, "b"), None);
    order.set_available(false);
    let error = put(&db, "c", "1").unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert_eq!(get(&db, "a").as_deref(), Some(&b"1"[..]), "reads go on");
    db.flush().unwrap();
    order.set_available(true);
    put(&db, "d", "1").unwrap();
    assert_eq!((get(&db, "c"), get(&db, "d").is_some()), (None, true));
    // It opens, and reads, without the order.
    db.close().unwrap();
    order.set_available(false);
    let db = Db::open(dir.path().join("one"), options(&order)).unwrap();
    assert_eq!(get(&db, "d").as_deref(), Some(&b"1"[..]));
    let error = db.sync().unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    db.close().unwrap();
}

/// Opens two replicas; the first one has made three commits that the second one has not applied.
fn apart() -> (tempfile::TempDir, MemoryOrder, Db, Db) {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(3));
    let open = |name: &str| Db::open(dir.path().join(name), options(&order)).unwrap();
    let (one, two) = (open("one"), open("two"));
    put(&one, "both", "1").unwrap();
    two.sync().unwrap();
    for key in ["a", "b", "c"] {
        put(&one, key, "1").unwrap();
    }
    (dir, order, one, two)
}

#[test]
fn a_damaged_batch_is_named_and_not_applied() {
    let (_dir, order, one, two) = apart();
    let at = order.last() - 1;
    let good = order.batch(at).unwrap();
    let cut = [&[][..], &good[..20], &good[..good.len() - 1]].map(<[u8]>::to_vec);
    let longer = [&good[..], b"x"].concat();
    let flipped = (0..good.len()).step_by(7).map(|byte| {
        let mut bad = good.clone();
        bad[byte] ^= 4;
        bad
    });
    for bad in flipped.chain(cut).chain([longer]) {
        order.replace(at, bad);
        for error in [two.sync().map(drop).unwrap_err(), put(&two, "x", "1").unwrap_err()] {
            let Error::Corrupt { message, .. } = &error else { panic!("{error:?}") };
            assert!(message.contains(&format!("position {at} ")), "{message}");
        }
        assert!(get(&two, "b").is_none() && get(&two, "both").is_some(), "reads go on");
    }
    order.replace(at, good);
    put(&two, "d", "1").unwrap();
    check_equal(&[&one, &two], &["default"]);
}

#[test]
fn a_batch_of_another_order_or_position_is_a_fork() {
    let other = MemoryOrder::new(9);
    let dir = tempfile::tempdir().unwrap();
    let stranger = Db::open(dir.path().join("stranger"), options(&other)).unwrap();
    for n in 0..8 {
        put(&stranger, &n.to_string(), "x").unwrap();
    }
    for case in 0..3 {
        let (_dir, order, _one, two) = apart();
        let at = order.last() - 1;
        match case {
            0 => order.replace(at, other.batch(at).unwrap()),
            1 => order.replace(at, order.batch(at - 1).unwrap()),
            _ => order.replace(at, order.batch(at + 1).unwrap()),
        }
        for error in [two.sync().map(drop).unwrap_err(), put(&two, "x", "1").unwrap_err()] {
            let Error::Forked { message, .. } = &error else { panic!("{case}: {error:?}") };
            assert!(message.contains(&format!("position {at} ")), "{message}");
        }
        assert!(get(&two, "b").is_none() && get(&two, "a").is_some(), "reads go on");
    }
}

#[test]
fn an_order_that_was_rolled_back_is_a_fork() {
    for is_reopened in [false, true] {
        let (dir, order, one, two) = apart();
        order.roll_back(order.last() - 2);
        let one = if is_reopened {
            one.close().unwrap();
            Db::open(dir.path().join("one"), options(&order)).unwrap()
        } else {
            // An order does not lose batches without being unavailable.
            order.set_available(false);
            put(&one, "x", "1").unwrap_err();
            order.set_available(true);
            one
        };
        let before = order.last();
        for error in [one.sync().map(drop).unwrap_err(), put(&one, "x", "1").unwrap_err()] {
            assert!(matches!(error, Error::Forked { .. }), "{error:?}");
        }
        assert_eq!(order.last(), before, "nothing was appended");
        assert!(get(&one, "c").is_some(), "reads go on");
        // The other one has not applied what is lost, and goes on.
        put(&two, "y", "1").unwrap();
        let error = put(&one, "x", "1").unwrap_err();
        assert!(matches!(error, Error::Forked { .. }), "{error:?}");
    }
}

#[test]
fn a_replica_behind_a_trimmed_order_says_so_and_a_copy_joins() {
    let (dir, order, one, two) = apart();
    order.trim(order.last());
    let error = two.sync().unwrap_err();
    assert!(matches!(error, Error::Behind { .. }), "{error:?}");
    assert!(get(&two, "both").is_some(), "reads go on");
    put(&one, "d", "1").unwrap();
    let error = Db::open(dir.path().join("new"), options(&order)).unwrap_err();
    assert!(matches!(error, Error::Behind { .. }), "{error:?}");
    one.backup(dir.path().join("copy")).unwrap();
    put(&one, "e", "1").unwrap();
    let copy = Db::open(dir.path().join("copy"), options(&order)).unwrap();
    put(&copy, "f", "x".repeat(300_000).as_str()).unwrap();
    check_equal(&[&one, &copy], &["default"]);
}

fn on(disk: &LyingDisk, order: &MemoryOrder) -> Options {
    let clock = Arc::new(ManualClock::new(1_700_000_000_000_000));
    options(order).memtable_bytes(64 << 10).world(Arc::new(disk.clone()), clock)
}

/// Puts that a replica makes until its disk fails.
fn work(db: &Db, prefix: &str, puts: &mut BTreeMap<String, Put>) -> Result<(), Error> {
    for number in 0..14 {
        let key = format!("{prefix} {number}");
        let value = if number % 5 == 1 { "x".repeat(270_000) } else { "x".repeat(9000) };
        puts.insert(key.clone(), Put::InDoubt);
        put(db, &key, &value)?;
        puts.insert(key, Put::Made);
        match number {
            3 | 9 => drop(db.step()?),
            5 => db.flush()?,
            7 => drop(db.sync()?),
            _ => {}
        }
    }
    Ok(())
}

/// Ends the process, or the power, of a replica at each change of its disk.
fn end_at_each_change(power: bool) {
    let mut nth = 1;
    loop {
        let order = MemoryOrder::new(nth);
        let (disk, other_disk) = (LyingDisk::new(nth), LyingDisk::new(nth + 1));
        let other = Db::open("/store", on(&other_disk, &order)).unwrap();
        let mut puts = BTreeMap::new();
        disk.cut_power_at_change(nth);
        let done = (|| {
            let db = Db::open("/store", on(&disk, &order))?;
            work(&db, "first", &mut puts)?;
            db.close()
        })();
        let is_over = !disk.power_is_cut();
        assert!(!is_over || done.is_ok(), "{nth}: {done:?}");
        disk.cancel_failures();
        put(&other, "beside", "1").unwrap();
        match power {
            true => disk.restore_power(),
            false => disk.restart_process(),
        }
        let db = Db::open("/store", on(&disk, &order))
            .unwrap_or_else(|error| panic!("change {nth}: {error}"));
        work(&db, "second", &mut puts).unwrap_or_else(|error| panic!("change {nth}: {error}"));
        check_equal(&[&db, &other], &["default"]);
        check_puts(&db, &puts, &format!("change {nth}"));
        db.close().unwrap();
        let db = Db::open("/store", on(&disk, &order)).unwrap();
        check_puts(&db, &puts, &format!("change {nth}, opened again"));
        let report = db.verify(&mut |_| {}).unwrap();
        assert!(report.problems.is_empty(), "change {nth}: {report:?}");
        if is_over {
            assert!(nth > 40, "there are many changes");
            return;
        }
        nth += if nth < 60 { 1 } else { 3 };
    }
}

#[test]
fn a_replica_that_is_killed_at_any_change_of_its_disk_continues() {
    end_at_each_change(false);
}

#[test]
fn a_replica_whose_power_is_cut_at_any_change_of_its_disk_continues() {
    end_at_each_change(true);
}

#[test]
fn a_replica_of_yesterday_continues_or_is_refused() {
    let order = MemoryOrder::new(1);
    let disk = LyingDisk::new(1);
    let db = Db::open("/store", on(&disk, &order)).unwrap();
    put(&db, "a", &"x".repeat(300_000)).unwrap();
    db.close().unwrap();
    let yesterday = disk.snapshot();
    let db = Db::open("/store", on(&disk, &order)).unwrap();
    let mut puts = BTreeMap::new();
    work(&db, "today", &mut puts).unwrap();
    let old = Db::open("/store", on(&yesterday, &order)).unwrap();
    check_equal(&[&db, &old], &["default"]);
    check_puts(&old, &puts, "the old copy");
    assert!(Path::new("/store").is_absolute());
}

#[test]
fn an_order_in_memory_does_what_it_says() {
    let order = MemoryOrder::new(1);
    assert_eq!(order.append(1, b"one").unwrap(), plimsoll::order::Appended::Done);
    assert_eq!(order.append(1, b"other").unwrap(), plimsoll::order::Appended::Taken);
    assert_eq!(order.read(1).unwrap().as_deref(), Some(&b"one"[..]));
    assert_eq!(order.read(2).unwrap(), None);
    order.wait(2, Duration::from_millis(1)).unwrap();
    order.append(2, b"two").unwrap();
    order.trim(2);
    assert_eq!(order.read(1), Err(OrderError::Trimmed { first: 2 }));
    order.set_available(false);
    assert!(matches!(order.read(2), Err(OrderError::Unavailable(_))));
}

/// An order whose client repeats each append by itself, so that it may say `Taken` of a batch that
/// its first try has appended, and cannot be read right after that.
#[derive(Debug)]
struct RepeatingClient {
    order: MemoryOrder,
    fails_reads: std::sync::atomic::AtomicU32,
}

impl Order for RepeatingClient {
    fn append(&self, position: u64, batch: &[u8]) -> Result<plimsoll::order::Appended, OrderError> {
        self.order.append(position, batch)?;
        self.fails_reads.store(1, std::sync::atomic::Ordering::Relaxed);
        self.order.append(position, batch)
    }

    fn read(&self, position: u64) -> Result<Option<Vec<u8>>, OrderError> {
        if self.fails_reads.swap(0, std::sync::atomic::Ordering::Relaxed) > 0 {
            return Err(OrderError::Unavailable("the connection is new".to_owned()));
        }
        self.order.read(position)
    }

    fn wait(&self, position: u64, timeout: Duration) -> Result<(), OrderError> {
        self.order.wait(position, timeout)
    }

    fn put_blob(&self, hash: [u8; 32], bytes: &mut dyn std::io::Read) -> Result<(), OrderError> {
        self.order.put_blob(hash, bytes)
    }

    fn get_blob(
        &self,
        hash: [u8; 32],
    ) -> Result<Option<Box<dyn std::io::Read + Send>>, OrderError> {
        self.order.get_blob(hash)
    }
}

#[test]
fn a_commit_that_its_own_order_refuses_after_a_repetition_is_made_once() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(3));
    let client = RepeatingClient { order: order.clone(), fails_reads: 0.into() };
    let db = Db::open(dir.path().join("one"), options(&order).order(Arc::new(client))).unwrap();
    let space = db.keyspace("default").unwrap();
    for n in 1..20 {
        let count = db.add(&space, "n", 1, plimsoll::Overflow::Checked).unwrap();
        assert_eq!(count, n);
    }
}
