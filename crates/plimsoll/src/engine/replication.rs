//! The background work of a replica: a thread that applies the commits of other replicas.

use std::sync::{Arc, Weak};
use std::time::Duration;

use plimsoll_disk::clock::Clock;
use plimsoll_disk::thread::spawn;

use crate::order::Order;
use crate::txn::other_processes::Peers;
use crate::txn::replica::Replica;
use crate::txn::replica::place::Place;
use crate::types::error::{Error, Result};

/// How long the thread waits for a batch at first. The wait doubles while no batch comes.
const WAIT: Duration = Duration::from_millis(10);

/// The longest wait for a batch.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// The least time between two records of the place, in nanoseconds.
const SAVE_NANOS: u64 = 1_000_000_000;

/// The part of an open store that follows its order.
#[derive(Debug, Default)]
pub(crate) struct Replication {
    /// `None` if the store has no order.
    replica: Option<Arc<Replica>>,
}

impl Replication {
    pub(crate) fn of(replica: Replica) -> Self {
        Self { replica: Some(Arc::new(replica)) }
    }

    /// The part that orders commits.
    pub(crate) fn peers(&self) -> Option<Arc<dyn Peers>> {
        self.replica.clone().map(|replica| replica as _)
    }

    /// Where the replica stands in its order; `None` if the store has none.
    pub(crate) fn place(&self) -> Option<Place> {
        self.replica.as_ref().map(|replica| replica.place())
    }

    /// Reads the order for the first time, and starts the thread.
    ///
    /// # Errors
    /// The store becomes a replica by this opening, but its order cannot be used.
    pub(crate) fn start(&self, background: bool) -> Result<()> {
        let Some(replica) = &self.replica else { return Ok(()) };
        replica.start()?;
        if background {
            let (order, clock) = (&replica.access.order, &replica.access.clock);
            let (order, clock) = (Arc::clone(order), Arc::clone(clock));
            let replica = Arc::downgrade(replica);
            // The thread is never joined, because it may be waiting for the order when the store is
            // closed. It ends after that wait, without doing anything more.
            drop(spawn("plimsoll-order", move || follow(&*order, &*clock, &replica))?);
        }
        Ok(())
    }

    /// Applies what other replicas have committed, in a store without threads.
    ///
    /// # Errors
    /// The errors of applying a commit. An order that is unavailable or damaged is not an error
    /// here.
    pub(crate) fn step(&self) -> Result<bool> {
        let Some(replica) = &self.replica else { return Ok(false) };
        match replica.step(true) {
            Err(
                Error::Unavailable { .. }
                | Error::Corrupt { .. }
                | Error::Forked { .. }
                | Error::Behind { .. }
                | Error::Poisoned { .. },
            ) => Ok(false),
            done => done,
        }
    }

    /// Ends the work. A batch that is being applied is finished.
    pub(crate) fn stop(&self) {
        if let Some(replica) = &self.replica {
            replica.close();
        }
    }

    /// Makes the log durable up to the replica's place in the order, and records the place.
    ///
    /// # Errors
    /// The disk. The next opening reads more of the order again.
    pub(crate) fn record(&self) -> Result<()> {
        self.replica.as_ref().map_or(Ok(()), |replica| replica.save_place(true))
    }
}

/// Applies batches until the store is closed.
fn follow(order: &dyn Order, clock: &dyn Clock, replica: &Weak<Replica>) {
    let (mut wait, mut saved) = (WAIT, clock.monotonic_nanos());
    loop {
        let Some(next) = replica.upgrade().and_then(|replica| replica.next_position()) else {
            return;
        };
        let begun = clock.monotonic_nanos();
        // An error is returned by the next commit, or by the next read that must be fresh.
        let _ = order.wait(next, wait);
        let now = clock.monotonic_nanos();
        let Some(there) = replica.upgrade() else { return };
        let saves = now.saturating_sub(saved) >= SAVE_NANOS;
        // If this replica has appended the batch itself, there is nothing to read.
        let has_passed = !saves && there.next_position().is_some_and(|at| at > next);
        let has_applied = has_passed || there.step(saves) == Ok(true);
        drop(there);
        if saves {
            saved = now;
        }
        if has_applied {
            wait = WAIT;
            continue;
        }
        // Sleep for the rest of the wait: the order returns at once if it has the batch, even one
        // that cannot be applied.
        let waited = Duration::from_nanos(now.saturating_sub(begun));
        clock.sleep(wait.saturating_sub(waited));
        wait = (wait * 2).min(WAIT_MAX);
    }
}
