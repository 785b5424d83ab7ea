//! Upkeep of an open log: trimming, backup, and which pages never change again.

pub mod backup;
pub mod complete;
pub(crate) mod trim;
