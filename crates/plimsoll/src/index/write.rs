//! Writes runs: what a flush and a merge both do with each version.

pub(crate) mod output;
pub(crate) mod relocate;
pub(crate) mod split;
