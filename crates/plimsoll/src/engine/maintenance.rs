//! Background work: flushes that are due, eviction, trimming.

pub(crate) mod checkpoints;
pub(crate) mod idle_time;
pub(crate) mod memory_workers;
