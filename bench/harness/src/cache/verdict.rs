//! Goals, and whether a run met them.

use crate::results::Results;

/// Prints the outcome of a goal and records it: 1 met, 0 missed.
pub(super) fn say(results: &mut Results, goal: &str, settings: &str, is_met: bool, figures: &str) {
    println!("goal {goal}: {}: {figures}", if is_met { "met" } else { "MISSED" });
    results.note(
        "cache-goal",
        settings,
        &format!("goal_{}_met", goal.replace(' ', "_")),
        f64::from(u8::from(is_met)),
    );
}

/// Prints that a goal was not measured, and why.
pub(super) fn not_measured(goal: &str, why: &str) {
    println!("goal {goal}: NOT MEASURED: {why}");
}
