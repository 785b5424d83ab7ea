//! An idle iterator blocks no reader and no writer, and continues where it stopped.

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll::{
    Db, Diff, Difference, Glsn, History, Keyspace, MIN_MEMORY_BYTES, Options, Range, Result,
    Snapshot, Transaction,
};

const KEYS: u32 = 3000;
const VALUE_BYTES: usize = 200;

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn db(dir: &tempfile::TempDir) -> (Db, Keyspace) {
    let db =
        Db::open(dir.path().join("store"), Options::new().memory_bytes(MIN_MEMORY_BYTES)).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    (db, keyspace)
}

/// Writes the value of `round` to every key: 0.6 MiB.
fn write(db: &Db, keyspace: &Keyspace, round: u8) {
    try_to_write(db, keyspace, round).unwrap();
}

fn try_to_write(db: &Db, keyspace: &Keyspace, round: u8) -> Result<Glsn> {
    let mut tx = db.begin();
    (0..KEYS).try_for_each(|number| tx.put(keyspace, &key(number), &[round; VALUE_BYTES]))?;
    tx.commit()
}

/// Takes a few steps of an iteration.
fn begin<'t>(mut range: Range<'t>, into: &mut Vec<(u32, u8)>) -> Range<'t> {
    (0..3).for_each(|_| into.push(step(&mut range).unwrap()));
    range
}

fn step(range: &mut Range<'_>) -> Option<(u32, u8)> {
    let (key, value) = range.advance().unwrap()?;
    assert!(value.iter().all(|byte| *byte == value[0]));
    Some((u32::from_be_bytes(key.try_into().unwrap()), value[0]))
}

/// Takes the remaining steps.
fn finish(mut range: Range<'_>, mut found: Vec<(u32, u8)>) -> Vec<(u32, u8)> {
    found.extend(std::iter::from_fn(|| step(&mut range)));
    found
}

/// Begins iterations, has other iterations and writes made meanwhile, and takes the remaining
/// steps.
fn hold(db: &Db, keyspace: &Keyspace, round: u8, rounds: u8) {
    if round == rounds {
        return;
    }
    let snapshot = db.snapshot();
    let (mut forward, mut backward) = (Vec::new(), Vec::new());
    let walk = begin(snapshot.range(keyspace, ..).unwrap(), &mut forward);
    let walk_back = begin(snapshot.range(keyspace, ..).unwrap().reverse(), &mut backward);
    let mut history = db.history(keyspace, &key(7)).unwrap();
    let newest = history.next().unwrap().unwrap().glsn;
    write(db, keyspace, round + 1);
    hold(db, keyspace, round + 1, rounds);
    let expected: Vec<_> = (0..KEYS).map(|number| (number, round)).collect();
    assert_eq!(finish(walk, forward), expected);
    let expected: Vec<_> = expected.into_iter().rev().collect();
    assert_eq!(finish(walk_back, backward), expected);
    let older: Vec<_> = history.map(|version| version.unwrap().glsn).collect();
    assert_eq!(older.len(), usize::from(round), "{newest} {older:?}");
    assert!(
        older.iter().all(|glsn| *glsn < newest) && older.is_sorted_by(|a, b| a > b),
        "{newest} {older:?}"
    );
}

#[test]
fn idle_iterators_block_no_writer_and_miss_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace) = db(&dir);
    write(&db, &keyspace, 0);
    hold(&db, &keyspace, 0, 40);
}

/// The value of `number` in a transaction that changed every third key of those with the value of
/// `round`, and added keys between them.
fn own(number: u32, round: u8) -> Option<u8> {
    match number % 6 {
        0 => None,
        3 => Some(200),
        _ => Some(round),
    }
}

fn change(db: &Db, keyspace: &Keyspace) -> Transaction {
    let mut tx = db.begin();
    for number in (0..KEYS).step_by(3) {
        match own(number, 0) {
            None => tx.delete(keyspace, &key(number)).unwrap(),
            Some(_) => tx.put(keyspace, &key(number), &[200; 5]).unwrap(),
        }
    }
    tx
}

fn hold_in_transaction(db: &Db, keyspace: &Keyspace, round: u8, rounds: u8) {
    if round == rounds {
        return;
    }
    let tx = change(db, keyspace);
    let (mut forward, mut backward) = (Vec::new(), Vec::new());
    let walk = begin(tx.range(keyspace, ..).unwrap(), &mut forward);
    let walk_back = begin(tx.range(keyspace, ..).unwrap().reverse(), &mut backward);
    write(db, keyspace, round + 1);
    hold_in_transaction(db, keyspace, round + 1, rounds);
    let expected: Vec<_> =
        (0..KEYS).filter_map(|number| Some((number, own(number, round)?))).collect();
    assert_eq!(finish(walk, forward), expected);
    let expected: Vec<_> = expected.into_iter().rev().collect();
    assert_eq!(finish(walk_back, backward), expected);
    assert!(
        matches!(tx.commit(), Err(plimsoll::Error::Conflict { .. })),
        "the keys that it scanned were changed"
    );
}

#[test]
fn idle_iterators_of_transactions_block_no_writer_and_see_their_own_writes() {
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace) = db(&dir);
    write(&db, &keyspace, 0);
    hold_in_transaction(&db, &keyspace, 0, 30);
}

fn hold_diff(db: &Db, keyspace: &Keyspace, round: u8, rounds: u8) {
    if round == rounds {
        return;
    }
    let (a, b) = (db.snapshot().at() - 1, db.snapshot().at());
    let mut diff = db.diff(keyspace, a, b, b"").unwrap();
    let first: Difference = diff.next().unwrap().unwrap();
    write(db, keyspace, round + 1);
    hold_diff(db, keyspace, round + 1, rounds);
    let all: Vec<Difference> = std::iter::once(first).chain(diff.map(Result::unwrap)).collect();
    assert!(all.iter().map(|change| &change.key[..]).eq((0..KEYS).map(key)), "each key once");
    assert!(all.iter().all(|change| change.after.as_ref().unwrap().glsn == b));
}

#[test]
fn idle_diffs_block_no_writer_and_miss_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace) = db(&dir);
    write(&db, &keyspace, 0);
    write(&db, &keyspace, 1);
    hold_diff(&db, &keyspace, 1, 40);
}

#[test]
fn two_thousand_begun_iterators_leave_pages_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace) = db(&dir);
    let mut tx = db.begin();
    // 30 MiB: more leaves than the budget has frames.
    for number in 0..100_000 {
        tx.put(&keyspace, &key(number), &[1; 300]).unwrap();
    }
    tx.commit().unwrap();
    db.flush().unwrap();
    let snapshot = db.snapshot();
    let from = |at: u32| {
        snapshot.range(&keyspace, (Bound::Included(&key(at * 50)[..]), Bound::Unbounded)).unwrap()
    };
    let mut walks: Vec<_> = (0..2000).map(from).collect();
    for (at, walk) in (0..).zip(&mut walks) {
        assert_eq!(step(walk), Some((at * 50, 1)));
    }
    for number in (0..100_000).step_by(97) {
        assert!(snapshot.get(&keyspace, &key(number)).unwrap().is_some());
    }
    for round in 0..8 {
        write(&db, &keyspace, round);
    }
    for (at, walk) in (0..).zip(&mut walks) {
        assert_eq!(step(walk), Some((at * 50 + 1, 1)));
    }
}

#[test]
fn iterators_continue_as_of_their_moment_beside_writers_flushes_and_merges() {
    let dir = tempfile::tempdir().unwrap();
    let (db, keyspace) = db(&dir);
    write(&db, &keyspace, 0);
    let first = db.snapshot().at();
    // Each commit is one round, so a snapshot's GLSN determines its contents.
    let check = |snapshot: &Snapshot, back: bool| {
        let round = (snapshot.at() - first) as u8;
        let range = snapshot.range(&keyspace, ..).unwrap();
        let mut range = if back { range.reverse() } else { range };
        for number in 0..KEYS {
            let number = if back { KEYS - 1 - number } else { number };
            assert_eq!(step(&mut range), Some((number, round)));
            if number.is_multiple_of(64) {
                std::thread::yield_now();
            }
        }
        assert_eq!(step(&mut range), None);
    };
    let written = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for back in [false, true, false, true] {
            let (db, check, written) = (&db, &check, &written);
            scope.spawn(move || {
                while !written.load(Ordering::Relaxed) {
                    check(&db.snapshot(), back);
                }
            });
        }
        let done = (1..=40).try_for_each(|round| try_to_write(&db, &keyspace, round).map(drop));
        written.store(true, Ordering::Relaxed);
        done.unwrap();
    });
}

/// Iterators can still be sent to another thread.
#[test]
fn iterators_can_be_sent() {
    fn is_send<T: Send>() {}
    is_send::<(History, Diff)>();
}
