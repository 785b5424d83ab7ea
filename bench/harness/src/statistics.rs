//! Statistics of a series: quantiles, and a median with its interval.

/// A median and the bounds of its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

/// The value below which the part `q` (0 to 1) of `values` lies.
///
/// # Panics
/// The series is empty.
pub(crate) fn quantile(values: &[f64], q: f64) -> f64 {
    let sorted = sorted(values);
    sorted[((sorted.len() - 1) as f64 * q).round() as usize]
}

pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The median with its 95 % interval by order statistics, independent of the distribution. With
/// fewer than six values the interval covers all of them.
pub(crate) fn interval(values: &[f64]) -> Interval {
    let sorted = sorted(values);
    let n = sorted.len() as f64;
    let reach = 0.98 * n.sqrt();
    let low = (n / 2.0 - reach).floor().max(0.0) as usize;
    let high = ((n / 2.0 + reach).ceil() as usize).min(sorted.len() - 1);
    Interval { low: sorted[low], median: median(values), high: sorted[high] }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    assert!(!values.is_empty(), "statistics of no values");
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_where_they_should() {
        let values: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        assert_eq!([0.0, 0.25, 0.5, 1.0].map(|q| quantile(&values, q)), [0.0, 25.0, 50.0, 100.0]);
    }

    #[test]
    fn the_interval_of_few_values_is_all_of_them() {
        assert_eq!(interval(&[3.0, 1.0, 2.0]), Interval { low: 1.0, median: 2.0, high: 3.0 });
    }

    #[test]
    fn the_interval_holds_the_true_median_nineteen_times_of_twenty() {
        let mut random = fastrand::Rng::with_seed(7);
        let held = (0..2000).filter(|_| {
            let values: Vec<f64> = (0..25).map(|_| random.f64()).collect();
            let found = interval(&values);
            found.low <= 0.5 && 0.5 <= found.high
        });
        assert!((1860..=1990).contains(&held.count()));
    }
}
