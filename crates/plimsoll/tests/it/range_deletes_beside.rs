//! Deletions of ranges beside other work: another keeper, a verification, cached rows.

use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll::{Db, Durability, Error, Keyspace, Options, Retention};

use crate::members;

fn key(number: u64) -> Vec<u8> {
    format!("{number:06}").into_bytes()
}

fn load(db: &Db, keyspace: &Keyspace, keys: std::ops::Range<u64>, value: &[u8]) {
    db.transact(|tx| keys.clone().try_for_each(|number| tx.put(keyspace, key(number), value)))
        .unwrap();
}

fn count(db: &Db, keyspace: &Keyspace) -> u64 {
    db.snapshot().len(keyspace).unwrap()
}

fn alone(dir: &tempfile::TempDir) -> (Db, Keyspace) {
    let options =
        Options::new().memory_bytes(16 << 20).background(false).durability(Durability::Buffered);
    let db = Db::open(dir.path().join("store"), options).unwrap();
    let keyspace = db.create_keyspace("keys", Retention::Latest).unwrap();
    (db, keyspace)
}

#[test]
fn deleted_ranges_stay_deleted_when_another_member_becomes_the_keeper() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let mut members = vec![members::open(&path)];
    for round in 0..6u64 {
        members.push(members::open(&path));
        let (keeper, next) = (&members[0], &members[1]);
        let (of_keeper, of_next) = (members::default(keeper), members::default(next));
        load(keeper, &of_keeper, 0..1000, b"one");
        if round % 2 == 0 {
            keeper.flush().unwrap();
        }
        let deletes = if round % 3 == 0 { next } else { keeper };
        deletes.delete_range(&members::default(deletes), key(10)..key(990)).unwrap();
        if round % 2 == 1 {
            // The manifest of the next keeper has a range that no run has absorbed.
            keeper.flush().unwrap();
        }
        assert_eq!((count(keeper, &of_keeper), count(next, &of_next)), (20, 20), "{round}");
        members.remove(0).close().unwrap();
        let next = &members[0];
        assert_eq!(count(next, &of_next), 20, "{round}");
        next.put(&of_next, key(500), "two").unwrap();
        next.flush().unwrap();
        assert_eq!(count(next, &of_next), 21, "{round}");
        if round % 2 == 0 {
            next.compact().unwrap();
            assert_eq!(count(next, &of_next), 21, "{round}");
        }
    }
    members.into_iter().for_each(|member| member.close().unwrap());
    members::verify(&path);
}

#[test]
fn a_verification_beside_a_writer_that_deletes_ranges_finds_no_problem() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = || members::options().segment_bytes(1 << 20).memtable_bytes(256 << 10);
    let (writer, other) =
        (Db::open(&path, options()).unwrap(), Db::open(&path, options()).unwrap());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let space = members::default(&writer);
            for round in 0u64.. {
                let from = round % 7 * 100;
                load(&writer, &space, 0..1000, &[round as u8; 300]);
                writer.delete_range(&space, key(from)..key(from + 300)).unwrap();
                if round % 4 == 0 {
                    writer.compact().unwrap();
                }
                if over.load(Ordering::SeqCst) {
                    break;
                }
            }
        });
        let space = members::default(&other);
        for _ in 0..8 {
            let report = other.verify(&mut |_| {}).unwrap();
            assert!(report.problems.is_empty(), "{report:?}");
            let found = count(&other, &space);
            assert!([0, 700, 1000].contains(&found), "{found}");
        }
        over.store(true, Ordering::SeqCst);
    });
    drop((writer, other));
    members::verify(&path);
}

#[test]
fn rows_outside_of_a_range_stay_cached_when_its_deletion_is_absorbed() {
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace) = alone(&dir);
    load(&db, &keyspace, 0..2000, &[7; 100]);
    db.flush().unwrap();
    let read = |keys: std::ops::Range<u64>| {
        keys.filter(|number| db.get(&keyspace, key(*number)).unwrap().is_some()).count()
    };
    for number in 0..2000 {
        // Only a read that loads a page leaves a row.
        db.drop_pages();
        assert_eq!(read(number..number + 1), 1);
    }
    let before = db.stats().row_cache.entries;
    assert!(before > 1500, "{before} rows");
    db.delete_range(&keyspace, key(0)..key(1000)).unwrap();
    assert_eq!((read(0..1000), read(1000..2000)), (0, 1000));
    db.flush().unwrap();
    db.compact().unwrap();
    assert_eq!(db.stats().index.deleted_ranges, 0, "it is absorbed");
    let after = db.stats().row_cache.entries;
    assert!(after > before / 3 && after <= before / 2 + 100, "{after} of {before} rows");
    assert_eq!((read(0..1000), read(1000..2000)), (0, 1000));
}

#[test]
fn a_range_deletion_conflicts_with_no_commit_outside_of_its_range() {
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace) = alone(&dir);
    load(&db, &keyspace, 0..3000, b"one");
    for round in 0..600u64 {
        let mut tx = db.begin();
        tx.delete_range(&keyspace, key(1000)..key(1900)).unwrap();
        let inside = round % 3 == 0;
        // Also more commits than are remembered.
        for other in 0..if round == 30 { 600 } else { 1 } {
            db.put(&keyspace, key(if inside { 1500 } else { 10 + other }), "two").unwrap();
        }
        match tx.commit() {
            Err(Error::Conflict { key: by, .. }) => assert!(inside && by == key(1500), "{round}"),
            committed => assert!(committed.is_ok() && !inside, "{round}: {committed:?}"),
        }
        load(&db, &keyspace, 1000..1900, b"three");
    }
}

#[test]
fn an_absorbed_range_deletion_of_another_process_conflicts_with_a_range_that_was_read() {
    for reader_keeps in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (first, second) = (members::open(&path), members::open(&path));
        let (reader, other) = if reader_keeps { (first, second) } else { (second, first) };
        let (of_reader, of_other) = (members::default(&reader), members::default(&other));
        load(&other, &of_other, 0..1000, b"one");
        other.flush().unwrap();
        let mut tx = reader.begin();
        assert_eq!(tx.range(&of_reader, key(100)..key(200)).unwrap().count(), 100);
        other.delete_range(&of_other, key(10)..key(990)).unwrap();
        reader.get(&of_reader, key(0)).unwrap();
        other.flush().unwrap();
        other.compact().unwrap();
        reader.put(&of_reader, key(5000), "outside").unwrap();
        tx.put(&of_reader, key(6000), "two").unwrap();
        let committed = tx.commit();
        assert!(matches!(committed, Err(Error::Conflict { .. })), "{reader_keeps}: {committed:?}");
    }
}

#[test]
fn the_first_key_behind_many_deleted_ranges_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace) = alone(&dir);
    for part in 0..60 {
        load(&db, &keyspace, part * 500..(part + 1) * 500, b"one");
        if part % 20 == 10 {
            db.flush().unwrap();
        }
        if part % 2 == 0 {
            load(&db, &keyspace, 100_000..100_010, b"last");
        }
        db.delete_range(&keyspace, key(part * 500)..key((part + 1) * 500)).unwrap();
        let first = |db: &Db| db.snapshot().first(&keyspace).unwrap().map(|(key, _)| key);
        let last = |db: &Db| {
            let snapshot = db.snapshot();
            let range = snapshot.range(&keyspace, ..key(90_000)).unwrap();
            range.reverse().next().transpose().unwrap().map(|(key, _)| key)
        };
        assert_eq!((first(&db), last(&db)), (Some(key(100_000)), None), "{part}");
        // A put into a deleted range is found.
        let put = key(part * 250 + 3);
        db.put(&keyspace, &put, "two").unwrap();
        assert_eq!((first(&db), last(&db)), (Some(put.clone()), Some(put.clone())), "{part}");
        db.delete(&keyspace, &put).unwrap();
        assert_eq!((first(&db), last(&db)), (Some(key(100_000)), None), "{part}");
    }
}
