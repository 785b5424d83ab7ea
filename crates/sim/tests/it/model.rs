//! The store against the model, on a disk without faults.

use plimsoll::Durability;
use plimsoll_sim::case::{Case, Mode};
use plimsoll_sim::driver::{CheckOptions, run};
use plimsoll_sim::world::Setting;

use crate::{proves, run_seeds};

/// Segments large enough for any record.
const LARGE_SEGMENTS: Setting = Setting { segment_bytes: 4 << 20, ..Setting::SMALL };

#[test]
fn store_agrees_with_the_model() {
    run_seeds(Mode::Model, 0..60);
}

#[test]
fn store_agrees_with_the_model_after_every_operation() {
    for seed in 1000..1010 {
        let case = Case { ops: 80, ..Case::new(Mode::Model, seed) };
        let care = CheckOptions { verify_each: true, check_every: 1, ..CheckOptions::default() };
        run(case.world(), care, &case.workload())
            .unwrap_or_else(|failure| panic!("{case}: {failure}"));
    }
}

#[test]
fn one_seed_replays_one_run() {
    for seed in 0..10 {
        let case = Case::new(Mode::Model, seed);
        let syncs_and_answers = || {
            let driver = run(case.world(), CheckOptions::default(), &case.workload())
                .unwrap_or_else(|failure| panic!("{failure}"));
            (driver.world().disk.sync_count(), driver.answers().to_vec())
        };
        assert_eq!(syncs_and_answers(), syncs_and_answers(), "seed {seed}");
    }
}

#[test]
fn snapshot_never_changes() {
    proves(
        LARGE_SEGMENTS,
        "keyspace s2 latest
         begin t0
         put t0 s2 =a 10#1
         put t0 s2 =b 5000#2
         commit t0 0#0
         snapshot v0 newest
         begin t0
         put t0 s2 =a 20#3
         delete t0 s2 =b
         put t0 s2 =c 30#4
         commit t0 0#0
         flush
         compact
         walk v0 s2 * * fwd 100 values
         walk v0 s2 * * rev 100 values
         get v0 s2 =b
         release v0
         compact
         walk t9 s2 * * fwd 100 values",
    );
}

#[test]
fn overwritten_read_is_a_conflict() {
    let driver = proves(
        LARGE_SEGMENTS,
        "begin t0
         begin t1
         get t0 s1 =a
         put t0 s1 =x 1#1
         put t1 s1 =a 1#2
         commit t1 0#0
         commit t0 0#0",
    );
    assert_eq!(driver.answers().last().unwrap(), "conflict");
}

#[test]
fn unread_writes_are_no_conflict() {
    let driver = proves(
        LARGE_SEGMENTS,
        "begin t0
         begin t1
         put t0 s1 =a 1#1
         put t1 s1 =a 1#2
         commit t1 0#0
         commit t0 0#0",
    );
    assert!(driver.answers().last().unwrap().starts_with("glsn"));
}

#[test]
fn excluded_edge_counts_as_unread() {
    let driver = proves(
        LARGE_SEGMENTS,
        "begin t0
         begin t1
         delete t0 s1 =b/22
         commit t0 0#0
         walk t1 s1 (b/22 )c/17 rev 8 values
         put t1 s0 =b/28 4110#1
         commit t1 0#0",
    );
    assert!(driver.answers().last().unwrap().starts_with("glsn"));
}

#[test]
fn transaction_may_exceed_a_segment() {
    let driver = proves(
        Setting::SMALL,
        "begin t0
         put t0 s0 =a 20000#1
         put t0 s0 =b 20000#3
         put t0 s0 =c 900000#5
         commit t0 100#2",
    );
    assert!(driver.answers().last().unwrap().starts_with("glsn"));
}

#[test]
fn a_backup_of_an_empty_store_is_an_empty_store() {
    proves(LARGE_SEGMENTS, "backup");
}

#[test]
fn buffered_commits_are_visible_at_once() {
    proves(
        Setting { durability: Durability::Buffered, ..LARGE_SEGMENTS },
        "begin t0
         put t0 s0 =a 10#1
         commit t0 0#0
         get t9 s0 =a
         append 1 10#2 20#3
         scan 5 10 all
         reopen
         get t9 s0 =a",
    );
}
