//! Access to a store's folder, and its end: removed locks, concurrent creators, reads after a
//! close, clocks.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, SystemTime};

use plimsoll::{Db, Error, Glsn, Moment, Options, Retention};
use plimsoll_disk::clock::{Clock, ManualClock};
use plimsoll_disk::os::OsDisk;

fn options() -> Options {
    Options::new().memory_bytes(16 << 20)
}

fn put(db: &Db, key: &[u8], value: &[u8]) -> Result<Glsn, Error> {
    let keyspace = db.keyspace("default")?;
    let mut tx = db.begin();
    tx.put(&keyspace, key, value)?;
    tx.commit()
}

#[test]
fn both_lock_files_can_be_removed_and_there_is_still_one_writer() {
    let dir = tempfile::tempdir().unwrap();
    for replaced in [false, true] {
        for which in [&["LOCK", "log/LOCK"][..], &["LOCK"], &["log/LOCK"]] {
            let path = dir.path().join(format!("{replaced}{}", which.join("").replace('/', "")));
            let db = Db::open(&path, options()).unwrap();
            let acknowledged = put(&db, b"a", b"acknowledged").unwrap();
            for name in which {
                fs::remove_file(path.join(name)).unwrap();
                if replaced {
                    fs::write(path.join(name), b"1\n").unwrap();
                }
            }
            let second = Db::open(&path, options());
            assert!(matches!(&second, Err(Error::Locked { .. })), "{which:?}: {second:?}");
            let error = put(&db, b"a", b"not acknowledged").unwrap_err();
            let said = if replaced { "replaced" } else { "removed" };
            assert!(
                matches!(&error, Error::Poisoned { cause }
                    if cause.contains("LOCK") && cause.contains(said)),
                "{error}"
            );
            // The existing data can still be read.
            let keyspace = db.keyspace("default").unwrap();
            assert_eq!(db.snapshot().get(&keyspace, b"a").unwrap().unwrap(), b"acknowledged");
            assert!(db.close().is_err());
            let db = Db::open(&path, options()).unwrap();
            let keyspace = db.keyspace("default").unwrap();
            let snapshot = db.snapshot_at(Moment::Glsn(Glsn(acknowledged.0))).unwrap();
            assert_eq!(snapshot.get(&keyspace, b"a").unwrap().unwrap(), b"acknowledged");
            put(&db, b"a", b"again").unwrap();
        }
    }
}

#[test]
fn a_folder_that_was_moved_while_it_was_open_takes_no_commits() {
    let dir = tempfile::tempdir().unwrap();
    let (here, there) = (dir.path().join("here"), dir.path().join("there"));
    let db = Db::open(&here, options()).unwrap();
    put(&db, b"a", b"1").unwrap();
    fs::rename(&here, &there).unwrap();
    assert!(matches!(Db::open(&there, options()), Err(Error::Locked { .. })));
    let error = put(&db, b"a", b"2").unwrap_err();
    assert!(matches!(&error, Error::Poisoned { cause } if cause.contains("moved")), "{error}");
    // Another store takes its place.
    let other = Db::open(&here, options()).unwrap();
    put(&other, b"b", b"3").unwrap();
    drop(db);
    assert_eq!(put(&other, b"b", b"4").unwrap(), 2);
    other.close().unwrap();
    let db = Db::open(&there, options()).unwrap();
    assert_eq!(db.snapshot().get(&db.keyspace("default").unwrap(), b"a").unwrap().unwrap(), b"1");
}

#[test]
fn one_of_many_concurrent_creators_gets_the_store_and_the_others_find_it_locked() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..60 {
        let path = dir.path().join(format!("store{round}"));
        let begin = Barrier::new(4);
        let opened: Vec<_> = thread::scope(|scope| {
            let open = || {
                begin.wait();
                Db::open(&path, options().background(false))
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(opened.iter().filter(|opened| opened.is_ok()).count(), 1, "{opened:?}");
        for opened in opened {
            assert!(
                matches!(&opened, Ok(_) | Err(Error::Locked { .. })),
                "round {round}: {opened:?}"
            );
        }
    }
}

#[test]
fn a_fifo_in_place_of_any_file_is_an_error_and_does_not_block() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    put(&db, b"a", &[7; 100_000]).unwrap();
    db.flush().unwrap();
    db.snapshot().get(&db.keyspace("default").unwrap(), b"a").unwrap();
    db.close().unwrap();
    let folders = ["", "log", "index", "warm"].map(|folder| path.join(folder));
    let all = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path());
    let files: Vec<_> = all.filter(|path| path.is_file()).collect();
    assert!(files.len() > 5, "{files:?}");
    for file in files {
        let kept = dir.path().join("kept");
        fs::rename(&file, &kept).unwrap();
        assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
        for options in [options(), options().read_only(true)] {
            // If the store opens, its other files are read, too.
            if let Ok(db) = Db::open(&path, options) {
                let keyspace = db.keyspace("default").unwrap();
                let _ = db.snapshot().get(&keyspace, b"a");
                let _ = db.verify(&mut |_| {});
            }
        }
        // A table, or the warm image, may have been written again.
        let _ = fs::remove_file(&file);
        fs::rename(&kept, &file).unwrap();
    }
    assert_eq!(
        Db::open(&path, options()).unwrap().verify(&mut |_| {}).unwrap().problems,
        Vec::<String>::new()
    );
}

#[test]
fn nothing_is_read_from_a_store_that_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    let large = vec![7; 300_000];
    for key in [b"a", b"b"] {
        put(&db, key, b"1").unwrap();
    }
    let last = put(&db, b"c", &large).unwrap();
    let other = db.clone();
    let snapshot = other.snapshot();
    let mut transaction = other.begin();
    transaction.put(&keyspace, b"own", b"1").unwrap();
    let mut range = snapshot.range(&keyspace, ..).unwrap();
    range.next().unwrap().unwrap();
    let mut history = other.history(&keyspace, b"a").unwrap();
    let mut diff = other.diff(&keyspace, Glsn(0), Glsn(last.0), b"").unwrap();
    diff.next().unwrap().unwrap();
    let log = other.log();
    let mut scan = log.scan(.., None).unwrap();
    scan.next().unwrap().unwrap();
    let mut follow = log.follow(Glsn(1), None).unwrap();
    let mut commits = log.commits(Glsn(1)).unwrap();
    let commit = commits.next().unwrap().unwrap();
    let change = commit.changes().unwrap().next().unwrap().unwrap();
    let mut reader = snapshot.get_reader(&keyspace, b"c").unwrap().unwrap();
    let mut buffer = [0; 1000];
    assert_eq!(reader.read(&mut buffer).unwrap(), 1000);
    db.close().unwrap();
    let timeout = Duration::from_secs(60);
    let errors = [
        snapshot.get(&keyspace, b"a").map(drop).unwrap_err(),
        snapshot.get(&keyspace, b"not there").map(drop).unwrap_err(),
        snapshot.contains_key(&keyspace, b"a").map(drop).unwrap_err(),
        snapshot.get_reader(&keyspace, b"c").map(drop).unwrap_err(),
        snapshot.range(&keyspace, ..).map(drop).unwrap_err(),
        snapshot.prefix(&keyspace, b"").map(drop).unwrap_err(),
        snapshot.time().map(drop).unwrap_err(),
        transaction.get(&keyspace, b"a").map(drop).unwrap_err(),
        range.next().unwrap().unwrap_err(),
        history.next().unwrap().unwrap_err(),
        diff.next().unwrap().unwrap_err(),
        other.history(&keyspace, b"a").map(drop).unwrap_err(),
        other.diff(&keyspace, Glsn(0), Glsn(last.0), b"").map(drop).unwrap_err(),
        other.snapshot_at(Moment::Glsn(Glsn(1))).map(drop).unwrap_err(),
        other.snapshot_at(Moment::Time(SystemTime::UNIX_EPOCH)).map(drop).unwrap_err(),
        scan.next().unwrap().map(drop).unwrap_err(),
        follow.next_timeout(timeout).map(drop).unwrap_err(),
        log.read(Glsn(1)).map(drop).unwrap_err(),
        log.commit(Glsn(1)).map(drop).unwrap_err(),
        log.commits(Glsn(1)).map(drop).unwrap_err(),
        commits.next().unwrap().map(drop).unwrap_err(),
        commit.changes().unwrap().next().unwrap().map(drop).unwrap_err(),
        change.value().map(drop).unwrap_err(),
        other.watch(&keyspace, "", Glsn(1)).map(drop).unwrap_err(),
        log.scan(.., None).map(drop).unwrap_err(),
        log.follow(Glsn(1), None).map(drop).unwrap_err(),
        other.snapshot().get(&keyspace, b"a").map(drop).unwrap_err(),
        put(&other, b"a", b"2").unwrap_err(),
        transaction.commit().map(drop).unwrap_err(),
        other.backup(dir.path().join("copy")).map(drop).unwrap_err(),
        other.verify(&mut |_| {}).map(drop).unwrap_err(),
    ];
    for (number, error) in errors.into_iter().enumerate() {
        assert_eq!(error, Error::Closed, "number {number}");
    }
    assert!(reader.read(&mut buffer).unwrap_err().to_string().contains("closed"));
}

#[test]
fn closing_a_store_ends_waits_for_its_entries() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let last = put(&db, b"a", b"1").unwrap();
    let other = db.clone();
    thread::scope(|scope| {
        let follower = scope.spawn(|| {
            let log = other.log();
            log.follow(last.next(), None)?.next_timeout(Duration::from_secs(600)).map(drop)
        });
        db.close().unwrap();
        assert_eq!(follower.join().unwrap(), Err(Error::Closed));
    });
}

fn at(path: &Path, clock: &Arc<ManualClock>) -> Db {
    let options =
        options().background(false).world(Arc::new(OsDisk::new()), Arc::clone(clock) as _);
    Db::open(path, options).unwrap()
}

#[test]
fn a_clock_set_back_by_days_keeps_the_order_of_times_and_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let day: i64 = 86_400_000_000;
    let clock = Arc::new(ManualClock::new(1_780_000_000_000_000));
    let mut commits = Vec::new();
    for (jump, told) in
        [(0, false), (day * 30, false), (day * -29, true), (day * 57 / 2, false), (day * 2, false)]
    {
        clock.set_wall_micros(clock.wall_micros().checked_add_signed(jump).unwrap());
        let db = at(&path, &clock);
        assert_eq!(
            db.warnings().iter().any(|warning| warning.contains("ahead of this machine's clock")),
            told
        );
        for _ in 0..3 {
            let number = commits.len();
            let written = put(&db, b"a", number.to_string().as_bytes());
            if told {
                // By more than one day.
                let ahead = Duration::from_micros(29 * day as u64 + 2);
                assert_eq!(written, Err(Error::ClockBehind { ahead }));
                continue;
            }
            let time =
                db.snapshot_at(Moment::Glsn(written.unwrap())).unwrap().time().unwrap().unwrap();
            commits.push((time, number));
        }
    }
    assert!(commits.windows(2).all(|pair| pair[0].0 < pair[1].0), "{commits:?}");
    let db = at(&path, &clock);
    let keyspace = db.keyspace("default").unwrap();
    for (time, number) in commits {
        let then = db.snapshot_at(Moment::Time(time)).unwrap();
        assert_eq!(then.get(&keyspace, b"a").unwrap().unwrap(), number.to_string().as_bytes());
    }
}

/// The version of the one key that is current at a time.
fn value_at(db: &Db, micros: u64) -> Option<Vec<u8>> {
    let time = SystemTime::UNIX_EPOCH + Duration::from_micros(micros);
    let then = db.snapshot_at(Moment::Time(time)).unwrap();
    then.get(&db.keyspace("rows").unwrap(), b"a").unwrap().map(|value| value.to_vec())
}

#[test]
fn versions_age_again_once_the_time_of_the_log_is_restarted() {
    const HOUR: u64 = 3_600_000_000;
    const BEGIN: u64 = 1_780_000_000_000_000;
    for is_shared in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let clock = Arc::new(ManualClock::new(BEGIN));
        let open = || {
            let options = options().background(false).shared(is_shared);
            Db::open(&path, options.world(Arc::new(OsDisk::new()), Arc::clone(&clock) as _))
                .unwrap()
        };
        let db = open();
        let rows = db.create_keyspace("rows", Retention::Time(Duration::from_secs(3600))).unwrap();
        db.put(&rows, b"a", b"before").unwrap();
        clock.set_wall_micros(BEGIN + 87_600 * HOUR);
        let ahead = db.put(&rows, b"a", b"ahead").unwrap();
        clock.set_wall_micros(BEGIN + HOUR);
        assert!(matches!(db.put(&rows, b"a", b"refused"), Err(Error::ClockBehind { .. })));
        assert!(matches!(db.drop_keyspace(&rows), Err(Error::ClockBehind { .. })));
        assert_eq!(db.get(&rows, b"a").unwrap().unwrap(), b"ahead", "reads go on");
        db.close().unwrap();
        let (db, other) = (open(), is_shared.then(open));
        assert_eq!(db.log().restart_time().unwrap(), Some(ahead.next()));
        assert_eq!(db.log().restart_time().unwrap(), None, "it is done");
        let rows = db.keyspace("rows").unwrap();
        let mut newest = Glsn::NONE;
        for number in 0..100 {
            clock.advance(Duration::from_secs(60));
            // By another process alternately.
            let db = other.as_ref().filter(|_| number % 2 == 1).unwrap_or(&db);
            let rows = db.keyspace("rows").unwrap();
            newest = db.put(&rows, b"a", vec![number; 2000]).unwrap();
        }
        assert_eq!(value_at(&db, BEGIN + 1).unwrap(), b"before");
        assert_eq!(value_at(&db, BEGIN + HOUR).unwrap(), b"ahead");
        assert_eq!(value_at(&db, BEGIN + HOUR + 10 * 60_000_000).unwrap(), [9; 2000]);
        assert_eq!(value_at(&db, BEGIN + 87_600 * HOUR).unwrap(), [99; 2000]);
        // It retains the versions that it may read, because without threads it does not publish
        // that it advances.
        drop(other);
        db.compact().unwrap();
        let kept = db.history(&rows, b"a").unwrap().count();
        let what =
            format!("shared: {is_shared}, {kept} versions are kept of an hour, one a minute");
        assert!((59..=63).contains(&kept), "{what}");
        let refused = db.snapshot_at(Moment::Glsn(ahead)).unwrap().get(&rows, b"a");
        assert!(matches!(refused, Err(Error::Trimmed { .. })), "{refused:?}");
        db.close().unwrap();
        let db = open();
        assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
        assert_eq!((db.newest(), db.warnings()), (newest, Vec::new()));
        assert_eq!(value_at(&db, BEGIN + HOUR + 60 * 60_000_000).unwrap(), [59; 2000]);
    }
}
