//! `plimsoll-sim stress`: runs a store under real threads, kills and restarts it, and charts its
//! memory over time.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use plimsoll_sim::stress::chart::{svg, text};
use plimsoll_sim::stress::{Report, SLACK_BYTES, Stress, child};

/// Arguments of `stress`.
#[derive(Args, Debug)]
pub(crate) struct StressArguments {
    /// Duration in minutes.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Seed of the work and of the times of the kills.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Largest memory budget in MiB, at least 16.
    #[arg(long, default_value_t = 64)]
    budget_mib: u64,
    /// Longest lifetime of a process in seconds.
    #[arg(long, default_value_t = 20)]
    life_seconds: u64,
    /// Folder in which to create the store, which is removed on success [default: a new one in the
    /// system's folder for temporary files].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Draw memory over time into this SVG file.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Accept memory above the budget: for sanitizers, which use additional memory.
    #[arg(long)]
    any_memory: bool,
    /// Runs as the child process.
    #[arg(long, hide = true, requires = "dir")]
    child: bool,
}

/// Runs the command; returns whether it succeeded.
#[allow(clippy::disallowed_methods, reason = "a folder of the command's own, and its drawing")]
pub(crate) fn run(arguments: &StressArguments) -> Result<bool, String> {
    if let (true, Some(store)) = (arguments.child, &arguments.dir) {
        return child::live(store, arguments.seed, arguments.budget_mib << 20)
            .map_err(|error| error.to_string());
    }
    let default = std::env::temp_dir().join(format!("plimsoll-stress-{}", std::process::id()));
    let dir = arguments.dir.clone().unwrap_or(default);
    let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
    std::fs::create_dir_all(&dir).map_err(failed)?;
    if std::fs::read_dir(&dir).map_err(failed)?.next().is_some() {
        return Err(format!("{} is not empty; give an empty folder", dir.display()));
    }
    let stress = Stress {
        program: std::env::current_exe().map_err(|error| error.to_string())?,
        dir: dir.clone(),
        seed: arguments.seed,
        time: Duration::from_secs_f64(arguments.minutes.max(0.0) * 60.0),
        memory_bytes_max: arguments.budget_mib << 20,
        life_max: Duration::from_secs(arguments.life_seconds.max(1)),
        any_memory: arguments.any_memory,
    };
    match stress
        .run(&mut |report, elapsed| eprintln!("{} s: {}", elapsed.as_secs(), line_of(report)))
    {
        Ok(report) => {
            print!("{}", text(&report.samples, 30));
            println!("{}", line_of(&report));
            let counts: Vec<String> =
                report.counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
            println!("of lives that were not killed: {}", counts.join(", "));
            if let Some(path) = &arguments.svg {
                std::fs::write(path, svg(&report.samples))
                    .map_err(|error| format!("{}: {error}", path.display()))?;
            }
            std::fs::remove_dir_all(&dir).map_err(failed)?;
            Ok(true)
        }
        Err(failure) => {
            println!(
                "FAILED stress --seed {}: {failure} (the store is in {})",
                arguments.seed,
                dir.display()
            );
            Ok(false)
        }
    }
}

fn line_of(report: &Report) -> String {
    format!(
        "{} lives, {} of them killed, {} commits acknowledged; memory at most {:.1} MiB above the \
         budget of the moment (allowed {:.1})",
        report.lives,
        report.kills,
        report.acknowledged,
        report.above_bytes_max as f64 / f64::from(1 << 20),
        SLACK_BYTES as f64 / f64::from(1 << 20)
    )
}
