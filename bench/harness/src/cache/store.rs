//! The savings of the row cache in a store: pages loaded, processor time and time per operation,
//! with and without rows, in alternating turns.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result};
use plimsoll::{Db, Durability, Keyspace, Options, Retention};

use crate::cache::Cache;
use crate::results::Results;
use crate::sizes::{mib, show_size};
use crate::statistics::median;
use crate::table::{self, number};
use crate::watch::Counters;
use crate::work_folder::WorkFolder;
use crate::yardstick::zipf::Zipf;

const VALUE_BYTES: usize = 100;
const ROWS_OF_COMMIT: u64 = 5000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mix {
    Zipf,
    Uniform,
    /// Every other operation is a relaxed commit of one put, by zipf.
    Mixed,
}

impl Mix {
    const ALL: [Mix; 3] = [Mix::Zipf, Mix::Uniform, Mix::Mixed];

    fn name(self) -> &'static str {
        match self {
            Self::Zipf => "get-zipf",
            Self::Uniform => "get-uniform",
            Self::Mixed => "mixed",
        }
    }
}

/// One turn, per operation.
struct Turn {
    loads: f64,
    cpu_micros: f64,
    micros: f64,
    row_hits: f64,
}

/// A store under one setting.
struct Contestant {
    db: Db,
    keyspace: Keyspace,
    random: fastrand::Rng,
    turns: Vec<Turn>,
}

/// Measures and prints the table.
pub(super) fn run(bench: &Cache, work: &WorkFolder, results: &mut Results) -> Result<()> {
    let zipf = Zipf::new(bench.rows);
    let mut rows = Vec::new();
    for objects in [false, true] {
        load(&folder(work.path(), objects), bench)?;
    }
    for mix in Mix::ALL {
        let mut contestants = Vec::new();
        for objects in [false, true] {
            contestants.push(Contestant::open(&folder(work.path(), objects), bench, objects)?);
        }
        for turn in 0..=bench.turns {
            for contestant in &mut contestants {
                let measured = contestant.turn(mix, bench, &zipf)?;
                if turn > 0 {
                    contestant.turns.push(measured);
                }
            }
        }
        for (objects, contestant) in [false, true].into_iter().zip(contestants) {
            rows.push(contestant.row(mix, bench, objects, results));
            contestant.db.close()?;
        }
    }
    println!(
        "A store of {} rows under {}: pages only, and with the row cache; per operation",
        bench.rows,
        show_size(bench.memory)
    );
    let head = [
        "what",
        "objects",
        "pages loaded",
        "CPU us",
        "us",
        "object hits",
        "objects MiB",
        "pages MiB",
    ];
    table::print(&head, &rows);
    Ok(())
}

fn folder(work: &Path, objects: bool) -> std::path::PathBuf {
    work.join(if objects { "objects" } else { "pages" })
}

fn key(number: u64) -> [u8; 16] {
    let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("{spread:016x}").into_bytes().try_into().expect("sixteen digits")
}

fn value(random: &mut fastrand::Rng) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    random.fill(&mut value[..VALUE_BYTES / 2]);
    value
}

fn options(memory: u64) -> Options {
    Options::new()
        .memory_bytes(memory)
        .retention(Retention::Latest)
        .durability(Durability::Buffered)
}

fn load(folder: &Path, bench: &Cache) -> Result<()> {
    let db = Db::open(folder, options(bench.memory.max(256 << 20)))?;
    let keyspace = db.keyspace("default")?;
    let mut random = fastrand::Rng::with_seed(1);
    let mut number = 0;
    while number < bench.rows {
        let mut tx = db.begin();
        for _ in 0..ROWS_OF_COMMIT.min(bench.rows - number) {
            tx.put(&keyspace, &key(number), &value(&mut random))?;
            number += 1;
        }
        tx.commit()?;
    }
    db.compact()?;
    Ok(db.close()?)
}

impl Contestant {
    fn open(folder: &Path, bench: &Cache, objects: bool) -> Result<Self> {
        let db = Db::open(folder, options(bench.memory).row_cache(objects))?;
        let keyspace = db.keyspace("default")?;
        Ok(Self { db, keyspace, random: fastrand::Rng::with_seed(7), turns: Vec::new() })
    }

    fn turn(&mut self, mix: Mix, bench: &Cache, zipf: &Zipf) -> Result<Turn> {
        let (before, used) = (self.db.stats(), Counters::of(std::process::id())?);
        let start = Instant::now();
        for operation in 0..bench.operations {
            let number = match mix {
                Mix::Uniform => self.random.u64(..bench.rows),
                // Ranks are scattered over the rows, so that hot rows are not on one page.
                Mix::Zipf | Mix::Mixed => {
                    zipf.rank(self.random.f64()).wrapping_mul(0xff51_afd7_ed55_8ccd) % bench.rows
                }
            };
            if mix == Mix::Mixed && operation % 2 == 0 {
                let mut tx = self.db.begin();
                tx.put(&self.keyspace, &key(number), &value(&mut self.random))?;
                tx.commit()?;
            } else {
                self.db
                    .snapshot()
                    .get(&self.keyspace, &key(number))?
                    .context("a row is missing")?;
            }
        }
        let (seconds, now) = (start.elapsed().as_secs_f64(), Counters::of(std::process::id())?);
        let after = self.db.stats();
        let each = |amount: f64| amount / bench.operations as f64;
        Ok(Turn {
            loads: each((after.pool.loads - before.pool.loads) as f64),
            cpu_micros: each((now.cpu_seconds - used.cpu_seconds) * 1e6),
            micros: each(seconds * 1e6),
            row_hits: each((after.row_cache.hits - before.row_cache.hits) as f64),
        })
    }

    fn row(&self, mix: Mix, bench: &Cache, objects: bool, results: &mut Results) -> Vec<String> {
        let stats = self.db.stats();
        let settings = format!("rows={} memory={} objects={objects}", bench.rows, bench.memory);
        let of = |what: fn(&Turn) -> f64| median(&self.turns.iter().map(what).collect::<Vec<_>>());
        let numbers = [
            ("pages_loaded_per_operation", of(|turn| turn.loads)),
            ("cpu_us_per_operation", of(|turn| turn.cpu_micros)),
            ("us_per_operation", of(|turn| turn.micros)),
            ("row_hits_per_operation", of(|turn| turn.row_hits)),
            ("rows_mib", mib(stats.row_cache.held_bytes)),
            ("pages_mib", mib(stats.pool.resident_pages * stats.pool.page_bytes)),
        ];
        numbers
            .iter()
            .for_each(|(metric, value)| results.note(mix.name(), &settings, metric, *value));
        let mut row = vec![mix.name().to_owned(), if objects { "yes" } else { "no" }.to_owned()];
        row.extend(numbers.iter().map(|(_, value)| number(*value)));
        row
    }
}
