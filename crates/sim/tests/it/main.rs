//! Simulation of the whole store. The numbers of seeds are chosen for a total of about two minutes
//! on two cores. `.ci/run` runs 300 seeds of every mode with optimization; `cargo run --release -p
//! plimsoll-sim -- --seeds 1000` goes further.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod bank;
mod branches;
mod crash;
mod expiry;
mod faults;
mod fixture;
mod flip;
mod kill;
mod members;
mod metamorphic;
mod model;
mod order;
mod planted;
mod promises;
mod stress;
mod sync;
mod workers;

use plimsoll_sim::case::{Case, Mode};
use plimsoll_sim::driver::{CheckOptions, Driver, run};
use plimsoll_sim::failure::Failure;
use plimsoll_sim::op::text::parse;
use plimsoll_sim::world::{Setting, World};

/// Runs this many seeds of a mode; a failure has the command that replays it.
fn run_seeds(mode: Mode, seeds: impl Iterator<Item = u64>) {
    let failed: Vec<String> = seeds
        .map(|seed| Case::new(mode, seed))
        .filter_map(|case| {
            case.run().err().map(|failure| format!("plimsoll-sim {case}: {failure}"))
        })
        .collect();
    assert!(failed.is_empty(), "{} runs failed:\n{}", failed.len(), failed.join("\n"));
}

/// Runs a workload given as text, in a new world.
fn run_text(setting: Setting, text: &str) -> Result<Driver, Failure> {
    run(
        World::new(1, setting),
        CheckOptions { verify_each: true, check_every: 1, ..CheckOptions::default() },
        &parse(text).unwrap(),
    )
}

/// As [`run_text`], and it must succeed.
fn proves(setting: Setting, text: &str) -> Driver {
    run_text(setting, text).unwrap_or_else(|failure| panic!("{failure}"))
}
