//! `bench report` and `bench readme`: what the yardstick measured, for people. Both read a CSV and measure nothing.

mod page;
mod readme;
mod run;
mod svg;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;

use self::run::Run;
use crate::work_folder::Places;
use crate::yardstick::Row;

/// The names under which Plimsoll takes part.
const OURS: [&str; 2] = ["plimsoll", "plimsoll-forever"];

/// The rows that count for the mean.
fn twelve() -> Vec<String> {
    Row::TWELVE.iter().map(|row| row.name()).collect()
}

#[derive(Args, Debug)]
pub(crate) struct Report {
    /// A run of the yardstick [default: the newest]
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Where the page goes
    #[arg(long, default_value = "report.html")]
    out: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct Readme {
    /// A run of the yardstick [default: the newest full one]
    #[arg(long)]
    csv: Option<PathBuf>,
    /// The file to change [default: the project's README.md]
    #[arg(long)]
    readme: Option<PathBuf>,
}

impl Report {
    /// Writes the page.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let run = read(self.csv.as_deref(), places, true)?;
        fs::write(&self.out, page::page(&run)).with_context(|| format!("cannot write {}", self.out.display()))?;
        println!("{}", self.out.display());
        Ok(())
    }
}

impl Readme {
    /// Makes the table between the markers anew.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let run = read(self.csv.as_deref(), places, false)?;
        let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
        let file = self.readme.clone().unwrap_or_else(default);
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        fs::write(&file, readme::replaced(&text, &run).with_context(|| format!("in {}", file.display()))?)?;
        println!("{}", file.display());
        Ok(())
    }
}

fn read(csv: Option<&Path>, places: &Places, may_be_quick: bool) -> Result<Run> {
    if let Some(csv) = csv {
        return Run::read(csv);
    }
    let folder = places.results().context("results are where? give the file with --csv")?;
    newest(&folder, may_be_quick)?.with_context(|| format!("no run of `bench all` below {}", folder.display()))
}

/// The youngest run of the yardstick in the folders of all machines.
fn newest(folder: &Path, may_be_quick: bool) -> Result<Option<Run>> {
    let mut newest: Option<Run> = None;
    for machine in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let machine = machine?.path();
        for file in machine.is_dir().then(|| fs::read_dir(&machine)).transpose()?.into_iter().flatten() {
            let file = file?.path();
            // Other commands' results lie there too.
            let Ok(run) = Run::read(&file) else { continue };
            let is_wanted = match run.any_setting("mode") {
                Some("full") => true,
                Some("quick") => may_be_quick,
                _ => false,
            };
            if is_wanted && newest.as_ref().is_none_or(|newest| newest.date < run.date) {
                newest = Some(run);
            }
        }
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_run_is_taken_and_a_quick_one_only_where_it_may() {
        let folder = tempfile::tempdir().unwrap();
        let machine = folder.path().join("m");
        fs::create_dir(&machine).unwrap();
        let other = run::tests::EXAMPLE.replace("mode=full", "peer=x").replace("2026-01", "2026-12");
        let quick = run::tests::EXAMPLE.replace("mode=full", "mode=quick").replace("2026-01", "2026-03");
        let files = [("a.csv", run::tests::EXAMPLE), ("b-quick.csv", &quick), ("c-pairs.csv", &other), ("d.txt", "?")];
        files.iter().for_each(|(name, text)| fs::write(machine.join(name), text).unwrap());
        let date = |may_be_quick| newest(folder.path(), may_be_quick).unwrap().unwrap().date;
        assert!(date(false).starts_with("2026-01") && date(true).starts_with("2026-03"));
    }
}
