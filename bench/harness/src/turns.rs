//! Two operations that take turns, and the ratio of their times within each round.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;

use crate::results::Results;
use crate::statistics::{Interval, interval, median};
use crate::table::number;

/// One operation, with the random numbers of its turn.
pub(crate) type Operation<'a> = &'a mut dyn FnMut(&mut fastrand::Rng) -> Result<()>;

/// Nanoseconds of each call of a turn, by the median of the turns: of both operations, and the
/// ratio.
pub(crate) struct Compared {
    pub(crate) without: f64,
    pub(crate) with: f64,
    pub(crate) ratio: Interval,
}

impl Compared {
    /// Adds the numbers to the results, and returns the row of a table.
    pub(crate) fn note(
        &self,
        results: &mut Results,
        workload: &str,
        settings: &str,
        what: &str,
    ) -> Vec<String> {
        let Self { without, with, ratio } = self;
        for (metric, value) in [("without", without), ("with", with), ("ratio", &ratio.median)] {
            results.note(workload, settings, &format!("{what}_{metric}"), *value);
        }
        let ratio = format!("{:.3} ({:.3} to {:.3})", ratio.median, ratio.low, ratio.high);
        vec![what.to_owned(), number(*without), number(*with), ratio]
    }
}

/// The columns of a table of such rows.
pub(crate) const COLUMNS: [&str; 4] = ["what", "without", "with", "ratio"];

/// Calls `without` and `with` in turns of `calls` calls each. Both get the same random numbers, and
/// the order changes with each round. The first round does not count.
pub(crate) fn compare(
    rounds: u64,
    calls: u64,
    without: Operation<'_>,
    with: Operation<'_>,
) -> Result<Compared> {
    let turn = |operation: &mut dyn FnMut(&mut fastrand::Rng) -> Result<()>, seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let begun = Instant::now();
        for _ in 0..calls {
            black_box(operation(&mut random)?);
        }
        Ok::<_, anyhow::Error>(begun.elapsed().as_nanos() as f64 / calls as f64)
    };
    let (mut of_without, mut of_with) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let times = match round % 2 {
            0 => (turn(without, round)?, turn(with, round)?),
            _ => {
                let with = turn(with, round)?;
                (turn(without, round)?, with)
            }
        };
        if round > 0 {
            of_without.push(times.0);
            of_with.push(times.1);
        }
    }
    let ratios: Vec<f64> =
        of_with.iter().zip(&of_without).map(|(with, without)| with / without).collect();
    Ok(Compared { without: median(&of_without), with: median(&of_with), ratio: interval(&ratios) })
}
