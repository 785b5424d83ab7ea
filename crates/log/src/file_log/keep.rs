//! Upkeep of an open log: trimming, backup, and the pages that never change again.

pub mod backup;
pub mod complete;
pub(crate) mod trim;
