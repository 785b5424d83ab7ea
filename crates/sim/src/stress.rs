//! Stress test: a store under real threads on a real disk, for any length of time.
//!
//! A child process ([`child`]) runs writers, readers, scanners, readers of past snapshots, a
//! compactor and a thread that changes the budget on a store. The parent repeatedly kills (SIGKILL)
//! or ends the child, checks the store, and starts the next child on the same store. It
//! continuously compares the child's memory, measured from outside (RssAnon and page tables), with
//! the child's current budget ([`chart`] draws both).
//!
//! Checks: every acknowledged commit is present in the next life, the total balance is the same in
//! every snapshot, every value matches its header, `verify` finds no problem, and memory never
//! exceeds the budget by more than [`SLACK_BYTES`].
#![allow(
    clippy::disallowed_methods,
    reason = "the kernel's files, and a folder of its own on the real disk"
)]

pub mod chart;
pub mod child;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll::{Db, Error, Options};
use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::mutex::lock;
use plimsoll_disk::random::Random;
use plimsoll_disk::thread::spawn;

use crate::failure::{Failure, Outcome, ensure};
use crate::stress::chart::Sample;
use crate::stress::child::{ACCOUNTS, OPENING_BALANCE, THREADS, WRITERS, is_balanced};

/// The interval between measurements of the child's memory.
const LOOK: Duration = Duration::from_millis(50);

/// A child that has not exited this long after the request hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// The memory that the process may hold in addition to the budget: the store's documented constant
/// (8 MiB, and 64 KiB per thread, those of the store included), and the memory of the child's
/// threads: values, and very many open transactions in one of them.
pub const SLACK_BYTES: u64 = (8 << 20)
    + (THREADS + 8) * (64 << 10)
    + THREADS * child::VALUES_BYTES_MAX
    + child::HELD_BYTES_MAX;

/// A run.
#[derive(Clone, Debug)]
pub struct Stress {
    /// The binary that can be a child.
    pub program: PathBuf,
    /// The folder in which the store is created.
    pub dir: PathBuf,
    /// Seed of the lifetimes and of the children's work.
    pub seed: u64,
    /// The total duration.
    pub time: Duration,
    /// The largest budget that a child gets, in bytes.
    pub memory_bytes_max: u64,
    /// The longest life of a child.
    pub life_max: Duration,
    /// Whether to accept memory above the budget, because a sanitizer uses additional memory.
    pub any_memory: bool,
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Children run.
    pub lives: u64,
    /// Children killed.
    pub kills: u64,
    /// Acknowledged commits.
    pub acknowledged: u64,
    /// The most bytes by which memory exceeded the current budget (0: never).
    pub above_bytes_max: u64,
    /// The counters of children that were not killed, by name.
    pub counts: Vec<(String, u64)>,
    /// Memory over time.
    pub samples: Vec<Sample>,
}

/// The output of a child.
#[derive(Debug, Default)]
struct ChildOutput {
    /// The last acknowledged number of each writer.
    numbers: Vec<u64>,
    acknowledged: u64,
    /// The budgets, each with its start time by the wall clock in microseconds.
    budgets: Vec<(u64, u64)>,
    counts: Vec<(String, u64)>,
    failure: Option<String>,
}

impl Stress {
    /// Runs it.
    ///
    /// A check failed; the message has the life.
    pub fn run(&self, progress: &mut dyn FnMut(&Report, Duration)) -> Outcome<Report> {
        let clock = SystemClock::new();
        let elapsed = || Duration::from_nanos(clock.monotonic_nanos());
        let mut random = Random::new(self.seed);
        let mut report = Report::default();
        let mut numbers = vec![0; WRITERS as usize];
        while elapsed() < self.time {
            let rest = self.time.saturating_sub(elapsed());
            let most = self.life_max.min(rest).as_millis() as u64;
            let life = Duration::from_millis(random.below(most.max(1)) + 200);
            let is_killed = random.chance(0.7);
            let told = |failure: Failure| {
                Failure::new(format!(
                    "life {} (seed {}, killed: {is_killed}): {failure}",
                    report.lives, self.seed
                ))
            };
            let heard = self
                .live(&clock, life, is_killed, report.lives, &mut report.samples)
                .map_err(told)?;
            for (known, new) in numbers.iter_mut().zip(&heard.numbers) {
                *known = (*known).max(*new);
            }
            self.look(&numbers).map_err(told)?;
            report.lives += 1;
            report.kills += u64::from(is_killed);
            report.acknowledged += heard.acknowledged;
            add_counts(&mut report.counts, &heard.counts);
            report.above_bytes_max =
                report.samples.iter().map(Sample::above_bytes).max().unwrap_or(0);
            let above = report.above_bytes_max;
            ensure(above <= SLACK_BYTES || self.any_memory, || {
                format!(
                    "memory was {above} bytes above the budget; at most {SLACK_BYTES} are allowed"
                )
            })?;
            progress(&report, elapsed());
        }
        Ok(report)
    }

    fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    /// Starts a child and reads its output until it ends.
    fn live(
        &self,
        clock: &SystemClock,
        life: Duration,
        is_killed: bool,
        number: u64,
        samples: &mut Vec<Sample>,
    ) -> Outcome<ChildOutput> {
        let told = |error: std::io::Error| Failure::new(format!("the child: {error}"));
        let mut child = Command::new(&self.program)
            .args([
                "stress",
                "--child",
                "--seed",
                &(self.seed.wrapping_mul(1000).wrapping_add(number)).to_string(),
            ])
            .args(["--budget-mib", &(self.memory_bytes_max >> 20).to_string(), "--dir"])
            .arg(self.store())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(told)?;
        let heard = Arc::new(Mutex::new(ChildOutput {
            numbers: vec![0; WRITERS as usize],
            ..ChildOutput::default()
        }));
        let out = child.stdout.take().ok_or_else(|| Failure::new("the child has no output"))?;
        let ears = Arc::clone(&heard);
        let listener = spawn("listener", move || listen(out, &ears)).map_err(told)?;
        let ended = watch(&mut child, clock, life, is_killed);
        // The child must be gone before the store is examined.
        let _ = child.kill();
        let _ = child.wait();
        let _ = listener.join();
        let mut heard = lock(&heard);
        if let Some(failure) = heard.failure.take() {
            return Err(Failure::new(failure));
        }
        // Join the listener, so that all output of the child has been read.
        samples.extend(ended?.into_iter().filter_map(|look| look.beside(&heard.budgets, clock)));
        Ok(std::mem::take(&mut heard))
    }

    /// Checks the store that a child left.
    fn look(&self, numbers: &[u64]) -> Outcome {
        let failed = |error: Error| Failure::new(format!("after the child: {error} [{error:?}]"));
        let options = Options::new().memory_bytes(16 << 20).background(false);
        let db = Db::open(self.store(), options).map_err(failed)?;
        let accounts = db.keyspace("accounts").map_err(failed)?;
        let snapshot = db.snapshot();
        for (writer, acknowledged) in numbers.iter().enumerate() {
            let there = child::number_of(&snapshot, &accounts, writer as u64).map_err(failed)?;
            ensure(there >= *acknowledged, || {
                format!(
                    "writer {writer} had {acknowledged} commits acknowledged, but {there} are \
                     present"
                )
            })?;
        }
        is_balanced(&snapshot, &accounts).map_err(failed)?.map_or(Ok(()), |sum| {
            let wanted = ACCOUNTS * OPENING_BALANCE;
            ensure(sum == wanted, || format!("the accounts hold {sum}, not {wanted}"))
        })?;
        drop(snapshot);
        let problems = db.verify(&mut |_| {}).map_err(failed)?.problems;
        // A missing offset table after a kill is not damage, because it is a cache.
        let problems: Vec<_> = problems
            .iter()
            .filter(|problem| !problem.ends_with("rebuilt when it is needed"))
            .collect();
        ensure(problems.is_empty(), || format!("verify: {problems:?}"))?;
        db.close().map_err(failed)
    }
}

/// A measurement of a child's memory, and the time span in which it was taken (by the wall clock in
/// microseconds).
struct MemorySample {
    from_micros: u64,
    to_micros: u64,
    resident_bytes: u64,
}

impl MemorySample {
    /// Compares it with the largest budget that the child had in that span.
    fn beside(&self, budgets: &[(u64, u64)], clock: &SystemClock) -> Option<Sample> {
        let before = budgets.iter().rev().find(|(since, _)| *since <= self.from_micros);
        let between =
            budgets.iter().filter(|(since, _)| (self.from_micros..=self.to_micros).contains(since));
        let budget_bytes = before.into_iter().chain(between).map(|(_, bytes)| *bytes).max()?;
        let age_millis = clock.wall_micros().saturating_sub(self.to_micros) / 1000;
        let millis = (clock.monotonic_nanos() / 1_000_000).saturating_sub(age_millis);
        Some(Sample { millis, resident_bytes: self.resident_bytes, budget_bytes })
    }
}

/// Watches a child until the end of its lifetime; returns the memory measurements.
fn watch(
    child: &mut Child,
    clock: &SystemClock,
    life: Duration,
    is_killed: bool,
) -> Outcome<Vec<MemorySample>> {
    let told = |error: std::io::Error| Failure::new(format!("the child: {error}"));
    let start = clock.monotonic_nanos();
    let (mut asked, mut looks) = (false, Vec::new());
    loop {
        clock.sleep(LOOK);
        let from_micros = clock.wall_micros();
        if let Some(resident_bytes) = resident_bytes(child.id()) {
            looks.push(MemorySample {
                from_micros,
                to_micros: clock.wall_micros(),
                resident_bytes,
            });
        }
        if let Some(status) = child.try_wait().map_err(told)? {
            ensure(asked && status.success(), || format!("the child exited by itself: {status}"))?;
            return Ok(looks);
        }
        let lived = Duration::from_nanos(clock.monotonic_nanos() - start);
        if lived >= life && is_killed {
            child.kill().map_err(told)?;
            return Ok(looks);
        }
        if lived >= life && !asked {
            asked = true;
            // Closing its input requests the child to exit.
            child.stdin.take().map_or(Ok(()), |mut input| input.flush()).map_err(told)?;
        }
        ensure(lived < life + PATIENCE, || {
            format!("the child did not exit within {PATIENCE:?} of the request")
        })?;
    }
}

fn listen(out: ChildStdout, heard: &Mutex<ChildOutput>) {
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        let mut heard = lock(heard);
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["ack", writer, number] => {
                if let (Ok(writer), Ok(number)) = (writer.parse::<usize>(), number.parse())
                    && let Some(known) = heard.numbers.get_mut(writer)
                {
                    *known = number;
                    heard.acknowledged += 1;
                }
            }
            ["budget", bytes, micros] => {
                if let (Ok(bytes), Ok(micros)) = (bytes.parse(), micros.parse()) {
                    heard.budgets.push((micros, bytes));
                }
            }
            ["count", name, count] => {
                heard.counts.push((name.to_owned(), count.parse().unwrap_or(0)))
            }
            // Ignore a line that the kill truncated.
            ["failed", ..] => heard.failure = Some(line.clone()),
            _ => {}
        }
    }
}

fn add_counts(to: &mut Vec<(String, u64)>, from: &[(String, u64)]) {
    for (name, count) in from {
        match to.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += count,
            None => to.push((name.clone(), *count)),
        }
    }
}

/// Anonymous memory and page tables of a process; `None` once it has exited.
fn resident_bytes(pid: u32) -> Option<u64> {
    let status =
        std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status")).ok()?;
    let kibibytes = |name: &str| -> Option<u64> {
        let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
        rest.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    Some((kibibytes("RssAnon:")? + kibibytes("VmPTE:")?) * 1024)
}
