//! Invariants under pressure: large transactions in every order, scans while the log is trimmed,
//! many concurrent threads, extreme numbers.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use plimsoll::{Db, Durability, Error, Glsn, InvalidInput, Moment, Options, Retention};

const BUDGET: u64 = 16 << 20;

fn options() -> Options {
    Options::new().memory_bytes(BUDGET)
}

fn small_segments() -> Options {
    options().segment_bytes(64 << 10)
}

/// Reproducible pseudo-random numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[test]
fn a_sorted_transaction_with_many_spills_commits_completely() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let count = 160_000u32;
    let value = [7; 1000];
    let mut tx = db.begin();
    for i in 0..count {
        tx.put(&ks, &i.to_be_bytes(), &value).unwrap();
    }
    tx.commit().unwrap();
    let check = |db: &Db| {
        let (ks, snapshot) = (db.keyspace("default").unwrap(), db.snapshot());
        for i in (0..count).step_by(997) {
            assert_eq!(snapshot.get(&ks, &i.to_be_bytes()).unwrap().unwrap(), &value);
        }
        assert_eq!(snapshot.range(&ks, ..).unwrap().keys_only().count() as u32, count);
    };
    check(&db);
    assert!(db.stats().memory.peak_bytes <= BUDGET);
    db.close().unwrap();
    check(&Db::open(&path, options()).unwrap());
}

#[test]
fn an_iterator_survives_the_trim_of_its_entries() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), small_segments()).unwrap();
    let ks = db.create_keyspace("latest", Retention::Latest).unwrap();
    let value = |round: u8, i: u8| vec![round ^ i; 5000];
    let write = |round: u8| {
        for i in 0..60u8 {
            let mut tx = db.begin();
            tx.put(&ks, &[i], &value(round, i)).unwrap();
            tx.commit().unwrap();
        }
    };
    write(1);
    db.flush().unwrap();
    let snapshot = db.snapshot();
    let mut walk = snapshot.range(&ks, ..).unwrap();
    let mut reader = snapshot.get_reader(&ks, &[30]).unwrap().unwrap();
    assert_eq!(walk.next().unwrap().unwrap().1, &value(1, 0)[..]);
    write(2);
    assert!(db.log().trim(db.newest()).unwrap() > 60);
    for i in 1..60u8 {
        assert_eq!(walk.next().unwrap().unwrap().1, &value(1, i)[..], "{i}");
    }
    let mut read = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut read).unwrap();
    assert_eq!(read, value(1, 30));
}

#[test]
fn an_iterator_survives_the_removal_of_its_transactions_blob_files() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), small_segments()).unwrap();
    let ks = db.create_keyspace("latest", Retention::Latest).unwrap();
    let mut tx = db.begin();
    for i in 0..10_000u32 {
        tx.put(&ks, &i.to_be_bytes(), &[1; 500]).unwrap();
    }
    tx.commit().unwrap();
    let snapshot = db.snapshot();
    let mut walk = snapshot.range(&ks, ..).unwrap();
    assert_eq!(walk.next().unwrap().unwrap().1, &[1; 500]);
    for round in 0..200u32 {
        let mut tx = db.begin();
        for i in 0..20 {
            tx.put(&ks, &(round * 50 + i).to_be_bytes(), &[2; 500]).unwrap();
        }
        tx.commit().unwrap();
    }
    db.compact().unwrap();
    assert!(db.log().trim(db.newest()).unwrap() > 100);
    for i in 1..10_000u32 {
        let (key, value) = walk.next().unwrap().unwrap();
        assert_eq!((key, &value[..]), (i.to_be_bytes().to_vec(), &[1; 500][..]), "{i}");
    }
}

#[test]
fn a_commit_larger_than_a_small_segment_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, small_segments()).unwrap();
    let ks = db.keyspace("default").unwrap();
    for (i, bytes) in
        [30_000usize, 45_000, 50_000, 66_000, 100_000, 262_144, 300_000].into_iter().enumerate()
    {
        let mut tx = db.begin();
        tx.put(&ks, &[i as u8], &vec![i as u8; bytes]).unwrap();
        tx.set_metadata(&vec![3; i * 1000]).unwrap();
        tx.commit().unwrap_or_else(|error| panic!("{bytes}: {error}"));
        assert_eq!(db.snapshot().get(&ks, &[i as u8]).unwrap().unwrap(), &vec![i as u8; bytes][..]);
    }
    let mut tx = db.begin();
    for i in 0..2000u32 {
        tx.put(&ks, &i.to_be_bytes(), &[4; 100]).unwrap();
    }
    tx.commit().unwrap();
    db.close().unwrap();
    let db = Db::open(&path, small_segments()).unwrap();
    let ks = db.keyspace("default").unwrap();
    assert_eq!(db.snapshot().range(&ks, ..).unwrap().count(), 2007);
}

#[test]
fn scans_of_a_spilled_transaction_match_a_map_within_all_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let mut numbers = Numbers(42);
    let mut model = BTreeMap::new();
    let key = |n: u64| {
        vec![b'k'; 1 + (n % 3) as usize]
            .into_iter()
            .chain((n as u16).to_be_bytes())
            .collect::<Vec<u8>>()
    };
    let mut tx = db.begin();
    for _ in 0..1000 {
        let (key, value) =
            (key(numbers.below(3000)), vec![numbers.next() as u8; numbers.below(30) as usize]);
        tx.put(&ks, &key, &value).unwrap();
        model.insert(key, value);
    }
    tx.commit().unwrap();
    let mut tx = db.begin();
    for step in 0..12_000 {
        let key = key(numbers.below(3000));
        if numbers.below(4) == 0 {
            tx.delete(&ks, &key).unwrap();
            model.remove(&key);
        } else {
            let long = if numbers.below(20) == 0 { 3000 } else { 1000 };
            let value = vec![numbers.next() as u8; numbers.below(long) as usize];
            tx.put(&ks, &key, &value).unwrap();
            model.insert(key, value);
        }
        if step % 400 != 0 {
            continue;
        }
        for _ in 0..6 {
            let mut bounds = [(); 2].map(|()| numbers.below(3000));
            bounds.sort_unstable_by_key(|&n| key_of(n));
            let bound = |kind: u64, n: u64| match kind {
                0 => Bound::Included(key_of(n)),
                1 => Bound::Excluded(key_of(n)),
                _ => Bound::Unbounded,
            };
            let (lower, upper) =
                (bound(numbers.below(3), bounds[0]), bound(numbers.below(3), bounds[1]));
            if bounds[0] == bounds[1] {
                continue;
            }
            let expected: Vec<_> = model
                .range((lower.clone(), upper.clone()))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            let range = || {
                tx.range(
                    &ks,
                    (lower.as_ref().map(Vec::as_slice), upper.as_ref().map(Vec::as_slice)),
                )
                .unwrap()
            };
            let seen: Vec<_> =
                range().map(|item| item.map(|(k, v)| (k, v.into_vec())).unwrap()).collect();
            assert!(seen == expected, "{lower:?} {upper:?}: {} and {}", seen.len(), expected.len());
            let mut seen: Vec<_> = range()
                .reverse()
                .map(|item| item.map(|(k, v)| (k, v.into_vec())).unwrap())
                .collect();
            seen.reverse();
            assert!(
                seen == expected,
                "{lower:?} {upper:?} backwards: {} and {}",
                seen.len(),
                expected.len()
            );
        }
    }
    fn key_of(n: u64) -> Vec<u8> {
        vec![b'k'; 1 + (n % 3) as usize].into_iter().chain((n as u16).to_be_bytes()).collect()
    }
    tx.commit().unwrap();
    let seen: BTreeMap<_, _> = db
        .snapshot()
        .range(&ks, ..)
        .unwrap()
        .map(|item| item.map(|(k, v)| (k, v.into_vec())).unwrap())
        .collect();
    assert!(seen == model);
}

#[test]
fn a_scan_that_stopped_midway_conflicts_only_with_the_part_read() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let put = |key: &[u8]| {
        let mut tx = db.begin();
        tx.put(&ks, key, b"x").unwrap();
        tx.commit().unwrap()
    };
    for key in [b"b", b"d", b"f", b"h"] {
        put(key);
    }
    let walk = |reverse: bool, own: Option<&[u8]>, steps: usize, changed: &[u8]| {
        let mut tx = db.begin();
        if let Some(own) = own {
            tx.put(&ks, own, b"own").unwrap();
        }
        {
            let range = tx.range(&ks, ..).unwrap();
            let mut range = if reverse { range.reverse() } else { range };
            for _ in 0..steps {
                range.next().unwrap().unwrap();
            }
        }
        tx.put(&ks, b"result", b"x").unwrap();
        let mut undo = db.begin();
        let there = undo.contains_key(&ks, changed).unwrap();
        put(changed);
        let conflict = matches!(tx.commit(), Err(Error::Conflict { .. }));
        if !there {
            undo = db.begin();
            undo.delete(&ks, changed).unwrap();
            undo.commit().unwrap();
        }
        let mut tx = db.begin();
        tx.delete(&ks, b"result").unwrap();
        tx.delete(&ks, b"c").unwrap();
        tx.commit().unwrap();
        conflict
    };
    assert!(walk(false, None, 2, b"a"));
    assert!(walk(false, None, 2, b"d"));
    assert!(!walk(false, None, 2, b"e"));
    assert!(walk(false, Some(b"c"), 2, b"bb"));
    assert!(!walk(false, Some(b"c"), 2, b"d"));
    assert!(walk(true, None, 2, b"g"));
    assert!(walk(true, None, 2, b"z"));
    assert!(walk(true, None, 2, b"f"));
    assert!(!walk(true, None, 2, b"e"));
    assert!(walk(true, None, 4, b"b"));
    assert!(!walk(true, None, 0, b"b"));
}

#[test]
fn every_kind_of_read_is_in_the_read_set() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let reads: [fn(&plimsoll::Transaction, &plimsoll::Keyspace); 6] = [
        |tx, ks| assert!(tx.get(ks, b"a").unwrap().is_none()),
        |tx, ks| assert!(!tx.contains_key(ks, b"a").unwrap()),
        |tx, ks| assert!(tx.get_reader(ks, b"a").unwrap().is_none()),
        |tx, ks| assert_eq!(tx.first(ks).unwrap(), None),
        |tx, ks| assert_eq!(tx.prefix(ks, b"").unwrap().count(), 0),
        |tx, ks| assert_eq!(tx.range(ks, ..).unwrap().reverse().keys_only().count(), 0),
    ];
    for (i, read) in reads.iter().enumerate() {
        let mut tx = db.begin();
        read(&tx, &ks);
        tx.put(&ks, b"b", b"x").unwrap();
        let mut other = db.begin();
        other.put(&ks, b"a", b"x").unwrap();
        other.commit().unwrap();
        assert!(matches!(tx.commit(), Err(Error::Conflict { .. })), "{i}");
        let mut other = db.begin();
        other.delete(&ks, b"a").unwrap();
        other.commit().unwrap();
    }
}

#[test]
fn transfers_keep_the_sum_under_concurrent_background_work() {
    const ACCOUNTS: u64 = 40;
    const START: u64 = 1000;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = || small_segments().memtable_bytes(256 << 10).durability(Durability::Buffered);
    let db = Db::open(&path, options()).unwrap();
    let ks = db.create_keyspace("latest", Retention::Latest).unwrap();
    db.set_retention(&db.keyspace("default").unwrap(), Retention::Latest).unwrap();
    // Some values are in the log, some in the index.
    let encode = |account: u64, amount: u64| {
        let mut value = amount.to_be_bytes().to_vec();
        value.resize(if account.is_multiple_of(2) { 3000 } else { 100 }, amount as u8);
        value
    };
    let decode = |value: &[u8]| {
        assert!(value[8..].iter().all(|&byte| byte == value[7]), "a value is torn");
        u64::from_be_bytes(value[..8].try_into().unwrap())
    };
    let mut tx = db.begin();
    for account in 0..ACCOUNTS {
        tx.put(&ks, &account.to_be_bytes(), &encode(account, START)).unwrap();
    }
    tx.commit().unwrap();
    let stop = AtomicBool::new(false);
    let sum = |snapshot: &plimsoll::Snapshot| -> u64 {
        snapshot.range(&ks, ..).unwrap().map(|item| decode(&item.unwrap().1)).sum()
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3u64)
            .map(|seed| {
                let (db, ks) = (&db, &ks);
                scope.spawn(move || {
                    let mut numbers = Numbers(seed);
                    let mut done = 0;
                    while done < 1500 {
                        let (from, to) = (numbers.below(ACCOUNTS), numbers.below(ACCOUNTS));
                        let mut tx = db.begin();
                        let a = decode(&tx.get(ks, &from.to_be_bytes()).unwrap().unwrap());
                        let b = decode(&tx.get(ks, &to.to_be_bytes()).unwrap().unwrap());
                        let amount = numbers.below(10).min(a);
                        if from == to {
                            continue;
                        }
                        tx.put(ks, &from.to_be_bytes(), &encode(from, a - amount)).unwrap();
                        tx.put(ks, &to.to_be_bytes(), &encode(to, b + amount)).unwrap();
                        match tx.commit() {
                            Ok(_) => done += 1,
                            Err(Error::Conflict { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            })
            .collect();
        for reading in 0..2 {
            let (db, stop, sum) = (&db, &stop, &sum);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let snapshot = db.snapshot();
                    assert_eq!(sum(&snapshot), ACCOUNTS * START);
                    if reading == 1 {
                        std::thread::sleep(Duration::from_millis(3));
                        assert_eq!(sum(&snapshot), ACCOUNTS * START);
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut i = 0;
            while !stop.load(Ordering::Relaxed) {
                match i % 3 {
                    0 => db.flush().unwrap(),
                    1 => db.compact().unwrap(),
                    _ => drop(db.log().trim(db.newest()).unwrap()),
                }
                i += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let at = db.newest();
                std::thread::sleep(Duration::from_micros(300));
                let snapshot = db.snapshot_at(Moment::Glsn(at)).unwrap();
                // Either the whole moment can be read, or none of it.
                let mut total = 0;
                let read = (0..ACCOUNTS).try_for_each(|account| {
                    let value = snapshot.get(&ks, &account.to_be_bytes())?;
                    total += decode(&value.expect("no account is ever deleted"));
                    Ok(())
                });
                match read {
                    Ok(()) => assert_eq!(total, ACCOUNTS * START),
                    Err(Error::Trimmed { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let results: Vec<_> =
            workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok));
    });
    assert_eq!(sum(&db.snapshot()), ACCOUNTS * START);
    db.close().unwrap();
    let db = Db::open(&path, options()).unwrap();
    let (ks, snapshot) = (db.keyspace("latest").unwrap(), db.snapshot());
    let sum: u64 = snapshot.range(&ks, ..).unwrap().map(|item| decode(&item.unwrap().1)).sum();
    assert_eq!(sum, ACCOUNTS * START);
}

#[test]
fn a_time_window_can_be_read_by_time_after_the_log_was_freed() {
    let dir = tempfile::tempdir().unwrap();
    let options = small_segments().retention(Retention::Time(Duration::from_secs(3600)));
    let db = Db::open(dir.path().join("store"), options).unwrap();
    let ks = db.keyspace("default").unwrap();
    let put = |byte: u8| {
        let mut tx = db.begin();
        tx.put(&ks, b"k", &[byte; 900]).unwrap();
        tx.commit().unwrap();
    };
    put(1);
    std::thread::sleep(Duration::from_millis(2));
    let then = SystemTime::now();
    std::thread::sleep(Duration::from_millis(2));
    for _ in 0..400 {
        put(2);
    }
    db.compact().unwrap();
    let past = db.snapshot_at(Moment::Time(then)).unwrap();
    assert_eq!(past.get(&ks, b"k").unwrap().unwrap(), &[1; 900]);
}

#[test]
fn extreme_numbers_do_not_overflow() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let mut tx = db.begin();
    tx.put(&ks, b"", b"").unwrap();
    let newest = tx.commit().unwrap();
    let future = |asked| Error::Future { asked, newest };
    let log = db.log();
    assert_eq!(db.snapshot_at(Moment::Glsn(Glsn(u64::MAX))).unwrap_err(), future(Glsn(u64::MAX)));
    assert_eq!(db.snapshot_at(Moment::Glsn(Glsn(0))).unwrap().get(&ks, b"").unwrap(), None);
    assert!(matches!(
        db.snapshot_at(Moment::Time(SystemTime::UNIX_EPOCH)),
        Err(Error::InvalidInput(InvalidInput::TimeBeforeFirst { first: Some(_), .. }))
    ));
    assert_eq!(db.snapshot().get(&ks, b"").unwrap().unwrap(), b"");
    assert_eq!(log.read(Glsn(u64::MAX)).unwrap_err(), future(Glsn(u64::MAX)));
    assert!(log.read(Glsn(0)).is_err());
    assert!(log.commit(Glsn(0)).is_err());
    assert_eq!(log.trim(Glsn(u64::MAX)), Err(future(Glsn(u64::MAX))));
    assert_eq!(log.trim(Glsn(0)), Ok(Glsn(1)));
    assert!(log.scan(Glsn::MAX.., None).unwrap().next().is_none());
    assert!(
        log.scan((Bound::Excluded(Glsn::MAX), Bound::Unbounded), None).unwrap().next().is_none()
    );
    assert!(log.scan(Glsn(0)..=Glsn::MAX, None).unwrap().next().is_some());
    assert!(
        log.follow(Glsn(u64::MAX), None)
            .unwrap()
            .next_timeout(Duration::from_millis(1))
            .unwrap()
            .is_none()
    );
    assert!(
        log.follow(Glsn(u64::MAX), Some(3))
            .unwrap()
            .next_timeout(Duration::from_millis(1))
            .unwrap()
            .is_none()
    );
    assert!(log.follow(Glsn(0), None).unwrap().next_timeout(Duration::ZERO).unwrap().is_some());
    assert_eq!(db.diff(&ks, Glsn(u64::MAX), Glsn(0), b"").unwrap_err(), future(Glsn(u64::MAX)));
    assert_eq!(db.diff(&ks, Glsn(0), newest, b"").unwrap().count(), 1);
    assert!(log.append_submit(u32::MAX - 1, &[b""]).is_ok());
    // The last stream number is reserved for lost entries.
    assert!(matches!(log.append_submit(u32::MAX, &[b""]), Err(Error::InvalidInput { .. })));
    assert!(matches!(log.append(1, &[&vec![0; (1 << 20) + 1]]), Err(Error::InvalidInput { .. })));
    db.create_keyspace("few", Retention::Glsns(u64::MAX)).unwrap();
    db.create_keyspace("long", Retention::Time(Duration::MAX)).unwrap();
    db.compact().unwrap();
}

#[test]
fn handles_used_after_a_close_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let mut tx = db.begin();
    tx.put(&ks, b"a", &[1; 3000]).unwrap();
    tx.commit().unwrap();
    let mut spilled = db.begin();
    for i in 0..6000u32 {
        spilled.put(&ks, &i.to_be_bytes(), &[1; 1000]).unwrap();
    }
    let (other, snapshot) = (db.clone(), db.snapshot());
    db.close().unwrap();
    assert_eq!(snapshot.get(&ks, b"a").unwrap_err(), Error::Closed);
    assert!(other.begin().put(&ks, b"b", b"x").is_err());
    assert!(other.keyspace("another").is_err());
    assert!(other.flush().is_err() && other.compact().is_err() && other.step().is_err());
    assert!(other.log().append(1, &[b"x"]).is_err());
    let again = Db::open(&path, options()).unwrap();
    let ks = again.keyspace("default").unwrap();
    let mut tx = again.begin();
    for i in 0..6000u32 {
        tx.put(&ks, &i.to_be_bytes(), &[2; 1000]).unwrap();
    }
    assert!(spilled.commit().is_err());
    tx.commit().unwrap();
    drop((other, snapshot));
    assert_eq!(again.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
    again.close().unwrap();
    let again = Db::open(&path, options()).unwrap();
    let ks = again.keyspace("default").unwrap();
    assert_eq!(again.snapshot().range(&ks, ..).unwrap().count(), 6001);
}

#[test]
fn a_transaction_from_an_earlier_opening_does_not_touch_later_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let mut old = db.begin();
    old.put(&ks, b"large", &vec![1; 1 << 20]).unwrap();
    db.close().unwrap();
    Db::open(&path, options()).unwrap().close().unwrap();
    let db = Db::open(&path, options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let mut tx = db.begin();
    tx.put(&ks, b"large", &vec![2; 1 << 20]).unwrap();
    tx.commit().unwrap();
    drop(old);
    db.close().unwrap();
    let db = Db::open(&path, options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    assert_eq!(db.snapshot().get(&ks, b"large").unwrap().unwrap(), &vec![2; 1 << 20][..]);
}

#[test]
fn a_reader_opens_beside_a_writer_that_compacts_and_trims() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, small_segments().durability(Durability::Buffered)).unwrap();
    let ks = db.create_keyspace("latest", Retention::Latest).unwrap();
    db.set_retention(&db.keyspace("default").unwrap(), Retention::Latest).unwrap();
    db.flush().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut numbers = Numbers(1);
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..20 {
                    let mut tx = db.begin();
                    tx.put(&ks, &numbers.below(100).to_be_bytes(), &[1; 500]).unwrap();
                    tx.commit().unwrap();
                }
                db.compact().unwrap();
            }
        });
        let read = std::panic::catch_unwind(|| {
            for _ in 0..40 {
                let reader = Db::open(&path, options().read_only(true)).unwrap();
                reader
                    .snapshot()
                    .range(&reader.keyspace("latest").unwrap(), ..)
                    .unwrap()
                    .for_each(drop);
            }
        });
        stop.store(true, Ordering::Relaxed);
        assert!(read.is_ok());
    });
}

#[test]
fn without_threads_steps_make_buffered_commits_durable() {
    let dir = tempfile::tempdir().unwrap();
    let options = options().background(false).durability(Durability::Buffered);
    let db = Db::open(dir.path().join("store"), options).unwrap();
    let ks = db.keyspace("default").unwrap();
    let mut tx = db.begin();
    tx.put(&ks, b"a", b"x").unwrap();
    let glsn = tx.commit().unwrap();
    while db.step().unwrap() {}
    assert_eq!(db.log().bounds().durable, glsn);
}

#[test]
fn concurrent_changes_of_a_keyspace_agree_with_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    for round in 0..10u64 {
        let db = Db::open(&path, options()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let db = &db;
                scope.spawn(move || {
                    for i in 0..8 {
                        let retention = Retention::Glsns(round * 1000 + thread * 100 + i + 1);
                        db.set_retention(&db.keyspace("shared").unwrap(), retention).unwrap();
                        db.keyspace(&format!("own {}", i % 3)).unwrap();
                    }
                });
            }
        });
        let before = db.keyspaces();
        db.close().unwrap();
        assert_eq!(Db::open(&path, options()).unwrap().keyspaces(), before, "{round}");
    }
}
