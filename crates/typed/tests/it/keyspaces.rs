//! Whole keyspaces: transactions, snapshots, ranges and errors, beside a sorted map.

use std::collections::BTreeSet;
use std::ops::Bound;

use fastrand::Rng;
use plimsoll::{Db, InvalidInput, Moment, Options, Read, Retention};
use plimsoll_typed::{Error, Key, Result, Rows, TypedKeyspace};
use serde::{Deserialize, Serialize};

use crate::samples::Sample;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    item: String,
    pieces: u32,
}

fn order(item: &str, pieces: u32) -> Order {
    Order { item: item.to_owned(), pieces }
}

fn store() -> Db {
    Db::in_memory(Options::new().memory_bytes(16 << 20)).unwrap()
}

/// The keys of a range in both directions; the second list is reversed again.
fn both_ways<'r, K: Key>(rows: impl Fn() -> Result<Rows<'r, K, ()>>) -> (Vec<K>, Vec<K>) {
    let forward = rows().unwrap().map(|row| row.unwrap().0).collect();
    let mut backward: Vec<K> = rows().unwrap().reverse().keys().map(Result::unwrap).collect();
    backward.reverse();
    (forward, backward)
}

#[test]
fn transactions_and_snapshots_read_their_own_moment() {
    let db = store();
    let orders: TypedKeyspace<(String, u64), Order> = TypedKeyspace::open(&db, "orders").unwrap();
    db.transact(|tx| orders.put(tx, ("ada", 1), &order("tea", 2))).unwrap();
    let before = db.snapshot();

    let mut tx = db.begin();
    assert_eq!(
        orders.insert(&mut tx, ("ada", 1), &order("tea", 3)).unwrap(),
        Some(order("tea", 2))
    );
    assert_eq!(orders.insert(&mut tx, ("ada", 2), &order("milk", 1)).unwrap(), None);
    orders.put(&mut tx, ("alan".to_owned(), 1), &order("apples", 6)).unwrap();
    assert_eq!(orders.get(&tx, ("ada", 1)).unwrap(), Some(order("tea", 3)));
    assert_eq!(orders.take(&mut tx, ("alan", 1)).unwrap(), Some(order("apples", 6)));
    assert_eq!(orders.take(&mut tx, ("alan", 1)).unwrap(), None);
    assert_eq!(orders.last(&tx).unwrap(), Some((("ada".into(), 2), order("milk", 1))));
    assert_eq!(orders.iter(&tx).unwrap().count(), 2);
    assert_eq!(orders.iter(&before).unwrap().count(), 1);
    tx.commit().unwrap();

    assert_eq!(orders.get(&before, ("ada", 1)).unwrap(), Some(order("tea", 2)));
    let now = db.snapshot();
    assert_eq!(orders.get(&now, ("ada", 1)).unwrap(), Some(order("tea", 3)));
    assert!(orders.contains_key(&now, ("ada", 2)).unwrap());
    assert!(!orders.contains_key(&now, ("ada", 3)).unwrap());

    db.transact(|tx| orders.delete(tx, ("ada", 1))).unwrap();
    let first = orders.first(&db.snapshot()).unwrap();
    assert_eq!(first, Some((("ada".into(), 2), order("milk", 1))));
    let past = db.snapshot_at(Moment::Glsn(now.at())).unwrap();
    assert_eq!(orders.iter(&past).unwrap().count(), 2);
}

#[test]
fn a_typed_read_conflicts_with_a_write_of_its_key() {
    let db = store();
    let seats: TypedKeyspace<(u8, char), String> = TypedKeyspace::open(&db, "seats").unwrap();
    let mut mine = db.begin();
    assert_eq!(seats.insert(&mut mine, (12, 'A'), &"Ada".into()).unwrap(), None);
    db.transact(|tx| seats.put(tx, (12, 'A'), &"Alan".into())).unwrap();
    assert!(matches!(mine.commit(), Err(plimsoll::Error::Conflict { .. })));
    let mut other = db.begin();
    assert_eq!(seats.insert(&mut other, (12, 'B'), &"Ada".into()).unwrap(), None);
    db.transact(|tx| seats.put(tx, (12, 'C'), &"Alan".into())).unwrap();
    other.commit().unwrap();
}

#[test]
fn ranges_equal_those_of_a_sorted_map() {
    type Row = (String, i32);
    let db = store();
    let rows: TypedKeyspace<Row, ()> = TypedKeyspace::open(&db, "rows").unwrap();
    let mut rng = Rng::with_seed(6);
    let model: BTreeSet<Row> = (0..400).map(|_| Row::sample(&mut rng)).collect();
    db.transact(|tx| model.iter().try_for_each(|row| rows.put(tx, row, &()))).unwrap();

    let now = db.snapshot();
    let check = |low: Bound<&Row>, high: Bound<&Row>| {
        let expected: Vec<Row> = model.range::<Row, _>((low, high)).cloned().collect();
        let found = both_ways(|| rows.range(&now, (low, high)));
        assert_eq!(found, (expected.clone(), expected), "{low:?} to {high:?}");
    };
    check(Bound::Unbounded, Bound::Unbounded);
    for _ in 0..300 {
        let (a, b) = (Row::sample(&mut rng), Row::sample(&mut rng));
        let (low, high) = if a < b { (&a, &b) } else { (&b, &a) };
        check(Bound::Included(low), Bound::Included(high));
        check(Bound::Unbounded, Bound::Excluded(high));
        check(Bound::Excluded(low), Bound::Unbounded);
        if low < high {
            check(Bound::Excluded(low), Bound::Excluded(high));
        }
        let expected: Vec<Row> = model.iter().filter(|row| row.0 == low.0).cloned().collect();
        let found = both_ways(|| rows.prefix(&now, (&low.0,)));
        assert_eq!(found, (expected.clone(), expected), "{:?}", low.0);
    }
    assert_eq!(rows.first(&now).unwrap().map(|row| row.0), model.first().cloned());
    assert_eq!(rows.last(&now).unwrap().map(|row| row.0), model.last().cloned());
}

#[test]
fn every_form_of_a_range_compiles_with_borrowed_keys() {
    let db = store();
    let words: TypedKeyspace<String, u8> = TypedKeyspace::open(&db, "words").unwrap();
    db.transact(|tx| ["a", "b", "ba", "c"].iter().try_for_each(|word| words.put(tx, word, &1)))
        .unwrap();
    let now = db.snapshot();
    let count = |rows: Result<Rows<'_, String, u8>>| rows.unwrap().count();
    assert_eq!(count(words.range(&now, ..)), 4);
    assert_eq!(count(words.range(&now, "b"..)), 3);
    assert_eq!(count(words.range(&now, "b".."c")), 2);
    assert_eq!(count(words.range(&now, "b"..="c")), 3);
    assert_eq!(count(words.range(&now, .."b")), 1);
    assert_eq!(count(words.range(&now, ..="b")), 2);
    assert_eq!(count(words.range(&now, "a".to_owned().."b".to_owned())), 1);
    assert_eq!(count(words.range(&now, &("a".."b"))), 1);
    assert_eq!(count(words.range(&now, (Bound::Excluded("a"), Bound::Unbounded))), 3);
    assert_eq!(count(words.prefix(&now, "b")), 2);
    assert_eq!(count(words.prefix(&now, "")), 4);
}

#[test]
fn ranges_and_prefixes_are_deleted() {
    let db = store();
    let rows: TypedKeyspace<(u8, String, i16), u8> = TypedKeyspace::open(&db, "rows").unwrap();
    db.transact(|tx| {
        for (a, b, c) in [(1, "x", -1), (1, "x", 1), (1, "xx", 0), (1, "y", 0), (2, "", 0)] {
            rows.put(tx, (a, b, c), &0)?;
        }
        Ok::<_, Error>(())
    })
    .unwrap();
    db.transact(|tx| rows.delete_prefix(tx, (1, "x"))).unwrap();
    let left = |db: &Db| rows.iter(&db.snapshot()).unwrap().keys().collect::<Result<Vec<_>>>();
    let keys = [(1, "xx".to_owned(), 0), (1, "y".to_owned(), 0), (2, String::new(), 0)];
    assert_eq!(left(&db).unwrap(), keys);
    db.transact(|tx| rows.delete_range(tx, (1, "xy", i16::MIN)..=(2, "", 0))).unwrap();
    assert_eq!(left(&db).unwrap(), keys[..1]);
    let refused = db.transact(|tx| rows.delete_range(tx, (2, "", 0)..(1, "", 0))).unwrap_err();
    assert_eq!(refused, Error::Store(InvalidInput::EmptyRange.into()));
}

#[test]
fn bytes_of_other_types_are_errors_that_name_keyspace_and_key() {
    let db = store();
    let rows: TypedKeyspace<(String, u16), u32> = TypedKeyspace::open(&db, "rows").unwrap();
    db.transact(|tx| {
        rows.put(tx, ("a", 1), &1)?;
        rows.put(tx, ("c", 3), &3)
    })
    .unwrap();
    db.put(rows.keyspace(), "b", "").unwrap();
    db.put(rows.keyspace(), rows.encode_key(("c", 1)), b"\xA1x").unwrap();

    let read: Vec<Result<((String, u16), u32)>> = rows.iter(&db.snapshot()).unwrap().collect();
    assert_eq!((&read[0], &read[3]), (&Ok((("a".into(), 1), 1)), &Ok((("c".into(), 3), 3))));
    let Err(Error::Key { keyspace, bytes, .. }) = &read[1] else { panic!("{:?}", read[1]) };
    assert_eq!((keyspace.as_str(), &bytes[..]), ("rows", &b"b"[..]));
    let Err(Error::Value { keyspace, key, .. }) = &read[2] else { panic!("{:?}", read[2]) };
    assert_eq!((keyspace.as_str(), key), ("rows", &rows.encode_key(("c", 1))));
    let text = read[1].as_ref().unwrap_err().to_string();
    assert!(
        text.contains("keyspace \"rows\": the key \"b\"") && text.contains("too early"),
        "{text}"
    );

    // Nothing is overwritten or deleted before it was understood.
    let mut tx = db.begin();
    assert!(matches!(rows.insert(&mut tx, ("c", 1), &5), Err(Error::Value { .. })));
    assert!(matches!(rows.take(&mut tx, ("c", 1)), Err(Error::Value { .. })));
    let stored = tx.get(rows.keyspace(), rows.encode_key(("c", 1))).unwrap();
    assert_eq!(stored.as_deref(), Some(&b"\xA1x"[..]));
}

#[test]
fn errors_convert_both_ways() {
    let db = store();
    let rows: TypedKeyspace<u16, u32> = TypedKeyspace::open(&db, "rows").unwrap();
    let rows_ref = &rows;
    let in_store_terms =
        |reads: &dyn Fn() -> Result<Option<u32>>| -> plimsoll::Result<Option<u32>> { Ok(reads()?) };
    assert_eq!(in_store_terms(&|| rows_ref.get(&db.snapshot(), 1)), Ok(None));
    db.put(rows.keyspace(), [0, 1], "text").unwrap();
    let Err(plimsoll::Error::Io { kind, message, source }) =
        in_store_terms(&|| rows_ref.get(&db.snapshot(), 1))
    else {
        panic!("it is no number");
    };
    assert_eq!(kind, std::io::ErrorKind::InvalidData);
    assert!(message.contains("keyspace \"rows\"") && source.is_some(), "{message}");

    let long: TypedKeyspace<String, u8> = TypedKeyspace::open(&db, "long").unwrap();
    let too_long = "x".repeat(plimsoll::MAX_KEY_BYTES + 1);
    let refused = db.transact(|tx| long.put(tx, &too_long, &1)).unwrap_err();
    assert!(
        matches!(
            &refused,
            Error::Store(plimsoll::Error::InvalidInput(InvalidInput::KeyTooLong { .. }))
        ),
        "{refused:?}"
    );
    assert!(matches!(refused.into(), plimsoll::Error::InvalidInput(_)));
}

/// Fails to compile if a handle or an iterator lost a property that callers rely on.
#[test]
fn handles_and_rows_are_sent_and_shared() {
    fn is_send_and_sync<T: Send + Sync + Clone>(_: &T) {}
    fn is_send<T: Send>(_: &T) {}
    fn first_of(reads: &impl Read, rows: &TypedKeyspace<u8, ()>) -> Option<u8> {
        rows.first(reads).unwrap().map(|row| row.0)
    }
    let db = store();
    let rows = TypedKeyspace::new(db.create_keyspace("rows", Retention::Latest).unwrap());
    is_send_and_sync(&rows);
    is_send(&rows.rows(db.snapshot().iter(rows.keyspace()).unwrap()));
    assert_eq!(first_of(&db.snapshot(), &rows), None);
    let mut tx = db.begin();
    rows.put(&mut tx, 7, &()).unwrap();
    assert_eq!(first_of(&tx, &rows), Some(7));
    assert_eq!(format!("{rows:?}"), "TypedKeyspace(\"rows\")");
}

#[test]
fn a_reopened_store_has_the_same_rows() {
    let dir = tempfile::tempdir().unwrap();
    let open =
        || Db::open(dir.path().join("store"), Options::new().memory_bytes(16 << 20)).unwrap();
    let db = open();
    let rows: TypedKeyspace<(i64, Vec<u8>), Option<f64>> =
        TypedKeyspace::open(&db, "rows").unwrap();
    db.transact(|tx| rows.put(tx, (-1, b"a\0"), &Some(0.5))).unwrap();
    db.close().unwrap();
    let db = open();
    let rows: TypedKeyspace<(i64, Vec<u8>), Option<f64>> =
        TypedKeyspace::open(&db, "rows").unwrap();
    assert_eq!(rows.get(&db.snapshot(), (-1, b"a\0")).unwrap(), Some(Some(0.5)));
    assert_eq!(rows.first(&db.snapshot()).unwrap(), Some(((-1, b"a\0".to_vec()), Some(0.5))));
}
