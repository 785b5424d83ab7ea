//! What happens in the background: flushes that are due, eviction, trimming.

pub(crate) mod checkpoints;
pub(crate) mod upkeep;
