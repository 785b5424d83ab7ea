//! A workload has the same answers, whatever else the store does.

use plimsoll_sim::case::Mode;

use crate::run_seeds;

#[test]
fn budgets_sizes_compactions_and_reopens_change_no_answer() {
    run_seeds(Mode::Metamorphic, 0..15);
}

/// Regression, found by a soak test: memory taken under a budget of 1 GiB was missing after the
/// budget shrank to 16 MiB.
#[test]
fn large_values_are_readable_after_the_budget_shrinks() {
    for seed in [3_000_658, 3_001_273, 3_001_418, 3_001_467, 3_001_528] {
        run_seeds(Mode::Metamorphic, seed..seed + 1);
    }
}
