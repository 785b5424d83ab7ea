//! The keys at which tables of all runs end. Aligned tables overlap with few tables of other runs,
//! so a merge can free its inputs part by part (`compaction::job`).
//!
//! Invariant: while there is more than one run, the keys are not chosen again, unless the oldest
//! run has doubled, or has several tables while there are no keys. Runs that are cut at different
//! keys overlap one another in a chain, so a merge could free nothing before its end.

use std::sync::{Arc, Mutex};

use crate::index::sources::source::Run;
use crate::types::lock::lock;

/// Maximum number of parts into which the key range is cut.
pub(crate) const PARTS: usize = 8;

/// Divisor: a run is cut only if each part is then at least this part of a table's full size.
const PART_OF_TABLE: u64 = 32;

/// The keys at which tables end.
#[derive(Debug, Default)]
pub(crate) struct Alignment {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    keys: Vec<Vec<u8>>,
    /// Bytes of the oldest run when the keys were chosen.
    oldest_bytes: u64,
}

impl Alignment {
    /// The keys at which a new run of `bytes` is cut, given the current `runs`. A smaller run gets
    /// fewer cuts, a subset of the keys.
    pub(crate) fn cuts(&self, runs: &[Arc<Run>], bytes: u64, table_bytes: u64) -> Vec<Vec<u8>> {
        let mut state = lock(&self.state);
        if let Some(oldest) = runs.last() {
            let is_outgrown = oldest.bytes() >= 2 * state.oldest_bytes
                || (state.keys.is_empty() && oldest.tables().len() > 1);
            if runs.len() == 1 || is_outgrown {
                let firsts: Vec<_> = oldest.infos().map(|info| &info.first_key).collect();
                let parts = PARTS.min(firsts.len());
                state.keys =
                    (1..parts).map(|part| firsts[part * firsts.len() / parts].clone()).collect();
                state.oldest_bytes = oldest.bytes();
            }
        }
        let parts = parts_of(bytes, table_bytes).min(state.keys.len() + 1);
        (1..parts)
            .map(|part| state.keys[part * (state.keys.len() + 1) / parts - 1].clone())
            .collect()
    }
}

/// The number of parts of a run, a power of two.
fn parts_of(bytes: u64, table_bytes: u64) -> usize {
    let parts = bytes / (table_bytes / PART_OF_TABLE).max(1);
    1 << parts.clamp(1, PARTS as u64).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_runs_are_not_cut_into_parts_below_the_minimum_table_size() {
        let parts: Vec<_> =
            [0, 2, 3, 4, 7, 8, 15, 16, 900].map(|bytes| parts_of(bytes << 20, 64 << 20)).into();
        assert_eq!(parts, [1, 1, 1, 2, 2, 4, 4, 8, 8]);
        assert_eq!(parts_of(u64::MAX, 0), PARTS);
    }
}
