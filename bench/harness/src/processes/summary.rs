//! The combined results of several processes, as one line of a table.

use anyhow::Result;

use super::task::Answer;
use crate::appender::new_histogram;
use crate::statistics::median;

/// The results of all processes together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Summary {
    /// Operations a second.
    pub(crate) rate: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) p999_ms: f64,
    /// Processor time of an operation, in microseconds.
    pub(crate) cpu_us: f64,
    /// The operations of the slowest process, relative to the mean.
    pub(crate) least: f64,
    /// The operations of the fastest process, relative to the mean.
    pub(crate) most: f64,
    /// Retries of transactions, relative to operations.
    pub(crate) retries: f64,
}

impl Summary {
    /// Sums the results of each process.
    pub(crate) fn of(answers: &[Answer]) -> Result<Self> {
        let mut latency = new_histogram();
        answers.iter().try_for_each(|answer| latency.add(&answer.latency))?;
        let rates: Vec<f64> = answers.iter().map(Answer::rate).collect();
        let rate: f64 = rates.iter().sum();
        let mean = rate / rates.len().max(1) as f64;
        let count: u64 = answers.iter().map(|answer| answer.count).sum();
        let each = |sum: f64| sum / count.max(1) as f64;
        let millis = |quantile: f64| latency.value_at_quantile(quantile) as f64 / 1e6;
        let part = |rate: f64| if mean > 0.0 { rate / mean } else { 0.0 };
        Ok(Self {
            rate,
            p50_ms: millis(0.5),
            p99_ms: millis(0.99),
            p999_ms: millis(0.999),
            cpu_us: each(answers.iter().map(|answer| answer.cpu.as_secs_f64() * 1e6).sum()),
            least: part(rates.iter().copied().fold(f64::INFINITY, f64::min)),
            most: part(rates.iter().copied().fold(0.0, f64::max)),
            retries: each(answers.iter().map(|answer| answer.retries as f64).sum()),
        })
    }

    /// The median of each number over rounds.
    ///
    /// # Panics
    /// There are no rounds.
    pub(crate) fn median(rounds: &[Self]) -> Self {
        let of = |number: fn(&Self) -> f64| median(&rounds.iter().map(number).collect::<Vec<_>>());
        Self {
            rate: of(|round| round.rate),
            p50_ms: of(|round| round.p50_ms),
            p99_ms: of(|round| round.p99_ms),
            p999_ms: of(|round| round.p999_ms),
            cpu_us: of(|round| round.cpu_us),
            least: of(|round| round.least),
            most: of(|round| round.most),
            retries: of(|round| round.retries),
        }
    }

    /// All numbers, with the names that they have in results.
    pub(crate) fn numbers(&self) -> [(&'static str, f64); 8] {
        [
            ("per_second", self.rate),
            ("p50_ms", self.p50_ms),
            ("p99_ms", self.p99_ms),
            ("p999_ms", self.p999_ms),
            ("cpu_us", self.cpu_us),
            ("least_of_mean", self.least),
            ("most_of_mean", self.most),
            ("retries", self.retries),
        ]
    }
}

/// The median over rounds of the ratio of one number; both have the same rounds.
pub(crate) fn ratio(ours: &[Summary], theirs: &[Summary], number: fn(&Summary) -> f64) -> f64 {
    let ratios: Vec<f64> = ours
        .iter()
        .zip(theirs)
        .map(|(ours, theirs)| number(ours) / number(theirs).max(1e-12))
        .collect();
    median(&ratios)
}

/// When a commit of one process was seen by another.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    /// From the return of each commit until it was seen, in microseconds; 0 if it was seen before
    /// it returned.
    pub(crate) delays_us: Vec<f64>,
    /// Commits that a read did not show although it began after they had returned.
    pub(crate) stale: u64,
}

impl Seen {
    /// `returned`: when each commit returned. `looks`, three numbers each: the number seen, when
    /// the last read that did not show it began, when the read that showed it had ended.
    pub(crate) fn of(returned: &[u64], looks: &[u64]) -> Self {
        let mut seen = Self::default();
        let mut rest = returned.iter();
        for look in looks.chunks_exact(3) {
            let &[number, began_before, ended] = look else { continue };
            let already = returned.len() - rest.len();
            for returned in rest.by_ref().take((number as usize).saturating_sub(already)) {
                seen.delays_us.push(ended.saturating_sub(*returned) as f64 / 1e3);
                seen.stale += u64::from(began_before > *returned);
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn answer(count: u64, millis: u64, cpu_millis: u64, retries: u64) -> Answer {
        let (time, cpu) = (Duration::from_millis(millis), Duration::from_millis(cpu_millis));
        let mut answer = Answer { count, time, cpu, retries, ..Answer::default() };
        answer.latency.record_n(millis * 1_000_000 / count.max(1), count).unwrap();
        answer
    }

    #[test]
    fn processes_are_summed_and_the_slowest_is_reported() {
        let summary = Summary::of(&[answer(100, 1000, 10, 30), answer(300, 1000, 30, 10)]).unwrap();
        assert!((summary.rate - 400.0).abs() < 1e-6);
        assert!((summary.least - 0.5).abs() < 1e-6 && (summary.most - 1.5).abs() < 1e-6);
        assert!((summary.cpu_us - 100.0).abs() < 1e-6 && (summary.retries - 0.1).abs() < 1e-6);
        assert!(
            (summary.p50_ms - 3.33).abs() < 0.1 && (summary.p99_ms - 10.0).abs() < 0.1,
            "{summary:?}"
        );
    }

    #[test]
    fn a_process_that_did_nothing_starves() {
        let summary = Summary::of(&[answer(0, 1000, 0, 0), answer(10, 1000, 0, 0)]).unwrap();
        assert_eq!(summary.least, 0.0);
        assert_eq!(Summary::of(&[]).unwrap().rate, 0.0);
    }

    #[test]
    fn a_ratio_is_taken_within_rounds() {
        let rate = |rate| Summary { rate, ..Summary::default() };
        let (ours, theirs) =
            ([rate(1.0), rate(20.0), rate(300.0)], [rate(2.0), rate(10.0), rate(100.0)]);
        assert_eq!(ratio(&ours, &theirs, |summary| summary.rate), 2.0);
        assert_eq!(Summary::median(&ours).rate, 20.0);
    }

    #[test]
    fn a_commit_that_is_seen_late_has_a_delay_and_one_that_a_later_read_does_not_show_is_stale() {
        let returned = [1000, 2000, 3000, 4000];
        // The first is seen before it returned, the next two at once, the second of them by a read
        // that began 100 ns after it.
        let looks = [1, 0, 900, 3, 2100, 4500];
        let seen = Seen::of(&returned, &looks);
        assert_eq!(seen.delays_us, [0.0, 2.5, 1.5]);
        assert_eq!(seen.stale, 1);
    }
}
