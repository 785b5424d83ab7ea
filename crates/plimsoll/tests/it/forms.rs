//! The forms in which keys, values and ranges can be given, and the types that can be sent between
//! threads.

#![allow(clippy::unnecessary_to_owned, reason = "owned keys and values are one of the forms")]

use std::collections::BTreeSet;
use std::ops::Bound;

use plimsoll::{
    Change, Changes, Commit, CommitTicket, Commits, Db, Diff, History, KeyRange, Keyspace, Log,
    LogEntry, LogFollow, LogScan, Moment, Range, Read, Result, Snapshot, Transaction, Value,
    ValueReader,
};

fn open() -> (tempfile::TempDir, Db) {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), plimsoll::Options::new().memory_bytes(16 << 20))
        .unwrap();
    (dir, db)
}

fn send<T: Send>() {}
fn sync<T: Sync>() {}
fn send_static<T: Send + 'static>(_: T) {}

#[test]
fn all_types_of_the_api_can_be_sent_to_another_thread() {
    send::<Db>();
    send::<Snapshot>();
    send::<Transaction>();
    send::<Range<'_>>();
    send::<History>();
    send::<Diff>();
    send::<Log<'_>>();
    send::<LogEntry>();
    send::<LogScan<'_>>();
    send::<LogFollow>();
    send::<Commits>();
    send::<Commit>();
    send::<Changes<'_>>();
    send::<Change>();
    send::<CommitTicket>();
    send::<ValueReader>();
    send::<Value>();
    send::<Keyspace>();
    sync::<Db>();
    sync::<Snapshot>();
    sync::<Transaction>();
    sync::<Keyspace>();
    sync::<Value>();
}

#[test]
fn an_iterator_continues_in_another_thread_after_its_snapshot_is_dropped() {
    let (_dir, db) = open();
    let ks = db.create_keyspace("latest", plimsoll::Retention::Latest).unwrap();
    for key in ["a", "b", "c"] {
        db.put(&ks, key, "old").unwrap();
    }
    let snapshot = db.snapshot();
    let walk = snapshot.iter(&ks).unwrap();
    send_static(snapshot.iter(&ks).unwrap());
    drop(snapshot);
    for key in ["a", "b", "c"] {
        db.put(&ks, key, "new").unwrap();
    }
    db.compact().unwrap();
    let values = std::thread::spawn(move || walk.map(|pair| pair.unwrap().1).collect::<Vec<_>>())
        .join()
        .unwrap();
    assert_eq!(values, [b"old", b"old", b"old"]);
}

fn keys(range: Result<Range<'_>>) -> String {
    range.unwrap().map(|pair| String::from_utf8(pair.unwrap().0).unwrap()).collect()
}

/// Every form of a range, with the keys from a to e that are in it.
fn check_forms(reads: &impl Read, ks: &Keyspace) {
    let (b, d): (&[u8], &[u8]) = (b"b", b"d");
    assert_eq!(keys(reads.range(ks, ..)), "abcde");
    assert_eq!(keys(reads.iter(ks)), "abcde");
    assert_eq!(keys(reads.range(ks, "b".."d")), "bc");
    assert_eq!(keys(reads.range(ks, "b"..="d")), "bcd");
    assert_eq!(keys(reads.range(ks, "b"..)), "bcde");
    assert_eq!(keys(reads.range(ks, .."d")), "abc");
    assert_eq!(keys(reads.range(ks, ..="d")), "abcd");
    assert_eq!(keys(reads.range(ks, b"b"..b"d")), "bc");
    assert_eq!(keys(reads.range(ks, b..d)), "bc");
    assert_eq!(keys(reads.range(ks, b..=d)), "bcd");
    assert_eq!(keys(reads.range(ks, [b'b']..[b'd'])), "bc");
    assert_eq!(keys(reads.range(ks, b"b".to_vec()..)), "bcde");
    assert_eq!(keys(reads.range(ks, &b"b".to_vec()..&b"d".to_vec())), "bc");
    assert_eq!(keys(reads.range(ks, "b".to_owned().."d".to_owned())), "bc");
    assert_eq!(keys(reads.range(ks, ..="d".to_owned())), "abcd");
    assert_eq!(keys(reads.range(ks, 98u32.to_be_bytes().split_at(3).1..)), "bcde");
    assert_eq!(keys(reads.range(ks, Value::from(b"b".to_vec())..)), "bcde");
    assert_eq!(keys(reads.range(ks, (Bound::Excluded("b"), Bound::Included("d")))), "cd");
    assert_eq!(keys(reads.range(ks, (Bound::Excluded(b), Bound::Unbounded))), "cde");
    let kept = "b".."d";
    assert_eq!(
        keys(reads.range(ks, &kept)) + &keys(reads.range(ks, &kept as &dyn KeyRange)),
        "bcbc"
    );
    assert_eq!(keys(reads.prefix(ks, "c")) + &keys(reads.prefix(ks, b"d".to_vec())), "cd");
}

#[test]
fn every_form_of_a_range_compiles_and_means_what_it_does_in_std() {
    let (_dir, db) = open();
    let ks = db.keyspace("letters").unwrap();
    let mut tx = db.begin();
    for letter in 'a'..='e' {
        tx.put(&ks, letter.to_string(), [1]).unwrap();
    }
    check_forms(&tx, &ks);
    let glsn = tx.commit().unwrap();
    check_forms(&db.snapshot(), &ks);
    check_forms(&db.begin(), &ks);
    let changed = |prefix: &str| db.diff(&ks, glsn - 1, glsn, prefix).unwrap().count();
    assert_eq!((changed(""), changed("c")), (5, 1));
    assert_eq!(db.history(&ks, [b'c']).unwrap().count(), 1);
    let snapshot = db.snapshot();
    assert_eq!(snapshot.skip_damage(&ks, "b".."d", false).unwrap(), None);
    assert_eq!(snapshot.skip_damage(&ks, .., true).unwrap(), None);
}

#[test]
fn keys_and_values_can_be_any_bytes() {
    let (_dir, db) = open();
    let ks = db.keyspace("default").unwrap();
    let mut tx = db.begin();
    tx.put(&ks, "text", "text").unwrap();
    tx.put(&ks, b"bytes", b"bytes".to_vec()).unwrap();
    tx.put(&ks, 7u64.to_be_bytes(), String::from("number")).unwrap();
    tx.put(&ks, b"gone".to_vec(), [0; 9]).unwrap();
    tx.delete(&ks, String::from("gone")).unwrap();
    tx.put_reader(&ks, "stream", &mut &b"bytes"[..]).unwrap();
    tx.commit().unwrap();
    let snapshot = db.snapshot();
    assert_eq!(snapshot.get(&ks, 7u64.to_be_bytes()).unwrap().unwrap(), b"number");
    assert_eq!(snapshot.get_reader(&ks, "stream").unwrap().unwrap().len(), 5);
    assert!(
        snapshot.contains_key(&ks, &b"bytes"[..]).unwrap()
            && !snapshot.contains_key(&ks, "gone").unwrap()
    );
    let copy = snapshot.get(&ks, "text").unwrap().unwrap();
    let glsn = db.put(&ks, &copy, &copy).unwrap();
    assert_eq!(db.get(&ks, copy).unwrap().unwrap(), b"text");
    assert_eq!(db.delete(&ks, "text").unwrap(), glsn + 1);
    assert_eq!(db.get(&ks, "text").unwrap(), None);
    assert_eq!(
        db.snapshot_at(Moment::Glsn(glsn)).unwrap().get(&ks, "text").unwrap().unwrap(),
        b"text"
    );
}

#[test]
fn the_first_the_last_and_the_number_of_keys_of_a_moment() {
    fn of(reads: &impl Read, ks: &Keyspace) -> (Option<Vec<u8>>, Option<Vec<u8>>, u64, bool) {
        let key = |pair: Result<Option<(Vec<u8>, Value)>>| pair.unwrap().map(|(key, _)| key);
        (
            key(reads.first(ks)),
            key(reads.last(ks)),
            reads.len(ks).unwrap(),
            reads.is_empty(ks).unwrap(),
        )
    }
    let (_dir, db) = open();
    let (ks, other) = (db.keyspace("some").unwrap(), db.keyspace("other").unwrap());
    db.put(&other, "x", "1").unwrap();
    assert_eq!(of(&db.snapshot(), &ks), (None, None, 0, true));
    let mut tx = db.begin();
    let letters: BTreeSet<_> = "hello".bytes().collect();
    letters.iter().for_each(|letter| tx.put(&ks, [*letter], "1").unwrap());
    let expected = (Some(b"e".to_vec()), Some(b"o".to_vec()), letters.len() as u64, false);
    assert_eq!(of(&tx, &ks), expected);
    assert_eq!(of(&db.snapshot(), &ks), (None, None, 0, true));
    tx.commit().unwrap();
    assert_eq!(of(&db.snapshot(), &ks), expected);
    let mut tx = db.begin();
    tx.delete(&ks, "e").unwrap();
    assert_eq!(
        of(&tx, &ks),
        (Some(b"h".to_vec()), Some(b"o".to_vec()), letters.len() as u64 - 1, false)
    );
}

#[test]
fn reading_the_first_key_reads_nothing_after_it() {
    let (_dir, db) = open();
    let ks = db.keyspace("default").unwrap();
    for key in ["b", "d"] {
        db.put(&ks, key, "1").unwrap();
    }
    let conflicts = |key: &str| {
        let mut tx = db.begin();
        let _ = tx.first(&ks).unwrap();
        tx.put(&ks, "z", "1").unwrap();
        db.put(&ks, key, "2").unwrap();
        matches!(tx.commit(), Err(plimsoll::Error::Conflict { .. }))
    };
    assert!(!conflicts("c"));
    assert!(conflicts("b"));
    assert!(conflicts("a"));
}

#[test]
fn a_transaction_is_retried_after_a_conflict() {
    let (_dir, db) = open();
    let ks = db.keyspace("default").unwrap();
    db.put(&ks, "sum", [0]).unwrap();
    let mut attempts = 0;
    let sum = db.transact(|tx| -> Result<u8> {
        attempts += 1;
        let sum = tx.get(&ks, "sum")?.unwrap()[0];
        if attempts < 4 {
            db.put(&ks, "sum", [sum + 10])?;
        }
        tx.put(&ks, "sum", [sum + 1])?;
        Ok(sum + 1)
    });
    assert_eq!((attempts, sum), (4, Ok(31)));
    assert_eq!(db.get(&ks, "sum").unwrap().unwrap(), [31][..]);
}

#[test]
fn a_transaction_that_always_conflicts_fails_in_the_end() {
    let (_dir, db) = open();
    let ks = db.keyspace("default").unwrap();
    let mut attempts = 0;
    let done = db.transact(|tx| {
        attempts += 1;
        let _ = tx.get(&ks, "a")?;
        db.put(&ks, "a", "theirs")?;
        tx.put(&ks, "b", "mine")
    });
    assert!(matches!(done, Err(plimsoll::Error::Conflict { .. })), "{done:?}");
    assert_eq!((attempts, db.get(&ks, "b").unwrap()), (32, None));
}

#[test]
fn an_error_of_the_closure_ends_a_transaction_and_nothing_is_written() {
    let (_dir, db) = open();
    let ks = db.keyspace("default").unwrap();
    let newest = db.newest();
    let mut attempts = 0;
    let done: Result<()> = db.transact(|tx| {
        attempts += 1;
        tx.put(&ks, "a", "1")?;
        tx.put(&ks, "x".repeat(5000), "too long")
    });
    assert!(matches!(done, Err(plimsoll::Error::InvalidInput { .. })), "{done:?}");
    assert_eq!((attempts, db.newest()), (1, newest));
}
