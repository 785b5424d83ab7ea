//! The process that is killed.
//!
//! Each thread commits transactions one by one. Transaction n writes n under the thread's number, a
//! value derived from n under two more keys, and n into a list from which it removes n - [`KEPT`];
//! then the thread appends n to its stream. The child prints each acknowledged commit as a line
//! `THREAD NUMBER GLSN`, singly or with the others of a sync.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use plimsoll::{Db, Durability, Keyspace, Result};
use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::mutex::lock;
use plimsoll_disk::thread::spawn;

use crate::content::Content;
use crate::kill::{Scenario, backup_path, options};

/// Threads that write.
pub const THREADS: u64 = 4;

/// The number of entries in the list.
pub const KEPT: u64 = 20;

/// Buffered commits of a thread between two syncs.
pub const SYNC_EACH: u64 = 16;

/// A child without a parent exits by itself.
const LIFE_MAX: Duration = Duration::from_secs(60);

pub(crate) fn number_key(thread: u64) -> String {
    format!("{thread}/number")
}

pub(crate) fn pair_keys(thread: u64) -> [String; 2] {
    [format!("{thread}/pair/a"), format!("{thread}/pair/b")]
}

pub(crate) fn listed_key(thread: u64, number: u64) -> String {
    format!("{thread}/list/{number:08}")
}

/// Usually small; occasionally too large for a run, a record or a buffer.
pub(crate) fn large_value(thread: u64, number: u64) -> Content {
    let bytes = match number % 16 {
        3 => 2_000,
        7 => 70_000,
        15 if number % 64 == 15 => 300_000,
        _ => 40,
    };
    Content { bytes, seed: (thread * 1_000_000 + number) as u32 }
}

/// Writes until it is killed.
///
/// # Errors
/// Any error of the store; none is expected.
pub fn live(scenario: Scenario, store: &Path) -> Result<()> {
    let durability =
        if scenario == Scenario::Buffered { Durability::Buffered } else { Durability::Sync };
    let db = Db::open(store, options().durability(durability))?;
    let keyspace = db.keyspace("work")?;
    let failed = Arc::new(std::sync::Mutex::new(None));
    for thread in 0..THREADS {
        let (db, keyspace, failed) = (db.clone(), keyspace.clone(), Arc::clone(&failed));
        let started = spawn("writer", move || {
            if let Err(error) = write(&db, &keyspace, thread, durability) {
                *lock(&failed) = Some(error);
            }
        });
        started?;
    }
    let clock = SystemClock::new();
    let mut backups = 0;
    while clock.monotonic_nanos() < LIFE_MAX.as_nanos() as u64 {
        match scenario {
            Scenario::Compact => db.compact()?,
            Scenario::Backup => {
                db.backup(backup_path(store, backups))?;
                backups += 1;
            }
            Scenario::Trim => {
                clock.sleep(Duration::from_millis(20));
                db.flush()?;
                db.log().trim(db.newest())?;
            }
            Scenario::Write | Scenario::Create | Scenario::Buffered => {
                clock.sleep(Duration::from_millis(5))
            }
        }
        if let Some(error) = lock(&failed).take() {
            return Err(error);
        }
    }
    Ok(())
}

fn write(db: &Db, keyspace: &Keyspace, thread: u64, durability: Durability) -> Result<()> {
    let number = db.snapshot().get(keyspace, number_key(thread).as_bytes())?;
    let mut number: u64 =
        number.and_then(|value| String::from_utf8_lossy(&value).parse().ok()).unwrap_or(0);
    complete_stream(db, thread, number)?;
    let mut lines = String::new();
    loop {
        number += 1;
        let glsn = commit(db, keyspace, thread, number)?;
        lines.push_str(&format!("{thread} {number} {glsn}\n"));
        let is_durable = match durability {
            Durability::Sync => true,
            Durability::Buffered if number.is_multiple_of(SYNC_EACH) => db.sync().map(|_| true)?,
            Durability::Buffered => false,
        };
        if is_durable {
            std::io::stdout().lock().write_all(lines.as_bytes())?;
            lines.clear();
        }
        db.log().append(thread as u32 + 1, &[number.to_string().as_bytes()])?;
    }
}

fn commit(db: &Db, keyspace: &Keyspace, thread: u64, number: u64) -> Result<u64> {
    let mut tx = db.begin();
    tx.put(keyspace, number_key(thread).as_bytes(), number.to_string().as_bytes())?;
    let value = large_value(thread, number).make();
    for key in pair_keys(thread) {
        tx.put(keyspace, key.as_bytes(), &value)?;
    }
    tx.put(keyspace, listed_key(thread, number).as_bytes(), b"")?;
    if let Some(gone) = number.checked_sub(KEPT).filter(|gone| *gone > 0) {
        tx.delete(keyspace, listed_key(thread, gone).as_bytes())?;
    }
    Ok(tx.commit()?.0)
}

/// The last child may have died between a commit and its append.
fn complete_stream(db: &Db, thread: u64, number: u64) -> Result<()> {
    let mut scan = db.log().scan(.., Some(thread as u32 + 1))?;
    let mut count = 0;
    while let Some(entry) = scan.next() {
        entry?;
        count += 1;
    }
    drop(scan);
    if count < number {
        db.log().append(thread as u32 + 1, &[number.to_string().as_bytes()])?;
    }
    Ok(())
}
