//! Runs many seeds in several threads, with a progress bar, and prints a line for each run that
//! fails or hangs.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::mutex::lock;
use plimsoll_disk::thread::spawn;
use plimsoll_sim::case::{Case, Mode};
use plimsoll_sim::failure::Failure;

/// Interval between checks for finished runs.
const LOOK: Duration = Duration::from_millis(20);

/// The runs to execute.
pub(crate) struct Runs {
    /// The modes to run for each seed.
    pub(crate) modes: Vec<Mode>,
    /// The first seed.
    pub(crate) seed: u64,
    /// Number of seeds; `None`: until the time limit.
    pub(crate) seeds: Option<u64>,
    /// Time limit, after which no run is started.
    pub(crate) nanos_max: Option<u64>,
    /// Operations of a run, if not the mode's default.
    pub(crate) ops: Option<usize>,
    /// Threads.
    pub(crate) jobs: u64,
    /// Stop after the first failure.
    pub(crate) first: bool,
    /// Time limit of one run.
    pub(crate) nanos_each: u64,
}

/// The results.
pub(crate) struct Report {
    /// Number of runs.
    pub(crate) runs: u64,
    /// Total time.
    pub(crate) seconds: u64,
    /// Failed runs.
    pub(crate) failed: Vec<Case>,
    /// Whether a run hung; its thread is still running.
    pub(crate) hangs: bool,
}

impl Runs {
    /// The run with this number, if any: seed by seed, each in all modes.
    pub(crate) fn case(&self, number: u64) -> Option<Case> {
        let modes = self.modes.len() as u64;
        let seed = number / modes;
        if self.seeds.is_some_and(|seeds| seed >= seeds) {
            return None;
        }
        let case = Case::new(self.modes[(number % modes) as usize], self.seed.checked_add(seed)?);
        Some(Case { ops: self.ops.unwrap_or(case.ops), ..case })
    }

    /// Executes all runs. Stops if one hangs: its thread cannot be stopped, so the process must
    /// exit.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(crate) fn run(self) -> Result<Report, String> {
        let jobs = self.jobs.max(1);
        let shared = Arc::new(Shared {
            runs: self,
            next: AtomicU64::new(0),
            done: AtomicU64::new(0),
            over: AtomicBool::new(false),
            at_work: (0..jobs).map(|_| Mutex::new(None)).collect(),
            failed: Mutex::new(Vec::new()),
            clock: SystemClock::new(),
        });
        let workers = (0..jobs as usize).map(|worker| {
            let shared = Arc::clone(&shared);
            spawn("runs", move || shared.work(worker)).map_err(|error| error.to_string())
        });
        let workers: Vec<_> = workers.collect::<Result<_, _>>()?;
        let mut hangs = false;
        while !hangs && !workers.iter().all(JoinHandle::is_finished) {
            shared.clock.sleep(LOOK);
            hangs = shared.look_for_one_that_hangs();
        }
        if !hangs {
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().map_err(|_| "a thread panicked".to_owned()))?;
        }
        let runs = shared.done.load(Ordering::Relaxed) + u64::from(hangs);
        let failed = std::mem::take(&mut *lock(&shared.failed));
        Ok(Report { runs, seconds: shared.clock.monotonic_nanos() / 1_000_000_000, failed, hangs })
    }
}

struct Shared {
    runs: Runs,
    next: AtomicU64,
    done: AtomicU64,
    over: AtomicBool,
    /// The present run of each worker, and its start time.
    at_work: Vec<Mutex<Option<(Case, u64)>>>,
    failed: Mutex<Vec<Case>>,
    clock: SystemClock,
}

impl Shared {
    fn work(&self, worker: usize) {
        while !self.is_over() {
            let Some(case) = self.runs.case(self.next.fetch_add(1, Ordering::Relaxed)) else {
                break;
            };
            *lock(&self.at_work[worker]) = Some((case, self.clock.monotonic_nanos()));
            // The line of a run reports its panic; the hook adds the location.
            let outcome = case.run();
            *lock(&self.at_work[worker]) = None;
            if let Err(failure) = outcome {
                self.tell(case, &failure);
            }
            self.done.fetch_add(1, Ordering::Relaxed);
            self.show_progress(case.seed);
        }
    }

    fn look_for_one_that_hangs(&self) -> bool {
        let now = self.clock.monotonic_nanos();
        let late = |(_, since): &(Case, u64)| now.saturating_sub(*since) > self.runs.nanos_each;
        let Some((case, _)) = self.at_work.iter().find_map(|at_work| lock(at_work).filter(late))
        else {
            return false;
        };
        let seconds = self.runs.nanos_each / 1_000_000_000;
        self.tell(
            case,
            &Failure::new(format!("the run does not end within {seconds} s (--patience)")),
        );
        true
    }

    fn tell(&self, case: Case, failure: &Failure) {
        clear_bar();
        println!("{}", line_of(&case, failure));
        lock(&self.failed).push(case);
        self.over.fetch_or(self.runs.first, Ordering::Relaxed);
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
        // Ignore errors of drawing the bar.
        let _ = write!(out, "\r[{bar}] {done} runs, seed {seed}, {} s ", nanos / 1_000_000_000);
        let _ = out.flush();
    }
}

/// Clears the bar, so that a line can be printed in its place.
pub(crate) fn clear_bar() {
    let mut out = std::io::stderr().lock();
    if out.is_terminal() {
        let _ = write!(out, "\r\x1b[K");
    }
}

/// The report of a failed run: one line, with the arguments that replay it.
pub(crate) fn line_of(case: &Case, failure: &Failure) -> String {
    let line = failure.to_string().replace('\n', " | ");
    format!("FAILED {case}: {line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(seeds: u64, nanos_each: u64) -> Runs {
        let modes = vec![Mode::Model, Mode::Rot];
        Runs {
            modes,
            seed: 7,
            seeds: Some(seeds),
            nanos_max: None,
            ops: Some(30),
            jobs: 2,
            first: false,
            nanos_each,
        }
    }

    #[test]
    fn each_seed_runs_once_in_each_mode() {
        let report = runs(3, u64::MAX).run().unwrap();
        assert_eq!((report.runs, report.failed, report.hangs), (6, vec![], false));
    }

    #[test]
    fn hung_run_is_reported_and_ends_all_runs() {
        let report = Runs { ops: Some(20_000), ..runs(1, 0) }.run().unwrap();
        assert!(
            report.hangs && report.failed.len() == 1 && report.failed[0].seed == 7,
            "{:?}",
            report.failed
        );
    }
}
