//! Eight threads move money between accounts; conflicts are run again; the sum never changes:
//! `cargo run --release -p plimsoll --example bank_transfer [FOLDER]`

use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll::{Db, Keyspace, Options, Result, Transaction};

const ACCOUNTS: u64 = 20;
const START: i64 = 1000;
const TELLERS: u64 = 8;
const TRANSFERS: u64 = 400;

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "bank.plimsoll".into());
    let db = Db::open(&folder, Options::new().memory_bytes(64 << 20))?;
    let accounts = db.keyspace("accounts")?;

    db.transact(|tx| -> Result<_> {
        (0..ACCOUNTS)
            .try_for_each(|account| tx.put(&accounts, account.to_be_bytes(), START.to_le_bytes()))
    })?;

    let attempts = AtomicU64::new(0);
    std::thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..TELLERS)
            .map(|thread| {
                scope.spawn({
                    let (db, accounts, attempts) = (&db, &accounts, &attempts);
                    move || teller(db, accounts, thread, attempts)
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a teller does not panic"))
    })?;

    let snapshot = db.snapshot();
    let mut sum = 0;
    for item in snapshot.iter(&accounts)? {
        sum += amount(&item?.1);
    }
    println!(
        "{TRANSFERS} transfers took {} attempts; the sum is {sum}",
        attempts.load(Ordering::Relaxed)
    );
    assert_eq!(sum, ACCOUNTS as i64 * START);
    db.close()
}

fn teller(db: &Db, accounts: &Keyspace, thread: u64, attempts: &AtomicU64) -> Result<()> {
    for i in 0..TRANSFERS / TELLERS {
        let (from, to) = ((thread * 7 + i) % ACCOUNTS, (thread * 3 + i * 5 + 1) % ACCOUNTS);
        db.transact(|tx| -> Result<_> {
            attempts.fetch_add(1, Ordering::Relaxed);
            transfer(tx, accounts, from, to, 10)
        })?;
    }
    Ok(())
}

fn transfer(tx: &mut Transaction, accounts: &Keyspace, from: u64, to: u64, sum: i64) -> Result<()> {
    if from == to {
        return Ok(());
    }
    for (account, change) in [(from, -sum), (to, sum)] {
        let balance = tx.get(accounts, account.to_be_bytes())?.map_or(0, |value| amount(&value));
        tx.put(accounts, account.to_be_bytes(), (balance + change).to_le_bytes())?;
    }
    Ok(())
}

fn amount(value: &[u8]) -> i64 {
    i64::from_le_bytes(value.try_into().expect("an amount has eight bytes"))
}
