//! `bench relstorage-restart`: the cost of a restart for RelStorage, measured by a program beside
//! this one; its numbers are stored like ours.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::{Map, Value};

use crate::quiet;
use crate::results::Results;
use crate::table::{self, number};
use crate::work_folder::Places;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../relstorage_restart.py");

/// The name of the measured configuration; all other fields are numbers.
const SETTINGS: [&str; 5] = ["peer", "end", "persistent_cache", "hot", "times"];

#[derive(Args, Debug)]
pub(crate) struct RelstorageRestart {
    /// A Python that has RelStorage, ZODB and psycopg2
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Hot objects, of some 100 bytes each
    #[arg(long, default_value_t = 1_000_000)]
    hot_objects: u64,
    /// How many times more objects there are
    #[arg(long, default_value_t = 16)]
    times: u64,
    /// Databases to store them in
    #[arg(long, value_delimiter = ',', default_value = "sqlite,postgres")]
    backends: Vec<String>,
}

impl RelstorageRestart {
    /// Measures, prints the table, stores the results.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let mut results = Results::new("relstorage-restart", places.results().as_deref());
        quiet::check(&mut results);
        let work = places.work("relstorage-restart")?;
        let mut command = Command::new(&self.python);
        command
            .arg(PROGRAM)
            .arg(work.path())
            .args([self.hot_objects, self.times].map(|n| n.to_string()));
        let mut child = command
            .args(&self.backends)
            .stdout(Stdio::piped())
            .spawn()
            .context("starting Python")?;
        let mut rows = Vec::new();
        for line in BufReader::new(child.stdout.take().context("its output is piped")?).lines() {
            rows.extend(note(&mut results, &serde_json::from_str(&line?)?));
            results.keep()?;
        }
        let status = child.wait()?;
        table::print(&["what", "metric", "value"], &rows);
        if !status.success() {
            bail!("the program ended with {status}");
        }
        results.save()
    }
}

/// Records one configuration's numbers; returns their rows of the table.
fn note(results: &mut Results, report: &Map<String, Value>) -> Vec<Vec<String>> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let settings: Vec<_> = SETTINGS
        .iter()
        .filter_map(|name| Some(format!("{name}={}", text(report.get(*name)?))))
        .collect();
    let settings = settings.join(" ");
    let numbers = report.iter().filter(|(name, _)| !SETTINGS.contains(&name.as_str()));
    let numbers: Vec<_> =
        numbers.filter_map(|(name, value)| Some((name, value.as_f64()?))).collect();
    numbers
        .iter()
        .for_each(|(name, value)| results.note("relstorage-restart", &settings, name, *value));
    numbers
        .iter()
        .map(|(name, value)| vec![settings.clone(), (*name).clone(), number(*value)])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_of_a_line_is_noted_under_what_the_line_says_of_itself() {
        let line = r#"{"peer": "relstorage-sqlite", "end": "kill", "persistent_cache": true, "hot": 5, "times": 2, "close_ms": 1.5}"#;
        let mut results = Results::new("test", None);
        let rows = note(&mut results, &serde_json::from_str(line).unwrap());
        let settings = "peer=relstorage-sqlite end=kill persistent_cache=true hot=5 times=2";
        assert_eq!(rows, [[settings, "close_ms", "1.50"]]);
    }
}
