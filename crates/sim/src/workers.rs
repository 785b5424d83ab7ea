//! Workers test: several processes share a store, and each may be killed or stopped at any time.
//!
//! With [`Work::Lists`], workers append to lists ([`lister`]), and their history is checked
//! ([`crate::lists`]). With [`Work::Bank`], a worker ([`child`]) moves money between accounts,
//! counts its transfers in the store, and prints each acknowledged one; occasionally it sums all
//! accounts in a snapshot. The parent starts, kills (SIGKILL), stops (SIGSTOP) and continues
//! workers at random times, and checks that each new worker finds every transfer acknowledged to
//! its predecessor. At the end the parent opens the store alone: no acknowledged transfer is lost,
//! the sum is right, and no byte on the disk is wrong.
//!
//! Alternatively each worker kills itself at a chosen point ([`deaths`]), one of those that workers
//! have crossed before ([`points`]), and verifies the store after opening it.

pub mod child;
pub mod deaths;
pub mod environment;
mod killable;
pub mod lister;
pub mod points;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll::{Db, Options};
use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::mutex::lock;
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::random::Random;
use plimsoll_disk::thread::spawn;
use rustix::process::{Pid, Signal, kill_process};

use crate::failure::{Failure, Outcome, ensure};
use crate::lists::check::{HistoryCounts, check};
use crate::lists::history::{Transaction, read_lines};
use crate::workers::child::{ACCOUNTS, OPENING_BALANCE, burst_fits, count_of, sum};
use crate::workers::deaths::{Deaths, Planned, parse_point_line};
use crate::workers::environment::Environment;
use crate::workers::killable::KillableDisk;
use crate::workers::lister::lists_in;
use crate::workers::points::{Activity, EndState};

/// The work of the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Work {
    /// Move money between accounts.
    #[default]
    Bank,
    /// Append to lists and read them.
    Lists,
}

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Workers {
    /// The work.
    pub work: Work,
    /// The binaries that can be a worker, used in turn.
    pub programs: Vec<PathBuf>,
    /// The environment of each worker.
    pub environment: Environment,
    /// An empty folder.
    pub dir: PathBuf,
    /// Number of concurrent workers.
    pub workers: u64,
    /// Duration.
    pub time: Duration,
    /// Mean lifetime of a worker until it is killed.
    pub life: Duration,
    /// The longest time for which a worker is stopped.
    pub stop: Duration,
    /// If set, each worker kills itself at a point, chosen by the number of earlier kills at each
    /// point; no worker is stopped.
    pub at_points: Option<Deaths>,
    /// Seed of the times of kills and stops, or of the points.
    pub seed: u64,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Workers killed.
    pub kills: u64,
    /// Workers stopped and continued.
    pub stops: u64,
    /// Workers that left cleanly.
    pub ends: u64,
    /// Acknowledged transfers.
    pub acknowledged: u64,
    /// Milliseconds between two acknowledged transfers of a worker while no worker was stopped: the
    /// maximum and the 99th percentile.
    pub stalls_millis: (u64, u64),
    /// With [`Work::Lists`]: counts of the checked history.
    pub checked: HistoryCounts,
    /// The points at which workers killed themselves, including earlier runs.
    pub deaths: Deaths,
}

/// Becomes true when the input of this process is closed.
pub(crate) fn listen_for_the_end() -> Result<Arc<AtomicBool>, String> {
    let over = Arc::new(AtomicBool::new(false));
    let ears = Arc::clone(&over);
    let listening = spawn("input", move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ears.store(true, Ordering::Release);
    });
    listening.map(|_| over).map_err(|error| error.to_string())
}

/// The options with which workers and the parent open the store.
pub(crate) fn options() -> Options {
    Options::new().memory_bytes(16 << 20).memtable_bytes(256 << 10).segment_bytes(1 << 20)
}

/// Opens the store as one of several processes. A worker with a chosen point verifies the store
/// first, and may be killed from here on.
fn open_among_others(store: &Path, end_state: Option<&Arc<EndState>>) -> Result<Db, String> {
    let failed = |error: plimsoll::Error| format!("open: {error} [{error:?}]");
    let options = options().shared(true);
    let Some(end_state) = end_state else { return Db::open(store, options).map_err(failed) };
    // Use small sizes, so that even a worker that makes few commits begins a segment, flushes,
    // merges, and trims the log.
    let options = options.memtable_bytes(64 << 10).segment_bytes(64 << 10);
    let disk = KillableDisk::new(Arc::new(OsDisk::new()), Arc::clone(end_state));
    let db = Db::open(store, options.world(Arc::new(disk), Arc::new(SystemClock::new())))
        .map_err(failed)?;
    end_state.does(Activity::Verifying);
    let report = db.verify(&mut |_| {}).map_err(|error| format!("verify: {error} [{error:?}]"))?;
    end_state.does(Activity::Working);
    if report.problems.is_empty() { Ok(db) } else { Err(format!("verify: {:?}", report.problems)) }
}

/// Closes the store.
fn leave(db: Db, end_state: Option<&Arc<EndState>>) -> Result<(), String> {
    if let Some(end_state) = end_state {
        end_state.does(Activity::Leaving);
    }
    db.close().map_err(|error| format!("close: {error}"))
}

fn failed(what: &str) -> impl Fn(plimsoll::Error) -> Failure + '_ {
    move |error| Failure::new(format!("{what}: {error} [{error:?}]"))
}

fn of_worker(error: impl std::fmt::Display) -> Failure {
    Failure::new(format!("a worker: {error}"))
}

/// The output of a worker so far.
#[derive(Debug, Default)]
pub(crate) struct WorkerOutput {
    /// The count that it found at its start.
    pub(crate) found: Option<u64>,
    /// The last acknowledged count.
    pub(crate) acknowledged: u64,
    /// The time of the last acknowledgement, by the parent's clock.
    last_nanos: u64,
    /// Times between two acknowledgements, in milliseconds.
    gaps_millis: Vec<u64>,
    /// Acknowledgements.
    times: u64,
    /// The points that it crossed.
    points: Vec<String>,
    /// The point at which it killed itself.
    end: Option<String>,
    /// The time at which it last became the keeper, by the parent's clock.
    keeps_nanos: Option<u64>,
    /// Other lines.
    others: Vec<String>,
}

pub(crate) struct Running {
    child: Child,
    environment: Environment,
    output: Arc<Mutex<WorkerOutput>>,
    lines: JoinHandle<()>,
    complaints: JoinHandle<String>,
}

impl Running {
    pub(crate) fn start(
        program: &Path,
        store: &Path,
        number: u64,
        work: Work,
        environment: Environment,
        end: Option<&Planned>,
        clock: &Arc<SystemClock>,
    ) -> Outcome<Self> {
        let mut command = environment.command(program, number);
        command.args(["workers", "--worker", &number.to_string(), "--dir"]).arg(store);
        if work == Work::Lists {
            command.arg("--lists");
        }
        if let Some(Planned { nth, group, enough }) = end {
            command
                .args(["--points", "--nth", &nth.to_string(), "--group", group, "--enough"])
                .arg(enough);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(of_worker)?;
        let stdout = child.stdout.take().ok_or_else(|| of_worker("no output"))?;
        let stderr = child.stderr.take().ok_or_else(|| of_worker("no output"))?;
        let output = Arc::new(Mutex::new(WorkerOutput::default()));
        let (theirs, clock) = (Arc::clone(&output), Arc::clone(clock));
        let lines = spawn("lines", move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let mut output = lock(&theirs);
                let now = clock.monotonic_nanos();
                match line.split_once(' ') {
                    Some(("found", count)) => output.found = count.parse().ok(),
                    Some(("did", count)) => {
                        if let Ok(count) = count.parse() {
                            output.acknowledged = count;
                        }
                        let gap = now.saturating_sub(output.last_nanos) / 1_000_000;
                        if output.times > 0 {
                            output.gaps_millis.push(gap);
                        }
                        output.times += 1;
                    }
                    // Do not count the time of a burst.
                    None if line == "burst" => output.times = 0,
                    Some(("sees" | "dies" | "keeps", _)) => {
                        parse_point_line(&mut output, &line, now);
                        continue;
                    }
                    _ => output.others.push(line),
                }
                output.last_nanos = now;
            }
        });
        let complaints =
            spawn("complaints", move || std::io::read_to_string(stderr).unwrap_or_default());
        Ok(Self {
            child,
            environment,
            output,
            lines: lines.map_err(of_worker)?,
            complaints: complaints.map_err(of_worker)?,
        })
    }

    fn output(&self) -> std::sync::MutexGuard<'_, WorkerOutput> {
        lock(&self.output)
    }

    fn signal(&self, signal: Signal) -> Outcome {
        // The worker has not begun yet.
        let Some(pid) = self.environment.pid_of(self.child.id()) else { return Ok(()) };
        let pid =
            i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| of_worker("no id"))?;
        kill_process(pid, signal).map_err(of_worker)
    }

    /// Ends the worker, by a kill or by closing its input; returns its output.
    fn end(mut self, kills: bool) -> Outcome<WorkerOutput> {
        let by_itself = self.child.try_wait().map_err(of_worker)?;
        if kills {
            self.child.kill().map_err(of_worker)?;
        } else {
            drop(self.child.stdin.take());
        }
        let (status, complaints, output) = self.ended()?;
        let is_right = by_itself.is_none() && (kills || status.success());
        ensure(is_right, || format!("a worker exited by itself ({status}): {complaints}"))?;
        Ok(output)
    }

    /// Waits for its exit; returns the status, its standard error, and its output.
    fn ended(mut self) -> Outcome<(ExitStatus, String, WorkerOutput)> {
        let status = self.child.wait().map_err(of_worker)?;
        self.lines.join().map_err(|_| of_worker("a thread panicked"))?;
        let complaints = self.complaints.join().map_err(|_| of_worker("a thread panicked"))?;
        Ok((status, complaints, std::mem::take(&mut *lock(&self.output))))
    }

    /// Ends the worker after its disk was cut, which may have killed it; returns its output.
    pub(crate) fn cut_off(mut self) -> Outcome<WorkerOutput> {
        self.child.kill().map_err(of_worker)?;
        self.child.wait().map_err(of_worker)?;
        self.lines.join().map_err(|_| of_worker("a thread panicked"))?;
        self.complaints.join().map_err(|_| of_worker("a thread panicked"))?;
        Ok(std::mem::take(&mut *lock(&self.output)))
    }
}

impl Workers {
    /// Runs it.
    ///
    /// # Errors
    /// An acknowledged transfer is lost, a sum is wrong, a worker fails, or the store is damaged.
    pub fn run(&self) -> Outcome<Report> {
        self.environment.prepare(&self.dir)?;
        let mut judge = Judge::new(self.workers);
        match &self.at_points {
            Some(before) => self.kill_at_points(before, &mut judge)?,
            None => self.kill_at_moments(&mut judge)?,
        }
        judge.judge(&self.store(), self.work)
    }

    fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    /// Starts a worker.
    fn start(
        &self,
        number: usize,
        end: Option<&Planned>,
        clock: &Arc<SystemClock>,
    ) -> Outcome<Running> {
        let program = &self.programs[number % self.programs.len()];
        Running::start(
            program,
            &self.store(),
            number as u64,
            self.work,
            self.environment,
            end,
            clock,
        )
    }

    /// Kills and stops workers at random moments.
    fn kill_at_moments(&self, judge: &mut Judge) -> Outcome {
        let clock = Arc::new(SystemClock::new());
        let mut random = Random::new(self.seed);
        let start = |number| self.start(number, None, &clock);
        let mut running: Vec<Running> =
            (0..self.workers as usize).map(start).collect::<Outcome<_>>()?;
        let pause = self.life / u32::try_from(self.workers.max(1)).unwrap_or(1);
        while clock.monotonic_nanos() < self.time.as_nanos() as u64 {
            let times = -((random.below(1_000_000) + 1) as f64 / 1e6).ln();
            clock.sleep(pause.mul_f64(times).min(Duration::from_secs(10)));
            let number = random.below(self.workers) as usize;
            if random.chance(0.1) {
                running[number].signal(Signal::STOP)?;
                clock.sleep(self.stop.mul_f64(random.below(1000) as f64 / 1000.0));
                running[number].signal(Signal::CONT)?;
                judge.report.stops += 1;
                // Do not measure waits across the stop.
                running.iter().for_each(|worker| worker.output().times = 0);
                continue;
            }
            let kills = random.chance(0.8);
            let worker = running.swap_remove(number);
            judge.check_exit(number, worker.end(kills)?, kills)?;
            running.push(start(number)?);
            let last = running.len() - 1;
            running.swap(number, last);
        }
        for (number, worker) in running.into_iter().enumerate() {
            let kills = random.chance(0.5);
            judge.check_exit(number, worker.end(kills)?, kills)?;
        }
        Ok(())
    }
}

/// Collects the output of workers, and checks it.
#[derive(Debug)]
struct Judge {
    /// The last acknowledged count of each worker, over all of its lives.
    acknowledged: Vec<u64>,
    gaps: Vec<u64>,
    history: Vec<Transaction>,
    report: Report,
}

impl Judge {
    fn new(workers: u64) -> Self {
        Self {
            acknowledged: vec![0; workers as usize],
            gaps: Vec::new(),
            history: Vec::new(),
            report: Report::default(),
        }
    }

    /// Checks the output of a worker that has exited.
    fn check_exit(&mut self, number: usize, output: WorkerOutput, was_killed: bool) -> Outcome {
        self.history.extend(read_lines(output.others.iter().map(String::as_str))?);
        *if was_killed { &mut self.report.kills } else { &mut self.report.ends } += 1;
        let before = &mut self.acknowledged[number];
        if let Some(found) = output.found {
            ensure((*before..=*before + 1).contains(&found), || {
                format!("a worker found its count at {found}, but {before} was acknowledged")
            })?;
            *before = (*before).max(found);
        }
        self.report.acknowledged += output.acknowledged.saturating_sub(*before);
        *before = (*before).max(output.acknowledged);
        self.gaps.extend(output.gaps_millis);
        Ok(())
    }

    /// Compares the output with the store, after all have exited.
    fn judge(mut self, store: &Path, work: Work) -> Outcome<Report> {
        self.report.stalls_millis = longest_and_99th(&mut self.gaps);
        match work {
            Work::Bank => look(store, &self.acknowledged).map(drop)?,
            Work::Lists => self.report.checked = look_at_lists(store, &self.history)?,
        }
        Ok(self.report)
    }
}

/// The maximum and the 99th percentile.
fn longest_and_99th(times: &mut [u64]) -> (u64, u64) {
    times.sort_unstable();
    let at = times.get((times.len() * 99 / 100).min(times.len().saturating_sub(1))).copied();
    (times.last().copied().unwrap_or(0), at.unwrap_or(0))
}

/// Opens the store alone and checks it; returns the count of each worker.
pub(crate) fn look(store: &Path, acknowledged: &[u64]) -> Outcome<Vec<u64>> {
    let db = Db::open(store, options()).map_err(failed("the store does not open"))?;
    let space = db.keyspace("bank").map_err(failed("keyspace"))?;
    let mut counts = Vec::new();
    for (number, acknowledged) in acknowledged.iter().enumerate() {
        let found = count_of(&db.snapshot(), &space, number as u64).map_err(failed("count"))?;
        ensure((*acknowledged..=*acknowledged + 1).contains(&found), || {
            format!("worker {number} is at {found}, but {acknowledged} was acknowledged")
        })?;
        counts.push(found);
        let burst = burst_fits(&db.snapshot(), &space, number as u64).map_err(failed("burst"))?;
        burst.map_err(Failure::new)?;
    }
    let sum = sum(&db.snapshot(), &space).map_err(failed("sum"))?;
    // The first worker sets all balances in one transaction.
    let is_new = sum == 0 && counts.iter().all(|count| *count == 0);
    ensure(is_new || sum == ACCOUNTS * OPENING_BALANCE, || format!("the sum is {sum}"))?;
    verify_and_close(db)?;
    Ok(counts)
}

/// Opens the store alone and checks that the printed history agrees with it.
fn look_at_lists(store: &Path, history: &[Transaction]) -> Outcome<HistoryCounts> {
    let db = Db::open(store, options()).map_err(failed("the store does not open"))?;
    let checked = check(history, &lists_in(&db).map_err(failed("lists"))?)?;
    verify_and_close(db)?;
    Ok(checked)
}

fn verify_and_close(db: Db) -> Outcome {
    let report = db.verify(&mut |_| {}).map_err(failed("verify"))?;
    ensure(report.problems.is_empty(), || format!("verify: {:?}", report.problems))?;
    db.close().map_err(failed("close"))
}
