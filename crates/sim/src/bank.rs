//! Serializability test: many concurrent threads, whose history must be serializable.
//!
//! Every value carries a unique *stamp*, and every transaction records in its metadata which stamps
//! it read and wrote. The log is then replayed in GLSN order: each transaction must have read
//! exactly the values that the earlier transactions had written. The history is then serializable
//! in the log's order.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use plimsoll::{Db, Error, Glsn, Keyspace, Moment, Snapshot, Transaction};
use plimsoll_disk::random::Random;
use plimsoll_disk::thread::spawn;

use crate::failure::{Failure, Outcome, ensure, same};

/// The initial balance of each account.
const OPENING_BALANCE: u64 = 1000;

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BankReport {
    /// Transactions that were committed.
    pub commits: u64,
    /// Transactions that were retried after a conflict.
    pub conflicts: u64,
    /// Snapshots whose accounts were summed.
    pub audits: u64,
}

/// A value: an amount, and the write that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StampedAmount {
    amount: u64,
    stamp: u64,
}

impl StampedAmount {
    fn bytes(self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.amount.to_le_bytes());
        out[8..].copy_from_slice(&self.stamp.to_le_bytes());
        out
    }

    fn of(bytes: &[u8]) -> Outcome<Self> {
        let word = |at: usize| {
            bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map(u64::from_le_bytes)
        };
        match (word(0), word(8), bytes.len()) {
            (Some(amount), Some(stamp), 16) => Ok(Self { amount, stamp }),
            _ => Err(Failure::new(format!("a value of {} bytes is not an amount", bytes.len()))),
        }
    }
}

/// An error within a transaction.
enum TxError {
    Store(Error),
    Failure(Failure),
}

impl From<Error> for TxError {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<Failure> for TxError {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// A transaction that records its reads and writes.
struct RecordingTx<'a> {
    tx: Transaction,
    keyspace: &'a Keyspace,
    stamps: &'a AtomicU64,
    notes: String,
}

impl RecordingTx<'_> {
    fn read(&mut self, key: &str) -> Result<Option<StampedAmount>, TxError> {
        let value = self.tx.get(self.keyspace, key.as_bytes())?;
        let value = value.map(|bytes| StampedAmount::of(&bytes)).transpose()?;
        let _ = writeln!(self.notes, "r {key} {}", value.map_or(0, |value| value.stamp));
        Ok(value)
    }

    /// Reads every key that begins with `prefix`.
    fn read_all(&mut self, prefix: &str) -> Result<Vec<StampedAmount>, TxError> {
        let mut all = Vec::new();
        let _ = write!(self.notes, "a {prefix}");
        let mut range = self.tx.prefix(self.keyspace, prefix.as_bytes())?;
        while let Some((key, value)) = range.advance()? {
            let value = StampedAmount::of(value)?;
            let _ = write!(self.notes, " {}={}", String::from_utf8_lossy(key), value.stamp);
            all.push(value);
        }
        self.notes.push('\n');
        Ok(all)
    }

    fn write(&mut self, key: &str, amount: u64) -> Result<(), TxError> {
        let stamp = self.stamps.fetch_add(1, Ordering::Relaxed) + 1;
        let _ = writeln!(self.notes, "w {key} {stamp} {amount}");
        Ok(self.tx.put(self.keyspace, key.as_bytes(), &StampedAmount { amount, stamp }.bytes())?)
    }

    fn commit(mut self) -> Result<u64, TxError> {
        self.tx.set_metadata(self.notes.as_bytes())?;
        Ok(self.tx.commit()?.0)
    }
}

/// State shared by the threads.
struct Bank {
    db: Db,
    keyspace: Keyspace,
    stamps: AtomicU64,
    commits: AtomicU64,
    conflicts: AtomicU64,
    audits: AtomicU64,
    over: AtomicBool,
}

impl Bank {
    fn open(db: &Db, name: &str) -> Outcome<Arc<Self>> {
        let keyspace = db.keyspace(name).map_err(|error| Failure::new(error.to_string()))?;
        let zero = || AtomicU64::new(0);
        let (stamps, commits, conflicts, audits) = (zero(), zero(), zero(), zero());
        Ok(Arc::new(Self {
            db: db.clone(),
            keyspace,
            stamps,
            commits,
            conflicts,
            audits,
            over: AtomicBool::new(false),
        }))
    }

    /// Runs a transaction until it commits without a conflict.
    fn transact(
        &self,
        mut body: impl FnMut(&mut RecordingTx<'_>) -> Result<(), TxError>,
    ) -> Outcome {
        loop {
            let notes = String::new();
            let mut tx = RecordingTx {
                tx: self.db.begin(),
                keyspace: &self.keyspace,
                stamps: &self.stamps,
                notes,
            };
            let done = body(&mut tx).and_then(|()| tx.commit());
            match done {
                Ok(_) => {
                    self.commits.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                Err(TxError::Store(Error::Conflict { .. })) => {
                    self.conflicts.fetch_add(1, Ordering::Relaxed);
                }
                Err(TxError::Store(error)) => {
                    return Err(Failure::new(format!("a transaction failed: {error} [{error:?}]")));
                }
                Err(TxError::Failure(failure)) => return Err(failure),
            }
        }
    }

    fn report(&self) -> BankReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        BankReport {
            commits: read(&self.commits),
            conflicts: read(&self.conflicts),
            audits: read(&self.audits),
        }
    }

    fn snapshot_at(&self, glsn: u64) -> Outcome<Snapshot> {
        self.db
            .snapshot_at(Moment::Glsn(Glsn(glsn)))
            .map_err(|error| Failure::new(format!("snapshot at {glsn}: {error}")))
    }

    /// All amounts below a prefix as of a snapshot.
    fn amounts(&self, snapshot: &Snapshot, prefix: &str) -> Outcome<Vec<(Vec<u8>, StampedAmount)>> {
        let failed = |error: Error| Failure::new(format!("reading at {}: {error}", snapshot.at()));
        let range = snapshot.prefix(&self.keyspace, prefix.as_bytes()).map_err(failed)?;
        range
            .map(|item| {
                item.map_err(failed).and_then(|(key, value)| Ok((key, StampedAmount::of(&value)?)))
            })
            .collect()
    }
}

/// Runs `work` in this many threads, and `beside` in one more thread until they have ended.
fn in_threads(
    bank: &Arc<Bank>,
    threads: u64,
    work: fn(&Bank, u64) -> Outcome,
    beside: fn(&Bank, u64) -> Outcome,
) -> Outcome {
    let start = |name: &str, number: u64, body: fn(&Bank, u64) -> Outcome| {
        let bank = Arc::clone(bank);
        spawn(&format!("{name}{number}"), move || {
            let done = body(&bank, number);
            if done.is_err() {
                bank.over.store(true, Ordering::Relaxed);
            }
            done
        })
        .map_err(|error| Failure::new(format!("cannot start a thread: {error}")))
    };
    let workers: Vec<_> =
        (0..threads).map(|number| start("worker", number, work)).collect::<Outcome<_>>()?;
    let besides: Vec<_> =
        (0..2).map(|number| start("beside", number, beside)).collect::<Outcome<_>>()?;
    let join = |handle: std::thread::JoinHandle<Outcome>| {
        handle.join().unwrap_or_else(|_| Err(Failure::new("a thread panicked")))
    };
    let worked: Outcome = workers.into_iter().map(join).collect::<Vec<_>>().into_iter().collect();
    bank.over.store(true, Ordering::Relaxed);
    let beside: Outcome = besides.into_iter().map(join).collect::<Vec<_>>().into_iter().collect();
    worked.and(beside)
}

const ACCOUNTS: u64 = 24;
const TRANSFERS: u64 = 250;

/// Threads move money between accounts while others sum the accounts; then the history is checked.
///
/// # Errors
/// The total changed, a snapshot changed, or the history is not serializable.
pub fn transfers(db: &Db, threads: u64) -> Outcome<BankReport> {
    let bank = Bank::open(db, "bank")?;
    bank.transact(|tx| {
        (0..ACCOUNTS)
            .try_for_each(|account| tx.write(&format!("account/{account:03}"), OPENING_BALANCE))
    })?;
    let opened = db.newest();
    in_threads(&bank, threads, transfer, audit)?;
    for glsn in (opened.0..=db.newest().0).step_by(7) {
        is_balanced(&bank, &bank.snapshot_at(glsn)?)?;
    }
    check_history(&bank)?;
    Ok(bank.report())
}

fn transfer(bank: &Bank, thread: u64) -> Outcome {
    let mut random = Random::new(thread);
    for round in 0..TRANSFERS {
        if bank.over.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (from, to) = (random.below(ACCOUNTS), random.below(ACCOUNTS));
        let amount = 1 + random.below(50);
        bank.transact(|tx| {
            if round % 10 == 9 {
                // Writing the sum makes the whole range part of the conflict check.
                let sum = tx.read_all("account/")?.iter().map(|value| value.amount).sum();
                return tx.write(&format!("sum/{thread}"), sum);
            }
            move_money(tx, from, to, amount)
        })?;
    }
    Ok(())
}

fn move_money(tx: &mut RecordingTx<'_>, from: u64, to: u64, amount: u64) -> Result<(), TxError> {
    let (from, to) = (format!("account/{from:03}"), format!("account/{to:03}"));
    let has = tx.read(&from)?.map_or(0, |value| value.amount);
    let gets = tx.read(&to)?.map_or(0, |value| value.amount);
    if from == to || has < amount {
        return tx.write("refused", has);
    }
    tx.write(&from, has - amount)?;
    tx.write(&to, gets + amount)
}

/// Sums new and old snapshots, twice each; compacts now and then.
fn audit(bank: &Bank, number: u64) -> Outcome {
    let mut random = Random::new(1000 + number);
    while !bank.over.load(Ordering::Relaxed) {
        let newest = bank.db.newest();
        let snapshot = if random.chance(0.5) {
            bank.db.snapshot()
        } else {
            bank.snapshot_at(newest.0 - random.below(newest.0 / 4))?
        };
        let before = is_balanced(bank, &snapshot)?;
        if random.below(50) == 0 {
            let compacted = if random.chance(0.5) { bank.db.compact() } else { bank.db.flush() };
            compacted.map_err(|error| Failure::new(format!("compact: {error}")))?;
        }
        let after = is_balanced(bank, &snapshot)?;
        ensure(before == after, || format!("the snapshot at {} changed", snapshot.at()))?;
        bank.audits.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// The total at every moment equals the initial total, or zero before the accounts were opened.
fn is_balanced(bank: &Bank, snapshot: &Snapshot) -> Outcome<Vec<(Vec<u8>, StampedAmount)>> {
    let accounts = bank.amounts(snapshot, "account/")?;
    let sum: u64 = accounts.iter().map(|(_, value)| value.amount).sum();
    let whole = sum == ACCOUNTS * OPENING_BALANCE && accounts.len() as u64 == ACCOUNTS;
    ensure(whole || accounts.is_empty(), || {
        format!("at {} the {} accounts sum to {sum}", snapshot.at(), accounts.len())
    })?;
    Ok(accounts)
}

const PAIRS: u64 = 4;
const SHIFTS: u64 = 250;

/// Write skew test: one of two doctors on call may leave if the other stays. Threads read both
/// entries and write one. Without serializability both may leave.
///
/// # Errors
/// Both have left at some moment, or the history is not serializable.
pub fn write_skew(db: &Db, threads: u64) -> Outcome<BankReport> {
    let bank = Bank::open(db, "on-call")?;
    bank.transact(|tx| {
        (0..PAIRS).try_for_each(|pair| {
            tx.write(&format!("{pair}/a"), 1)?;
            tx.write(&format!("{pair}/b"), 1)
        })
    })?;
    let opened = db.newest();
    in_threads(&bank, threads, take_shifts, |_, _| Ok(()))?;
    for glsn in opened.0..=db.newest().0 {
        somebody_is_on_call(&bank, glsn)?;
    }
    check_history(&bank)?;
    Ok(bank.report())
}

fn take_shifts(bank: &Bank, thread: u64) -> Outcome {
    let mut random = Random::new(thread);
    for _ in 0..SHIFTS {
        let pair = random.below(PAIRS);
        let me = if random.chance(0.5) { "a" } else { "b" };
        let by_range = random.chance(0.3);
        bank.transact(|tx| {
            let on = if by_range {
                tx.read_all(&format!("{pair}/"))?.iter().map(|value| value.amount).sum()
            } else {
                let a = tx.read(&format!("{pair}/a"))?.map_or(0, |value| value.amount);
                a + tx.read(&format!("{pair}/b"))?.map_or(0, |value| value.amount)
            };
            tx.write(&format!("{pair}/{me}"), u64::from(on < 2))
        })?;
    }
    Ok(())
}

fn somebody_is_on_call(bank: &Bank, glsn: u64) -> Outcome {
    let on_call = bank.amounts(&bank.snapshot_at(glsn)?, "")?;
    for pair in on_call.chunks(2) {
        let on: u64 = pair.iter().map(|(_, value)| value.amount).sum();
        ensure(on >= 1, || format!("at {glsn} nobody is on call: {pair:?}"))?;
    }
    same("on-call list", &(on_call.len() as u64), &(2 * PAIRS))
}

/// Replays the log: each transaction read the values that earlier transactions wrote, and the store
/// holds the last ones.
fn check_history(bank: &Bank) -> Outcome {
    let mut state: BTreeMap<String, StampedAmount> = BTreeMap::new();
    let newest = bank.db.newest();
    let failed = |glsn: u64| move |error: Error| Failure::new(format!("commit {glsn}: {error}"));
    for glsn in 1..=newest.0 {
        let commit = bank.db.log().commit(Glsn(glsn)).map_err(failed(glsn))?;
        let Some(commit) = commit else { continue };
        let notes = String::from_utf8_lossy(commit.metadata().map_err(failed(glsn))?).into_owned();
        let mut changed = Vec::new();
        let ours = Some(bank.keyspace.name());
        for change in commit.changes().map_err(failed(glsn))? {
            let change = change.map_err(failed(glsn))?;
            if change.keyspace() == ours {
                changed.push(String::from_utf8_lossy(change.key()).into_owned());
            }
        }
        if changed.is_empty() {
            continue;
        }
        let mut written = replay(&mut state, &notes)
            .map_err(|failure| Failure::new(format!("commit {glsn}: {failure}")))?;
        written.sort();
        written.dedup();
        same(format!("keys that commit {glsn} wrote"), &changed, &written)?;
    }
    let found = bank.amounts(&bank.snapshot_at(newest.0)?, "")?;
    let found: Vec<_> = found
        .into_iter()
        .map(|(key, value)| (String::from_utf8_lossy(&key).into_owned(), value))
        .collect();
    same("the newest moment", &found, &state.into_iter().collect())
}

/// Checks a transaction's notes and applies its writes to `state`. Returns the keys that it wrote.
fn replay(state: &mut BTreeMap<String, StampedAmount>, notes: &str) -> Outcome<Vec<String>> {
    let wrong = |line: &str| Failure::new(format!("cannot parse its note {line:?}"));
    let before = state.clone();
    let mut written = Vec::new();
    for line in notes.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| {
            words.get(at).and_then(|word| word.parse::<u64>().ok()).ok_or_else(|| wrong(line))
        };
        match words[..] {
            ["r", key, _] => {
                let now = before.get(key).map_or(0, |value| value.stamp);
                same(format!("its read of {key}"), &number(2)?, &now)?;
            }
            ["a", prefix, ..] => {
                let from = Bound::Included(prefix.to_owned());
                let inside = before
                    .range((from, Bound::Unbounded))
                    .take_while(|(key, _)| key.starts_with(prefix));
                let now: Vec<String> =
                    inside.map(|(key, value)| format!("{key}={}", value.stamp)).collect();
                same(format!("its reads below {prefix}"), &words[2..].join(" "), &now.join(" "))?;
            }
            ["w", key, _, _] => {
                state.insert(
                    key.to_owned(),
                    StampedAmount { stamp: number(2)?, amount: number(3)? },
                );
                written.push(key.to_owned());
            }
            _ => return Err(wrong(line)),
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_rejects_a_stale_read() {
        let mut state = BTreeMap::new();
        assert_eq!(replay(&mut state, "w a 1 10\nw b 2 10").unwrap(), ["a", "b"]);
        assert!(replay(&mut state.clone(), "r a 1\na  a=1 b=2\nw a 3 11").is_ok());
        replay(&mut state, "r b 2\nw b 4 9").unwrap();
        let refusal = replay(&mut state.clone(), "r b 2\nw a 5 9").unwrap_err();
        assert!(refusal.message.contains("its read of b"), "{refusal}");
        assert!(replay(&mut state.clone(), "a  a=1 b=2").is_err());
        assert!(replay(&mut state, "a  a=1").is_err());
    }
}
