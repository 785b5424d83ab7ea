//! Kills one process at each of its operations of the disk, of locks and of shared words, in a short scenario; or stops it there for a while.
//!
//! A first run counts the operations of each process. Then the scenario is run once for each of them, with the process killed or stopped there; the
//! others go on, and in the end all is compared.

use crate::driver::guarded;
use crate::failure::{Failure, Outcome};
use crate::members::driver::Driver;
use crate::op::Op;
use crate::op::among::{Act, Among};

/// What happens to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It is killed.
    Kill,
    /// It is stopped, and goes on after some acts of the others.
    Stop,
}

/// What was run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kills {
    /// Operations of all processes.
    pub operations: u64,
    /// Runs with a process killed or stopped.
    pub runs: u64,
}

/// The scenario: commits, large and small, with blob files and a transaction; background work of the keeper and of others; a new segment; trims;
/// cursors; memory that moves as processes join and leave; snapshots that are held meanwhile.
pub fn scenario() -> Vec<Op> {
    let put = |key, bytes| Act::Put { space: key % 2, key, bytes };
    let acts = [
        (0, Act::Join { mebibytes: 0 }),
        (0, put(1, 100)),
        (1, Act::Join { mebibytes: 0 }),
        (1, put(2, 20_000)),
        (0, put(2, 300)),
        (1, Act::Snapshot),
        (1, Act::TxBegin),
        (1, Act::TxGet { space: 0, key: 2 }),
        (1, Act::TxPut { space: 0, key: 3, bytes: 500 }),
        (0, put(4, 90_000)),
        (1, Act::TxCommit),
        (0, Act::Cursor { name: 1, back: 3 }),
        (2, Act::Join { mebibytes: 0 }),
        (2, put(5, 40_000)),
        (1, Act::Cursor { name: 2, back: 1 }),
        (0, Act::Step { first: 0 }),
        (1, Act::Flush),
        (1, Act::Load { space: 0, first: 100, count: 40, bytes: 900 }),
        (1, Act::AdvanceCursor { name: 1, back: 0 }),
        (2, Act::Past { space: 0 }),
        (0, Act::Delete { space: 0, key: 2 }),
        (0, Act::Flush),
        (1, Act::Step { first: 1 }),
        (0, Act::Compact),
        (2, put(6, 30_000)),
        (0, Act::AdvanceCursor { name: 2, back: 0 }),
        (0, Act::Trim { back: 0 }),
        (1, Act::Trim { back: 0 }),
        (1, Act::Release),
        (0, Act::Leave),
        (1, put(7, 60)),
        (1, Act::Step { first: 2 }),
        (2, Act::Step { first: 0 }),
        (1, Act::Flush),
        (1, Act::Compact),
        (0, Act::Join { mebibytes: 16 }),
        (0, put(8, 25_000)),
        (1, Act::Trim { back: 0 }),
        (0, Act::MakeSpace),
        (1, Act::Put { space: 2, key: 1, bytes: 10 }),
        (2, Act::DropSpace),
        (2, Act::Leave),
        (1, Act::Verify),
        (0, put(9, 10)),
        (1, Act::Leave),
        (0, Act::Flush),
    ];
    acts.into_iter().map(|(member, act)| Op::Among(Among { member, act })).collect()
}

/// Kills or stops a process at every `every`-th operation, beginning with number `from`.
///
/// # Errors
/// A process read something else than what was committed, or failed without a cause.
pub fn kill_at_every(seed: u64, ops: &[Op], what: What, from: u64, every: u64) -> Outcome<Kills> {
    let whole = run(seed, ops, what, None)?;
    let mut kills = Kills { operations: whole.iter().sum(), runs: 0 };
    for (member, count) in (0..).zip(whole) {
        for nth in (1 + from..=count).step_by(every.max(1) as usize) {
            run(seed, ops, what, Some((member, nth))).map_err(|failure| Failure {
                message: format!("{what:?} of process {member} at its operation {nth} of {count}: {}", failure.message),
                ..failure
            })?;
            kills.runs += 1;
        }
    }
    Ok(kills)
}

/// Runs the scenario, with a process killed or stopped at an operation; returns the operations of each place.
fn run(seed: u64, ops: &[Op], what: What, at: Option<(u8, u64)>) -> Outcome<Vec<u64>> {
    guarded(|| {
        let mut driver = Driver::new(seed);
        match what {
            What::Kill => driver.kill = at,
            What::Stop => driver.stop = at,
        }
        driver.run(ops)?;
        driver.finish()?;
        Ok((0..3).map(|member| driver.operations(member)).collect())
    })
}
