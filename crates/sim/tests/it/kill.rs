//! A child process on a real disk, killed 245 times: 125 times while it only writes (100 of these
//! with all writers active), and 40 times in each other scenario.

use std::path::Path;

use plimsoll_sim::kill::{Kills, Scenario, kill_children};

fn kill(scenario: Scenario, kills: u64) -> Kills {
    let dir = tempfile::tempdir().unwrap();
    let report = kill_children(
        Path::new(env!("CARGO_BIN_EXE_plimsoll-sim")),
        dir.path(),
        scenario,
        kills,
        1,
    )
    .unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(report.kills, kills);
    report
}

#[test]
fn acknowledged_commits_survive_a_hundred_kills() {
    let report = kill(Scenario::Write, 125);
    assert!(report.with_commits >= 100, "{report:?}");
}

#[test]
fn store_killed_during_creation_opens() {
    kill(Scenario::Create, 40);
}

#[test]
fn kills_during_compaction_lose_no_commit() {
    let report = kill(Scenario::Compact, 40);
    assert!(report.with_commits >= 32, "{report:?}");
}

#[test]
fn interrupted_backup_is_complete_or_no_store() {
    let report = kill(Scenario::Backup, 40);
    assert!(report.backups > 0, "{report:?}");
}
