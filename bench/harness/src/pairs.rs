//! `bench pairs`: many pairs of integers, loaded with consecutive keys and with random ones, under
//! a small budget and under a large one.
//!
//! The load runs in a child that is observed from outside. Each load starts from an empty store and
//! is checked by a full scan.

use anyhow::Result;
use clap::Args;

use crate::child::{self, Order};
use crate::launch::{Limit, Outcome, launch};
use crate::peer::PeerKind;
use crate::quiet;
use crate::results::Results;
use crate::sizes::{mib, parse_size, show_size};
use crate::table::{self, number};
use crate::work_folder::{Places, bytes_on_disk};

/// Bytes of a pair.
const PAIR_BYTES: u64 = 16;

#[derive(Args, Debug)]
pub(crate) struct Pairs {
    /// Pairs to load
    #[arg(long, default_value_t = 60_000_000)]
    rows: u64,
    /// Pairs of a transaction; as many as rows: all in one
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
    /// Memory budgets
    #[arg(long, value_delimiter = ',', default_value = "64MiB,4GiB", value_parser = parse_size)]
    memory: Vec<u64>,
    /// Orders of keys
    #[arg(long, value_delimiter = ',', default_value = "consecutive,random")]
    order: Vec<Order>,
    /// Stores to load
    #[arg(long, value_delimiter = ',', default_value = "plimsoll")]
    peer: Vec<PeerKind>,
    /// Run each load in a memory cgroup with a hard limit of its budget + 32 MiB, page cache
    /// included
    #[arg(long)]
    cgroup: bool,
}

impl Pairs {
    /// Measures, prints the table, stores the results.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let mut results = Results::new("pairs", places.results().as_deref());
        quiet::check(&mut results);
        let work = places.work("pairs")?;
        let mut rows = Vec::new();
        for &peer in &self.peer {
            for &memory in &self.memory {
                let limit = Limit::for_budget(self.cgroup, memory);
                for &order in &self.order {
                    let outcome =
                        self.load(peer, memory, order, &limit, &work.path().join("store"))?;
                    let disk_bytes = bytes_on_disk(&work.path().join("store"));
                    work.remove("store");
                    let settings = self.settings(peer, memory, order, &limit);
                    self.note(&mut results, &settings, &outcome, disk_bytes);
                    rows.push(self.row(peer, memory, order, &outcome, disk_bytes));
                }
            }
        }
        let head = [
            "store",
            "budget",
            "keys",
            "load s",
            "walk s",
            "close s",
            "peak MiB",
            "written MiB",
            "written/given",
            "on disk MiB",
            "CPU s",
            "outcome",
        ];
        table::print(&head, &rows);
        results.save()
    }

    fn load(
        &self,
        peer: PeerKind,
        memory: u64,
        order: Order,
        limit: &Limit,
        store: &std::path::Path,
    ) -> Result<Outcome> {
        let (peer, rows, batch) = (peer.name(), self.rows.to_string(), self.batch.to_string());
        let work = [
            "pairs",
            "--peer",
            &peer,
            "--rows",
            &rows,
            "--batch",
            &batch,
            "--order",
            name_of(order),
        ];
        launch(&std::env::current_exe()?, &child::arguments(store, memory, &work), limit)
    }

    fn settings(&self, peer: PeerKind, memory: u64, order: Order, limit: &Limit) -> String {
        format!(
            "peer={} rows={} batch={} memory={} keys={} cgroup={}",
            peer.name(),
            self.rows,
            self.batch,
            show_size(memory),
            name_of(order),
            limit.name()
        )
    }

    fn note(&self, results: &mut Results, settings: &str, outcome: &Outcome, disk_bytes: u64) {
        outcome.seen.note(results, "pairs", settings);
        for (metric, value) in child::numbers(&outcome.seen.output) {
            results.note("pairs", settings, &metric, value);
        }
        if let Some(peak) = outcome.cgroup_peak_bytes {
            results.note("pairs", settings, "cgroup_peak_bytes", peak as f64);
        }
        results.note("pairs", settings, "disk_bytes", disk_bytes as f64);
    }

    fn row(
        &self,
        peer: PeerKind,
        memory: u64,
        order: Order,
        outcome: &Outcome,
        disk_bytes: u64,
    ) -> Vec<String> {
        let seen = &outcome.seen;
        let numbers = child::numbers(&seen.output);
        let seconds = |name: &str| {
            numbers
                .iter()
                .find(|(metric, _)| metric == name)
                .map_or_else(|| "-".to_owned(), |(_, value)| number(*value))
        };
        vec![
            peer.name(),
            show_size(memory),
            name_of(order).to_owned(),
            seconds("load_seconds"),
            seconds("scan_seconds"),
            seconds("close_seconds"),
            number(mib(seen.peak_line_bytes)),
            number(mib(seen.counters.written_bytes)),
            number(seen.counters.written_bytes as f64 / (self.rows * PAIR_BYTES) as f64),
            number(mib(disk_bytes)),
            number(seen.counters.cpu_seconds),
            seen.end.to_string(),
        ]
    }
}

/// The order's name on the command line.
fn name_of(order: Order) -> &'static str {
    match order {
        Order::Consecutive => "consecutive",
        Order::Random => "random",
    }
}
