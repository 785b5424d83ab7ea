//! Stores that exchange commits.

use plimsoll_sim::case::Mode;

use crate::run_seeds;

#[test]
fn stores_that_exchange_commits_agree_with_a_model_of_their_ids() {
    run_seeds(Mode::Sync, 0..60);
}
