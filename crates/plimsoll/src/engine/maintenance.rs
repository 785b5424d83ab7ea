//! Background work: flushes that are due, eviction, trimming.

pub(crate) mod checkpoints;
pub(crate) mod upkeep;
