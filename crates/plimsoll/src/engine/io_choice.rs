//! Decides whether reads go through the system's page cache, based on the memory that is free for
//! it. The choice is reconsidered while the store is open.
//!
//! 1. The page cache is worth the extra copies only if it can be larger than the budget; a smaller
//!    one would hold the same pages as the page pool.
//! 2. Memory use never approaches a limit: memory that the budget may still take is reserved first,
//!    in each cgroup and in the machine.
//! 3. The choice changes only when free memory is clearly above or clearly below what the page
//!    cache needs.
//! 4. No result depends on the choice.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use plimsoll_disk::clock::Clock;
use plimsoll_disk::free_memory::{Room, RoomGauge, Rooms};
use plimsoll_disk::switching::{Switch, SwitchingDisk};
use plimsoll_disk::vfs::{Caching, Disk};
use plimsoll_memory::budget::Budget;

use crate::types::io::Io;
use crate::types::options::Options;
use crate::types::stats::IoStats;

/// The interval between checks of the free memory.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The least free memory for which reads go through the page cache, however small the budget is.
const MIN_ROOM_BYTES: u64 = 64 << 20;

/// Divisor: the part of the machine's memory that is left free.
const MACHINE_SHARE: u64 = 16;

/// The choice of one open store.
pub(crate) struct IoChoice {
    asked: Io,
    gauge: Arc<dyn RoomGauge>,
    clock: Arc<dyn Clock>,
    budget: Budget,
    cached: AtomicBool,
    switches: AtomicU64,
    /// When to check again: nanoseconds of the clock.
    next_look: AtomicU64,
    /// The free memory at the last check; `u64::MAX` before the first check.
    room_bytes: AtomicU64,
    /// The number of callers that need to read from the device.
    device_readers: AtomicU32,
}

/// Makes the choice for a store. Returns it with the options, whose disk now follows the choice.
pub(crate) fn choose(options: Options, budget: &Budget) -> (Options, Arc<IoChoice>) {
    let has_choice = options.disk.has_page_cache();
    let choice = Arc::new(IoChoice {
        asked: if has_choice { options.io } else { Io::Direct },
        gauge: Arc::clone(&options.room_gauge),
        clock: Arc::clone(&options.clock),
        budget: budget.clone(),
        cached: AtomicBool::new(options.io == Io::Cached && has_choice),
        switches: AtomicU64::new(0),
        next_look: AtomicU64::new(0),
        room_bytes: AtomicU64::new(u64::MAX),
        device_readers: AtomicU32::new(0),
    });
    if choice.asked == Io::Direct {
        return (options, choice);
    }
    let disk = SwitchingDisk::new(Arc::clone(&options.disk), Arc::clone(&choice) as _);
    (Options { disk: Arc::new(disk) as Arc<dyn Disk>, ..options }, choice)
}

impl IoChoice {
    /// Until the returned guard is dropped, reads bypass the page cache, to verify the bytes on the
    /// device.
    pub(crate) fn read_device(&self) -> DeviceReads<'_> {
        self.device_readers.fetch_add(1, Ordering::Relaxed);
        DeviceReads(self)
    }

    pub(crate) fn stats(&self) -> IoStats {
        let _ = self.caching();
        let room_bytes =
            Some(self.room_bytes.load(Ordering::Relaxed)).filter(|&bytes| bytes != u64::MAX);
        IoStats {
            asked: self.asked,
            cached: self.cached.load(Ordering::Relaxed),
            switches: self.switches.load(Ordering::Relaxed),
            room_bytes,
        }
    }

    /// Checks the free memory again, once per interval; the first caller after the interval does
    /// it.
    fn poll(&self) {
        // Relaxed, here and below: a reader gets the same bytes, whatever value it sees.
        let (now, due) = (self.clock.monotonic_nanos(), self.next_look.load(Ordering::Relaxed));
        let next = now + POLL_INTERVAL.as_nanos() as u64;
        if now < due
            || self
                .next_look
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
        {
            return;
        }
        let usage = self.budget.usage();
        let cached = self.cached.load(Ordering::Relaxed);
        let decision = decide(cached, &self.gauge.read(), usage.limit_bytes, usage.free_bytes);
        self.room_bytes.store(decision.room_bytes.min(u64::MAX - 1), Ordering::Relaxed);
        if decision.cached != cached {
            self.cached.store(decision.cached, Ordering::Relaxed);
            self.switches.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Switch for IoChoice {
    fn caching(&self) -> Caching {
        if self.asked == Io::Auto {
            self.poll();
        }
        let cached =
            self.cached.load(Ordering::Relaxed) && self.device_readers.load(Ordering::Relaxed) == 0;
        if cached { Caching::Buffered } else { Caching::Direct }
    }
}

impl fmt::Debug for IoChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoChoice({}, cached: {})", self.asked, self.cached.load(Ordering::Relaxed))
    }
}

/// See [`IoChoice::read_device`].
pub(crate) struct DeviceReads<'a>(&'a IoChoice);

impl Drop for DeviceReads<'_> {
    fn drop(&mut self) {
        self.0.device_readers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Decision {
    cached: bool,
    /// The least free memory in the machine or any cgroup.
    room_bytes: u64,
}

/// Whether reads go through the page cache from now on. `unused_bytes` of the budget may still be
/// taken.
fn decide(cached: bool, rooms: &Rooms, budget_bytes: u64, unused_bytes: u64) -> Decision {
    let left = |room: &Room| room.free_bytes().saturating_sub(unused_bytes);
    let machine =
        rooms.machine.map(|room| left(&room).saturating_sub(room.limit_bytes / MACHINE_SHARE));
    // If the machine does not report its free memory, none counts as free.
    let room_bytes = rooms.cgroups.iter().map(left).fold(machine.unwrap_or(0), u64::min);
    let least = MIN_ROOM_BYTES.max(budget_bytes.saturating_add(budget_bytes / 2));
    // Hysteresis: the page cache is abandoned only at a third less, so that short changes by other
    // processes do not flip the choice.
    let wanted = if cached { least - least / 3 } else { least };
    Decision { cached: room_bytes >= wanted, room_bytes }
}

#[cfg(test)]
mod tests;
