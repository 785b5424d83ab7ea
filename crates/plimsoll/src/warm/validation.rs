//! Validates rows of an image against the current runs.
//!
//! A segment of rows states facts as of a position t of the log: *of all versions of this key up to
//! t, the newest has GLSN v, and these are its bytes*. An entry of the row cache states the same
//! for all versions in the runs. So a row can become an entry if the runs have no version of its
//! key younger than t. There are three cases in which the key has such a version:
//!
//! - It is in a current run with versions younger than t. The run's filter is checked. If the
//!   filter reports a possible match, the row is skipped even if it is still valid, because
//!   checking would cost the page read that the row saves.
//! - It is a deletion that was moved into a history run. The history runs are checked in the same
//!   way, if any deletion younger than t was moved.
//! - It was dropped. A version that was the newest at t leaves the current runs only when a younger
//!   one supersedes it. The youngest of these stays there, unless it is a deletion. So a segment
//!   that is older than the youngest deletion dropped from the keyspace proves nothing.
//!
//! Versions above the runs (memtables, adopted runs, and so everything that recovery replays) are
//! younger, and are checked before rows are.

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::pool::Touch;

use crate::index::sources::view::View;
use crate::types::error::Result;
use crate::types::index_key::IndexKey;

/// Whether a view has nothing younger than `since`, so that every row of that position is still
/// valid.
pub(crate) fn is_all_older(view: &View, since: Glsn) -> bool {
    let limits = &view.limits;
    limits.deletions_moved <= since
        && limits.deletions_dropped_in.iter().all(|(_, glsn)| *glsn <= since)
        && view.runs.iter().all(|run| run.max_glsn() <= since)
}

/// Whether the runs of a view have no version of an index key younger than `since`, as far as
/// filters show without reading a leaf; `version` is the newest up to `since`. If a run cannot be
/// read, the answer is no, and a later read of the key reports the error. Guide pages are read
/// through the pool; `loads` counts the ones that were not in memory.
pub(crate) fn is_current(
    view: &View,
    key: &[u8],
    version: Glsn,
    since: Glsn,
    loads: &mut u64,
) -> bool {
    since >= youngest_deletion_dropped(view, key)
        && !shares_table_with_younger(view, key, version, since)
        && has_nothing_younger(view, key, since, loads).unwrap_or(false)
}

/// The youngest deletion that was dropped from the keyspace of `key`.
fn youngest_deletion_dropped(view: &View, key: &[u8]) -> Glsn {
    let keyspace = IndexKey::new(key).split();
    keyspace.map_or(Glsn::MAX, |(keyspace, _)| view.deletions_dropped_in(keyspace))
}

/// Whether the only table that can hold a version of the key has versions younger than `since`. The
/// table's filter matches the key because of `version` itself, so it cannot show that the table has
/// no younger version of the key. Reads nothing. A merge of old and young versions leaves such
/// tables behind.
pub(crate) fn shares_table_with_younger(
    view: &View,
    key: &[u8],
    version: Glsn,
    since: Glsn,
) -> bool {
    let tables = view.runs.iter().filter_map(|run| run.table_of(key));
    let mut with_it =
        tables.filter(|table| (table.info.min_glsn..=table.info.max_glsn).contains(&version));
    with_it.next().is_some_and(|only| only.info.max_glsn > since) && with_it.next().is_none()
}

fn has_nothing_younger(view: &View, key: &[u8], since: Glsn, loads: &mut u64) -> Result<bool> {
    let history = if since < view.limits.deletions_moved { &view.history[..] } else { &[] };
    for run in view.runs.iter().chain(history).filter(|run| run.max_glsn() > since) {
        if let Some(table) = run.table_of(key).filter(|table| table.info.max_glsn > since) {
            let guided = table.leaf_that_may_have(key, Touch::Point)?;
            *loads += u64::from(guided.misses);
            if guided.leaf.is_some() {
                return Ok(false);
            }
        }
    }
    Ok(true)
}
