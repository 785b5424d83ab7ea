//! Named cursors: entries that a follower has not read yet are not trimmed, whatever happens in
//! between.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use plimsoll::{CursorInfo, Db, Durability, Error, Glsn, Keyspace, Options, Retention};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::lying::LyingDisk;

const STORE: &str = "/store";

fn options(disk: &LyingDisk) -> Options {
    let clock = Arc::new(ManualClock::new(1_780_000_000_000_000));
    let options = Options::new().memory_bytes(16 << 20).segment_bytes(64 << 10).background(false);
    options.durability(Durability::Buffered).world(Arc::new(disk.clone()), clock)
}

/// A store that trims its log automatically, because no keyspace keeps its past.
fn open(disk: &LyingDisk) -> (Db, Keyspace) {
    let db = Db::open(Path::new(STORE), options(disk)).unwrap();
    let default = db.keyspace("default").unwrap();
    db.set_retention(&default, Retention::Latest).unwrap();
    (db, default)
}

/// About two segments.
fn write(db: &Db, keyspace: &Keyspace) {
    for number in 0..60u32 {
        let mut tx = db.begin();
        tx.put(keyspace, &(number % 10).to_be_bytes(), &[number as u8; 2000]).unwrap();
        tx.commit().unwrap();
    }
    db.compact().unwrap();
    db.log().trim(db.newest()).unwrap();
}

fn first(db: &Db) -> u64 {
    db.log().bounds().first.0
}

#[test]
fn the_log_is_trimmed_up_to_the_oldest_cursor_and_no_further() {
    let disk = LyingDisk::new(1);
    let (db, keyspace) = open(&disk);
    write(&db, &keyspace);
    assert!(first(&db) > 1, "without a cursor nothing retains it");
    let from = db.newest() + 1;
    assert_eq!(db.log().cursor("mail", from).unwrap(), from);
    assert_eq!(db.log().cursor("search", from + 1).unwrap(), from + 1);
    for _ in 0..3 {
        write(&db, &keyspace);
    }
    assert!(first(&db) <= from.0);
    let mut follow = db.log().follow(db.log().cursor("mail", Glsn(0)).unwrap(), None).unwrap();
    let mut next = from;
    while let Some(entry) = follow.next_timeout(Duration::ZERO).unwrap() {
        assert_eq!(entry.glsn, next);
        next = next + 1;
    }
    db.log().advance_cursor("mail", next).unwrap();
    db.log().trim(db.newest()).unwrap();
    assert!(first(&db) <= from.0 + 1, "the other cursor still retains it");
    db.log().advance_cursor("search", next - 1).unwrap();
    write(&db, &keyspace);
    assert!(first(&db) > from.0 + 1 && first(&db) < next.0, "{} of {next}", first(&db));
    db.log().drop_cursor("search").unwrap();
    db.log().drop_cursor("mail").unwrap();
    write(&db, &keyspace);
    assert!(first(&db) > next.0);
    assert_eq!(db.log().cursors(), []);
}

#[test]
fn a_cursor_and_its_entries_survive_a_power_cut() {
    for seed in 0..8 {
        let disk = LyingDisk::new(seed);
        let (db, keyspace) = open(&disk);
        write(&db, &keyspace);
        let made = db.log().cursor("mail", db.newest() + 1).unwrap();
        write(&db, &keyspace);
        db.log().advance_cursor("mail", made + 20).unwrap();
        write(&db, &keyspace);
        disk.cut_power();
        drop(db);
        disk.restore_power();
        let (db, keyspace) = open(&disk);
        assert_eq!(db.log().cursors(), [CursorInfo { name: "mail".to_owned(), next: made + 20 }]);
        assert_eq!(db.log().cursor("mail", Glsn(1)).unwrap(), made + 20);
        write(&db, &keyspace);
        assert_eq!(db.log().read(made + 20).unwrap().glsn, made + 20);
        db.close().unwrap();
    }
}

#[test]
fn a_cursor_does_not_move_backwards_or_out_of_the_log() {
    let disk = LyingDisk::new(3);
    let (db, keyspace) = open(&disk);
    write(&db, &keyspace);
    let log = db.log();
    assert!(matches!(log.cursor("mail", Glsn(1)), Err(Error::Trimmed { asked: Glsn(1), .. })));
    assert!(matches!(log.cursor("mail", Glsn(u64::MAX)), Err(Error::Future { .. })));
    assert!(matches!(log.cursor("a\nb", Glsn(first(&db))), Err(Error::InvalidInput { .. })));
    assert!(matches!(
        log.advance_cursor("mail", Glsn(first(&db))),
        Err(Error::InvalidInput { .. })
    ));
    assert!(matches!(log.drop_cursor("mail"), Err(Error::InvalidInput { .. })));
    assert_eq!(log.cursors(), [], "the refused cursors retain nothing");
    let at = log.cursor("mail", Glsn(first(&db) + 3)).unwrap();
    assert!(matches!(log.advance_cursor("mail", at - 1), Err(Error::InvalidInput { .. })));
    assert!(matches!(log.advance_cursor("mail", db.newest() + 2), Err(Error::Future { .. })));
    let newest = db.newest();
    log.advance_cursor("mail", at).unwrap();
    assert_eq!(db.newest(), newest, "moving it to its own position commits nothing");
    log.advance_cursor("mail", newest + 1).unwrap();
    db.close().unwrap();
    let reader = Db::open(Path::new(STORE), options(&disk).read_only(true)).unwrap();
    assert_eq!(reader.log().cursor("mail", Glsn(1)).unwrap(), newest + 1);
    assert_eq!(reader.log().advance_cursor("mail", newest + 2), Err(Error::ReadOnly));
    assert_eq!(reader.log().cursor("another", newest), Err(Error::ReadOnly));
}

#[test]
fn moving_a_cursor_a_thousand_times_leaves_one_version_of_it() {
    let disk = LyingDisk::new(4);
    let (db, _) = open(&disk);
    db.log().cursor("mail", Glsn(1)).unwrap();
    for next in 2..1000 {
        db.log().advance_cursor("mail", Glsn(next)).unwrap();
    }
    db.compact().unwrap();
    assert!(db.stats().index.versions < 10, "{}", db.stats().index.versions);
    assert_eq!(db.log().cursors()[0].next, 999);
}
