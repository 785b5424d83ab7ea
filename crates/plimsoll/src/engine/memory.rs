//! Changes the memory budget of an open store.

use plimsoll_memory::budget::{OutOfBudget, ResizeError};
use plimsoll_memory::pool::Pool;

use crate::engine::Engine;
use crate::read::reader::Reader;
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::machine_memory::check_there_is;
use crate::types::options::check_memory_bytes;

/// Divisor: the part of the budget that the page pool never releases.
pub(crate) const POOL_FLOOR_SHARE: u64 = 8;

/// Changes the budget of an open store. If it shrinks below the size of the memtables, they are
/// flushed.
pub(crate) fn set(store: &Engine, bytes: u64) -> Result<()> {
    store.reader.owner.check()?;
    check_memory_bytes(bytes)?;
    check_there_is(bytes)?;
    let peers = &store.space.peers;
    if let Some(total_bytes) = peers.memory_total() {
        return Err(InvalidInput::MemoryIsShared { total_bytes }.into());
    }
    let resize = || resize(&store.maintenance.pool, &store.reader, bytes);
    match resize() {
        Err(ResizeError::Held { .. }) if store.check_writable().is_ok() => {
            store.flush()?;
            resize().map_err(of_resize)?;
        }
        resized => resized.map_err(of_resize)?,
    }
    peers.has_memory(bytes);
    Ok(())
}

pub(crate) fn resize(pool: &Pool, reader: &Reader, bytes: u64) -> Result<(), ResizeError> {
    // The row cache first, so that the memory that it releases is free when the budget shrinks.
    reader.index.runs.resize_row_cache(bytes.min(reader.budget.limit_bytes()));
    let resized = pool.resize(bytes, bytes / POOL_FLOOR_SHARE);
    // Even after an error, so that the row cache gets its share of the actual budget.
    reader.index.runs.resize_row_cache(reader.budget.limit_bytes());
    reader.index.compaction.fit();
    resized
}

/// The error of a budget that could not be changed.
pub(crate) fn of_resize(error: ResizeError) -> Error {
    let message = error.to_string();
    match error {
        ResizeError::BeyondCeiling { wanted_bytes, ceiling_bytes } => {
            InvalidInput::BudgetBeyondCeiling { bytes: wanted_bytes, ceiling_bytes }.into()
        }
        ResizeError::Held { missing_bytes, usage } => Error::OutOfBudget(OutOfBudget {
            needed_bytes: missing_bytes,
            kind: plimsoll_memory::budget::Kind::Pages,
            usage,
        }),
        ResizeError::Refused { .. } => {
            Error::Io { kind: std::io::ErrorKind::OutOfMemory, message, source: None }
        }
    }
}
