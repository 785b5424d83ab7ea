//! Keyspaces that are dropped: what is gone, what stays readable, what is freed; and what a keyspace is said to hold.

use plimsoll::{Db, DropReport, Error, Glsn, Keyspace, Moment, Options, Retention};
use tempfile::TempDir;

fn options() -> Options {
    Options::new().memory_bytes(16 << 20)
}

fn store() -> (TempDir, Db) {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    (dir, db)
}

fn put(db: &Db, keyspace: &Keyspace, numbers: std::ops::Range<u32>, value: &[u8]) -> u64 {
    let mut tx = db.begin();
    for number in numbers {
        tx.put(keyspace, &number.to_be_bytes(), value).unwrap();
    }
    tx.commit().unwrap().0
}

fn count(db: &Db, keyspace: &Keyspace) -> usize {
    db.snapshot().range(keyspace, ..).unwrap().count()
}

fn is_refused<T: std::fmt::Debug>(result: Result<T, Error>, part: &str) {
    assert!(matches!(&result, Err(Error::InvalidInput(what)) if what.to_string().contains(part)), "{result:?}");
}

#[test]
fn a_dropped_keyspace_is_gone_with_its_keys_and_its_past_stays() {
    let (dir, db) = store();
    let (users, others) = (db.keyspace("users").unwrap(), db.keyspace("others").unwrap());
    put(&db, &others, 0..10, b"other");
    // More than a transaction holds in memory: its deletions are spilled.
    let before = put(&db, &users, 0..60_000, b"user");
    let report = db.drop_keyspace(&users).unwrap();
    assert_eq!((report.glsn, report.keys), (Glsn(before + 1), 60_000));
    let check = |db: &Db| {
        let names: Vec<String> = db.keyspaces().into_iter().map(|keyspace| keyspace.name).collect();
        assert_eq!(names, ["default", "others"]);
        assert_eq!(count(db, &db.keyspace("others").unwrap()), 10);
        let then = db.snapshot_at(Moment::Glsn(Glsn(before))).unwrap();
        let users = then.keyspace("users").unwrap().unwrap();
        assert_eq!(then.range(&users, ..).unwrap().count(), 60_000);
        assert_eq!(count(db, &users), 0, "now it is empty");
        assert!(db.snapshot().keyspace("users").unwrap().is_none());
        let commit = db.log().commit(Glsn(before)).unwrap().unwrap();
        for change in commit.changes().unwrap() {
            assert_eq!(change.unwrap().keyspace(), Some("users"), "the change feed still knows its name");
        }
    };
    check(&db);
    db.compact().unwrap();
    check(&db);
    db.close().unwrap();
    check(&Db::open(dir.path().join("store"), options()).unwrap());
}

#[test]
fn its_id_is_not_given_to_the_next_keyspace_with_or_without_its_name() {
    let (dir, db) = store();
    let old = db.keyspace("users").unwrap();
    let before = put(&db, &old, 0..3, b"old");
    db.drop_keyspace(&old).unwrap();
    db.close().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    for name in ["users", "more"] {
        let new = db.keyspace(name).unwrap();
        assert_eq!(count(&db, &new), 0);
        let then = db.snapshot_at(Moment::Glsn(Glsn(before))).unwrap();
        assert_eq!(then.range(&new, ..).unwrap().count(), 0, "{name}");
        put(&db, &new, 0..1, b"new");
    }
    let then = db.snapshot_at(Moment::Glsn(Glsn(before))).unwrap();
    assert_eq!(then.range(&then.keyspace("users").unwrap().unwrap(), ..).unwrap().count(), 3);
}

#[test]
fn nothing_is_put_into_a_keyspace_that_was_dropped() {
    let (_dir, db) = store();
    let (users, others) = (db.keyspace("users").unwrap(), db.keyspace("others").unwrap());
    put(&db, &users, 0..3, b"user");
    let mut late = db.begin();
    late.put(&users, b"late", b"x").unwrap();
    let mut elsewhere = db.begin();
    elsewhere.put(&others, b"a", b"x").unwrap();
    db.drop_keyspace(&users).unwrap();
    is_refused(late.commit(), "was dropped");
    elsewhere.commit().unwrap();
    let mut tx = db.begin();
    is_refused(tx.put(&users, b"later", b"x"), "was dropped");
    is_refused(tx.put_reader(&users, b"later", &mut &b"x"[..]), "was dropped");
    is_refused(db.set_retention(&users, Retention::Latest), "was dropped");
    is_refused(db.drop_keyspace(&users), "was dropped");
    is_refused(db.drop_keyspace(&db.keyspace("default").unwrap()), "always exists");
    assert_eq!((count(&db, &users), count(&db, &others)), (0, 1));
    let anew = db.keyspace("users").unwrap();
    put(&db, &anew, 0..1, b"x");
    assert_eq!((count(&db, &users), count(&db, &anew)), (0, 1));
}

#[test]
fn what_comes_into_it_while_it_is_dropped_is_dropped_too_or_refused() {
    let (_dir, db) = store();
    for round in 0..20 {
        let users = db.keyspace("users").unwrap();
        put(&db, &users, 0..100, b"user");
        let acknowledged = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut acknowledged = Glsn::NONE;
                for number in 100.. {
                    let mut tx = db.begin();
                    let written = tx.put(&users, &u32::to_be_bytes(number), b"x").and_then(|()| tx.commit());
                    match written {
                        Ok(glsn) => acknowledged = glsn,
                        Err(_) => break,
                    }
                }
                acknowledged
            });
            let report = db.drop_keyspace(&users).unwrap();
            let acknowledged = writer.join().unwrap();
            assert!(acknowledged < report.glsn, "round {round}: {acknowledged} is behind the drop at {}", report.glsn);
            acknowledged
        });
        assert_eq!(count(&db, &users), 0, "round {round}, the last put at {acknowledged}");
    }
}

#[test]
fn its_space_is_freed_by_merges_unless_it_keeps_its_past() {
    let versions = |retention, drop: fn(&Db, &Keyspace) -> plimsoll::Result<DropReport>| {
        let (_dir, db) = store();
        let keyspace = db.create_keyspace("dropped", retention).unwrap();
        put(&db, &keyspace, 0..5000, b"value");
        db.flush().unwrap();
        drop(&db, &keyspace).unwrap();
        db.compact().unwrap();
        db.stats().index.versions
    };
    let kept = versions(Retention::Forever, Db::drop_keyspace);
    let (freed, forgotten) =
        (versions(Retention::Latest, Db::drop_keyspace), versions(Retention::Forever, Db::forget_keyspace));
    assert!(kept >= 10_000, "{kept} versions of 5,000 values and 5,000 deletions");
    assert!(freed < 10 && forgotten < 10, "{freed} and {forgotten} versions are left");
}

#[test]
fn a_size_is_counted_where_that_is_cheap_and_else_says_that_it_is_not() {
    let (_dir, db) = store();
    let (users, others) = (db.keyspace("users").unwrap(), db.keyspace("others").unwrap());
    put(&db, &users, 0..5000, b"old");
    put(&db, &users, 0..3000, b"longer");
    put(&db, &others, 0..10, b"other");
    let mut tx = db.begin();
    tx.delete(&users, &0u32.to_be_bytes()).unwrap();
    tx.commit().unwrap();
    for flush in [false, true] {
        if flush {
            db.compact().unwrap();
        }
        let size = db.keyspace_size(&users, 10_000).unwrap();
        let bytes = 4999 * 4 + 2999 * 6 + 2000 * 3;
        assert_eq!((size.keys, size.bytes, size.exact), (4999, bytes, true));
        assert_eq!(db.keyspace_size(&users, 4999).unwrap(), size);
        assert_eq!(db.keyspace_size(&others, 10).unwrap().keys, 10);
        assert!(!db.keyspace_size(&users, 100).unwrap().exact);
    }
    let size = db.keyspace_size(&users, 100).unwrap();
    assert!((2000..=10_000).contains(&size.keys), "{size:?}");
}
