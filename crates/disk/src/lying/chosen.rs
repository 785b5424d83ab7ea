//! Faults at a chosen call: the n-th read from now fails, or the power is cut at the n-th change of
//! a file or a name.

use std::io;
use std::path::Path;

use rustix::io::Errno;

use crate::lying::{LyingDisk, State, dead};
use crate::path_error::at_path;

/// The counted calls and the chosen ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Chosen {
    reads: u64,
    fail_read: Option<u64>,
    changes: u64,
    cut_at_change: Option<u64>,
}

impl Chosen {
    /// Cancels the chosen change.
    pub(super) fn cancel_cut(&mut self) {
        self.cut_at_change = None;
    }
}

impl LyingDisk {
    /// Makes the `n`-th read from now fail (1: the next one).
    pub fn fail_read(&self, n: u64) {
        let mut state = self.state();
        state.chosen.fail_read = Some(state.chosen.reads.saturating_add(n));
    }

    /// Cancels [`LyingDisk::fail_read`]; returns whether the failure was still pending.
    pub fn fail_no_read(&self) -> bool {
        self.state().chosen.fail_read.take().is_some()
    }

    /// Cuts the power at the `n`-th change of a file or a name from now (1: the next one): a write,
    /// a new length, or a file or name that is created, renamed or removed. The seed decides
    /// whether that change still took effect.
    pub fn cut_power_at_change(&self, n: u64) {
        let mut state = self.state();
        state.chosen.cut_at_change = Some(state.chosen.changes.saturating_add(n));
    }

    /// Whether a failure of a sync, rename or removal is still pending.
    pub fn has_failure_to_come(&self) -> bool {
        let state = self.state();
        [state.fail_sync, state.fail_rename, state.fail_remove].iter().any(Option::is_some)
    }

    /// Cancels pending [`LyingDisk::fail_sync`], [`LyingDisk::fail_rename`] and
    /// [`LyingDisk::fail_remove`].
    pub fn cancel_failures(&self) {
        let mut state = self.state();
        (state.fail_sync, state.fail_rename, state.fail_remove) = (None, None, None);
    }
}

impl State {
    /// Counts a read; an error if it is the chosen one.
    pub(super) fn count_read(&mut self, path: &Path) -> io::Result<()> {
        self.chosen.reads += 1;
        let count = self.chosen.reads;
        if self.chosen.fail_read.take_if(|n| count >= *n).is_none() {
            return Ok(());
        }
        self.injected.failed_reads += 1;
        Err(at_path(path, Errno::IO))
    }

    /// Counts a change and performs it, unless the power is cut before it.
    pub(super) fn change<T>(
        &mut self,
        path: &Path,
        change: impl FnOnce(&mut Self) -> io::Result<T>,
    ) -> io::Result<T> {
        self.chosen.changes += 1;
        if self.chosen.cut_at_change.is_none_or(|n| self.chosen.changes < n) {
            return change(self);
        }
        if self.crash_random.chance(0.5) {
            // The change takes effect, but the caller sees only the power cut.
            let _ = change(self);
        }
        self.cut_power();
        Err(dead(path, "the power is cut"))
    }
}
