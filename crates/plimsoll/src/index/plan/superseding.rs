//! Estimates how much of older runs a new run supersedes, from a sample of its keys.
//!
//! The sample is taken from a memtable, or while a merge writes the run. A key counts if the filter
//! of an older run lets it pass, so at most a few index blocks of older runs are read, and only one
//! or two where nothing is superseded.

use std::sync::Arc;

use plimsoll_memory::pool::Touch;

use crate::index::sources::source::Run;
use crate::types::error::Result;

/// The most keys of a sample, and how many are looked for before a run counts as new rows only.
const KEYS_MAX: usize = 32;
const KEYS_FIRST: usize = 8;

/// Longer keys are not kept.
const KEY_BYTES_MAX: usize = 256;

/// Keys of a run that is being written, at equal distances.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    keys: Vec<Box<[u8]>>,
    seen: u64,
    /// One in two to this power is kept.
    distance_bits: u32,
}

impl Sample {
    /// Takes the next key into account.
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

    /// Of `bytes` that were written, those whose keys `older` runs have, about: as many bytes of
    /// these are superseded. None if they cannot be read; a merge reports it.
    pub(crate) fn superseding_bytes(&self, bytes: u64, older: &[Arc<Run>]) -> u64 {
        let (mut asked, mut found) = (0, 0);
        // The first ones from all over the run.
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
    fn a_sample_holds_keys_from_all_over_a_run_of_any_size() {
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
