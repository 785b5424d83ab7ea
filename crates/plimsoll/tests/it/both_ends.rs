//! Ranges iterated from both ends.

use std::sync::Arc;

use plimsoll::{Db, Error, Keyspace, Options, Range, Retention};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::mem::MemDisk;

fn store() -> (Db, Keyspace) {
    let clock = Arc::new(ManualClock::new(1_000_000_000));
    let options = Options::new().memory_bytes(16 << 20).background(false);
    let db = Db::open("/store", options.world(Arc::new(MemDisk::new()), clock)).unwrap();
    let rows = db.create_keyspace("rows", Retention::Latest).unwrap();
    (db, rows)
}

fn key(number: u64) -> Vec<u8> {
    format!("{number:04}").into_bytes()
}

/// Takes rows from random ends and compares them with `wanted`.
fn compare(mut range: Range<'_>, wanted: &[(Vec<u8>, Vec<u8>)], random: &mut fastrand::Rng) {
    let mut wanted = wanted.iter().cloned();
    let biased = random.bool();
    loop {
        let from_front = if biased { random.u8(..8) > 0 } else { random.bool() };
        let (row, row_wanted) = if from_front {
            (range.next(), wanted.next())
        } else {
            (range.next_back(), wanted.next_back())
        };
        let row = row.map(|row| row.unwrap()).map(|(key, value)| (key, value.to_vec()));
        assert_eq!(row, row_wanted, "front: {from_front}");
        let (charged, held) = range.charges();
        assert!(charged >= held, "{charged} bytes are charged, {held} held");
        if row_wanted.is_none() {
            assert!(range.next().is_none() && range.next_back().is_none());
            return;
        }
    }
}

#[test]
fn both_ends_return_each_row_once() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..60 {
        let (db, rows) = store();
        let mut model = std::collections::BTreeMap::new();
        for step in 0..random.u64(..400) {
            let number = random.u64(..200);
            if random.u8(..4) > 0 {
                let value = vec![step as u8; if random.u8(..16) == 0 { 5000 } else { 20 }];
                db.put(&rows, key(number), &value).unwrap();
                model.insert(key(number), value);
            } else {
                db.delete(&rows, key(number)).unwrap();
                model.remove(&key(number));
            }
            if random.u8(..64) == 0 {
                db.flush().unwrap();
            }
        }
        let bounds = key(random.u64(..60))..key(random.u64(100..260));
        let wanted = |model: &std::collections::BTreeMap<Vec<u8>, Vec<u8>>, reversed: bool| {
            let rows = model.range(bounds.clone()).map(|(key, value)| (key.clone(), value.clone()));
            let mut rows: Vec<_> = rows.collect();
            if reversed {
                rows.reverse();
            }
            rows
        };
        let direct = |range: Range<'_>, reversed: bool, random: &mut fastrand::Rng| {
            let range = if reversed { range.reverse() } else { range };
            compare(range, &wanted(&model, reversed), random);
        };
        for reversed in [false, true] {
            direct(db.snapshot().range(&rows, bounds.clone()).unwrap(), reversed, &mut random);
            let tx = db.begin();
            direct(tx.range(&rows, bounds.clone()).unwrap(), reversed, &mut random);
        }
        let mut tx = db.begin();
        let mut own = model.clone();
        for _ in 0..random.u64(..80) {
            let number = random.u64(..200);
            match random.u8(..8) {
                0..4 => {
                    tx.put(&rows, key(number), "own").unwrap();
                    own.insert(key(number), b"own".to_vec());
                }
                4..7 => {
                    tx.delete(&rows, key(number)).unwrap();
                    own.remove(&key(number));
                }
                _ => {
                    let gone = key(number)..key(number + 15);
                    tx.delete_range(&rows, gone.clone()).unwrap();
                    own.retain(|key, _| !gone.contains(key));
                }
            }
        }
        for reversed in [false, true] {
            let range = tx.range(&rows, bounds.clone()).unwrap();
            let range = if reversed { range.reverse() } else { range };
            compare(range, &wanted(&own, reversed), &mut random);
        }
    }
}

#[test]
fn both_ends_go_on_while_rows_are_written_and_flushed() {
    let (db, rows) = store();
    db.transact(|tx| (0..1000).try_for_each(|number| tx.put(&rows, key(number), "old"))).unwrap();
    let mut range = db.snapshot().range(&rows, ..).unwrap();
    for step in 0..500 {
        db.put(&rows, key(step), "new").unwrap();
        db.put(&rows, key(999 - step), "new").unwrap();
        if step % 100 == 50 {
            db.flush().unwrap();
            db.compact().unwrap();
        }
        assert_eq!(range.next().unwrap().unwrap().0, key(step));
        let (last, value) = range.next_back().unwrap().unwrap();
        assert_eq!((last, value.to_vec()), (key(999 - step), b"old".to_vec()));
    }
    assert!(range.next().is_none() && range.next_back().is_none());
}

#[test]
fn a_transaction_conflicts_only_with_what_its_ends_have_read() {
    for (written, conflicts) in [(0, true), (500, false), (999, true), (1, true), (997, false)] {
        let (db, rows) = store();
        let other = db.keyspace("other").unwrap();
        db.transact(|tx| (0..1000).try_for_each(|number| tx.put(&rows, key(number), ""))).unwrap();
        let mut tx = db.begin();
        let mut range = tx.range(&rows, ..).unwrap();
        range.next().unwrap().unwrap();
        range.next().unwrap().unwrap();
        range.next_back().unwrap().unwrap();
        drop(range);
        db.put(&rows, key(written), "changed").unwrap();
        tx.put(&other, "a", "").unwrap();
        let conflict = matches!(tx.commit(), Err(Error::Conflict { .. }));
        assert_eq!(conflict, conflicts, "key {written}");
    }
}

#[test]
fn an_exhausted_range_has_read_the_middle_too() {
    for from_front in [false, true] {
        let (db, rows) = store();
        let other = db.keyspace("other").unwrap();
        db.transact(|tx| (0..10).try_for_each(|number| tx.put(&rows, key(2 * number), "")))
            .unwrap();
        let mut tx = db.begin();
        let mut range = tx.range(&rows, ..).unwrap().keys_only();
        for _ in 0..5 {
            range.next().unwrap().unwrap();
            range.next_back().unwrap().unwrap();
        }
        assert!(if from_front { range.next() } else { range.next_back() }.is_none());
        drop(range);
        db.put(&rows, key(9), "a new key where the ends met").unwrap();
        tx.put(&other, "a", "").unwrap();
        assert!(matches!(tx.commit(), Err(Error::Conflict { .. })));
    }
}

#[test]
fn the_last_rows_come_first_with_rev() {
    let (db, rows) = store();
    db.transact(|tx| (0..9).try_for_each(|number| tx.put(&rows, key(number), ""))).unwrap();
    let snapshot = db.snapshot();
    let newest: Vec<_> =
        snapshot.range(&rows, ..).unwrap().rev().take(2).map(|row| row.unwrap().0).collect();
    assert_eq!(newest, [key(8), key(7)]);
}
