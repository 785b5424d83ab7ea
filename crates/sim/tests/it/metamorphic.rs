//! Whatever the store does beside it, a workload has the same answers.

use plimsoll_sim::case::Mode;

use crate::run_seeds;

#[test]
fn budgets_sizes_compactions_and_reopenings_are_seen_in_no_answer() {
    run_seeds(Mode::Metamorphic, 0..30);
}
