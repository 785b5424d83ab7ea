//! Processor time, which is hardly affected by other load on the machine.

use rustix::time::{ClockId, clock_gettime};

/// Processor time of this thread, in nanoseconds.
pub(crate) fn thread_nanos() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
