//! Detects processes that only write: such a process leaves its commits in the log
//! ([`crate::txn::shared::blind`]).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// After this long without a read, a process drops its cached rows in order to skip commits that
/// the runs have.
const UNREAD_WITH_ROWS: Duration = Duration::from_secs(10);

/// Counts the commits of a process since its last read.
#[derive(Debug)]
pub(crate) struct Blindness {
    /// Number of blind commits since the last read.
    commits: AtomicU32,
    /// Number of blind commits without a read after which further ones are left in the log.
    after: u32,
    /// The time of the first poll of other members' commits since the last read; 0: not yet.
    since_nanos: AtomicU64,
}

impl Blindness {
    /// A process that leaves commits in the log after `after` of them without a read in between.
    pub(crate) fn new(after: u32) -> Self {
        Self { commits: AtomicU32::new(0), after, since_nanos: AtomicU64::new(0) }
    }

    /// Records a read. Writes to shared memory only if there were commits or polls since the last
    /// read.
    pub(crate) fn note_read(&self) {
        if self.commits.load(Ordering::Relaxed) > 0 {
            self.commits.store(0, Ordering::Relaxed);
        }
        if self.since_nanos.load(Ordering::Relaxed) > 0 {
            self.since_nanos.store(0, Ordering::Relaxed);
        }
    }

    /// Whether this process currently only writes.
    pub(crate) fn is_blind(&self) -> bool {
        self.commits.load(Ordering::Relaxed) >= self.after
    }

    /// Records a commit that has read nothing.
    pub(crate) fn note_commit(&self) {
        if !self.is_blind() {
            self.commits.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether nothing was read for a long time.
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
