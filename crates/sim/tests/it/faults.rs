//! Failing disks and exhausted memory.

use plimsoll::Sizes;
use plimsoll_sim::case::{Case, Mode};
use plimsoll_sim::driver::{CheckOptions, run};
use plimsoll_sim::faults::fail_each_sync;
use plimsoll_sim::op::text::parse;
use plimsoll_sim::world::{Setting, World};

use crate::{proves, run_seeds};

const LARGE_SEGMENTS: Setting = Setting { segment_bytes: 4 << 20, ..Setting::SMALL };

#[test]
fn failing_reads_give_right_answers_or_errors() {
    run_seeds(Mode::FailedReads, 0..60);
}

#[test]
fn bit_flips_in_reads_give_right_answers_or_errors() {
    run_seeds(Mode::Flips, 0..60);
}

#[test]
fn full_disk_loses_nothing_and_accepts_commits_once_there_is_room() {
    run_seeds(Mode::Full, 0..60);
}

#[test]
fn failed_sync_is_never_treated_as_durable() {
    run_seeds(Mode::FailedSyncs, 0..60);
}

#[test]
fn commits_acknowledged_after_any_failed_sync_survive_a_power_cut() {
    for seed in 0..12 {
        let case = Case { ops: 40, ..Case::new(Mode::EverySync, seed) };
        fail_each_sync(&case, &case.workload())
            .unwrap_or_else(|failure| panic!("{case}: {failure}"));
    }
}

#[test]
fn exhausted_budget_is_an_error_without_loss_or_leak() {
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
fn a_get_that_finds_nothing_out_in_the_runs_of_its_transaction_need_not_conflict() {
    let sizes = Sizes { write_set_bytes: Some(64 << 10), ..Sizes::USUAL };
    for (get, answer) in [
        ("failing read:0 then get t0 s1 =m/00100a", "refused"),
        ("get-resident t0 s1 =m/00100a", "answered"),
    ] {
        let text = format!(
            "begin t0
             put-many t0 s1 0 600 900#1 scattered
             drop-caches
             {get}
             begin t1
             put t1 s1 =m/00100a 30#1
             commit t1 0#0
             commit t0 0#0"
        );
        let driver = proves(Setting { sizes, ..LARGE_SEGMENTS }, &text);
        let [_, _, _, got, _, _, _, committed] = driver.answers() else {
            panic!("{:?}", driver.answers());
        };
        assert_eq!((&got[..], &committed[..]), (answer, "glsn 3"), "{get}");
    }
}

#[test]
fn gets_that_may_count_as_read_may_fill_the_read_set() {
    let gets = |number: u32| format!("drop-caches\nget-resident t0 s1 =m/{:05}\n", 2 * number);
    let text = format!(
        "begin t1
         put-many t1 s1 0 200 500#1 rising
         commit t1 0#0
         flush
         begin t0
         {}
         begin t1
         put t1 s1 =m/00001 30#1
         commit t1 0#0
         put t0 s1 =z 30#2
         commit t0 0#0",
        (0..80).map(gets).collect::<String>()
    );
    let sizes = Sizes { read_set_bytes: Some(4 << 10), ..Sizes::USUAL };
    let driver = proves(Setting { sizes, ..LARGE_SEGMENTS }, &text);
    assert_eq!(driver.answers().last().unwrap(), "conflict");
}

#[test]
fn transaction_larger_than_the_budget_commits() {
    for (keys, bytes) in [(40, 900_000), (500, 60_000), (60_000, 400)] {
        let puts =
            (0..keys).map(|key| format!("put t0 s0 =key/{:05} {bytes}#{key}\n", key * 7 % keys));
        let text = format!(
            "begin t0\n{}walk t0 s0 * * rev 10 values\ncommit t0 0#0",
            puts.collect::<String>()
        );
        let world = World::new(1, LARGE_SEGMENTS);
        let driver = run(world, CheckOptions::default(), &parse(&text).unwrap())
            .unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(driver.answers().last().unwrap(), "glsn 1", "{keys} keys of {bytes} bytes");
    }
}

#[test]
fn store_stays_usable_after_a_commit_on_a_full_disk() {
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
fn commit_after_failed_sync_and_reopen_survives_a_power_cut() {
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

/// A copy of the folder is restored, and the store diverges from there. Opening refuses an index
/// that knows of commits that the log does not have, whichever of the two was restored.
#[test]
fn restored_folder_opens_and_mixed_parts_are_refused() {
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
fn changing_budgets_and_dropped_caches_change_no_answer() {
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
fn index_older_than_the_trimmed_log_is_refused() {
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
