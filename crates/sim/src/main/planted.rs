//! `plimsoll-sim planted`: prints the planted bugs and the run that found each.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use plimsoll_sim::planted::scratch::{Scratch, Verdict};
use plimsoll_sim::planted::{Planted, all, workspace};

/// Characters of a failure that the table shows.
const SAW_CHARS: usize = 160;

/// Arguments of `planted`.
#[derive(Args, Debug)]
pub(crate) struct PlantedArguments {
    /// Number of seeds of every mode to try for each bug.
    #[arg(long, default_value_t = 300)]
    seeds: u64,
    /// Try only this mode.
    #[arg(long, default_value = "all")]
    mode: String,
    /// Try only these bugs.
    #[arg(long, num_args = 1..)]
    only: Vec<String>,
    /// Folder in which the copy of the sources is built; kept to make the next time faster
    /// [default: plimsoll-planted in the system's folder for temporary files].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// List the bugs and try none.
    #[arg(long)]
    list: bool,
}

/// Tries the bugs; returns whether all were found.
pub(crate) fn run(arguments: &PlantedArguments) -> Result<bool, String> {
    let workspace = workspace();
    let mut bugs = all(&workspace)?;
    if let Some(unknown) =
        arguments.only.iter().find(|name| bugs.iter().all(|bug| bug.name != **name))
    {
        return Err(format!("unknown planted bug {unknown:?}; list them with --list"));
    }
    bugs.retain(|bug| arguments.only.is_empty() || arguments.only.contains(&bug.name));
    if arguments.list {
        bugs.iter().for_each(|bug| println!("{:<40} {}", bug.name, bug.what));
        return Ok(true);
    }
    let dir =
        arguments.dir.clone().unwrap_or_else(|| std::env::temp_dir().join("plimsoll-planted"));
    eprintln!("building the sources in {} without a bug", dir.display());
    let scratch = Scratch::new(&workspace, &dir, arguments.seeds, &arguments.mode)?;
    println!("{:<38} {:<16} found by", "bug", "program");
    let mut found = 0;
    for bug in &bugs {
        let verdict = scratch.try_one(bug);
        found +=
            usize::from(matches!(verdict, Verdict::Found { .. } | Verdict::FoundByTest { .. }));
        show(bug, &verdict);
    }
    let clean = scratch.try_none();
    let text = match &clean {
        Ok(runs) => format!("nothing, in {runs} runs"),
        Err(why) => format!("NOT WELL: {}", why.replace('\n', " | ")),
    };
    println!("{:<38} {} {text}", "(none)", scratch.clean_program());
    println!(
        "{found} of {} found within {} seeds of mode {}",
        bugs.len(),
        arguments.seeds,
        arguments.mode
    );
    Ok(found == bugs.len() && clean.is_ok())
}

fn show(bug: &Planted, verdict: &Verdict) {
    let text = match verdict {
        Verdict::Found { program, run, runs_before, saw } => {
            let saw: String = saw.chars().take(SAW_CHARS).collect();
            format!("{program} {run} (after {runs_before} passing runs): {saw}")
        }
        Verdict::FoundByTest { test } => {
            format!("{:<16} the test {} of {}", "", test.name, test.package)
        }
        Verdict::Missed { program } => format!("{program} NOBODY"),
        Verdict::MissedByTest { test } => {
            format!("{:<16} NOBODY: the test {} of {} passes with it", "", test.name, test.package)
        }
        Verdict::Untried(why) => format!("NOT TRIED: {}", why.replace('\n', " | ")),
    };
    println!("{:<38} {text}", bug.name);
    let _ = std::io::stdout().flush();
}
