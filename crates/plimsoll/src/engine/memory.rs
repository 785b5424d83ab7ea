//! Changes the memory budget of an open store.

use plimsoll_memory::budget::{OutOfBudget, ResizeError};

use crate::engine::Engine;
use crate::engine::open::POOL_FLOOR_SHARE;
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::machine_memory::check_there_is;
use crate::types::options::check_memory_bytes;

/// Changes the budget of an open store. If it shrinks and memtables are in the way, they are flushed.
pub(crate) fn set(store: &Engine, bytes: u64) -> Result<()> {
    check_memory_bytes(bytes)?;
    check_there_is(bytes)?;
    let resize = || store.maintenance.pool.resize(bytes, bytes / POOL_FLOOR_SHARE);
    // First: the memory that the row cache releases is free when the budget shrinks.
    store.reader.index.resize_row_cache(bytes.min(store.reader.budget.limit_bytes()));
    let resized = match resize() {
        Err(ResizeError::Held { .. }) if store.check_writable().is_ok() => {
            store.flush().and_then(|()| resize().map_err(of_resize))
        }
        resized => resized.map_err(of_resize),
    };
    // In any case: the row cache gets its share of the budget as it is now.
    store.reader.index.resize_row_cache(store.reader.budget.limit_bytes());
    store.reader.index.fit_jobs();
    resized
}

fn of_resize(error: ResizeError) -> Error {
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
        ResizeError::Refused { .. } => Error::Io { kind: std::io::ErrorKind::OutOfMemory, message, source: None },
    }
}
