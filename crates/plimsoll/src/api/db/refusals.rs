//! Runs every operation of a store with its n-th memory reservation refused, for every n: the
//! operation either fails with an error that says so, or works without the memory. Nothing leaks,
//! no operation is left half done, and the next operation works.

use std::cell::Cell;
use std::path::Path;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::Kind;

use super::Db;
use crate::types::error::{Error, Result};
use crate::types::options::{MIN_MEMORY_BYTES, Options};

/// Kinds of memory that are not held between two operations of one thread.
const OF_OPERATIONS: [Kind; 3] = [Kind::WriteSet, Kind::ReadSet, Kind::Staging];

/// Upper limit on the reservations refused per operation; the longest operation here makes fewer.
const REFUSALS_MAX: u64 = 3000;

const KEYS: u32 = 3000;

fn options() -> Options {
    Options::new().memory_bytes(MIN_MEMORY_BYTES).background(false)
}

fn key(number: u32) -> [u8; 4] {
    number.wrapping_mul(0x9e37_79b1).to_be_bytes()
}

fn value(number: u32) -> Vec<u8> {
    let bytes = if number.is_multiple_of(1000) { 200_000 } else { 300 };
    vec![number as u8; bytes]
}

/// A store with a sample of everything: runs, history, a memtable, values in the log, blob files.
fn store(path: &Path) -> Db {
    let db = Db::open(path, options()).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    for round in 0..3 {
        let mut tx = db.begin();
        (0..KEYS).for_each(|number| tx.put(&keyspace, &key(number), &value(number)).unwrap());
        tx.commit().unwrap();
        if round == 1 {
            db.flush().unwrap();
        }
    }
    let mut tx = db.begin();
    tx.put(&keyspace, b"last", b"one").unwrap();
    tx.commit().unwrap();
    db
}

fn check(db: &Db) {
    let keyspace = db.keyspace("default").unwrap();
    let snapshot = db.snapshot();
    for number in [0, 7, 1000, KEYS - 1] {
        assert_eq!(snapshot.get(&keyspace, &key(number)).unwrap().unwrap(), &value(number)[..]);
    }
}

/// Runs `operation` with the n-th reservation refused, for n from 0 until no reservation is left to
/// refuse. Returns the number of refusals.
fn refuse_each(db: &Db, name: &str, operation: impl FnMut(&Db) -> Result<()>) -> u32 {
    refuse_each_and(db, name, operation, |_, _| ())
}

/// As `refuse_each`; `look` checks the state after each run.
fn refuse_each_and(
    db: &Db,
    name: &str,
    mut operation: impl FnMut(&Db) -> Result<()>,
    mut look: impl FnMut(&Db, bool),
) -> u32 {
    let mut refused = 0;
    for n in 0..REFUSALS_MAX {
        let budget = &db.store.reader.budget;
        let before = OF_OPERATIONS.map(|kind| budget.usage().of(kind));
        db.drop_caches();
        budget.fail_after(n);
        let result = operation(db);
        let is_over = budget.fail_after(u64::MAX);
        look(db, result.is_ok());
        match result {
            Ok(()) => {}
            Err(Error::OutOfBudget(refusal)) => {
                refused += 1;
                assert!(refusal.to_string().contains("limit"), "{name}, {n}: {refusal}");
            }
            Err(error) => panic!("{name}, reservation {n} refused: {error}"),
        }
        assert_eq!(
            OF_OPERATIONS.map(|kind| budget.usage().of(kind)),
            before,
            "{name}, {n}: something leaks"
        );
        check(db);
        if is_over {
            return refused;
        }
    }
    panic!("{name} makes more than {REFUSALS_MAX} reservations");
}

#[test]
fn a_read_whose_reservations_are_refused_fails_or_works_without_them() {
    let dir = tempfile::tempdir().unwrap();
    let db = store(&dir.path().join("store"));
    let keyspace = db.keyspace("default").unwrap();
    let mut refused = 0;
    refused += refuse_each(&db, "get", |db| {
        [0, 5, 2000].iter().try_for_each(|&number| {
            let found = db.snapshot().get(&keyspace, &key(number))?.expect("it is there");
            assert_eq!(found, &value(number)[..]);
            Ok(())
        })
    });
    refused += refuse_each(&db, "range", |db| {
        let snapshot = db.snapshot();
        let range = snapshot.range(&keyspace, ..)?;
        let mut rows = 0;
        for row in range {
            row?;
            rows += 1;
        }
        assert_eq!(rows, KEYS + 1);
        Ok(())
    });
    refused += refuse_each(&db, "history", |db| {
        let history = db.history(&keyspace, &key(1000))?;
        let mut versions = 0;
        for version in history {
            version?;
            versions += 1;
        }
        assert_eq!(versions, 3);
        Ok(())
    });
    refused += refuse_each(&db, "log", |db| {
        let mut scan = db.log().scan(.., None)?;
        while let Some(entry) = scan.next() {
            entry?;
        }
        Ok(())
    });
    refused += refuse_each(&db, "verify", |db| {
        let report = db.verify(&mut |_| ())?;
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        Ok(())
    });
    assert!(refused > 10, "{refused}");
    db.close().unwrap();
}

#[test]
fn a_write_whose_reservations_are_refused_is_complete_or_absent() {
    let dir = tempfile::tempdir().unwrap();
    let db = store(&dir.path().join("store"));
    let keyspace = db.keyspace("default").unwrap();
    let round = Cell::new(0u32);
    let newest = Cell::new(Glsn::NONE);
    let mut refused = 0;
    for (name, keys) in [("small", 3u32), ("large", 20_000)] {
        let key = |number: u32| [&name.as_bytes()[..1], &number.to_be_bytes()].concat();
        let write = |db: &Db| {
            round.set(round.get() + 1);
            newest.set(db.newest());
            let mut tx = db.begin();
            for number in 0..keys {
                tx.put(&keyspace, &key(number), &round.get().to_be_bytes())?;
            }
            tx.commit().map(drop)
        };
        let look = |db: &Db, is_committed: bool| {
            let snapshot = db.snapshot();
            let read =
                |number| snapshot.get(&keyspace, &key(number)).unwrap().map(|value| value.to_vec());
            assert_eq!(read(0), read(keys - 1), "{name}: half a transaction");
            assert_eq!(read(0) == Some(round.get().to_be_bytes().to_vec()), is_committed, "{name}");
            assert_eq!(db.newest() > newest.get(), is_committed, "{name}");
        };
        refused += refuse_each_and(&db, name, write, look);
    }
    assert!(refused > 3, "{refused}");
    db.close().unwrap();
}

#[test]
fn upkeep_whose_reservations_are_refused_continues_later() {
    let dir = tempfile::tempdir().unwrap();
    let db = store(&dir.path().join("store"));
    let mut refused = refuse_each(&db, "flush", Db::flush);
    refused += refuse_each(&db, "compact", Db::compact);
    let mut backups = 0;
    refused += refuse_each(&db, "backup", |db| {
        backups += 1;
        db.backup(dir.path().join(format!("backup-{backups}"))).map(drop)
    });
    assert!(refused > 0);
    db.compact().unwrap();
    check(&db);
    db.close().unwrap();
    check(&Db::open(dir.path().join("store"), options()).unwrap());
    check(&Db::open(dir.path().join(format!("backup-{backups}")), options()).unwrap());
}
