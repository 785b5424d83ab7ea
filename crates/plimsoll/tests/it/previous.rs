//! Calls that return what was there before: `insert`, `take`, `VersionInfo::value`, and `diff` of
//! any two moments.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use plimsoll::{Db, Error, Glsn, Moment, Options, Retention};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::mem::MemDisk;

fn store() -> (Db, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(1_000_000_000));
    let options = Options::new().memory_bytes(16 << 20).background(false);
    let db = Db::open("/store", options.world(Arc::new(MemDisk::new()), clock.clone())).unwrap();
    (db, clock)
}

#[test]
fn insert_and_take_see_own_writes_and_conflict_with_others() {
    let (db, _) = store();
    let rows = db.keyspace("rows").unwrap();
    let mut tx = db.begin();
    assert!(tx.insert(&rows, "a", "1").unwrap().is_none());
    assert_eq!(tx.insert(&rows, "a", "2").unwrap().unwrap(), b"1");
    assert_eq!(tx.take(&rows, "a").unwrap().unwrap(), b"2");
    assert!(tx.take(&rows, "a").unwrap().is_none());
    tx.insert(&rows, "a", "3").unwrap();
    db.put(&rows, "a", "of another").unwrap();
    assert!(matches!(tx.commit(), Err(Error::Conflict { .. })));
    let before = db.newest();
    assert!(db.take(&rows, "nothing").unwrap().is_none());
    assert_eq!(db.newest(), before, "nothing was committed");
    assert_eq!(db.insert(&rows, "a", "4").unwrap().unwrap(), b"of another");
}

#[test]
fn each_version_of_a_history_gives_its_value() {
    let (db, _) = store();
    let rows = db.create_keyspace("rows", Retention::Forever).unwrap();
    let values = [vec![1; 10], vec![], vec![2; 3000], vec![3; 400_000]];
    for value in &values {
        db.put(&rows, "a", value).unwrap();
    }
    db.delete(&rows, "a").unwrap();
    for is_flushed in [false, true] {
        if is_flushed {
            db.compact().unwrap();
            db.log().trim(db.newest().next()).unwrap();
        }
        let versions: Vec<_> = db.history(&rows, "a").unwrap().map(Result::unwrap).collect();
        assert!(versions[0].value().unwrap().is_none());
        for (version, value) in versions[1..].iter().zip(values.iter().rev()) {
            assert_eq!(version.value().unwrap().unwrap(), &value[..]);
        }
    }
    let kept = db.history(&rows, "a").unwrap().nth(1).unwrap().unwrap();
    db.close().unwrap();
    assert!(matches!(kept.value(), Err(Error::Closed)));
}

#[test]
fn a_difference_gives_both_values_between_any_two_moments() {
    let (db, clock) = store();
    let rows = db.keyspace("rows").unwrap();
    let first = db.put(&rows, "a", "one").unwrap();
    clock.advance(Duration::from_secs(10));
    let between = SystemTime::UNIX_EPOCH + Duration::from_secs(1005);
    db.put(&rows, "a", "two").unwrap();
    let by = |a: Moment, b: Moment| {
        let found: Vec<_> = db.diff(&rows, a, b, "").unwrap().map(Result::unwrap).collect();
        assert_eq!(found.len(), 1);
        let value = |version: &Option<plimsoll::VersionInfo>| {
            version.as_ref().unwrap().value().unwrap().unwrap().to_vec()
        };
        (value(&found[0].before), value(&found[0].after))
    };
    let forward = (b"one".to_vec(), b"two".to_vec());
    assert_eq!(by(between.into(), Moment::Newest), forward);
    assert_eq!(by(first.into(), Moment::Newest), forward);
    assert_eq!(by(Moment::Newest, Moment::Time(between)), (forward.1, forward.0));
    assert_eq!(db.diff(&rows, first, first, "").unwrap().count(), 0);
    let early = SystemTime::UNIX_EPOCH;
    assert!(matches!(db.diff(&rows, early, first, ""), Err(Error::InvalidInput(_))));
    assert!(matches!(db.diff(&rows, Glsn(99), first, ""), Err(Error::Future { .. })));
}

#[test]
fn a_backup_is_restored_as_a_store_that_shares_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let options = || Options::new().memory_bytes(16 << 20);
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let rows = db.keyspace("rows").unwrap();
    db.put(&rows, "a", vec![7; 300_000]).unwrap();
    db.backup(dir.path().join("backup")).unwrap();
    let restored = dir.path().join("restored");
    let report = Db::restore_backup(dir.path().join("backup"), &restored, options()).unwrap();
    assert_eq!((report.bytes_linked, report.glsn), (0, db.newest()));
    let copy = Db::open(&restored, options().create(false)).unwrap();
    assert_eq!(copy.get(&copy.keyspace("rows").unwrap(), "a").unwrap().unwrap().len(), 300_000);
    let again = Db::restore_backup(dir.path().join("backup"), &restored, options());
    assert!(matches!(again, Err(Error::InvalidInput(_))), "{again:?}");
    let none = Db::restore_backup(dir.path().join("none"), dir.path().join("x"), options());
    assert!(matches!(none, Err(Error::NotAStore { .. })), "{none:?}");
}
