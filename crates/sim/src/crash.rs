//! Power cuts, at every sync of a run.
//!
//! A first run counts the syncs. Then, for each sync, the same run is repeated in a separate world
//! whose power is cut there. The store is reopened, compared, and continues to the end of the
//! workload. Each cut makes a new random choice of the unsynced writes that survive.

use crate::case::Case;
use crate::driver::{CheckOptions, run};
use crate::failure::{Failure, Outcome, ensure};
use crate::op::Op;

/// Cuts the power at every sync of a workload; returns the number of syncs.
///
/// # Errors
/// The store differs from the model.
pub fn cut_at_every_sync(case: &Case, ops: &[Op]) -> Outcome<u64> {
    let whole = run(case.world(), CheckOptions::default(), ops)?;
    let syncs = whole.world().disk.sync_count();
    for sync in 1..=syncs {
        cut_at(case, ops, sync).map_err(|failure| Failure {
            message: format!("with the power cut at sync {sync} of {syncs}: {}", failure.message),
            ..failure
        })?;
    }
    Ok(syncs)
}

fn cut_at(case: &Case, ops: &[Op], sync: u64) -> Outcome {
    let world = case.world();
    world.disk.reseed(case.seed.wrapping_mul(1_000_003).wrapping_add(sync));
    world.disk.cut_power_at_sync(sync);
    let driver = run(world, CheckOptions::default(), ops)?;
    let cuts = driver.world().disk.injected().power_cuts;
    ensure(cuts == 1, || {
        format!("the power was cut {cuts} times: the run diverged from the first one")
    })
}
