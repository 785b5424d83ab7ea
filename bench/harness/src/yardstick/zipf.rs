//! Numbers by Zipf's law, as YCSB draws them (Gray et al., "Quickly generating billion-record
//! synthetic databases", 1994).

/// The skew: YCSB's constant.
const THETA: f64 = 0.99;

/// Draws ranks below a count: rank 0 most often, rank r about (r + 1)^0.99 times less often.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    count: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    pub(crate) fn new(count: u64) -> Self {
        let zeta_of = |n: u64| (1..=n).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>();
        let zeta = zeta_of(count);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - THETA)) / (1.0 - zeta_of(2) / zeta);
        Self { count, zeta, alpha: 1.0 / (1.0 - THETA), eta }
    }

    /// The rank for a uniform number in [0, 1).
    pub(crate) fn rank(&self, even: f64) -> u64 {
        let scaled = even * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5_f64.powf(THETA) {
            return 1;
        }
        let rank = self.count as f64 * (self.eta * even - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.count - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_occur_as_often_as_the_law_says() {
        let zipf = Zipf::new(1000);
        let mut random = fastrand::Rng::with_seed(11);
        let mut times = [0_u32; 1000];
        for _ in 0..200_000 {
            times[usize::try_from(zipf.rank(random.f64())).unwrap()] += 1;
        }
        let expected = |rank: usize| 200_000.0 / zipf.zeta / ((rank + 1) as f64).powf(THETA);
        for rank in [0, 1, 10, 100] {
            let near = f64::from(times[rank]) / expected(rank);
            assert!((0.75..1.25).contains(&near), "rank {rank} came {} times", times[rank]);
        }
    }

    #[test]
    fn every_rank_is_below_the_count() {
        for count in [2, 3, 10, 100_000] {
            let zipf = Zipf::new(count);
            assert!(
                [0.0, 0.3, 0.999, 1.0 - f64::EPSILON].iter().all(|&even| zipf.rank(even) < count)
            );
        }
    }
}
