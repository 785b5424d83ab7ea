//! Upkeep of an open log: trimming, backup, the ends of segments and of the log, and the pages that
//! never change again.

pub mod backup;
pub mod complete;
pub(crate) mod ending;
pub(crate) mod trim;
