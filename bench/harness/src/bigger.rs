//! `bench bigger`: is a store ever slower with a larger memory budget?
//!
//! Budgets are compared only with their neighbours, in alternating pairs. `replay` imports a Git
//! history with the `plimsoll` command into a new store each time. `mix` reads one store, opened
//! twice at once, under both budgets: it repeats nine point reads (keys by Zipf's law) and a short
//! scan.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use plimsoll::Options;

use crate::cpu_quiet;
use crate::launch::{Limit, launch};
use crate::line::{build_plimsoll, top_of_checkout};
use crate::quiet;
use crate::results::Results;
use crate::row_store::{RowStore, rows_in};
use crate::sizes::{parse_size, show_size};
use crate::statistics::{Interval, interval, median};
use crate::table::{self, number};
use crate::watch::End;
use crate::work_folder::{Places, WorkFolder};
use crate::yardstick::zipf::Zipf;

/// Rows of a short scan.
const WALK_ROWS: u64 = 20;

/// Pairs of operations between two clock reads.
const ROUNDS_AT_ONCE: u64 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Work {
    Replay,
    Mix,
}

#[derive(Args, Debug)]
pub(crate) struct Bigger {
    /// Budgets, each compared with the next
    #[arg(long, value_delimiter = ',', default_value = "16MiB,32MiB,64MiB,128MiB,256MiB,512MiB,1GiB,2GiB", value_parser = parse_size)]
    memory: Vec<u64>,
    /// Work to do
    #[arg(long, value_delimiter = ',', default_value = "replay,mix")]
    only: Vec<Work>,
    /// Pairs of turns for two neighbours
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pairs: u64,
    /// Length of a turn of the mix in milliseconds
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    turn_ms: u64,
    /// Bytes of rows that the mix reads
    #[arg(long, default_value = "1GiB", value_parser = parse_size)]
    data: u64,
    /// Git repository to replay [default: the one that the bench lies in]
    #[arg(long)]
    repository: Option<PathBuf>,
    /// The plimsoll command [default: it is built]
    #[arg(long)]
    plimsoll: Option<PathBuf>,
}

impl Bigger {
    /// Measures, prints the table, keeps the results.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        ensure!(
            self.memory.is_sorted() && self.memory.len() > 1,
            "--memory wants two budgets or more, small ones first"
        );
        let mut results = Results::new("bigger", places.results().as_deref());
        quiet::check(&mut results);
        let work = places.work("bigger")?;
        let mut rows = Vec::new();
        for &what in &self.only {
            for pair in self.memory.windows(2) {
                let (smaller, bigger) = match what {
                    Work::Replay => self.replay(&work, pair[0], pair[1])?,
                    Work::Mix => self.mix(&work, pair[0], pair[1])?,
                };
                rows.push(self.row(what, pair, &smaller, &bigger, &mut results));
                results.keep()?;
            }
        }
        println!(
            "Work a second under a budget and under the next one (the ratio bigger/smaller may not lie below 1)"
        );
        table::print(
            &[
                "what",
                "smaller",
                "bigger",
                "smaller/s",
                "bigger/s",
                "ratio",
                "low",
                "high",
                "reached",
            ],
            &rows,
        );
        results.save()
    }

    fn row(
        &self,
        what: Work,
        budgets: &[u64],
        smaller: &[f64],
        bigger: &[f64],
        results: &mut Results,
    ) -> Vec<String> {
        let Interval { low, median: middle, high } = interval(
            &bigger
                .iter()
                .zip(smaller)
                .map(|(bigger, smaller)| bigger / smaller)
                .collect::<Vec<_>>(),
        );
        let name =
            what.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        let settings = format!(
            "what={name} smaller={} bigger={}",
            show_size(budgets[0]),
            show_size(budgets[1])
        );
        let numbers = [
            ("smaller_per_second", median(smaller)),
            ("bigger_per_second", median(bigger)),
            ("ratio", middle),
            ("ratio_low", low),
            ("ratio_high", high),
        ];
        numbers
            .into_iter()
            .for_each(|(metric, value)| results.note("bigger", &settings, metric, value));
        let reached = match (low >= 1.0, high < 1.0) {
            (true, _) => "faster",
            (_, true) => "SLOWER",
            _ => "not slower",
        };
        let mut row = vec![name, show_size(budgets[0]), show_size(budgets[1])];
        row.extend([median(smaller), median(bigger)].map(number));
        row.extend([middle, low, high].map(|part| format!("{part:.3}")));
        row.push(reached.to_owned());
        row
    }

    /// Imports per second, pair by pair, under both budgets.
    fn replay(&self, work: &WorkFolder, smaller: u64, bigger: u64) -> Result<(Vec<f64>, Vec<f64>)> {
        let repository = self.repository.clone().map_or_else(top_of_checkout, Ok)?;
        let plimsoll = self.plimsoll.clone().map_or_else(build_plimsoll, Ok)?;
        let stores = work.path().join("replay");
        std::fs::create_dir(&stores)?;
        let mut next = 0;
        // Keep all stores until the last one is made: a file system that has just lost hundreds of
        // files creates new ones slowly (ext4 skips recently freed inodes one by one), and that
        // cost would fall into the next turn.
        let rates = in_pairs(self.pairs, [smaller, bigger], |memory| {
            next += 1;
            let store = stores.join(next.to_string());
            let [from, to] = [&repository, &store].map(|path| path.display().to_string());
            let arguments =
                ["import", "git", &from, &to, "--memory", &memory.to_string()].map(str::to_owned);
            let outcome = launch(&plimsoll, &arguments, &Limit::None)?;
            ensure!(
                outcome.seen.end == End::Well,
                "the import under {} ended with {}",
                show_size(*memory),
                outcome.seen.end
            );
            Ok(1.0 / outcome.seen.seconds)
        });
        work.remove("replay");
        rates
    }

    /// Rounds of the mix per second, pair by pair, under both budgets.
    fn mix(&self, work: &WorkFolder, smaller: u64, bigger: u64) -> Result<(Vec<f64>, Vec<f64>)> {
        let folder = work.path().join("mix");
        let rows = rows_in(self.data);
        if !folder.exists() {
            RowStore::make(&folder, rows, 512 << 20)?;
        }
        let stores = [open(&folder, rows, smaller)?, open(&folder, rows, bigger)?];
        let zipf = Zipf::new(rows);
        // Fill the pools first with the same reads.
        for store in &stores {
            turn(store, &zipf, Duration::from_millis(self.turn_ms * self.pairs / 4), 0)?;
        }
        let mut seed = 0;
        in_pairs(self.pairs, [0, 1], |&at: &usize| {
            seed += 1;
            cpu_quiet::wait(Duration::from_secs(5));
            // Different keys in each turn, because keys that were just read would be in memory.
            turn(&stores[at], &zipf, Duration::from_millis(self.turn_ms), seed)
        })
    }
}

fn open(folder: &Path, rows: u64, memory: u64) -> Result<RowStore> {
    RowStore::open(folder, rows, Options::new().memory_bytes(memory).read_only(true))
}

/// Alternates the turns; each goes first in every second pair.
fn in_pairs<T>(
    pairs: u64,
    of: [T; 2],
    mut turn: impl FnMut(&T) -> Result<f64>,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let mut rates = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        if pair.is_multiple_of(2) {
            rates.0.push(turn(&of[0])?);
            rates.1.push(turn(&of[1])?);
        } else {
            rates.1.push(turn(&of[1])?);
            rates.0.push(turn(&of[0])?);
        }
    }
    Ok(rates)
}

fn turn(store: &RowStore, zipf: &Zipf, length: Duration, seed: u64) -> Result<f64> {
    let mut random = fastrand::Rng::with_seed(seed);
    let began = Instant::now();
    let mut rounds = 0;
    while began.elapsed() < length {
        for _ in 0..ROUNDS_AT_ONCE {
            for _ in 0..9 {
                store.get(zipf.rank(random.f64()))?;
            }
            store.walk(random.u64(..store.rows), WALK_ROWS)?;
        }
        rounds += ROUNDS_AT_ONCE;
    }
    Ok(rounds as f64 / began.elapsed().as_secs_f64())
}
