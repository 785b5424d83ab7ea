//! One memory limit for all members, and how it is divided among them.
//!
//! Each member has a share: the bytes that it wants, but at most an equal part of the memory that
//! remains after the members that want less have got theirs. A member shrinks as soon as its share
//! shrinks, and then publishes its new size. It grows only into memory that no other member has,
//! which it determines while no other member joins, leaves or grows. So the sum of all budgets is
//! within the total at any time, even while members join and leave.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::LogError;
use crate::members::lock::MemberLock;
use crate::members::slots::Slots;
use crate::members::table::Table;
use crate::members::words::{MEMORY_TOTAL, SLOTS, SlotWord};

/// The time for which a joining member waits for its whole share before it accepts less.
const WHOLE_SHARE_TIMEOUT: Duration = Duration::from_millis(200);

/// The longest time between two checks of a joining member for memory.
const PAUSE: Duration = Duration::from_millis(5);

/// The memory budget that a joining member starts with, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// The budget that it may use from the start.
    Bytes(u64),
    /// The total is too small for this many members.
    TooMany {
        /// The total.
        total_bytes: u64,
        /// The number of members, without this one.
        members: u64,
    },
}

/// The memory of this member, in relation to the others'.
pub struct Budgets {
    table: Arc<Table>,
    slots: Arc<Slots>,
    /// Held while this member takes memory, so that no other one joins, leaves or grows.
    join: Arc<MemberLock>,
}

impl Budgets {
    pub(super) fn new(table: &Arc<Table>, slots: &Arc<Slots>, join: &Arc<MemberLock>) -> Self {
        Self { table: Arc::clone(table), slots: Arc::clone(slots), join: Arc::clone(join) }
    }

    /// The memory of all members together, in bytes; `None` if each member has its own budget.
    pub fn memory_total(&self) -> Option<u64> {
        Some(self.table.word(MEMORY_TOTAL)).filter(|bytes| *bytes > 0)
    }

    /// Requests `wanted` bytes of memory; returns the budget from the start, which is at least
    /// `least`. If `total` is given, it becomes the total of all members. Called only while this
    /// member joins. With `lets_others`, other members may join, leave and grow while it waits for
    /// memory.
    ///
    /// # Errors
    /// `Stalled` if the others do not release enough memory.
    pub fn first_budget(
        &self,
        total: Option<u64>,
        (wanted, least): (u64, u64),
        lets_others: bool,
    ) -> Result<First, LogError> {
        let words = self.table.words.words();
        let members = self.slots.others()?.len() as u64;
        let Some(total_bytes) = total.or(self.memory_total()) else {
            self.table.set(SlotWord::Wanted, wanted);
            self.table.set(SlotWord::Budget, wanted);
            return Ok(First::Bytes(wanted));
        };
        if total_bytes / (members + 1) < least {
            return Ok(First::TooMany { total_bytes, members });
        }
        let before = words[MEMORY_TOTAL].load(Ordering::SeqCst);
        if let Some(bytes) = total {
            words[MEMORY_TOTAL].store(bytes, Ordering::SeqCst);
        }
        self.table.set(SlotWord::Wanted, wanted);
        // Notify the others even if this member need not wait: their shares are smaller from now
        // on, and a third member that joins at the same time may be waiting for what they release.
        self.table.notify();
        let give_up = || {
            self.table.set(SlotWord::Wanted, 0);
            if let Some(bytes) = total {
                let (done, failed) = (Ordering::SeqCst, Ordering::SeqCst);
                let _ = words[MEMORY_TOTAL].compare_exchange(bytes, before, done, failed);
            }
            self.table.notify();
        };
        // The time spent waiting for memory, without the time in which others join.
        let mut waited = Duration::ZERO;
        loop {
            let seen = self.table.state();
            // A member that has joined meanwhile may have changed the total.
            let total_bytes = self.memory_total().unwrap_or(total_bytes);
            let (share, free) = (self.share(total_bytes), self.free_of(total_bytes)?);
            let is_content = waited > WHOLE_SHARE_TIMEOUT && free >= least;
            if free >= share || is_content {
                let bytes = share.min(free);
                self.table.set(SlotWord::Budget, bytes);
                return Ok(First::Bytes(bytes));
            }
            if waited >= self.table.timeout {
                break;
            }
            if lets_others {
                self.join.release();
            } else {
                self.join.report(self.table.here());
            }
            let begun = self.table.clock.monotonic_nanos();
            self.table.wait_for_change(seen, PAUSE);
            let nanos = self.table.clock.monotonic_nanos().saturating_sub(begun);
            waited += Duration::from_nanos(nanos);
            if lets_others {
                let take = || self.join.take(self.table.timeout, self.table.here(), &|| false);
                self.join.wait_for_working(take).inspect_err(|_| give_up())?;
            }
        }
        give_up();
        Err(LogError::Stalled { pid: self.largest(), since_micros: 0 })
    }

    /// The process id of the other member with the largest budget.
    fn largest(&self) -> Option<u32> {
        let others = self.slots.others().unwrap_or_default();
        others.iter().max_by_key(|member| member.budget_bytes).map(|member| member.pid)
    }

    /// This member's share of the total; `None` if there is no total, or this process has no slot.
    pub fn memory_share(&self) -> Option<u64> {
        Some(self.share(self.memory_total().filter(|_| self.table.has_slot())?))
    }

    fn share(&self, total: u64) -> u64 {
        let wants: Vec<u64> =
            self.living_slots().map(|slot| self.budget_word(slot, SlotWord::Wanted)).collect();
        share_of(total, &wants, self.budget_word(self.table.slot, SlotWord::Wanted))
    }

    /// The part of the total that the other members do not have.
    fn free_of(&self, total: u64) -> Result<u64, LogError> {
        let had: u64 = self.slots.others()?.iter().map(|member| member.budget_bytes).sum();
        Ok(total.saturating_sub(had))
    }

    /// Slots in use, including this member's. Killed members count until
    /// [`crate::members::slots::Slots::list`] has found that they ended.
    fn living_slots(&self) -> impl Iterator<Item = usize> {
        (0..SLOTS).filter(|slot| self.budget_word(*slot, SlotWord::Pid) > 0)
    }

    pub(super) fn budget_word(&self, slot: usize, word: SlotWord) -> u64 {
        self.table.slot_word(slot, word).load(Ordering::SeqCst)
    }

    /// Publishes this member's budget. If there is a total, the budget must not have grown.
    pub fn has_memory(&self, bytes: u64) {
        self.table.set(SlotWord::Budget, bytes);
        self.table.notify();
    }

    /// Publishes that this member keeps the budget that it had before [`Budgets::grow`]. Sends no
    /// wake-up, because this member would receive it too and try to grow again and again. A member
    /// whose growth was blocked meanwhile checks again soon without one.
    pub fn has_not_grown(&self, bytes: u64) {
        self.table.set(SlotWord::Budget, bytes);
    }

    /// Tries to get this member's whole share of memory; returns its budget from now on, or `None`
    /// if there is no total or this process has no slot. Not called while it joins or leaves.
    ///
    /// # Errors
    /// An error of the operating system; `Stalled` if another member joins, leaves or grows, after
    /// which the caller retries.
    pub fn grow(&self) -> Result<Option<u64>, LogError> {
        let Some(total) = self.memory_total().filter(|_| self.table.has_slot()) else {
            return Ok(None);
        };
        self.join.take(Duration::ZERO, self.table.here(), &|| false)?;
        let grown = self.free_of(total).map(|free| {
            let bytes = self
                .share(total)
                .min(free)
                .max(self.budget_word(self.table.slot, SlotWord::Budget));
            self.table.set(SlotWord::Budget, bytes);
            bytes
        });
        self.join.release();
        grown.map(Some)
    }
}

/// The share of a member that wants `wanted`, where `wants` has the bytes that each member wants
/// (see the top of this file).
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
    use std::path::Path;
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicU64;

    use plimsoll_disk::clock::{Clock, ManualClock};
    use plimsoll_disk::lying::{LyingDisk, Process};

    use super::*;
    use crate::members::Members;

    const TOTAL: u64 = 96;

    /// A store whose members run in separate processes, with a clock that stands still.
    struct World {
        disk: LyingDisk,
        clock: Arc<ManualClock>,
    }

    impl World {
        fn new() -> Self {
            let clock = Arc::new(ManualClock::new(1_700_000_000_000_000));
            Self { disk: LyingDisk::new(1), clock }
        }

        /// A member that has joined up to the point where it gets its memory.
        fn enter(&self, pid: u32, is_first: bool) -> (Process, Members) {
            let (process, disk) = self.disk.process(pid);
            let timeout = Duration::from_secs(10);
            let clock = Arc::clone(&self.clock) as _;
            let members = Members::join(&disk, &clock, Path::new("/"), timeout).unwrap();
            members.begin(is_first, pid, 0).unwrap();
            (process, members)
        }
    }

    fn request_memory(members: &Members) -> Result<First, LogError> {
        members.budgets.first_budget(Some(TOTAL), (TOTAL, 20), true)
    }

    #[test]
    fn a_member_that_joins_without_waiting_wakes_those_whose_share_shrinks() {
        let world = Arc::new(World::new());
        let (_one, one) = world.enter(6, true);
        assert_eq!(request_memory(&one), Ok(First::Bytes(96)));
        one.joined();
        let (process, two) = world.enter(7, false);
        let (around, seen, three) = (Arc::clone(&world), AtomicU64::new(0), OnceLock::new());
        process.when_idle(move |time| {
            around.clock.advance(time);
            // The first member checks its share until nothing wakes it any more.
            while seen.swap(one.table.state(), Ordering::SeqCst) < one.table.state() {
                let (has, share) = (SlotWord::Budget, one.budgets.memory_share().unwrap());
                if share < one.budgets.budget_word(one.table.slot, has) {
                    one.budgets.has_memory(share);
                }
            }
            three.get_or_init(|| {
                let (_, three) = around.enter(8, false);
                assert_eq!(request_memory(&three), Ok(First::Bytes(32)), "it need not wait");
                three.joined();
                three
            });
        });
        assert_eq!(request_memory(&two), Ok(First::Bytes(32)));
    }

    #[test]
    fn a_member_that_cannot_grow_wakes_nobody_and_leaves_the_memory_to_others() {
        let world = World::new();
        let (_one, one) = world.enter(6, true);
        assert_eq!(request_memory(&one), Ok(First::Bytes(96)));
        one.joined();
        one.budgets.has_memory(40);
        let seen = one.table.state();
        for _ in 0..3 {
            assert_eq!(one.budgets.grow(), Ok(Some(96)));
            one.budgets.has_not_grown(40);
        }
        assert_eq!(one.table.state(), seen);
        let (_two, two) = world.enter(7, false);
        assert_eq!(request_memory(&two), Ok(First::Bytes(48)));
    }

    #[test]
    fn wakeups_do_not_shorten_the_wait_for_memory() {
        let world = World::new();
        let (_one, one) = world.enter(6, true);
        assert_eq!(request_memory(&one), Ok(First::Bytes(96)));
        one.joined();
        let (process, two) = world.enter(7, false);
        let (clock, begun) = (Arc::clone(&world.clock), world.clock.monotonic_nanos());
        process.when_idle(move |_| {
            // A change that is not for this member wakes it each millisecond.
            clock.advance(Duration::from_millis(1));
            let passed = Duration::from_nanos(clock.monotonic_nanos() - begun);
            one.budgets.has_memory(if passed < Duration::from_secs(9) { 96 } else { 48 });
        });
        assert_eq!(request_memory(&two), Ok(First::Bytes(48)));
    }

    #[test]
    fn shares_are_equal_except_for_members_that_want_less() {
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
