//! `bench cache`: the row cache in the store, and its underlying object cache by itself.
//!
//! In the store: the savings of rows for a store whose data exceed its memory, against the same
//! store with pages only. By itself: the cost of a hit in a small and in a large cache, against a
//! bare hash table of as many entries; whether the cache stays below its limit while eight threads
//! fill it; and, against other caches with the same real memory, requests per second, hit ratios on
//! traces, and the cachebench workload. Each goal ends in a line that says whether it was met.

mod contest;
mod contestant;
mod hits;
mod requests;
mod store;
mod strict;
mod verdict;
mod worker;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};

pub(crate) use self::worker::CacheWorker;
use crate::quiet;
use crate::results::Results;
use crate::sizes::parse_size;
use crate::work_folder::Places;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Savings of the row cache in a store
    Store,
    /// Cost of a hit by the number of entries (goal 3b)
    Hits,
    /// Whether the number holds with eight threads (goal 4)
    Strict,
    /// Requests a second against other caches (goal 2)
    Requests,
    /// Hit ratios on traces against other caches (goal 1)
    Traces,
    /// The cachebench workload, against other caches (goal 5)
    Cachebench,
}

#[derive(Args, Debug)]
pub(crate) struct Cache {
    /// Measurements to run
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "store,hits,strict,requests,traces,cachebench"
    )]
    only: Vec<Part>,
    /// Rows of the store, of some 120 B each
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    rows: u64,
    /// The store's memory budget
    #[arg(long, default_value = "48MiB", value_parser = parse_size)]
    memory: u64,
    /// Operations of a turn on the store; each setting has one turn to warm up
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(1000..))]
    operations: u64,
    /// Turns of each setting, which alternate
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    turns: u64,
    /// Entries of the caches whose hits are timed
    #[arg(long, value_delimiter = ',', default_value = "10000,100000,1000000,3000000", value_parser = clap::value_parser!(u64).range(1000..))]
    entries: Vec<u64>,
    /// How long eight threads fill a cache that must stay below its number, in milliseconds
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u64).range(1..))]
    strict_ms: u64,
    /// Requests to each cache
    #[arg(long, default_value_t = 4_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    requests: u64,
    /// Threads that ask
    #[arg(long, value_delimiter = ',', default_value = "1,2,8")]
    threads: Vec<usize>,
    /// Real memory that each cache is brought to for requests a second
    #[arg(long, default_value = "32MiB", value_parser = parse_size)]
    contest_memory: u64,
    /// And for the cachebench workload
    #[arg(long, default_value = "200MiB", value_parser = parse_size)]
    cachebench_memory: u64,
    /// Folder of traces in libCacheSim's oracleGeneral
    #[arg(long)]
    traces: Option<PathBuf>,
}

impl Cache {
    /// Measures, prints the tables, stores the results.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let mut results = Results::new("cache", places.results().as_deref());
        quiet::check(&mut results);
        for part in &self.only {
            match part {
                Part::Store => store::run(self, &places.work("cache")?, &mut results)?,
                Part::Hits => hits::run(self, &mut results)?,
                Part::Strict => strict::run(self, &mut results)?,
                Part::Requests => contest::speed(self, &mut results)?,
                Part::Traces => contest::traces(self, &mut results)?,
                Part::Cachebench => contest::cachebench(self, &mut results)?,
            }
            results.keep()?;
        }
        results.save()
    }
}
