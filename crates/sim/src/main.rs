//! Runs the simulation: `cargo run --release -p plimsoll-sim -- --seeds 200`.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Parser;
use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::random::Random;
use plimsoll_disk::thread::spawn;
use plimsoll_sim::case::{Case, Mode};
use plimsoll_sim::failure::Failure;
use plimsoll_sim::flip::{Choice, ClosedStore, Flips, PLAIN, RICH};
use plimsoll_sim::kill::{Scenario, child};
use plimsoll_sim::minimise::minimise;
use plimsoll_sim::op::{Op, text};

/// Runs of a failing workload, while it is shortened.
const MINIMISE_RUNS: usize = 2000;

/// The whole store under one seed: workloads against a model, on disks that fail.
///
/// Prints one line for each run that fails, with the arguments that replay it, and exits with 1 if there was one.
#[derive(Debug, Parser)]
#[command(
    name = "plimsoll-sim",
    version,
    after_help = "Examples:
  plimsoll-sim --seeds 200                         200 seeds of every mode
  plimsoll-sim --mode crash --seed 17              one run, again
  plimsoll-sim --mode crash --seed 17 --minimise   the same, shortened, as text
  plimsoll-sim --mode crash --seed 17 --replay ops.txt"
)]
struct Arguments {
    /// How many seeds, from --seed or 0 on.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Operations of a run; each mode has its own number otherwise.
    #[arg(long)]
    ops: Option<usize>,
    /// model, every-sync, crash, failed-reads, flips, full, failed-syncs, budget, metamorphic, flip, or all.
    #[arg(long, default_value = "all")]
    mode: String,
    /// Threads that run workloads at the same time.
    #[arg(long, default_value_t = 2)]
    jobs: u64,
    /// Shortens a workload that fails and prints it.
    #[arg(long)]
    minimise: bool,
    /// Prints the workload and does not run it.
    #[arg(long)]
    print: bool,
    /// Runs the operations in this file in place of those of the seed.
    #[arg(long)]
    replay: Option<PathBuf>,
    /// Changes every so many bytes in mode flip.
    #[arg(long, default_value_t = 1)]
    every: u64,
    /// The first byte that is changed in mode flip.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Of zeros that only fill up, every so many bytes in mode flip.
    #[arg(long, default_value_t = 1)]
    filler_every: u64,
    /// The store of mode flip has files of every kind.
    #[arg(long)]
    rich: bool,
    /// Address space that the process may take, in MiB: a demand beyond it ends the process.
    #[arg(long)]
    limit_mib: Option<u64>,
    /// Writes to a store until it is killed.
    #[arg(long, hide = true, requires = "store")]
    child: Option<Scenario>,
    #[arg(hide = true)]
    store: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(mib) = arguments.limit_mib {
        let limit = rustix::process::Rlimit { current: Some(mib << 20), maximum: Some(mib << 20) };
        if let Err(error) = rustix::process::setrlimit(rustix::process::Resource::As, limit) {
            eprintln!("the limit cannot be set: {error}");
            return ExitCode::from(2);
        }
    }
    match run(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

/// Whether all went well.
fn run(arguments: Arguments) -> Result<bool, String> {
    if let (Some(scenario), Some(store)) = (arguments.child, &arguments.store) {
        return child::live(scenario, store).map(|()| true).map_err(|error| error.to_string());
    }
    if arguments.mode == "flip" {
        return flip(&arguments);
    }
    let modes = match arguments.mode.as_str() {
        "all" => Mode::ALL.iter().map(|(mode, _)| *mode).collect(),
        name => vec![name.parse::<Mode>()?],
    };
    let seeds = arguments.seed..arguments.seed.saturating_add(arguments.seeds);
    let cases: Vec<Case> = seeds
        .flat_map(|seed| modes.iter().map(move |mode| Case::new(*mode, seed)))
        .map(|case| Case { ops: arguments.ops.unwrap_or(case.ops), ..case })
        .collect();
    if arguments.print {
        cases.iter().for_each(|case| print!("# {case}\n{}", text::print(&case.workload())));
        return Ok(true);
    }
    if let (Some(path), [case, ..]) = (&arguments.replay, &cases[..]) {
        return replay(path, case);
    }
    let failed = run_cases(&cases, arguments.jobs)?;
    if arguments.minimise {
        failed.iter().for_each(shorten);
    }
    Ok(failed.is_empty())
}

#[allow(clippy::disallowed_methods, reason = "the command's own input, no file of a store")]
fn replay(path: &PathBuf, case: &Case) -> Result<bool, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let ops = text::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    let outcome = case.run_workload(&ops);
    if let Err(failure) = &outcome {
        println!("{}", line_of(case, failure));
    }
    Ok(outcome.is_ok())
}

/// Runs cases in several threads; those that failed.
fn run_cases(cases: &[Case], jobs: u64) -> Result<Vec<Case>, String> {
    // A panic is told in the line of its run; where it happened is told beside it.
    let next = Arc::new(AtomicU64::new(0));
    let shared: Arc<[Case]> = cases.into();
    let clock = Arc::new(SystemClock::new());
    let workers = (0..jobs.max(1)).map(|_| {
        let (next, cases, clock) = (Arc::clone(&next), Arc::clone(&shared), Arc::clone(&clock));
        spawn("runs", move || work_through(&next, &cases, &*clock)).map_err(|error| error.to_string())
    });
    let workers: Vec<_> = workers.collect::<Result<_, _>>()?;
    let mut failed = Vec::new();
    for worker in workers {
        failed.extend(worker.join().map_err(|_| "a thread panicked".to_owned())?);
    }
    let seconds = clock.monotonic_nanos() / 1_000_000_000;
    eprintln!("\r{} runs, {} failed, {seconds} s", cases.len(), failed.len());
    Ok(failed)
}

fn work_through(next: &AtomicU64, cases: &[Case], clock: &dyn Clock) -> Vec<Case> {
    let mut failed = Vec::new();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let Some(case) = cases.get(number as usize) else { return failed };
        if let Err(failure) = case.run() {
            println!("{}", line_of(case, &failure));
            failed.push(*case);
        }
        show_progress(number + 1, cases.len() as u64, clock);
    }
}

fn line_of(case: &Case, failure: &Failure) -> String {
    let line = failure.to_string().replace('\n', " | ");
    format!("FAILED {case}: {line}")
}

fn show_progress(done: u64, all: u64, clock: &dyn Clock) {
    let mut out = std::io::stderr().lock();
    if out.is_terminal() {
        const WIDTH: u64 = 40;
        let filled = (done * WIDTH / all.max(1)) as usize;
        let bar = format!("{}{}", "=".repeat(filled), " ".repeat(WIDTH as usize - filled));
        let seconds = clock.monotonic_nanos() / 1_000_000_000;
        // A bar that cannot be drawn is no reason to stop.
        let _ = write!(out, "\r[{bar}] {done}/{all} runs, {seconds} s ");
        let _ = out.flush();
    }
}

fn shorten(case: &Case) {
    let sort = |ops: &[Op]| case.run_workload(ops).err().map(|failure| failure.sort());
    let whole = sort(&case.workload());
    let ops = minimise(&case.workload(), MINIMISE_RUNS, &mut |ops| sort(ops) == whole);
    let failure = case.run_workload(&ops).err().map_or_else(String::new, |failure| failure.to_string());
    println!("# {case}\n# {}\n{}", failure.replace('\n', "\n# "), text::print(&ops));
}

fn flip(arguments: &Arguments) -> Result<bool, String> {
    let workload = if arguments.rich { RICH } else { PLAIN };
    let failed = |failure: Failure| format!("FAILED --mode flip --seed {}: {failure}", arguments.seed);
    let store = ClosedStore::new(workload).map_err(failed)?;
    let choice =
        Choice { every: arguments.every.max(1), from: arguments.from, filler_every: arguments.filler_every.max(1) };
    match store.flip(choice, &mut Random::new(arguments.seed)) {
        Err(failure) => {
            println!("{}", failed(failure));
            Ok(false)
        }
        Ok(Flips { bytes, refused, reported, harmless }) => {
            let all: usize = store.files().map(|(_, bytes)| bytes).sum();
            println!(
                "{bytes} of {all} bytes changed: {refused} refused at open, {reported} reported, {harmless} harmless"
            );
            Ok(true)
        }
    }
}
