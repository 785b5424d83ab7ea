//! Gathers the processes that wait for a sync, or for their posts to be ordered, so that one of
//! them serves all, in the same way as a process gathers its threads
//! (`file_log::durability::group_commit`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use plimsoll_disk::clock::Clock;

use crate::members::table::Table;
use crate::members::words::Gathered;

/// The longest time for which a sync waits for the processes of the last group.
const GATHER_NANOS: u64 = 50_000;

/// The number of yields after which the sync begins anyway, because a simulated clock might not
/// advance.
const GATHER_YIELDS: u32 = 200;

/// The processes that wait for one kind of service.
pub(crate) struct Gathering {
    table: Arc<Table>,
    at: Gathered,
}

impl Gathering {
    pub(super) fn new(table: &Arc<Table>, at: Gathered) -> Self {
        Self { table: Arc::clone(table), at }
    }

    /// Counts this process among those that wait. If it is killed while it waits, it stays counted
    /// until the next group.
    pub(crate) fn arrive(&self) {
        self.table.words.words()[self.at.arrived].fetch_add(1, Ordering::Relaxed);
    }

    /// Gives the processes of the last group time to come back; returns how many have arrived. The
    /// caller must hold the lock that they wait for.
    pub(crate) fn gather(&self, clock: &dyn Clock) -> u64 {
        let words = self.table.words.words();
        let expected = words[self.at.expected].load(Ordering::Relaxed);
        let start = clock.monotonic_nanos();
        for _ in 0..GATHER_YIELDS {
            if words[self.at.arrived].load(Ordering::Relaxed) >= expected
                || clock.monotonic_nanos() - start > GATHER_NANOS
            {
                break;
            }
            std::thread::yield_now();
        }
        words[self.at.arrived].swap(0, Ordering::Relaxed)
    }

    /// Sets the expected size of the next group, after a group of `group` processes was served:
    /// these, and those that arrived meanwhile.
    pub(crate) fn expect(&self, group: u64) {
        let words = self.table.words.words();
        words[self.at.expected]
            .store(group + words[self.at.arrived].load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use plimsoll_disk::clock::Clock;
    use plimsoll_disk::mem::MemDisk;
    use plimsoll_disk::vfs::Disk;

    use super::*;
    use crate::members::Members;

    /// A clock that advances by one microsecond at each reading, and so counts the readings.
    #[derive(Debug, Default)]
    struct TickingClock(AtomicU64);

    impl Clock for TickingClock {
        fn wall_micros(&self) -> u64 {
            0
        }

        fn monotonic_nanos(&self) -> u64 {
            self.0.fetch_add(1000, Ordering::Relaxed)
        }

        fn sleep(&self, _: Duration) {}
    }

    fn members(disk: &Arc<dyn Disk>, is_first: bool) -> Members {
        let clock: Arc<dyn Clock> = Arc::new(TickingClock::default());
        let members = Members::join(disk, &clock, Path::new("/"), Duration::from_secs(1)).unwrap();
        members.begin(is_first, 7, 0).unwrap();
        members.joined();
        members
    }

    fn looks(members: &Members) -> (u64, u64) {
        let clock = TickingClock::default();
        (members.syncs.gathering.gather(&clock), clock.0.load(Ordering::Relaxed) / 1000)
    }

    #[test]
    fn a_sync_waits_for_the_processes_of_the_last_group_and_only_for_them() {
        let disk: Arc<dyn Disk> = Arc::new(MemDisk::new());
        let (one, two) = (members(&disk, true), members(&disk, false));
        one.syncs.gathering.arrive();
        assert_eq!(looks(&one), (1, 1), "no other was there: it waits for none");
        // The other one arrived during the sync.
        two.syncs.gathering.arrive();
        one.syncs.gathering.expect(1);
        let (group, waited) = looks(&two);
        assert_eq!(group, 1);
        assert!((GATHER_NANOS / 1000..GATHER_NANOS / 1000 + 5).contains(&waited), "{waited}");
        two.syncs.gathering.expect(group);
        one.syncs.gathering.arrive();
        assert_eq!(looks(&one), (1, 1), "a process that did not arrive is not expected again");
        one.syncs.gathering.expect(2);
        one.syncs.gathering.arrive();
        two.syncs.gathering.arrive();
        assert_eq!(looks(&one), (2, 1));
    }
}
