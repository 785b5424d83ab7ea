//! `bench cache`: the object cache, in the store and by itself.
//!
//! Three tables: what objects spare a store whose data are larger than its memory, against the same store with pages only; what a hit costs in
//! a small and in a large cache, against a bare hash table of as many entries; and whether the cache stays below its number while eight
//! threads fill it.

mod hits;
mod store;
mod strict;

use anyhow::Result;
use clap::Args;

use crate::quiet;
use crate::results::Results;
use crate::sizes::parse_size;
use crate::work_folder::Places;

#[derive(Args, Debug)]
pub(crate) struct Cache {
    /// Rows of the store, of some 120 B each
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    rows: u64,
    /// The store's memory budget
    #[arg(long, default_value = "48MiB", value_parser = parse_size)]
    memory: u64,
    /// Operations of a turn; each setting has one turn to warm up
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
}

impl Cache {
    /// Measures, prints the tables, keeps the results.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let mut results = Results::new("cache", places.results().as_deref());
        quiet::check(&mut results);
        store::run(self, &places.work("cache")?, &mut results)?;
        hits::run(self, &mut results)?;
        strict::run(self, &mut results)?;
        results.save()
    }
}
