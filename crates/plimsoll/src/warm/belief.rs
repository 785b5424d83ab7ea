//! Which objects of an image are true of the runs that there are now.
//!
//! A segment of objects is of a place t of the log: *of all versions of this key up to t, the newest is of GLSN v, and these are its bytes*.
//! What is kept as an object says the same of all versions that the runs have. So one may become the other if, of the key, the runs have no
//! version that is younger than t. Where could one be?
//!
//! - In a current run that has versions younger than t: its filter is asked. If it lets the key pass, the object is left out, whether it is
//!   the same or not: to find that out costs the page that it would spare.
//! - In a history run, if it is a deletion that was moved there: they are asked the same way, if any was moved that is younger than t.
//! - Nowhere, because it was dropped. A version that t knew as the newest leaves the current runs only when a younger one supersedes it. The
//!   youngest of these stays there, unless it is a deletion. So a segment that is older than the youngest deletion that was dropped from the
//!   keyspace says nothing.
//!
//! What stands above the runs (memtables, adopted runs, and so all that recovery replays) is younger, and asked before objects are.

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::pool::Touch;

use crate::index::view::View;
use crate::types::error::Result;

/// Whether a view has nothing younger than `since` at all: then every object of that place is true still.
pub(crate) fn is_all_older(view: &View, since: Glsn) -> bool {
    let limits = &view.limits;
    limits.deletions_moved <= since
        && limits.deletions_dropped_in.iter().all(|(_, glsn)| *glsn <= since)
        && view.runs.iter().all(|run| run.max_glsn() <= since)
}

/// Whether the runs of a view have no version of an index key that is younger than `since`, as far as that can be said without a leaf; `version`
/// is the newest up to there. What cannot be read is in doubt, too; who asks for it hears why. Guide pages are read through the pool.
pub(crate) fn is_true_still(view: &View, key: &[u8], version: Glsn, since: Glsn) -> bool {
    since >= youngest_deletion_dropped(view, key)
        && !stands_beside_younger(view, key, version, since)
        && has_nothing_younger(view, key, since).unwrap_or(false)
}

/// Of the keyspace of a key.
fn youngest_deletion_dropped(view: &View, key: &[u8]) -> Glsn {
    key.first_chunk().map_or(Glsn::MAX, |keyspace| view.deletions_dropped_in(u32::from_be_bytes(*keyspace)))
}

/// Whether a version can stand in one partition only, and that has younger ones than `since`: its filter lets the key pass, for it is there.
/// Reads nothing. This is what a merge of old and young leaves behind.
pub(crate) fn stands_beside_younger(view: &View, key: &[u8], version: Glsn, since: Glsn) -> bool {
    let partitions = view.runs.iter().filter_map(|run| run.partition_of(key));
    let mut with_it =
        partitions.filter(|partition| (partition.info.min_glsn..=partition.info.max_glsn).contains(&version));
    with_it.next().is_some_and(|only| only.info.max_glsn > since) && with_it.next().is_none()
}

fn has_nothing_younger(view: &View, key: &[u8], since: Glsn) -> Result<bool> {
    let history = if since < view.limits.deletions_moved { &view.history[..] } else { &[] };
    for run in view.runs.iter().chain(history).filter(|run| run.max_glsn() > since) {
        if let Some(partition) = run.partition_of(key).filter(|partition| partition.info.max_glsn > since)
            && partition.leaf_that_may_have(key, Touch::Point)?.is_some()
        {
            return Ok(false);
        }
    }
    Ok(true)
}
