//! The workloads of `bench line`, their order and their stores.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::{Line, outside};
use crate::child::{self, Scene};
use crate::work_folder::WorkFolder;

/// One row: a process that runs one task on one store.
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) store: &'static str,
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    pub(super) expected: Expected,
    /// Memory that the task holds itself, in addition to the store's.
    pub(super) own_bytes: u64,
    /// Whether no later workload needs the store.
    pub(super) is_last: bool,
}

/// How a workload may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// With an answer.
    Answer,
    /// With an answer or an error: a scan lends whole values, and one value may be larger than the
    /// budget.
    AnswerOrRefusal,
    /// By killing itself.
    Kill,
}

impl Line {
    /// All workloads under one budget.
    pub(super) fn workloads(&self, memory: u64, work: &WorkFolder) -> Result<Vec<Workload>> {
        let bench = std::env::current_exe()?;
        let of = |name, store: &'static str, arguments: &[&str]| Workload {
            name,
            store,
            program: bench.clone(),
            arguments: child::arguments(&work.path().join(store), memory, arguments),
            expected: Expected::Answer,
            own_bytes: 0,
            is_last: false,
        };
        let last = |name, store, arguments: &[&str]| Workload {
            is_last: true,
            ..of(name, store, arguments)
        };
        let (rows, batch, bytes) =
            (self.rows.to_string(), self.batch.to_string(), self.transaction.to_string());
        let (writes, part, snapshots) =
            (self.writes.to_string(), (self.writes / 8).to_string(), self.snapshots.to_string());
        let pairs = [
            "pairs",
            "--peer",
            "plimsoll-forever",
            "--rows",
            &rows,
            "--batch",
            &batch,
            "--times",
            "2",
        ];
        let wants_import =
            self.only.is_empty() || self.only.iter().any(|only| only == "import-git");
        let import = wants_import.then(|| self.import(memory, work)).transpose()?;
        let mut all: Vec<_> = import.into_iter().collect();
        all.extend([
            of("scan", "history", &["scan"]),
            last("verify", "history", &["verify"]),
            of("pairs-twice", "pairs", &[&pairs[..], &["--order", "random"]].concat()),
            of("scan", "pairs", &["scan"]),
            last("verify", "pairs", &["verify"]),
            of("writes", "writes", &["writes", "--bytes", &writes]),
            of("scan", "writes", &["scan"]),
            last("verify", "writes", &["verify"]),
            Workload {
                expected: Expected::Kill,
                ..of("writes-killed", "killed", &["writes", "--bytes", &part, "--be-killed"])
            },
            last("recovery", "killed", &["recover", "--bytes", &part]),
            of(
                "transaction-small-values",
                "transaction",
                &["transaction", "--bytes", &bytes, "--value-bytes", "100"],
            ),
            of("scan", "transaction", &["scan"]),
            last("verify", "transaction", &["verify"]),
            of("transaction-one-value", "value", &["value", "--bytes", &bytes]),
            Workload { expected: Expected::AnswerOrRefusal, ..of("scan", "value", &["scan"]) },
            last("verify", "value", &["verify"]),
            last("snapshots", "snapshots", &["snapshots", "--count", &snapshots]),
            last("large-values", "large-values", &["scene", "--scene", "large-values"]),
            last("long-keys", "long-keys", &["scene", "--scene", "long-keys"]),
            last("begun-walks", "begun-walks", &["scene", "--scene", "begun-walks"]),
            Workload {
                own_bytes: Scene::OpenTransactions.own_bytes(),
                ..last(
                    "open-transactions",
                    "open-transactions",
                    &["scene", "--scene", "open-transactions"],
                )
            },
            last("many-keyspaces", "many-keyspaces", &["scene", "--scene", "many-keyspaces"]),
        ]);
        all.retain(|workload| {
            self.only.is_empty() || self.only.iter().any(|only| only == workload.name)
        });
        Ok(all)
    }

    /// The import, by the `plimsoll` command itself, with git's own processes outside its limit.
    fn import(&self, memory: u64, work: &WorkFolder) -> Result<Workload> {
        let repository = match &self.repository {
            Some(repository) => repository.clone(),
            None => top_of_checkout()?,
        };
        let store = work.path().join("history");
        let plimsoll = self.plimsoll.clone().map_or_else(build_plimsoll, Ok)?;
        let path = outside::path_with_git_outside(&work.path().join("outside"))?;
        let [plimsoll, repository, store] =
            [&plimsoll, &repository, &store].map(|path| path.display().to_string());
        let words = [
            format!("PATH={path}"),
            plimsoll,
            "import".to_owned(),
            "git".to_owned(),
            repository,
            store,
        ];
        Ok(Workload {
            name: "import-git",
            store: "history",
            program: "/usr/bin/env".into(),
            arguments: words
                .into_iter()
                .chain(["--memory".to_owned(), memory.to_string()])
                .collect(),
            expected: Expected::Answer,
            own_bytes: 0,
            is_last: false,
        })
    }
}

/// The plimsoll command, built beside this program.
pub(crate) fn build_plimsoll() -> Result<PathBuf> {
    let target = std::env::current_exe()?
        .ancestors()
        .nth(2)
        .context("the bench lies in a target folder")?
        .to_owned();
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
