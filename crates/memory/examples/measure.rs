//! Prints what an insert, a look-up and a step cost: `cargo run --release -p plimsoll-memory --example measure [ENTRIES]`.

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_memory::budget::{Backing, Budget, Kind};
use plimsoll_memory::sorted::SortedMap;

fn main() {
    let count = std::env::args().nth(1).map_or(1_000_000, |count| count.parse().expect("a number of entries"));
    sorted_map("ascending", count, |at| at);
    sorted_map("random", count, scramble);
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
    time(&format!("{name} insert"), count, |at| map.insert(&key(at), at, &at.to_le_bytes()).expect("room"));
    time(&format!("{name} seek at random"), count, |at| {
        let found = map.seek(&key(scramble(at) % count), u64::MAX).expect("it was inserted");
        assert_eq!(map.at(found).order, scramble(at) % count);
    });
    let mut position = map.first();
    time(&format!("{name} step"), count, |_| position = map.next(position.expect("as many as inserted")));
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
