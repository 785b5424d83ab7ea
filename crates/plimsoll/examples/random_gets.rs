//! Measures random gets over a store that is larger than its budget, with each way to read (`Options::io`).
//!
//! `cargo run --release -p plimsoll --example random_gets -- STORE [--memory MIB] [--io auto|direct|cached] [--rows N] [--gets N] [--threads N]`
//!
//! The store is made with N rows of 8 + 200 bytes if it is not there.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a measurement looks at the real clock, and ends where it fails"
)]

use std::time::Instant;

use plimsoll::{Db, Io, Options, Retention};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let store = arguments
        .next()
        .expect("usage: random_gets STORE [--memory MIB] [--io HOW] [--rows N] [--gets N] [--threads N]");
    let (mut memory, mut io, mut rows, mut gets, mut threads) = (64, Io::Auto, 4_000_000, 200_000, 1);
    while let (Some(name), Some(value)) = (arguments.next(), arguments.next()) {
        match (&name[..], &value[..]) {
            ("--memory", _) => memory = value.parse().unwrap(),
            ("--rows", _) => rows = value.parse().unwrap(),
            ("--gets", _) => gets = value.parse().unwrap(),
            ("--threads", _) => threads = value.parse().unwrap(),
            ("--io", "auto") => io = Io::Auto,
            ("--io", "direct") => io = Io::Direct,
            ("--io", "cached") => io = Io::Cached,
            _ => panic!("{name} {value}"),
        }
    }
    if !std::path::Path::new(&store).exists() {
        make(&store, rows);
    }
    let db = Db::open(&store, Options::new().memory_bytes(memory << 20).io(io).warm(false).read_only(true)).unwrap();
    for round in 0..3 {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let db = &db;
                scope.spawn(move || ask(db, rows, gets / threads, 1 + round * 1000 + thread));
            }
        });
        let took = begun.elapsed();
        let stats = db.stats();
        println!(
            "round {round}: {gets} gets in {:.2} s, {:.1} us each; now {}, {} switches, {} MiB free beside the budget; {} pages read so far",
            took.as_secs_f64(),
            took.as_secs_f64() * 1e6 / gets as f64,
            if stats.io.cached { "cached" } else { "direct" },
            stats.io.switches,
            stats.io.room_bytes.map_or(0, |bytes| bytes >> 20),
            stats.pool.loads,
        );
    }
}

fn make(store: &str, rows: u64) {
    let db = Db::open(store, Options::new().memory_bytes(256 << 20).retention(Retention::Latest)).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    for first in (0..rows).step_by(10_000) {
        let mut tx = db.begin();
        for row in first..(first + 10_000).min(rows) {
            tx.put(&keyspace, &row.to_be_bytes(), &[row as u8; 200]).unwrap();
        }
        tx.commit().unwrap();
    }
    db.compact().unwrap();
    db.close().unwrap();
}

/// Each thread and round has its own sequence, the same in each run.
fn ask(db: &Db, rows: u64, gets: u64, seed: u64) {
    let keyspace = db.keyspace("default").unwrap();
    let snapshot = db.snapshot();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..gets {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let row = state % rows;
        assert_eq!(snapshot.get(&keyspace, &row.to_be_bytes()).unwrap().unwrap(), [row as u8; 200][..]);
    }
}
