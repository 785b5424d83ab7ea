//! Changes the memory budget of an open store: because its owner asks for it, or because it is one
//! of several that share a total.

use plimsoll_log::members::Members;
use plimsoll_memory::budget::{OutOfBudget, ResizeError};
use plimsoll_memory::pool::Pool;

use crate::engine::Engine;
use crate::engine::open::POOL_FLOOR_SHARE;
use crate::engine::trim::LogSpace;
use crate::read::reader::Reader;
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::machine_memory::check_there_is;
use crate::types::options::{MIN_MEMORY_BYTES, check_memory_bytes};

/// Changes the budget of an open store. If it shrinks and memtables are in the way, they are
/// flushed.
pub(crate) fn set(store: &Engine, bytes: u64) -> Result<()> {
    store.reader.owner.check()?;
    check_memory_bytes(bytes)?;
    check_there_is(bytes)?;
    let members = store.space.members();
    if let Some(total_bytes) = members.and_then(|members| members.memory_total()) {
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
    if let Some(members) = members {
        members.has_memory(bytes);
    }
    Ok(())
}

fn resize(pool: &Pool, reader: &Reader, bytes: u64) -> Result<(), ResizeError> {
    // First: the memory that the row cache releases is free when the budget shrinks.
    reader.index.runs.resize_row_cache(bytes.min(reader.budget.limit_bytes()));
    let resized = pool.resize(bytes, bytes / POOL_FLOOR_SHARE);
    // In any case: the row cache gets its share of the budget as it is now.
    reader.index.runs.resize_row_cache(reader.budget.limit_bytes());
    reader.index.compaction.fit();
    resized
}

/// Fits the budget to this member's share of what all members have together. Returns whether it is
/// to be tried again soon: memory is held which is released first, or another member's share has to
/// shrink before.
pub(crate) fn fit_share(pool: &Pool, space: &LogSpace, members: &Members) -> Result<bool> {
    let Some(share) = members.memory_share() else { return Ok(false) };
    let (reader, index) = (&space.reader, &space.reader.index);
    let now = reader.budget.limit_bytes();
    if share < now {
        let to = share.max(MIN_MEMORY_BYTES);
        let fitted = match resize(pool, reader, to) {
            Err(ResizeError::Held { missing_bytes, .. }) => {
                // Memtables are in the way: whoever may flush them is asked to.
                space
                    .sequencer
                    .try_at_applied(|applied| index.memtables.close_if_none_waits(applied));
                members.want_flush(space.sequencer.applied());
                // What is free already is given back now.
                let most = to.saturating_add(missing_bytes + missing_bytes / 4);
                if most < now { resize(pool, reader, most) } else { Ok(()) }
            }
            fitted => fitted,
        };
        let has = reader.budget.limit_bytes();
        if has < now {
            members.has_memory(has);
        }
        fitted.or_else(|error| {
            if matches!(error, ResizeError::Held { .. }) { Ok(()) } else { Err(of_resize(error)) }
        })?;
        return Ok(has > to);
    }
    if share <= now {
        return Ok(false);
    }
    // Another one that joins, leaves or grows: later.
    let Ok(Some(granted)) = members.grow() else { return Ok(true) };
    if granted > now
        && let Err(error) = resize(pool, reader, granted)
    {
        members.has_memory(now);
        return Err(of_resize(error));
    }
    Ok(granted < share)
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
        ResizeError::Refused { .. } => {
            Error::Io { kind: std::io::ErrorKind::OutOfMemory, message, source: None }
        }
    }
}
