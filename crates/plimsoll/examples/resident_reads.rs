//! Measures reads of a store that fits in memory, by the processor time of the reading threads.
//!
//! `cargo run --release -p plimsoll --example resident_reads -- STORE [OPTIONS]`
//!
//! Options: `--memory MIB`, `--rows N`, `--value BYTES`, `--gets N`, `--ranges N`, `--threads N`,
//! `--only NAME`.
//!
//! The store is made with N rows of 24 random bytes and a value that does not compress if it is not
//! there. Measured are: the first get of every key, gets of random keys, the same with the value
//! lent, gets of keys that are absent, walks of 10 rows and of 100 rows from a random key, a walk
//! over everything.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a measurement looks at the real clock, and ends where it fails"
)]

use std::time::{Duration, Instant};

use plimsoll::{Db, Durability, Keyspace, Options, Retention, Snapshot};

fn main() {
    let mut arguments = std::env::args().skip(1);
    // An option is not the path of a store.
    let Some(store) = arguments.next().filter(|store| !store.starts_with('-')) else {
        eprintln!(
            "usage: resident_reads STORE [--memory MIB] [--rows N] ...; makes STORE if there is \
             none"
        );
        std::process::exit(2);
    };
    let (mut memory, mut rows, mut value, mut gets, mut ranges, mut threads) =
        (1024, 1_000_000, 150, 1_000_000, 200_000, 1);
    let mut only = String::new();
    while let (Some(name), Some(given)) = (arguments.next(), arguments.next()) {
        match &name[..] {
            "--memory" => memory = given.parse().unwrap(),
            "--rows" => rows = given.parse().unwrap(),
            "--value" => value = given.parse().unwrap(),
            "--gets" => gets = given.parse().unwrap(),
            "--ranges" => ranges = given.parse().unwrap(),
            "--threads" => threads = given.parse().unwrap(),
            "--only" => only = given,
            _ => panic!("{name} {given}"),
        }
    }
    let is_new = !std::path::Path::new(&store).exists();
    let options = Options::new()
        .memory_bytes(memory << 20)
        .retention(Retention::Latest)
        .durability(Durability::Buffered);
    let db = Db::open(&store, options).unwrap();
    let keyspace = db.keyspace("default").unwrap();
    if is_new {
        make(&db, &keyspace, rows, value);
    }
    // Every page is brought in: a store that was made by an earlier process is not in memory.
    let mut all = 0;
    let mut walk = db.snapshot().range(&keyspace, ..).unwrap();
    while walk.advance().unwrap().is_some() {
        all += 1;
    }
    drop(walk);
    assert_eq!(
        all, rows,
        "{store} has other rows than --rows says: give a path where there is nothing"
    );
    let stats = db.stats();
    println!(
        "{rows} rows of 24 + {value} bytes, {memory} MiB, {threads} threads; {} loads",
        stats.pool.loads
    );
    let reads = Reads { db: &db, keyspace: &keyspace, rows, threads, gets, ranges };
    let wanted = |name: &str| only.is_empty() || name.contains(&only);
    let each = |name: &str, count: u64, one: &(dyn Fn(&Snapshot, u64) -> usize + Sync)| {
        if wanted(name) {
            reads.measure(name, count, one);
        }
    };
    // As many steps as there are rows, by a step that shares no divisor with their number: each key
    // once.
    let nth = |n: u64| n.wrapping_mul(618_033_989) % rows;
    each("first get of each key", rows, &|_, n| {
        db.get(&keyspace, key_of(nth(n))).unwrap().unwrap().len()
    });
    for round in 1..=3 {
        each(&format!("get, round {round}"), gets, &|_, n| {
            db.get(&keyspace, key_of(random(n + round * gets) % rows)).unwrap().unwrap().len()
        });
    }
    each("snapshot get", gets, &|snapshot, n| {
        snapshot.get(&keyspace, key_of(random(n) % rows)).unwrap().unwrap().len()
    });
    each("snapshot get_with", gets, &|snapshot, n| {
        snapshot.get_with(&keyspace, key_of(random(n) % rows), <[u8]>::len).unwrap().unwrap()
    });
    each("absent get", gets, &|_, n| {
        usize::from(db.get(&keyspace, key_of(rows + random(n) % rows)).unwrap().is_some())
    });
    for rows_each in [10, 100] {
        let count = ranges * 10 / rows_each;
        each(&format!("range of {rows_each}"), count, &|snapshot, n| {
            let mut walk = snapshot.range(&keyspace, &key_of(random(n) % rows)[..]..).unwrap();
            let mut bytes = 0;
            for _ in 0..rows_each {
                bytes += walk.advance().unwrap().map_or(0, |(key, value)| key.len() + value.len());
            }
            bytes
        });
        each(&format!("iterator of {rows_each}"), count, &|snapshot, n| {
            let walk = snapshot.range(&keyspace, &key_of(random(n) % rows)[..]..).unwrap();
            walk.take(rows_each as usize).map(|row| row.unwrap().1.len()).sum()
        });
    }
    if wanted("full scan") {
        let begun = (Instant::now(), processor_time());
        let mut walk = db.snapshot().range(&keyspace, ..).unwrap();
        while walk.advance().unwrap().is_some() {}
        report("full scan, a row", rows, begun.0.elapsed(), processor_time() - begun.1);
    }
    db.close().unwrap();
}

struct Reads<'a> {
    db: &'a Db,
    keyspace: &'a Keyspace,
    rows: u64,
    threads: u64,
    gets: u64,
    ranges: u64,
}

impl Reads<'_> {
    /// Calls `one` for each number below `count`, on all threads together.
    fn measure(&self, name: &str, count: u64, one: &(dyn Fn(&Snapshot, u64) -> usize + Sync)) {
        let _ = (self.keyspace, self.rows, self.gets, self.ranges);
        let begun = Instant::now();
        let spent: Duration = std::thread::scope(|scope| {
            let part = |thread: u64| {
                scope.spawn(move || {
                    let snapshot = self.db.snapshot();
                    let begun = processor_time();
                    let mut bytes = 0;
                    for n in (thread..count).step_by(self.threads as usize) {
                        bytes += one(&snapshot, n);
                    }
                    std::hint::black_box(bytes);
                    processor_time() - begun
                })
            };
            let threads: Vec<_> = (0..self.threads).map(part).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        report(name, count, begun.elapsed(), spent);
    }
}

fn report(name: &str, count: u64, took: Duration, spent: Duration) {
    let each = spent.as_nanos() as f64 / count as f64;
    println!(
        "{name:24} {each:9.0} ns of processor time each, {:10.0}/s",
        count as f64 / took.as_secs_f64()
    );
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let counters = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(counters.split_whitespace().next().unwrap().parse().unwrap())
}

fn make(db: &Db, keyspace: &Keyspace, rows: u64, bytes: usize) {
    let mut value = vec![0; bytes];
    for first in (0..rows).step_by(1000) {
        let mut tx = db.begin();
        for row in first..(first + 1000).min(rows) {
            value
                .chunks_mut(8)
                .zip(row << 8..)
                .for_each(|(part, n)| part.copy_from_slice(&random(n).to_le_bytes()[..part.len()]));
            tx.put(keyspace, key_of(row), &value).unwrap();
        }
        tx.commit().unwrap();
    }
    db.compact().unwrap();
}

fn key_of(row: u64) -> [u8; 24] {
    let mut key = [0; 24];
    key.chunks_mut(8)
        .zip(row * 3 + 1_000_000_007..)
        .for_each(|(part, n)| part.copy_from_slice(&random(n).to_le_bytes()));
    key
}

/// SplitMix64.
fn random(n: u64) -> u64 {
    let mut z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
