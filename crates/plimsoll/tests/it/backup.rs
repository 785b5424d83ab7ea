//! Backups of a store that is in use: each is a complete store as of one moment, which is not older
//! than the call.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use plimsoll::{Db, Error, Glsn, Keyspace, Moment, Options, Snapshot};

const WRITERS: usize = 4;
const BACKUPS: u64 = 8;

/// A writer stops after this many commits, in case a backup never ends.
const COMMITS_MAX: u64 = 300;

/// Small segments and memtables, so that files are created and removed while they are copied.
fn options() -> Options {
    Options::new().memory_bytes(16 << 20).segment_bytes(256 << 10).memtable_bytes(64 << 10)
}

/// Small in most cases; sometimes large enough for the log, or for a blob file.
fn value(writer: u64, number: u64) -> Vec<u8> {
    let bytes = match number % 40 {
        7 => 3_000,
        23 => 300_000,
        _ => 50,
    };
    (0..bytes).map(|at: u64| (at * 31 + number * 7 + writer) as u8).collect()
}

/// Commit number n of a writer writes n to one key, and values that depend on n to two more, one of
/// them new.
fn write(db: &Db, keyspace: &Keyspace, writer: u64, number: u64) -> u64 {
    let mut tx = db.begin();
    tx.put(keyspace, format!("{writer}/number").as_bytes(), number.to_string().as_bytes()).unwrap();
    for key in [format!("{writer}/value"), format!("{writer}/values/{number:06}")] {
        tx.put(keyspace, key.as_bytes(), &value(writer, number)).unwrap();
    }
    tx.commit().unwrap().0
}

/// The last number that a writer had committed; checks that all of its keys agree.
fn number_of(snapshot: &Snapshot, keyspace: &Keyspace, writer: u64) -> u64 {
    let number = snapshot.get(keyspace, format!("{writer}/number").as_bytes()).unwrap();
    let number =
        number.map_or(0, |text| String::from_utf8(text.to_vec()).unwrap().parse().unwrap());
    if number > 0 {
        let last = snapshot.get(keyspace, format!("{writer}/value").as_bytes()).unwrap().unwrap();
        assert_eq!(last, &value(writer, number)[..], "writer {writer} at {number}");
    }
    let listed = snapshot
        .prefix(keyspace, format!("{writer}/values/").as_bytes())
        .unwrap()
        .keys_only()
        .count();
    assert_eq!(listed as u64, number, "writer {writer}");
    number
}

/// Every key and value.
fn content(snapshot: &Snapshot, keyspace: &Keyspace) -> Vec<(Vec<u8>, Vec<u8>)> {
    let all = snapshot.range(keyspace, ..).unwrap().map(Result::unwrap);
    all.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

/// Payloads of the log's entries up to `glsn`.
fn entries(db: &Db, glsn: u64) -> Vec<(u64, Vec<u8>)> {
    let mut scan = db.log().scan(..=Glsn(glsn), None).unwrap();
    let mut all = Vec::new();
    while let Some(entry) = scan.next() {
        let entry = entry.unwrap();
        all.push((entry.glsn.0, entry.payload.to_vec()));
    }
    all
}

/// Checks that a backup is the complete store as of its moment, and is independent of the store.
fn check_backup(db: &Db, copy: &Path, glsn: u64, acknowledged: &[u64]) {
    let copy = Db::open(copy, options().create(false)).unwrap();
    let (ours, theirs) = (db.keyspace("default").unwrap(), copy.keyspace("default").unwrap());
    assert_eq!(copy.newest(), glsn);
    let snapshot = copy.snapshot();
    for (writer, acknowledged) in (0..).zip(acknowledged) {
        let number = number_of(&snapshot, &theirs, writer);
        assert!(
            number >= *acknowledged,
            "writer {writer}: {number} of {acknowledged} that were acknowledged before"
        );
    }
    assert!(
        content(&snapshot, &theirs)
            == content(&db.snapshot_at(Moment::Glsn(Glsn(glsn))).unwrap(), &ours)
    );
    assert!(entries(&copy, glsn) == entries(db, glsn));
    assert_eq!(copy.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
    write(&copy, &theirs, 99, 1);
    copy.close().unwrap();
}

/// Takes a backup while all writers work; returns the numbers that were acknowledged before it
/// began, its GLSN, and the numbers that were acknowledged afterwards.
fn back_up_under_writers(
    db: &Db,
    keyspace: &Keyspace,
    copy: &Path,
    from: [u64; WRITERS],
) -> ([u64; WRITERS], u64, [u64; WRITERS]) {
    let acknowledged = from.map(AtomicU64::new);
    let now = || acknowledged.each_ref().map(|number| number.load(Ordering::Acquire));
    let done = AtomicBool::new(false);
    let (before, glsn) = thread::scope(|scope| {
        for (writer, acknowledged) in (0..).zip(&acknowledged) {
            let done = &done;
            scope.spawn(move || {
                let start = acknowledged.load(Ordering::Acquire);
                for number in start + 1..start + COMMITS_MAX {
                    write(db, keyspace, writer, number);
                    acknowledged.store(number, Ordering::Release);
                    if done.load(Ordering::Acquire) {
                        return;
                    }
                }
            });
        }
        while now().iter().zip(&from).any(|(now, from)| now == from) {
            thread::yield_now();
        }
        let before = now();
        let backed_up = db.backup(copy);
        done.store(true, Ordering::Release);
        (before, backed_up.unwrap().glsn)
    });
    (before, glsn.0, now())
}

#[test]
fn a_backup_taken_under_writers_has_all_commits_acknowledged_before_it_began() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    let mut numbers = [0; WRITERS];
    let mut written_meanwhile = 0;
    for round in 0..BACKUPS {
        let copy = dir.path().join(format!("copy{round}"));
        let (before, glsn, after) = back_up_under_writers(&db, &keyspace, &copy, numbers);
        check_backup(&db, &copy, glsn, &before);
        written_meanwhile += after.iter().sum::<u64>() - before.iter().sum::<u64>();
        numbers = after;
        std::fs::remove_dir_all(copy).unwrap();
        if round % 3 == 0 {
            db.compact().unwrap();
        }
    }
    assert!(written_meanwhile > 0, "nobody wrote while a backup was taken");
    // The files that were linked into the backups are unchanged, although the backups were written
    // to.
    assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
    for (writer, acknowledged) in (0..).zip(numbers) {
        assert_eq!(number_of(&db.snapshot(), &keyspace, writer), acknowledged);
    }
}

#[test]
fn a_closed_store_is_neither_backed_up_nor_verified() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    write(&db, &db.keyspace("default").unwrap(), 0, 1);
    let other = db.clone();
    db.close().unwrap();
    let refused = other.backup(dir.path().join("copy")).unwrap_err();
    assert_eq!(refused, Error::Closed);
    assert!(!dir.path().join("copy").exists());
    let refused = other.verify(&mut |_| {}).unwrap_err();
    assert_eq!(refused, Error::Closed);
}

#[test]
fn closing_waits_for_a_running_verification() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    write(&db, &db.keyspace("default").unwrap(), 0, 1);
    let is_closed = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut closer = None;
        let found = db.verify(&mut |_| {
            closer.get_or_insert_with(|| {
                let other = db.clone();
                let is_closed = &is_closed;
                scope.spawn(move || {
                    other.close().unwrap();
                    is_closed.store(true, Ordering::Release);
                })
            });
            thread::sleep(Duration::from_millis(20));
            assert!(
                !is_closed.load(Ordering::Acquire),
                "another process may own the folder by now"
            );
        });
        assert_eq!(found.unwrap().problems, Vec::<String>::new());
        assert!(closer.is_some(), "nobody closed");
    });
    assert!(is_closed.load(Ordering::Acquire));
}
