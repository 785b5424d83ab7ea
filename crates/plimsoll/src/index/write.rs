//! Writes runs: what a flush and a merge both do with each version.

pub(crate) mod output;
pub(crate) mod relocate;
pub(crate) mod split;

use plimsoll_memory::budget::{Backing, Budget, Kind, Lease};
use plimsoll_memory::chunk::CHUNK_BYTES;

use crate::types::error::Result;

/// Memory reserved from the budget permanently, so that a job that frees memory never has to ask
/// for any. It is a budget of its own, which the store's budget counts as one lease.
#[derive(Debug)]
pub(crate) struct SetAside {
    pub(crate) budget: Budget,
    _lease: Lease,
}

impl SetAside {
    /// Reserves `chunks`.
    pub(crate) fn new(budget: &Budget, chunks: u64) -> Result<Self> {
        let bytes = chunks * CHUNK_BYTES as u64;
        let lease = budget.lease(Kind::Sort, bytes)?;
        Ok(Self { budget: Budget::new(bytes, Backing::Mapped)?, _lease: lease })
    }
}
