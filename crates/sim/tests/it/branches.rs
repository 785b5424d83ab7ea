//! Branches, merges and tags.

use plimsoll_sim::case::Mode;

use crate::run_seeds;

#[test]
fn branches_agree_with_a_model_that_knows_every_commit() {
    run_seeds(Mode::Branches, 0..100);
}
