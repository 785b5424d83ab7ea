//! A store under real threads, for a few seconds: `plimsoll-sim stress --minutes 60` goes further.

use std::path::PathBuf;
use std::time::Duration;

use plimsoll_sim::stress::Stress;

#[test]
fn under_threads_kills_and_a_budget_that_changes_nothing_is_lost_and_the_line_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let stress = Stress {
        program: PathBuf::from(env!("CARGO_BIN_EXE_plimsoll-sim")),
        dir: dir.path().to_owned(),
        seed: 5,
        time: Duration::from_secs(8),
        memory_bytes_max: 48 << 20,
        life_max: Duration::from_secs(3),
        any_memory: false,
    };
    let report = stress.run(&mut |_, _| {}).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(report.lives >= 2 && report.acknowledged > 0 && !report.samples.is_empty(), "{report:?}");
}
