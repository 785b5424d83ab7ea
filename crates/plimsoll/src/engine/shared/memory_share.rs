//! Adjusts the memory budget of this process to its share, if several processes share a total.

use plimsoll_log::members::Members;
use plimsoll_memory::budget::ResizeError;
use plimsoll_memory::pool::Pool;

use crate::engine::memory::{of_resize, resize};
use crate::engine::trim::LogSpace;
use crate::types::error::Result;
use crate::types::options::MIN_MEMORY_BYTES;

/// Reduces the budget to this member's share of the total of all members. Returns whether the
/// caller must retry soon, because memory must be released first.
pub(crate) fn shrink(pool: &Pool, space: &LogSpace, members: &Members) -> Result<bool> {
    let Some(share) = members.budgets.memory_share() else { return Ok(false) };
    let (reader, index) = (&space.reader, &space.reader.index);
    let now = reader.budget.limit_bytes();
    if share >= now {
        return Ok(false);
    }
    let to = share.max(MIN_MEMORY_BYTES);
    let fitted = match resize(pool, reader, to) {
        Err(ResizeError::Held { missing_bytes, .. }) => {
            // Memtables hold the memory: ask the process that may flush them.
            space
                .sequencer
                .try_between_commits(|applied| index.memtables.close_if_none_waits(applied));
            members.marks.request_flush(space.sequencer.applied());
            // Release free memory immediately.
            let most = to.saturating_add(missing_bytes + missing_bytes / 4);
            if most < now { resize(pool, reader, most) } else { Ok(()) }
        }
        fitted => fitted,
    };
    let has = reader.budget.limit_bytes();
    if has < now {
        members.budgets.has_memory(has);
    }
    fitted.or_else(|error| {
        if matches!(error, ResizeError::Held { .. }) { Ok(()) } else { Err(of_resize(error)) }
    })?;
    Ok(has > to)
}

/// Adjusts the budget to this member's share of the total of all members. Returns whether the
/// caller must retry soon, because memory must be released first, or because another member's share
/// has to shrink.
pub(crate) fn fit(pool: &Pool, space: &LogSpace, members: &Members) -> Result<bool> {
    if shrink(pool, space, members)? {
        return Ok(true);
    }
    let Some(share) = members.budgets.memory_share() else { return Ok(false) };
    let reader = &space.reader;
    let now = reader.budget.limit_bytes();
    if share <= now {
        return Ok(false);
    }
    // Another member joins, leaves or grows: retry later.
    let Ok(Some(granted)) = members.budgets.grow() else { return Ok(true) };
    if granted > now && resize(pool, reader, granted).is_err() {
        members.budgets.has_not_grown(now);
        // The machine has no memory for it: retry at the next check.
        return Ok(false);
    }
    Ok(granted < share)
}
