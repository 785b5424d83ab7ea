//! `plimsoll-sim workers`: runs several processes on one store, and kills, stops and restarts them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use plimsoll_sim::workers::deaths::{Deaths, read_plan};
use plimsoll_sim::workers::environment::Environment;
use plimsoll_sim::workers::points::EndState;
use plimsoll_sim::workers::{Report, Work, Workers, child, lister};

/// Arguments of `workers`.
#[derive(Args, Debug)]
pub(crate) struct WorkersArguments {
    /// Number of processes.
    #[arg(long, default_value_t = 4)]
    workers: u64,
    /// The processes append to lists, and their history is checked for strict serializability. By
    /// default they move money between accounts.
    #[arg(long)]
    lists: bool,
    /// Duration in seconds.
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// Kill processes at code points rather than at random times: in a call of the disk or of
    /// locks, at a read of shared words, or between two stores to them. Each process verifies the
    /// store after opening it. Prints the number of kills at each point.
    #[arg(long, conflicts_with = "namespaces")]
    points: bool,
    /// With --points: a file with the number of kills at each point, to which this run adds; the
    /// next run prefers the other points.
    #[arg(long, requires = "points")]
    tally: Option<PathBuf>,
    /// Average lifetime of a process in milliseconds; with --points: of a process that does not
    /// reach its point.
    #[arg(long, default_value_t = 1000)]
    life_millis: u64,
    /// The longest time for which a process is stopped, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    stop_millis: u64,
    /// Seed of the times of kills and stops.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Each process has its own namespace of process ids, in which its id is 1, as in a container
    /// (needs root and `unshare`).
    #[arg(long, conflicts_with = "users")]
    namespaces: bool,
    /// The processes are two users of one group, in a folder of the group's (needs root).
    #[arg(long)]
    users: bool,
    /// Another build of this command, for example with another C library. Every second process runs
    /// that build.
    #[arg(long)]
    beside: Option<PathBuf>,
    /// Folder in which to create the store, which is removed on success [default: a new one in the
    /// system's folder for temporary files].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Runs as a worker.
    #[arg(long, hide = true, requires = "dir")]
    worker: Option<u64>,
    /// A worker with --points: the crossing of a point at which it is killed.
    #[arg(long, hide = true, default_value_t = 1)]
    nth: u64,
    /// Count only points whose names have this prefix.
    #[arg(long, hide = true, default_value = "")]
    group: String,
    /// A file with the names of points that do not count.
    #[arg(long, hide = true)]
    enough: Option<PathBuf>,
}

/// Runs the command; returns whether it succeeded.
#[allow(clippy::disallowed_methods, reason = "a folder of the command's own")]
pub(crate) fn run(arguments: &WorkersArguments) -> Result<bool, String> {
    if let (Some(worker), Some(store)) = (arguments.worker, &arguments.dir) {
        let end_state = match arguments.points {
            true => {
                let WorkersArguments { nth, group, enough, .. } = arguments;
                Some(Arc::new(EndState::new(read_plan(*nth, group.clone(), enough.as_deref())?)))
            }
            false => None,
        };
        return match arguments.lists {
            true => lister::live(store, worker, end_state.as_ref()),
            false => child::live(store, worker, end_state.as_ref()),
        }
        .map(|()| true);
    }
    let default = std::env::temp_dir().join(format!("plimsoll-workers-{}", std::process::id()));
    let dir = arguments.dir.clone().unwrap_or(default);
    let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
    std::fs::create_dir_all(&dir).map_err(failed)?;
    if std::fs::read_dir(&dir).map_err(failed)?.next().is_some() {
        return Err(format!("{} is not empty; give an empty folder", dir.display()));
    }
    let mut programs = vec![std::env::current_exe().map_err(|error| error.to_string())?];
    programs.extend(arguments.beside.clone());
    let workers = Workers {
        work: if arguments.lists { Work::Lists } else { Work::Bank },
        programs,
        environment: match arguments {
            WorkersArguments { namespaces: true, .. } => Environment::Namespaces,
            WorkersArguments { users: true, .. } => Environment::Users,
            _ => Environment::Equal,
        },
        dir: dir.clone(),
        workers: arguments.workers.max(1),
        time: Duration::from_secs_f64(arguments.seconds.max(0.0)),
        life: Duration::from_millis(arguments.life_millis.max(1)),
        stop: Duration::from_millis(arguments.stop_millis),
        at_points: match (arguments.points, &arguments.tally) {
            (false, _) => None,
            (true, None) => Some(Deaths::default()),
            (true, Some(tally)) => Some(Deaths::read(tally)?),
        },
        seed: arguments.seed,
    };
    match workers.run() {
        Ok(report) => {
            if workers.at_points.is_some() {
                print_deaths(&report.deaths);
            }
            if let Some(tally) = &arguments.tally {
                report.deaths.write(tally)?;
            }
            print(&report, workers.work);
            std::fs::remove_dir_all(&dir).map_err(failed)?;
            Ok(true)
        }
        Err(failure) => {
            println!(
                "FAILED workers --seed {}: {failure} (the store is in {})",
                arguments.seed,
                dir.display()
            );
            Ok(false)
        }
    }
}

fn print(report: &Report, work: Work) {
    print!(
        "{} workers killed, {} stopped for a while, {} ended; ",
        report.kills, report.stops, report.ends
    );
    match work {
        Work::Bank => {
            let (longest, most) = report.stalls_millis;
            println!(
                "{} transfers acknowledged, at most {most} ms apart (99 of 100), {longest} the \
                 longest",
                report.acknowledged
            );
        }
        Work::Lists => {
            let checked = report.checked;
            println!(
                "{} transactions strictly serializable ({} of killed workers), {} refused; {} \
                 values, {} relations",
                checked.committed,
                checked.of_killed,
                checked.refused,
                checked.values,
                checked.relations
            );
        }
    }
}

/// Prints each point with the number of kills there.
fn print_deaths(deaths: &Deaths) {
    deaths.points.iter().for_each(|(point, kills)| println!("{kills:>6} {point}"));
    let reached = deaths.points.values().filter(|kills| **kills > 0).count();
    let (keepers, longest, most) = deaths.keepers_millis;
    println!(
        "workers were killed at {reached} of {} points; {keepers} times, the killed worker was \
         the keeper, and the next keeper came within {most} ms (99 of 100), {longest} at most",
        deaths.points.len()
    );
}
