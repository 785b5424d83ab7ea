//! The child process of the stress test.
//!
//! Writers move money between accounts, count their commits, and give values to the keys of a
//! second keyspace; they print acknowledged commits (`ack WRITER NUMBER`). Readers sum the accounts
//! and read values, twice each; scanners scan all values; travellers hold snapshots of the past; a
//! compactor flushes, compacts, verifies and drops caches. Another thread changes the budget
//! continuously and prints it (`budget BYTES MICROS`, with the start time by the wall clock). Two
//! threads put pressure on the memory limit ([`crowd`]). On a failure, the process prints `failed
//! ...` and exits.

mod crowd;

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use plimsoll::{
    Db, Error, Keyspace, MIN_MEMORY_BYTES, Moment, Options, Retention, Snapshot, Transaction,
};
use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::random::Random;
use plimsoll_disk::thread::spawn;

use crate::content::Content;
use crate::failure::{Failure, Outcome, ensure, same};

/// Writer threads.
pub const WRITERS: u64 = 4;

/// All threads, without the store's own.
pub const THREADS: u64 = WRITERS + 9;

/// Accounts.
pub const ACCOUNTS: u64 = 32;

/// The initial balance of each account.
pub const OPENING_BALANCE: u64 = 1000;

/// Upper bound on the bytes of values that a thread holds at once: two of the longest, in three
/// copies.
pub const VALUES_BYTES_MAX: u64 = 6 * VALUE_BYTES_MAX as u64;

/// Upper bound on the bytes of the open transactions of one thread.
pub const HELD_BYTES_MAX: u64 = crowd::HELD_BYTES_MAX;

const VALUE_BYTES_MAX: u32 = 72 << 10;

/// Keys of each writer that get values; their values exceed the budget.
const KEYS: u64 = 3000;

/// Retention of the accounts, in GLSNs.
const PAST: u64 = 5000;

/// The number of GLSNs back that travellers read. It is less than [`PAST`], because time passes
/// between reading the newest GLSN and opening the snapshot.
const TRAVELLED: u64 = 3000;

/// Bytes before a value's content: its length and seed.
const HEAD_BYTES: usize = 8;

/// Counters, by name.
const COUNTS: [&str; 12] = [
    "commits",
    "conflicts",
    "out-of-budget",
    "sums",
    "values-read",
    "walks",
    "travels",
    "compactions",
    "budgets",
    "large-values",
    "held-walks",
    "held-transactions",
];

struct Shared {
    db: Db,
    accounts: Keyspace,
    values: Keyspace,
    crowd: Keyspace,
    memory_bytes_max: u64,
    over: AtomicBool,
    counts: [AtomicU64; COUNTS.len()],
    clock: SystemClock,
}

type Work = fn(&Shared, u64, &mut Random) -> Outcome;

/// Runs until its input ends, or until it is killed; returns whether all checks passed.
///
/// # Errors
/// The store does not open, or does not close.
pub fn live(store: &Path, seed: u64, memory_bytes_max: u64) -> Result<bool, Error> {
    let memory_bytes = memory_bytes_max.max(MIN_MEMORY_BYTES);
    say_budget(memory_bytes, &SystemClock::new());
    let db = Db::open(store, Options::new().memory_bytes(memory_bytes).segment_bytes(4 << 20))?;
    let accounts = db.create_keyspace("accounts", Retention::Glsns(PAST))?;
    let values = db.create_keyspace("values", Retention::Latest)?;
    let crowd = db.create_keyspace("crowd", Retention::Latest)?;
    open_accounts(&db, &accounts)?;
    let shared = Arc::new(Shared {
        db,
        accounts,
        values,
        crowd,
        memory_bytes_max: memory_bytes,
        over: AtomicBool::new(false),
        counts: Default::default(),
        clock: SystemClock::new(),
    });
    let writers = (0..WRITERS).map(|number| ("writer", number, write as Work));
    let others: [(&str, u64, Work); 8] = [
        ("reader", 0, read),
        ("reader", 1, read),
        ("scanner", 0, scan),
        ("traveller", 0, travel),
        ("compactor", 0, compact),
        ("budget", 0, change_budget),
        ("large", 0, crowd::large),
        ("holder", 0, crowd::hold),
    ];
    let mut threads = Vec::new();
    for (name, number, work) in writers.chain(others) {
        let shared = Arc::clone(&shared);
        let random = Random::new(seed.wrapping_mul(64).wrapping_add(threads.len() as u64));
        threads.push(spawn(name, move || shared.repeat(name, number, work, random))?);
    }
    let input = Arc::clone(&shared);
    // Do not join this thread: it ends with the input or with the process.
    drop(spawn("input", move || {
        let _ = std::io::stdin().read(&mut [0]);
        input.over.store(true, Ordering::Relaxed);
    })?);
    // Join all of them, whatever the result of the first.
    let well: Vec<bool> =
        threads.into_iter().map(|thread| thread.join().unwrap_or(false)).collect();
    let all_well = well.iter().all(|well| *well);
    for (name, count) in COUNTS.iter().zip(&shared.counts) {
        say(&format!("count {name} {}", count.load(Ordering::Relaxed)));
    }
    let Some(shared) = Arc::into_inner(shared) else { return Ok(all_well) };
    shared.db.close()?;
    Ok(all_well)
}

fn say(line: &str) {
    // One write per line. Without a parent, the output is lost.
    let _ = std::io::stdout().lock().write_all(format!("{line}\n").as_bytes());
}

fn say_budget(bytes: u64, clock: &SystemClock) {
    say(&format!("budget {bytes} {}", clock.wall_micros()));
}

impl Shared {
    fn repeat(&self, name: &str, number: u64, work: Work, mut random: Random) -> bool {
        while !self.over.load(Ordering::Relaxed) {
            if let Err(failure) = work(self, number, &mut random) {
                say(&format!(
                    "failed {name} {number}: {}",
                    failure.to_string().replace('\n', " | ")
                ));
                self.over.store(true, Ordering::Relaxed);
                return false;
            }
        }
        true
    }

    fn count(&self, name: &str) {
        if let Some(at) = COUNTS.iter().position(|known| *known == name) {
            self.counts[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Conflicts, and refusals by a small budget, are retried. Any other error is a failure.
    fn unless_refused<T>(&self, what: &str, answer: Result<T, Error>) -> Outcome<Option<T>> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(Error::Conflict { .. }) => {
                self.count("conflicts");
                Ok(None)
            }
            Err(Error::OutOfBudget(_)) => {
                self.count("out-of-budget");
                Ok(None)
            }
            Err(error) => Err(Failure::new(format!("{what}: {error} [{error:?}]"))),
        }
    }

    fn pause(&self, random: &mut Random, millis_max: u64) {
        self.clock.sleep(Duration::from_millis(1 + random.below(millis_max)));
    }
}

fn number_key(writer: u64) -> String {
    format!("number/{writer}")
}

fn account_key(account: u64) -> String {
    format!("account/{account:03}")
}

fn value_key(writer: u64, number: u64) -> String {
    format!("{writer}/{number:05}")
}

fn number_in(value: Option<&[u8]>) -> u64 {
    value.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// The number of commits of a writer.
///
/// # Errors
/// Any error of the store.
pub fn number_of(snapshot: &Snapshot, accounts: &Keyspace, writer: u64) -> Result<u64, Error> {
    let value = snapshot.get(accounts, number_key(writer).as_bytes())?;
    Ok(number_in(value.as_deref()))
}

/// The sum of all accounts; `None` before they were opened.
///
/// # Errors
/// Any error of the store.
pub fn is_balanced(snapshot: &Snapshot, accounts: &Keyspace) -> Result<Option<u64>, Error> {
    let (mut sum, mut count) = (0, 0);
    let mut range = snapshot.prefix(accounts, b"account/")?;
    while let Some((_, value)) = range.advance()? {
        sum += number_in(Some(value));
        count += 1;
    }
    Ok((count > 0).then_some(sum))
}

fn open_accounts(db: &Db, accounts: &Keyspace) -> Result<(), Error> {
    let mut tx = db.begin();
    if tx.contains_key(accounts, account_key(0).as_bytes())? {
        return Ok(());
    }
    for account in 0..ACCOUNTS {
        tx.put(accounts, account_key(account).as_bytes(), &OPENING_BALANCE.to_le_bytes())?;
    }
    tx.commit().map(drop)
}

/// One transaction: a transfer, the writer's number, some values; occasionally large enough to
/// spill.
fn write(shared: &Shared, writer: u64, random: &mut Random) -> Outcome {
    let mut tx = shared.db.begin();
    let count = if random.below(400) == 0 { 60 } else { random.below(4) };
    let written = fill(shared, &mut tx, writer, count, random);
    let Some(number) = shared.unless_refused("a write", written)? else { return Ok(()) };
    if shared.unless_refused("a commit", tx.commit())?.is_some() {
        say(&format!("ack {writer} {number}"));
        shared.count("commits");
    }
    Ok(())
}

fn fill(
    shared: &Shared,
    tx: &mut Transaction,
    writer: u64,
    count: u64,
    random: &mut Random,
) -> Result<u64, Error> {
    let read = |tx: &Transaction, key: &str| {
        Ok::<u64, Error>(number_in(tx.get(&shared.accounts, key.as_bytes())?.as_deref()))
    };
    let (from, to) = (account_key(random.below(ACCOUNTS)), account_key(random.below(ACCOUNTS)));
    let (has, gets) = (read(tx, &from)?, read(tx, &to)?);
    let amount = random.below(has.min(50) + 1);
    if from != to {
        tx.put(&shared.accounts, from.as_bytes(), &(has - amount).to_le_bytes())?;
        tx.put(&shared.accounts, to.as_bytes(), &(gets + amount).to_le_bytes())?;
    }
    let number = read(tx, &number_key(writer))? + 1;
    tx.put(&shared.accounts, number_key(writer).as_bytes(), &number.to_le_bytes())?;
    for _ in 0..count {
        let key = value_key(writer, random.below(KEYS));
        if random.chance(0.1) {
            tx.delete(&shared.values, key.as_bytes())?;
        } else {
            tx.put(&shared.values, key.as_bytes(), &make_value(random))?;
        }
    }
    Ok(number)
}

fn make_value(random: &mut Random) -> Vec<u8> {
    let most = [200, 200, 2000, 8000, u64::from(VALUE_BYTES_MAX) - HEAD_BYTES as u64]
        [random.below(5) as usize];
    let content = Content { bytes: random.below(most) as u32, seed: random.next_u64() as u32 };
    let mut bytes = Vec::with_capacity(HEAD_BYTES + content.bytes as usize);
    bytes.extend_from_slice(&content.bytes.to_le_bytes());
    bytes.extend_from_slice(&content.seed.to_le_bytes());
    bytes.extend_from_slice(&content.make());
    bytes
}

fn check_value(key: &[u8], value: &[u8]) -> Outcome {
    let word = |at: usize| {
        value.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_le_bytes)
    };
    let whole = match (word(0), word(4)) {
        (Some(bytes), Some(seed)) => Content { bytes, seed }.is(&value[HEAD_BYTES..]),
        _ => false,
    };
    ensure(whole, || {
        format!("the {} bytes of {} do not match their header", value.len(), key.escape_ascii())
    })
}

/// The accounts of a snapshot, twice, and some values.
fn read(shared: &Shared, _: u64, random: &mut Random) -> Outcome {
    let snapshot = shared.db.snapshot();
    let sum = |snapshot: &Snapshot| {
        shared.unless_refused("a sum", is_balanced(snapshot, &shared.accounts))
    };
    let before = sum(&snapshot)?;
    for _ in 0..20 {
        let key = value_key(random.below(WRITERS), random.below(KEYS));
        let get = || shared.unless_refused("a read", snapshot.get(&shared.values, key.as_bytes()));
        let (Some(first), Some(again)) = (get()?, get()?) else { continue };
        same(
            format!("{key} at {}, read twice", snapshot.at()),
            &first.as_deref(),
            &again.as_deref(),
        )?;
        first.as_deref().map_or(Ok(()), |value| check_value(key.as_bytes(), value))?;
        shared.count("values-read");
    }
    let after = sum(&snapshot)?;
    if let (Some(before), Some(after)) = (before, after) {
        same(
            format!("the money at {}", snapshot.at()),
            &before,
            &Some(ACCOUNTS * OPENING_BALANCE),
        )?;
        same(format!("the money at {}, summed twice", snapshot.at()), &after, &before)?;
        shared.count("sums");
    }
    Ok(())
}

/// All values of a snapshot, in order.
fn scan(shared: &Shared, _: u64, random: &mut Random) -> Outcome {
    let snapshot = shared.db.snapshot();
    let reverse = random.chance(0.5);
    let Some(range) = shared.unless_refused("a walk", snapshot.prefix(&shared.values, b""))? else {
        return Ok(());
    };
    let mut range = if reverse { range.reverse() } else { range };
    let mut last: Option<Vec<u8>> = None;
    while !shared.over.load(Ordering::Relaxed) {
        let Some(item) = shared.unless_refused("a walk", range.advance())? else { return Ok(()) };
        let Some((key, value)) = item else { break };
        check_value(key, value)?;
        let in_order =
            last.as_deref().is_none_or(|last| if reverse { key < last } else { key > last });
        ensure(in_order, || format!("{} comes behind {:?}", key.escape_ascii(), last))?;
        last = Some(key.to_vec());
    }
    shared.count("walks");
    Ok(())
}

/// Snapshots of the past, held for a while.
fn travel(shared: &Shared, _: u64, random: &mut Random) -> Outcome {
    let newest = shared.db.newest();
    let mut held = Vec::new();
    for _ in 0..3 {
        let at = newest.saturating_sub(random.below(TRAVELLED));
        held.push(match shared.db.snapshot_at(Moment::Glsn(at)) {
            Ok(snapshot) => snapshot,
            answer => match shared.unless_refused("a snapshot of the past", answer)? {
                Some(snapshot) => snapshot,
                None => return Ok(()),
            },
        });
    }
    for _ in 0..3 {
        for snapshot in &held {
            let sum = match is_balanced(snapshot, &shared.accounts) {
                // Writers advanced beyond the retention between reading the newest GLSN and opening
                // the snapshot.
                Err(Error::Trimmed { asked, .. }) if shared.db.newest() > asked + PAST => continue,
                answer => shared.unless_refused("a sum of the past", answer)?,
            };
            if let Some(Some(sum)) = sum {
                same(
                    format!("the money at {}", snapshot.at()),
                    &sum,
                    &(ACCOUNTS * OPENING_BALANCE),
                )?;
                shared.count("travels");
            }
        }
        shared.pause(random, 50);
    }
    Ok(())
}

/// Work that usually runs in the background.
fn compact(shared: &Shared, _: u64, random: &mut Random) -> Outcome {
    shared.pause(random, 700);
    let db = &shared.db;
    let done = match random.below(10) {
        0..3 => db.flush(),
        3..6 => db.compact(),
        6 => db.verify(&mut |_| {}).and_then(|report| match &report.problems[..] {
            [] => Ok(()),
            problems
                if problems
                    .iter()
                    .all(|problem| problem.ends_with("rebuilt when it is needed")) =>
            {
                Ok(())
            }
            problems => Err(Error::Corrupt {
                file: None,
                glsn: None,
                message: format!("verify: {problems:?}"),
            }),
        }),
        _ => {
            db.drop_caches();
            Ok(())
        }
    };
    if shared.unless_refused("compaction", done)?.is_some() {
        shared.count("compactions");
    }
    Ok(())
}

/// Changes the budget; prints it before it grows and after it has shrunk.
fn change_budget(shared: &Shared, _: u64, random: &mut Random) -> Outcome {
    shared.pause(random, 1500);
    let before = shared.db.stats().memory.limit_bytes;
    let spread = shared.memory_bytes_max.saturating_sub(MIN_MEMORY_BYTES);
    let wanted = if random.chance(0.3) {
        MIN_MEMORY_BYTES
    } else {
        MIN_MEMORY_BYTES + random.below(spread + 1)
    };
    say_budget(before.max(wanted), &shared.clock);
    let set = shared.unless_refused("set_memory", shared.db.set_memory(wanted))?;
    let memory = shared.db.stats().memory;
    ensure(memory.peak_bytes <= memory.limit_bytes, || {
        format!("held {} of {}", memory.peak_bytes, memory.limit_bytes)
    })?;
    say_budget(memory.limit_bytes, &shared.clock);
    if set.is_some() {
        shared.count("budgets");
    }
    Ok(())
}
