//! The cachebench workload on a cache that makes room ahead of need, and on one that evicts when it has none left.
//!
//! Two caches in one process take turns at the same requests, eight threads at each. First in a closed loop, as fast as it goes; then in an open one at a
//! part of the rate that the cache without it reached: each request is due at its time. Of what is entered two latencies are taken: that of the call, which is
//! what cachebench reports, and that from when the request was due, so that whoever is late is not forgiven what waited behind him. With more
//! threads than processors the second one holds above all how long a thread waited for a processor. A thread that has nothing to do yet lets the others run.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::cache::{Cache as Objects, CacheOptions};
use plimsoll_memory::chunk::CHUNK_BYTES;

use super::contestant::look_at;
use super::requests::{self, Requests};
use super::{Cache, verdict};
use crate::appender::new_histogram;
use crate::cpu_quiet;
use crate::results::Results;
use crate::sizes::show_size;
use crate::statistics::{Interval, interval, median};
use crate::table;

const THREADS: usize = 8;

/// Turns of the closed loop that go through all requests once; a turn of the open one goes through all.
const TURNS_OF_ALL: usize = 8;

/// The open loop's part of the closed one's rate.
const LOAD: f64 = 0.7;

/// How long to wait for a process that is not at rest.
const REST_MAX: Duration = Duration::from_secs(5);

/// Quantiles of the latencies of what is entered.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999)];

type Wanted = Requests<Box<[u8]>>;

/// A cache, and what its turns came to.
struct Party {
    cache: Objects,
    closed_rates: Vec<f64>,
    call_quantiles: Vec<[f64; 4]>,
    due_quantiles: Vec<[f64; 4]>,
    hit_percents: Vec<f64>,
    entries: Vec<f64>,
}

/// What became of one thread's part of a turn, or of all.
struct Part {
    hits: u64,
    gets: u64,
    /// Of what is entered, nanoseconds of the call; in an open loop.
    calls: Histogram<u64>,
    /// The same from when the request was due.
    from_due: Histogram<u64>,
}

impl Part {
    fn new() -> Self {
        Self { hits: 0, gets: 0, calls: new_histogram(), from_due: new_histogram() }
    }

    fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.gets += other.gets;
        self.calls.add(&other.calls).expect("both have the same bounds");
        self.from_due.add(&other.from_due).expect("both have the same bounds");
    }
}

/// Measures, prints a table and the verdicts.
pub(super) fn run(bench: &Cache, results: &mut Results) -> Result<()> {
    let requests = requests::cachebench(bench.requests);
    let filler = vec![7; requests.largest_bytes()];
    let mut parties = [Party::new(bench.cachebench_memory, false)?, Party::new(bench.cachebench_memory, true)?];
    let turn = requests.order.len() / TURNS_OF_ALL;
    // Both are full of the same before anything counts.
    for party in &parties {
        party.turn(&requests, &requests.order, &filler, None);
    }
    let part = |at: usize| &requests.order[at % TURNS_OF_ALL * turn..][..turn];
    for pair in 0..bench.turns as usize {
        for at in in_turn(pair) {
            parties[at].closed(&requests, part(pair), &filler);
        }
    }
    let interval_nanos = 1e9 * THREADS as f64 / (median(&parties[0].closed_rates) * LOAD);
    for pair in 0..bench.turns as usize {
        for at in in_turn(pair) {
            parties[at].open(&requests, &requests.order, &filler, interval_nanos);
        }
    }
    report(bench, &parties, results);
    Ok(())
}

/// Who comes first changes from pair to pair.
fn in_turn(pair: usize) -> [usize; 2] {
    if pair.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

impl Party {
    fn new(bytes: u64, evicts_ahead: bool) -> Result<Self> {
        let budget = Budget::new(bytes + 2 * CHUNK_BYTES as u64, Backing::Mapped)?;
        let mut options = CacheOptions::of_bytes(bytes);
        options.evicts_ahead = evicts_ahead;
        let cache = Objects::new(&budget, options).context("the cache's tables")?;
        let (closed_rates, call_quantiles, due_quantiles, hit_percents, entries) = Default::default();
        Ok(Self { cache, closed_rates, call_quantiles, due_quantiles, hit_percents, entries })
    }

    fn closed(&mut self, requests: &Wanted, order: &[u32], filler: &[u8]) {
        cpu_quiet::wait(REST_MAX);
        let began = Instant::now();
        let part = self.turn(requests, order, filler, None);
        self.closed_rates.push(part.gets as f64 / began.elapsed().as_secs_f64());
        self.note(&part);
    }

    fn open(&mut self, requests: &Wanted, order: &[u32], filler: &[u8], interval_nanos: f64) {
        cpu_quiet::wait(REST_MAX);
        let part = self.turn(requests, order, filler, Some(interval_nanos));
        let quantiles = |of: &Histogram<u64>| QUANTILES.map(|(_, q)| of.value_at_quantile(q) as f64 / 1e3);
        self.call_quantiles.push(quantiles(&part.calls));
        self.due_quantiles.push(quantiles(&part.from_due));
        self.note(&part);
    }

    fn note(&mut self, part: &Part) {
        self.hit_percents.push(100.0 * part.hits as f64 / part.gets as f64);
        self.entries.push(self.cache.stats().entries as f64);
    }

    /// Requests of all threads, in turns.
    fn turn(&self, requests: &Wanted, order: &[u32], filler: &[u8], interval_nanos: Option<f64>) -> Part {
        let start = Barrier::new(THREADS);
        let mut all = Part::new();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let start = &start;
                    scope.spawn(move || {
                        start.wait();
                        let mine = order.iter().skip(thread).step_by(THREADS).copied();
                        self.ask(requests, mine, filler, interval_nanos)
                    })
                })
                .collect();
            for thread in threads {
                all.add(&thread.join().expect("a request does not panic"));
            }
        });
        all
    }

    fn ask(
        &self,
        requests: &Wanted,
        mine: impl Iterator<Item = u32>,
        filler: &[u8],
        interval_nanos: Option<f64>,
    ) -> Part {
        let mut part = Part::new();
        let began = Instant::now();
        for (at, number) in mine.enumerate() {
            let due = interval_nanos.map(|nanos| wait_until(began, Duration::from_nanos((at as f64 * nanos) as u64)));
            let key = &requests.keys[number as usize];
            part.gets += 1;
            if self.cache.read(key, |value| value.pieces().map(look_at).sum::<u64>()).is_some() {
                part.hits += 1;
                continue;
            }
            let value = &filler[..requests.value_bytes[number as usize] as usize];
            let Some(due) = due else {
                self.cache.insert(key, value);
                continue;
            };
            let called = began.elapsed();
            self.cache.insert(key, value);
            let done = began.elapsed();
            part.calls.saturating_record((done - called).as_nanos() as u64);
            part.from_due.saturating_record((done - due).as_nanos() as u64);
        }
        part
    }
}

/// Lets others run until it is due; returns that time.
fn wait_until(began: Instant, due: Duration) -> Duration {
    while began.elapsed() < due {
        std::thread::yield_now();
    }
    due
}

fn report(bench: &Cache, [off, on]: &[Party; 2], results: &mut Results) {
    let settings = format!("memory={} threads={THREADS}", show_size(bench.cachebench_memory));
    let mut rows = Vec::new();
    let mut line = |what: &str, of: &dyn Fn(&Party) -> Vec<f64>| {
        let ratios: Vec<_> = of(on).iter().zip(of(off)).map(|(on, off)| on / off).collect();
        let Interval { low, median: middle, high } = interval(&ratios);
        let [without, with] = [median(&of(off)), median(&of(on))];
        for (metric, value) in [("off", without), ("on", with), ("ratio", middle), ("low", low), ("high", high)] {
            results.note("cache-ahead", &settings, &format!("{what}_{metric}"), value);
        }
        let cells = [without, with, middle, low, high].map(|value| format!("{value:.3}"));
        rows.push([&[what.to_owned()], &cells[..]].concat());
        (middle, with - without)
    };
    let (rate, _) = line("closed_gets_per_second", &|party| party.closed_rates.clone());
    let mut tail = f64::NAN;
    for (at, (name, _)) in QUANTILES.iter().enumerate() {
        let calls = |party: &Party| party.call_quantiles.iter().map(|turn| turn[at]).collect();
        let from_due = |party: &Party| party.due_quantiles.iter().map(|turn| turn[at]).collect();
        let (ratio, _) = line(&format!("open_entering_{name}_us"), &calls);
        line(&format!("open_entering_from_due_{name}_us"), &from_due);
        if *name == "p99.9" {
            tail = ratio;
        }
    }
    let (entries, _) = line("entries", &|party| party.entries.clone());
    let (_, hits) = line("hit_percent", &|party| party.hit_percents.clone());
    println!(
        "\nThe same with room made ahead of need (on) and when there is none left (off), {}, {THREADS} threads: medians of turns, and of on/off within a pair",
        show_size(bench.cachebench_memory)
    );
    table::print(&["what", "off", "on", "on/off", "low", "high"], &rows);
    let mut say = |what: &str, is_met: bool, figures: &str| {
        verdict::say(results, &format!("5 {what}"), &settings, is_met, figures);
    };
    say("rate", rate >= 0.98, &format!("a closed loop does {rate:.3} times the gets (at least 0.98)"));
    say(
        "tail",
        tail <= 0.7,
        &format!("at 70 % load p99.9 of the calls that enter takes {tail:.3} times as long (at most 0.7)"),
    );
    say("entries", entries >= 0.98, &format!("{entries:.4} times the entries (at least 0.98)"));
    say("ratio", hits.abs() <= 0.3, &format!("{hits:+.2} points of hits (at most 0.3)"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_caches_are_asked_for_everything_and_keep_as_much() {
        let requests = requests::cachebench(20_000);
        let filler = vec![7; requests.largest_bytes()];
        let mut parties = [false, true].map(|ahead| Party::new(2 << 20, ahead).unwrap());
        for party in &mut parties {
            party.closed(&requests, &requests.order, &filler);
            party.open(&requests, &requests.order[..1000], &filler, 1000.0);
            assert_eq!((party.closed_rates.len(), party.call_quantiles.len(), party.entries.len()), (1, 1, 2));
        }
        let [off, on] = parties.map(|party| party.entries[0]);
        assert!(on > 0.9 * off && off > 0.9 * on, "{on} and {off}");
    }
}
