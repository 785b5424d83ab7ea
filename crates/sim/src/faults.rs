//! Runs with failing disks or too little memory.

use crate::case::Case;
use crate::driver::{CheckOptions, Driver, run};
use crate::failure::{Failure, Outcome};
use crate::op::{Fault, Op};

/// Runs a workload in which faults come and go.
///
/// # Errors
/// The store differs from the model.
pub fn run_faulty(case: &Case, ops: &[Op]) -> Outcome<Driver> {
    run(case.world(), CheckOptions::default(), ops)
}

/// Runs a workload that asks for more than the smallest budget. Operations may be refused, but
/// nothing may be lost or leaked.
///
/// # Errors
/// The store differs from the model.
pub fn run_short_of_memory(case: &Case, ops: &[Op]) -> Outcome<Driver> {
    let mut world = case.world();
    world.setting.memory_bytes = plimsoll::MIN_MEMORY_BYTES;
    run(world, CheckOptions { may_refuse: true, ..CheckOptions::default() }, ops)
}

/// Makes the first sync at or after each operation of a workload fail, reopens the store a little
/// later, and cuts the power at the end. Commits acknowledged after the failure must not depend on
/// data of the failed sync.
///
/// # Errors
/// The store differs from the model.
pub fn fail_each_sync(case: &Case, ops: &[Op]) -> Outcome {
    for number in 0..ops.len() {
        let mut faulty = ops.to_vec();
        faulty.push(Op::Crash { again: 0 });
        faulty.insert((number + 4).min(ops.len()), Op::Reopen);
        faulty.insert(number, Op::Fault(Fault::Sync));
        run(case.world(), CheckOptions::default(), &faulty).map_err(|failure| Failure {
            message: format!("with a failed sync at operation {number}: {}", failure.message),
            ..failure
        })?;
    }
    Ok(())
}
