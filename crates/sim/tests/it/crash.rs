//! Power cuts.

use plimsoll_sim::case::{Case, Mode};
use plimsoll_sim::op::text::parse;
use plimsoll_sim::world::Setting;

use crate::{proves, run_seeds};

#[test]
fn acknowledged_commits_survive_a_power_cut_at_every_sync() {
    run_seeds(Mode::EverySync, 0..10);
}

#[test]
fn repeated_power_cuts_also_during_recovery_lose_nothing() {
    run_seeds(Mode::Crash, 0..100);
}

#[test]
fn interrupted_creation_leaves_an_empty_store_or_none() {
    for sync in 1..12 {
        proves(Setting::SMALL, &format!("cut {sync}\nreopen\ncrash {sync}\ncheck"));
    }
}

#[test]
fn visit_with_unreadable_value_during_merge_fails_without_skipping_a_row() {
    // The power goes while the merge moves the value, after the visit has come to its row.
    for seed in [5096, 1, 2, 3, 4, 5] {
        let text = format!(
            "begin t0\nput t0 s0 =b/10 7315#20873217\ncommit t0 0#0\nput-many t0 s2 0 30 \
             100#20873218 rising\nbegin t1\nput t1 s1 =a/06%00 100929#20873244\nsubmit \
             t1\nstep\ncut {}\namid iterator-attached trim then walk -2 s0 ^b/1 . rev 4294967295 \
             values",
            if seed == 5096 { 5 } else { seed }
        );
        let case = Case::new(Mode::Crash, seed);
        case.run_workload(&parse(&text).unwrap())
            .unwrap_or_else(|failure| panic!("{case}: {failure}"));
    }
}
