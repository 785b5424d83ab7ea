//! A store under real threads, for a few seconds: `plimsoll-sim stress --minutes 60` goes further.

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_sim::stress::{Report, Stress};

fn run(seconds: u64, life_seconds_max: u64) -> Report {
    let dir = tempfile::tempdir().unwrap();
    let stress = Stress {
        program: PathBuf::from(env!("CARGO_BIN_EXE_plimsoll-sim")),
        dir: dir.path().to_owned(),
        seed: 5,
        time: Duration::from_secs(seconds),
        memory_bytes_max: 48 << 20,
        life_max: Duration::from_secs(life_seconds_max),
        any_memory: false,
    };
    stress.run(&mut |_, _| {}).unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn stress_loses_nothing_and_stays_within_the_budget() {
    let is_enough = |report: &Report| {
        report.lives >= 2 && report.acknowledged > 0 && !report.samples.is_empty()
    };
    // A busy machine needs longer for the same work.
    let mut report = Report::default();
    for (seconds, life_seconds_max) in [(8, 3), (32, 12), (128, 48)] {
        report = run(seconds, life_seconds_max);
        if is_enough(&report) {
            return;
        }
    }
    panic!("{report:?}");
}
