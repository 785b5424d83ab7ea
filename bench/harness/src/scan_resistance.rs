//! `bench scan-resistance`: does a set of rows that is read repeatedly stay in memory while
//! everything else is read once?
//!
//! A store with sixteen times its budget in rows. One thread reads rows of the hot set, usually
//! each on a separate leaf; concurrently a scan over all rows runs, then a full compaction. A read
//! is a hit if its thread did not read from the disk. This is stricter than a ratio of pages,
//! because one missing page of several makes the read a miss.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use plimsoll::Options;
use plimsoll_disk::clock::SystemClock;
use plimsoll_memory::page::PAGE_BYTES;

use crate::counting_disk::{CountingDisk, reads_of_this_thread};
use crate::payload;
use crate::quiet;
use crate::results::Results;
use crate::row_store::{RowStore, rows_in};
use crate::sizes::{parse_size, show_size};
use crate::table::{self, number};
use crate::work_folder::Places;

/// Minimum fraction of hits.
const GOAL: f64 = 0.95;

/// Bytes of rows for each byte of the budget.
const DATA_TO_MEMORY: u64 = 16;

#[derive(Args, Debug)]
pub(crate) struct ScanResistance {
    /// Memory budget; the store has sixteen times as much in rows
    #[arg(long, default_value = "64MiB", value_parser = parse_size)]
    memory: u64,
    /// Percent of the budget that the pages of the hot set take
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u64).range(1..=50))]
    hot_percent: u64,
    /// Rounds of a walk and of a compaction
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
}

/// The work beside the reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    Walk,
    Compaction,
}

impl Beside {
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "alone",
            Self::Walk => "walk",
            Self::Compaction => "compaction",
        }
    }
}

/// Reads of the hot set.
#[derive(Clone, Copy, Debug, Default)]
struct Reads {
    all: u64,
    misses: u64,
    seconds: f64,
}

impl Reads {
    fn hit_ratio(self) -> f64 {
        1.0 - self.misses as f64 / self.all as f64
    }
}

impl ScanResistance {
    /// Measures, prints the table, stores the results.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let mut results = Results::new("scan-resistance", places.results().as_deref());
        quiet::check(&mut results);
        let work = places.work("scan-resistance")?;
        let folder = work.path().join("store");
        let rows = rows_in(self.memory * DATA_TO_MEMORY);
        RowStore::make(&folder, rows, self.memory.max(256 << 20))?;
        let options = Options::new()
            .memory_bytes(self.memory)
            .world(Arc::new(CountingDisk::default()), Arc::new(SystemClock::new()));
        let store = RowStore::open(&folder, rows, options)?;
        let hot = self.memory * self.hot_percent / 100 / PAGE_BYTES as u64;
        // Until everything is in memory and was read more than once.
        for number in (0..4).flat_map(|_| 0..hot) {
            store.get(number)?;
        }
        let mut table_rows = Vec::new();
        for round in 1..=self.rounds {
            for beside in [Beside::Nothing, Beside::Walk, Beside::Compaction] {
                let reads = measure(&store, hot, beside)?;
                let settings = format!(
                    "memory={} hot={}% beside={} round={round}",
                    show_size(self.memory),
                    self.hot_percent,
                    beside.name()
                );
                results.note("scan-resistance", &settings, "hit_ratio", reads.hit_ratio());
                results.note("scan-resistance", &settings, "reads", reads.all as f64);
                results.note("scan-resistance", &settings, "seconds", reads.seconds);
                table_rows.push(vec![
                    round.to_string(),
                    beside.name().to_owned(),
                    number(reads.seconds),
                    reads.all.to_string(),
                    reads.misses.to_string(),
                    format!("{:.3}", reads.hit_ratio() * 100.0),
                    if reads.hit_ratio() > GOAL { "yes" } else { "NO" }.to_owned(),
                ]);
            }
        }
        println!(
            "Reads of {hot} hot rows that found all their pages in memory (goal: above {} %)",
            GOAL * 100.0
        );
        table::print(
            &["round", "beside", "seconds", "reads", "misses", "hits %", "reached"],
            &table_rows,
        );
        store.db.close()?;
        results.save()
    }
}

/// Reads hot rows until what runs beside it has ended (alone: as many reads as the set has rows,
/// ten times over).
fn measure(store: &RowStore, hot: u64, beside: Beside) -> Result<Reads> {
    if beside == Beside::Compaction {
        // Gives the merge work: a part of every leaf is new.
        for number in (hot..store.rows).step_by(97) {
            store.put(number, 1)?;
        }
        store.db.flush()?;
        for number in (0..4).flat_map(|_| 0..hot) {
            store.get(number)?;
        }
    }
    let ended = AtomicBool::new(beside == Beside::Nothing);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let outcome = match beside {
                Beside::Nothing => Ok(store.rows),
                Beside::Walk => store.walk_all(),
                Beside::Compaction => store.db.compact().map(|()| store.rows).map_err(Into::into),
            };
            ended.store(true, Ordering::Relaxed);
            outcome
        });
        let reads = read_hot(store, hot, &ended);
        let rows = other.join().expect("what runs beside does not panic")?;
        ensure!(rows == store.rows, "{} of {} rows were walked", rows, store.rows);
        reads
    })
}

fn read_hot(store: &RowStore, hot: u64, ended: &AtomicBool) -> Result<Reads> {
    let began = Instant::now();
    let mut reads = Reads::default();
    let mut state = 1;
    while !ended.load(Ordering::Relaxed) || reads.all < 10 * hot {
        state = payload::mix(state + 1);
        let before = reads_of_this_thread();
        store.get(state % hot)?;
        reads.all += 1;
        reads.misses += u64::from(reads_of_this_thread() > before);
    }
    reads.seconds = began.elapsed().as_secs_f64();
    Ok(reads)
}
