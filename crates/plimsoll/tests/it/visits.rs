//! Visits: iterators that lend their rows to a closure.

use std::ops::{Bound, ControlFlow};
use std::panic::{AssertUnwindSafe, catch_unwind};

use plimsoll::{Db, Error, Keyspace, MIN_MEMORY_BYTES, Options, Range, Result, Retention};

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn open(dir: &tempfile::TempDir) -> (Db, Keyspace) {
    let options = Options::new().memory_bytes(MIN_MEMORY_BYTES).background(false);
    let db = Db::open(dir.path().join("store"), options).unwrap();
    let keyspace = db.create_keyspace("rows", Retention::Latest).unwrap();
    (db, keyspace)
}

/// Values of all three kinds: in the index, in the log, and in a blob file of their own.
fn value(number: u32, round: u8) -> Vec<u8> {
    let bytes = match number % 50 {
        7 => 3_000,
        49 => 2 << 20,
        _ => 30,
    };
    vec![round; bytes]
}

fn walked(mut range: Range<'_>) -> Rows {
    let mut rows = Vec::new();
    while let Some((key, value)) = range.advance().unwrap() {
        rows.push((key.to_vec(), value.to_vec()));
    }
    rows
}

fn visited(range: Range<'_>) -> Rows {
    let mut rows = Vec::new();
    let all = range.visit(|key, value| {
        rows.push((key.to_vec(), value.to_vec()));
        ControlFlow::<()>::Continue(())
    });
    assert_eq!(all.unwrap(), None);
    rows
}

/// A store with rows in the memtable and in several runs, deletions among them.
fn filled(db: &Db, keyspace: &Keyspace) {
    for round in 1..4 {
        let mut tx = db.begin();
        for number in (0..200).filter(|number| number % u32::from(round) == 0) {
            tx.put(keyspace, key(number), value(number, round)).unwrap();
        }
        tx.delete(keyspace, key(u32::from(round) * 11)).unwrap();
        tx.commit().unwrap();
        if round < 3 {
            db.flush().unwrap();
        }
    }
}

#[test]
fn a_visit_lends_the_rows_of_an_iteration_in_both_directions() {
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace) = open(&dir);
    filled(&db, &keyspace);
    let snapshot = db.snapshot();
    assert!(walked(snapshot.range(&keyspace, ..).unwrap()).len() > 190);
    let bounds = [
        (Bound::Unbounded, Bound::Unbounded),
        (Bound::Included(key(20)), Bound::Excluded(key(60))),
        (Bound::Excluded(key(11)), Bound::Included(key(49))),
        (Bound::Included(key(500)), Bound::Unbounded),
        (Bound::Excluded(key(9)), Bound::Excluded(key(9))),
    ];
    for range in bounds {
        let range = || snapshot.range(&keyspace, range).unwrap();
        assert_eq!(visited(range()), walked(range()));
        assert_eq!(visited(range().reverse()), walked(range().reverse()));
        assert_eq!(visited(range().keys_only()), walked(range().keys_only()));
    }
    let mut begun = snapshot.range(&keyspace, ..).unwrap();
    let mut rows: Rows = (0..5)
        .map(|_| begun.next().unwrap().unwrap())
        .map(|(key, value)| (key, value.to_vec()))
        .collect();
    rows.extend(visited(begun));
    assert_eq!(
        rows,
        walked(snapshot.range(&keyspace, ..).unwrap()),
        "an iteration that has begun continues as a visit"
    );
}

#[test]
fn a_visit_of_a_transaction_sees_its_own_writes() {
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace) = open(&dir);
    filled(&db, &keyspace);
    let mut tx = db.begin();
    tx.delete(&keyspace, key(5)).unwrap();
    tx.put(&keyspace, key(6), "own").unwrap();
    assert_eq!(visited(tx.range(&keyspace, ..).unwrap()), walked(tx.range(&keyspace, ..).unwrap()));
    let own = visited(tx.range(&keyspace, key(5)..key(7)).unwrap());
    assert_eq!(own, [(key(6).to_vec(), b"own".to_vec())]);
}

/// Visits rows from `first` on in a transaction that writes `out`, stops when `stop` says so, and
/// commits after another commit has written `changed`.
fn commit_after(first: u32, stop: impl Fn(u32) -> ControlFlow<u32>, changed: u32) -> Result<()> {
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace) = open(&dir);
    filled(&db, &keyspace);
    let mut tx = db.begin();
    let visit = tx.range(&keyspace, key(first)..key(150)).unwrap();
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
    // Even if the closure panics, the row lent to it counts as read.
    let _ = catch_unwind(AssertUnwindSafe(|| visit.visit(|key, _| stop(number(key))).unwrap()));
    db.put(&keyspace, key(changed), "changed").unwrap();
    tx.put(&keyspace, key(190), "out").unwrap();
    tx.commit().map(drop)
}

#[test]
fn only_rows_lent_by_a_visit_of_a_transaction_count_as_read() {
    let at_50 =
        |number| if number == 50 { ControlFlow::Break(number) } else { ControlFlow::Continue(()) };
    assert!(matches!(commit_after(20, at_50, 50), Err(Error::Conflict { .. })));
    assert!(matches!(commit_after(20, at_50, 20), Err(Error::Conflict { .. })));
    assert!(commit_after(20, at_50, 51).is_ok());
    assert!(commit_after(20, at_50, 19).is_ok());
    let to_the_end = |_| ControlFlow::Continue(());
    assert!(matches!(commit_after(20, to_the_end, 149), Err(Error::Conflict { .. })));
    assert!(commit_after(20, to_the_end, 150).is_ok());
    let panics_at_50 = |number| {
        if number == 50 { panic!("intended by the test") } else { ControlFlow::Continue(()) }
    };
    assert!(matches!(commit_after(20, panics_at_50, 50), Err(Error::Conflict { .. })));
    assert!(commit_after(20, panics_at_50, 51).is_ok());
}

#[test]
fn a_closure_that_writes_more_than_the_memory_does_not_wait_for_its_visit() {
    let dir = tempfile::tempdir().unwrap();
    let db =
        Db::open(dir.path().join("store"), Options::new().memory_bytes(MIN_MEMORY_BYTES)).unwrap();
    let keyspace = db.create_keyspace("rows", Retention::Latest).unwrap();
    let mut tx = db.begin();
    (0..400).for_each(|number| tx.put(&keyspace, key(number), [1; 100]).unwrap());
    tx.commit().unwrap();
    let snapshot = db.snapshot();
    let mut expected = 0;
    let visit = snapshot.range(&keyspace, ..).unwrap().visit(|found, value| {
        assert_eq!((found, value), (&key(expected)[..], &[1; 100][..]));
        expected += 1;
        // 40 MiB in total.
        let mut tx = db.begin();
        (0..400).for_each(|number| tx.put(&keyspace, key(number), [2; 256]).unwrap());
        tx.commit().unwrap();
        ControlFlow::<()>::Continue(())
    });
    assert_eq!((visit.unwrap(), expected), (None, 400));
}

#[test]
fn a_visit_holds_a_flushed_memtable_only_while_it_lends_a_row() {
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace) = open(&dir);
    for commit in 0..10 {
        let mut tx = db.begin();
        (0..100)
            .for_each(|number| tx.put(&keyspace, key(100 * commit + number), [1; 500]).unwrap());
        tx.commit().unwrap();
    }
    let memtables =
        || db.stats().memory.by_kind.iter().find(|(kind, _)| *kind == "memtables").unwrap().1;
    let (before, mut rows) = (memtables(), 0);
    assert!(before > 400 << 10, "{before}");
    db.snapshot()
        .range(&keyspace, ..)
        .unwrap()
        .visit(|_, _| {
            rows += 1;
            if rows == 1 {
                db.flush().unwrap();
                return ControlFlow::Continue(());
            }
            assert!(memtables() < before / 2, "{} of {before}", memtables());
            ControlFlow::Break(())
        })
        .unwrap();
    assert_eq!(rows, 2);
}

#[test]
fn a_visit_across_flushes_and_merges_misses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace) = open(&dir);
    filled(&db, &keyspace);
    let snapshot = db.snapshot();
    for backward in [false, true] {
        let range = || {
            let range = snapshot.range(&keyspace, ..).unwrap();
            if backward { range.reverse() } else { range }
        };
        let expected = walked(range());
        let mut rows = Vec::new();
        let done = range().visit(|found, value| {
            rows.push((found.to_vec(), value.to_vec()));
            if rows.len() % 7 == 0 {
                db.put(&keyspace, found, "younger").unwrap();
                db.flush().unwrap();
                db.compact().unwrap();
            }
            ControlFlow::<()>::Continue(())
        });
        assert_eq!(done.unwrap(), None);
        assert_eq!(rows, expected);
    }
}

#[test]
fn a_visit_within_a_visit_has_cursors_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace) = open(&dir);
    filled(&db, &keyspace);
    let snapshot = db.snapshot();
    let all = walked(snapshot.range(&keyspace, ..).unwrap());
    for _ in 0..2 {
        let mut outer = Vec::new();
        snapshot
            .range(&keyspace, ..)
            .unwrap()
            .visit(|found, value| {
                outer.push((found.to_vec(), value.to_vec()));
                let inner = visited(snapshot.range(&keyspace, found..).unwrap().keys_only());
                assert!(
                    inner
                        .iter()
                        .map(|(key, _)| key)
                        .eq(all[outer.len() - 1..].iter().map(|(key, _)| key))
                );
                ControlFlow::<()>::Continue(())
            })
            .unwrap();
        assert_eq!(outer, all);
    }
}

#[test]
fn a_visit_of_a_store_that_is_closed_meanwhile_fails() {
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace) = open(&dir);
    filled(&db, &keyspace);
    let walk = db.snapshot().range(&keyspace, ..).unwrap();
    let mut db = Some(db);
    let mut rows = 0;
    let done = walk.visit(|_, _| {
        rows += 1;
        db.take().map_or(Ok(()), Db::close).unwrap();
        ControlFlow::<()>::Continue(())
    });
    assert!(matches!(done, Err(Error::Closed)), "{done:?}");
    assert_eq!(rows, 1);
}
