//! Several processes on one store, for a few seconds: `plimsoll-sim workers --seconds 3600` goes further.

use std::path::Path;
use std::time::Duration;

use plimsoll_sim::workers::Workers;
use plimsoll_sim::workers::surroundings::Surroundings;

#[test]
fn nothing_is_lost_when_members_are_killed_and_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let workers = Workers {
        programs: vec![Path::new(env!("CARGO_BIN_EXE_plimsoll-sim")).to_owned()],
        surroundings: Surroundings::Equal,
        dir: dir.path().to_owned(),
        workers: 4,
        time: Duration::from_secs(8),
        life: Duration::from_millis(600),
        stop: Duration::from_secs(1),
        seed: 1,
    };
    let report = workers.run().unwrap();
    assert!(report.kills >= 4 && report.acknowledged > 100, "{report:?}");
}
