//! Updates of single keys: they are computed when they are ordered, so they do not conflict.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll::{
    Db, Durability, Error, Glsn, InvalidInput, Keyspace, Options, Overflow, Resident, Retention,
};

use crate::members;

const LARGE: usize = 300 << 10;

fn options() -> Options {
    Options::new().memory_bytes(16 << 20).durability(Durability::Buffered)
}

fn store() -> (Db, Keyspace) {
    let db = Db::in_memory(options()).unwrap();
    let space = db.create_keyspace("numbers", Retention::Forever).unwrap();
    (db, space)
}

fn number(db: &Db, space: &Keyspace, key: &str) -> Option<i64> {
    db.get(space, key).unwrap().map(|value| i64::from_le_bytes(value[..].try_into().unwrap()))
}

fn invalid<T: std::fmt::Debug>(result: Result<T, Error>) -> InvalidInput {
    match result {
        Err(Error::InvalidInput(what)) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_update_returns_its_outcome() {
    let (db, space) = store();
    assert_eq!(db.add(&space, "n", 5, Overflow::Checked).unwrap(), 5);
    assert_eq!(db.add(&space, "n", -7, Overflow::Checked).unwrap(), -2);
    assert_eq!(db.max(&space, "n", 3).unwrap(), 3);
    assert_eq!(db.max(&space, "n", 1).unwrap(), 3);
    assert_eq!(db.min(&space, "n", 1).unwrap(), 1);
    assert_eq!(db.min(&space, "absent", 1).unwrap(), 1);
    assert_eq!(db.append(&space, "a", "ab").unwrap(), 2);
    assert_eq!(db.append(&space, "a", "c").unwrap(), 3);
    assert_eq!(db.get(&space, "a").unwrap().unwrap(), b"abc");
    assert!(db.set_if_absent(&space, "s", "one").unwrap());
    assert!(!db.set_if_absent(&space, "s", "two").unwrap());
    assert!(!db.compare_and_swap(&space, "s", Some(b"two"), None).unwrap());
    assert!(db.compare_and_swap(&space, "s", Some(b"one"), Some(b"two")).unwrap());
    assert!(db.compare_and_swap(&space, "s", Some(b"two"), None).unwrap());
    assert_eq!(db.get(&space, "s").unwrap(), None);
    assert!(!db.set_bit(&space, "b", 9).unwrap());
    assert!(db.set_bit(&space, "b", 9).unwrap());
    assert_eq!(db.get(&space, "b").unwrap().unwrap(), [0, 2]);
    assert!(db.clear_bit(&space, "b", 9).unwrap());
    assert_eq!(
        db.update(&space, "u", |old| Some(old.map_or(vec![1], <[u8]>::to_vec))).unwrap().unwrap(),
        [1]
    );
    assert_eq!(db.update(&space, "u", |_| None).unwrap(), None);
    assert!(!db.snapshot().contains_key(&space, "u").unwrap());
}

#[test]
fn an_update_that_changes_nothing_writes_nothing() {
    let (db, space) = store();
    db.put(&space, "s", "one").unwrap();
    let before = db.newest();
    db.set_if_absent(&space, "s", "two").unwrap();
    db.compare_and_swap(&space, "s", Some(b"two"), None).unwrap();
    db.update(&space, "s", |old| old.map(<[u8]>::to_vec)).unwrap();
    let mut tx = db.begin();
    tx.set_if_absent(&space, "s", "two").unwrap();
    tx.clear_bit(&space, "absent", 3).unwrap();
    assert_eq!(tx.commit().unwrap(), before);
    assert_eq!(db.newest(), before);
}

#[test]
fn a_refused_update_writes_nothing() {
    let (db, space) = store();
    db.put(&space, "text", "one").unwrap();
    db.add(&space, "n", i64::MAX, Overflow::Checked).unwrap();
    let before = db.newest();
    let refused = db.add(&space, "text", 1, Overflow::Wrapping);
    assert!(matches!(invalid(refused), InvalidInput::NotANumber { bytes: 3, .. }));
    assert!(matches!(invalid(db.max(&space, "text", 1)), InvalidInput::NotANumber { .. }));
    let refused = db.add(&space, "n", 1, Overflow::Checked);
    assert!(matches!(invalid(refused), InvalidInput::CounterOverflow { by: 1, .. }));
    let refused = db.set_bit(&space, "b", u64::MAX);
    assert!(matches!(invalid(refused), InvalidInput::ValueTooLong { .. }));
    // The other writes of a transaction are not written either; it is not run again.
    let mut runs = 0;
    let refused = db.transact(|tx| -> plimsoll::Result<()> {
        runs += 1;
        tx.put(&space, "other", "1")?;
        tx.compare_and_swap(&space, "text", Some(b"two"), Some(b"three"))?;
        tx.add(&space, "m", 1, Overflow::Checked)
    });
    assert_eq!(invalid(refused), InvalidInput::NotAsExpected { key: b"text".to_vec() });
    assert_eq!((runs, db.newest()), (1, before));
    assert_eq!(db.add(&space, "n", 1, Overflow::Saturating).unwrap(), i64::MAX);
    assert_eq!(db.add(&space, "n", 1, Overflow::Wrapping).unwrap(), i64::MIN);
}

#[test]
fn transactions_that_update_one_key_do_not_conflict() {
    let (db, space) = store();
    let (mut one, mut other) = (db.begin(), db.begin());
    for tx in [&mut one, &mut other] {
        tx.add(&space, "n", 1, Overflow::Checked).unwrap();
        tx.append(&space, "a", "x").unwrap();
        tx.add(&space, "n", 2, Overflow::Saturating).unwrap();
    }
    one.commit().unwrap();
    // Puts before, between and behind the updated keys.
    other.put(&space, "b", vec![7; 2000]).unwrap();
    other.put(&space, "z", "last").unwrap();
    other.commit().unwrap();
    assert_eq!(number(&db, &space, "n"), Some(6));
    assert_eq!(db.get(&space, "a").unwrap().unwrap(), b"xx");
    assert_eq!(db.get(&space, "b").unwrap().unwrap().len(), 2000);
    assert_eq!(db.get(&space, "z").unwrap().unwrap(), b"last");
    let versions: Vec<_> = db.history(&space, "n").unwrap().map(|v| v.unwrap().glsn).collect();
    assert_eq!(versions.len(), 2);
}

#[test]
fn a_transaction_reads_its_own_updates() {
    let (db, space) = store();
    db.add(&space, "n", 10, Overflow::Checked).unwrap();
    db.put(&space, "o", "one").unwrap();
    let mut tx = db.begin();
    tx.add(&space, "n", 1, Overflow::Checked).unwrap();
    tx.append(&space, "new", "ab").unwrap();
    tx.compare_and_swap(&space, "o", Some(b"one"), None).unwrap();
    assert_eq!(tx.get(&space, "n").unwrap().unwrap(), 11i64.to_le_bytes());
    assert_eq!(tx.get_with(&space, "new", <[u8]>::len).unwrap(), Some(2));
    assert_eq!(tx.get_resident(&space, "n", <[u8]>::len).unwrap(), Resident::Value(8));
    assert_eq!(tx.get_resident(&space, "o", <[u8]>::len).unwrap(), Resident::Absent);
    assert!(!tx.contains_key(&space, "o").unwrap() && tx.contains_key(&space, "new").unwrap());
    assert_eq!(tx.get_reader(&space, "new").unwrap().unwrap().len(), 2);
    let keys = |walk: plimsoll::Range<'_>| -> Vec<_> { walk.map(|row| row.unwrap().0).collect() };
    assert_eq!(keys(tx.iter(&space).unwrap()), [b"n".to_vec(), b"new".to_vec()]);
    assert_eq!(keys(tx.iter(&space).unwrap().reverse()), [b"new".to_vec(), b"n".to_vec()]);
    assert_eq!(keys(tx.range(&space, "n\0"..).unwrap()), [b"new".to_vec()]);
    assert_eq!(keys(tx.range(&space, .."new").unwrap().reverse()), [b"n".to_vec()]);
    tx.put(&space, "nn", "between").unwrap();
    assert_eq!(tx.len(&space).unwrap(), 3);
    // An update of what the transaction wrote is computed at once.
    tx.append(&space, "nn", "!!").unwrap();
    assert_eq!(tx.get(&space, "nn").unwrap().unwrap(), b"between!!");
    let refused = tx.add(&space, "nn", 1, Overflow::Checked);
    assert!(matches!(invalid(refused), InvalidInput::NotANumber { .. }));
    // A later write replaces the update.
    tx.delete(&space, "new").unwrap();
    assert_eq!(tx.get(&space, "new").unwrap(), None);
    // It has read a key that another transaction changes.
    db.add(&space, "n", 1, Overflow::Checked).unwrap();
    assert!(matches!(tx.commit(), Err(Error::Conflict { key, .. }) if key == b"n"));
    assert_eq!((number(&db, &space, "n"), db.get(&space, "nn").unwrap()), (Some(11), None));
}

#[test]
fn a_put_behind_an_update_that_may_be_refused_reads_the_key() {
    let (db, space) = store();
    let mut tx = db.begin();
    tx.compare_and_swap(&space, "k", Some(b"one"), Some(b"two")).unwrap();
    let refused = tx.put(&space, "k", "three");
    assert!(matches!(invalid(refused), InvalidInput::NotAsExpected { .. }));
    let mut tx = db.begin();
    tx.add(&space, "k", 1, Overflow::Checked).unwrap();
    tx.put(&space, "k", "three").unwrap();
    db.put(&space, "k", "text").unwrap();
    assert!(matches!(tx.commit(), Err(Error::Conflict { .. })));
    let mut tx = db.begin();
    tx.append(&space, "k", "more").unwrap();
    tx.put(&space, "k", "three").unwrap();
    db.put(&space, "k", "text").unwrap();
    tx.commit().unwrap();
    assert_eq!(db.get(&space, "k").unwrap().unwrap(), b"three");
}

#[test]
fn pops_take_updated_keys() {
    let (db, space) = store();
    db.transact(|tx| (b'a'..b'k').try_for_each(|key| tx.put(&space, [key], "old"))).unwrap();
    let mut tx = db.begin();
    tx.append(&space, "b", "+").unwrap();
    tx.append(&space, "", "first").unwrap();
    assert_eq!(tx.pop_first(&space).unwrap().unwrap().1, b"first");
    assert_eq!(tx.pop_first(&space).unwrap().unwrap().1, b"old");
    assert_eq!(tx.pop_first(&space).unwrap().unwrap().1, b"old+");
    tx.append(&space, "c", "+").unwrap();
    tx.append(&space, "a", "new").unwrap();
    assert_eq!(tx.pop_first(&space).unwrap().unwrap().1, b"new");
    assert_eq!(tx.pop_first(&space).unwrap().unwrap().1, b"old+");
    assert_eq!(tx.retain(&space, .., |_, _| false).unwrap(), 7);
    tx.commit().unwrap();
    assert_eq!(db.snapshot().len(&space).unwrap(), 0);
}

#[test]
fn values_of_any_size_are_appended_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    let space = db.create_keyspace("texts", Retention::Latest).unwrap();
    let mut wanted = Vec::new();
    for bytes in [10, 1000, 1014, 1, 60_000, 5000, LARGE, 3] {
        let more: Vec<u8> = (0..bytes).map(|n| n as u8).collect();
        wanted.extend_from_slice(&more);
        assert_eq!(db.append(&space, "text", &more).unwrap(), wanted.len() as u64);
        assert!(db.get(&space, "text").unwrap().unwrap() == wanted, "{bytes}");
        let mut tx = db.begin();
        tx.append(&space, "text", "!").unwrap();
        tx.put(&space, "beside", vec![3; bytes]).unwrap();
        tx.commit().unwrap();
        wanted.push(b'!');
    }
    // A transaction that is larger than memory.
    let mut tx = db.begin();
    tx.append(&space, "text", "?").unwrap();
    tx.add(&space, "n", 1, Overflow::Checked).unwrap();
    (0..20_000u32).for_each(|n| tx.put(&space, n.to_be_bytes(), vec![1; 1000]).unwrap());
    tx.commit().unwrap();
    wanted.push(b'?');
    assert_eq!(number(&db, &space, "n"), Some(1));
    drop(db);
    let db = Db::open(&path, options()).unwrap();
    let space = db.keyspace("texts").unwrap();
    assert!(db.get(&space, "text").unwrap().unwrap() == wanted);
    let report = db.verify(&mut |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
}

#[test]
fn a_transaction_may_hold_any_number_of_updates() {
    let (db, space) = store();
    let mut tx = db.begin();
    for n in 0..3000u32 {
        tx.add(&space, (n % 1500).to_be_bytes(), 1, Overflow::Checked).unwrap();
        tx.add(&space, "all", 1, Overflow::Wrapping).unwrap();
    }
    tx.commit().unwrap();
    assert_eq!(number(&db, &space, "all"), Some(3000));
    let two = 2i64.to_le_bytes();
    let snapshot = db.snapshot();
    assert!((0..1500u32).all(|n| snapshot.get(&space, n.to_be_bytes()).unwrap().unwrap() == two));
}

#[test]
fn threads_that_add_to_one_counter_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (threads, each) = (8, 200);
    {
        let db = Db::open(&path, Options::new().memory_bytes(16 << 20)).unwrap();
        let space = db.create_keyspace("counters", Retention::Forever).unwrap();
        let sums = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (db, space, sums) = (&db, &space, &sums);
                scope.spawn(move || {
                    for n in 0..each {
                        let sum = db.add(space, "n", 1, Overflow::Checked).unwrap();
                        sums.fetch_add(sum as u64, Ordering::Relaxed);
                        if n % 10 == thread {
                            let mut tx = db.begin();
                            tx.append(space, "text", "x").unwrap();
                            tx.commit().unwrap();
                            db.append(space, "long", [1; 500]).unwrap();
                        }
                    }
                });
            }
        });
        let all = (threads * each) as u64;
        assert_eq!(number(&db, &space, "n"), Some(all as i64));
        // Each number was returned once.
        assert_eq!(sums.into_inner(), all * (all + 1) / 2);
        assert_eq!(db.history(&space, "n").unwrap().count() as u64, all);
        assert_eq!(db.get(&space, "text").unwrap().unwrap().len() as u64, all / 10);
        assert_eq!(db.get(&space, "long").unwrap().unwrap().len() as u64, all / 10 * 500);
    }
    let db = Db::open(&path, options()).unwrap();
    let space = db.keyspace("counters").unwrap();
    assert_eq!(number(&db, &space, "n"), Some((threads * each) as i64));
    assert_eq!(db.history(&space, "n").unwrap().count(), (threads * each) as usize);
}

#[test]
fn processes_that_add_to_one_counter_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let each = 150;
    let stores = [members::open(&path), members::open(&path)];
    std::thread::scope(|scope| {
        for db in &stores {
            for _ in 0..2 {
                scope.spawn(move || {
                    let space = members::default(db);
                    for n in 0..each {
                        db.add(&space, "n", 1, Overflow::Checked).unwrap();
                        // Commits that do not wait for the others' commits.
                        db.put(&space, format!("{n}"), "x").unwrap();
                    }
                });
            }
        }
    });
    for db in &stores {
        assert_eq!(members::number(db, &members::default(db), "n"), 4 * each);
    }
    drop(stores);
    members::verify(&path);
    let db = members::open(&path);
    assert_eq!(members::number(&db, &members::default(&db), "n"), 4 * each);
}

#[test]
fn an_update_is_computed_from_a_commit_that_is_not_durable_yet() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), Options::new().memory_bytes(16 << 20)).unwrap();
    let space = db.keyspace("default").unwrap();
    let mut tickets = Vec::new();
    for _ in 0..20 {
        let mut tx = db.begin();
        tx.add(&space, "n", 1, Overflow::Checked).unwrap();
        tickets.push(tx.commit_submit().unwrap());
    }
    assert_eq!(db.add(&space, "n", 1, Overflow::Checked).unwrap(), 21);
    let last: Vec<Glsn> = tickets.into_iter().map(|ticket| ticket.wait().unwrap()).collect();
    assert!(last.is_sorted());
}

/// Calls `compute` under the commit lock, where its base has changed since it was read.
fn update_under_the_lock(db: &Db, space: &Keyspace, compute: impl Fn() + Send + Sync) {
    let calls = AtomicU64::new(0);
    let changed = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            changed.wait();
            db.append(space, "k", "other").unwrap();
            changed.wait();
        });
        let updated = catch_unwind(AssertUnwindSafe(|| {
            db.update(space, "k", |_| {
                match calls.fetch_add(1, Ordering::Relaxed) {
                    0 => {
                        changed.wait();
                        changed.wait();
                    }
                    _ => compute(),
                }
                Some(b"computed".to_vec())
            })
        }));
        assert_eq!(calls.load(Ordering::Relaxed), 2, "it was computed again");
        if let Err(panic) = updated {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn a_function_that_panics_aborts_its_commit_only() {
    let (db, space) = store();
    let first = AssertUnwindSafe(|| db.update(&space, "k", |_| panic!("at once")));
    assert!(catch_unwind(first).is_err());
    let later =
        AssertUnwindSafe(|| update_under_the_lock(&db, &space, || panic!("under the lock")));
    let panic = catch_unwind(later).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"under the lock"));
    assert_eq!(db.get(&space, "k").unwrap().unwrap(), b"other");
    db.put(&space, "k", "after").unwrap();
    assert_eq!(db.append(&space, "k", "!").unwrap(), 6);
    let mut tx = db.begin();
    tx.update(&space, "k", |_| panic!("in a transaction")).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| tx.commit())).is_err());
    db.flush().unwrap();
    assert_eq!(db.get(&space, "k").unwrap().unwrap(), b"after!");
}

#[test]
fn a_function_that_writes_to_the_store_is_refused() {
    let (db, space) = store();
    let write = || {
        assert_eq!(invalid(db.put(&space, "x", "x")), InvalidInput::UpdateUsesStore);
        assert!(db.get(&space, "k").is_ok());
    };
    update_under_the_lock(&db, &space, write);
    assert_eq!(db.get(&space, "k").unwrap().unwrap(), b"computed");
    db.put(&space, "x", "x").unwrap();
}

#[test]
fn an_update_of_a_dropped_keyspace_is_refused() {
    let (db, space) = store();
    let mut tx = db.begin();
    tx.add(&space, "n", 1, Overflow::Checked).unwrap();
    db.drop_keyspace(&space).unwrap();
    assert!(matches!(invalid(tx.commit()), InvalidInput::KeyspaceDropped { .. }));
    let refused = db.add(&space, "n", 1, Overflow::Checked);
    assert!(matches!(invalid(refused), InvalidInput::KeyspaceDropped { .. }));
}

#[test]
fn a_store_that_is_read_only_refuses_updates() {
    let dir = tempfile::tempdir().unwrap();
    let path: &Path = &dir.path().join("store");
    drop(Db::open(path, options()).unwrap());
    let db = Db::open(path, options().read_only(true)).unwrap();
    let space = db.keyspace("default").unwrap();
    assert!(matches!(db.add(&space, "n", 1, Overflow::Checked), Err(Error::ReadOnly)));
    assert!(matches!(db.begin().append(&space, "n", "x"), Err(Error::ReadOnly)));
}

#[test]
fn an_update_does_not_conflict_with_a_commit_that_its_snapshot_has_seen() {
    let db = Db::in_memory(options().durability(Durability::Sync)).unwrap();
    let space = db.create_keyspace("numbers", Retention::Forever).unwrap();
    let mut one = db.begin();
    one.add(&space, "n", 1, Overflow::Checked).unwrap();
    // Ordered, and not durable yet.
    let ticket = one.commit_submit().unwrap();
    let mut two = db.begin_ordered();
    for number in 0..4 {
        two.put(&space, format!("large {number}"), vec![1; 100 << 10]).unwrap();
    }
    two.add(&space, "n", 2, Overflow::Checked).unwrap();
    two.commit().unwrap();
    ticket.wait().unwrap();
    assert_eq!(number(&db, &space, "n"), Some(3));
}
