//! Retries a transaction after a conflict.
//!
//! Each pause has a random length below a bound that doubles, so that two transactions that
//! conflicted are less likely to conflict again. The clock is the store's, and the randomness
//! derives from the clock and the conflict, so that a simulation can be replayed.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_disk::random::Random;
use plimsoll_log::glsn::Glsn;

use crate::read::lens::Lens;
use crate::txn::committer::Committer;
use crate::txn::transaction::Transaction;
use crate::types::error::{Error, Lift, Result};
use crate::types::options::Durability;

/// Number of attempts before a conflict is returned.
const ATTEMPTS: u32 = 32;

/// From this attempt on, a transaction reads all ordered commits, durable or not
/// ([`Transaction::ordered`]). If a sync takes long, a transaction that reads only durable commits
/// conflicts with each commit ordered since the last sync, and could fail every time. The
/// transaction is not acknowledged before everything that it has read is durable.
const FIRST_ORDERED: u32 = 4;

/// The bound of the first pause.
const FIRST_PAUSE: Duration = Duration::from_micros(50);

/// The bound of the longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// The store and the branch in which transactions are committed.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) committer: &'a Arc<Committer>,
    /// The branch; `None`: main.
    pub(crate) lens: Option<&'a Arc<Lens>>,
}

impl<'a> From<&'a Arc<Committer>> for Target<'a> {
    fn from(committer: &'a Arc<Committer>) -> Self {
        Self { committer, lens: None }
    }
}

/// Runs `change` in new transactions until one is committed.
pub(crate) fn transact<'a, T, E: From<Error>>(
    to: impl Into<Target<'a>>,
    change: impl FnMut(&mut Transaction) -> Result<T, E>,
) -> Result<T, E> {
    commit(to, change).map(|(done, _)| done)
}

/// Like [`transact`], but also returns the GLSN of the commit.
pub(crate) fn commit<'a, T, E: From<Error>>(
    to: impl Into<Target<'a>>,
    change: impl FnMut(&mut Transaction) -> Result<T, E>,
) -> Result<(T, Glsn), E> {
    commit_by(to, change, Transaction::commit)
}

/// Like [`commit`], with another way to commit.
pub(crate) fn commit_by<'a, T, E: From<Error>>(
    to: impl Into<Target<'a>>,
    mut change: impl FnMut(&mut Transaction) -> Result<T, E>,
    mut commit: impl FnMut(Transaction) -> Result<Glsn>,
) -> Result<(T, Glsn), E> {
    let to = to.into();
    let committer = to.committer;
    let mut attempt = 1;
    loop {
        let mut tx = begin(to, attempt);
        let done = match change(&mut tx) {
            Ok(done) => done,
            Err(error) => {
                wait_for_what_was_read(committer, attempt, &tx)?;
                return Err(error);
            }
        };
        match commit(tx) {
            Ok(glsn) => return Ok((done, glsn)),
            Err(Error::Conflict { at, by, .. }) if attempt < ATTEMPTS => {
                pause(committer, attempt, at.0 ^ by.0.rotate_left(32))
            }
            Err(error) => return Err(error.into()),
        }
        attempt += 1;
    }
}

/// Runs `commit` with new transactions until one is committed. `commit` must not read anything.
pub(crate) fn attempts<'a, T>(
    to: impl Into<Target<'a>>,
    mut commit: impl FnMut(Transaction) -> Result<T>,
) -> Result<T> {
    let to = to.into();
    let mut attempt = 1;
    loop {
        match commit(begin(to, attempt)) {
            Err(Error::Conflict { at, by, .. }) if attempt < ATTEMPTS => {
                pause(to.committer, attempt, at.0 ^ by.0.rotate_left(32))
            }
            done => return done,
        }
        attempt += 1;
    }
}

fn begin(Target { committer, lens }: Target<'_>, attempt: u32) -> Transaction {
    let is_ordered = attempt >= FIRST_ORDERED;
    match lens {
        Some(lens) => Transaction::on_branch(committer, lens, is_ordered),
        None if is_ordered => Transaction::ordered(committer),
        None => Transaction::new(committer),
    }
}

/// Waits until everything that the transaction read is durable, because the caller's own error may
/// depend on it.
fn wait_for_what_was_read(committer: &Committer, attempt: u32, tx: &Transaction) -> Result<()> {
    let is_ordered = attempt >= FIRST_ORDERED && committer.options.durability == Durability::Sync;
    if !is_ordered || tx.at() <= committer.sequencer.visible() {
        return Ok(());
    }
    match committer.reader.log.wait_durable(tx.at()).lift() {
        // The next commit reports that the store is poisoned.
        Err(Error::Poisoned { .. }) => Ok(()),
        waited => waited,
    }
}

fn pause(committer: &Committer, attempt: u32, conflict: u64) {
    let clock = &committer.options.clock;
    let bound = longest_pause(attempt).as_nanos() as u64;
    let mut random = Random::new(clock.monotonic_nanos() ^ conflict);
    clock.sleep(Duration::from_nanos(random.below(bound)));
}

/// The bound of the pause after this attempt, counted from 1.
fn longest_pause(attempt: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << (attempt - 1).min(16)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::open::open;
    use crate::types::options::Options;

    #[test]
    fn later_attempts_read_commits_that_are_not_durable_yet() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(
            &dir.path().join("store"),
            Options::new().memory_bytes(16 << 20).background(false),
        )
        .unwrap();
        let mut tx = Transaction::new(&store.committer);
        tx.put(&store.reader.keyspaces.find("default").unwrap().0, b"key", b"value").unwrap();
        let ticket = tx.commit_submit().unwrap();
        assert!(begin((&store.committer).into(), FIRST_ORDERED - 1).at() < ticket.glsn());
        let later = begin((&store.committer).into(), FIRST_ORDERED);
        assert_eq!(later.at(), ticket.glsn());
        assert!(!ticket.is_durable());
        later.commit().unwrap();
        assert!(ticket.is_durable());
    }

    #[test]
    fn pauses_grow_up_to_a_bound() {
        assert_eq!(longest_pause(1), FIRST_PAUSE);
        assert_eq!(longest_pause(3), 4 * FIRST_PAUSE);
        assert_eq!(longest_pause(ATTEMPTS), LONGEST_PAUSE);
    }
}
