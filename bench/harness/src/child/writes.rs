//! Random writes, including unfinished ones: the process kills itself in the middle, and another
//! opens the store.

use anyhow::{Result, bail, ensure};
use plimsoll::Db;
use rustix::process::{Signal, getpid, kill_process};

use crate::payload;

/// Bytes of a value.
const VALUE_BYTES: u64 = 1000;

/// Keys that are written; each is written many times.
const KEYS: u64 = 1 << 20;

/// Puts of a transaction.
const BATCH: u64 = 1000;

const KEYSPACE: &str = "writes";

/// Puts values of 1,000 B under random keys, until `bytes` of values are written.
pub(super) fn write(db: &Db, bytes: u64) -> Result<()> {
    let keyspace = db.keyspace(KEYSPACE)?;
    let mut value = vec![0; VALUE_BYTES as usize];
    let puts = bytes / VALUE_BYTES;
    for first in (0..puts).step_by(BATCH as usize) {
        let mut transaction = db.begin();
        for number in first..puts.min(first + BATCH) {
            payload::fill(number, &mut value);
            transaction.put(&keyspace, &key_of(number), &value)?;
        }
        transaction.commit()?;
    }
    Ok(())
}

/// Like `write`, followed by a transaction that is not committed before the process kills itself.
pub(super) fn write_and_be_killed(db: &Db, bytes: u64) -> Result<()> {
    write(db, bytes)?;
    let keyspace = db.keyspace(KEYSPACE)?;
    let mut transaction = db.begin();
    transaction.put(&keyspace, b"not committed", b"")?;
    kill_process(getpid(), Signal::KILL)?;
    bail!("the process survived its own kill")
}

/// Checks the writes acknowledged before the kill: all of them must exist, and nothing else.
pub(super) fn check(db: &Db, bytes: u64) -> Result<()> {
    let keyspace = db.keyspace(KEYSPACE)?;
    let snapshot = db.snapshot();
    ensure!(snapshot.get(&keyspace, b"not committed")?.is_none(), "an uncommitted write exists");
    let puts = bytes / VALUE_BYTES;
    let mut expected = vec![0; VALUE_BYTES as usize];
    // The last writes, which no newer one has replaced.
    let mut seen = std::collections::HashSet::new();
    for number in (puts.saturating_sub(10 * BATCH)..puts).rev() {
        if seen.insert(key_of(number)) {
            payload::fill(number, &mut expected);
            let found = snapshot.get(&keyspace, &key_of(number))?;
            ensure!(found.is_some_and(|value| *value == *expected), "write {number} is missing");
        }
    }
    Ok(())
}

fn key_of(number: u64) -> [u8; 8] {
    payload::mix(payload::mix(number) % KEYS).to_be_bytes()
}
