//! Latencies, counted in buckets an eighth apart.

/// Buckets of each power of two.
const PARTS: u64 = 8;

/// Counts of nanoseconds.
#[derive(Debug)]
pub(super) struct Latency {
    buckets: Vec<u64>,
    count: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Self { buckets: vec![0; 64 * PARTS as usize], count: 0 }
    }
}

impl Latency {
    pub(super) fn add(&mut self, nanos: u64) {
        self.buckets[bucket_of(nanos)] += 1;
        self.count += 1;
    }

    /// The least number of nanoseconds that so large a part of all did not exceed, to an eighth.
    pub(super) fn percentile(&self, part: f64) -> u64 {
        let wanted = (self.count as f64 * part).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted.max(1) {
                return end_of(bucket);
            }
        }
        0
    }
}

fn bucket_of(nanos: u64) -> usize {
    if nanos < PARTS {
        return nanos as usize;
    }
    let power = nanos.ilog2();
    let part = (nanos >> (power - PARTS.ilog2())) & (PARTS - 1);
    (u64::from(power) * PARTS + part) as usize
}

/// The largest number in a bucket.
fn end_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < PARTS {
        return bucket;
    }
    let (power, part) = (bucket / PARTS, bucket % PARTS);
    let step = (1_u64 << power) / PARTS;
    (1_u64 << power) + (part + 1) * step - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_to_an_eighth() {
        let mut latency = Latency::default();
        (1..=1000).for_each(|nanos| latency.add(nanos));
        for (part, exact) in [(0.5, 500), (0.99, 990), (1.0, 1000)] {
            let found = latency.percentile(part);
            assert!(found >= exact && found <= exact + exact / 8 + 1, "{part}: {found}");
        }
        assert_eq!(Latency::default().percentile(0.5), 0);
    }
}
