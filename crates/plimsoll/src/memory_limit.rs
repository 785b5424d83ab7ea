//! How much memory there is to have: the container's limit, or the machine's.

use plimsoll_disk::machine::{cgroup_limit_bytes, total_memory_bytes};

use crate::options::MIN_MEMORY_BYTES;

/// A quarter of the container's limit (cgroup v1 or v2) or of the machine's memory, whichever is less; at least the minimum.
pub(crate) fn default_memory_bytes() -> u64 {
    let machine = total_memory_bytes().unwrap_or(4 << 30);
    let available = cgroup_limit_bytes().map_or(machine, |limit| limit.min(machine));
    (available / 4).max(MIN_MEMORY_BYTES)
}
