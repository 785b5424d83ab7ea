//! Where results go: one CSV a day and subcommand, below a folder named after the machine. Runs are
//! appended, never overwritten; a run is known by its date. The yardstick keeps one CSV for each
//! run; rows that are measured again can be added to it.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};

pub(crate) const HEAD: &str = "machine,date,commit,workload,settings,metric,value\n";

/// Collects the measurements of one run.
#[derive(Debug)]
pub(crate) struct Results {
    file: Option<PathBuf>,
    machine: String,
    date: String,
    commit: String,
    lines: String,
}

impl Results {
    /// For subcommand `name`; `folder` is where the machines' folders are, `None` keeps nothing.
    pub(crate) fn new(name: &str, folder: Option<&Path>) -> Self {
        let machine = machine();
        let date = timestamp(
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        );
        let file =
            folder.map(|folder| folder.join(&machine).join(format!("{}-{name}.csv", &date[..10])));
        Self { file, machine, date, commit: commit(), lines: String::new() }
    }

    /// For one run of the yardstick, in a separate file; `suffix` follows the date.
    pub(crate) fn of_run(suffix: &str, folder: Option<&Path>) -> Self {
        let results = Self::new("", folder);
        let file = folder.map(|folder| {
            let name = |number| match number {
                1 => format!("{}{suffix}.csv", &results.date[..10]),
                _ => format!("{}-{number}{suffix}.csv", &results.date[..10]),
            };
            let places = (1..).map(|number| folder.join(&results.machine).join(name(number)));
            places.into_iter().find(|place| !place.exists()).expect("one number is free")
        });
        Self { file, ..results }
    }

    /// For rows of the yardstick that are measured again: they are added to the file of a run.
    pub(crate) fn of_rows(file: &Path) -> Self {
        Self { file: Some(file.to_owned()), ..Self::new("", None) }
    }

    /// Notes one number.
    pub(crate) fn note(&mut self, workload: &str, settings: &str, metric: &str, value: f64) {
        debug_assert!(
            ![workload, settings, metric].iter().any(|cell| cell.contains([',', '"', '\n']))
        );
        let Self { machine, date, commit, lines, .. } = self;
        writeln!(lines, "{machine},{date},{commit},{workload},{settings},{metric},{value}")
            .expect("writing to a string");
    }

    /// Appends everything to the file, and prints its path.
    pub(crate) fn save(&mut self) -> Result<()> {
        self.keep()?;
        if let Some(file) = &self.file {
            println!("results: {}", file.display());
        }
        Ok(())
    }

    /// Appends the results so far to the file.
    pub(crate) fn keep(&mut self) -> Result<()> {
        let lines = std::mem::take(&mut self.lines);
        let Some(file) = &self.file else { return Ok(()) };
        let folder = file.parent().context("a result's file has a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let mut out = OpenOptions::new().create(true).append(true).open(file)?;
        if out.metadata()?.len() == 0 {
            out.write_all(HEAD.as_bytes())?;
        }
        Ok(out.write_all(lines.as_bytes())?)
    }
}

/// A short name of this machine: its processor and number of cores.
fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("", |(_, name)| name);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{}-{cores}c", slug(model))
}

fn slug(model: &str) -> String {
    let lower = model.to_lowercase().replace("(r)", "").replace("(tm)", "");
    let plain: String =
        lower.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { ' ' }).collect();
    let words: Vec<&str> = plain
        .split_whitespace()
        .take_while(|word| !word.ends_with("core"))
        .filter(|w| !["cpu", "processor"].contains(w))
        .collect();
    if words.is_empty() { "unknown".to_owned() } else { words.join("-") }
}

/// The measured commit; `+` marks uncommitted changes.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(arguments)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])
        .is_none_or(|changes| !changes.is_empty());
    if changed { commit + "+" } else { commit }
}

/// Seconds since 1970 UTC as `2025-01-31T12:00:00Z`.
fn timestamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01: the leap day is then the last of its year.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_names_its_day_and_second() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00Z");
        assert_eq!(timestamp(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(timestamp(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(timestamp(1_763_713_579), "2025-11-21T08:26:19Z");
    }

    #[test]
    fn a_processor_gets_a_short_name() {
        assert_eq!(slug(" AMD EPYC"), "amd-epyc");
        assert_eq!(
            slug(" Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz"),
            "intel-xeon-e5-2680-v4-2-40ghz"
        );
        assert_eq!(slug("AMD Ryzen 9 7950X 16-Core Processor"), "amd-ryzen-9-7950x-16");
        assert_eq!(slug(""), "unknown");
    }

    #[test]
    fn each_run_of_the_yardstick_has_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            let mut results = Results::of_run("-quick", Some(folder.path()));
            for value in [1.0, 2.0] {
                results.note("scan", "n=1", "ns", value);
                results.keep().unwrap();
            }
        }
        let machine = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let files: Vec<_> =
            fs::read_dir(machine).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), 2);
        assert!(files.iter().all(|file| fs::read_to_string(file).unwrap().lines().count() == 3));
    }

    #[test]
    fn runs_are_appended_under_one_head() {
        let folder = tempfile::tempdir().unwrap();
        for value in [1.0, 2.5] {
            let mut results = Results::new("test", Some(folder.path()));
            results.note("scan", "n=1", "ns", value);
            results.save().unwrap();
        }
        let machine = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let file = fs::read_dir(machine).unwrap().next().unwrap().unwrap().path();
        let text = fs::read_to_string(file).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(format!("{}\n", lines[0]), HEAD);
        assert!(lines[2].ends_with(",scan,n=1,ns,2.5"));
    }
}
