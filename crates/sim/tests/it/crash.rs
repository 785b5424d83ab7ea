//! Power cuts.

use plimsoll_sim::case::Mode;
use plimsoll_sim::world::Setting;

use crate::{proves, run_seeds};

#[test]
fn whatever_sync_the_power_is_cut_at_every_acknowledged_commit_is_there() {
    run_seeds(Mode::EverySync, 0..10);
}

#[test]
fn cuts_come_again_and_again_also_during_recovery() {
    run_seeds(Mode::Crash, 0..100);
}

#[test]
fn a_creation_that_was_cut_short_leaves_an_empty_store_or_none() {
    for sync in 1..12 {
        proves(Setting::SMALL, &format!("cut {sync}\nreopen\ncrash {sync}\ncheck"));
    }
}
