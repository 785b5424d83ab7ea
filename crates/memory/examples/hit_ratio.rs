//! Prints the hit ratio of the pool for typical access patterns: `cargo run --release -p
//! plimsoll-memory --example hit_ratio [TRACE MIB]` (TRACE: a file with one page number per line,
//! MIB: the budget).
//!
//! No file is read and no time is measured, so the numbers are the same on every machine. Each read
//! is a separate operation.

use std::sync::Arc;

use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::pool::{LoadError, PageSource, Pool, PoolFile, Touch};

/// Frames of the pool, but for its tables and the room left to others.
const BUDGET_BYTES: u64 = 64 << 20;
const FRAMES: u64 = BUDGET_BYTES / (16 << 10);

/// Reads of a pattern. The first half warms up.
const READS: u32 = 400_000;

/// A source that costs nothing.
struct Empty;

impl PageSource for Empty {
    fn load(&self, _: u32, _: &mut [u8]) -> Result<(), LoadError> {
        Ok(())
    }
}

/// The access pattern: the page of the n-th read, and the kind of read.
type Pattern = (&'static str, fn(u64, &mut dyn FnMut() -> u64) -> (u64, Touch));

const PATTERNS: [Pattern; 8] = [
    ("even over four times the pool", |_, random| (random() % (4 * FRAMES), Touch::Point)),
    ("steep over four times the pool", |_, random| (steep(random(), 4 * FRAMES), Touch::Point)),
    ("steep over sixteen times the pool", |_, random| (steep(random(), 16 * FRAMES), Touch::Point)),
    ("steep, and other pages from time to time", |at, random| {
        (at / 50_000 * 1_000_003 + steep(random(), 4 * FRAMES), Touch::Point)
    }),
    ("half a pool, again and again, beside pages touched once", |at, random| match at % 2 {
        0 => (random() % (FRAMES / 2), Touch::Point),
        _ => (1_000_000 + at, Touch::Point),
    }),
    ("half a pool, again and again, beside a scan", |at, random| match at % 2 {
        0 => (random() % (FRAMES / 2), Touch::Point),
        _ => (1_000_000 + at, Touch::Scan),
    }),
    ("a tenth of a pool above leaves touched once or twice", |at, random| match at % 2 {
        0 => (random() % (FRAMES / 10), Touch::Point),
        _ => (1_000_000 + random() % (64 * FRAMES), Touch::Point),
    }),
    ("round and round over a fifth more than the pool", |at, _| {
        (at % (FRAMES * 6 / 5), Touch::Point)
    }),
];

fn main() {
    for (name, pattern) in PATTERNS {
        let file = pool(BUDGET_BYTES);
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state ^ state >> 32) >> 16
        };
        let reads = (0..READS).map(|at| pattern(u64::from(at), &mut random));
        println!("{:5.1} % {name}", 100.0 * hit_ratio(&file, reads));
    }
    if let Some(path) = std::env::args().nth(1) {
        let text = std::fs::read_to_string(&path).expect("a trace");
        let reads = text.lines().map(|line| (line.trim().parse().expect("a number"), Touch::Point));
        let mib: u64 =
            std::env::args().nth(2).map_or(64, |mib| mib.parse().expect("MiB of the budget"));
        println!(
            "{:5.1} % {path}",
            100.0 * hit_ratio(&pool(mib << 20), reads.collect::<Vec<_>>().into_iter())
        );
    }
}

fn pool(budget_bytes: u64) -> PoolFile {
    let budget = Budget::new(budget_bytes, Backing::Mapped).expect("address space");
    let pool = Pool::new(&budget, budget_bytes / 8).expect("room");
    pool.attach(Arc::new(Empty))
}

/// Of the second half of the reads.
fn hit_ratio(file: &PoolFile, reads: impl ExactSizeIterator<Item = (u64, Touch)>) -> f64 {
    let half = reads.len() / 2;
    let mut hits = 0;
    for (at, (number, touch)) in reads.enumerate() {
        let found = file.find(number as u32, touch).is_some();
        if !found {
            drop(file.get(number as u32, touch).expect("it loads"));
        }
        hits += u64::from(found && at >= half);
    }
    hits as f64 / (half as f64)
}

/// A number below `count`, small ones far more often: about as Zipf's law with an exponent of 0.9.
fn steep(random: u64, count: u64) -> u64 {
    let even = (random % (1 << 40)) as f64 / (1_u64 << 40) as f64;
    let low = (count as f64).powf(0.1);
    (((1.0 + even * (low - 1.0)).powi(10) - 1.0) as u64).min(count - 1)
}
