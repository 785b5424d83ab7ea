//! Estimates how much of older runs a new run supersedes, from a sample of its keys.
//!
//! The sample is taken from a memtable, or from a run while a merge writes it. A key counts as
//! found if the filter of an older run lets it pass, so the estimate reads at most a few index
//! blocks of older runs, and only one or two if nothing is superseded.

use std::sync::Arc;

use plimsoll_memory::pool::Touch;

use crate::index::sources::source::Run;
use crate::types::error::Result;

/// Maximum number of keys in a sample.
const KEYS_MAX: usize = 32;
/// If none of this many looked-up keys is found, all rows count as new.
const KEYS_FIRST: usize = 8;

/// Longer keys are not sampled.
const KEY_BYTES_MAX: usize = 256;

/// Keys of a run that is being written, at equal intervals.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    keys: Vec<Box<[u8]>>,
    seen: u64,
    /// Log2 of the interval between sampled keys.
    distance_bits: u32,
}

impl Sample {
    /// Considers the next key for the sample.
    pub(crate) fn add(&mut self, key: &[u8]) {
        let is_next = self.seen.trailing_zeros() >= self.distance_bits;
        self.seen += 1;
        if !is_next || key.len() > KEY_BYTES_MAX {
            return;
        }
        if self.keys.len() == KEYS_MAX {
            let mut at = 0;
            self.keys.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            self.distance_bits += 1;
        }
        self.keys.push(key.into());
    }

    /// Estimates how many of the `bytes` written have keys in `older` runs; they supersede about as
    /// many bytes there. 0 if the older runs cannot be read, which a merge reports.
    pub(crate) fn superseding_bytes(&self, bytes: u64, older: &[Arc<Run>]) -> u64 {
        let (mut asked, mut found) = (0, 0);
        // Look up a few keys from all over the run first.
        let parts = KEYS_MAX / KEYS_FIRST;
        for first in 0..parts {
            for key in self.keys.iter().skip(first).step_by(parts) {
                match is_in(older, key) {
                    Ok(is_found) => (asked, found) = (asked + 1, found + u64::from(is_found)),
                    Err(_) => return 0,
                }
            }
            if found == 0 {
                return 0;
            }
        }
        if asked == 0 { 0 } else { (u128::from(bytes) * u128::from(found) / asked as u128) as u64 }
    }
}

fn is_in(runs: &[Arc<Run>], key: &[u8]) -> Result<bool> {
    for table in runs.iter().filter_map(|run| run.table_of(key)) {
        if table.leaf_that_may_have(key, Touch::Scan)?.leaf.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_spans_a_run_of_any_size() {
        for keys in [1, 20, 32, 33, 100_000] {
            let mut sample = Sample::default();
            (0..keys).for_each(|number: u64| sample.add(&number.to_be_bytes()));
            let numbers: Vec<_> = sample
                .keys
                .iter()
                .map(|key| u64::from_be_bytes((**key).try_into().unwrap()))
                .collect();
            let wanted = KEYS_MAX.min(keys as usize);
            assert!(
                numbers.len() <= KEYS_MAX && 2 * numbers.len() >= wanted,
                "{keys}: {numbers:?}"
            );
            let distance = numbers.get(1).map_or(1, |second| second - numbers[0]);
            assert!(
                numbers.windows(2).all(|pair| pair[1] - pair[0] == distance),
                "{keys}: {numbers:?}"
            );
            assert!(keys - numbers.last().unwrap() <= 2 * distance, "{keys}: {numbers:?}");
        }
        let mut sample = Sample::default();
        sample.add(&[7; 257]);
        assert!(sample.keys.is_empty());
        assert_eq!(sample.superseding_bytes(1000, &[]), 0);
    }
}
