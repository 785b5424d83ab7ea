//! `bench line`: does the process stay within its memory line under every workload and budget?
//!
//! Each workload runs in its own process, observed from outside, in a memory cgroup with a hard
//! limit of its budget + 32 MiB, page cache included. The process may use the budget, 8 MiB for
//! memory outside it (static data, fixed tables, page tables) and 64 KiB per thread. The import
//! runs the `plimsoll` command itself; git's own processes are outside the budget, and neither
//! counted nor limited.

mod outside;
mod workload;

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use self::workload::{Expected, Workload};
pub(crate) use self::workload::{build_plimsoll, top_of_checkout};
use crate::launch::{Limit, Outcome, launch};
use crate::results::Results;
use crate::sizes::{mib, parse_size, show_size};
use crate::table::{self, number};
use crate::watch::{End, Seen};
use crate::work_folder::{Places, WorkFolder};
use crate::{child, kuzu, quiet};

/// Memory of a process beyond its budget, without the allowance per thread.
const ROOM_BYTES: u64 = 8 << 20;
const ROOM_OF_THREAD_BYTES: u64 = 64 << 10;

/// Kùzu's buffer pool: the size to compare with.
const KUZU_POOL_BYTES: u64 = 64 << 20;

#[derive(Args, Debug)]
pub(crate) struct Line {
    /// Memory budgets
    #[arg(long, value_delimiter = ',', default_value = "16MiB,64MiB,256MiB,1GiB", value_parser = parse_size)]
    memory: Vec<u64>,
    /// Pairs of integers to load, twice
    #[arg(long, default_value_t = 60_000_000)]
    rows: u64,
    /// Pairs of a transaction
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
    /// Bytes of the large transaction and of the large value
    #[arg(long, default_value = "1GiB", value_parser = parse_size)]
    transaction: u64,
    /// Bytes of random writes; the process that is killed has written an eighth of it
    #[arg(long, default_value = "4GiB", value_parser = parse_size)]
    writes: u64,
    /// Snapshots that are open at once
    #[arg(long, default_value_t = 10_000)]
    snapshots: u64,
    /// Run these workloads only, by name; those that read a store need the one that makes it
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Git repository to import [default: the one that the bench lies in]
    #[arg(long)]
    repository: Option<PathBuf>,
    /// The plimsoll command [default: it is built]
    #[arg(long)]
    plimsoll: Option<PathBuf>,
    /// A Python that can import kuzu: the pairs in Kùzu too, with a buffer pool of 64 MiB, once in
    /// a cgroup and once without
    #[arg(long)]
    kuzu: Option<PathBuf>,
}

/// The resources of one workload under one budget.
struct Took {
    name: String,
    memory: u64,
    seconds: f64,
}

impl Line {
    /// Measures, printing and storing each row as it completes, and the tables at the end; fails if
    /// a process exceeded its line or failed.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let mut results = Results::new("line", places.results().as_deref());
        quiet::check(&mut results);
        let work = places.work("line")?;
        let (mut rows, mut took, mut bad) = (Vec::new(), Vec::new(), 0);
        for &memory in &self.memory {
            for workload in self.workloads(memory, &work)? {
                let limit = Limit::for_budget(true, memory);
                let outcome = launch(&workload.program, &workload.arguments, &limit)
                    .with_context(|| format!("workload {}", workload.name))?;
                let settings = self.settings(workload.store, memory, &limit);
                note(&mut results, workload.name, &settings, &outcome);
                bad += u32::from(!verdict(&workload, memory, &outcome.seen).starts_with("kept"));
                // A run takes long, so its results must survive an early end.
                results.keep()?;
                println!("{}", row(&workload, memory, &outcome).join("  "));
                rows.push(row(&workload, memory, &outcome));
                took.push(Took {
                    name: format!("{} {}", workload.name, workload.store),
                    memory,
                    seconds: outcome.seen.seconds,
                });
                if workload.is_last {
                    work.remove(workload.store);
                }
            }
        }
        if let Some(python) = &self.kuzu {
            rows.extend(self.kuzu(python, &work, &mut results)?);
        }
        print(&rows);
        self.print_times(&took);
        results.save()?;
        ensure!(bad == 0, "{bad} workloads failed or were above the line");
        Ok(())
    }

    /// The pairs in Kùzu, once: in a cgroup like ours, and without a limit.
    fn kuzu(
        &self,
        python: &std::path::Path,
        work: &WorkFolder,
        results: &mut Results,
    ) -> Result<Vec<Vec<String>>> {
        [Limit::for_budget(true, KUZU_POOL_BYTES), Limit::None]
            .iter()
            .map(|limit| {
                let outcome = kuzu::load_pairs(work, python, self.rows, KUZU_POOL_BYTES, limit)?;
                note(
                    results,
                    "kuzu-pairs",
                    &self.settings("kuzu", KUZU_POOL_BYTES, limit),
                    &outcome,
                );
                let name = format!("kuzu-pairs, limit {}", limit.name());
                Ok(cells(
                    (&name, 0),
                    "kuzu",
                    KUZU_POOL_BYTES,
                    &outcome,
                    outcome.seen.end.to_string(),
                ))
            })
            .collect()
    }

    fn settings(&self, store: &str, memory: u64, limit: &Limit) -> String {
        format!(
            "store={store} memory={} rows={} batch={} transaction={} writes={} snapshots={} cgroup={}",
            show_size(memory),
            self.rows,
            self.batch,
            show_size(self.transaction),
            show_size(self.writes),
            self.snapshots,
            limit.name()
        )
    }

    /// Seconds of each workload under each budget, and what the smaller ones cost over the largest.
    fn print_times(&self, took: &[Took]) {
        let Some(&largest) = self.memory.iter().max().filter(|_| self.memory.len() > 1) else {
            return;
        };
        let seconds = |name: &str, memory| {
            took.iter()
                .find(|took| took.name == name && took.memory == memory)
                .map(|took| took.seconds)
        };
        let rows: Vec<Vec<String>> = took
            .iter()
            .filter(|took| took.memory == largest)
            .map(|most| {
                let times = self.memory.iter().map(|&memory| match seconds(&most.name, memory) {
                    Some(seconds) if memory == largest => format!("{} s", number(seconds)),
                    Some(seconds) => number(seconds / most.seconds),
                    None => "-".to_owned(),
                });
                std::iter::once(most.name.clone()).chain(times).collect()
            })
            .collect();
        println!(
            "\nseconds under the largest budget, and what it takes under the others over that"
        );
        let sizes: Vec<_> = self.memory.iter().map(|&memory| show_size(memory)).collect();
        let head: Vec<&str> =
            std::iter::once("workload store").chain(sizes.iter().map(String::as_str)).collect();
        table::print(&head, &rows);
    }
}

fn allowed_bytes(memory: u64, own_bytes: u64, seen: &Seen) -> u64 {
    memory + ROOM_BYTES + seen.peak_threads * ROOM_OF_THREAD_BYTES + own_bytes
}

fn verdict(workload: &Workload, memory: u64, seen: &Seen) -> String {
    let is_above = seen.peak_line_bytes > allowed_bytes(memory, workload.own_bytes, seen);
    match (seen.end, workload.expected) {
        (End::Well, Expected::Answer | Expected::AnswerOrRefusal) if !is_above => "kept".to_owned(),
        (End::Code(_), Expected::AnswerOrRefusal) if !is_above => "kept, refused".to_owned(),
        (End::Signal(_), Expected::Kill) if !is_above => "kept, killed itself".to_owned(),
        (End::Well | End::Code(_) | End::Signal(_), _) if is_above => "ABOVE".to_owned(),
        (end, _) => end.to_string(),
    }
}

fn note(results: &mut Results, workload: &str, settings: &str, outcome: &Outcome) {
    let name = format!("line-{workload}");
    outcome.seen.note(results, &name, settings);
    for (metric, value) in child::numbers(&outcome.seen.output) {
        results.note(&name, settings, &metric, value);
    }
    if let Some(peak) = outcome.cgroup_peak_bytes {
        results.note(&name, settings, "cgroup_peak_bytes", peak as f64);
    }
}

fn row(workload: &Workload, memory: u64, outcome: &Outcome) -> Vec<String> {
    let verdict = verdict(workload, memory, &outcome.seen);
    cells((workload.name, workload.own_bytes), workload.store, memory, outcome, verdict)
}

fn cells(
    (workload, own_bytes): (&str, u64),
    store: &str,
    memory: u64,
    outcome: &Outcome,
    verdict: String,
) -> Vec<String> {
    let seen = &outcome.seen;
    vec![
        show_size(memory),
        workload.to_owned(),
        store.to_owned(),
        number(seen.seconds),
        number(seen.counters.cpu_seconds),
        number(mib(seen.peak_line_bytes)),
        number(mib(allowed_bytes(memory, own_bytes, seen))),
        outcome.cgroup_peak_bytes.map_or_else(|| "-".to_owned(), |bytes| number(mib(bytes))),
        number(mib(seen.counters.written_bytes)),
        verdict,
    ]
}

fn print(rows: &[Vec<String>]) {
    let head = [
        "budget",
        "workload",
        "store",
        "seconds",
        "CPU s",
        "peak MiB",
        "allowed MiB",
        "cgroup MiB",
        "written MiB",
        "line",
    ];
    table::print(&head, rows);
}
