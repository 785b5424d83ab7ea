//! Many snapshots open at once while writers continue: each must read as of its own moment.

use anyhow::{Result, ensure};
use plimsoll::{Db, Snapshot};

/// Keys; one of them changes between any two snapshots.
const KEYS: u64 = 1000;

/// Opens `count` snapshots, one after each commit, keeps them all, and reads the key written last
/// in each of them.
pub(super) fn hold(db: &Db, count: u64) -> Result<()> {
    let keyspace = db.keyspace("snapshots")?;
    let mut snapshots: Vec<Snapshot> = Vec::with_capacity(usize::try_from(count)?);
    for number in 0..count {
        let mut transaction = db.begin();
        transaction.put(&keyspace, &(number % KEYS).to_be_bytes(), &value_of(number))?;
        transaction.commit()?;
        snapshots.push(db.snapshot());
    }
    for (number, snapshot) in (0_u64..).zip(&snapshots) {
        for other in [number, number.saturating_sub(KEYS / 2)] {
            let found = snapshot.get(&keyspace, &(other % KEYS).to_be_bytes())?;
            ensure!(
                found.is_some_and(|value| *value == value_of(other)),
                "snapshot {number} has not write {other}"
            );
        }
        let next = snapshot.get(&keyspace, &((number + 1) % KEYS).to_be_bytes())?;
        let before = (number + 1).checked_sub(KEYS).map(value_of);
        ensure!(
            next.as_deref() == before.as_ref().map(|value| &value[..]),
            "snapshot {number} sees a later write"
        );
    }
    Ok(())
}

fn value_of(number: u64) -> [u8; 100] {
    let mut value = [0; 100];
    crate::payload::fill(number, &mut value);
    value
}
