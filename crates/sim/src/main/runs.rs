//! Runs of many seeds: in several threads, with a bar of their progress, and a line for each that
//! fails or does not come to its end.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::thread::spawn;
use plimsoll_sim::case::{Case, Mode};
use plimsoll_sim::failure::Failure;

/// How often it is looked whether runs have come to their end.
const LOOK: Duration = Duration::from_millis(20);

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
    /// A run that takes longer has failed.
    pub(crate) nanos_each: u64,
}

/// What came of them.
pub(crate) struct Report {
    /// How many were run.
    pub(crate) runs: u64,
    /// How long that took.
    pub(crate) seconds: u64,
    /// Those that failed.
    pub(crate) failed: Vec<Case>,
    /// Whether one of them did not come to its end; it is still at work.
    pub(crate) hangs: bool,
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

    /// Runs them all, or until one does not come to its end: its thread cannot be stopped, only the
    /// process can end.
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
    /// What each worker runs, and since when.
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
            // A panic is told in the line of its run; where it happened is told beside it.
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
            &Failure::new(format!("it does not come to its end within {seconds} s (--patience)")),
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
        // A bar that cannot be drawn is no reason to stop.
        let _ = write!(out, "\r[{bar}] {done} runs, seed {seed}, {} s ", nanos / 1_000_000_000);
        let _ = out.flush();
    }
}

/// Takes a lock whose holder may have panicked: what it guards is whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn each_seed_is_run_once_in_each_mode() {
        let report = runs(3, u64::MAX).run().unwrap();
        assert_eq!((report.runs, report.failed, report.hangs), (6, vec![], false));
    }

    #[test]
    fn a_run_that_does_not_come_to_its_end_is_told_and_ends_it_all() {
        let report = Runs { ops: Some(20_000), ..runs(1, 0) }.run().unwrap();
        assert!(
            report.hangs && report.failed.len() == 1 && report.failed[0].seed == 7,
            "{:?}",
            report.failed
        );
    }
}
