//! A new budget, pool and cache take next to no memory from the system, whatever their limits.
//! Alone in its process, because it reads the process's memory.
#![cfg(not(any(loom, shuttle, miri)))]
#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it should be")]

use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::cache::{Cache, CacheOptions};
use plimsoll_memory::pool::Pool;

/// Bytes of the process's own memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

#[test]
fn large_budget_takes_no_more_initial_memory_than_a_small_one() {
    let taken = [64 << 20, 16 << 30].map(|bytes: u64| {
        let before = resident();
        let budget = Budget::new(bytes, Backing::Mapped).unwrap();
        let pool = Pool::new(&budget, bytes / 8).unwrap();
        let cache = Cache::new(&budget, CacheOptions::of_bytes(bytes / 4 * 3)).unwrap();
        let taken = resident().saturating_sub(before);
        drop((cache, pool));
        taken
    });
    assert!(taken[1] < taken[0] + (2 << 20), "bytes taken of 64 MiB and of 16 GiB: {taken:?}");
}
