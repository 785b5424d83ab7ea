//! Measures random gets over a store that is larger than its budget, with each way to read
//! (`Options::io`).
//!
//! `cargo run --release -p plimsoll --example random_gets -- STORE [--memory MIB] [--io
//! auto|direct|cached] [--rows N] [--gets N] [--threads N]`
//!
//! If there is no store at that path, one is made with N rows of 8 + 200 bytes. Another store
//! cannot be measured, because its keys are not known.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a measurement looks at the real clock, and ends where it fails"
)]

use std::process::ExitCode;
use std::time::Instant;

use plimsoll::{Db, Io, Options, Retention};

const USAGE: &str = "usage: random_gets STORE [--memory MIB] [--io auto|direct|cached] [--rows N] \
                     [--gets N] [--threads N]
Makes STORE with N rows (4,000,000, about 870 MB) if there is none.";

/// The measurements.
struct Measured {
    store: String,
    memory: u64,
    io: Io,
    rows: u64,
    gets: u64,
    threads: u64,
}

fn main() -> ExitCode {
    match read_arguments(std::env::args().skip(1)).and_then(|measured| run(&measured)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

fn read_arguments(mut arguments: impl Iterator<Item = String>) -> Result<Measured, String> {
    // An option is not the path of a store.
    let store = arguments.next().filter(|store| !store.starts_with('-')).ok_or(USAGE)?;
    let mut measured =
        Measured { store, memory: 64, io: Io::Auto, rows: 4_000_000, gets: 200_000, threads: 1 };
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        let number = || value.parse().ok().filter(|&number| number > 0).ok_or(USAGE);
        match (&name[..], &value[..]) {
            ("--memory", _) => measured.memory = number()?,
            ("--rows", _) => measured.rows = number()?,
            ("--gets", _) => measured.gets = number()?,
            ("--threads", _) => measured.threads = number()?,
            ("--io", "auto") => measured.io = Io::Auto,
            ("--io", "direct") => measured.io = Io::Direct,
            ("--io", "cached") => measured.io = Io::Cached,
            _ => return Err(format!("{name} {value}\n{USAGE}")),
        }
    }
    Ok(measured)
}

fn run(measured: &Measured) -> Result<(), String> {
    let &Measured { ref store, memory, io, rows, gets, threads } = measured;
    let failed = |error: plimsoll::Error| format!("{store}: {error}");
    if !std::path::Path::new(store).exists() {
        println!("making {store} with {rows} rows");
        make(store, rows).map_err(failed)?;
    }
    let options = Options::new().memory_bytes(memory << 20).io(io).warm(false).read_only(true);
    let db = Db::open(store, options).map_err(failed)?;
    let rows = rows_of(&db).map_err(failed)?;
    let rows = rows.ok_or_else(|| {
        format!("{store} was not made by this program; give a path where there is nothing")
    })?;
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
            "round {round}: {gets} gets in {:.2} s, {:.1} us each; now {}, {} switches, {} MiB \
             free beside the budget; {} pages read so far",
            took.as_secs_f64(),
            took.as_secs_f64() * 1e6 / gets as f64,
            if stats.io.cached { "cached" } else { "direct" },
            stats.io.switches,
            stats.io.room_bytes.map_or(0, |bytes| bytes >> 20),
            stats.pool.loads,
        );
    }
    Ok(())
}

/// Number of rows in a store created by [`make`]; `None` for any other store.
fn rows_of(db: &Db) -> plimsoll::Result<Option<u64>> {
    let snapshot = db.snapshot();
    let Some(keyspace) = snapshot.keyspace("default")? else { return Ok(None) };
    let (Some((first, zeros)), Some((last, value))) =
        (snapshot.first(&keyspace)?, snapshot.last(&keyspace)?)
    else {
        return Ok(None);
    };
    let number = |key: Vec<u8>| key.try_into().ok().map(u64::from_be_bytes);
    let is_row = |number: u64, value: plimsoll::Value| value == [number as u8; 200][..];
    Ok(match (number(first), number(last)) {
        (Some(0), Some(last)) if is_row(0, zeros) && is_row(last, value) => Some(last + 1),
        _ => None,
    })
}

fn make(store: &str, rows: u64) -> plimsoll::Result<()> {
    let db = Db::open(store, Options::new().memory_bytes(256 << 20).retention(Retention::Latest))?;
    let keyspace = db.keyspace("default")?;
    for first in (0..rows).step_by(10_000) {
        let mut tx = db.begin();
        for row in first..(first + 10_000).min(rows) {
            tx.put(&keyspace, &row.to_be_bytes(), &[row as u8; 200])?;
        }
        tx.commit()?;
    }
    db.compact()?;
    db.close()
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
        assert_eq!(
            snapshot.get(&keyspace, &row.to_be_bytes()).unwrap().unwrap(),
            [row as u8; 200][..]
        );
    }
}
