//! A budget that is resized while in use, as the system sees it. Alone in its process, because it
//! reads the process's memory.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test that reads what the kernel says of this process"
)]

use std::sync::Arc;

use plimsoll_memory::budget::{Backing, Budget, Kind};
use plimsoll_memory::pool::{LoadError, PageSource, Pool, Touch};

/// Resident and page tables, address space, and page tables alone, in bytes.
fn memory() -> [u64; 3] {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
    };
    [of("RssAnon:") + of("VmPTE:"), of("VmSize:"), of("VmPTE:")]
}

struct Ones;

impl PageSource for Ones {
    fn load(&self, _: u32, page: &mut [u8]) -> Result<(), LoadError> {
        page.fill(1);
        Ok(())
    }
}

#[test]
fn smaller_budget_releases_memory_and_ceiling_costs_none() {
    const MIB: u64 = 1 << 20;
    let [start, ..] = memory();
    let budget = Budget::with_ceiling(16 * MIB, 8192 * MIB, Backing::Mapped).unwrap();
    let pool = Pool::new(&budget, 2 * MIB).unwrap();
    let file = pool.attach(Arc::new(Ones));
    let read_all =
        || (0..20_000).for_each(|number| assert_eq!(file.get(number, Touch::Point).unwrap()[7], 1));
    let grown = || memory()[0] - start;

    assert!(memory()[1] > 8000 * MIB, "the ceiling is address space");
    read_all();
    assert!(grown() < 17 * MIB + MIB / 2, "{} bytes", grown());
    pool.resize(256 * MIB, 32 * MIB).unwrap();
    read_all();
    assert!((200 * MIB..256 * MIB + MIB / 2).contains(&grown()), "{} bytes", grown());
    pool.resize(32 * MIB, 4 * MIB).unwrap();
    assert!(grown() < 35 * MIB, "{} bytes", grown());
    read_all();
    assert!(grown() < 35 * MIB, "{} bytes", grown());
    let others: Vec<_> = std::iter::from_fn(|| budget.take(Kind::Sort).ok()).collect();
    assert!(others.len() > 20 * 16);
    drop((file, pool, others));
    assert_eq!(budget.free_bytes(), 32 * MIB);
    drop(budget);

    // Page tables are released together with the memory.
    let before = memory()[2];
    let budget = Budget::new(256 * MIB, Backing::Mapped).unwrap();
    let mut chunks: Vec<_> = (0..4096).map(|_| budget.take(Kind::Sort).unwrap()).collect();
    chunks.iter_mut().for_each(|chunk| chunk[1] = 1);
    let full = memory()[2];
    assert!(full - before >= 128 * 4096, "a table for each 2 MiB: {} bytes", full - before);
    drop(chunks);
    budget.resize(2 * MIB).unwrap();
    assert!(
        memory()[2] - before < 32 * 4096,
        "{} bytes of page tables for 2 MiB",
        memory()[2] - before
    );
    budget.resize(256 * MIB).unwrap();
    let mut chunks: Vec<_> = (0..4096).map(|_| budget.take(Kind::Sort).unwrap()).collect();
    chunks.iter_mut().for_each(|chunk| chunk.fill(3));
    assert!(chunks.iter().all(|chunk| chunk.iter().all(|&byte| byte == 3)));
    drop((chunks, budget));

    // The system provides whole huge pages, so half of each block is decommitted before it is
    // touched.
    let before = memory()[0];
    let budget = Budget::new(64 * MIB, Backing::Mapped).unwrap();
    let mut chunks: Vec<_> = (0..1024).map(|_| budget.take(Kind::Sort).unwrap()).collect();
    let mut kept: Vec<_> = (0..1024).map(|_| chunks.pop().unwrap()).step_by(2).collect();
    drop(chunks);
    let lease = budget.lease(Kind::Metadata, budget.free_bytes()).unwrap();
    kept.iter_mut().for_each(|chunk| chunk.fill(1));
    let held = memory()[0] - before;
    assert!(held < 33 * MIB, "{held} bytes where half of 64 MiB is leased");
    drop((lease, kept));
    let mut all: Vec<_> = (0..1024).map(|_| budget.take(Kind::Sort).unwrap()).collect();
    all.iter_mut().for_each(|chunk| chunk.fill(2));
}
