//! Several processes on one simulated disk, which have one store open together.
//!
//! Each has a store of its own ([`life`]) and is killed, stopped, joins and leaves by itself
//! ([`seat`]); the power is cut for all. Only one works at a time, but for one that is stopped in
//! the middle of an act: so a seed replays a run. While a process waits for another one, simulated
//! time passes and the others do their background work ([`seat::Crew`]).
//!
//! What is promised is checked by [`driver`]: what a commit has acknowledged is read by every
//! process at once, in one order for all ([`model`]), and survives kills and power cuts.
//! [`kill_every`] kills one process at each of its operations.

mod driver;
pub mod kill_every;
mod life;
mod model;
mod notes;
mod seat;

use crate::driver::guarded;
use crate::failure::Outcome;
use crate::members::driver::Driver;
use crate::op::Op;

/// Runs a workload.
///
/// # Errors
/// A process read something else than what was committed, or failed without a cause.
pub fn run(seed: u64, ops: &[Op]) -> Outcome {
    guarded(|| {
        let mut driver = Driver::new(seed);
        driver.run(ops)?;
        driver.finish()
    })
}
