//! Runs the simulation: `cargo run --release -p plimsoll-sim -- --seeds 200`.

#[path = "main/kill_every.rs"]
mod kill_every;
#[path = "main/planted.rs"]
mod planted;
#[path = "main/real.rs"]
mod real;
#[path = "main/runs.rs"]
mod runs;
#[path = "main/stress.rs"]
mod stress;
#[path = "main/workers.rs"]
mod workers;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use plimsoll::borders::{Border, counts};
use plimsoll_disk::random::Random;
use plimsoll_sim::case::{Case, Mode};
use plimsoll_sim::failure::Failure;
use plimsoll_sim::flip::{Choice, ClosedStore, FlipCounts, PLAIN, RICH};
use plimsoll_sim::kill::{Scenario, child};
use plimsoll_sim::minimise::minimise;
use plimsoll_sim::op::{Op, text};

use crate::kill_every::KillEveryArguments;
use crate::planted::PlantedArguments;
use crate::real::{PowerArguments, ReadersArguments, SyscallsArguments};
use crate::runs::{Runs, line_of};
use crate::stress::StressArguments;
use crate::workers::WorkersArguments;

/// With this many seeds of every mode, each border case of the store must have been reached.
const FLOOR_SEEDS: u64 = 300;

/// The most runs to shorten a failing workload.
const MINIMISE_RUNS: usize = 2000;

/// Simulates the whole store from a seed: runs workloads on disks that fail, and compares every
/// answer with a model.
///
/// Prints one line for each run that fails, with the arguments that replay it; exits with 1 if any
/// run failed.
#[derive(Debug, Parser)]
#[command(
    name = "plimsoll-sim",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:
  plimsoll-sim --seeds 200                         200 seeds of every mode
  plimsoll-sim --mode crash --seed 17              one run, replayed
  plimsoll-sim --mode crash --seed 17 --minimise   the same, shortened, as text
  plimsoll-sim --mode crash --seed 17 --replay ops.txt
  plimsoll-sim --hours 2 --seed 1000               a soak test: seeds from 1000 on, one by one
  plimsoll-sim --mode members --seeds 1000         several processes that share a store, killed, \
                  stopped, joining and leaving
  plimsoll-sim kill-every --every 7                one of them killed at every 7th of its \
                  operations
  plimsoll-sim workers --points                    real processes, each killed at a chosen point
  plimsoll-sim planted                             checks that the simulation finds planted bugs
  plimsoll-sim stress --minutes 60 --svg memory.svg"
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Number of seeds to run, from --seed on [default: 1; with --hours: as many as fit].
    #[arg(long)]
    seeds: Option<u64>,
    /// Start no new run after this many hours (0.5: half an hour).
    #[arg(long)]
    hours: Option<f64>,
    /// Stop after the first run that fails.
    #[arg(long)]
    first: bool,
    /// Seconds after which a run counts as hung, which is a failure and starts no further run.
    #[arg(long, default_value_t = 600)]
    patience: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Operations in a run [default: depends on the mode].
    #[arg(long)]
    ops: Option<usize>,
    /// Mode: model, every-sync, crash, failed-reads, flips, full, failed-syncs, budget,
    /// metamorphic, rot, members, expiry, branches, sync, order, flip, or all.
    #[arg(long, default_value = "all")]
    mode: String,
    /// Number of runs at the same time, one per thread.
    #[arg(long, default_value_t = 2)]
    jobs: u64,
    /// Print how often the runs reached each border case of the store: a transaction spilled, a
    /// table full, ...
    #[arg(long)]
    borders: bool,
    /// Shorten a failing workload and print it.
    #[arg(long)]
    minimise: bool,
    /// Print the workload instead of running it.
    #[arg(long)]
    print: bool,
    /// Run the operations in this file instead of those of the seed.
    #[arg(long)]
    replay: Option<PathBuf>,
    /// Mode flip: change every n-th byte.
    #[arg(long, default_value_t = 1)]
    every: u64,
    /// Mode flip: number of the first byte to change.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Mode flip: change every n-th byte of zero padding.
    #[arg(long, default_value_t = 1)]
    filler_every: u64,
    /// Mode flip: use a store with files of every kind.
    #[arg(long)]
    rich: bool,
    /// Limit of the process's address space in MiB; exceeding it ends the process.
    #[arg(long)]
    limit_mib: Option<u64>,
    /// Writes to a store until it is killed.
    #[arg(long, hide = true, requires = "store")]
    child: Option<Scenario>,
    #[arg(hide = true)]
    store: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Apply known bugs to a copy of the sources, one at a time, and check that the simulation
    /// finds each.
    Planted(PlantedArguments),
    /// Run a store with real threads, kill and restart it repeatedly, and measure its memory from
    /// outside.
    Stress(StressArguments),
    /// Run several processes on one store, and kill, stop and restart them.
    Workers(WorkersArguments),
    /// Simulate several processes on one store, and kill one of them at each operation.
    KillEvery(KillEveryArguments),
    /// Simulate power cuts of a real file system under a writer. Needs root and loop devices.
    Power(PowerArguments),
    /// Make system calls of a writer fail, one kind after the other. Needs strace.
    Syscalls(SyscallsArguments),
    /// Read a store in one process while another one writes and trims it.
    Readers(ReadersArguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(mib) = arguments.limit_mib {
        let limit = rustix::process::Rlimit { current: Some(mib << 20), maximum: Some(mib << 20) };
        if let Err(error) = rustix::process::setrlimit(rustix::process::Resource::As, limit) {
            eprintln!("cannot set the limit: {error}");
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
    match &arguments.command {
        Some(Command::Planted(planted)) => return planted::run(planted),
        Some(Command::Stress(stress)) => return stress::run(stress),
        Some(Command::Workers(workers)) => return workers::run(workers),
        Some(Command::KillEvery(kill_every)) => return kill_every::run(kill_every),
        Some(Command::Power(power)) => return real::power(power),
        Some(Command::Syscalls(syscalls)) => return real::syscalls(syscalls),
        Some(Command::Readers(readers)) => return real::readers(readers),
        None => {}
    }
    if arguments.mode == "flip" {
        return flip(&arguments);
    }
    let modes = match arguments.mode.as_str() {
        "all" => Mode::ALL.iter().map(|(mode, _)| *mode).collect(),
        name => vec![name.parse::<Mode>()?],
    };
    let seeds = arguments.seeds.or(arguments.hours.is_none().then_some(1));
    let nanos_max = arguments.hours.map(|hours| (hours.max(0.0) * 3.6e12) as u64);
    let Arguments { seed, ops, jobs, first, .. } = arguments;
    let nanos_each = arguments.patience.saturating_mul(1_000_000_000);
    let runs = Runs { modes, seed, seeds, nanos_max, ops, jobs, first, nanos_each };
    if arguments.print {
        let cases = (0..).map_while(|number| runs.case(number));
        cases.for_each(|case| print!("# {case}\n{}", text::print(&case.workload())));
        return Ok(true);
    }
    if let (Some(path), Some(case)) = (&arguments.replay, runs.case(0)) {
        return replay(path, &case);
    }
    let report = runs.run()?;
    runs::clear_bar();
    let (failed, seconds) = (report.failed, report.seconds);
    let never = if arguments.mode == "all" {
        borders_never_crossed(&arguments, report.runs)
    } else {
        Vec::new()
    };
    eprintln!("{} runs, {} failed, {seconds} s", report.runs, failed.len());
    // A run that hangs would hang again.
    if arguments.minimise && !report.hangs {
        failed.iter().for_each(shorten);
    }
    Ok(failed.is_empty() && never.is_empty())
}

/// Prints and returns the border cases that no run reached, if there were enough runs.
fn borders_never_crossed(arguments: &Arguments, runs: u64) -> Vec<Border> {
    let counts = counts();
    if arguments.borders {
        counts.iter().for_each(|(border, count)| println!("{border:<30?} {count}"));
    }
    if runs < FLOOR_SEEDS * Mode::ALL.len() as u64 {
        return Vec::new();
    }
    let never: Vec<Border> =
        counts.into_iter().filter(|(_, count)| *count == 0).map(|(border, _)| border).collect();
    for border in &never {
        println!(
            "NEVER REACHED {border:?}: the simulation does not test it; change the workloads so \
             that some run reaches it"
        );
    }
    never
}

#[allow(
    clippy::disallowed_methods,
    reason = "the file is an input of the command, not part of a store"
)]
fn replay(path: &PathBuf, case: &Case) -> Result<bool, String> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let ops = text::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    let outcome = case.run_workload(&ops);
    if let Err(failure) = &outcome {
        println!("{}", line_of(case, failure));
    }
    Ok(outcome.is_ok())
}

fn shorten(case: &Case) {
    let sort = |ops: &[Op]| case.run_workload(ops).err().map(|failure| failure.sort());
    let whole = sort(&case.workload());
    let ops = minimise(&case.workload(), MINIMISE_RUNS, &mut |ops| sort(ops) == whole);
    let failure =
        case.run_workload(&ops).err().map_or_else(String::new, |failure| failure.to_string());
    println!("# {case}\n# {}\n{}", failure.replace('\n', "\n# "), text::print(&ops));
}

fn flip(arguments: &Arguments) -> Result<bool, String> {
    let workload = if arguments.rich { RICH } else { PLAIN };
    let failed =
        |failure: Failure| format!("FAILED --mode flip --seed {}: {failure}", arguments.seed);
    let store = ClosedStore::new(workload).map_err(failed)?;
    let choice = Choice {
        every: arguments.every.max(1),
        from: arguments.from,
        filler_every: arguments.filler_every.max(1),
    };
    match store.flip(choice, &mut Random::new(arguments.seed)) {
        Err(failure) => {
            println!("{}", failed(failure));
            Ok(false)
        }
        Ok(FlipCounts { bytes, refused, reported, harmless }) => {
            let all: usize = store.files().map(|(_, bytes)| bytes).sum();
            println!(
                "{bytes} of {all} bytes changed: {refused} refused at open, {reported} reported, \
                 {harmless} harmless"
            );
            Ok(true)
        }
    }
}
