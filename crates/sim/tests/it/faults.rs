//! Disks that fail, and memory that does not suffice.

use plimsoll_sim::case::{Case, Mode};
use plimsoll_sim::driver::{Care, run};
use plimsoll_sim::faults::fail_each_sync;
use plimsoll_sim::op::text::parse;
use plimsoll_sim::world::{Setting, World};

use crate::{proves, run_seeds};

const LARGE_SEGMENTS: Setting = Setting { segment_bytes: 4 << 20, ..Setting::SMALL };

#[test]
fn while_reads_fail_an_answer_is_right_or_an_error() {
    run_seeds(Mode::FailedReads, 0..60);
}

#[test]
fn while_reads_return_wrong_bits_an_answer_is_right_or_an_error() {
    run_seeds(Mode::Flips, 0..60);
}

#[test]
fn a_full_disk_loses_nothing_and_takes_commits_again_once_there_is_room() {
    run_seeds(Mode::Full, 0..60);
}

#[test]
fn after_a_failed_sync_nothing_is_believed_that_was_not_synced() {
    run_seeds(Mode::FailedSyncs, 0..60);
}

#[test]
fn whatever_sync_fails_what_is_acknowledged_later_is_there_after_a_power_cut() {
    for seed in 0..12 {
        let case = Case { ops: 40, ..Case::new(Mode::EverySync, seed) };
        fail_each_sync(&case, &case.workload())
            .unwrap_or_else(|failure| panic!("{case}: {failure}"));
    }
}

#[test]
fn a_budget_that_does_not_suffice_is_an_error_and_nothing_is_lost_or_kept() {
    run_seeds(Mode::Budget, 0..30);
}

#[test]
fn a_get_that_is_refused_memory_need_not_conflict() {
    let driver = proves(
        LARGE_SEGMENTS,
        "begin t0
         failing reservations:0 then contains t0 s1 =a
         begin t1
         put t1 s1 =a 30#1
         commit t1 0#0
         put t0 s1 =b 30#2
         commit t0 0#0",
    );
    let [.., refused, _, _, _, _, _] = driver.answers() else { panic!("too few answers") };
    assert_eq!(refused, "refused");
}

#[test]
fn a_transaction_larger_than_the_budget_is_committed_and_read_back() {
    for (keys, bytes) in [(40, 900_000), (500, 60_000), (60_000, 400)] {
        let puts =
            (0..keys).map(|key| format!("put t0 s0 =key/{:05} {bytes}#{key}\n", key * 7 % keys));
        let text = format!(
            "begin t0\n{}walk t0 s0 * * rev 10 values\ncommit t0 0#0",
            puts.collect::<String>()
        );
        let world = World::new(1, LARGE_SEGMENTS);
        let driver = run(world, Care::default(), &parse(&text).unwrap())
            .unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(driver.answers().last().unwrap(), "glsn 1", "{keys} keys of {bytes} bytes");
    }
}

#[test]
fn a_commit_that_found_the_disk_full_leaves_the_store_usable_without_reopening() {
    let driver = proves(
        LARGE_SEGMENTS,
        "begin t0
         put t0 s0 =before 100#1
         commit t0 0#0
         fault full 0
         begin t0
         put t0 s0 =a 300000#2
         put t0 s0 =b 900000#3
         commit t0 0#0
         fault heal
         get t9 s0 =before
         begin t0
         put t0 s0 =after 900000#4
         commit t0 0#0
         check",
    );
    let after = driver.answers().len() - 2;
    assert!(driver.answers()[after].starts_with("glsn"), "{:?}", driver.answers());
}

#[test]
fn a_commit_after_a_failed_sync_and_a_reopening_survives_a_power_cut() {
    proves(
        LARGE_SEGMENTS,
        "begin t0
         fault sync
         put t0 s0 =lost 100#1
         commit t0 0#0
         reopen
         begin t0
         put t0 s0 =kept 100#2
         commit t0 0#0
         crash 0
         get t9 s0 =kept",
    );
}

/// A copy of the folder is put back, then another way is gone from there: an index that knows of
/// commits which the log does not have is refused, whichever of the two was put back.
#[test]
fn a_folder_that_was_put_back_is_the_store_of_then_and_parts_of_two_are_refused() {
    let two_ways = |part: &str| {
        format!(
            "begin t0
             put t0 s0 =a 10#1
             commit t0 0#0
             keep
             begin t0
             put t0 s0 =a 20#2
             commit t0 0#0
             restore index
             restore log
             restore whole
             get t9 s0 =a
             begin t0
             put t0 s0 =b 30#3
             commit t0 0#0
             restore {part}
             check"
        )
    };
    for part in ["index", "log", "whole"] {
        let driver = proves(LARGE_SEGMENTS, &two_ways(part));
        let restored = driver.answers().iter().filter(|answer| *answer == "restored").count();
        assert_eq!(restored, 4, "{:?}", driver.answers());
    }
}

#[test]
fn a_budget_that_changes_and_caches_that_go_change_no_answer() {
    proves(
        LARGE_SEGMENTS,
        "begin t0
         put t0 s0 =a 10#1
         put t0 s0 =b 70000#2
         commit t0 0#0
         snapshot v0 newest
         memory 256
         drop-caches
         begin t0
         put t0 s0 =b 100#3
         commit t0 0#0
         flush
         drop-caches
         memory 16
         get v0 s0 =b
         walk t9 s0 * * fwd 100 values
         work w3
         check",
    );
}

/// Found by `--mode model --seed 1000041`.
#[test]
fn an_index_from_before_a_trim_is_refused_beside_the_log_from_after_it() {
    let driver = proves(
        Setting::SMALL,
        "begin t2
         put t2 s0 =a/30 39058#1
         commit t2 0#0
         append 3 200000#2 1022#3
         append 2 4072#4
         keep
         trim 1
         restore index
         check",
    );
    assert_eq!(driver.answers()[driver.answers().len() - 2], "restored");
}
