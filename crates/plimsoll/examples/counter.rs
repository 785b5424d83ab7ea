//! Eight threads increment one durable counter, by `add` and by a transaction with get and put;
//! prints both rates and their ratio.
//!
//! ```text
//! cargo run --release --example counter [SECONDS]
//! ```
#![allow(clippy::disallowed_methods, reason = "this example measures the time that passes")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll::{Db, Keyspace, Options, Overflow, Result};

const THREADS: usize = 8;

fn main() -> Result<()> {
    let seconds = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(3);
    // In the working folder: the temporary folder may be in memory.
    let dir = tempfile::tempdir_in(".").expect("the working folder is writable");
    let db = Db::open(dir.path().join("store"), Options::new().memory_bytes(64 << 20))?;
    let counters = db.keyspace("counters")?;
    let by_transact = rate(seconds, || transact(&db, &counters));
    let by_add = rate(seconds, || db.add(&counters, "n", 1, Overflow::Checked).map(drop));
    println!("transact with get and put: {by_transact:.0} increments a second");
    println!("add: {by_add:.0} increments a second, {:.1} times as many", by_add / by_transact);
    db.close()
}

fn transact(db: &Db, counters: &Keyspace) -> Result<()> {
    db.transact(|tx| {
        let before = tx.get(counters, "n")?.map_or(0, |value| {
            i64::from_le_bytes(value[..].try_into().expect("a number has 8 bytes"))
        });
        tx.put(counters, "n", (before + 1).to_le_bytes())
    })
}

/// Successful calls a second by all threads. A transaction may fail after many conflicts.
fn rate(seconds: u64, increment: impl Fn() -> Result<()> + Sync) -> f64 {
    let (done, begun) = (AtomicU64::new(0), Instant::now());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while begun.elapsed() < Duration::from_secs(seconds) {
                    if increment().is_ok() {
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    done.into_inner() as f64 / begun.elapsed().as_secs_f64()
}
