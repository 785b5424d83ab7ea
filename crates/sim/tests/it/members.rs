//! Several processes that share a store, in one simulated world.

use plimsoll_sim::case::{Case, Mode};
use plimsoll_sim::members;
use plimsoll_sim::members::kill_every::{ProcessEvent, kill_at_every, scenario};
use plimsoll_sim::op::text::parse;

use crate::run_seeds;

#[test]
fn killed_and_stopped_processes_lose_nothing_and_agree() {
    run_seeds(Mode::Members, 0..150);
}

#[test]
fn kill_at_every_operation_loses_nothing_for_the_others() {
    let kills = kill_at_every(0, &scenario(), ProcessEvent::Kill, (3, 97), 1)
        .unwrap_or_else(|failure| panic!("{failure}"));
    assert!(kills.runs > 100, "{kills:?}");
}

#[test]
fn kill_at_every_operation_then_power_cut_loses_nothing() {
    let kills = kill_at_every(2, &scenario(), ProcessEvent::KillAndCut, (1, 97), 1)
        .unwrap_or_else(|failure| panic!("{failure}"));
    assert!(kills.runs > 100, "{kills:?}");
}

#[test]
fn stop_at_every_operation_is_harmless_after_resume() {
    let stops = kill_at_every(1, &scenario(), ProcessEvent::Stop, (5, 97), 1)
        .unwrap_or_else(|failure| panic!("{failure}"));
    assert!(stops.runs > 100, "{stops:?}");
}

/// Regressions: the stopped keeper removed files of its successor, and became a second keeper. Or
/// it installed its manifest after the successor's first, so that the successor never installed
/// another and flushed for ever. Or it was stopped in a flush, and reported its run file as
/// missing.
#[test]
fn keeper_stopped_during_takeover_keeps_its_successors_files() {
    let text = "among 0 join 0\namong 1 join 0\namong 2 join 0\namong 0 put 0 1 100\namong 0 \
                flush\namong 0 leave\namong 1 step 0
        among 2 put 0 2 300\namong 2 flush\namong 2 put 0 3 300\namong 2 flush\namong 2 put 0 4 \
                300\namong 2 flush\namong 2 put 0 5 300
        among 2 flush\namong 2 put 0 6 300\namong 2 flush\namong 2 check\namong 1 step 0\namong 1 \
                put 0 7 300\namong 1 flush\namong 2 check";
    let stops = kill_at_every(0, &parse(text).unwrap(), ProcessEvent::Stop, (0, 23), 1)
        .unwrap_or_else(|failure| panic!("{failure}"));
    assert!(stops.runs > 100, "{stops:?}");
}

/// Regression: the new keeper trimmed log that its own memtable refers to, because the previous
/// keeper had flushed these commits.
#[test]
fn new_keeper_retains_the_log_that_its_memtable_needs() {
    let text = "among 1 join 0\namong 0 join 0\namong 1 put 1 6 12032\namong 1 put 0 12 \
                6020\namong 1 put 1 13 12030\namong 1 put 0 14 9018
        among 1 put 1 15 12009\namong 1 trim 0\namong 0 drop-caches\namong 0 put 0 15 104\namong 1 \
                leave\namong 0 get 1 22\namong 0 step 1
        among 0 check";
    // The seed chooses the sizes of memtables and segments.
    members::run(374, &parse(text).unwrap()).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Regression: the new keeper added the runs of a large commit to the manifest again, before the
/// runs of newer commits, and moved the checkpoint back. The previous keeper had already added
/// them.
#[test]
fn new_keeper_does_not_flush_commits_that_runs_hold() {
    let text = "among 0 join 0\namong 1 join 0\namong 0 flush\namong 1 put 0 2 3003\namong 1 flush
        among 0 put 1 23 3030\namong 0 put 0 24 9008\namong 1 power-cut\namong 0 join 0\namong 1 \
                join 0\namong 0 leave
        among 0 join 0\namong 1 stop-at-change 10 3\namong 1 flush\namong 0 put 0 8 3015\namong 0 \
                flush\namong 0 alone";
    members::run(57, &parse(text).unwrap()).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Regression: the keeper applied and flushed only durable commits, while the other process waited
/// for a flush of its later commits, which were not synced.
#[test]
fn synced_keeper_flushes_for_a_buffered_process() {
    let text = "among 0 join 0\namong 1 join 0\namong 0 tx-delete 0 9\namong 0 step 5\namong 0 \
                tx-commit\namong 0 put 1 0 1627
        among 0 load 1 1240 83 1048\namong 1 drop-caches\namong 0 make-space\namong 1 \
                snapshot\namong 1 get 2 26
        among 1 put 1 10 1\namong 1 put 0 24 42\namong 1 put 1 14 12\namong 1 put 0 11 405\namong \
                1 get 1 6
        among 1 load 1 1397 68 631\namong 1 put 0 31 2016";
    // The seed chooses the buffered process, and the sizes of memtables.
    members::run(346, &parse(text).unwrap()).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Regression: a trim failed when another process had already trimmed the same part of the log.
#[test]
fn process_late_to_trim_the_log_continues() {
    let case = Case { ops: 150, ..Case::new(Mode::Members, 20092) };
    case.run().unwrap_or_else(|failure| panic!("{case}: {failure}"));
}
