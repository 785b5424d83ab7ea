//! A child process on a real disk, killed at random moments.
//!
//! The child ([`child`]) writes with several threads and says which commits were acknowledged. The parent kills it (SIGKILL), opens the
//! store itself, and looks: every acknowledged commit is there, and of each transaction all or nothing. Then the next child goes on with
//! the same store.

pub mod child;

use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use plimsoll::{Db, Error, Keyspace, Moment, Options, Snapshot};
use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::random::Random;
use plimsoll_disk::thread::spawn;

use crate::failure::{Failure, Outcome, ensure, same};
use crate::kill::child::{KEPT, THREADS, large_value, listed_key, number_key, pair_keys};

/// What the child does beside writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Nothing.
    Write,
    /// It is killed while it makes the store.
    Create,
    /// It compacts all the time.
    Compact,
    /// It makes one backup after the other.
    Backup,
}

impl Scenario {
    /// All of them, with their names.
    pub const ALL: [(Scenario, &str); 4] = [
        (Scenario::Write, "write"),
        (Scenario::Create, "create"),
        (Scenario::Compact, "compact"),
        (Scenario::Backup, "backup"),
    ];

    /// How long a child lives, in milliseconds: from, and how many more.
    fn life_millis(self) -> (u64, u64) {
        if self == Scenario::Create { (0, 25) } else { (20, 130) }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Scenario::ALL.iter().find(|(scenario, _)| scenario == self).map_or("", |(_, name)| name))
    }
}

impl FromStr for Scenario {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Scenario::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(scenario, _)| *scenario).ok_or_else(|| format!("there is no scenario {text:?}"))
    }
}

/// What came of the kills.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kills {
    /// Children that were killed.
    pub kills: u64,
    /// Children that had acknowledged something.
    pub with_commits: u64,
    /// Commits that were acknowledged.
    pub acknowledged: u64,
    /// Backups that were complete when the child was killed.
    pub backups: u64,
}

/// How the parent and the child open the store.
pub(crate) fn options() -> Options {
    Options::new().memory_bytes(16 << 20).memtable_bytes(128 << 10).segment_bytes(1 << 20)
}

fn failed(what: &str) -> impl Fn(Error) -> Failure + '_ {
    move |error| Failure::new(format!("{what}: {error} [{error:?}]"))
}

/// Kills so many children, one after the other; `program` is the binary that can be a child, `dir` a folder to work in.
///
/// # Errors
/// An acknowledged commit is gone, a part of a transaction is there, or the store does not open.
pub fn kill_children(program: &Path, dir: &Path, scenario: Scenario, kills: u64, seed: u64) -> Outcome<Kills> {
    let mut random = Random::new(seed);
    let mut report = Kills::default();
    for life in 0..kills {
        let store = match scenario {
            Scenario::Create => dir.join(format!("store{life}")),
            _ => dir.join("store"),
        };
        let (least, more) = scenario.life_millis();
        let lifetime = Duration::from_micros(least * 1000 + random.below(more * 1000));
        let told =
            |failure: Failure| Failure::new(format!("life {life} of {lifetime:?}, seed {seed}, {scenario}: {failure}"));
        let acknowledged = live_and_die(program, &store, scenario, lifetime).map_err(told)?;
        report.kills += 1;
        report.with_commits += u64::from(!acknowledged.is_empty());
        report.acknowledged += acknowledged.len() as u64;
        look(&store, &acknowledged, life % 5 == 0).map_err(told)?;
        report.backups += look_at_backups(&store).map_err(told)?;
    }
    Ok(report)
}

/// An acknowledged commit: thread, number, GLSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Acknowledged {
    thread: u64,
    number: u64,
    glsn: u64,
}

impl Acknowledged {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ').map(str::parse);
        let mut next = || words.next()?.ok();
        Some(Self { thread: next()?, number: next()?, glsn: next()? })
    }
}

/// Starts a child, kills it, and returns what it acknowledged.
fn live_and_die(program: &Path, store: &Path, scenario: Scenario, lifetime: Duration) -> Outcome<Vec<Acknowledged>> {
    let failed = |error: std::io::Error| Failure::new(format!("the child: {error}"));
    let mut child = Command::new(program)
        .args(["--child", &scenario.to_string()])
        .arg(store)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let stdout = child.stdout.take().ok_or_else(|| Failure::new("the child has no output"))?;
    let stderr = child.stderr.take().ok_or_else(|| Failure::new("the child has no output"))?;
    let lines = spawn("acknowledged", move || {
        let mut lines = Vec::new();
        let mut reader = BufReader::new(stdout);
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|n| n > 0) {
            // A line without an end was being written when the child died.
            lines.extend(line.strip_suffix('\n').and_then(Acknowledged::parse));
            line.clear();
        }
        lines
    });
    let complaints = spawn("complaints", move || std::io::read_to_string(stderr).unwrap_or_default());
    SystemClock::new().sleep(lifetime);
    let ended = child.try_wait().map_err(failed)?;
    child.kill().map_err(failed)?;
    child.wait().map_err(failed)?;
    let join = |_| Failure::new("a thread panicked");
    let acknowledged = lines.map_err(failed)?.join().map_err(join)?;
    let complaints = complaints.map_err(failed)?.join().map_err(join)?;
    ensure(ended.is_none(), || format!("the child ended by itself ({ended:?}): {complaints}"))?;
    Ok(acknowledged)
}

/// Opens the store and compares it with what was acknowledged.
fn look(store: &Path, acknowledged: &[Acknowledged], verify: bool) -> Outcome {
    let db = Db::open(store, options()).map_err(failed("the store does not open"))?;
    let keyspace = db.keyspace("work").map_err(failed("keyspace"))?;
    let newest = db.newest();
    for thread in 0..THREADS {
        let mine = || acknowledged.iter().filter(|commit| commit.thread == thread);
        let found = is_whole(&db.snapshot(), &keyspace, thread)?;
        let acked = mine().map(|commit| commit.number).max().unwrap_or(0);
        ensure(found >= acked, || format!("thread {thread} is at {found}, acknowledged was {acked}"))?;
        for commit in mine().rev().take(3) {
            ensure(commit.glsn <= newest, || format!("GLSN {} was acknowledged, the newest is {newest}", commit.glsn))?;
            let then = db.snapshot_at(Moment::Glsn(commit.glsn)).map_err(failed("a snapshot of a commit"))?;
            same(
                format!("number of thread {thread} at {}", commit.glsn),
                &is_whole(&then, &keyspace, thread)?,
                &commit.number,
            )?;
        }
        has_stream(&db, thread, found)?;
    }
    if verify {
        let report = db.verify(&mut |_| {}).map_err(failed("verify"))?;
        ensure(report.problems.is_empty(), || format!("verify: {:?}", report.problems))?;
    }
    db.close().map_err(failed("close"))
}

/// A thread's keys all tell of the same transaction; its number.
fn is_whole(snapshot: &Snapshot, keyspace: &Keyspace, thread: u64) -> Outcome<u64> {
    let read = |key: &str| snapshot.get(keyspace, key.as_bytes()).map_err(failed(key));
    let text = read(&number_key(thread))?.map(|value| String::from_utf8_lossy(&value).into_owned());
    let number =
        text.as_deref().map_or(Ok(0), str::parse).map_err(|_| Failure::new(format!("{text:?} is no number")))?;
    for key in pair_keys(thread) {
        let value = read(&key)?;
        let right = match &value {
            None => number == 0,
            Some(value) => large_value(thread, number).is(value),
        };
        ensure(right, || {
            format!("{key} is not of transaction {number}: {} bytes", value.map_or(0, |value| value.len()))
        })?;
    }
    let prefix = format!("{thread}/list/");
    let listed = snapshot.prefix(keyspace, prefix.as_bytes()).map_err(failed("prefix"))?;
    let listed: Vec<Vec<u8>> =
        listed.map(|item| item.map(|(key, _)| key)).collect::<plimsoll::Result<_>>().map_err(failed("prefix"))?;
    let wanted: Vec<Vec<u8>> =
        (number.saturating_sub(KEPT) + 1..=number).map(|number| listed_key(thread, number).into_bytes()).collect();
    same(format!("what thread {thread} listed"), &listed, &wanted)?;
    Ok(number)
}

/// The thread's stream has its numbers in order, without a gap, up to the transaction before the last or further.
fn has_stream(db: &Db, thread: u64, number: u64) -> Outcome {
    let mut scan = db.log().scan(.., Some(thread as u32 + 1)).map_err(failed("scan"))?;
    let mut numbers = Vec::new();
    while let Some(entry) = scan.next() {
        let entry = entry.map_err(failed("scan"))?;
        numbers.push(String::from_utf8_lossy(entry.payload).into_owned());
    }
    // It is appended after the commit is acknowledged, and before the next one.
    let least = number.saturating_sub(1);
    let wanted: Vec<String> = (1..=numbers.len().max(least as usize)).map(|number| number.to_string()).collect();
    ensure(numbers.len() as u64 <= number, || {
        format!("stream of thread {thread} is at {}, its commits at {number}", numbers.len())
    })?;
    same(format!("stream of thread {thread}"), &numbers, &wanted)
}

/// A backup is whole, or is no store; how many were whole. They are removed.
#[allow(clippy::disallowed_methods, reason = "a test that cleans up after itself")]
fn look_at_backups(store: &Path) -> Outcome<u64> {
    let mut whole = 0;
    for number in 0.. {
        let path = backup_path(store, number);
        if !path.exists() {
            return Ok(whole);
        }
        match Db::open(&path, options().create(false)) {
            Err(Error::NotAStore { .. }) => {}
            Err(error) => return Err(failed("a backup does not open")(error)),
            Ok(db) => {
                whole += 1;
                let keyspace = db.keyspace("work").map_err(failed("keyspace of a backup"))?;
                (0..THREADS).try_for_each(|thread| is_whole(&db.snapshot(), &keyspace, thread).map(|_| ()))?;
                let report = db.verify(&mut |_| {}).map_err(failed("verify of a backup"))?;
                ensure(report.problems.is_empty(), || format!("verify of a backup: {:?}", report.problems))?;
            }
        }
        std::fs::remove_dir_all(&path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    }
    Ok(whole)
}

/// Where the child puts its backups: beside the store.
pub(crate) fn backup_path(store: &Path, number: u64) -> PathBuf {
    store.with_file_name(format!("backup{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_is_three_numbers() {
        assert_eq!(Acknowledged::parse("3 17 99"), Some(Acknowledged { thread: 3, number: 17, glsn: 99 }));
        assert_eq!(Acknowledged::parse("3 17"), None);
        assert_eq!(Acknowledged::parse("3 17 x"), None);
    }
}
