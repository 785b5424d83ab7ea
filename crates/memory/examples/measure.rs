//! Prints what a page hit costs, and an insert, a look-up and a step in a sorted map: `cargo run
//! --release -p plimsoll-memory --example measure [ENTRIES]`.

use std::sync::Arc;

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_memory::budget::{Backing, Budget, Kind};
use plimsoll_memory::page::PAGE_BYTES;
use plimsoll_memory::pool::{LoadError, PageSource, Pool, Touch};
use plimsoll_memory::sorted::SortedMap;

fn main() {
    let count = std::env::args()
        .nth(1)
        .map_or(1_000_000, |count| count.parse().expect("a number of entries"));
    sorted_map("ascending", count, |at| at);
    sorted_map("random", count, scramble);
    pool("in the processor's cache", 16);
    pool("in 256 MiB", 16_000);
}

struct Nothing;

impl PageSource for Nothing {
    fn load(&self, _: u32, page: &mut [u8]) -> Result<(), LoadError> {
        page.fill(1);
        Ok(())
    }
}

/// Point hits at random among `pages`, one byte read of each, by one thread and by two.
fn pool(name: &str, pages: u32) {
    const HITS: u64 = 4_000_000;
    let budget =
        Budget::new(u64::from(pages) * PAGE_BYTES as u64 * 11 / 10 + (16 << 20), Backing::Mapped)
            .expect("address space");
    let pool = Pool::new(&budget, 0).expect("room");
    let file = pool.attach(Arc::new(Nothing));
    let hit = |at: u64| {
        let page =
            file.get((scramble(at) % u64::from(pages)) as u32, Touch::Point).expect("it loads");
        assert_eq!(page[scramble(at) as usize % PAGE_BYTES], 1);
    };
    time(&format!("load {name}"), u64::from(pages), |at| {
        drop(file.get(at as u32, Touch::Point).expect("it loads"))
    });
    assert_eq!(pool.stats().resident, u64::from(pages));
    time(&format!("hit {name}"), HITS, hit);
    let half = || (0..HITS).for_each(hit);
    time(&format!("{HITS} hits by each of two threads {name}"), 1, |_| {
        std::thread::scope(|scope| _ = [(); 2].map(|()| scope.spawn(half)));
    });
}

/// Keys of 12 bytes, values of 8.
fn sorted_map(name: &str, count: u64, number: impl Fn(u64) -> u64) {
    let budget = Budget::new(count * 64 + (16 << 20), Backing::Mapped).expect("address space");
    let map = SortedMap::new(&budget, Kind::Memtable);
    let key = |at: u64| {
        let mut key = [0; 12];
        key[..8].copy_from_slice(&number(at).to_be_bytes());
        key
    };
    time(&format!("{name} insert"), count, |at| {
        map.insert(&key(at), at, &at.to_le_bytes()).expect("room")
    });
    time(&format!("{name} seek at random"), count, |at| {
        let found = map.seek(&key(scramble(at) % count), u64::MAX).expect("it was inserted");
        assert_eq!(map.at(found).order, scramble(at) % count);
    });
    let mut position = map.first();
    time(&format!("{name} step"), count, |_| {
        position = map.next(position.expect("as many as inserted"))
    });
    println!("{name}: {:.1} bytes each", map.used_bytes() as f64 / count as f64);
}

fn time(what: &str, count: u64, work: impl FnMut(u64)) {
    let clock = SystemClock::new();
    let start = clock.monotonic_nanos();
    (0..count).for_each(work);
    println!("{what}: {:.1} ns each", (clock.monotonic_nanos() - start) as f64 / count as f64);
}

fn scramble(at: u64) -> u64 {
    let mixed = (at ^ at >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53)
}
