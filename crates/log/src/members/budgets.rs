//! One line of memory for all members: how a total is shared out.
//!
//! Each member has a share: what it wants, or an equal part of what those that want less leave. It
//! shrinks as soon as its share does, and says so when it has; it grows only into what the others
//! do not have, which it looks at while no other joins, leaves or grows. So the sum of what all
//! have is within the total at any moment, also while members come and go.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::LogError;
use crate::members::Members;
use crate::members::words::{MEMORY_TOTAL, SLOTS, SlotWord};

/// How long one that joins waits for its whole share before it is content with less.
const WHOLE_SHARE_PATIENCE: Duration = Duration::from_millis(200);

/// The memory that a member wants and gets when it joins, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// It may use so much from the start.
    Bytes(u64),
    /// With so many members each would have too little.
    TooMany {
        /// The total.
        total_bytes: u64,
        /// The members there are, without this one.
        members: u64,
    },
}

impl Members {
    /// The memory of all members together, in bytes; `None` if each has what it was opened with.
    pub fn memory_total(&self) -> Option<u64> {
        Some(self.word(MEMORY_TOTAL)).filter(|bytes| *bytes > 0)
    }

    /// Wants `wanted` bytes of memory, and gets what it may use from the start, at least `least`. A
    /// `total` given here counts for all from now on. Law: while this one joins.
    ///
    /// # Errors
    /// `Stalled` if the others do not make room.
    pub fn first_budget(
        &self,
        total: Option<u64>,
        wanted: u64,
        least: u64,
    ) -> Result<First, LogError> {
        let words = self.words.words();
        let members = self.others()?.len() as u64;
        let Some(total_bytes) = total.or(self.memory_total()) else {
            self.set(SlotWord::Wanted, wanted);
            self.set(SlotWord::Budget, wanted);
            return Ok(First::Bytes(wanted));
        };
        if total_bytes / (members + 1) < least {
            return Ok(First::TooMany { total_bytes, members });
        }
        let before = words[MEMORY_TOTAL].load(Ordering::SeqCst);
        if let Some(bytes) = total {
            words[MEMORY_TOTAL].store(bytes, Ordering::SeqCst);
        }
        self.set(SlotWord::Wanted, wanted);
        let pause = Duration::from_millis(5);
        for waited in 0..self.patience.as_millis() / pause.as_millis() {
            let seen = self.state();
            let (share, free) = (self.share(total_bytes), self.free_of(total_bytes)?);
            let is_content = pause * waited as u32 > WHOLE_SHARE_PATIENCE && free >= least;
            if free >= share || is_content {
                let bytes = share.min(free);
                self.set(SlotWord::Budget, bytes);
                return Ok(First::Bytes(bytes));
            }
            self.tell_once(waited == 0);
            self.wait_for_change(seen, pause);
        }
        self.set(SlotWord::Wanted, 0);
        words[MEMORY_TOTAL].store(before, Ordering::SeqCst);
        Err(LogError::Stalled { pid: self.largest(), since_micros: 0 })
    }

    fn tell_once(&self, is_first: bool) {
        if is_first {
            self.tell();
        }
    }

    /// The process id of the other member that has most memory.
    fn largest(&self) -> Option<u32> {
        let others = self.others().unwrap_or_default();
        others.iter().max_by_key(|member| member.budget_bytes).map(|member| member.pid)
    }

    /// This member's share of the total; `None` if there is no total, or this process has no slot.
    pub fn memory_share(&self) -> Option<u64> {
        Some(self.share(self.memory_total().filter(|_| self.has_slot())?))
    }

    fn share(&self, total: u64) -> u64 {
        let wants: Vec<u64> =
            self.living_slots().map(|slot| self.budget_word(slot, SlotWord::Wanted)).collect();
        share_of(total, &wants, self.budget_word(self.slot, SlotWord::Wanted))
    }

    /// What the others do not have of the total.
    fn free_of(&self, total: u64) -> Result<u64, LogError> {
        let had: u64 = self.others()?.iter().map(|member| member.budget_bytes).sum();
        Ok(total.saturating_sub(had))
    }

    /// Slots in use, this one's among them; of members that were killed, too, until
    /// [`Members::list`] has found that they ended.
    fn living_slots(&self) -> impl Iterator<Item = usize> {
        (0..SLOTS).filter(|slot| self.budget_word(*slot, SlotWord::Pid) > 0)
    }

    pub(super) fn budget_word(&self, slot: usize, word: SlotWord) -> u64 {
        self.slot_word(slot, word).load(Ordering::SeqCst)
    }

    /// This member has so much memory now: not more than before where there is a total.
    pub fn has_memory(&self, bytes: u64) {
        self.set(SlotWord::Budget, bytes);
        self.tell();
    }

    /// Tries to get its whole share of memory; returns what this member may use from now on. Law:
    /// not while it joins or leaves.
    ///
    /// # Errors
    /// The system; `Stalled` if another one joins, leaves or grows: to be tried again.
    pub fn grow(&self) -> Result<Option<u64>, LogError> {
        let Some(total) = self.memory_total().filter(|_| self.has_slot()) else { return Ok(None) };
        self.join.take(Duration::ZERO, self.here(), &|| false)?;
        let grown = self.free_of(total).map(|free| {
            let bytes =
                self.share(total).min(free).max(self.budget_word(self.slot, SlotWord::Budget));
            self.set(SlotWord::Budget, bytes);
            bytes
        });
        self.join.release();
        grown.map(Some)
    }
}

/// The share of one that wants `wanted`, among all `wants`: an equal part of what those leave that
/// want less.
fn share_of(total: u64, wants: &[u64], wanted: u64) -> u64 {
    let mut wants = wants.to_vec();
    wants.sort_unstable();
    let (mut left, mut members) = (total, wants.len().max(1) as u64);
    for want in wants {
        if want > left / members {
            return wanted.min(left / members);
        }
        left -= want;
        members = (members - 1).max(1);
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_equal_but_for_those_that_want_less() {
        assert_eq!(share_of(100, &[100], 100), 100);
        assert_eq!(share_of(100, &[100, 100, 100, 100], 100), 25);
        assert_eq!(share_of(100, &[10, 100, 100], 100), 45);
        assert_eq!(share_of(100, &[10, 100, 100], 10), 10);
        assert_eq!(share_of(100, &[10, 20, 30], 30), 30);
        assert_eq!(share_of(100, &[50, 50, 50], 50), 33);
        assert_eq!(share_of(100, &[60, 10, 40], 60), 50);
    }

    #[test]
    fn the_sum_of_all_shares_is_within_the_total() {
        for wants in [
            &[1, 2, 3, 4, 5][..],
            &[7, 7, 7],
            &[1000, 1, 1000],
            &[u64::MAX, u64::MAX, 3],
            &[5, 5, 90],
        ] {
            let sum: u64 = wants.iter().map(|want| share_of(100, wants, *want)).sum();
            assert!(sum <= 100, "{wants:?} get {sum}");
        }
    }
}
