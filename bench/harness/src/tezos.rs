//! `bench tezos`: the operations of a replay of Tezos blocks, one transaction a block, under small
//! and large budgets.
//!
//! The trace used to measure Irmin is not publicly available everywhere, so [`generator`] makes
//! commits with the published mix on the published shape of paths. Each replay runs in its own
//! process ([`replay`]) on a copy of one store that holds the state before the first commit.

mod generator;
mod leaf;
mod mix;
mod model;
mod permutation;
mod replay;
mod table;
mod tier;

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use plimsoll::Retention;

pub(crate) use self::replay::TezosReplay;
use self::table::Measured;
use crate::launch::{Limit, launch};
use crate::quiet;
use crate::results::Results;
use crate::sizes::parse_size;
use crate::work_folder::{Places, WorkFolder, bytes_on_disk, copy_folder, drop_from_page_cache};

#[derive(Args, Debug)]
pub(crate) struct Tezos {
    /// Memory budgets
    #[arg(long, value_delimiter = ',', default_value = "40000000,80000000,500000000", value_parser = parse_size)]
    memory: Vec<u64>,
    /// Commits of a replay
    #[arg(long, default_value_t = mix::PUBLISHED_COMMITS, value_parser = clap::value_parser!(u64).range(1..))]
    commits: u64,
    /// Entries of the large folder before the first commit
    #[arg(long, default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    entries: u64,
    /// When a commit returns
    #[arg(long, value_delimiter = ',', default_value = "durable,relaxed")]
    commit: Vec<Returns>,
    /// Keep only the latest version of each key, instead of all
    #[arg(long)]
    latest: bool,
    /// Seed of the commits
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run each replay in a memory cgroup with a hard limit of its budget + 32 MiB, page cache
    /// included
    #[arg(long)]
    cgroup: bool,
}

/// When a commit returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Returns {
    /// Once it survives a power cut
    Durable,
    /// Once it is readable; it is synced within 200 ms
    Relaxed,
}

impl Returns {
    fn name(self) -> &'static str {
        match self {
            Self::Durable => "durable",
            Self::Relaxed => "relaxed",
        }
    }
}

impl Tezos {
    /// Measures, prints the tables and the verdicts, stores the results.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let mut results = Results::new("tezos", places.results().as_deref());
        quiet::check(&mut results);
        let work = places.work("tezos")?;
        let start = Instant::now();
        let retention = if self.latest { Retention::Latest } else { Retention::Forever };
        replay::populate(&work.path().join("population"), self.entries, self.seed, retention)?;
        println!("populated in {:.0} s", start.elapsed().as_secs_f64());
        let mut measured = Vec::new();
        for &returns in &self.commit {
            for &memory in &self.memory {
                measured.push(self.replay(returns, memory, &work, &mut results)?);
                results.keep()?;
            }
        }
        table::print(&measured);
        let failed = table::judge(&measured, &mut results);
        results.save()?;
        ensure!(failed == 0, "{failed} verdicts are bad");
        Ok(())
    }

    fn replay(
        &self,
        returns: Returns,
        memory: u64,
        work: &WorkFolder,
        results: &mut Results,
    ) -> Result<Measured> {
        let store = work.path().join("store");
        copy_folder(&work.path().join("population"), &store)?;
        drop_from_page_cache(&store)?;
        let limit = Limit::for_budget(self.cgroup, memory);
        let mut arguments =
            vec!["tezos-replay".to_owned(), "--store".to_owned(), store.display().to_string()];
        let numbers = [
            ("memory", memory),
            ("entries", self.entries),
            ("commits", self.commits),
            ("seed", self.seed),
        ];
        numbers
            .iter()
            .for_each(|(name, value)| arguments.extend([format!("--{name}"), value.to_string()]));
        if returns == Returns::Relaxed {
            arguments.push("--relaxed".to_owned());
        }
        let outcome = launch(&std::env::current_exe()?, &arguments, &limit)?;
        let disk_bytes = bytes_on_disk(&store);
        work.remove("store");
        let settings = format!(
            "memory={memory} commit={} commits={} entries={} retention={} seed={} cgroup={}",
            returns.name(),
            self.commits,
            self.entries,
            if self.latest { "latest" } else { "forever" },
            self.seed,
            limit.name()
        );
        Measured::of(&outcome, returns == Returns::Relaxed, memory, disk_bytes, settings, results)
    }
}
