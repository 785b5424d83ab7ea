//! `plimsoll-sim power`, `syscalls`, `readers`: children on real file systems.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use plimsoll_sim::failure::Outcome;
use plimsoll_sim::real::members::cut_members;
use plimsoll_sim::real::power::{FileSystem, cut_power};
use plimsoll_sim::real::readers::read_beside_trims;
use plimsoll_sim::real::syscalls::fail_calls;

/// Common arguments.
#[derive(Args, Debug)]
pub(crate) struct Place {
    /// Seed of all choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder in which to create the working folder, which is removed on success [default: the
    /// system's folder for temporary files].
    #[arg(long)]
    dir: Option<PathBuf>,
}

impl Place {
    /// Runs `work` in a new folder; returns whether it succeeded.
    #[allow(clippy::disallowed_methods, reason = "a folder of the command's own")]
    fn work<T: std::fmt::Debug>(
        &self,
        name: &str,
        work: impl FnOnce(&Path, &Path) -> Outcome<T>,
    ) -> Result<bool, String> {
        let parent = self.dir.clone().unwrap_or_else(std::env::temp_dir);
        let dir = parent.join(format!("plimsoll-{name}-{}", std::process::id()));
        let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
        std::fs::create_dir_all(&dir).map_err(failed)?;
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        match work(&program, &dir) {
            Ok(report) => {
                println!("{name}: {report:?}");
                std::fs::remove_dir_all(&dir).map_err(failed)?;
                Ok(true)
            }
            Err(failure) => {
                println!("FAILED {name}: {failure} (its files: {})", dir.display());
                Ok(false)
            }
        }
    }
}

/// Arguments of `power`.
#[derive(Args, Debug)]
pub(crate) struct PowerArguments {
    /// File system: ext4 or xfs.
    #[arg(long, default_value = "ext4")]
    fs: FileSystem,
    /// Number of power cuts.
    #[arg(long, default_value_t = 100)]
    cuts: u64,
    /// Number of processes that share the store; by default, one process has it for itself.
    #[arg(long)]
    workers: Option<u64>,
    #[command(flatten)]
    place: Place,
}

/// Arguments of `syscalls`.
#[derive(Args, Debug)]
pub(crate) struct SyscallsArguments {
    /// Number of child processes in which calls fail.
    #[arg(long, default_value_t = 180)]
    children: u64,
    #[command(flatten)]
    place: Place,
}

/// Arguments of `readers`.
#[derive(Args, Debug)]
pub(crate) struct ReadersArguments {
    /// Duration in minutes.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    #[command(flatten)]
    place: Place,
}

pub(crate) fn power(arguments: &PowerArguments) -> Result<bool, String> {
    let PowerArguments { fs, cuts, workers, place } = arguments;
    if let Some(workers) = workers {
        let name = format!("power-{fs}-{workers}-workers");
        return place.work(&name, |program, dir| {
            cut_members(program, dir, *fs, *cuts, *workers, place.seed)
        });
    }
    place.work(&format!("power-{fs}"), |program, dir| {
        cut_power(program, dir, *fs, *cuts, place.seed)
    })
}

pub(crate) fn syscalls(arguments: &SyscallsArguments) -> Result<bool, String> {
    let place = &arguments.place;
    place.work("syscalls", |program, dir| fail_calls(program, dir, arguments.children, place.seed))
}

pub(crate) fn readers(arguments: &ReadersArguments) -> Result<bool, String> {
    let time = Duration::from_secs_f64(arguments.minutes.max(0.0) * 60.0);
    arguments.place.work("readers", |program, dir| read_beside_trims(program, dir, time))
}
