//! Runs of many seeds: in several threads, with a bar of their progress, and a line for each that fails.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::thread::spawn;
use plimsoll_sim::case::{Case, Mode};
use plimsoll_sim::failure::Failure;

/// Which runs.
pub(crate) struct Runs {
    /// Of each seed, these.
    pub(crate) modes: Vec<Mode>,
    /// The first seed.
    pub(crate) seed: u64,
    /// How many seeds; `None`: until the time is over.
    pub(crate) seeds: Option<u64>,
    /// Nothing is begun after so long.
    pub(crate) nanos_max: Option<u64>,
    /// Operations of a run, if not the mode's own number.
    pub(crate) ops: Option<usize>,
    /// Threads.
    pub(crate) jobs: u64,
    /// Nothing is begun after a run failed.
    pub(crate) first: bool,
}

/// What came of them.
pub(crate) struct Report {
    /// How many were run.
    pub(crate) runs: u64,
    /// How long that took.
    pub(crate) seconds: u64,
    /// Those that failed.
    pub(crate) failed: Vec<Case>,
}

impl Runs {
    /// Run `number`, if there is one: seed by seed, each in all modes.
    pub(crate) fn case(&self, number: u64) -> Option<Case> {
        let modes = self.modes.len() as u64;
        let seed = number / modes;
        if self.seeds.is_some_and(|seeds| seed >= seeds) {
            return None;
        }
        let case = Case::new(self.modes[(number % modes) as usize], self.seed.checked_add(seed)?);
        Some(Case { ops: self.ops.unwrap_or(case.ops), ..case })
    }

    /// Runs them all.
    ///
    /// # Errors
    /// No thread could be started.
    pub(crate) fn run(self) -> Result<Report, String> {
        let jobs = self.jobs.max(1);
        let shared = Arc::new(Shared {
            runs: self,
            next: AtomicU64::new(0),
            done: AtomicU64::new(0),
            over: AtomicBool::new(false),
            clock: SystemClock::new(),
        });
        let workers = (0..jobs).map(|_| {
            let shared = Arc::clone(&shared);
            spawn("runs", move || shared.work()).map_err(|error| error.to_string())
        });
        let workers: Vec<_> = workers.collect::<Result<_, _>>()?;
        let mut failed = Vec::new();
        for worker in workers {
            failed.extend(worker.join().map_err(|_| "a thread panicked".to_owned())?);
        }
        let runs = shared.done.load(Ordering::Relaxed);
        Ok(Report { runs, seconds: shared.clock.monotonic_nanos() / 1_000_000_000, failed })
    }
}

struct Shared {
    runs: Runs,
    next: AtomicU64,
    done: AtomicU64,
    over: AtomicBool,
    clock: SystemClock,
}

impl Shared {
    fn work(&self) -> Vec<Case> {
        let mut failed = Vec::new();
        while !self.is_over() {
            let Some(case) = self.runs.case(self.next.fetch_add(1, Ordering::Relaxed)) else { break };
            // A panic is told in the line of its run; where it happened is told beside it.
            if let Err(failure) = case.run() {
                clear_bar();
                println!("{}", line_of(&case, &failure));
                failed.push(case);
                self.over.fetch_or(self.runs.first, Ordering::Relaxed);
            }
            self.done.fetch_add(1, Ordering::Relaxed);
            self.show_progress(case.seed);
        }
        failed
    }

    fn is_over(&self) -> bool {
        let late = self.runs.nanos_max.is_some_and(|most| self.clock.monotonic_nanos() >= most);
        late || self.over.load(Ordering::Relaxed)
    }

    fn show_progress(&self, seed: u64) {
        const WIDTH: u64 = 40;
        let mut out = std::io::stderr().lock();
        if !out.is_terminal() {
            return;
        }
        let (done, nanos) = (self.done.load(Ordering::Relaxed), self.clock.monotonic_nanos());
        let (part, whole) = match (self.runs.seeds, self.runs.nanos_max) {
            (Some(seeds), _) => (done, seeds * self.runs.modes.len() as u64),
            (None, most) => (nanos / 1_000_000, most.unwrap_or(0) / 1_000_000),
        };
        let filled = (part * WIDTH / whole.max(1)).min(WIDTH) as usize;
        let bar = format!("{}{}", "=".repeat(filled), " ".repeat(WIDTH as usize - filled));
        // A bar that cannot be drawn is no reason to stop.
        let _ = write!(out, "\r[{bar}] {done} runs, seed {seed}, {} s ", nanos / 1_000_000_000);
        let _ = out.flush();
    }
}

/// Takes the bar away, so that a line can stand in its place.
pub(crate) fn clear_bar() {
    let mut out = std::io::stderr().lock();
    if out.is_terminal() {
        let _ = write!(out, "\r\x1b[K");
    }
}

/// What is said of a run that failed: in one line, with the arguments that replay it.
pub(crate) fn line_of(case: &Case, failure: &Failure) -> String {
    let line = failure.to_string().replace('\n', " | ");
    format!("FAILED {case}: {line}")
}
