//! The estimate of the number of keys in a range, compared with the count.

use plimsoll::{Db, Error, Keyspace, Options, Retention};
use tempfile::TempDir;

fn store() -> (TempDir, Db) {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), Options::new().memory_bytes(16 << 20)).unwrap();
    (dir, db)
}

fn put(db: &Db, keyspace: &Keyspace, numbers: impl Iterator<Item = u32>) {
    let mut tx = db.begin();
    for number in numbers {
        tx.put(keyspace, number.to_be_bytes(), [7; 40]).unwrap();
    }
    tx.commit().unwrap();
}

/// Compares the estimate with the count for all keys, for each quarter, and for an empty range.
fn is_near(db: &Db, keyspace: &Keyspace, part: f64, what: &str) {
    let bounds: Vec<[u8; 4]> = (0..=4).map(|quarter| (quarter * 25_000u32).to_be_bytes()).collect();
    let near = |estimate: u64, count: u64| {
        let off = estimate.abs_diff(count) as f64;
        assert!(off <= part * count as f64, "{what}: about {estimate} where there are {count}");
    };
    let now = db.snapshot();
    near(db.approximate_len(keyspace, ..).unwrap(), now.len(keyspace).unwrap());
    for quarter in bounds.windows(2) {
        let count = now.range(keyspace, quarter[0]..quarter[1]).unwrap().count() as u64;
        near(db.approximate_len(keyspace, quarter[0]..quarter[1]).unwrap(), count);
    }
    let none = bounds[2]..bounds[2];
    assert_eq!(db.approximate_len(keyspace, none).unwrap(), 0, "{what}");
    let behind = 200_000u32.to_be_bytes()..;
    assert_eq!(db.approximate_len(keyspace, behind).unwrap(), 0, "{what}");
}

#[test]
fn it_is_near_the_count_in_memory_in_runs_and_beside_other_keyspaces() {
    let (_dir, db) = store();
    let names = ["a", "b", "c"].map(|name| db.keyspace(name).unwrap());
    for (many, keyspace) in [3_000, 100_000, 500].into_iter().zip(&names) {
        // In several commits, so that none of them becomes a run of its own.
        for first in (0..many).step_by(5_000) {
            put(&db, keyspace, first..(first + 5_000).min(many));
        }
    }
    is_near(&db, &names[1], 0.4, "in memtables and runs");
    db.flush().unwrap();
    is_near(&db, &names[1], 0.1, "in runs");
    db.compact().unwrap();
    is_near(&db, &names[1], 0.02, "in one run");
    for (keyspace, keys) in [(&names[0], 3_000u64), (&names[2], 500)] {
        let about = db.approximate_len(keyspace, ..).unwrap();
        assert!(
            about.abs_diff(keys) <= keys / 50,
            "beside a large keyspace in the same file: about {about} of {keys}"
        );
    }
}

#[test]
fn keyspaces_with_small_and_large_values_in_one_file_are_distinguished() {
    let (_dir, db) = store();
    let [tiny, large] = ["tiny", "large"].map(|name| db.keyspace(name).unwrap());
    for first in (0..50_000u32).step_by(5_000) {
        put(&db, &tiny, first..first + 5_000);
    }
    for number in 0..1_000u32 {
        db.put(&large, number.to_be_bytes(), [7; 990]).unwrap();
    }
    db.compact().unwrap();
    let about =
        |keyspace: &Keyspace, to: u32| db.approximate_len(keyspace, ..to.to_be_bytes()).unwrap();
    for (keyspace, keys) in [(&tiny, 50_000), (&tiny, 20_000), (&large, 1_000), (&large, 200)] {
        let about = about(keyspace, keys);
        assert!(about.abs_diff(u64::from(keys)) <= u64::from(keys) / 20, "about {about} of {keys}");
    }
}

#[test]
fn a_queue_that_is_emptied_takes_no_keys_from_its_neighbour() {
    let (_dir, db) = store();
    let [queue, users] = ["queue", "users"].map(|name| db.keyspace(name).unwrap());
    for first in (0..20_000).step_by(5_000) {
        put(&db, &queue, first..first + 5_000);
    }
    db.flush().unwrap();
    let mut tx = db.begin();
    (0..20_000u32).for_each(|number| tx.delete(&queue, number.to_be_bytes()).unwrap());
    tx.commit().unwrap();
    put(&db, &users, 0..1_000);
    for what in ["in a memtable", "in a run"] {
        let about = db.approximate_len(&users, ..).unwrap();
        assert!(about.abs_diff(1_000) <= 300, "{what}: about {about} of 1,000");
        let about = db.approximate_len(&queue, ..).unwrap();
        assert!(about <= 6_000, "{what}: about {about} of none, 20,000 deletions");
        db.flush().unwrap();
    }
}

#[test]
fn values_in_front_of_many_deletions_do_not_hide_them() {
    let (_dir, db) = store();
    let keys = db.keyspace("keys").unwrap();
    for first in (0..20_000).step_by(5_000) {
        put(&db, &keys, first..first + 5_000);
    }
    db.flush().unwrap();
    put(&db, &keys, 0..200);
    let mut tx = db.begin();
    (200..20_000u32).for_each(|number| tx.delete(&keys, number.to_be_bytes()).unwrap());
    tx.commit().unwrap();
    let about = db.approximate_len(&keys, ..).unwrap();
    assert!(about <= 6_000, "about {about} of 200, 19,800 deletions");
}

#[test]
fn keys_that_are_overwritten_in_one_memtable_count_once() {
    for keys in [10u32, 300, 1_000] {
        let (_dir, db) = store();
        let often = db.create_keyspace("often", Retention::Forever).unwrap();
        for _ in 0..20_000 / keys {
            put(&db, &often, 0..keys);
        }
        let about = db.approximate_len(&often, ..).unwrap();
        assert!(about.abs_diff(u64::from(keys)) <= u64::from(keys) / 3, "about {about} of {keys}");
    }
}

#[test]
fn few_keys_are_counted_and_versions_of_one_key_count_once() {
    let (_dir, db) = store();
    let keys = db.keyspace("keys").unwrap();
    assert_eq!(db.approximate_len(&keys, ..).unwrap(), 0);
    for _ in 0..20 {
        put(&db, &keys, 0..10);
    }
    db.delete(&keys, 3u32.to_be_bytes()).unwrap();
    assert_eq!(db.approximate_len(&keys, ..).unwrap(), 9);
    put(&db, &keys, 3..4);
    assert_eq!(db.approximate_len(&keys, ..).unwrap(), 10);
    assert_eq!(db.approximate_len(&keys, 4u32.to_be_bytes()..=7u32.to_be_bytes()).unwrap(), 4);
    db.compact().unwrap();
    assert_eq!(db.approximate_len(&keys, ..).unwrap(), 10);
    assert_eq!(
        db.approximate_len(&keys, 4u32.to_be_bytes()..=7u32.to_be_bytes()).unwrap(),
        4,
        "a single leaf is counted exactly"
    );
}

#[test]
fn an_emptied_queue_is_not_estimated_as_full() {
    let (_dir, db) = store();
    let queue = db.keyspace("queue").unwrap();
    for first in (0..40_000).step_by(4_000) {
        put(&db, &queue, first..first + 4_000);
    }
    db.flush().unwrap();
    for first in (0..39_000u32).step_by(3_000) {
        let mut tx = db.begin();
        for number in first..first + 3_000 {
            tx.delete(&queue, number.to_be_bytes()).unwrap();
        }
        tx.commit().unwrap();
    }
    let about = |db: &Db| db.approximate_len(&queue, ..).unwrap();
    assert!(about(&db) <= 12_000, "{} of 1,000, a sample of 39,000 deletions", about(&db));
    db.flush().unwrap();
    assert!(about(&db) <= 3_000, "{} of 1,000", about(&db));
    db.compact().unwrap();
    assert_eq!(about(&db), 1_000);
}

/// Puts keys, then overwrites some, deletes some, or puts and deletes some, each step flushed or
/// not.
#[test]
fn the_error_is_bounded_with_overwrites_and_deletions_flushed_and_not() {
    type Change = fn(u32) -> [Option<bool>; 2];
    let changes: [(&str, Change); 6] = [
        ("nothing", |_| [None, None]),
        ("half deleted", |at| [(at % 2 == 0).then_some(false), None]),
        ("the first half deleted", |at| [(at < u32::MAX / 2).then_some(false), None]),
        ("all overwritten twice", |_| [Some(true), Some(true)]),
        ("a third deleted and put again", |at| {
            [(at % 3 == 0).then_some(false), (at % 3 == 0).then_some(true)]
        }),
        ("a quarter overwritten and deleted", |at| {
            [(at % 4 == 0).then_some(true), (at % 4 == 0).then_some(false)]
        }),
    ];
    for (name, change) in changes {
        for (many, flushes) in [
            (20, 0),
            (1_000, 0),
            (1_000, 1),
            (1_000, 7),
            (30_000, 0),
            (30_000, 1),
            (30_000, 2),
            (30_000, 6),
        ] {
            for retention in [Retention::Forever, Retention::Latest] {
                let (_dir, db) = store();
                let keys = db.create_keyspace("keys", retention).unwrap();
                put(&db, &db.keyspace("beside").unwrap(), 0..2_000);
                let flush = |step: u32| {
                    if flushes >> step & 1 == 1 {
                        db.flush().unwrap()
                    }
                };
                (0..many)
                    .step_by(3_000)
                    .for_each(|first| put(&db, &keys, first..(first + 3_000).min(many)));
                flush(0);
                for round in 0..2 {
                    let mut tx = db.begin();
                    for number in 0..many {
                        // Keys in fixed parts of the whole range, for any number of keys.
                        let at = (u64::from(number) * u64::from(u32::MAX) / u64::from(many)) as u32;
                        let at = if name.contains("first") { at } else { number };
                        match change(at)[round] {
                            Some(true) => tx.put(&keys, number.to_be_bytes(), [9; 40]).unwrap(),
                            Some(false) => tx.delete(&keys, number.to_be_bytes()).unwrap(),
                            None => {}
                        }
                    }
                    tx.commit().unwrap();
                    flush(1 + round as u32);
                }
                let exact = db.snapshot().len(&keys).unwrap();
                let about = db.approximate_len(&keys, ..).unwrap();
                let size = db.keyspace_size(&keys, 10).unwrap().keys;
                let bound = if many == 20 { 0 } else { u64::from(many) / 6 };
                for found in [about, size] {
                    let what = format!("{name}, {many} keys, flushes {flushes:b}, {retention:?}");
                    assert!(found.abs_diff(exact) <= bound, "{what}: about {found} of {exact}");
                }
            }
        }
    }
}

#[test]
fn a_handle_of_another_store_is_refused() {
    let (_dir, db) = store();
    let (_other_dir, other) = store();
    let foreign = other.keyspace("foreign").unwrap();
    let refused = db.approximate_len(&foreign, ..);
    assert!(matches!(refused, Err(Error::InvalidInput(_))), "{refused:?}");
    // A bound may be longer than a key.
    assert_eq!(db.approximate_len(&db.keyspace("long").unwrap(), vec![0; 1 << 16]..).unwrap(), 0);
}
