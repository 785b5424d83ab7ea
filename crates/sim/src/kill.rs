//! Kill test: a child process on a real disk, killed at random moments.
//!
//! The child ([`child`]) writes with several threads and prints the acknowledged commits. The
//! parent kills it (SIGKILL), opens the store itself, and checks that every acknowledged commit is
//! present as written, nothing of earlier lives is lost, each transaction is present in full or not
//! at all, and no byte on the disk is wrong. Then the next child continues with the same store.

pub mod child;

use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll::{Db, Error, Glsn, Keyspace, Moment, Options, Snapshot};
use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::random::Random;
use plimsoll_disk::thread::spawn;

use crate::failure::{Failure, Outcome, ensure, same};
use crate::kill::child::{
    KEPT, SYNC_EACH, THREADS, large_value, listed_key, number_key, pair_keys,
};

/// The child's work other than writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Nothing.
    Write,
    /// The child is killed while it creates the store.
    Create,
    /// The child compacts continuously.
    Compact,
    /// The child makes one backup after another.
    Backup,
    /// The child trims its log continuously.
    Trim,
    /// Commits are buffered; a sync acknowledges the commits before it.
    Buffered,
}

impl Scenario {
    /// All of them, with their names.
    pub const ALL: [(Scenario, &str); 6] = [
        (Scenario::Write, "write"),
        (Scenario::Create, "create"),
        (Scenario::Compact, "compact"),
        (Scenario::Backup, "backup"),
        (Scenario::Trim, "trim"),
        (Scenario::Buffered, "buffered"),
    ];

    /// Number of children that use a store in turn before a new store is made. The first finds a
    /// young store, the last has much to recover.
    fn lives_of_a_store(self) -> u64 {
        if self == Scenario::Create { 1 } else { 25 }
    }
}

/// Lifetime of a child.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Life {
    /// Time from its start, so that the kill may hit the creation or recovery of the store.
    FromStart(Duration),
    /// Time from its first acknowledged commit, when all of its threads are writing.
    FromFirstCommit(Duration),
}

impl Life {
    pub(crate) fn choose(scenario: Scenario, life: u64, random: &mut Random) -> Self {
        match scenario {
            Scenario::Create => Self::FromStart(Duration::from_micros(random.below(25_000))),
            _ if life % 5 == 4 => Self::FromStart(Duration::from_micros(random.below(40_000))),
            _ => Self::FromFirstCommit(Duration::from_micros(random.below(120_000))),
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(
            Scenario::ALL
                .iter()
                .find(|(scenario, _)| scenario == self)
                .map_or("", |(_, name)| name),
        )
    }
}

impl FromStr for Scenario {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Scenario::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(scenario, _)| *scenario).ok_or_else(|| format!("unknown scenario {text:?}"))
    }
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kills {
    /// Children killed.
    pub kills: u64,
    /// Children that had acknowledged a commit.
    pub with_commits: u64,
    /// Acknowledged commits.
    pub acknowledged: u64,
    /// Backups that were complete when the child was killed.
    pub backups: u64,
}

/// The options with which parent and child open the store.
pub(crate) fn options() -> Options {
    Options::new().memory_bytes(16 << 20).memtable_bytes(128 << 10).segment_bytes(1 << 20)
}

pub(crate) fn failed(what: &str) -> impl Fn(Error) -> Failure + '_ {
    move |error| Failure::new(format!("{what}: {error} [{error:?}]"))
}

/// Kills this many children, one after the other; `program` is the binary that can be a child,
/// `dir` a folder to work in.
///
/// # Errors
/// An acknowledged commit is lost, a transaction is partly present, or the store does not open.
pub fn kill_children(
    program: &Path,
    dir: &Path,
    scenario: Scenario,
    kills: u64,
    seed: u64,
) -> Outcome<Kills> {
    let mut random = Random::new(seed);
    let mut report = Kills::default();
    let mut numbers = Numbers::default();
    for life in 0..kills {
        let store = dir.join(format!("store{}", life / scenario.lives_of_a_store()));
        if life % scenario.lives_of_a_store() == 0 {
            numbers = Numbers::default();
        }
        let lifetime = Life::choose(scenario, life, &mut random);
        let in_life = |failure: Failure| {
            Failure::new(format!("life {life}, {lifetime:?}, seed {seed}, {scenario}: {failure}"))
        };
        let in_later_backup = scenario == Scenario::Backup && life % 5 == 0;
        let acknowledged =
            live_and_die(program, &store, scenario, lifetime, in_later_backup).map_err(in_life)?;
        report.kills += 1;
        report.with_commits += u64::from(!acknowledged.is_empty());
        report.acknowledged += acknowledged.len() as u64;
        numbers =
            look(&store, &numbers, &acknowledged, acknowledged.len(), scenario).map_err(in_life)?;
        report.backups += look_at_backups(&store).map_err(in_life)?;
    }
    Ok(report)
}

/// The number of each thread's last transaction.
pub(crate) type Numbers = [u64; THREADS as usize];

/// An acknowledged commit: thread, number, GLSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledged {
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

/// Starts a child, kills it, and returns its acknowledgements. With `in_later_backup`, the child
/// completes a backup before the kill, however slow the machine is.
fn live_and_die(
    program: &Path,
    store: &Path,
    scenario: Scenario,
    life: Life,
    in_later_backup: bool,
) -> Outcome<Vec<Acknowledged>> {
    let mut child = Running::start(Command::new(program), scenario, store)?;
    child.await_end_of(life);
    while in_later_backup && child.lives() && !backup_path(store, 1).exists() {
        SystemClock::new().sleep(Duration::from_millis(2));
    }
    let Ended { acknowledged, by_itself, complaints } = child.kill()?;
    ensure(by_itself.is_none(), || {
        format!("the child exited by itself ({by_itself:?}): {complaints}")
    })?;
    Ok(acknowledged)
}

/// A running child.
pub(crate) struct Running {
    child: Child,
    lines: JoinHandle<Vec<Acknowledged>>,
    complaints: JoinHandle<String>,
    first_commit: Receiver<()>,
    /// Acknowledgements received.
    arrived: Arc<AtomicUsize>,
}

/// How a child ended.
pub(crate) struct Ended {
    pub(crate) acknowledged: Vec<Acknowledged>,
    /// Its exit status, if it exited before the kill.
    pub(crate) by_itself: Option<ExitStatus>,
    /// Its output to standard error.
    pub(crate) complaints: String,
}

fn of_child(error: std::io::Error) -> Failure {
    Failure::new(format!("the child: {error}"))
}

impl Running {
    /// Starts a child by `command`, which names the program or a wrapper.
    pub(crate) fn start(mut command: Command, scenario: Scenario, store: &Path) -> Outcome<Self> {
        let mut child = command
            .args(["--child", &scenario.to_string()])
            .arg(store)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(of_child)?;
        let stdout = child.stdout.take().ok_or_else(|| Failure::new("the child has no output"))?;
        let stderr = child.stderr.take().ok_or_else(|| Failure::new("the child has no output"))?;
        let (first, first_commit) = channel();
        let arrived = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&arrived);
        let lines = spawn("acknowledged", move || read_acknowledged(stdout, &first, &count))
            .map_err(of_child)?;
        let complaints =
            spawn("complaints", move || std::io::read_to_string(stderr).unwrap_or_default());
        Ok(Self { child, lines, complaints: complaints.map_err(of_child)?, first_commit, arrived })
    }

    /// Waits for the end of its lifetime.
    pub(crate) fn await_end_of(&self, life: Life) {
        match life {
            Life::FromStart(lifetime) => SystemClock::new().sleep(lifetime),
            Life::FromFirstCommit(lifetime) => {
                // A child that exited by itself sends nothing more; `kill` reports that.
                if self.first_commit.recv().is_ok() {
                    SystemClock::new().sleep(lifetime);
                }
            }
        }
    }

    /// Number of commits acknowledged so far.
    pub(crate) fn arrived(&self) -> usize {
        self.arrived.load(Ordering::Acquire)
    }

    /// Whether it is still running.
    pub(crate) fn lives(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|ended| ended.is_none())
    }

    /// Kills it.
    pub(crate) fn kill(mut self) -> Outcome<Ended> {
        let by_itself = self.child.try_wait().map_err(of_child)?;
        self.child.kill().map_err(of_child)?;
        self.child.wait().map_err(of_child)?;
        let join = |_| Failure::new("a thread panicked");
        let acknowledged = self.lines.join().map_err(join)?;
        let complaints = self.complaints.join().map_err(join)?;
        Ok(Ended { acknowledged, by_itself, complaints })
    }
}

/// The acknowledgements of a child until it dies; the first is signalled at once.
fn read_acknowledged(
    stdout: ChildStdout,
    first: &Sender<()>,
    arrived: &AtomicUsize,
) -> Vec<Acknowledged> {
    let mut all = Vec::new();
    let mut reader = BufReader::new(stdout);
    let mut line = String::new();
    while reader.read_line(&mut line).is_ok_and(|n| n > 0) {
        // The child died while it wrote an unterminated line.
        all.extend(line.strip_suffix('\n').and_then(Acknowledged::parse));
        arrived.store(all.len(), Ordering::Release);
        if all.len() == 1 {
            // Nobody receives the signal if the lifetime counts from the start.
            let _ = first.send(());
        }
        line.clear();
    }
    all
}

/// Opens the store and compares it with its contents `before` this life and the commits
/// acknowledged since, of which the first `certain` must be present; returns the new contents.
pub(crate) fn look(
    store: &Path,
    before: &Numbers,
    acknowledged: &[Acknowledged],
    certain: usize,
    scenario: Scenario,
) -> Outcome<Numbers> {
    let db = Db::open(store, options()).map_err(failed("the store does not open"))?;
    let keyspace = db.keyspace("work").map_err(failed("keyspace"))?;
    let mut now = Numbers::default();
    for (thread, before) in (0..).zip(before) {
        let mine: Vec<&Acknowledged> =
            acknowledged.iter().filter(|commit| commit.thread == thread).collect();
        let found = is_whole(&db.snapshot(), &keyspace, thread)?;
        let acked = mine.last().map_or(*before, |commit| commit.number);
        let mut certain = acknowledged[..certain].iter().filter(|commit| commit.thread == thread);
        let least = certain.next_back().map_or(*before, |commit| commit.number);
        // At the kill, each thread had at most one unacknowledged commit, or with buffered commits
        // at most those up to its next sync.
        let more = if scenario == Scenario::Buffered { SYNC_EACH } else { 1 };
        ensure((least..=acked + more).contains(&found), || {
            format!(
                "thread {thread} is at {found}, was at {before} before this life, acknowledged \
                 was {least} to {acked}"
            )
        })?;
        follow_each_other(*before, &mine)?;
        let there = mine.iter().take_while(|commit| commit.number <= found);
        there.into_iter().try_for_each(|commit| is_as_acknowledged(&db, &keyspace, commit))?;
        has_stream(&db, thread, found)?;
        now[thread as usize] = found;
    }
    let report = db.verify(&mut |_| {}).map_err(failed("verify"))?;
    ensure(report.problems.is_empty(), || format!("verify: {:?}", report.problems))?;
    db.close().map_err(failed("close"))?;
    Ok(now)
}

/// Checks that a thread continued from the previous life without a gap.
fn follow_each_other(before: u64, commits: &[&Acknowledged]) -> Outcome {
    let numbers: Vec<u64> = commits.iter().map(|commit| commit.number).collect();
    let wanted: Vec<u64> = (before + 1..).take(commits.len()).collect();
    same("acknowledged numbers", &numbers, &wanted)?;
    let ordered = commits.is_sorted_by(|a, b| a.glsn < b.glsn);
    ensure(ordered, || "acknowledged GLSNs of one thread are out of order".to_owned())
}

/// Checks that the store has all writes of a commit at its moment.
fn is_as_acknowledged(db: &Db, keyspace: &Keyspace, commit: &Acknowledged) -> Outcome {
    let newest = db.newest();
    ensure(commit.glsn <= newest.0, || {
        format!("GLSN {} was acknowledged, but the newest is {newest}", commit.glsn)
    })?;
    let then = db
        .snapshot_at(Moment::Glsn(Glsn(commit.glsn)))
        .map_err(failed("a snapshot of a commit"))?;
    let found = is_whole(&then, keyspace, commit.thread)?;
    same(format!("number of thread {} at {}", commit.thread, commit.glsn), &found, &commit.number)
}

/// Checks that a thread's keys all belong to the same transaction; returns its number.
pub(crate) fn is_whole(snapshot: &Snapshot, keyspace: &Keyspace, thread: u64) -> Outcome<u64> {
    let read = |key: &str| snapshot.get(keyspace, key.as_bytes()).map_err(failed(key));
    let text = read(&number_key(thread))?.map(|value| String::from_utf8_lossy(&value).into_owned());
    let number = text
        .as_deref()
        .map_or(Ok(0), str::parse)
        .map_err(|_| Failure::new(format!("{text:?} is not a number")))?;
    for key in pair_keys(thread) {
        let value = read(&key)?;
        let right = match &value {
            None => number == 0,
            Some(value) => large_value(thread, number).is(value),
        };
        ensure(right, || {
            format!(
                "{key} does not belong to transaction {number}: {} bytes",
                value.map_or(0, |value| value.len())
            )
        })?;
    }
    let prefix = format!("{thread}/list/");
    let listed = snapshot.prefix(keyspace, prefix.as_bytes()).map_err(failed("prefix"))?;
    let listed: Vec<Vec<u8>> = listed
        .map(|item| item.map(|(key, _)| key))
        .collect::<plimsoll::Result<_>>()
        .map_err(failed("prefix"))?;
    let wanted: Vec<Vec<u8>> = (number.saturating_sub(KEPT) + 1..=number)
        .map(|number| listed_key(thread, number).into_bytes())
        .collect();
    same(format!("list of thread {thread}"), &listed, &wanted)?;
    Ok(number)
}

/// Checks that the thread's stream has its numbers in order, without a gap, at least up to the
/// transaction before the last.
fn has_stream(db: &Db, thread: u64, number: u64) -> Outcome {
    let mut scan = db.log().scan(.., Some(thread as u32 + 1)).map_err(failed("scan"))?;
    let mut numbers = Vec::new();
    while let Some(entry) = scan.next() {
        let entry = entry.map_err(failed("scan"))?;
        numbers.push(String::from_utf8_lossy(entry.payload).into_owned());
    }
    // The entry is appended after its commit is acknowledged and before the next commit.
    let least = number.saturating_sub(1);
    let wanted: Vec<String> =
        (1..=numbers.len().max(least as usize)).map(|number| number.to_string()).collect();
    ensure(numbers.len() as u64 <= number, || {
        format!(
            "stream of thread {thread} is at {}, but its commits are at {number}",
            numbers.len()
        )
    })?;
    same(format!("stream of thread {thread}"), &numbers, &wanted)
}

/// Checks that each backup is complete or not a store, and removes it; returns the number of
/// complete ones.
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
                (0..THREADS).try_for_each(|thread| {
                    is_whole(&db.snapshot(), &keyspace, thread).map(|_| ())
                })?;
                let report = db.verify(&mut |_| {}).map_err(failed("verify of a backup"))?;
                ensure(report.problems.is_empty(), || {
                    format!("verify of a backup: {:?}", report.problems)
                })?;
            }
        }
        std::fs::remove_dir_all(&path)
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    }
    Ok(whole)
}

/// The path of the child's backups: next to the store.
pub(crate) fn backup_path(store: &Path, number: u64) -> PathBuf {
    store.with_file_name(format!("backup{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgement_parses_three_numbers() {
        assert_eq!(
            Acknowledged::parse("3 17 99"),
            Some(Acknowledged { thread: 3, number: 17, glsn: 99 })
        );
        assert_eq!(Acknowledged::parse("3 17"), None);
        assert_eq!(Acknowledged::parse("3 17 x"), None);
    }
}
