//! Transactions and values that are larger than their share of the memory.

use std::io::Read;

use plimsoll::{Db, Error, Options};

const BUDGET: u64 = 16 << 20;

fn options() -> Options {
    Options::new().memory_bytes(BUDGET)
}

fn value(i: u32, bytes: usize) -> Vec<u8> {
    let mut value = vec![0; bytes];
    for (at, byte) in value.iter_mut().enumerate() {
        *byte =
            (at as u32).wrapping_mul(31).wrapping_add(i).wrapping_mul(2_654_435_761).to_le_bytes()
                [3];
    }
    value
}

/// Scatters numbers, so that keys are not in order.
fn scatter(i: u32) -> [u8; 8] {
    u64::from(i).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

#[test]
fn a_transaction_larger_than_the_budget_commits_whole() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let count = 250_000u32;
    let mut tx = db.begin();
    for i in 0..count {
        tx.put(&ks, &scatter(i), &value(i, 100)).unwrap();
    }
    // Overwrites, deletes and reads spilled keys.
    for i in (0..count).step_by(1000) {
        assert_eq!(tx.get(&ks, &scatter(i)).unwrap().unwrap(), &value(i, 100)[..]);
        tx.put(&ks, &scatter(i), b"again").unwrap();
    }
    for i in (1..count).step_by(1000) {
        tx.delete(&ks, &scatter(i)).unwrap();
    }
    let glsn = tx.commit().unwrap();
    let check = |db: &Db| {
        let (ks, snapshot) = (db.keyspace("default").unwrap(), db.snapshot());
        for i in (0..count).step_by(97) {
            let seen = snapshot.get(&ks, &scatter(i)).unwrap();
            match i % 1000 {
                0 => assert_eq!(seen.unwrap(), b"again"),
                1 => assert_eq!(seen, None),
                _ => assert_eq!(seen.unwrap(), &value(i, 100)[..]),
            }
        }
        assert_eq!(
            snapshot.range(&ks, ..).unwrap().keys_only().count() as u32,
            count - count / 1000
        );
        assert_eq!(
            db.snapshot_at(plimsoll::Moment::Glsn(glsn - 1))
                .unwrap()
                .range(&ks, ..)
                .unwrap()
                .count(),
            0
        );
    };
    check(&db);
    db.compact().unwrap();
    check(&db);
    assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
    let commit = db.log().commit(glsn).unwrap().unwrap();
    let (mut puts, mut deletes) = (0, 0);
    for change in commit.changes().unwrap() {
        if change.unwrap().is_delete() { deletes += 1 } else { puts += 1 }
    }
    assert_eq!((puts, deletes), (count - count / 1000, count / 1000));
    let memory = db.stats().memory;
    assert!(memory.peak_bytes <= BUDGET, "{memory:?}");
    db.close().unwrap();
    check(&Db::open(dir.path().join("store"), options()).unwrap());
    std::fs::remove_dir_all(dir.path().join("store/index")).unwrap();
    let dest = dir.path().join("recovered");
    let report = Db::recover(dir.path().join("store"), &dest, options(), &mut |_, _| {}).unwrap();
    assert!(report.is_whole(), "{report:?}");
    check(&Db::open(&dest, options()).unwrap());
}

#[test]
fn a_transaction_of_256_mib_commits_under_16_mib_in_many_small_values_or_few_large_ones() {
    for (count, bytes) in [(262_144u32, 1000), (200, 1_342_177)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let db = Db::open(&path, options()).unwrap();
        let ks = db.keyspace("default").unwrap();
        let value = |i: u32| [&i.to_be_bytes()[..], &vec![7; bytes - 4]].concat();
        let mut tx = db.begin();
        for i in 0..count {
            tx.put(&ks, &scatter(i), &value(i)).unwrap();
        }
        let glsn = tx.commit().unwrap();
        let memory = db.stats().memory;
        assert!(memory.peak_bytes <= BUDGET, "{memory:?}");
        db.close().unwrap();
        let db = Db::open(&path, options()).unwrap();
        assert_eq!(db.newest(), glsn);
        let (ks, snapshot) = (db.keyspace("default").unwrap(), db.snapshot());
        for i in (0..count).step_by(count as usize / 100) {
            assert!(
                snapshot.get(&ks, &scatter(i)).unwrap().unwrap() == value(i)[..],
                "value {i} of {bytes} bytes"
            );
        }
        assert_eq!(snapshot.range(&ks, ..).unwrap().keys_only().count() as u32, count);
    }
}

#[test]
fn an_aborted_large_transaction_leaves_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let before = db.stats().disk_bytes;
    let mut tx = db.begin();
    for i in 0..60_000u32 {
        tx.put(&ks, &scatter(i), &value(i, 200)).unwrap();
    }
    tx.put(&ks, b"large", &value(1, 3 << 20)).unwrap();
    assert!(db.stats().disk_bytes > before + (5 << 20));
    tx.abort();
    assert_eq!(db.snapshot().range(&ks, ..).unwrap().count(), 0);
    // Space of the log may have been allocated ahead, but the blob files are gone.
    assert!(
        db.stats().disk_bytes < before + (5 << 20),
        "{} then {}",
        before,
        db.stats().disk_bytes
    );
}

#[test]
fn values_of_all_sizes_are_read_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let sizes = [
        0,
        1,
        1023,
        1024,
        1025,
        16_000,
        17_000,
        65_536,
        100_000,
        262_144,
        262_145,
        1 << 20,
        5 << 20,
    ];
    let db = Db::open(&path, options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let mut glsns = Vec::new();
    for (i, &size) in sizes.iter().enumerate() {
        let mut tx = db.begin();
        tx.put(&ks, &[i as u8], &value(i as u32, size)).unwrap();
        assert_eq!(
            tx.get(&ks, &[i as u8]).unwrap().unwrap(),
            &value(i as u32, size)[..],
            "own write, {size}"
        );
        glsns.push(tx.commit().unwrap());
    }
    // All in one commit, so that the body does not fit into one record.
    let mut tx = db.begin();
    for (i, &size) in sizes.iter().enumerate() {
        tx.put(&ks, &[100 + i as u8], &value(i as u32, size)).unwrap();
    }
    tx.commit().unwrap();
    let check = |db: &Db| {
        let (ks, snapshot) = (db.keyspace("default").unwrap(), db.snapshot());
        for (i, &size) in sizes.iter().enumerate() {
            for key in [[i as u8], [100 + i as u8]] {
                assert_eq!(
                    snapshot.get(&ks, &key).unwrap().unwrap(),
                    &value(i as u32, size)[..],
                    "{size}"
                );
                let mut read = Vec::new();
                let mut reader = snapshot.get_reader(&ks, &key).unwrap().unwrap();
                assert_eq!(reader.len(), size as u64);
                reader.read_to_end(&mut read).unwrap();
                assert_eq!(read, value(i as u32, size), "{size}");
            }
        }
        let mut walk = snapshot.range(&ks, ..).unwrap().reverse();
        for &size in sizes.iter().rev() {
            assert_eq!(walk.next().unwrap().unwrap().1.len(), size);
        }
    };
    check(&db);
    db.compact().unwrap();
    check(&db);
    db.close().unwrap();
    check(&Db::open(&path, options()).unwrap());
}

#[test]
fn a_streamed_value_never_needs_to_fit_into_memory() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let bytes = 40u64 << 20;
    let mut tx = db.begin();
    let written = tx.put_reader(&ks, b"film", &mut std::io::repeat(42).take(bytes)).unwrap();
    assert_eq!(written, bytes);
    tx.commit().unwrap();
    let mut reader = db.snapshot().get_reader(&ks, b"film").unwrap().unwrap();
    let mut piece = vec![0; 1 << 16];
    let mut seen = 0;
    loop {
        let got = reader.read(&mut piece).unwrap();
        if got == 0 {
            break;
        }
        assert!(piece[..got].iter().all(|&byte| byte == 42));
        seen += got as u64;
    }
    assert_eq!(seen, bytes);
}

#[test]
fn a_value_above_the_limit_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let mut tx = db.begin();
    let refused = tx.put_reader(&ks, b"k", &mut std::io::repeat(0).take((1 << 30) + 1));
    assert!(matches!(refused, Err(Error::InvalidInput { .. })), "{refused:?}");
    // Half of it may have been written, so the transaction can only be aborted.
    assert!(tx.commit().is_err());
    assert_eq!(db.snapshot().get(&ks, b"k").unwrap(), None);
}

#[test]
fn many_commits_under_the_smallest_budget_stay_below_it() {
    let dir = tempfile::tempdir().unwrap();
    let options = options().durability(plimsoll::Durability::Buffered);
    let db = Db::open(dir.path().join("store"), options).unwrap();
    let ks = db.keyspace("default").unwrap();
    for i in 0..3000u32 {
        let mut tx = db.begin();
        for j in 0..50 {
            tx.put(&ks, &scatter(i * 50 + j), &value(j, 100)).unwrap();
        }
        tx.commit().unwrap();
    }
    let snapshot = db.snapshot();
    for i in (0..150_000u32).step_by(331) {
        assert_eq!(snapshot.get(&ks, &scatter(i)).unwrap().unwrap(), &value(i % 50, 100)[..]);
    }
    assert_eq!(snapshot.range(&ks, ..).unwrap().keys_only().count(), 150_000);
    assert!(db.stats().memory.peak_bytes <= BUDGET);
}

#[test]
fn a_value_held_by_a_user_counts_against_the_budget() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let held = || db.stats().memory.by_kind.iter().find(|(kind, _)| *kind == "staging").unwrap().1;
    let mut tx = db.begin();
    tx.put_reader(&ks, b"5 MiB", &mut std::io::repeat(5).take(5 << 20)).unwrap();
    tx.put_reader(&ks, b"60 MiB", &mut std::io::repeat(6).take(60 << 20)).unwrap();
    tx.commit().unwrap();
    let snapshot = db.snapshot();
    let before = held();
    let value = snapshot.get(&ks, b"5 MiB").unwrap().unwrap();
    assert_eq!(held() - before, 5 << 20);
    drop(value);
    assert_eq!(held(), before);
    // A value that does not fit is refused by get and by an iterator; a reader can still read it.
    assert!(matches!(snapshot.get(&ks, b"60 MiB"), Err(Error::OutOfBudget(_))));
    let mut walk = snapshot.range(&ks, ..).unwrap();
    assert_eq!(walk.next().unwrap().unwrap().1.len(), 5 << 20);
    assert!(matches!(walk.next(), Some(Err(Error::OutOfBudget(_)))));
    assert!(walk.next().is_none());
    drop(walk);
    assert_eq!(held(), before);
    let mut reader = snapshot.get_reader(&ks, b"60 MiB").unwrap().unwrap();
    assert_eq!(std::io::copy(&mut reader, &mut std::io::sink()).unwrap(), 60 << 20);
}

fn folder_bytes(folder: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(
            |path| if path.is_dir() { folder_bytes(&path) } else { path.metadata().unwrap().len() },
        )
        .sum()
}

#[test]
fn a_compaction_copies_bulk_loaded_rows_only_once_the_log_releases_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let mut rows = db.begin_bulk_load(&ks).unwrap();
    for i in 0..20_000 {
        rows.put(&scatter(i), &value(i, 100)).unwrap();
    }
    rows.commit().unwrap();
    let before = folder_bytes(&path);
    let mut tx = db.begin();
    tx.put(&ks, &scatter(5), b"again").unwrap();
    tx.delete(&ks, &scatter(6)).unwrap();
    tx.commit().unwrap();
    db.compact().unwrap();
    assert!(
        folder_bytes(&path) < before + before / 10,
        "{before} bytes became {}",
        folder_bytes(&path)
    );
    let check = || {
        let get = |i| db.snapshot().get(&ks, &scatter(i)).unwrap().map(|value| value.to_vec());
        assert_eq!((get(5), get(6), get(7)), (Some(b"again".to_vec()), None, Some(value(7, 100))));
        assert_eq!(db.snapshot().range(&ks, ..).unwrap().count(), 19_999);
    };
    check();
    // Rows that the log does not retain are merged, and their files are freed.
    db.log().trim(db.newest().next()).unwrap();
    db.set_retention(&ks, plimsoll::Retention::Latest).unwrap();
    db.compact().unwrap();
    assert!(
        folder_bytes(&path) < before + before / 10,
        "{before} bytes became {}",
        folder_bytes(&path)
    );
    assert_eq!(db.stats().index.runs.len(), 1);
    check();
}
