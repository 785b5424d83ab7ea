//! Open snapshots retain only the versions that they see.

use std::path::Path;
use std::sync::Arc;

use plimsoll::{Db, Error, Glsn, Keyspace, Moment, Options, Retention, Snapshot};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};

/// More snapshots than a keyspace retains as single moments.
const MANY: usize = 100;

fn options(disk: &MemDisk) -> Options {
    let clock = Arc::new(ManualClock::new(1_780_000_000_000_000));
    let options = Options::new().memory_bytes(16 << 20).segment_bytes(1 << 20);
    options.background(false).world(Arc::new(disk.clone()), clock)
}

fn open(disk: &MemDisk) -> (Db, Keyspace) {
    let db = Db::open("/store", options(disk)).unwrap();
    let keys = db.create_keyspace("keys", Retention::Latest).unwrap();
    (db, keys)
}

/// A value that differs from those of other numbers.
fn value(number: usize, bytes: usize) -> Vec<u8> {
    vec![number as u8 + 1; bytes]
}

/// The number of versions of `key` that the store still has.
fn versions(db: &Db, keys: &Keyspace, key: &str) -> usize {
    db.history(keys, key).unwrap().map(Result::unwrap).count()
}

/// Bytes of all files of the log.
fn log_bytes(disk: &MemDisk) -> u64 {
    let dir = Path::new("/store/log");
    let len = |name: &String| {
        disk.open(&dir.join(name), Open::Read, Caching::Buffered).unwrap().len().unwrap()
    };
    disk.names(dir).unwrap().iter().map(len).sum()
}

#[test]
fn overwrites_beside_an_idle_snapshot_leave_two_versions() {
    // Inline, in the log, in a blob file.
    for bytes in [100, 100_000, 6_000_000] {
        let disk = MemDisk::new();
        let (db, keys) = open(&disk);
        db.put(&keys, "a", value(0, bytes)).unwrap();
        let snapshot = db.snapshot();
        let time = snapshot.time().unwrap();
        for number in 1..=20 {
            db.put(&keys, "a", value(number, bytes)).unwrap();
            if number % 7 == 0 {
                db.flush().unwrap();
            }
        }
        db.flush().unwrap();
        db.compact().unwrap();
        assert_eq!(versions(&db, &keys, "a"), 2, "values of {bytes} bytes");
        assert_eq!(snapshot.get(&keys, "a").unwrap().unwrap(), value(0, bytes));
        assert_eq!(db.get(&keys, "a").unwrap().unwrap(), value(20, bytes));
        if bytes > 100 {
            assert!(db.log().bounds().first > snapshot.at(), "the log is freed");
        }
        assert!(time.is_some() && snapshot.time().unwrap() == time);
        let used = log_bytes(&disk);
        assert!(used < 2 * bytes as u64 + (3 << 20), "{used} bytes for values of {bytes}");
        // A moment between the two is refused, not answered.
        let between = db.snapshot_at(Moment::Glsn(snapshot.at() + 3)).unwrap();
        assert!(matches!(between.get(&keys, "a"), Err(Error::Trimmed { .. })));
        drop((snapshot, between));
        db.compact().unwrap();
        assert_eq!(versions(&db, &keys, "a"), 1, "values of {bytes} bytes");
    }
}

/// Every moment of an open snapshot, and every later commit of the pairs, reads as it did.
fn check(keys: &Keyspace, snapshots: &[(Snapshot, usize)], bytes: usize) {
    for (snapshot, number) in snapshots {
        let read = snapshot.get(keys, "a").unwrap().unwrap();
        assert_eq!(read, value(*number, bytes), "at {}", snapshot.at());
    }
}

#[test]
fn many_open_snapshots_stay_readable() {
    let disk = MemDisk::new();
    let (db, keys) = open(&disk);
    let mut snapshots = Vec::new();
    for number in 0..2 * MANY {
        db.put(&keys, "a", value(number, 50)).unwrap();
        if number % 2 == 0 {
            snapshots.push((db.snapshot(), number));
        }
        if number % 20 == 0 {
            db.flush().unwrap();
        }
    }
    db.compact().unwrap();
    check(&keys, &snapshots, 50);
    // Few enough to be single moments now.
    let left: Vec<_> = snapshots.into_iter().step_by(10).collect();
    db.put(&keys, "a", value(0, 50)).unwrap();
    db.compact().unwrap();
    check(&keys, &left, 50);
    assert_eq!(versions(&db, &keys, "a"), left.len() + 1);
}

#[test]
fn a_transaction_beside_overwrites_reads_its_moment_and_conflicts() {
    let disk = MemDisk::new();
    let (db, keys) = open(&disk);
    db.put(&keys, "a", "one").unwrap();
    db.put(&keys, "gone", "one").unwrap();
    let begun = || {
        let mut tx = db.begin();
        tx.put(&keys, "other", "1").unwrap();
        tx
    };
    let (a, gone, range) = (begun(), begun(), begun());
    assert_eq!(a.get(&keys, "a").unwrap().unwrap(), b"one");
    for number in 0..20 {
        db.put(&keys, "a", value(number, 50)).unwrap();
    }
    db.delete(&keys, "gone").unwrap();
    db.flush().unwrap();
    db.compact().unwrap();
    assert_eq!(versions(&db, &keys, "a"), 2);
    assert_eq!(gone.get(&keys, "gone").unwrap().unwrap(), b"one");
    assert_eq!(range.range(&keys, "g".."h").unwrap().count(), 1);
    for tx in [a, gone, range] {
        assert!(matches!(tx.commit(), Err(Error::Conflict { .. })));
    }
}

#[test]
fn a_key_that_a_transaction_found_missing_may_have_come_and_gone() {
    let disk = MemDisk::new();
    let (db, keys) = open(&disk);
    db.put(&keys, "a", "one").unwrap();
    let mut tx = db.begin();
    assert_eq!(tx.get(&keys, "b").unwrap(), None);
    db.put(&keys, "b", "two").unwrap();
    db.delete(&keys, "b").unwrap();
    db.flush().unwrap();
    db.compact().unwrap();
    // Whether this conflicts depends on background work; the state that was read is the present
    // one.
    tx.put(&keys, "a", "three").unwrap();
    match tx.commit() {
        Ok(glsn) => assert_eq!(db.newest(), glsn),
        Err(error) => assert!(matches!(error, Error::Conflict { .. }), "{error}"),
    }
    assert_eq!(db.get(&keys, "b").unwrap(), None);
}

#[test]
fn a_diff_retains_what_lies_between_its_moments() {
    let disk = MemDisk::new();
    let (db, keys) = open(&disk);
    let before = db.put(&keys, "a", "one").unwrap();
    for number in 0..20 {
        db.put(&keys, format!("b{number:02}"), value(number, 50)).unwrap();
    }
    let after = db.put(&keys, "c", "new").unwrap();
    let mut diff = db.diff(&keys, before, after, "").unwrap();
    assert_eq!(diff.next().unwrap().unwrap().key, b"b00");
    for number in 0..20 {
        db.put(&keys, format!("b{number:02}"), "newer").unwrap();
        db.delete(&keys, format!("b{number:02}")).unwrap();
    }
    db.flush().unwrap();
    db.compact().unwrap();
    for number in 1..20 {
        let found = diff.next().unwrap().unwrap();
        assert_eq!(found.by, before + 1 + number);
        assert_eq!(found.after.unwrap().value().unwrap().unwrap(), value(number as usize, 50));
    }
    assert_eq!(diff.next().unwrap().unwrap().by, after);
    assert!(diff.next().is_none());
}

#[test]
fn a_diff_refuses_moments_that_are_not_retained() {
    let disk = MemDisk::new();
    let (db, keys) = open(&disk);
    let before = db.put(&keys, "a", "one").unwrap();
    let snapshot = db.snapshot();
    let after = db.put(&keys, "b", "new").unwrap();
    db.put(&keys, "b", "newer").unwrap();
    db.flush().unwrap();
    db.compact().unwrap();
    for (a, b) in [(before, after), (after, before)] {
        let refused = db.diff(&keys, a, b, "").unwrap_err();
        assert!(matches!(refused, Error::Trimmed { asked, .. } if asked == after), "{refused}");
    }
    let newest = db.diff(&keys, before, db.newest(), "").unwrap().next().unwrap().unwrap();
    assert_eq!((&newest.key[..], newest.before), (&b"b"[..], None));
    assert_eq!(snapshot.get(&keys, "b").unwrap(), None);
}

#[test]
fn a_restart_releases_the_versions_of_snapshots() {
    let disk = MemDisk::new();
    let (db, keys) = open(&disk);
    let first = db.put(&keys, "a", "one").unwrap();
    let snapshot = db.snapshot();
    for number in 0..20 {
        db.put(&keys, "a", value(number, 50)).unwrap();
    }
    db.compact().unwrap();
    drop(snapshot);
    db.close().unwrap();
    let db = Db::open("/store", options(&disk)).unwrap();
    let keys = db.keyspace("keys").unwrap();
    // Nothing was dropped since, so the moment can still be read; the others cannot.
    let at = |glsn: Glsn| db.snapshot_at(Moment::Glsn(glsn)).unwrap().get(&keys, "a");
    assert_eq!(at(first).unwrap().unwrap(), b"one");
    assert!(matches!(at(first + 1), Err(Error::Trimmed { .. })));
    db.put(&keys, "a", "new").unwrap();
    db.compact().unwrap();
    assert_eq!(versions(&db, &keys, "a"), 1);
    assert!(matches!(at(first), Err(Error::Trimmed { .. })));
}
