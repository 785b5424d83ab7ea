//! Chooses which runs to merge next. Pure.
//!
//! Runs are considered in order of age, and only adjacent runs are merged (invariant 2 of the
//! index). The rule is geometric: newer runs are merged into the next older one once together they
//! are [`RATIO_FEW`] times its size. With many runs a lower ratio applies, so that their number
//! stays bounded. A deletion counts as much as the row that it hides. For a random load of n equal
//! flushes, each byte is rewritten about log8(n) times; tables that do not overlap are linked
//! instead of rewritten (`compaction`).
//!
//! Under overwrites, newer runs supersede versions in older ones; the amount is estimated
//! (`superseding`). Once it reaches a share of the live bytes, the runs are merged down to the
//! oldest one, regardless of size. The share is smaller if the runs fit in memory (`space`).
//!
//! Deletions leave the current runs only in a merge with the oldest run. For tables that consist
//! mostly of deletions, such a merge is due once its gain justifies its cost, regardless of size.
//! The cost is low, because tables that do not overlap with the deletions are linked.

use std::ops::Range;

/// Newer runs are merged with an older one if together they are this many times its size, while
/// there are at most [`FEW_RUNS`].
const RATIO_FEW: u64 = 3;
/// As [`RATIO_FEW`], while there are more than [`FEW_RUNS`].
const RATIO_SOME: u64 = 2;
/// As [`RATIO_FEW`], while there are more than [`SOME_RUNS`].
const RATIO_MANY: u64 = 1;
const FEW_RUNS: usize = 9;
const SOME_RUNS: usize = 11;
/// Above this many runs the cheapest merge is chosen, regardless of its ratio.
const TOO_MANY_RUNS: usize = 14;

/// Divisor: an idle store merges newer runs into an older one if together they are at least this
/// part of its size. Any remaining newer runs are small, so most short scans read from one run.
const SETTLED_PART: u64 = 8;
/// Divisor: an idle store merges runs down to the oldest one if the removed deletions and the rows
/// that they hide are at least this part of the rewritten tables. While there are writes, they must
/// be at least as large as the rewritten tables.
const CLEARED_PART: u64 = 4;

/// An idle store keeps at most this many runs, however small the newer ones are.
const SETTLED_RUNS: usize = 3;

/// The properties of a run that the policy uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunShape {
    /// Bytes of its tables, and of the rows that its deletions hide.
    pub(crate) bytes: u64,
    /// Bytes of its adopted tables whose files stay after a merge, because the log retains them.
    pub(crate) kept_bytes: u64,
    /// Estimated bytes of older runs that it supersedes.
    pub(crate) superseding_bytes: u64,
    /// The gain of a merge with all older runs.
    pub(crate) clearance: Clearance,
    /// Whether it is an input of a running job.
    pub(crate) busy: bool,
    /// Whether an older run holds versions of the same transaction, or younger ones, because a
    /// spilled transaction left several runs or a merge ended early.
    pub(crate) fused: bool,
}

/// Gain and cost of a merge of a run with all older ones. Zero if none of the run's tables consists
/// mostly of deletions and expired values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clearance {
    /// Bytes of the run's tables that consist mostly of deletions and expired values, plus the rows
    /// that the deletions hide.
    pub(crate) cleared_bytes: u64,
    /// Bytes of the tables that are rewritten.
    pub(crate) rewritten_bytes: u64,
}

/// The priority of a merge: why the policy is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// A run was added.
    Due,
    /// No writes: merge to make reads cheaper.
    Settle,
    /// Merge into as few runs as possible.
    All,
}

/// Neighbouring runs to merge: indexes into the runs, newest first.
pub(crate) type Plan = Range<usize>;

/// The runs to merge next, at most `fan_in` of them; `None` if nothing is due. `superseded_max`:
/// the limit of superseded bytes, in percent of the live bytes.
pub(crate) fn choose(
    runs: &[RunShape],
    fan_in: usize,
    priority: Priority,
    superseded_max: u64,
) -> Option<Plan> {
    // Runs older than a running merge wait for its result.
    let free = runs.iter().position(|run| run.busy).unwrap_or(runs.len());
    if runs[..free].iter().any(|run| run.fused) {
        return fused(&runs[..free], fan_in);
    }
    let bytes: Vec<u64> = runs[..free].iter().map(|run| run.bytes).collect();
    let clearing = |part| if free == runs.len() { clearing(runs, fan_in, part) } else { None };
    let superseding =
        || if free == runs.len() { superseding(runs, fan_in, superseded_max) } else { None };
    if free < 2 {
        return if priority == Priority::All { None } else { clearing(1) };
    }
    match priority {
        Priority::Due => superseding().or_else(|| due(&bytes, fan_in)).or_else(|| clearing(1)),
        Priority::Settle => superseding()
            .or_else(|| due(&bytes, fan_in))
            .or_else(|| clearing(CLEARED_PART))
            .or_else(|| settling(&bytes, fan_in)),
        Priority::All => all(&runs[..free], fan_in),
    }
}

/// The longest merge of the newest runs, so that the large old ones are rewritten only once, at the
/// end. A merge does not free files that the log retains, so it would double the size of a store
/// that was loaded by one commit. A merge of such files must therefore include at least as many
/// other bytes.
fn all(runs: &[RunShape], fan_in: usize) -> Option<Plan> {
    let is_worth = |plan: &Plan| {
        let sum = |bytes: fn(&RunShape) -> u64| runs[plan.clone()].iter().map(bytes).sum::<u64>();
        2 * sum(|run| run.kept_bytes) <= sum(|run| run.bytes)
    };
    let plans = |start: usize| {
        let ends = start + 2..=runs.len().min(start + fan_in);
        ends.rev().map(move |end| start..end)
    };
    (0..runs.len()).flat_map(plans).find(is_worth)
}

/// The longest merge down to the oldest run, if too many bytes are superseded and the merge frees
/// at least half of them.
fn superseding(runs: &[RunShape], fan_in: usize, superseded_max: u64) -> Option<Plan> {
    let superseding = |runs: &[RunShape]| runs.iter().map(|run| run.superseding_bytes).sum::<u64>();
    let superseded = superseding(runs);
    let live = runs.iter().map(|run| run.bytes).sum::<u64>().saturating_sub(superseded);
    let start = runs.len().saturating_sub(fan_in);
    let is_due =
        superseded > 0 && superseded.saturating_mul(100) >= live.saturating_mul(superseded_max);
    (is_due && 2 * superseding(&runs[start..]) >= superseded).then_some(start..runs.len())
}

/// The longest merge down to the oldest run whose gain is sufficient.
fn clearing(runs: &[RunShape], fan_in: usize, part: u64) -> Option<Plan> {
    let gains = |at: &usize| {
        let Clearance { cleared_bytes, rewritten_bytes } = runs[*at].clearance;
        cleared_bytes > 0 && cleared_bytes.saturating_mul(part) >= rewritten_bytes
    };
    (runs.len().saturating_sub(fan_in)..runs.len()).find(gains).map(|at| at..runs.len())
}

/// Chooses the runs of one transaction that was spilled more than once, or the runs left by a merge
/// that ended after it installed a part. Several of these runs may have the same key at the same
/// GLSN, and only the order of the runs tells which version was written last. Other merges ignore
/// that order, so these runs are merged with each other first, always beginning with the newest. No
/// merge then removes a deletion that the transaction itself has overwritten.
fn fused(runs: &[RunShape], fan_in: usize) -> Option<Plan> {
    let start = runs.iter().position(|run| run.fused)?;
    let end = start + runs[start..].iter().take_while(|run| run.fused).count() + 1;
    // These runs wait while the last of them is in a running merge.
    (end <= runs.len()).then_some(start..end.min(start + fan_in))
}

fn due(bytes: &[u64], fan_in: usize) -> Option<Plan> {
    let ratio = match bytes.len() {
        runs if runs <= FEW_RUNS => RATIO_FEW,
        runs if runs <= SOME_RUNS => RATIO_SOME,
        _ => RATIO_MANY,
    };
    geometric(bytes, fan_in, |newer, older| newer >= ratio.saturating_mul(older), ratio)
        .or_else(|| (bytes.len() > TOO_MANY_RUNS).then(|| cheapest(bytes, fan_in)))
}

fn settling(bytes: &[u64], fan_in: usize) -> Option<Plan> {
    geometric(bytes, fan_in, |newer, older| newer >= older / SETTLED_PART, u64::MAX)
        // The oldest run is unchanged; the newer ones become one.
        .or_else(|| (bytes.len() > SETTLED_RUNS).then(|| 0..(bytes.len() - 1).min(fan_in)))
}

/// The longest range whose newer runs are large enough for its oldest one, as `reach` decides.
/// Excludes a newest run that is more than `ratio` times as large as the others together, because
/// rewriting it would gain little.
fn geometric(
    bytes: &[u64],
    fan_in: usize,
    reach: impl Fn(u64, u64) -> bool,
    ratio: u64,
) -> Option<Plan> {
    let mut start = 0;
    while start + 1 < bytes.len() {
        let mut newer = 0u64;
        let mut end = None;
        for at in start + 1..bytes.len() {
            newer = newer.saturating_add(bytes[at - 1]);
            if reach(newer, bytes[at]) {
                end = Some(at + 1);
            }
        }
        let end = end?;
        let from = start.max(end.saturating_sub(fan_in));
        let others: u64 = bytes[from + 1..end].iter().sum();
        if from > start || bytes[from] <= others.saturating_mul(ratio) {
            return Some(from..end);
        }
        start += 1;
    }
    None
}

/// The range with the lowest merge cost per run saved.
fn cheapest(bytes: &[u64], fan_in: usize) -> Plan {
    let ranges = (0..bytes.len()).flat_map(|start| {
        (start + 2..=(start + fan_in).min(bytes.len())).map(move |end| start..end)
    });
    let cost = |range: &Plan| bytes[range.clone()].iter().sum::<u64>() / (range.len() as u64 - 1);
    ranges.min_by_key(cost).expect("there are more than `TOO_MANY_RUNS` runs")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than is ever superseded.
    const NEVER: u64 = u64::MAX;

    fn shapes(bytes: &[u64]) -> Vec<RunShape> {
        let clearance = Clearance::default();
        bytes
            .iter()
            .map(|&bytes| RunShape {
                bytes,
                kept_bytes: 0,
                superseding_bytes: 0,
                clearance,
                busy: false,
                fused: false,
            })
            .collect()
    }

    /// Flushes of the given sizes, each followed by all due merges. Returns the bytes rewritten per
    /// byte flushed, and the maximum number of runs.
    fn load(sizes: impl Iterator<Item = u64>, fan_in: usize) -> (f64, usize) {
        let (mut runs, mut flushed, mut rewritten, mut most) = (Vec::new(), 0, 0, 0);
        for size in sizes {
            runs.insert(0, size);
            flushed += size;
            while let Some(plan) = choose(&shapes(&runs), fan_in, Priority::Due, NEVER) {
                assert!(plan.len() >= 2 && plan.len() <= fan_in, "{plan:?} of {runs:?}");
                let merged: u64 = runs[plan.clone()].iter().sum();
                rewritten += merged;
                runs.splice(plan, [merged]);
            }
            most = most.max(runs.len());
        }
        (rewritten as f64 / flushed as f64, most)
    }

    #[test]
    fn equal_flushes_are_rewritten_about_logarithmically_and_leave_few_runs() {
        for fan_in in [4, 8] {
            for (flushes, rewritten_max) in [(200, 4.0), (1000, 5.5), (5000, 7.0)] {
                let (rewritten, most) = load(std::iter::repeat_n(1000, flushes), fan_in);
                assert!(
                    rewritten <= rewritten_max,
                    "{flushes} flushes, fan-in {fan_in}: {rewritten}"
                );
                assert!(most <= 12, "{flushes} flushes, fan-in {fan_in}: {most} runs");
            }
        }
    }

    #[test]
    fn flushes_of_any_sizes_leave_few_runs() {
        let mut random = plimsoll_disk::random::Random::new(5);
        for spread in [2, 6, 12] {
            let sizes: Vec<u64> = (0..2000).map(|_| 1000 << random.below(spread)).collect();
            let (rewritten, most) = load(sizes.into_iter(), 8);
            assert!(rewritten <= 8.0, "spread {spread}: {rewritten}");
            assert!(most <= 16, "spread {spread}: {most} runs");
        }
    }

    #[test]
    fn merges_follow_the_size_ratios() {
        let due = |bytes: &[u64]| choose(&shapes(bytes), 8, Priority::Due, NEVER);
        let settle = |bytes: &[u64]| choose(&shapes(bytes), 8, Priority::Settle, NEVER);
        let all = |bytes: &[u64]| choose(&shapes(bytes), 8, Priority::All, NEVER);
        assert_eq!(due(&[]), None);
        assert_eq!(due(&[1]), None);
        assert_eq!(due(&[1, 1, 1]), None);
        assert_eq!(due(&[1, 1, 1, 1]), Some(0..4));
        assert_eq!(due(&[1, 1, 1, 100]), None);
        assert_eq!(
            due(&[1000, 1, 1, 1]),
            None,
            "a large transaction is not rewritten for small old runs"
        );
        assert_eq!(settle(&[11, 100]), None);
        assert_eq!(
            settle(&[12, 100]),
            Some(0..2),
            "a scan of both would read two leaves instead of one"
        );
        assert_eq!(
            settle(&[1, 1, 1, 100]),
            Some(0..3),
            "a huge old run is not rewritten for small new ones"
        );
        assert_eq!(settle(&[10, 10, 10, 100]), Some(0..4));
        assert_eq!(all(&[1, 100]), Some(0..2));
        assert_eq!(all(&[1; 20]), Some(0..8));
        assert_eq!(all(&[7]), None);
    }

    #[test]
    fn a_full_compaction_rewrites_retained_files_only_with_as_many_other_bytes() {
        let all = |bytes: &[u64], kept: &[usize]| {
            let mut runs = shapes(bytes);
            kept.iter().for_each(|&at| runs[at].kept_bytes = runs[at].bytes);
            choose(&runs, 4, Priority::All, NEVER)
        };
        assert_eq!(all(&[1, 100], &[1]), None);
        assert_eq!(all(&[100, 100], &[0, 1]), None, "two loads");
        assert_eq!(all(&[100, 100], &[1]), Some(0..2));
        assert_eq!(all(&[1, 2, 100], &[2]), Some(0..2), "the runs after a load");
        assert_eq!(all(&[3, 100, 5, 5], &[1]), Some(2..4), "the runs before it");
        assert_eq!(all(&[1, 1, 1, 1, 1, 100], &[5]), Some(0..4));
        assert_eq!(all(&[60, 100, 60], &[1]), Some(0..3));
    }

    #[test]
    fn deletions_are_merged_with_the_rows_they_hide_if_gain_covers_cost() {
        let plan =
            |bytes: &[u64], at: usize, cleared_bytes: u64, rewritten_bytes: u64, priority| {
                let mut runs = shapes(bytes);
                runs[at].clearance = Clearance { cleared_bytes, rewritten_bytes };
                choose(&runs, 8, priority, NEVER)
            };
        use Priority::{All, Due, Settle};
        // A million deletions at the head of a queue, and many more rows behind it that are linked.
        assert_eq!(plan(&[190, 50_000], 0, 190, 200, Settle), Some(0..2));
        assert_eq!(plan(&[190, 50_000], 0, 190, 190, Due), Some(0..2));
        // While others write, the gain must cover the cost; an idle store spends more to make reads
        // cheaper.
        assert_eq!(plan(&[190, 50_000], 0, 190, 191, Due), None);
        assert_eq!(plan(&[190, 50_000], 0, 190, 760, Settle), Some(0..2));
        // Deletions all over the key range.
        assert_eq!(plan(&[190, 50_000], 0, 190, 50_000, Settle), None);
        // Newer runs without deletions are not merged; a single run is cleared as well.
        assert_eq!(plan(&[9, 9, 190, 50_000], 2, 190, 200, Settle), Some(2..4));
        assert_eq!(plan(&[190], 0, 190, 190, Due), Some(0..1));
        assert_eq!(plan(&[190], 0, 190, 190, All), None, "a full compaction clears it at its end");
        // The newer runs are merged first if one merge cannot reach the oldest.
        let many: Vec<u64> = (0..12).map(|at| 10 << (2 * at)).collect();
        assert_eq!(plan(&many, 2, 1000, 1000, Due), None);
        assert_eq!(plan(&many, 4, 1000, 1000, Due), Some(4..12));
        let mut runs = shapes(&[190, 50_000]);
        runs[0].clearance = Clearance { cleared_bytes: 190, rewritten_bytes: 190 };
        runs[1].busy = true;
        assert_eq!(choose(&runs, 8, Due, NEVER), None);
    }

    #[test]
    fn superseded_bytes_stay_below_a_share_of_the_live_bytes() {
        let plan = |superseding: &[u64], superseded_max| {
            let mut runs = shapes(&vec![10; superseding.len()]);
            runs.push(RunShape { bytes: 100, ..runs[0] });
            runs.iter_mut()
                .zip(superseding)
                .for_each(|(run, bytes)| run.superseding_bytes = *bytes);
            choose(&runs, 4, Priority::Due, superseded_max)
        };
        assert_eq!(plan(&[10, 10, 10], 33), None, "30 of 100");
        assert_eq!(plan(&[10, 10, 10], 30), Some(0..4));
        assert_eq!(plan(&[0, 0, 0], 0), None, "a load supersedes nothing");
        assert_eq!(plan(&[10, 0, 0, 10], 15), Some(1..5), "one merge reaches half of it");
        assert_eq!(plan(&[10, 10, 0, 0, 10], 20), Some(1..5), "the newer runs are merged first");
    }

    #[test]
    fn the_runs_of_one_transaction_are_merged_before_anything_else() {
        let mut runs = shapes(&[1, 1, 1, 1, 90, 500, 1, 1, 1, 1]);
        runs[3..5].iter_mut().for_each(|run| run.fused = true);
        for priority in [Priority::Due, Priority::Settle, Priority::All] {
            assert_eq!(choose(&runs, 8, priority, NEVER), Some(3..6));
            assert_eq!(choose(&runs, 2, priority, NEVER), Some(3..5), "the newest of them first");
        }
    }

    #[test]
    fn a_running_merge_is_not_disturbed() {
        let mut runs = shapes(&[1, 1, 1, 1, 50, 50]);
        runs[4].busy = true;
        runs[5].busy = true;
        assert_eq!(choose(&runs, 4, Priority::Due, NEVER), Some(0..4));
        runs[1].busy = true;
        assert_eq!(choose(&runs, 4, Priority::All, NEVER), None);
    }
}
