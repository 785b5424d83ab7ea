//! `plimsoll-sim kill-every`: kills one of several processes at each of its operations.

use clap::Args;
use plimsoll_sim::members::kill_every::{Kills, ProcessEvent, kill_at_every, scenario};

/// Arguments of `kill-every`.
#[derive(Args, Debug)]
pub(crate) struct KillEveryArguments {
    /// Number of the first seed; each seed has other settings of the store.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of seeds.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Kill at every n-th operation.
    #[arg(long, default_value_t = 1)]
    every: u64,
    /// Stop the process for a while instead of killing it.
    #[arg(long, conflicts_with = "cut")]
    stop: bool,
    /// After the kill, let the others commit, read, flush and trim at once, then cut the power.
    #[arg(long)]
    cut: bool,
    /// Number of runs at the same time, one per thread.
    #[arg(long, default_value_t = 2)]
    jobs: u64,
    /// Skip this many operations of each process.
    #[arg(long, default_value_t = 0)]
    from: u64,
}

/// Runs the command; returns whether it succeeded.
pub(crate) fn run(arguments: &KillEveryArguments) -> Result<bool, String> {
    let what = match arguments {
        KillEveryArguments { stop: true, .. } => ProcessEvent::Stop,
        KillEveryArguments { cut: true, .. } => ProcessEvent::KillAndCut,
        _ => ProcessEvent::Kill,
    };
    let (mut all_well, mut all_runs) = (true, 0);
    for seed in arguments.seed..arguments.seed.saturating_add(arguments.seeds) {
        match kill_at_every(
            seed,
            &scenario(),
            what,
            (arguments.from, arguments.every),
            arguments.jobs,
        ) {
            Ok(Kills { operations, runs }) => {
                all_runs += runs;
                println!("seed {seed}: {operations} operations, {runs} runs");
            }
            Err(failure) => {
                all_well = false;
                println!("FAILED kill-every --seed {seed}: {failure}");
            }
        }
    }
    println!(
        "{all_runs} runs, each with a process {} at another operation",
        if arguments.stop { "stopped" } else { "killed" }
    );
    Ok(all_well)
}
