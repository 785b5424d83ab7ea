//! A copy of the sources in which bugs are planted and searched for, one at a time.
//!
//! The simulation is built there with the bug, and runs seeds until one fails. Invariants, so that
//! a failure is caused by the bug:
//! 1. Every program is built from the current sources. Cargo's fingerprints are deleted before each
//!    build, because they rely on file times, and several patches may be applied within one tick of
//!    a file system's clock. The compiler then compares contents.
//! 2. No two programs are identical. A program with the bytes of another was not built with its
//!    bug, or its bug is in dead code; it is not tried.
//! 3. The run or test that found a bug passes without it. At the end, the copy is built again
//!    without any bug, must have the bytes of the first such program, and must pass all the seeds
//!    that were used to find the bugs.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_disk::checksum::checksum;

use crate::planted::{Planted, Test, done, git_apply};

/// Seeds per process.
const SEEDS_AT_ONCE: u64 = 10;

/// Time limit of a run in seconds, many times the usual. A hang counts as found.
const PATIENCE: u64 = 300;

/// The exit code of `timeout` after a time-out.
const TIMED_OUT: i32 = 124;

/// The prefix of this project's crates in cargo's fingerprints.
const OWN_CRATES: &str = "plimsoll";

/// The result for a bug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Found, by this run.
    Found {
        /// The program with the bug.
        program: Program,
        /// The arguments that replay it.
        run: String,
        /// The number of passing runs before it.
        runs_before: u64,
        /// The failure.
        saw: String,
    },
    /// Found, by the named test.
    FoundByTest {
        /// The test.
        test: Test,
    },
    /// No seed failed.
    Missed {
        /// The program with the bug.
        program: Program,
    },
    /// Missed: the named test passes.
    MissedByTest {
        /// The test.
        test: Test,
    },
    /// It could not be tried.
    Untried(String),
}

/// The checksum of a program's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program(u64);

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The programs built, with the contents of each.
#[derive(Debug, Default)]
struct Programs(BTreeMap<Program, String>);

impl Programs {
    /// Adds a program; an error if it has the bytes of an earlier one.
    fn add(&mut self, program: Program, holds: &str) -> Result<(), String> {
        match self.0.insert(program, holds.to_owned()) {
            None => Ok(()),
            Some(other) => {
                Err(format!("the build with {holds} has the same bytes as the build with {other}"))
            }
        }
    }
}

/// A copy of the sources, and the program built from it without any bug.
pub struct Scratch {
    tree: PathBuf,
    target: PathBuf,
    clean: PathBuf,
    clean_program: Program,
    seeds: u64,
    mode: String,
    /// The most seeds that a bug needed.
    seeds_tried: Cell<u64>,
    programs: RefCell<Programs>,
}

impl Scratch {
    /// Copies the sources into `dir` and builds them. Each bug is tried with this many `seeds` in
    /// this `mode`.
    ///
    /// # Errors
    /// They cannot be copied, or do not build.
    pub fn new(workspace: &Path, dir: &Path, seeds: u64, mode: &str) -> Result<Self, String> {
        let failed = |error: io::Error| format!("{}: {error}", dir.display());
        fs::create_dir_all(dir).map_err(failed)?;
        // Cargo runs in the copy, so the path must be absolute.
        let dir = &fs::canonicalize(dir).map_err(failed)?;
        let (tree, target) = (dir.join("tree"), dir.join("target"));
        fs::create_dir_all(&tree).map_err(failed)?;
        for part in ["Cargo.toml", "Cargo.lock", "crates"] {
            mirror(&workspace.join(part), &tree.join(part)).map_err(failed)?;
        }
        let clean = dir.join("plimsoll-sim-without-bugs");
        let mut scratch = Self {
            tree,
            target,
            clean,
            clean_program: Program(0),
            seeds,
            mode: mode.to_owned(),
            seeds_tried: Cell::new(0),
            programs: RefCell::default(),
        };
        scratch.clean_program = scratch.build()?;
        scratch.programs.borrow_mut().add(scratch.clean_program, "no bug")?;
        fs::copy(scratch.binary(), &scratch.clean).map_err(failed)?;
        Ok(scratch)
    }

    /// The program built without any bug.
    pub fn clean_program(&self) -> Program {
        self.clean_program
    }

    /// Plants a bug, searches for it, and removes it again.
    pub fn try_one(&self, bug: &Planted) -> Verdict {
        if let Err(error) = git_apply(&self.tree, &[], bug) {
            return Verdict::Untried(error);
        }
        let verdict = match &bug.test {
            Some(test) => self.fails(test),
            None => self.build_with(bug).and_then(|program| self.search(program)),
        };
        if let Err(error) = git_apply(&self.tree, &["--reverse"], bug) {
            return Verdict::Untried(error);
        }
        let passes = bug.test.as_ref().map_or(Ok(()), |test| self.passes(test));
        passes.and(verdict).unwrap_or_else(Verdict::Untried)
    }

    /// Whether a test fails, or hangs, with the bug.
    fn fails(&self, test: &Test) -> Result<Verdict, String> {
        let test = test.clone();
        Ok(match self.run_test(&test)? {
            TestOutcome::Passes => Verdict::MissedByTest { test },
            TestOutcome::Fails(_) => Verdict::FoundByTest { test },
        })
    }

    /// Checks that a test passes without a bug.
    fn passes(&self, test: &Test) -> Result<(), String> {
        match self.run_test(test)? {
            TestOutcome::Passes => Ok(()),
            TestOutcome::Fails(out) => {
                Err(format!("the test {} fails without the bug, too: {out}", test.name))
            }
        }
    }

    fn run_test(&self, test: &Test) -> Result<TestOutcome, String> {
        let arguments = ["test", "--quiet", "--package", &test.package, "--lib"];
        let mut build = self.cargo()?;
        done(build.args(arguments).arg("--no-run").output(), "cargo test --no-run")?;
        // Limit the time of the test only, not of the build.
        let mut run = self.in_tree(Command::new("timeout"));
        run.args(["--kill-after=10", &PATIENCE.to_string()]).arg(cargo_program()).args(arguments);
        let output = run.args(["--", "--exact", &test.name, "--format=pretty"]).output();
        let output = output.map_err(|error| format!("timeout cargo test: {error}"))?;
        let out = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        TestOutcome::of(test, output.status.code(), out)
    }

    /// Builds the copy again after every bug was removed, and runs all seeds that were needed for a
    /// bug; returns the number of runs.
    ///
    /// # Errors
    /// The program differs from the first one, or a run fails.
    pub fn try_none(&self) -> Result<u64, String> {
        let program = self.build()?;
        if program != self.clean_program {
            return Err(format!(
                "the copy without a bug is {program} now and was {} before: a bug was left in it, \
                 or the compiler does not give the same program for the same sources",
                self.clean_program
            ));
        }
        let mut runs = 0;
        for seed in (0..self.seeds_tried.get()).step_by(SEEDS_AT_ONCE as usize) {
            let out = self.run(&self.clean, &self.batch(seed))?;
            runs += runs_of(&out)
                .ok_or_else(|| format!("seeds from {seed} on print no result: {out}"))?;
            if let Some(line) = failed_of(&out) {
                return Err(format!("fails without a bug, too: {line}"));
            }
        }
        Ok(runs)
    }

    fn build_with(&self, bug: &Planted) -> Result<Program, String> {
        let program = self.build()?;
        self.programs.borrow_mut().add(program, &bug.name)?;
        Ok(program)
    }

    fn build(&self) -> Result<Program, String> {
        let mut cargo = self.cargo()?;
        cargo.args(["build", "--quiet", "--package", "plimsoll-sim", "--bin", "plimsoll-sim"]);
        done(cargo.output(), "cargo build")?;
        let bytes = fs::read(self.binary())
            .map_err(|error| format!("{}: {error}", self.binary().display()))?;
        Ok(Program(checksum(0, &bytes)))
    }

    /// A call of cargo in the copy that compiles the sources as they are now.
    fn cargo(&self) -> Result<Command, String> {
        self.forget_what_is_fresh()
            .map_err(|error| format!("{}: {error}", self.target.display()))?;
        Ok(self.in_tree(Command::new(cargo_program())))
    }

    /// The settings of all calls of cargo.
    fn in_tree(&self, mut cargo: Command) -> Command {
        cargo
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_INCREMENTAL", "1");
        // Use plain settings, because flags of the outer build would rebuild everything, and line
        // numbers are not needed.
        cargo.env_remove("RUSTFLAGS").env("CARGO_PROFILE_DEV_DEBUG", "0");
        // Strip symbols, because names of private functions contain a number that changes from
        // build to build. The same sources then give the same bytes.
        cargo.env("CARGO_PROFILE_DEV_STRIP", "symbols");
        cargo
    }

    /// Makes cargo recompile every crate of this project, and removes the output of the last build.
    fn forget_what_is_fresh(&self) -> io::Result<()> {
        let absent_is_well = |done: io::Result<()>| match done {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        absent_is_well(fs::remove_file(self.binary()))?;
        let notes = self.target.join("debug/.fingerprint");
        if !notes.is_dir() {
            return Ok(());
        }
        for note in fs::read_dir(notes)? {
            let note = note?;
            if note.file_name().to_string_lossy().starts_with(OWN_CRATES) {
                fs::remove_dir_all(note.path())?;
            }
        }
        Ok(())
    }

    fn binary(&self) -> PathBuf {
        self.target.join("debug/plimsoll-sim")
    }

    /// The arguments that run the seeds from `seed` on.
    fn batch(&self, seed: u64) -> String {
        let seeds = SEEDS_AT_ONCE.min(self.seeds - seed);
        format!("--mode {} --seed {seed} --seeds {seeds} --jobs 1 --first", self.mode)
    }

    fn search(&self, program: Program) -> Result<Verdict, String> {
        let mut runs_before = 0;
        for seed in (0..self.seeds).step_by(SEEDS_AT_ONCE as usize) {
            self.seeds_tried.set(self.seeds_tried.get().max(self.seeds.min(seed + SEEDS_AT_ONCE)));
            let out = self.run(&self.binary(), &self.batch(seed))?;
            let runs = runs_of(&out)
                .ok_or_else(|| format!("seeds from {seed} on print no result: {out}"))?;
            if let Some(line) = failed_of(&out) {
                return self.compare(program, line, runs_before + runs - 1);
            }
            runs_before += runs;
        }
        Ok(Verdict::Missed { program })
    }

    /// Whether the run that failed passes without the bug.
    fn compare(&self, program: Program, line: &str, runs_before: u64) -> Result<Verdict, String> {
        let (run, saw) = line.split_once(": ").unwrap_or((line, ""));
        let clean = self.run(&self.clean, run)?;
        match (runs_of(&clean), failed_of(&clean)) {
            (Some(1), None) => Ok(Verdict::Found {
                program,
                run: run.to_owned(),
                runs_before,
                saw: saw.to_owned(),
            }),
            (_, Some(_)) => {
                Ok(Verdict::Untried(format!("{run} fails without the bug, too; fix that first")))
            }
            _ => Ok(Verdict::Untried(format!("{run} without the bug prints no result: {clean}"))),
        }
    }

    /// The output of a run.
    fn run(&self, program: &Path, arguments: &str) -> Result<String, String> {
        let patience = PATIENCE.to_string();
        let mut run = Command::new(program);
        let output = run.args(arguments.split(' ')).args(["--patience", &patience]).output();
        let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr))
    }
}

/// The outcome of a test.
#[derive(Debug, PartialEq, Eq)]
enum TestOutcome {
    Passes,
    /// It failed or hung; with its output.
    Fails(String),
}

impl TestOutcome {
    fn of(test: &Test, code: Option<i32>, out: String) -> Result<Self, String> {
        match () {
            () if code == Some(TIMED_OUT)
                || out.contains(&format!("test {} ... FAILED", test.name)) =>
            {
                Ok(Self::Fails(out))
            }
            () if out.contains(&format!("test {} ... ok", test.name)) => Ok(Self::Passes),
            () => Err(format!("the test {} does not finish: {out}", test.name)),
        }
    }
}

fn cargo_program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The number of runs that an output reports.
fn runs_of(out: &str) -> Option<u64> {
    out.lines().find_map(|line| line.split_once(" runs, ")?.0.parse().ok())
}

/// The first failed run in an output.
fn failed_of(out: &str) -> Option<&str> {
    out.lines().find_map(|line| line.strip_prefix("FAILED "))
}

/// Makes `to` equal to `from`. Equal files keep their times, so that nothing is rebuilt.
fn mirror(from: &Path, to: &Path) -> io::Result<()> {
    if from.is_file() {
        if fs::read(to).ok() != Some(fs::read(from)?) {
            fs::copy(from, to)?;
        }
        return Ok(());
    }
    fs::create_dir_all(to)?;
    let names = |dir: &Path| {
        fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()
    };
    let wanted = names(from)?;
    for name in names(to)?.into_iter().filter(|name| !wanted.contains(name)) {
        let old = to.join(name);
        if old.is_dir() { fs::remove_dir_all(old)? } else { fs::remove_file(old)? }
    }
    wanted
        .into_iter()
        .filter(|name| name != "target")
        .try_for_each(|name| mirror(&from.join(&name), &to.join(&name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identical_program_is_not_tried_for_another_bug() {
        let mut programs = Programs::default();
        assert_eq!(programs.add(Program(1), "no bug"), Ok(()));
        assert_eq!(programs.add(Program(2), "a"), Ok(()));
        assert!(
            programs
                .add(Program(2), "b")
                .unwrap_err()
                .ends_with("the same bytes as the build with a")
        );
        assert!(programs.add(Program(1), "c").is_err());
    }

    #[test]
    fn passing_test_misses_its_bug_and_hanging_test_finds_it() {
        let test = Test::in_line("Found by the test plimsoll index::a").unwrap();
        let said = |code, how: &str| {
            TestOutcome::of(&test, Some(code), format!("test index::a ... {how}"))
        };
        assert_eq!(said(0, "ok"), Ok(TestOutcome::Passes));
        assert!(matches!(said(101, "FAILED"), Ok(TestOutcome::Fails(_))));
        assert!(matches!(said(TIMED_OUT, ""), Ok(TestOutcome::Fails(_))));
        assert!(said(101, "").is_err());
    }

    #[test]
    fn output_parses_run_count_and_failure() {
        let out = "FAILED --mode crash --seed 12 --ops 400: the store opened at 3\n13 runs, 1 \
                   failed, 0 s\n";
        assert_eq!(runs_of(out), Some(13));
        assert_eq!(failed_of(out), Some("--mode crash --seed 12 --ops 400: the store opened at 3"));
        assert_eq!((runs_of("Killed"), failed_of("Killed")), (None, None));
    }

    #[test]
    fn mirror_replaces_any_previous_contents() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir_all(from.join("kept")).unwrap();
        fs::create_dir_all(to.join("old/deep")).unwrap();
        fs::write(from.join("kept/a"), "new").unwrap();
        fs::write(from.join("b"), "same").unwrap();
        for (name, text) in [("b", "same"), ("c", "left over"), ("old/deep/d", "left over")] {
            fs::write(to.join(name), text).unwrap();
        }
        let time = |name: &str| fs::metadata(to.join(name)).unwrap().modified().unwrap();
        let before = time("b");
        mirror(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("kept/a")).unwrap(), "new");
        assert_eq!(time("b"), before);
        assert!(!to.join("c").exists() && !to.join("old").exists());
    }
}
