//! Readers of a store that another process writes, compacts and trims. Each read of the whole store
//! sees one moment, or gets an error that the moment is no longer retained.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use plimsoll::{Db, Error};
use plimsoll_disk::clock::{Clock, SystemClock};

use crate::failure::{Failure, Outcome, ensure};
use crate::kill::child::THREADS;
use crate::kill::{Life, Running, Scenario, failed, is_whole, options};

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounts {
    /// Complete reads of the store.
    pub whole: u64,
    /// Reads refused because their moment, or their view of the store, is no longer retained.
    pub gone: u64,
    /// Lives of the writer.
    pub lives: u64,
}

/// Reads for this long while a child trims; `program` is the binary that can be a child, `dir` a
/// folder to work in.
///
/// # Errors
/// A read found damage or parts of a transaction, or no read succeeded.
pub fn read_beside_trims(program: &Path, dir: &Path, time: Duration) -> Outcome<ReadCounts> {
    let clock = SystemClock::new();
    let store = dir.join("store");
    let mut looks = ReadCounts::default();
    while clock.monotonic_nanos() < time.as_nanos() as u64 {
        let mut child = Running::start(Command::new(program), Scenario::Trim, &store)?;
        child.await_end_of(Life::FromFirstCommit(Duration::ZERO));
        let until = clock.monotonic_nanos() + Duration::from_secs(10).as_nanos() as u64;
        while clock.monotonic_nanos() < until.min(time.as_nanos() as u64) && child.lives() {
            match look_once(&store) {
                Ok(()) => looks.whole += 1,
                Err(ReadFailure::Gone) => looks.gone += 1,
                Err(ReadFailure::Wrong(failure)) => {
                    let complaints = child.kill()?.complaints;
                    return Err(Failure::new(format!(
                        "look {}: {failure} {complaints}",
                        looks.whole + looks.gone
                    )));
                }
            }
        }
        let ended = child.kill()?;
        ensure(ended.by_itself.is_none(), || {
            format!("the writer exited by itself: {}", ended.complaints)
        })?;
        looks.lives += 1;
    }
    let db = Db::open(&store, options()).map_err(failed("the store does not open"))?;
    let report = db.verify(&mut |_| {}).map_err(failed("verify"))?;
    ensure(report.problems.is_empty(), || format!("verify: {:?}", report.problems))?;
    ensure(looks.whole > 0, || format!("no read succeeded: {looks:?}"))?;
    Ok(looks)
}

/// The reason that a read was not completed.
enum ReadFailure {
    Gone,
    Wrong(Failure),
}

impl From<Error> for ReadFailure {
    fn from(error: Error) -> Self {
        match error {
            Error::Trimmed { .. } => Self::Gone,
            error => Self::Wrong(Failure::new(format!("{error} [{error:?}]"))),
        }
    }
}

/// Opens the store read-only, and reads all of its contents and of its remaining log.
fn look_once(store: &Path) -> Result<(), ReadFailure> {
    let db = Db::open(store, options().read_only(true))?;
    let keyspace = match db.keyspace("work") {
        // The first writer creates the store.
        Err(Error::ReadOnly) => return Ok(()),
        keyspace => keyspace?,
    };
    let snapshot = db.snapshot();
    for entry in snapshot.range(&keyspace, ..)? {
        entry?;
    }
    for thread in 0..THREADS {
        // Read again, and check each value against its number.
        if let Err(failure) = is_whole(&snapshot, &keyspace, thread) {
            return Err(if failure.message.contains("Trimmed") {
                ReadFailure::Gone
            } else {
                ReadFailure::Wrong(failure)
            });
        }
    }
    let mut scan = db.log().scan(db.log().bounds().first.., None)?;
    while let Some(entry) = scan.next() {
        entry?;
    }
    Ok(())
}
