//! Bugs planted on purpose, to see that the simulation finds them.
//!
//! Each is a patch in the folder `planted`: its first line says what is wrong with the store then, the rest is a diff. One by one they are
//! applied to a scratch copy of the sources; the simulation is built there and runs seed after seed until one fails. The tree as it is must
//! pass that seed: what fails without the bug says nothing about it. A simulation that finds all of them is worth something; one that
//! misses one says what it does not look at.
#![allow(clippy::disallowed_methods, reason = "copies and patches the project's own sources")]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};

/// Seeds that are run by one process.
const SEEDS_AT_ONCE: u64 = 10;

/// How long they may take, many times what they do; a store that hangs has been found out too.
const PATIENCE: Duration = Duration::from_secs(600);

/// How often a run is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// A bug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planted {
    /// Its patch's name without the ending.
    pub name: String,
    /// What is wrong then.
    pub what: String,
    /// Its patch.
    pub patch: PathBuf,
}

/// What came of a bug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Found, by this run.
    Found {
        /// The arguments that replay it.
        run: String,
        /// Runs before it that saw nothing.
        runs_before: u64,
    },
    /// A run did not come to its end.
    Hung,
    /// No seed failed.
    Missed,
    /// It could not be tried.
    Untried(String),
}

/// Where the sources are: the workspace that this was built in.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All planted bugs, by name.
///
/// # Errors
/// A patch cannot be read, or has no first line that says what it does.
pub fn all(workspace: &Path) -> Result<Vec<Planted>, String> {
    let folder = workspace.join("crates/sim/planted");
    let told = |error: io::Error| format!("{}: {error}", folder.display());
    let mut bugs = Vec::new();
    for entry in fs::read_dir(&folder).map_err(told)? {
        let patch = entry.map_err(told)?.path();
        let Some(name) = patch.file_name().and_then(|name| name.to_str()?.strip_suffix(".patch")) else { continue };
        let text = fs::read_to_string(&patch).map_err(told)?;
        let what = text.lines().next().unwrap_or_default().to_owned();
        if what.is_empty() || what.starts_with("---") {
            return Err(format!("{}: the first line must say what is wrong with the store then", patch.display()));
        }
        bugs.push(Planted { name: name.to_owned(), what, patch });
    }
    bugs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(bugs)
}

/// Whether a patch applies to the sources as they are.
///
/// # Errors
/// It does not: with what to do.
pub fn applies(workspace: &Path, bug: &Planted) -> Result<(), String> {
    git_apply(workspace, &["--check"], bug).map_err(|error| {
        format!(
            "{} does not apply to the sources any more.\n{error}\nIf the code has moved, plant the same bug in its new place and write \
             the patch anew: the first line as it is, an empty line, then `git diff -U2` of the change (which is then taken back). If \
             the bug cannot be made any more, remove the patch; then `cargo run --release -p plimsoll-sim -- planted --only {}` shows \
             that it is found.",
            bug.patch.display(),
            bug.name
        )
    })
}

fn git_apply(dir: &Path, how: &[&str], bug: &Planted) -> Result<(), String> {
    let patch = bug.patch.canonicalize().map_err(|error| format!("{}: {error}", bug.patch.display()))?;
    let mut git = Command::new("git");
    // A scratch copy may lie within a repository, which git must not look for.
    git.current_dir(dir).env("GIT_CEILING_DIRECTORIES", dir.parent().unwrap_or(dir));
    git.args(["apply", "--whitespace=nowarn"]).args(how).arg(patch);
    done(git.output(), "git apply")
}

fn done(output: io::Result<Output>, what: &str) -> Result<(), String> {
    let output = output.map_err(|error| format!("{what}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{what}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// A copy of the sources in which bugs are planted, and what was built of it without any.
pub struct Scratch {
    tree: PathBuf,
    target: PathBuf,
    clean: PathBuf,
    seeds: u64,
    clock: SystemClock,
}

impl Scratch {
    /// Copies the sources into `dir` and builds them; `seeds`: how many are tried for each bug.
    ///
    /// # Errors
    /// They cannot be copied, or do not build.
    pub fn new(workspace: &Path, dir: &Path, seeds: u64) -> Result<Self, String> {
        let (tree, target) = (dir.join("tree"), dir.join("target"));
        let told = |error: io::Error| format!("{}: {error}", dir.display());
        fs::create_dir_all(&tree).map_err(told)?;
        for part in ["Cargo.toml", "Cargo.lock", "crates"] {
            mirror(&workspace.join(part), &tree.join(part)).map_err(told)?;
        }
        let clean = dir.join("plimsoll-sim-without-bugs");
        let scratch = Self { tree, target, clean, seeds, clock: SystemClock::new() };
        scratch.build()?;
        fs::copy(scratch.binary(), &scratch.clean).map_err(told)?;
        Ok(scratch)
    }

    /// Plants a bug, looks for it, and takes it out again.
    pub fn try_one(&self, bug: &Planted) -> Verdict {
        if let Err(error) = git_apply(&self.tree, &[], bug) {
            return Verdict::Untried(error);
        }
        let verdict = self.build().and_then(|()| self.search());
        match git_apply(&self.tree, &["--reverse"], bug) {
            Ok(()) => verdict.unwrap_or_else(Verdict::Untried),
            Err(error) => Verdict::Untried(error),
        }
    }

    fn build(&self) -> Result<(), String> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.target).env("CARGO_INCREMENTAL", "1");
        // Plain settings: flags of the outer build would make all of it anew.
        cargo.env_remove("RUSTFLAGS").args(["build", "--quiet", "--package", "plimsoll-sim", "--bin", "plimsoll-sim"]);
        done(cargo.output(), "cargo build")
    }

    fn binary(&self) -> PathBuf {
        self.target.join("debug/plimsoll-sim")
    }

    fn search(&self) -> Result<Verdict, String> {
        let mut runs_before = 0;
        for seed in (0..self.seeds).step_by(SEEDS_AT_ONCE as usize) {
            let (from, seeds) = (seed.to_string(), SEEDS_AT_ONCE.min(self.seeds - seed).to_string());
            let arguments = ["--mode", "all", "--seed", &from, "--seeds", &seeds, "--jobs", "1", "--first"];
            let Some(out) = self.run(&self.binary(), &arguments)? else { return Ok(Verdict::Hung) };
            let runs = out.lines().find_map(|line| line.split_once(" runs, ")?.0.parse::<u64>().ok());
            let runs = runs.ok_or_else(|| format!("seeds from {seed} on end without a word: {out}"))?;
            if let Some(line) = out.lines().find_map(|line| line.strip_prefix("FAILED ")) {
                return self.compare(line, runs_before + runs - 1);
            }
            runs_before += runs;
        }
        Ok(Verdict::Missed)
    }

    /// Whether the run that failed passes without the bug.
    fn compare(&self, line: &str, runs_before: u64) -> Result<Verdict, String> {
        let run = line.split(": ").next().unwrap_or_default().to_owned();
        let arguments: Vec<&str> = run.split(' ').collect();
        match self.run(&self.clean, &arguments)? {
            Some(clean) if clean.contains("FAILED") => {
                Ok(Verdict::Untried(format!("{run} fails without the bug, too: mend that first")))
            }
            Some(_) => Ok(Verdict::Found { run, runs_before }),
            None => Ok(Verdict::Untried(format!("{run} does not end without the bug, either"))),
        }
    }

    /// What a run prints; `None` if it does not end.
    fn run(&self, program: &Path, arguments: &[&str]) -> Result<Option<String>, String> {
        let told = |error: io::Error| format!("{}: {error}", program.display());
        let path = self.target.join("run.txt");
        let out = fs::OpenOptions::new().create(true).write(true).truncate(true).open(&path).map_err(told)?;
        let err = out.try_clone().map_err(told)?;
        let mut child = Command::new(program).args(arguments).stdout(out).stderr(err).spawn().map_err(told)?;
        let start = self.clock.monotonic_nanos();
        loop {
            if child.try_wait().map_err(told)?.is_some() {
                return fs::read_to_string(&path).map(Some).map_err(told);
            }
            if self.clock.monotonic_nanos() - start > PATIENCE.as_nanos() as u64 {
                let _ = child.kill();
                child.wait().map_err(told)?;
                return Ok(None);
            }
            self.clock.sleep(LOOK);
        }
    }
}

/// Makes `to` the same as `from`; files that are the same already keep their time, so that nothing is built twice.
fn mirror(from: &Path, to: &Path) -> io::Result<()> {
    if from.is_file() {
        if fs::read(to).ok() != Some(fs::read(from)?) {
            fs::copy(from, to)?;
        }
        return Ok(());
    }
    fs::create_dir_all(to)?;
    let names = |dir: &Path| fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>();
    let wanted = names(from)?;
    for name in names(to)?.into_iter().filter(|name| !wanted.contains(name)) {
        let old = to.join(name);
        if old.is_dir() { fs::remove_dir_all(old)? } else { fs::remove_file(old)? }
    }
    wanted.into_iter().filter(|name| name != "target").try_for_each(|name| mirror(&from.join(&name), &to.join(&name)))
}
