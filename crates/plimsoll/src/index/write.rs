//! Writes runs: the parts that flushes and merges share.

pub(crate) mod disposition;
pub(crate) mod output;
pub(crate) mod relocate;

use plimsoll_memory::budget::{Backing, Budget, Kind, Lease};
use plimsoll_memory::chunk::CHUNK_BYTES;

use crate::types::error::Result;

/// Memory that is reserved from the budget permanently, so that a job that frees memory never has
/// to request any. It is a separate budget, which the store's budget counts as one lease.
#[derive(Debug)]
pub(crate) struct SetAside {
    pub(crate) budget: Budget,
    _lease: Lease,
}

impl SetAside {
    /// Reserves this many chunks.
    pub(crate) fn new(budget: &Budget, chunks: u64) -> Result<Self> {
        let bytes = chunks * CHUNK_BYTES as u64;
        let lease = budget.lease(Kind::Sort, bytes)?;
        Ok(Self { budget: Budget::new(bytes, Backing::Mapped)?, _lease: lease })
    }
}
