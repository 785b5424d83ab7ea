//! Commits of a branch to look up in another store, to find the newest one that it has.

use plimsoll_log::glsn::Glsn;

use crate::api::branches::Branch;
use crate::sync::commit_id::CommitId;
use crate::sync::ids::{Ids, Place};
use crate::types::error::Result;

/// The last commit that a branch contains; `None` if it contains none.
pub(super) fn tip_of(ids: &Ids, branch: &Branch) -> Result<Option<Place>> {
    ids.tip((branch.id(), Glsn::MAX))
}

/// The ids of some commits of a branch, newest first, each once: the branch's last commit, and the
/// last commit at 1, 2, 4, … GLSNs before it. There are at most 65.
pub(super) fn samples(ids: &Ids, branch: &Branch) -> Result<Vec<CommitId>> {
    let Some(tip) = tip_of(ids, branch)? else { return Ok(Vec::new()) };
    let (mut samples, mut distance) = (vec![tip.id], 1);
    let mut last = tip;
    while let Some(at) = tip.glsn.0.checked_sub(distance).filter(|at| *at > 0) {
        distance *= 2;
        if at >= last.glsn.0 {
            continue;
        }
        let Some(place) = ids.tip((branch.id(), Glsn(at)))? else { break };
        samples.push(place.id);
        last = place;
    }
    Ok(samples)
}
