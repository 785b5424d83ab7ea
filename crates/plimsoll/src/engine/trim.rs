//! Frees the old end of the log.
//!
//! Three kinds of entries stay: those that the runs do not hold yet, those that a cursor still has to read, and those that a value in a run
//! points to. Compaction first moves such values into blob files ([`crate::index::Horizon::relocate_below`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use plimsoll_log::glsn::Glsn;

use crate::engine::Engine;
use crate::index::blobs::Left;
use crate::types::error::{Error, Lift, Result};
use crate::types::events;

/// Frees whole segments below `until`; returns the first remaining GLSN.
pub(crate) fn trim(store: &Arc<Engine>, until: Glsn) -> Result<Glsn> {
    store.check_writable()?;
    check_keeps(store)?;
    let newest = store.visible();
    if until > newest.next() {
        return Err(Error::Future { asked: until, newest });
    }
    let until = until.min(store.catalog.cursors.oldest());
    store.catalog.horizon.trim_wanted.fetch_max(until.0, Ordering::AcqRel);
    store.flush()?;
    if store.reader.index.min_pointer().is_some_and(|oldest| oldest < until) {
        store.reader.index.relocate()?;
    }
    let _turn = store.maintenance.trim_lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // Again: a cursor may have been created in between. From here on none is.
    free(store, until.min(store.catalog.cursors.oldest()))
}

/// Fails if another process does the background work of the store.
pub(crate) fn check_keeps(store: &Engine) -> Result<()> {
    match store.members() {
        Some(members) if !members.is_keeper() => Err(Error::NotKeeper { pid: members.keeper_pid() }),
        _ => Ok(()),
    }
}

/// Frees unneeded segments below `until`. While a backup or a verification is running, they are left for later.
pub(crate) fn free_if_idle(store: &Engine, until: Glsn) -> Result<()> {
    match store.maintenance.trim_lock.try_lock() {
        Ok(_turn) => free(store, until.min(store.catalog.cursors.oldest())).map(|_| ()),
        Err(_) => Ok(()),
    }
}

fn free(store: &Engine, until: Glsn) -> Result<Glsn> {
    // The checkpoint first: a flush in between may add runs that point behind this one, never before it.
    let flushed = store.reader.index.checkpoint().glsn.next();
    let needed = store.reader.index.min_pointer().unwrap_or(Glsn::MAX);
    // What other members do not have in their runs yet, they read in the log.
    let others = store.members().map_or(Glsn::MAX, |members| members.oldest_checkpoint().next());
    let until = until.min(flushed).min(needed).min(others);
    let (log, clock) = (&store.reader.log, &store.options.clock);
    let (start, before) = (clock.monotonic_nanos(), log.bounds().first);
    let first = log.trim(until, &|blob| store.reader.index.uses_blob(blob)).lift()?;
    if first > before {
        sweep_blobs(store);
        events::trimmed(first, first.0 - before.0, clock.monotonic_nanos() - start);
    }
    Ok(first)
}

/// Removes files of moved values that no run uses any more: they are no record's, so no trim removes them. Those that cannot be removed now
/// are tried again at the next trim, or at the next opening.
fn sweep_blobs(store: &Engine) {
    let (index, log) = (&store.reader.index, &store.reader.log);
    let keep = |blob| index.uses_blob(blob);
    let left = index.take_left_blobs();
    let swept = match &left {
        Left::Many => log.sweep_blobs(&keep),
        Left::These(blobs) => log.sweep_these_blobs(&Vec::from_iter(blobs.iter().copied()), &keep),
    };
    if swept.is_err() {
        index.put_back_blobs(left);
    }
}
