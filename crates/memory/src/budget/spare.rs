//! Mappings that were given back and are kept for the next buffer.

use crate::mapping::Mapping;

/// Upper bound on all spare mappings together: a 64th of the budget, 4 MiB at most.
pub(super) fn spare_bytes_max(limit_bytes: u64) -> u64 {
    (limit_bytes / 64).min(4 << 20)
}

/// The best-fitting spare mapping for `bytes`: the smallest that is large enough, but not more than twice as large.
pub(super) fn best_of(spare: &[Mapping], bytes: usize) -> Option<usize> {
    let fits = |mapping: &Mapping| (bytes..=2 * bytes).contains(&mapping.bytes());
    let fitting = spare.iter().enumerate().filter(|(_, mapping)| fits(mapping));
    fitting.min_by_key(|(_, mapping)| mapping.bytes()).map(|(at, _)| at)
}
