//! The budget as the system sees it. Alone in its process, because it reads the process's resident
//! memory.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test that reads what the kernel says of this process"
)]

use plimsoll_memory::budget::{Backing, Budget, Kind};

fn resident_bytes() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<i64>().unwrap() * 1024
}

#[test]
fn retired_chunks_are_not_resident() {
    let budget = Budget::new(64 << 20, Backing::Mapped).unwrap();
    let mut chunks: Vec<_> = (0..1024).map(|_| budget.take(Kind::Pages).unwrap()).collect();
    chunks.iter_mut().for_each(|chunk| chunk.fill(1));
    drop(chunks);
    let full = resident_bytes();
    let lease = budget.lease(Kind::Metadata, 48 << 20).unwrap();
    let given_back = full - resident_bytes();
    assert!(given_back > 47 << 20, "{given_back} bytes of 48 MiB");
    drop(lease);
    let mut again: Vec<_> = (0..1024).map(|_| budget.take(Kind::Pages).unwrap()).collect();
    again.iter_mut().for_each(|chunk| chunk.fill(2));
    assert!(again.iter().all(|chunk| chunk.iter().all(|&byte| byte == 2)));
}
