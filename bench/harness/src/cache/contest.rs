//! The same requests to every cache at equal real memory: each runs in its own process, which grows
//! by the same number of bytes.
//!
//! Most caches count only values against their configured capacity, so the capacity is found by
//! trial: it is changed until the process has grown by the target, to 2 % (or 256 KiB).

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::contestant::NAMES;
use super::requests::{Source, traces_in};
use super::worker::Outcome;
use super::{Cache, verdict};
use crate::results::Results;
use crate::sizes::{mib, show_size};
use crate::statistics::median;
use crate::table::{self, number};

/// Attempts to find the capacity of a cache.
const TRIES: usize = 6;

/// The first guess: this fraction of the memory is values.
const FIRST_GUESS: f64 = 0.6;

/// Minimum capacity of a cache.
const LEAST_CAPACITY: u64 = 64 << 10;

/// Fractions of a trace's working set, in percent.
const PARTS: [u64; 2] = [1, 10];

/// A cache with a fitted capacity.
struct Fitted {
    name: &'static str,
    capacity: u64,
    /// The outcome of the last attempt, with one thread.
    outcome: Outcome,
    is_close: bool,
}

/// A capacity that was too small or too large, and the growth of the process.
#[derive(Clone, Copy, Debug)]
struct Tried {
    capacity: u64,
    grown: u64,
}

/// Requests per second with 1, 2 and more threads, at equal memory.
pub(super) fn speed(bench: &Cache, results: &mut Results) -> Result<()> {
    let source = Source::Zipf(bench.requests);
    let all = NAMES
        .iter()
        .map(|name| fit(name, &source, bench.contest_memory, 1))
        .collect::<Result<Vec<_>>>()?;
    let mut rates: BTreeMap<(&str, usize), Vec<Outcome>> = BTreeMap::new();
    for _ in 0..bench.turns {
        for fitted in &all {
            for &threads in &bench.threads {
                let outcome = work(fitted.name, fitted.capacity, &source, threads, 1)?;
                rates.entry((fitted.name, threads)).or_default().push(outcome);
            }
        }
    }
    let mut rows = Vec::new();
    for ((name, threads), outcomes) in &rates {
        let of = |what: fn(&Outcome) -> f64| median(&outcomes.iter().map(what).collect::<Vec<_>>());
        let settings =
            format!("cache={name} threads={threads} memory={}", show_size(bench.contest_memory));
        let figures = [
            ("requests_per_second", of(Outcome::per_second)),
            ("cpu_ns_per_request", of(Outcome::cpu_nanos)),
            ("hit_percent", of(Outcome::hit_percent)),
            ("grown_mib", of(|outcome| mib(outcome.grown_bytes))),
        ];
        figures
            .iter()
            .for_each(|(metric, value)| results.note("cache-requests", &settings, metric, *value));
        let mut row = vec![(*name).to_owned(), threads.to_string()];
        row.extend(figures.iter().map(|(_, value)| number(*value)));
        rows.push(row);
    }
    println!(
        "\nRequests by Zipf's law, read-through, each cache grown to {} of real memory",
        show_size(bench.contest_memory)
    );
    table::print(&["cache", "threads", "requests/s", "CPU ns", "hits %", "MiB"], &rows);
    for fitted in all.iter().filter(|fitted| !fitted.is_close) {
        println!("{} could not be brought to that memory", fitted.name);
    }
    let rate = |name: &str, threads| {
        rates
            .get(&(name, threads))
            .map(|outcomes| median(&outcomes.iter().map(Outcome::per_second).collect::<Vec<_>>()))
    };
    for &threads in &bench.threads {
        let ours = rate(NAMES[0], threads).context("ours was measured")?;
        let peers = NAMES[1..].iter().filter_map(|name| Some((*name, rate(name, threads)?)));
        match peers.max_by(|one, other| one.1.total_cmp(&other.1)) {
            None => verdict::not_measured(
                "2",
                "built without peers: cargo run --release --features caches -- cache",
            ),
            Some((name, fastest)) => {
                let figures = format!(
                    "{threads} threads, {:.2} times the requests of {name}, the fastest peer",
                    ours / fastest
                );
                verdict::say(
                    results,
                    "2",
                    &format!("threads={threads}"),
                    ours >= fastest,
                    &figures,
                );
            }
        }
    }
    if let (Some(&few), Some(&many)) = (bench.threads.first(), bench.threads.last()) {
        let ratio =
            rate(NAMES[0], many).context("measured")? / rate(NAMES[0], few).context("measured")?;
        let figures = format!("{many} threads do {ratio:.2} times the requests of {few}");
        verdict::say(results, "2 flat", "", ratio >= 0.95, &figures);
    }
    Ok(())
}

/// Hit ratios on traces, at equal memory.
pub(super) fn traces(bench: &Cache, results: &mut Results) -> Result<()> {
    let Some(folder) = &bench.traces else {
        verdict::not_measured("1", "no folder of traces was given (--traces FOLDER)");
        return Ok(());
    };
    let traces = match traces_in(folder) {
        Err(why) => {
            verdict::not_measured("1", &why.to_string());
            return Ok(());
        }
        Ok(_) if NAMES.len() == 1 => {
            verdict::not_measured(
                "1",
                "built without peers: cargo run --release --features caches -- cache",
            );
            return Ok(());
        }
        Ok(traces) => traces,
    };
    println!(
        "\nTraces, read-through by one thread from an empty cache; memory is part of the trace's working set"
    );
    for trace in traces {
        let source = Source::Trace(trace);
        let working_set = work(NAMES[0], 1 << 20, &source, 1, 0)?.working_set_bytes;
        for part in PARTS {
            let memory = (working_set * part / 100).max(1 << 20);
            ratios(&source, &format!("{} % of it", part), memory, "1", results)?;
        }
    }
    Ok(())
}

/// Hit ratios on the workload used to evaluate CacheLib's evictor.
pub(super) fn cachebench(bench: &Cache, results: &mut Results) -> Result<()> {
    println!(
        "\nThe cachebench workload (400,000 keys, normal distribution, 23 % of the gets for keys that never come again)"
    );
    let source = Source::Cachebench(bench.requests);
    ratios(&source, "cachebench", bench.cachebench_memory, "5", results)
}

/// Prints the hit ratios of all caches at equal memory, and whether ours is the highest.
fn ratios(source: &Source, of: &str, memory: u64, goal: &str, results: &mut Results) -> Result<()> {
    let all = NAMES.iter().map(|name| fit(name, source, memory, 0)).collect::<Result<Vec<_>>>()?;
    let name = source.name();
    let rows: Vec<_> = all
        .iter()
        .map(|fitted| {
            let settings = format!("trace={name} cache={} memory={memory}", fitted.name);
            let outcome = &fitted.outcome;
            let figures = [
                ("hit_percent", outcome.hit_percent()),
                ("byte_hit_percent", outcome.byte_hit_percent()),
                ("grown_mib", mib(outcome.grown_bytes)),
                ("told_mib", mib(fitted.capacity)),
                ("requests_per_second", outcome.per_second()),
            ];
            figures.iter().for_each(|(metric, value)| {
                results.note("cache-traces", &settings, metric, *value)
            });
            let mut row = vec![fitted.name.to_owned()];
            row.extend(figures.iter().map(|(_, value)| format!("{value:.2}")));
            row.push(if fitted.is_close { "" } else { "not equal" }.to_owned());
            row
        })
        .collect();
    println!("\n{name}, {} ({of})", show_size(memory));
    table::print(&["cache", "hits %", "bytes %", "MiB", "told MiB", "requests/s", "memory"], &rows);
    let ours = all[0].outcome.hit_percent();
    // A cache that could not be reduced to the memory is no peer at equal memory; one that stays
    // below it has used less by its own choice.
    let peers = all[1..].iter().filter(|peer| peer.is_close || peer.outcome.grown_bytes < memory);
    let best = peers
        .max_by(|one, other| one.outcome.hit_percent().total_cmp(&other.outcome.hit_percent()));
    match best {
        None if all.len() == 1 => {
            verdict::not_measured(
                goal,
                "built without peers: cargo run --release --features caches -- cache",
            );
        }
        None => verdict::not_measured(
            goal,
            &format!("{name} {of}: no peer could be brought down to that memory"),
        ),
        Some(best) => {
            let theirs = best.outcome.hit_percent();
            let figures = format!(
                "{name} {of}: {ours:.2} % hits, {} has {theirs:.2} % ({:+.2})",
                best.name,
                ours - theirs
            );
            // If the maximum is reached, a tie counts.
            let is_met = ours >= theirs - 0.005;
            verdict::say(results, goal, &format!("trace={name} memory={memory}"), is_met, &figures);
        }
    }
    Ok(())
}

/// Finds the capacity at which a cache's process grows by `memory`.
fn fit(name: &'static str, source: &Source, memory: u64, warm: u64) -> Result<Fitted> {
    let tolerance = (memory / 50).max(256 << 10);
    let mut capacity = match name == NAMES[0] {
        true => memory,
        false => (memory as f64 * FIRST_GUESS) as u64,
    }
    .max(LEAST_CAPACITY);
    let mut best: Option<Fitted> = None;
    let (mut below, mut above): (Option<Tried>, Option<Tried>) = (None, None);
    for _ in 0..TRIES {
        let outcome = work(name, capacity, source, 1, warm)?;
        let off = outcome.grown_bytes.abs_diff(memory);
        if best.as_ref().is_none_or(|best| off < best.outcome.grown_bytes.abs_diff(memory)) {
            best = Some(Fitted { name, capacity, outcome, is_close: off <= tolerance });
        }
        if off <= tolerance {
            break;
        }
        let side = if outcome.grown_bytes < memory { &mut below } else { &mut above };
        *side = Some(Tried { capacity, grown: outcome.grown_bytes });
        let next = match (below, above) {
            (Some(low), Some(high)) => {
                let part = (memory - low.grown) as f64 / (high.grown - low.grown) as f64;
                low.capacity
                    + (high.capacity.saturating_sub(low.capacity) as f64 * part.clamp(0.05, 0.95))
                        as u64
            }
            // Everything fits, so the process does not grow further with any capacity.
            (Some(low), None) if low.capacity >= 2 * outcome.working_set_bytes => break,
            _ => (capacity as f64 * memory as f64 / outcome.grown_bytes.max(1) as f64)
                .min(capacity as f64 * 4.0) as u64,
        };
        if next.max(LEAST_CAPACITY) == capacity {
            break;
        }
        capacity = next.max(LEAST_CAPACITY);
    }
    best.context("it was tried at least once")
}

/// Runs it in a separate process.
fn work(name: &str, capacity: u64, source: &Source, threads: usize, warm: u64) -> Result<Outcome> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["cache-worker", "--cache", name, "--capacity", &capacity.to_string()]);
    command.args([
        "--source",
        &source.argument(),
        "--threads",
        &threads.to_string(),
        "--warm",
        &warm.to_string(),
    ]);
    // Return freed memory to the system, so that the growth of the process is the memory that its
    // cache keeps.
    command.env("MALLOC_MMAP_THRESHOLD_", "131072").env("MALLOC_TRIM_THRESHOLD_", "131072");
    let output = command.output().context("cannot start a worker")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "{name} with {capacity} bytes: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Outcome::parse(said.trim())
}
