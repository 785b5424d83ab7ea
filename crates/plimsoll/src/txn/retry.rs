//! Retries a transaction after a conflict.
//!
//! Each pause has a random length below a bound that doubles, so that two transactions that conflicted are less likely to conflict again.
//! The clock is the store's, and the randomness derives from it and from the conflict, so that a simulated run can be replayed.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_disk::random::Random;

use crate::txn::committer::Committer;
use crate::txn::transaction::Transaction;
use crate::types::error::{Error, Result};

/// Attempts before a conflict is an error.
const ATTEMPTS: u32 = 32;

/// The bound of the first pause, and of the longest.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Runs `change` in transactions until one is committed.
pub(crate) fn transact<T, E: From<Error>>(
    committer: &Arc<Committer>,
    mut change: impl FnMut(&mut Transaction) -> Result<T, E>,
) -> Result<T, E> {
    let mut attempt = 1;
    loop {
        let mut tx = Transaction::new(committer);
        let done = change(&mut tx)?;
        match tx.commit() {
            Ok(_) => return Ok(done),
            Err(Error::Conflict { at, by, .. }) if attempt < ATTEMPTS => {
                pause(committer, attempt, at.0 ^ by.0.rotate_left(32))
            }
            Err(error) => return Err(error.into()),
        }
        attempt += 1;
    }
}

fn pause(committer: &Committer, attempt: u32, conflict: u64) {
    let clock = &committer.options.clock;
    let bound = longest_pause(attempt).as_nanos() as u64;
    let mut random = Random::new(clock.monotonic_nanos() ^ conflict);
    clock.sleep(Duration::from_nanos(random.below(bound)));
}

/// The bound of the pause after the given attempt, counted from 1.
fn longest_pause(attempt: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << (attempt - 1).min(16)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound() {
        assert_eq!(longest_pause(1), FIRST_PAUSE);
        assert_eq!(longest_pause(3), 4 * FIRST_PAUSE);
        assert_eq!(longest_pause(ATTEMPTS), LONGEST_PAUSE);
    }
}
