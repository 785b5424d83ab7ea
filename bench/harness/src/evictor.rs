//! `bench evictor`: a store with a full pool, with and without the evictor.
//!
//! Two stores with the same rows, four times their budget, are open at once and alternate; between
//! turns the process becomes idle. Half of the operations are reads, half are buffered commits of
//! one put, over keys by Zipf's law. First in a closed loop at full speed; then in an open loop at
//! a fraction of the rate that the store without an evictor reached. In the open loop each
//! operation is due at a fixed time, and its latency counts from then, so that delays of queued
//! operations are included.
//!
//! Each turn begins with a flushed and compacted store whose pool is full again, so that no turn
//! pays for an earlier one. `--causes` reports what slow operations waited for ([`causes`]).

mod causes;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use hdrhistogram::Histogram;
use plimsoll::{Durability, Options};
use plimsoll_memory::page::PAGE_BYTES;

use crate::appender::new_histogram;
use crate::cpu_quiet;
use crate::evictor::causes::{Causes, Watch};
use crate::payload;
use crate::quiet;
use crate::results::Results;
use crate::row_store::{RowStore, rows_in};
use crate::sizes::{parse_size, show_size};
use crate::statistics::{Interval, interval, median};
use crate::table;
use crate::work_folder::{Places, copy_folder};
use crate::yardstick::zipf::Zipf;

/// Bytes of rows for each byte of the budget.
const DATA_TO_MEMORY: u64 = 4;

/// Reads per page of the budget before the measurement.
const READS_TO_FILL: u64 = 8;

/// Reads per page of the budget before each turn.
const READS_TO_REFILL: u64 = 4;

/// Maximum wait for background work between turns.
const REST_MAX: Duration = Duration::from_secs(20);

#[derive(Args, Debug)]
pub(crate) struct EvictorBench {
    /// Memory budget of each store
    #[arg(long, default_value = "64MiB", value_parser = parse_size)]
    memory: u64,
    /// Threads that read and write
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    threads: u64,
    /// Pairs of turns, of each loop
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..))]
    pairs: u64,
    /// Length of a turn in milliseconds
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u64).range(1..))]
    turn_ms: u64,
    /// Percent of the closed loop's rate at which operations come in the open one
    #[arg(long, default_value_t = 70, value_parser = clap::value_parser!(u64).range(1..=100))]
    load: u64,
    /// Tell what operations above a millisecond waited for (looking costs time of its own: not for
    /// comparing latencies)
    #[arg(long)]
    causes: bool,
}

/// One store, and all its turns.
struct Party {
    name: &'static str,
    store: RowStore,
    zipf: Zipf,
    closed_rates: Vec<f64>,
    open_quantiles: Vec<[f64; 4]>,
    open_all: Histogram<u64>,
    resident: Vec<f64>,
    hit_ratios: Vec<f64>,
    causes: Mutex<Causes>,
}

/// Quantiles of latency recorded for each turn.
const QUANTILES: [(&str, f64); 4] =
    [("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("p9999", 0.9999)];

impl EvictorBench {
    /// Measures, prints the table, keeps the results.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let mut results = Results::new("evictor", places.results().as_deref());
        quiet::check(&mut results);
        let work = places.work("evictor")?;
        let rows = rows_in(self.memory * DATA_TO_MEMORY);
        RowStore::make(&work.path().join("off"), rows, self.memory.max(256 << 20))?;
        copy_folder(&work.path().join("off"), &work.path().join("on"))?;
        let mut parties = Vec::new();
        for name in ["off", "on"] {
            let options = Options::new()
                .memory_bytes(self.memory)
                .durability(Durability::Buffered)
                .evictor(name == "on");
            parties.push(Party::new(name, RowStore::open(&work.path().join(name), rows, options)?));
        }
        // The same reads fill both pools; the first pair is not counted.
        for party in &parties {
            party.fill(self.memory / PAGE_BYTES as u64 * READS_TO_FILL)?;
        }
        for pair in 0..=self.pairs {
            for at in in_turn(pair) {
                parties[at].closed(self, pair)?;
            }
        }
        let interval_nanos = 1e9 * self.threads as f64
            / (median(&parties[0].closed_rates) * self.load as f64 / 100.0);
        for pair in 1..=self.pairs {
            for at in in_turn(pair) {
                parties[at].open(self, pair, interval_nanos)?;
            }
        }
        self.report(&parties, &mut results);
        for party in parties {
            party.store.db.close()?;
        }
        results.save()
    }

    fn report(&self, parties: &[Party], results: &mut Results) {
        let settings = format!(
            "memory={} threads={} load={}%",
            show_size(self.memory),
            self.threads,
            self.load
        );
        let [off, on] = [&parties[0], &parties[1]];
        let ratio = |of: &dyn Fn(&Party) -> Vec<f64>| {
            interval(&of(on).iter().zip(of(off)).map(|(on, off)| on / off).collect::<Vec<_>>())
        };
        let mut rows = Vec::new();
        let mut line = |what: &str,
                        of: &dyn Fn(&Party) -> Vec<f64>,
                        goal: &str,
                        is_reached: &dyn Fn(f64) -> bool| {
            let Interval { low, median: middle, high } = ratio(of);
            for (metric, value) in
                [("off", median(&of(off))), ("on", median(&of(on))), ("ratio", middle)]
            {
                results.note("evictor", &settings, &format!("{what}_{metric}"), value);
            }
            results.note("evictor", &settings, &format!("{what}_ratio_low"), low);
            results.note("evictor", &settings, &format!("{what}_ratio_high"), high);
            let reached = match goal {
                "" => "",
                _ if is_reached(middle) => "yes",
                _ => "NO",
            };
            let cells = [median(&of(off)), median(&of(on)), middle, low, high]
                .map(|value| format!("{value:.4}"));
            rows.push(
                [&[what.to_owned()], &cells[..], &[goal.to_owned(), reached.to_owned()]].concat(),
            );
        };
        line("closed_ops_per_second", &|party| party.closed_rates.clone(), ">= 0.98", &|ratio| {
            ratio >= 0.98
        });
        for (at, (name, _)) in QUANTILES.iter().enumerate() {
            let goal = if *name == "p999" { "<= 0.7" } else { "" };
            let of = |party: &Party| party.open_quantiles.iter().map(|turn| turn[at]).collect();
            line(&format!("open_{name}_us"), &of, goal, &|ratio| ratio <= 0.7);
        }
        line("resident_pages", &|party| party.resident.clone(), ">= 0.98", &|ratio| ratio >= 0.98);
        line("hit_percent", &|party| party.hit_ratios.clone(), "+- 0.3", &|_| {
            (median(&on.hit_ratios) - median(&off.hit_ratios)).abs() <= 0.3
        });
        println!(
            "A store with the evictor (on) and without (off): medians of turns, and of the ratios on/off within a pair"
        );
        table::print(&["what", "off", "on", "on/off", "low", "high", "goal", "reached"], &rows);
        for party in parties {
            let all = QUANTILES.map(|(name, q)| {
                format!("{name} {:.1}", party.open_all.value_at_quantile(q) as f64 / 1e3)
            });
            println!("{}: all turns of the open loop, us: {}", party.name, all.join(", "));
            let stats = party.store.db.stats();
            println!(
                "{}: {:?}\n    {:?}\n    {:?}",
                party.name, stats.pressure, stats.evictor, stats.index.stalls
            );
            if self.causes {
                println!("{}: operations of the open loop above 1 ms", party.name);
                party.causes.lock().expect("no code under this lock panics").print();
            }
        }
    }
}

/// The order alternates from pair to pair.
fn in_turn(pair: u64) -> [usize; 2] {
    if pair.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

impl Party {
    fn new(name: &'static str, store: RowStore) -> Self {
        let zipf = Zipf::new(store.rows);
        Self {
            name,
            store,
            zipf,
            closed_rates: Vec::new(),
            open_quantiles: Vec::new(),
            open_all: new_histogram(),
            resident: Vec::new(),
            hit_ratios: Vec::new(),
            causes: Mutex::new(Causes::default()),
        }
    }

    fn fill(&self, reads: u64) -> Result<()> {
        let mut random = fastrand::Rng::with_seed(1);
        (0..reads).try_for_each(|_| self.store.get(self.zipf.rank(random.f64())))
    }

    fn closed(&mut self, bench: &EvictorBench, pair: u64) -> Result<()> {
        let latencies = self.turn(bench, pair, None)?;
        if pair > 0 {
            self.closed_rates.push(latencies.len() as f64 * 1e3 / bench.turn_ms as f64);
        }
        Ok(())
    }

    fn open(&mut self, bench: &EvictorBench, pair: u64, interval_nanos: f64) -> Result<()> {
        let before = self.store.hits_and_loads();
        let latencies = self.turn(bench, 1000 + pair, Some(interval_nanos))?;
        let after = self.store.hits_and_loads();
        let (hits, loads) = (after.0 - before.0, after.1 - before.1);
        self.hit_ratios.push(100.0 * hits as f64 / (hits + loads) as f64);
        self.resident.push(self.store.db.stats().pool.resident_pages as f64);
        self.open_quantiles
            .push(QUANTILES.map(|(_, q)| latencies.value_at_quantile(q) as f64 / 1e3));
        self.open_all.add(&latencies)?;
        Ok(())
    }

    /// Runs the operations of all threads, after the process has become idle.
    fn turn(
        &self,
        bench: &EvictorBench,
        seed: u64,
        interval_nanos: Option<f64>,
    ) -> Result<Histogram<u64>> {
        self.store.db.compact()?;
        // Reload pages that compaction evicted, before the clock starts.
        self.fill(bench.memory / PAGE_BYTES as u64 * READS_TO_REFILL)?;
        cpu_quiet::wait(REST_MAX);
        let mut all = new_histogram();
        std::thread::scope(|scope| -> Result<()> {
            let threads: Vec<_> = (0..bench.threads)
                .map(|thread| {
                    scope.spawn(move || self.operate(bench, seed << 8 | thread, interval_nanos))
                })
                .collect();
            for thread in threads {
                all.add(&thread.join().expect("an operation does not panic")?)?;
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Latency of each operation in nanoseconds, from its due time.
    fn operate(
        &self,
        bench: &EvictorBench,
        seed: u64,
        interval_nanos: Option<f64>,
    ) -> Result<Histogram<u64>> {
        let length = Duration::from_millis(bench.turn_ms);
        let mut watch =
            (bench.causes && interval_nanos.is_some()).then(|| Watch::new(&self.store.db));
        let mut random = fastrand::Rng::with_seed(payload::mix(seed));
        let mut latencies = new_histogram();
        let began = Instant::now();
        for at in 0_u64.. {
            let due = match interval_nanos {
                Some(nanos) => Duration::from_nanos((at as f64 * nanos) as u64),
                None => began.elapsed(),
            };
            if due >= length {
                break;
            }
            wait_until(began, due);
            let number = self.zipf.rank(random.f64());
            let is_read = random.bool();
            let operate =
                || if is_read { self.store.get(number) } else { self.store.put(number, at) };
            match &mut watch {
                None => operate()?,
                Some(watch) => {
                    let late = began.elapsed() - due;
                    watch.operate(is_read, late, operate)?;
                }
            }
            latencies.saturating_record((began.elapsed() - due).as_nanos() as u64);
            if let Some(watch) = &mut watch {
                watch.look();
            }
        }
        if let Some(watch) = watch {
            self.causes.lock().expect("no code under this lock panics").add(watch.causes());
        }
        Ok(latencies)
    }
}

/// Waits until the due time, sleeping if there is time for it.
fn wait_until(began: Instant, due: Duration) {
    const SLEEP_MIN: Duration = Duration::from_micros(300);
    while let Some(left) = due.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
        if left > SLEEP_MIN {
            std::thread::sleep(left - SLEEP_MIN);
        } else {
            std::hint::spin_loop();
        }
    }
}
