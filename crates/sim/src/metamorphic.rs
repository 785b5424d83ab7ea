//! Metamorphic test: the same workload gives the same answers, whatever else the store does.
//!
//! The variants differ in the budget (16 MiB to 1 GiB, constant or changing), the sizes of
//! memtables and segments, and the durability. Between operations they drop caches, flush, compact,
//! run background work in any order, and reopen the store with the warm image removed, damaged or
//! replaced by an older one. None of that may change an answer. The model checks each answer by
//! itself; this test compares whole runs.

use std::time::Duration;

use plimsoll::Durability;
use plimsoll_disk::random::Random;

use crate::case::Case;
use crate::driver::{CheckOptions, Driver, Warmed, guarded};
use crate::failure::{Failure, Outcome};
use crate::op::Op;
use crate::world::{Setting, World};

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
struct Variant {
    setting: Setting,
    /// Probability of background work between two operations, in percent.
    upkeep_percent: u64,
}

fn variants() -> [Variant; 7] {
    // Segments must be large enough for any record, because larger records are refused.
    let small = Setting { segment_bytes: 2 << 20, ..Setting::SMALL };
    let large = Setting {
        memory_bytes: 128 << 20,
        memtable_bytes: 8 << 20,
        segment_bytes: 8 << 20,
        ..small
    };
    [
        Variant { setting: small, upkeep_percent: 0 },
        Variant { setting: large, upkeep_percent: 0 },
        Variant { setting: Setting { memtable_bytes: 4 << 10, ..small }, upkeep_percent: 30 },
        Variant {
            setting: Setting { durability: Durability::Buffered, ..large },
            upkeep_percent: 10,
        },
        Variant { setting: Setting { memory_bytes: 20 << 20, ..small }, upkeep_percent: 60 },
        Variant { setting: Setting { memory_bytes: 256 << 20, ..small }, upkeep_percent: 40 },
        Variant { setting: Setting { memory_bytes: 1 << 30, ..large }, upkeep_percent: 20 },
    ]
}

/// Runs a workload under several settings and compares the answers.
///
/// Two answers differ, or one differs from the model's.
pub fn compare_settings(case: &Case, ops: &[Op]) -> Outcome {
    let mut first: Option<Vec<String>> = None;
    for variant in variants() {
        let failed = |failure: Failure| Failure {
            message: format!("under {variant:?}: {}", failure.message),
            ..failure
        };
        let (answers, _) = guarded(|| run_variant(case.seed, variant, ops)).map_err(failed)?;
        match &first {
            None => first = Some(answers),
            Some(first) => same_answers(ops, first, &answers).map_err(failed)?,
        }
    }
    Ok(())
}

/// The answers of a run, and the contents restored from warm images.
fn run_variant(seed: u64, variant: Variant, ops: &[Op]) -> Outcome<(Vec<String>, Warmed)> {
    // Opening takes simulated time. Variants reopen at different rates, so hold the clock during an
    // open.
    let world = World { opening_takes: Duration::ZERO, ..World::new(seed, variant.setting) };
    let mut driver = Driver::open(world, CheckOptions::default())?;
    let mut random = Random::new(seed);
    for (number, op) in ops.iter().enumerate() {
        if random.below(100) < variant.upkeep_percent {
            driver.do_beside(random.next_u64()).map_err(|failure| failure.at(number, op))?;
        }
        driver.apply(op).map_err(|failure| failure.at(number, op))?;
    }
    driver.finish()?;
    Ok((driver.answers().to_vec(), driver.warmed()))
}

fn same_answers(ops: &[Op], first: &[String], other: &[String]) -> Outcome {
    for (number, (a, b)) in first.iter().zip(other).enumerate() {
        if a != b {
            let differ =
                Failure::new(format!("the answer is {b:?}, but was {a:?} under the first setting"));
            return Err(differ.at(number, &ops[number]));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Mode;

    #[test]
    fn tampered_images_are_restored_validated_or_ignored() {
        let mut all = Warmed::default();
        for seed in 0..12 {
            let case = Case::new(Mode::Metamorphic, seed);
            for variant in variants().into_iter().filter(|variant| variant.upkeep_percent >= 30) {
                let (_, warmed) = run_variant(seed, variant, &case.workload()).unwrap();
                all.pages += warmed.pages;
                all.objects += warmed.objects;
                all.stale += warmed.stale;
                all.ignored += warmed.ignored;
            }
        }
        assert!(all.pages > 30 && all.objects > 50 && all.stale > 50 && all.ignored > 0, "{all:?}");
    }
}
