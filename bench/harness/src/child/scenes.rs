//! Workloads that strain the memory budget: large values in many threads, long keys, and very many
//! open objects.
//!
//! The program's own copies of values count too, so values are generated while they are written and
//! compared while they are read, in pieces of at most 16 KiB per thread. A refusal for lack of
//! memory is an expected result (and counted); a wrong value, another error or a thread without
//! progress is a failure.

use std::io::Read;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use plimsoll::{Db, Error, Keyspace, Options, Range, Snapshot, Transaction};

use super::Stream;
use crate::payload;

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scene {
    /// 8 threads write values of 2 MB, 8 read them, whole and piece by piece
    LargeValues,
    /// Keys of 4 KiB: written, walked over both ways, looked up
    LongKeys,
    /// 2,000 walks over keys of 4 KiB that have begun and are left alone while others write
    BegunWalks,
    /// 10,000 transactions that are open at once, each with a write
    OpenTransactions,
    /// 10,000 keyspaces
    ManyKeyspaces,
}

/// Operations refused for lack of memory.
pub(super) type Refusals = u64;

const LARGE_BYTES: u64 = 2_000_000;
const WRITERS: u64 = 8;
const READERS: u64 = 8;
const LARGE_WRITES: u64 = 10;
const PIECE_BYTES: usize = 8 << 10;

const LONG_KEY_BYTES: usize = 4096;
const LONG_KEYS: u64 = 10_000;
const WALKS: u64 = 2000;
const LONG_BATCH: usize = 20;

const TRANSACTIONS: u64 = 10_000;

/// A transaction, and the number that it has written.
type OpenTransaction = (u64, Transaction);

/// As many as a store supports, except a few of its own.
const KEYSPACES: u64 = 9_990;

impl Scene {
    /// Bytes that the program holds in addition to the store and its constant, because open
    /// transactions are values of the program. Open iterators are charged to the budget.
    pub(crate) fn own_bytes(self) -> u64 {
        match self {
            Self::OpenTransactions => TRANSACTIONS * size_of::<OpenTransaction>() as u64,
            Self::LargeValues | Self::LongKeys | Self::BegunWalks | Self::ManyKeyspaces => 0,
        }
    }

    /// Runs it.
    pub(super) fn play(self, db: &Db, reopen: &dyn Fn() -> Result<Db>) -> Result<Refusals> {
        match self {
            Self::LargeValues => large_values(db),
            Self::LongKeys => long_keys(db),
            Self::BegunWalks => begun_walks(db),
            Self::OpenTransactions => open_transactions(db),
            Self::ManyKeyspaces => many_keyspaces(db, reopen),
        }
    }
}

/// Whether an operation succeeded; a refusal is counted.
fn taken(done: Result<()>, refusals: &AtomicU64) -> Result<bool> {
    match done {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.downcast_ref::<Error>(), Some(Error::OutOfBudget(_))) => {
            refusals.fetch_add(1, Ordering::Relaxed);
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn large_values(db: &Db) -> Result<Refusals> {
    let keyspace = db.keyspace("large values")?;
    let (refusals, writing) = (AtomicU64::new(0), AtomicU64::new(WRITERS));
    thread::scope(|scope| {
        let (keyspace, refusals, writing) = (&keyspace, &refusals, &writing);
        let write = move |writer: u64| {
            let mut done = 0;
            for number in 0..LARGE_WRITES {
                done += u64::from(taken(put_large(db, keyspace, writer, number), refusals)?);
            }
            ensure!(done > 0, "writer {writer} got nothing written");
            anyhow::Ok(())
        };
        let read = move |reader: u64| {
            let mut done = 0;
            let mut round = 0;
            while writing.load(Ordering::Relaxed) > 0 || round < WRITERS {
                let writer = (reader + round) % WRITERS;
                done +=
                    u64::from(taken(get_large(db, keyspace, writer, round % 2 == 0), refusals)?);
                round += 1;
            }
            ensure!(done > 0, "reader {reader} got nothing read");
            anyhow::Ok(())
        };
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn(move || {
                    let done = write(writer);
                    writing.fetch_sub(1, Ordering::Relaxed);
                    done
                })
            })
            .collect();
        let readers: Vec<_> =
            (0..READERS).map(|reader| scope.spawn(move || read(reader))).collect();
        writers
            .into_iter()
            .chain(readers)
            .try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    Ok(refusals.into_inner())
}

/// A value of 2 MB derived from its number.
fn large(number: u64) -> impl Read {
    std::io::Cursor::new(number.to_le_bytes())
        .chain(Stream { next: number << 24, left: LARGE_BYTES - 8 })
}

fn put_large(db: &Db, keyspace: &Keyspace, writer: u64, number: u64) -> Result<()> {
    let mut transaction = db.begin();
    let mut value = large(writer << 16 | number);
    transaction.put_reader(keyspace, &writer.to_be_bytes(), &mut value)?;
    transaction.commit()?;
    Ok(())
}

/// Reads a writer's last value, if any, and compares it with the expected one.
fn get_large(db: &Db, keyspace: &Keyspace, writer: u64, whole: bool) -> Result<()> {
    let (snapshot, key) = (db.snapshot(), writer.to_be_bytes());
    if whole {
        let Some(value) = snapshot.get(keyspace, &key)? else { return Ok(()) };
        return compare(&mut &value[..]);
    }
    let Some(mut value) = snapshot.get_reader(keyspace, &key)? else { return Ok(()) };
    compare(&mut value)
}

fn compare(value: &mut dyn Read) -> Result<()> {
    let mut number = [0; 8];
    read_exact(value, &mut number)?;
    let mut expected = Stream { next: u64::from_le_bytes(number) << 24, left: LARGE_BYTES - 8 };
    let (mut got, mut want) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
    while expected.left > 0 {
        let piece = expected.left.min(PIECE_BYTES as u64) as usize;
        read_exact(value, &mut got[..piece])?;
        expected.read_exact(&mut want[..piece])?;
        ensure!(
            got[..piece] == want[..piece],
            "a value differs, {} bytes before its end",
            expected.left
        );
    }
    ensure!(value.read(&mut got)? == 0, "a value is too long");
    Ok(())
}

/// Like `Read::read_exact`, but keeps an error of the store.
fn read_exact(value: &mut dyn Read, into: &mut [u8]) -> Result<()> {
    value.read_exact(into).map_err(|error| match error.downcast::<Error>() {
        Ok(error) => error.into(),
        Err(error) => error.into(),
    })
}

fn long_key(number: u64) -> [u8; LONG_KEY_BYTES] {
    let mut key = [0; LONG_KEY_BYTES];
    key[..8].copy_from_slice(&number.to_be_bytes());
    payload::fill(number, &mut key[8..]);
    key
}

fn put_long_keys(db: &Db, keyspace: &Keyspace, round: u64, refusals: &AtomicU64) -> Result<()> {
    let numbers: Vec<u64> = (0..LONG_KEYS).collect();
    let mut written = 0;
    for numbers in numbers.chunks(LONG_BATCH) {
        let done = || {
            let mut transaction = db.begin();
            for &number in numbers {
                transaction.put(keyspace, &long_key(number), &(number + round).to_le_bytes())?;
            }
            transaction.commit()?;
            anyhow::Ok(())
        };
        written += u64::from(taken(done(), refusals)?);
    }
    ensure!(written > 0, "nothing could be written");
    Ok(())
}

fn long_keys(db: &Db) -> Result<Refusals> {
    let (keyspace, refusals) = (db.keyspace("long keys")?, AtomicU64::new(0));
    put_long_keys(db, &keyspace, 0, &refusals)?;
    let snapshot = db.snapshot();
    for back in [false, true] {
        let range = snapshot.range(&keyspace, ..)?;
        let mut range = if back { range.reverse() } else { range };
        for number in 0..LONG_KEYS {
            let number = if back { LONG_KEYS - 1 - number } else { number };
            let pair = range.advance()?.context("a key is missing")?;
            ensure!(
                pair == (&long_key(number)[..], &number.to_le_bytes()[..]),
                "another key than {number} was returned"
            );
        }
        ensure!(range.advance()?.is_none(), "there are too many keys");
    }
    for number in (0..LONG_KEYS).rev().step_by(7) {
        ensure!(snapshot.get(&keyspace, &long_key(number))?.is_some(), "key {number} is not found");
    }
    Ok(refusals.into_inner())
}

fn begun_walks(db: &Db) -> Result<Refusals> {
    let (keyspace, refusals) = (db.keyspace("long keys")?, AtomicU64::new(0));
    put_long_keys(db, &keyspace, 0, &refusals)?;
    db.flush()?;
    put_long_keys(db, &keyspace, 0, &refusals)?;
    let snapshot: Snapshot = db.snapshot();
    let from = |number: u64| {
        snapshot.range(&keyspace, (Bound::Included(&long_key(number)[..]), Bound::Unbounded))
    };
    let mut walks = (0..WALKS).map(|walk| Ok(from(walk * 3)?)).collect::<Result<Vec<_>>>()?;
    step_all(&mut walks, 0)?;
    put_long_keys(db, &keyspace, 1, &refusals)?;
    step_all(&mut walks, 1)?;
    put_long_keys(db, &keyspace, 2, &refusals)?;
    step_all(&mut walks, 2)?;
    Ok(refusals.into_inner())
}

fn step_all(walks: &mut [Range<'_>], step: u64) -> Result<()> {
    for (walk, range) in (0..).zip(walks) {
        let number = walk * 3 + step;
        let (key, value) = range.advance()?.context("an iterator ends too early")?;
        ensure!(key == long_key(number), "iterator {walk} returned a key other than its next one");
        ensure!(value == number.to_le_bytes(), "iterator {walk} sees a later write");
    }
    Ok(())
}

fn open_transactions(db: &Db) -> Result<Refusals> {
    let (keyspace, refusals) = (db.keyspace("open")?, AtomicU64::new(0));
    let mut open: Vec<OpenTransaction> = Vec::with_capacity(TRANSACTIONS as usize);
    for number in 0..TRANSACTIONS {
        let mut transaction = db.begin();
        let mut done = || {
            ensure!(
                transaction.get(&keyspace, &number.to_be_bytes())?.is_none(),
                "a key exists before it was put"
            );
            transaction.put(&keyspace, &number.to_be_bytes(), &[7; 40])?;
            Ok(())
        };
        if taken(done(), &refusals)? {
            open.push((number, transaction));
        }
    }
    ensure!(open.len() > 1000, "{} transactions could be open at once", open.len());
    let mut committed = Vec::new();
    for (number, transaction) in open {
        if taken(transaction.commit().map(drop).map_err(Into::into), &refusals)? {
            committed.push(number);
        }
    }
    let snapshot = db.snapshot();
    for number in &committed {
        ensure!(
            snapshot.get(&keyspace, &number.to_be_bytes())?.is_some(),
            "write {number} is missing"
        );
    }
    ensure!(snapshot.range(&keyspace, ..)?.count() == committed.len(), "a refused write exists");
    Ok(refusals.into_inner())
}

fn many_keyspaces(db: &Db, reopen: &dyn Fn() -> Result<Db>) -> Result<Refusals> {
    let name = |number: u64| format!("keyspace {number}");
    for number in 0..KEYSPACES {
        let keyspace = db.keyspace(&name(number))?;
        let mut transaction = db.begin();
        transaction.put(&keyspace, b"key", &number.to_le_bytes())?;
        transaction.commit()?;
    }
    // All clones are closed with it.
    db.clone().close()?;
    let db = reopen()?;
    let snapshot = db.snapshot();
    for number in 0..KEYSPACES {
        let value = snapshot.get(&db.keyspace(&name(number))?, b"key")?;
        ensure!(
            value.is_some_and(|value| *value == number.to_le_bytes()),
            "keyspace {number} lost its key"
        );
    }
    db.close()?;
    Ok(0)
}

/// Commits to the many keyspaces need not survive a power cut, because only their number matters.
pub(super) fn options(scene: Scene, options: Options) -> Options {
    match scene {
        Scene::ManyKeyspaces | Scene::OpenTransactions => {
            options.durability(plimsoll::Durability::Buffered)
        }
        _ => options,
    }
}
