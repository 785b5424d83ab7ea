//! The cost of a hit by the number of entries, against a bare hash table of as many entries. The
//! growth of the table's cost is due to the machine's memory; growth beyond that is due to the
//! cache.

use std::collections::HashMap;
use std::hint::black_box;

use anyhow::{Context as _, Result};
use plimsoll_memory::budget::{Backing, Budget};
use plimsoll_memory::cache::{Cache as Objects, CacheOptions};

use super::verdict;
use crate::cache::Cache;
use crate::cpu_time::thread_nanos;
use crate::results::Results;
use crate::statistics::median;
use crate::table::{self, number};

const VALUE_BYTES: usize = 64;

/// Memory of an entry, estimated generously.
const ENTRY_BYTES: u64 = 160;

/// Hits of a turn.
const HITS: u64 = 200_000;

/// Measures and prints the table.
pub(super) fn run(bench: &Cache, results: &mut Results) -> Result<()> {
    let mut rows = Vec::new();
    let mut first: Option<(f64, f64)> = None;
    let mut last = None;
    for &entries in &bench.entries {
        let bytes = (entries * ENTRY_BYTES).max(8 << 20);
        let budget = Budget::new(2 * bytes + (16 << 20), Backing::Mapped)?;
        let cache =
            Objects::new(&budget, CacheOptions::of_bytes(bytes)).context("the cache's tables")?;
        let mut table = HashMap::new();
        for entry in 0..entries {
            cache.insert(&key(entry), &[entry as u8; VALUE_BYTES]);
            table.insert(key(entry), [entry as u8; VALUE_BYTES]);
        }
        let kept = (0..entries).filter(|entry| cache.read(&key(*entry), |_| ()).is_some()).count();
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..bench.turns {
            let entry = |random: &mut fastrand::Rng| key(random.u64(..entries));
            ours.push(nanos(|| {
                black_box(cache.read(&entry(&mut random), |value| {
                    value.pieces().next().map(|piece| piece[0])
                }));
            }));
            bare.push(nanos(|| {
                black_box(table.get(&entry(&mut random)).map(|value| value[0]));
            }));
        }
        let (ours, bare) = (median(&ours), median(&bare));
        let (ours_first, bare_first) = *first.get_or_insert((ours, bare));
        let growth = [ours / ours_first, bare / bare_first];
        let settings = format!("entries={entries}");
        for (metric, value) in [
            ("hit_ns", ours),
            ("bare_ns", bare),
            ("hit_growth", growth[0]),
            ("bare_growth", growth[1]),
        ] {
            results.note("cache-hits", &settings, metric, value);
        }
        let part = 100.0 * kept as f64 / entries as f64;
        rows.push([entries as f64, part, ours, bare, growth[0], growth[1]].map(number).to_vec());
        last = Some((entries, growth));
    }
    println!(
        "\nA hit, in nanoseconds, and what it grows by with the number of entries (goal: no more than the bare table's)"
    );
    table::print(
        &["entries", "kept %", "cache", "bare table", "cache grows", "table grows"],
        &rows,
    );
    if let Some((entries, [ours, bare])) = last {
        let figures = format!(
            "to {entries} entries the cost of a hit grows {ours:.2} times, that of the bare table {bare:.2} times"
        );
        verdict::say(results, "3b", "", ours <= bare, &figures);
    }
    Ok(())
}

fn key(entry: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&entry.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[8..].copy_from_slice(&entry.to_be_bytes());
    key
}

/// Nanoseconds of processor time of one call, averaged over many.
fn nanos(mut call: impl FnMut()) -> f64 {
    let began = thread_nanos();
    (0..HITS).for_each(|_| call());
    (thread_nanos() - began) as f64 / HITS as f64
}
