//! Whatever the store does beside it, a workload has the same answers.

use plimsoll_sim::case::Mode;

use crate::run_seeds;

#[test]
fn budgets_sizes_compactions_and_reopenings_are_seen_in_no_answer() {
    run_seeds(Mode::Metamorphic, 0..15);
}

/// Found by a soak: what a budget of 1 GiB had taken was missing when it was 16 MiB again.
#[test]
fn large_values_are_read_after_a_large_budget_became_a_small_one() {
    for seed in [3_000_658, 3_001_273, 3_001_418, 3_001_467, 3_001_528] {
        run_seeds(Mode::Metamorphic, seed..seed + 1);
    }
}
