//! Several simulated processes that share a store on one simulated disk.
//!
//! Each process has its own handle of the store ([`life`]), and is killed, stopped, joins and
//! leaves independently ([`process_slot`]); a power cut hits all of them. Only one process runs at
//! a time, and a stopped one is in the middle of an act, so that a seed replays a run. While a
//! process waits for another, simulated time passes and the others run their background work
//! ([`process_slot::BackgroundPeers`]).
//!
//! [`driver`] checks the guarantees: every process reads an acknowledged commit at once, in one
//! order for all ([`model`]), and the commit survives kills and power cuts. [`kill_every`] kills
//! one process at each of its operations.

mod driver;
pub mod kill_every;
mod life;
mod model;
mod notes;
mod process_slot;
mod tags;

use crate::driver::guarded;
use crate::failure::Outcome;
use crate::members::driver::Driver;
use crate::op::Op;

/// Runs a workload.
///
/// # Errors
/// A process read something other than the committed data, or failed without an excuse.
pub fn run(seed: u64, ops: &[Op]) -> Outcome {
    guarded(|| {
        let mut driver = Driver::new(seed);
        driver.run(ops)?;
        driver.finish()
    })
}
