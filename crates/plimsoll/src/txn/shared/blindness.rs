//! Whether a process reads: one that only writes leaves its commits in the log
//! ([`crate::txn::shared::blind`]).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A process gives up its rows to pass over what the runs hold after it has read nothing for this
/// long.
const UNREAD_WITH_ROWS: Duration = Duration::from_secs(10);

/// Counts what a process does between its reads.
#[derive(Debug)]
pub(crate) struct Blindness {
    /// Blind commits since the last read.
    commits: AtomicU32,
    /// Number of blind commits without a read after which further ones are left in the log.
    after: u32,
    /// When the other members were first looked at since that read; 0: they were not.
    since_nanos: AtomicU64,
}

impl Blindness {
    /// A process that leaves commits in the log after `after` of them without a read in between.
    pub(crate) fn new(after: u32) -> Self {
        Self { commits: AtomicU32::new(0), after, since_nanos: AtomicU64::new(0) }
    }

    /// Something is read. Writes to memory that other threads use only if there were commits, or
    /// looks at other members, since the last read.
    pub(crate) fn note_read(&self) {
        if self.commits.load(Ordering::Relaxed) > 0 {
            self.commits.store(0, Ordering::Relaxed);
        }
        if self.since_nanos.load(Ordering::Relaxed) > 0 {
            self.since_nanos.store(0, Ordering::Relaxed);
        }
    }

    /// Whether this process reads nothing.
    pub(crate) fn is_blind(&self) -> bool {
        self.commits.load(Ordering::Relaxed) >= self.after
    }

    /// A commit that has read nothing is made.
    pub(crate) fn note_commit(&self) {
        if !self.is_blind() {
            self.commits.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether nothing was read for long.
    pub(crate) fn is_blind_for_long(&self, now_nanos: u64) -> bool {
        match self.since_nanos.load(Ordering::Relaxed) {
            0 => {
                self.since_nanos.store(now_nanos.max(1), Ordering::Relaxed);
                false
            }
            since => now_nanos.saturating_sub(since) >= UNREAD_WITH_ROWS.as_nanos() as u64,
        }
    }
}
