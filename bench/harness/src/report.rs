//! `bench report` and `bench readme`: the results of the yardstick in readable form. Both read a
//! CSV and measure nothing.

mod page;
mod picture;
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
    /// The file to change [default: the project's docs/explanation/performance.md]
    #[arg(long)]
    readme: Option<PathBuf>,
    /// Where the pictures go [default: the project's docs/pictures]
    #[arg(long)]
    pictures: Option<PathBuf>,
}

impl Report {
    /// Writes the page.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let run = read(self.csv.as_deref(), places, true)?;
        fs::write(&self.out, page::page(&run))
            .with_context(|| format!("cannot write {}", self.out.display()))?;
        println!("{}", self.out.display());
        Ok(())
    }
}

/// The row whose memory over time the README shows: the longest that every store survives.
const MEMORY_ROW: &str = "load-random";

impl Readme {
    /// Rebuilds the table between the markers, and the pictures.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let run = read(self.csv.as_deref(), places, false)?;
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let pictures = self.pictures.clone().unwrap_or_else(|| project.join("docs/pictures"));
        fs::create_dir_all(&pictures)
            .with_context(|| format!("cannot make {}", pictures.display()))?;
        let write = |name: &str, picture: String| {
            let file = pictures.join(name);
            fs::write(&file, picture)
                .with_context(|| format!("cannot write {}", file.display()))?;
            println!("{}", file.display());
            anyhow::Ok(())
        };
        write("memory.svg", picture::memory(&run, MEMORY_ROW))?;
        match restart(places)? {
            Some(restart) => write("restart.svg", restart)?,
            None => println!(
                "no run of `bench warm` with requests over time: restart.svg stays as it is"
            ),
        }
        let file =
            self.readme.clone().unwrap_or_else(|| project.join("docs/explanation/performance.md"));
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        fs::write(
            &file,
            readme::replaced(&text, &run).with_context(|| format!("in {}", file.display()))?,
        )?;
        println!("{}", file.display());
        Ok(())
    }
}

/// The picture of the newest run of `bench warm` that counted requests over time.
fn restart(places: &Places) -> Result<Option<String>> {
    let folder = places.results().context("no folder of results; see --results")?;
    let runs = runs(&folder)?.into_iter().filter(picture::has_restart);
    Ok(runs.max_by(|a, b| a.date.cmp(&b.date)).map(|run| picture::restart(&run)))
}

fn read(csv: Option<&Path>, places: &Places, may_be_quick: bool) -> Result<Run> {
    if let Some(csv) = csv {
        return Run::read(csv);
    }
    let folder = places.results().context("no folder of results; give the file with --csv")?;
    newest(&folder, may_be_quick)?
        .with_context(|| format!("no run of `bench all` below {}", folder.display()))
}

/// The newest run of the yardstick in the folders of all machines.
fn newest(folder: &Path, may_be_quick: bool) -> Result<Option<Run>> {
    let is_wanted = |run: &Run| match run.any_setting("mode") {
        Some("full") => true,
        Some("quick") => may_be_quick,
        _ => false,
    };
    Ok(runs(folder)?.into_iter().filter(is_wanted).max_by(|a, b| a.date.cmp(&b.date)))
}

/// All runs, of any command, in the folders of all machines.
fn runs(folder: &Path) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for machine in
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?
    {
        let machine = machine?.path();
        for file in
            machine.is_dir().then(|| fs::read_dir(&machine)).transpose()?.into_iter().flatten()
        {
            runs.extend(Run::read(&file?.path()).ok());
        }
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_run_is_taken_and_a_quick_one_only_where_it_may() {
        let folder = tempfile::tempdir().unwrap();
        let machine = folder.path().join("m");
        fs::create_dir(&machine).unwrap();
        let other =
            run::tests::EXAMPLE.replace("mode=full", "peer=x").replace("2026-01", "2026-12");
        let quick =
            run::tests::EXAMPLE.replace("mode=full", "mode=quick").replace("2026-01", "2026-03");
        let files = [
            ("a.csv", run::tests::EXAMPLE),
            ("b-quick.csv", &quick),
            ("c-pairs.csv", &other),
            ("d.txt", "?"),
        ];
        files.iter().for_each(|(name, text)| fs::write(machine.join(name), text).unwrap());
        let date = |may_be_quick| newest(folder.path(), may_be_quick).unwrap().unwrap().date;
        assert!(date(false).starts_with("2026-01") && date(true).starts_with("2026-03"));
    }
}
