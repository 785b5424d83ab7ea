//! The bench: measures Plimsoll, and its peers under the same conditions. `bench/README.md` says
//! what each number means.

mod allocations;
mod appender;
mod bigger;
mod branch_bench;
mod branches;
mod cache;
mod cgroup;
mod child;
mod cluster;
mod counting_disk;
mod cpu_quiet;
mod cpu_time;
mod evictor;
mod fio;
mod hits;
mod kuzu;
mod launch;
mod line;
mod log_append;
mod log_peer;
mod log_scan;
mod misses;
mod page_cache;
mod pairs;
mod payload;
mod peer;
mod processes;
mod quiet;
mod range_deletes;
mod report;
mod resident;
mod results;
mod row_store;
mod scan_resistance;
mod sizes;
mod statistics;
mod table;
mod tezos;
mod turns;
mod warm;
mod watch;
mod work_folder;
mod yardstick;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::work_folder::Places;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

/// Measures Plimsoll.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Cli {
    #[command(flatten)]
    places: Places,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Scans of the log by number, against the access pattern of Varlog's storage
    LogScan(log_scan::LogScan),
    /// Durable appends and commits, against a bare loop of write + fdatasync
    LogAppend(log_append::LogAppend),
    /// The row cache in the store, and the object cache by itself
    Cache(cache::Cache),
    /// Pairs of integers, loaded in order and without order, under a small and a large budget
    Pairs(pairs::Pairs),
    /// Cost of a restart, with and without a warm image
    Warm(warm::Warm),
    /// Cost of a restart for RelStorage, over SQLite and over PostgreSQL
    RelstorageRestart(warm::RelstorageRestart),
    /// Whether each workload stays under its memory line
    Line(line::Line),
    /// Cost of reading a resident page, against other caches and a load of this machine
    Hits(hits::Hits),
    /// Pages that are not in the pool, at random and in order, against fio (needs fio)
    Misses(misses::Misses),
    /// Whether hot rows stay in memory beside a walk over everything, and beside a full compaction
    ScanResistance(scan_resistance::ScanResistance),
    /// A store on a full pool, with the evictor and without
    Evictor(evictor::EvictorBench),
    /// Whether more memory ever makes a store slower: replays of a Git history and reads under
    /// growing budgets
    Bigger(bigger::Bigger),
    /// The operations of a replay of Tezos blocks, under small and large budgets
    Tezos(tezos::Tezos),
    /// Data that fits in memory: gets, ranges, deletes, queues, large values and slow commits,
    /// against the peers
    Resident(resident::Resident),
    /// Deletions of ranges: the call, reads beside many of them, the first key of a queue
    RangeDeletes(range_deletes::RangeDeletes),
    /// Branches: creating them, reads on deep and wide ones, merges, writers on several
    Branches(branches::Branches),
    /// The five workloads of BranchBench, with keys and values: branches, changes and queries
    BranchBench(branch_bench::BranchBench),
    /// Members of one store over a bucket: commits, reads, the time until a commit is seen elsewhere
    Cluster(cluster::Cluster),
    /// Several processes that read and write one store: commits, reads, memory, deaths, against the
    /// peers
    Processes(processes::Processes),
    /// The yardstick: twelve rows against the peers, under the same memory limit
    All(yardstick::All),
    /// A page about a run of the yardstick
    Report(report::Report),
    /// The table of README.md, from the newest full run of the yardstick
    Readme(report::Readme),
    /// A contestant of the yardstick (used by it)
    #[command(hide = true)]
    Worker(yardstick::Worker),
    /// A process that has a store open with others (used by processes)
    #[command(hide = true)]
    ProcessesWorker(processes::ProcessesWorker),
    /// One cache and its requests (used by cache)
    #[command(hide = true)]
    CacheWorker(cache::CacheWorker),
    /// The life of a process on a store (used by warm)
    #[command(hide = true)]
    WarmLife(warm::WarmLife),
    /// One replay in a process of its own (used by tezos)
    #[command(hide = true)]
    TezosReplay(tezos::TezosReplay),
    /// One piece of work in a process of its own (used by the others)
    #[command(hide = true)]
    Child(child::Child),
    /// Becomes another program, inside a limit (used by the others)
    #[command(hide = true)]
    Launch(launch::Launch),
}

fn main() -> Result<()> {
    let Cli { places, command } = Cli::parse();
    match command {
        Command::LogScan(scan) => scan.run(&places),
        Command::LogAppend(append) => append.run(&places),
        Command::Cache(cache) => cache.run(&places),
        Command::CacheWorker(worker) => worker.run(),
        Command::Pairs(pairs) => pairs.run(&places),
        Command::Warm(warm) => warm.run(&places),
        Command::RelstorageRestart(restart) => restart.run(&places),
        Command::WarmLife(life) => life.run(),
        Command::Line(line) => line.run(&places),
        Command::Hits(hits) => hits.run(&places),
        Command::Misses(misses) => misses.run(&places),
        Command::ScanResistance(resistance) => resistance.run(&places),
        Command::Evictor(evictor) => evictor.run(&places),
        Command::Bigger(bigger) => bigger.run(&places),
        Command::Tezos(tezos) => tezos.run(&places),
        Command::TezosReplay(replay) => replay.run(),
        Command::Resident(resident) => resident.run(&places),
        Command::RangeDeletes(deletes) => deletes.run(&places),
        Command::Branches(branches) => branches.run(&places),
        Command::BranchBench(branches) => branches.run(&places),
        Command::Cluster(cluster) => cluster.run(&places),
        Command::Processes(processes) => processes.run(&places),
        Command::ProcessesWorker(worker) => worker.run(),
        Command::All(all) => all.run(&places),
        Command::Report(report) => report.run(&places),
        Command::Readme(readme) => readme.run(&places),
        Command::Worker(worker) => worker.run(),
        Command::Child(child) => child.run(),
        Command::Launch(launch) => launch.run(),
    }
}
