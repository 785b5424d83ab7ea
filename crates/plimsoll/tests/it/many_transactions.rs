//! Many open transactions, and their total memory.

use plimsoll::{Db, Error, Glsn, Keyspace, MIN_MEMORY_BYTES, Options, Transaction};

fn db(dir: &tempfile::TempDir) -> (Db, Keyspace) {
    let db =
        Db::open(dir.path().join("store"), Options::new().memory_bytes(MIN_MEMORY_BYTES)).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    (db, keyspace)
}

fn held(db: &Db, kind: &str) -> u64 {
    db.stats().memory.by_kind.iter().find(|(name, _)| *name == kind).unwrap().1
}

/// An open transaction with one small write, or the reason why it was refused.
fn begin(db: &Db, keyspace: &Keyspace, number: u32) -> Result<Transaction, Error> {
    let mut tx = db.begin();
    tx.put(keyspace, &number.to_be_bytes(), &[7; 40])?;
    Ok(tx)
}

#[test]
fn a_thousand_small_open_transactions_refuse_no_other_writer() {
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace) = db(&dir);
    let open: Vec<_> = (0..1000).map(|number| begin(&db, &keyspace, number).unwrap()).collect();
    assert!(held(&db, "write sets") <= 1 << 20, "{:?}", db.stats().memory);
    for round in 0..60_u32 {
        let mut tx = db.begin();
        (0..200_u32).for_each(|number| {
            tx.put(&keyspace, &(5000 + number).to_be_bytes(), &[9; 2000]).unwrap()
        });
        assert_eq!(tx.commit().unwrap(), u64::from(round) + 1);
    }
    let refused = db.stats().pressure.refusals;
    for tx in open {
        tx.commit().unwrap();
    }
    assert_eq!(db.snapshot().range(&keyspace, ..).unwrap().count(), 1200);
    assert_eq!((held(&db, "write sets"), refused), (0, 0));
}

#[test]
fn ten_thousand_open_transactions_work_or_fail_clearly_and_nothing_leaks() {
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace) = db(&dir);
    let mut open = Vec::new();
    let mut refused = 0;
    for number in 0..10_000 {
        match begin(&db, &keyspace, number) {
            Ok(tx) => open.push((number, tx)),
            Err(error) => {
                assert!(matches!(error, Error::OutOfBudget(_)), "{error}");
                assert!(error.to_string().contains("WriteSet"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(open.len() >= 5000, "{} open, {refused} refused", open.len());
    let numbers: Vec<_> = open.iter().map(|(number, _)| *number).collect();
    for (number, tx) in open {
        if number % 2 == 0 {
            tx.commit().unwrap();
        }
    }
    let found: Vec<_> =
        db.snapshot().range(&keyspace, ..).unwrap().map(|entry| entry.unwrap().0).collect();
    let expected: Vec<_> = numbers
        .iter()
        .filter(|number| **number % 2 == 0)
        .map(|n| n.to_be_bytes().to_vec())
        .collect();
    assert_eq!(found, expected);
    assert_eq!((held(&db, "write sets"), held(&db, "read sets"), held(&db, "staging")), (0, 0, 0));
}

/// Writes and commits; adds the state of the budget to an error.
fn write(db: &Db, keyspace: &Keyspace, writer: u32, round: u32) -> Result<Glsn, Error> {
    let mut tx = db.begin();
    for number in 0..100_u32 {
        let key = [writer.to_be_bytes(), number.to_be_bytes()].concat();
        tx.put(keyspace, &key, &[round as u8; 1800])?;
    }
    tx.commit()
}

/// Together they need more than the budget; each releases its memory when it commits or is refused.
#[test]
fn writers_without_memory_wait_for_those_that_hold_it() {
    const ROUNDS: u32 = 12;
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace) = db(&dir);
    std::thread::scope(|scope| {
        for writer in 0..64_u32 {
            let (db, keyspace) = (&db, &keyspace);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    // If all hold some memory and all need more, the waits end one after the other,
                    // and the writers start again.
                    while let Err(error) = write(db, keyspace, writer, round) {
                        assert!(matches!(error, Error::OutOfBudget(_)), "{error}");
                    }
                }
            });
        }
    });
    assert!(db.stats().pressure.waits > 0, "{:?}", db.stats());
    assert_eq!(held(&db, "write sets"), 0);
    let snapshot = db.snapshot();
    let found = snapshot.range(&keyspace, ..).unwrap().map(|entry| entry.unwrap().1[0]);
    assert_eq!(found.collect::<Vec<_>>(), [ROUNDS as u8 - 1; 6400]);
}
