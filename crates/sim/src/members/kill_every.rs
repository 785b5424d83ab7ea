//! Kills one process at each of its operations of the disk, of locks and of shared words, in a
//! short scenario; or stops it there for a while.
//!
//! A first run counts the operations of each process. Then the scenario runs once per operation,
//! with the process killed or stopped there; the others continue, and everything is compared at the
//! end. In another variant the survivors commit, read, flush and trim at once, and then the power
//! is cut.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_disk::mutex::lock;
use plimsoll_disk::thread::spawn;

use crate::driver::guarded;
use crate::failure::{Failure, Outcome};
use crate::members::driver::Driver;
use crate::op::Op;
use crate::op::process_op::{Act, ProcessOp};

/// The event that happens to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEvent {
    /// Killed; the others continue with the scenario.
    Kill,
    /// Killed; the others act on its leftovers, and then the power is cut.
    KillAndCut,
    /// Stopped, and resumed after some acts of the others.
    Stop,
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kills {
    /// Operations of all processes.
    pub operations: u64,
    /// Runs with a process killed or stopped.
    pub runs: u64,
}

/// The scenario: commits, large and small, with blob files and a transaction; background work of
/// the keeper and of others; a new segment; trims; cursors; memory that moves as processes join and
/// leave; held snapshots.
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
        (1, Act::Append { stream: 1, count: 3, bytes: 300 }),
        (2, Act::Follow { stream: 1, back: 9 }),
        (2, Act::Take),
        (2, Act::Consume { name: 1 }),
        (0, Act::Leave),
        (1, put(7, 60)),
        (1, Act::Step { first: 2 }),
        (2, Act::Step { first: 0 }),
        (1, Act::Flush),
        (1, Act::Compact),
        (0, Act::Join { mebibytes: 16 }),
        (0, put(8, 25_000)),
        (0, Act::Append { stream: 2, count: 1, bytes: 12_000 }),
        (1, Act::Consume { name: 1 }),
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
    acts.into_iter().map(|(member, act)| Op::OfProcess(ProcessOp { member, act })).collect()
}

/// The acts of the survivors after a kill, then a power cut; absent processes join.
fn aftermath() -> Vec<Op> {
    let put = |key, bytes| Act::Put { space: key % 2, key, bytes };
    let survivors = [1, 2, 0]
        .into_iter()
        .flat_map(|member| [(member, Act::Join { mebibytes: 0 }), (member, put(10, 70))]);
    let acts = [
        (1, put(11, 3000)),
        (1, Act::Check),
        (2, Act::Flush),
        (1, Act::Trim { back: 0 }),
        (2, put(12, 30_000)),
        (1, Act::Append { stream: 1, count: 2, bytes: 50 }),
        (1, Act::Check),
        (0, Act::PowerCut),
        (0, Act::Join { mebibytes: 0 }),
        (1, Act::Join { mebibytes: 0 }),
        (1, put(13, 60)),
        (0, Act::Check),
    ];
    survivors.chain(acts).map(|(member, act)| Op::OfProcess(ProcessOp { member, act })).collect()
}

/// Kills or stops a process at every `every`-th operation, beginning with number `from`; `jobs`
/// runs at a time.
///
/// # Errors
/// A process read something other than the committed data, or failed without an excuse.
pub fn kill_at_every(
    seed: u64,
    ops: &[Op],
    what: ProcessEvent,
    (from, every): (u64, u64),
    jobs: u64,
) -> Outcome<Kills> {
    let whole = run(seed, ops, what, None)?;
    let operations = whole.iter().sum();
    let every = every.max(1) as usize;
    let points: Vec<_> = (0..)
        .zip(whole)
        .flat_map(|(member, count)| {
            (1 + from..=count).step_by(every).map(move |nth| (member, nth, count))
        })
        .collect();
    let runs = points.len() as u64;
    let jobs = jobs.max(1) as usize;
    let work = std::sync::Arc::new((points, ops.to_vec(), AtomicU64::new(0), Mutex::new(Ok(()))));
    let workers = (0..jobs).map(|_| {
        let work = std::sync::Arc::clone(&work);
        spawn("kills", move || {
            let (points, ops, next, outcome) = &*work;
            while let Some((member, nth, count)) =
                points.get(next.fetch_add(1, Ordering::Relaxed) as usize).copied()
            {
                let done = run(seed, ops, what, Some((member, nth))).map_err(|failure| Failure {
                    message: format!(
                        "{what:?} of process {member} at its operation {nth} of {count}: {}",
                        failure.message
                    ),
                    ..failure
                });
                if let Err(failure) = done {
                    next.store(u64::MAX / 2, Ordering::Relaxed);
                    *lock(outcome) = Err(failure);
                }
            }
        })
    });
    let workers: Vec<_> = workers
        .collect::<std::io::Result<_>>()
        .map_err(|error| Failure::new(format!("a thread: {error}")))?;
    for worker in workers {
        worker.join().map_err(|_| Failure::new("a thread panicked".to_owned()))?;
    }
    let outcome = std::mem::replace(&mut *lock(&work.3), Ok(()));
    outcome.map(|()| Kills { operations, runs })
}

/// Runs the scenario, with a process killed or stopped at an operation; returns the operations of
/// each slot.
fn run(seed: u64, ops: &[Op], what: ProcessEvent, at: Option<(u8, u64)>) -> Outcome<Vec<u64>> {
    guarded(|| {
        let mut driver = Driver::new(seed);
        match what {
            ProcessEvent::Kill | ProcessEvent::KillAndCut => driver.kill = at,
            ProcessEvent::Stop => driver.stop = at,
        }
        if what == ProcessEvent::KillAndCut && at.is_some() {
            driver.run_until_death(ops)?;
            driver.run(&aftermath())?;
        } else {
            driver.run(ops)?;
        }
        driver.finish()?;
        Ok((0..3).map(|member| driver.operations(member)).collect())
    })
}
