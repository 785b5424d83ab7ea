//! Several processes that share a store, for a few seconds: `plimsoll-sim workers --seconds 3600`
//! goes further.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use plimsoll_sim::workers::deaths::Deaths;
use plimsoll_sim::workers::environment::Environment;
use plimsoll_sim::workers::{Report, Work, Workers};

/// Runs until a report shows enough activity. A busy machine needs longer, so each run is longer
/// than the one before.
fn run(work: Work, environment: Environment, seconds: u64, is_enough: impl Fn(&Report) -> bool) {
    run_with(work, environment, seconds, false, is_enough);
}

fn run_with(
    work: Work,
    environment: Environment,
    seconds: u64,
    at_points: bool,
    is_enough: impl Fn(&Report) -> bool,
) {
    let mut report = Report::default();
    for times in [1, 4, 16] {
        report = run_once(work, environment, seconds, at_points, times);
        if is_enough(&report) {
            return;
        }
    }
    panic!("{work:?}, {environment:?}: {report:?}");
}

fn run_once(
    work: Work,
    environment: Environment,
    seconds: u64,
    at_points: bool,
    times: u32,
) -> Report {
    let dir = tempfile::tempdir().unwrap();
    // Make the folder accessible to the other users.
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let workers = Workers {
        work,
        programs: vec![Path::new(env!("CARGO_BIN_EXE_plimsoll-sim")).to_owned()],
        environment,
        dir: dir.path().to_owned(),
        workers: 4,
        time: Duration::from_secs(seconds) * times,
        life: Duration::from_millis(if at_points { 150 } else { 600 }) * times,
        stop: Duration::from_secs(1),
        at_points: at_points.then(Deaths::default),
        seed: 1,
    };
    workers.run().unwrap()
}

#[test]
fn killed_and_stopped_workers_lose_nothing() {
    run(Work::Bank, Environment::Equal, 8, |report| report.kills >= 4 && report.acknowledged > 100);
}

#[test]
fn workers_of_two_users_and_pid_namespaces_cooperate() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can start processes of other users and in namespaces");
        return;
    }
    for environment in [Environment::Users, Environment::Namespaces] {
        run(Work::Bank, environment, 4, |report| report.kills >= 2 && report.acknowledged > 50);
    }
}

#[test]
fn killed_and_stopped_workers_stay_strictly_serializable() {
    run(Work::Lists, Environment::Equal, 6, |report| {
        let checked = &report.checked;
        report.kills >= 4 && checked.committed > 0 && checked.refused > 0 && checked.values > 0
    });
}

#[test]
fn workers_killed_at_any_point_lose_nothing() {
    for work in [Work::Bank, Work::Lists] {
        run_with(work, Environment::Equal, 4, true, |report| {
            let reached = report.deaths.points.values().filter(|kills| **kills > 0).count();
            // All of them reported where they died.
            assert_eq!(report.deaths.points.values().sum::<u64>(), report.kills, "{report:?}");
            let did_something = report.acknowledged > 0 || report.checked.committed > 0;
            report.kills >= 10 && reached >= 10 && did_something
        });
    }
}
