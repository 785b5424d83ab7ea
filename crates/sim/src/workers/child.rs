//! A worker: one of several processes that share a store.
//!
//! It prints `found COUNT` at its start, and `did COUNT` for each acknowledged transfer. After some
//! of them it puts a row many times without reading, so that these commits stay unapplied in the
//! log ([`BURST_EVERY`]), and prints `burst`. It exits when its input is closed.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll::{Db, Error, Keyspace, Result, Snapshot};
use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::random::Random;

use crate::content::Content;
use crate::workers::points::EndState;
use crate::workers::{leave, listen_for_the_end, open_among_others};

/// Number of accounts, and the initial balance of each.
pub(crate) const ACCOUNTS: u64 = 40;
pub(crate) const OPENING_BALANCE: u64 = 1000;

/// Transfers between two sums.
const SUM_EVERY: u64 = 25;

/// Transfers between two bursts, and puts of a burst; enough puts that a process stops applying its
/// own commits.
const BURST_EVERY: u64 = 16;
const BURST: u64 = 20;

fn account(number: u64) -> String {
    format!("account/{number:03}")
}

fn number_in(value: Option<&[u8]>) -> u64 {
    value.and_then(|value| value.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// The count of a worker's transfers in a snapshot.
pub(crate) fn count_of(snapshot: &Snapshot, space: &Keyspace, worker: u64) -> Result<u64> {
    Ok(number_in(snapshot.get(space, format!("count/{worker}"))?.as_deref()))
}

/// The sum of all accounts in a snapshot.
pub(crate) fn sum(snapshot: &Snapshot, space: &Keyspace) -> Result<u64> {
    let mut sum = 0;
    for row in snapshot.prefix(space, "account/")? {
        sum += number_in(Some(&row?.1));
    }
    Ok(sum)
}

/// Checks the row of a worker's bursts against the count of its transfers, in one snapshot. A burst
/// ends before the next transfer begins.
pub(crate) fn burst_fits(
    snapshot: &Snapshot,
    space: &Keyspace,
    worker: u64,
) -> Result<std::result::Result<(), String>> {
    let count = count_of(snapshot, space, worker)?;
    let found = number_in(snapshot.get(space, format!("burst/{worker}"))?.as_deref());
    let whole = |count: u64| if count < BURST_EVERY { 0 } else { count / BURST_EVERY * BURST };
    // The burst after the last transfer may be incomplete.
    let least = whole(count.saturating_sub(1));
    let is_right = (least..=whole(count)).contains(&found);
    Ok(if is_right {
        Ok(())
    } else {
        Err(format!("worker {worker} has {count} transfers and {found} puts of bursts"))
    })
}

/// Puts a row many times without reading.
fn burst(db: &Db, space: &Keyspace, worker: u64, count: u64) -> Result<()> {
    let before = (count / BURST_EVERY - 1) * BURST;
    for put in before + 1..=before + BURST {
        db.put(space, format!("burst/{worker}"), put.to_le_bytes())?;
    }
    Ok(())
}

/// The value that a worker puts together with its count: usually small, at times too large for a
/// run, a record or a buffer.
fn beside(worker: u64, count: u64) -> Content {
    let bytes = match count % 32 {
        7 => 2_000,
        15 => 70_000,
        31 => 300_000,
        _ => 40,
    };
    Content { bytes, seed: (worker * 1_000_000 + count) as u32 }
}

/// Works until its input is closed.
///
/// # Errors
/// Any error of the store, or a wrong answer.
pub fn live(
    store: &Path,
    worker: u64,
    end_state: Option<&Arc<EndState>>,
) -> std::result::Result<(), String> {
    let over = listen_for_the_end()?;
    let db = open_among_others(store, end_state)?;
    work(&db, worker, &over).map_err(|error| format!("{error} [{error:?}]"))??;
    leave(db, end_state)
}

fn work(db: &Db, worker: u64, over: &AtomicBool) -> Result<std::result::Result<(), String>> {
    let space = db.keyspace("bank")?;
    open_accounts(db, &space)?;
    let mut random = Random::new(SystemClock::new().wall_micros() ^ worker);
    let mut count = count_of(&db.snapshot(), &space, worker)?;
    print(&format!("found {count}\n"));
    let key = format!("beside/{worker}");
    loop {
        let found = db.get(&space, &key)?;
        let is_right = match &found {
            None => count == 0,
            Some(found) => beside(worker, count).is(found),
        };
        if !is_right {
            let bytes = found.map_or(0, |found| found.len());
            return Ok(Err(format!(
                "the value of transfer {count} belongs to another one: {bytes} bytes"
            )));
        }
        if over.load(Ordering::Acquire) {
            return Ok(Ok(()));
        }
        // The previous worker may have died within it.
        if count > 0 && count.is_multiple_of(BURST_EVERY) {
            burst(db, &space, worker, count)?;
            print("burst\n");
        }
        count += 1;
        transfer(db, &space, worker, count, &mut random)?;
        print(&format!("did {count}\n"));
        if count.is_multiple_of(SUM_EVERY) {
            let sum = sum(&db.snapshot(), &space)?;
            if sum != ACCOUNTS * OPENING_BALANCE {
                return Ok(Err(format!("the accounts sum up to {sum}")));
            }
            let snapshot = db.snapshot();
            for other in 0..=worker {
                if let Err(wrong) = burst_fits(&snapshot, &space, other)? {
                    return Ok(Err(wrong));
                }
            }
        }
    }
}

fn print(line: &str) {
    // Without a parent, nobody reads the output.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}

/// The first worker sets the balances; concurrent attempts conflict.
fn open_accounts(db: &Db, space: &Keyspace) -> Result<()> {
    retry(db, |tx| {
        if tx.get(space, account(0))?.is_none() {
            for number in 0..ACCOUNTS {
                tx.put(space, account(number), OPENING_BALANCE.to_le_bytes())?;
            }
        }
        Ok(())
    })
}

fn transfer(db: &Db, space: &Keyspace, worker: u64, count: u64, random: &mut Random) -> Result<()> {
    let (from, to) = (account(random.below(ACCOUNTS)), account(random.below(ACCOUNTS)));
    let wanted = random.below(100);
    let value = beside(worker, count).make();
    retry(db, |tx| {
        let has = number_in(tx.get(space, &from)?.as_deref());
        let amount = wanted.min(has);
        tx.put(space, &from, (has - amount).to_le_bytes())?;
        let has = number_in(tx.get(space, &to)?.as_deref());
        tx.put(space, &to, (has + amount).to_le_bytes())?;
        tx.put(space, format!("count/{worker}"), count.to_le_bytes())?;
        tx.put(space, format!("beside/{worker}"), &value)
    })
}

fn retry(db: &Db, mut change: impl FnMut(&mut plimsoll::Transaction) -> Result<()>) -> Result<()> {
    loop {
        match db.transact(&mut change) {
            Err(Error::Conflict { .. }) => {}
            done => return done,
        }
    }
}
