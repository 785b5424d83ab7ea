//! Eight threads move money between accounts; conflicts are run again; the sum never changes:
//! `cargo run --release -p plimsoll --example bank_transfer [FOLDER]`

use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll::{Db, Error, Keyspace, Options, Result};

const ACCOUNTS: u64 = 20;
const START: i64 = 1000;

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "bank.plimsoll".into());
    let db = Db::open(&folder, Options::new().memory_bytes(64 << 20))?;
    let accounts = db.keyspace("accounts")?;

    let mut tx = db.begin();
    for account in 0..ACCOUNTS {
        tx.put(&accounts, &account.to_be_bytes(), &START.to_le_bytes())?;
    }
    tx.commit()?;

    let conflicts = AtomicU64::new(0);
    std::thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                scope.spawn({
                    let (db, accounts, conflicts) = (&db, &accounts, &conflicts);
                    move || teller(db, accounts, thread, conflicts)
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a teller does not panic"))
    })?;

    let snapshot = db.snapshot();
    let mut sum = 0;
    for item in snapshot.range(&accounts, ..)? {
        sum += amount(&item?.1);
    }
    println!("{} transfers met a conflict and were run again; the sum is {sum}", conflicts.load(Ordering::Relaxed));
    assert_eq!(sum, ACCOUNTS as i64 * START);
    db.close()
}

fn teller(db: &Db, accounts: &Keyspace, thread: u64, conflicts: &AtomicU64) -> Result<()> {
    for i in 0..50u64 {
        let (from, to) = ((thread * 7 + i) % ACCOUNTS, (thread * 3 + i * 5 + 1) % ACCOUNTS);
        loop {
            match transfer(db, accounts, from, to, 10) {
                Err(Error::Conflict { .. }) => conflicts.fetch_add(1, Ordering::Relaxed),
                Err(error) => return Err(error),
                Ok(()) => break,
            };
        }
    }
    Ok(())
}

fn transfer(db: &Db, accounts: &Keyspace, from: u64, to: u64, sum: i64) -> Result<()> {
    if from == to {
        return Ok(());
    }
    let mut tx = db.begin();
    for (account, change) in [(from, -sum), (to, sum)] {
        let balance = tx.get(accounts, &account.to_be_bytes())?.map_or(0, |value| amount(&value));
        tx.put(accounts, &account.to_be_bytes(), &(balance + change).to_le_bytes())?;
    }
    tx.commit()?;
    Ok(())
}

fn amount(value: &[u8]) -> i64 {
    i64::from_le_bytes(value.try_into().expect("an amount has eight bytes"))
}
