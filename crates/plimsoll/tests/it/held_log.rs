//! A log that trims itself, and values that hold it back: they are moved into blob files, and these are removed when they are not needed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll::{Db, Error, Glsn, Keyspace, Options, Retention};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};

/// Above what a leaf takes in, below what gets a blob file of its own: it lies in the log.
const VALUE_BYTES: usize = 3000;

/// A MiB of them: more than the eight segments that values may hold back.
const FILLING: usize = 350;

fn options(disk: &MemDisk) -> Options {
    let clock = Arc::new(ManualClock::new(1_780_000_000_000_000));
    let options = Options::new().memory_bytes(16 << 20).segment_bytes(64 << 10).memtable_bytes(64 << 10);
    options.background(false).world(Arc::new(disk.clone()), clock)
}

fn put(db: &Db, keyspace: &Keyspace, key: &str, fill: u8) {
    db.put(keyspace, key, [fill; VALUE_BYTES]).unwrap();
}

/// Overwrites a few keys until the log is long.
fn write_much(db: &Db, keyspace: &Keyspace) {
    for number in 0..FILLING {
        put(db, keyspace, &format!("key {:02}", number % 10), b'k');
    }
}

fn first(db: &Db) -> Glsn {
    db.log().bounds().first
}

fn blob_files(disk: &MemDisk) -> Vec<PathBuf> {
    let names = disk.names(Path::new("/store/log")).unwrap();
    names.into_iter().filter(|name| name.ends_with(".blob")).map(PathBuf::from).collect()
}

#[test]
fn one_compaction_frees_the_log_that_an_old_value_holds() {
    let disk = MemDisk::new();
    let db = Db::open("/store", options(&disk)).unwrap();
    let keys = db.create_keyspace("keys", Retention::Forever).unwrap();
    put(&db, &keys, "old", b'o');
    write_much(&db, &keys);
    db.close().unwrap();
    // As `plimsoll compact` does: a process that was not there when the log grew, and ends after it.
    let db = Db::open("/store", options(&disk)).unwrap();
    let keys = db.keyspace("keys").unwrap();
    db.set_retention(&keys, Retention::Latest).unwrap();
    db.compact().unwrap();
    assert!(first(&db) > Glsn(300), "{}", first(&db));
    assert_eq!(db.get(&keys, "old").unwrap().unwrap(), [b'o'; VALUE_BYTES]);
}

#[test]
fn blob_files_of_moved_values_are_removed_while_the_store_is_open() {
    let disk = MemDisk::new();
    let db = Db::open("/store", options(&disk)).unwrap();
    let keys = db.create_keyspace("keys", Retention::Latest).unwrap();
    let (mut moved, mut most) = (0, 0);
    for round in 0..8 {
        for number in 0..10 {
            put(&db, &keys, &format!("old {number}"), round);
        }
        let before = blob_files(&disk);
        write_much(&db, &keys);
        db.compact().unwrap();
        moved += usize::from(blob_files(&disk).iter().any(|file| !before.contains(file)));
        most = most.max(blob_files(&disk).len());
        for number in 0..10 {
            assert_eq!(db.get(&keys, format!("old {number}")).unwrap().unwrap(), [round; VALUE_BYTES]);
        }
    }
    assert!(moved >= 6, "values were moved {moved} times");
    assert!(most <= 3, "{most} blob files at once, all but one of values that were overwritten");
    assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
    db.close().unwrap();
    let db = Db::open("/store", options(&disk)).unwrap();
    let keys = db.keyspace("keys").unwrap();
    assert_eq!(db.get(&keys, "old 3").unwrap().unwrap(), [7; VALUE_BYTES]);
}

#[test]
fn a_damaged_value_that_nobody_asked_to_move_stops_no_merge() {
    let disk = MemDisk::new();
    let db = Db::open("/store", options(&disk)).unwrap();
    let keys = db.create_keyspace("keys", Retention::Latest).unwrap();
    put(&db, &keys, "old", b'o');
    write_much(&db, &keys);
    // In another block: a damaged one is refused whole.
    put(&db, &keys, "other", b'p');
    let segment = Path::new("/store/log/00000000000000000001.seg");
    let file = disk.open(segment, Open::ReadWrite, Caching::Buffered).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let at = bytes.windows(100).position(|window| window == [b'o'; 100]).unwrap();
    file.write_at(b"x", at as u64 + 50).unwrap();
    db.drop_pages();
    for _ in 0..3 {
        write_much(&db, &keys);
        db.compact().unwrap();
    }
    assert_eq!(db.stats().index.last_error, None);
    assert_eq!(first(&db), Glsn(1), "what cannot be read is not thrown away either");
    let warnings = db.warnings();
    assert!(warnings.iter().any(|warning| warning.contains("holds the log back")), "{warnings:?}");
    assert!(matches!(db.get(&keys, "old"), Err(Error::Corrupt { .. })));
    assert_eq!(db.get(&keys, "other").unwrap().unwrap(), [b'p'; VALUE_BYTES]);
    assert_eq!(db.get(&keys, "key 03").unwrap().unwrap(), [b'k'; VALUE_BYTES]);
    // Who asks gets an answer.
    assert!(matches!(db.log().trim(db.newest()), Err(Error::Corrupt { .. })));
}

#[test]
fn a_log_that_is_live_altogether_is_left_as_it_is() {
    let disk = MemDisk::new();
    let db = Db::open("/store", options(&disk)).unwrap();
    let keys = db.create_keyspace("keys", Retention::Latest).unwrap();
    for number in 0..2 * FILLING {
        put(&db, &keys, &format!("key {number}"), b'k');
    }
    db.compact().unwrap();
    assert!(blob_files(&disk).is_empty(), "to copy all of it frees nothing");
    // Once most of it is overwritten, what is left is moved.
    (0..4).for_each(|_| write_much(&db, &keys));
    (100..2 * FILLING).for_each(|number| _ = db.delete(&keys, format!("key {number}")).unwrap());
    db.compact().unwrap();
    assert_eq!(blob_files(&disk).len(), 1);
    assert!(first(&db) > Glsn(2 * FILLING as u64), "{}", first(&db));
    assert_eq!(db.get(&keys, "key 77").unwrap().unwrap(), [b'k'; VALUE_BYTES]);
}
