//! Checks that the cache stays below its limit while eight threads fill it with values of all
//! sizes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use plimsoll_memory::budget::{Backing, Budget, Kind};
use plimsoll_memory::cache::{Cache as Objects, CacheOptions};

use super::verdict;
use crate::cache::Cache;
use crate::results::Results;

const THREADS: u64 = 8;
const CACHE_BYTES: u64 = 16 << 20;

/// Measures and prints a line.
pub(super) fn run(bench: &Cache, results: &mut Results) -> Result<()> {
    let budget = Budget::new(4 * CACHE_BYTES, Backing::Mapped)?;
    let cache =
        Objects::new(&budget, CacheOptions::of_bytes(CACHE_BYTES)).context("the cache's tables")?;
    let (done, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut most = 0;
    std::thread::scope(|scope| {
        for seed in 0..THREADS {
            let (cache, done, calls) = (&cache, &done, &calls);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                while !done.load(Ordering::Relaxed) {
                    let key = random.u64(..200_000).to_be_bytes();
                    if cache.read(&key, |value| value.len()).is_none() {
                        cache.insert(&key, &vec![1; 1 << random.u32(3..15)]);
                    }
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(bench.strict_ms) {
            // The budget's count, independent of the cache's own figures; more than one chunk may
            // be partially used.
            most = most.max(budget.usage().of(Kind::Objects));
        }
        done.store(true, Ordering::Relaxed);
    });
    let calls = calls.into_inner();
    results.note(
        "cache-strict",
        "threads=8",
        "most_bytes_of_number",
        most as f64 / CACHE_BYTES as f64,
    );
    results.note("cache-strict", "threads=8", "calls", calls as f64);
    println!(
        "\nEight threads, {calls} calls: at most {:.2} % of the cache's number in use",
        100.0 * most as f64 / CACHE_BYTES as f64
    );
    let figures = format!("{most} bytes at most, and its number is {CACHE_BYTES}");
    verdict::say(results, "4", "", most <= CACHE_BYTES, &figures);
    ensure!(most <= CACHE_BYTES, "the cache took {figures}");
    Ok(())
}
