//! What a bound in bytes with everything counted costs beside a bound in entries: the same requests to the same cache, whose values all have one size, so that a
//! number of bytes of values is a number of entries.

use anyhow::{Context as _, Result};
use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::cache::{Cache as Objects, CacheOptions, Counting};

use super::requests::{self, Requests};
use super::{Cache, verdict};
use crate::cpu_time::thread_nanos;
use crate::results::Results;
use crate::statistics::interval;

const VALUE_BYTES: usize = 100;
const CACHE_BYTES: u64 = 16 << 20;

/// A bound in bytes may cost so much more.
const COST_MAX: f64 = 1.01;

/// Measures, and prints a line.
pub(super) fn run(bench: &Cache, results: &mut Results) -> Result<()> {
    let requests = requests::zipf(bench.requests.min(500_000));
    let budget = Budget::new(8 * CACHE_BYTES, Backing::Mapped)?;
    let by_bytes = Objects::new(&budget, CacheOptions::of_bytes(CACHE_BYTES)).context("the cache's tables")?;
    (0..2).for_each(|_| _ = ask(&by_bytes, &requests));
    let mut options = CacheOptions::of_bytes(by_bytes.stats().entries * VALUE_BYTES as u64);
    options.counting = Counting::Values;
    let by_entries = Objects::new(&budget, options).context("the cache's tables")?;
    (0..2).for_each(|_| _ = ask(&by_entries, &requests));
    // Each turn begins with the other, so that neither is favoured by what comes before it.
    let ratios: Vec<_> = (0..bench.turns * 4)
        .map(|turn| {
            if turn % 2 == 0 {
                let bytes = ask(&by_bytes, &requests);
                bytes / ask(&by_entries, &requests)
            } else {
                let entries = ask(&by_entries, &requests);
                ask(&by_bytes, &requests) / entries
            }
        })
        .collect();
    let cost = interval(&ratios);
    results.note("cache-bound", "", "bytes_to_entries", cost.median);
    results.note("cache-bound", "", "bytes_to_entries_low", cost.low);
    results.note("cache-bound", "", "bytes_to_entries_high", cost.high);
    println!();
    let figures = format!(
        "a request of a cache bounded by bytes costs {:.3} ({:.3} to {:.3}) times one of a cache bounded by entries; {} and {} of them are kept",
        cost.median,
        cost.low,
        cost.high,
        by_bytes.stats().entries,
        by_entries.stats().entries
    );
    verdict::say(results, "3a", "", cost.median <= COST_MAX, &figures);
    Ok(())
}

/// Processor time of all requests, in nanoseconds.
fn ask(cache: &Objects, requests: &Requests<[u8; 8]>) -> f64 {
    let began = thread_nanos();
    for key in &requests.order {
        let key = &requests.keys[*key as usize];
        if cache.read(key, |value| value.len()).is_none() {
            cache.insert(key, &[7; VALUE_BYTES]);
        }
    }
    (thread_nanos() - began) as f64
}
