//! `bench line`: does the process stay under its line, whatever it does?
//!
//! Each workload runs in a child with a budget and is watched from outside. It may hold the budget and 16 MiB for what lies outside:
//! code's data, stacks, fixed tables, page tables. The import runs the `plimsoll` command itself; git's own processes are not
//! part of the budget and are not counted.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;

use crate::child;
use crate::launch::{Limit, Outcome, launch};
use crate::quiet;
use crate::results::Results;
use crate::sizes::{mib, parse_size, show_size};
use crate::table::{self, number};
use crate::watch::End;
use crate::work_folder::{Places, WorkFolder};

/// What a process may hold beside its budget.
const ROOM_BYTES: u64 = 16 << 20;

#[derive(Args, Debug)]
pub(crate) struct Line {
    /// Memory budget
    #[arg(long, default_value = "64MiB", value_parser = parse_size)]
    memory: u64,
    /// Pairs of integers to load
    #[arg(long, default_value_t = 60_000_000)]
    rows: u64,
    /// Pairs of a transaction
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
    /// Bytes of the large transaction and of the large value
    #[arg(long, default_value = "1GiB", value_parser = parse_size)]
    transaction: u64,
    /// Git repository to import [default: the one that the bench lies in]
    #[arg(long)]
    repository: Option<PathBuf>,
    /// The plimsoll command [default: it is built]
    #[arg(long)]
    plimsoll: Option<PathBuf>,
    /// Run each workload in a memory cgroup with a hard limit of its budget + 32 MiB, page cache included (not the import: git's
    /// processes would count)
    #[arg(long)]
    cgroup: bool,
}

/// One row: what runs, on which store.
struct Workload {
    name: &'static str,
    store: &'static str,
    program: PathBuf,
    arguments: Vec<String>,
    /// Whether it can run in a cgroup.
    confined: bool,
    /// Whether it may end with an error instead of an answer: a walk lends whole values, and one value may be above the budget.
    may_refuse: bool,
}

impl Line {
    /// Measures, prints the table, keeps the results; an error if a process was above its line or failed.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let mut results = Results::new("line", places.results().as_deref());
        quiet::check(&mut results);
        let work = places.work("line")?;
        let hard = Limit::for_budget(self.cgroup, self.memory);
        let mut rows = Vec::new();
        let mut bad = 0;
        for workload in self.workloads(&work)? {
            let limit = if workload.confined { &hard } else { &Limit::None };
            let outcome = launch(&workload.program, &workload.arguments, limit)
                .with_context(|| format!("workload {}", workload.name))?;
            let settings = self.settings(&workload, limit);
            note(&mut results, &workload, &settings, &outcome);
            bad += u32::from(!self.verdict(&workload, &outcome).starts_with("kept"));
            rows.push(self.row(&workload, &outcome));
        }
        let head = [
            "workload",
            "store",
            "seconds",
            "CPU s",
            "peak MiB",
            "allowed MiB",
            "page tables MiB",
            "written MiB",
            "line",
        ];
        table::print(&head, &rows);
        results.save()?;
        ensure!(bad == 0, "{bad} workloads failed or were above the line");
        Ok(())
    }

    fn workloads(&self, work: &WorkFolder) -> Result<Vec<Workload>> {
        let bench = std::env::current_exe()?;
        let of = |name, store: &'static str, arguments: &[&str]| Workload {
            name,
            store,
            program: bench.clone(),
            arguments: child::arguments(&work.path().join(store), self.memory, arguments),
            confined: true,
            may_refuse: false,
        };
        let (rows, batch, bytes) = (self.rows.to_string(), self.batch.to_string(), self.transaction.to_string());
        let pairs =
            |order| ["pairs", "--peer", "plimsoll-forever", "--rows", &rows, "--batch", &batch, "--order", order];
        Ok(vec![
            self.import(work)?,
            of("scan", "history", &["scan"]),
            of("verify", "history", &["verify"]),
            of("pairs-consecutive", "consecutive", &pairs("consecutive")),
            of("pairs-random", "random", &pairs("random")),
            of("scan", "random", &["scan"]),
            of("verify", "random", &["verify"]),
            of("transaction-small-values", "transaction", &["transaction", "--bytes", &bytes, "--value-bytes", "100"]),
            of("scan", "transaction", &["scan"]),
            of("verify", "transaction", &["verify"]),
            of("transaction-one-value", "value", &["value", "--bytes", &bytes]),
            Workload { may_refuse: true, ..of("scan", "value", &["scan"]) },
            of("verify", "value", &["verify"]),
        ])
    }

    fn import(&self, work: &WorkFolder) -> Result<Workload> {
        let repository = match &self.repository {
            Some(repository) => repository.clone(),
            None => top_of_checkout()?,
        };
        let store = work.path().join("history");
        let arguments = ["import", "git"].map(str::to_owned).into_iter();
        let places = [&repository, &store].map(|path| path.display().to_string());
        let budget = ["--memory".to_owned(), self.memory.to_string()];
        Ok(Workload {
            name: "import-git",
            store: "history",
            program: self.plimsoll()?,
            arguments: arguments.chain(places).chain(budget).collect(),
            confined: false,
            may_refuse: false,
        })
    }

    fn plimsoll(&self) -> Result<PathBuf> {
        self.plimsoll.clone().map_or_else(build_plimsoll, Ok)
    }

    fn settings(&self, workload: &Workload, limit: &Limit) -> String {
        format!(
            "store={} memory={} rows={} batch={} transaction={} cgroup={}",
            workload.store,
            show_size(self.memory),
            self.rows,
            self.batch,
            show_size(self.transaction),
            limit.name()
        )
    }

    fn verdict(&self, workload: &Workload, outcome: &Outcome) -> String {
        let above = outcome.seen.peak_line_bytes > self.memory + ROOM_BYTES;
        match &outcome.seen.end {
            End::Well if above => "ABOVE".to_owned(),
            End::Well => "kept".to_owned(),
            End::Code(_) if workload.may_refuse && !above => "kept, refused".to_owned(),
            end => end.to_string(),
        }
    }

    fn row(&self, workload: &Workload, outcome: &Outcome) -> Vec<String> {
        let seen = &outcome.seen;
        vec![
            workload.name.to_owned(),
            workload.store.to_owned(),
            number(seen.seconds),
            number(seen.counters.cpu_seconds),
            number(mib(seen.peak_line_bytes)),
            number(mib(self.memory + ROOM_BYTES)),
            number(mib(seen.peak_page_table_bytes)),
            number(mib(seen.counters.written_bytes)),
            self.verdict(workload, outcome),
        ]
    }
}

fn note(results: &mut Results, workload: &Workload, settings: &str, outcome: &Outcome) {
    let name = format!("line-{}", workload.name);
    outcome.seen.note(results, &name, settings);
    for (metric, value) in child::numbers(&outcome.seen.output) {
        results.note(&name, settings, &metric, value);
    }
    if let Some(peak) = outcome.cgroup_peak_bytes {
        results.note(&name, settings, "cgroup_peak_bytes", peak as f64);
    }
}

/// The plimsoll command, built beside this program.
pub(crate) fn build_plimsoll() -> Result<PathBuf> {
    let target = std::env::current_exe()?.ancestors().nth(2).context("the bench lies in a target folder")?.to_owned();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
    let status = Command::new("cargo")
        .args(["build", "--release", "--quiet", "--package", "plimsoll-cli", "--manifest-path"])
        .arg(manifest)
        .arg("--target-dir")
        .arg(&target)
        .status()
        .context("cannot run cargo; give the command's path with --plimsoll")?;
    ensure!(status.success(), "the plimsoll command does not build");
    Ok(target.join("release/plimsoll"))
}

/// The top of the Git repository that the bench lies in.
pub(crate) fn top_of_checkout() -> Result<PathBuf> {
    let output = Command::new("git")
        .args(["rev-parse", "--show-toplevel"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .context("cannot run git")?;
    if !output.status.success() {
        bail!("the bench does not lie in a git repository: name one with --repository");
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}
