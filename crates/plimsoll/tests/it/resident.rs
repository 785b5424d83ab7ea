//! Reads that are answered from memory or not at all.

use plimsoll::{Db, Keyspace, Options, Resident};

const VALUES: [(&str, usize); 3] =
    [("small", 100), ("in the log", 5000), ("in a blob file", 400_000)];

/// A store with a value of every kind in runs, and no page in memory.
fn cold() -> (tempfile::TempDir, Db, Keyspace) {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), Options::new().memory_bytes(16 << 20).warm(false))
        .unwrap();
    let keyspace = db.keyspace("values").unwrap();
    for (key, bytes) in VALUES {
        db.put(&keyspace, key, vec![7; bytes]).unwrap();
    }
    db.flush().unwrap();
    db.drop_caches();
    (dir, db, keyspace)
}

fn loads(db: &Db) -> u64 {
    db.stats().pool.loads
}

#[test]
fn resident_reads_load_nothing_and_find_values_that_were_read() {
    let (_dir, db, keyspace) = cold();
    for (key, bytes) in VALUES {
        let before = loads(&db);
        let length = |value: &[u8]| value.len();
        assert_eq!(db.get_resident(&keyspace, key, length).unwrap(), Resident::NotResident);
        assert_eq!(
            db.snapshot().get_resident(&keyspace, key, length).unwrap(),
            Resident::NotResident
        );
        assert_eq!(db.begin().get_resident(&keyspace, key, length).unwrap(), Resident::NotResident);
        assert_eq!(loads(&db), before, "{key}");
        assert_eq!(db.get(&keyspace, key).unwrap().unwrap().len(), bytes);
        assert_eq!(db.get_resident(&keyspace, key, length).unwrap(), Resident::Value(bytes));
        assert_eq!(
            db.snapshot().get_resident(&keyspace, key, length).unwrap(),
            Resident::Value(bytes)
        );
        assert_eq!(
            db.begin().get_resident(&keyspace, key, length).unwrap(),
            Resident::Value(bytes)
        );
        db.drop_caches();
    }
    // Ordinary reads in the same thread load pages again.
    assert_eq!(db.get(&keyspace, "small").unwrap().unwrap().len(), 100);
}

#[test]
fn recent_writes_and_deletions_are_answered_from_memory() {
    let (_dir, db, keyspace) = cold();
    db.put(&keyspace, "small", "again").unwrap();
    db.delete(&keyspace, "in the log").unwrap();
    let text = |value: &[u8]| value.to_vec();
    assert_eq!(
        db.get_resident(&keyspace, "small", text).unwrap(),
        Resident::Value(b"again".to_vec())
    );
    assert_eq!(db.get_resident(&keyspace, "in the log", text).unwrap(), Resident::Absent);
    let mut tx = db.begin();
    tx.put(&keyspace, "own", "mine").unwrap();
    tx.delete(&keyspace, "small").unwrap();
    assert_eq!(tx.get_resident(&keyspace, "own", text).unwrap(), Resident::Value(b"mine".to_vec()));
    assert_eq!(tx.get_resident(&keyspace, "small", text).unwrap(), Resident::Absent);
}

#[test]
fn a_resident_read_of_a_transaction_counts_as_a_read() {
    let (_dir, db, keyspace) = cold();
    for asked in ["small", "own"] {
        let mut tx = db.begin();
        tx.get_resident(&keyspace, asked, |_| ()).unwrap();
        tx.put(&keyspace, "other", "1").unwrap();
        db.put(&keyspace, asked, "2").unwrap();
        assert!(matches!(
            tx.commit(),
            Err(plimsoll::Error::Conflict { key, .. }) if key == asked.as_bytes()
        ));
    }
}

#[test]
fn a_closure_of_a_resident_read_may_load_another_value() {
    let (_dir, db, keyspace) = cold();
    db.put(&keyspace, "small", "in a memtable").unwrap();
    let look = |_: &[u8]| db.get(&keyspace, "in a blob file").unwrap().unwrap().len();
    assert_eq!(db.get_resident(&keyspace, "small", look).unwrap(), Resident::Value(400_000));
}

#[test]
fn commits_of_another_process_are_not_resident_until_they_are_applied() {
    let dir = tempfile::tempdir().unwrap();
    // No thread applies commits meanwhile.
    let open = || {
        let options = Options::new().memory_bytes(16 << 20).shared(true).background(false);
        let db = Db::open(dir.path().join("store"), options).unwrap();
        let keyspace = db.keyspace("default").unwrap();
        (db, keyspace)
    };
    let ((one, of_one), (two, of_two)) = (open(), open());
    let text = |value: &[u8]| value.to_vec();
    for round in 0..3_u8 {
        assert!(two.is_caught_up());
        one.put(&of_one, "key", [round]).unwrap();
        assert!(one.is_caught_up() && !two.is_caught_up());
        assert_eq!(one.get_resident(&of_one, "key", text).unwrap(), Resident::Value(vec![round]));
        assert_eq!(two.get_resident(&of_two, "key", text).unwrap(), Resident::NotResident);
        assert_eq!(two.get_resident(&of_two, "absent", text).unwrap(), Resident::NotResident);
        assert!(!two.is_caught_up());
        assert_eq!(two.get(&of_two, "key").unwrap().unwrap()[..], [round]);
        assert_eq!(two.get_resident(&of_two, "key", text).unwrap(), Resident::Value(vec![round]));
        assert_eq!(two.get_resident(&of_two, "absent", text).unwrap(), Resident::Absent);
    }
}
