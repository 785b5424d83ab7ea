//! Several processes on one store, in one simulated world.

use plimsoll_sim::case::{Case, Mode};
use plimsoll_sim::members;
use plimsoll_sim::members::kill_every::{What, kill_at_every, scenario};
use plimsoll_sim::op::text::parse;

use crate::run_seeds;

#[test]
fn processes_that_are_killed_and_stopped_lose_nothing_and_read_alike() {
    run_seeds(Mode::Members, 0..150);
}

#[test]
fn whatever_operation_a_process_is_killed_at_the_others_lose_nothing() {
    let kills = kill_at_every(0, &scenario(), What::Kill, (3, 97), 1)
        .unwrap_or_else(|failure| panic!("{failure}"));
    assert!(kills.runs > 100, "{kills:?}");
}

#[test]
fn whatever_operation_a_process_is_killed_at_nothing_is_lost_at_a_power_cut_behind_it() {
    let kills = kill_at_every(2, &scenario(), What::KillAndCut, (1, 97), 1)
        .unwrap_or_else(|failure| panic!("{failure}"));
    assert!(kills.runs > 100, "{kills:?}");
}

#[test]
fn whatever_operation_a_process_is_stopped_at_it_harms_nothing_when_it_goes_on() {
    let stops = kill_at_every(1, &scenario(), What::Stop, (5, 97), 1)
        .unwrap_or_else(|failure| panic!("{failure}"));
    assert!(stops.runs > 100, "{stops:?}");
}

/// It removed files of the one that had taken its place, and became the keeper beside it. Or it
/// installed its manifest after that one's first, which never installed one again and flushed
/// without end. Or it was stopped in a flush, and said that its run file was missing.
#[test]
fn a_keeper_that_is_stopped_while_it_takes_over_removes_nothing_of_the_next_one() {
    let text = "among 0 join 0\namong 1 join 0\namong 2 join 0\namong 0 put 0 1 100\namong 0 \
                flush\namong 0 leave\namong 1 step 0
        among 2 put 0 2 300\namong 2 flush\namong 2 put 0 3 300\namong 2 flush\namong 2 put 0 4 \
                300\namong 2 flush\namong 2 put 0 5 300
        among 2 flush\namong 2 put 0 6 300\namong 2 flush\namong 2 check\namong 1 step 0\namong 1 \
                put 0 7 300\namong 1 flush\namong 2 check";
    let stops = kill_at_every(0, &parse(text).unwrap(), What::Stop, (0, 23), 1)
        .unwrap_or_else(|failure| panic!("{failure}"));
    assert!(stops.runs > 100, "{stops:?}");
}

/// It freed the log that its own memtable points to: the keeper before it had flushed what is in
/// there.
#[test]
fn a_process_that_becomes_the_keeper_keeps_the_log_that_its_memtable_needs() {
    let text = "among 1 join 0\namong 0 join 0\namong 1 put 1 6 12032\namong 1 put 0 12 \
                6020\namong 1 put 1 13 12030\namong 1 put 0 14 9018
        among 1 put 1 15 12009\namong 1 trim 0\namong 0 drop-caches\namong 0 put 0 15 104\namong 1 \
                leave\namong 0 get 1 22\namong 0 step 1
        among 0 check";
    // The seed chooses the sizes of memtables and segments.
    members::run(374, &parse(text).unwrap()).unwrap_or_else(|failure| panic!("{failure}"));
}

/// It named the runs of a large commit once more, before those of younger ones, and set the
/// checkpoint back: the keeper before it had named them.
#[test]
fn a_process_that_becomes_the_keeper_flushes_nothing_that_the_runs_hold() {
    let text = "among 0 join 0\namong 1 join 0\namong 0 flush\namong 1 put 0 2 3003\namong 1 flush
        among 0 put 1 23 3030\namong 0 put 0 24 9008\namong 1 power-cut\namong 0 join 0\namong 1 \
                join 0\namong 0 leave
        among 0 join 0\namong 1 stop-at-change 10 3\namong 1 flush\namong 0 put 0 8 3015\namong 0 \
                flush\namong 0 alone";
    members::run(57, &parse(text).unwrap()).unwrap_or_else(|failure| panic!("{failure}"));
}

/// The keeper took in what was durable, and flushed that. The other process waited for a flush of
/// what it had committed since, which was not synced.
#[test]
fn a_keeper_whose_commits_are_synced_flushes_for_a_process_whose_are_buffered() {
    let text = "among 0 join 0\namong 1 join 0\namong 0 tx-delete 0 9\namong 0 step 5\namong 0 \
                tx-commit\namong 0 put 1 0 1627
        among 0 load 1 1240 83 1048\namong 1 drop-caches\namong 0 make-space\namong 1 \
                snapshot\namong 1 get 2 26
        among 1 put 1 10 1\namong 1 put 0 24 42\namong 1 put 1 14 12\namong 1 put 0 11 405\namong \
                1 get 1 6
        among 1 load 1 1397 68 631\namong 1 put 0 31 2016";
    // The seed chooses who is buffered, and the sizes of memtables.
    members::run(346, &parse(text).unwrap()).unwrap_or_else(|failure| panic!("{failure}"));
}

/// It failed where another process had freed the log that it was about to free.
#[test]
fn a_process_that_comes_late_to_free_the_log_goes_on() {
    let case = Case { ops: 150, ..Case::new(Mode::Members, 20092) };
    case.run().unwrap_or_else(|failure| panic!("{case}: {failure}"));
}
